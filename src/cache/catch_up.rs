//! Catch-ups for readers that fell behind the journal: each object that changed since a cursor, once.

use super::recent::Recent;
use super::state::{BEFORE_ALL, State};
use super::tombstone::Tombstone;
use super::{Cursor, Lost, Revision};
use crate::k8s::{Key, Object, ResourceVersion};

/// A part of a catch-up: objects that changed since a cursor, each once.
#[derive(Debug)]
pub struct CatchUp {
    /// By rising revision.
    pub entries: Vec<CatchUpEntry>,
    /// Where the reader is after them.
    pub cursor: Cursor,
    /// The position after them.
    pub position: ResourceVersion,
    /// Whether nothing is left.
    pub done: bool,
}

/// An object that changed since a cursor, in its latest state.
#[derive(Clone, Debug)]
pub struct CatchUpEntry {
    /// When it changed last.
    pub revision: Revision,
    /// When it was created; 0 if before the first list.
    pub created: Revision,
    /// The version up to which a reader has everything once it took this entry.
    pub position: ResourceVersion,
    /// Namespace and name.
    pub key: Key,
    /// Tells it from other objects of the same key.
    pub uid: Box<str>,
    /// The resourceVersion of its last change, with which its deletion is shown.
    pub version: ResourceVersion,
    /// The object; `None` if it is gone.
    pub object: Option<Object>,
}

impl State {
    /// The next `len_max` objects that changed after a cursor, each once in its latest state, by rising revision. `done` if
    /// nothing is left, so that the reader is at the head.
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
                entries.extend(dead.next().map(|tombstone| tombstone.entry()));
            } else if let Some((revision, recent)) = live.next() {
                entries.extend(self.recent_entry(*revision, recent));
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
}

impl State {
    /// The object that changed last at a revision.
    pub(super) fn recent_at(&self, revision: Revision) -> Option<CatchUpEntry> {
        self.recent_entry(revision, self.recent.get(&revision)?)
    }

    fn recent_entry(&self, revision: Revision, recent: &Recent) -> Option<CatchUpEntry> {
        let object = &self.store.objects.get(&recent.key)?.object;
        Some(CatchUpEntry {
            revision,
            created: recent.created,
            position: recent.position(&self.store)?,
            key: recent.key.clone(),
            uid: object.uid().into(),
            version: object.resource_version(),
            object: Some(object.clone()),
        })
    }

    /// The revision at which the object with a key came to be, or one before all that a reader can have.
    pub(super) fn created(&self, key: &Key) -> Option<Revision> {
        let stored = self.store.objects.get(key)?;
        Some(self.recent.get(&stored.revision).map_or(BEFORE_ALL, |recent| recent.created))
    }
}

impl Tombstone {
    pub(super) fn entry(&self) -> CatchUpEntry {
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
