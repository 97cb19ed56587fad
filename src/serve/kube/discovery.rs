//! Discovery documents, which list the served resources.
//!
//! They name the resources that informers follow and those that may start on demand, with the served verbs, in the API
//! server's form; KEP-3352 for the aggregated one.

use std::cmp::Reverse;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};
use tokio::time::Instant;

use super::super::{ApiError, Server};
use super::error;
use super::headers::answer_headers;
use super::negotiate::clauses;
use super::path::ApiPath;
use crate::k8s::Resource;

/// The served verbs of each resource.
const VERBS: [&str; 3] = ["get", "list", "watch"];

/// Time for which a request waits for the first discovery, as clients keep the answer for hours.
const WAIT: Duration = Duration::from_secs(5);

/// The `Content-Type` of the aggregated form. Clients compare it byte by byte.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The form of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Aggregated,
}

/// The resources of one group.
struct ApiGroup<'r> {
    name: &'r str,
    /// The preferred version first.
    versions: Vec<(&'r str, Vec<&'r Resource>)>,
}

/// A discovery document.
pub(super) async fn document(
    server: &Server,
    place: &ApiPath,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    if !server.hub.discovered(Instant::now() + WAIT).await {
        let message = "discovery of the API server's kinds has not ended yet";
        return Err(ApiError::unavailable(message, 1));
    }
    if *place == ApiPath::Version {
        return version(server);
    }
    let resources = server.hub.served();
    let groups = grouped(&resources);
    let form = form(headers, matches!(place, ApiPath::CoreVersions | ApiPath::Groups))?;
    let document = match (place, form) {
        (ApiPath::CoreVersions, Form::Plain) => {
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        }
        (ApiPath::Groups, Form::Plain) => {
            let groups = groups.iter().filter(|group| !group.name.is_empty());
            let groups: Vec<_> = groups.map(ApiGroup::document).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        (ApiPath::CoreVersions | ApiPath::Groups, Form::Aggregated) => {
            let core = *place == ApiPath::CoreVersions;
            let groups = groups.iter().filter(|group| group.name.is_empty() == core);
            let items: Vec<_> = groups.map(ApiGroup::aggregated).collect();
            let version = "apidiscovery.k8s.io/v2";
            let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": version, "metadata": {}, "items": items});
            return Ok(aggregated(&list, headers));
        }
        (ApiPath::Group(name), _) => {
            let group = groups.iter().find(|group| group.name == *name).ok_or_else(error::nothing_there)?;
            let mut document = json!({"kind": "APIGroup", "apiVersion": "v1"});
            merge(&mut document, group.document());
            document
        }
        (ApiPath::Resources { group, version }, _) => resource_list(&groups, group, version)?,
        (ApiPath::Version | ApiPath::Objects(_) | ApiPath::Nothing, _) => return Err(error::nothing_there()),
    };
    Ok((answer_headers(0), line(&document)).into_response())
}

/// The API server's own version document.
fn version(server: &Server) -> Result<Response, ApiError> {
    let version = server
        .hub
        .version()
        .ok_or_else(|| ApiError::unavailable("the API server's version was not read yet", 1))?;
    Ok((answer_headers(0), version).into_response())
}

/// The client's preferred form among the served ones.
fn form(headers: &HeaderMap, both: bool) -> Result<Form, ApiError> {
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Ok(Form::Plain);
    }
    for clause in clauses.iter().filter(|clause| clause.is_json()) {
        let is = |name, value| clause.get(name) == Some(value);
        let known = is("g", "apidiscovery.k8s.io") && is("v", "v2") && is("as", "APIGroupDiscoveryList");
        match clause.get("as") {
            None => return Ok(Form::Plain),
            Some(_) if known && both => return Ok(Form::Aggregated),
            Some(_) => {}
        }
    }
    Err(ApiError::not_acceptable("application/json"))
}

/// An aggregated document, which clients keep and revalidate by its tag.
fn aggregated(document: &Value, asked: &HeaderMap) -> Response {
    let body = line(document);
    let digest: String = Sha1::digest(&body).iter().map(|byte| format!("{byte:02X}")).collect();
    let tag = format!("\"{digest}\"");
    let known = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let same = known.flat_map(|value| value.split(',')).any(|one| one.trim() == tag);
    let mut headers = HeaderMap::new();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::ETAG, HeaderValue::from_str(&tag).expect("hexadecimal digits are a header value"));
    if same {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    (headers, body).into_response()
}

fn line(document: &Value) -> Vec<u8> {
    let mut line = document.to_string().into_bytes();
    line.push(b'\n');
    line
}

fn merge(document: &mut Value, more: Value) {
    if let (Value::Object(document), Value::Object(more)) = (document, more) {
        document.extend(more);
    }
}

fn resource_list(groups: &[ApiGroup<'_>], group: &str, version: &str) -> Result<Value, ApiError> {
    let found = groups.iter().find(|one| one.name == group);
    let found = found.and_then(|one| one.versions.iter().find(|(name, _)| *name == version));
    let resources: Vec<_> = match found {
        Some((_, resources)) => resources.iter().map(|resource| legacy(resource)).collect(),
        // `/api` always names it, whatever is served of it.
        None if group.is_empty() && version == "v1" => Vec::new(),
        None => return Err(error::nothing_there()),
    };
    let mut document = json!({"kind": "APIResourceList"});
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    merge(&mut document, json!({"groupVersion": group_version(group, version), "resources": resources}));
    Ok(document)
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// A resource in an `APIResourceList`.
fn legacy(resource: &Resource) -> Value {
    let parts = resource.parts();
    let mut document = json!({
        "name": parts.plural,
        "singularName": parts.singular,
        "namespaced": parts.namespaced,
        "kind": parts.kind,
        "verbs": VERBS,
    });
    names(resource, &mut document);
    document
}

fn names(resource: &Resource, document: &mut Value) {
    let parts = resource.parts();
    for (member, names) in [("shortNames", &parts.short_names), ("categories", &parts.categories)] {
        if !names.is_empty() {
            document[member] = names.clone().into();
        }
    }
}

impl ApiGroup<'_> {
    fn document(&self) -> Value {
        let version = |(version, _): &(&str, _)| json!({"groupVersion": group_version(self.name, version), "version": version});
        let versions: Vec<_> = self.versions.iter().map(version).collect();
        let preferred = versions.first().cloned().unwrap_or_default();
        json!({"name": self.name, "versions": versions, "preferredVersion": preferred})
    }

    fn aggregated(&self) -> Value {
        let resource = |resource: &&Resource| {
            let parts = resource.parts();
            let mut document = json!({
                "resource": parts.plural,
                "responseKind": {"group": "", "version": "", "kind": parts.kind},
                "scope": if parts.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": parts.singular,
                "verbs": VERBS,
            });
            names(resource, &mut document);
            document
        };
        let version = |(version, resources): &(&str, Vec<&Resource>)| {
            let resources: Vec<_> = resources.iter().map(resource).collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        };
        let versions: Vec<_> = self.versions.iter().map(version).collect();
        let metadata = if self.name.is_empty() { json!({}) } else { json!({"name": self.name}) };
        json!({"metadata": metadata, "versions": versions})
    }
}

/// Resources by group, in the order in which the first of each comes, and by version.
fn grouped(resources: &[Resource]) -> Vec<ApiGroup<'_>> {
    let mut groups: Vec<ApiGroup<'_>> = Vec::new();
    for resource in resources {
        let (name, version) = (resource.group(), resource.version());
        let at = groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
            groups.push(ApiGroup { name, versions: Vec::new() });
            groups.len() - 1
        });
        let versions = &mut groups[at].versions;
        match versions.iter_mut().find(|(known, _)| *known == version) {
            Some((_, resources)) => resources.push(resource),
            None => versions.push((version, vec![resource])),
        }
    }
    for group in &mut groups {
        group.versions.sort_by_key(|(version, _)| Reverse(priority(version)));
        for (_, resources) in &mut group.versions {
            resources.sort_by_key(|resource| resource.plural().to_owned());
        }
    }
    groups
}

/// The order of two versions: stable before beta before alpha, then the higher first. Source: apimachinery
/// `version/helpers.go`.
fn priority(version: &str) -> (u8, u64, u64) {
    let number = |text: &str| text.parse().unwrap_or(0);
    let digits = version.trim_start_matches('v');
    for (stage, word) in [(2, "beta"), (1, "alpha")] {
        if let Some((major, minor)) = digits.split_once(word) {
            return (stage, number(major), number(minor));
        }
    }
    (3, number(digits), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::ResourceParts;

    #[test]
    fn released_versions_go_before_beta_before_alpha() {
        let mut versions = ["v1alpha1", "v2beta1", "v1", "v1beta2", "v10", "v2"];
        versions.sort_by_key(|version| Reverse(priority(version)));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1"]);
    }

    #[test]
    fn resources_are_grouped_with_the_preferred_version_first() {
        let resource = |group: &str, version: &str, plural: &str| {
            let (group, version, plural) = (group.into(), version.into(), plural.into());
            Resource::new(ResourceParts { group, version, plural, ..Default::default() })
        };
        let resources = [
            resource("", "v1", "pods"),
            resource("apps", "v1beta1", "scales"),
            resource("apps", "v1", "deployments"),
            resource("", "v1", "configmaps"),
        ];
        let groups = grouped(&resources);
        assert_eq!(groups[1].document()["preferredVersion"]["groupVersion"], "apps/v1");
        let list = resource_list(&groups, "", "v1").unwrap();
        let names: Vec<_> = list["resources"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["configmaps", "pods"]);
        assert!(resource_list(&groups, "apps", "v2").is_err());
        assert!(resource_list(&[], "", "v1").is_ok());
    }
}
