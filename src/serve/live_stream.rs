//! A stream while a live view writes to it.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tokio::time::Instant;

use super::metrics::StreamObserver;
use super::peer::ConnectionPermit;
use super::socket::Socket;
use super::stream::{Attached, ClientHalf, WatchStream};
use super::turns::Turns;
use crate::encode::{Checksum, EncoderKind, FrameParser, Frames, Framing};
use crate::hub::{LivePlace, LiveSubscriber};

/// A stream that has caught up, without what it needs only to read and encode by itself: its view does both for it.
pub(super) struct LiveStream {
    pub(super) socket: Box<dyn Socket>,
    subscriber: LiveSubscriber,
    kind: EncoderKind,
    framing: Framing,
    /// What it was sent, before compression.
    checksum: Checksum,
    parser: Option<Box<FrameParser>>,
    half: ClientHalf,
    observer: StreamObserver,
    turns: Arc<Turns>,
    /// How many objects could not be unpacked before it.
    damages: u64,
    connected: ConnectionPermit,
}

impl LiveStream {
    /// A stream that joins a live view; `kind` is that of its encoder.
    pub(super) fn new(stream: Attached, kind: EncoderKind) -> Self {
        let Attached { socket, stream, framing, parser, half, connected, .. } = stream;
        let WatchStream { subscriber, encoder, observer, turns, damages, .. } = stream;
        subscriber.follower().joined(Instant::now());
        let (subscriber, checksum) = (subscriber.into_live(), encoder.checksum());
        Self {
            socket,
            subscriber,
            kind,
            framing,
            checksum,
            parser,
            half,
            observer,
            turns,
            damages,
            connected,
        }
    }

    /// The stream that goes on by itself, from the place to which its view has brought it.
    pub(super) fn leave(self, place: &LivePlace) -> Box<Attached> {
        let Self {
            socket,
            subscriber,
            kind,
            framing,
            checksum,
            parser,
            half,
            observer,
            turns,
            damages,
            connected,
        } = self;
        subscriber.follower().left(Instant::now());
        let mut encoder = kind.encoder(place.sources.iter().map(|source| &source.informer));
        encoder.said_elsewhere(checksum);
        encoder.advance_to(place.sources.iter().map(|source| &source.position));
        let subscriber = subscriber.leave(place);
        let stream = WatchStream { subscriber, encoder, observer, turns, damages };
        let (frames, last) = (Frames::new(), false);
        Box::new(Attached { socket, stream, framing, parser, half, connected, frames, last })
    }

    /// Streams with the same kind and framing get the same bytes of a view.
    pub(super) fn kind(&self) -> (EncoderKind, Framing) {
        (self.kind, self.framing)
    }

    /// Notes what its live view has said to it, before compression.
    pub(super) fn said_elsewhere(&mut self, checksum: Checksum) {
        self.checksum.append(checksum);
    }

    /// How many objects could not be unpacked before it began.
    pub(super) fn damages(&self) -> u64 {
        self.damages
    }

    /// Writes as many bytes as the socket takes now. Does not wake when it could take more.
    pub(super) fn try_write(&mut self, bytes: &Bytes) -> Poll<io::Result<usize>> {
        let written = self.socket.try_send(bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.subscriber.follower().sent(0, count);
        }
        written
    }

    /// Counts the events and bytes that all members of its group were sent.
    pub(super) fn count(&self, events: usize, bytes: usize) {
        self.subscriber.count(events);
        self.observer.bytes(bytes);
    }

    /// Whether the client may send something, or end its half.
    pub(super) fn hears(&self) -> bool {
        self.half == ClientHalf::Open
    }

    /// Notes that the client's half has ended. Returns whether the stream goes on: it then finds out whether the client still reads.
    pub(super) fn ended_half(&mut self) -> bool {
        self.half = ClientHalf::Ended;
        // The client of a WebSocket says when it leaves.
        self.parser.is_none()
    }
}
