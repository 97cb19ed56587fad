//! Shared by the tests: informerd in the process, clients of other projects, and a client that folds what it
//! receives.

pub(crate) mod browser;
pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod envtest;
pub(crate) mod gate;
pub(crate) mod http2;
pub(crate) mod port;
pub(crate) mod proxy;
pub(crate) mod recorder;
pub(crate) mod relay;
pub(crate) mod server;

use std::time::Duration;

use client::Transport;
use serde_json::{Value, json};

/// All transports.
pub(crate) const TRANSPORTS: [Transport; 3] = [Transport::Sse, Transport::Ndjson, Transport::WebSocket];

/// Time limit of every wait, far beyond the needs of a busy machine: only a fault reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds; panics with `what` at the time limit.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A command that runs informerd without the caller's INFORMERD_ variables. Those for tests are removed, too, as
/// informerd refuses variables of no setting.
pub(crate) fn informerd() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_informerd"));
    let inherited = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("INFORMERD_"));
    inherited.for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

/// Waits for a future; panics with `what` at the time limit.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// A pod with one label.
pub(crate) fn mk_pod(namespace: &str, name: &str, app: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": app}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "registry.example.com/main:1"}]},
        "status": {"phase": "Pending"},
    })
}
