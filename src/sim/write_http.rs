//! POST, PUT, PATCH and DELETE.

use hyper::{Method, Response, header};
use serde_json::{Value, json};

use super::http::{self, Body, Call, Form, negotiate_object};
use super::managed_fields::Manager;
use super::object::Stored;
use super::patch;
use super::read::{self, scale_of};
use super::selector::Filter;
use super::shared::Shared;
use super::status::{Status, quoted};
use super::target::Target;
use super::write::{Commit, Deletion, Door, Part, Place};

/// Answers a request that changes objects.
pub(super) fn write(shared: &Shared, call: &Call, target: &Target) -> Result<Response<Body>, Status> {
    let form = negotiate_object(call.header(header::ACCEPT), &target.kind.kind)?;
    let collection = target.name.is_empty();
    let (code, stored) = match call.method {
        Method::POST if collection => {
            let value = checked_body(call, target)?;
            let door = door(call, target, "Update");
            (201, shared.cluster.lock().create(&target.resource(), &target.namespace, value, door)?)
        }
        Method::PUT if !collection => (200, replace(shared, call, target)?),
        Method::PATCH if !collection => return patched(shared, call, target, form),
        Method::DELETE if collection => return delete_collection(shared, call, target),
        Method::DELETE if target.subresource.is_empty() => return delete(shared, call, target),
        _ => return Err(Status::method_not_allowed()),
    };
    if target.subresource == "scale" {
        return Ok(http::json(code, scale_of(&stored).to_string()));
    }
    Ok(read::object(code, target, form, &stored))
}

/// POST of an access review, which allows everything; `None` for any other request.
///
/// These are not stored, so they are not in any table.
pub(super) fn review(call: &Call) -> Option<Response<Body>> {
    let path = call.path.trim_matches('/').strip_prefix("apis/authorization.k8s.io/v1/")?;
    let kind = match path {
        "selfsubjectaccessreviews" => "SelfSubjectAccessReview",
        "subjectaccessreviews" => "SubjectAccessReview",
        _ => return None,
    };
    if call.method != Method::POST {
        return None;
    }
    // kubectl sends protobuf, which is not decoded here. The question does not matter, as everything is allowed.
    let mut review: Value = serde_json::from_slice(&call.body).unwrap_or_else(|_| json!({"spec": {}}));
    review["kind"] = kind.into();
    review["apiVersion"] = "authorization.k8s.io/v1".into();
    review["status"] = json!({"allowed": true});
    Some(http::json(201, review.to_string()))
}

fn door<'a>(call: &'a Call, target: &Target, operation: &'static str) -> Door<'a> {
    let subresource = match target.subresource.as_str() {
        "status" => "status",
        "scale" => "scale",
        _ => "",
    };
    Door {
        manager: Manager { name: call.field_manager(), operation, subresource },
        part: if subresource == "status" { Part::Status } else { Part::Main },
        commit: if call.query.get("dryRun").is_some() { Commit::DryRun } else { Commit::Store },
    }
}

fn place(target: &Target) -> Place {
    Place::new(&target.resource(), &target.namespace, &target.name)
}

fn parse(call: &Call) -> Result<Value, Status> {
    if let Ok(value) = serde_json::from_slice(&call.body) {
        return Ok(value);
    }
    let content_type = call.header(header::CONTENT_TYPE);
    let yaml = content_type.contains("yaml");
    if content_type.contains("protobuf") {
        let message = "the body of the request was in an unknown format - accepted media types include: \
                       application/json, application/yaml";
        return Err(Status::new(415, "UnsupportedMediaType", message));
    }
    let text = std::str::from_utf8(&call.body).ok().filter(|_| yaml);
    let parsed = text.and_then(|text| serde_saphyr::from_str::<Value>(text).ok());
    parsed.ok_or_else(|| {
        Status::bad_request("the object provided is unrecognized (must be of type Object): couldn't get version/kind; json parse error")
    })
}

/// The body, if it is of the path's kind.
fn checked_body(call: &Call, target: &Target) -> Result<Value, Status> {
    let value = parse(call)?;
    let (kind, api_version) = (value["kind"].as_str(), value["apiVersion"].as_str());
    let expected = target.kind.api_version(&target.version);
    if kind.is_some_and(|kind| kind != target.kind.kind) || api_version.is_some_and(|v| v != expected) {
        return Err(Status::bad_request(format!(
            "the API version in the data ({}) or the kind ({}) does not match the expected {expected}, {}",
            api_version.unwrap_or_default(),
            kind.unwrap_or_default(),
            target.kind.kind
        )));
    }
    Ok(value)
}

fn replace(shared: &Shared, call: &Call, target: &Target) -> Result<std::sync::Arc<Stored>, Status> {
    if target.subresource == "scale" {
        let scale = parse(call)?;
        return set_scale(shared, call, target, &scale);
    }
    let value = checked_body(call, target)?;
    let name = value["metadata"]["name"].as_str().unwrap_or_default();
    if !name.is_empty() && name != target.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    shared.cluster.lock().update(&place(target), door(call, target, "Update"), |_| Ok(value))
}

fn patched(shared: &Shared, call: &Call, target: &Target, form: Form) -> Result<Response<Body>, Status> {
    let content_type = call.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    let body = parse(call)?;
    let mut state = shared.cluster.lock();
    if content_type == "application/apply-patch+yaml" {
        let door = door(call, target, "Apply");
        let missing = !state.table_mut(&target.resource())?.objects.contains_key(&key(target));
        if missing && target.subresource.is_empty() {
            let mut value = body;
            value["metadata"]["name"] = target.name.as_str().into();
            let stored = state.create(&target.resource(), &target.namespace, value, door)?;
            return Ok(read::object(201, target, form, &stored));
        }
        let stored = state.update(&place(target), door, |mut object| {
            patch::strategic(&mut object, &body);
            Ok(object)
        })?;
        return Ok(read::object(200, target, form, &stored));
    }
    if target.subresource == "scale" {
        drop(state);
        let stored = set_scale(shared, call, target, &body)?;
        return Ok(http::json(200, scale_of(&stored).to_string()));
    }
    let custom = target.kind.is_custom();
    let stored = state.update(&place(target), door(call, target, "Update"), |mut object| {
        match content_type {
            "application/merge-patch+json" => patch::merge(&mut object, &body),
            "application/strategic-merge-patch+json" if !custom => patch::strategic(&mut object, &body),
            "application/json-patch+json" => patch::json_patch(&mut object, &body)?,
            _ => return Err(unsupported_patch(custom)),
        }
        Ok(object)
    })?;
    Ok(read::object(200, target, form, &stored))
}

fn key(target: &Target) -> String {
    super::object::key_of(&target.namespace, &target.name)
}

fn unsupported_patch(custom: bool) -> Status {
    let strategic = if custom { "" } else { ", application/strategic-merge-patch+json" };
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml{strategic}"
    );
    Status::new(415, "UnsupportedMediaType", message)
}

fn set_scale(
    shared: &Shared,
    call: &Call,
    target: &Target,
    scale: &Value,
) -> Result<std::sync::Arc<Stored>, Status> {
    let Some(replicas) = scale["spec"]["replicas"].as_u64() else {
        return Err(Status::bad_request("spec.replicas must be a number not below 0"));
    };
    let version = scale["metadata"]["resourceVersion"].clone();
    shared.cluster.lock().update(&place(target), door(call, target, "Update"), |mut object| {
        object["spec"]["replicas"] = replicas.into();
        if version.is_string() {
            object["metadata"]["resourceVersion"] = version;
        }
        Ok(object)
    })
}

fn delete(shared: &Shared, call: &Call, target: &Target) -> Result<Response<Body>, Status> {
    let options = if call.body.is_empty() { Value::Null } else { parse(call)? };
    let asked = call.query.get("gracePeriodSeconds").and_then(|text| text.parse().ok());
    let grace = asked.or_else(|| options["gracePeriodSeconds"].as_u64());
    let door = door(call, target, "Update");
    let door = if options["dryRun"].as_array().is_some_and(|list| !list.is_empty()) {
        Door { commit: Commit::DryRun, ..door }
    } else {
        door
    };
    let deletion = shared.cluster.lock().delete(&place(target), &options["preconditions"], grace, door)?;
    match deletion {
        Deletion::Pending(stored) => Ok(read::object(200, target, Form::Plain, &stored)),
        Deletion::Done(stored) => {
            let group = if target.kind.group.is_empty() {
                String::new()
            } else {
                format!(r#""group":{},"#, quoted(&target.kind.group))
            };
            let uid = stored.value()["metadata"]["uid"].clone();
            Ok(http::json(
                200,
                format!(
                    r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Success","details":{{"name":{},{group}"kind":{},"uid":{uid}}}}}"#,
                    quoted(&stored.name),
                    quoted(&target.kind.plural)
                ),
            ))
        }
    }
}

fn delete_collection(shared: &Shared, call: &Call, target: &Target) -> Result<Response<Body>, Status> {
    let (labels, fields) = (call.query.text("labelSelector"), call.query.text("fieldSelector"));
    let filter = Filter::parse(&target.kind, &target.namespace, labels, fields)?;
    let mut state = shared.cluster.lock();
    for object in state.matching(&target.resource(), &filter) {
        let place = Place::new(&target.resource(), &object.namespace, &object.name);
        state.delete(&place, &Value::Null, None, door(call, target, "Update"))?;
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    Ok(http::json(200, status.to_string()))
}
