//! A list on its way into the cache.

use std::collections::HashSet;
use std::sync::Arc;

use super::state::State;
use crate::k8s::{Key, Object, ResourceVersion};

/// What one pass of a list (an epoch) has named so far. Unchanged objects cost their key only, so comparing a
/// large cluster with the cache needs no second copy of it.
#[derive(Debug, Default)]
pub(super) struct Pass {
    seen: HashSet<Key>,
    /// New and changed objects.
    changed: Vec<Arc<Object>>,
}

/// What a complete pass says, in the order in which it is committed: first what is gone, then what changed.
///
/// Why in this order: a reader that was cut off after some change at version v then has every deletion there
/// was up to v, wherever it comes back.
pub(super) struct Outcome {
    /// Objects the pass did not name, or named with another uid: then with the version of the new one.
    pub(super) gone: Vec<(Arc<Object>, Option<ResourceVersion>)>,
    /// Changed and new objects by rising resourceVersion, so that the position after each is the object's.
    pub(super) changed: Vec<Arc<Object>>,
}

impl Pass {
    /// Takes an object of the list.
    pub(super) fn item(&mut self, object: Object, state: &State) {
        // A second object of one key would be a server's fault; the first is kept, as the key is unique.
        if !self.seen.insert(object.key().clone()) {
            return;
        }
        let unchanged = state.store.objects.get(object.key()).is_some_and(|stored| {
            stored.object.resource_version() == object.resource_version()
                && stored.object.uid() == object.uid()
        });
        if !unchanged {
            self.changed.push(Arc::new(object));
        }
    }

    /// Ends the pass.
    pub(super) fn end(mut self, state: &State) -> Outcome {
        self.changed.sort_by(|a, b| {
            let order = a.resource_version().partial_cmp(b.resource_version());
            order.unwrap_or(std::cmp::Ordering::Equal)
        });
        let unnamed = state.store.objects.iter().filter(|(key, _)| !self.seen.contains(*key));
        let unnamed = unnamed.map(|(_, stored)| (stored.object.clone(), None));
        let replaced = self.changed.iter().filter_map(|object| {
            let old = &state.store.objects.get(object.key())?.object;
            (old.uid() != object.uid()).then(|| (old.clone(), Some(object.resource_version().clone())))
        });
        Outcome { gone: unnamed.chain(replaced).collect(), changed: self.changed }
    }
}

/// Whether a list at `listed` shows that the API server's versions went back behind what was seen (an etcd
/// restored from a backup, another cluster behind the same address; U30).
pub(super) fn went_back(listed: &ResourceVersion, seen: &ResourceVersion) -> bool {
    listed < seen
}
