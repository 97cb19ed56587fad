//! Pass-through: requests that the cache cannot answer are sent to the API server if the operator allows it.
//!
//! This room does not know the API server; `app` provides a [`Forward`]. Requests are sent with informerd's own credentials,
//! and without any header by which a client could choose another identity.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};
use tracing::info;

use super::load::{EndsWithClient, Load};
use super::peer::Peer;
use super::{ApiError, metrics};

/// Request headers that are passed through. All others are removed: `Authorization`, `Impersonate-*`, cookies, and
/// hop-by-hop headers.
const ASKED: [HeaderName; 4] =
    [header::ACCEPT, header::CONTENT_TYPE, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE];

/// Response headers that are passed through.
const ANSWERED: [HeaderName; 9] = [
    header::ALLOW,
    header::CACHE_CONTROL,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LOCATION,
    header::RETRY_AFTER,
    header::VARY,
    header::WARNING,
];

/// Time for a request's body to arrive, as it takes one of few places meanwhile. A body of the largest size arrives in this
/// time at a megabit a second.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The API server's answer with a streamed body; or a sentence that says why there is none.
pub type Forwarded = Pin<Box<dyn Future<Output = Result<Response, String>> + Send>>;

type BoxError = Box<dyn Error + Send + Sync>;

/// Sends a request to the API server. Dropping the future, or the body of the answer, ends the request.
pub type Forward = Arc<dyn Fn(Request<Bounded>) -> Forwarded + Send + Sync>;

/// The streamed body of a request, with a limit of size and time.
pub struct Bounded {
    body: Body,
    /// Bytes that may still arrive.
    left: usize,
    deadline: Pin<Box<Sleep>>,
    trouble: Arc<OnceLock<Trouble>>,
}

/// Why a body did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    TooLarge,
    TooSlow,
    Broken(String),
}

/// The methods that are passed through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// `GET`.
    Reads,
    /// Every method.
    All,
}

/// Which requests may be passed through, and how many at once.
#[derive(Clone, Debug)]
pub struct PassConfig {
    /// Which methods.
    pub passed: Passed,
    /// Resources whose subresource `proxy` is passed through: `services`.
    pub proxies: Vec<String>,
    /// Largest number of concurrent requests.
    pub concurrent_max: usize,
    /// Largest size of a request's body, in bytes.
    pub body_bytes_max: usize,
}

/// Passes requests through to the API server.
pub struct PassThrough {
    config: PassConfig,
    forward: Forward,
    places: Arc<Semaphore>,
}

impl PassThrough {
    /// A pass-through with these limits.
    pub fn new(config: PassConfig, forward: Forward) -> Self {
        let places = Arc::new(Semaphore::new(config.concurrent_max));
        Self { config, forward, places }
    }

    /// Whether requests of this method are passed through.
    pub(super) fn passes(&self, method: &Method) -> bool {
        match self.config.passed {
            Passed::Reads => method == Method::GET,
            Passed::All => true,
        }
    }

    /// The API server's answer.
    ///
    /// # Errors
    /// 403 for a proxy that is not allowed, 501 for an upgrade, 503 for too many concurrent requests, 413 for a body that is too
    /// large and 408 for one that is too slow, 502 if the API server did not answer.
    pub(super) async fn pass(&self, request: &Parts, body: Body) -> Result<Response, ApiError> {
        self.check_proxy(request.uri.path())?;
        let mut log = WriteLog::begin(request);
        let answer = self.pass_checked(request, body).await;
        log.end(answer.as_ref().map_or_else(ApiError::code, Response::status));
        answer
    }

    /// Refuses proxies that are not allowed: a `GET` of `services/…/proxy/delete?id=1` may change something behind the Service,
    /// with informerd's identity.
    fn check_proxy(&self, path: &str) -> Result<(), ApiError> {
        let Some(resource) = proxied(path) else { return Ok(()) };
        if self.config.proxies.contains(&resource) {
            return Ok(());
        }
        metrics::limit_hit("pass_through_proxy");
        let message = format!(
            "{resource}/proxy is not passed through, since even a GET may change something behind it; allow it with \
             --pass-through-proxy {resource} (passThroughProxy)"
        );
        Err(ApiError::forbidden(message))
    }

    async fn pass_checked(&self, request: &Parts, body: Body) -> Result<Response, ApiError> {
        if request.headers.contains_key(header::UPGRADE) {
            let message = "connections that change their protocol (exec, attach, port-forward, and watches of what is not \
                           cached over a WebSocket) are not passed through; connect to the API server itself";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message));
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            metrics::limit_hit("pass_through_max");
            let message = format!(
                "all {} requests that may be passed through at once are under way",
                self.config.concurrent_max
            );
            return Err(ApiError::unavailable(message, 1));
        };
        let ends = request.extensions.get::<Arc<Load>>().map(EndsWithClient::begin);
        if body.size_hint().lower() > self.config.body_bytes_max as u64 {
            return Err(self.refusal(Trouble::TooLarge));
        }
        let trouble = Arc::<OnceLock<Trouble>>::default();
        let body = Bounded::new(body, self.config.body_bytes_max, trouble.clone());
        // Only path and query: the client must not choose the server.
        let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut forwarded = Request::builder().method(request.method.clone()).uri(target);
        if let Some(headers) = forwarded.headers_mut() {
            copy(&request.headers, &ASKED, headers);
        }
        let forwarded = forwarded
            .body(body)
            .map_err(|error| ApiError::bad_request(format!("this cannot be passed through: {error}")))?;
        let answer = (self.forward)(forwarded).await.map_err(|error| {
            // The request's body was not complete.
            if let Some(trouble) = trouble.get() {
                return self.refusal(trouble.clone());
            }
            let message = format!("the API server did not answer what was passed through: {error}");
            ApiError::new(StatusCode::BAD_GATEWAY, "BadGateway", message)
        })?;
        let (parts, body) = answer.into_parts();
        // The permit is held until the body ends or its reader is gone.
        let body = body.map_frame(move |frame| {
            let _held = (&place, &ends);
            frame
        });
        let mut response = Response::new(Body::new(body));
        *response.status_mut() = parts.status;
        copy(&parts.headers, &ANSWERED, response.headers_mut());
        Ok(response)
    }

    fn refusal(&self, trouble: Trouble) -> ApiError {
        match trouble {
            Trouble::TooLarge => {
                metrics::limit_hit("pass_through_body_bytes_max");
                let message = format!("the body exceeds the limit of {} bytes", self.config.body_bytes_max);
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
            }
            Trouble::TooSlow => {
                metrics::limit_hit("pass_through_body_timeout");
                let message = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
            }
            Trouble::Broken(why) => ApiError::bad_request(format!("the body cannot be read: {why}")),
        }
    }
}

/// The resource whose subresource `proxy` a path names: `services`. The path is decoded as the API server decodes it,
/// and read with and without empty segments, as servers differ there.
fn proxied(path: &str) -> Option<String> {
    let path = percent_decode_str(path).decode_utf8_lossy();
    let all: Vec<&str> = path.trim_matches('/').split('/').collect();
    let filled: Vec<&str> = all.iter().copied().filter(|segment| !segment.is_empty()).collect();
    let resource = |segments: &[&str]| {
        let rest = match segments {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => return None,
        };
        match rest {
            ["namespaces", _, resource, _, "proxy", ..] => Some((*resource).to_owned()),
            ["namespaces", ..] => None,
            // The form of API servers before 1.10 names the resource behind the verb.
            ["proxy", "namespaces", _, resource, ..] => Some((*resource).to_owned()),
            ["proxy", resource, ..] | [resource, _, "proxy", ..] => Some((*resource).to_owned()),
            _ => None,
        }
    };
    resource(&all).or_else(|| resource(&filled))
}

/// Logs a write when it is answered, or when its client leaves. The query is not logged, as it may hold secrets for a server
/// behind a proxy.
struct WriteLog(Option<Write>);

struct Write {
    method: Method,
    path: String,
    peer: String,
}

// === impl WriteLog ===

impl WriteLog {
    fn begin(request: &Parts) -> Self {
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&request.method);
        let write = || Write {
            method: request.method.clone(),
            path: request.uri.path().to_owned(),
            peer: request.extensions.get::<Peer>().map(Peer::to_string).unwrap_or_default(),
        };
        Self((!reads).then(write))
    }

    fn end(&mut self, code: StatusCode) {
        if let Some(Write { method, path, peer }) = self.0.take() {
            info!(%method, path, peer, code = code.as_u16(), "passed a write through");
        }
    }
}

impl Drop for WriteLog {
    fn drop(&mut self) {
        if let Some(Write { method, path, peer }) = self.0.take() {
            // The write may have been executed.
            info!(%method, path, peer, "the client left a write that was passed through");
        }
    }
}

// === impl Bounded ===

impl Bounded {
    fn new(body: Body, bytes_max: usize, trouble: Arc<OnceLock<Trouble>>) -> Self {
        Self { body, left: bytes_max, deadline: Box::pin(sleep(BODY_TIMEOUT)), trouble }
    }

    fn fail(&self, trouble: Trouble, why: &'static str) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // The first failure is the reason.
        let _ = self.trouble.set(trouble);
        Poll::Ready(Some(Err(why.into())))
    }
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            ready!(self.deadline.as_mut().poll(context));
            return self.fail(Trouble::TooSlow, "it is too slow");
        };
        match frame {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let Some(left) = self.left.checked_sub(length) else {
                    return self.fail(Trouble::TooLarge, "it is too large");
                };
                self.left = left;
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => self.fail(Trouble::Broken(error.to_string()), "it broke off"),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn copy(from: &HeaderMap, names: &[HeaderName], to: &mut HeaderMap) {
    for name in names {
        for value in from.get_all(name) {
            to.append(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn bounded(body: Body) -> (Bounded, Arc<OnceLock<Trouble>>) {
        let trouble = Arc::<OnceLock<Trouble>>::default();
        (Bounded::new(body, 4, trouble.clone()), trouble)
    }

    #[test]
    fn proxy_paths_are_recognized() {
        for (path, resource) in [
            ("/api/v1/namespaces/a/services/b/proxy", "services"),
            ("/api/v1/namespaces/a/services/b:80/proxy/delete", "services"),
            ("/api/v1/namespaces/a/services/b/%70roxy/", "services"),
            ("/api/v1/namespaces%2fa/services/b/proxy", "services"),
            ("/api/v1/namespaces/a/pods/b/proxy/x", "pods"),
            ("/api/v1/nodes/b/proxy/stats", "nodes"),
            ("/api/v1//nodes/b/proxy/stats", "nodes"),
            ("/api/v1/nodes//proxy", "nodes"),
            ("/api/v1/proxy/nodes/b", "nodes"),
            ("/api/v1/proxy/namespaces/a/services/b", "services"),
            ("/apis/example.com/v1/namespaces/a/widgets/b/proxy", "widgets"),
        ] {
            assert_eq!(proxied(path).as_deref(), Some(resource), "{path}");
        }
        for path in [
            "/api/v1/namespaces/proxy/services/b",
            "/api/v1/namespaces/a/services/proxy",
            "/api/v1/namespaces/a/services/proxy/status",
            "/api/v1/namespaces/a/pods/proxy/log",
            "/api/v1/nodes/proxy",
            "/openapi/v3/proxy",
        ] {
            assert_eq!(proxied(path), None, "{path}");
        }
    }

    #[tokio::test]
    async fn a_body_beyond_its_limit_is_refused() {
        let (body, trouble) = bounded(Body::from("abcd"));
        assert_eq!(body.size_hint().exact(), Some(4));
        assert_eq!(&body.collect().await.unwrap().to_bytes()[..], b"abcd");
        assert_eq!(trouble.get(), None);
        let chunks = ["ab", "cd", "e"].map(|chunk| Ok::<_, BoxError>(Bytes::from_static(chunk.as_bytes())));
        let (body, trouble) = bounded(Body::from_stream(stream::iter(chunks)));
        assert!(body.collect().await.is_err());
        assert_eq!(trouble.get(), Some(&Trouble::TooLarge));
        assert!(bounded(Body::empty()).0.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_is_refused() {
        let nothing = stream::pending::<Result<Bytes, BoxError>>();
        let (body, trouble) = bounded(Body::from_stream(nothing));
        let begun = tokio::time::Instant::now();
        assert!(body.collect().await.is_err());
        assert_eq!(trouble.get(), Some(&Trouble::TooSlow));
        assert_eq!(begun.elapsed().as_secs(), BODY_TIMEOUT.as_secs());
    }

    /// The log of a future's run.
    async fn logged(future: impl Future<Output = ()>) -> String {
        use tracing::instrument::WithSubscriber as _;

        #[derive(Clone, Default)]
        struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        future.with_subscriber(subscriber).await;
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn pass_through(forward: Forward) -> PassThrough {
        let config =
            PassConfig { passed: Passed::All, proxies: Vec::new(), concurrent_max: 1, body_bytes_max: 4 };
        PassThrough::new(config, forward)
    }

    fn request(method: &str, target: &str) -> Parts {
        let mut request = Request::builder().method(method).uri(target).body(()).unwrap();
        request.extensions_mut().insert(Peer(Some(([10, 0, 0, 1], 4711).into())));
        request.into_parts().0
    }

    #[tokio::test]
    async fn a_write_is_logged_with_its_path_its_peer_and_its_answer() {
        let pass = pass_through(Arc::new(|_| Box::pin(async { Ok(Response::new(Body::empty())) })));
        let log = logged(async {
            pass.pass(&request("GET", "/api/v1/nodes"), Body::empty()).await.unwrap();
            pass.pass(&request("DELETE", "/api/v1/nodes/a?secret=1"), Body::empty()).await.unwrap();
            pass.pass(&request("POST", "/api/v1/nodes"), Body::from("large")).await.unwrap_err();
        })
        .await;
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 2, "{log}");
        for (line, told) in [
            (lines[0], [r#"method=DELETE path="/api/v1/nodes/a""#, r#"peer="10.0.0.1:4711""#, "code=200"]),
            (lines[1], [r#"method=POST path="/api/v1/nodes""#, r#"peer="10.0.0.1:4711""#, "code=413"]),
        ] {
            assert!(told.iter().all(|told| line.contains(told)) && !line.contains("secret"), "{line}");
        }
    }

    #[tokio::test]
    async fn a_write_abandoned_by_its_client_is_logged() {
        let pass = pass_through(Arc::new(|_| Box::pin(std::future::pending())));
        let log = logged(async {
            let request = request("PUT", "/api/v1/nodes/a");
            let mut write = Box::pin(pass.pass(&request, Body::empty()));
            let pending =
                std::future::poll_fn(|context| Poll::Ready(write.as_mut().poll(context).is_pending()));
            assert!(pending.await);
        })
        .await;
        assert!(log.contains("PUT") && log.contains("the client left"), "{log}");
    }
}
