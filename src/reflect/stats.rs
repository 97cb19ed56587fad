//! Counters of a reflector that can be read at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::{Difference, DifferenceKind, VerifyOutcome};

/// Counters of one reflector, which alone writes them. Reading costs a few loads.
#[derive(Debug, Default)]
pub struct Stats {
    pub(super) lists: AtomicU64,
    pub(super) streams: AtomicU64,
    pub(super) pages: AtomicU64,
    pub(super) probes: AtomicU64,
    pub(super) watches: AtomicU64,
    pub(super) relists: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) not_found: AtomicU64,
    pub(super) skipped: AtomicU64,
    verified: Mutex<Option<LastVerification>>,
}

/// The last comparison with the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastVerification {
    /// When it ended.
    pub at: Instant,
    /// Its outcome.
    pub outcome: VerifyOutcome,
    /// Objects that the cache lacked.
    pub missing: u64,
    /// Objects that only the cache had.
    pub extra: u64,
    /// Objects that the cache had in another state.
    pub stale: u64,
}

/// [`Stats`] at about one moment: each number is read by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Lists started, including the first one.
    pub lists: u64,
    /// Lists requested as a stream.
    pub streams: u64,
    /// Pages received.
    pub pages: u64,
    /// Requests for the API server's current version only.
    pub probes: u64,
    /// Watches requested.
    pub watches: u64,
    /// Lists after the first one.
    pub relists: u64,
    /// Watch events, bookmarks included.
    pub events: u64,
    /// Failed requests and ERROR events.
    pub failures: u64,
    /// Requests answered with 404: the resource is not served.
    pub not_found: u64,
    /// Objects that could not be decoded.
    pub skipped: u64,
}

impl Stats {
    /// The last comparison with the API server; `None` if there was none.
    pub fn last_verification(&self) -> Option<LastVerification> {
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the outcome of a comparison.
    pub(super) fn verified(&self, outcome: VerifyOutcome, differences: &[Difference]) {
        let count = |kind| differences.iter().filter(|difference| difference.kind() == kind).count() as u64;
        let last = LastVerification {
            at: Instant::now(),
            outcome,
            missing: count(DifferenceKind::Missing),
            extra: count(DifferenceKind::Extra),
            stale: count(DifferenceKind::Stale),
        };
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }

    /// The numbers now.
    pub fn read(&self) -> StatsSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatsSnapshot {
            lists: read(&self.lists),
            streams: read(&self.streams),
            pages: read(&self.pages),
            probes: read(&self.probes),
            watches: read(&self.watches),
            relists: read(&self.relists),
            events: read(&self.events),
            failures: read(&self.failures),
            not_found: read(&self.not_found),
            skipped: read(&self.skipped),
        }
    }
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
