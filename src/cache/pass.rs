//! A list on its way into the cache.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::state::State;
use crate::k8s::{Key, Object, ResourceVersion};

/// What one pass of a list (an epoch) has named so far. Unchanged objects cost their key only, so comparing a
/// large cluster with the cache needs no second copy of it.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// New and changed objects; `None` for those that the cache has as they are.
    named: HashMap<Key, Option<Arc<Object>>>,
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
    /// Takes an object of the list. Of two of one key the newer one counts: a streaming list may go on with what
    /// happened meanwhile.
    pub(super) fn item(&mut self, object: Object, state: &State) {
        let stored = state.store.objects.get(object.key()).map(|stored| &stored.object);
        if let Some(before) = self.named.get(object.key()) {
            let before = before.as_ref().or(stored);
            if before.is_some_and(|before| object.resource_version() <= before.resource_version()) {
                return;
            }
        }
        let unchanged = stored.is_some_and(|stored| {
            stored.resource_version() == object.resource_version() && stored.uid() == object.uid()
        });
        let key = object.key().clone();
        self.named.insert(key, (!unchanged).then(|| Arc::new(object)));
    }

    /// Takes back an object: it was deleted while the list was under way.
    pub(super) fn gone(&mut self, key: &Key) {
        self.named.remove(key);
    }

    /// Ends the pass.
    pub(super) fn end(self, state: &State) -> Outcome {
        let mut changed: Vec<_> = self.named.values().flatten().cloned().collect();
        changed.sort_by(|a, b| {
            let order = a.resource_version().partial_cmp(b.resource_version());
            order.unwrap_or(Ordering::Equal).then_with(|| a.key().cmp(b.key()))
        });
        let unnamed = state.store.objects.iter().filter(|(key, _)| !self.named.contains_key(*key));
        let unnamed = unnamed.map(|(_, stored)| (stored.object.clone(), None));
        let replaced = changed.iter().filter_map(|object| {
            let old = &state.store.objects.get(object.key())?.object;
            (old.uid() != object.uid()).then(|| (old.clone(), Some(object.resource_version().clone())))
        });
        Outcome { gone: unnamed.chain(replaced).collect(), changed }
    }
}

/// Whether a list at `listed` shows that the API server's versions went back behind what was seen (an etcd
/// restored from a backup, another cluster behind the same address; U30).
pub(super) fn went_back(listed: &ResourceVersion, seen: &ResourceVersion) -> bool {
    listed < seen
}
