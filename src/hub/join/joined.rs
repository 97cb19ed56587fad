//! Which related objects the selected ones of a stream are linked with. No async, no clock.
//!
//! An edge leads from a selected object to a related one. It is there because the selected object names the related one, has it
//! as an owner, or because one of the two selects or names the other. An owner that is held has edges to its own owners. A
//! related object is shown while it exists and an edge leads to it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use slab::Slab;

use super::ends::EdgeEnds;
use super::hash_index::{Digest, Hash, HashIndex};
use super::id_lists::{IdList, short};
use super::state::StateAt;
use super::{Join, References};
use crate::k8s::{Key, Object, Terms};

/// The join of a stream, and what its client has of it.
pub(super) struct Joined {
    join: Arc<Join>,
    selected: Slab<Selected>,
    /// Its selected objects by source and key.
    index: HashIndex,
    /// The selectors of selected objects that have any.
    selectors: BTreeMap<u32, Box<[OwnSelector]>>,
    ends: EdgeEnds,
    /// What the current step has to look at. `None` between two steps.
    step: Option<Box<StepOfSelected>>,
}

/// What a step has to look at, beside the ends of edges.
#[derive(Default)]
struct StepOfSelected {
    /// Selected objects whose edges are to be computed anew.
    changed: BTreeSet<u32>,
    /// Those among them whose related objects by index are to be found.
    new: BTreeSet<u32>,
    /// Related objects that are to be compared with selected ones.
    compared: BTreeSet<(usize, Key)>,
    /// What to follow from now on, and no longer, beside the ends of edges.
    follows: Vec<Follow>,
}

/// A selected object.
struct Selected {
    object: Object,
    /// The related objects that it names. Many name two, such as their node and namespace.
    named: IdList<2>,
    /// The edges to its owners ([`EdgeEnds::owned`]).
    owners: IdList,
    /// The related objects that name or select it, or that it selects.
    compared: IdList,
    source: u16,
    digest: Digest,
}

/// A selector of a selected object: the relation, the namespace of what is selected (empty for all), and the selector.
type OwnSelector = (usize, String, Terms);

/// A part of a related informer that is followed from now on, or no longer.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) relation: usize,
    pub(super) part: FollowedPart,
    pub(super) begins: bool,
}

/// See [`crate::cache::Part`].
#[derive(Debug)]
pub(super) enum FollowedPart {
    Object(Key),
    Namespace(String),
    /// The objects with a name at the path of a link of the relation.
    Named(usize, String),
    Everything,
}

/// A related object whose state at the client is another one than before.
pub(super) struct RelatedUpdate {
    pub(super) relation: usize,
    pub(super) before: Option<Object>,
    pub(super) after: Option<Object>,
}

impl Joined {
    pub(super) fn new(join: Arc<Join>) -> Self {
        Self {
            join,
            selected: Slab::new(),
            index: HashIndex::default(),
            selectors: BTreeMap::new(),
            ends: EdgeEnds::default(),
            step: None,
        }
    }

    fn step(&mut self) -> &mut StepOfSelected {
        self.step.get_or_insert_default()
    }

    pub(super) fn join(&self) -> &Arc<Join> {
        &self.join
    }

    /// The number of objects, selected and related.
    pub(super) fn len(&self) -> usize {
        self.selected.len() + self.ends.len()
    }

    /// The number of related objects.
    pub(super) fn related_len(&self) -> usize {
        self.ends.len()
    }

    /// The state of a selected object that was last taken.
    pub(super) fn selected(&self, source: usize, key: &Key) -> Option<&Object> {
        self.find_selected(source, key).map(|id| &self.selected[id as usize].object)
    }

    fn find_selected(&self, source: usize, key: &Key) -> Option<u32> {
        let hash = Hash::of(source, key);
        let is_it = |_, selected: &Selected| {
            let may_be = selected.digest == hash.digest() && selected.source() == source;
            may_be && selected.object.key() == key
        };
        self.index.find(&self.selected, hash, is_it)
    }

    /// Takes an object that is selected.
    pub(super) fn select(&mut self, source: usize, object: &Object) {
        if let Some(id) = self.find_selected(source, object.key()) {
            self.selected[id as usize].object = object.clone();
            self.step().changed.insert(id);
            return;
        }
        let id = short(self.selected.insert(Selected {
            object: object.clone(),
            named: IdList::default(),
            owners: IdList::default(),
            compared: IdList::default(),
            source: u16::try_from(source).expect("a stream has few sources"),
            digest: Hash::of(source, object.key()).digest(),
        }));
        let selected = &self.selected;
        self.index.insert(selected, id, |id| selected[id as usize].hash());
        let step = self.step();
        step.changed.insert(id);
        step.new.insert(id);
        self.follow_around(source, object.key(), true);
    }

    /// Takes it that an object is not selected any longer.
    pub(super) fn unselect(&mut self, source: usize, key: &Key) {
        let Some(id) = self.find_selected(source, key) else { return };
        let mut gone = self.selected.remove(id as usize);
        self.index.remove(gone.hash(), id);
        let step = self.step();
        step.changed.remove(&id);
        step.new.remove(&id);
        for end in self.ends.lists.clear(&mut gone.named) {
            self.ends.unlink_name(end);
        }
        for owner in self.ends.lists.clear(&mut gone.owners) {
            self.ends.unlink_owner(owner);
        }
        for end in self.ends.lists.clear(&mut gone.compared) {
            self.ends.unlink_compared(end, id);
        }
        self.follow_around(source, key, false);
        for (relation, namespace, _) in self.selectors.remove(&id).unwrap_or_default() {
            self.follow_namespace(relation, &namespace, false);
        }
    }

    /// Follows what may be compared with a selected object.
    fn follow_around(&mut self, source: usize, key: &Key, begins: bool) {
        let join = self.join.clone();
        for (at, relation) in join.relations.iter().enumerate() {
            for (link, _) in
                relation.names.iter().enumerate().filter(|(_, link)| link.selected.contains(&source))
            {
                let part = FollowedPart::Named(link, key.name().to_owned());
                self.step().follows.push(Follow { relation: at, part, begins });
            }
            if relation.selectors.iter().any(|(_, selected)| selected.contains(&source)) {
                let namespaced = relation.informer.spec.resource.namespaced();
                self.follow_namespace(at, if namespaced { key.namespace() } else { "" }, begins);
            }
        }
    }

    fn follow_namespace(&mut self, relation: usize, namespace: &str, begins: bool) {
        let part = match namespace {
            "" => FollowedPart::Everything,
            _ => FollowedPart::Namespace(namespace.to_owned()),
        };
        self.step().follows.push(Follow { relation, part, begins });
    }

    /// Notes that an object of a related informer changed.
    pub(super) fn changed(&mut self, relation: usize, key: &Key) {
        if let Some(end) = self.ends.find(relation, key) {
            self.ends.touch(end);
        }
        if self.join.relations[relation].compares() {
            self.step().compared.insert((relation, key.clone()));
        }
    }

    /// Notes that anything of a related informer may have changed.
    pub(super) fn all_changed(&mut self, relation: usize) {
        let ids = self.ends.iter().filter(|(_, end)| end.relation() == relation).map(|(id, _)| id);
        let ids: Vec<_> = ids.collect();
        if self.join.relations[relation].compares() {
            let selected: Vec<_> = self.selected.iter().map(|(id, _)| short(id)).collect();
            let keys: Vec<_> = ids.iter().map(|id| (relation, self.ends.key(*id).clone())).collect();
            let step = self.step();
            step.changed.extend(&selected);
            step.new.extend(selected);
            step.compared.extend(keys);
        }
        ids.into_iter().for_each(|id| self.ends.touch(id));
    }

    /// The names of selected objects that are new, for a link by name of a relation.
    pub(super) fn new_names(&self, relation: usize, link: usize) -> BTreeSet<&str> {
        let link = &self.join.relations[relation].names[link];
        let new = self.step.iter().flat_map(|step| &step.new).map(|id| &self.selected[*id as usize]);
        let meant = new.filter(|selected| link.selected.contains(&selected.source()));
        meant.map(|selected| selected.object.key().name()).collect()
    }

    /// Adds related objects that may name selected ones.
    pub(super) fn compare(&mut self, relation: usize, keys: impl IntoIterator<Item = Key>) {
        self.step().compared.extend(keys.into_iter().map(|key| (relation, key)));
    }

    /// What to follow from now on, and no longer.
    pub(super) fn take_follows(&mut self) -> Vec<Follow> {
        let follow =
            |begins| move |(relation, key)| Follow { relation, part: FollowedPart::Object(key), begins };
        let (begun, ended) = self.ends.take_follows();
        let step = self.step.take().unwrap_or_default();
        debug_assert!(step.changed.is_empty() && step.new.is_empty() && step.compared.is_empty());
        let parts = step.follows;
        // An end may have begun and ended in one step, but not the other way around.
        let begun = begun.into_iter().map(follow(true));
        parts.into_iter().chain(begun).chain(ended.into_iter().map(follow(false))).collect()
    }

    /// The related objects that are followed, each with its relation.
    pub(super) fn followed(&self) -> impl Iterator<Item = (usize, &Key)> {
        self.ends.iter().map(|(id, end)| (end.relation(), self.ends.key(id)))
    }

    /// Gives back what a first state needed beyond what it left.
    pub(super) fn shrink(&mut self) {
        self.selected.shrink_to_fit();
        let selected = &self.selected;
        self.index.shrink(selected, |id| selected[id as usize].hash());
        self.ends.shrink();
    }

    /// Brings the edges up to the states of the related informers, and returns what the client has to be told.
    pub(super) fn settle(&mut self, states: &[StateAt]) -> Vec<RelatedUpdate> {
        // The states of before of ends that the client has, in the order of their ids.
        let before = self.ends.refresh(states);
        let (compared, changed) = match &mut self.step {
            Some(step) => (std::mem::take(&mut step.compared), std::mem::take(&mut step.changed)),
            None => Default::default(),
        };
        for (relation, key) in compared {
            self.compare_related(relation, &key, states);
        }
        for id in changed {
            self.link(id, states);
        }
        if let Some(step) = &mut self.step {
            step.new.clear();
        }
        let mut known = HashSet::new();
        let dirty = self.settle_owners(states, &mut known);
        let mut told = Vec::new();
        for id in dirty {
            let is_linked = self.ends.is_linked(id, &mut known);
            let end = self.ends.get_mut(id);
            let after = end.object().filter(|_| is_linked).cloned();
            let was_shown = std::mem::replace(&mut end.is_shown, after.is_some());
            let was = before.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| &before[at].1);
            // An end that was touched later than `before` has the state that it had.
            let before = was.or(end.object()).filter(|_| was_shown).cloned();
            let is_same = match (&before, &after) {
                (Some(before), Some(after)) => {
                    before.uid() == after.uid() && before.resource_version() == after.resource_version()
                }
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            let relation = end.relation();
            self.ends.drop_unused(id);
            if !is_same {
                told.push(RelatedUpdate { relation, before, after });
            }
        }
        told
    }

    /// Computes the edges of a selected object.
    fn link(&mut self, id: u32, states: &[StateAt]) {
        let join = self.join.clone();
        let Selected { source, object, .. } = &self.selected[id as usize];
        let References { named, owners, selectors } = join.references(usize::from(*source), &object.clone());
        let named: BTreeSet<u32> =
            named.into_iter().map(|(relation, key)| self.ends.end(relation, &key, states)).collect();
        let mut owned = BTreeSet::new();
        for (relation, key, uid) in owners {
            let end = self.ends.end(relation, &key, states);
            owned.insert(self.ends.owned(end, uid));
        }
        // New ones first, so that what stays is never without an edge.
        named.iter().for_each(|end| self.ends.link_name(*end));
        owned.iter().for_each(|owner| self.ends.link_owner(*owner));
        let selected = &mut self.selected[id as usize];
        let names_before = self.ends.lists.replace(&mut selected.named, named);
        let owners_before = self.ends.lists.replace(&mut selected.owners, owned);
        names_before.into_iter().for_each(|end| self.ends.unlink_name(end));
        owners_before.into_iter().for_each(|owner| self.ends.unlink_owner(owner));
        for (relation, namespace, _) in &selectors {
            self.follow_namespace(*relation, namespace, true);
        }
        let before = match selectors.is_empty() {
            true => self.selectors.remove(&id),
            false => self.selectors.insert(id, selectors.into()),
        };
        for (relation, namespace, _) in before.unwrap_or_default() {
            self.follow_namespace(relation, &namespace, false);
        }
        let found = self.compared_with(id, states);
        self.set_compared(id, &found, states);
    }

    /// The related objects that name or select a selected one, or that it selects.
    fn compared_with(&self, id: u32, states: &[StateAt]) -> BTreeSet<(usize, Key)> {
        let selected = &self.selected[id as usize];
        let (object, key) = (&selected.object, selected.object.key());
        let mut found = BTreeSet::new();
        for (at, relation) in self.join.relations.iter().enumerate() {
            if relation.selectors.iter().any(|(_, meant)| meant.contains(&selected.source())) {
                let namespaced = relation.informer.spec.resource.namespaced();
                let namespace = if namespaced { key.namespace() } else { "" };
                for related in states[at].in_namespace(namespace) {
                    if self.selects(at, states[at].history(), related, selected) {
                        found.insert((at, related.key().clone()));
                    }
                }
            }
        }
        for (at, namespace, terms) in self.selectors.get(&id).into_iter().flatten() {
            let selecting =
                states[*at].in_namespace(namespace).into_iter().filter(|related| terms.matches(related));
            found.extend(selecting.map(|related| (*at, related.key().clone())));
        }
        // Names depend on the key alone: of a selected object that is not new they are known, and of a new one they are compared.
        for id in self.ends.lists.ids(&selected.compared) {
            let end = self.ends.get(*id);
            let names = |related| self.names(end.relation(), related, selected.source(), object.key());
            if end.object().is_some_and(names) {
                found.insert((end.relation(), self.ends.key(*id).clone()));
            }
        }
        found
    }

    /// Whether a related object's selector selects a selected object.
    fn selects(&self, relation: usize, history: u64, related: &Object, selected: &Selected) -> bool {
        let relation = &self.join.relations[relation];
        let terms = relation.selectors_of(history, related);
        let mut links = relation.selectors.iter().zip(&*terms);
        links.any(|((_, meant), terms)| {
            let reaches = related.key().namespace().is_empty()
                || related.key().namespace() == selected.object.key().namespace();
            reaches
                && meant.contains(&selected.source())
                && terms.as_ref().is_some_and(|terms| terms.matches(&selected.object))
        })
    }

    /// Whether a related object names a selected object.
    fn names(&self, relation: usize, related: &Object, source: usize, key: &Key) -> bool {
        let relation = &self.join.relations[relation];
        let there = related.key().namespace();
        let reaches = key.namespace().is_empty() || key.namespace() == there;
        let mut links = relation.names.iter().filter(|link| link.selected.contains(&source));
        reaches && links.any(|link| relation.names(link, related).iter().any(|name| **name == *key.name()))
    }

    /// Compares a related object with the selected ones.
    fn compare_related(&mut self, at: usize, key: &Key, states: &[StateAt]) {
        let join = self.join.clone();
        let relation = &join.relations[at];
        let mut ids: BTreeSet<u32> = BTreeSet::new();
        if let Some(related) = states[at].get(key) {
            for link in &relation.names {
                for name in relation.names(link, related) {
                    for source in &link.selected {
                        let namespaced = self.is_namespaced(*source);
                        let there = if namespaced { key.namespace() } else { "" };
                        ids.extend(self.find_selected(*source, &Key::new(there, &name)));
                    }
                }
            }
            if relation.selects() {
                let near = self.selected_near(key.namespace());
                let is_linked = near.filter(|(id, selected)| {
                    let mut own = self.selectors.get(id).into_iter().flatten();
                    self.selects(at, states[at].history(), related, selected)
                        || own.any(|(to, namespace, terms)| {
                            let reaches = namespace.is_empty() || namespace == key.namespace();
                            *to == at && reaches && terms.matches(related)
                        })
                });
                ids.extend(is_linked.map(|(id, _)| id));
            }
        }
        let end = self.ends.find(at, key);
        let before: BTreeSet<u32> = end
            .into_iter()
            .flat_map(|end| self.ends.lists.ids(&self.ends.get(end).compared))
            .copied()
            .collect();
        if ids == before {
            return;
        }
        let end = self.ends.end(at, key, states);
        for gone in before.difference(&ids) {
            self.ends.lists.remove(&mut self.selected[*gone as usize].compared, end);
        }
        for new in ids.difference(&before) {
            self.ends.lists.add(&mut self.selected[*new as usize].compared, end);
        }
        self.ends.set_compared(end, ids);
    }

    /// The selected objects of a namespace and of the cluster; all for an object of the cluster.
    fn selected_near<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (u32, &'a Selected)> + 'a {
        let near = move |key: &Key| {
            namespace.is_empty() || key.namespace().is_empty() || key.namespace() == namespace
        };
        let selected = self.selected.iter().filter(move |(_, selected)| near(selected.object.key()));
        selected.map(|(id, selected)| (short(id), selected))
    }

    fn is_namespaced(&self, source: usize) -> bool {
        self.join.forward[source].namespaced
    }

    /// Sets the edges of a selected object by comparison.
    fn set_compared(&mut self, id: u32, found: &BTreeSet<(usize, Key)>, states: &[StateAt]) {
        let now: BTreeSet<u32> =
            found.iter().map(|(relation, key)| self.ends.end(*relation, key, states)).collect();
        let compared = &mut self.selected[id as usize].compared;
        let before: BTreeSet<u32> = self.ends.lists.ids(compared).iter().copied().collect();
        if now == before {
            return;
        }
        before.difference(&now).for_each(|gone| self.ends.unlink_compared(*gone, id));
        now.difference(&before).for_each(|new| self.ends.link_compared(*new, id));
        // All at once: to remove one id takes a walk along the list.
        self.ends.lists.replace(&mut self.selected[id as usize].compared, now);
    }

    /// Gives owners that are held edges to their own owners, and takes them from those that are not. Returns the related objects that
    /// may be shown in another way than before. `known` gets those that were found to be owners.
    fn settle_owners(&mut self, states: &[StateAt], known: &mut HashSet<u32>) -> BTreeSet<u32> {
        let join = self.join.clone();
        let mut dirty = BTreeSet::new();
        while let Some(id) = self.ends.next_touched() {
            dirty.insert(id);
            let wanted = match self.ends.get(id).object() {
                Some(object) if self.ends.is_owner(id, known) => join.owners(object),
                Some(_) | None => Vec::new(),
            };
            let mut owners = BTreeSet::new();
            for (relation, key, uid) in wanted {
                let end = self.ends.end(relation, &key, states);
                owners.insert(self.ends.owned(end, uid));
            }
            self.ends.set_owners(id, &owners, known);
        }
        dirty
    }
}

impl Selected {
    fn hash(&self) -> Hash {
        Hash::of(self.source(), self.object.key())
    }

    fn source(&self) -> usize {
        usize::from(self.source)
    }
}
