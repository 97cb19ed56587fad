//! Kinds that run pods: the groups `apps`, `batch` and `policy`, and what the core group has of them.
//!
//! Source: `k8s.io/kubernetes/pkg/printers/internalversion`; each function names the one it mirrors.

use serde_json::Value;

use super::context::Context;
use super::text::{containers, is_so, labels, or_none, selector};
use super::time::Timestamp;
use super::tree::Tree;

/// `printPodTemplate`.
pub(super) fn pod_template(object: &Tree<'_>, _: &Context) -> Vec<Value> {
    let (names, images) = containers(object.at("template.spec"));
    let labels = labels(object.at("template.metadata.labels"));
    vec![object.text("metadata.name").into(), names.into(), images.into(), labels.into()]
}

/// `printReplicationController`.
pub(super) fn replication_controller(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    replicas(object, context, labels(object.at("spec.selector")))
}

/// `printReplicaSet`.
pub(super) fn replica_set(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    replicas(object, context, or_none(selector(object.at("spec.selector"))))
}

fn replicas(object: &Tree<'_>, context: &Context, selector: String) -> Vec<Value> {
    let (names, images) = containers(object.at("spec.template.spec"));
    vec![
        object.text("metadata.name").into(),
        object.int("spec.replicas").into(),
        object.int("status.replicas").into(),
        object.int("status.readyReplicas").into(),
        context.age(object).into(),
        names.into(),
        images.into(),
        selector.into(),
    ]
}

/// `printDeployment`.
pub(super) fn deployment(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let (names, images) = containers(object.at("spec.template.spec"));
    vec![
        object.text("metadata.name").into(),
        format!("{}/{}", object.int("status.readyReplicas"), object.int("spec.replicas")).into(),
        object.int("status.updatedReplicas").into(),
        object.int("status.availableReplicas").into(),
        context.age(object).into(),
        names.into(),
        images.into(),
        selector(object.at("spec.selector")).into(),
    ]
}

/// `printStatefulSet`.
pub(super) fn stateful_set(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let (names, images) = containers(object.at("spec.template.spec"));
    vec![
        object.text("metadata.name").into(),
        format!("{}/{}", object.int("status.readyReplicas"), object.int("spec.replicas")).into(),
        context.age(object).into(),
        names.into(),
        images.into(),
    ]
}

/// `printDaemonSet`.
pub(super) fn daemon_set(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let (names, images) = containers(object.at("spec.template.spec"));
    vec![
        object.text("metadata.name").into(),
        object.int("status.desiredNumberScheduled").into(),
        object.int("status.currentNumberScheduled").into(),
        object.int("status.numberReady").into(),
        object.int("status.updatedNumberScheduled").into(),
        object.int("status.numberAvailable").into(),
        labels(object.at("spec.template.spec.nodeSelector")).into(),
        context.age(object).into(),
        names.into(),
        images.into(),
        or_none(selector(object.at("spec.selector"))).into(),
    ]
}

/// `printControllerRevision`.
pub(super) fn controller_revision(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let owners = object.list("metadata.ownerReferences").iter();
    let mut controllers = owners.filter(|owner| owner.is_true("controller"));
    let controller = controllers.next().map_or_else(
        || "<none>".to_owned(),
        |owner| {
            let group = owner.text("apiVersion").split_once('/').map_or("", |(group, _)| group);
            let dot = if group.is_empty() { "" } else { "." };
            let kind = format!("{}{dot}{group}", owner.text("kind")).to_lowercase();
            format!("{kind}/{}", owner.text("name"))
        },
    );
    vec![
        object.text("metadata.name").into(),
        controller.into(),
        object.int("revision").into(),
        context.age(object).into(),
    ]
}

/// `printJob`.
pub(super) fn job(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let succeeded = object.int("status.succeeded");
    let completions = match (object.at("spec.completions").as_int(), object.int("spec.parallelism")) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let end = Timestamp::at(object, "status.completionTime").unwrap_or(context.now);
    let duration = Timestamp::at(object, "status.startTime").map(|start| end.after(start));
    let (names, images) = containers(object.at("spec.template.spec"));
    vec![
        object.text("metadata.name").into(),
        job_status(object).into(),
        completions.into(),
        duration.unwrap_or_default().into(),
        context.age(object).into(),
        names.into(),
        images.into(),
        or_none(selector(object.at("spec.selector"))).into(),
    ]
}

fn job_status(object: &Tree<'_>) -> &'static str {
    let is_so = |kind: &str| is_so(object.list("status.conditions"), kind);
    if is_so("Complete") {
        "Complete"
    } else if is_so("Failed") {
        "Failed"
    } else if object.at("metadata.deletionTimestamp").is_there() {
        "Terminating"
    } else if is_so("Suspended") {
        "Suspended"
    } else if is_so("FailureTarget") {
        "FailureTarget"
    } else {
        "Running"
    }
}

/// `printCronJob`.
pub(super) fn cron_job(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let suspend = match (object.at("spec.suspend").is_there(), object.is_true("spec.suspend")) {
        (false, _) => "<unset>",
        (true, true) => "True",
        (true, false) => "False",
    };
    let last = Timestamp::at(object, "status.lastScheduleTime");
    let last = last.map_or_else(|| "<none>".to_owned(), |last| context.now.after(last));
    let template = object.at("spec.jobTemplate.spec");
    let (names, images) = containers(template.at("template.spec"));
    vec![
        object.text("metadata.name").into(),
        object.text("spec.schedule").into(),
        object.text_or("spec.timeZone", "<none>").into(),
        suspend.into(),
        object.list("status.active").len().into(),
        last.into(),
        context.age(object).into(),
        names.into(),
        images.into(),
        or_none(selector(template.get("selector"))).into(),
    ]
}

/// `printPodDisruptionBudget`.
pub(super) fn pod_disruption_budget(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let bound = |path: &str| {
        let bound = object.at(path);
        if bound.is_there() { bound.plain() } else { "N/A".into() }
    };
    vec![
        object.text("metadata.name").into(),
        bound("spec.minAvailable").into(),
        bound("spec.maxUnavailable").into(),
        object.int("status.disruptionsAllowed").into(),
        context.age(object).into(),
    ]
}

/// `printPodSecurityPolicy`.
pub(super) fn pod_security_policy(object: &Tree<'_>, _: &Context) -> Vec<Value> {
    let spec = object.get("spec");
    let all = |field: &str| super::text::join(spec.list(field).iter().filter_map(Tree::as_text));
    vec![
        object.text("metadata.name").into(),
        spec.is_true("privileged").to_string().into(),
        all("allowedCapabilities").into(),
        spec.text("seLinux.rule").into(),
        spec.text("runAsUser.rule").into(),
        spec.text("fsGroup.rule").into(),
        spec.text("supplementalGroups.rule").into(),
        spec.is_true("readOnlyRootFilesystem").into(),
        all("volumes").into(),
    ]
}
