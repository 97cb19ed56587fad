//! The API server's own interface, read-only: its paths, parameters and error texts, answered from the caches.
//!
//! In come requests as any Kubernetes client sends them; out go lists, objects and watches as an API server writes them,
//! from the cache. A request that the cache cannot answer is refused, or passed through to the API server if the operator
//! allows that (`super::pass`).

mod definitions;
mod discovery;
mod error;
mod fields;
mod get;
mod headers;
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
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;

use super::{ApiError, Server};
pub(crate) use definitions::Definitions;
pub use definitions::FetchDefinition;
use options::{ListOptions, ListOrWatch, Query};
use path::{ApiPath, PathTarget};

/// Answers any request below `/api`, `/apis` and `/version`.
pub(super) async fn answer(
    State(server): State<Server>,
    request: Request<axum::body::Body>,
) -> Result<Response, ApiError> {
    let (request, body) = request.into_parts();
    let passing = server.pass.as_ref().filter(|pass| pass.passes(&request.method));
    if request.method != Method::GET {
        return match passing {
            Some(pass) => pass.pass(&request, body).await,
            None => Err(ApiError::only_get()),
        };
    }
    let place = ApiPath::parse(request.uri.path());
    let Some(pass) = passing else { return cached(&server, place, &request).await };
    match place {
        // Everything can be passed through, so the API server's own document is the answer.
        ApiPath::CoreVersions | ApiPath::Groups | ApiPath::Group(_) | ApiPath::Resources { .. } => match pass
            .pass(&request, body)
            .await
        {
            Err(error) if error.code() == StatusCode::BAD_GATEWAY => cached(&server, place, &request).await,
            answer => answer,
        },
        ApiPath::Version | ApiPath::Objects(_) | ApiPath::Nothing => {
            match cached(&server, place, &request).await {
                Err(error) if error.is_uncached() => pass.pass(&request, body).await,
                answer => answer,
            }
        }
    }
}

/// The route under which a request is counted: list, watch, get or other. Watches are separate, as they last.
pub(super) fn operation(path: &str, query: Option<&str>) -> &'static str {
    match ApiPath::parse(path) {
        ApiPath::Objects(target) if target.name.is_some() => "kubernetes-get",
        ApiPath::Objects(_) if Query::parse(query).is_ok_and(|query| query.is_watch()) => "kubernetes-watch",
        ApiPath::Objects(_) => "kubernetes-list",
        ApiPath::Version
        | ApiPath::CoreVersions
        | ApiPath::Groups
        | ApiPath::Group(_)
        | ApiPath::Resources { .. }
        | ApiPath::Nothing => "kubernetes",
    }
}

/// Answers from the caches.
async fn cached(server: &Server, place: ApiPath, request: &Parts) -> Result<Response, ApiError> {
    match place {
        ApiPath::Objects(target) => objects(server, &target, request).await,
        place @ (ApiPath::Version
        | ApiPath::CoreVersions
        | ApiPath::Groups
        | ApiPath::Group(_)
        | ApiPath::Resources { .. }) => discovery::document(server, &place, &request.headers).await,
        ApiPath::Nothing => Err(error::nothing_there()),
    }
}

async fn objects(server: &Server, target: &PathTarget, request: &Parts) -> Result<Response, ApiError> {
    let (query, headers) = (Query::parse(request.uri.query())?, &request.headers);
    if target.name.is_some() {
        return get::get(server, target, &query, headers).await;
    }
    let options = ListOptions::parse(&query);
    let options = options.map_err(|refused| resource::unless_unknown(server, target, refused))?;
    match options.verb {
        ListOrWatch::List { .. } => list::list(server, target, options, &query, headers).await,
        ListOrWatch::Watch { .. } => watch::watch(server, target, options, &query, request).await,
    }
}
