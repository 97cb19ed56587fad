//! Objects as tables, for `kubectl get`.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::HeaderMap;
use serde::Deserialize;

use super::super::{ApiError, Server};
use super::negotiate;
use super::options::Query;
use crate::encode::{IncludeObject, TableEncoder};
use crate::hub::{Informer, Selection};
use crate::k8s::table::{PrinterColumn, Table, Timestamp};
use crate::k8s::{FieldSelector, LabelSelector};

/// The resource of definitions of custom resources, which include their columns.
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The API server's version document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

/// The table of an informer's objects. `None` if its columns are unknown: the objects are held in part, or are custom
/// resources whose definition neither an informer nor the API server has. The API server is asked only if the client
/// wants a table.
///
/// # Errors
/// If the columns are unknown, the client prefers a table, and the request may be passed through to the API server.
pub(super) async fn table(
    server: &Server,
    informer: &Informer,
    headers: &HeaderMap,
) -> Result<Option<Arc<Table>>, ApiError> {
    let table = match informer.spec.content.metadata_only {
        true => None,
        false => {
            let columns = columns(server, informer, headers).await;
            Table::of(&informer.spec.resource, columns.as_deref(), minor(server)).map(Arc::new)
        }
    };
    if table.is_none() && server.pass.is_some() && negotiate::wants_table(headers) {
        return Err(ApiError::not_acceptable("application/json").uncached());
    }
    Ok(table)
}

/// The encoder of tables for a request.
///
/// # Errors
/// 400 for an invalid `includeObject`.
pub(super) fn encoder(
    table: Arc<Table>,
    query: &Query,
    headers: &HeaderMap,
) -> Result<TableEncoder, ApiError> {
    let asked = query.get("includeObject").unwrap_or_default();
    let include = IncludeObject::parse(asked).ok_or_else(|| {
        let text: String = asked.chars().take(200).collect();
        let accepted = "must be 'Metadata', 'Object', 'None', or empty";
        let message = format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {text:?}: {accepted}"
        );
        ApiError::bad_request(message)
    })?;
    Ok(TableEncoder::new(table, include, negotiate::table_version(headers)))
}

/// The moment for which ages are printed.
pub(super) fn now() -> Timestamp {
    Timestamp::since_epoch(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// The columns of a custom resource.
async fn columns(server: &Server, informer: &Informer, headers: &HeaderMap) -> Option<Arc<[PrinterColumn]>> {
    if informer.spec.resource.is_built_in() {
        return None;
    }
    // To read the definition costs more than most answers.
    if !negotiate::takes_table(headers) {
        return None;
    }
    let held = held_columns(server, informer);
    if held.is_some() || !negotiate::wants_table(headers) {
        return held;
    }
    server.definitions.columns(&informer.spec.resource).await
}

/// The same, if an informer holds the definition.
fn held_columns(server: &Server, informer: &Informer) -> Option<Arc<[PrinterColumn]>> {
    let informers = server.hub.informers();
    let definitions = informers.iter().find(|other| other.spec.resource.canonical() == DEFINITIONS)?;
    let name = Some(informer.spec.resource.canonical());
    let selection = Selection::new(Vec::new(), name, &LabelSelector::default(), &FieldSelector::default());
    let snapshot = definitions.reader.snapshot();
    let definition = selection.objects(&snapshot, None).next()?;
    let columns =
        PrinterColumn::of_definition(&definition.text(), informer.spec.resource.version()).ok().flatten();
    columns.map(Into::into)
}

/// The API server's minor version. The document's `minor` is empty in some builds, and followed by a sign in others.
fn minor(server: &Server) -> Option<u32> {
    let version: Version = serde_json::from_slice(&server.hub.version()?).ok()?;
    version.git_version.split('.').nth(1)?.parse().ok()
}
