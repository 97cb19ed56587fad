//! The target of a request: its informers and its selection.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::Uri;
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, timeout_at};

use super::params::Params;
use super::{ApiError, hub_error};
use crate::hub::{Form, Hub, Informer, Selection, Started};
use crate::k8s::{Condition, FieldMask, FieldSelector, LabelSelector, ResourceVersion};

/// The informers and objects of `RESOURCES[/NAMESPACE[/NAME]]` with its filters.
pub(super) struct Target {
    pub(super) informers: Vec<Arc<Informer>>,
    pub(super) selection: Selection,
    /// Whether one object was named.
    pub(super) single: bool,
}

/// The parameters that select objects.
pub(super) const SELECTION: &[&str] = &["labelSelector", "fieldSelector", "namespace", "where"];
/// The parameters that say how objects are shown.
pub(super) const PROJECTION: &[&str] = &["fields"];

/// The path after a route's prefix, not decoded: it is decoded once, segment by segment, so that errors are a Status.
pub(super) fn path_after<'u>(route: &str, uri: &'u Uri) -> &'u str {
    uri.path().strip_prefix(route).unwrap_or_default()
}

/// The segments of a path, decoded.
pub(super) fn segments(path: &str) -> Result<Vec<String>, ApiError> {
    let decode = |segment| match percent_decode_str(segment).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(ApiError::invalid("path", segment, "expected percent-encoded UTF-8")),
    };
    path.trim_end_matches('/').split('/').map(decode).collect()
}

impl Target {
    /// Reads a path after a route such as `/v1/watch/`, and the filters. Waits until `deadline` for informers that do not run
    /// yet. Refuses more than `informers_max` informers.
    pub(super) async fn find(
        hub: &Hub,
        informers_max: usize,
        path: &str,
        params: &Params,
        deadline: Instant,
    ) -> Result<Self, ApiError> {
        let segments = segments(path)?;
        let (resources, rest) = segments.split_first().expect("split gives at least one piece");
        let mut informers: Vec<Arc<Informer>> = Vec::new();
        for name in resources.split(',') {
            let found = resolve(hub, name, deadline).await?;
            if informers.iter().any(|informer| informer.spec.resource == found[0].spec.resource) {
                return Err(ApiError::invalid("resources", resources, "expected each resource once"));
            }
            informers.extend(found);
        }
        let (namespaces, name) = place(&informers, rest, params)?;
        let informers = narrow(informers, &namespaces)?;
        let max = informers_max;
        if informers.len() > max {
            super::metrics::limit_hit("streams_per_connection_max");
            return Err(ApiError::bad_request(format!(
                "{resources:?} joins {} informers, more than the limit of {max}: ask for fewer resources or namespaces",
                informers.len()
            )));
        }
        let labels = selector(params, "labelSelector", LabelSelector::parse)?;
        let fields = selector(params, "fieldSelector", FieldSelector::parse)?;
        held(&informers, fields.paths().map(str::to_owned), "fieldSelector", params)?;
        let condition = match params.get("where") {
            Some(text) => Some(
                Condition::parse(text)
                    .map_err(|error| ApiError::invalid("where", text, &error.to_string()))?,
            ),
            None => None,
        };
        held(&informers, condition.iter().flat_map(Condition::paths), "where", params)?;
        let form = Form { fields: mask(&informers, "fields", params)?, ..Form::default() };
        let single = name.is_some();
        let selection = Selection::new(namespaces, name, &labels, &fields);
        let selection = selection.with_condition(condition).with_form(form);
        Ok(Self { informers, selection, single })
    }

    /// Waits until each informer on demand is complete. It may never be, as its permissions were not checked before, and a
    /// stream could not say so.
    pub(super) async fn started(&self, deadline: Instant) -> Result<(), ApiError> {
        for informer in self.informers.iter().filter(|informer| informer.spec.started == Started::Demand) {
            synced(informer, deadline).await?;
        }
        Ok(())
    }

    /// Waits until the caches are complete, and have reached the requested version.
    pub(super) async fn reached(&self, params: &Params, deadline: Instant) -> Result<(), ApiError> {
        let version = match params.get("resourceVersion") {
            None | Some("" | "0") => None,
            Some(text) => {
                let version = ResourceVersion::new(text);
                if !version.is_number() {
                    return Err(ApiError::invalid("resourceVersion", text, "expected a decimal number"));
                }
                if !self.is_one_resource() {
                    let accepted = "expected one resource, as versions of different resources do not compare";
                    return Err(ApiError::invalid("resourceVersion", text, accepted));
                }
                Some(version)
            }
        };
        for informer in &self.informers {
            synced(informer, deadline).await?;
            let Some(version) = &version else { continue };
            let mut wake = informer.reader.wake();
            let reached = wake.wait_for(|_| informer.reader.summary().position >= *version);
            if timeout_at(deadline, reached).await.is_err() {
                let position = informer.reader.summary().position;
                return Err(ApiError::too_large_version(&version.to_string(), &position.to_string()));
            }
        }
        Ok(())
    }

    /// Whether it is of one resource, so that versions compare.
    fn is_one_resource(&self) -> bool {
        self.informers.iter().all(|informer| informer.spec.resource == self.informers[0].spec.resource)
    }
}

/// Waits until an informer is complete.
pub(super) async fn synced(informer: &Informer, deadline: Instant) -> Result<(), ApiError> {
    let mut wake = informer.reader.wake();
    // One that is replaced meanwhile would never be complete.
    let waited = timeout_at(deadline, wake.wait_for(|mark| mark.synced || informer.is_over())).await;
    if waited.is_ok_and(|mark| mark.is_ok_and(|mark| mark.synced)) {
        return Ok(());
    }
    let condition = informer.reader.condition();
    let why = condition.message.unwrap_or_else(|| "its first list is under way".to_owned());
    Err(ApiError::unavailable(format!("{} is not complete yet: {why}", informer.spec.name), 1))
}

/// The informers of a name. Waits for the first discovery, as an EventSource does not reconnect after an error.
pub(super) async fn resolve(
    hub: &Hub,
    name: &str,
    deadline: Instant,
) -> Result<Vec<Arc<Informer>>, ApiError> {
    hub.find(name, deadline).await.map_err(|error| hub_error::not_found(&error))
}

fn selector<T: Default, E: std::fmt::Display>(
    params: &Params,
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, ApiError> {
    let Some(text) = params.get(name) else { return Ok(T::default()) };
    parse(text).map_err(|error| ApiError::invalid(name, text, &error.to_string()))
}

/// The members that a parameter names.
pub(super) fn mask(
    informers: &[Arc<Informer>],
    name: &str,
    params: &Params,
) -> Result<Option<Arc<FieldMask>>, ApiError> {
    let Some(text) = params.get(name) else { return Ok(None) };
    let mask = FieldMask::parse(text).map_err(|error| ApiError::invalid(name, text, &error.to_string()))?;
    held(informers, mask.paths(), name, params)?;
    Ok(Some(Arc::new(mask)))
}

/// Refuses fields that are not held, as they would seem to be missing in every object.
fn held(
    informers: &[Arc<Informer>],
    paths: impl Iterator<Item = String>,
    name: &str,
    params: &Params,
) -> Result<(), ApiError> {
    for path in paths {
        if let Some(informer) = informers.iter().find(|informer| !informer.spec.holds(&path)) {
            let content = &informer.spec.content;
            let what = if content.dropped.drops(&path) {
                format!("everything but {} is", content.dropped)
            } else if content.metadata_only {
                "only their metadata is".to_owned()
            } else {
                "everything but managedFields and the last applied configuration is".to_owned()
            };
            let why = format!("{path} is not held: of {} {what}", informer.spec.resource);
            return Err(ApiError::invalid(name, params.get(name).unwrap_or(&path), &why));
        }
    }
    Ok(())
}

/// Namespaces and name from the other segments of the path, depending on the scope of the resources.
fn place(
    informers: &[Arc<Informer>],
    rest: &[String],
    params: &Params,
) -> Result<(Vec<String>, Option<String>), ApiError> {
    let namespaced = informers.iter().any(|informer| informer.spec.resource.namespaced());
    let mixed = informers.iter().any(|informer| informer.spec.resource.namespaced() != namespaced);
    let path = rest.join("/");
    let wrong = |accepted: &str| Err(ApiError::invalid("path", &path, accepted));
    if rest.iter().any(String::is_empty) {
        return wrong("expected no empty segment");
    }
    let mut namespaces: Vec<String> = params.all("namespace").map(str::to_owned).collect();
    if let Some(empty) = namespaces.iter().find(|namespace| namespace.is_empty()) {
        return Err(ApiError::invalid("namespace", empty, "expected a namespace's name"));
    }
    if mixed && !(rest.is_empty() && namespaces.is_empty()) {
        let accepted =
            "expected no namespace or name where resources of cluster and namespace scope are mixed";
        return match namespaces.first() {
            Some(namespace) => Err(ApiError::invalid("namespace", namespace, accepted)),
            None => wrong(accepted),
        };
    }
    if !namespaced && !namespaces.is_empty() {
        return Err(ApiError::invalid("namespace", &namespaces[0], "the resource is cluster-scoped"));
    }
    match (namespaced, rest) {
        (_, []) => Ok((namespaces, None)),
        (false, [name]) => Ok((namespaces, Some(name.clone()))),
        (false, _) => wrong("expected RESOURCE[/NAME], as the resource is cluster-scoped"),
        (true, _) if !namespaces.is_empty() => {
            Err(ApiError::invalid("namespace", &namespaces[0], "the path names a namespace already"))
        }
        (true, [namespace]) => {
            namespaces.push(namespace.clone());
            Ok((namespaces, None))
        }
        (true, [namespace, name]) => {
            namespaces.push(namespace.clone());
            Ok((namespaces, Some(name.clone())))
        }
        (true, _) => wrong("expected RESOURCES[/NAMESPACE[/NAME]]"),
    }
}

/// Removes informers of other namespaces, and refuses a namespace that no informer follows.
fn narrow(informers: Vec<Arc<Informer>>, namespaces: &[String]) -> Result<Vec<Arc<Informer>>, ApiError> {
    let covers = |informer: &Informer, namespace: &String| informer.spec.scope.covers(namespace);
    // A request may repeat a namespace thousands of times, and a resource may have an informer for each namespace.
    let namespaces: BTreeSet<&String> = namespaces.iter().collect();
    let mut resources: Vec<_> = informers.iter().map(|informer| &informer.spec.resource).collect();
    resources.dedup();
    for namespace in &namespaces {
        for resource in &resources {
            let mut same = informers.iter().filter(|other| other.spec.resource == **resource);
            if !same.clone().any(|other| covers(other, namespace)) {
                let mut followed = Vec::new();
                followed.extend(same.by_ref().map(|other| other.spec.scope.to_string()));
                return Err(ApiError::not_found(format!(
                    "{resource} are not followed in namespace {namespace:?}, only in {}",
                    followed.join(", ")
                )));
            }
        }
    }
    let wanted = |informer: &Arc<Informer>| {
        namespaces.is_empty() || namespaces.iter().any(|namespace| covers(informer, namespace))
    };
    Ok(informers.into_iter().filter(wanted).collect())
}
