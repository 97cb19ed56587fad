//! What the steps of a work queue come to, and how it is shown.

use std::time::Duration;

use super::token::LeaseToken;
use crate::k8s::Key;

/// What an added key came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is queued now.
    Queued,
    /// It was queued before.
    Already,
    /// A worker has it; it comes again afterwards.
    Afterwards,
    /// A worker has it, and it was to come again before.
    AlreadyAfterwards,
}

/// The queue has as many keys as it may have, so nothing was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full")]
pub struct Full;

/// The lease of a token is not held: it has run out, was answered, or is of another queue or process. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeld {
    /// This queue has given it.
    #[error("the lease is no longer held: it has run out, or was answered before")]
    Over,
    /// Another queue or another process has given it.
    #[error("the lease was given by another queue, or by informerd before it was started again")]
    Foreign,
}

/// A key that was handed to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The number of its resource.
    pub resource: u16,
    /// The key.
    pub key: Key,
    /// The number of this attempt, from 1 on.
    pub attempt: u32,
    /// What the worker shows with its answer.
    pub token: LeaseToken,
    /// How long the key was queued.
    pub waited: Duration,
}

/// What a failed attempt led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// The key is queued again after this time.
    After(Duration),
    /// The key was set aside.
    Failed,
}

/// What became due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advanced {
    /// Delayed keys that are queued now.
    pub due: usize,
    /// Leases that ran out.
    pub expired: usize,
    /// Keys of such leases that were set aside.
    pub failed: usize,
    /// Whether more is due, for another call.
    pub more: bool,
}

/// A key that was set aside after too many attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The number of its resource.
    pub resource: u16,
    /// The key.
    pub key: Key,
    /// How often it failed in a row.
    pub attempts: u32,
    /// What the worker said last.
    pub error: String,
    /// How long ago that was.
    pub since: Duration,
}

/// A lease as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The number of its resource.
    pub resource: u16,
    /// The key.
    pub key: Key,
    /// The number of this attempt.
    pub attempt: u32,
    /// Since when the worker has it.
    pub since: Duration,
    /// When it runs out.
    pub left: Duration,
}

/// A queue in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Keys that can be leased.
    pub depth: usize,
    /// Those among them that are of a first state.
    pub low: usize,
    /// Keys that wait for a moment.
    pub delayed: usize,
    /// Leases.
    pub in_flight: usize,
    /// Keys that were set aside.
    pub failed: usize,
    /// How long the oldest key has been ready.
    pub oldest: Option<Duration>,
    /// The ages of all leases together.
    pub unfinished: Duration,
    /// The age of the oldest lease.
    pub longest: Duration,
}
