//! Finds what a reader has missed whose token is from before the first list, if the API server still knows that version.
//!
//! The API server can list version N. Objects of that list that are no longer in the store (same uid) were deleted since;
//! objects in the store that are newer than N changed. This is all that a reader lacks which has everything up to N and
//! *nothing beyond*. An object that was created after N and deleted before the first list is unknown to everyone, so a
//! reader that may hold one must start over.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::{ChangeKind, Cursor, Revision, Snapshot};
use crate::k8s::{Key, Object, ResourceVersion};

/// Largest number of versions that one cache requests in its life. The clients of a stopped informerd have few different
/// versions, and made-up tokens must not load the API server.
const REQUESTED_LEN_MAX: usize = 16;

/// Number of objects that one turn of a comparison looks at.
const TURN_LEN: usize = 2048;

/// The changes from a version before the cache's history up to a place within it.
#[derive(Debug)]
pub struct Backfill {
    /// Deleted objects. They come first, at the requested version: see the room's "Revisions and positions".
    pub gone: Vec<Gone>,
    /// New and changed objects in their states at `cursor`, by rising resourceVersion, which is the position after each. The
    /// states are kept, as only a reader that has exactly these can continue with the journal after `cursor`: whether an
    /// object stops matching depends on the state before.
    pub changed: Vec<BackfillChange>,
    /// Where to continue.
    pub cursor: Cursor,
    /// The position there.
    pub position: ResourceVersion,
}

/// An object that is new or has changed.
#[derive(Clone, Debug)]
pub struct BackfillChange {
    /// `Added` if it did not exist at that version, else `Modified`.
    pub kind: ChangeKind,
    /// The object.
    pub object: Object,
}

/// An object that was deleted since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Namespace and name.
    pub key: Key,
    /// Tells it from other objects of the same key.
    pub uid: Box<str>,
    /// The version with which its deletion is shown: that of an object that replaced it, else the cache's.
    pub version: ResourceVersion,
}

/// The answer to [`Reader::request_backfill`](super::Reader::request_backfill).
#[derive(Clone, Debug)]
pub enum BackfillAnswer {
    /// This is what changed since.
    Known(Arc<Backfill>),
    /// The API server is being asked; the reader wakes once it has answered.
    Requested,
    /// Start over.
    Unknown,
}

/// Finds what changed between a version and a state of the store, in turns and without the cache's lock.
#[derive(Debug)]
pub struct BackfillBuilder {
    version: ResourceVersion,
    /// The uids of the objects that were there at the version, less those that the store still has.
    there: HashMap<Key, Box<str>>,
    store: Snapshot,
    /// The last key of the store that was compared.
    last: Option<Key>,
    changed: Vec<BackfillChange>,
    /// Objects of the store that were not there, with their versions.
    replaced: HashMap<Key, ResourceVersion>,
    is_done: bool,
    is_contradicted: bool,
}

/// The requested versions and their answers.
#[derive(Debug)]
pub(super) struct Backfills {
    open: bool,
    requested: Vec<(ResourceVersion, BackfillAnswer)>,
}

// === impl Backfills ===

impl Backfills {
    pub(super) fn new() -> Self {
        Self { open: true, requested: Vec::new() }
    }

    /// Forgets all answers, and requests no more.
    pub(super) fn close(&mut self) {
        *self = Self { open: false, requested: Vec::new() };
    }

    fn get(&self, version: &ResourceVersion) -> Option<&BackfillAnswer> {
        self.requested.iter().find(|(requested, _)| requested == version).map(|(_, answer)| answer)
    }

    /// The next version to request of the API server.
    pub(super) fn next(&self) -> Option<&ResourceVersion> {
        let open = self.requested.iter().find(|(_, answer)| matches!(answer, BackfillAnswer::Requested));
        open.map(|(version, _)| version)
    }

    /// What is known of a version; `None` if it was never requested. Deletions up to the revision `floor` may have been
    /// forgotten.
    pub(super) fn known(&self, version: &ResourceVersion, floor: Revision) -> Option<BackfillAnswer> {
        let answer = self.get(version)?;
        let is_forgotten =
            matches!(answer, BackfillAnswer::Known(backfill) if backfill.cursor.revision < floor);
        Some(if is_forgotten { BackfillAnswer::Unknown } else { answer.clone() })
    }

    /// Whether one more version may be requested.
    pub(super) fn has_room(&self) -> bool {
        self.open && self.requested.len() < REQUESTED_LEN_MAX
    }

    /// Puts a version among those to be requested.
    pub(super) fn request(&mut self, version: &ResourceVersion) {
        self.requested.push((version.clone(), BackfillAnswer::Requested));
    }

    /// Takes the answer; `None` where what changed since is not known. Tells what is known now; nothing if it was not requested.
    pub(super) fn answer(&mut self, version: &ResourceVersion, backfill: Option<Backfill>) -> BackfillAnswer {
        let answer =
            backfill.map_or(BackfillAnswer::Unknown, |backfill| BackfillAnswer::Known(Arc::new(backfill)));
        let requested = self.requested.iter_mut().find(|(requested, _)| requested == version);
        match requested {
            Some((_, waiting @ BackfillAnswer::Requested)) => {
                *waiting = answer.clone();
                answer
            }
            Some(_) | None => BackfillAnswer::Unknown,
        }
    }
}

// === impl BackfillBuilder ===

impl BackfillBuilder {
    /// Compares a state of the store with the objects that were there at a version.
    pub(super) fn new(version: ResourceVersion, there: HashMap<Key, Box<str>>, store: Snapshot) -> Self {
        let (changed, replaced) = (Vec::new(), HashMap::new());
        Self { version, there, store, last: None, changed, replaced, is_done: false, is_contradicted: false }
    }

    /// Compares for one turn. Returns whether turns are left.
    pub fn turn(&mut self) -> bool {
        if self.is_done {
            return false;
        }
        self.is_done = true;
        let mut last = None;
        let mut left = TURN_LEN;
        for stored in self.store.stored_after(self.last.as_ref()).take(TURN_LEN) {
            left -= 1;
            let object = &stored.object;
            last = Some(object.key());
            let Some(order) = object.resource_version().partial_cmp(&self.version) else {
                self.is_contradicted = true;
                return false;
            };
            let same = self.there.get(object.key()).is_some_and(|uid| **uid == *object.uid());
            if same {
                self.there.remove(object.key());
            } else {
                self.replaced.insert(object.key().clone(), object.resource_version());
            }
            match order {
                Ordering::Greater => {
                    let kind = if same { ChangeKind::Modified } else { ChangeKind::Added };
                    self.changed.push(BackfillChange { kind, object: object.clone() });
                }
                Ordering::Less | Ordering::Equal if same => {}
                // The stored object is older than the version but is not in the list: the list is of another history (etcd was
                // restored from a backup meanwhile).
                Ordering::Less | Ordering::Equal => {
                    self.is_contradicted = true;
                    return false;
                }
            }
        }
        self.last = last.cloned();
        self.is_done = left > 0;
        !self.is_done
    }

    /// What changed, after the last turn. `None` where the list and the store contradict each other.
    pub(super) fn end(mut self) -> Option<Backfill> {
        while self.turn() {}
        if self.is_contradicted {
            return None;
        }
        let Self { there, store, mut changed, mut replaced, .. } = self;
        changed.sort_by(|a: &BackfillChange, b: &BackfillChange| {
            let order = a.object.resource_version().partial_cmp(&b.object.resource_version());
            order.unwrap_or(Ordering::Equal)
        });
        let gone = there.into_iter().map(|(key, uid)| {
            let version = replaced.remove(&key).unwrap_or_else(|| store.position.clone());
            Gone { key, uid, version }
        });
        let mut gone: Vec<_> = gone.collect();
        gone.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Some(Backfill { gone, changed, cursor: store.cursor, position: store.position.clone() })
    }
}
