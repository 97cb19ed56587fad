//! Finds what a reader has missed whose token is from before the first list, if the API server still knows that version.
//!
//! The API server can list version N. Objects of that list that are no longer in the store (same uid) were deleted since;
//! objects in the store that are newer than N changed. This is all that a reader lacks which has everything up to N and
//! *nothing beyond*. An object that was created after N and deleted before the first list is unknown to everyone, so a
//! reader that may hold one must start over.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::state::State;
use super::{ChangeKind, Cursor, Recalled};
use crate::k8s::{Identity, Key, Object, ResourceVersion};

/// Largest number of versions that one cache requests in its life. The clients of a stopped informerd have few different
/// versions, and made-up tokens must not load the API server.
const ASKED_LEN_MAX: usize = 16;

/// The changes from a version before the cache's history up to a place within it.
#[derive(Debug)]
pub struct Past {
    /// Deleted objects. They come first, at the requested version: see the room's "Revisions and positions".
    pub gone: Vec<Gone>,
    /// New and changed objects in their states at `cursor`, by rising resourceVersion, which is the position after each. The
    /// states are kept, as only a reader that has exactly these can continue with the journal after `cursor`: whether an
    /// object stops matching depends on the state before.
    pub changed: Vec<PastChange>,
    /// Where to continue.
    pub cursor: Cursor,
    /// The position there.
    pub position: ResourceVersion,
}

/// An object that is new or has changed.
#[derive(Clone, Debug)]
pub struct PastChange {
    /// `Added` if it did not exist at that version, else `Modified`.
    pub kind: ChangeKind,
    /// The object.
    pub object: Arc<Object>,
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

/// The requested versions and their answers.
#[derive(Debug)]
pub(super) struct Pasts {
    open: bool,
    asked: Vec<(ResourceVersion, Recalled)>,
}

// === impl Pasts ===

impl Pasts {
    pub(super) fn new() -> Self {
        Self { open: true, asked: Vec::new() }
    }

    /// Forgets all answers, and requests no more.
    pub(super) fn close(&mut self) {
        *self = Self { open: false, asked: Vec::new() };
    }

    fn get(&self, version: &ResourceVersion) -> Option<&Recalled> {
        self.asked.iter().find(|(asked, _)| asked == version).map(|(_, recalled)| recalled)
    }

    /// The next version to ask the API server for.
    pub(super) fn next(&self) -> Option<&ResourceVersion> {
        let open = self.asked.iter().find(|(_, recalled)| matches!(recalled, Recalled::Asked));
        open.map(|(version, _)| version)
    }
}

// === impl State ===

impl State {
    /// What is known of a version that [`State::locate`] does not find; `None` if it was never asked for and
    /// may be.
    pub(super) fn recalled(&self, version: &ResourceVersion) -> Option<Recalled> {
        match self.pasts.get(version) {
            // Deletions since that answer have been forgotten.
            Some(Recalled::Known(past)) if past.cursor.revision < self.floor => Some(Recalled::Unknown),
            Some(recalled) => Some(recalled.clone()),
            None if self.may_ask(version) => None,
            None => Some(Recalled::Unknown),
        }
    }

    fn may_ask(&self, version: &ResourceVersion) -> bool {
        let before = version.partial_cmp(&self.store.position) == Some(Ordering::Less);
        let room = self.pasts.open && self.pasts.asked.len() < ASKED_LEN_MAX;
        room && self.synced && before && version.is_number() && !version.is_zero()
    }

    /// Puts a version among those to be asked for.
    pub(super) fn ask(&mut self, version: &ResourceVersion) -> Recalled {
        let recalled = self.recalled(version);
        recalled.unwrap_or_else(|| {
            self.pasts.asked.push((version.clone(), Recalled::Asked));
            Recalled::Asked
        })
    }

    /// Takes the answer: who was there. Tells what is known now; nothing if it was not waited for.
    pub(super) fn answer(&mut self, version: &ResourceVersion, there: Option<Vec<Identity>>) -> Recalled {
        let past = there.and_then(|there| self.past(version, there));
        let recalled = past.map_or(Recalled::Unknown, |past| Recalled::Known(Arc::new(past)));
        let asked = self.pasts.asked.iter_mut().find(|(asked, _)| asked == version);
        match asked {
            Some((_, waiting @ Recalled::Asked)) => {
                *waiting = recalled.clone();
                recalled
            }
            Some(_) | None => Recalled::Unknown,
        }
    }

    /// `None` where the answer and the store contradict each other.
    fn past(&self, version: &ResourceVersion, there: Vec<Identity>) -> Option<Past> {
        let mut there: HashMap<Key, Box<str>> = there.into_iter().map(|one| (one.key, one.uid)).collect();
        let mut changed = Vec::new();
        let mut replaced = HashMap::new();
        for object in self.store.after(None) {
            let order = object.resource_version().partial_cmp(version)?;
            let same = there.get(object.key()).is_some_and(|uid| **uid == *object.uid());
            if same {
                there.remove(object.key());
            } else {
                replaced.insert(object.key().clone(), object.resource_version().clone());
            }
            match order {
                Ordering::Greater => {
                    let kind = if same { ChangeKind::Modified } else { ChangeKind::Added };
                    changed.push(PastChange { kind, object: object.clone() });
                }
                Ordering::Less | Ordering::Equal if same => {}
                // The stored object is older than the version but is not in the list: the list is of another history (etcd was
                // restored from a backup meanwhile).
                Ordering::Less | Ordering::Equal => return None,
            }
        }
        changed.sort_by(|a: &PastChange, b: &PastChange| {
            let order = a.object.resource_version().partial_cmp(b.object.resource_version());
            order.unwrap_or(Ordering::Equal)
        });
        let gone = there.into_iter().map(|(key, uid)| {
            let version = replaced.remove(&key).unwrap_or_else(|| self.store.position.clone());
            Gone { key, uid, version }
        });
        let mut gone: Vec<_> = gone.collect();
        gone.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Some(Past { gone, changed, cursor: self.store.cursor, position: self.store.position.clone() })
    }
}
