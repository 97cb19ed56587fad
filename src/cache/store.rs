//! The current objects by key: an immutable ordered map, replaced at each change.

use std::ops::Bound;

use imbl::OrdMap;

use super::{Cursor, Revision};
use crate::k8s::{Key, Object, ResourceVersion};

/// An object with the revision of its last change.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The object.
    pub object: Object,
    /// When it last changed; 0 since the first list.
    pub revision: Revision,
}

/// The state of a cache at one moment. Taking or cloning one copies a pointer.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) objects: OrdMap<Key, Stored>,
    /// The sum of the objects' JSON, in bytes.
    pub bytes: usize,
    /// The bytes that hold this JSON: fewer where objects are packed.
    pub held: usize,
    /// The bytes that held all objects that have been replaced or deleted since the cache began. The difference between two states is
    /// the most that the earlier one keeps in memory beside the later one.
    pub replaced: u64,
    /// The cursor with which a reader of this state continues.
    pub cursor: Cursor,
    /// The resourceVersion of this state.
    pub position: ResourceVersion,
    /// The version of the last change; older than `position` if only bookmarks came since.
    pub changed_at: ResourceVersion,
}

impl Snapshot {
    /// Counts an object that comes.
    pub(super) fn count_in(&mut self, object: &Object) {
        self.bytes += object.json_len();
        self.held += object.held_bytes();
    }

    /// Counts an object that goes.
    pub(super) fn count_out(&mut self, object: &Object) {
        self.bytes -= object.json_len();
        self.held -= object.held_bytes();
        self.replaced += object.held_bytes() as u64;
    }

    /// How many objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether it has no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The object with a key.
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key).map(|stored| &stored.object)
    }

    /// All objects after a key (from the start for `None`), in key order.
    pub fn after(&self, key: Option<&Key>) -> impl Iterator<Item = &Object> {
        self.stored_after(key).map(|stored| &stored.object)
    }

    pub(super) fn stored_after(&self, key: Option<&Key>) -> impl Iterator<Item = &Stored> {
        let start = key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.objects.range((start, Bound::Unbounded)).map(|(_, stored)| stored)
    }

    /// The objects of a namespace after a key, in key order. The cost grows with the namespace, not with the cache.
    pub fn namespace_after(&self, namespace: &str, key: Option<&Key>) -> impl Iterator<Item = &Object> {
        let range = Key::namespace_range_after(namespace, key).map(|range| self.objects.range(range));
        range.into_iter().flatten().map(|(_, stored)| &stored.object)
    }
}

/// The objects of a first list in the order in which they are inserted into an empty map: by key, first every other one, then those
/// between.
///
/// A full leaf of the map is split in the middle. Inserted by rising key, all leaves would stay half full, and the map would take twice
/// the memory. In this order the first half makes half-full leaves, which the second half fills without a split.
pub(super) fn in_filling_order(objects: &mut [Object]) -> impl Iterator<Item = &Object> {
    objects.sort_unstable_by(|a, b| a.key().cmp(b.key()));
    let sorted = &*objects;
    let every_other = |from| sorted.iter().skip(from).step_by(2);
    every_other(0).chain(every_other(1))
}
