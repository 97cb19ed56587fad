//! `GET /v1/resources`: the informers, for people and for the page.

use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::Instant;

use super::params::Params;
use super::{ApiError, Server};
use crate::cache::{IndexSummary, Phase};
use crate::hub::{Informer, Started};

#[derive(Serialize)]
struct Resources {
    version: &'static str,
    subscribers: usize,
    informers: Vec<ResourceInfo>,
    /// Configured watches without an informer yet.
    pending: Vec<PendingInfo>,
}

#[derive(Serialize)]
struct PendingInfo {
    name: String,
    message: String,
}

/// One informer. Shape: see the README's table.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceInfo {
    name: String,
    resource: String,
    api_version: String,
    kind: String,
    namespaced: bool,
    scope: String,
    started: &'static str,
    idle_seconds: Option<f64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    selectors: String,
    /// Whether only the objects' metadata is held.
    metadata_only: bool,
    /// Members that are dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dropped: Vec<String>,
    state: &'static str,
    synced: bool,
    resource_version: String,
    objects: usize,
    bytes: usize,
    /// The bytes that hold this JSON, dictionaries included.
    held_bytes: usize,
    /// What packing saves of them.
    saved_bytes: usize,
    journal_events: usize,
    journal_bytes: usize,
    tombstones: usize,
    changes: u64,
    age_seconds: f64,
    /// Whether the age is longer than a watch may be silent.
    stale: bool,
    subscribers: usize,
    indexes: Vec<IndexInfo>,
    lists: u64,
    relists: u64,
    watches: u64,
    events: u64,
    /// The last comparison with the API server; `null` before the first.
    last_verify: Option<VerifyInfo>,
    last_error: Option<String>,
    retry_in_seconds: Option<f64>,
}

/// An index, made by requests with conditions of equality.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IndexInfo {
    path: String,
    /// Whether it contains every object; otherwise it is being built.
    complete: bool,
    values: usize,
    /// Approximate size.
    bytes: usize,
    users: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VerifyInfo {
    age_seconds: f64,
    outcome: &'static str,
    missing: u64,
    extra: u64,
    stale: u64,
}

pub(super) async fn resources(
    State(server): State<Server>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    Params::parse(query.as_deref(), &[])?;
    let now = Instant::now();
    let informers = server.hub.informers().iter().map(|informer| info(informer, now)).collect();
    let pending = server.hub.pending().into_iter();
    let pending = pending.map(|one| PendingInfo { name: one.name, message: one.message }).collect();
    let version = env!("CARGO_PKG_VERSION");
    let body = Resources { version, subscribers: server.hub.subscribers(), informers, pending };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response())
}

impl From<IndexSummary> for IndexInfo {
    fn from(index: IndexSummary) -> Self {
        let IndexSummary { path, complete, values, bytes, users } = index;
        Self { path: path.to_string(), complete, values, bytes, users }
    }
}

fn info(informer: &Informer, now: Instant) -> ResourceInfo {
    let summary = informer.reader.summary();
    let condition = informer.reader.condition();
    let stats = informer.reader.stats();
    let resource = &informer.spec.resource;
    let seconds = |span: Duration| (span.as_secs_f64() * 1000.0).round() / 1000.0;
    let idle = informer.spec.started == Started::Demand && informer.subscribers() == 0;
    ResourceInfo {
        name: informer.spec.name.clone(),
        resource: resource.canonical(),
        api_version: resource.api_version(),
        kind: resource.kind().to_owned(),
        namespaced: resource.namespaced(),
        scope: informer.spec.scope.to_string(),
        started: informer.spec.started.as_str(),
        idle_seconds: idle.then(|| seconds(now.saturating_duration_since(informer.used()))),
        selectors: informer.spec.content.selectors(),
        metadata_only: informer.spec.content.metadata_only,
        dropped: informer.spec.content.dropped.paths(),
        state: match condition.phase {
            Phase::Starting => "starting",
            Phase::Listing => "listing",
            Phase::Connecting => "connecting",
            Phase::Watching => "watching",
            Phase::BackingOff => "backing off",
            Phase::Failed => "failed",
        },
        synced: summary.synced,
        resource_version: if summary.synced { summary.position.to_string() } else { String::new() },
        objects: summary.objects,
        bytes: summary.bytes,
        held_bytes: summary.held,
        saved_bytes: summary.bytes.saturating_sub(summary.held),
        journal_events: summary.journal_len,
        journal_bytes: summary.journal_bytes,
        tombstones: summary.tombstones,
        changes: summary.revision.0,
        age_seconds: seconds(informer.reader.age(now)),
        stale: informer.is_stale(now),
        subscribers: informer.subscribers(),
        indexes: informer.reader.indexes().into_iter().map(IndexInfo::from).collect(),
        lists: stats.lists.get(),
        relists: stats.relists.get(),
        watches: stats.watches.get(),
        events: stats.events.get(),
        last_verify: stats.last_verification().map(|last| VerifyInfo {
            age_seconds: seconds(now.saturating_duration_since(last.at)),
            outcome: last.outcome.as_str(),
            missing: last.missing,
            extra: last.extra,
            stale: last.stale,
        }),
        last_error: condition.message,
        retry_in_seconds: condition.retry_at.map(|at| at.saturating_duration_since(now).as_secs_f64()),
    }
}
