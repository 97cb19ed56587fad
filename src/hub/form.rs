//! The form in which a view shows objects. No async, no clock.

use std::sync::Arc;
use std::time::Duration;

use super::event::{EventKind, Payload};
use crate::k8s::{ContentHash, FieldMask, Object, merge_patch};

/// Which part of an object a client gets, and which of its changes. The default form is whole objects and every change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// The members that the client gets; `None` for all.
    pub fields: Option<Arc<FieldMask>>,
    /// The client gets MODIFIED only if one of these members differs. `None` stands for those in `fields`.
    pub changed: Option<Arc<FieldMask>>,
    /// Whether PATCHED is sent in place of MODIFIED if a merge patch is shorter than the object.
    pub patch: bool,
    /// The time within which changes are gathered: one batch at most, and of each object its latest state.
    pub coalesce: Option<Duration>,
}

impl Form {
    /// Whether the client gets whole objects, at every change.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The part of an object that the client gets.
    pub fn show(&self, object: &Object) -> Object {
        self.part_of(object).unwrap_or_else(|| object.clone())
    }

    /// The part of an object that the client gets; `None` if that is the whole object.
    pub fn part_of(&self, object: &Object) -> Option<Object> {
        self.fields.as_ref().map(|fields| fields.cut(object))
    }

    /// The hash of the part of an object that the client gets. If it does not get the whole object, the hash leaves
    /// `resourceVersion` out: a change elsewhere in the object keeps the hash.
    pub fn content_hash(&self, object: &Object) -> ContentHash {
        let Some(fields) = &self.fields else { return object.content_hash() };
        let part = fields.cut(object);
        let text = part.text();
        let (before, after) = text.around_version();
        ContentHash::of(&[before, after].concat())
    }

    /// Whether the hash is computed already, so that asking for it costs nothing.
    pub fn has_content_hash(&self, object: &Object) -> bool {
        self.fields.is_none() && object.has_content_hash()
    }

    /// An event's payload, its object cut to the part that the client gets.
    pub(super) fn show_payload(&self, payload: Payload) -> Payload {
        if self.fields.is_none() {
            return payload;
        }
        match payload {
            Payload::Object(object) => Payload::Object(self.show(&object)),
            Payload::ObjectAt(object, version) => Payload::ObjectAt(self.show(&object), version),
            Payload::ObjectSince { object, version, since } => {
                Payload::ObjectSince { object: self.show(&object), version, since }
            }
            other @ (Payload::Patch { .. } | Payload::Identity { .. } | Payload::Mark { .. }) => other,
        }
    }

    /// The event for an object that changed and stays selected, for a client that has the state before. `None` if the
    /// client did not ask for changes such as this one.
    pub(super) fn modified(&self, before: &Object, after: &Object) -> Option<(EventKind, Payload)> {
        if self.changed.as_ref().is_some_and(|changed| changed.is_same(before, after)) {
            return None;
        }
        let (before, after) = (self.show(before), self.show(after));
        if self.fields.is_some() && self.changed.is_none() && before.is_same_but_version(&after) {
            return None;
        }
        if self.patch
            && let Some(patch) = merge_patch(&before, &after)
        {
            return Some((EventKind::Patched, Payload::Patch { object: after, patch: patch.into() }));
        }
        Some((EventKind::Modified, Payload::Object(after)))
    }
}
