//! The path of a request below `/v1/index/` or `/v1/watch-index/`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use tokio::time::Instant;

use super::target::{self, Target};
use super::{ApiError, Server};
use crate::hub::Informer;
use crate::k8s::{FieldMask, FieldPath, IndexPath, IndexPaths, Object};

/// How long a request waits for discovery and for the first list.
pub(super) const WAIT: Duration = Duration::from_secs(10);

/// A request's path after its route, parsed.
pub(super) struct IndexTarget {
    pub(super) resource: String,
    pub(super) path: Option<String>,
    pub(super) value: Option<String>,
}

impl IndexTarget {
    pub(super) fn parse(route: &str, uri: &Uri) -> Result<Self, ApiError> {
        let mut segments = target::segments(target::path_after(route, uri))?.into_iter();
        let (resource, path, value) = (segments.next().unwrap_or_default(), segments.next(), segments.next());
        if segments.next().is_some() || resource.contains([',', '/', '%']) {
            let accepted = format!(
                "expected {route}RESOURCE[/PATH[/VALUE]]; a / within a path or a value is %2F, or give ?value="
            );
            return Err(ApiError::invalid("path", uri.path(), &accepted));
        }
        Ok(Self { resource, path, value })
    }
}

/// Waits until the caches are complete, and for room in the queue of turns.
pub(super) async fn ready(server: &Server, target: &Target) -> Result<(), ApiError> {
    server.turns.admit()?;
    let deadline = Instant::now() + WAIT;
    for informer in &target.informers {
        target::synced(informer, deadline).await?;
    }
    Ok(())
}

/// The path of an index over these informers.
pub(super) fn index_path(path: &str, informers: &[Arc<Informer>]) -> Result<IndexPath, ApiError> {
    let wrong = |why: &str| ApiError::invalid("path", path, why);
    FieldMask::parse(path).map_err(|error| wrong(&error.to_string()))?;
    if path.contains(',') {
        return Err(wrong("expected one path"));
    }
    if let Some(informer) = informers.iter().find(|informer| !informer.spec.holds(path)) {
        return Err(wrong(&format!("the cache keeps no such member of {}", informer.spec.resource)));
    }
    Ok(IndexPath::Field(FieldPath::new(path)))
}

/// The values of an object, each once.
pub(super) fn distinct(object: &Object, paths: &IndexPaths) -> Vec<Arc<str>> {
    let mut values: Vec<_> = object.read_values(paths).get(0).iter().cloned().collect();
    values.sort_unstable();
    values.dedup();
    values
}
