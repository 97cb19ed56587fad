//! The search of a graph.
//!
//! Up are the objects that one refers to: its owners, what it names, what it selects. Down are those that refer to it. Both
//! are searched from the selected objects alone, each in its own direction, so that a pod's node does not bring all other
//! pods of that node. What refers to an object is found by an index, which is built when it is needed first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::{Edge, Graph, NodeInfo, Truncated};
use super::reads::Reads;
use crate::cache::{Part, Snapshot};
use crate::hub::{Informer, InformerId, Selection};
use crate::k8s::{
    BuiltIn, FieldSelector, Key, LabelSelector, Link, LinkBy, Object, Owner, Term, Terms, Test,
    built_in_named, names_of, owner_uids, owners,
};
use crate::serve::list_body::Listing;
use crate::serve::target::Target;
use crate::serve::{ApiError, Server, metrics};

/// Largest number of nodes: more than a person can look at. One more is found by at most a few indexes.
const NODES_MAX: usize = 1000;
/// Largest number of edges.
const EDGES_MAX: usize = 5000;
/// Longest time for which links are followed. Where no index can be built, objects are scanned.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The direction in which links are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// To what an object refers to.
    Up,
    /// To what refers to it.
    Down,
}

struct Node {
    informer: Arc<Informer>,
    object: Object,
    selected: bool,
}

/// An object that is linked with a node, and the path of the reference.
type Neighbour = (Arc<Informer>, Object, String);

/// A search under way.
pub(super) struct Search<'a> {
    server: &'a Server,
    informers: Vec<Arc<Informer>>,
    nodes: Vec<Node>,
    places: HashMap<(InformerId, Key), usize>,
    edges: BTreeSet<Edge>,
    not_followed: BTreeSet<String>,
    not_held: BTreeSet<String>,
    truncated: Option<Truncated>,
    until: Instant,
    /// What it has read, if a stream wants to know.
    reads: Option<&'a mut Reads>,
}

impl<'a> Search<'a> {
    pub(super) fn new(server: &'a Server, reads: Option<&'a mut Reads>) -> Self {
        Self {
            server,
            informers: server.hub.informers(),
            nodes: Vec::new(),
            places: HashMap::new(),
            edges: BTreeSet::new(),
            not_followed: BTreeSet::new(),
            not_held: BTreeSet::new(),
            truncated: None,
            until: Instant::now() + TIME_MAX,
            reads,
        }
    }

    /// The nodes of the selected objects.
    pub(super) async fn select(&mut self, target: &Target) -> Result<Vec<usize>, ApiError> {
        let mut places = Vec::new();
        for informer in &target.informers {
            for object in self.find(informer, target.selection.clone(), |_| true).await? {
                let Some(place) = self.node(informer, object) else { return Ok(places) };
                self.nodes[place].selected = true;
                places.push(place);
            }
        }
        Ok(places)
    }

    /// Follows links in one direction.
    pub(super) async fn follow(
        &mut self,
        direction: Direction,
        from: &[usize],
        depth: usize,
    ) -> Result<(), ApiError> {
        let (mut seen, mut frontier): (HashSet<usize>, _) = (from.iter().copied().collect(), from.to_vec());
        for _ in 0..depth {
            for place in std::mem::take(&mut frontier) {
                if Instant::now() >= self.until {
                    self.truncate("graph_time_max", TIME_MAX.as_secs() as usize);
                }
                if self.truncated.is_some() {
                    return Ok(());
                }
                let neighbours = match direction {
                    Direction::Up => self.above(place).await?,
                    Direction::Down => self.below(place).await?,
                };
                for (informer, object, by) in neighbours {
                    let Some(other) = self.node(&informer, object) else { return Ok(()) };
                    let (from, to) = if direction == Direction::Up { (place, other) } else { (other, place) };
                    self.edges.insert(Edge { from, to, by });
                    if self.edges.len() >= EDGES_MAX {
                        self.truncate("graph_edges_max", EDGES_MAX);
                        return Ok(());
                    }
                    if seen.insert(other) {
                        frontier.push(other);
                    }
                }
            }
        }
        Ok(())
    }

    /// What a node refers to.
    async fn above(&mut self, place: usize) -> Result<Vec<Neighbour>, ApiError> {
        let (informer, object) = (self.nodes[place].informer.clone(), self.nodes[place].object.clone());
        let namespace = object.key().namespace();
        let links = self.held(self.server.config.links.from(&informer.spec.resource), &informer);
        let mut found = Vec::new();
        for (link, names) in links.iter().zip(names_of(&links, &object)) {
            let selector = link.selector(&object);
            if names.is_empty() && selector.is_none() {
                continue;
            }
            let targets = self.followed(&link.to, |informer| link.is_to(&informer.spec.resource), namespace);
            for target in targets {
                let there = if target.spec.resource.namespaced() { namespace } else { "" };
                let keys: Vec<_> = names.iter().map(|name| Key::new(there, name)).collect();
                keys.iter().for_each(|key| self.reads(&target, Part::Object(key)));
                let snapshot = target.reader.snapshot();
                for object in keys.iter().filter_map(|key| snapshot.get(key)) {
                    found.push((target.clone(), object.clone(), link.path()));
                }
                let Some(terms) = &selector else { continue };
                let selection = terms.iter().cloned().fold(within(there), Selection::and);
                for object in self.find(&target, selection, |_| true).await? {
                    found.push((target.clone(), object, link.path()));
                }
            }
        }
        for owner in owners(&object) {
            let is_of = |informer: &Informer| owner.is_of(&informer.spec.resource);
            for target in self.followed(&resource_of(&owner), is_of, namespace) {
                self.reads(&target, Part::Object(&key_of(&owner, &target, namespace)));
                let object = owned_by(&owner, &target, &target.reader.snapshot(), namespace);
                found.extend(object.map(|object| (target.clone(), object, owner_uids().to_string())));
            }
        }
        Ok(found)
    }

    /// What refers to a node.
    async fn below(&mut self, place: usize) -> Result<Vec<Neighbour>, ApiError> {
        let (informer, object) = (self.nodes[place].informer.clone(), self.nodes[place].object.clone());
        let (namespace, name) = (object.key().namespace(), object.key().name());
        let links: Vec<Link> = self.server.config.links.to(&informer.spec.resource).cloned().collect();
        let mut found = Vec::new();
        for link in links.iter().filter(|link| !link.is_from_any()) {
            let is_from = |informer: &Informer| link.is_from(&informer.spec.resource);
            for source in self.followed(&link.from, is_from, namespace) {
                if self.held([link].into_iter(), &source).is_empty() {
                    continue;
                }
                let objects = match &link.by {
                    LinkBy::Name(path) => {
                        let term = Term { path: path.clone(), test: Test::In(vec![name.to_owned()].into()) };
                        self.find(&source, within(namespace).and(term), |other| link.means(other)).await?
                    }
                    LinkBy::Selector(..) => {
                        let selects = |other: &Object| {
                            link.selector(other).is_some_and(|terms| Terms::new(terms).matches(&object))
                        };
                        self.find(&source, within(namespace), selects).await?
                    }
                };
                found.extend(objects.into_iter().map(|object| (source.clone(), object, link.path())));
            }
        }
        let owned = Term { path: owner_uids(), test: Test::In(vec![object.uid().into_owned()].into()) };
        let is_near = |informer: &&Arc<Informer>| {
            let reaches = namespace.is_empty() || informer.spec.scope.covers(namespace);
            // What is in a namespace owns nothing outside of it.
            reaches && (namespace.is_empty() || informer.spec.resource.namespaced())
        };
        let near: Vec<_> = self.informers.iter().filter(is_near).cloned().collect();
        for source in near {
            if !self.is_complete(&source) {
                self.not_followed.insert(source.spec.resource.canonical());
                continue;
            }
            if self.is_empty(&source) {
                continue;
            }
            let objects = self.find(&source, within(namespace).and(owned.clone()), |_| true).await?;
            let by = owner_uids().to_string();
            found.extend(objects.into_iter().map(|object| (source.clone(), object, by.clone())));
        }
        Ok(found)
    }

    /// The links that can be read in the objects of an informer. Notes the others. Everything is in its namespace, which says
    /// nothing here.
    fn held<'l>(&mut self, links: impl Iterator<Item = &'l Link>, informer: &Informer) -> Vec<Link> {
        let (held, others): (Vec<Link>, Vec<Link>) = links
            .filter(|link| !link.is_from_any())
            .cloned()
            .partition(|link| informer.spec.holds(&link.path()));
        let name = informer.spec.resource.canonical();
        self.not_held.extend(others.iter().map(|link| format!("{name} {}", link.path())));
        held
    }

    /// The complete informers of a resource that reach into a namespace. Notes the resource if there is none, or if one is not
    /// complete yet.
    fn followed(
        &mut self,
        resource: &str,
        is_meant: impl Fn(&Informer) -> bool,
        namespace: &str,
    ) -> Vec<Arc<Informer>> {
        let reaches = |informer: &Informer| namespace.is_empty() || informer.spec.scope.covers(namespace);
        let meant = self.informers.iter().filter(|informer| is_meant(informer) && reaches(informer));
        let meant: Vec<_> = meant.cloned().collect();
        let (complete, others): (Vec<_>, Vec<_>) =
            meant.into_iter().partition(|informer| self.is_complete(informer));
        if complete.is_empty() || !others.is_empty() {
            self.not_followed.insert(resource.to_owned());
        }
        complete
    }

    /// The selected objects of an informer for which something is true; no more than a graph has room for.
    async fn find(
        &mut self,
        informer: &Arc<Informer>,
        selection: Selection,
        is_meant: impl Fn(&Object) -> bool,
    ) -> Result<Vec<Object>, ApiError> {
        let (selection, informers) = (Arc::new(selection), std::slice::from_ref(informer));
        let turns = &self.server.turns;
        turns.index(informers, &selection).await;
        if let Some(reads) = &mut self.reads {
            reads.selection(informer, &selection);
        }
        let states = Listing::current(informers, &selection);
        let generations = self.server.hub.generations();
        let listing = Listing::new(informers, &selection, states, generations, turns.clone());
        let mut found = Vec::new();
        let complete = listing.visit_until(|object| {
            if is_meant(object) {
                found.push(object.clone());
            }
            found.len() <= NODES_MAX
        });
        match complete.await {
            true => Ok(found),
            false => Err(ApiError::unavailable("the objects could not be looked up in time", 1)),
        }
    }

    /// The node of an object; `None` if there is no room for it.
    fn node(&mut self, informer: &Arc<Informer>, object: Object) -> Option<usize> {
        let at = (informer.id(), object.key().clone());
        if let Some(place) = self.places.get(&at) {
            return Some(*place);
        }
        if self.nodes.len() >= NODES_MAX {
            self.truncate("graph_nodes_max", NODES_MAX);
            return None;
        }
        if let Some(reads) = &mut self.reads {
            reads.holds(informer);
        }
        let place = self.nodes.len();
        self.places.insert(at, place);
        self.nodes.push(Node { informer: informer.clone(), object, selected: false });
        Some(place)
    }

    /// Whether the cache of an informer is complete.
    fn is_complete(&mut self, informer: &Informer) -> bool {
        match &mut self.reads {
            Some(reads) => reads.is_complete(informer),
            None => informer.reader.mark().synced,
        }
    }

    fn is_empty(&mut self, informer: &Informer) -> bool {
        match &mut self.reads {
            Some(reads) => reads.is_empty(informer),
            None => informer.reader.summary().objects == 0,
        }
    }

    fn reads(&mut self, informer: &Informer, part: Part<'_>) {
        if let Some(reads) = &mut self.reads {
            reads.part(informer, part);
        }
    }

    fn truncate(&mut self, limit: &'static str, max: usize) {
        if self.truncated.is_none() {
            metrics::limit_hit(limit);
            self.truncated = Some(Truncated { limit, max });
        }
    }

    pub(super) fn into_graph(self) -> Graph {
        let nodes = self.nodes.into_iter().enumerate().map(|(id, Node { informer, object, selected })| {
            let (resource, key) = (&informer.spec.resource, object.key());
            NodeInfo {
                id,
                resource: resource.canonical(),
                api_version: resource.api_version(),
                kind: resource.kind().to_owned(),
                namespace: key.namespace().to_owned(),
                name: key.name().to_owned(),
                uid: object.uid().into_owned(),
                resource_version: object.resource_version().to_string(),
                selected,
            }
        });
        Graph {
            nodes: nodes.collect(),
            edges: self.edges,
            not_followed: self.not_followed,
            not_held: self.not_held,
            truncated: self.truncated,
        }
    }
}

/// The owner that an object of a namespace has, in a state of an informer.
pub(in crate::serve) fn owned_by(
    owner: &Owner,
    informer: &Informer,
    snapshot: &Snapshot,
    namespace: &str,
) -> Option<Object> {
    let object = snapshot.get(&key_of(owner, informer, namespace))?;
    // Not a later object of the same name.
    (object.uid() == owner.uid).then(|| object.clone())
}

/// The key that the owner of an object of a namespace has.
fn key_of(owner: &Owner, informer: &Informer, namespace: &str) -> Key {
    Key::new(if informer.spec.resource.namespaced() { namespace } else { "" }, &owner.name)
}

/// Everything in a namespace, or everything if that is empty.
fn within(namespace: &str) -> Selection {
    let namespaces = if namespace.is_empty() { Vec::new() } else { vec![namespace.to_owned()] };
    Selection::new(namespaces, None, &LabelSelector::default(), &FieldSelector::default())
}

/// The resource of an owner, or its kind where that is not a built-in one.
fn resource_of(owner: &Owner) -> String {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let built_in = built_in_named(&owner.kind.to_ascii_lowercase(), Some(group));
    built_in.map_or_else(|| format!("{} of {}", owner.kind, owner.api_version), BuiltIn::canonical)
}
