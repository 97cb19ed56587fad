//! Lists of ids, most of which are empty or hold one or two.
//!
//! Tens of thousands of streams hold some dozen lists each, so that a list takes no memory of its own as long as it is short.

use slab::Slab;

/// A list in some [`IdLists`]. It is given back with [`IdLists::clear`].
///
/// It has room for `N` ids: those that it holds, and [`EMPTY`] behind them. Of a longer list it has the place, marked by [`LONG`].
#[derive(Debug)]
pub(super) struct IdList<const N: usize = 1>([u32; N]);

/// No id.
const EMPTY: u32 = u32::MAX;
/// The bit that marks the place of a long list. No id is as large ([`short`]).
const LONG: u32 = 1 << 31;

impl<const N: usize> Default for IdList<N> {
    fn default() -> Self {
        Self([EMPTY; N])
    }
}

impl<const N: usize> IdList<N> {
    /// Whether it holds no id.
    pub(super) fn is_empty(&self) -> bool {
        self.0[0] == EMPTY
    }

    /// The place of its ids, if there are more than `N`.
    fn long(&self) -> Option<usize> {
        (!self.is_empty() && self.0[0] & LONG != 0).then_some((self.0[0] & !LONG) as usize)
    }

    /// The ids of a list that is not long.
    fn short(&self) -> &[u32] {
        let len = self.0.iter().take_while(|id| **id != EMPTY).count();
        &self.0[..len]
    }

    /// The list of ids that fit.
    fn of(ids: &[u32]) -> Self {
        let mut list = Self::default();
        list.0[..ids.len()].copy_from_slice(ids);
        list
    }
}

/// The ids of lists that are not short.
#[derive(Debug, Default)]
pub(super) struct IdLists {
    long: Slab<Vec<u32>>,
}

impl IdLists {
    /// The ids of a list, in no order.
    pub(super) fn ids<'a, const N: usize>(&'a self, list: &'a IdList<N>) -> &'a [u32] {
        match list.long() {
            Some(at) => &self.long[at],
            None => list.short(),
        }
    }

    /// Adds an id that the list does not hold.
    pub(super) fn add<const N: usize>(&mut self, list: &mut IdList<N>, id: u32) {
        match list.long() {
            Some(at) => {
                let ids = &mut self.long[at];
                // Most lists that are not short stay as long as they are.
                if ids.len() < 4 {
                    ids.reserve_exact(1);
                }
                ids.push(id);
            }
            None => {
                let len = list.short().len();
                match list.0.get_mut(len) {
                    Some(place) => *place = id,
                    None => {
                        let ids = [list.short(), &[id]].concat();
                        *list = IdList::of(&[LONG | short(self.long.insert(ids))]);
                    }
                }
            }
        }
    }

    /// Removes an id, if the list holds it.
    pub(super) fn remove<const N: usize>(&mut self, list: &mut IdList<N>, id: u32) {
        match list.long() {
            Some(at) => {
                let ids = &mut self.long[at];
                ids.retain(|other| *other != id);
                if ids.len() <= N {
                    *list = IdList::of(&self.long.remove(at));
                }
            }
            None => {
                let ids: Vec<_> = list.short().iter().copied().filter(|other| *other != id).collect();
                *list = IdList::of(&ids);
            }
        }
    }

    /// Empties a list, and returns its ids.
    pub(super) fn clear<const N: usize>(&mut self, list: &mut IdList<N>) -> Vec<u32> {
        let taken = std::mem::take(list);
        match taken.long() {
            Some(at) => self.long.remove(at),
            None => taken.short().to_vec(),
        }
    }

    /// Sets the ids of a list, and returns those that it had.
    pub(super) fn replace<const N: usize>(
        &mut self,
        list: &mut IdList<N>,
        ids: impl IntoIterator<Item = u32>,
    ) -> Vec<u32> {
        let before = self.clear(list);
        ids.into_iter().for_each(|id| self.add(list, id));
        before
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
    u32::try_from(at).ok().filter(|at| at & LONG == 0).expect("the number of objects is bounded")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lists_hold_what_was_added_and_not_removed() {
        hold_what_was_added_and_not_removed::<1>();
        hold_what_was_added_and_not_removed::<2>();
    }

    fn hold_what_was_added_and_not_removed<const N: usize>() {
        let mut lists = IdLists::default();
        let mut all: [IdList<N>; 3] = std::array::from_fn(|_| IdList::default());
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
            let long = expected.iter().filter(|ids| ids.len() > N).count();
            assert_eq!(lists.long_len(), long, "short lists take no memory of their own");
        }
    }
}
