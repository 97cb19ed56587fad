//! The peer of a connection, and the permit of the connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::metrics;

/// Counts a connection, and holds its permit, until all parts of it are dropped.
#[derive(Clone)]
pub(super) struct ConnectionPermit(#[expect(dead_code, reason = "held, not read")] Arc<Slot>);

/// The address of a connection's peer; `None` over a Unix socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) Option<SocketAddr>);

/// The permit; the connection is counted as closed when it is dropped.
struct Slot(#[expect(dead_code, reason = "held, not read")] Option<OwnedSemaphorePermit>);

impl ConnectionPermit {
    /// With a permit, if the listener limits its connections by permits.
    pub(super) fn new(permit: Option<OwnedSemaphorePermit>) -> Self {
        metrics::connections().increment(1.0);
        Self(Arc::new(Slot(permit)))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("unix socket"),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        metrics::connections().decrement(1.0);
    }
}
