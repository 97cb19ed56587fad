//! Streams that write to their socket themselves.
//!
//! hyper only reads the request: it would need 10 KB for each idle connection, and a quarter of the CPU time of a small
//! event. So head and body of the answer are written here, in HTTP/1.1 chunks or WebSocket frames. Each batch is one system
//! call, from bytes that are shared with other streams.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{Extensions, Uri};
use bytes::Buf as _;
use futures_util::FutureExt as _;
use tokio::io::{AsyncWriteExt as _, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::metrics::{StreamObserver, limit_hit};
use super::peer::{ConnectionPermit, Peer};
use super::socket::Socket;
use super::turns::Turns;
use crate::encode::{
    ClientFrame, Encoder, EncoderKind, Format, FrameParser, Frames, Framing, close_frame, pong_frame,
};
use crate::hub::{CloseReason, Delivery, Follower, LivePlace, Origin, Subscriber};
use crate::k8s::{Status, damages};

/// The answer of a watch, over any transport.
pub(super) struct WatchStream {
    pub(super) subscriber: Subscriber,
    pub(super) encoder: Encoder,
    pub(super) observer: StreamObserver,
    pub(super) turns: Arc<Turns>,
    /// How many objects could not be unpacked before it.
    pub(super) damages: u64,
}

/// Time after which an EventSource reconnects after a shutdown, in milliseconds, at random for each.
const RETRY_MS: std::ops::Range<u64> = 500..3000;
/// Bytes that are read from a client at once, as clients send little.
pub(super) const READ_BYTES: usize = 128;

/// Time within which the system of a client that has left refuses bytes. A client that is found out later ends with the next write.
const LEFT_WITHIN: Duration = Duration::from_millis(200);

/// A stream and the connection it has taken over.
pub(super) struct Attached {
    pub(super) socket: Box<dyn Socket>,
    pub(super) stream: WatchStream,
    pub(super) framing: Framing,
    /// For the frames of a WebSocket's client.
    pub(super) parser: Option<Box<FrameParser>>,
    pub(super) half: ClientHalf,
    /// Counts the connection.
    pub(super) connected: ConnectionPermit,
    /// What is to be written next.
    pub(super) frames: Frames,
    /// Whether the stream ends with that.
    pub(super) last: bool,
}

// There are tens of thousands, most of them idle. One that is larger takes the allocator's next size, which is 640.
const _: () = assert!(size_of::<Attached>() <= 512);

/// The client's half of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientHalf {
    Open,
    /// It has ended. The client may have left, or may still read, as `nc -N` does.
    Ended,
    /// It has ended, and the client still reads.
    Closed,
}

impl WatchStream {
    pub(super) fn new(subscriber: Subscriber, encoder: Encoder, turns: Arc<Turns>) -> Self {
        let observer = StreamObserver::new(encoder.format());
        Self { subscriber, encoder, observer, turns, damages: damages() }
    }

    /// Notes the request that the stream answers, for the operator. Tokens are left out, as they change with each reconnect.
    pub(super) fn comes_from(&self, uri: &Uri, extensions: &Extensions) {
        let kept = |pair: &&str| !pair.starts_with("resume=") && !pair.starts_with("continue=");
        let query: Vec<_> = uri.query().unwrap_or_default().split('&').filter(kept).collect();
        let query = query.join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        let request = format!("{}{mark}{query}", uri.path());
        self.has_origin(request, extensions.get::<Peer>());
    }

    /// Notes the request that the stream answers, and its client, for the operator.
    pub(super) fn has_origin(&self, request: String, peer: Option<&Peer>) {
        let peer = peer.map(Peer::to_string).unwrap_or_default();
        self.subscriber.follower().comes_from(Origin { request, transport: self.observer.transport(), peer });
    }

    /// The next delivery, that of a first state or a catch-up in turn.
    pub(super) async fn next_in_turn(&mut self, framing: Framing, out: &mut Frames) -> bool {
        if self.subscriber.is_in_bulk() {
            let turns = self.turns.clone();
            let _turn = turns.take().await;
            if let Some(last) = self.next(framing, out).now_or_never() {
                return last;
            }
        }
        self.next(framing, out).await
    }

    /// Why it has ended.
    pub(super) fn reason(&self) -> &'static str {
        self.observer.reason()
    }

    /// Its figures for the operator.
    pub(super) fn follower(&self) -> &Arc<Follower> {
        self.subscriber.follower()
    }

    /// Waits for the next delivery and appends it. Returns whether it was the last one. Cancel-safe: nothing is lost.
    pub(super) async fn next(&mut self, framing: Framing, out: &mut Frames) -> bool {
        let delivery = self.subscriber.next().await;
        self.append(delivery, framing, out)
    }

    /// Appends a delivery, and returns whether it is the last one. A function of its own, as its variables would be part of each stream
    /// that waits.
    fn append(&mut self, delivery: Delivery, framing: Framing, out: &mut Frames) -> bool {
        let before = out.remaining();
        let mut frames = Frames::new();
        let mut last = false;
        match delivery {
            Delivery::Shared(batches) => {
                for batch in &batches {
                    let bytes = self.encoder.shared(batch, framing);
                    // These bytes do not pass through `frames`, which is emptied below.
                    if damages() == self.damages {
                        out.share(bytes);
                    }
                }
            }
            Delivery::Events(events) => self.encoder.encode(&events, &mut frames),
            Delivery::Replaced { source, informer } => self.encoder.replace(source, &informer),
            // The connection has its own.
            Delivery::Heartbeat if self.encoder.is_labelled() => {}
            Delivery::Heartbeat => self.encoder.heartbeat(&mut frames),
            Delivery::Closed(reason) => {
                self.end(reason, &mut frames);
                last = true;
            }
        }
        if let Some(status) = self.encoder.take_failure().filter(|_| !last) {
            // The message that goes beyond the limit is not sent.
            frames = Frames::new();
            self.refuse(&status, &mut frames);
            last = true;
        }
        if damages() != self.damages && !last {
            // An object could not be unpacked, and its events are not to be sent. The client comes back with what it has.
            frames = Frames::new();
            self.end(CloseReason::Regrouped, &mut frames);
            last = true;
        }
        self.encoder.append(frames, framing, out);
        if last {
            self.encoder.end(framing, out);
        }
        self.observer.bytes(out.remaining() - before);
        self.subscriber.follower().sent(0, out.remaining() - before);
        last
    }

    /// Ends a stream whose state is too large, or finds no room.
    fn refuse(&mut self, status: &Status, frames: &mut Frames) {
        self.encoder.error(status, frames);
        // 1013: try again later; 1009: too big.
        let (why, code) = if status.code == 503 {
            limit_hit("world_states_bytes_max");
            // Streams that find no room together are not to come back together.
            self.encoder.retry(rand::random_range(RETRY_MS), frames);
            ("no_room", 1013)
        } else {
            ("too_large", 1009)
        };
        self.observer.closed(why);
        if self.encoder.format().is_websocket() {
            frames.put_bytes(&close_frame(code, why));
        }
    }

    /// The stream with a connection that it takes over. What it begins with follows `frames`.
    pub(super) fn attach(
        self,
        socket: Box<dyn Socket>,
        framing: Framing,
        connected: ConnectionPermit,
        mut frames: Frames,
    ) -> Box<Attached> {
        // Only the client of a WebSocket sends something.
        let parser = self.encoder.format().is_websocket().then(Box::default);
        self.encoder.begin(framing, &mut frames);
        let half = ClientHalf::Open;
        Box::new(Attached { socket, stream: self, framing, parser, half, connected, frames, last: false })
    }

    /// Appends the end of the stream, with its reason.
    fn end(&mut self, reason: CloseReason, frames: &mut Frames) {
        self.observer.closed(reason.as_str());
        match reason {
            CloseReason::Shutdown => self.encoder.retry(rand::random_range(RETRY_MS), frames),
            CloseReason::Expired | CloseReason::TooLarge => {
                if let Some(status) = self.subscriber.refusal() {
                    self.encoder.error(status, frames);
                }
            }
            // A watch of the API server has no error but 410; otherwise it just ends.
            CloseReason::Removed if matches!(self.encoder.format(), Format::Kubernetes(_)) => {}
            CloseReason::Removed => {
                let names: Vec<_> =
                    self.subscriber.informers().map(|informer| informer.spec.name.as_str()).collect();
                let names = names.join(", ");
                let message = format!("{names}: no longer followed, as the configuration has changed");
                self.encoder.error(&Status::failure(404, "NotFound", message), frames);
            }
            CloseReason::Timeout | CloseReason::Regrouped => {}
        }
        if self.encoder.is_labelled() {
            // Other subscriptions of the connection go on.
        } else if self.encoder.format().is_websocket() {
            // 1001: the server goes away; 1000: the stream is complete.
            let code = if reason == CloseReason::Shutdown { 1001 } else { 1000 };
            frames.put_bytes(&close_frame(code, reason.as_str()));
        }
        frames.cut();
    }
}

impl Attached {
    /// Writes its frames and, unless they are the last, all that follow. Returns the stream with its place once it has caught up, so that
    /// a live loop can write to it; `EncoderKind` says with which others. Returns `None` when it has ended. During a drain it goes on
    /// until it ends.
    pub(super) async fn run(
        mut self: Box<Self>,
        drain: &CancellationToken,
    ) -> Option<(LivePlace, EncoderKind, Box<Self>)> {
        loop {
            self.frames.cut();
            if self.frames.has_remaining() {
                self.writes(true);
                if self.send_all().await.is_err() {
                    return None;
                }
                self.writes(false);
            }
            if self.last {
                // The client of a WebSocket closes after a close frame. An error means that it has closed already.
                let _ = self.socket.shutdown().await;
                return None;
            }
            if self.half == ClientHalf::Ended {
                if !self.still_reads().await {
                    return None;
                }
                self.half = ClientHalf::Closed;
            }
            if !drain.is_cancelled()
                && let Some(kind) = self.stream.encoder.kind()
                && let Some(place) = self.stream.subscriber.live_place()
            {
                return Some((place, kind, self));
            }
            if self.stream.subscriber.is_in_bulk() {
                match self.write_bulk().await {
                    Ok(true) => continue,
                    // There is no delivery yet.
                    Ok(false) => {}
                    Err(_) => return None,
                }
            }
            self.rest();
            if self.wait().await.is_err() {
                return None;
            }
        }
    }

    /// Gives back what it does not need while it waits. The buffer of a first state had room for hundreds of slices.
    fn rest(&mut self) {
        if !self.frames.has_remaining() {
            self.frames = Frames::new();
            self.stream.encoder.rest();
        }
    }

    /// Waits for the next delivery, or for what the client says, and appends it.
    ///
    /// # Errors
    /// The client has left.
    async fn wait(&mut self) -> io::Result<()> {
        let (socket, half) = (&mut *self.socket, self.half);
        tokio::select! {
            biased;
            delivery = self.stream.subscriber.next() => {
                self.last = self.stream.append(delivery, self.framing, &mut self.frames);
            }
            heard = poll_fn(|context| hear(socket, context)), if half == ClientHalf::Open => match heard? {
                (0, _) if self.may_still_read() => self.half = ClientHalf::Ended,
                (0, _) => return Err(io::ErrorKind::ConnectionAborted.into()),
                (count, bytes) => self.said(&bytes[..count]),
            },
        }
        Ok(())
    }

    /// Whether a client whose half has ended may still read. The client of a WebSocket says when it leaves.
    fn may_still_read(&self) -> bool {
        self.parser.is_none()
    }

    /// Whether the client, whose half has ended, still reads. The system of a client that has left refuses the first bytes that it
    /// gets, and then the next write fails.
    async fn still_reads(&mut self) -> bool {
        for pause in [LEFT_WITHIN, Duration::ZERO] {
            self.probe();
            if self.send_all().await.is_err() {
                return false;
            }
            tokio::time::sleep(pause).await;
        }
        true
    }

    /// Appends bytes that are nothing to a client.
    fn probe(&mut self) {
        let mut probe = Frames::new();
        self.stream.encoder.probe(&mut probe);
        self.stream.encoder.append(probe, self.framing, &mut self.frames);
    }

    /// Writes one batch of a first state or a catch-up; `false` if there is none yet. It writes in turns, each for as long as the socket
    /// takes bytes, so that a thousand new clients do not delay live events.
    async fn write_bulk(&mut self) -> io::Result<bool> {
        let turns = self.stream.turns.clone();
        let mut is_taken = false;
        loop {
            let turn = turns.take().await;
            if !is_taken {
                let next = self.stream.next(self.framing, &mut self.frames).now_or_never();
                (is_taken, self.last) = (next.is_some(), next.unwrap_or(false));
                self.frames.cut();
            }
            while self.frames.has_remaining() {
                match self.send().now_or_never() {
                    Some(sent) => sent?,
                    None => break,
                }
            }
            drop(turn);
            if !self.frames.has_remaining() {
                return Ok(is_taken);
            }
            self.writes(true);
            poll_fn(|context| self.socket.poll_writable(context)).await?;
            self.writes(false);
        }
    }

    /// Writes bytes from the beginning of its frames, once the socket takes some.
    async fn send(&mut self) -> io::Result<()> {
        match poll_fn(|context| self.socket.poll_send(context, &mut self.frames)).await? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            _ => Ok(()),
        }
    }

    async fn send_all(&mut self) -> io::Result<()> {
        while self.frames.has_remaining() {
            self.send().await?;
        }
        Ok(())
    }

    /// Notes whether it waits for its client, for the operator.
    fn writes(&self, is_writing: bool) {
        self.stream.subscriber.follower().writes(is_writing);
    }

    /// Ends the stream after the bytes that are left to write.
    pub(super) fn end(&mut self, reason: CloseReason) {
        let mut frames = Frames::new();
        self.stream.end(reason, &mut frames);
        self.stream.encoder.append(frames, self.framing, &mut self.frames);
        self.stream.encoder.end(self.framing, &mut self.frames);
        self.last = true;
    }

    /// Rests until the moment of a live view that has not taken it in.
    pub(super) fn rest_until(&mut self, at: Instant) {
        self.stream.subscriber.rest_until(at);
    }

    /// Handles bytes from the client. They may end the stream.
    pub(super) fn said(&mut self, bytes: &[u8]) {
        let Some(parser) = &mut self.parser else { return };
        parser.push(bytes);
        self.last |= answer(parser, &mut self.frames);
    }
}

/// Reads bytes from a client: their number, and the buffer. It is on the stack, and not a part of each stream that waits.
fn hear(socket: &mut dyn Socket, context: &mut Context<'_>) -> Poll<io::Result<(usize, [u8; READ_BYTES])>> {
    let mut bytes = [0; READ_BYTES];
    let mut buffer = ReadBuf::new(&mut bytes);
    ready!(Pin::new(socket).poll_read(context, &mut buffer))?;
    let count = buffer.filled().len();
    Poll::Ready(Ok((count, bytes)))
}

/// Answers the frames of a WebSocket's client, and returns whether they end the stream. Its messages are ignored, as
/// subscriptions are made by URL.
fn answer(parser: &mut FrameParser, out: &mut Frames) -> bool {
    let mut ping = None;
    loop {
        let close = match parser.next_frame() {
            Ok(None) => break,
            Ok(Some(ClientFrame::Ping(payload))) => {
                // Only the latest needs an answer (RFC 6455, 5.5.3).
                ping = Some(payload);
                continue;
            }
            Ok(Some(ClientFrame::Pong | ClientFrame::Data | ClientFrame::Text(_))) => continue,
            Ok(Some(ClientFrame::Close(code))) => code.unwrap_or(1000),
            Err(error) => error.close_code(),
        };
        out.put_bytes(&close_frame(close, ""));
        return true;
    }
    if let Some(payload) = ping {
        out.put_bytes(&pong_frame(&payload));
    }
    false
}
