//! Who uses which paths and indexes of a cache.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::k8s::IndexPath;

/// Counts the users of paths and indexes. Has a lock of its own.
#[derive(Debug, Default)]
pub(super) struct Uses(Mutex<Counts>);

/// The users of paths and indexes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) paths: Vec<(IndexPath, usize)>,
    pub(super) indexes: Vec<IndexUses>,
}

/// The users of an index.
#[derive(Debug)]
pub(super) struct IndexUses {
    pub(super) path: IndexPath,
    pub(super) users: usize,
    /// Since when it was seen without users.
    pub(super) idle_since: Option<Instant>,
}

impl Uses {
    pub(super) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    pub(super) fn index_mut(&mut self, path: &IndexPath) -> &mut IndexUses {
        let at = self.indexes.iter().position(|uses| uses.path == *path);
        let at = at.unwrap_or_else(|| {
            self.indexes.push(IndexUses { path: path.clone(), users: 0, idle_since: None });
            self.indexes.len() - 1
        });
        &mut self.indexes[at]
    }
}
