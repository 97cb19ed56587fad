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
mod config;
mod connection;
mod content;
mod counts;
mod crowd;
mod dashboard;
mod graph;
mod guard;
mod held_body;
mod host;
mod hub_error;
mod in_process;
mod index_target;
mod join;
mod kube;
mod list_body;
mod listener;
mod live_loop;
mod live_stream;
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
mod route;
mod server;
mod session;
mod snapshot;
mod socket;
mod state_stream;
mod stream;
mod target;
mod turns;
mod waiting;
mod watch;
mod watch_answer;
mod websocket;

pub use admin::Admin;
pub use api_error::ApiError;
pub use config::Config;
pub use in_process::InProcess;
pub use kube::FetchDefinition;
pub use listener::{Bound, serve, serve_admin};
pub use passthrough::{Bounded, Forward, Forwarded, PassConfig, PassThrough, Passed};
pub use queues::{
    Ask, Declared, DeclaredBy, ElectionConfig, Given, QueueAccess, QueueConfig, QueueError, Queues, Workers,
};
pub use server::Upstream;

use axum::Router;
use axum::http::Method;
use axum::routing::{any, get};

use self::server::Server;

/// Registers the metrics of this room with their help.
pub fn describe() {
    metrics::describe();
    queues::describe();
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
        .layer(tower_http::compression::CompressionLayer::new().compress_when(compressed::CompressWhen))
        .layer(axum::middleware::map_request(negotiate::without_refusals))
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
