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
    pub fn after(&self, key: Option<&Key>) -> impl Iterator<Item = &Key> + Send {
        let start = key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.range((start, Bound::Unbounded))
    }

    /// The keys of a namespace after a key, sorted, each once. The cost grows with them, not with the keys of other namespaces.
    pub fn namespace_after(&self, namespace: &str, key: Option<&Key>) -> impl Iterator<Item = &Key> + Send {
        Key::namespace_range_after(namespace, key).map(|range| self.range(range)).into_iter().flatten()
    }

    /// How many keys it has, where one that several values have may count for each.
    pub fn count(&self) -> usize {
        self.few.len() + self.many.iter().map(OrdSet::len).sum::<usize>()
    }

    /// How many ranges [`KeySet::namespace_after`] opens.
    pub fn ranges(&self) -> usize {
        1 + self.many.len()
    }

    /// The keys between two bounds, which must not exclude each other.
    fn range(&self, range: (Bound<Key>, Bound<Key>)) -> Merged<'_> {
        let start = self.few.partition_point(|key| match &range.0 {
            Bound::Excluded(start) => key <= start,
            Bound::Included(start) => key < start,
            Bound::Unbounded => false,
        });
        let end = self.few.partition_point(|key| match &range.1 {
            Bound::Excluded(end) => key < end,
            Bound::Included(end) => key <= end,
            Bound::Unbounded => true,
        });
        let few: KeyIter<'_> = Box::new(self.few[start..end].iter());
        let many = self.many.iter().map(|set| -> KeyIter<'_> { Box::new(set.range(range.clone())) });
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

    /// Keys in three namespaces whose ranges lie beside each other.
    fn key(name: u8) -> Key {
        Key::new(["n", "n-a", "n0"][usize::from(name % 3)], &format!("{name:03}"))
    }

    proptest! {
        #[test]
        fn a_set_has_the_keys_of_all_its_parts_in_order_and_once(
            few in prop::collection::vec(0..30u8, 0..10),
            many in prop::collection::vec(prop::collection::vec(0..30u8, 0..10), 0..4),
            after in prop::option::of(0..30u8),
        ) {
            let after = after.map(key);
            let all: BTreeSet<Key> = few.iter().chain(many.iter().flatten()).map(|name| key(*name)).collect();
            let sets = many.into_iter().map(|keys| keys.into_iter().map(key).collect());
            let few = KeySet::new(few.into_iter().map(key).collect(), Vec::new());
            let set = KeySet::union([few, KeySet::new(Vec::new(), sets.collect())]);
            let expected = || all.iter().filter(|key| after.as_ref().is_none_or(|after| *key > after));
            prop_assert!(set.after(after.as_ref()).eq(expected()));
            for namespace in ["n", "n-a", "n0", "n1"] {
                let expected = expected().filter(|key| key.namespace() == namespace);
                prop_assert!(set.namespace_after(namespace, after.as_ref()).eq(expected));
            }
        }
    }
}
