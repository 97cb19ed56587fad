//! Subscriptions and deliveries: what a client asks for, and what it gets.

use std::sync::Arc;
use std::time::Duration;

use super::event::Event;
use super::shared_batch::SharedBatch;
use super::{CloseReason, Informer, Join, ResumeToken, Selection};
use crate::k8s::ResourceVersion;

/// What a client asks for.
#[derive(Debug)]
pub struct Subscription {
    /// The informers; at least one.
    pub informers: Vec<Arc<Informer>>,
    /// The objects of them.
    pub selection: Selection,
    /// What is shown beside them, if anything. Not with [`StartAt::Ordered`].
    pub join: Option<Arc<Join>>,
    /// Where it starts.
    pub from: StartAt,
    /// Send every matching object again at this interval.
    pub resync: Option<Duration>,
    /// End the stream after this long.
    pub timeout: Option<Duration>,
}

/// Where a subscription starts.
#[derive(Clone, Debug)]
pub enum StartAt {
    /// All current objects, then every change.
    Start,
    /// Every change from now on.
    Now,
    /// Every change after the token of the last event. The client holds nothing from beyond it.
    Token(ResumeToken),
    /// Every change after the token of the last bookmark. The client may hold events from beyond it.
    Bookmark(ResumeToken),
    /// As the API server's own watch, of one informer: every change in order, or the stream ends ([`CloseReason::Expired`]). A
    /// client that resumes from the version of any event misses nothing.
    Ordered(Begin),
}

/// Where a subscription starts that gets every change in order.
#[derive(Clone, Debug)]
pub enum Begin {
    /// Everything there is, then every change.
    Start,
    /// The same, once the cache has reached a version. If it does not in time, the stream ends ([`CloseReason::TooLarge`]).
    NotOlder(ResourceVersion),
    /// Every change from now on.
    Now,
    /// Every change after a version.
    After(ResourceVersion),
}

/// Time for the cache to reach a requested version (U9). Source: apiserver `storage/cacher/watch_cache.go`, `blockTimeout`.
pub const VERSION_WAIT: Duration = Duration::from_secs(3);

/// The result of [`Subscriber::next`](super::Subscriber::next).
#[derive(Debug)]
pub enum Delivery {
    /// Events in order; at least one.
    Events(Vec<Event>),
    /// Batches of the one informer that are shared with other subscribers, in order; at least one.
    Shared(Vec<Arc<SharedBatch>>),
    /// The informer of a source was replaced; the difference follows.
    Replaced {
        /// The index in [`Subscription::informers`].
        source: usize,
        /// The new informer.
        informer: Arc<Informer>,
    },
    /// There was no event for a while: send a heartbeat.
    Heartbeat,
    /// The stream ends.
    Closed(CloseReason),
}

// === impl Delivery ===

impl Delivery {
    /// Its events, one by one.
    pub fn events(&self) -> Vec<Event> {
        match self {
            Self::Events(events) => events.clone(),
            Self::Shared(batches) => batches.iter().flat_map(|batch| batch.events()).collect(),
            Self::Replaced { .. } | Self::Heartbeat | Self::Closed(_) => Vec::new(),
        }
    }
}
