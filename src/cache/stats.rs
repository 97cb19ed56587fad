//! Counters of the reflector that writes a cache, which the cache's readers show.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Counters of one reflector, which alone writes them. Reading costs a few loads.
#[derive(Debug, Default)]
pub struct ReflectorStats {
    /// Lists started, including the first one.
    pub lists: Count,
    /// Lists requested as a stream.
    pub streams: Count,
    /// Pages received.
    pub pages: Count,
    /// Requests for the API server's current version only.
    pub probes: Count,
    /// Watches requested.
    pub watches: Count,
    /// Lists after the first one.
    pub relists: Count,
    /// Watch events, bookmarks included.
    pub events: Count,
    /// Failed requests and ERROR events.
    pub failures: Count,
    /// Requests answered with 404: the resource is not served.
    pub not_found: Count,
    /// Objects that could not be decoded.
    pub skipped: Count,
    verified: Mutex<Option<LastVerification>>,
}

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

/// The last comparison of a cache with the API server.
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

/// The outcome of a comparison, from a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyOutcome {
    /// Nothing differs.
    Equal,
    /// Something does.
    Different,
    /// It was given up, as the cache or the list moved on.
    Abandoned,
    /// The API server did not list, or the list could not be decoded.
    Failed,
}

// === impl ReflectorStats ===

impl ReflectorStats {
    /// The last comparison with the API server; `None` if there was none.
    pub fn last_verification(&self) -> Option<LastVerification> {
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the outcome of a comparison.
    pub fn verified(&self, last: LastVerification) {
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }
}

// === impl Count ===

impl Count {
    /// Adds to it.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl VerifyOutcome ===

impl VerifyOutcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Equal, Self::Different, Self::Abandoned, Self::Failed];

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Different => "different",
            Self::Abandoned => "abandoned",
            Self::Failed => "failed",
        }
    }
}
