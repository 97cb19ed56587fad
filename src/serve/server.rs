//! The state that the handlers of all routes share.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ApiError;
use super::compressed::CompressedLists;
use super::config::Config;
use super::content::Contents;
use super::join::Joins;
use super::kube::{Definitions, FetchDefinition};
use super::live_loop::LiveLoops;
use super::pagination::Pages;
use super::params::Params;
use super::passthrough::PassThrough;
use super::queues::Queues;
use super::target::Target;
use super::turns::Turns;
use super::waiting::Waiting;
use crate::encode::StateRoom;
use crate::hub::Hub;

/// The requests to the API server that clients can cause directly.
pub struct Upstream {
    /// Pass-through of requests that the cache cannot answer; `None` if they are refused.
    pub pass: Option<PassThrough>,
    /// Reads definitions of custom resources, for the columns of tables.
    pub definition: FetchDefinition,
}

/// The state that all handlers share. Cheap to clone.
#[derive(Clone)]
pub(super) struct Server(Arc<Inner>);

/// What a [`Server`] shares.
pub(super) struct Inner {
    /// All informers.
    pub(super) hub: Hub,
    /// The settings of the server.
    pub(super) config: Config,
    /// Lists that clients read in pages.
    pub(super) pages: Pages,
    /// Pass-through of requests that the cache cannot answer; `None` if they are refused.
    pub(super) pass: Option<PassThrough>,
    /// Columns of custom resources.
    pub(super) definitions: Definitions,
    /// Work queues.
    pub(super) queues: Queues,
    /// The tasks of connections, and of streams that have taken over theirs.
    pub(super) tasks: TaskTracker,
    /// Requests that wait for a change.
    pub(super) waiting: Arc<Waiting>,
    /// Ends streams and waiting requests.
    pub(super) drain: CancellationToken,
    /// Content hashes of selections.
    pub(super) contents: Arc<Contents>,
    /// Compressed lists that clients share.
    pub(super) compressed: Arc<CompressedLists>,
    /// The turns in which requests look at objects, and streams write first states and catch-ups.
    pub(super) turns: Arc<Turns>,
    /// The live loops.
    pub(super) loops: Arc<LiveLoops>,
    /// What streams with related objects follow.
    pub(super) joins: Joins,
    /// The state room, for the states that streams put into their messages.
    pub(super) states: StateRoom,
}

impl std::ops::Deref for Server {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Server {
    /// A server that nobody is connected to yet.
    pub(super) fn new(
        hub: Hub,
        config: Config,
        upstream: Upstream,
        queues: Queues,
        drain: CancellationToken,
    ) -> Self {
        let Upstream { pass, definition } = upstream;
        let definitions = Definitions::new(definition);
        let pages = Pages::new(&config);
        let tasks = TaskTracker::new();
        let turns = Turns::new();
        let loops = LiveLoops::new(*hub.config(), drain.clone(), tasks.clone());
        let contents = Arc::new(Contents::new(hub.generations().clone(), turns.clone()));
        let waiting =
            Waiting::new(config.waiting_requests_max, contents.clone(), tasks.clone(), drain.clone());
        let compressed = Arc::default();
        let states = StateRoom::new(config.world_states_bytes_max);
        Self(Arc::new(Inner {
            hub,
            config,
            pages,
            pass,
            definitions,
            queues,
            tasks,
            waiting,
            drain,
            contents,
            compressed,
            turns,
            loops,
            joins: Joins::default(),
            states,
        }))
    }

    /// The target of a request: what follows the route in its path, and its filters. Waits until `deadline` for informers
    /// that do not run yet.
    pub(super) async fn target(
        &self,
        path: &str,
        params: &Params,
        deadline: Instant,
    ) -> Result<Target, ApiError> {
        Target::find(&self.hub, self.config.streams_per_connection_max, path, params, deadline).await
    }
}
