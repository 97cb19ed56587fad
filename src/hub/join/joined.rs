//! Which related objects the selected ones of a stream are linked with. No async, no clock.
//!
//! An edge leads from a selected object to a related one. It is there because the selected object names the related one, has it
//! as an owner, or because one of the two selects or names the other. An owner that is held has edges to its own owners. A
//! related object is shown while it exists and an edge leads to it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;

use super::state::StateAt;
use super::{Join, References, Uid};
use crate::k8s::{ContentHash, Key, Object, Terms};

/// The join of a stream, and what its client has of it.
pub(super) struct Joined {
    join: Arc<Join>,
    selected: Slab<Selected>,
    selected_by_key: BTreeMap<(usize, Key), usize>,
    targets: Slab<EdgeEnd>,
    /// Its targets by relation and key. Tens of thousands of streams hold some dozen each, so that every byte of an entry counts.
    targets_by_key: HashTable<u32>,
    hasher: RandomState,
    /// Selected objects whose edges are to be computed anew.
    changed: BTreeSet<usize>,
    /// Those among them whose related objects by index are to be found.
    new: BTreeSet<usize>,
    /// Related objects that are to be compared with selected ones.
    compared: BTreeSet<(usize, Key)>,
    /// Related objects that, or the edges to which, changed.
    touched: BTreeSet<usize>,
    /// What to follow from now on, and no longer.
    follows: Vec<Follow>,
}

/// A selected object.
struct Selected {
    source: usize,
    object: Arc<Object>,
    /// By name, and by uid to owners.
    edges: Box<[(usize, Option<Uid>)]>,
    /// To related objects that name or select it, or that it selects.
    compared: Vec<usize>,
    /// Its selectors: the relation, the namespace of what is selected, and the selector.
    selectors: Box<[(usize, String, Terms)]>,
}

/// An object of a related informer that an edge leads to. It need not exist.
struct EdgeEnd {
    relation: usize,
    key: Key,
    /// The object in the state that was last taken.
    object: Option<Arc<Object>>,
    /// The object that the client has.
    shown: Option<Arc<Object>>,
    /// Edges by name.
    named: usize,
    /// The selected objects of edges by comparison.
    compared: Vec<usize>,
    owned: Vec<Owned>,
    /// The edges to its owners, while it is held as an owner.
    edges: Vec<(usize, Uid)>,
}

/// The edges to an owner with a uid.
struct Owned {
    uid: Uid,
    /// From selected objects.
    selected: usize,
    /// From owners.
    below: Vec<usize>,
}

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
    pub(super) before: Option<Arc<Object>>,
    pub(super) after: Option<Arc<Object>>,
}

impl Joined {
    pub(super) fn new(join: Arc<Join>) -> Self {
        Self {
            join,
            selected: Slab::new(),
            selected_by_key: BTreeMap::new(),
            targets: Slab::new(),
            targets_by_key: HashTable::new(),
            hasher: RandomState::new(),
            changed: BTreeSet::new(),
            new: BTreeSet::new(),
            compared: BTreeSet::new(),
            touched: BTreeSet::new(),
            follows: Vec::new(),
        }
    }

    /// The number of objects, selected and related.
    pub(super) fn len(&self) -> usize {
        self.selected.len() + self.targets.len()
    }

    /// The state of a selected object that was last taken.
    pub(super) fn selected(&self, source: usize, key: &Key) -> Option<&Arc<Object>> {
        let id = self.selected_by_key.get(&(source, key.clone()))?;
        Some(&self.selected[*id].object)
    }

    /// Takes an object that is selected.
    pub(super) fn select(&mut self, source: usize, object: &Arc<Object>) {
        let name = (source, object.key().clone());
        if let Some(id) = self.selected_by_key.get(&name) {
            self.selected[*id].object = object.clone();
            self.changed.insert(*id);
            return;
        }
        let selected = Selected {
            source,
            object: object.clone(),
            edges: Box::default(),
            compared: Vec::new(),
            selectors: Box::default(),
        };
        let id = self.selected.insert(selected);
        self.selected_by_key.insert(name, id);
        self.changed.insert(id);
        self.new.insert(id);
        self.follow_around(source, &object.key().clone(), true);
    }

    /// Takes it that an object is not selected any longer.
    pub(super) fn unselect(&mut self, source: usize, key: &Key) {
        let Some(id) = self.selected_by_key.remove(&(source, key.clone())) else { return };
        let gone = self.selected.remove(id);
        self.changed.remove(&id);
        self.new.remove(&id);
        for (target, uid) in gone.edges {
            self.unlink(target, uid);
        }
        for target in gone.compared {
            self.targets[target].compared.retain(|other| *other != id);
            self.touched.insert(target);
        }
        self.follow_around(source, key, false);
        for (relation, namespace, _) in gone.selectors {
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
                self.follows.push(Follow { relation: at, part, begins });
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
        self.follows.push(Follow { relation, part, begins });
    }

    /// Notes that an object of a related informer changed.
    pub(super) fn changed(&mut self, relation: usize, key: &Key) {
        self.touched.extend(self.find_target(relation, key));
        if self.join.relations[relation].compares() {
            self.compared.insert((relation, key.clone()));
        }
    }

    /// Notes that anything of a related informer may have changed.
    pub(super) fn all_changed(&mut self, relation: usize) {
        let of_relation = self.targets.iter().filter(|(_, target)| target.relation == relation);
        self.touched.extend(of_relation.map(|(id, _)| id));
        if self.join.relations[relation].compares() {
            self.changed.extend(self.selected.iter().map(|(id, _)| id));
            self.new.extend(self.selected.iter().map(|(id, _)| id));
            let compared = self.targets.iter().filter(|(_, target)| target.relation == relation);
            self.compared.extend(compared.map(|(_, target)| (relation, target.key.clone())));
        }
    }

    /// The names of selected objects that are new, for a link by name of a relation.
    pub(super) fn new_names(&self, relation: usize, link: usize) -> BTreeSet<&str> {
        let link = &self.join.relations[relation].names[link];
        let new = self.new.iter().map(|id| &self.selected[*id]);
        let meant = new.filter(|selected| link.selected.contains(&selected.source));
        meant.map(|selected| selected.object.key().name()).collect()
    }

    /// Adds related objects that may name selected ones.
    pub(super) fn compare(&mut self, relation: usize, keys: impl IntoIterator<Item = Key>) {
        self.compared.extend(keys.into_iter().map(|key| (relation, key)));
    }

    /// What to follow from now on, and no longer.
    pub(super) fn take_follows(&mut self) -> Vec<Follow> {
        std::mem::take(&mut self.follows)
    }

    /// Gives back what a first state needed beyond what it left.
    pub(super) fn shrink(&mut self) {
        self.selected.shrink_to_fit();
        self.targets.shrink_to_fit();
    }

    /// Brings the edges up to the states of the related informers, and returns what the client has to be told.
    pub(super) fn settle(&mut self, states: &[StateAt]) -> Vec<RelatedUpdate> {
        for id in std::mem::take(&mut self.touched) {
            let target = &mut self.targets[id];
            target.object = states[target.relation].get(&target.key).cloned();
            self.touched.insert(id);
        }
        for (relation, key) in std::mem::take(&mut self.compared) {
            self.compare_related(relation, &key, states);
        }
        for id in std::mem::take(&mut self.changed) {
            self.link(id, states);
        }
        self.new.clear();
        let dirty = self.settle_owners(states);
        let mut told = Vec::new();
        for id in dirty {
            let is_shown = self.is_shown(id);
            let target = &mut self.targets[id];
            let after = target.object.clone().filter(|_| is_shown);
            let before = std::mem::replace(&mut target.shown, after.clone());
            let is_same = match (&before, &after) {
                (Some(before), Some(after)) => {
                    before.uid() == after.uid() && before.resource_version() == after.resource_version()
                }
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            let relation = target.relation;
            if target.is_unused() {
                let target = self.targets.remove(id);
                let hash = self.hasher.hash_one((relation, &target.key));
                if let Ok(entry) = self.targets_by_key.find_entry(hash, |at| *at as usize == id) {
                    entry.remove();
                }
                let part = FollowedPart::Object(target.key);
                self.follows.push(Follow { relation, part, begins: false });
            }
            if !is_same {
                told.push(RelatedUpdate { relation, before, after });
            }
        }
        told
    }

    /// Computes the edges of a selected object.
    fn link(&mut self, id: usize, states: &[StateAt]) {
        let join = self.join.clone();
        let (source, object) = (self.selected[id].source, self.selected[id].object.clone());
        let References { named, owners, selectors } = join.references(source, &object);
        let named = named.into_iter().map(|(relation, key)| (relation, key, None));
        let owners = owners.into_iter().map(|(relation, key, uid)| (relation, key, Some(uid)));
        let mut edges = Vec::new();
        for (relation, key, uid) in named.chain(owners) {
            let target = self.target(relation, &key, states);
            if !edges.contains(&(target, uid)) {
                edges.push((target, uid));
            }
        }
        // New ones first, so that what stays is never without an edge.
        for (target, uid) in &edges {
            self.link_to(*target, *uid);
        }
        for (target, uid) in std::mem::replace(&mut self.selected[id].edges, edges.into()) {
            self.unlink(target, uid);
        }
        for (relation, namespace, _) in &selectors {
            self.follow_namespace(*relation, namespace, true);
        }
        for (relation, namespace, _) in std::mem::replace(&mut self.selected[id].selectors, selectors.into())
        {
            self.follow_namespace(relation, &namespace, false);
        }
        let found = self.compared_with(id, states);
        self.set_compared(id, &found, states);
    }

    /// The related objects that name or select a selected one, or that it selects.
    fn compared_with(&self, id: usize, states: &[StateAt]) -> BTreeSet<(usize, Key)> {
        let selected = &self.selected[id];
        let (object, key) = (&selected.object, selected.object.key());
        let mut found = BTreeSet::new();
        for (at, relation) in self.join.relations.iter().enumerate() {
            if relation.selectors.iter().any(|(_, meant)| meant.contains(&selected.source)) {
                let namespaced = relation.informer.spec.resource.namespaced();
                let namespace = if namespaced { key.namespace() } else { "" };
                for related in states[at].in_namespace(namespace) {
                    if self.selects(at, states[at].history(), related, selected) {
                        found.insert((at, related.key().clone()));
                    }
                }
            }
        }
        for (at, namespace, terms) in &selected.selectors {
            let selecting =
                states[*at].in_namespace(namespace).into_iter().filter(|related| terms.matches(related));
            found.extend(selecting.map(|related| (*at, related.key().clone())));
        }
        // Names depend on the key alone: of a selected object that is not new they are known, and of a new one they are compared.
        for target in selected.compared.iter().map(|target| &self.targets[*target]) {
            if target
                .object
                .as_ref()
                .is_some_and(|related| self.names(target.relation, related, selected.source, object.key()))
            {
                found.insert((target.relation, target.key.clone()));
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
                && meant.contains(&selected.source)
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
        let mut ids: BTreeSet<usize> = BTreeSet::new();
        if let Some(related) = states[at].get(key) {
            for link in &relation.names {
                for name in relation.names(link, related) {
                    for source in &link.selected {
                        let namespaced = self.is_namespaced(*source);
                        let there = if namespaced { key.namespace() } else { "" };
                        ids.extend(self.selected_by_key.get(&(*source, Key::new(there, &name))));
                    }
                }
            }
            if relation.selects() {
                let near = self.selected_near(key.namespace());
                ids.extend(near.filter(|id| {
                    let selected = &self.selected[*id];
                    let mut own = selected.selectors.iter();
                    self.selects(at, states[at].history(), related, selected)
                        || own.any(|(to, namespace, terms)| {
                            let reaches = namespace.is_empty() || namespace == key.namespace();
                            *to == at && reaches && terms.matches(related)
                        })
                }));
            }
        }
        let target = self.find_target(at, key);
        let before: BTreeSet<usize> =
            target.into_iter().flat_map(|target| self.targets[target].compared.iter().copied()).collect();
        if ids == before {
            return;
        }
        let target = self.target(at, key, states);
        for gone in before.difference(&ids) {
            self.selected[*gone].compared.retain(|other| *other != target);
        }
        for new in ids.difference(&before) {
            push(&mut self.selected[*new].compared, target);
        }
        self.targets[target].compared = ids.into_iter().collect();
        self.touched.insert(target);
    }

    /// The selected objects of a namespace and of the cluster; all for an object of the cluster.
    fn selected_near<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = usize> + 'a {
        let near = move |key: &Key| {
            namespace.is_empty() || key.namespace().is_empty() || key.namespace() == namespace
        };
        self.selected_by_key.iter().filter(move |((_, key), _)| near(key)).map(|(_, id)| *id)
    }

    fn is_namespaced(&self, source: usize) -> bool {
        self.join.forward[source].namespaced
    }

    /// Sets the edges of a selected object by comparison.
    fn set_compared(&mut self, id: usize, found: &BTreeSet<(usize, Key)>, states: &[StateAt]) {
        let now: BTreeSet<usize> =
            found.iter().map(|(relation, key)| self.target(*relation, key, states)).collect();
        let before: BTreeSet<usize> = self.selected[id].compared.iter().copied().collect();
        for gone in before.difference(&now) {
            self.targets[*gone].compared.retain(|other| *other != id);
            self.touched.insert(*gone);
        }
        for new in now.difference(&before) {
            push(&mut self.targets[*new].compared, id);
            self.touched.insert(*new);
        }
        if now != before {
            self.selected[id].compared = now.into_iter().collect();
        }
    }

    /// Gives owners that are held edges to their own owners, and takes them from those that are not. Returns the related objects that
    /// may be shown in another way than before.
    fn settle_owners(&mut self, states: &[StateAt]) -> BTreeSet<usize> {
        let join = self.join.clone();
        let mut dirty = BTreeSet::new();
        while let Some(id) = self.touched.pop_first() {
            dirty.insert(id);
            let wanted = match &self.targets[id].object {
                Some(object) if self.is_owner(id, &mut BTreeSet::new()) => join.owners(object),
                Some(_) | None => Vec::new(),
            };
            let edges: BTreeSet<(usize, Uid)> = wanted
                .into_iter()
                .map(|(relation, key, uid)| (self.target(relation, &key, states), uid))
                .collect();
            let before: BTreeSet<(usize, Uid)> = self.targets[id].edges.iter().copied().collect();
            for (target, uid) in edges.difference(&before) {
                push(&mut self.owned(*target, *uid).below, id);
                self.touched.insert(*target);
            }
            for (target, uid) in before.difference(&edges) {
                self.owned(*target, *uid).below.retain(|other| *other != id);
                self.touched.insert(*target);
            }
            if edges != before {
                self.targets[id].edges = edges.into_iter().collect();
            }
        }
        dirty
    }

    /// Whether a related object is an owner of a selected one, or an owner of such an owner. Objects may own each other in a circle,
    /// so that owners alone prove nothing.
    fn is_owner(&self, id: usize, seen: &mut BTreeSet<usize>) -> bool {
        if !seen.insert(id) {
            return false;
        }
        let target = &self.targets[id];
        let Some(object) = &target.object else { return false };
        if target.owned.is_empty() {
            return false;
        }
        let uid = ContentHash::of(object.uid().as_bytes());
        let Some(owned) = target.owned.iter().find(|owned| owned.uid == uid) else { return false };
        owned.selected > 0 || owned.below.iter().any(|below| self.is_owner(*below, seen))
    }

    fn is_shown(&self, id: usize) -> bool {
        let target = &self.targets[id];
        target.named > 0 || !target.compared.is_empty() || self.is_owner(id, &mut BTreeSet::new())
    }

    /// A related object, taken from its informer's state if no edge led to it yet.
    fn target(&mut self, relation: usize, key: &Key, states: &[StateAt]) -> usize {
        if let Some(id) = self.find_target(relation, key) {
            return id;
        }
        let object = states[relation].get(key).cloned();
        // The object's own key is shared.
        let key = object.as_ref().map_or(key, |object| object.key()).clone();
        let id = self.targets.insert(EdgeEnd {
            relation,
            key: key.clone(),
            object,
            shown: None,
            named: 0,
            compared: Vec::new(),
            owned: Vec::new(),
            edges: Vec::new(),
        });
        let (targets, hasher) = (&self.targets, &self.hasher);
        let hash_of = |at: &u32| {
            let target = &targets[*at as usize];
            hasher.hash_one((target.relation, &target.key))
        };
        // A stream has at most a hundred thousand objects.
        let entry = u32::try_from(id).expect("the number of objects is bounded");
        self.targets_by_key.insert_unique(hasher.hash_one((relation, &key)), entry, hash_of);
        self.follows.push(Follow { relation, part: FollowedPart::Object(key), begins: true });
        self.touched.insert(id);
        id
    }

    fn find_target(&self, relation: usize, key: &Key) -> Option<usize> {
        let is_it = |at: &u32| {
            let target = &self.targets[*at as usize];
            target.relation == relation && target.key == *key
        };
        self.targets_by_key.find(self.hasher.hash_one((relation, key)), is_it).map(|at| *at as usize)
    }

    fn owned(&mut self, id: usize, uid: Uid) -> &mut Owned {
        let owned = &mut self.targets[id].owned;
        let at = owned.iter().position(|owned| owned.uid == uid).unwrap_or_else(|| {
            push(owned, Owned { uid, selected: 0, below: Vec::new() });
            owned.len() - 1
        });
        &mut owned[at]
    }

    fn link_to(&mut self, target: usize, uid: Option<Uid>) {
        match uid {
            None => self.targets[target].named += 1,
            Some(uid) => self.owned(target, uid).selected += 1,
        }
        self.touched.insert(target);
    }

    fn unlink(&mut self, target: usize, uid: Option<Uid>) {
        match uid {
            None => self.targets[target].named -= 1,
            Some(uid) => self.owned(target, uid).selected -= 1,
        }
        self.touched.insert(target);
    }
}

impl EdgeEnd {
    /// Whether no edge leads to it or from it, and the client does not have it.
    fn is_unused(&self) -> bool {
        let is_owned = self.owned.iter().any(|owned| owned.selected > 0 || !owned.below.is_empty());
        self.named == 0
            && self.compared.is_empty()
            && !is_owned
            && self.edges.is_empty()
            && self.shown.is_none()
    }
}

/// Appends to a list that mostly stays as short as it is.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() < 4 {
        list.reserve_exact(1);
    }
    list.push(item);
}
