//! The form in which a view shows objects. No async, no clock.

use std::sync::Arc;
use std::time::Duration;

use super::event::{EventKind, Payload};
use crate::k8s::{ContentHash, FieldMask, Object, merge_patch};

/// What of an object is shown, and which changes are told. The default form shows whole objects and tells each change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// The members that are shown; all where there is none.
    pub fields: Option<Arc<FieldMask>>,
    /// Members of which one has to differ for MODIFIED. Without it, and with `fields`, one that is shown.
    pub changed: Option<Arc<FieldMask>>,
    /// Whether MODIFIED is told as PATCHED where a merge patch is shorter than the object.
    pub patch: bool,
    /// The time within which changes are gathered: one batch at most, and of each object its latest state.
    pub coalesce: Option<Duration>,
}

impl Form {
    /// Whether objects are shown as they are, at each change.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// What is shown of an object.
    pub fn show(&self, object: &Arc<Object>) -> Arc<Object> {
        self.part_of(object).map_or_else(|| object.clone(), Arc::new)
    }

    /// What is shown of an object; `None` where that is all of it.
    pub fn part_of(&self, object: &Object) -> Option<Object> {
        self.fields.as_ref().map(|fields| fields.cut(object))
    }

    /// The hash of what is shown of an object. Of a part its `resourceVersion` does not count: a change that does not show is
    /// none.
    pub fn content_hash(&self, object: &Object) -> ContentHash {
        let Some(fields) = &self.fields else { return object.content_hash() };
        let (before, after) = fields.cut(object).json_around_version();
        ContentHash::of(&[before, after].concat())
    }

    /// Whether the hash is known, so that it costs nothing.
    pub fn has_content_hash(&self, object: &Object) -> bool {
        self.fields.is_none() && object.has_content_hash()
    }

    /// An event's payload with what is shown of its object.
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

    /// The event for an object that changed and stays selected, to a client that has the state before; `None` where
    /// there is nothing that it asked to be told.
    pub(super) fn modified(&self, before: &Arc<Object>, after: &Arc<Object>) -> Option<(EventKind, Payload)> {
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
