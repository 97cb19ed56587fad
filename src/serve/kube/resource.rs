//! The informer behind a path, and the requested objects.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::super::target::synced;
use super::super::{ApiError, Server, metrics};
use super::negotiate::Shape;
use super::options::{ListOptions, RequestedVersion};
use super::path::PathTarget;
use super::{error, fields};
use crate::hub::{Informer, Selection, SubscribeError, VERSION_WAIT};
use crate::k8s::{FieldSelector, LabelSelector, ResourceVersion};

/// Time for which a request waits for the cache to be complete, or for an informer on demand.
pub(super) const SYNC_WAIT: Duration = Duration::from_secs(5);

/// The complete informer that holds the objects of a path.
pub(super) async fn informer(server: &Server, target: &PathTarget) -> Result<Arc<Informer>, ApiError> {
    let deadline = Instant::now() + SYNC_WAIT;
    let PathTarget { group, version, resource: plural, .. } = target;
    let mut found = server.hub.followed(group, version, plural);
    if found.is_empty() {
        // Perhaps it starts on demand.
        found = server.hub.find(&target.resource_name(), deadline).await.map_err(|error| refused(&error))?;
    }
    let resource = found[0].spec.resource.clone();
    // The hub also accepts short names, kinds, parts of a group, and capitals, which a path must not use.
    let exact = (resource.group(), resource.version(), resource.plural()) == (group, version, plural);
    let placed = match (resource.namespaced(), &target.namespace, &target.name) {
        (true, None, Some(_)) | (false, Some(_), _) => false,
        (true | false, _, _) => true,
    };
    if !exact || !placed {
        return Err(error::nothing_there());
    }
    let wanted = |informer: &&Arc<Informer>| match &target.namespace {
        Some(namespace) => informer.spec.scope.covers(namespace),
        None => informer.spec.scope == crate::hub::Scope::All,
    };
    let Some(informer) = found.iter().find(wanted) else {
        let followed: Vec<_> = found.iter().map(|informer| informer.spec.scope.to_string()).collect();
        return Err(error::elsewhere(&resource, &followed.join(", ")));
    };
    complete(informer, deadline).await?;
    Ok(informer.clone())
}

/// The error of a request with wrong parameters. As on an API server, an unknown resource counts first. A request for a resource that is
/// not followed may be passed through, as a newer API server may know the parameter. No informer is started or waited for.
pub(super) fn unless_unknown(server: &Server, target: &PathTarget, refused: ApiError) -> ApiError {
    if !server.hub.followed(&target.group, &target.version, &target.resource).is_empty() {
        return refused;
    }
    // The resource may be one that starts on demand.
    if server.hub.starts_on_demand() { refused.uncached() } else { error::nothing_there() }
}

/// Time between two checks why an informer is not complete.
const CONDITION_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until an informer is complete.
///
/// # Errors
/// 403 as soon as it is known that informerd may not list; clients do not retry that. Else 503.
async fn complete(informer: &Informer, deadline: Instant) -> Result<(), ApiError> {
    loop {
        let condition = informer.reader.condition();
        if condition.forbidden && !informer.reader.mark().synced {
            return Err(error::may_not_list(&informer.spec.resource, &condition.message.unwrap_or_default()));
        }
        let now = Instant::now();
        let outcome = synced(informer, deadline.min(now + CONDITION_INTERVAL)).await;
        if outcome.is_ok() || now >= deadline {
            return outcome;
        }
    }
}

fn refused(error: &SubscribeError) -> ApiError {
    match error {
        SubscribeError::Pending { .. } => ApiError::unavailable(error.to_string(), 1),
        SubscribeError::Exhausted { .. } => {
            metrics::limit_hit("on_demand_max");
            ApiError::unavailable(error.to_string(), 30)
        }
        SubscribeError::NotOnDemand { .. }
        | SubscribeError::Full { .. }
        | SubscribeError::Unknown { .. }
        | SubscribeError::TooLong { .. }
        | SubscribeError::NoKind { .. } => error::nothing_there(),
    }
}

/// The form in which objects are shown, given which parts of them are held.
pub(super) fn held_shape(informer: &Informer, shape: Shape) -> Result<Shape, ApiError> {
    match shape {
        // As they are held.
        Shape::Metadata if informer.spec.content.metadata_only => Ok(Shape::Whole),
        Shape::Whole if informer.spec.content.metadata_only => {
            let accepted = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1 (a list: PartialObjectMetadataList)";
            let message =
                format!("of {} only the metadata is held; ask for {accepted}", informer.spec.resource);
            let code = axum::http::StatusCode::NOT_ACCEPTABLE;
            Err(ApiError::new(code, "NotAcceptable", message).uncached())
        }
        Shape::Whole | Shape::Metadata | Shape::Table => Ok(shape),
    }
}

/// The selection of a list or a watch.
pub(super) fn selection(
    informer: &Informer,
    target: &PathTarget,
    options: &mut ListOptions,
) -> Result<Selection, ApiError> {
    let fields = fields::placed(&informer.spec.resource, std::mem::take(&mut options.fields))?;
    if let Some(path) = fields.paths().find(|path| !informer.spec.holds(path)) {
        let message =
            format!("field label not supported: {path} (it is not held of {})", informer.spec.resource);
        return Err(ApiError::bad_request(message));
    }
    // A single object is looked up by key, and has a wake-up of its own.
    let name = fields.required("metadata.name").map(str::to_owned);
    let namespaces = target.namespace.iter().cloned().collect();
    Ok(Selection::new(namespaces, name, &options.labels, &fields))
}

/// The one object that a path names.
pub(super) fn one(target: &PathTarget) -> Selection {
    let namespaces = target.namespace.iter().cloned().collect();
    Selection::new(namespaces, target.name.clone(), &LabelSelector::default(), &FieldSelector::default())
}

/// Waits until the cache has reached the requested version.
///
/// # Errors
/// 504 if it does not in time (U9). Clients then ask for an older version.
pub(super) async fn reached(informer: &Informer, asked: &RequestedVersion) -> Result<(), ApiError> {
    let RequestedVersion::Version(version) = asked else { return Ok(()) };
    let deadline = Instant::now() + VERSION_WAIT;
    let mut wake = informer.reader.wake();
    let position = || informer.reader.summary().position;
    if timeout_at(deadline, wake.wait_for(|_| position() >= *version)).await.is_err() {
        return Err(too_large(version, &position()));
    }
    Ok(())
}

pub(super) fn too_large(asked: &ResourceVersion, reached: &ResourceVersion) -> ApiError {
    ApiError::too_large_version(&asked.to_string(), &reached.to_string())
}
