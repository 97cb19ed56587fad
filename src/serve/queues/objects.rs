//! Reads the objects of leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::hub::{Informer, Scope, Selection};
use crate::k8s::{Key, Object};

/// The caches from which one resource of a queue reads the objects of its leases.
#[derive(Default)]
pub(super) struct Objects {
    informers: Vec<Arc<Informer>>,
    selection: Selection,
    /// The informers before these. While a new one is not as far as the one before it, objects are read from that one: its
    /// state is what the queued keys are about.
    before: Option<Before>,
}

struct Before {
    informers: Vec<Arc<Informer>>,
    /// Until when they are read at most: the versions of a restored cluster may never get as far.
    until: Instant,
}

impl Objects {
    /// Follows these informers from now on.
    pub(super) fn follow(
        &mut self,
        informers: Vec<Arc<Informer>>,
        selection: Selection,
        wait: Duration,
        now: Instant,
    ) {
        self.selection = selection;
        self.set(informers, wait, now);
    }

    /// Follows the successor of one informer from now on.
    pub(super) fn replace(&mut self, index: usize, by: Arc<Informer>, wait: Duration, now: Instant) {
        let mut informers = self.informers.clone();
        if let Some(informer) = informers.get_mut(index) {
            *informer = by;
        }
        self.set(informers, wait, now);
    }

    fn set(&mut self, informers: Vec<Arc<Informer>>, wait: Duration, now: Instant) {
        let last = std::mem::replace(&mut self.informers, informers);
        // Where the last ones were not as far either, those before them still are the ones that count.
        let waits = |before: &Before| now < before.until && behind(&last, &before.informers);
        if !last.is_empty() && !self.before.as_ref().is_some_and(waits) {
            self.before = Some(Before { informers: last, until: now + wait });
        }
    }

    /// The informers that are followed.
    pub(super) fn informers(&self) -> &[Arc<Informer>] {
        &self.informers
    }

    /// The object of a key as the queue selects it; `None` if there is none.
    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Option<Arc<Object>> {
        if self
            .before
            .as_ref()
            .is_some_and(|before| now >= before.until || !behind(&self.informers, &before.informers))
        {
            self.before = None;
        }
        let informers = self.before.as_ref().map_or(&self.informers, |before| &before.informers);
        let informer = informers.iter().find(|informer| informer.scope.covers(key.namespace()))?;
        let snapshot = informer.reader.snapshot();
        snapshot.get(key).filter(|object| self.selection.matches(object)).cloned()
    }
}

/// Whether one of these informers is not as far as one that it follows in some namespace.
fn behind(informers: &[Arc<Informer>], before: &[Arc<Informer>]) -> bool {
    informers.iter().any(|informer| {
        let shared = |other: &Informer| {
            other.scope == informer.scope || [&other.scope, &informer.scope].contains(&&Scope::All)
        };
        before.iter().filter(|other| shared(other) && other.id() != informer.id()).any(|other| {
            // Not `>=`: versions that cannot be compared are those of another cluster.
            informer.reader.head().1 < other.reader.head().1
        })
    })
}
