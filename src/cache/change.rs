//! Deltas, which go into a cache, and the changes that come of them.

use super::Revision;
use crate::k8s::{Key, Object, ResourceVersion};

/// One step that the reflector asks of the cache.
#[derive(Debug)]
pub enum Delta {
    /// A list begins. The current objects are served until [`Delta::PassEnd`].
    PassBegin,
    /// An object of the pass.
    PassItem(Object),
    /// An object of the pass was deleted before the end of the pass.
    PassGone(Object),
    /// The pass is complete at this resourceVersion. Objects that it did not name are gone.
    PassEnd(ResourceVersion),
    /// The API server gave an older answer before this pass. The pass is of the cache's history only if it contradicts
    /// nothing that the cache holds.
    PassDoubted,
    /// The pass failed and is discarded.
    PassAbort,
    /// The API server has another history than the cache, even if its versions are newer. The next complete pass begins a
    /// new history, and readers start over.
    OtherHistory,
    /// ADDED or MODIFIED on the watch.
    Apply(Object),
    /// DELETED on the watch: the last state, at the version of the deletion.
    Delete(Object),
    /// From this version on the object is not held, for example because it grew too large. Readers get a deletion.
    Unheld(Key, ResourceVersion),
    /// Nothing is missing up to this version.
    Bookmark(ResourceVersion),
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object is new.
    Added,
    /// The object existed before.
    Modified,
    /// The object is gone.
    Deleted,
}

/// One committed step.
#[derive(Clone, Debug)]
pub struct Change {
    /// Our own counter, one more than the change before.
    pub revision: Revision,
    /// The version up to which a reader has everything once it took this change.
    pub position: ResourceVersion,
    /// Its kind.
    pub kind: ChangeKind,
    /// The new state; for a deletion the last one.
    pub object: Object,
    /// The state before, which decides whether the object begins or stops to match a selector.
    pub previous: Option<Object>,
    /// The resourceVersion with which a deletion is shown: its own; that of the list, if a relist found it; or that of a new
    /// object of the same name that replaced it.
    pub version: ResourceVersion,
    /// A reader that has any version from this one on, from any replica, has this change. Equal to the position, except for
    /// changes that a relist found: then the list's version.
    pub(super) reached: ResourceVersion,
}

/// The result of a commit, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// New objects.
    pub added: usize,
    /// Objects that changed.
    pub modified: usize,
    /// Objects that are gone.
    pub deleted: usize,
    /// Deltas that changed nothing: duplicates (U3), deletions of unknown objects.
    pub duplicates: usize,
    /// Events that were ignored, as they are older than the position and their object is not in the store. It may be new, or
    /// deleted already; only a list can decide.
    pub doubtful: usize,
    /// Changes that left the journal.
    pub evicted: usize,
    /// Whether a new history began, so that readers must start over.
    pub history_lost: bool,
}

impl Change {
    /// Whether more changes of the same relist follow. Their order is unknown: an object that comes later may have stopped
    /// matching before this position.
    pub fn is_amid_relist(&self) -> bool {
        self.reached != self.position
    }

    /// Bytes that only the journal holds: the state before, and the last state of a deleted object.
    pub(super) fn journal_bytes(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |object| object.held_bytes());
        match self.kind {
            ChangeKind::Deleted => previous + self.object.held_bytes(),
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
