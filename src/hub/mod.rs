//! The hub: all informers, and the subscriptions to them.
//!
//! In comes a [`Subscription`] (informers, selection, where to start); out comes a [`Subscriber`] whose
//! [`Subscriber::next`] yields [`Delivery`]s: the snapshot, then every change. Once it has caught up, a view of [`Live`]
//! can serve it together with others of the same selection. This room knows no transport and no bytes. It has no queues: a
//! subscriber is a cursor for each informer and pulls when its socket can take more, so that a slow one delays only itself.

mod close;
mod demand;
mod event;
mod follower;
mod form;
mod gathering;
mod generations;
mod informer;
mod informer_spec;
mod join;
mod lane;
mod live;
mod live_place;
mod live_view;
mod metrics;
mod pacer;
mod project;
mod registry;
mod resumable;
mod routes;
mod selection;
mod shared_batch;
mod source;
mod subscriber;
mod subscription;
mod token;

pub use close::CloseReason;
pub use demand::{Demand, Names, SubscribeError};
pub use event::{Event, EventKind, Payload, ResetReason};
pub use follower::{Follower, FollowerSummary, Origin, Stage};
pub use form::Form;
pub use generations::{Generations, HeldAnswer, HeldState, Holding};
pub use informer::{InUse, Informer, InformerId};
pub use informer_spec::{Content, ContentDigest, InformerSpec, Scope, Started};
pub use join::{JOINED_MAX, Join, RelatedInformer};
pub use live::Live;
pub use live_place::{Group, LivePlace, LivePosition, Member, Round, Told};
pub use metrics::describe;
pub use pacer::{Pacer, Pause};
pub use registry::{Catalog, Hub, Pending, SubscriberPermit};
pub use resumable::Resumable;
pub use selection::{Candidates, Matcher, Selection};
pub use shared_batch::{RENDERINGS, Rendered, SharedBatch};
pub use subscriber::{LiveSubscriber, Subscriber};
pub use subscription::{Begin, Delivery, StartAt, Subscription, VERSION_WAIT};
pub use token::{BOOKMARK_PART, ResumeToken, TokenKind};

use std::time::Duration;

/// Limits and intervals of subscriptions.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Largest number of subscribers, over all connections.
    pub subscribers_max: usize,
    /// Largest number of events in a delivery.
    pub batch_len_max: usize,
    /// Largest size of a delivery, in bytes of objects. A single object may exceed it.
    pub batch_bytes_max: usize,
    /// Time between heartbeats of a quiet stream.
    pub heartbeat_interval: Duration,
    /// Time between bookmarks of a stream.
    pub bookmark_interval: Duration,
    /// Time for which a resume token waits before RESET: one that is ahead of the cache and of the API server, or one from
    /// before the first list while the changes since are being requested.
    pub resume_wait: Duration,
    /// Longest time over which the ends of streams are spread at shutdown. A few streams take less.
    pub drain_spread_max: Duration,
}

#[cfg(test)]
mod tests;
