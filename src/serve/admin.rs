//! The admin listener: probes and metrics.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics::gauge;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::params::Params;
use super::{ApiError, Queues};
use crate::cache::Phase;
use crate::hub::{FollowerSummary, Hub, Informer, Origin, Stage, Started};

/// The state that the admin listener shows.
#[derive(Clone)]
pub struct Admin {
    /// The informers.
    pub hub: Hub,
    /// Work queues.
    pub queues: Queues,
    /// Renders the metrics in the Prometheus text format.
    pub render: Arc<dyn Fn() -> String + Send + Sync>,
    /// The process is unready if an informer has not heard the API server for this long; `None` for never, as the cache
    /// still answers reads.
    pub unready_after: Option<Duration>,
    /// Cancelled when a shutdown begins.
    pub leaving: CancellationToken,
}

/// The routes of the admin listener.
pub(super) fn admin_router(admin: Admin) -> Router {
    probes(admin.clone())
        .route("/metrics", get(metrics))
        .route("/v1/subscriptions", get(subscriptions))
        .fallback(|uri: axum::http::Uri| async move {
            let path = uri.path().to_owned();
            ApiError::not_found(format!(
                "no such path {path:?}; there are /livez, /readyz, /healthz, /metrics and /v1/subscriptions"
            ))
        })
        .method_not_allowed_fallback(|method: axum::http::Method| async move {
            ApiError::method_not_allowed(&method)
        })
        .with_state(admin)
}

/// The probes without metrics, for clients of the Kubernetes interface on the data listener.
pub(super) fn probes<S: Clone + Send + Sync + 'static>(admin: Admin) -> Router<S> {
    let probes = Router::new()
        .route("/livez", get(livez))
        .route("/healthz", get(readyz))
        .route("/readyz", get(readyz));
    probes.with_state(admin)
}

impl Admin {
    /// Each check with its name: an error sentence, or a remark although all is well.
    fn checks(&self) -> Vec<(String, Result<Option<String>, String>)> {
        let now = Instant::now();
        let draining = if self.leaving.is_cancelled() { Err("shutting down".to_owned()) } else { Ok(None) };
        let mut checks = vec![("shutdown".to_owned(), draining)];
        for pending in self.hub.pending().into_iter().filter(|pending| pending.awaited) {
            checks.push((format!("informer/{}", pending.name), Err(pending.message)));
        }
        for informer in self.hub.informers().into_iter().filter(|informer| counts(informer)) {
            let condition = informer.reader.condition();
            let synced = informer.reader.mark().synced;
            let age = informer.reader.age(now);
            let stale = self.unready_after.is_some_and(|limit| informer.is_older(limit, now));
            let why = condition.message.unwrap_or_else(|| "the first list is under way".to_owned());
            let heard = || format!("the API server was last heard {} s ago", age.as_secs());
            let result = match (synced, stale) {
                _ if condition.phase == Phase::Failed => Err(why),
                (false, _) => Err(format!("not synced: {why}")),
                (true, true) => Err(heard()),
                // The cache still answers reads.
                (true, false) => Ok(informer.is_stale(now).then(heard)),
            };
            checks.push((format!("informer/{}", informer.spec.name), result));
        }
        checks
    }
}

/// Whether readiness depends on an informer. It does not on informers on demand, nor on one that was added to a ready process
/// and has not been complete yet.
fn counts(informer: &Informer) -> bool {
    match informer.spec.started {
        Started::Demand => false,
        Started::Configuration => informer.spec.awaited || informer.reader.mark().synced,
    }
}

/// The process is alive as long as it answers. Trouble with the API server is no reason for a restart, which would lose the
/// cache.
async fn livez(RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let params = Params::parse(query.as_deref(), &[&["verbose"]])?;
    let text = if params.get("verbose").is_some() { "[+]ping ok\nlivez check passed\n" } else { "ok" };
    Ok(text.into_response())
}

async fn readyz(
    State(admin): State<Admin>,
    uri: axum::http::Uri,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let params = Params::parse(query.as_deref(), &[&["verbose"]])?;
    // As `/healthz`, too.
    let asked = uri.path().trim_start_matches('/');
    let checks = admin.checks();
    let ready = checks.iter().all(|(_, result)| result.is_ok());
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if ready && params.get("verbose").is_none() {
        return Ok((code, "ok").into_response());
    }
    let mut text = String::new();
    for (name, result) in checks {
        text.push_str(&match result {
            Ok(None) => format!("[+]{name} ok\n"),
            Ok(Some(told)) => format!("[+]{name} ok: {told}\n"),
            Err(why) => format!("[-]{name} failed: {why}\n"),
        });
    }
    text.push_str(&format!("{asked} check {}\n", if ready { "passed" } else { "failed" }));
    Ok((code, text).into_response())
}

/// Subscriptions that one answer lists at most, unless it is asked for fewer.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// One subscription. Shape: see docs/runtime.md.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SubscriptionInfo {
    id: u64,
    request: String,
    transport: &'static str,
    peer: String,
    age_seconds: f64,
    state: &'static str,
    /// What the stream was last seen waiting for.
    waits_for: &'static str,
    behind_changes: u64,
    behind_seconds: f64,
    events_sent: u64,
    bytes_sent: u64,
}

#[derive(Serialize)]
struct SubscriptionList {
    count: usize,
    subscriptions: Vec<SubscriptionInfo>,
}

/// Who follows what, those that are furthest behind first.
async fn subscriptions(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let params = Params::parse(query.as_deref(), &[&["limit"]])?;
    let limit = params.number("limit", 1, SUBSCRIPTIONS_MAX)?.unwrap_or(SUBSCRIPTIONS_MAX);
    let mut followers = admin.hub.followers(Instant::now());
    followers.sort_unstable_by_key(|one| std::cmp::Reverse((one.lag, one.behind, one.bytes)));
    let count = followers.len();
    let subscriptions = followers.into_iter().take(limit).map(SubscriptionInfo::of).collect();
    Ok(axum::Json(SubscriptionList { count, subscriptions }).into_response())
}

impl SubscriptionInfo {
    fn of(follower: FollowerSummary) -> Self {
        let origin = follower.origin.unwrap_or_else(|| Origin {
            request: String::new(),
            transport: "",
            peer: String::new(),
        });
        let waits_for = match follower.stage {
            _ if follower.is_writing => "client",
            Stage::Starting => "cache",
            Stage::Snapshot | Stage::CatchingUp => "turn",
            Stage::Following | Stage::Live => "changes",
        };
        Self {
            id: follower.id,
            request: origin.request,
            transport: origin.transport,
            peer: origin.peer,
            age_seconds: follower.age.as_secs_f64(),
            state: follower.stage.as_str(),
            waits_for,
            behind_changes: follower.behind,
            behind_seconds: follower.lag.as_secs_f64(),
            events_sent: follower.events,
            bytes_sent: follower.bytes,
        }
    }
}

/// Sets the gauges of subscriptions: how many are in each state, and how far the slowest is behind.
fn gauge_subscriptions(admin: &Admin, now: Instant) {
    let followers = admin.hub.followers(now);
    for stage in Stage::all() {
        let count = followers.iter().filter(|one| one.stage == stage).count();
        gauge!("informerd_subscriptions", "state" => stage.as_str()).set(count as f64);
    }
    let lag = followers.iter().map(|one| one.lag).max().unwrap_or_default();
    gauge!("informerd_subscriptions_behind_max_seconds").set(lag.as_secs_f64());
}

/// Sizes are read at each scrape, so that the hot path does not have to maintain them.
async fn metrics(State(admin): State<Admin>) -> Response {
    let now = Instant::now();
    admin.queues.observe();
    gauge_subscriptions(&admin, now);
    let informers = admin.hub.informers();
    let names: BTreeSet<_> = informers.iter().map(|informer| informer.spec.name.clone()).collect();
    for informer in informers {
        let summary = informer.reader.summary();
        let set = |name: &'static str, value: f64| {
            gauge!(name, "resource" => informer.spec.name.clone()).set(value)
        };
        set("informerd_cache_objects", summary.objects as f64);
        set("informerd_cache_bytes", summary.bytes as f64);
        set("informerd_cache_held_bytes", summary.held as f64);
        set("informerd_cache_synced", f64::from(u8::from(summary.synced)));
        set("informerd_cache_age_seconds", informer.reader.age(now).as_secs_f64());
        set("informerd_cache_stale", f64::from(u8::from(informer.is_stale(now))));
        set("informerd_cache_journal_changes", summary.journal_len as f64);
        set("informerd_cache_journal_bytes", summary.journal_bytes as f64);
        set("informerd_cache_tombstones", summary.tombstones as f64);
        set("informerd_cache_subscribers", informer.subscribers() as f64);
        let indexes = informer.reader.indexes();
        set("informerd_cache_indexes", indexes.len() as f64);
        set("informerd_cache_index_bytes", indexes.iter().map(|index| index.bytes).sum::<usize>() as f64);
    }
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    let page = without_gone(&(admin.render)(), &names);
    ([(header::CONTENT_TYPE, content_type)], page).into_response()
}

/// The page without the gauges of removed informers, which the recorder would otherwise keep for ever.
fn without_gone(page: &str, names: &BTreeSet<String>) -> String {
    let stays = |line: &&str| {
        let Some((metric, rest)) = line.split_once("{resource=\"") else { return true };
        let Some((name, _)) = rest.split_once('"') else { return true };
        match metric {
            // Reflectors count by resource, not by informer.
            "informerd_reflector_backoff_seconds" | "informerd_verify_last_run_timestamp_seconds" => {
                names.iter().any(|known| known.split('/').next() == Some(name))
            }
            _ if metric.split('_').nth(1) == Some("cache") && !metric.ends_with("_total") => {
                names.contains(name)
            }
            _ => true,
        }
    };
    let mut kept = String::with_capacity(page.len());
    for line in page.split_inclusive('\n').filter(stays) {
        kept.push_str(line);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_removed_informers_are_left_out_except_counters() {
        let page = "# TYPE informerd_cache_bytes gauge\n\
                    informerd_cache_bytes{resource=\"pods\"} 1\n\
                    informerd_cache_bytes{resource=\"nodes\"} 2\n\
                    informerd_cache_changes_total{resource=\"nodes\",type=\"added\"} 3\n\
                    informerd_hub_subscribers 4\n";
        let kept = without_gone(page, &BTreeSet::from(["pods".to_owned()]));
        assert_eq!(kept, page.replace("informerd_cache_bytes{resource=\"nodes\"} 2\n", ""));
    }
}
