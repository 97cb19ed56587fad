//! Kinds of the groups for networks, storage, permissions, admission and the API server itself.
//!
//! Source: `k8s.io/kubernetes/pkg/printers/internalversion`; each function names the one it mirrors.

use serde_json::Value;

use super::context::Context;
use super::core::load_balancer;
use super::text::{condition, default_name, join, list_with_more, or_none, selector};
use super::time::human;
use super::tree::Tree;

/// `printIngress`.
pub(super) fn ingress(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let ports = if object.list("spec.tls").is_empty() { "80" } else { "80, 443" };
    vec![
        object.text("metadata.name").into(),
        object.text_or("spec.ingressClassName", "<none>").into(),
        hosts(object.list("spec.rules")).into(),
        load_balancer(object).into(),
        ports.into(),
        context.age(object).into(),
    ]
}

/// `formatHosts`: it counts rules without a host among those not shown.
fn hosts(rules: &[Tree<'_>]) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let mut more = false;
    for host in rules.iter().map(|rule| rule.text("host")) {
        more |= shown.len() == 3;
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.join(",") {
        shown if shown.is_empty() => "*".to_owned(),
        shown if more => format!("{shown} + {} more...", rules.len() - 3),
        shown => shown,
    }
}

/// `printIngressClass`.
pub(super) fn ingress_class(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let given = object.at("spec.parameters");
    let parameters = if given.is_there() {
        let group = given.get("apiGroup").as_text().map(|group| format!(".{group}"));
        format!("{}{}/{}", given.text("kind"), group.unwrap_or_default(), given.text("name"))
    } else {
        "<none>".to_owned()
    };
    let controller = object.text("spec.controller");
    let name = object.text("metadata.name");
    vec![name.into(), controller.into(), parameters.into(), context.age(object).into()]
}

/// `printNetworkPolicy`.
pub(super) fn network_policy(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let pods = or_none(selector(object.at("spec.podSelector")));
    vec![object.text("metadata.name").into(), pods.into(), context.age(object).into()]
}

/// `printEndpointSlice`.
pub(super) fn endpoint_slice(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let ports = object.list("ports").iter().map(|port| {
        let name = port.get("name").as_text().unwrap_or("*");
        port.get("port").as_int().map_or_else(|| name.to_owned(), |number| number.to_string())
    });
    let addresses = object.list("endpoints").iter().flat_map(|endpoint| endpoint.list("addresses"));
    let addresses = addresses.filter_map(Tree::as_text).map(str::to_owned);
    vec![
        object.text("metadata.name").into(),
        object.text("addressType").into(),
        or_unset(&ports.collect::<Vec<_>>()).into(),
        or_unset(&addresses.collect::<Vec<_>>()).into(),
        context.age(object).into(),
    ]
}

/// `listWithMoreString`.
fn or_unset(items: &[String]) -> String {
    match list_with_more(items, 3, ",") {
        text if text.is_empty() => "<unset>".to_owned(),
        text => text,
    }
}

/// `printServiceCIDR`.
pub(super) fn service_cidr(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let cidrs = join(object.list("spec.cidrs").iter().filter_map(Tree::as_text));
    vec![object.text("metadata.name").into(), cidrs.into(), context.age(object).into()]
}

/// `printIPAddress`.
pub(super) fn ip_address(object: &Tree<'_>, _: &Context) -> Vec<Value> {
    let parent = object.at("spec.parentRef");
    let text = if parent.is_there() {
        let dot = if parent.text("group").is_empty() { "" } else { "." };
        let slash = if parent.text("namespace").is_empty() { "" } else { "/" };
        let resource = format!("{}{dot}{}", parent.text("resource"), parent.text("group")).to_lowercase();
        format!("{resource}{slash}{}/{}", parent.text("namespace"), parent.text("name"))
    } else {
        "<none>".to_owned()
    };
    vec![object.text("metadata.name").into(), text.into()]
}

/// `printStorageClass`.
pub(super) fn storage_class(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let annotations =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    vec![
        default_name(object, &annotations).into(),
        object.text("provisioner").into(),
        object.text_or("reclaimPolicy", "Delete").into(),
        object.text_or("volumeBindingMode", "Immediate").into(),
        object.is_true("allowVolumeExpansion").into(),
        context.age(object).into(),
    ]
}

/// `printVolumeAttributesClass`.
pub(super) fn volume_attributes_class(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let name = default_name(object, &["volumeattributesclass.alpha.kubernetes.io/is-default-class"]);
    vec![name.into(), object.text("driverName").into(), context.age(object).into()]
}

/// `printCSIDriver`.
pub(super) fn csi_driver(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let spec = object.get("spec");
    let texts = |field: &str| join(spec.list(field).iter().filter_map(Tree::as_text));
    let requires_attach = !spec.get("attachRequired").is_there() || spec.is_true("attachRequired");
    let tokens = if spec.get("tokenRequests").is_there() {
        join(spec.list("tokenRequests").iter().map(|request| request.text("audience")))
    } else {
        "<unset>".to_owned()
    };
    vec![
        object.text("metadata.name").into(),
        requires_attach.into(),
        spec.is_true("podInfoOnMount").into(),
        spec.is_true("storageCapacity").into(),
        tokens.into(),
        spec.is_true("requiresRepublish").into(),
        or_none(texts("volumeLifecycleModes")).into(),
        context.age(object).into(),
    ]
}

/// `printCSINode`.
pub(super) fn csi_node(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let drivers = object.list("spec.drivers").len();
    vec![object.text("metadata.name").into(), drivers.into(), context.age(object).into()]
}

/// `printCSIStorageCapacity`.
pub(super) fn csi_storage_capacity(object: &Tree<'_>, _: &Context) -> Vec<Value> {
    let capacity = object.text_or("capacity", "<unset>");
    vec![object.text("metadata.name").into(), object.text("storageClassName").into(), capacity.into()]
}

/// `printVolumeAttachment`.
pub(super) fn volume_attachment(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    vec![
        object.text("metadata.name").into(),
        object.text("spec.attacher").into(),
        object.text("spec.source.persistentVolumeName").into(),
        object.text("spec.nodeName").into(),
        object.is_true("status.attached").into(),
        context.age(object).into(),
    ]
}

/// `printRoleBinding` and `printClusterRoleBinding`.
pub(super) fn role_binding(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let role = object.get("roleRef");
    let subjects = |kind: &str| {
        let subjects = object.list("subjects").iter().filter(|subject| subject.text("kind") == kind);
        let names = subjects.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", subject.text("namespace"), subject.text("name")),
            _ => subject.text("name").to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    vec![
        object.text("metadata.name").into(),
        format!("{}/{}", role.text("kind"), role.text("name")).into(),
        context.age(object).into(),
        subjects("User").into(),
        subjects("Group").into(),
        subjects("ServiceAccount").into(),
    ]
}

/// `printCertificateSigningRequest`.
pub(super) fn certificate_signing_request(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let has = |kind: &str| condition(object.list("status.conditions"), kind).is_some();
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !object.text("status.certificate").is_empty() {
        status.push_str(",Issued");
    }
    let duration = object.at("spec.expirationSeconds").as_int().map(human);
    vec![
        object.text("metadata.name").into(),
        context.age(object).into(),
        object.text_or("spec.signerName", "<none>").into(),
        object.text("spec.username").into(),
        or_none(duration.unwrap_or_default()).into(),
        status.into(),
    ]
}

/// `printLease`.
pub(super) fn lease(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let holder = object.text("spec.holderIdentity");
    vec![object.text("metadata.name").into(), holder.into(), context.age(object).into()]
}

/// `printPriorityClass`.
pub(super) fn priority_class(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    vec![
        object.text("metadata.name").into(),
        object.int("value").into(),
        object.is_true("globalDefault").into(),
        context.age(object).into(),
        object.text("preemptionPolicy").into(),
    ]
}

/// `printRuntimeClass`.
pub(super) fn runtime_class(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let handler = object.first(&["handler", "spec.runtimeHandler"]).as_text().unwrap_or_default();
    vec![object.text("metadata.name").into(), handler.into(), context.age(object).into()]
}

/// `printMutatingWebhook` and `printValidatingWebhook`.
pub(super) fn webhook_configuration(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let count = object.list("webhooks").len();
    vec![object.text("metadata.name").into(), count.into(), context.age(object).into()]
}

/// `printValidatingAdmissionPolicy` and `printMutatingAdmissionPolicy`.
pub(super) fn admission_policy(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let kind = object.at("spec.paramKind");
    let parameters = if kind.is_there() {
        format!("{}/{}", kind.text("apiVersion"), kind.text("kind"))
    } else {
        "<unset>".to_owned()
    };
    let rules = object.list("spec.validations").len() + object.list("spec.mutations").len();
    vec![object.text("metadata.name").into(), rules.into(), parameters.into(), context.age(object).into()]
}

/// `printValidatingAdmissionPolicyBinding` and `printMutatingAdmissionPolicyBinding`. A selector is shown as one
/// types it; the API server shows the Go struct.
pub(super) fn admission_policy_binding(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let given = object.at("spec.paramRef");
    let parameters = match (given.text("name"), given.text_or("namespace", "*")) {
        ("", _) if given.get("selector").is_there() => selector(given.get("selector")),
        ("", _) => "<unset>".to_owned(),
        (name, namespace) => format!("{namespace}/{name}"),
    };
    vec![
        object.text("metadata.name").into(),
        object.text("spec.policyName").into(),
        parameters.into(),
        context.age(object).into(),
    ]
}

/// `printFlowSchema`.
pub(super) fn flow_schema(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let dangling = condition(object.list("status.conditions"), "Dangling");
    vec![
        object.text("metadata.name").into(),
        object.text("spec.priorityLevelConfiguration.name").into(),
        object.int("spec.matchingPrecedence").into(),
        object.text_or("spec.distinguisherMethod.type", "<none>").into(),
        context.age(object).into(),
        dangling.map_or("?", |condition| condition.text("status")).into(),
    ]
}

/// `printPriorityLevelConfiguration`.
pub(super) fn priority_level(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let limited = object.at("spec.limited");
    let number = |of: &Tree<'_>, path: &str| match of.is_there() {
        true => Value::from(of.int(path)),
        false => Value::from("<none>"),
    };
    let shares = limited.first(&["nominalConcurrencyShares", "assuredConcurrencyShares"]);
    let shares =
        if limited.is_there() { shares.as_int().unwrap_or_default().into() } else { "<none>".into() };
    let queuing = limited.at("limitResponse.queuing");
    let shares: Value = shares;
    vec![
        object.text("metadata.name").into(),
        object.text("spec.type").into(),
        shares.clone(),
        shares,
        number(queuing, "queues"),
        number(queuing, "handSize"),
        number(queuing, "queueLengthLimit"),
        context.age(object).into(),
    ]
}

/// `printResourceClaim`.
pub(super) fn resource_claim(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let is_going = object.at("metadata.deletionTimestamp").is_there();
    let state = match (is_going, object.at("status.allocation").is_there()) {
        (true, false) => "deleted".to_owned(),
        (false, false) => "pending".to_owned(),
        (_, true) => {
            let reserved = if object.list("status.reservedFor").is_empty() { "" } else { ",reserved" };
            format!("{}allocated{reserved}", if is_going { "deleted," } else { "" })
        }
    };
    vec![object.text("metadata.name").into(), state.into(), context.age(object).into()]
}

/// `printResourceSlice`.
pub(super) fn resource_slice(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let spec = object.get("spec");
    vec![
        object.text("metadata.name").into(),
        spec.text("nodeName").into(),
        spec.text("driver").into(),
        spec.text("pool.name").into(),
        context.age(object).into(),
    ]
}

/// Kinds with no columns but name and age.
pub(super) fn aged(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    vec![object.text("metadata.name").into(), context.age(object).into()]
}

/// The storage of `apiservices` in `k8s.io/kube-aggregator`.
pub(super) fn api_service(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let service = object.at("spec.service");
    let service = if service.is_there() {
        format!("{}/{}", service.text("namespace"), service.text("name"))
    } else {
        "Local".to_owned()
    };
    let available = match condition(object.list("status.conditions"), "Available") {
        None => "Unknown".to_owned(),
        Some(condition) => match (condition.text("status"), condition.text("reason")) {
            ("True", _) => "True".to_owned(),
            (status, "") => status.to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        },
    };
    vec![object.text("metadata.name").into(), service.into(), available.into(), context.age(object).into()]
}

/// Kinds without a printer: the API server prints when they were created, not how old they are.
///
/// Source: `NewDefaultTableConvertor` of `k8s.io/apiserver/pkg/registry/rest`.
pub(super) fn created(object: &Tree<'_>, _: &Context) -> Vec<Value> {
    // Without a time Go writes the zero time.
    let time = object.text_or("metadata.creationTimestamp", "0001-01-01T00:00:00Z");
    vec![object.text("metadata.name").into(), time.into()]
}
