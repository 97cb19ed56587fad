//! Side room: a Kubernetes API server in this process, with a cluster behind it.
//!
//! In come writes from Rust or over HTTP, and orders for faults; out goes what a real API server answers, byte by byte
//! where clients depend on it. It is the cluster of `demo`, the API server of the tests, and the load of the benchmarks.
//! It shares no code with what it checks: it has its own selectors, its own window, its own JSON.
//!
//! It never listens beyond the loopback unless asked to, has no clock in the scenario, and no rule that a real server lacks.

mod api_server;
mod bulk;
mod cluster;
mod defaults;
mod discovery;
mod fault;
mod handler;
mod http;
mod kinds;
mod managed_fields;
mod object;
mod openapi;
mod params;
mod patch;
mod read;
mod route;
mod scenario;
mod selector;
mod shared;
mod state;
mod status;
mod table;
mod target;
mod watch;
mod write;
mod write_http;

pub use api_server::ApiServer;
pub use bulk::Spread;
pub use cluster::{Cluster, ClusterConfig};
pub use fault::{Cut, Failure, Fault, Faults, Gone, Requests, StreamingLists, Verb};
pub use handler::ApiHandler;
pub use object::rfc3339;
pub use scenario::Scenario;
pub use shared::ApiServerConfig;
pub use table::Counters;
