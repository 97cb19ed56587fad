//! `GET /v1/ws`: many streams on one WebSocket, each with an id of its client's.
//!
//! A browser has six connections to a server at most, and a client with many small selections would hold a socket for each.
//! Here it subscribes by messages, at any time, and each event has the id of its subscription. As on an HTTP/2 connection
//! each stream is a [`Subscriber`](crate::hub::Subscriber) of its own; one task writes what they have, batch by batch. A
//! client that does not read holds back one batch of each.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Buf as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::body::Carried;
use super::params::Params;
use super::peer::{ConnectionPermit, Peer};
use super::socket::Socket;
use super::stream::WatchStream;
use super::watch::{self, SHARED_PARAMS, WatchRequest};
use super::{ApiError, Server, websocket};
use crate::encode::{
    ClientFrame, Format, FrameParser, Frames, Framing, close_frame, ping_frame, pong_frame, text_frame,
};
use crate::hub::Follower;

/// Longest message of a client, in bytes: a request's path and query fit.
const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Longest id, in bytes.
const ID_BYTES_MAX: usize = 128;
/// Bytes that are read from a client at once.
const READ_BYTES: usize = 1024;
/// The reason of a stream's end that its client asked for.
const UNSUBSCRIBED: &str = "unsubscribed";
/// The reason of a stream's end that never began.
const REFUSED: &str = "refused";

/// A message of a client.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Message {
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    id: String,
    /// What follows `/v1/watch/` in the path of a stream of its own.
    resources: String,
    #[serde(default)]
    params: BTreeMap<String, Value>,
    #[serde(default)]
    resume: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsubscribe {
    id: String,
}

/// A WebSocket with many streams.
pub(super) struct Multiplex {
    server: Server,
    peer: Option<Peer>,
    streams: HashMap<String, Entry>,
    turns: FuturesUnordered<BoxFuture<'static, Turn>>,
}

/// A subscription from its message to its end.
struct Entry {
    /// Ends it.
    unsubscribe: CancellationToken,
    /// Once its stream has begun.
    follower: Option<Arc<Follower>>,
}

/// What a subscription has to send.
struct Turn {
    id: String,
    frames: Frames,
    next: Next,
}

enum Next {
    Stream(Box<WatchStream>),
    /// It has ended, for this reason.
    Closed(&'static str),
}

/// What the bytes of a client ask for.
enum Heard {
    Nothing,
    Close(u16),
}

pub(super) async fn multiplex(
    State(server): State<Server>,
    RawQuery(query): RawQuery,
    peer: Option<Extension<Peer>>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    Params::parse(query.as_deref(), &[])?;
    // A handshake is a GET (RFC 6455, section 4.1); axum's router also gives us a HEAD.
    if method == Method::HEAD || !websocket::is_upgrade(&headers) {
        let message =
            "expected a WebSocket handshake (Upgrade: websocket); single streams are at /v1/watch/RESOURCES";
        return Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, "UpgradeRequired", message));
    }
    let handshake = websocket::Handshake::read(&headers)?;
    let peer = peer.map(|Extension(peer)| peer);
    let session = Multiplex { server, peer, streams: HashMap::new(), turns: FuturesUnordered::new() };
    let session = Carried::new(Box::new(session));
    Ok((StatusCode::SWITCHING_PROTOCOLS, handshake.headers(), session).into_response())
}

impl Multiplex {
    /// Serves the connection until either side ends it. `read` are bytes that came with the request.
    pub(super) async fn run(
        mut self: Box<Self>,
        mut socket: Box<dyn Socket>,
        mut out: Frames,
        read: Vec<u8>,
        _connected: ConnectionPermit,
    ) {
        let mut parser = FrameParser::of_texts(MESSAGE_BYTES_MAX);
        let mut close = self.hear(&mut parser, &read, &mut out);
        let drain = self.server.drain.clone();
        let mut heartbeat = interval(self.server.hub.config().heartbeat_interval);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut drains = false;
        loop {
            if drains && self.turns.is_empty() && matches!(close, Heard::Nothing) {
                // 1001: the server goes away.
                close = Heard::Close(1001);
            }
            if let Heard::Close(code) = close {
                out.put_bytes(&close_frame(code, ""));
            }
            out.cut();
            let mut turns = Vec::new();
            if out.has_remaining() {
                match self.write(&mut socket, &mut out).await {
                    Ok(meanwhile) => turns = meanwhile,
                    Err(_) => return,
                }
                heartbeat.reset();
            }
            if matches!(close, Heard::Close(_)) {
                // An error means that the client has closed already.
                let _ = socket.shutdown().await;
                return;
            }
            if !turns.is_empty() {
                turns.into_iter().for_each(|turn| self.take(turn, &mut out));
                continue;
            }
            let mut buffer = [0; READ_BYTES];
            tokio::select! {
                Some(turn) = self.turns.next(), if !self.turns.is_empty() => self.take(turn, &mut out),
                count = socket.read(&mut buffer) => match count {
                    Ok(0) | Err(_) => return,
                    Ok(count) => close = self.hear(&mut parser, &buffer[..count], &mut out),
                },
                _ = heartbeat.tick() => out.put_bytes(&ping_frame()),
                () = drain.cancelled(), if !drains => drains = true,
            }
        }
    }

    /// Writes all of it, and notes if it has to wait for the client. Returns the turns that subscriptions have had meanwhile, at most one
    /// of each: while it holds an index that is being built, or waits for its turn, others wait for it.
    async fn write(&mut self, socket: &mut Box<dyn Socket>, out: &mut Frames) -> io::Result<Vec<Turn>> {
        if let Some(written) = socket.write_all_buf(out).now_or_never() {
            return written.map(|()| Vec::new());
        }
        let Self { streams, turns, .. } = self;
        let followers: Vec<_> = streams.values().filter_map(|entry| entry.follower.as_ref()).collect();
        followers.iter().for_each(|follower| follower.writes(true));
        let (mut writing, mut had) = (std::pin::pin!(socket.write_all_buf(out)), Vec::new());
        loop {
            tokio::select! {
                biased;
                written = &mut writing => break written?,
                Some(turn) = turns.next(), if !turns.is_empty() => had.push(turn),
            }
        }
        followers.iter().for_each(|follower| follower.writes(false));
        Ok(had)
    }

    /// Takes what a subscription has to send, and lets it go on.
    fn take(&mut self, turn: Turn, out: &mut Frames) {
        out.append(turn.frames);
        let Some(entry) = self.streams.get_mut(&turn.id) else { return };
        match turn.next {
            Next::Closed(reason) => {
                self.streams.remove(&turn.id);
                text_frame(&closed(&turn.id, reason), out);
            }
            Next::Stream(stream) => {
                entry.follower.get_or_insert_with(|| stream.follower().clone());
                self.turns.push(go_on(turn.id, stream, entry.unsubscribe.clone()).boxed());
            }
        }
    }

    /// Handles bytes from the client.
    fn hear(&mut self, parser: &mut FrameParser, bytes: &[u8], out: &mut Frames) -> Heard {
        parser.push(bytes);
        let mut ping = None;
        loop {
            match parser.next_frame() {
                Ok(None) => break,
                // Only the latest needs an answer (RFC 6455, 5.5.3).
                Ok(Some(ClientFrame::Ping(payload))) => ping = Some(payload),
                Ok(Some(ClientFrame::Pong | ClientFrame::Data)) => {}
                Ok(Some(ClientFrame::Text(text))) => {
                    if let Err(error) = self.obey(&text) {
                        text_frame(&error_event(None, &error), out);
                    }
                }
                Ok(Some(ClientFrame::Close(code))) => return Heard::Close(code.unwrap_or(1000)),
                Err(error) => return Heard::Close(error.close_code()),
            }
        }
        if let Some(payload) = ping {
            out.put_bytes(&pong_frame(&payload));
        }
        Heard::Nothing
    }

    /// Handles a client's message. An error of the subscription itself is sent later, with its id.
    fn obey(&mut self, text: &str) -> Result<(), ApiError> {
        let message = serde_json::from_str(text).map_err(|error| {
            let accepted =
                "expected {\"subscribe\":{\"id\":…,\"resources\":…}} or {\"unsubscribe\":{\"id\":…}}";
            ApiError::invalid("message", text, &format!("{error}; {accepted}"))
        })?;
        match message {
            Message::Unsubscribe(Unsubscribe { id }) => match self.streams.get(&id) {
                Some(entry) => entry.unsubscribe.cancel(),
                None => return Err(ApiError::invalid("id", &id, "no subscription has it")),
            },
            Message::Subscribe(subscribe) => {
                let id = subscribe.id.clone();
                if id.is_empty() || id.len() > ID_BYTES_MAX {
                    let accepted = format!("expected 1 to {ID_BYTES_MAX} bytes");
                    return Err(ApiError::invalid("id", &id, &accepted));
                }
                if self.streams.contains_key(&id) {
                    return Err(ApiError::invalid("id", &id, "a subscription has it already"));
                }
                let max = self.server.config.streams_per_connection_max;
                if self.streams.len() >= max {
                    super::metrics::limit_hit("streams_per_connection_max");
                    let message = format!("{id:?}: the connection has {max} subscriptions already");
                    return Err(ApiError::unavailable(message, 1));
                }
                let unsubscribe = CancellationToken::new();
                let begins = begin(self.server.clone(), subscribe, self.peer, unsubscribe.clone());
                self.turns.push(begins.boxed());
                self.streams.insert(id, Entry { unsubscribe, follower: None });
            }
        }
        Ok(())
    }
}

/// Opens a subscription's stream.
async fn begin(
    server: Server,
    subscribe: Subscribe,
    peer: Option<Peer>,
    unsubscribe: CancellationToken,
) -> Turn {
    let id = subscribe.id.clone();
    let opened = tokio::select! {
        biased;
        () = unsubscribe.cancelled() => {
            return Turn { id, frames: Frames::new(), next: Next::Closed(UNSUBSCRIBED) };
        }
        opened = open(&server, subscribe, peer) => opened,
    };
    let mut frames = Frames::new();
    let next = match opened {
        Ok(stream) => Next::Stream(Box::new(stream)),
        Err(error) => {
            text_frame(&error_event(Some(&id), &error), &mut frames);
            Next::Closed(REFUSED)
        }
    };
    Turn { id, frames, next }
}

async fn open(server: &Server, subscribe: Subscribe, peer: Option<Peer>) -> Result<WatchStream, ApiError> {
    let Subscribe { id, resources, params, resume } = subscribe;
    let shown = format!("/v1/ws {id}: {resources} {}", Value::from_iter(params.clone()));
    let params = Params::of_pairs(pairs(params)?, SHARED_PARAMS)?;
    let initial = params.boolean("sendInitialEvents")?;
    let from = match resume.filter(|token| !token.is_empty()) {
        // Each event has its token, as over SSE.
        Some(token) => watch::after("resume", &token, Format::Sse)?,
        None => watch::at_first(initial),
    };
    let asked = WatchRequest::parse(server, &resources, &params).await?;
    let stream = asked.open(server, from, Format::WebSocket, |encoder| encoder.labelled(&id)).await?;
    stream.has_origin(shown, peer.as_ref());
    Ok(stream)
}

/// The parameters as a query has them.
fn pairs(params: BTreeMap<String, Value>) -> Result<Vec<(String, String)>, ApiError> {
    let mut pairs = Vec::new();
    for (name, value) in params {
        let values = if let Value::Array(values) = value { values } else { vec![value] };
        for value in values {
            pairs.push((name.clone(), text(&name, value)?));
        }
    }
    Ok(pairs)
}

fn text(name: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(boolean) => Ok(boolean.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            let accepted = "expected a string, a number, true, false, or a list of these";
            Err(ApiError::invalid(name, &value.to_string(), accepted))
        }
    }
}

/// Waits for the next batch of a stream, or for its end.
async fn go_on(id: String, mut stream: Box<WatchStream>, unsubscribe: CancellationToken) -> Turn {
    let mut frames = Frames::new();
    let last = tokio::select! {
        biased;
        () = unsubscribe.cancelled() => {
            return Turn { id, frames: Frames::new(), next: Next::Closed(UNSUBSCRIBED) };
        }
        last = stream.next_in_turn(Framing::Plain, &mut frames) => last,
    };
    let next = if last { Next::Closed(stream.reason()) } else { Next::Stream(stream) };
    Turn { id, frames, next }
}

/// An ERROR event, with the id of its subscription if it is about one.
fn error_event(id: Option<&str>, error: &ApiError) -> String {
    let label = id.map(|id| format!(r#""id":{},"#, Value::from(id))).unwrap_or_default();
    let status = error.status().to_line();
    let status = String::from_utf8_lossy(status.trim_ascii_end());
    format!(r#"{{{label}"type":"ERROR","object":{status}}}"#)
}

/// The end of a subscription. As in all messages of one, `type` follows `id`: a client can tell what to do from the first bytes.
fn closed(id: &str, reason: &str) -> String {
    format!(r#"{{"id":{},"type":"CLOSED","reason":"{reason}"}}"#, serde_json::Value::from(id))
}
