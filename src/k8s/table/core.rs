//! Kinds of the core group that are neither pods nor workloads.
//!
//! Source: `k8s.io/kubernetes/pkg/printers/internalversion`; each function names the one it mirrors.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::context::Context;
use super::text::{and_more, join, labels, or_none};
use super::tree::Tree;

/// `printService`.
pub(super) fn service(service: &Tree<'_>, context: &Context) -> Vec<Value> {
    let internal = match service.list("spec.clusterIPs").first() {
        Some(ip) => ip.as_text().unwrap_or_default(),
        None => service.text_or("spec.clusterIP", "<none>"),
    };
    let ports = service.list("spec.ports").iter().map(|port| {
        let node_port = match port.int("nodePort") {
            0 => String::new(),
            node_port => format!(":{node_port}"),
        };
        format!("{}{node_port}/{}", port.int("port"), port.text("protocol"))
    });
    vec![
        service.text("metadata.name").into(),
        service.text("spec.type").into(),
        internal.into(),
        external_ip(service).into(),
        or_none(ports.collect::<Vec<_>>().join(",")).into(),
        context.age(service).into(),
        labels(service.at("spec.selector")).into(),
    ]
}

/// `getServiceExternalIP`.
fn external_ip(service: &Tree<'_>) -> String {
    let external = join(service.list("spec.externalIPs").iter().filter_map(Tree::as_text));
    match service.text("spec.type") {
        "ClusterIP" | "NodePort" => or_none(external),
        "LoadBalancer" => {
            let balancer = load_balancer(service);
            match (balancer.is_empty(), external.is_empty()) {
                (true, true) => "<pending>".to_owned(),
                (true, false) => external,
                (false, true) => balancer,
                (false, false) => format!("{balancer},{external}"),
            }
        }
        "ExternalName" => service.text("spec.externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// The addresses of a load balancer, each once, in order; servers never cut them short in tables.
///
/// `loadBalancerStatusStringer`.
pub(super) fn load_balancer(object: &Tree<'_>) -> String {
    let points = object.list("status.loadBalancer.ingress").iter();
    let mut all: Vec<&str> = points.map(|point| point.text_or("ip", point.text("hostname"))).collect();
    all.retain(|address| !address.is_empty());
    all.sort_unstable();
    all.dedup();
    all.join(",")
}

/// `printEndpoints`.
pub(super) fn endpoints(endpoints: &Tree<'_>, context: &Context) -> Vec<Value> {
    const SHOWN_MAX: usize = 3;
    // Each address has each port of its subset: only counted, but for those that are shown.
    let (mut shown, mut count) = (Vec::new(), 0);
    for subset in endpoints.list("subsets") {
        let (addresses, ports) = (subset.list("addresses"), subset.list("ports"));
        count += addresses.len() * ports.len().max(1);
        let left = SHOWN_MAX - shown.len();
        if ports.is_empty() {
            addresses.iter().take(left).for_each(|address| shown.push(address.text("ip").to_owned()));
        }
        let pairs = ports.iter().flat_map(|port| addresses.iter().map(move |address| (address, port)));
        pairs
            .take(left)
            .for_each(|(address, port)| shown.push(host_and_port(address.text("ip"), port.int("port"))));
    }
    let text = if endpoints.list("subsets").is_empty() {
        "<none>".to_owned()
    } else {
        and_more(shown.join(","), count - shown.len())
    };
    vec![endpoints.text("metadata.name").into(), text.into(), context.age(endpoints).into()]
}

/// Go's `net.JoinHostPort`.
fn host_and_port(host: &str, port: i64) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// `printNamespace`.
pub(super) fn namespace(namespace: &Tree<'_>, context: &Context) -> Vec<Value> {
    let phase = namespace.text("status.phase");
    vec![namespace.text("metadata.name").into(), phase.into(), context.age(namespace).into()]
}

/// `printConfigMap`.
pub(super) fn config_map(map: &Tree<'_>, context: &Context) -> Vec<Value> {
    let count = map.get("data").entries().len() + map.get("binaryData").entries().len();
    vec![map.text("metadata.name").into(), count.into(), context.age(map).into()]
}

/// `printSecret`.
pub(super) fn secret(secret: &Tree<'_>, context: &Context) -> Vec<Value> {
    let count = secret.get("data").entries().len();
    let name = secret.text("metadata.name");
    vec![name.into(), secret.text("type").into(), count.into(), context.age(secret).into()]
}

/// `printServiceAccount`.
pub(super) fn service_account(account: &Tree<'_>, context: &Context) -> Vec<Value> {
    let count = account.list("secrets").len();
    vec![account.text("metadata.name").into(), count.into(), context.age(account).into()]
}

/// The class an annotation names, from before there was a field.
fn storage_class<'s>(volume: &'s Tree<'_>) -> &'s str {
    let annotation = volume.at("metadata.annotations").get("volume.beta.kubernetes.io/storage-class");
    annotation.as_text().unwrap_or_else(|| volume.text("spec.storageClassName"))
}

/// `GetAccessModesAsString`.
fn access_modes(modes: &[Tree<'_>]) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |name: &str| modes.iter().any(|mode| mode.as_text() == Some(name));
    join(known.into_iter().filter(|(name, _)| has(name)).map(|(_, short)| short))
}

/// A quantity; `0` where there is none.
fn quantity<'s>(quantities: &'s Tree<'_>, name: &str) -> std::borrow::Cow<'s, str> {
    let quantity = quantities.get(name);
    if quantity.is_there() { quantity.plain() } else { "0".into() }
}

/// The phase, unless the object is being deleted.
fn phase<'s>(object: &'s Tree<'_>) -> &'s str {
    let is_going = object.at("metadata.deletionTimestamp").is_there();
    if is_going { "Terminating" } else { object.text("status.phase") }
}

/// `printPersistentVolume`.
pub(super) fn persistent_volume(volume: &Tree<'_>, context: &Context) -> Vec<Value> {
    let claim = volume.at("spec.claimRef");
    let claim = if claim.is_there() {
        format!("{}/{}", claim.text("namespace"), claim.text("name"))
    } else {
        String::new()
    };
    vec![
        volume.text("metadata.name").into(),
        quantity(volume.at("spec.capacity"), "storage").into(),
        access_modes(volume.list("spec.accessModes")).into(),
        volume.text("spec.persistentVolumeReclaimPolicy").into(),
        phase(volume).into(),
        claim.into(),
        storage_class(volume).into(),
        volume.text_or("spec.volumeAttributesClassName", "<unset>").into(),
        volume.text("status.reason").into(),
        context.age(volume).into(),
        volume.text_or("spec.volumeMode", "<unset>").into(),
    ]
}

/// `printPersistentVolumeClaim`.
pub(super) fn persistent_volume_claim(claim: &Tree<'_>, context: &Context) -> Vec<Value> {
    let volume = claim.text("spec.volumeName");
    let (capacity, modes) = if volume.is_empty() {
        Default::default()
    } else {
        let capacity = quantity(claim.at("status.capacity"), "storage");
        (capacity, access_modes(claim.list("status.accessModes")))
    };
    vec![
        claim.text("metadata.name").into(),
        phase(claim).into(),
        volume.into(),
        capacity.into(),
        modes.into(),
        storage_class(claim).into(),
        claim.text_or("spec.volumeAttributesClassName", "<unset>").into(),
        context.age(claim).into(),
        claim.text_or("spec.volumeMode", "<unset>").into(),
    ]
}

/// `printResourceQuota`.
pub(super) fn resource_quota(quota: &Tree<'_>, context: &Context) -> Vec<Value> {
    // By name: a quota may count thousands of kinds.
    let by_name = |path| -> BTreeMap<&str, &Tree<'_>> {
        quota.at(path).entries().iter().map(|(name, value)| (&**name, value)).collect()
    };
    let (used, hard) = (by_name("status.used"), by_name("status.hard"));
    let (mut requests, mut limits) = (String::new(), String::new());
    for (name, hard) in hard {
        let column = if name.starts_with("limits.") { &mut limits } else { &mut requests };
        let separator = if column.is_empty() { "" } else { ", " };
        let used = used.get(name).map_or("0".into(), |used| used.plain());
        let hard = if hard.is_there() { hard.plain() } else { "0".into() };
        // Writing to a string cannot fail.
        let _ = write!(column, "{separator}{name}: {used}/{hard}");
    }
    let age = context.age(quota);
    vec![quota.text("metadata.name").into(), age.clone().into(), requests.into(), limits.into(), age.into()]
}
