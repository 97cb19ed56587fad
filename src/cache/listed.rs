//! The objects that a list has named so far, by their keys.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

use crate::k8s::{Key, Object};

/// Number of objects that are looked at from an expected place on, before all are searched.
const NEAR: usize = 8;

/// Objects with different keys, at a pointer each.
///
/// The vector holds the objects while the list names them by rising key, as API servers do: another object costs a comparison, and the store is
/// built in this order. The first object out of order, or the first removal, moves all of them into the hash table. One of the two is
/// always empty.
#[derive(Debug, Default)]
pub(super) struct Listed {
    rising: Vec<Object>,
    hashed: HashTable<Object>,
    hasher: RandomState,
}

impl Listed {
    pub(super) fn get(&self, key: &Key) -> Option<&Object> {
        match self.search(key) {
            Some(at) => Some(&self.rising[at]),
            None => self.find(key),
        }
    }

    /// As [`Listed::get`], for a caller that asks by rising key. `place` is where the search begins; it is set behind the object found.
    pub(super) fn get_next(&self, key: &Key, place: &mut usize) -> Option<&Object> {
        let near = self.near(*place, |held| held.key() == key);
        let Some(at) = near.or_else(|| self.search(key)) else { return self.find(key) };
        *place = at + 1;
        Some(&self.rising[at])
    }

    /// Replaces an object with another form of it, if it is still there. `place` is as in [`Listed::get_next`].
    pub(super) fn swap(&mut self, old: &Object, new: Object, place: &mut usize) {
        let near = self.near(*place, |held| held.is_same(old));
        let held = match near.or_else(|| self.search(old.key())) {
            Some(at) => {
                *place = at + 1;
                Some(&mut self.rising[at])
            }
            None => self.hashed.find_mut(self.hasher.hash_one(old.key()), |held| held.is_same(old)),
        };
        if let Some(held) = held.filter(|held| held.is_same(old)) {
            *held = new;
        }
    }

    /// Adds an object, or replaces the one with its key.
    pub(super) fn insert(&mut self, object: Object) {
        if self.hashed.is_empty() {
            if self.rising.last().is_none_or(|last| last.key() < object.key()) {
                return self.rising.push(object);
            }
            if let Some(at) = self.search(object.key()) {
                self.rising[at] = object;
                return;
            }
            self.hash_all();
        }
        let hash_of = |held: &Object| self.hasher.hash_one(held.key());
        let is_it = |held: &Object| held.key() == object.key();
        self.hashed.entry(hash_of(&object), is_it, hash_of).insert(object);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if self.get(key).is_none() {
            return;
        }
        self.hash_all();
        if let Ok(held) = self.hashed.find_entry(self.hasher.hash_one(key), |held| held.key() == key) {
            held.remove();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.rising.iter().chain(&self.hashed)
    }

    /// All of them. By rising key, if they came so.
    pub(super) fn into_vec(self) -> Vec<Object> {
        let mut objects = self.rising;
        objects.extend(self.hashed);
        objects
    }

    /// The place of an object among the next ones of the vector.
    fn near(&self, place: usize, is_it: impl Fn(&Object) -> bool) -> Option<usize> {
        let next = self.rising.get(place..)?;
        next.iter().take(NEAR).position(is_it).map(|at| place + at)
    }

    /// The place of a key in the vector.
    fn search(&self, key: &Key) -> Option<usize> {
        // A list that rises asks for a key behind the last one each time.
        if self.rising.last().is_none_or(|last| last.key() < key) {
            return None;
        }
        self.rising.binary_search_by(|held| held.key().cmp(key)).ok()
    }

    /// The object with a key in the table.
    fn find(&self, key: &Key) -> Option<&Object> {
        if self.hashed.is_empty() {
            return None;
        }
        self.hashed.find(self.hasher.hash_one(key), |held| held.key() == key)
    }

    /// Moves all objects from the vector into the table.
    fn hash_all(&mut self) {
        let hash_of = |held: &Object| self.hasher.hash_one(held.key());
        self.hashed.reserve(self.rising.len(), hash_of);
        for object in std::mem::take(&mut self.rising) {
            self.hashed.insert_unique(hash_of(&object), object, hash_of);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

    fn object(name: u8, version: usize) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let text = format!(r#"{{"metadata":{{"name":"o{name:03}","resourceVersion":"{version}"}}}}"#);
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    #[test]
    fn objects_in_order_stay_a_vector() {
        let mut listed = Listed::default();
        for name in 0..100 {
            listed.insert(object(name, 1));
        }
        listed.insert(object(50, 2));
        assert_eq!((listed.rising.len(), listed.hashed.len()), (100, 0));
        let mut place = 0;
        for name in 20..100 {
            let old = listed.get_next(object(name, 1).key(), &mut place).unwrap().clone();
            assert_eq!(place, usize::from(name) + 1);
            listed.swap(&old, object(name, 3), &mut (place - 1));
        }
        assert!(listed.get(object(100, 1).key()).is_none());
        let versions: Vec<_> =
            listed.into_vec().iter().map(|one| one.resource_version().to_string()).collect();
        assert_eq!(versions, [vec!["1"; 20], vec!["3"; 80]].concat());
    }

    proptest! {
        /// Compared with a map. The names rise at first, as in a list.
        #[test]
        fn objects_are_those_of_a_map(
            rising in 0..40u8,
            steps in prop::collection::vec((0..4u8, 0..60u8), 0..80),
        ) {
            let (mut listed, mut map) = (Listed::default(), BTreeMap::new());
            let mut place = 0;
            let rising = (0..rising).map(|name| (0, name));
            for (version, (what, name)) in rising.chain(steps).enumerate() {
                let new = object(name, version);
                let key = new.key().clone();
                match what {
                    0 | 1 => {
                        listed.insert(new.clone());
                        map.insert(key.clone(), new);
                    }
                    2 => {
                        listed.remove(&key);
                        map.remove(&key);
                    }
                    _ => {
                        // An object that is no longer there is not swapped.
                        listed.swap(&object(name, version), object(name, 1000), &mut place);
                        if let Some(held) = map.get_mut(&key) {
                            listed.swap(held, new.clone(), &mut place);
                            *held = new;
                        }
                    }
                }
                let is_held = |found: Option<&Object>| match (found, map.get(&key)) {
                    (Some(found), Some(held)) => found.is_same(held),
                    (found, held) => found.is_none() && held.is_none(),
                };
                prop_assert!(is_held(listed.get(&key)) && is_held(listed.get_next(&key, &mut place)));
                prop_assert!(listed.rising.is_empty() || listed.hashed.is_empty());
            }
            prop_assert_eq!(listed.iter().count(), map.len());
            let mut objects = listed.into_vec();
            objects.sort_unstable_by(|a, b| a.key().cmp(b.key()));
            prop_assert!(objects.iter().zip(map.values()).all(|(one, other)| one.is_same(other)));
        }
    }
}
