//! `GET /v1/graph/…`: the objects around others, along links and owner references. `GET /v1/watch-graph/…`: the same as a stream.

mod answer;
mod reads;
mod request;
mod search;
mod stream;

use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};

use self::request::{PARAMS, Request};
pub(super) use self::search::owned_by;
pub(super) use self::stream::watch;
use super::held_body::whole_body;
use super::load::{EndsWithClient, Load};
use super::params::Params;
use super::target::{self, SELECTION};
use super::{ApiError, Server};

const ROUTE: &str = "/v1/graph/";

pub(super) async fn graph(
    State(server): State<Server>,
    Extension(load): Extension<Arc<Load>>,
    uri: Uri,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let params = Params::parse(query.as_deref(), &[SELECTION, PARAMS])?;
    let request = Request::read(&server, target::path_after(ROUTE, &uri), &params).await?;
    let _ends = EndsWithClient::begin(&load);
    let graph = request.search(&server, None).await?;
    if request.target.single && graph.nodes.is_empty() {
        let name = request.target.selection.name.as_deref().unwrap_or_default();
        return Err(ApiError::no_object(&request.target.informers[0].spec.resource, name));
    }
    let headers = [(header::CACHE_CONTROL, "no-cache"), (header::CONTENT_TYPE, "application/json")];
    let json = serde_json::to_vec(&graph).expect("a graph has only text as keys");
    Ok((headers, whole_body(&server, json)).into_response())
}
