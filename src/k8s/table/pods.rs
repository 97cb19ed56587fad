//! Pods.
//!
//! Source: `printPod` of `k8s.io/kubernetes/pkg/printers/internalversion`, at 1.20 and as it is now.

use serde_json::Value;

use super::context::Context;
use super::text::{condition, is_so};
use super::time::{Timestamp, ago};
use super::tree::Tree;

/// The containers of a pod, summed up.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    /// When the last restart happened.
    restarted: Option<Timestamp>,
}

pub(super) fn pod(pod: &Tree<'_>, context: &Context) -> Vec<Value> {
    let is_sidecar = |container: &&Tree<'_>| is_restartable(container);
    let sidecars = pod.list("spec.initContainers").iter().filter(is_sidecar).count();
    let all = pod.list("spec.containers").len() + sidecars;
    let summary = summary(pod, context);
    let restarts = match summary.restarted {
        Some(time) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, context.now.after(time))
        }
        _ => summary.restarts.to_string(),
    };
    let ip = match pod.text("status.podIP") {
        "" => pod.list("status.podIPs").first().map_or("", |ip| ip.text("ip")),
        ip => ip,
    };
    vec![
        pod.text("metadata.name").into(),
        format!("{}/{all}", summary.ready).into(),
        reason(pod, context, summary.reason).into(),
        summary.restarts.into(),
        restarts.into(),
        context.age(pod).into(),
        if ip.is_empty() { "<none>" } else { ip }.into(),
        pod.text_or("spec.nodeName", "<none>").into(),
        pod.text_or("status.nominatedNodeName", "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

/// The reason that is printed, which a deletion replaces.
fn reason(pod: &Tree<'_>, context: &Context, reason: String) -> String {
    let is_over = matches!(pod.text("status.phase"), "Succeeded" | "Failed");
    if !pod.at("metadata.deletionTimestamp").is_there() {
        reason
    } else if pod.text("status.reason") == "NodeLost" {
        "Unknown".to_owned()
    } else if is_over && context.minor >= 32 {
        reason
    } else {
        "Terminating".to_owned()
    }
}

fn readiness_gates(pod: &Tree<'_>) -> String {
    let gates = pod.list("spec.readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let conditions = pod.list("status.conditions");
    let open = gates.iter().filter(|gate| is_so(conditions, gate.text("conditionType"))).count();
    format!("{open}/{}", gates.len())
}

fn is_restartable(container: &Tree<'_>) -> bool {
    container.text("restartPolicy") == "Always"
}

/// The later of what is known and the end of the previous run of a container.
fn later(known: Option<Timestamp>, container: &Tree<'_>) -> Option<Timestamp> {
    known.max(Timestamp::at(container, "lastState.terminated.finishedAt"))
}

fn summary(pod: &Tree<'_>, context: &Context) -> Summary {
    let conditions = pod.list("status.conditions");
    let mut summary = Summary { reason: pod.text("status.phase").to_owned(), ..Summary::default() };
    if !pod.text("status.reason").is_empty() {
        summary.reason = pod.text("status.reason").to_owned();
    }
    let gated = |condition: &Tree<'_>| {
        condition.text("type") == "PodScheduled" && condition.text("reason") == "SchedulingGated"
    };
    if conditions.iter().any(gated) {
        summary.reason = "SchedulingGated".to_owned();
    }
    // Restarts of sidecars only: those of other init containers are not counted once these have ended.
    let (mut restarts, mut restarted) = (0, None);
    let mut is_initializing = false;
    let specs = pod.list("spec.initContainers");
    for (at, container) in pod.list("status.initContainerStatuses").iter().enumerate() {
        summary.restarts += container.int("restartCount");
        summary.restarted = later(summary.restarted, container);
        let spec = specs.iter().rev().find(|spec| spec.text("name") == container.text("name"));
        let is_sidecar = spec.is_some_and(is_restartable);
        if is_sidecar {
            restarts += container.int("restartCount");
            restarted = later(restarted, container);
        }
        let has_ended = container.at("state.terminated").is_there();
        if has_ended && container.int("state.terminated.exitCode") == 0 {
            continue;
        }
        if is_sidecar && container.is_true("started") {
            summary.ready += usize::from(container.is_true("ready"));
            continue;
        }
        summary.reason = match container.text("state.waiting.reason") {
            _ if has_ended => format!("Init:{}", ending(container)),
            "" | "PodInitializing" => format!("Init:{at}/{}", specs.len()),
            waiting => format!("Init:{waiting}"),
        };
        is_initializing = true;
        break;
    }
    if !is_initializing || (context.minor >= 26 && is_so(conditions, "Initialized")) {
        summary.restarts = restarts;
        summary.restarted = restarted;
        add_containers(&mut summary, pod, context);
    }
    summary
}

fn add_containers(summary: &mut Summary, pod: &Tree<'_>, context: &Context) {
    let (mut is_running, mut failure) = (false, None);
    for container in pod.list("status.containerStatuses").iter().rev() {
        summary.restarts += container.int("restartCount");
        summary.restarted = later(summary.restarted, container);
        let waiting = container.text("state.waiting.reason");
        if !waiting.is_empty() {
            summary.reason = waiting.to_owned();
        } else if container.at("state.terminated").is_there() {
            summary.reason = ending(container);
            if container.int("state.terminated.exitCode") != 0 {
                failure = Some(summary.reason.clone());
            }
        } else if container.is_true("ready") && container.at("state.running").is_there() {
            is_running = true;
            summary.ready += 1;
        }
    }
    if summary.reason != "Completed" {
        return;
    }
    let is_ready = is_so(pod.list("status.conditions"), "Ready");
    if is_running && is_ready {
        summary.reason = "Running".to_owned();
    } else if let Some(failure) = failure.filter(|_| context.minor >= 35) {
        summary.reason = failure;
    } else if is_running {
        summary.reason = "NotReady".to_owned();
    }
}

/// How a container ended: its reason, else the signal or the exit code.
fn ending(container: &Tree<'_>) -> String {
    let ended = container.at("state.terminated");
    match (ended.text("reason"), ended.int("signal")) {
        ("", 0) => format!("ExitCode:{}", ended.int("exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Nodes: here, as only they and pods have conditions in their status cell.
///
/// Source: `printNode`.
pub(super) fn node(node: &Tree<'_>, context: &Context) -> Vec<Value> {
    // Of conditions of one type, the last counts.
    let mut conditions = node.list("status.conditions").iter().rev();
    let ready = conditions.find(|condition| condition.text("type") == "Ready");
    let mut status = match ready.map(|ready| ready.text("status")) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    }
    .to_owned();
    if node.is_true("spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = condition(node.list("status.addresses"), kind);
        found.map_or("<none>", |address| address.text("address"))
    };
    let info = |field: &str| node.at("status.nodeInfo").text_or(field, "<unknown>");
    vec![
        node.text("metadata.name").into(),
        status.into(),
        roles(node).into(),
        context.age(node).into(),
        node.text("status.nodeInfo.kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        info("osImage").into(),
        info("kernelVersion").into(),
        info("containerRuntimeVersion").into(),
    ]
}

fn roles(node: &Tree<'_>) -> String {
    let mut roles: Vec<&str> = Vec::new();
    for (key, value) in node.at("metadata.labels").entries() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/") {
            roles.push(role);
        } else if key == "kubernetes.io/role" {
            roles.push(value.as_text().unwrap_or_default());
        }
    }
    roles.retain(|role| !role.is_empty());
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

/// Events, of the core group and of `events.k8s.io`, which names the same fields differently.
///
/// Source: `printEvent`.
pub(super) fn event(event: &Tree<'_>, context: &Context) -> Vec<Value> {
    let time = |path: &str| Timestamp::at(event, path);
    let first = time("firstTimestamp").or(time("deprecatedFirstTimestamp")).or(time("eventTime"));
    let mut last = time("lastTimestamp").or(time("deprecatedLastTimestamp")).or(first);
    let mut count = event.first(&["count", "deprecatedCount"]).as_int().unwrap_or_default();
    let series = event.get("series");
    if series.is_there() {
        last = Timestamp::at(series, "lastObservedTime");
        // At first the event that began the series was not counted in it.
        count = series.int("count") + i64::from(context.minor < COUNTED_SINCE);
    } else if count == 0 {
        count = 1;
    }
    let about = event.first(&["involvedObject", "regarding"]);
    let kind = about.text("kind").to_lowercase();
    let object = match about.text("name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = event.first(&["source", "deprecatedSource"]);
    let component = event.first(&["reportingComponent", "reportingController"]);
    let mut reporter = source.text_or("component", component.as_text().unwrap_or_default()).to_owned();
    let instance = source.text_or("host", event.text("reportingInstance"));
    if !instance.is_empty() {
        reporter.push_str(", ");
        reporter.push_str(instance);
    }
    let message = event.first(&["message", "note"]).as_text().unwrap_or_default();
    vec![
        ago(last, context.now).into(),
        event.text("type").into(),
        event.text("reason").into(),
        object.into(),
        about.text("fieldPath").into(),
        reporter.into(),
        message.trim().into(),
        ago(first, context.now).into(),
        count.into(),
        event.text("metadata.name").into(),
    ]
}

/// The minor version from which a series counts its first event, too.
const COUNTED_SINCE: u32 = 22;
