//! What is asked for, and what is given.

use std::sync::Arc;
use std::time::Duration;

use super::event::Event;
use super::shared_batch::SharedBatch;
use super::{CloseReason, Informer, ResumeToken, Selection};
use crate::k8s::ResourceVersion;

/// What is asked for.
#[derive(Debug)]
pub struct Subscription {
    /// Which informers; at least one.
    pub informers: Vec<Arc<Informer>>,
    /// Which objects.
    pub selection: Selection,
    /// From where.
    pub from: StartAt,
    /// Hand out every matching object again at this interval.
    pub resync: Option<Duration>,
    /// End the stream after this long.
    pub timeout: Option<Duration>,
}

/// From where a subscription begins.
#[derive(Clone, Debug)]
pub enum StartAt {
    /// Everything there is, then every change.
    Start,
    /// Every change from now on.
    Now,
    /// Every change after a token, which covers all that the client has: that of the last event it took.
    Token(ResumeToken),
    /// Every change after a token, beyond which the client may have taken events: that of the last bookmark.
    Bookmark(ResumeToken),
    /// As the API server's own watch of one informer: every change is told, in order, or the stream ends
    /// ([`CloseReason::Expired`]). Whoever takes the version of each event for the place to resume from misses nothing.
    Ordered(Begin),
}

/// From where a subscription begins that is told every change in order.
#[derive(Clone, Debug)]
pub enum Begin {
    /// Everything there is, then every change.
    Start,
    /// The same, once the cache is not older than a version. The stream ends where it is not in time
    /// ([`CloseReason::TooLarge`]).
    NotOlder(ResourceVersion),
    /// Every change from now on.
    Now,
    /// Every change after a version.
    After(ResourceVersion),
}

/// How long the cache may take to reach a version that is asked for. Source: apiserver `storage/cacher/watch_cache.go`,
/// `blockTimeout`.
pub const VERSION_WAIT: Duration = Duration::from_secs(3);

/// What [`Subscriber::next`](super::Subscriber::next) gives.
#[derive(Debug)]
pub enum Delivery {
    /// Events in order; at least one.
    Events(Vec<Event>),
    /// Batches that other subscribers have, too: of the one informer, in order; at least one.
    Shared(Vec<Arc<SharedBatch>>),
    /// From now on a source is another informer; what differs follows.
    Replaced {
        /// Its place in [`Subscription::informers`].
        source: usize,
        /// The one to go on with.
        informer: Arc<Informer>,
    },
    /// Nothing for a while: show that the stream lives.
    Heartbeat,
    /// The stream ends.
    Closed(CloseReason),
}

// === impl Delivery ===

impl Delivery {
    /// The events it brings, one by one.
    pub fn events(&self) -> Vec<Event> {
        match self {
            Self::Events(events) => events.clone(),
            Self::Shared(batches) => batches.iter().flat_map(|batch| batch.events()).collect(),
            Self::Replaced { .. } | Self::Heartbeat | Self::Closed(_) => Vec::new(),
        }
    }
}
