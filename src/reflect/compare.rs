//! Compares a list of names and versions with the content of a cache. No I/O, no clock.
//!
//! A list is of one version V, and the cache keeps changing while its pages arrive. Objects that the cache holds at
//! versions beyond V say nothing about V and are ignored. Any other mismatch makes the object a suspect until the cache
//! has reached V. If it still mismatches then, it is a difference. So a comparison delays neither side, copies
//! neither, and never reports a change that is only on its way.

use std::collections::HashSet;

use crate::cache::{CatchUpEntry, Snapshot};
use crate::k8s::{Identity, Key, Object, ResourceVersion};

/// Largest number of suspects in one comparison, some 150 bytes each. With more, the cache is far behind or mostly wrong.
const SUSPECTS_LEN_MAX: usize = 10_000;

/// The state of an object: its uid and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState {
    /// Tells it from other objects of the same key.
    pub uid: Box<str>,
    /// Its version; `None` if the list did not give one.
    pub version: Option<ResourceVersion>,
}

/// An object that is not the same in the API server's list and in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Namespace and name.
    pub key: Key,
    /// What the API server lists; `None` if it has none.
    pub listed: Option<ObjectState>,
    /// What the cache holds; `None` if it has none.
    pub held: Option<ObjectState>,
}

/// How the cache differs from the API server's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The cache lacks it.
    Missing,
    /// The cache still has it, the API server does not.
    Extra,
    /// The cache has another state of it, or another object of that name.
    Stale,
}

/// One comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    version: ResourceVersion,
    /// The last key of the pages so far.
    last: Option<Key>,
    listed: usize,
    suspects: Vec<Difference>,
    /// Whether there were more suspects than [`SUSPECTS_LEN_MAX`].
    pub(super) overflowed: bool,
}

/// The pages of a list do not follow each other by key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unordered;

// === impl Difference ===

impl Difference {
    /// Compares the state of a key in a list of version `at` with that in a cache. `None` if they agree, or if one is newer
    /// than `at`, so that they cannot be compared.
    pub fn between(
        key: &Key,
        listed: Option<ObjectState>,
        held: Option<ObjectState>,
        at: &ResourceVersion,
    ) -> Option<Self> {
        let newer = |state: &Option<ObjectState>| {
            state.as_ref().and_then(|state| state.version.as_ref()).is_some_and(|version| version > at)
        };
        let same = match (&listed, &held) {
            (Some(listed), Some(held)) => listed.is_same(held),
            (listed, held) => listed.is_none() && held.is_none(),
        };
        if same || newer(&listed) || newer(&held) {
            return None;
        }
        Some(Self { key: key.clone(), listed, held })
    }

    /// How they differ.
    pub fn kind(&self) -> DifferenceKind {
        match (&self.listed, &self.held) {
            (Some(_), None) => DifferenceKind::Missing,
            (None, Some(_)) => DifferenceKind::Extra,
            (Some(_), Some(_)) | (None, None) => DifferenceKind::Stale,
        }
    }
}

// === impl DifferenceKind ===

impl DifferenceKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Missing, Self::Extra, Self::Stale];

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Stale => "stale",
        }
    }
}

// === impl ObjectState ===

impl ObjectState {
    /// Whether both are the same state of the same object. A missing version agrees with any.
    fn is_same(&self, other: &Self) -> bool {
        let untold = self.version.is_none() || other.version.is_none();
        self.uid == other.uid && (untold || self.version == other.version)
    }
}

impl From<&Object> for ObjectState {
    fn from(object: &Object) -> Self {
        Self { uid: object.uid().into(), version: Some(object.resource_version()) }
    }
}

impl From<Identity> for ObjectState {
    fn from(identity: Identity) -> Self {
        Self { uid: identity.uid, version: identity.version }
    }
}

// === impl Comparison ===

impl Comparison {
    /// Begins a comparison with a list of this version.
    pub(super) fn new(version: ResourceVersion) -> Self {
        Self { version, last: None, listed: 0, suspects: Vec::new(), overflowed: false }
    }

    /// Objects listed so far.
    pub(super) fn listed(&self) -> usize {
        self.listed
    }

    pub(super) fn version(&self) -> &ResourceVersion {
        &self.version
    }

    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Compares a page with the cache's current state. The order within a page does not matter.
    pub(super) fn page(
        &mut self,
        mut page: Vec<Identity>,
        is_last: bool,
        snapshot: &Snapshot,
    ) -> Result<(), Unordered> {
        page.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        if page.first().is_some_and(|first| self.last.as_ref().is_some_and(|last| first.key <= *last)) {
            return Err(Unordered);
        }
        self.listed += page.len();
        let after = self.last.take();
        let end = page.last().map(|last| last.key.clone());
        let within = |object: &&Object| is_last || end.as_ref().is_some_and(|end| object.key() <= end);
        let mut held = snapshot.after(after.as_ref()).take_while(within).peekable();
        for listed in page {
            while let Some(extra) = held.next_if(|object| *object.key() < listed.key) {
                self.suspect(extra.key(), None, Some(extra));
            }
            let same = held.next_if(|object| *object.key() == listed.key);
            let key = listed.key.clone();
            self.suspect(&key, Some(listed.into()), same);
        }
        for extra in held {
            self.suspect(extra.key(), None, Some(extra));
        }
        self.last = end.or(after);
        Ok(())
    }

    fn suspect(&mut self, key: &Key, listed: Option<ObjectState>, held: Option<&Object>) {
        let held = held.map(ObjectState::from);
        let Some(suspect) = Difference::between(key, listed, held, &self.version) else { return };
        if self.suspects.len() < SUSPECTS_LEN_MAX {
            self.suspects.push(suspect);
        } else {
            self.overflowed = true;
        }
    }

    /// Compares the suspects again, once the cache has reached the list's version, and returns those that still differ. `since`
    /// are the changes of the cache since before the list, read after the snapshot.
    pub(super) fn settle(self, snapshot: &Snapshot, since: &[CatchUpEntry]) -> Vec<Difference> {
        let later = |entry: &&CatchUpEntry| entry.object.is_none() && entry.version > self.version;
        let deleted: HashSet<&Key> = since.iter().filter(later).map(|entry| &entry.key).collect();
        let still = self.suspects.iter().filter_map(|suspect| {
            let held = snapshot.get(&suspect.key).map(ObjectState::from);
            if held.is_none() && deleted.contains(&suspect.key) {
                return None;
            }
            Difference::between(&suspect.key, suspect.listed.clone(), held, &self.version)
        });
        still.collect()
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
