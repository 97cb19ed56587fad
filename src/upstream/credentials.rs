//! The credentials of requests, as kube's layer makes them, with at most one exec plugin at a time.
//!
//! kube starts an exec plugin within the request that finds the token expired. A request that is given up releases kube's lock
//! while the plugin still runs, and the next request would start another. A plugin that hangs would then be started again with
//! every request. Here the credentials are made by a task of their own, for which the requests wait.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, FutureExt as _, Ready, Shared, ready};
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response};
use kube::client::Body;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, Service, ServiceExt as _};

/// The value of `Authorization`, `None` if there is none, for all requests that wait for it.
type Header = Result<Option<HeaderValue>, Arc<dyn Error + Send + Sync>>;

/// Adds credentials to requests.
#[derive(Clone)]
pub(super) struct Credentials {
    source: BoxCloneSyncService<Request<Body>, Response<Option<HeaderValue>>, BoxError>,
    /// The credentials that are being made.
    flight: Arc<Mutex<Option<Shared<BoxFuture<'static, Header>>>>>,
}

/// A service with credentials.
#[derive(Clone)]
pub(super) struct Authorized<S> {
    credentials: Credentials,
    service: S,
}

// === impl Credentials ===

impl Credentials {
    /// Those that a layer adds to requests.
    pub(super) fn of<L>(layer: &L) -> Self
    where
        L: Layer<Capture>,
        L::Service: Service<
                Request<Body>,
                Response = Response<Option<HeaderValue>>,
                Error: Into<BoxError>,
                Future: Send,
            > + Clone
            + Send
            + Sync
            + 'static,
    {
        let source = layer.layer(Capture).map_err(Into::into);
        Self { source: BoxCloneSyncService::new(source), flight: Arc::default() }
    }

    /// The value of the header. Must be called within a runtime: credentials that are not there yet are made by a task.
    fn header(&self) -> BoxFuture<'static, Header> {
        let mut flight = self.flight.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flight.as_ref().filter(|flight| flight.peek().is_none()) {
            return flight.clone().boxed();
        }
        let asked = self.source.clone().oneshot(Request::new(Body::empty()));
        let mut asked = asked.map(told).boxed();
        // Credentials that have not expired are there at once.
        if let Some(header) = (&mut asked).now_or_never() {
            return ready(header).boxed();
        }
        let asked = asked.shared();
        tokio::spawn(asked.clone());
        *flight = Some(asked.clone());
        asked.boxed()
    }
}

fn told(answer: Result<Response<Option<HeaderValue>>, BoxError>) -> Header {
    answer.map(Response::into_body).map_err(Arc::from)
}

impl<S> Layer<S> for Credentials {
    type Service = Authorized<S>;

    fn layer(&self, service: S) -> Authorized<S> {
        Authorized { credentials: self.clone(), service }
    }
}

/// Answers a request with the credentials that it has.
#[derive(Clone)]
pub(super) struct Capture;

impl Service<Request<Body>> for Capture {
    type Response = Response<Option<HeaderValue>>;
    type Error = BoxError;
    type Future = Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(request.headers().get(AUTHORIZATION).cloned())))
    }
}

// === impl Authorized ===

impl<S> Service<Request<Body>> for Authorized<S>
where
    S: Service<Request<Body>, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let header = self.credentials.header();
        // A clone need not be ready. So the service that is ready goes along, and the clone takes its place.
        let clone = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, clone);
        async move {
            if let Some(header) = header.await? {
                request.headers_mut().insert(AUTHORIZATION, header);
            }
            service.call(request).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::client::ConfigExt as _;
    use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
    use tokio::time::timeout;

    use super::*;

    /// Credentials of an exec plugin whose first token has expired. From the second start on it notes each start, and waits for a file, at
    /// most 20 s.
    fn expired(directory: &std::path::Path) -> Credentials {
        let answer = |token: &str, expiry: &str| {
            format!(
                r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"{token}","expirationTimestamp":"{expiry}"}}}}"#
            )
        };
        let script = format!(
            "cd {}
            if [ ! -e first ]; then touch first; echo '{}'; exit; fi
            echo started >> starts
            tries=0; until [ -e go ] || [ $tries -ge 1000 ]; do tries=$((tries + 1)); sleep 0.02; done
            echo '{}'",
            directory.display(),
            answer("old", "1970-01-01T00:00:00Z"),
            answer("new", "2999-01-01T00:00:00Z"),
        );
        let exec = ExecConfig {
            api_version: Some("client.authentication.k8s.io/v1".to_owned()),
            command: Some("sh".to_owned()),
            args: Some(vec!["-c".to_owned(), script]),
            interactive_mode: Some(ExecInteractiveMode::Never),
            ..serde_json::from_value(serde_json::json!({})).unwrap()
        };
        let mut config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        config.auth_info = AuthInfo { exec: Some(exec), ..AuthInfo::default() };
        Credentials::of(&config.auth_layer().unwrap().unwrap())
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_not_started_again_by_the_next_request() {
        let directory = tempfile::tempdir().unwrap();
        let credentials = expired(directory.path());
        for _ in 0..5 {
            let header = timeout(Duration::from_millis(30), credentials.header()).await;
            assert!(header.is_err(), "the plugin waits");
        }
        let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(credentials.header())).collect();
        std::fs::write(directory.path().join("go"), "").unwrap();
        for header in waiting {
            let header = timeout(Duration::from_secs(20), header).await.expect("an answer").unwrap().unwrap();
            assert_eq!(header.unwrap(), "Bearer new");
        }
        assert_eq!(std::fs::read_to_string(directory.path().join("starts")).unwrap(), "started\n");
        assert_eq!(credentials.header().now_or_never().unwrap().unwrap().unwrap(), "Bearer new");
    }
}
