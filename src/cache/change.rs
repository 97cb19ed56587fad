//! What goes into a cache and what comes of it.

use std::sync::Arc;

use super::Revision;
use crate::k8s::{Key, Object, ResourceVersion};

/// What the reflector asks of the cache.
#[derive(Debug)]
pub enum Delta {
    /// A pass of a list begins (a new epoch). What was there stays served until [`Delta::PassEnd`].
    PassBegin,
    /// An object of the pass.
    PassItem(Object),
    /// An object of the pass was deleted before its end.
    PassGone(Object),
    /// The pass is complete at this resourceVersion: what it did not name is gone.
    PassEnd(ResourceVersion),
    /// An older answer of the API server came before this pass: it is of the history that the cache holds only if it
    /// contradicts nothing of it.
    PassDoubted,
    /// The pass failed: forget it.
    PassAbort,
    /// What the API server tells is of another history than what the cache holds, though its versions may be beyond:
    /// the next complete pass begins a new one, and readers start over.
    OtherHistory,
    /// ADDED or MODIFIED on the watch.
    Apply(Object),
    /// DELETED on the watch: the last state, at the version of the deletion.
    Delete(Object),
    /// An object is, from this version on, one that is not held, such as one that grew too large: it is told as deleted.
    Unheld(Key, ResourceVersion),
    /// Everything up to here has been seen.
    Bookmark(ResourceVersion),
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// It was there before.
    Modified,
    /// It is gone.
    Deleted,
}

/// One committed step.
#[derive(Debug)]
pub struct Change {
    /// Our own counter, one more than the change before.
    pub revision: Revision,
    /// Where a reader is that has taken this change.
    pub position: ResourceVersion,
    /// What happened.
    pub kind: ChangeKind,
    /// The new state; for a deletion the last one.
    pub object: Arc<Object>,
    /// The state before, so that a selector's enter and leave can be told.
    pub previous: Option<Arc<Object>>,
    /// The resourceVersion that a deletion is shown with: its own; the list's where a relist found it; that of
    /// the new object where one of the same name took its place.
    pub version: ResourceVersion,
    /// The resourceVersion from which on a reader is known to have this change, whichever replica gave it that
    /// version. The position, but for what a relist found: then the list's.
    pub(super) reached: ResourceVersion,
}

/// What a commit did, for the metrics of the room outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Objects that came to be.
    pub added: usize,
    /// Objects that changed.
    pub modified: usize,
    /// Objects that are gone.
    pub deleted: usize,
    /// Deltas that told nothing new (U3, deletions of unknown objects).
    pub duplicates: usize,
    /// Events that were not taken, as they are older than what was told and of an object that is not there: it may be
    /// new to us, or long gone. Only a list tells.
    pub doubtful: usize,
    /// Changes that left the journal.
    pub evicted: usize,
    /// Whether a list went back in time, so that readers must start over.
    pub history_lost: bool,
}

impl Change {
    /// Whether more follows that a relist found: what happened meanwhile is not known in its order, and an object
    /// that is told later may have stopped to match before this position.
    pub fn is_amid_relist(&self) -> bool {
        self.reached != self.position
    }

    /// Bytes that only the journal holds: the state before, and the last state of a deleted object.
    pub(super) fn journal_bytes(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |object| object.json().len());
        match self.kind {
            ChangeKind::Deleted => previous + self.object.json().len(),
            ChangeKind::Added | ChangeKind::Modified => previous,
        }
    }
}

impl Commit {
    /// Changes that readers will see.
    pub fn changes(&self) -> usize {
        self.added + self.modified + self.deleted
    }

    pub(super) fn count(&mut self, kind: ChangeKind) {
        match kind {
            ChangeKind::Added => self.added += 1,
            ChangeKind::Modified => self.modified += 1,
            ChangeKind::Deleted => self.deleted += 1,
        }
    }
}
