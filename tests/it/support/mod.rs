//! What the tests share: informerd in the process, foreign clients, and a client that folds what it receives.

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

/// All of them.
pub(crate) const TRANSPORTS: [Transport; 3] = [Transport::Sse, Transport::Ndjson, Transport::WebSocket];

/// Longest that a test waits for anything: far beyond what a busy machine takes, so that only a fault meets it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds; panics with its name when it does not in time.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A command that runs informerd with nothing of the caller's settings in the environment. Variables for tests are no settings.
pub(crate) fn informerd() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_informerd"));
    let inherited = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("INFORMERD_"));
    inherited.for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

/// Waits for a future; panics with its name when it takes too long.
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
