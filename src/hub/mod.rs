//! Where subscribers wait: the set of shared informers and the one door through which they are read.
//!
//! In comes a [`Subscription`] (which informers, which objects, from where); out comes a [`Subscriber`] whose
//! [`Subscriber::next`] yields [`Delivery`]s: the snapshot, then every change. This room knows no transport
//! and no bytes. It keeps no queue: a subscriber is a cursor per informer and pulls when its socket can take
//! more, so that a slow one delays only itself.

mod close;
mod demand;
mod event;
mod form;
mod generations;
mod informer;
mod live;
mod metrics;
mod pacer;
mod project;
mod registry;
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
pub use form::Form;
pub use generations::{Generations, HeldState, Holding};
pub use informer::{Figures, InUse, Informer, InformerId, Scope, Started, Verified};
pub use live::{Group, Live, LivePlace, LivePosition, Member, Members, Round, Told};
pub use metrics::describe;
pub use pacer::{Pacer, Pause};
pub use registry::{Hub, Pending};
pub use selection::{Candidates, Matcher, Selection};
pub use shared_batch::{RENDERINGS, Rendered, SharedBatch};
pub use subscriber::Subscriber;
pub use subscription::{Begin, Delivery, StartAt, Subscription, VERSION_WAIT};
pub use token::{BOOKMARK_PART, ResumeToken, TokenError, TokenKind};

use std::time::Duration;

/// Limits and rhythms of subscriptions.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Subscribers at most, over all connections.
    pub subscribers_max: usize,
    /// Events handed to a transport in one go.
    pub batch_len_max: usize,
    /// Bytes of objects handed to a transport in one go (one object may exceed it).
    pub batch_bytes_max: usize,
    /// How often a quiet stream shows that it lives.
    pub heartbeat_interval: Duration,
    /// How often a stream is told its resume token without an event.
    pub bookmark_interval: Duration,
    /// How long a resume token waits before RESET: one ahead of the cache and of what the API server says it has reached,
    /// or one from before the cache for what changed since.
    pub resume_wait: Duration,
    /// Over how long the ends of streams are spread at shutdown at most; few streams take less.
    pub drain_spread_max: Duration,
}

#[cfg(test)]
mod tests;
