//! `/v1/queues/…`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};
use tokio::time::Instant;

use super::super::load::{EndsWithClient, Load};
use super::super::params::Params;
use super::super::target::path_after;
use super::super::{ApiError, Server, body, metrics};
use super::answers::{
    DoneBody, ExtendBody, LeaseBody, QueueInfo, QueueList, ReleaseBody, RequeueBody, RetryBody, leased,
};
use super::config::{DeclaredBy, QueueAccess};
use super::dependents::ways;
use super::error::QueueError;
use super::feed;
use super::registry::{Declared, Queues};
use super::workers::{Ask, Taken, Workers};
use crate::k8s::{Key, Resource};
use crate::queue::{LEASE_SECONDS_MAX, LeaseToken, Retried, Spec, SpecError, check_name};

/// Largest body, in bytes: a queue over many namespaces with long conditions.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Largest number of keys of one lease.
const MAX_MAX: u32 = 1000;

/// Longest wait of a worker, in seconds.
const WAIT_SECONDS_MAX: u32 = 300;

/// Wait of a worker that does not say it, in seconds: below the idle timeouts of proxies.
const WAIT_SECONDS: u32 = 20;

/// Longest delay after `done`, in seconds: a week.
const REQUEUE_SECONDS_MAX: f64 = 7.0 * 24.0 * 3600.0;

/// Leases and failed keys that an answer lists, unless another number is asked for.
const LISTED: usize = 100;

/// Largest number of them.
const LISTED_MAX: usize = 1000;

/// How long a declaration waits for the kinds that it names.
const FIND_WAIT: Duration = Duration::from_secs(10);

/// When a worker asks again that came to a replica that does not lead, in seconds: as often as replicas look at the Lease.
const FOLLOWER_RETRY_SECONDS: u32 = 2;

const VERBS: [&str; 6] = ["lease", "extend", "done", "retry", "release", "requeue"];

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        let text = error.to_string();
        match error {
            QueueError::Unknown { .. } => Self::not_found(text),
            QueueError::Differs { .. } | QueueError::NotHeld(_) => Self::conflict(text),
            QueueError::Configured { .. } => Self::forbidden(text),
            QueueError::TooMany { .. } => limited("queues_max", text, 30),
            QueueError::TooManyLeases { .. } => limited("queue_leases_max", text, 1),
            QueueError::TooManyWorkers { .. } => limited("queue_workers_max", text, 5),
            QueueError::Stopping => Self::unavailable(text, 1),
            QueueError::Follows { leader, .. } => Self::unavailable(text, FOLLOWER_RETRY_SECONDS).with_cause(
                "NotLeader",
                "leader",
                leader.unwrap_or_default(),
            ),
        }
    }
}

fn limited(limit: &'static str, text: String, seconds: u32) -> ApiError {
    metrics::limit_hit(limit);
    ApiError::unavailable(text, seconds)
}

/// `GET /v1/queues`.
pub(in crate::serve) async fn list(
    State(server): State<Server>,
    method: Method,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    are_on(&server.queues)?;
    Params::parse(query.as_deref(), &[])?;
    if !matches!(method, Method::GET | Method::HEAD) {
        return Err(ApiError::only(&method, "GET, HEAD"));
    }
    let queues = server.queues.all().iter().map(|queue| QueueInfo::of(queue)).collect();
    Ok(uncached(axum::Json(QueueList { election: server.queues.election().map(Into::into), queues })))
}

/// `/v1/queues/QUEUE` and `/v1/queues/QUEUE/VERB`.
pub(in crate::serve) async fn answer(
    State(server): State<Server>,
    request: Request,
) -> Result<Response, ApiError> {
    let queues = &server.queues;
    are_on(queues)?;
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let path = path_after("/v1/queues/", &uri);
    let (name, verb) = path.split_once('/').map_or((path, None), |(name, verb)| (name, Some(verb)));
    check_name(name).map_err(|accepted| ApiError::invalid("queue", name, &accepted))?;
    queues.lead()?;
    let Some(verb) = verb else { return queue(queues, name, &method, request).await };
    if !VERBS.contains(&verb) {
        let verbs = VERBS.join(", ");
        return Err(ApiError::not_found(format!("no such path {path:?} of a queue; there are {verbs}")));
    }
    if method != Method::POST {
        return Err(ApiError::only(&method, "POST"));
    }
    Params::parse(uri.query(), &[])?;
    queues.get(name)?;
    // While a body arrives, informerd may cease to lead, or the queue may be deleted: then an answer would be of a queue that is gone.
    let workers = || {
        queues.lead()?;
        queues.get(name)
    };
    match verb {
        "lease" => {
            let load = request.extensions().get::<Arc<Load>>().cloned();
            let body = read(request, r#"{"max":1,"waitSeconds":20}"#).await?;
            lease(queues, workers()?, body, load).await
        }
        "extend" => {
            let body = read(request, r#"{"lease":"…","leaseSeconds":60}"#).await?;
            extend(&*workers()?, body)
        }
        "done" => {
            let body = read(request, r#"{"lease":"…","requeueAfterSeconds":60}"#).await?;
            done(&*workers()?, body)
        }
        "retry" => {
            let body = read(request, r#"{"lease":"…","error":"…"}"#).await?;
            retry(&*workers()?, &body)
        }
        "release" => {
            let body: ReleaseBody = read(request, r#"{"lease":"…"}"#).await?;
            workers()?.release(&token(&body.lease)?)?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => {
            let accepted = r#"{"all":true} or {"resource":"…","namespace":"…","name":"…"}"#;
            let body = read(request, accepted).await?;
            requeue(&*workers()?, &body)
        }
    }
}

fn are_on(queues: &Queues) -> Result<(), ApiError> {
    match queues.shared().config.access {
        QueueAccess::Off => Err(ApiError::forbidden("there are no work queues here (--queues=off)")),
        QueueAccess::Configuration | QueueAccess::Clients => Ok(()),
    }
}

async fn queue(queues: &Queues, name: &str, method: &Method, request: Request) -> Result<Response, ApiError> {
    let query = request.uri().query().map(str::to_owned);
    match *method {
        Method::GET | Method::HEAD => {
            let params = Params::parse(query.as_deref(), &[&["limit"]])?;
            let limit = params.number("limit", 0, LISTED_MAX)?.unwrap_or(LISTED);
            let leader = queues.election().and_then(|election| election.leader);
            Ok(uncached(axum::Json(QueueInfo::in_detail(&*queues.get(name)?, limit, leader))))
        }
        Method::PUT => {
            Params::parse(query.as_deref(), &[])?;
            let spec = read(request, r#"{"watch":[{"resource":"pods"}]}"#).await?;
            declare(queues, name, spec).await
        }
        Method::DELETE => {
            Params::parse(query.as_deref(), &[])?;
            by_clients(queues)?;
            queues.remove(name)?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => Err(ApiError::only(method, "GET, HEAD, PUT, DELETE")),
    }
}

/// Refuses a client that declares or deletes, where only the configuration may.
fn by_clients(queues: &Queues) -> Result<(), ApiError> {
    match queues.shared().config.access {
        QueueAccess::Clients => Ok(()),
        QueueAccess::Off | QueueAccess::Configuration => Err(ApiError::forbidden(
            "queues are declared in the configuration only; clients may where informerd runs with --queues=api",
        )),
    }
}

async fn declare(queues: &Queues, name: &str, spec: Spec) -> Result<Response, ApiError> {
    let wrong = |SpecError { field, value, problem }: SpecError| ApiError::invalid(&field, &value, &problem);
    let spec = spec.checked().map_err(wrong)?;
    let is_known = queues.get(name).is_ok_and(|known| *known.spec() == spec);
    if !is_known {
        by_clients(queues)?;
        resolve(queues, &spec).await?;
    }
    let (code, queue) = match queues.declare(name, spec, DeclaredBy::Client)? {
        Declared::New(queue) => (StatusCode::CREATED, queue),
        Declared::Same(queue) => (StatusCode::OK, queue),
    };
    Ok((code, uncached(axum::Json(QueueInfo::of(&queue)))).into_response())
}

/// Refuses resources that do not exist, or that cannot be selected so.
async fn resolve(queues: &Queues, spec: &Spec) -> Result<(), ApiError> {
    let deadline = Instant::now() + FIND_WAIT;
    let mut found: Vec<Resource> = Vec::new();
    for (index, watch) in spec.watch.iter().enumerate() {
        let target = feed::find(queues.shared(), watch, deadline).await.map_err(|error| {
            let message = format!("watch[{index}]: {}", error.status().message);
            match error.code() {
                // Of what is named in the body, not of the queue.
                StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => {
                    ApiError::invalid(&format!("watch[{index}]"), &watch.resource, &error.status().message)
                }
                StatusCode::SERVICE_UNAVAILABLE => ApiError::unavailable(message, 2),
                code => ApiError::new(code, &error.status().reason, message),
            }
        })?;
        let resource = target.informers[0].spec.resource.clone();
        if found.contains(&resource) {
            let accepted = "expected each resource once";
            return Err(ApiError::invalid(&format!("watch[{index}].resource"), &watch.resource, accepted));
        }
        found.push(resource);
    }
    for (index, watch) in spec.watch.iter().enumerate() {
        for (number, enqueue) in watch.enqueue.iter().enumerate() {
            let target = spec.target(&enqueue.resource).and_then(|target| found.get(target));
            let ways =
                target.map(|target| ways(&found[index], target, enqueue, &queues.shared().config.links));
            ways.unwrap_or_else(|| Ok(Vec::new())).map_err(|problem| {
                let field = format!("watch[{index}].enqueue[{number}].resource");
                ApiError::invalid(&field, &enqueue.resource, &problem)
            })?;
        }
    }
    Ok(())
}

async fn lease(
    queues: &Queues,
    workers: Arc<Workers>,
    body: LeaseBody,
    load: Option<Arc<Load>>,
) -> Result<Response, ApiError> {
    let max = whole("max", body.max, 1, 1, MAX_MAX)?;
    let wait = whole("waitSeconds", body.wait_seconds, WAIT_SECONDS, 0, WAIT_SECONDS_MAX)?;
    let length = length(&workers, body.lease_seconds)?;
    let ask = Ask { max: max as usize, wait: Duration::from_secs(wait.into()), length };
    // A worker that closes its half meanwhile has left.
    let _ends = load.as_ref().map(EndsWithClient::begin);
    let taken = workers.lease(ask).await;
    // It may have ceased to lead meanwhile: then the queue is gone, and what was taken is dropped.
    queues.lead()?;
    let mut taken = taken?;
    let bytes = loop {
        match leased(&taken.given, length.as_secs()) {
            Ok(bytes) => break bytes,
            Err(damaged) => taken.postpone(damaged),
        }
    };
    let body = Body::new(LeaseAnswer { bytes: Some(bytes.into()), taken: Some(taken) });
    Ok(uncached(([(header::CONTENT_TYPE, "application/json")], body)))
}

fn extend(workers: &Workers, body: ExtendBody) -> Result<Response, ApiError> {
    let length = length(workers, body.lease_seconds)?;
    workers.extend(&token(&body.lease)?, length)?;
    Ok(uncached(axum::Json(serde_json::json!({"leaseSeconds": length.as_secs()}))))
}

fn done(workers: &Workers, body: DoneBody) -> Result<Response, ApiError> {
    let read = |value: Value| match value.as_f64() {
        Some(seconds) if (0.0..=REQUEUE_SECONDS_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Some(_) | None => {
            let accepted = format!("expected a number from 0 to {REQUEUE_SECONDS_MAX}");
            Err(ApiError::invalid("requeueAfterSeconds", &value.to_string(), &accepted))
        }
    };
    let after = body.requeue_after_seconds.map(read).transpose()?;
    workers.done(&token(&body.lease)?, after)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn retry(workers: &Workers, body: &RetryBody) -> Result<Response, ApiError> {
    let retried = workers.retry(&token(&body.lease)?, &body.error)?;
    let told = match retried {
        Retried::After(delay) => serde_json::json!({"failed": false, "retryInSeconds": delay.as_secs_f64()}),
        Retried::Failed => serde_json::json!({"failed": true}),
    };
    Ok(uncached(axum::Json(told)))
}

fn requeue(workers: &Workers, body: &RequeueBody) -> Result<Response, ApiError> {
    let count = match (body.all, &body.resource, &body.name) {
        (true, None, None) if body.namespace.is_empty() => workers.put_back_all(),
        (false, Some(resource), Some(name)) => {
            let key = Key::new(&body.namespace, name);
            if !workers.put_back(resource, &key) {
                let message = format!("{resource} {:?} is not among the failed keys", key.as_str());
                return Err(ApiError::not_found(message));
            }
            1
        }
        _ => {
            let accepted = r#"expected {"all":true} or {"resource":"…","namespace":"…","name":"…"}"#;
            let given = serde_json::to_string(body).unwrap_or_default();
            return Err(ApiError::invalid("body", &given, accepted));
        }
    };
    Ok(uncached(axum::Json(serde_json::json!({"requeued": count}))))
}

fn length(workers: &Workers, asked: Option<Value>) -> Result<Duration, ApiError> {
    let seconds = whole("leaseSeconds", asked, workers.spec().lease_seconds, 1, LEASE_SECONDS_MAX)?;
    Ok(Duration::from_secs(seconds.into()))
}

/// A whole number between bounds.
fn whole(field: &str, value: Option<Value>, default: u32, min: u32, max: u32) -> Result<u32, ApiError> {
    let Some(value) = value else { return Ok(default) };
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| (min..=max).contains(number)).ok_or_else(|| {
        let accepted = format!("expected a whole number from {min} to {max}");
        ApiError::invalid(field, &value.to_string(), &accepted)
    })
}

fn token(text: &str) -> Result<LeaseToken, ApiError> {
    LeaseToken::parse(text).map_err(|error| ApiError::invalid("lease", text, &error.to_string()))
}

/// The JSON body of a request.
async fn read<T: DeserializeOwned>(request: Request, accepted: &str) -> Result<T, ApiError> {
    let body = body::json(request, BODY_BYTES_MAX).await?;
    let accepted = format!("expected an object like {accepted}");
    if !body::is_object(&body) {
        return Err(body::wrong_json("body", &body, &accepted));
    }
    let mut json = serde_json::Deserializer::from_slice(&body);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let accepted = format!("{accepted}: {}", error.inner());
        match value_at(&body, error.path()) {
            Some(value) => ApiError::invalid(&error.path().to_string(), &value.to_string(), &accepted),
            None => body::wrong_json("body", &body, &accepted),
        }
    })?;
    let after = |error| body::wrong_json("body", &body, &format!("expected one object: {error}"));
    json.end().map_err(after)?;
    Ok(parsed)
}

/// The value at a place of JSON; `None` for the whole of it, and where it has no such place.
fn value_at(json: &[u8], path: &Path) -> Option<Value> {
    path.iter().next()?;
    let whole: Value = serde_json::from_slice(json).ok()?;
    let value = path.iter().try_fold(&whole, |value, segment| match segment {
        Segment::Seq { index } => value.get(*index),
        Segment::Map { key } => value.get(key),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    value.cloned()
}

fn uncached(response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Leased keys on their way to a worker. If the connection ends before they are written, they go back to the queue.
struct LeaseAnswer {
    bytes: Option<Bytes>,
    taken: Option<Taken>,
}

impl http_body::Body for LeaseAnswer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(taken) = self.taken.take() {
            taken.hand_over();
        }
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
