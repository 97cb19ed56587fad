//! How many objects have each value at a path: as an answer (`/v1/index/RESOURCE/PATH`), and as a stream
//! (`/v1/watch-index/RESOURCE/PATH`) for dashboards: pods by phase, by node, by image.
//!
//! The stream costs what changed: it asks the index for the values that changes have touched since it last looked, and
//! tells those whose count is another one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::future::select_all;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::held_body::whole_body;
use super::index_target::{IndexTarget, WAIT, distinct, index_path, ready};
use super::list_body::Listing;
use super::params::Params;
use super::state_stream::{self, Asked, Message, Over, WatchedState};
use super::target::Target;
use super::{ApiError, Server, hub_error};
use crate::cache::{Cursor, IndexTerm, Mark, UsedIndex, ValueCounts};
use crate::hub::{Informer, Selection};
use crate::k8s::{IndexPath, IndexPaths, ResourceVersion};

/// The route of the stream.
const ROUTE: &str = "/v1/watch-index/";
/// Largest number of values that are counted under the cache's lock: about a millisecond. With more, the objects are counted,
/// in turns, and there is no stream.
const COUNTED_AT_ONCE_MAX: usize = 20_000;
/// Number of values that a stream looks at in one turn: about a millisecond.
const LOOKED_AT_MAX: usize = 1_000;
/// Bytes of an answer around its counts, and those of a count around its value, unless they are unusually long.
const ANSWER_BYTES: usize = 256;
const COUNT_BYTES: usize = 28;

/// What an answer says of its counts. It ends in `values`, a list of [`ValueCount`]s, sorted by value.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Heading {
    resource: String,
    path: String,
    resource_version: String,
}

/// How many objects have a value. As JSON: `{"value":VALUE,"count":COUNT}`.
struct ValueCount<'a> {
    value: &'a str,
    count: usize,
}

/// Values with counts, in no order. A value may be there several times, once for each informer. The texts are copied into one, so
/// that the cache's lock is not held while each text is allocated by itself.
#[derive(Default)]
struct CountedTexts {
    texts: String,
    /// The place of each value in the text, and its count.
    counts: Vec<(Range<usize>, usize)>,
    /// How many bytes all values begin with alike.
    common: usize,
}

/// The counts that a stream tells.
struct Counting {
    parts: Vec<Part>,
    /// What its client holds.
    told: HashMap<Arc<str>, usize>,
    /// Whether the client has the first state.
    begun: bool,
}

/// The counts of one informer: a resource may have one in each namespace.
struct Part {
    informer: Arc<Informer>,
    index: UsedIndex,
    cursor: Option<Cursor>,
    counts: HashMap<Arc<str>, usize>,
    version: ResourceVersion,
}

/// A turn of looking at values. A stream may have twenty thousand of them, and looks at each several times.
#[derive(Default)]
struct Turn {
    looked_at: usize,
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
    let (mut counted, mut versions) = (CountedTexts::default(), Vec::new());
    for informer in &informers {
        let index = if selection.has_all() { use_index(server, informer, &path).await } else { None };
        let by_index = index.and_then(|index| {
            index.visit_counts(COUNTED_AT_ONCE_MAX, |value, count| counted.add(value, count))
        });
        let version = match by_index {
            Some(version) => version,
            None => {
                let (counts, version) = scan(server, informer, &selection, &path).await?;
                counts.iter().for_each(|(value, count)| counted.add(value, *count));
                version
            }
        };
        versions.push(version.to_string());
    }
    let resource_version = if versions.len() == 1 { versions.remove(0) } else { String::new() };
    let heading = Heading { resource: resource.to_owned(), path: path.to_string(), resource_version };
    let json = if counted.counts.len() > COUNTED_AT_ONCE_MAX {
        // To sort a hundred thousand values takes many turns' time.
        let made = tokio::task::spawn_blocking(move || counted.answer(&heading)).await;
        made.map_err(|_| ApiError::unavailable("the values could not be sorted", 1))?
    } else {
        counted.answer(&heading)
    };
    Ok(([(CONTENT_TYPE, "application/json")], whole_body(server, json)).into_response())
}

impl CountedTexts {
    fn add(&mut self, value: &str, count: usize) {
        let common =
            if self.counts.is_empty() { value.as_bytes() } else { &self.texts.as_bytes()[..self.common] };
        self.common = common.iter().zip(value.as_bytes()).take_while(|(one, other)| one == other).count();
        let begin = self.texts.len();
        self.texts.push_str(value);
        self.counts.push((begin..self.texts.len(), count));
    }

    /// The counts of each value added up, sorted by value.
    fn sums(&self) -> Vec<ValueCount<'_>> {
        let of = |at: usize| &self.texts[self.counts[at].0.clone()];
        // As little as can be sorted: the first bytes in which values differ, and the place among the counts.
        let first = |at: usize| u128::from(first_bytes(&of(at).as_bytes()[self.common..])) << 64;
        let mut order: Vec<u128> = (0..self.counts.len()).map(|at| first(at) | at as u128).collect();
        order.sort_unstable();
        let place = |ordered: u128| (ordered & u128::from(u64::MAX)) as usize;
        for alike in order.chunk_by_mut(|one, other| one >> 64 == other >> 64) {
            if alike.len() > 1 {
                alike.sort_unstable_by_key(|ordered| of(place(*ordered)));
            }
        }
        let mut sums: Vec<ValueCount<'_>> = Vec::with_capacity(order.len());
        for ordered in order {
            let (value, count) = (of(place(ordered)), self.counts[place(ordered)].1);
            match sums.last_mut() {
                Some(last) if last.value == value => last.count += count,
                Some(_) | None => sums.push(ValueCount { value, count }),
            }
        }
        sums
    }

    /// The JSON of an answer. The names of the members of each sum are copied and not serialized: there are ten thousands of them.
    fn answer(&self, heading: &Heading) -> Vec<u8> {
        const VALID: &str = "texts and numbers are valid JSON";
        // Room for all of it: a text that grows is copied again and again.
        let mut json = Vec::with_capacity(ANSWER_BYTES + self.texts.len() + COUNT_BYTES * self.counts.len());
        serde_json::to_writer(&mut json, heading).expect(VALID);
        json.pop();
        json.extend_from_slice(br#","values":["#);
        for (at, sum) in self.sums().iter().enumerate() {
            json.extend_from_slice(if at > 0 { br#",{"value":"# } else { br#"{"value":"# });
            serde_json::to_writer(&mut json, sum.value).expect(VALID);
            json.extend_from_slice(br#","count":"#);
            serde_json::to_writer(&mut json, &sum.count).expect(VALID);
            json.push(b'}');
        }
        json.extend_from_slice(b"]}");
        json
    }
}

/// The first bytes of a text as a number, in the order of texts. To compare two of them reads neither text.
fn first_bytes(text: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = text.len().min(bytes.len());
    bytes[..len].copy_from_slice(&text[..len]);
    u64::from_be_bytes(bytes)
}

/// The index of a path, built now if there is none. `None` if too many others are in use.
async fn use_index(server: &Server, informer: &Arc<Informer>, path: &IndexPath) -> Option<UsedIndex> {
    server.turns.index_at(informer, path).await;
    informer.reader.use_index(&IndexTerm { path: path.clone(), values: Vec::new().into() })
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
    server.turns.index(informers, &selection).await;
    let states = Listing::current(informers, &selection);
    let version = states[0].snapshot.position.clone();
    let listing = Listing::new(informers, &selection, states, server.hub.generations(), server.turns.clone());
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
    let at = IndexTarget::parse(ROUTE, request.uri())?;
    let params = Params::parse(query.as_deref(), &[state_stream::PARAMS])?;
    let (Some(path), None) = (&at.path, &at.value) else {
        return Err(ApiError::invalid(
            "path",
            request.uri().path(),
            "expected /v1/watch-index/RESOURCE/PATH",
        ));
    };
    let asked = Asked::read(&request, &params)?;
    let target = server.target(&at.resource, &params, Instant::now() + WAIT).await?;
    ready(&server, &target).await?;
    let path = index_path(path, &target.informers)?;
    if asked.is_head {
        return Ok(asked.head());
    }
    let mut parts = Vec::new();
    for informer in target.informers {
        let index = use_index(&server, &informer, &path).await;
        let index = index.ok_or_else(|| ApiError::unavailable("all indexes are in use", 30))?;
        let version = ResourceVersion::ZERO;
        parts.push(Part { informer, index, cursor: None, counts: HashMap::new(), version });
    }
    let informers = parts.iter().map(|part| part.informer.clone()).collect();
    let permit = server.hub.permit(informers).map_err(|error| hub_error::not_subscribed(&error))?;
    let mut counting = Counting { parts, told: HashMap::new(), begun: false };
    let Ok(first) = counting.look().await else {
        if counting.parts.iter().any(|part| part.informer.is_over()) {
            return Err(ApiError::unavailable("the informer was replaced meanwhile", 1));
        }
        let message = format!("there are more than {COUNTED_AT_ONCE_MAX} values at {path}");
        return Err(ApiError::bad_request(message));
    };
    Ok(asked.answer(server, permit, counting, first))
}

impl WatchedState for Counting {
    async fn changed(&mut self) {
        let waits = self.parts.iter().map(|part| {
            let mut wake = part.informer.reader.wake();
            Box::pin(async move {
                let is_beyond = |mark: &Mark| {
                    part.cursor.is_none_or(|cursor| {
                        mark.revision > cursor.revision || mark.history != cursor.history
                    })
                };
                // An informer that is over wakes its readers, and has no later mark.
                let _ = wake.wait_for(|mark| part.informer.is_over() || is_beyond(mark)).await;
            })
        });
        select_all(waits).await;
    }

    async fn step(&mut self) -> Result<Option<Message>, Over> {
        self.look().await
    }
}

impl Counting {
    /// Looks at what has changed; `None` if no count has. It cannot where an informer was replaced, or where the index has too many
    /// values by now.
    async fn look(&mut self) -> Result<Option<Message>, Over> {
        let (mut touched, mut turn) = (BTreeSet::new(), Turn::default());
        for part in &mut self.parts {
            part.step(&mut touched, &mut turn).await?;
        }
        let mut changed: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for value in touched {
            let count = self.parts.iter().filter_map(|part| part.counts.get(&value)).sum();
            if self.told.get(&value).copied().unwrap_or(0) != count {
                changed.insert(value, count);
            }
            turn.looked().await;
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
            turn.looked().await;
        }
        let kind = if self.begun { "PATCHED" } else { "COUNTS" };
        self.begun = true;
        let version = match &*self.parts {
            [part] => part.version.to_string(),
            _ => String::new(),
        };
        // Moved, as `json!` would copy each value.
        let counts = ("counts".to_owned(), Value::Object(counts));
        let object = serde_json::Map::from_iter([counts, ("resourceVersion".to_owned(), version.into())]);
        Ok(Some(Message { kind, object: Value::Object(object) }))
    }
}

impl Turn {
    /// Notes that a value was looked at. At the end of the turn other tasks run.
    async fn looked(&mut self) {
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(LOOKED_AT_MAX) {
            tokio::task::yield_now().await;
        }
    }
}

impl Part {
    /// Takes what has changed in this informer, and adds the values that it touched.
    async fn step(&mut self, touched: &mut BTreeSet<Arc<str>>, turn: &mut Turn) -> Result<(), Over> {
        if self.informer.is_over() {
            return Err(Over);
        }
        let read = self.index.counts(self.cursor, COUNTED_AT_ONCE_MAX).ok_or(Over)?;
        if read.is_whole {
            for value in std::mem::take(&mut self.counts).into_keys() {
                touched.insert(value);
                turn.looked().await;
            }
        }
        for (value, count) in read.counts {
            if count > 0 {
                self.counts.insert(value.clone(), count);
            } else {
                self.counts.remove(&value);
            }
            touched.insert(value);
            turn.looked().await;
        }
        (self.cursor, self.version) = (Some(read.cursor), read.position);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn counts_are_added_up_and_sorted_as_texts(
            counted in prop::collection::vec(("[a-c\\x00ä-ö]{0,18}", 1usize..5), 0..40)
        ) {
            let mut expected: BTreeMap<&str, usize> = BTreeMap::new();
            let mut texts = CountedTexts::default();
            for (value, count) in &counted {
                *expected.entry(value).or_default() += count;
                texts.add(value, *count);
            }
            let sums: Vec<_> = texts.sums().iter().map(|sum| (sum.value, sum.count)).collect();
            let expected: Vec<_> = expected.into_iter().collect();
            prop_assert_eq!(&sums, &expected);
            let heading = Heading { resource: "pods".into(), path: "a".into(), resource_version: "1".into() };
            let answer: Value = serde_json::from_slice(&texts.answer(&heading)).unwrap();
            let values: Vec<_> =
                expected.iter().map(|(value, count)| json!({"value": value, "count": count})).collect();
            prop_assert_eq!(
                answer,
                json!({"resource": "pods", "path": "a", "resourceVersion": "1", "values": values})
            );
        }
    }
}
