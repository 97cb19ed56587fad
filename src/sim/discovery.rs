//! Discovery of groups, versions and resources, as legacy documents and in the aggregated form.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use hyper::{Response, header};
use serde_json::{Value, json};

use super::http::{self, Body, Call};
use super::kinds::Kind;
use super::shared::Shared;
use super::status::Status;

/// `/version`. The version of Kubernetes whose rules the simulator follows.
pub(super) const VERSION: &str = r#"{
  "major": "1",
  "minor": "36",
  "gitVersion": "v1.36.0-informerd-sim",
  "gitCommit": "0000000000000000000000000000000000000000",
  "gitTreeState": "clean",
  "buildDate": "2026-01-01T00:00:00Z",
  "goVersion": "go1.26.6",
  "compiler": "gc",
  "platform": "linux/amd64"
}"#;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Groups with their versions, the preferred first, each with its kinds.
type Groups = BTreeMap<String, Vec<(String, Vec<Kind>)>>;

/// Answers `/api`, `/api/v1`, `/apis`, `/apis/{group}` and `/apis/{group}/{version}`.
pub(super) fn answer(shared: &Shared, call: &Call, parts: &[&str]) -> Response<Body> {
    let groups = groups(shared);
    let accept = call.header(header::ACCEPT);
    let document = match parts {
        ["api" | "apis"] if accepts_aggregated(accept) && !shared.faults.is_legacy_discovery() => {
            return aggregated(call, &groups, parts[0] == "api");
        }
        // The client accepts only a form that is not offered, such as the aggregated one.
        ["api" | "apis"] if !accept.is_empty() && !accepts_plain(accept) => {
            let message = "only the following media types are accepted: application/json";
            return http::error(&Status::new(406, "NotAcceptable", message));
        }
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        })),
        ["apis"] => {
            let groups: Vec<Value> =
                groups.iter().filter(|(n, _)| !n.is_empty()).map(|(n, v)| group(n, v)).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources(&groups, "", version),
        ["apis", name] => groups.get(*name).map(|versions| {
            let mut document = group(name, versions);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            document
        }),
        ["apis", name, version] => resources(&groups, name, version),
        _ => None,
    };
    match document {
        Some(document) => http::json(200, document.to_string()),
        None if parts.first() == Some(&"api") => http::error(&Status::no_such_resource()),
        None => http::json(404, paths(shared)),
    }
}

fn accepts_plain(accept: &str) -> bool {
    accept.split(',').any(|entry| {
        let mut words = entry.split(';').map(str::trim);
        let media_type = words.next().unwrap_or_default();
        matches!(media_type, "application/json" | "application/*" | "*/*") && !entry.contains("as=")
    })
}

fn accepts_aggregated(accept: &str) -> bool {
    accept.split(',').any(|entry| {
        let has = |word: &str| entry.split(';').any(|part| part.trim() == word);
        has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=APIGroupDiscoveryList")
    })
}

fn groups(shared: &Shared) -> Groups {
    let mut groups = Groups::new();
    for kind in shared.cluster.lock().kinds() {
        let versions = groups.entry(kind.group.clone()).or_default();
        for version in &kind.versions {
            match versions.iter_mut().find(|(name, _)| name == version) {
                Some((_, kinds)) => kinds.push(kind.clone()),
                None => versions.push((version.clone(), vec![kind.clone()])),
            }
        }
    }
    groups
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn group(name: &str, versions: &[(String, Vec<Kind>)]) -> Value {
    let entry = |version: &str| json!({"groupVersion": group_version(name, version), "version": version});
    let entries: Vec<Value> = versions.iter().map(|(version, _)| entry(version)).collect();
    json!({"name": name, "versions": entries, "preferredVersion": entries[0]})
}

fn resources(groups: &Groups, group: &str, version: &str) -> Option<Value> {
    let (_, kinds) = groups.get(group)?.iter().find(|(name, _)| name == version)?;
    let mut list = Vec::new();
    for kind in kinds {
        let mut entry = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.is_namespaced(),
            "kind": kind.kind, "verbs": VERBS,
        });
        if !kind.short_names.is_empty() {
            entry["shortNames"] = kind.short_names.clone().into();
        }
        if !kind.categories.is_empty() {
            entry["categories"] = kind.categories.clone().into();
        }
        list.push(entry);
        for subresource in &kind.subresources {
            let mut entry = json!({
                "name": format!("{}/{subresource}", kind.plural), "singularName": "",
                "namespaced": kind.is_namespaced(), "kind": kind.kind, "verbs": SUBRESOURCE_VERBS,
            });
            if *subresource == "scale" {
                entry["group"] = "autoscaling".into();
                entry["version"] = "v1".into();
                entry["kind"] = "Scale".into();
            }
            list.push(entry);
        }
    }
    let group_version = group_version(group, version);
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}),
    )
}

fn aggregated(call: &Call, groups: &Groups, core: bool) -> Response<Body> {
    let chosen = groups.iter().filter(|(name, _)| name.is_empty() == core);
    let items: Vec<Value> = chosen.map(|(name, versions)| aggregated_group(name, versions)).collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    });
    let text = format!("{list}\n");
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let etag = format!("\"{:016X}\"", hasher.finish());
    let unchanged = call.header(header::IF_NONE_MATCH) == etag;
    let mut response =
        if unchanged { http::whole(304, AGGREGATED, "") } else { http::whole(200, AGGREGATED, text) };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag.parse().expect("hexadecimal digits in quotes make a header value"));
    headers.insert(header::VARY, header::HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("public"));
    response
}

fn aggregated_group(name: &str, versions: &[(String, Vec<Kind>)]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|(version, kinds)| {
            let resources: Vec<Value> = kinds.iter().map(|kind| aggregated_resource(kind, version)).collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(kind: &Kind, version: &str) -> Value {
    let own = json!({"group": kind.group, "version": version, "kind": kind.kind});
    let mut entry = json!({
        "resource": kind.plural, "responseKind": own, "singularResource": kind.singular, "verbs": VERBS,
        "scope": if kind.is_namespaced() { "Namespaced" } else { "Cluster" },
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = kind.short_names.clone().into();
    }
    if !kind.categories.is_empty() {
        entry["categories"] = kind.categories.clone().into();
    }
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|name| {
            let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
            let response = if *name == "scale" { &scale } else { &own };
            json!({"subresource": name, "responseKind": response, "verbs": SUBRESOURCE_VERBS})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

/// The root document, which real servers also send with 404.
pub(super) fn paths(shared: &Shared) -> String {
    let mut paths: Vec<String> = [
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for (name, versions) in groups(shared).iter().filter(|(name, _)| !name.is_empty()) {
        paths.push(format!("/apis/{name}"));
        paths.extend(versions.iter().map(|(version, _)| format!("/apis/{name}/{version}")));
    }
    paths.sort();
    json!({"paths": paths}).to_string()
}
