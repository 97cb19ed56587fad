//! `GET /v1/graph/…`: the objects around others, along links and owner references. `GET /v1/watch-graph/…`: the same as a stream.

mod reads;
mod search;
mod stream;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::Instant;

use self::reads::Reads;
pub(super) use self::search::owned_by;
use self::search::{Direction, Search};
pub(super) use self::stream::watch;
use super::load::{EndsWithClient, Load};
use super::params::Params;
use super::target::{self, SELECTION, Target};
use super::{ApiError, Server, index_target};
use crate::k8s::damages;

const ROUTE: &str = "/v1/graph/";
const PARAMS: &[&str] = &["depth", "direction"];
/// Links between a selected object and the farthest ones, unless the request says how many: a deployment, its replica set, their
/// pods, and what those name.
const DEPTH: usize = 3;
/// Most that a request may ask for. No built-in kinds are linked in a longer chain.
const DEPTH_MAX: usize = 10;

/// The answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Graph {
    nodes: Vec<NodeInfo>,
    edges: BTreeSet<Edge>,
    /// Resources that would be searched if they were followed, or listed already.
    not_followed: BTreeSet<String>,
    /// Resources and paths of links that the caches do not hold.
    not_held: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Truncated>,
}

#[derive(Clone, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
struct Truncated {
    limit: &'static str,
    max: usize,
}

/// What is asked for.
struct Request {
    target: Target,
    directions: &'static [Direction],
    depth: usize,
}

impl Request {
    /// Reads a request, and waits for its informers.
    async fn read(server: &Server, path: &str, params: &Params) -> Result<Self, ApiError> {
        let depth = params.number("depth", 0, DEPTH_MAX)?.unwrap_or(DEPTH);
        let directions = match params.get("direction") {
            Some("owners") => &[Direction::Up][..],
            Some("dependents") => &[Direction::Down],
            None | Some("both") => &[Direction::Up, Direction::Down],
            Some(other) => {
                return Err(ApiError::invalid("direction", other, "expected owners, dependents or both"));
            }
        };
        let target = server.target(path, params, Instant::now() + index_target::WAIT).await?;
        index_target::ready(server, &target).await?;
        Ok(Self { target, directions, depth })
    }

    /// Searches the graph. Notes what it reads for a stream.
    async fn search(&self, server: &Server, reads: Option<&mut Reads>) -> Result<Graph, ApiError> {
        let damages_before = damages();
        let mut search = Search::new(server, reads);
        let selected = search.select(&self.target).await?;
        for direction in self.directions {
            search.follow(*direction, &selected, self.depth).await?;
        }
        if damages() != damages_before {
            return Err(ApiError::unavailable("an object could not be read: it is fetched again", 1));
        }
        Ok(search.into_graph())
    }
}

pub(super) async fn graph(
    State(server): State<Server>,
    Extension(load): Extension<Arc<Load>>,
    uri: Uri,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let params = Params::parse(query.as_deref(), &[SELECTION, PARAMS])?;
    let request = Request::read(&server, target::path_after(ROUTE, &uri), &params).await?;
    let _ends = EndsWithClient::begin(&load);
    let graph = request.search(&server, None).await?;
    if request.target.single && graph.nodes.is_empty() {
        let name = request.target.selection.name.as_deref().unwrap_or_default();
        return Err(ApiError::no_object(&request.target.informers[0].spec.resource, name));
    }
    let headers = [(header::CACHE_CONTROL, "no-cache")];
    Ok((headers, axum::Json(graph)).into_response())
}
