//! Wiring: bind, build, spawn, drain.

use crate::{config, telemetry};

/// Serves a cluster until a signal ends it.
///
/// # Errors
/// What could not be bound, connected or read.
pub async fn serve(_config: config::Serve, _metrics: telemetry::Metrics) -> anyhow::Result<()> {
    anyhow::bail!("serve is not wired yet")
}

/// Serves the embedded cluster until a signal ends it.
///
/// # Errors
/// What could not be bound or written.
pub async fn demo(_config: config::Demo, _metrics: telemetry::Metrics) -> anyhow::Result<()> {
    anyhow::bail!("demo is not wired yet")
}

/// Tells whether configuration, connection and permissions are right; `false` where they are not.
///
/// # Errors
/// What kept it from finding out.
pub async fn check(_config: config::Check) -> anyhow::Result<bool> {
    anyhow::bail!("check is not wired yet")
}
