//! What a search has read: a stream looks again where something of this changes.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::select_all;
use tokio::sync::{Notify, watch};

use crate::cache::{Interest, Mark, Part, UsedIndex};
use crate::hub::{InUse, Informer, InformerId, Selection};
use crate::k8s::{IndexPath, Key};

/// What a search has read. Each part is added before it is read, so that no change is missed.
pub(super) struct Reads {
    /// Woken by changes of what was read.
    wake: Arc<Notify>,
    of: HashMap<InformerId, Followed>,
    /// Caches that were not complete.
    incomplete: HashMap<InformerId, watch::Receiver<Mark>>,
}

/// What was read in one informer.
struct Followed {
    interest: Interest,
    /// The indexes that wake it, kept while they do; `None` if there is none for a path.
    indexes: HashMap<IndexPath, Option<UsedIndex>>,
    /// Whether all changes wake it, so that nothing is to be added.
    all: bool,
    /// Keeps an informer that runs on demand while the graph has objects of it.
    in_use: Option<InUse>,
}

impl Reads {
    pub(super) fn new(wake: Arc<Notify>) -> Self {
        Self { wake, of: HashMap::new(), incomplete: HashMap::new() }
    }

    fn of(&mut self, informer: &Informer) -> &mut Followed {
        self.of.entry(informer.id()).or_insert_with(|| Followed {
            interest: informer.reader.interest(self.wake.clone()),
            indexes: HashMap::new(),
            all: false,
            in_use: None,
        })
    }

    /// A part of an informer is about to be read.
    pub(super) fn part(&mut self, informer: &Informer, part: Part<'_>) {
        self.of(informer).add(part);
    }

    /// The objects that a selection selects are about to be read.
    pub(super) fn selection(&mut self, informer: &Informer, selection: &Selection) {
        let followed = self.of(informer);
        if let Some(name) = &selection.name {
            let namespaces = match selection.namespaces() {
                [] if informer.spec.resource.namespaced() => return followed.add(Part::Everything),
                [] => &[String::new()],
                namespaces => namespaces,
            };
            for namespace in namespaces {
                followed.add(Part::Object(&Key::new(namespace, name)));
            }
            return;
        }
        for term in selection.index_terms() {
            let index = || informer.reader.use_index(&term);
            if followed.indexes.entry(term.path.clone()).or_insert_with(index).is_some() {
                for value in &*term.values {
                    followed.add(Part::Value(&term.path, value));
                }
                return;
            }
        }
        match selection.namespaces() {
            [] => followed.add(Part::Everything),
            namespaces => namespaces.iter().for_each(|one| followed.add(Part::Namespace(one))),
        }
    }

    /// Whether an informer has no object.
    pub(super) fn is_empty(&mut self, informer: &Informer) -> bool {
        if informer.reader.summary().objects > 0 {
            return false;
        }
        self.of(informer).add(Part::Everything);
        informer.reader.summary().objects == 0
    }

    /// Whether the cache of an informer is complete.
    pub(super) fn is_complete(&mut self, informer: &Informer) -> bool {
        let wake = informer.reader.wake();
        let complete = wake.borrow().synced;
        if !complete {
            self.incomplete.insert(informer.id(), wake);
        }
        complete
    }

    /// The graph has an object of this informer.
    pub(super) fn holds(&mut self, informer: &Arc<Informer>) {
        self.of(informer).in_use.get_or_insert_with(|| informer.in_use());
    }

    /// Waits until one of the caches that were not complete is so. The wake-up for changes is the caller's.
    pub(super) async fn completed(&mut self) {
        if self.incomplete.is_empty() {
            return std::future::pending().await;
        }
        let waits = self
            .incomplete
            .values_mut()
            .map(|wake| Box::pin(async { drop(wake.wait_for(|mark| mark.synced).await) }));
        select_all(waits).await;
    }
}

impl Followed {
    fn add(&mut self, part: Part<'_>) {
        if !self.all {
            self.all = matches!(part, Part::Everything);
            self.interest.add(part);
        }
    }
}
