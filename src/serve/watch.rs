//! `GET /v1/watch/…`: the state, then every change.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::body::FramesBody;
use super::negotiate::{accepted, coding};
use super::params::Params;
use super::stream::WatchStream;
use super::target::{self, PROJECTION, SELECTION, Target};
use super::watch_answer::WatchAnswer;
use super::{ApiError, Server, hub_error, join, websocket};
use crate::encode::{Coding, Encoder, Format};
use crate::hub::{Form, Join, ResumeToken, StartAt, Subscription, TokenKind};

/// The parameters of a stream, over a connection of its own or among others.
const STREAM: &[&str] =
    &["changed", "patch", "coalesceMs", "join", "sendInitialEvents", "timeoutSeconds", "resyncSeconds"];
/// The parameters of a stream over a connection of its own. Among others their values have other places.
const CONNECTION: &[&str] = &["resume", "transport"];
/// The parameters of a stream among several on one connection.
pub(super) const SHARED_PARAMS: &[&[&str]] = &[SELECTION, PROJECTION, STREAM];
/// The parameters of the state of the world. A patch needs a state to apply it to, which each message may replace.
const WORLD: &[&str] = &["changed", "coalesceMs", "timeoutSeconds", "resyncSeconds"];
/// Time between two messages of the state of the world, unless another one is asked for.
const WORLD_COALESCE: Duration = Duration::from_millis(200);
const OFFERED: [(&str, Format); 4] = [
    ("text/event-stream", Format::Sse),
    ("application/x-ndjson", Format::Ndjson),
    ("application/jsonl", Format::Ndjson),
    ("application/json", Format::Ndjson),
];
/// Longest time before the first byte, while a request waits for discovery or for informers on demand.
const WAIT: Duration = Duration::from_secs(10);
/// Longest `coalesceMs`: within a minute a stream has to show that it lives, and a bookmark comes.
const COALESCE_MS_MAX: u64 = 60_000;
/// Longest `timeoutSeconds` and `resyncSeconds`: a week.
const SECONDS_MAX: u64 = 7 * 24 * 3600;

/// A request for a stream, checked but for its token.
pub(super) struct WatchRequest {
    target: Target,
    join: Option<Arc<Join>>,
    timeout: Option<Duration>,
    resync: Option<Duration>,
}

pub(super) async fn watch(
    State(server): State<Server>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let (request, _) = request.into_parts();
    let params = Params::parse(query.as_deref(), &[SELECTION, PROJECTION, STREAM, CONNECTION])?;
    let format = transport(&request.headers, &params)?;
    let asked = WatchRequest::parse(&server, target::path_after("/v1/watch/", &request.uri), &params).await?;
    let from = from(&request.headers, &params, format)?;
    asked.answer(&server, &request, from, format, |encoder| encoder).await
}

pub(super) async fn world(
    State(server): State<Server>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let (request, _) = request.into_parts();
    let params = Params::parse(query.as_deref(), &[SELECTION, PROJECTION, WORLD, CONNECTION, &["state"]])?;
    let format = transport(&request.headers, &params)?;
    let mut asked =
        WatchRequest::parse(&server, target::path_after("/v1/world/", &request.uri), &params).await?;
    asked.target.selection.form.coalesce.get_or_insert(WORLD_COALESCE);
    let from = from(&request.headers, &params, format)?;
    let full = match params.get("state") {
        None => None,
        Some("full") => Some(server.states.clone()),
        Some(other) => return Err(ApiError::invalid("state", other, "expected full")),
    };
    // Each message has the whole state, so that nothing is gained by a difference. An EventSource sends its token unasked.
    let from = if full.is_some() { StartAt::Start } else { from };
    let resumed = matches!(from, StartAt::Token(_) | StartAt::Bookmark(_));
    asked.answer(&server, &request, from, format, |encoder| encoder.of_world(resumed, full)).await
}

impl WatchRequest {
    /// Reads path and parameters, and waits until the informers are there.
    pub(super) async fn parse(server: &Server, path: &str, params: &Params) -> Result<Self, ApiError> {
        let (timeout, resync) = (seconds(params, "timeoutSeconds")?, seconds(params, "resyncSeconds")?);
        let deadline = Instant::now() + timeout.map_or(WAIT, |timeout| timeout.min(WAIT));
        let mut target = server.target(path, params, deadline).await?;
        shape(&mut target, params)?;
        let join = join::of_stream(server, &target, params, deadline).await?;
        target.started(deadline).await?;
        Ok(Self { target, join, timeout, resync })
    }

    /// Seconds since the API server was last heard, for the informer that has waited longest.
    fn age(&self) -> u64 {
        let now = Instant::now();
        let related = self.join.iter().flat_map(|join| join.informers());
        let ages =
            self.target.informers.iter().chain(related).map(|informer| informer.reader.age(now).as_secs());
        ages.max().unwrap_or(0)
    }

    /// Answers a request with the stream.
    async fn answer(
        self,
        server: &Server,
        request: &Parts,
        from: StartAt,
        format: Format,
        shape: impl FnOnce(Encoder) -> Encoder + Send,
    ) -> Result<Response, ApiError> {
        let headers = &request.headers;
        let age = self.age();
        let upgrade =
            (format == Format::WebSocket).then(|| websocket::Handshake::read(headers)).transpose()?;
        let coding = if format == Format::WebSocket { Coding::Identity } else { coding(headers) };
        if request.method == Method::HEAD {
            return Ok(head_of_stream(stream_headers(format, coding, age)));
        }
        let stream = self.open(server, from, format, |encoder| shape(encoder.compressed(coding))).await?;
        stream.comes_from(&request.uri, &request.extensions);
        let (status, headers) = match upgrade {
            Some(handshake) => (StatusCode::SWITCHING_PROTOCOLS, handshake.headers()),
            None => (StatusCode::OK, stream_headers(format, coding, age)),
        };
        Ok((status, headers, WatchAnswer::new(stream, &server.loops)).into_response())
    }

    /// Subscribes.
    pub(super) async fn open(
        self,
        server: &Server,
        from: StartAt,
        format: Format,
        shape: impl FnOnce(Encoder) -> Encoder + Send,
    ) -> Result<WatchStream, ApiError> {
        let Self { target: Target { informers, selection, .. }, join, timeout, resync } = self;
        server.turns.index(&informers, &selection).await;
        let all = informers.iter().chain(join.iter().flat_map(|join| join.informers()));
        let mut encoder = shape(Encoder::new(format, all));
        if matches!(from, StartAt::Bookmark(_)) {
            encoder = encoder.after_bookmark();
        }
        // With a join, the versions of a token belong together, so that only a bookmark has one of all informers.
        if let (StartAt::Token(token) | StartAt::Bookmark(token), None) = (&from, &join) {
            encoder = encoder.resumed_from(token);
        }
        let subscription = Subscription { informers, selection, join, from, resync, timeout };
        let subscriber =
            server.hub.subscribe(subscription).map_err(|error| hub_error::not_subscribed(&error))?;
        Ok(WatchStream::new(subscriber, encoder, server.turns.clone()))
    }
}

/// The answer to a `HEAD`. Like the stream, it has no `Content-Length`, which a body known to be empty would get.
pub(super) fn head_of_stream(headers: HeaderMap) -> Response {
    let mut response = FramesBody::new(futures_util::stream::empty()).into_response();
    response.headers_mut().extend(headers);
    response
}

pub(super) fn stream_headers(format: Format, coding: Coding, age: u64) -> HeaderMap {
    let content_type = match format {
        Format::Sse | Format::WebSocket => "text/event-stream",
        Format::Ndjson | Format::Kubernetes(_) => "application/x-ndjson",
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Makes nginx, and proxies that follow it, forward each event at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if let Some(name) = coding.name() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
    }
    headers.insert(header::AGE, age.into());
    headers
}

/// The transport: by parameter for clients that cannot set headers, by upgrade, by `Accept`.
fn transport(headers: &HeaderMap, params: &Params) -> Result<Format, ApiError> {
    let upgrade = websocket::is_upgrade(headers);
    match params.get("transport") {
        Some("websocket") if !upgrade => {
            let accepted = "expected a WebSocket handshake with it (Upgrade: websocket)";
            Err(ApiError::invalid("transport", "websocket", accepted))
        }
        Some(other @ ("sse" | "ndjson")) if upgrade => {
            Err(ApiError::invalid("transport", other, "the request upgrades to a WebSocket"))
        }
        Some("sse") => Ok(Format::Sse),
        Some("ndjson") => Ok(Format::Ndjson),
        Some("websocket") => Ok(Format::WebSocket),
        Some(other) => Err(ApiError::invalid("transport", other, "expected sse, ndjson or websocket")),
        None if upgrade => Ok(Format::WebSocket),
        None => accepted(headers, &OFFERED).ok_or_else(|| {
            ApiError::not_acceptable("text/event-stream, application/x-ndjson, application/json")
        }),
    }
}

/// A number of seconds.
pub(super) fn seconds(params: &Params, name: &str) -> Result<Option<Duration>, ApiError> {
    Ok(params.number(name, 1, SECONDS_MAX)?.map(Duration::from_secs))
}

/// The shortest time between two batches.
pub(super) fn coalesce(params: &Params) -> Result<Option<Duration>, ApiError> {
    Ok(params.number("coalesceMs", 1, COALESCE_MS_MAX)?.map(Duration::from_millis))
}

/// The parameters of a stream besides those of every target: which changes it gets, and how.
fn shape(target: &mut Target, params: &Params) -> Result<(), ApiError> {
    let changed = target::mask(&target.informers, "changed", params)?;
    let patch = match params.get("patch") {
        None => false,
        Some("merge") if changed.is_none() => true,
        Some("merge") => {
            let why = "a patch needs each change, and changed leaves some out: expected one of the two";
            return Err(ApiError::invalid("patch", "merge", why));
        }
        Some(other) => return Err(ApiError::invalid("patch", other, "expected merge (RFC 7386)")),
    };
    let coalesce = coalesce(params)?;
    target.selection.form = Form { changed, patch, coalesce, ..target.selection.form.clone() };
    Ok(())
}

/// Where the stream starts. `Last-Event-ID` wins over `resume`, as an EventSource with a token in its URL reconnects with a
/// newer one in the header.
fn from(headers: &HeaderMap, params: &Params, format: Format) -> Result<StartAt, ApiError> {
    let initial = params.boolean("sendInitialEvents")?;
    if let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) {
        let text = value.to_str().map_err(|_| {
            ApiError::invalid("Last-Event-ID", "(bytes)", "expected resource:resourceVersion")
        })?;
        return after("Last-Event-ID", text, format);
    }
    match params.get("resume").filter(|text| !text.is_empty()) {
        Some(text) => after("resume", text, format),
        None => Ok(at_first(initial)),
    }
}

/// Where a stream without a token starts.
pub(super) fn at_first(initial: Option<bool>) -> StartAt {
    if initial == Some(false) { StartAt::Now } else { StartAt::Start }
}

/// Where a stream with a token starts.
pub(super) fn after(name: &str, text: &str, format: Format) -> Result<StartAt, ApiError> {
    let token =
        ResumeToken::parse(text).map_err(|error| ApiError::invalid(name, text, &error.to_string()))?;
    // A token without a kind is an event's over SSE, the only transport with a token in each event. Over the others it
    // may be a bookmark's of release 0.1.0.
    Ok(match token.kind() {
        Some(TokenKind::Bookmark) => StartAt::Bookmark(token),
        Some(TokenKind::PerEvent) => StartAt::Token(token),
        None if format == Format::Sse => StartAt::Token(token),
        None => StartAt::Bookmark(token),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(query: &str, last_event_id: Option<&str>, format: Format) -> StartAt {
        let params = Params::parse(Some(query), &[STREAM, CONNECTION]).unwrap();
        let id =
            last_event_id.map(|id| (header::HeaderName::from_static("last-event-id"), id.parse().unwrap()));
        from(&id.into_iter().collect(), &params, format).unwrap()
    }

    #[test]
    fn a_token_means_the_same_on_every_transport() {
        let bookmark = "resume=pods:7,.kind:bookmark";
        for format in [Format::Sse, Format::Ndjson, Format::WebSocket] {
            assert!(matches!(start(bookmark, None, format), StartAt::Bookmark(_)));
            let from = start("", Some("pods:7,.kind:bookmark"), format);
            assert!(matches!(from, StartAt::Bookmark(token) if token.len() == 1));
        }
        // A token without a kind: that of an event over SSE; elsewhere perhaps that of a bookmark of an older
        // release.
        assert!(matches!(start("resume=pods:7", None, Format::Sse), StartAt::Token(_)));
        assert!(matches!(start("resume=pods:7", None, Format::Ndjson), StartAt::Bookmark(_)));
    }
}
