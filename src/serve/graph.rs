//! `GET /v1/graph/…`: the objects around others, along links and owner references.
//!
//! Up are the objects that one refers to: its owners, what it names, what it selects. Down are those that refer to it. Both
//! are searched from the selected objects alone, each in its own direction, so that a pod's node does not bring all other
//! pods of that node. What refers to an object is found by an index, which is built when it is needed first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::Instant;

use super::list_body::Listing;
use super::load::{EndsWithClient, Load};
use super::params::Params;
use super::target::{self, FILTERS, Target};
use super::{ApiError, Server, index_target, metrics};
use crate::cache::Snapshot;
use crate::hub::{Informer, InformerId, Selection};
use crate::k8s::{
    BuiltIn, FieldSelector, Key, LabelSelector, Link, LinkBy, Object, Owner, Term, Terms, Test,
    built_in_named, damages, names_of, owner_uids, owners,
};

const ROUTE: &str = "/v1/graph/";
const PARAMS: [&str; 6] = [FILTERS[0], FILTERS[1], FILTERS[2], FILTERS[3], "depth", "direction"];
/// Links between a selected object and the farthest ones, unless the request says how many: a deployment, its replica set, their
/// pods, and what those name.
const DEPTH: usize = 3;
/// Most that a request may ask for. No built-in kinds are linked in a longer chain.
const DEPTH_MAX: usize = 10;
/// Largest number of nodes: more than a person can look at. One more is found by at most a few indexes.
const NODES_MAX: usize = 1000;
/// Largest number of edges.
const EDGES_MAX: usize = 5000;
/// Longest time for which links are followed. Where no index can be built, objects are scanned.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Graph {
    nodes: Vec<NodeInfo>,
    edges: Vec<Edge>,
    /// Resources that would be searched if they were followed, or listed already.
    not_followed: BTreeSet<String>,
    /// Resources and paths of links that the caches do not hold.
    not_held: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Truncated>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    id: usize,
    resource: String,
    api_version: String,
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    /// Whether the request selects it.
    selected: bool,
}

/// An object that refers to another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Edge {
    from: usize,
    to: usize,
    /// The path in the first one.
    by: String,
}

/// The limit that ended the search.
#[derive(Clone, Copy, Serialize)]
struct Truncated {
    limit: &'static str,
    max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// To what an object refers to.
    Up,
    /// To what refers to it.
    Down,
}

struct Node {
    informer: Arc<Informer>,
    object: Arc<Object>,
    selected: bool,
}

/// An object that is linked with a node, and the path of the reference.
type Neighbour = (Arc<Informer>, Arc<Object>, String);

/// A search under way.
struct Search<'a> {
    server: &'a Server,
    informers: Vec<Arc<Informer>>,
    nodes: Vec<Node>,
    places: HashMap<(InformerId, Key), usize>,
    edges: BTreeSet<Edge>,
    not_followed: BTreeSet<String>,
    not_held: BTreeSet<String>,
    truncated: Option<Truncated>,
    until: Instant,
}

pub(super) async fn graph(
    State(server): State<Server>,
    Extension(load): Extension<Arc<Load>>,
    uri: Uri,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let depth = params.number("depth", 0, DEPTH_MAX)?.unwrap_or(DEPTH);
    let directions = match params.get("direction") {
        Some("owners") => &[Direction::Up][..],
        Some("dependents") => &[Direction::Down],
        None | Some("both") => &[Direction::Up, Direction::Down],
        Some(other) => {
            return Err(ApiError::invalid("direction", other, "expected owners, dependents or both"));
        }
    };
    let path = target::path_after(ROUTE, &uri);
    let target = Target::parse(&server, path, &params, Instant::now() + index_target::WAIT).await?;
    server.loops.turns.admit()?;
    index_target::ready(&server, &target).await?;
    let _ends = EndsWithClient::begin(&load);
    let damages_before = damages();
    let mut search = Search::new(&server);
    let selected = search.select(&target).await?;
    for direction in directions {
        search.follow(*direction, &selected, depth).await?;
    }
    if damages() != damages_before {
        return Err(ApiError::unavailable("an object could not be read: it is fetched again", 1));
    }
    let headers = [(header::CACHE_CONTROL, "no-cache")];
    Ok((headers, axum::Json(search.into_graph())).into_response())
}

impl<'a> Search<'a> {
    fn new(server: &'a Server) -> Self {
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
        }
    }

    /// The nodes of the selected objects.
    async fn select(&mut self, target: &Target) -> Result<Vec<usize>, ApiError> {
        let mut places = Vec::new();
        for informer in &target.informers {
            for object in self.find(informer, target.selection.clone(), |_| true).await? {
                let Some(place) = self.node(informer, object) else { return Ok(places) };
                self.nodes[place].selected = true;
                places.push(place);
            }
        }
        if target.single && places.is_empty() {
            let name = target.selection.name.as_deref().unwrap_or_default();
            return Err(ApiError::no_object(&target.informers[0].spec.resource, name));
        }
        Ok(places)
    }

    /// Follows links in one direction.
    async fn follow(&mut self, direction: Direction, from: &[usize], depth: usize) -> Result<(), ApiError> {
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
                let snapshot = target.reader.snapshot();
                for object in names.iter().filter_map(|name| snapshot.get(&Key::new(there, name))) {
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
                        let term = Term { path: path.clone(), test: Test::In(vec![name.to_owned()]) };
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
        let owned = Term { path: owner_uids(), test: Test::In(vec![object.uid().to_owned()]) };
        let is_near = |informer: &&Arc<Informer>| {
            let reaches = namespace.is_empty() || informer.spec.scope.covers(namespace);
            // What is in a namespace owns nothing outside of it.
            reaches && (namespace.is_empty() || informer.spec.resource.namespaced())
        };
        let near: Vec<_> = self.informers.iter().filter(is_near).cloned().collect();
        for source in near {
            if !source.reader.mark().synced {
                self.not_followed.insert(source.spec.resource.canonical());
                continue;
            }
            if source.reader.summary().objects == 0 {
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
        let (complete, others): (Vec<_>, Vec<_>) =
            meant.cloned().partition(|informer| informer.reader.mark().synced);
        if complete.is_empty() || !others.is_empty() {
            self.not_followed.insert(resource.to_owned());
        }
        complete
    }

    /// The selected objects of an informer for which something is true; no more than a graph has room for.
    async fn find(
        &self,
        informer: &Arc<Informer>,
        selection: Selection,
        is_meant: impl Fn(&Object) -> bool,
    ) -> Result<Vec<Arc<Object>>, ApiError> {
        let (selection, informers) = (Arc::new(selection), std::slice::from_ref(informer));
        let turns = &self.server.loops.turns;
        turns.index(informers, &selection).await;
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
    fn node(&mut self, informer: &Arc<Informer>, object: Arc<Object>) -> Option<usize> {
        let at = (informer.id(), object.key().clone());
        if let Some(place) = self.places.get(&at) {
            return Some(*place);
        }
        if self.nodes.len() >= NODES_MAX {
            self.truncate("graph_nodes_max", NODES_MAX);
            return None;
        }
        let place = self.nodes.len();
        self.places.insert(at, place);
        self.nodes.push(Node { informer: informer.clone(), object, selected: false });
        Some(place)
    }

    fn truncate(&mut self, limit: &'static str, max: usize) {
        if self.truncated.is_none() {
            metrics::limit_hit(limit);
            self.truncated = Some(Truncated { limit, max });
        }
    }

    fn into_graph(self) -> Graph {
        let nodes = self.nodes.into_iter().enumerate().map(|(id, Node { informer, object, selected })| {
            let (resource, key) = (&informer.spec.resource, object.key());
            NodeInfo {
                id,
                resource: resource.canonical(),
                api_version: resource.api_version(),
                kind: resource.kind().to_owned(),
                namespace: key.namespace().to_owned(),
                name: key.name().to_owned(),
                uid: object.uid().to_owned(),
                resource_version: object.resource_version().to_string(),
                selected,
            }
        });
        Graph {
            nodes: nodes.collect(),
            edges: self.edges.into_iter().collect(),
            not_followed: self.not_followed,
            not_held: self.not_held,
            truncated: self.truncated,
        }
    }
}

/// The owner that an object of a namespace has, in a state of an informer.
pub(super) fn owned_by(
    owner: &Owner,
    informer: &Informer,
    snapshot: &Snapshot,
    namespace: &str,
) -> Option<Arc<Object>> {
    let there = if informer.spec.resource.namespaced() { namespace } else { "" };
    let object = snapshot.get(&Key::new(there, &owner.name))?;
    // Not a later object of the same name.
    (object.uid() == owner.uid).then(|| object.clone())
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
