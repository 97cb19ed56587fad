//! How a change is told to whoever sees it through a filter. No async, no clock.

use std::sync::Arc;

use super::Filter;
use super::event::{Event, EventKind, Payload};
use super::subscriber::Covers;
use crate::cache::{CatchUpEntry, Change, ChangeKind, PastChange, Revision};
use crate::k8s::{Object, ResourceVersion};

/// The position of a client that is told what changed without its order: each object in its latest state, though before
/// it was another. It has everything up to no version, so whoever is cut off there starts over. Asked from anywhere in
/// between, a replica that is not as far would not tell what came between, nor what stopped to match.
pub(super) const AMID: ResourceVersion = ResourceVersion::ZERO;

/// The version up to which a client has everything once it took a change.
pub(super) fn position_after(change: &Change) -> ResourceVersion {
    if change.is_amid_relist() { AMID } else { change.position.clone() }
}

/// A change as everyone is told it who wants everything.
pub(super) fn told_to_all(change: &Change) -> Option<Event> {
    let (kind, payload) = seen_through(&Filter::default(), change)?;
    Some(Event { source: 0, kind, payload, position: position_after(change) })
}

/// A change as a subscription sees it: an object that begins to match is ADDED for it, one that stops
/// matching is DELETED with its last matching state at the new version (U12).
pub(super) fn seen_through(filter: &Filter, change: &Change) -> Option<(EventKind, Payload)> {
    if !filter.in_scope(change.object.key()) {
        return None;
    }
    let matched = change.previous.as_ref().filter(|previous| !filter.selects() || filter.matches(previous));
    let matches = || !filter.selects() || filter.matches(&change.object);
    match (change.kind, matched) {
        (ChangeKind::Deleted, None) => None,
        (ChangeKind::Deleted, Some(_)) => {
            let (object, version) = (change.object.clone(), change.version.clone());
            let payload = if change.is_amid_relist() {
                Payload::ObjectSince { object, version, since: change.position.clone() }
            } else if *object.resource_version() == version {
                Payload::Object(object)
            } else {
                Payload::ObjectAt(object, version)
            };
            Some((EventKind::Deleted, payload))
        }
        (ChangeKind::Added | ChangeKind::Modified, Some(_)) if matches() => {
            Some((EventKind::Modified, Payload::Object(change.object.clone())))
        }
        (ChangeKind::Added | ChangeKind::Modified, Some(previous)) => {
            Some((EventKind::Deleted, Payload::ObjectAt(previous.clone(), change.version.clone())))
        }
        (ChangeKind::Added | ChangeKind::Modified, None) => {
            matches().then(|| (EventKind::Added, Payload::Object(change.object.clone())))
        }
    }
}

/// How an object that is in one state, the other or both is told. The states may be of one version and yet differ:
/// informers keep different parts.
pub(super) fn differing(
    was: Option<&Arc<Object>>,
    is: Option<&Arc<Object>>,
    position: &ResourceVersion,
) -> Vec<(EventKind, Payload)> {
    let deleted = |object: &Arc<Object>, version: &ResourceVersion| {
        (EventKind::Deleted, Payload::ObjectAt(object.clone(), version.clone()))
    };
    let whole = |kind, object: &Arc<Object>| (kind, Payload::Object(object.clone()));
    match (was, is) {
        (Some(was), None) => vec![deleted(was, position)],
        (None, Some(is)) => vec![whole(EventKind::Added, is)],
        (Some(was), Some(is)) if was.uid() != is.uid() => {
            vec![deleted(was, is.resource_version()), whole(EventKind::Added, is)]
        }
        (Some(was), Some(is)) if was.json() != is.json() => vec![whole(EventKind::Modified, is)],
        (Some(_), Some(_)) | (None, None) => Vec::new(),
    }
}

/// An object that changed while nobody looked: whether it matched before is not known.
pub(super) fn changed_through(filter: &Filter, change: &PastChange) -> Option<(EventKind, Payload)> {
    let PastChange { kind, object } = change;
    if !filter.in_scope(object.key()) {
        return None;
    }
    let unknown = *kind == ChangeKind::Added;
    if filter.matches(object) {
        let kind = if unknown { EventKind::Added } else { EventKind::Modified };
        return Some((kind, Payload::Object(object.clone())));
    }
    if unknown {
        return None;
    }
    let (key, uid) = (object.key().clone(), object.uid().into());
    let version = object.resource_version().clone();
    Some((EventKind::Deleted, Payload::Identity { key, uid, version }))
}

/// What changed since a place of a subscriber that is behind, as it must be told: the states in between are gone, so what
/// does not match any more is DELETED by its identity, unless it came to be only after `since` and the subscriber holds
/// nothing from after it.
pub(super) fn latest_through(
    filter: &Filter,
    since: Revision,
    covers: Covers,
    entry: CatchUpEntry,
) -> Option<(EventKind, Payload)> {
    if !filter.in_scope(&entry.key) {
        return None;
    }
    let unknown = entry.created > since;
    match entry.object {
        Some(object) if filter.matches(&object) => {
            let kind = if unknown { EventKind::Added } else { EventKind::Modified };
            Some((kind, Payload::Object(object)))
        }
        Some(_) | None if unknown && covers == Covers::All => None,
        Some(_) | None => {
            let payload = Payload::Identity { key: entry.key, uid: entry.uid, version: entry.version };
            Some((EventKind::Deleted, payload))
        }
    }
}
