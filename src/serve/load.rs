//! The requests of a connection, counted until they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Number of requests that were received.
    begun: AtomicUsize,
    /// Number of requests that are not completely answered.
    under_way: AtomicUsize,
    /// Number of these that end soon after their client has closed its half.
    ending_with_client: AtomicUsize,
}

/// A request while it ends soon after its client has closed its half.
pub(super) struct EndsWithClient(Arc<Load>);

/// Marks, in a response's extensions, an answer that follows a state, and so does not end soon after its client has closed its half.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowsState;

/// A request until its answer has ended.
pub(super) struct UnderWay(Arc<Load>);

impl Load {
    /// Number of requests that were received.
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a request is not completely answered.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Whether one of them ends soon after its client has closed its half.
    pub(super) fn ends_with_client(&self) -> bool {
        self.ending_with_client.load(Ordering::Relaxed) > 0
    }
}

impl UnderWay {
    /// The connection of the request.
    pub(super) fn load(&self) -> &Arc<Load> {
        &self.0
    }

    pub(super) fn begin(load: &Arc<Load>) -> Self {
        load.begun.fetch_add(1, Ordering::Relaxed);
        load.under_way.fetch_add(1, Ordering::Relaxed);
        Self(load.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EndsWithClient {
    pub(super) fn begin(load: &Arc<Load>) -> Self {
        load.ending_with_client.fetch_add(1, Ordering::Relaxed);
        Self(load.clone())
    }
}

impl Drop for EndsWithClient {
    fn drop(&mut self) {
        self.0.ending_with_client.fetch_sub(1, Ordering::Relaxed);
    }
}
