//! The API server without its listener.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Frame, SizeHint};
use hyper::{Request, Response};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::cluster::Cluster;
use super::fault::Faults;
use super::http::{Body, Call};
use super::shared::{ApiServerConfig, Shared};

/// A Kubernetes API server over a [`Cluster`] that is called as a function. A simulation on a virtual clock needs this, as
/// sockets would depend on the real clock. Cloning makes another handle.
#[derive(Debug, Clone)]
pub struct ApiHandler {
    shared: Arc<Shared>,
}

/// An answer's body that breaks off where a socket's connection would be reset.
struct Abortable {
    body: Body,
    aborted: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
}

// === impl ApiHandler ===

impl ApiHandler {
    /// Answers for `cluster`.
    #[must_use]
    pub fn new(cluster: Cluster, config: ApiServerConfig) -> Self {
        Self { shared: Arc::new(Shared::new(cluster, Faults::default(), config)) }
    }

    /// The cluster behind it.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.shared.cluster
    }

    /// Its switchboard of faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Answers one request. Dropping the answer ends what it streams.
    pub async fn call(&self, request: Request<Bytes>) -> Response<UnsyncBoxBody<Bytes, io::Error>> {
        let (parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map_or("/", |p| p.as_str());
        self.shared.record(format!("{} {target}", parts.method));
        let abort = CancellationToken::new();
        let response = super::route::answer(&self.shared, &abort, Call::new(&parts, body)).await;
        let aborted = Box::pin(abort.cancelled_owned());
        response.map(|body| Abortable { body, aborted, ended: false }.boxed_unsync())
    }
}

// === impl Abortable ===

impl hyper::body::Body for Abortable {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.aborted.as_mut().poll(context).is_ready() {
            self.ended = true;
            return Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into())));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.ended = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
