//! Lists: of the cache's state, in pages of one state where that is asked for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice::from_ref;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::Instant;

use super::super::body::FramesBody;
use super::super::negotiate::compresses;
use super::super::pages::Continue;
use super::super::snapshot::Compress;
use super::super::{ApiError, Server};
use super::negotiate::{self, Answer, Shape};
use super::options::{Asked, ListOptions, Query, Verb};
use super::path::Target;
use super::{answer_headers, error, resource, tables};
use crate::cache::Snapshot;
use crate::encode::{Frames, ListEncoder, ListFormat, TableEncoder};
use crate::hub::{Filter, Informer};
use crate::k8s::{Key, ResourceVersion};

/// Smaller lists are not worth the time. Source: apiserver `endpoints/handlers/responsewriters/writers.go`,
/// `defaultGzipThresholdBytes`.
const COMPRESSED_BYTES_MIN: usize = 128 << 10;

/// What is to be shown.
struct Shown {
    snapshot: Snapshot,
    /// The version it is shown at.
    version: ResourceVersion,
    filter: Filter,
    shape: Shape,
    /// What writes them as a table.
    table: Option<TableEncoder>,
    after: Option<Key>,
    limit: Option<usize>,
}

/// What writes the list.
enum Writer {
    List(ListEncoder),
    Table(TableEncoder),
}

pub(super) async fn list(
    server: &Server,
    target: &Target,
    mut options: ListOptions,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let informer = resource::informer(server, target).await?;
    let table = tables::table(server, &informer, headers).await?;
    let kind = format!("{}List", informer.resource.kind());
    let shape = negotiate::shape(headers, Answer::List, &kind, table.is_some())?;
    let table = table.filter(|_| shape == Shape::Table);
    let table = table.map(|table| tables::encoder(table, query)).transpose()?;
    let held = resource::held_shape(&informer, shape)?;
    let request = fingerprint(&informer, target, &options);
    let filter = resource::filter(&informer, target, &mut options)?;
    let Verb::List { exact, limit, token } = options.verb else { return Err(error::nothing_there()) };
    let (snapshot, after) = match token {
        Some(token) => held_page(server, &token, request)?,
        None => {
            resource::reached(&informer, &options.asked).await?;
            (informer.reader.snapshot(), None)
        }
    };
    let version = match &options.asked {
        Asked::Version(version) if exact => at_exactly(&snapshot, version)?,
        Asked::Version(_) | Asked::Any | Asked::Newest => snapshot.position.clone(),
    };
    let compress = compresses(headers) && snapshot.bytes >= COMPRESSED_BYTES_MIN;
    let shown = Shown { snapshot, version, filter, shape: held, table, after, limit };
    let body = shown.into_body(server, &informer, shape, request);
    let mut response = if compress { body.into_plain_response() } else { body.into_response() };
    if compress {
        response.extensions_mut().insert(Compress);
    }
    response.headers_mut().extend(answer_headers(informer.reader.age(Instant::now()).as_secs()));
    Ok(response)
}

/// The version that a list of exactly that version is shown at, if this is its state: nothing has changed since.
fn at_exactly(snapshot: &Snapshot, asked: &ResourceVersion) -> Result<ResourceVersion, ApiError> {
    if snapshot.changed_at <= *asked && *asked <= snapshot.position {
        return Ok(asked.clone());
    }
    Err(error::list_too_old())
}

/// The state of which a page is asked for, and after which key it begins.
fn held_page(server: &Server, token: &str, request: u64) -> Result<(Snapshot, Option<Key>), ApiError> {
    let place = Continue::parse(token).ok_or_else(|| error::bad_token("it is no token of this server"))?;
    if place.request != request {
        return Err(error::bad_token("it belongs to another request"));
    }
    let mut held = server.pages.get(place.id, Instant::now()).ok_or_else(error::page_expired)?;
    let after = place.after.map(|(namespace, name)| Key::new(&namespace, &name));
    if held.len() != 1 {
        return Err(error::bad_token("it belongs to another request"));
    }
    Ok((held.remove(0), after))
}

/// Two requests have pages in common when they ask for the same objects.
fn fingerprint(informer: &Informer, target: &Target, options: &ListOptions) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("kubernetes", &informer.name, &target.namespace).hash(&mut hasher);
    (options.labels.to_string(), options.fields.to_string()).hash(&mut hasher);
    hasher.finish()
}

impl Shown {
    fn into_body(
        mut self,
        server: &Server,
        informer: &Arc<Informer>,
        shape: Shape,
        request: u64,
    ) -> FramesBody {
        let next = self.limit.and_then(|limit| self.end_of_page(limit));
        let next = next.map(|(last, remaining)| {
            let (names, snapshots) = (from_ref(&informer.name), from_ref(&self.snapshot));
            let id = server.pages.hold(names, snapshots, Instant::now());
            let after = Some((last.namespace().to_owned(), last.name().to_owned()));
            (Continue { id, source: 0, after, request }.to_text(), remaining)
        });
        let next = next.as_ref().map(|(token, remaining)| (&**token, *remaining));
        let of = match shape {
            Shape::Whole | Shape::Table => informer.resource.clone(),
            Shape::Metadata => informer.resource.metadata_only(),
        };
        let mut head = Frames::new();
        let writer = match self.table.take() {
            Some(mut table) => {
                table.head(Some(&self.version), next, &mut head);
                Writer::Table(table)
            }
            None => {
                let (kind, api_version) = (format!("{}List", of.kind()), of.api_version());
                let version = Some(&self.version);
                Writer::List(ListEncoder::new(ListFormat::Json, &kind, &api_version, version, next))
            }
        };
        FramesBody::new(pieces(self, writer, head, server.config.batch_bytes_max))
    }

    /// The last key of a page, and how many are left: told where nothing is selected, as on the API server.
    fn end_of_page(&self, limit: usize) -> Option<(Key, Option<usize>)> {
        let mut objects = self.filter.objects(&self.snapshot, self.after.as_ref());
        let last = objects.nth(limit.checked_sub(1)?)?.key().clone();
        objects.next()?;
        let remaining = (!self.filter.selects()).then(|| objects.count() + 1);
        Some((last, remaining))
    }
}

/// The list, rendered piece by piece as the socket drains.
fn pieces(
    shown: Shown,
    writer: Writer,
    head: Frames,
    bytes_max: usize,
) -> impl futures_util::Stream<Item = Frames> + Send {
    let left = shown.limit.unwrap_or(usize::MAX);
    futures_util::stream::unfold(Some((shown, writer, left, head)), move |state| {
        let step = state.map(|(mut shown, mut writer, mut left, mut frames)| {
            let (mut last, now) = (None, tables::now());
            for object in shown.filter.objects(&shown.snapshot, shown.after.as_ref()).take(left) {
                match &mut writer {
                    Writer::Table(table) => table.row(object.json(), now, &mut frames),
                    Writer::List(list) if shown.shape == Shape::Metadata => {
                        list.metadata(object, &mut frames)
                    }
                    Writer::List(list) => list.object(object.json().clone(), &mut frames),
                }
                left -= 1;
                if bytes::Buf::remaining(&frames) >= bytes_max {
                    last = Some(object.key().clone());
                    break;
                }
            }
            if last.is_some() {
                shown.after = last;
                frames.cut();
                return (frames, Some((shown, writer, left, Frames::new())));
            }
            match &mut writer {
                Writer::Table(table) => {
                    table.end(&mut frames);
                    frames.put("\n");
                    frames.cut();
                }
                Writer::List(list) => list.end(&mut frames),
            }
            (frames, None)
        });
        std::future::ready(step)
    })
}
