//! Objects as tables: what `kubectl get` asks for.

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

/// What defines custom resources, their columns among it.
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// What the API server's version document tells.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

/// How the objects of an informer look in a table; `None` where that is not known: they are held in part, or are
/// custom resources of which neither an informer nor the API server has the definition. That is asked for only where the
/// client wants a table.
///
/// # Errors
/// Where it is not known, a table is what the client likes best, and the API server may be asked for it.
pub(super) async fn table(
    server: &Server,
    informer: &Informer,
    headers: &HeaderMap,
) -> Result<Option<Arc<Table>>, ApiError> {
    let table = match informer.metadata_only {
        true => None,
        false => {
            let columns = columns(server, informer, headers).await;
            Table::of(&informer.resource, columns.as_deref(), minor(server)).map(Arc::new)
        }
    };
    if table.is_none() && server.pass.is_some() && negotiate::wants_table(headers) {
        return Err(ApiError::not_acceptable("application/json").uncached());
    }
    Ok(table)
}

/// Writes tables as a request asks for them.
///
/// # Errors
/// 400 where it asks for more or less of the objects than there is.
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

/// The moment at which ages are told.
pub(super) fn now() -> Timestamp {
    Timestamp::since_epoch(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// The columns of a custom resource.
async fn columns(server: &Server, informer: &Informer, headers: &HeaderMap) -> Option<Arc<[PrinterColumn]>> {
    if informer.resource.is_built_in() {
        return None;
    }
    let held = held_columns(server, informer);
    if held.is_some() || !negotiate::wants_table(headers) {
        return held;
    }
    server.definitions.columns(&informer.resource).await
}

/// The same, where the definition is held.
fn held_columns(server: &Server, informer: &Informer) -> Option<Arc<[PrinterColumn]>> {
    let informers = server.hub.informers();
    let definitions = informers.iter().find(|other| other.resource.canonical() == DEFINITIONS)?;
    let name = Some(informer.resource.canonical());
    let selection = Selection::new(Vec::new(), name, &LabelSelector::default(), &FieldSelector::default());
    let snapshot = definitions.reader.snapshot();
    let definition = selection.objects(&snapshot, None).next()?;
    let columns = PrinterColumn::of_definition(definition.json(), informer.resource.version()).ok().flatten();
    columns.map(Into::into)
}

/// The API server's minor version. The document's own `minor` is empty in some builds and has a sign behind it in
/// others.
fn minor(server: &Server) -> Option<u32> {
    let version: Version = serde_json::from_slice(&server.hub.version()?).ok()?;
    version.git_version.split('.').nth(1)?.parse().ok()
}
