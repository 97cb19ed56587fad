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
    named: HashMap<Key, Named>,
    /// Whether the API server answered with an older version before this list.
    pub(super) doubted: bool,
}

/// An object of the list, beside what the cache has.
#[derive(Debug)]
enum Named {
    /// New, or at another version.
    Changed(Arc<Object>),
    /// The same version of the same object.
    Same,
    /// The same version of the same object, and yet written otherwise: by another release of the API server, which
    /// is no change; or in a history that was taken back, where the version was given out before.
    Rewritten(Arc<Object>),
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

impl Named {
    fn object(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Changed(object) | Self::Rewritten(object) => Some(object),
            Self::Same => None,
        }
    }
}

impl Pass {
    /// Takes an object of the list. Of two of one key the newer one counts: a streaming list may go on with what
    /// happened meanwhile.
    pub(super) fn item(&mut self, object: Object, state: &State) {
        let stored = state.store.objects.get(object.key()).map(|stored| &stored.object);
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

    /// Takes back an object: it was deleted while the list was under way.
    pub(super) fn gone(&mut self, key: &Key) {
        self.named.remove(key);
    }

    /// Whether the API server's versions went back behind what the cache holds (an etcd restored from a backup, another
    /// cluster behind the same address; U30): the list as a whole is older, or it names an object in an older state.
    ///
    /// A doubted list may be of a restored cluster that has passed the version of the cache since. Of the history that
    /// the cache holds, a list has each object that did not change since the cache's version exactly as it is held.
    /// Where one differs, the list is of another history. Where none does, all that may differ between the two
    /// histories is named at versions beyond the cache's, or not at all: taken as changes and deletions, it makes the
    /// cache and every reader of it right.
    pub(super) fn is_of_other_history(&self, state: &State, version: &ResourceVersion) -> bool {
        let seen = &state.store.position;
        let contradicts = |named: &Named| match named {
            Named::Same => false,
            Named::Rewritten(_) => self.doubted,
            Named::Changed(object) => {
                let is_known = object.resource_version() <= seen;
                let held = state.store.objects.get(object.key()).map(|stored| &stored.object);
                let is_older = held.is_some_and(|held| object.resource_version() < held.resource_version());
                is_older || self.doubted && is_known
            }
        };
        version < seen || self.named.values().any(contradicts)
    }

    /// Ends the pass. In another history the same version of an object may be another state.
    pub(super) fn end(self, state: &State, is_other: bool) -> Outcome {
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
        let unnamed = state.store.objects.iter().filter(|(key, _)| !self.named.contains_key(*key));
        let unnamed = unnamed.map(|(_, stored)| (stored.object.clone(), None));
        let replaced = changed.iter().filter_map(|object| {
            let old = &state.store.objects.get(object.key())?.object;
            (old.uid() != object.uid()).then(|| (old.clone(), Some(object.resource_version().clone())))
        });
        Outcome { gone: unnamed.chain(replaced).collect(), changed }
    }
}
