//! The API server's own interface, read-only: its paths, its parameters, its words, answered from the caches.
//!
//! In come requests as any Kubernetes client sends them; out go lists, objects and watches as the API server would give
//! them, as of the cache. It never writes, and never asks the API server.

mod discovery;
mod error;
mod fields;
mod get;
mod labels;
mod list;
mod negotiate;
mod options;
mod path;
mod resource;
mod tables;
mod watch;

use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use axum::response::Response;

use super::{ApiError, Server};
use options::{ListOptions, Query, Verb};
use path::{Place, Target};

/// Answers any request below `/api`, `/apis` and `/version`.
pub(super) async fn answer(
    State(server): State<Server>,
    request: Request<axum::body::Body>,
) -> Result<Response, ApiError> {
    let (request, _) = request.into_parts();
    if request.method != Method::GET {
        return Err(ApiError::only_get());
    }
    match Place::parse(request.uri.path()) {
        Place::Objects(target) => objects(&server, &target, &request).await,
        place @ (Place::Version
        | Place::CoreVersions
        | Place::Groups
        | Place::Group(_)
        | Place::Resources { .. }) => discovery::document(&server, &place, &request.headers).await,
        Place::Nothing => Err(error::nothing_there()),
    }
}

async fn objects(server: &Server, target: &Target, request: &Parts) -> Result<Response, ApiError> {
    let (query, headers) = (Query::parse(request.uri.query())?, &request.headers);
    if target.name.is_some() {
        return get::get(server, target, &query, headers).await;
    }
    let options = ListOptions::parse(&query)?;
    match options.verb {
        Verb::List { .. } => list::list(server, target, options, &query, headers).await,
        Verb::Watch { .. } => watch::watch(server, target, options, &query, headers).await,
    }
}

/// What every answer says.
fn answer_headers(age_seconds: u64) -> HeaderMap {
    HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private")),
        (header::AGE, age_seconds.into()),
    ])
}
