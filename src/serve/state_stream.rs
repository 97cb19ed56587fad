//! Streams that tell how a small state changes: the counts of an index, a graph.
//!
//! Each message leads from one state to the next. A stream that is slow skips states, so nothing waits for it in memory. It has no
//! token: a client that comes back begins with the whole state.

use std::io;
use std::time::Duration;

use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use bytes::Buf as _;
use futures_util::stream::unfold;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::body::FramesBody;
use super::load::FollowsState;
use super::negotiate::accepted;
use super::params::Params;
use super::peer::Peer;
use super::{ApiError, Server, watch};
use crate::encode::{Coding, Format, Frames};
use crate::hub::{Origin, SubscriberPermit};

/// The parameters of every such stream.
pub(super) const PARAMS: &[&str] = &["coalesceMs", "timeoutSeconds", "transport"];
/// What a stream is offered as.
const OFFERED: [(&str, Format); 3] = [
    ("text/event-stream", Format::Sse),
    ("application/x-ndjson", Format::Ndjson),
    ("application/json", Format::Ndjson),
];
/// Shortest time between two messages of a stream, unless it asks for another one: a screen shows no more.
const COALESCE: Duration = Duration::from_millis(100);

/// A state whose changes are told.
pub(super) trait WatchedState: Send + 'static {
    /// Waits until the state may be another one than at the last step.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// What has changed since the last step; `None` if nothing has. The first step tells the whole state.
    fn step(&mut self) -> impl Future<Output = Result<Option<Message>, Over>> + Send;

    /// Shortest time between two steps.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }
}

/// A message of a stream. As JSON: `{"object":OBJECT,"type":KIND}`.
#[derive(Serialize)]
pub(super) struct Message {
    pub(super) object: Value,
    /// The name of the event over SSE.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
}

/// Why a stream ends: it cannot tell any more what has changed.
pub(super) struct Over;

/// How a stream is asked for.
pub(super) struct Asked {
    format: Format,
    coalesce: Duration,
    timeout: Option<Duration>,
    /// Whether only the head of the answer is asked for.
    pub(super) is_head: bool,
    origin: Origin,
}

/// A stream under way.
struct StateStream<T> {
    server: Server,
    state: T,
    format: Format,
    coalesce: Duration,
    ends_at: Option<Instant>,
    /// When the last step began.
    stepped_at: Instant,
    /// Whether something may have changed since.
    is_changed: bool,
    permit: SubscriberPermit,
}

impl Asked {
    pub(super) fn read(request: &Request, params: &Params) -> Result<Self, ApiError> {
        let format = match params.get("transport") {
            Some("sse") => Format::Sse,
            Some("ndjson") => Format::Ndjson,
            Some(other) => return Err(ApiError::invalid("transport", other, "expected sse or ndjson")),
            None => accepted(request.headers(), &OFFERED)
                .ok_or_else(|| ApiError::not_acceptable("text/event-stream, application/x-ndjson"))?,
        };
        Ok(Self {
            format,
            coalesce: watch::coalesce(params)?.unwrap_or(COALESCE),
            timeout: watch::seconds(params, "timeoutSeconds")?,
            is_head: request.method() == Method::HEAD,
            origin: Origin {
                request: request.uri().to_string(),
                transport: if format == Format::Sse { "sse" } else { "ndjson" },
                peer: request.extensions().get::<Peer>().map(Peer::to_string).unwrap_or_default(),
            },
        })
    }

    /// The answer to a `HEAD`.
    pub(super) fn head(&self) -> Response {
        watch::head_of_stream(self.headers())
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = watch::stream_headers(self.format, Coding::Identity, 0);
        headers.remove(header::AGE);
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        headers
    }

    /// The answer, with the message of the first step.
    pub(super) fn answer<T: WatchedState>(
        self,
        server: Server,
        permit: SubscriberPermit,
        state: T,
        first: Option<Message>,
    ) -> Response {
        let headers = self.headers();
        let Self { format, coalesce, timeout, origin, .. } = self;
        permit.follower().comes_from(origin);
        let stepped_at = Instant::now();
        // It waits for changes from now on, as a stream in a live view does.
        permit.follower().joined(stepped_at);
        let ends_at = timeout.map(|timeout| stepped_at + timeout);
        let is_changed = false;
        let stream = StateStream { server, state, format, coalesce, ends_at, stepped_at, is_changed, permit };
        let first = first.map(|message| stream.render(&message));
        let body = unfold((stream, first), async |(mut stream, next)| {
            let frames = match next {
                Some(frames) => frames,
                None => stream.next().await?,
            };
            stream.permit.follower().sent(1, frames.remaining());
            Some((Ok::<_, io::Error>(frames), (stream, None)))
        });
        (headers, Extension(FollowsState), FramesBody::new(body).into_response()).into_response()
    }
}

impl<T: WatchedState> StateStream<T> {
    /// The next message or heartbeat; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Frames> {
        let now = Instant::now();
        let quiet_until = now + self.server.hub.config().heartbeat_interval;
        let ends_at = self.ends_at.unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        let drain = self.server.drain.clone();
        loop {
            if !self.is_changed {
                tokio::select! {
                    biased;
                    () = drain.cancelled() => return None,
                    () = sleep_until(ends_at) => return None,
                    () = self.state.changed() => self.is_changed = true,
                    () = sleep_until(quiet_until) => return Some(self.heartbeat()),
                }
            }
            // The first change after a pause is sent at once.
            let step_at = ends_at.min(self.stepped_at + self.coalesce.max(self.state.pause()));
            tokio::select! {
                biased;
                () = drain.cancelled() => return None,
                () = sleep_until(step_at) => {}
                () = sleep_until(quiet_until) => return Some(self.heartbeat()),
            }
            self.is_changed = false;
            self.stepped_at = Instant::now();
            match self.state.step().await {
                Ok(Some(message)) => return Some(self.render(&message)),
                // Steps that find nothing new must not keep a client without a sign of life.
                Ok(None) if self.stepped_at >= quiet_until => return Some(self.heartbeat()),
                Ok(None) => {}
                Err(Over) => return None,
            }
        }
    }

    fn render(&self, message: &Message) -> Frames {
        let text = serde_json::to_string(message).expect("a JSON value is valid JSON");
        let kind = message.kind;
        let mut frames = Frames::new();
        match self.format {
            Format::Sse => frames.put(&format!("event: {kind}\ndata: {text}\n\n")),
            Format::Ndjson | Format::WebSocket | Format::Kubernetes(_) => frames.put(&format!("{text}\n")),
        }
        frames.cut();
        frames
    }

    fn heartbeat(&self) -> Frames {
        let mut frames = Frames::new();
        frames.put(if self.format == Format::Sse { ":\n\n" } else { "\n" });
        frames.cut();
        frames
    }
}
