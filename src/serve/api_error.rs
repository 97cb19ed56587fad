//! Errors of requests, which are answered as a `Status`.

use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use crate::k8s::{Cause, Damaged, Details, Object, Status};

/// An error that is answered as a Kubernetes `Status`.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: Box<Status>,
    allow: Option<&'static str>,
    uncached: bool,
}

impl ApiError {
    /// A failure with code, reason and sentence.
    pub fn new(code: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self::of_status(Status::failure(code.as_u16(), reason, message))
    }

    /// An error with this `Status`.
    pub fn of_status(status: Status) -> Self {
        Self { status: Box::new(status), allow: None, uncached: false }
    }

    /// 405, as the API server words it, where only GET is served.
    pub fn only_get() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        error.status.details = Some(Details::default());
        error.allow = Some("GET");
        error
    }

    /// 400: the request is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 400: a parameter's value is wrong.
    pub fn invalid(parameter: &str, value: &str, accepted: &str) -> Self {
        let value: String = value.chars().take(200).collect();
        let cause = Cause {
            reason: "FieldValueInvalid".into(),
            message: format!("invalid value {value:?}: {accepted}"),
            field: parameter.to_owned(),
        };
        Self::of_causes(vec![cause])
    }

    /// 400: several things are wrong, each named.
    pub fn of_causes(causes: Vec<Cause>) -> Self {
        let each: Vec<_> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let mut error = Self::bad_request(each.join("; "));
        error.status.details = Some(Details { causes, ..Details::default() });
        error
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// 404 for an object, worded as the API server words it.
    pub fn no_object(resource: &crate::k8s::Resource, name: &str) -> Self {
        let mut error = Self::not_found(format!("{resource} {name:?} not found"));
        error.status.details = Some(Details {
            name: name.to_owned(),
            group: resource.group().to_owned(),
            kind: resource.plural().to_owned(),
            ..Details::default()
        });
        error
    }

    /// 405.
    pub fn method_not_allowed(method: &Method) -> Self {
        let message = format!("{method} is not allowed: this is a read-only cache; there are GET and HEAD");
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        error.allow = Some("GET, HEAD");
        error
    }

    /// 405, where other methods are allowed.
    pub(super) fn only(method: &Method, allow: &'static str) -> Self {
        let message = format!("{method} is not allowed here; there are {allow}");
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        error.allow = Some(allow);
        error
    }

    /// 409.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message)
    }

    /// 406.
    pub fn not_acceptable(accepted: &str) -> Self {
        let message = format!("only the following media types are accepted: {accepted}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// 503, to be tried again.
    pub fn unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            .retry_after(retry_after_seconds)
    }

    /// 503: packed bytes of an object are damaged. Everything is fetched again.
    pub fn damaged() -> Self {
        Self::unavailable(Damaged.to_string(), 1)
    }

    /// The object's JSON. 503 if its packed bytes are damaged.
    pub fn readable(object: &Object) -> Result<Bytes, Self> {
        object.try_json().map_err(|Damaged| Self::damaged())
    }

    /// 504: the cache did not reach a resourceVersion in time (U9).
    pub fn too_large_version(asked: &str, reached: &str) -> Self {
        Self::of_status(Status::too_large_version(asked, reached))
    }

    /// Adds `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.status.details.get_or_insert_default().retry_after_seconds = Some(seconds);
        self
    }

    /// Adds a cause for programs.
    #[must_use]
    pub(super) fn with_cause(mut self, reason: &str, field: &str, message: String) -> Self {
        let cause = Cause { reason: reason.to_owned(), message, field: field.to_owned() };
        self.status.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// Marks an error that only says that the cache cannot answer, but the API server may.
    #[must_use]
    pub(super) fn uncached(mut self) -> Self {
        self.uncached = true;
        self
    }

    /// Whether the API server may be able to answer the refused request.
    pub(super) fn is_uncached(&self) -> bool {
        self.uncached
    }

    /// The HTTP status.
    pub fn code(&self) -> StatusCode {
        StatusCode::from_u16(self.status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The body.
    pub fn status(&self) -> &Status {
        &self.status
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        let mut response = (self.code(), headers, self.status.to_line()).into_response();
        if let Some(allow) = self.allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        let retry_after = self.status.details.as_ref().and_then(|details| details.retry_after_seconds);
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
