//! The HTTP interfaces: turns requests into subscriptions and snapshots, and writes frames to sockets.
//!
//! In come connections; out go bytes. This room never sees upstream or reflect. A client's request can at most ask the hub for
//! an informer that does not run, make the columns of a custom resource be read once a minute ([`FetchDefinition`]), or be
//! passed through if the operator allows it ([`Forward`]); `app` provides both functions. Every error is a Kubernetes
//! `Status`, every limit has a metric, and a peer that takes no bytes is closed, so that its fault affects no other client.

mod acknowledged;
mod admin;
mod api_error;
mod body;
mod compressed;
mod connection;
mod content;
mod counts;
mod crowd;
mod dashboard;
mod graph;
mod guard;
mod host;
mod in_process;
mod index_target;
mod join;
mod kube;
mod list_body;
mod listener;
mod live_loop;
mod load;
mod lookup;
mod metrics;
mod multiplex;
mod negotiate;
mod pagination;
mod params;
mod passthrough;
mod peer;
mod pipe;
mod protocol;
mod queues;
mod resources;
mod snapshot;
mod state_stream;
mod stream;
mod target;
mod turns;
mod waiting;
mod watch;
mod websocket;

pub use admin::Admin;
pub use api_error::ApiError;
pub use in_process::InProcess;
pub use kube::FetchDefinition;
pub use listener::{Bound, serve, serve_admin};
pub use metrics::describe;
pub use passthrough::{Bounded, Forward, Forwarded, PassConfig, PassThrough, Passed};
pub use queues::{
    Ask, Declared, DeclaredBy, ElectionConfig, Given, QueueAccess, QueueConfig, QueueError, Queues, Workers,
};

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::routing::{any, get};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hub::Hub;
use crate::k8s::Links;
use compressed::CompressedLists;
use content::Contents;
use kube::Definitions;
use live_loop::LiveLoops;
use pagination::Pages;
use waiting::Waiting;

/// Limits and rules of the data listener.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest number of connections.
    pub connections_max: usize,
    /// Informers that one stream may join, and streams of one connection with many.
    pub streams_per_connection_max: usize,
    /// Largest size of all header lines of a request, in bytes.
    pub header_bytes_max: usize,
    /// Largest size of path and query of a request, in bytes.
    pub url_bytes_max: usize,
    /// Time from the beginning of a connection to the last header of its request.
    pub header_timeout: Duration,
    /// Time after which a peer that takes no byte is closed.
    pub write_stall_timeout: Duration,
    /// Size of the kernel's send buffer of a connection, in bytes.
    pub send_buffer_bytes: usize,
    /// Number of snapshots that are held for clients that read in pages.
    pub snapshot_pages_max: usize,
    /// Bytes of objects, changed or deleted since, that these snapshots keep in memory.
    pub snapshot_pages_bytes_max: usize,
    /// Time for which such a snapshot is held after its last use.
    pub snapshot_pages_ttl: Duration,
    /// Requests that wait for a change (`Prefer: wait`) at once.
    pub waiting_requests_max: usize,
    /// Time for connections to end at shutdown.
    pub drain_timeout: Duration,
    /// Bytes of objects that are written at once.
    pub batch_bytes_max: usize,
    /// Origins of web pages that may read, beside the server's own.
    pub allow_origins: Vec<String>,
    /// Allowed host names, beside addresses and names that an attacker cannot register; `*.` before one allows all names below
    /// it.
    pub allow_hosts: Vec<String>,
    /// How objects of one kind refer to objects of another.
    pub links: Links,
}

/// The requests to the API server that clients can cause directly.
pub struct Upstream {
    /// Pass-through of requests that the cache cannot answer; `None` if they are refused.
    pub pass: Option<PassThrough>,
    /// Reads definitions of custom resources, for the columns of tables.
    pub definition: FetchDefinition,
}

/// The state that all handlers share.
#[derive(Clone)]
pub(crate) struct Server(Arc<Inner>);

/// What a [`Server`] shares.
pub(crate) struct Inner {
    /// All informers.
    pub(crate) hub: Hub,
    /// The settings of the server.
    pub(crate) config: Config,
    /// Lists that clients read in pages.
    pub(crate) pages: Pages,
    /// Pass-through of requests that the cache cannot answer; `None` if they are refused.
    pub(crate) pass: Option<PassThrough>,
    /// Columns of custom resources.
    pub(crate) definitions: Definitions,
    /// Work queues.
    pub(crate) queues: Queues,
    /// The tasks of connections, and of streams that have taken over theirs.
    pub(crate) tasks: TaskTracker,
    /// Requests that wait for a change.
    waiting: Waiting,
    /// Ends streams and waiting requests.
    drain: CancellationToken,
    /// Content hashes of selections.
    contents: Contents,
    /// Compressed lists that clients share.
    compressed: Arc<CompressedLists>,
    /// The live loops.
    loops: Arc<LiveLoops>,
    /// What streams with related objects follow.
    joins: join::Joins,
}

impl std::ops::Deref for Server {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Server {
    /// A server that nobody is connected to yet.
    pub(crate) fn new(
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
        let loops = LiveLoops::new(*hub.config(), drain.clone(), tasks.clone());
        let waiting = Waiting::new(config.waiting_requests_max);
        let contents = Contents::default();
        let compressed = Arc::default();
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
            loops,
            joins: join::Joins::default(),
        }))
    }
}

/// The routes of the data listener.
fn router(server: Server, admin: Admin) -> Router {
    admin::probes(admin)
        .route("/", get(dashboard::index))
        .route("/static/{file}", get(dashboard::file))
        .route("/openapi.json", get(dashboard::openapi))
        .merge(v1())
        .route("/version", any(kube::answer))
        .route("/version/", any(kube::answer))
        .route("/api", any(kube::answer))
        .route("/api/{*path}", any(kube::answer))
        .route("/api/", any(kube::answer))
        .route("/apis", any(kube::answer))
        .route("/apis/", any(kube::answer))
        .route("/apis/{*path}", any(kube::answer))
        .route("/openapi/{*path}", any(kube::answer))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(tower_http::compression::CompressionLayer::new().compress_when(snapshot::CompressWhen))
        .with_state(server)
}

/// The routes of informerd's own interface.
fn v1() -> Router<Server> {
    Router::new()
        .route("/v1/resources", get(resources::resources))
        .route("/v1/graph/{*target}", get(graph::graph))
        .route("/v1/index/{*target}", get(lookup::index).post(lookup::lookup))
        .route("/v1/snapshot/{*target}", get(snapshot::snapshot))
        .route("/v1/watch/{*target}", get(watch::watch))
        .route("/v1/watch-graph/{*target}", get(graph::watch))
        .route("/v1/watch-index/{*target}", get(counts::watch))
        .route("/v1/world/{*target}", get(watch::world))
        .route("/v1/ws", get(multiplex::multiplex))
        .route("/v1/queues", any(queues::list))
        .route("/v1/queues/{*rest}", any(queues::answer))
}

async fn not_found(uri: axum::http::Uri) -> ApiError {
    ApiError::not_found(format!(
        "no such path {:?}; there are /v1/snapshot/RESOURCES, /v1/watch/RESOURCES, \
         /v1/world/RESOURCES, /v1/index/RESOURCE, /v1/watch-index/RESOURCE/PATH, \
         /v1/graph/RESOURCES, /v1/watch-graph/RESOURCES, \
         /v1/ws, /v1/queues, /v1/resources, /openapi.json and /",
        uri.path()
    ))
}

async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::method_not_allowed(&method)
}
