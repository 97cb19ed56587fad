//! What a reflector did so far, in numbers that can be read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one reflector, written by it alone. Reading is a few loads.
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
}

/// [`Stats`] at one moment, each number by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Lists that were begun, the first one included.
    pub lists: u64,
    /// Those of them that were asked for as a stream.
    pub streams: u64,
    /// Pages that came.
    pub pages: u64,
    /// Requests for nothing but the API server's version.
    pub probes: u64,
    /// Watches that were asked for.
    pub watches: u64,
    /// Lists beyond the first that something made necessary.
    pub relists: u64,
    /// Watch events, bookmarks included.
    pub events: u64,
    /// Failed requests and ERROR events.
    pub failures: u64,
    /// Requests answered that the resource is not served.
    pub not_found: u64,
    /// Objects that could not be taken.
    pub skipped: u64,
}

impl Stats {
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

/// Counts one more.
pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
