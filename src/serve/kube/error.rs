//! Errors worded as by the API server: clients depend on code and reason, people search for the sentence.

use axum::http::StatusCode;

use super::super::ApiError;
use crate::k8s::{Cause, Details, Resource, Status};

/// 404: nothing is served there.
pub(super) fn nothing_there() -> ApiError {
    let message = "the server could not find the requested resource";
    let mut status = Status::failure(404, "NotFound", message);
    status.details = Some(Details::default());
    ApiError::of_status(status).uncached()
}

/// 403: the resource is followed in other namespaces.
pub(super) fn elsewhere(resource: &Resource, followed: &str) -> ApiError {
    let message = format!("{resource} is forbidden: this informerd follows it in {followed} only");
    let mut status = Status::failure(403, "Forbidden", message);
    let (group, kind) = (resource.group().to_owned(), resource.plural().to_owned());
    status.details = Some(Details { group, kind, ..Details::default() });
    ApiError::of_status(status).uncached()
}

/// 403: informerd itself may not list the resource.
pub(super) fn may_not_list(resource: &Resource, why: &str) -> ApiError {
    let message = format!("{resource} is forbidden: this informerd may not list it: {why}");
    let mut status = Status::failure(403, "Forbidden", message);
    let (group, kind) = (resource.group().to_owned(), resource.plural().to_owned());
    status.details = Some(Details { group, kind, ..Details::default() });
    ApiError::of_status(status).uncached()
}

/// 422: parameters that exclude each other.
pub(super) fn invalid_options(causes: Vec<Cause>) -> ApiError {
    let mut each: Vec<_> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    each.dedup();
    let joined = match &*each {
        [one] => one.clone(),
        _ => format!("[{}]", each.join(", ")),
    };
    let message = format!(r#"ListOptions.meta.k8s.io "" is invalid: {joined}"#);
    let mut status = Status::failure(422, "Invalid", message);
    let (group, kind) = ("meta.k8s.io".to_owned(), "ListOptions".to_owned());
    status.details = Some(Details { group, kind, causes, ..Details::default() });
    ApiError::of_status(status)
}

/// 410: a list at a version that is gone.
pub(super) fn list_too_old() -> ApiError {
    expired("The resourceVersion for the provided list is too old.")
}

/// 410: a page of a list that is gone.
pub(super) fn page_expired() -> ApiError {
    expired(
        "The provided continue parameter is too old to display a consistent list result. You must start a new \
         list without the continue parameter.",
    )
}

fn expired(message: &str) -> ApiError {
    ApiError::new(StatusCode::GONE, "Expired", message)
}

/// 400: a continue token that this server did not make.
pub(super) fn bad_token(why: &str) -> ApiError {
    ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
}
