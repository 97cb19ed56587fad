//! `join=RELATIONS` on `/v1/snapshot/…` and `/v1/watch/…`: with the selected objects those that they are linked to.
//!
//! A stream follows them in [`crate::hub::Join`]. In a snapshot each resource is shown as it was at one moment. The state of a related resource is taken together with the keys that its
//! indexes give, under one lock.

mod joins;
mod relation;
mod stream;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Buf as _;
use futures_util::stream::unfold;
use tokio::time::Instant;

pub(super) use joins::Joins;
use relation::{Relations, Selected, in_turns};
pub(super) use stream::of_stream;

use crate::cache::Snapshot;
use crate::encode::{Coding, Frames, ListEncoder, ListFormat};
use crate::hub::{Form, Informer, InformerId, JOINED_MAX, ResumeToken};
use crate::k8s::{ContentHash, Damaged, Key, Object, Owner, damages, owners};
use crate::serve::body::{FramesBody, too_slow};
use crate::serve::compressed::{self, Compress};
use crate::serve::content::none_match;
use crate::serve::graph::owned_by;
use crate::serve::list_body::Listing;
use crate::serve::load::{EndsWithClient, Load};
use crate::serve::negotiate::{coding, compresses};
use crate::serve::params::Params;
use crate::serve::target::{self, Target};
use crate::serve::{ApiError, Server, metrics};

/// JSON that is hashed in one turn, in bytes: about a millisecond.
const HASHED_BYTES: usize = 1 << 20;

/// A request for a snapshot with related objects.
pub(super) struct Request {
    pub(super) path: String,
    pub(super) params: Params,
    pub(super) headers: HeaderMap,
    pub(super) format: ListFormat,
    pub(super) timeout: Duration,
}

/// What an answer consists of.
struct JoinedList {
    /// Everything that was read.
    informers: Vec<Arc<Informer>>,
    token: ResumeToken,
    objects: Vec<Object>,
}

impl Request {
    pub(super) async fn answer(self, server: &Server, load: &Arc<Load>) -> Result<Response, ApiError> {
        for name in ["limit", "continue"] {
            if let Some(value) = self.params.get(name).filter(|value| !value.is_empty()) {
                let accepted =
                    "expected no pages with join: what is related to a page is known only with all of it";
                return Err(ApiError::invalid(name, value, accepted));
            }
        }
        let deadline = Instant::now() + self.timeout;
        let target = server.target(&self.path, &self.params, deadline).await?;
        let relations = Relations::parse(server, &target, &self.params, deadline).await?;
        server.turns.admit()?;
        target.reached(&self.params, deadline).await?;
        let _ends = EndsWithClient::begin(load);
        let damages_before = damages();
        let form = target.selection.form.clone();
        let joined = JoinedList::collect(server, target, &relations, deadline).await?;
        let headers = joined.headers(server, self.format, &form).await;
        if damages() != damages_before {
            return Err(ApiError::unavailable("an object could not be read: it is fetched again", 1));
        }
        if let Some(tag) = headers.get(header::ETAG)
            && none_match(&self.headers, tag)
        {
            return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
        }
        let body = joined.into_body(server, self.format, form);
        let coding = coding(&self.headers);
        let mut response = if coding != Coding::Identity {
            let turns = server.turns.clone();
            compressed::response(compressed::compress(body, coding, turns), coding)
        } else if compresses(&self.headers) {
            let mut response = body.into_plain_response();
            response.extensions_mut().insert(Compress);
            response
        } else {
            body.into_response()
        };
        response.headers_mut().extend(headers);
        Ok(response)
    }
}

impl JoinedList {
    async fn collect(
        server: &Server,
        target: Target,
        relations: &Relations,
        deadline: Instant,
    ) -> Result<Self, ApiError> {
        let turns = &server.turns;
        for informer in relations.kinds.iter().flat_map(|relation| &relation.informers) {
            target::synced(informer, deadline).await?;
        }
        let selected = select(server, &target).await?;
        let token =
            selected.iter().map(|one| (one.informer.token_name(), one.state.position.clone())).collect();
        let mut informers: Vec<_> = selected.iter().map(|one| one.informer.clone()).collect();
        let mut states: HashMap<InformerId, Snapshot> =
            selected.iter().map(|one| (one.informer.id(), one.state.clone())).collect();
        let mut objects: Vec<_> = selected.iter().flat_map(|one| one.objects.iter().cloned()).collect();
        let mut seen: HashSet<(InformerId, Key)> = HashSet::new();
        for one in &selected {
            seen.extend(one.objects.iter().map(|object| (one.informer.id(), object.key().clone())));
        }
        for relation in &relations.kinds {
            for informer in &relation.informers {
                let (state, found) = relation.find(informer, &selected, turns).await;
                seen.extend(found.keys().map(|key| (informer.id(), key.clone())));
                objects.extend(found.into_values());
                states.insert(informer.id(), state);
                informers.push(informer.clone());
                bounded(objects.len())?;
            }
        }
        if relations.owners {
            let above = above(server, &selected, &mut states, deadline).await?;
            for (informer, object) in above {
                if seen.insert((informer.id(), object.key().clone())) {
                    objects.push(object);
                }
                if !informers.iter().any(|other| other.id() == informer.id()) {
                    informers.push(informer);
                }
            }
            bounded(objects.len())?;
        }
        Ok(Self { informers, token, objects })
    }

    /// The headers, with a tag of the content: the same on every replica with the same objects.
    async fn headers(&self, server: &Server, format: ListFormat, form: &Form) -> HeaderMap {
        let (mut hash, mut hashed, mut at) = (ContentHash::default(), 0, 0);
        while at < self.objects.len() {
            let permit = server.turns.take().await;
            while let Some(object) = self.objects.get(at).filter(|_| hashed < HASHED_BYTES) {
                hashed += if form.has_content_hash(object) { 0 } else { object.json_len() };
                hash.add(form.content_hash(object));
                at += 1;
            }
            hashed = 0;
            drop(permit);
            tokio::task::yield_now().await;
        }
        let names: BTreeSet<_> = self.informers.iter().map(|informer| informer.token_name()).collect();
        let shown = format!("join {format:?} {form:?} {names:?} {hash}");
        let mut headers = HeaderMap::new();
        if let Ok(tag) = HeaderValue::from_str(&format!("W/\"{}\"", ContentHash::of(shown.as_bytes()))) {
            headers.insert(header::ETAG, tag);
        }
        if let Ok(token) = HeaderValue::from_str(&self.token.to_string()) {
            headers.insert("informerd-resume", token);
        }
        let now = Instant::now();
        let age = self.informers.iter().map(|informer| informer.reader.age(now).as_secs()).max();
        headers.insert(header::AGE, age.unwrap_or(0).into());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        let content_type = match format {
            ListFormat::Json => "application/json",
            ListFormat::Ndjson => "application/x-ndjson",
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers
    }

    fn into_body(self, server: &Server, format: ListFormat, form: Form) -> FramesBody {
        let (turns, bytes_max) = (server.turns.clone(), server.config.batch_bytes_max);
        let list = ListEncoder::new(format, "List", "v1", None, None);
        let damages_before = damages();
        let held = server.hub.generations().hold_answer(self.objects.into_iter(), Instant::now());
        FramesBody::new(unfold(Some((held, list)), move |state| {
            let (turns, form) = (turns.clone(), form.clone());
            async move {
                let (held, mut list) = state?;
                let mut frames = Frames::new();
                let permit = turns.take().await;
                let is_over = held.with(|objects| {
                    let mut next = objects.next();
                    while let Some(object) = next {
                        let part = form.part_of(&object);
                        list.object(part.as_ref().unwrap_or(&object), &mut frames);
                        next = if frames.remaining() < bytes_max { objects.next() } else { break };
                    }
                    objects.as_slice().is_empty()
                });
                drop(permit);
                let Some(is_over) = is_over else {
                    return Some((Err(too_slow()), None));
                };
                if damages() != damages_before {
                    return Some((Err(io::Error::other(Damaged)), None));
                }
                if is_over {
                    list.end(&mut frames);
                }
                frames.cut();
                Some((Ok(frames), (!is_over).then_some((held, list))))
            }
        }))
    }
}

/// The selected objects of each informer.
async fn select(server: &Server, target: &Target) -> Result<Vec<Selected>, ApiError> {
    let selection = Arc::new(target.selection.clone());
    let turns = &server.turns;
    turns.index(&target.informers, &selection).await;
    let (mut selected, mut count): (Vec<Selected>, usize) = (Vec::new(), 0);
    for informer in &target.informers {
        let informers = std::slice::from_ref(informer);
        let states = Listing::current(informers, &selection);
        let state = states[0].snapshot.clone();
        let listing = Listing::new(informers, &selection, states, server.hub.generations(), turns.clone());
        let mut objects = Vec::new();
        let complete = listing.visit_until(|object| {
            objects.push(object.clone());
            count + objects.len() <= JOINED_MAX
        });
        if !complete.await {
            return Err(ApiError::unavailable("the objects could not be read in time", 1));
        }
        count += objects.len();
        bounded(count)?;
        selected.push(Selected { informer: informer.clone(), state, objects });
    }
    if target.single && count == 0 {
        let name = target.selection.name.as_deref().unwrap_or_default();
        return Err(ApiError::no_object(&target.informers[0].spec.resource, name));
    }
    Ok(selected)
}

/// The owners of selected objects, and theirs, all the way up, as far as they are followed. Objects of a selected resource are left
/// out, as on a watch.
async fn above(
    server: &Server,
    selected: &[Selected],
    states: &mut HashMap<InformerId, Snapshot>,
    deadline: Instant,
) -> Result<Vec<(Arc<Informer>, Object)>, ApiError> {
    let is_selected = |informer: &Informer| {
        selected.iter().any(|selected| selected.informer.spec.resource == informer.spec.resource)
    };
    let mut informers = server.hub.informers();
    informers.retain(|informer| !is_selected(informer));
    let mut found: BTreeMap<(usize, Key), Object> = BTreeMap::new();
    let mut frontier: Vec<_> = selected.iter().flat_map(|one| one.objects.iter().cloned()).collect();
    let mut asked: HashSet<(String, String)> = HashSet::new();
    while !frontier.is_empty() {
        let mut wanted: Vec<(Owner, String)> = Vec::new();
        in_turns(&server.turns, frontier.iter(), |object| {
            let namespace = object.key().namespace();
            for owner in owners(object) {
                if asked.insert((owner.uid.clone(), namespace.to_owned())) {
                    wanted.push((owner, namespace.to_owned()));
                }
            }
        })
        .await;
        frontier.clear();
        for (owner, namespace) in wanted {
            let covers = |informer: &Informer| namespace.is_empty() || informer.spec.scope.covers(&namespace);
            let meant = informers.iter().enumerate();
            for (at, informer) in
                meant.filter(|(_, informer)| owner.is_of(&informer.spec.resource) && covers(informer))
            {
                target::synced(informer, deadline).await?;
                let state = states.entry(informer.id()).or_insert_with(|| informer.reader.snapshot());
                let Some(object) = owned_by(&owner, informer, state, &namespace) else { continue };
                if found.insert((at, object.key().clone()), object.clone()).is_none() {
                    frontier.push(object);
                }
            }
            bounded(found.len())?;
        }
    }
    Ok(found.into_iter().map(|((at, _), object)| (informers[at].clone(), object)).collect())
}

/// Refuses more objects than an answer may have.
fn bounded(count: usize) -> Result<(), ApiError> {
    if count <= JOINED_MAX {
        return Ok(());
    }
    metrics::limit_hit("join_objects_max");
    Err(ApiError::bad_request(format!(
        "the selected objects and those that join adds are more than {JOINED_MAX}: expected a narrower selection"
    )))
}
