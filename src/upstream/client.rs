//! The client of the API server: sends lists and watches, returns their bytes.

use std::error::Error;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::header::{ACCEPT, ACCEPT_ENCODING, AGE, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use super::connector::PrefersHttp2;
use super::metrics::{self, Verb};
use super::replay::Replay;
use super::session::{Session, Sessions};
use super::{Config, Refusal, UpstreamError};
use crate::k8s::{Key, Resource, ResourceVersion};

/// Characters that need no escape in a query value: RFC 3986's unreserved ones.
pub(super) const QUERY_VALUE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Bytes that are read of an error answer. A Status is far smaller; a proxy's page may have any size.
pub(super) const ERROR_BYTES_MAX: usize = 64 << 10;

pub(super) const AGENT: &str = concat!("informerd/", env!("CARGO_PKG_VERSION"));
pub(super) const JSON: &str = "application/json";
/// Asks for metadata alone, and for whole objects if the server does not know that form (U34).
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json";
const METADATA_WATCH: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json";

/// A client of the API server. Cheap to clone; clones share connections and credentials.
#[derive(Clone)]
pub struct Client {
    sessions: Arc<Sessions>,
    limits: Limits,
    bytes: ::metrics::Counter,
}

#[derive(Clone, Copy)]
struct Limits {
    response_timeout: Duration,
    watch_response_timeout: Duration,
    idle_timeout: Duration,
    page_bytes_max: usize,
}

/// What is listed and watched.
#[derive(Clone, Debug)]
pub struct Target {
    /// The resource.
    pub resource: Resource,
    /// One namespace; `None` for all namespaces, or for a cluster-scoped resource.
    pub namespace: Option<String>,
    /// Which of its objects.
    pub selectors: Selectors,
    /// Whether only the objects' metadata is requested (`PartialObjectMetadata`). A server that does not know that form
    /// sends whole objects.
    pub metadata_only: bool,
}

/// Selectors in the API server's own grammar, empty for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// `labelSelector`.
    pub label: String,
    /// `fieldSelector`.
    pub field: String,
}

/// Which state a list asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AsOf {
    /// The most recent one (`resourceVersion` unset).
    #[default]
    Now,
    /// At least this version. A server that is behind waits for a while, then answers 504 (U9).
    AtLeast(ResourceVersion),
    /// Exactly this version, as long as the server remembers it.
    Exactly(ResourceVersion),
}

/// A request for a page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// Largest number of objects; 0 for all of them.
    pub limit: u32,
    /// The token of the page before; `None` for the first.
    pub continue_token: Option<String>,
    /// Which state. Ignored with a continue token, which implies it.
    pub as_of: AsOf,
    /// Whether only metadata is requested, even if the target says otherwise.
    pub metadata_only: bool,
}

/// A page as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListBody {
    /// The bytes.
    pub body: Vec<u8>,
    /// Whether a cache answered, such as another informerd, and not the API server itself: the answer has an `Age` header.
    /// Source: RFC 9111, 5.1: "The presence of an Age header field implies that the response was not generated or
    /// validated by the origin server for this request."
    pub is_cached: bool,
}

/// A request for a watch with bookmarks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Where it begins.
    pub from: WatchFrom,
    /// The time after which the server is asked to end it, in whole seconds.
    pub timeout: Duration,
}

/// Where a watch begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchFrom {
    /// With the first event after this version.
    After(ResourceVersion),
    /// With every object as ADDED, followed by a marked bookmark: a streaming list (U18).
    Everything(AsOf),
}

/// The bytes of a watch as they arrive, not aligned with lines. Ends when the server ends it.
pub struct ByteStream {
    body: Body,
    bytes: ::metrics::Counter,
    ended: bool,
    is_pinged: bool,
}

// === impl Client ===

impl Client {
    /// Reads address and credentials. Connects only with the first request.
    ///
    /// # Errors
    /// [`UpstreamError::Config`] when there is no usable configuration or a credential plugin fails.
    pub async fn connect(config: Config) -> Result<Self, UpstreamError> {
        let limits = Limits::of(&config);
        Ok(Self { sessions: Arc::new(Sessions::open(config).await?), limits, bytes: metrics::bytes() })
    }

    /// Uses a client that was made elsewhere, with the limits of `config`; for tests and simulation.
    pub fn over(kube: kube::Client, config: &Config) -> Self {
        let limits = Limits::of(config);
        Self { sessions: Arc::new(Sessions::over(kube)), limits, bytes: metrics::bytes() }
    }

    /// One page of a list, as the API server sent it.
    ///
    /// # Errors
    /// [`UpstreamError::Refused`] with the HTTP code, 410 when a version or a token is forgotten;
    /// [`UpstreamError::BodyTooLarge`] beyond `page_bytes_max`; [`UpstreamError::Transport`] and
    /// [`UpstreamError::Idle`] from the network.
    ///
    /// Source: Kubernetes API concepts, "Retrieving large results sets in chunks" and "resourceVersionMatch" (from
    /// 1.19).
    pub async fn list_page(&self, target: &Target, page: &PageRequest) -> Result<ListBody, UpstreamError> {
        let mut path = target.path();
        if page.limit > 0 {
            append(&mut path, "limit", &page.limit.to_string());
        }
        match &page.continue_token {
            // The token implies the version; servers refuse both together.
            Some(token) => append(&mut path, "continue", token),
            None => page.as_of.append(&mut path),
        }
        let metadata = target.metadata_only || page.metadata_only;
        let mut request = get(&path).header(ACCEPT, if metadata { METADATA_LIST } else { JSON });
        if page.limit == 1 && page.metadata_only {
            // A probe: what it learns has to hold for the server of the watch that follows.
            request = request.extension(PrefersHttp2);
        }
        let response = self.send(Verb::List, request.body(Bytes::new())).await?;
        let is_cached = response.headers().contains_key(AGE);
        let body = self.collect(response, self.limits.page_bytes_max).await?;
        Ok(ListBody { body, is_cached })
    }

    /// Opens a watch.
    ///
    /// # Errors
    /// [`UpstreamError::Refused`] with the HTTP code, [`UpstreamError::Transport`] and
    /// [`UpstreamError::Idle`] from the network. An ERROR event is part of the stream.
    ///
    /// Source: Kubernetes API concepts, "Efficient detection of changes" and "Streaming lists".
    pub async fn watch(&self, target: &Target, watch: &WatchRequest) -> Result<ByteStream, UpstreamError> {
        let mut path = target.path();
        append(&mut path, "watch", "true");
        append(&mut path, "allowWatchBookmarks", "true");
        append(&mut path, "timeoutSeconds", &watch.timeout.as_secs().to_string());
        match &watch.from {
            WatchFrom::After(version) => append(&mut path, "resourceVersion", &version.to_string()),
            WatchFrom::Everything(as_of) => {
                append(&mut path, "sendInitialEvents", "true");
                as_of.append(&mut path);
                // Always sent: without it a server that does not know streaming lists would not refuse them (U19).
                if *as_of == AsOf::Now {
                    append(&mut path, "resourceVersionMatch", "NotOlderThan");
                }
            }
        }
        // Servers from 1.37 on compress a watch into one gzip member for each flush, of which kube's decoder reads only
        // the first.
        let accept = if target.metadata_only { METADATA_WATCH } else { JSON };
        let request =
            get(&path).header(ACCEPT, accept).header(ACCEPT_ENCODING, "identity").extension(PrefersHttp2);
        let response = self.send(Verb::Watch, request.body(Bytes::new())).await?;
        let is_pinged = response.version() == Version::HTTP_2;
        Ok(ByteStream { body: response.into_body(), bytes: self.bytes.clone(), ended: false, is_pinged })
    }

    /// Closes idle connections, as the path to the API server may be dead. The next request opens a new one.
    pub fn forget_connections(&self) {
        self.sessions.forget_connections();
    }

    /// The whole document at a path.
    ///
    /// # Errors
    /// As [`Client::list_page`].
    pub async fn document(&self, path: &str, accept: &str) -> Result<Vec<u8>, UpstreamError> {
        let request = get(path).header(ACCEPT, accept);
        let response = self.send(Verb::Get, request.body(Bytes::new())).await?;
        self.collect(response, self.limits.page_bytes_max).await
    }

    /// Sends a review such as `SelfSubjectAccessReview`, which the server answers and does not store.
    pub(super) async fn review(&self, path: &str, body: Vec<u8>) -> Result<Vec<u8>, UpstreamError> {
        let request = Request::builder().method(Method::POST).uri(path);
        let request = request.header(USER_AGENT, AGENT).header(ACCEPT, JSON).header(CONTENT_TYPE, JSON);
        let response = self.send(Verb::Create, request.body(body.into())).await?;
        self.collect(response, ERROR_BYTES_MAX).await
    }

    /// Sends a client's request with informerd's own credentials, and returns any answer. Both bodies are streamed. The
    /// request's body is kept until the answer arrives, as the request may have to be sent again with newer credentials. There
    /// is no time limit: dropping the future or the body ends the request.
    ///
    /// `Accept-Encoding` and `User-Agent` are replaced. The caller must remove credentials from the headers.
    ///
    /// # Errors
    /// [`UpstreamError::Transport`] if there is no answer; the cause may be the request's body.
    pub async fn forward<B>(&self, request: Request<B>) -> Result<Response<Body>, UpstreamError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (mut parts, body) = request.into_parts();
        parts.headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        // As for a watch, and it may be one.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if !body.is_end_stream() {
            parts.extensions.insert(Replay::new(body));
        }
        self.answered(Verb::Forward, Request::from_parts(parts, Bytes::new())).await
    }

    /// The current client, with its credentials.
    pub(super) async fn session(&self) -> Arc<Session> {
        self.sessions.current().await
    }

    /// Sends a request, and a second time if the first answer made address or credentials be read again.
    pub(super) async fn send(
        &self,
        verb: Verb,
        request: Result<Request<Bytes>, http::Error>,
    ) -> Result<Response<Body>, UpstreamError> {
        let request = request.map_err(|error| UpstreamError::Config(Box::new(error)))?;
        // Boxed, as tasks that send requests mostly wait. Each of them would hold the bytes of this future all the time.
        let response = Box::pin(self.answered(verb, request)).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (code, headers) = (response.status().as_u16(), response.headers().clone());
        // The body only adds details to the error, so a failure to read it is ignored.
        let body = self.collect(response, ERROR_BYTES_MAX).await.unwrap_or_default();
        Err(UpstreamError::Refused(Box::new(Refusal::from_answer(code, &headers, &body))))
    }

    /// The answer, whatever its code.
    async fn answered(&self, verb: Verb, request: Request<Bytes>) -> Result<Response<Body>, UpstreamError> {
        let session = self.sessions.current().await;
        let generation = session.generation();
        let mut answer = self.send_once(verb, &session, request.clone()).await;
        if answer.is_err() && request.extensions().get().is_some_and(Replay::is_broken) {
            // A client that leaves in the middle of its body must not make idle connections be closed for all.
            return answer;
        }
        // Only a request that was refused for its credentials is sent again. Another write may have been executed.
        let again = request.method() == Method::GET || answer.is_ok() || verb != Verb::Forward;
        if let Some(renewed) =
            self.sessions.after(&session, generation, answer.as_ref().map(Response::status)).await
            && again
        {
            answer = self.send_once(verb, &renewed, request).await;
        }
        answer
    }

    async fn send_once(
        &self,
        verb: Verb,
        session: &Session,
        request: Request<Bytes>,
    ) -> Result<Response<Body>, UpstreamError> {
        let limit = match verb {
            Verb::Watch => self.limits.watch_response_timeout,
            Verb::List | Verb::Get | Verb::Create | Verb::Update => self.limits.response_timeout,
            // No time limit: the client's request ends it.
            Verb::Forward => Duration::MAX,
        };
        let answer = match timeout(limit, session.kube.send(request.map(Body::from))).await {
            Ok(answer) => answer.map_err(|error| UpstreamError::unreached(&session.server, error)),
            Err(_) => Err(UpstreamError::Idle(limit)),
        };
        match &answer {
            Ok(response) => metrics::answered(verb, response.status().as_u16()),
            Err(_) => metrics::unanswered(verb),
        }
        answer
    }

    pub(super) async fn collect(
        &self,
        response: Response<Body>,
        limit: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        let mut body = response.into_body();
        let expected = usize::try_from(body.size_hint().lower()).unwrap_or(limit);
        let mut collected = Vec::with_capacity(expected.min(limit));
        loop {
            let frame = timeout(self.limits.idle_timeout, body.frame()).await;
            let Ok(frame) = frame else {
                self.forget_connections();
                return Err(UpstreamError::Idle(self.limits.idle_timeout));
            };
            let Some(frame) = frame else { return Ok(collected) };
            // A frame without data is a trailer, which the API server does not send.
            let Ok(chunk) = frame?.into_data() else { continue };
            self.bytes.increment(chunk.len() as u64);
            if collected.len() + chunk.len() > limit {
                return Err(UpstreamError::BodyTooLarge { limit });
            }
            collected.extend_from_slice(&chunk);
        }
    }
}

fn get(path: &str) -> http::request::Builder {
    Request::builder().method(Method::GET).uri(path).header(USER_AGENT, AGENT)
}

fn append(path: &mut String, name: &str, value: &str) {
    let separator = if path.contains('?') { '&' } else { '?' };
    let _ = write!(path, "{separator}{name}={}", utf8_percent_encode(value, QUERY_VALUE));
}

impl Limits {
    fn of(config: &Config) -> Self {
        Self {
            response_timeout: config.response_timeout,
            watch_response_timeout: config.watch_response_timeout,
            idle_timeout: config.idle_timeout,
            page_bytes_max: config.page_bytes_max,
        }
    }
}

// === impl AsOf ===

impl AsOf {
    fn append(&self, path: &mut String) {
        let (version, how) = match self {
            Self::Now => return,
            Self::AtLeast(version) => (version, "NotOlderThan"),
            Self::Exactly(version) => (version, "Exact"),
        };
        append(path, "resourceVersion", &version.to_string());
        append(path, "resourceVersionMatch", how);
    }
}

// === impl Target ===

impl Target {
    /// The same target with one object only.
    #[must_use]
    pub fn only(&self, key: &Key) -> Self {
        let mut only = self.clone();
        only.namespace = Some(key.namespace().to_owned()).filter(|namespace| !namespace.is_empty());
        let named = format!("metadata.name={}", key.name());
        let field = &mut only.selectors.field;
        *field = if field.is_empty() { named } else { format!("{field},{named}") };
        only
    }

    /// The collection's path with its selectors.
    fn path(&self) -> String {
        let mut path = self.resource.list_path(self.namespace.as_deref());
        if !self.selectors.label.is_empty() {
            append(&mut path, "labelSelector", &self.selectors.label);
        }
        if !self.selectors.field.is_empty() {
            append(&mut path, "fieldSelector", &self.selectors.field);
        }
        path
    }
}

// === impl ByteStream ===

impl ByteStream {
    /// Whether it comes over HTTP/2, whose connection is pinged: if the path or the server is dead, the stream breaks off. A
    /// silence then says nothing about the connection.
    pub fn is_pinged(&self) -> bool {
        self.is_pinged
    }
}

impl Stream for ByteStream {
    type Item = Result<Bytes, UpstreamError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.ended {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(chunk) = frame.into_data() {
                        self.bytes.increment(chunk.len() as u64);
                        return Poll::Ready(Some(Ok(chunk)));
                    }
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => self.ended = true,
            }
        }
        Poll::Ready(None)
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
