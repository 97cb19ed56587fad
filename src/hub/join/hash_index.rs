//! Finds the items of a slab by their keys.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use hashbrown::HashTable;
use slab::Slab;

use super::id_lists::short;
use crate::k8s::Key;

/// Number of items up to which all are looked at. They lie side by side, and each has a [`Digest`].
const WALKED_MAX: usize = 64;

/// Finds items by the hashes of their keys. Up to [`WALKED_MAX`] items it takes no memory: tens of thousands of streams hold some dozen
/// each.
#[derive(Default)]
pub(super) struct HashIndex(Option<Box<HashTable<u32>>>);

/// The hash of the key of an object of a stream's source or relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(u64);

/// A part of a hash that an item keeps, so that the keys of most others need not be read while all are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest(u8);

impl Hash {
    pub(super) fn of(informer: usize, key: &Key) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(HASHER.hash_one((informer, key)))
    }

    pub(super) fn digest(self) -> Digest {
        Digest(self.0.to_le_bytes()[0])
    }
}

impl HashIndex {
    /// The item with a hash for which `is_it` holds.
    pub(super) fn find<T>(
        &self,
        items: &Slab<T>,
        hash: Hash,
        is_it: impl Fn(u32, &T) -> bool,
    ) -> Option<u32> {
        match &self.0 {
            Some(table) => table.find(hash.0, |id| is_it(*id, &items[*id as usize])).copied(),
            None => items.iter().find(|(id, item)| is_it(short(*id), item)).map(|(id, _)| short(id)),
        }
    }

    /// Takes an item that was inserted into the slab. `hash_of` tells the hash of any item.
    pub(super) fn insert<T>(&mut self, items: &Slab<T>, id: u32, hash_of: impl Fn(u32) -> Hash) {
        let hash_of = |id: &u32| hash_of(*id).0;
        match &mut self.0 {
            Some(table) => drop(table.insert_unique(hash_of(&id), id, hash_of)),
            None if items.len() > WALKED_MAX => {
                let mut table = HashTable::with_capacity(items.len());
                for (id, _) in items {
                    let id = short(id);
                    table.insert_unique(hash_of(&id), id, hash_of);
                }
                self.0 = Some(Box::new(table));
            }
            None => {}
        }
    }

    /// Forgets an item.
    pub(super) fn remove(&mut self, hash: Hash, id: u32) {
        if let Some(table) = &mut self.0
            && let Ok(entry) = table.find_entry(hash.0, |at| *at == id)
        {
            entry.remove();
        }
    }

    /// Gives back what more items needed.
    pub(super) fn shrink<T>(&mut self, items: &Slab<T>, hash_of: impl Fn(u32) -> Hash) {
        match &mut self.0 {
            Some(table) if items.len() > WALKED_MAX => table.shrink_to(0, |id| hash_of(*id).0),
            Some(_) | None => self.0 = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_by_walk_and_by_table_until_they_are_removed() {
        /// A hash that many items have, and a number that one has.
        type Item = (u64, u32);
        let (mut items, mut index, mut held) = (Slab::<Item>::new(), HashIndex::default(), Vec::new());
        let mut state = 17_u64;
        for round in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (state >> 33) as u32;
            // It grows beyond what is walked and shrinks again, several times.
            let grows = round / 500 % 2 == 0;
            if held.is_empty() || (number % 8 < 6) == grows {
                let item = (u64::from(number % 50), round);
                let id = short(items.insert(item));
                index.insert(&items, id, |id| Hash(items[id as usize].0));
                held.push((id, item));
            } else {
                let (id, item) = held.swap_remove(number as usize % held.len());
                items.remove(id as usize);
                index.remove(Hash(item.0), id);
                assert_eq!(index.find(&items, Hash(item.0), |_, other| other.1 == item.1), None);
            }
            if number.is_multiple_of(64) {
                index.shrink(&items, |id| Hash(items[id as usize].0));
                assert_eq!(index.0.is_some(), items.len() > WALKED_MAX);
            }
            if let Some((id, item)) = held.get(number as usize % held.len().max(1)) {
                assert_eq!(index.find(&items, Hash(item.0), |_, other| other.1 == item.1), Some(*id));
            }
        }
    }
}
