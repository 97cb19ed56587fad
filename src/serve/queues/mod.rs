//! Work queues over HTTP: declares them, feeds them from the hub, and lets workers wait for keys.
//!
//! The rules are those of [`crate::queue`]. A queue follows its informers as any subscriber does, one subscription for each of its
//! resources, and takes no more than keys from them. A lease reads its object from the cache at the moment it is given, so
//! the object is never older than the event that queued the key.

mod answers;
mod dependents;
mod feed;
mod handlers;
mod leading;
mod metrics;
mod objects;
mod workers;

pub(super) use handlers::{answer, list};
pub use leading::ElectionConfig;
pub(super) use metrics::describe;
pub use workers::{Ask, Given, QueueError, Workers};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hub::Hub;
use crate::k8s::Links;
use crate::queue::Spec;

/// Who may declare queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAccess {
    /// There are no queues.
    Off,
    /// The configuration.
    Configuration,
    /// The configuration, and every client.
    Clients,
}

/// Limits of queues, and the declared ones.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Who may declare queues.
    pub access: QueueAccess,
    /// The queues of the configuration.
    pub declared: BTreeMap<String, Spec>,
    /// Names this process in lease tokens. Another process has another one.
    pub process: u64,
    /// Number of queues.
    pub queues_max: usize,
    /// Number of keys in each queue.
    pub keys_max: usize,
    /// Number of leases of each queue at once.
    pub leases_max: usize,
    /// Number of workers that wait for a key at once, over all queues.
    pub workers_max: usize,
    /// Informers that one resource of a queue may join.
    pub informers_max: usize,
    /// The election of the replica that gives out keys; `None` if each one does.
    pub election: Option<ElectionConfig>,
    /// The links by which dependents are found.
    pub links: Links,
}

/// All work queues. Cheap to clone.
#[derive(Clone)]
pub struct Queues(Arc<Inner>);

struct Inner {
    hub: Hub,
    config: QueueConfig,
    /// The tasks that feed queues.
    tasks: TaskTracker,
    /// Ends waiting, and feeding.
    drain: CancellationToken,
    queues: Mutex<Registry>,
    /// Places for workers that wait.
    places: Semaphore,
}

#[derive(Default)]
struct Registry {
    by_name: BTreeMap<String, Arc<Workers>>,
    /// Counts queues, so that tokens of a queue mean nothing to a later one of its name.
    declared: u64,
    /// Whether this replica leads; `None` without an election.
    leading: Option<leading::Leading>,
}

/// Who declared a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclaredBy {
    /// The configuration. It lasts as long as the process.
    Configuration,
    /// A client. It lasts until it is deleted, at most as long as the process.
    Client,
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
        let places = Semaphore::new(config.workers_max.min(Semaphore::MAX_PERMITS));
        let leading = config.election.clone().filter(|_| config.access != QueueAccess::Off);
        let registry = Registry { leading: leading.map(leading::Leading::new), ..Registry::default() };
        let (tasks, queues) = (TaskTracker::new(), Mutex::new(registry));
        let all = Self(Arc::new(Inner { hub, config, tasks, drain, queues, places }));
        if all.0.config.access != QueueAccess::Off {
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
        let by = match self.0.config.declared.get(name) {
            Some(configured) if *configured != spec => {
                return Err(QueueError::Differs { name: name.to_owned() });
            }
            Some(_) => DeclaredBy::Configuration,
            None => by,
        };
        let max = self.0.config.queues_max;
        if registry.by_name.len() >= max && by == DeclaredBy::Client {
            return Err(QueueError::TooMany { max });
        }
        registry.declared += 1;
        let issuer = format!("{:016x}-{}", self.0.config.process, registry.declared);
        let queue = Arc::new(Workers::new(self, name, spec, by, issuer));
        registry.by_name.insert(name.to_owned(), queue.clone());
        drop(registry);
        self.0.tasks.spawn(queue.clone().keep());
        for index in 0..queue.spec().watch.len() {
            let feed = feed::Feed::new(self.clone(), queue.clone(), index);
            self.0.tasks.spawn(feed.run());
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

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeclaredBy {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Client => "client",
        }
    }
}
