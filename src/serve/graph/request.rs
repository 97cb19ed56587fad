//! A request for a graph, as an answer or as a stream.

use tokio::time::Instant;

use super::answer::Graph;
use super::reads::Reads;
use super::search::{Direction, Search};
use crate::k8s::damages;
use crate::serve::index_target;
use crate::serve::params::Params;
use crate::serve::target::Target;
use crate::serve::{ApiError, Server};

/// The parameters of a graph, beside those that select objects.
pub(super) const PARAMS: &[&str] = &["depth", "direction"];
/// Links between a selected object and the farthest ones, unless the request says how many: a deployment, its replica set, their
/// pods, and what those name.
const DEPTH: usize = 3;
/// Most that a request may ask for. No built-in kinds are linked in a longer chain.
const DEPTH_MAX: usize = 10;

/// A request for a graph.
pub(super) struct Request {
    pub(super) target: Target,
    directions: &'static [Direction],
    depth: usize,
}

impl Request {
    /// Reads a request, and waits for its informers.
    pub(super) async fn read(server: &Server, path: &str, params: &Params) -> Result<Self, ApiError> {
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
    pub(super) async fn search(&self, server: &Server, reads: Option<&mut Reads>) -> Result<Graph, ApiError> {
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
