//! `GET /v1/watch-graph/…`: a graph, and what of it comes and goes.
//!
//! The graph is searched again when something changes that the last search has read, so changes elsewhere cost nothing. The
//! differences are told.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, RawQuery, Request, State};
use axum::response::Response;
use futures_util::future::{BoxFuture, FutureExt as _};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::answer::{Edge, Graph, NodeInfo, Truncated};
use super::reads::Reads;
use super::request::{self, PARAMS};
use crate::serve::load::{EndsWithClient, Load};
use crate::serve::params::Params;
use crate::serve::state_stream::{self, Asked, Message, Over, WatchedState};
use crate::serve::target::{self, SELECTION};
use crate::serve::{ApiError, Server, hub_error};

const ROUTE: &str = "/v1/watch-graph/";
/// A search takes at most one part in so many of the time: one that scans for seconds must not scan all the time.
const SHARE: u32 = 10;
/// Time until a search that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What has changed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Patch<'a> {
    /// Nodes that are new or have changed.
    nodes: Vec<&'a NodeInfo>,
    deleted_nodes: Vec<usize>,
    edges: Vec<&'a Edge>,
    deleted_edges: Vec<&'a Edge>,
    not_followed: &'a BTreeSet<String>,
    not_held: &'a BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Truncated>,
}

/// The resource, namespace, name and uid of a node.
type Identity = [String; 4];

/// The graph that a stream tells.
struct Following {
    server: Server,
    request: request::Request,
    /// What the last search has read.
    reads: Reads,
    wake: Arc<Notify>,
    /// The next informer that comes.
    arrival: BoxFuture<'static, ()>,
    /// How long the last search took.
    took: Duration,
    failed: bool,
    told: ToldGraph,
}

/// What the client holds. A node keeps its number while it exists.
#[derive(Default)]
struct ToldGraph {
    numbers: HashMap<Identity, usize>,
    next: usize,
    /// `None` before the first message.
    graph: Option<Graph>,
}

pub(in crate::serve) async fn watch(
    State(server): State<Server>,
    Extension(load): Extension<Arc<Load>>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let params = Params::parse(query.as_deref(), &[SELECTION, PARAMS, state_stream::PARAMS])?;
    let asked = Asked::read(&request, &params)?;
    let request = request::Request::read(&server, target::path_after(ROUTE, request.uri()), &params).await?;
    if asked.is_head {
        return Ok(asked.head());
    }
    let permit = server.hub.permit(request.target.informers.clone());
    let permit = permit.map_err(|error| hub_error::not_subscribed(&error))?;
    let _ends = EndsWithClient::begin(&load);
    let (wake, began) = (Arc::new(Notify::new()), Instant::now());
    let arrival = server.hub.next_arrival().boxed();
    let mut reads = Reads::new(wake.clone());
    let graph = request.search(&server, Some(&mut reads)).await?;
    let (took, failed) = (began.elapsed(), false);
    let mut following = Following {
        server: server.clone(),
        request,
        reads,
        wake,
        arrival,
        took,
        failed,
        told: ToldGraph::default(),
    };
    let first = following.told.tell(graph);
    Ok(asked.answer(server, permit, following, first))
}

impl WatchedState for Following {
    async fn changed(&mut self) {
        if self.failed {
            return;
        }
        // Biased: a wake-up that is left would cause one more search.
        tokio::select! {
            biased;
            () = self.wake.notified() => {}
            () = &mut self.arrival => {}
            () = self.reads.completed() => {}
        }
    }

    async fn step(&mut self) -> Result<Option<Message>, Over> {
        if self.request.target.informers.iter().any(|informer| informer.is_over()) {
            return Err(Over);
        }
        let began = Instant::now();
        self.arrival = self.server.hub.next_arrival().boxed();
        let mut reads = Reads::new(self.wake.clone());
        let searched = self.request.search(&self.server, Some(&mut reads)).await;
        (self.took, self.failed) = (began.elapsed(), searched.is_err());
        let Ok(graph) = searched else { return Ok(None) };
        self.reads = reads;
        Ok(self.told.tell(graph))
    }

    fn pause(&self) -> Duration {
        (self.took * SHARE).max(if self.failed { RETRY } else { Duration::ZERO })
    }
}

impl ToldGraph {
    /// The message that leads to this graph; `None` if it is the same.
    fn tell(&mut self, mut graph: Graph) -> Option<Message> {
        self.number(&mut graph);
        let Some(before) = self.graph.replace(graph) else {
            return message("GRAPH", &self.graph);
        };
        let now = self.graph.as_ref()?;
        let nodes = |graph: &'_ Graph| -> HashMap<usize, NodeInfo> {
            graph.nodes.iter().map(|node| (node.id, node.clone())).collect()
        };
        let (held, there) = (nodes(&before), nodes(now));
        let patch = Patch {
            nodes: now.nodes.iter().filter(|node| held.get(&node.id) != Some(node)).collect(),
            deleted_nodes: before
                .nodes
                .iter()
                .map(|node| node.id)
                .filter(|id| !there.contains_key(id))
                .collect(),
            edges: now.edges.difference(&before.edges).collect(),
            deleted_edges: before.edges.difference(&now.edges).collect(),
            not_followed: &now.not_followed,
            not_held: &now.not_held,
            truncated: now.truncated,
        };
        let same = patch.nodes.is_empty()
            && patch.deleted_nodes.is_empty()
            && patch.edges.is_empty()
            && patch.deleted_edges.is_empty()
            && now.not_followed == before.not_followed
            && now.not_held == before.not_held
            && now.truncated == before.truncated;
        if same { None } else { message("PATCHED", &patch) }
    }

    /// Gives each node its number: that which it has, or the next one.
    fn number(&mut self, graph: &mut Graph) {
        let mut numbers = HashMap::new();
        let mut places = HashMap::new();
        for node in &mut graph.nodes {
            let identity =
                [&node.resource, &node.namespace, &node.name, &node.uid].map(|part| part.to_owned());
            let number = self.numbers.get(&identity).copied().unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            });
            places.insert(node.id, number);
            node.id = number;
            numbers.insert(identity, number);
        }
        let renumbered = |Edge { from, to, by }| Edge { from: places[&from], to: places[&to], by };
        graph.edges = std::mem::take(&mut graph.edges).into_iter().map(renumbered).collect();
        self.numbers = numbers;
    }
}

fn message(kind: &'static str, object: &impl Serialize) -> Option<Message> {
    serde_json::to_value(object).ok().map(|object| Message { kind, object })
}
