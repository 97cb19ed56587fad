//! Where the requests of a cache's readers lie until the reflector finds them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::k8s::ResourceVersion;

/// The requests of one cache's readers. Backfills themselves are in its state, as they follow its changes.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    /// Wakes [`BackfillRequests`](super::BackfillRequests).
    pub(super) backfill_tx: watch::Sender<()>,
    version: Mutex<UpstreamVersion>,
    /// Wakes [`VersionRequests`](super::VersionRequests).
    pub(super) version_tx: watch::Sender<()>,
}

/// What is known of the API server's version.
#[derive(Debug)]
pub(super) struct UpstreamVersion {
    /// The cache's history of which this is known.
    history: u64,
    /// The newest version that the API server told.
    pub(super) reached: ResourceVersion,
    /// The newest version that a reader came with and that is not answered.
    pub(super) requested: Option<ResourceVersion>,
}

// === impl Inquiries ===

impl Inquiries {
    pub(super) fn version(&self) -> MutexGuard<'_, UpstreamVersion> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl UpstreamVersion ===

impl Default for UpstreamVersion {
    /// Of the first history nothing is known.
    fn default() -> Self {
        Self { history: 0, reached: ResourceVersion::ZERO, requested: None }
    }
}

impl UpstreamVersion {
    /// What is known in a history: nothing if it is another one.
    pub(super) fn of(&mut self, history: u64) -> &mut Self {
        if self.history != history {
            *self = Self { history, ..Self::default() };
        }
        self
    }
}
