//! `/v1/index/…`: the values at a path, how many objects have each, and the objects by value.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, RawQuery, Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::held_body::held_body;
use super::index_target::{IndexTarget, WAIT, distinct, index_path, ready};
use super::list_body::{ListPosition, Listing};
use super::load::{EndsWithClient, Load};
use super::negotiate::accepted;
use super::params::Params;
use super::target::{PROJECTION, SELECTION, Target};
use super::{ApiError, Server, body, counts, snapshot};
use crate::encode::{Frames, ListEncoder, ListFormat};
use crate::hub::{Informer, Selection};
use crate::k8s::{IndexPath, IndexPaths, Term, Test};

/// Its route.
const ROUTE: &str = "/v1/index/";

/// Largest number of values that one request looks up, such as the pod IPs in a batch of log lines.
const VALUES_MAX: usize = 1024;

/// Largest body of a lookup of many values, in bytes: twice what as many uids take.
const BODY_BYTES_MAX: usize = 128 << 10;

/// Largest answer to a lookup of many values, in bytes of objects. It is built in memory, while a list by one value streams.
const RESULT_BYTES_MAX: usize = 32 << 20;

/// The indexes of a resource.
#[derive(Serialize)]
struct IndexList {
    resource: String,
    indexes: Vec<IndexInfo>,
}

#[derive(Serialize)]
struct IndexInfo {
    path: String,
    complete: bool,
    values: usize,
    bytes: usize,
    users: usize,
}

/// The body of a lookup of many values.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lookup {
    values: Vec<String>,
}

pub(super) async fn index(
    State(server): State<Server>,
    Extension(load): Extension<Arc<Load>>,
    uri: Uri,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let at = IndexTarget::parse(ROUTE, &uri)?;
    let of_values: &[&[&str]] = &[SELECTION, PROJECTION, &["value"]];
    // The list of indexes selects no objects.
    let accepted_params = if at.path.is_some() { of_values } else { &[&["namespace"] as &[&str]] };
    let params = Params::parse(query.as_deref(), accepted_params)?;
    let target = server.target(&at.resource, &params, Instant::now() + WAIT).await?;
    ready(&server, &target).await?;
    let _ends = EndsWithClient::begin(&load);
    let Some(path) = &at.path else { return Ok(indexes(&at.resource, &target.informers)) };
    let path = index_path(path, &target.informers)?;
    let mut values: Vec<String> = params.all("value").map(str::to_owned).collect();
    values.extend(at.value);
    if values.is_empty() {
        if let Some(fields) = params.get("fields") {
            return Err(ApiError::invalid("fields", fields, "expected a value, too: counts have no objects"));
        }
        return counts::counts(&server, &at.resource, path, target).await;
    }
    let selection = target.selection.and(Term { path, test: Test::In(sorted(values)?.into()) });
    let format = accepted(&headers, &snapshot::OFFERED)
        .ok_or_else(|| ApiError::not_acceptable("application/json, application/x-ndjson"))?;
    Ok(objects(&server, &target.informers, selection, format).await)
}

/// The selected objects as a list.
async fn objects(
    server: &Server,
    informers: &[Arc<Informer>],
    selection: Selection,
    format: ListFormat,
) -> Response {
    let selection = Arc::new(selection);
    server.turns.index(informers, &selection).await;
    let states = Listing::current(informers, &selection);
    let version = (states.len() == 1).then(|| states[0].snapshot.position.clone());
    let shown = informers[0].shown();
    let (kind, api_version) = (format!("{}List", shown.kind()), shown.api_version());
    let list = ListEncoder::new(format, &kind, &api_version, version.as_ref(), None);
    let (generations, turns) = (server.hub.generations(), server.turns.clone());
    let listing = Listing::new(informers, &selection, states, generations, turns);
    let place = ListPosition::default();
    let body = listing.into_body(place, usize::MAX, Frames::new(), list, server.config.batch_bytes_max);
    let content_type = match format {
        ListFormat::Json => "application/json",
        ListFormat::Ndjson => "application/x-ndjson",
    };
    ([(header::CONTENT_TYPE, content_type)], body.into_response()).into_response()
}

pub(super) async fn lookup(
    State(server): State<Server>,
    Extension(load): Extension<Arc<Load>>,
    uri: Uri,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let at = IndexTarget::parse(ROUTE, &uri)?;
    let (Some(path), None) = (&at.path, &at.value) else {
        return Err(ApiError::invalid("path", uri.path(), "expected /v1/index/RESOURCE/PATH to POST to"));
    };
    let body = body::json(request, BODY_BYTES_MAX).await?;
    let accepted = r#"expected {"values":["…"]}"#;
    if !body::is_object(&body) {
        return Err(body::wrong_json("body", &body, accepted));
    }
    let lookup: Lookup = serde_json::from_slice(&body)
        .map_err(|error| body::wrong_json("body", &body, &format!("{accepted}: {error}")))?;
    let params = Params::parse(query.as_deref(), &[SELECTION, PROJECTION])?;
    let target = server.target(&at.resource, &params, Instant::now() + WAIT).await?;
    ready(&server, &target).await?;
    let _ends = EndsWithClient::begin(&load);
    let path = index_path(path, &target.informers)?;
    let values = sorted(lookup.values)?;
    by_value(&server, &at.resource, path, values, target).await
}

fn sorted(mut values: Vec<String>) -> Result<Vec<String>, ApiError> {
    values.sort_unstable();
    values.dedup();
    if values.is_empty() || values.len() > VALUES_MAX {
        let accepted = format!("expected 1 to {VALUES_MAX} values");
        return Err(ApiError::invalid("values", &values.len().to_string(), &accepted));
    }
    Ok(values)
}

fn indexes(resource: &str, informers: &[Arc<Informer>]) -> Response {
    let mut indexes: BTreeMap<String, IndexInfo> = BTreeMap::new();
    for summary in informers.iter().flat_map(|informer| informer.reader.indexes()) {
        let path = summary.path.to_string();
        let info = indexes.entry(path.clone()).or_insert(IndexInfo {
            path,
            complete: true,
            values: 0,
            bytes: 0,
            users: 0,
        });
        info.complete &= summary.complete;
        info.values += summary.values;
        info.bytes += summary.bytes;
        info.users += summary.users;
    }
    let list = IndexList { resource: resource.to_owned(), indexes: indexes.into_values().collect() };
    axum::Json(list).into_response()
}

/// The objects of each of many values, all from one state of the cache.
async fn by_value(
    server: &Server,
    resource: &str,
    path: IndexPath,
    values: Vec<String>,
    target: Target,
) -> Result<Response, ApiError> {
    let Target { informers, selection, .. } = target;
    let paths = IndexPaths::new(vec![path.clone()]);
    let selection =
        Arc::new(selection.and(Term { path: path.clone(), test: Test::In(values.clone().into()) }));
    server.turns.index(&informers, &selection).await;
    let mut found: BTreeMap<&str, Vec<Bytes>> = values.iter().map(|value| (&**value, Vec::new())).collect();
    let states = Listing::current(&informers, &selection);
    let versions: Vec<_> = states.iter().map(|state| state.snapshot.position.to_string()).collect();
    let listing =
        Listing::new(&informers, &selection, states, server.hub.generations(), server.turns.clone());
    let mut bytes = 0;
    let complete = listing.visit(|object| {
        if bytes > RESULT_BYTES_MAX {
            return;
        }
        let json = match selection.form.part_of(object) {
            Some(part) => part.json(),
            None => object.json(),
        };
        for value in distinct(object, &paths) {
            if let Some(objects) = found.get_mut(&*value) {
                bytes += json.len();
                objects.push(json.clone());
            }
        }
    });
    if !complete.await {
        return Err(ApiError::unavailable("the objects could not be looked up in time", 1));
    }
    if bytes > RESULT_BYTES_MAX {
        let accepted = format!(
            "their objects have more than {RESULT_BYTES_MAX} bytes: expected fewer values, fields=, or a GET by value, which streams"
        );
        return Err(ApiError::invalid("values", &values.len().to_string(), &accepted));
    }
    let version = if let [version] = &*versions { version.as_str() } else { "" };
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let head = format!(
        r#"{{"resource":{},"path":{},"resourceVersion":{},"results":["#,
        text(resource),
        text(&path.to_string()),
        text(version)
    );
    let mut pieces = VecDeque::from([Bytes::from(head)]);
    for (index, (value, objects)) in found.into_iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        pieces.push_back(format!(r#"{comma}{{"value":{},"objects":["#, text(value)).into());
        for (index, object) in objects.into_iter().enumerate() {
            pieces.extend((index > 0).then_some(Bytes::from_static(b",")));
            pieces.push_back(object);
        }
        pieces.push_back(Bytes::from_static(b"]}"));
    }
    pieces.push_back(Bytes::from_static(b"]}\n"));
    Ok(([(header::CONTENT_TYPE, "application/json")], held_body(server, pieces)).into_response())
}
