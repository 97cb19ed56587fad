//! The related objects that edges lead to.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use slab::Slab;

use super::hash_index::{Digest, Hash, HashIndex};
use super::id_lists::{IdList, IdLists, short};
use super::state::StateAt;
use super::{Uid, uid_of};
use crate::k8s::{Key, Object};

/// The ends of a stream's edges. Tens of thousands of streams hold some dozen each, so that every byte of one counts.
#[derive(Default)]
pub(super) struct EdgeEnds {
    ends: Slab<EdgeEnd>,
    /// The ends by relation and key.
    index: HashIndex,
    /// The keys of ends that do not exist.
    absent: BTreeMap<u32, Key>,
    /// For ends that are held as owners, the [`Owned`]s of their own owners, if they have any.
    owners: BTreeMap<u32, IdList>,
    owned: Slab<Owned>,
    /// The lists of ends, of [`Owned`]s and of selected objects.
    pub(super) lists: IdLists,
    /// What the current step has to look at. `None` between two steps.
    step: Option<Box<StepOfEnds>>,
}

/// What a step has to look at. Of a stream that rests, nothing.
#[derive(Default)]
struct StepOfEnds {
    /// Ends that changed, or the edges to which changed.
    touched: BTreeSet<u32>,
    /// What to follow from now on, and no longer.
    begun: Vec<RelatedKey>,
    ended: Vec<RelatedKey>,
}

/// A relation, and the key of an object.
type RelatedKey = (usize, Key);

/// An object of a related informer that an edge leads to.
pub(super) struct EdgeEnd {
    /// What was last taken of it; `None` if it does not exist.
    object: Option<Object>,
    /// Number of edges by name.
    named: u32,
    /// The selected objects of edges by comparison.
    pub(super) compared: IdList,
    /// The [`Owned`]s that it is the owner of, one for each uid.
    owned: IdList,
    relation: u16,
    digest: Digest,
    /// Whether the client has it, in its state.
    pub(super) is_shown: bool,
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
    pub(super) fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }

    pub(super) fn relation(&self) -> usize {
        usize::from(self.relation)
    }

    /// Whether no edge leads to it, and the client does not have it.
    fn is_unused(&self) -> bool {
        self.named == 0 && self.compared.is_empty() && self.owned.is_empty() && !self.is_shown
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

    pub(super) fn key(&self, id: u32) -> &Key {
        self.key_of(id, self.get(id))
    }

    fn key_of<'a>(&'a self, id: u32, end: &'a EdgeEnd) -> &'a Key {
        match &end.object {
            Some(object) => object.key(),
            None => &self.absent[&id],
        }
    }

    fn hash(&self, id: u32) -> Hash {
        Hash::of(self.get(id).relation(), self.key(id))
    }

    /// The [`Owned`]s of the owners of an end that is held as an owner.
    fn owners(&self, id: u32) -> &[u32] {
        self.owners.get(&id).map_or(&[], |owners| self.lists.ids(owners))
    }

    pub(super) fn find(&self, relation: usize, key: &Key) -> Option<u32> {
        let hash = Hash::of(relation, key);
        let is_it = |id, end: &EdgeEnd| {
            let may_be = end.digest == hash.digest() && end.relation() == relation;
            may_be && self.key_of(id, end) == key
        };
        self.index.find(&self.ends, hash, is_it)
    }

    /// The end of an edge, taken from its informer's state if no edge led to it yet.
    pub(super) fn end(&mut self, relation: usize, key: &Key, states: &[StateAt]) -> u32 {
        if let Some(id) = self.find(relation, key) {
            return id;
        }
        let object = states[relation].get(key).cloned();
        // The object's own key is shared.
        let key = object.as_ref().map_or(key, |object| object.key()).clone();
        let is_absent = object.is_none();
        let id = short(self.ends.insert(EdgeEnd {
            object,
            named: 0,
            compared: IdList::default(),
            owned: IdList::default(),
            relation: u16::try_from(relation).expect("a join has few relations"),
            digest: Hash::of(relation, &key).digest(),
            is_shown: false,
        }));
        if is_absent {
            self.absent.insert(id, key.clone());
        }
        let mut index = std::mem::take(&mut self.index);
        index.insert(&self.ends, id, |id| self.hash(id));
        self.index = index;
        let step = self.step();
        step.begun.push((relation, key));
        step.touched.insert(id);
        id
    }

    fn step(&mut self) -> &mut StepOfEnds {
        self.step.get_or_insert_default()
    }

    /// Has the current step look at an end.
    pub(super) fn touch(&mut self, id: u32) {
        self.step().touched.insert(id);
    }

    /// The next end that the step has to look at.
    pub(super) fn next_touched(&mut self) -> Option<u32> {
        self.step.as_mut()?.touched.pop_first()
    }

    /// What to follow from now on, and no longer.
    pub(super) fn take_follows(&mut self) -> (Vec<RelatedKey>, Vec<RelatedKey>) {
        let Some(mut step) = self.step.take() else { return Default::default() };
        let taken = (std::mem::take(&mut step.begun), std::mem::take(&mut step.ended));
        self.step = Some(step).filter(|step| !step.touched.is_empty());
        taken
    }

    /// Takes the states of the ends that were touched. Returns the objects of before of those that the client has.
    pub(super) fn refresh(&mut self, states: &[StateAt]) -> Vec<(u32, Object)> {
        let mut before = Vec::new();
        let touched: Vec<_> = self.step.iter().flat_map(|step| &step.touched).copied().collect();
        for id in touched {
            let relation = self.get(id).relation();
            let object = states[relation].get(self.key(id)).cloned();
            let was = self.take(id, object);
            if self.get(id).is_shown {
                before.extend(was.map(|was| (id, was)));
            }
        }
        before
    }

    /// Takes the state of an end, and returns the object of before.
    fn take(&mut self, id: u32, object: Option<Object>) -> Option<Object> {
        match object {
            Some(_) => drop(self.absent.remove(&id)),
            None => {
                let key = self.key(id).clone();
                self.absent.insert(id, key);
            }
        }
        std::mem::replace(&mut self.get_mut(id).object, object)
    }

    /// Forgets an end if nothing needs it.
    pub(super) fn drop_unused(&mut self, id: u32) {
        if !self.get(id).is_unused() || self.owners.contains_key(&id) {
            return;
        }
        let key = self.key(id).clone();
        self.index.remove(self.hash(id), id);
        let end = self.ends.remove(id as usize);
        self.absent.remove(&id);
        self.step().ended.push((end.relation(), key));
    }

    pub(super) fn link_name(&mut self, id: u32) {
        self.get_mut(id).named += 1;
        self.touch(id);
    }

    pub(super) fn unlink_name(&mut self, id: u32) {
        self.get_mut(id).named -= 1;
        self.touch(id);
    }

    /// Sets the selected objects that an end is linked with by comparison.
    pub(super) fn set_compared(&mut self, id: u32, ids: impl IntoIterator<Item = u32>) {
        self.lists.replace(&mut self.ends[id as usize].compared, ids);
        self.touch(id);
    }

    pub(super) fn link_compared(&mut self, id: u32, selected: u32) {
        self.lists.add(&mut self.ends[id as usize].compared, selected);
        self.touch(id);
    }

    pub(super) fn unlink_compared(&mut self, id: u32, selected: u32) {
        self.lists.remove(&mut self.ends[id as usize].compared, selected);
        self.touch(id);
    }

    /// The edges to an owner with a uid. What is returned has to get an edge.
    pub(super) fn owned(&mut self, end: u32, uid: Uid) -> u32 {
        let owned = self.lists.ids(&self.get(end).owned);
        if let Some(id) = owned.iter().find(|id| self.owned[**id as usize].uid == uid) {
            return *id;
        }
        let id = short(self.owned.insert(Owned { uid, end, selected: 0, below: IdList::default() }));
        self.lists.add(&mut self.ends[end as usize].owned, id);
        id
    }

    /// Adds an edge from a selected object to an owner.
    pub(super) fn link_owner(&mut self, id: u32) {
        let owned = &mut self.owned[id as usize];
        owned.selected += 1;
        let end = owned.end;
        self.touch(end);
    }

    /// Removes an edge from a selected object to an owner.
    pub(super) fn unlink_owner(&mut self, id: u32) {
        self.owned[id as usize].selected -= 1;
        self.drop_unused_owned(id);
    }

    fn drop_unused_owned(&mut self, id: u32) {
        let Owned { end, selected, below, .. } = &self.owned[id as usize];
        let (end, is_unused) = (*end, *selected == 0 && below.is_empty());
        self.touch(end);
        if is_unused {
            self.owned.remove(id as usize);
            self.lists.remove(&mut self.ends[end as usize].owned, id);
        }
    }

    /// Sets the owners of an end, as [`EdgeEnds::owned`] returned them. Removes from `known` what may be no owner any more without it.
    pub(super) fn set_owners(&mut self, id: u32, now: &BTreeSet<u32>, known: &mut HashSet<u32>) {
        let before: BTreeSet<u32> = self.owners(id).iter().copied().collect();
        if *now == before {
            return;
        }
        for new in now.difference(&before) {
            let owned = &mut self.owned[*new as usize];
            self.lists.add(&mut owned.below, id);
            let end = owned.end;
            self.touch(end);
        }
        let mut lost = Vec::new();
        for gone in before.difference(now) {
            let Owned { end, below, .. } = &mut self.owned[*gone as usize];
            lost.push(*end);
            self.lists.remove(below, id);
            self.drop_unused_owned(*gone);
        }
        let mut owners = self.owners.remove(&id).unwrap_or_default();
        self.lists.replace(&mut owners, now.iter().copied());
        if !owners.is_empty() {
            self.owners.insert(id, owners);
        }
        lost.into_iter().for_each(|end| self.doubt(end, known));
    }

    /// Removes an end and the owners above it from those that are known to be owners. One that is not known is on no path by which others are.
    fn doubt(&self, end: u32, known: &mut HashSet<u32>) {
        let mut left = vec![end];
        while let Some(at) = left.pop() {
            if known.remove(&at) {
                let above = self.owners(at).iter();
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
        let uid = uid_of(&end.object()?.uid());
        all.iter().map(|id| &self.owned[*id as usize]).find(|owned| owned.uid == uid)
    }

    /// Whether an edge leads to an end.
    pub(super) fn is_linked(&self, id: u32, known: &mut HashSet<u32>) -> bool {
        let end = self.get(id);
        end.named > 0 || !end.compared.is_empty() || self.is_owner(id, known)
    }

    /// Gives back what a first state needed beyond what it left.
    pub(super) fn shrink(&mut self) {
        self.ends.shrink_to_fit();
        self.owned.shrink_to_fit();
        self.lists.shrink();
        let mut index = std::mem::take(&mut self.index);
        index.shrink(&self.ends, |id| self.hash(id));
        self.index = index;
    }
}
