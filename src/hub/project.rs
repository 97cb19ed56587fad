//! Projects changes: what a change is to a subscriber with a selection. No async, no clock.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::event::{Event, EventKind, Payload};
use super::token::TokenKind;
use super::{Form, Matcher, Resumable, Selection};
use crate::cache::{BackfillChange, CatchUpEntry, Change, ChangeKind, Revision};
use crate::k8s::{IndexPaths, IndexValues, Key, Object, ResourceVersion};

/// Where a client that is cut off after a change resumes.
pub(super) fn position_after(change: &Change) -> Resumable {
    if change.is_amid_relist() { Resumable::No } else { change.position.clone().into() }
}

/// A change for a subscriber that selects everything.
pub(super) fn project_unfiltered(change: &Change) -> Event {
    let (kind, payload) = match change.kind {
        ChangeKind::Added => (EventKind::Added, Payload::Object(change.object.clone())),
        ChangeKind::Modified => (EventKind::Modified, Payload::Object(change.object.clone())),
        ChangeKind::Deleted => (EventKind::Deleted, deleted(change)),
    };
    Event { source: 0, kind, payload, position: position_after(change), is_amid: false }
}

/// A change for a subscriber with a selection: an object that begins to match is ADDED, one that stops matching is
/// DELETED with its last matching state at the new version (U12).
pub(super) fn project_change(matcher: &Matcher, change: &Change) -> Option<(EventKind, Payload)> {
    if !matcher.selection().in_scope(change.object.key()) {
        return None;
    }
    let matches = |object: &Object| matcher.matches(object);
    let previous = change.previous.as_ref().filter(|previous| matches(previous));
    project(&matcher.selection().form, change, previous, || matches(&change.object))
}

/// Projects a change as [`project_change`] does, with values that were read before. The matcher must have been refreshed to the paths
/// of `values`.
pub(super) fn project_read_change(
    matcher: &Matcher,
    change: &Change,
    values: &ChangeValues<'_>,
) -> Option<(EventKind, Payload)> {
    if !matcher.selection().in_scope(change.object.key()) {
        return None;
    }
    let previous = change.previous.as_ref();
    let previous = previous.filter(|previous| matcher.selects(previous, || values.before(previous)));
    let matches = || matcher.selects(&change.object, || values.after(&change.object));
    project(&matcher.selection().form, change, previous, matches)
}

/// The values of the two states of one change, read at most once for all selections.
pub(super) struct ChangeValues<'a> {
    paths: &'a IndexPaths,
    before: OnceCell<Arc<IndexValues>>,
    after: OnceCell<Arc<IndexValues>>,
}

impl<'a> ChangeValues<'a> {
    /// Values at these paths. Nothing is read yet.
    pub(super) fn new(paths: &'a IndexPaths) -> Self {
        Self { paths, before: OnceCell::new(), after: OnceCell::new() }
    }

    /// The paths.
    pub(super) fn paths(&self) -> &IndexPaths {
        self.paths
    }

    /// The values of the change's previous state.
    pub(super) fn before(&self, previous: &Object) -> &IndexValues {
        self.before.get_or_init(|| previous.values(self.paths))
    }

    /// The values of the change's object.
    pub(super) fn after(&self, object: &Object) -> &IndexValues {
        self.after.get_or_init(|| object.values(self.paths))
    }
}

/// Projects a change of an object in scope. `previous` is its previous state if that matched; `matches` says whether the new one
/// does.
fn project(
    form: &Form,
    change: &Change,
    previous: Option<&Object>,
    matches: impl Fn() -> bool,
) -> Option<(EventKind, Payload)> {
    let (kind, payload) = match (change.kind, previous) {
        (ChangeKind::Deleted, None) => return None,
        (ChangeKind::Deleted, Some(_)) => (EventKind::Deleted, deleted(change)),
        (ChangeKind::Added | ChangeKind::Modified, Some(previous)) => {
            if matches() {
                return form.modified(previous, &change.object);
            }
            (EventKind::Deleted, Payload::ObjectAt(previous.clone(), change.version.clone()))
        }
        (ChangeKind::Added | ChangeKind::Modified, None) if matches() => {
            (EventKind::Added, Payload::Object(change.object.clone()))
        }
        (ChangeKind::Added | ChangeKind::Modified, None) => return None,
    };
    Some((kind, form.show_payload(payload)))
}

/// Changes in order as one: of each object what its first state before and its last one after come to. For a
/// subscriber that gathers changes.
pub(super) fn project_gathered(
    matcher: &Matcher,
    token: TokenKind,
    changes: &[Arc<Change>],
) -> Vec<(EventKind, Payload)> {
    let mut ends: HashMap<&Key, Ends> = HashMap::new();
    for (at, change) in changes.iter().enumerate() {
        let key = change.object.key();
        if !matcher.selection().in_scope(key) {
            continue;
        }
        let ends = ends.entry(key).or_insert(Ends { first: at, last: at, may_be_held: false });
        ends.last = at;
        // Its client may have taken any of these states from another replica.
        if token == TokenKind::Bookmark && !ends.may_be_held {
            let states = change.previous.as_ref().into_iter().chain([&change.object]);
            ends.may_be_held = states.into_iter().any(|state| matcher.matches(state));
        }
    }
    let mut ends: Vec<_> = ends.into_values().collect();
    ends.sort_unstable_by_key(|ends| ends.last);
    let project =
        |ends: Ends| project_ends(matcher, &changes[ends.first], &changes[ends.last], ends.may_be_held);
    ends.into_iter().flat_map(project).collect()
}

/// The first and the last change of an object among some.
struct Ends {
    first: usize,
    last: usize,
    /// Whether the client may hold a state from in between.
    may_be_held: bool,
}

/// What an object's first and last change come to.
fn project_ends(
    matcher: &Matcher,
    first: &Change,
    last: &Change,
    may_be_held: bool,
) -> Vec<(EventKind, Payload)> {
    let form = &matcher.selection().form;
    let before = first.previous.as_ref().filter(|before| matcher.matches(before));
    let after = Some(&last.object).filter(|after| last.kind != ChangeKind::Deleted && matcher.matches(after));
    let events = match (before, after) {
        (None, None) if may_be_held => {
            let (key, uid, version) =
                (last.object.key().clone(), last.object.uid().into(), last.version.clone());
            vec![(EventKind::Deleted, Payload::Identity { key, uid, version })]
        }
        (None, None) => Vec::new(),
        (None, Some(after)) => vec![(EventKind::Added, Payload::Object(after.clone()))],
        (Some(before), None) if last.kind == ChangeKind::Deleted && before.uid() == last.object.uid() => {
            vec![(EventKind::Deleted, deleted(last))]
        }
        (Some(before), None) => {
            vec![(EventKind::Deleted, Payload::ObjectAt(before.clone(), last.version.clone()))]
        }
        (Some(before), Some(after)) if before.uid() != after.uid() => vec![
            (EventKind::Deleted, Payload::ObjectAt(before.clone(), after.resource_version())),
            (EventKind::Added, Payload::Object(after.clone())),
        ],
        (Some(_), Some(after)) if may_be_held => {
            vec![(EventKind::Modified, Payload::Object(after.clone()))]
        }
        (Some(before), Some(after)) => return form.modified(before, after).into_iter().collect(),
    };
    events.into_iter().map(|(kind, payload)| (kind, form.show_payload(payload))).collect()
}

/// The last state of a deleted object at the version of the deletion.
fn deleted(change: &Change) -> Payload {
    let (object, version) = (change.object.clone(), change.version.clone());
    if change.is_amid_relist() {
        Payload::ObjectSince { object, version, since: change.position.clone() }
    } else if object.resource_version() == version {
        Payload::Object(object)
    } else {
        Payload::ObjectAt(object, version)
    }
}

/// The events for an object that is in the state of an informer, of its successor, or of both. The two may differ at the same
/// version, as informers may keep different members.
pub(super) fn differing(
    was: Option<&Object>,
    is: Option<&Object>,
    position: &ResourceVersion,
    form: &Form,
) -> Vec<(EventKind, Payload)> {
    let [was, is] = [was, is].map(|object| object.map(|object| form.show(object)));
    let (was, is) = (was.as_ref(), is.as_ref());
    let deleted = |object: &Object, version: &ResourceVersion| {
        (EventKind::Deleted, Payload::ObjectAt(object.clone(), version.clone()))
    };
    let whole = |kind, object: &Object| (kind, Payload::Object(object.clone()));
    match (was, is) {
        (Some(was), None) => vec![deleted(was, position)],
        (None, Some(is)) => vec![whole(EventKind::Added, is)],
        (Some(was), Some(is)) if was.uid() != is.uid() => {
            vec![deleted(was, &is.resource_version()), whole(EventKind::Added, is)]
        }
        (Some(was), Some(is)) if was.text() != is.text() => vec![whole(EventKind::Modified, is)],
        (Some(_), Some(_)) | (None, None) => Vec::new(),
    }
}

/// Projects a change from before the cache's history. Whether the object matched before is unknown.
pub(super) fn project_backfill(matcher: &Matcher, change: &BackfillChange) -> Option<(EventKind, Payload)> {
    let BackfillChange { kind, object } = change;
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
    let version = object.resource_version();
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
