//! `GET /v1/snapshot/…`: the state at one moment.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

use super::body::FramesBody;
use super::compressed::{self, Compress, ListKey, WholeList};
use super::content::none_match;
use super::list_body::{ListPosition, ListWriter, Listing};
use super::load::{EndsWithClient, Load};
use super::negotiate::{accepted, coding, compresses};
use super::pagination::Continue;
use super::params::Params;
use super::target::{self, PROJECTION, SELECTION, Target};
use super::waiting::{self, Awaited, ContentAt, PREFERENCE_APPLIED};
use super::{ApiError, Server, join};
use crate::encode::{Coding, Frames, ListEncoder, ListFormat};
use crate::hub::{Candidates, Informer, ResumeToken, Selection};
use crate::k8s::{ContentHash, Object, damages_of_thread};

const PARAMS: &[&str] = &["resourceVersion", "timeoutSeconds", "limit", "continue", "join"];
pub(super) const OFFERED: [(&str, ListFormat); 3] = [
    ("application/json", ListFormat::Json),
    ("application/x-ndjson", ListFormat::Ndjson),
    ("application/jsonl", ListFormat::Ndjson),
];
/// Default time for which a request waits for the cache, in seconds.
const WAIT_SECONDS: u64 = 10;
/// Longest such time that a request may ask for, in seconds.
const WAIT_SECONDS_MAX: u64 = 300;

/// A request for a snapshot.
struct Request {
    path: String,
    params: Params,
    headers: HeaderMap,
    format: ListFormat,
    limit: Option<usize>,
    /// How long the request waits for the cache.
    timeout: Duration,
    /// How long it waits for a change, if it says which tag it has.
    wait: Option<Duration>,
}

/// A snapshot to be answered with.
struct ListAnswer {
    informers: Vec<Arc<Informer>>,
    states: Vec<Candidates>,
    selection: Arc<Selection>,
    /// The hashes of the selected objects, by informer; empty if the answer has no tag.
    contents: Vec<ContentAt>,
    tag: Option<HeaderValue>,
    shape: Shape,
}

/// The form of the answer.
enum Shape {
    /// A single object, as in the API server's GET.
    Object(Object),
    List(Page),
}

/// A page's place.
struct Page {
    place: ListPosition,
    limit: Option<usize>,
    /// The request that it is a page of.
    request: u64,
    /// Under which the states are held; `None` for a first page.
    id: Option<u64>,
}

pub(super) async fn snapshot(
    State(server): State<Server>,
    uri: Uri,
    RawQuery(query): RawQuery,
    Extension(load): Extension<Arc<Load>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let request = Request::read(&uri, query.as_deref(), headers)?;
    if request.params.get("join").is_some() {
        let Request { path, params, headers, format, timeout, .. } = request;
        return join::Request { path, params, headers, format, timeout }.answer(&server, &load).await;
    }
    let Some(wait) = request.wait else {
        let shown = request.find(&server, &load).await?;
        let _ends = EndsWithClient::begin(&load);
        return Ok(shown.answer(&server, &request).await);
    };
    let until = Instant::now() + wait;
    let mut permit = None;
    loop {
        let shown = request.find(&server, &load).await?;
        let over = Instant::now() >= until || server.drain.is_cancelled();
        if over || !shown.is_unchanged(&request) {
            let mut response = shown.answer(&server, &request).await;
            response.headers_mut().insert(PREFERENCE_APPLIED, waiting::applied(wait));
            return Ok(response);
        }
        if permit.is_none() {
            permit = Some(server.waiting.permit()?);
        }
        let _ends = EndsWithClient::begin(&load);
        server.waiting.wait(shown.into_awaited(), until).await;
    }
}

impl Request {
    fn read(uri: &Uri, query: Option<&str>, headers: HeaderMap) -> Result<Self, ApiError> {
        let params = Params::parse(query, &[SELECTION, PROJECTION, PARAMS])?;
        let format = accepted(&headers, &OFFERED)
            .ok_or_else(|| ApiError::not_acceptable("application/json, application/x-ndjson"))?;
        let path = target::path_after("/v1/snapshot/", uri).to_owned();
        let seconds = params.number("timeoutSeconds", 0, WAIT_SECONDS_MAX)?.unwrap_or(WAIT_SECONDS);
        let limit = params.number("limit", 0_usize, usize::MAX)?.filter(|limit| *limit > 0);
        let preferred = waiting::preferred(&headers)?;
        // A later page never changes, and without a tag there is nothing to compare with.
        let compares = headers.contains_key(header::IF_NONE_MATCH) && continues(&params).is_none();
        let wait = preferred.filter(|_| compares);
        let timeout = Duration::from_secs(seconds);
        Ok(Self { path, params, headers, format, limit, timeout, wait })
    }

    /// Waits for the state that is asked for, and finds the objects. From then on it works for this client alone.
    async fn find(&self, server: &Server, load: &Arc<Load>) -> Result<ListAnswer, ApiError> {
        let deadline = Instant::now() + self.timeout;
        let target = server.target(&self.path, &self.params, deadline).await?;
        let request = fingerprint(&self.path, &self.params);
        server.turns.admit()?;
        target.reached(&self.params, deadline).await?;
        let _ends = EndsWithClient::begin(load);
        let Target { informers, selection, single } = target;
        let selection = Arc::new(selection);
        let (page, states) = match continues(&self.params) {
            Some(token) => next_page(server, token, request, &informers, &self.params, self.limit)?,
            None => {
                server.turns.index(&informers, &selection).await;
                let place = ListPosition::default();
                let page = Page { place, limit: self.limit, request, id: None };
                (page, Listing::current(&informers, &selection))
            }
        };
        let (contents, tag, shape) = (Vec::new(), None, Shape::List(page));
        let mut shown = ListAnswer { informers, states, selection, contents, tag, shape };
        if single && shown.is_one_resource() {
            shown.pick_object()?;
        } else {
            shown.set_tag(server, self.format).await;
        }
        Ok(shown)
    }
}

/// The token of a later page.
fn continues(params: &Params) -> Option<&str> {
    params.get("continue").filter(|token| !token.is_empty())
}

/// The page that a `continue` token names.
fn next_page(
    server: &Server,
    token: &str,
    request: u64,
    informers: &[Arc<Informer>],
    params: &Params,
    limit: Option<usize>,
) -> Result<(Page, Vec<Candidates>), ApiError> {
    let wrong = |accepted: &str| ApiError::invalid("continue", token, accepted);
    if params.get("resourceVersion").is_some() {
        return Err(ApiError::bad_request("specifying resourceVersion is not allowed when using continue"));
    }
    let token = Continue::parse(token)
        .ok_or_else(|| wrong("expected the metadata.continue (or Informerd-Continue) of the page before"))?;
    if token.request != request {
        return Err(wrong("expected the token of a page of this same request (path and filters)"));
    }
    let Some(states) = server.pages.get(token.id, informers, Instant::now()) else {
        let message = "the continue token has expired: start the list over without it";
        return Err(ApiError::new(StatusCode::GONE, "Expired", message));
    };
    if token.source >= states.len() {
        return Err(wrong("expected the token of a page of this same request"));
    }
    Ok((Page { place: token.place(), limit, request, id: Some(token.id) }, states))
}

/// Identifies path and filters of a request, so that a page's token is valid only for the same request.
fn fingerprint(path: &str, params: &Params) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Decoded, as it may be encoded in another way.
    percent_decode_str(path.trim_end_matches('/')).decode_utf8_lossy().hash(&mut hasher);
    for name in SELECTION.iter().chain(PROJECTION) {
        params.all(name).for_each(|value| (name, value).hash(&mut hasher));
    }
    hasher.finish()
}

impl ListAnswer {
    /// The headers of every answer: its age, and the token to continue with.
    fn headers(&self, now: Instant) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let age = self.informers.iter().map(|informer| informer.reader.age(now).as_secs()).max().unwrap_or(0);
        headers.insert(header::AGE, age.into());
        // Clients may keep it, but have to revalidate, which gives a 304.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        let positions = self.informers.iter().zip(&self.states);
        let token: ResumeToken = positions
            .map(|(informer, state)| (informer.token_name(), state.snapshot.position.clone()))
            .collect();
        if let Ok(token) = HeaderValue::from_str(&token.to_string()) {
            headers.insert("informerd-resume", token);
        }
        headers
    }

    /// Takes the one object that is named.
    fn pick_object(&mut self) -> Result<(), ApiError> {
        let before = damages_of_thread();
        let mut found = self.states.iter().map(|state| self.selection.objects(&state.snapshot, None).next());
        let object = found.find_map(|object| object).cloned();
        let name = self.selection.name.as_deref().unwrap_or_default();
        let form = &self.selection.form;
        let hash = object.as_ref().map(|object| form.content_hash(object));
        if damages_of_thread() != before {
            // It may not match because it cannot be unpacked.
            return Err(ApiError::damaged());
        }
        let (Some(object), Some(hash)) = (object, hash) else {
            return Err(ApiError::no_object(&self.informers[0].spec.resource, name));
        };
        let of = |state: &Candidates| {
            let held = state.snapshot.get(object.key()).is_some_and(|held| held.is_same(&object));
            let hash = if held { hash } else { ContentHash::default() };
            ContentAt { cursor: state.snapshot.cursor, hash }
        };
        self.contents = self.states.iter().map(of).collect();
        // Of a part, the version is in the bytes and not in the hash.
        let weak = if form.fields.is_some() { "W/" } else { "" };
        self.tag = HeaderValue::from_str(&format!("{weak}\"{hash}\"")).ok();
        self.shape = Shape::Object(object);
        Ok(())
    }

    /// The JSON of an object in the form that is asked for.
    fn json_of(&self, object: &Object) -> Result<Bytes, ApiError> {
        let before = damages_of_thread();
        let json = self.selection.form.show(object).json();
        if damages_of_thread() == before { Ok(json) } else { Err(ApiError::damaged()) }
    }

    /// Makes the tag of the first page from its content and form: it is the same on every replica with the same objects. It
    /// is weak, as the list's version is not part of it: bookmarks alone do not change it.
    async fn set_tag(&mut self, server: &Server, format: ListFormat) {
        let Shape::List(Page { id: None, limit, .. }) = &self.shape else { return };
        let (kind, api_version) = self.kind();
        let mut shown = format!("{kind} {api_version} {format:?} {limit:?} {:?}", self.selection.form);
        for (informer, state) in self.informers.iter().zip(&mut self.states) {
            let content = server.contents.of(informer, &self.selection, state).await;
            let Some(content) = content else { return };
            // An informer's name in tokens contains a digest of which objects it holds, and with which content.
            shown.push_str(&format!("\n{} {content}", informer.token_name()));
            self.contents.push(ContentAt { cursor: state.snapshot.cursor, hash: content });
        }
        self.tag = HeaderValue::from_str(&format!("W/\"{}\"", ContentHash::of(shown.as_bytes()))).ok();
    }

    /// Whether the client has this answer already.
    fn is_unchanged(&self, request: &Request) -> bool {
        self.tag.as_ref().is_some_and(|tag| none_match(&request.headers, tag))
    }

    /// The change that a request with the current tag waits for.
    fn into_awaited(self) -> Awaited {
        Awaited { informers: self.informers, selection: self.selection, contents: self.contents }
    }

    fn is_one_resource(&self) -> bool {
        self.informers.iter().all(|informer| informer.spec.resource == self.informers[0].spec.resource)
    }

    /// The answer: 304 if the client has it already.
    async fn answer(self, server: &Server, request: &Request) -> Response {
        let now = Instant::now();
        let mut headers = self.headers(now);
        if let Some(tag) = &self.tag {
            headers.insert(header::ETAG, tag.clone());
        }
        if self.is_unchanged(request) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let mut response = match &self.shape {
            Shape::Object(object) => {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                match self.json_of(object) {
                    Ok(json) => one(json),
                    Err(error) => return error.into_response(),
                }
            }
            Shape::List(_) => {
                let content_type = match request.format {
                    ListFormat::Json => "application/json",
                    ListFormat::Ndjson => "application/x-ndjson",
                };
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
                let coding = coding(&request.headers);
                if coding == Coding::Identity {
                    let body = self.into_body(server, request.format, now, &mut headers).await;
                    if compresses(&request.headers) {
                        let mut response = body.into_plain_response();
                        response.extensions_mut().insert(Compress);
                        response
                    } else {
                        body.into_response()
                    }
                } else {
                    let body = self.into_compressed(server, request.format, coding, now, &mut headers).await;
                    compressed::response(body, coding)
                }
            }
        };
        response.headers_mut().extend(headers);
        response
    }

    /// The kind of the list, and its API version.
    fn kind(&self) -> (String, String) {
        if self.is_one_resource() {
            let shown = self.informers[0].shown();
            (format!("{}List", shown.kind()), shown.api_version())
        } else {
            ("List".to_owned(), "v1".to_owned())
        }
    }

    /// The compressed body. Clients that ask for the whole of one list share it.
    async fn into_compressed(
        self,
        server: &Server,
        format: ListFormat,
        coding: Coding,
        now: Instant,
        headers: &mut HeaderMap,
    ) -> FramesBody {
        let (turns, lists) = (server.turns.clone(), &server.compressed);
        let Some(whole) = self.whole(format, coding, headers) else {
            return compressed::compress(self.into_body(server, format, now, headers).await, coding, turns);
        };
        if let Some(body) = lists.find(&whole, now) {
            return body;
        }
        let body = self.into_body(server, format, now, headers).await;
        lists.begin(whole, body, turns, now)
    }

    /// What is shared with other clients: a list in one piece that has a tag. The tag does not name the version of the
    /// list, but the resume token does.
    fn whole(&self, format: ListFormat, coding: Coding, headers: &HeaderMap) -> Option<WholeList> {
        let (Shape::List(Page { id: None, limit: None, .. }), Some(tag)) = (&self.shape, &self.tag) else {
            return None;
        };
        let resume = headers.get("informerd-resume")?;
        let names: Vec<_> = self.informers.iter().map(|informer| informer.token_name()).collect();
        let list = format!("/v1 {format:?} {names:?}");
        let json_bytes = self.states.iter().map(|state| state.snapshot.bytes).sum();
        let key = ListKey { list, selection: self.selection.clone(), coding };
        Some(WholeList { key, state: format!("{tag:?} {resume:?}"), json_bytes })
    }

    async fn into_body(
        self,
        server: &Server,
        format: ListFormat,
        now: Instant,
        headers: &mut HeaderMap,
    ) -> FramesBody {
        let Shape::List(page) = &self.shape else { return FramesBody::new(futures_util::stream::empty()) };
        let (kind, api_version) = self.kind();
        let (generations, turns) = (server.hub.generations(), server.turns.clone());
        let listing = Listing::new(&self.informers, &self.selection, self.states.clone(), generations, turns);
        let end = match page.limit {
            Some(limit) => listing.end_of_page(&page.place, limit).await,
            None => None,
        };
        let next = self.next_page(server, page, end, now);
        if let Some(token) = next.as_ref().and_then(|(token, _)| HeaderValue::from_str(token).ok()) {
            // A page of lines has no metadata for the token.
            headers.insert("informerd-continue", token);
        }
        // A list of several informers has no version.
        let version = (self.states.len() == 1).then(|| self.states[0].snapshot.position.clone());
        let next = next.as_ref().map(|(token, remaining)| (&**token, *remaining));
        let list = ListEncoder::new(format, &kind, &api_version, version.as_ref(), next);
        let limit = page.limit.unwrap_or(usize::MAX);
        listing.into_body(page.place.clone(), limit, Frames::new(), list, server.config.batch_bytes_max)
    }

    /// The token of the next page, with the number of objects that are left. Holds the states for it.
    fn next_page(
        &self,
        server: &Server,
        page: &Page,
        end: Option<ListPosition>,
        now: Instant,
    ) -> Option<(String, Option<usize>)> {
        let Some(end) = end else {
            page.id.iter().for_each(|id| server.pages.finish(*id, now));
            return None;
        };
        let id = server.pages.hold(&self.informers, page.request, &self.states, now);
        Some((Continue::new(id, &end, page.request).to_text(), end.left))
    }
}

/// The answer with one object.
fn one(json: Bytes) -> Response {
    let mut frames = Frames::new();
    frames.share(json);
    frames.put("\n");
    frames.cut();
    let length = HeaderValue::from(bytes::Buf::remaining(&frames));
    let mut response = FramesBody::new(futures_util::stream::iter([Ok(frames)])).into_response();
    response.headers_mut().insert(super::body::EXACT_LENGTH, length);
    response
}

impl ListWriter for ListEncoder {
    fn object(&mut self, object: &Object, out: &mut Frames) {
        Self::object(self, object, out);
    }

    fn end(&mut self, out: &mut Frames) {
        Self::end(self, out);
    }
}
