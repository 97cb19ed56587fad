//! GET of lists and of single objects.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use hyper::header;
use serde_json::{Value, json};

use super::http::{self, Body, Call, Form, negotiate_list, negotiate_object};
use super::kinds::Kind;
use super::object::Stored;
use super::params::{Asked, ListParams, Token, list_revision};
use super::selector::Filter;
use super::shared::Shared;
use super::status::{Status, quoted};
use super::table::Page;
use super::target::Target;

/// Lists above this size are sent in chunks, without a length.
const WHOLE_BYTES_MAX: usize = 128 * 1024;

/// Least size of a chunk of a long list, in bytes.
const LIST_CHUNK_BYTES: usize = 64 * 1024;

/// Waits until the cluster has reached `revision`; 504 if it does not in time.
pub(super) async fn reach(shared: &Shared, revision: u64) -> Result<(), Status> {
    let deadline = tokio::time::Instant::now() + shared.config.revision_wait;
    loop {
        let current = shared.revision();
        if current >= revision {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Status::too_large(revision, current));
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// Answers a list, or a page of one.
pub(super) async fn list(shared: &Shared, call: &Call, target: &Target) -> Result<Response<Body>, Status> {
    let form = negotiate_list(call.header(header::ACCEPT), &target.kind.list_kind)?;
    let params = ListParams::parse(&call.query)?;
    let (labels, fields) = (call.query.text("labelSelector"), call.query.text("fieldSelector"));
    let filter = Filter::parse(&target.kind, &target.namespace, labels, fields)?;
    if let Asked::Revision(revision) = params.asked {
        reach(shared, revision).await?;
    }
    let (page, revision) = page(shared, target, &params, &filter)?;
    let token = page.more_after.as_ref().map(|key| {
        Token { revision: i64::try_from(revision).unwrap_or(i64::MAX), after: key.clone() }.encode()
    });
    let mut metadata = format!(r#"{{"resourceVersion":"{revision}""#);
    if let Some(token) = token {
        metadata.push_str(&format!(r#","continue":{}"#, quoted(&token)));
    }
    if let Some(remaining) = page.remaining {
        metadata.push_str(&format!(r#","remainingItemCount":{remaining}"#));
    }
    metadata.push('}');
    Ok(respond(target, form, &metadata, page.objects, shared.faults.take_nameless()))
}

/// Reads the page under the lock, at the requested revision.
fn page(
    shared: &Shared,
    target: &Target,
    params: &ListParams,
    filter: &Filter,
) -> Result<(Page, u64), Status> {
    let mut state = shared.cluster.lock();
    let newest = shared.seen(state.revision);
    let table = state.table_mut(&target.resource())?;
    let mut after = None;
    let revision = match (&params.token, params.asked) {
        (Some(token), _) => {
            let expired = shared.faults.take_expired_continue();
            after = Some(token.after.as_str());
            match u64::try_from(token.revision) {
                Ok(revision) if expired || revision < table.floor || revision > newest => {
                    let fresh = Token { revision: -1, after: token.after.clone() };
                    return Err(Status::continue_expired(fresh.encode()));
                }
                Ok(revision) => revision,
                Err(_) => newest,
            }
        }
        (None, Asked::Revision(revision)) if params.exact => {
            if revision < table.floor {
                return Err(Status::list_too_old());
            }
            revision
        }
        (None, _) => newest,
    };
    table.counters.list_pages += 1;
    table.counters.lists += u64::from(params.token.is_none());
    Ok((table.page(filter, revision, after, params.limit), revision))
}

fn respond(
    target: &Target,
    form: Form,
    metadata: &str,
    objects: Vec<Arc<Stored>>,
    nameless: bool,
) -> Response<Body> {
    let kind = &target.kind;
    let api_version = kind.api_version(&target.version);
    let mut head = match form {
        Form::Metadata | Form::MetadataList => format!(
            r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"items":["#
        ),
        Form::Plain if kind.is_custom() => format!(r#"{{"apiVersion":"{api_version}","items":["#),
        Form::Plain => {
            format!(
                r#"{{"kind":"{}","apiVersion":"{api_version}","metadata":{metadata},"items":["#,
                kind.list_kind
            )
        }
    };
    if nameless {
        head.push_str(if objects.is_empty() { r#"{"spec":{}}"# } else { r#"{"spec":{}},"# });
    }
    let tail = if form == Form::Plain && kind.is_custom() {
        format!(r#"],"kind":"{}","metadata":{metadata}}}"#, kind.list_kind)
    } else {
        "]}".to_owned()
    };
    let mut items = Items { kind: kind.clone(), version: target.version.clone(), form, objects, next: 0 };
    let size: usize = items.objects.iter().map(|o| o.body.len() + 64).sum();
    if size <= WHOLE_BYTES_MAX {
        let mut text = BytesMut::from(head.as_bytes());
        while items.append(&mut text) {}
        text.extend_from_slice(tail.as_bytes());
        return http::json(200, text);
    }
    let first = std::iter::once(Bytes::from(head)).chain(std::iter::from_fn(move || items.chunk()));
    let chunks = first.chain(std::iter::once(Bytes::from(format!("{tail}\n"))));
    let frames = stream::iter(chunks.map(|chunk| Ok::<_, io::Error>(Frame::data(chunk))));
    http::respond(200, "application/json", StreamBody::new(frames).boxed_unsync())
}

/// The items of a list, written as text while they are read.
struct Items {
    kind: Kind,
    version: String,
    form: Form,
    objects: Vec<Arc<Stored>>,
    next: usize,
}

impl Items {
    fn append(&mut self, text: &mut BytesMut) -> bool {
        let Some(object) = self.objects.get(self.next) else { return false };
        if self.next > 0 {
            text.extend_from_slice(b",");
        }
        // Items of built-in kinds lack kind and apiVersion (U6); those of custom kinds, and metadata alone, have both.
        if self.form == Form::Plain && !self.kind.is_custom() {
            text.extend_from_slice(&object.body);
        } else {
            append_object(text, &self.kind, &self.version, self.form, object);
        }
        self.next += 1;
        true
    }

    fn chunk(&mut self) -> Option<Bytes> {
        let mut text = BytesMut::with_capacity(LIST_CHUNK_BYTES + LIST_CHUNK_BYTES / 4);
        while text.len() < LIST_CHUNK_BYTES && self.append(&mut text) {}
        (!text.is_empty()).then(|| text.freeze())
    }
}

/// Appends an object complete with `kind` and `apiVersion`, or its metadata alone.
pub(super) fn append_object(text: &mut BytesMut, kind: &Kind, version: &str, form: Form, object: &Stored) {
    if form == Form::Plain {
        text.extend_from_slice(kind.head(version).as_bytes());
        text.extend_from_slice(&object.body[1..]);
        return;
    }
    let metadata = super::object::go_escape(object.value()["metadata"].to_string());
    text.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#);
    text.extend_from_slice(metadata.as_bytes());
    text.extend_from_slice(b"}");
}

/// The whole object as an answer.
pub(super) fn object(code: u16, target: &Target, form: Form, object: &Stored) -> Response<Body> {
    let mut text = BytesMut::new();
    append_object(&mut text, &target.kind, &target.version, form, object);
    http::json(code, text)
}

/// Answers one object, or its `scale`.
pub(super) async fn get(shared: &Shared, call: &Call, target: &Target) -> Result<Response<Body>, Status> {
    let form = negotiate_object(call.header(header::ACCEPT), &target.kind.kind)?;
    if let Asked::Revision(revision) = list_revision(call.query.text("resourceVersion"))? {
        reach(shared, revision).await?;
    }
    let stored = find(shared, target)?;
    if target.subresource == "scale" {
        return Ok(http::json(200, scale_of(&stored).to_string()));
    }
    Ok(object(200, target, form, &stored))
}

fn find(shared: &Shared, target: &Target) -> Result<Arc<Stored>, Status> {
    let mut state = shared.cluster.lock();
    let table = state.table_mut(&target.resource())?;
    let found = table.objects.get(&super::object::key_of(&target.namespace, &target.name)).map(Arc::clone);
    found.ok_or_else(|| Status::not_found(&target.kind.plural, &target.kind.group, &target.name))
}

/// The `Scale` of a deployment or replica set.
pub(super) fn scale_of(stored: &Stored) -> Value {
    let object = stored.value();
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let selector: Vec<String> =
        labels.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect();
    let metadata = &object["metadata"];
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": object["spec"]["replicas"]},
        "status": {"replicas": object["status"]["replicas"].as_u64().unwrap_or(0), "selector": selector.join(",")},
    })
}
