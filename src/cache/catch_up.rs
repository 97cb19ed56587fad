//! What changed since a cursor, each object once: for readers that fell behind the journal.

use super::index::{Departure, Index};
use super::state::{Recent, State, Tombstone};
use super::{CatchUp, CatchUpEntry, Cursor, Lost, Revision};
use crate::k8s::IndexPath;

/// Objects with a value whose last changes are looked up one by one; of more, the changes since the cursor are looked
/// through instead, which are fewer then.
const LOOKED_UP_MAX: usize = 1024;

/// Changes that are looked through for one object with the value, where the index does not know what left it since.
/// Beyond that, to start over costs less.
const LOOKED_THROUGH_PER_OBJECT: usize = 16;
/// Changes that may be looked through in any case.
const LOOKED_THROUGH_MIN: usize = 4096;

impl State {
    /// The next `len_max` of what changed after a cursor, each object once in its latest state, by rising
    /// revision. `done` when nothing is left: the reader is at the head.
    pub(super) fn catch_up(&self, cursor: Cursor, len_max: usize) -> Result<CatchUp, Lost> {
        if cursor.history != self.store.cursor.history || cursor.revision < self.floor {
            return Err(Lost);
        }
        let next = Revision(cursor.revision.0 + 1);
        let mut live = self.recent.range(next..).peekable();
        let at = self.tombstones.partition_point(|tombstone| tombstone.revision < next);
        let mut dead = self.tombstones.range(at..).peekable();
        let mut entries = Vec::new();
        while entries.len() < len_max {
            let dead_first = match (live.peek(), dead.peek()) {
                (Some((revision, _)), Some(tombstone)) => tombstone.revision < **revision,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if dead_first {
                entries.extend(dead.next().map(Tombstone::entry));
            } else if let Some((revision, recent)) = live.next() {
                entries.push(recent.entry(*revision));
            } else {
                break;
            }
        }
        let done = live.peek().is_none() && dead.peek().is_none();
        let (revision, position) = match entries.last() {
            Some(last) if !done => (last.revision, last.position.clone()),
            _ => (self.store.cursor.revision, self.store.position.clone()),
        };
        Ok(CatchUp { entries, cursor: Cursor { revision, ..cursor }, position, done })
    }

    /// As [`State::catch_up`], of the objects alone that have or had one of these values at a path.
    pub(super) fn catch_up_in(
        &self,
        cursor: Cursor,
        path: &IndexPath,
        values: &[String],
        len_max: usize,
    ) -> Result<CatchUp, Lost> {
        let Some(index) = self.indexes.get(path) else { return self.catch_up(cursor, len_max) };
        if cursor.history != self.store.cursor.history {
            return Err(Lost);
        }
        if !index.knows_departures_since(cursor.revision) {
            let behind = (self.store.cursor.revision.0 - cursor.revision.0) as usize;
            let most = LOOKED_THROUGH_MIN.max(index.count(values) * LOOKED_THROUGH_PER_OBJECT);
            return if behind <= most { self.catch_up(cursor, len_max) } else { Err(Lost) };
        }
        let mut entries = self.changed_in(index, values, cursor.revision);
        let left = index.departures_after(values, cursor.revision).into_iter();
        // An object that came back is told of as it is now.
        let is_back = |departure: &&Departure| {
            let now = self.store.get(&departure.key);
            index.has(values, &departure.key) && now.is_some_and(|object| object.uid() == &*departure.uid)
        };
        entries.extend(left.filter(|departure| !is_back(departure)).map(Departure::entry));
        entries.sort_by_key(|entry| entry.revision);
        let done = entries.len() <= len_max;
        entries.truncate(len_max);
        let (revision, position) = match entries.last() {
            Some(last) if !done => (last.revision, last.position.clone()),
            _ => (self.store.cursor.revision, self.store.position.clone()),
        };
        Ok(CatchUp { entries, cursor: Cursor { revision, ..cursor }, position, done })
    }

    /// The objects that have one of these values and changed after a revision.
    fn changed_in(&self, index: &Index, values: &[String], after: Revision) -> Vec<CatchUpEntry> {
        if index.count(values) > LOOKED_UP_MAX {
            let recent = self.recent.range(Revision(after.0 + 1)..);
            let has = recent.filter(|(_, recent)| index.has(values, recent.object.key()));
            return has.map(|(revision, recent)| recent.entry(*revision)).collect();
        }
        let stored = index.keys(values).into_iter().filter_map(|key| self.store.objects.get(&key));
        let revisions = stored.map(|stored| stored.revision).filter(|revision| *revision > after);
        revisions.filter_map(|revision| Some(self.recent.get(&revision)?.entry(revision))).collect()
    }
}

impl Departure {
    fn entry(&self) -> CatchUpEntry {
        CatchUpEntry {
            revision: self.revision,
            created: self.created,
            // Within a catch-up a reader is at no version.
            position: crate::k8s::ResourceVersion::ZERO,
            key: self.key.clone(),
            uid: self.uid.clone(),
            version: self.version.clone(),
            object: None,
        }
    }
}

impl Tombstone {
    fn entry(&self) -> CatchUpEntry {
        CatchUpEntry {
            revision: self.revision,
            created: self.created,
            position: self.position.clone(),
            key: self.key.clone(),
            uid: self.uid.clone(),
            version: self.version.clone(),
            object: None,
        }
    }
}

impl Recent {
    fn entry(&self, revision: Revision) -> CatchUpEntry {
        CatchUpEntry {
            revision,
            created: self.created,
            position: self.position.clone(),
            key: self.object.key().clone(),
            uid: self.object.uid().into(),
            version: self.object.resource_version().clone(),
            object: Some(self.object.clone()),
        }
    }
}
