//! The window of recent changes: a ring bounded by count and bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Change, Config, Revision};
use crate::k8s::{Object, ResourceVersion};

/// Recent changes, oldest first, without gaps.
#[derive(Debug)]
pub(super) struct Journal {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// The revision before the oldest change, and the version that was reached with it.
    base: (Revision, ResourceVersion),
}

impl Journal {
    pub(super) fn new(revision: Revision, reached: ResourceVersion) -> Self {
        Self { changes: VecDeque::new(), bytes: 0, base: (revision, reached) }
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The revision from which on the journal is complete.
    pub(super) fn base_revision(&self) -> Revision {
        self.base.0
    }

    /// The version that was reached there.
    pub(super) fn base_version(&self) -> &ResourceVersion {
        &self.base.1
    }

    /// Appends a change, drops the oldest ones beyond the limits, and returns how many were dropped.
    pub(super) fn push(
        &mut self,
        change: Arc<Change>,
        config: &Config,
        mut dropped: impl FnMut(&Change),
    ) -> usize {
        self.bytes += change.journal_bytes();
        self.changes.push_back(change);
        let mut evicted = 0;
        while self.changes.len() > config.journal_len_max || self.bytes > config.journal_bytes_max {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= oldest.journal_bytes();
            self.base = (oldest.revision, oldest.reached.clone());
            dropped(&oldest);
            evicted += 1;
        }
        evicted
    }

    /// Shows an object in another form in the change with this revision, if that change is in the window and shows it.
    pub(super) fn swap(&mut self, revision: Revision, old: &Object, new: &Object) {
        let change = self.place(revision).and_then(|at| self.changes.get_mut(at));
        if let Some(change) = change.filter(|change| change.object.is_same(old)) {
            // Readers that hold the change keep the form that they have.
            Arc::make_mut(change).object = new.clone();
        }
    }

    /// The change with this revision; `None` if it left the window.
    pub(super) fn get(&self, revision: Revision) -> Option<&Arc<Change>> {
        self.changes.get(self.place(revision)?)
    }

    /// The place of the change with this revision; `None` if it left the window.
    fn place(&self, revision: Revision) -> Option<usize> {
        let at = revision.0.checked_sub(self.base.0.0 + 1)?;
        usize::try_from(at).ok()
    }

    /// At most `len_max` changes after a revision, oldest first; `None` if it left the window.
    pub(super) fn after(&self, revision: Revision, len_max: usize) -> Option<Vec<Arc<Change>>> {
        let skip = revision.0.checked_sub(self.base.0.0)? as usize;
        Some(self.changes.iter().skip(skip).take(len_max).cloned().collect())
    }

    /// The revision after which all changes newer than `version` lie; `None` if it left the window, or if no version in the
    /// window compares with it.
    pub(super) fn locate(&self, version: &ResourceVersion) -> Option<Revision> {
        let newest = self.changes.back().map_or(self.base.0, |change| change.revision);
        if !version.is_number() {
            if *version == self.base.1 {
                return Some(self.base.0);
            }
            return self
                .changes
                .iter()
                .find(|change| change.position == *version)
                .map(|change| change.revision);
        }
        if *version < self.base.1 {
            return None;
        }
        let at = self.changes.partition_point(|change| change.reached <= *version);
        Some(self.changes.get(at).map_or(newest, |change| Revision(change.revision.0 - 1)))
    }
}
