//! All queues of a process, by name: declared, found, removed, and ended with the term of a leader.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::config::{DeclaredBy, QueueAccess, QueueConfig};
use super::error::QueueError;
use super::feed::Feed;
use super::leading::{ElectionStatus, Leading, Turnover};
use super::shared::Shared;
use super::workers::Workers;
use crate::hub::Hub;
use crate::queue::{Spec, Standing};

/// All work queues. Cheap to clone.
#[derive(Clone)]
pub struct Queues(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    queues: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    by_name: BTreeMap<String, Arc<Workers>>,
    /// Counts queues, so that tokens of a queue mean nothing to a later one of its name.
    declared: u64,
    /// Whether this replica leads; `None` without an election.
    leading: Option<Leading>,
}

/// What became of a declaration.
#[derive(Clone)]
pub enum Declared {
    /// The queue is new.
    New(Arc<Workers>),
    /// It was declared the same before.
    Same(Arc<Workers>),
}

impl Queues {
    /// Starts the queues of the configuration; where a leader is elected, [`Queues::stand`] does so. All end when `drain` is
    /// cancelled.
    pub fn new(hub: Hub, config: QueueConfig, drain: CancellationToken) -> Self {
        let leading = config.election.clone().filter(|_| config.access != QueueAccess::Off);
        let registry = Registry { leading: leading.map(Leading::new), ..Registry::default() };
        let shared = Arc::new(Shared::new(hub, config, drain));
        let all = Self(Arc::new(Inner { shared, queues: Mutex::new(registry) }));
        if all.shared().config.access != QueueAccess::Off {
            all.declare_configured();
        }
        all
    }

    /// Declares a queue. Its resources are not resolved here: the queue says what it waits for.
    ///
    /// # Errors
    /// [`QueueError::Differs`], [`QueueError::TooMany`], [`QueueError::Follows`].
    pub fn declare(&self, name: &str, spec: Spec, by: DeclaredBy) -> Result<Declared, QueueError> {
        let mut registry = self.registry();
        registry.lead()?;
        if let Some(queue) = registry.by_name.get(name) {
            if *queue.spec() == spec {
                return Ok(Declared::Same(queue.clone()));
            }
            return Err(QueueError::Differs { name: name.to_owned() });
        }
        // A client may come before the configuration where a term has just begun.
        let by = match self.shared().config.declared.get(name) {
            Some(configured) if *configured != spec => {
                return Err(QueueError::Differs { name: name.to_owned() });
            }
            Some(_) => DeclaredBy::Configuration,
            None => by,
        };
        let max = self.shared().config.queues_max;
        if registry.by_name.len() >= max && by == DeclaredBy::Client {
            return Err(QueueError::TooMany { max });
        }
        registry.declared += 1;
        let issuer = format!("{:016x}-{}", self.shared().config.process, registry.declared);
        let queue = Arc::new(Workers::new(self.shared(), name, spec, by, issuer));
        registry.by_name.insert(name.to_owned(), queue.clone());
        drop(registry);
        self.shared().tasks.spawn(queue.clone().keep());
        for index in 0..queue.spec().watch.len() {
            let feed = Feed::new(self.shared().clone(), queue.clone(), index);
            self.shared().tasks.spawn(feed.run());
        }
        Ok(Declared::New(queue))
    }

    /// A queue by its name.
    ///
    /// # Errors
    /// [`QueueError::Unknown`].
    pub fn get(&self, name: &str) -> Result<Arc<Workers>, QueueError> {
        let unknown = || QueueError::Unknown { name: name.to_owned() };
        self.registry().by_name.get(name).cloned().ok_or_else(unknown)
    }

    /// All queues, by name.
    pub fn all(&self) -> Vec<Arc<Workers>> {
        self.registry().by_name.values().cloned().collect()
    }

    /// Removes a queue that a client declared. Its workers are answered.
    ///
    /// # Errors
    /// [`QueueError::Unknown`], [`QueueError::Configured`].
    pub fn remove(&self, name: &str) -> Result<(), QueueError> {
        let mut registry = self.registry();
        match registry.by_name.get(name).map(|queue| queue.declared_by()) {
            None => Err(QueueError::Unknown { name: name.to_owned() }),
            Some(DeclaredBy::Configuration) => Err(QueueError::Configured { name: name.to_owned() }),
            Some(DeclaredBy::Client) => {
                let removed = registry.by_name.remove(name);
                drop(registry);
                if let Some(queue) = removed {
                    queue.close();
                }
                Ok(())
            }
        }
    }

    /// Brings the metrics that grow with time up to date, for a scrape.
    pub fn observe(&self) {
        self.all().iter().for_each(|queue| queue.observe());
    }

    /// Refuses what only the leader may do: anything with a queue.
    ///
    /// # Errors
    /// [`QueueError::Follows`].
    pub fn lead(&self) -> Result<(), QueueError> {
        self.registry().lead()
    }

    /// Takes the outcome of the election. With a new term the queues of the configuration begin; all queues of the last one end.
    /// `trouble` says why the Lease could not be read or written.
    pub fn stand(&self, standing: Standing, trouble: Option<String>) {
        let mut registry = self.registry();
        let Some(leading) = &mut registry.leading else { return };
        let turnover = leading.stand(standing, trouble);
        if turnover == Turnover::Same {
            return;
        }
        let ended = std::mem::take(&mut registry.by_name);
        drop(registry);
        ended.values().for_each(|queue| queue.close());
        if turnover == Turnover::Begins {
            self.declare_configured();
        }
    }

    /// Starts the queues of the configuration.
    fn declare_configured(&self) {
        for (name, spec) in self.shared().config.declared.clone() {
            // The configuration's names differ, and there are fewer than `queues_max`. A term that is over needs none.
            let _ = self.declare(&name, spec, DeclaredBy::Configuration);
        }
    }

    /// Where the election stands; `None` without one.
    pub(super) fn election(&self) -> Option<ElectionStatus> {
        self.registry().leading.as_ref().map(Leading::shown)
    }

    /// What all queues share.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Refuses what only the leader may do.
    fn lead(&self) -> Result<(), QueueError> {
        self.leading.as_ref().map_or(Ok(()), Leading::lead)
    }
}
