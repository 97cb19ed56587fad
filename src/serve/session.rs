//! What a connection is used for after its last request, and how it takes over from hyper.

use std::pin::Pin;

use axum::http::{StatusCode, Version, header};
use axum::response::Response;

use super::body::{Carried, FramesBody, ServeBody};
use super::multiplex::Multiplex;
use super::peer::ConnectionPermit;
use super::stream::Socket;
use super::watch_answer::WatchAnswer;
use crate::encode::{Frames, Framing};

/// What a connection is used for after its last request.
pub(super) enum Session {
    /// One stream.
    Watch(WatchAnswer),
    /// Many, each with an id.
    Multiplex(Box<Multiplex>),
}

/// A session that is about to take over its connection.
pub(super) struct Takeover {
    head: Vec<u8>,
    session: Session,
    framing: Framing,
}

/// How a response is sent.
pub(super) enum Unwrapped {
    /// By hyper.
    Body(http::Response<ServeBody>),
    /// By the session itself.
    Session(http::Response<()>, Session),
}

/// Takes the body or the session that axum has carried out of a response.
pub(super) fn unwrap_body(response: Response) -> Unwrapped {
    let (mut parts, body) = response.into_parts();
    let frames = Carried::<FramesBody>::take(&mut parts.extensions);
    let watch = Carried::take(&mut parts.extensions).map(Session::Watch);
    let session = watch.or_else(|| Carried::take(&mut parts.extensions).map(Session::Multiplex));
    if frames.is_some() || session.is_some() {
        // axum has set the length of its empty placeholder.
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    if let Some(session) = session {
        return Unwrapped::Session(http::Response::from_parts(parts, ()), session);
    }
    let body = frames.map_or_else(|| ServeBody::Axum(body), ServeBody::Frames);
    Unwrapped::Body(http::Response::from_parts(parts, body))
}

impl Takeover {
    /// The takeover of a connection with an HTTP/1 request.
    pub(super) fn new(session: Session, response: &http::Response<()>) -> Self {
        let (status, headers) = (response.status(), response.headers());
        let upgrades = status == StatusCode::SWITCHING_PROTOCOLS;
        let old = response.version() == Version::HTTP_10;
        let framing = if upgrades || old { Framing::Plain } else { Framing::Chunked };
        let number = if old { 0 } else { 1 };
        let mut head = format!("HTTP/1.{number} {status}\r\n").into_bytes();
        for (name, value) in headers.iter().filter(|(name, _)| **name != header::CONTENT_LENGTH) {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        if !upgrades {
            let date = httpdate::fmt_http_date(std::time::SystemTime::now());
            head.extend_from_slice(format!("date: {date}\r\nconnection: close\r\n").as_bytes());
        }
        if framing == Framing::Chunked {
            head.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        head.extend_from_slice(b"\r\n");
        Self { head, session, framing }
    }

    /// Serves the session until it or the client ends. `read` are bytes of the client that were read beyond its request.
    pub(super) fn begin<S: Socket>(
        self,
        socket: S,
        read: &[u8],
        connected: ConnectionPermit,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Self { head, session, framing } = self;
        let mut frames = Frames::new();
        frames.share(head.into());
        let socket = Box::new(socket);
        match session {
            Session::Watch(answer) => answer.begin(socket, framing, frames, read, connected),
            Session::Multiplex(multiplex) => {
                Box::pin(multiplex.run(socket, frames, read.to_vec(), connected))
            }
        }
    }
}

impl Session {
    /// The stream as the body of an answer on a shared connection (HTTP/2), which a WebSocket never has.
    pub(super) fn into_body(self) -> FramesBody {
        match self {
            Self::Watch(answer) => answer.into_body(),
            Self::Multiplex(_) => FramesBody::new(futures_util::stream::empty()),
        }
    }
}
