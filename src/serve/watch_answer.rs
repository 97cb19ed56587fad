//! The answer of a watch on its way through axum and hyper to its connection.

use std::pin::Pin;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};

use super::body::Carried;
use super::live_loop::LiveLoops;
use super::peer::ConnectionPermit;
use super::socket::Socket;
use super::stream::WatchStream;
use crate::encode::{Frames, Framing};

/// The answer of a watch: its stream, and the loops that write to it once it has caught up.
pub(super) struct WatchAnswer {
    stream: Box<WatchStream>,
    loops: Arc<LiveLoops>,
}

impl WatchAnswer {
    pub(super) fn new(stream: WatchStream, loops: &Arc<LiveLoops>) -> Self {
        Self { stream: Box::new(stream), loops: loops.clone() }
    }

    /// Takes over a connection and serves the stream until it or the client ends. `frames` is written first. `read` are bytes
    /// of the client that were read beyond its request.
    pub(super) fn begin(
        self,
        socket: Box<dyn Socket>,
        framing: Framing,
        frames: Frames,
        read: &[u8],
        connected: ConnectionPermit,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut attached = self.stream.attach(socket, framing, connected, frames);
        attached.said(read);
        Box::pin(self.loops.follow(attached))
    }
}

impl IntoResponse for WatchAnswer {
    fn into_response(self) -> Response {
        Carried::new(self).into_response()
    }
}
