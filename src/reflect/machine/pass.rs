//! What the machine remembers of a list that is under way, and of answers that were older than the cache.

use std::time::Duration;

use tokio::time::Instant;

use crate::k8s::ResourceVersion;
use crate::upstream::{AsOf, Backoff};

/// Number of older answers in a row, over at least [`OLDER_PATIENCE`], after which they are believed. One of several API
/// servers is behind for seconds at most; a cluster that was restored from a backup stays behind.
const OLDER_ANSWERS_MIN: u32 = 3;
const OLDER_PATIENCE: Duration = Duration::from_secs(15);

/// A list under way, in pages.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) as_of: AsOf,
    /// The version of its first page, which is the list's.
    pub(super) version: Option<ResourceVersion>,
    pub(super) token: Option<String>,
}

/// A list under way, as a stream.
#[derive(Debug)]
pub(super) struct Streaming {
    pub(super) as_of: AsOf,
    pub(super) opened: Option<Instant>,
}

/// Consecutive answers that are older than what the cache has seen.
#[derive(Debug, Default)]
pub(super) struct Older {
    pub(super) answers: u32,
    pub(super) since: Option<Instant>,
    pub(super) backoff: Backoff,
}

// === impl Streaming ===

impl Streaming {
    pub(super) fn is_open(&self) -> bool {
        self.opened.is_some()
    }
}

// === impl Older ===

impl Older {
    /// Whether a list at `listed` must be distrusted, because `seen` is newer (U31).
    pub(super) fn is_doubtful(&self, listed: &ResourceVersion, seen: &ResourceVersion, now: Instant) -> bool {
        let convinced = self.answers + 1 >= OLDER_ANSWERS_MIN
            && self.since.is_some_and(|since| now.saturating_duration_since(since) >= OLDER_PATIENCE);
        listed < seen && !convinced
    }
}
