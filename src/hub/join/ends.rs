//! The related objects that edges lead to.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;

use super::Uid;
use super::id_lists::{IdList, IdLists, short};
use super::state::StateAt;
use crate::k8s::{ContentHash, Key, Object};

/// The ends of a stream's edges. Tens of thousands of streams hold some dozen each, so that every byte of one counts.
#[derive(Default)]
pub(super) struct EdgeEnds {
    ends: Slab<EdgeEnd>,
    /// The ends by relation and key.
    by_key: HashTable<u32>,
    hasher: RandomState,
    owned: Slab<Owned>,
    /// The lists of ends, of [`Owned`]s and of selected objects.
    pub(super) lists: IdLists,
    /// Ends that changed, or the edges to which changed.
    pub(super) touched: BTreeSet<u32>,
    /// What to follow from now on, and no longer: a relation and the key of an object.
    pub(super) begun: Vec<(usize, Key)>,
    pub(super) ended: Vec<(usize, Key)>,
}

/// An object of a related informer that an edge leads to.
pub(super) struct EdgeEnd {
    state: EndState,
    relation: u16,
    /// Whether the client has it, in its state.
    pub(super) is_shown: bool,
    /// Number of edges by name.
    named: u32,
    /// The selected objects of edges by comparison.
    pub(super) compared: IdList,
    /// The [`Owned`]s that it is the owner of, one for each uid.
    owned: IdList,
    /// The [`Owned`]s of its owners, while it is held as an owner.
    owners: IdList,
}

/// What was last taken of a related object.
enum EndState {
    Object(Arc<Object>),
    /// It does not exist.
    Absent(Box<Key>),
}

/// The edges to an owner with a uid.
struct Owned {
    uid: Uid,
    /// The owner.
    end: u32,
    /// Number of edges from selected objects.
    selected: u32,
    /// The owners that it owns.
    below: IdList,
}

impl EdgeEnd {
    pub(super) fn object(&self) -> Option<&Arc<Object>> {
        match &self.state {
            EndState::Object(object) => Some(object),
            EndState::Absent(_) => None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        match &self.state {
            EndState::Object(object) => object.key(),
            EndState::Absent(key) => key,
        }
    }

    pub(super) fn relation(&self) -> usize {
        usize::from(self.relation)
    }

    /// Takes its state, and returns the object of before.
    fn take(&mut self, object: Option<&Arc<Object>>) -> Option<Arc<Object>> {
        let state = match object {
            Some(object) => EndState::Object(object.clone()),
            None => EndState::Absent(Box::new(self.key().clone())),
        };
        match std::mem::replace(&mut self.state, state) {
            EndState::Object(before) => Some(before),
            EndState::Absent(_) => None,
        }
    }

    /// Whether no edge leads to it or from it, and the client does not have it.
    fn is_unused(&self) -> bool {
        let is_empty = |list: &IdList| matches!(list, IdList::Empty);
        self.named == 0
            && is_empty(&self.compared)
            && is_empty(&self.owned)
            && is_empty(&self.owners)
            && !self.is_shown
    }
}

impl EdgeEnds {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> &EdgeEnd {
        &self.ends[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut EdgeEnd {
        &mut self.ends[id as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &EdgeEnd)> {
        self.ends.iter().map(|(id, end)| (short(id), end))
    }

    pub(super) fn find(&self, relation: usize, key: &Key) -> Option<u32> {
        let is_it = |at: &u32| {
            let end = self.get(*at);
            end.relation() == relation && end.key() == key
        };
        self.by_key.find(self.hasher.hash_one((relation, key)), is_it).copied()
    }

    /// The end of an edge, taken from its informer's state if no edge led to it yet.
    pub(super) fn end(&mut self, relation: usize, key: &Key, states: &[StateAt]) -> u32 {
        if let Some(id) = self.find(relation, key) {
            return id;
        }
        let state = match states[relation].get(key) {
            Some(object) => EndState::Object(object.clone()),
            None => EndState::Absent(Box::new(key.clone())),
        };
        let end = EdgeEnd {
            state,
            relation: u16::try_from(relation).expect("a join has few relations"),
            is_shown: false,
            named: 0,
            compared: IdList::Empty,
            owned: IdList::Empty,
            owners: IdList::Empty,
        };
        // The object's own key is shared.
        let key = end.key().clone();
        let id = short(self.ends.insert(end));
        let (ends, hasher) = (&self.ends, &self.hasher);
        let hash_of = |at: &u32| {
            let end = &ends[*at as usize];
            hasher.hash_one((end.relation(), end.key()))
        };
        self.by_key.insert_unique(hasher.hash_one((relation, &key)), id, hash_of);
        self.begun.push((relation, key));
        self.touched.insert(id);
        id
    }

    /// Takes the states of the ends that were touched. Returns the objects of before of those that the client has.
    pub(super) fn refresh(&mut self, states: &[StateAt]) -> Vec<(u32, Arc<Object>)> {
        let mut before = Vec::new();
        for id in &self.touched {
            let end = &mut self.ends[*id as usize];
            let object = states[end.relation()].get(end.key()).cloned();
            let was = end.take(object.as_ref());
            if end.is_shown {
                before.extend(was.map(|was| (*id, was)));
            }
        }
        before
    }

    /// Forgets an end if nothing needs it.
    pub(super) fn drop_unused(&mut self, id: u32) {
        if !self.get(id).is_unused() {
            return;
        }
        let end = self.ends.remove(id as usize);
        let hash = self.hasher.hash_one((end.relation(), end.key()));
        if let Ok(entry) = self.by_key.find_entry(hash, |at| *at == id) {
            entry.remove();
        }
        self.ended.push((end.relation(), end.key().clone()));
    }

    pub(super) fn link_name(&mut self, id: u32) {
        self.get_mut(id).named += 1;
        self.touched.insert(id);
    }

    pub(super) fn unlink_name(&mut self, id: u32) {
        self.get_mut(id).named -= 1;
        self.touched.insert(id);
    }

    /// Sets the selected objects that an end is linked with by comparison.
    pub(super) fn set_compared(&mut self, id: u32, ids: impl IntoIterator<Item = u32>) {
        let end = &mut self.ends[id as usize];
        self.lists.clear(&mut end.compared);
        ids.into_iter().for_each(|other| self.lists.add(&mut end.compared, other));
        self.touched.insert(id);
    }

    pub(super) fn link_compared(&mut self, id: u32, selected: u32) {
        self.lists.add(&mut self.ends[id as usize].compared, selected);
        self.touched.insert(id);
    }

    pub(super) fn unlink_compared(&mut self, id: u32, selected: u32) {
        self.lists.remove(&mut self.ends[id as usize].compared, selected);
        self.touched.insert(id);
    }

    /// The edges to an owner with a uid. What is returned has to get an edge.
    pub(super) fn owned(&mut self, end: u32, uid: Uid) -> u32 {
        let owned = self.lists.ids(&self.get(end).owned);
        if let Some(id) = owned.iter().find(|id| self.owned[**id as usize].uid == uid) {
            return *id;
        }
        let id = short(self.owned.insert(Owned { uid, end, selected: 0, below: IdList::Empty }));
        self.lists.add(&mut self.ends[end as usize].owned, id);
        id
    }

    /// Adds an edge from a selected object to an owner.
    pub(super) fn link_owner(&mut self, id: u32) {
        let owned = &mut self.owned[id as usize];
        owned.selected += 1;
        self.touched.insert(owned.end);
    }

    /// Removes an edge from a selected object to an owner.
    pub(super) fn unlink_owner(&mut self, id: u32) {
        self.owned[id as usize].selected -= 1;
        self.drop_unused_owned(id);
    }

    fn drop_unused_owned(&mut self, id: u32) {
        let Owned { end, selected, below, .. } = &self.owned[id as usize];
        let end = *end;
        self.touched.insert(end);
        if *selected == 0 && matches!(below, IdList::Empty) {
            self.owned.remove(id as usize);
            self.lists.remove(&mut self.ends[end as usize].owned, id);
        }
    }

    /// Sets the owners of an end, as [`EdgeEnds::owned`] returned them. Removes from `known` what may be no owner any more without it.
    pub(super) fn set_owners(&mut self, id: u32, now: &BTreeSet<u32>, known: &mut HashSet<u32>) {
        let before: BTreeSet<u32> = self.lists.ids(&self.get(id).owners).iter().copied().collect();
        if *now == before {
            return;
        }
        for new in now.difference(&before) {
            let owned = &mut self.owned[*new as usize];
            self.lists.add(&mut owned.below, id);
            self.touched.insert(owned.end);
        }
        let mut lost = Vec::new();
        for gone in before.difference(now) {
            let Owned { end, below, .. } = &mut self.owned[*gone as usize];
            lost.push(*end);
            self.lists.remove(below, id);
            self.drop_unused_owned(*gone);
        }
        let owners = &mut self.ends[id as usize].owners;
        self.lists.clear(owners);
        now.iter().for_each(|owner| self.lists.add(owners, *owner));
        lost.into_iter().for_each(|end| self.doubt(end, known));
    }

    /// Removes an end and the owners above it from those that are known to be owners. One that is not known is on no path by which others are.
    fn doubt(&self, end: u32, known: &mut HashSet<u32>) {
        let mut left = vec![end];
        while let Some(at) = left.pop() {
            if known.remove(&at) {
                let above = self.lists.ids(&self.get(at).owners).iter();
                left.extend(above.map(|owner| self.owned[*owner as usize].end));
            }
        }
    }

    /// Whether an end is an owner of a selected object, or an owner of such an owner. Objects may own each other in a circle, so that
    /// owners alone prove nothing. It does not recurse, as tenants write chains of any length. `known` has ends that were found to be such
    /// owners, each with all below it on the path by which it is one.
    pub(super) fn is_owner(&self, id: u32, known: &mut HashSet<u32>) -> bool {
        // Each end that was seen, with the one above it from which it was reached.
        let (mut seen, mut left) = (HashMap::from([(id, id)]), vec![id]);
        while let Some(mut at) = left.pop() {
            let Some(owned) = self.owned_now(at) else { continue };
            if owned.selected > 0 || known.contains(&at) {
                known.insert(at);
                while at != id {
                    at = seen[&at];
                    known.insert(at);
                }
                return true;
            }
            for below in self.lists.ids(&owned.below) {
                seen.entry(*below).or_insert_with(|| {
                    left.push(*below);
                    at
                });
            }
        }
        false
    }

    /// What the object that an end has now owns; `None` if nothing.
    fn owned_now(&self, id: u32) -> Option<&Owned> {
        let end = self.get(id);
        let all = self.lists.ids(&end.owned);
        if all.is_empty() {
            return None;
        }
        let uid = ContentHash::of(end.object()?.uid().as_bytes());
        all.iter().map(|id| &self.owned[*id as usize]).find(|owned| owned.uid == uid)
    }

    /// Whether an edge leads to an end.
    pub(super) fn is_linked(&self, id: u32, known: &mut HashSet<u32>) -> bool {
        let end = self.get(id);
        end.named > 0 || !matches!(end.compared, IdList::Empty) || self.is_owner(id, known)
    }

    /// Gives back what a first state needed beyond what it left.
    pub(super) fn shrink(&mut self) {
        self.ends.shrink_to_fit();
        self.owned.shrink_to_fit();
        self.lists.shrink();
        let (ends, hasher) = (&self.ends, &self.hasher);
        self.by_key.shrink_to(0, |at| {
            let end = &ends[*at as usize];
            hasher.hash_one((end.relation(), end.key()))
        });
    }
}
