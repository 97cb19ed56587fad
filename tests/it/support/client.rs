//! Clients without any of the server's code: they read exact bytes, over each transport.

use std::net::SocketAddr;
use std::pin::Pin;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{http2, in_time};

/// An answer, byte for byte.
#[derive(Debug)]
pub(crate) struct Response {
    /// Status line and headers, unchanged.
    pub(crate) head: String,
    /// The body, without chunk framing.
    pub(crate) body: Vec<u8>,
    /// Whether the body ended as its framing requires.
    pub(crate) complete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Sse,
    Ndjson,
    WebSocket,
    /// SSE over HTTP/2.
    Http2,
}

impl Transport {
    /// The token of a bookmark. Over SSE it is that of its `id`; elsewhere it names its kind.
    pub(crate) fn bookmark(self, token: &str) -> String {
        match self {
            Self::Sse | Self::Http2 => token.to_owned(),
            Self::Ndjson | Self::WebSocket => format!("{token},.kind:bookmark"),
        }
    }
}

/// An event as a client receives it.
#[derive(Clone, Debug)]
pub(crate) struct StreamEvent {
    /// ADDED, MODIFIED, DELETED, BOOKMARK, SYNCED or RESET. Over NDJSON and WebSocket, SYNCED is a BOOKMARK with an
    /// annotation.
    pub(crate) kind: String,
    /// The resume token: the SSE id; elsewhere the annotation of BOOKMARK, SYNCED and RESET.
    pub(crate) token: Option<String>,
    /// The object.
    pub(crate) object: Value,
    /// All bytes of the event.
    pub(crate) raw: Vec<u8>,
}

/// An item of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Event(Box<StreamEvent>),
    /// A comment, an empty line, or a ping.
    Heartbeat,
    /// SSE's `retry`, in milliseconds.
    Retry(u64),
    /// The end as the transport defines it: the last chunk, or a close frame.
    End(Option<u16>),
    Broken,
}

/// An open stream.
pub(crate) struct Stream {
    /// The answer's head.
    pub(crate) head: String,
    carrier: Carrier,
}

enum Carrier {
    Http { body: Body<TcpStream>, sse: bool },
    Http2 { body: Body<Pin<Box<dyn AsyncRead + Send>>>, _connection: http2::Connection },
    WebSocket(Box<WebSocketStream<MaybeTlsStream<TcpStream>>>),
}

/// Reads a body line by line as it arrives.
struct Body<S> {
    socket: S,
    framing: Framing,
    /// Bytes from the socket, with framing.
    wire: Vec<u8>,
    /// Bytes of the body, without framing.
    plain: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// Bytes left of the chunk and its line end; 0 before the next size.
    Chunked(usize),
    Length(usize),
    /// The body ends with the connection.
    Close,
    Done,
}

// === impl Response ===

impl Response {
    pub(crate) fn status(&self) -> u16 {
        status_of(&self.head)
    }

    /// The value of a header; several values are joined.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        header_of(&self.head, name)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }
}

/// `GET`, on a connection of its own.
pub(crate) async fn get(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Response {
    request(address, "GET", target, headers).await
}

/// Sends a request without a body, on a connection of its own.
pub(crate) async fn request(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> Response {
    let head = head(method, target, &address.to_string(), headers, "close");
    let socket = TcpStream::connect(address).await.expect("it listens");
    exchange(socket, method, head.as_bytes()).await
}

/// Sends bytes and reads one answer.
pub(crate) async fn exchange<S>(mut socket: S, method: &str, bytes: &[u8]) -> Response
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    in_time("an answer", async {
        // A server that refuses before it has read everything may close meanwhile.
        let _ = socket.write_all(bytes).await;
        let (head, mut body) = Body::open(socket, method == "HEAD").await;
        let complete = body.fill_to_end().await;
        Response { head, body: body.plain, complete }
    })
    .await
}

/// The head of a request.
pub(crate) fn head(
    method: &str,
    target: &str,
    host: &str,
    headers: &[(&str, &str)],
    connection: &str,
) -> String {
    let own = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = if own { String::new() } else { format!("Host: {host}\r\n") };
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{method} {target} HTTP/1.1\r\n{host}Connection: {connection}\r\n{headers}\r\n")
}

fn status_of(head: &str) -> u16 {
    head.split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("no status in {head:?}"))
}

fn header_of(head: &str, name: &str) -> Option<String> {
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let values = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
    let values: Vec<_> = values.collect();
    (!values.is_empty()).then(|| values.join(", "))
}

// === impl Stream ===

impl Stream {
    /// Opens a stream. `token` goes where clients of the transport put it.
    ///
    /// # Errors
    /// The answer, if it is not a stream.
    pub(crate) async fn open(
        transport: Transport,
        address: SocketAddr,
        target: &str,
        token: Option<&str>,
    ) -> Result<Self, Response> {
        match transport {
            Transport::Sse => Self::sse(address, target, token).await,
            Transport::Ndjson => Self::ndjson(address, target, token).await,
            Transport::WebSocket => Self::websocket(address, target, token).await,
            Transport::Http2 => Self::http2(address, target, token).await,
        }
    }

    /// Opens a stream as an EventSource does, with the token as `Last-Event-ID`.
    pub(crate) async fn sse(
        address: SocketAddr,
        target: &str,
        token: Option<&str>,
    ) -> Result<Self, Response> {
        let token: Vec<_> = token.iter().map(|token| ("Last-Event-ID", *token)).collect();
        let headers = [&[("Accept", "text/event-stream")], &*token].concat();
        Self::http(address, target, &headers).await
    }

    /// As [`Stream::sse`], over an HTTP/2 connection of its own.
    pub(crate) async fn http2(
        address: SocketAddr,
        target: &str,
        token: Option<&str>,
    ) -> Result<Self, Response> {
        in_time("a stream's head", async {
            let opened = http2::Connection::open(address, None).await;
            let mut connection = opened.map_err(|error| refused(&error))?;
            let token: Vec<_> = token.iter().map(|token| ("last-event-id", *token)).collect();
            let headers = [&[("accept", "text/event-stream")], &*token].concat();
            let answer = connection.get(target, &headers).await.map_err(|error| refused(&error))?;
            let line =
                |(name, value): (_, &http::HeaderValue)| format!("{name}: {}\r\n", value.to_str().unwrap());
            let headers: String = answer.headers.iter().map(line).collect();
            let head = format!("HTTP/2 {}\r\n{headers}", answer.status);
            let mut body =
                Body { socket: answer.body, framing: Framing::Close, wire: Vec::new(), plain: Vec::new() };
            if answer.status != 200 {
                let complete = body.fill_to_end().await;
                return Err(Response { head, body: body.plain, complete });
            }
            Ok(Self { head, carrier: Carrier::Http2 { body, _connection: connection } })
        })
        .await
    }

    pub(crate) async fn ndjson(
        address: SocketAddr,
        target: &str,
        token: Option<&str>,
    ) -> Result<Self, Response> {
        Self::http(address, &with_resume(target, token), &[("Accept", "application/x-ndjson")]).await
    }

    /// Opens a stream over HTTP, with these headers.
    pub(crate) async fn http(
        address: SocketAddr,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, Response> {
        in_time("a stream's head", async {
            let mut socket = TcpStream::connect(address).await.map_err(|error| refused(&error))?;
            let request = head("GET", target, &address.to_string(), headers, "keep-alive");
            socket.write_all(request.as_bytes()).await.map_err(|error| refused(&error))?;
            let (head, mut body) = Body::open(socket, false).await;
            let sse = header_of(&head, "content-type").as_deref() == Some("text/event-stream");
            if head.is_empty() || status_of(&head) != 200 {
                let complete = body.fill_to_end().await;
                return Err(Response { head, body: body.plain, complete });
            }
            Ok(Self { head, carrier: Carrier::Http { body, sse } })
        })
        .await
    }

    pub(crate) async fn websocket(
        address: SocketAddr,
        target: &str,
        token: Option<&str>,
    ) -> Result<Self, Response> {
        let url = format!("ws://{address}{}", with_resume(target, token));
        let request = url.into_client_request().expect("a URL");
        let connected = in_time("a handshake", tokio_tungstenite::connect_async(request)).await;
        match connected {
            Ok((socket, answer)) => {
                let head = format!("HTTP/1.1 {}\r\n", answer.status());
                Ok(Self { head, carrier: Carrier::WebSocket(Box::new(socket)) })
            }
            Err(tungstenite::Error::Http(answer)) => {
                let (parts, body) = answer.into_parts();
                let line = |(name, value): (_, &http::HeaderValue)| {
                    format!("{name}: {}\r\n", value.to_str().unwrap())
                };
                let headers: String = parts.headers.iter().map(line).collect();
                let head = format!("HTTP/1.1 {}\r\n{headers}", parts.status);
                Err(Response { head, body: body.unwrap_or_default(), complete: true })
            }
            Err(error) => Err(refused(&error)),
        }
    }

    /// The next item.
    pub(crate) async fn item(&mut self) -> Item {
        match &mut self.carrier {
            Carrier::Http { body, sse: true } => body.sse_item().await,
            Carrier::Http2 { body, .. } => body.sse_item().await,
            Carrier::Http { body, sse: false } => match body.line().await {
                Some(line) if line == b"\n" => Item::Heartbeat,
                Some(line) => Item::Event(Box::new(StreamEvent::parse(line))),
                None => body.end(),
            },
            Carrier::WebSocket(socket) => loop {
                match socket.next().await {
                    Some(Ok(Message::Text(text))) => {
                        break Item::Event(Box::new(StreamEvent::parse(text.as_bytes().to_vec())));
                    }
                    Some(Ok(Message::Ping(_))) => break Item::Heartbeat,
                    Some(Ok(Message::Close(frame))) => {
                        break Item::End(frame.map(|frame| u16::from(frame.code)));
                    }
                    Some(Ok(Message::Pong(_))) => {}
                    Some(Ok(other)) => panic!("not a frame of ours: {other:?}"),
                    Some(Err(_)) | None => break Item::Broken,
                }
            },
        }
    }

    /// The next event; `None` at the end. Skips heartbeats.
    pub(crate) async fn next(&mut self) -> Option<StreamEvent> {
        in_time("an event", async {
            loop {
                match self.item().await {
                    Item::Event(event) => return Some(*event),
                    Item::Heartbeat | Item::Retry(_) => {}
                    Item::End(_) | Item::Broken => return None,
                }
            }
        })
        .await
    }

    /// The events up to the first one of this kind, which is included.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await;
            events.push(event.unwrap_or_else(|| panic!("the stream ended before {kind}")));
            if events.last().is_some_and(|event| event.kind == kind) {
                return events;
            }
        }
    }

    /// Sends a WebSocket message.
    pub(crate) async fn send(&mut self, message: Message) {
        match &mut self.carrier {
            Carrier::WebSocket(socket) => socket.send(message).await.expect("the socket takes it"),
            Carrier::Http { .. } | Carrier::Http2 { .. } => panic!("only a WebSocket takes messages"),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        header_of(&self.head, name)
    }
}

pub(crate) fn with_resume(target: &str, token: Option<&str>) -> String {
    let separator = if target.contains('?') { '&' } else { '?' };
    token.map_or_else(|| target.to_owned(), |token| format!("{target}{separator}resume={token}"))
}

/// In place of an answer, if the connection failed.
fn refused(error: &dyn std::fmt::Display) -> Response {
    Response { head: format!("HTTP/1.1 0 {error}\r\n"), body: Vec::new(), complete: false }
}

// === impl StreamEvent ===

impl StreamEvent {
    /// Parses one line of JSON.
    fn parse(raw: Vec<u8>) -> Self {
        let mut value: Value = serde_json::from_slice(&raw)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&raw)));
        let (kind, object) = (value["type"].as_str().expect("a type").to_owned(), value["object"].take());
        let annotations = &object["metadata"]["annotations"];
        let mark = matches!(&*kind, "BOOKMARK" | "RESET");
        let token = annotations["informerd.dev/resume"].as_str().filter(|_| mark).map(str::to_owned);
        let synced = mark && annotations["k8s.io/initial-events-end"] == "true";
        let kind = if synced { "SYNCED".to_owned() } else { kind };
        Self { kind, token, object, raw }
    }

    /// The reason of a RESET.
    pub(crate) fn reason(&self) -> &str {
        self.object["metadata"]["annotations"]["informerd.dev/reason"].as_str().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

// === impl Body ===

impl<S: AsyncRead + Unpin> Body<S> {
    /// Reads the head of an answer. The head is empty if none came.
    async fn open(mut socket: S, without_body: bool) -> (String, Self) {
        let mut wire = Vec::new();
        let at = loop {
            if let Some(at) = wire.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if socket.read_buf(&mut wire).await.unwrap_or(0) == 0 {
                break 0;
            }
        };
        let rest = wire.split_off(at);
        let head = String::from_utf8(wire).expect("a head is ASCII");
        let length = header_of(&head, "content-length").and_then(|length| length.parse().ok());
        let framing = match length {
            _ if head.is_empty() || without_body || matches!(status_of(&head), 204 | 304) => Framing::Done,
            _ if header_of(&head, "transfer-encoding").is_some() => Framing::Chunked(0),
            Some(length) => Framing::Length(length),
            None => Framing::Close,
        };
        (head, Self { socket, framing, wire: rest, plain: Vec::new() })
    }

    /// Reads more of the body from the socket; `false` if there is no more.
    async fn fill(&mut self) -> bool {
        loop {
            if self.unwrap_wire() {
                return true;
            }
            if self.framing == Framing::Done {
                return false;
            }
            let read = self.socket.read_buf(&mut self.wire).await;
            if matches!(read, Ok(0) | Err(_)) {
                if self.framing == Framing::Close && read.is_ok() {
                    self.framing = Framing::Done;
                }
                return false;
            }
        }
    }

    /// Moves content from the socket's bytes to the body, without framing; `true` if there was any.
    fn unwrap_wire(&mut self) -> bool {
        let before = self.plain.len();
        loop {
            match &mut self.framing {
                Framing::Chunked(0) => {
                    let Some(at) = self.wire.windows(2).position(|window| window == b"\r\n") else { break };
                    let size = String::from_utf8_lossy(&self.wire[..at]).trim().to_owned();
                    let size = usize::from_str_radix(&size, 16).expect("a chunk's size");
                    if size == 0 {
                        if self.wire.len() < at + 4 {
                            break;
                        }
                        self.framing = Framing::Done;
                    } else {
                        self.wire.drain(..at + 2);
                        self.framing = Framing::Chunked(size + 2);
                    }
                }
                Framing::Chunked(left) => {
                    let take = (*left).min(self.wire.len());
                    if take == 0 {
                        break;
                    }
                    let body = (*left).saturating_sub(2).min(take);
                    self.plain.extend_from_slice(&self.wire[..body]);
                    self.wire.drain(..take);
                    *left -= take;
                }
                Framing::Length(left) => {
                    let take = (*left).min(self.wire.len());
                    self.plain.extend(self.wire.drain(..take));
                    *left -= take;
                    if *left == 0 {
                        self.framing = Framing::Done;
                    }
                    break;
                }
                Framing::Close => {
                    self.plain.append(&mut self.wire);
                    break;
                }
                Framing::Done => break,
            }
        }
        self.plain.len() > before
    }

    async fn fill_to_end(&mut self) -> bool {
        while self.fill().await {}
        self.framing == Framing::Done
    }

    /// The next line with its line end; `None` at the end of the body.
    async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.plain.iter().position(|byte| *byte == b'\n') {
                return Some(self.plain.drain(..=at).collect());
            }
            if !self.fill().await {
                let whole = self.framing != Framing::Done || self.plain.is_empty();
                assert!(whole, "half a line at the end: {}", String::from_utf8_lossy(&self.plain));
                return None;
            }
        }
    }

    fn end(&self) -> Item {
        if self.framing == Framing::Done { Item::End(None) } else { Item::Broken }
    }

    /// Parses an event as the HTML standard says (section 9.2.6).
    async fn sse_item(&mut self) -> Item {
        let (mut raw, mut data, mut kind, mut id, mut retry) = (Vec::new(), None, None, None, None);
        loop {
            let Some(line) = self.line().await else { return self.end() };
            raw.extend_from_slice(&line);
            let line = String::from_utf8(line).expect("an event stream is UTF-8");
            let line = line.trim_end_matches('\n');
            if line.is_empty() {
                break;
            }
            match line.split_once(": ").or_else(|| line.split_once(':')) {
                Some(("data", value)) => assert!(data.replace(value.to_owned()).is_none(), "one data line"),
                Some(("event", value)) => kind = Some(value.to_owned()),
                Some(("id", value)) => id = Some(value.to_owned()),
                Some(("retry", value)) => retry = value.parse().ok(),
                Some(("", _)) => {}
                other => panic!("not a field of an event stream: {other:?} in {line:?}"),
            }
        }
        let Some(data) = data else { return retry.map_or(Item::Heartbeat, Item::Retry) };
        let event = StreamEvent::parse(data.into_bytes());
        assert_eq!(kind.as_deref(), Some(&*event.kind), "event: and the type agree");
        Item::Event(Box::new(StreamEvent { token: id, raw, ..event }))
    }
}
