//! How many objects have each value at a path: as an answer (`/v1/index/RESOURCE/PATH`), and as a stream
//! (`/v1/watch-index/RESOURCE/PATH`) for dashboards: pods by phase, by node, by image.
//!
//! The stream costs what changed: it asks the index for the values that changes have touched since it last looked, and
//! tells those whose count is another one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use bytes::Buf as _;
use futures_util::future::select_all;
use futures_util::stream::unfold;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::body::FramesBody;
use super::index_target::{IndexTarget, WAIT, distinct, index_path, ready};
use super::list_body::Listing;
use super::negotiate::accepted;
use super::params::Params;
use super::peer::Peer;
use super::target::Target;
use super::{ApiError, Server, watch};
use crate::cache::{Cursor, IndexTerm, UsedIndex, ValueCounts};
use crate::encode::{Format, Frames};
use crate::hub::{Informer, Origin, Selection, SubscriberPermit};
use crate::k8s::{IndexPath, IndexPaths, ResourceVersion, Term, Test};

/// The route of the stream.
const ROUTE: &str = "/v1/watch-index/";
/// The parameters of the stream.
const PARAMS: [&str; 3] = ["coalesceMs", "timeoutSeconds", "transport"];
/// What a stream is offered as.
const OFFERED: [(&str, Format); 3] = [
    ("text/event-stream", Format::Sse),
    ("application/x-ndjson", Format::Ndjson),
    ("application/json", Format::Ndjson),
];
/// Largest number of values that are counted under the cache's lock: about a millisecond. With more, the objects are counted,
/// in turns, and there is no stream.
const COUNTED_AT_ONCE_MAX: usize = 20_000;
/// Shortest time between two messages of a stream, unless it asks for another one: a screen shows no more.
const COALESCE: Duration = Duration::from_millis(100);

/// How many objects have each value at a path.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CountedValues {
    resource: String,
    path: String,
    resource_version: String,
    /// Sorted.
    values: Vec<ValueCount>,
}

#[derive(Serialize)]
struct ValueCount {
    value: String,
    count: usize,
}

/// A stream of counts.
struct Counting {
    server: Server,
    parts: Vec<Part>,
    /// What its client holds.
    told: HashMap<Arc<str>, usize>,
    format: Format,
    coalesce: Duration,
    ends_at: Option<Instant>,
    /// Whether the client has the first state.
    begun: bool,
    /// When it last looked at what has changed.
    looked_at: Instant,
    permit: SubscriberPermit,
}

/// The counts of one informer: a resource may have one in each namespace.
struct Part {
    informer: Arc<Informer>,
    index: UsedIndex,
    cursor: Option<Cursor>,
    counts: HashMap<Arc<str>, usize>,
    version: ResourceVersion,
}

/// Why a stream cannot tell what has changed.
enum Stop {
    /// An informer was replaced, or the index has too many values by now.
    Over,
}

/// How many objects have each value. Answered by the index if the request selects everything; else the selected objects are
/// counted.
pub(super) async fn counts(
    server: &Server,
    resource: &str,
    path: IndexPath,
    target: Target,
) -> Result<Response, ApiError> {
    let Target { informers, selection, .. } = target;
    let mut counted: HashMap<Arc<str>, usize> = HashMap::new();
    let mut versions = Vec::new();
    for informer in &informers {
        let index = if selection.has_all() { use_index(server, informer, &path).await } else { None };
        let by_index = index.and_then(|index| index.counts(None, COUNTED_AT_ONCE_MAX));
        let (counts, version) = match by_index {
            Some(found) => (found.counts, found.position),
            None => scan(server, informer, &selection, &path).await?,
        };
        counts.into_iter().for_each(|(value, count)| *counted.entry(value).or_default() += count);
        versions.push(version.to_string());
    }
    let mut values: Vec<_> = counted.into_iter().collect();
    values.sort_unstable();
    let values =
        values.into_iter().map(|(value, count)| ValueCount { value: value.to_string(), count }).collect();
    let resource_version = if versions.len() == 1 { versions.remove(0) } else { String::new() };
    let counts =
        CountedValues { resource: resource.to_owned(), path: path.to_string(), resource_version, values };
    Ok(axum::Json(counts).into_response())
}

/// The index of a path, built now if there is none. `None` if too many others are in use.
async fn use_index(server: &Server, informer: &Arc<Informer>, path: &IndexPath) -> Option<UsedIndex> {
    let probe = Selection::default().and(Term { path: path.clone(), test: Test::In(Vec::new()) });
    server.loops.turns.index(std::slice::from_ref(informer), &probe).await;
    informer.reader.use_index(&IndexTerm { path: path.clone(), values: Vec::new() })
}

/// Counts values of the selected objects, in turns.
async fn scan(
    server: &Server,
    informer: &Arc<Informer>,
    selection: &Selection,
    path: &IndexPath,
) -> Result<(ValueCounts, ResourceVersion), ApiError> {
    let selection = Arc::new(selection.clone());
    let informers = std::slice::from_ref(informer);
    server.loops.turns.index(informers, &selection).await;
    let states = Listing::current(informers, &selection);
    let version = states[0].snapshot.position.clone();
    let listing =
        Listing::new(informers, &selection, states, server.hub.generations(), server.loops.turns.clone());
    let paths = IndexPaths::new(vec![path.clone()]);
    let mut counted: HashMap<Arc<str>, usize> = HashMap::new();
    let complete = listing.visit(|object| {
        for value in distinct(object, &paths) {
            *counted.entry(value).or_default() += 1;
        }
    });
    if !complete.await {
        return Err(ApiError::unavailable("the objects could not be counted in time", 1));
    }
    Ok((counted.into_iter().collect(), version))
}

pub(super) async fn watch(
    State(server): State<Server>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = IndexTarget::parse(ROUTE, request.uri())?;
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let (Some(path), None) = (&asked.path, &asked.value) else {
        return Err(ApiError::invalid(
            "path",
            request.uri().path(),
            "expected /v1/watch-index/RESOURCE/PATH",
        ));
    };
    let format = match params.get("transport") {
        Some("sse") => Format::Sse,
        Some("ndjson") => Format::Ndjson,
        Some(other) => return Err(ApiError::invalid("transport", other, "expected sse or ndjson")),
        None => accepted(request.headers(), &OFFERED)
            .ok_or_else(|| ApiError::not_acceptable("text/event-stream, application/x-ndjson"))?,
    };
    let coalesce = watch::coalesce(&params)?.unwrap_or(COALESCE);
    let timeout = watch::seconds(&params, "timeoutSeconds")?;
    let target = Target::parse(&server, &asked.resource, &params, Instant::now() + WAIT).await?;
    ready(&server, &target).await?;
    let path = index_path(path, &target.informers)?;
    let mut headers = watch::stream_headers(format, crate::encode::Coding::Identity, 0);
    headers.remove(header::AGE);
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    if request.method() == Method::HEAD {
        return Ok(headers.into_response());
    }
    let mut parts = Vec::new();
    for informer in target.informers {
        let index = use_index(&server, &informer, &path).await;
        let index = index.ok_or_else(|| ApiError::unavailable("all indexes are in use", 30))?;
        let version = ResourceVersion::ZERO;
        parts.push(Part { informer, index, cursor: None, counts: HashMap::new(), version });
    }
    let informers = parts.iter().map(|part| part.informer.clone()).collect();
    let permit = server.hub.permit(informers).map_err(|error| watch::refused(&error))?;
    let origin = Origin {
        request: request.uri().to_string(),
        transport: if format == Format::Sse { "sse" } else { "ndjson" },
        peer: request.extensions().get::<Peer>().map(Peer::to_string).unwrap_or_default(),
    };
    permit.follower().comes_from(origin);
    let ends_at = timeout.map(|timeout| Instant::now() + timeout);
    let (told, begun, looked_at) = (HashMap::new(), false, Instant::now());
    let mut counting = Counting { server, parts, told, format, coalesce, ends_at, begun, looked_at, permit };
    let Ok(first) = counting.step() else {
        let message = format!("there are more than {COUNTED_AT_ONCE_MAX} values at {path}");
        return Err(ApiError::bad_request(message));
    };
    let body = unfold((counting, first), async |(mut counting, next)| {
        let frames = match next {
            Some(frames) => frames,
            None => counting.next().await?,
        };
        counting.permit.follower().sent(1, frames.remaining());
        Some((Ok::<_, io::Error>(frames), (counting, None)))
    });
    Ok((headers, FramesBody::new(body).into_response()).into_response())
}

impl Counting {
    /// The next message or heartbeat; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Frames> {
        let now = Instant::now();
        let quiet_until = now + self.server.hub.config().heartbeat_interval;
        let ends_at = self.ends_at.unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        let drain = self.server.drain.clone();
        loop {
            tokio::select! {
                biased;
                () = drain.cancelled() => return None,
                () = sleep_until(ends_at) => return None,
                () = self.changed() => {}
                () = sleep_until(quiet_until) => return Some(self.heartbeat()),
            }
            // The first change after a pause is sent at once.
            let look_at = ends_at.min(self.looked_at + self.coalesce);
            if timeout_at(look_at, drain.cancelled()).await.is_ok() {
                return None;
            }
            match self.step() {
                Ok(Some(frames)) => return Some(frames),
                Ok(None) => {}
                Err(Stop::Over) => return None,
            }
        }
    }

    /// Waits for a commit that this stream has not looked at.
    async fn changed(&self) {
        let waits = self.parts.iter().map(|part| {
            let (mut wake, cursor) = (part.informer.reader.wake(), part.cursor);
            Box::pin(async move {
                // An error means that its informer is over, which the next step sees.
                let _ = wake
                    .wait_for(|mark| {
                        cursor.is_none_or(|cursor| {
                            mark.revision > cursor.revision || mark.history != cursor.history
                        })
                    })
                    .await;
            })
        });
        select_all(waits).await;
    }

    /// Looks at what has changed; `None` if no count has.
    fn step(&mut self) -> Result<Option<Frames>, Stop> {
        self.looked_at = Instant::now();
        let mut touched: BTreeSet<Arc<str>> = BTreeSet::new();
        for part in &mut self.parts {
            part.step(&mut touched).map_err(|()| Stop::Over)?;
        }
        let total =
            |value: &Arc<str>| -> usize { self.parts.iter().filter_map(|part| part.counts.get(value)).sum() };
        let mut changed: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for value in touched {
            let count = total(&value);
            if self.told.get(&value).copied().unwrap_or(0) != count {
                changed.insert(value, count);
            }
        }
        if self.begun && changed.is_empty() {
            return Ok(None);
        }
        let mut counts = serde_json::Map::new();
        for (value, count) in changed {
            // As a merge patch removes a member (RFC 7386).
            counts.insert(value.to_string(), if count > 0 { count.into() } else { Value::Null });
            if count > 0 {
                self.told.insert(value, count);
            } else {
                self.told.remove(&value);
            }
        }
        let kind = if self.begun { "PATCHED" } else { "COUNTS" };
        self.begun = true;
        let version = match &*self.parts {
            [part] => part.version.to_string(),
            _ => String::new(),
        };
        let object = json!({"type": kind, "object": {"resourceVersion": version, "counts": counts}});
        let mut frames = Frames::new();
        match self.format {
            Format::Sse => frames.put(&format!("event: {kind}\ndata: {object}\n\n")),
            Format::Ndjson | Format::WebSocket | Format::Kubernetes(_) => frames.put(&format!("{object}\n")),
        }
        frames.cut();
        Ok(Some(frames))
    }

    fn heartbeat(&self) -> Frames {
        let mut frames = Frames::new();
        frames.put(if self.format == Format::Sse { ":\n\n" } else { "\n" });
        frames.cut();
        frames
    }
}

impl Part {
    /// Takes what has changed in this informer, and adds the values that it touched.
    fn step(&mut self, touched: &mut BTreeSet<Arc<str>>) -> Result<(), ()> {
        if self.informer.is_over() {
            return Err(());
        }
        let read = self.index.counts(self.cursor, COUNTED_AT_ONCE_MAX).ok_or(())?;
        if read.is_whole {
            touched.extend(std::mem::take(&mut self.counts).into_keys());
        }
        for (value, count) in read.counts {
            if count > 0 {
                self.counts.insert(value.clone(), count);
            } else {
                self.counts.remove(&value);
            }
            touched.insert(value);
        }
        (self.cursor, self.version) = (Some(read.cursor), read.position);
        Ok(())
    }
}
