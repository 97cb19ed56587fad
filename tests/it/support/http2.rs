//! A client of HTTP/2 without TLS, by prior knowledge.

use std::net::SocketAddr;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio_util::io::StreamReader;
use tokio_util::task::AbortOnDropHandle;

/// A connection, closed when it and all its answers are dropped.
pub(crate) struct Connection {
    address: SocketAddr,
    requests: SendRequest<Empty<Bytes>>,
    driver: AbortOnDropHandle<hyper::Result<()>>,
}

/// An answer whose body is read as it arrives.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Pin<Box<dyn AsyncRead + Send>>,
}

impl Connection {
    /// Opens a connection. The windows, in bytes, are those of each request and of the whole connection.
    pub(crate) async fn open(address: SocketAddr, windows: Option<(u32, u32)>) -> std::io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        if let Some((request, all)) = windows {
            builder.initial_stream_window_size(request).initial_connection_window_size(all);
        }
        let (requests, connection) =
            builder.handshake(TokioIo::new(socket)).await.map_err(std::io::Error::other)?;
        let driver = AbortOnDropHandle::new(tokio::spawn(connection));
        Ok(Self { address, requests, driver })
    }

    /// `GET`.
    pub(crate) async fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> hyper::Result<Answer> {
        self.requests.ready().await?;
        let mut request = Request::get(format!("http://{}{target}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.requests.send_request(request.body(Empty::new()).expect("a request")).await?;
        let (parts, body) = answer.into_parts();
        let body = body.into_data_stream().map_err(std::io::Error::other);
        Ok(Answer { status: parts.status, headers: parts.headers, body: Box::pin(StreamReader::new(body)) })
    }

    /// Waits until the server has closed the connection, while this client would go on.
    pub(crate) async fn closed(self) {
        let _ = self.driver.await;
    }

    /// Waits until the server has closed the connection.
    pub(crate) async fn ended(self) -> hyper::Result<()> {
        drop(self.requests);
        self.driver.await.expect("the connection did not panic")
    }
}
