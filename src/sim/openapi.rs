//! The part of OpenAPI that kubectl reads before it writes: which kinds accept `fieldValidation`, without schemas.

use hyper::Response;
use serde_json::{Map, Value, json};

use super::http::{self, Body};
use super::kinds::Kind;
use super::shared::Shared;

/// Answers `/openapi/v3`, `/openapi/v3/{group version path}` and `/openapi/v2`.
pub(super) fn answer(shared: &Shared, path: &str, accept: &str) -> Response<Body> {
    let kinds = shared.cluster.lock().kinds();
    let below = path.strip_prefix("openapi/v3").map(|rest| rest.trim_matches('/'));
    let document = match below {
        Some("") => Some(index(&kinds)),
        Some(group_version) => group_version_document(&kinds, group_version),
        // A kubectl before 1.27 reads only this document, and only as protobuf.
        None if path == "openapi/v2" && accept.contains("protobuf") => {
            return http::whole(200, V2_PROTOBUF, v2_in_protobuf());
        }
        None if path == "openapi/v2" => {
            Some(json!({"swagger": "2.0", "info": info(), "paths": {}, "definitions": {}}))
        }
        None => None,
    };
    match document {
        Some(document) => http::json(200, document.to_string()),
        None => http::json(404, super::discovery::paths(shared)),
    }
}

const TITLE: &str = "Kubernetes";
const VERSION: &str = "v1.36.0-informerd-sim";
/// No type: servers of that time send none, as the @ in its name makes it invalid.
const V2_PROTOBUF: &str = "application/octet-stream";

fn info() -> Value {
    json!({"title": TITLE, "version": VERSION})
}

/// The empty document as `openapi.v2.Document` (gnostic): without schemas kubectl validates nothing.
fn v2_in_protobuf() -> Vec<u8> {
    // A length-delimited field; all are shorter than 128 bytes, so a length is one byte.
    let field = |number: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).expect("the texts above are short");
        [&[number << 3 | 2, length], bytes].concat()
    };
    let info = [field(1, TITLE.as_bytes()), field(2, VERSION.as_bytes())].concat();
    // swagger, info, paths, definitions.
    [field(1, b"2.0"), field(2, &info), field(8, b""), field(9, b"")].concat()
}

/// `api/v1`, `apis/apps/v1`: the key of the index, and the start of every path below it.
fn group_versions(kind: &Kind) -> impl Iterator<Item = String> {
    kind.versions.iter().map(|version| match kind.group.as_str() {
        "" => format!("api/{version}"),
        group => format!("apis/{group}/{version}"),
    })
}

fn index(kinds: &[Kind]) -> Value {
    let mut paths = Map::new();
    for group_version in kinds.iter().flat_map(group_versions) {
        let url = format!("/openapi/v3/{group_version}?hash=0");
        paths.insert(group_version, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

fn group_version_document(kinds: &[Kind], group_version: &str) -> Option<Value> {
    let served = kinds.iter().filter(|kind| group_versions(kind).any(|known| known == group_version));
    let mut paths = Map::new();
    for kind in served {
        let version = group_version.rsplit('/').next().unwrap_or_default();
        let scope = if kind.is_namespaced() { "namespaces/{namespace}/" } else { "" };
        let path = format!("/{group_version}/{scope}{}/{{name}}", kind.plural);
        let gvk = json!({"group": kind.group, "version": version, "kind": kind.kind});
        let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation", "force"]
            .iter()
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
            .collect();
        let patch = json!({
            "operationId": format!("patch{}", kind.kind), "parameters": parameters,
            "responses": {"200": {"description": "OK"}}, "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": gvk,
        });
        paths.insert(path, json!({"patch": patch}));
    }
    (!paths.is_empty()).then(|| json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": {}}))
}
