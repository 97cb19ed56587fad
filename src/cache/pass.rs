//! A pass: a list on its way into the cache.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::Snapshot;
use crate::k8s::{Key, Object, ResourceVersion};

/// The objects that a list has named so far. Unchanged objects cost only their key, so that a relist of a large cluster
/// needs no second copy of it.
#[derive(Debug, Default)]
pub(super) struct Pass {
    named: HashMap<Key, Named>,
    /// Whether the API server gave an older answer before this list.
    pub(super) doubted: bool,
}

/// An object of the list, compared with the cache.
#[derive(Debug)]
enum Named {
    /// New, or at another version.
    Changed(Arc<Object>),
    /// The same version of the same object.
    Same,
    /// The same version of the same object, but with other bytes. Either another release of the API server writes it
    /// differently, which is no change; or the version is of a history that a restore took back.
    Rewritten(Arc<Object>),
}

/// The result of a complete pass, in the order of its commit: deletions, then changes.
///
/// Why in this order: a reader that is cut off after a change at version v then has every deletion up to v, wherever it
/// resumes.
pub(super) struct Outcome {
    /// Objects that the pass did not name, or named with another uid; then with the version of the new object.
    pub(super) gone: Vec<(Arc<Object>, Option<ResourceVersion>)>,
    /// Changed and new objects by rising resourceVersion, so that the position after each is the object's.
    pub(super) changed: Vec<Arc<Object>>,
}

impl Named {
    fn object(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Changed(object) | Self::Rewritten(object) => Some(object),
            Self::Same => None,
        }
    }
}

impl Pass {
    /// Adds an object of the list. Of two with the same key the newer one counts, as a streaming list may contain live events.
    pub(super) fn item(&mut self, object: Object, store: &Snapshot) {
        let stored = store.objects.get(object.key()).map(|stored| &stored.object);
        if let Some(before) = self.named.get(object.key()) {
            let before = before.object().or(stored);
            if before.is_some_and(|before| object.resource_version() <= before.resource_version()) {
                return;
            }
        }
        let same = stored.filter(|stored| {
            stored.resource_version() == object.resource_version() && stored.uid() == object.uid()
        });
        let key = object.key().clone();
        let named = match same {
            None => Named::Changed(Arc::new(object)),
            Some(stored) if stored.json() == object.json() => Named::Same,
            Some(_) => Named::Rewritten(Arc::new(object)),
        };
        self.named.insert(key, named);
    }

    /// The object with a key, where the cache does not have it.
    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        self.named.get(key).and_then(Named::object)
    }

    /// Replaces an object with the same one, packed, if it is still there.
    pub(super) fn swap(&mut self, key: &Key, old: &Arc<Object>, new: Arc<Object>) {
        if let Some(Named::Changed(object)) = self.named.get_mut(key)
            && Arc::ptr_eq(object, old)
        {
            *object = new;
        }
    }

    /// Removes an object that was deleted while the list was under way.
    pub(super) fn gone(&mut self, key: &Key) {
        self.named.remove(key);
    }

    /// Whether the API server's versions went back behind what the cache holds (an etcd restored from a backup, another
    /// cluster behind the same address; U30): the list as a whole is older, or it names an object in an older state.
    ///
    /// A doubted list may be of a restored cluster whose versions have passed the cache's since. In a list of the cache's own
    /// history, each object that is not newer than the cache's version is exactly as in the cache. If one differs, the list is
    /// of another history, and so it is if an object is missing in a list at the very version of the cache. If none differs, the
    /// two histories can only differ in objects at newer versions, or in missing ones. Applied as changes and deletions, these
    /// make the cache and its readers right in either case.
    pub(super) fn is_of_other_history(&self, store: &Snapshot, version: &ResourceVersion) -> bool {
        let seen = &store.position;
        let contradicts = |named: &Named| match named {
            Named::Same => false,
            Named::Rewritten(_) => self.doubted,
            Named::Changed(object) => {
                let is_known = object.resource_version() <= seen;
                let held = store.objects.get(object.key()).map(|stored| &stored.object);
                let is_older = held.is_some_and(|held| object.resource_version() < held.resource_version());
                is_older || self.doubted && is_known
            }
        };
        let is_missing = |key: &Key| !self.named.contains_key(key);
        let lacks = self.doubted && version == seen && store.objects.keys().any(is_missing);
        version < seen || lacks || self.named.values().any(contradicts)
    }

    /// Ends the pass. In another history an object may have another state under the same version.
    pub(super) fn end(self, store: &Snapshot, is_other: bool) -> Outcome {
        let changed = self.named.values().filter_map(|named| match named {
            Named::Changed(object) => Some(object.clone()),
            Named::Rewritten(object) if is_other => Some(object.clone()),
            Named::Same | Named::Rewritten(_) => None,
        });
        let mut changed: Vec<_> = changed.collect();
        changed.sort_by(|a, b| {
            let order = a.resource_version().partial_cmp(b.resource_version());
            order.unwrap_or(Ordering::Equal).then_with(|| a.key().cmp(b.key()))
        });
        let unnamed = store.objects.iter().filter(|(key, _)| !self.named.contains_key(*key));
        let unnamed = unnamed.map(|(_, stored)| (stored.object.clone(), None));
        let replaced = changed.iter().filter_map(|object| {
            let old = &store.objects.get(object.key())?.object;
            (old.uid() != object.uid()).then(|| (old.clone(), Some(object.resource_version().clone())))
        });
        Outcome { gone: unnamed.chain(replaced).collect(), changed }
    }
}
