//! The data listener without connections, for the simulation: requests go to the same handlers.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _, empty};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::body::ServeBody;
use super::load::Load;
use super::session::{Unwrapped, unwrap_body};
use super::{Config, Queues, Server, Upstream, v1};
use crate::hub::Hub;

/// The body of an answer.
pub type InProcessBody = BoxStream<'static, io::Result<Bytes>>;

/// Answers requests that come over no connection. Cheap to clone.
#[derive(Clone)]
pub struct InProcess(Router);

impl InProcess {
    /// Serves what a hub has.
    pub fn new(hub: Hub, config: Config, queues: Queues, drain: CancellationToken) -> Self {
        let upstream = Upstream { pass: None, definition: Arc::new(|_| Box::pin(async { None })) };
        let server = Server::new(hub, config, upstream, queues, drain);
        Self(v1().layer(Extension(Arc::new(Load::default()))).with_state(server))
    }

    /// Answers a GET: the status, and the body as it is made. Streams of `/v1/watch` take over their connection, and have no
    /// body here.
    pub async fn get(&self, path: &str) -> (StatusCode, InProcessBody) {
        let (status, _, body) = self.get_with(path, HeaderMap::new()).await;
        (status, body)
    }

    /// Answers a GET with these headers: the status, the headers, and the body as with [`Self::get`].
    pub async fn get_with(&self, path: &str, headers: HeaderMap) -> (StatusCode, HeaderMap, InProcessBody) {
        let mut request = Request::get(path).body(Body::empty()).expect("a path is a URI");
        *request.headers_mut() = headers;
        let Ok(response) = self.0.clone().oneshot(request).await;
        match unwrap_body(response) {
            Unwrapped::Session(response, _) => {
                (response.status(), response.headers().clone(), empty().boxed())
            }
            Unwrapped::Body(response) => {
                let (parts, body) = response.into_parts();
                let body = match body {
                    ServeBody::Axum(body) => body,
                    ServeBody::Frames(frames) => frames.into_plain_response().into_body(),
                };
                let body = body.into_data_stream().map(|data| data.map_err(io::Error::other)).boxed();
                (parts.status, parts.headers, body)
            }
        }
    }
}
