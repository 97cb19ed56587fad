//! Dependents: a change of an object queues the keys of objects that are linked with it.
//!
//! A link is followed by an index where objects of the other resource name the changed one, and by the changed object's own
//! content where it names them. Its content before the change counts, too: the object that lost a reference has to be looked at.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::workers::{Changed, Workers};
use crate::cache::{IndexTerm, UsedIndex};
use crate::hub::{Informer, InformerId};
use crate::k8s::{
    IndexPath, Key, Link, LinkBy, Links, Object, Resource, Terms, names_at, owner_uids, owners, read_labels,
};
use crate::queue::{Enqueue, EnqueueBy};

/// Which keys of one resource the changes of another lead to.
pub(super) struct Dependents {
    /// The place of the other resource in the queue's declaration.
    target: usize,
    enqueue: Enqueue,
    links: Links,
    /// Known once both resources are.
    ways: Option<Vec<Way>>,
    /// The objects of the changing resource, as they were when they were looked at last.
    remembered: HashMap<Key, Remembered>,
    /// Indexes of the other resource that are in use here, so that they stay.
    held: HashMap<(InformerId, IndexPath), UsedIndex>,
}

/// What of an object's content leads to others.
///
/// Not the others themselves: they may begin to select it, or to be selected by it, without a change of it.
#[derive(Default)]
struct Remembered {
    /// Its uid, where others may have it as an owner.
    uid: Box<str>,
    /// The keys that it names.
    named: BTreeSet<Key>,
    /// Its labels in JSON, where others may select it.
    labels: Box<str>,
    /// Its selectors, where it may select others.
    selectors: Vec<Terms>,
}

/// How to come from a changed object to others.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// They name it at a path. If it is a link of the table, they may name something of another kind there.
    Naming { path: IndexPath, link: Option<Link> },
    /// They select it.
    Selecting(Link),
    /// They have its uid among their owners.
    Owned,
    /// It names them.
    Named(Link),
    /// It selects them.
    Selected(Link),
    /// They are its owners.
    Owner,
}

/// Objects that are looked at in one turn where there is no index.
const SCANNED_AT_ONCE: usize = 1024;

/// How a change of an object of one resource leads to objects of another.
///
/// # Errors
/// A sentence, if there is no link between them.
pub(super) fn ways(
    own: &Resource,
    target: &Resource,
    enqueue: &Enqueue,
    links: &Links,
) -> Result<Vec<Way>, String> {
    if let Some(path) = &enqueue.path {
        let path = IndexPath::Field(crate::k8s::FieldPath::new(path.clone()));
        return Ok(vec![Way::Naming { path, link: None }]);
    }
    if enqueue.by == Some(EnqueueBy::Owner) {
        return Ok(vec![Way::Owned, Way::Owner]);
    }
    let to_own = links.from(target).filter(|link| link.is_to(own)).map(|link| match &link.by {
        LinkBy::Name(path) => Way::Naming { path: path.clone(), link: Some(link.clone()) },
        LinkBy::Selector(..) => Way::Selecting(link.clone()),
    });
    let from_own = links.from(own).filter(|link| link.is_to(target)).map(|link| match &link.by {
        LinkBy::Name(_) => Way::Named(link.clone()),
        LinkBy::Selector(..) => Way::Selected(link.clone()),
    });
    let ways: Vec<_> = to_own.chain(from_own).collect();
    if ways.is_empty() {
        return Err(format!(
            "there is no built-in link between {own} and {target} (`informerd links` prints them), and none of the \
             configuration; give a path at which {target} name {own}, or \"by\": \"owner\""
        ));
    }
    Ok(ways)
}

impl Dependents {
    pub(super) fn new(target: usize, enqueue: Enqueue, links: Links) -> Self {
        Self { target, enqueue, links, ways: None, remembered: HashMap::new(), held: HashMap::new() }
    }

    /// The place of the resource whose keys are added.
    pub(super) fn target(&self) -> usize {
        self.target
    }

    /// The keys to add for changed objects of the resource at `own`. Waits until the target is found.
    ///
    /// # Errors
    /// A sentence, if there is no link between the resources.
    pub(super) async fn of(
        &mut self,
        queue: &Workers,
        own: usize,
        changed: &VecDeque<Changed>,
    ) -> Result<VecDeque<Changed>, String> {
        let mut keys = VecDeque::new();
        // Not without the target: what the objects name now has to be known when they name something else.
        let (own_kind, kind) = (queue.kind(own).await, queue.kind(self.target).await);
        if self.ways.is_none() {
            self.ways = Some(ways(&own_kind, &kind, &self.enqueue, &self.links)?);
        }
        let informers = queue.objects(self.target).informers().to_vec();
        self.index(&informers).await;
        for (count, one) in changed.iter().enumerate() {
            if count % SCANNED_AT_ONCE == SCANNED_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            for key in self.linked(one, &kind, &informers).await {
                // What does not exist, or is not selected, has a change of its own that queues it.
                if queue.objects(self.target).has(&key, Instant::now()) {
                    keys.push_back(Changed { priority: one.priority, ..Changed::gone(key) });
                }
            }
        }
        Ok(keys)
    }

    /// The keys of all objects that are linked with a changed one, or were before the change.
    async fn linked(
        &mut self,
        changed: &Changed,
        kind: &Resource,
        informers: &[Arc<Informer>],
    ) -> BTreeSet<Key> {
        let namespace = changed.key.namespace();
        let there = if kind.namespaced() { namespace } else { "" };
        let before = self.remembered.remove(&changed.key);
        let now = changed.object.as_ref().map(|object| self.remember(object, kind, there));
        let mut keys = BTreeSet::new();
        let states = || before.iter().chain(&now);
        keys.extend(states().flat_map(|state| state.named.iter().cloned()));
        for way in self.ways.iter().flatten() {
            match way {
                Way::Naming { path, link } => {
                    let means = |object: &Object| link.as_ref().is_none_or(|link| link.means(object));
                    let name = changed.key.name();
                    keys.extend(with_value(informers, path, name, namespace, means).await);
                }
                Way::Owned => {
                    let uids = states().map(|state| &*state.uid).chain([&*changed.uid]);
                    for uid in uids.filter(|uid| !uid.is_empty()).collect::<BTreeSet<_>>() {
                        keys.extend(with_value(informers, &owner_uids(), uid, namespace, |_| true).await);
                    }
                }
                Way::Selecting(link) => {
                    let labels = states().map(|state| &*state.labels).collect::<BTreeSet<_>>();
                    let labels: Vec<_> = labels.into_iter().map(read_labels).collect();
                    let selects = |other: &Object| {
                        let terms = link.selector(other).map(Terms::new);
                        terms.is_some_and(|terms| labels.iter().any(|labels| terms.match_labels(labels)))
                    };
                    keys.extend(selected(informers, namespace, selects).await);
                }
                Way::Selected(_) => {
                    let selectors: Vec<_> = states().flat_map(|state| &state.selectors).collect();
                    if !selectors.is_empty() {
                        let is_selected = |other: &Object| selectors.iter().any(|terms| terms.matches(other));
                        keys.extend(selected(informers, there, is_selected).await);
                    }
                }
                Way::Named(_) | Way::Owner => {}
            }
        }
        self.remembered.extend(now.map(|now| (changed.key.clone(), now)));
        keys
    }

    /// What of an object leads to objects of a kind in a namespace.
    fn remember(&self, object: &Object, kind: &Resource, namespace: &str) -> Remembered {
        let mut state = Remembered::default();
        for way in self.ways.iter().flatten() {
            match way {
                Way::Naming { .. } => {}
                Way::Owned => state.uid = object.uid().into(),
                Way::Selecting(_) => state.labels = object.labels_json().into(),
                Way::Selected(link) => state.selectors.extend(link.selector(object).map(Terms::new)),
                Way::Named(link) => {
                    state.named.extend(link.names(object).iter().map(|name| Key::new(namespace, name)));
                }
                Way::Owner => {
                    let owners = owners(object).into_iter().filter(|owner| owner.is_of(kind));
                    state.named.extend(owners.map(|owner| Key::new(namespace, &owner.name)));
                }
            }
        }
        state
    }

    /// Builds the indexes that are needed, in turns, and keeps them.
    async fn index(&mut self, informers: &[Arc<Informer>]) {
        let is_followed = |id: &InformerId| informers.iter().any(|informer| informer.id() == *id);
        self.held.retain(|(id, _), _| is_followed(id));
        let paths = self.ways.iter().flatten().filter_map(|way| match way {
            Way::Naming { path, .. } => Some(path.clone()),
            Way::Owned => Some(owner_uids()),
            Way::Named(_) | Way::Owner | Way::Selecting(_) | Way::Selected(_) => None,
        });
        for path in paths {
            for informer in informers {
                let at = (informer.id(), path.clone());
                if self.held.contains_key(&at) {
                    continue;
                }
                let term = IndexTerm { path: path.clone(), values: Vec::new().into() };
                let _building = informer.building().lock().await;
                if informer.reader.use_index(&term).is_none()
                    && let Ok(mut builder) = informer.reader.build_index(&path, Instant::now())
                {
                    while !builder.turn() {
                        tokio::task::yield_now().await;
                    }
                }
                if let Some(used) = informer.reader.use_index(&term) {
                    self.held.insert(at, used);
                }
            }
        }
    }
}

/// The keys of the objects that have a value at a path: of one namespace, or of all if it is empty.
async fn with_value(
    informers: &[Arc<Informer>],
    path: &IndexPath,
    value: &str,
    namespace: &str,
    means: impl Fn(&Object) -> bool,
) -> Vec<Key> {
    let is_near = |key: &Key| namespace.is_empty() || key.namespace() == namespace;
    let mut keys = Vec::new();
    for informer in informers {
        let term = IndexTerm { path: path.clone(), values: vec![value.to_owned()].into() };
        if let Some(index) = informer.reader.use_index(&term) {
            let (snapshot, found) = index.snapshot();
            let near: Box<dyn Iterator<Item = &Key> + Send> = match namespace.is_empty() {
                true => Box::new(found.iter()),
                false => Box::new(found.namespace_after(namespace, None)),
            };
            for (count, key) in near.enumerate() {
                if count % SCANNED_AT_ONCE == SCANNED_AT_ONCE - 1 {
                    tokio::task::yield_now().await;
                }
                if snapshot.get(key).is_some_and(&means) {
                    keys.push(key.clone());
                }
            }
            continue;
        }
        // All indexes are in use by others.
        let snapshot = informer.reader.snapshot();
        for (count, object) in snapshot.after(None).enumerate() {
            if count % SCANNED_AT_ONCE == SCANNED_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            if is_near(object.key())
                && names_at(path, object).iter().any(|name| name == value)
                && means(object)
            {
                keys.push(object.key().clone());
            }
        }
    }
    keys
}

/// The keys of the objects of a namespace, or of all if it is empty, for which something is true. Looks at each, in turns.
async fn selected(
    informers: &[Arc<Informer>],
    namespace: &str,
    is_selected: impl Fn(&Object) -> bool,
) -> Vec<Key> {
    let mut keys = Vec::new();
    for informer in
        informers.iter().filter(|informer| informer.spec.scope.covers(namespace) || namespace.is_empty())
    {
        let snapshot = informer.reader.snapshot();
        let mut last: Option<Key> = None;
        loop {
            let mut looked_at = 0;
            let mut look = |object: &Object| {
                looked_at += 1;
                if is_selected(object) {
                    keys.push(object.key().clone());
                }
                object.key().clone()
            };
            last = match namespace {
                "" => snapshot.after(last.as_ref()).take(SCANNED_AT_ONCE).map(&mut look).last(),
                _ => {
                    let objects = snapshot.namespace_after(namespace, last.as_ref());
                    objects.take(SCANNED_AT_ONCE).map(&mut look).last()
                }
            };
            if looked_at < SCANNED_AT_ONCE {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    keys
}
