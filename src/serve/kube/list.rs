//! Lists of the cache's state, in pages of one state if the client wants that.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice::from_ref;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::Instant;

use super::super::body::FramesBody;
use super::super::compressed::{self, Compress, ListKey, WholeList};
use super::super::list_body::{ListPosition, ListWriter, Listing};
use super::super::negotiate::{coding, compresses};
use super::super::pagination::Continue;
use super::super::{ApiError, Server};
use super::headers::answer_headers;
use super::negotiate::{self, Answer, Shape};
use super::options::{ListOptions, ListOrWatch, Query, RequestedVersion};
use super::path::PathTarget;
use super::{error, resource, tables};
use crate::cache::Snapshot;
use crate::encode::{Coding, Frames, ListEncoder, ListFormat, TableEncoder};
use crate::hub::{Candidates, Informer, Selection};
use crate::k8s::{Object, ResourceVersion};

/// The kind whose tables are in the order in which the API server matches: by precedence, then by name.
///
/// Source: `k8s.io/kubernetes/pkg/printers/internalversion`, `printFlowSchemaList`.
const BY_PRECEDENCE: &str = "flowschemas.flowcontrol.apiserver.k8s.io";

/// Size above which a list is compressed. Source: apiserver `endpoints/handlers/responsewriters/writers.go`,
/// `defaultGzipThresholdBytes`.
const COMPRESSED_BYTES_MIN: usize = 128 << 10;

/// A list to be answered with.
struct ListAnswer {
    informer: Arc<Informer>,
    state: Candidates,
    /// The version it is shown at.
    version: ResourceVersion,
    selection: Arc<Selection>,
    /// Where the page begins.
    place: ListPosition,
    limit: Option<usize>,
    request: u64,
    /// Under which the state is held; `None` for a first page.
    id: Option<u64>,
}

/// The writer of the list.
enum Writer {
    List(ListEncoder, Shape),
    Table(TableEncoder),
    /// The rows of a page that are sorted and written at its end. Such kinds have few objects.
    ByPrecedence(TableEncoder, Vec<(i64, Bytes)>),
}

pub(super) async fn list(
    server: &Server,
    target: &PathTarget,
    mut options: ListOptions,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let informer = resource::informer(server, target).await?;
    let table = tables::table(server, &informer, headers).await?;
    let kind = format!("{}List", informer.spec.resource.kind());
    let shape = negotiate::shape(headers, Answer::List, &kind, table.is_some())?;
    let table = table.filter(|_| shape == Shape::Table);
    let table = table.map(|table| tables::encoder(table, query, headers)).transpose()?;
    let held = resource::held_shape(&informer, shape)?;
    let request = fingerprint(&informer, target, &options);
    let selection = Arc::new(resource::selection(&informer, target, &mut options)?);
    let ListOrWatch::List { exact, limit, token } = options.verb else { return Err(error::nothing_there()) };
    server.turns.admit()?;
    let (state, place, id) = match token {
        Some(token) => held_page(server, &token, request, &informer)?,
        None => {
            resource::reached(&informer, &options.asked).await?;
            server.turns.index(from_ref(&informer), &selection).await;
            (Listing::current(from_ref(&informer), &selection).remove(0), ListPosition::default(), None)
        }
    };
    let version = match &options.asked {
        RequestedVersion::Version(version) if exact => at_exactly(&state.snapshot, version)?,
        RequestedVersion::Version(_) | RequestedVersion::Any | RequestedVersion::Newest => {
            state.snapshot.position.clone()
        }
    };
    informer.reader.note_listed(&state.snapshot, &version);
    let compress = compresses(headers) && state.snapshot.bytes >= COMPRESSED_BYTES_MIN;
    let shown =
        ListAnswer { informer: informer.clone(), state, version, selection, place, limit, request, id };
    let coding = if compress { coding(headers) } else { Coding::Identity };
    let mut response = if coding != Coding::Identity {
        compressed::response(shown.into_compressed(server, shape, held, table, coding).await, coding)
    } else if compress {
        let mut response = shown.into_body(server, shape, held, table).await.into_plain_response();
        response.extensions_mut().insert(Compress);
        response
    } else {
        shown.into_body(server, shape, held, table).await.into_response()
    };
    response.headers_mut().extend(answer_headers(informer.reader.age(Instant::now()).as_secs()));
    Ok(response)
}

/// The version of a list of exactly a requested version, if the current state is the same: nothing has changed since.
fn at_exactly(snapshot: &Snapshot, asked: &ResourceVersion) -> Result<ResourceVersion, ApiError> {
    if snapshot.changed_at <= *asked && *asked <= snapshot.position {
        return Ok(asked.clone());
    }
    Err(error::list_too_old())
}

/// The state of a requested page, where the page begins, and the id under which the state is held.
fn held_page(
    server: &Server,
    token: &str,
    request: u64,
    informer: &Arc<Informer>,
) -> Result<(Candidates, ListPosition, Option<u64>), ApiError> {
    let token = Continue::parse(token).ok_or_else(|| error::bad_token("it is no token of this server"))?;
    if token.request != request {
        return Err(error::bad_token("it belongs to another request"));
    }
    let held = server.pages.get(token.id, from_ref(informer), Instant::now());
    let mut held = held.ok_or_else(error::page_expired)?;
    // There is one state, whatever a client writes into a token.
    let place = ListPosition { source: 0, ..token.place() };
    Ok((held.remove(0), place, Some(token.id)))
}

/// Identifies the objects that a request asks for, so that a page's token is valid only for the same request.
fn fingerprint(informer: &Informer, target: &PathTarget, options: &ListOptions) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("kubernetes", &informer.spec.name, &target.namespace).hash(&mut hasher);
    (options.labels.to_string(), options.fields.to_string()).hash(&mut hasher);
    hasher.finish()
}

impl ListAnswer {
    /// The compressed body. Clients that ask for the whole of one list share it.
    async fn into_compressed(
        self,
        server: &Server,
        shape: Shape,
        held: Shape,
        table: Option<TableEncoder>,
        coding: Coding,
    ) -> FramesBody {
        let (turns, lists) = (server.turns.clone(), &server.compressed);
        // The rows of a table tell ages, which change with time.
        let is_whole = self.limit.is_none() && self.id.is_none() && table.is_none();
        if !is_whole {
            return compressed::compress(self.into_body(server, shape, held, table).await, coding, turns);
        }
        let key = ListKey {
            list: format!("/api {shape:?} {:?}", self.informer.token_name()),
            selection: self.selection.clone(),
            coding,
        };
        let snapshot = &self.state.snapshot;
        let state = format!("{:?} {:?} {}", self.informer.id(), snapshot.cursor, self.version);
        let whole = WholeList { key, state, json_bytes: snapshot.bytes };
        let now = Instant::now();
        if let Some(body) = lists.find(&whole, now) {
            return body;
        }
        let body = self.into_body(server, shape, held, table).await;
        lists.begin(whole, body, turns, now)
    }

    /// The writer of a list in a form.
    async fn into_body(
        self,
        server: &Server,
        shape: Shape,
        held: Shape,
        table: Option<TableEncoder>,
    ) -> FramesBody {
        let (generations, turns) = (server.hub.generations(), server.turns.clone());
        let (informers, states) = (from_ref(&self.informer), vec![self.state.clone()]);
        let listing = Listing::new(informers, &self.selection, states, generations, turns);
        let place = self.place.clone();
        let end = match self.limit {
            Some(limit) => listing.end_of_page(&place, limit).await,
            None => None,
        };
        let next = self.next_page(server, end);
        let next = next.as_ref().map(|(token, remaining)| (&**token, *remaining));
        let of = match shape {
            Shape::Whole | Shape::Table => self.informer.spec.resource.clone(),
            Shape::Metadata => self.informer.spec.resource.metadata_only(),
        };
        let mut head = Frames::new();
        let writer = match table {
            Some(mut table) => {
                table.head(Some(&self.version), next, &mut head);
                match self.informer.spec.resource.canonical() == BY_PRECEDENCE {
                    true => Writer::ByPrecedence(table, Vec::new()),
                    false => Writer::Table(table),
                }
            }
            None => {
                let (kind, api_version) = (format!("{}List", of.kind()), of.api_version());
                let version = Some(&self.version);
                let list = ListEncoder::new(ListFormat::Json, &kind, &api_version, version, next);
                Writer::List(list, held)
            }
        };
        let limit = self.limit.unwrap_or(usize::MAX);
        listing.into_body(place, limit, head, writer, server.config.batch_bytes_max)
    }

    /// The token of the next page, with the number of objects that are left. Holds the state for it.
    fn next_page(&self, server: &Server, end: Option<ListPosition>) -> Option<(String, Option<usize>)> {
        let now = Instant::now();
        let Some(end) = end else {
            self.id.iter().for_each(|id| server.pages.finish(*id, now));
            return None;
        };
        let (informers, states) = (from_ref(&self.informer), from_ref(&self.state));
        let id = server.pages.hold(informers, self.request, states, now);
        Some((Continue::new(id, &end, self.request).to_text(), end.left))
    }
}

/// The precedence of a flow schema.
fn precedence(json: &[u8]) -> i64 {
    let schema = serde_json::from_slice::<FlowSchema>(json).ok();
    schema.map(|schema| schema.spec.matching_precedence).unwrap_or_default()
}

#[derive(Deserialize)]
struct FlowSchema {
    spec: FlowSchemaSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FlowSchemaSpec {
    matching_precedence: i64,
}

impl ListWriter for Writer {
    fn object(&mut self, object: &Object, out: &mut Frames) {
        match self {
            Self::Table(table) => table.row(&object.json(), tables::now(), out),
            Self::ByPrecedence(_, rows) => {
                let json = object.json();
                rows.push((precedence(&json), json));
            }
            Self::List(list, Shape::Metadata) => list.metadata(object, out),
            Self::List(list, Shape::Whole | Shape::Table) => list.object(object, out),
        }
    }

    fn end(&mut self, out: &mut Frames) {
        match self {
            Self::ByPrecedence(table, rows) => {
                // A stable sort: objects of equal precedence stay in the order of their names.
                rows.sort_by_key(|(precedence, _)| *precedence);
                rows.iter().for_each(|(_, json)| table.row(json, tables::now(), out));
                table.end(out);
                out.put("\n");
            }
            Self::Table(table) => {
                table.end(out);
                out.put("\n");
            }
            Self::List(list, _) => list.end(out),
        }
    }
}
