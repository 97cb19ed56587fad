//! Lists of ids, most of which are empty or hold one.
//!
//! Tens of thousands of streams hold some dozen lists each, so that a list takes no memory of its own until it holds two ids.

use slab::Slab;

/// A list in some [`IdLists`]. It is given back with [`IdLists::clear`].
#[derive(Debug, Default)]
pub(super) enum IdList {
    #[default]
    Empty,
    One(u32),
    /// The place of a list of two or more.
    Long(u32),
}

/// The ids of lists that hold more than one.
#[derive(Debug, Default)]
pub(super) struct IdLists {
    long: Slab<Vec<u32>>,
}

impl IdLists {
    /// The ids of a list, in no order.
    pub(super) fn ids<'a>(&'a self, list: &'a IdList) -> &'a [u32] {
        match list {
            IdList::Empty => &[],
            IdList::One(id) => std::slice::from_ref(id),
            IdList::Long(at) => &self.long[*at as usize],
        }
    }

    /// Adds an id that the list does not hold.
    pub(super) fn add(&mut self, list: &mut IdList, id: u32) {
        match list {
            IdList::Empty => *list = IdList::One(id),
            IdList::One(first) => {
                let at = self.long.insert(vec![*first, id]);
                *list = IdList::Long(short(at));
            }
            IdList::Long(at) => {
                let ids = &mut self.long[*at as usize];
                // Most lists that are not short stay as long as they are.
                if ids.len() < 4 {
                    ids.reserve_exact(1);
                }
                ids.push(id);
            }
        }
    }

    /// Removes an id, if the list holds it.
    pub(super) fn remove(&mut self, list: &mut IdList, id: u32) {
        match list {
            IdList::One(only) if *only == id => *list = IdList::Empty,
            IdList::Empty | IdList::One(_) => {}
            IdList::Long(at) => {
                let ids = &mut self.long[*at as usize];
                ids.retain(|other| *other != id);
                if let [only] = **ids {
                    self.long.remove(*at as usize);
                    *list = IdList::One(only);
                }
            }
        }
    }

    /// Empties a list, and returns its ids.
    pub(super) fn clear(&mut self, list: &mut IdList) -> Vec<u32> {
        match std::mem::take(list) {
            IdList::Empty => Vec::new(),
            IdList::One(id) => vec![id],
            IdList::Long(at) => self.long.remove(at as usize),
        }
    }

    /// Gives back memory that no list needs.
    pub(super) fn shrink(&mut self) {
        self.long.shrink_to_fit();
    }

    #[cfg(test)]
    pub(super) fn long_len(&self) -> usize {
        self.long.len()
    }
}

/// The place of an item in a slab, as it is remembered. A stream has at most a hundred thousand objects.
pub(super) fn short(at: usize) -> u32 {
    u32::try_from(at).expect("the number of objects is bounded")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lists_hold_what_was_added_and_not_removed() {
        let mut lists = IdLists::default();
        let mut all = [IdList::Empty, IdList::Empty, IdList::Empty];
        let mut expected = [const { BTreeSet::new() }; 3];
        let mut state = 17_u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (at, id, what) = ((state >> 33) as usize % 3, (state >> 40) as u32 % 6, (state >> 50) % 8);
            match what {
                0 => {
                    let cleared: BTreeSet<_> = lists.clear(&mut all[at]).into_iter().collect();
                    assert_eq!(cleared, std::mem::take(&mut expected[at]));
                }
                1..4 => {
                    expected[at].remove(&id);
                    lists.remove(&mut all[at], id);
                }
                _ if expected[at].insert(id) => lists.add(&mut all[at], id),
                _ => {}
            }
            for (list, expected) in all.iter().zip(&expected) {
                let ids = lists.ids(list);
                assert_eq!(ids.len(), expected.len(), "no id is there twice");
                assert_eq!(ids.iter().copied().collect::<BTreeSet<_>>(), *expected);
            }
            let long = expected.iter().filter(|ids| ids.len() > 1).count();
            assert_eq!(lists.long_len(), long, "short lists take no memory of their own");
        }
    }
}
