//! A stream that has its socket to itself.
//!
//! hyper reads the request and is done with it: it needs 10 KB for a connection that waits, and a quarter of the CPU time
//! of a small event. So the head of the answer and all that follows is written here, in HTTP/1.1 chunks or WebSocket
//! frames, each batch by one system call from bytes that are shared with every other stream.

use axum::http::{HeaderMap, StatusCode, Version, header};
use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::connection::Connected;
use super::metrics::StreamObserver;
use crate::encode::{ClientFrame, Encoder, Format, FrameParser, Frames, Framing, close_frame, pong_frame};
use crate::hub::{CloseReason, Delivery, Subscriber};
use crate::k8s::Status;

/// What a watch answers with, whatever carries it.
pub(super) struct WatchStream {
    subscriber: Subscriber,
    encoder: Encoder,
    observer: StreamObserver,
    format: Format,
}

/// A stream about to take its connection over.
pub(super) struct Takeover {
    head: Vec<u8>,
    stream: WatchStream,
    framing: Framing,
}

/// Within how long EventSources come back after a shutdown, in milliseconds; drawn for each.
const RETRY_MS: std::ops::Range<u64> = 500..3000;
/// Bytes read from a client in one go: it has little to say.
const READ_BYTES: usize = 128;

impl WatchStream {
    pub(super) fn new(subscriber: Subscriber, encoder: Encoder, format: Format) -> Self {
        Self { subscriber, encoder, observer: StreamObserver::new(format), format }
    }

    /// Appends what comes next, and tells whether it was the last. Cancel-safe: what was not appended is not lost.
    pub(super) async fn next(&mut self, framing: Framing, out: &mut Frames) -> bool {
        let before = out.remaining();
        let mut frames = Frames::new();
        let mut last = false;
        match self.subscriber.next().await {
            Delivery::Runs(runs) => runs.iter().for_each(|run| self.encoder.run(run, framing, out)),
            Delivery::Events(events) => self.encoder.encode(&events, &mut frames),
            Delivery::Replaced { source, informer } => self.encoder.replace(source, &informer),
            Delivery::Heartbeat => self.encoder.heartbeat(&mut frames),
            Delivery::Closed(reason) => {
                self.end(reason, &mut frames);
                last = true;
            }
        }
        framing.append(frames, out);
        if last {
            framing.end(out);
        }
        self.observer.bytes(out.remaining() - before);
        last
    }

    /// The last words.
    fn end(&mut self, reason: CloseReason, frames: &mut Frames) {
        self.observer.closed(reason.as_str());
        match reason {
            CloseReason::Shutdown => self.encoder.retry(rand::random_range(RETRY_MS), frames),
            CloseReason::Removed => {
                let names: Vec<_> =
                    self.subscriber.informers().map(|informer| informer.name.as_str()).collect();
                let names = names.join(", ");
                let message = format!("{names}: not followed any more, as the configuration has changed");
                self.encoder.error(&Status::failure(404, "NotFound", message), frames);
            }
            CloseReason::Timeout | CloseReason::Regrouped => {}
        }
        if self.format == Format::WebSocket {
            // 1001: the server goes away; 1000: what was asked for is done.
            let code = if reason == CloseReason::Shutdown { 1001 } else { 1000 };
            frames.put_bytes(&close_frame(code, reason.as_str()));
        }
        frames.cut();
    }
}

impl Takeover {
    /// The answer to a request of this version of HTTP/1.
    pub(super) fn new(
        stream: WatchStream,
        status: StatusCode,
        headers: &HeaderMap,
        version: Version,
    ) -> Self {
        let upgrades = status == StatusCode::SWITCHING_PROTOCOLS;
        let framing = if upgrades || version == Version::HTTP_10 { Framing::Plain } else { Framing::Chunked };
        let number = if version == Version::HTTP_10 { 0 } else { 1 };
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
        Self { head, stream, framing }
    }

    /// Serves the stream until it or the client ends. `read` is what was read of the client beyond its request.
    pub(super) async fn run<S>(self, mut socket: S, read: Bytes, connected: Connected)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { head, mut stream, framing } = self;
        // Only a WebSocket has something to say.
        let mut parser = (stream.format == Format::WebSocket).then(FrameParser::default);
        let mut frames = Frames::new();
        frames.share(head.into());
        let mut last = parser.as_mut().is_some_and(|parser| {
            parser.push(&read);
            answer(parser, &mut frames)
        });
        drop(read);
        loop {
            frames.cut();
            if socket.write_all_buf(&mut frames).await.is_err() {
                break;
            }
            if last {
                // A WebSocket's client answers a close by closing; an error means that it did already.
                let _ = socket.shutdown().await;
                break;
            }
            let mut buffer = [0; READ_BYTES];
            tokio::select! {
                biased;
                ended = stream.next(framing, &mut frames) => last = ended,
                count = socket.read(&mut buffer) => match (count, &mut parser) {
                    (Ok(0) | Err(_), _) => break,
                    (Ok(count), Some(parser)) => {
                        parser.push(&buffer[..count]);
                        last = answer(parser, &mut frames);
                    }
                    (Ok(_), None) => {}
                },
            }
        }
        drop(connected);
    }
}

/// Answers what a WebSocket's client said, and tells whether that ends the stream. What else it says is not part of the
/// contract; subscriptions are by URL.
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
            Ok(Some(ClientFrame::Pong | ClientFrame::Data)) => continue,
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
