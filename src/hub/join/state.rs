//! The state of a related informer at a position, which may lie in the past.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cache::{Change, Cursor, Reader, Snapshot};
use crate::k8s::{Key, Object, ResourceVersion};

/// Changes that are read at once from the journal of a related informer.
pub(super) const READ_LEN: usize = 1024;

/// A state of an informer: the current one, with some changes undone.
pub(super) struct StateAt {
    snapshot: Snapshot,
    undone: Undone,
    /// The versions at which objects were deleted on the way to it, as far as they were noted.
    deleted: HashMap<Key, ResourceVersion>,
}

/// What objects were before some changes; `None` for one that did not exist.
pub(in crate::hub) type Undone = HashMap<Key, Option<Object>>;

/// What the objects of some changes were before the first of these.
pub(in crate::hub) fn undo<'a>(changes: impl IntoIterator<Item = &'a Arc<Change>>) -> Undone {
    let mut undone = Undone::new();
    for change in changes {
        undone.entry(change.object.key().clone()).or_insert_with(|| change.previous.clone());
    }
    undone
}

/// The changes between two cursors, oldest first. `None` where the journal no longer has them, or there are more than `len_max`.
pub(in crate::hub) fn changes_between(
    reader: &Reader,
    from: Cursor,
    to: Cursor,
    len_max: usize,
) -> Option<Vec<Arc<Change>>> {
    if from.history != to.history || to.revision.0.saturating_sub(from.revision.0) > len_max as u64 {
        return None;
    }
    let (mut changes, mut at): (Vec<Arc<Change>>, Cursor) = (Vec::new(), from);
    while at.revision < to.revision {
        let batch = reader.changes_after(at, READ_LEN)?;
        at = batch.cursor;
        changes.extend(batch.changes.into_iter().take_while(|change| change.revision <= to.revision));
    }
    Some(changes)
}

impl StateAt {
    pub(super) fn now(snapshot: Snapshot) -> Self {
        Self::before(snapshot, Undone::new())
    }

    pub(super) fn before(snapshot: Snapshot, undone: Undone) -> Self {
        Self { snapshot, undone, deleted: HashMap::new() }
    }

    /// Moves to a later state of now.
    pub(super) fn advance_to(&mut self, snapshot: Snapshot) {
        self.snapshot = snapshot;
    }

    /// Notes the version at which an object was last deleted.
    pub(super) fn note_deleted(&mut self, key: &Key, version: &ResourceVersion) {
        self.deleted.insert(key.clone(), version.clone());
    }

    /// The version at which an object that does not exist was deleted, or that of the current state.
    pub(super) fn deleted_at(&self, key: &Key) -> &ResourceVersion {
        self.deleted.get(key).unwrap_or(&self.snapshot.position)
    }

    /// The place of the current state, from before any change was undone.
    pub(super) fn cursor(&self) -> Cursor {
        self.snapshot.cursor
    }

    /// The version of the current state, from before any change was undone.
    pub(super) fn current_version(&self) -> &ResourceVersion {
        &self.snapshot.position
    }

    /// The history of the informer that it is of.
    pub(super) fn history(&self) -> u64 {
        self.snapshot.cursor.history
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Object> {
        match self.undone.get(key) {
            Some(before) => before.as_ref(),
            None => self.snapshot.get(key),
        }
    }

    /// The objects that a change was undone of.
    pub(super) fn undone(&self) -> impl Iterator<Item = &Key> {
        self.undone.keys()
    }

    /// The objects of a namespace, or all if it is empty.
    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<&Object> {
        let is_now = |object: &&Object| !self.undone.contains_key(object.key());
        let was_there = |object: &&Object| namespace.is_empty() || object.key().namespace() == namespace;
        let before = self.undone.values().flatten().filter(was_there);
        let mut objects: Vec<_> = match namespace {
            "" => self.snapshot.after(None).filter(is_now).chain(before).collect(),
            _ => self.snapshot.namespace_after(namespace, None).filter(is_now).chain(before).collect(),
        };
        if !self.undone.is_empty() {
            objects.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        }
        objects
    }
}
