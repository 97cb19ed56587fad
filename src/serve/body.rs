//! Response bodies: axum's own, or frames by reference.
//!
//! Why not axum's body for everything: its data is one `Bytes`, so each slice of a frame would be an HTTP chunk of its own.
//! Our data is a whole batch, which hyper writes as one chunk by one vectored write. Our body travels through axum in the
//! response's extensions, and replaces axum's body after the router. So does a stream that takes over the connection.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use http::{Extensions, HeaderName, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::ApiError;
use crate::encode::Frames;

/// An internal header with the exact length of a body made of frames. It becomes Content-Length when the answer is sent.
pub(super) const EXACT_LENGTH: HeaderName = HeaderName::from_static("informerd-exact-length");

/// The body of every response.
pub(super) enum ServeBody {
    /// Made by axum.
    Axum(axum::body::Body),
    /// Frames as the socket drains.
    Frames(FramesBody),
}

/// A stream of frames as a body.
pub(super) struct FramesBody(Option<Pin<Box<dyn Stream<Item = io::Result<Frames>> + Send>>>);

/// Carries what axum does not know through its router, in the response's extensions: a body of frames, or what takes over the
/// connection.
pub(super) struct Carried<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Carried<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static> Carried<T> {
    pub(super) fn new(cargo: T) -> Self {
        Self(Arc::new(Mutex::new(Some(cargo))))
    }

    /// Takes it out of a response's extensions, if such a thing is there.
    pub(super) fn take(extensions: &mut Extensions) -> Option<T> {
        let carried = extensions.remove::<Self>()?;
        carried.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T: Send + 'static> IntoResponse for Carried<T> {
    fn into_response(self) -> Response {
        let mut response = ().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl FramesBody {
    pub(super) fn new(stream: impl Stream<Item = io::Result<Frames>> + Send + 'static) -> Self {
        Self(Some(Box::pin(stream)))
    }

    /// The next frames; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<io::Result<Frames>> {
        self.0.as_mut()?.next().await
    }

    /// A response with this body.
    pub(super) fn into_response(self) -> Response {
        Carried::new(self).into_response()
    }

    /// A response with axum's own body, so that its layers see the bytes, for compression.
    pub(super) fn into_plain_response(self) -> Response {
        let stream = self.0.unwrap_or_else(|| Box::pin(futures_util::stream::empty()));
        let parts = stream.flat_map(|frames| {
            let (parts, error) = match frames {
                Ok(frames) => (Some(frames.into_parts().map(Ok)), None),
                Err(error) => (None, Some(Err(error))),
            };
            let parts: Vec<io::Result<Bytes>> = parts.into_iter().flatten().chain(error).collect();
            futures_util::stream::iter(parts)
        });
        axum::body::Body::from_stream(parts.fuse()).into_response()
    }
}

/// Why an answer breaks off whose state, or whose rest, was held for too long.
pub(super) fn too_slow() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the client is too slow: the rest of the answer is no longer held",
    )
}

/// Time for the body of a request to arrive: enough for slow links, too short to hold many connections.
const JSON_TIMEOUT: Duration = Duration::from_secs(10);

/// The error of a body that is no such JSON as `accepted` says. Shows how it begins.
pub(super) fn wrong_json(field: &str, body: &[u8], accepted: &str) -> ApiError {
    // The error takes as many characters of a value.
    let begin = &body[..body.len().min(200)];
    ApiError::invalid(field, &String::from_utf8_lossy(begin), accepted)
}

/// Whether JSON is an object. From an array serde would read a struct's members by their order.
pub(super) fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().starts_with(b"{")
}

/// Reads the body of a request that is JSON of at most `bytes_max` bytes.
///
/// # Errors
/// 415 for another content type, 413 for a longer body, 408 for a slow one, 400 for one that breaks off.
pub(super) async fn json(request: Request, bytes_max: usize) -> Result<Bytes, ApiError> {
    let is_json = |value: &http::HeaderValue| {
        let kind = value.to_str().ok().and_then(|text| text.split(';').next());
        kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    };
    // A page of another origin can send other types without asking first (CORS).
    if !request.headers().get(http::header::CONTENT_TYPE).is_some_and(is_json) {
        let message = "expected Content-Type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message));
    }
    let read = axum::body::to_bytes(request.into_body(), bytes_max);
    let Ok(read) = tokio::time::timeout(JSON_TIMEOUT, read).await else {
        let message = format!("the body did not arrive within {} s", JSON_TIMEOUT.as_secs());
        return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message));
    };
    read.map_err(|error| {
        let is_long = std::error::Error::source(&error)
            .is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
        if is_long {
            let message = format!("the body has more than {bytes_max} bytes");
            return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message);
        }
        ApiError::bad_request("the body broke off")
    })
}

impl Body for ServeBody {
    type Data = Frames;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Frames>, axum::Error>>> {
        match self.get_mut() {
            Self::Axum(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| {
                    frame.map(|frame| {
                        frame.map_data(|bytes| {
                            let mut frames = Frames::new();
                            frames.share(bytes);
                            frames
                        })
                    })
                }))
            }
            Self::Frames(FramesBody(stream)) => {
                let Some(open) = stream else { return Poll::Ready(None) };
                let frames = ready!(open.as_mut().poll_next(context));
                if frames.is_none() {
                    *stream = None;
                }
                Poll::Ready(frames.map(|frames| frames.map(Frame::data).map_err(axum::Error::new)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Axum(body) => body.is_end_stream(),
            Self::Frames(FramesBody(stream)) => stream.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Axum(body) => body.size_hint(),
            Self::Frames(_) => SizeHint::new(),
        }
    }
}
