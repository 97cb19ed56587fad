//! The keys that an index gives for a condition.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdSet;

use crate::k8s::Key;

/// The keys of the objects that have one of some values, of one moment.
///
/// A value that few objects have gives a copy of their keys. One that many have shares them with the index, as a store shares its objects
/// with a snapshot: that takes no longer for a million of them.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    /// Sorted, without duplicates.
    few: Arc<[Key]>,
    many: Vec<OrdSet<Key>>,
}

impl KeySet {
    pub(super) fn new(mut few: Vec<Key>, many: Vec<OrdSet<Key>>) -> Self {
        few.sort_unstable();
        few.dedup();
        Self { few: few.into(), many }
    }

    /// The keys of several sets.
    pub fn union(sets: impl IntoIterator<Item = Self>) -> Self {
        let (mut few, mut many) = (Vec::new(), Vec::new());
        for set in sets {
            few.extend_from_slice(&set.few);
            many.extend(set.many);
        }
        Self::new(few, many)
    }

    /// All keys, sorted, each once.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.after(None)
    }

    /// The keys after a key (from the start for `None`), sorted, each once.
    pub fn after(&self, key: Option<&Key>) -> impl Iterator<Item = &Key> {
        let at = key.map_or(0, |key| self.few.partition_point(|one| one <= key));
        let few: KeyIter<'_> = Box::new(self.few[at..].iter());
        let start = || key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        let many =
            self.many.iter().map(|set| -> KeyIter<'_> { Box::new(set.range((start(), Bound::Unbounded))) });
        Merged::new(std::iter::once(few).chain(many))
    }
}

/// Keys that are sorted already.
impl From<Vec<Key>> for KeySet {
    fn from(keys: Vec<Key>) -> Self {
        debug_assert!(keys.is_sorted(), "keys of a state come in their order");
        Self { few: keys.into(), many: Vec::new() }
    }
}

type KeyIter<'a> = Box<dyn Iterator<Item = &'a Key> + Send + 'a>;

/// Several sorted iterators as one. An object may have two of the values, so a key may come from two of them.
struct Merged<'a> {
    rest: Vec<KeyIter<'a>>,
    /// The next key of each, with its place in `rest`.
    heads: BinaryHeap<Reverse<(&'a Key, usize)>>,
}

impl<'a> Merged<'a> {
    fn new(iters: impl Iterator<Item = KeyIter<'a>>) -> Self {
        let mut merged = Self { rest: iters.collect(), heads: BinaryHeap::new() };
        (0..merged.rest.len()).for_each(|at| merged.advance(at));
        merged
    }

    fn advance(&mut self, at: usize) {
        self.heads.extend(self.rest[at].next().map(|key| Reverse((key, at))));
    }
}

impl<'a> Iterator for Merged<'a> {
    type Item = &'a Key;

    fn next(&mut self) -> Option<&'a Key> {
        let Reverse((key, at)) = self.heads.pop()?;
        self.advance(at);
        while let Some(Reverse((same, at))) = self.heads.peek().copied()
            && same == key
        {
            self.heads.pop();
            self.advance(at);
        }
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn key(name: u8) -> Key {
        Key::new("n", &format!("{name:03}"))
    }

    proptest! {
        #[test]
        fn a_set_has_the_keys_of_all_its_parts_in_order_and_once(
            few in prop::collection::vec(0..30u8, 0..10),
            many in prop::collection::vec(prop::collection::vec(0..30u8, 0..10), 0..4),
            after in prop::option::of(0..30u8),
        ) {
            let all: BTreeSet<u8> = few.iter().chain(many.iter().flatten()).copied().collect();
            let sets = many.into_iter().map(|keys| keys.into_iter().map(key).collect());
            let set = KeySet::union([KeySet::new(few.into_iter().map(key).collect(), Vec::new()), KeySet::new(Vec::new(), sets.collect())]);
            let expected = all.into_iter().filter(|name| after.is_none_or(|after| *name > after)).map(key);
            prop_assert!(set.after(after.map(key).as_ref()).cloned().eq(expected));
        }
    }
}
