//! The JSON of requests and answers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::leading::ElectionStatus;
use super::workers::{FeedState, Given, Listed, Workers};
use crate::k8s::Damaged;
use crate::queue::Spec;

/// A queue in an answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QueueInfo {
    name: String,
    declared_by: &'static str,
    spec: Spec,
    synced: bool,
    resources: Vec<ResourceInfo>,
    depth: usize,
    first_state: usize,
    delayed: usize,
    in_flight: usize,
    failed: usize,
    waiting_workers: usize,
    oldest_seconds: f64,
    longest_running_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leases: Option<Vec<LeaseInfo>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_keys: Option<Vec<FailedInfo>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceInfo {
    resource: String,
    synced: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LeaseInfo {
    resource: String,
    namespace: String,
    name: String,
    attempt: u32,
    since_seconds: f64,
    expires_in_seconds: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FailedInfo {
    resource: String,
    namespace: String,
    name: String,
    attempts: u32,
    error: String,
    since_seconds: f64,
}

/// Which replica gives out keys.
#[derive(Serialize)]
pub(super) struct ElectionInfo {
    lease: String,
    identity: String,
    leads: bool,
    leader: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// All queues.
#[derive(Serialize)]
pub(super) struct QueueList {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) election: Option<ElectionInfo>,
    pub(super) queues: Vec<QueueInfo>,
}

/// A leased key without its object.
#[derive(Serialize)]
struct ItemHead<'a> {
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
    attempt: u32,
    lease: String,
}

/// The body of `lease`. Numbers are read later, so that the error for a wrong one names it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LeaseBody {
    pub(super) max: Option<Value>,
    pub(super) wait_seconds: Option<Value>,
    pub(super) lease_seconds: Option<Value>,
}

/// The body of `extend`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ExtendBody {
    pub(super) lease: String,
    pub(super) lease_seconds: Option<Value>,
}

/// The body of `done`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DoneBody {
    pub(super) lease: String,
    pub(super) requeue_after_seconds: Option<Value>,
}

/// The body of `retry`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RetryBody {
    pub(super) lease: String,
    #[serde(default)]
    pub(super) error: String,
}

/// The body of `release`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ReleaseBody {
    pub(super) lease: String,
}

/// The body of `requeue`: one failed key, or all.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RequeueBody {
    #[serde(default)]
    pub(super) all: bool,
    pub(super) resource: Option<String>,
    #[serde(default)]
    pub(super) namespace: String,
    pub(super) name: Option<String>,
}

impl QueueInfo {
    /// A queue in figures.
    pub(super) fn of(queue: &Workers) -> Self {
        let summary = queue.summary();
        let watches = queue.spec().watch.iter().zip(queue.feeds());
        let resources = watches.map(|(watch, feed)| {
            let message = queue.message(&feed, summary.failed);
            let FeedState { resource, synced, .. } = feed;
            ResourceInfo { resource: resource.unwrap_or_else(|| watch.resource.clone()), synced, message }
        });
        Self {
            name: queue.name().to_owned(),
            declared_by: queue.declared_by().as_str(),
            spec: queue.spec().clone(),
            synced: queue.is_synced(),
            resources: resources.collect(),
            depth: summary.depth,
            first_state: summary.low,
            delayed: summary.delayed,
            in_flight: summary.in_flight,
            failed: summary.failed,
            waiting_workers: queue.waiting(),
            oldest_seconds: summary.oldest.unwrap_or_default().as_secs_f64(),
            longest_running_seconds: summary.longest.as_secs_f64(),
            leader: None,
            leases: None,
            failed_keys: None,
        }
    }

    /// The same with its oldest leases and failed keys, and the replica that gives out keys, if one is elected.
    pub(super) fn in_detail(queue: &Workers, len_max: usize, leader: Option<String>) -> Self {
        let Listed { failed, leases } = queue.listed(len_max);
        let leases = leases.into_iter().map(|(resource, lease)| LeaseInfo {
            resource,
            namespace: lease.key.namespace().to_owned(),
            name: lease.key.name().to_owned(),
            attempt: lease.attempt,
            since_seconds: lease.since.as_secs_f64(),
            expires_in_seconds: lease.left.as_secs_f64(),
        });
        let failed = failed.into_iter().map(|(resource, failed)| FailedInfo {
            resource,
            namespace: failed.key.namespace().to_owned(),
            name: failed.key.name().to_owned(),
            attempts: failed.attempts,
            error: failed.error,
            since_seconds: failed.since.as_secs_f64(),
        });
        Self {
            leader,
            leases: Some(leases.collect()),
            failed_keys: Some(failed.collect()),
            ..Self::of(queue)
        }
    }
}

impl From<ElectionStatus> for ElectionInfo {
    fn from(shown: ElectionStatus) -> Self {
        let ElectionStatus { config, leads, leader, trouble } = shown;
        Self { lease: config.lease, identity: config.identity, leads, leader, message: trouble }
    }
}

/// The answer to `lease`.
///
/// # Errors
/// The index of an object that cannot be unpacked.
pub(super) fn leased(given: &[Given], lease_seconds: u64) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(format!(r#"{{"leaseSeconds":{lease_seconds},"items":["#).as_bytes());
    for (index, item) in given.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let head = ItemHead {
            resource: &item.resource,
            namespace: item.leased.key.namespace(),
            name: item.leased.key.name(),
            attempt: item.leased.attempt,
            lease: item.leased.token.to_string(),
        };
        let head = serde_json::to_vec(&head).expect("texts and numbers are JSON");
        out.extend_from_slice(head.strip_suffix(b"}").unwrap_or(&head));
        out.extend_from_slice(br#","object":"#);
        match &item.object {
            Some(object) => out.extend_from_slice(&object.try_text().map_err(|Damaged| index)?),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}\n");
    Ok(out)
}
