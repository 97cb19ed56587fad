//! Projects changes: what a change is to a subscriber with a selection. No async, no clock.

use std::sync::Arc;

use super::event::{Event, EventKind, Payload};
use super::token::TokenKind;
use super::{Form, Matcher, Selection};
use crate::cache::{CatchUpEntry, Change, ChangeKind, PastChange, Revision};
use crate::k8s::{Object, ResourceVersion};

/// Position during a catch-up. Events are not in commit order here, so a client cut off in the middle must start over: a
/// replica that is not as far would not send the changes in between, nor deletions of objects that stopped matching.
pub(super) const AMID: ResourceVersion = ResourceVersion::ZERO;

/// The version up to which a client has everything once it took a change.
pub(super) fn position_after(change: &Change) -> ResourceVersion {
    if change.is_amid_relist() { AMID } else { change.position.clone() }
}

/// A change for a subscriber that selects everything.
pub(super) fn project_unfiltered(change: &Change) -> Event {
    let (kind, payload) = match change.kind {
        ChangeKind::Added => (EventKind::Added, Payload::Object(change.object.clone())),
        ChangeKind::Modified => (EventKind::Modified, Payload::Object(change.object.clone())),
        ChangeKind::Deleted => (EventKind::Deleted, deleted(change)),
    };
    Event { source: 0, kind, payload, position: position_after(change) }
}

/// A change for a subscriber with a selection: an object that begins to match is ADDED, one that stops matching is
/// DELETED with its last matching state at the new version (U12).
pub(super) fn project_change(matcher: &Matcher, change: &Change) -> Option<(EventKind, Payload)> {
    if !matcher.selection().in_scope(change.object.key()) {
        return None;
    }
    let form = &matcher.selection().form;
    let previous = change.previous.as_ref().filter(|previous| matcher.matches(previous));
    let (kind, payload) = match (change.kind, previous) {
        (ChangeKind::Deleted, None) => return None,
        (ChangeKind::Deleted, Some(_)) => (EventKind::Deleted, deleted(change)),
        (ChangeKind::Added | ChangeKind::Modified, Some(previous)) => {
            if matcher.matches(&change.object) {
                return form.modified(previous, &change.object);
            }
            (EventKind::Deleted, Payload::ObjectAt(previous.clone(), change.version.clone()))
        }
        (ChangeKind::Added | ChangeKind::Modified, None) if matcher.matches(&change.object) => {
            (EventKind::Added, Payload::Object(change.object.clone()))
        }
        (ChangeKind::Added | ChangeKind::Modified, None) => return None,
    };
    Some((kind, form.show_payload(payload)))
}

/// The last state of a deleted object at the version of the deletion.
fn deleted(change: &Change) -> Payload {
    let (object, version) = (change.object.clone(), change.version.clone());
    if change.is_amid_relist() {
        Payload::ObjectSince { object, version, since: change.position.clone() }
    } else if *object.resource_version() == version {
        Payload::Object(object)
    } else {
        Payload::ObjectAt(object, version)
    }
}

/// The events for an object that is in the state of an informer, of its successor, or of both. The two may differ at the same
/// version, as informers may keep different members.
pub(super) fn differing(
    was: Option<&Arc<Object>>,
    is: Option<&Arc<Object>>,
    position: &ResourceVersion,
    form: &Form,
) -> Vec<(EventKind, Payload)> {
    let [was, is] = [was, is].map(|object| object.map(|object| form.show(object)));
    let (was, is) = (was.as_ref(), is.as_ref());
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

/// Projects a change from before the cache's history. Whether the object matched before is unknown.
pub(super) fn project_past(matcher: &Matcher, change: &PastChange) -> Option<(EventKind, Payload)> {
    let PastChange { kind, object } = change;
    if !matcher.selection().in_scope(object.key()) {
        return None;
    }
    let unknown = *kind == ChangeKind::Added;
    if matcher.matches(object) {
        let kind = if unknown { EventKind::Added } else { EventKind::Modified };
        return Some((kind, Payload::Object(matcher.selection().form.show(object))));
    }
    if unknown {
        return None;
    }
    let (key, uid) = (object.key().clone(), object.uid().into());
    let version = object.resource_version().clone();
    Some((EventKind::Deleted, Payload::Identity { key, uid, version }))
}

/// Projects the latest state of an object that changed since a cursor, for a subscriber that was behind. The states in between
/// are unknown, so an object that does not match now is DELETED by its identity; unless it was created after `since` and
/// the subscriber holds nothing from after that.
pub(super) fn project_latest(
    matcher: &Matcher,
    since: Revision,
    token: TokenKind,
    entry: CatchUpEntry,
) -> Option<(EventKind, Payload)> {
    if !matcher.selection().in_scope(&entry.key) {
        return None;
    }
    let unknown = entry.created > since;
    match entry.object {
        Some(object) if matcher.matches(&object) => {
            let kind = if unknown { EventKind::Added } else { EventKind::Modified };
            Some((kind, Payload::Object(matcher.selection().form.show(&object))))
        }
        Some(_) | None if unknown && token == TokenKind::PerEvent => None,
        Some(_) | None => {
            let payload = Payload::Identity { key: entry.key, uid: entry.uid, version: entry.version };
            Some((EventKind::Deleted, payload))
        }
    }
}

/// Whether a change breaks the order for a selection: a relist does not know in which order objects stopped matching, and a
/// client that resumes elsewhere from the middle would not get some of these deletions.
pub(super) fn loses_order(selection: &Selection, change: &Change) -> bool {
    selection.selects() && change.is_amid_relist()
}
