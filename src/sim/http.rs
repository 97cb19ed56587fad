//! Parses requests, and builds answers.

use std::io;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Response};

use super::params::Query;
use super::status::Status;

/// The body of an answer: complete, or a stream.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// One request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Call {
    pub(super) fn new(parts: &Parts, body: Bytes) -> Self {
        Self {
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            query: Query::parse(parts.uri.query().unwrap_or_default()),
            headers: parts.headers.clone(),
            body,
        }
    }

    pub(super) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The name a server writes into managedFields: `fieldManager`, else the first word of the User-Agent.
    pub(super) fn field_manager(&self) -> &str {
        let agent = self.header(header::USER_AGENT);
        let agent = agent.split(['/', ' ']).next().filter(|word| !word.is_empty()).unwrap_or("unknown");
        self.query.get("fieldManager").unwrap_or(agent)
    }
}

/// A form of JSON that the client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The objects as they are.
    Plain,
    /// Only their metadata.
    Metadata,
    /// Only their metadata, as a list. On a watch this form gives an empty stream.
    MetadataList,
}

/// The first form in the `Accept` header that the server knows.
///
/// Quality values are not weighed: no Kubernetes client sends them. Tables are not known, so that kubectl falls
/// back to plain JSON.
pub(super) fn negotiate(accept: &str) -> Result<Form, Status> {
    if accept.trim().is_empty() {
        return Ok(Form::Plain);
    }
    for entry in accept.split(',') {
        let mut parts = entry.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        if !matches!(media_type, "application/json" | "application/*" | "*/*") {
            continue;
        }
        let parameter = |name: &str| {
            entry
                .split(';')
                .skip(1)
                .filter_map(|p| p.trim().split_once('='))
                .find(|(k, _)| *k == name)
                .map(|(_, v)| v)
        };
        match (parameter("as"), parameter("g"), parameter("v")) {
            (None, _, _) => return Ok(Form::Plain),
            (Some("PartialObjectMetadata"), Some("meta.k8s.io"), Some("v1")) => return Ok(Form::Metadata),
            (Some("PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) => {
                return Ok(Form::MetadataList);
            }
            _ => {}
        }
    }
    Err(not_acceptable("only the following media types are accepted: application/json"))
}

/// The form of a list; 406 where metadata of a single object was asked for.
pub(super) fn negotiate_list(accept: &str, list_kind: &str) -> Result<Form, Status> {
    match negotiate(accept)? {
        Form::Metadata => Err(not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*v1.{list_kind})"
        ))),
        form @ (Form::Plain | Form::MetadataList) => Ok(form),
    }
}

/// The form of a single object; 406 where a list of metadata was asked for.
pub(super) fn negotiate_object(accept: &str, kind: &str) -> Result<Form, Status> {
    match negotiate(accept)? {
        Form::MetadataList => Err(not_acceptable(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list (*v1.{kind})"
        ))),
        form @ (Form::Plain | Form::Metadata) => Ok(form),
    }
}

fn not_acceptable(message: impl Into<String>) -> Status {
    Status::new(406, "NotAcceptable", message)
}

/// A JSON answer, ended by a newline, with the headers of a real server.
pub(super) fn json(code: u16, text: impl Into<Vec<u8>>) -> Response<Body> {
    let mut text = text.into();
    text.push(b'\n');
    whole(code, "application/json", text)
}

/// A whole answer of any type.
pub(super) fn whole(code: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    respond(code, content_type, body)
}

/// Any answer.
pub(super) fn respond(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    Response::builder()
        .status(code)
        .header(header::CACHE_CONTROL, "no-cache, private")
        .header(header::CONTENT_TYPE, content_type)
        .body(body)
        .expect("the status code and both header values are valid")
}

/// An error answer.
pub(super) fn error(status: &Status) -> Response<Body> {
    let mut response = json(status.code, status.to_json());
    if let Some(seconds) = status.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_supported_accept_form_is_chosen() {
        let list = |accept| negotiate_list(accept, "PodList").map_err(|s| s.code);
        let json_list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        assert_eq!(list(""), Ok(Form::Plain));
        assert_eq!(list("*/*"), Ok(Form::Plain));
        assert_eq!(list("application/vnd.kubernetes.protobuf,application/json"), Ok(Form::Plain));
        assert_eq!(list("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"), Ok(Form::Plain));
        assert_eq!(list(json_list), Ok(Form::MetadataList));
        assert_eq!(list("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"), Err(406));
        assert_eq!(list("text/html"), Err(406));
    }
}
