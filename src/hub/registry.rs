//! The set of shared informers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::{Config, Informer, Subscriber, Subscription};

/// The shared informers, client-go's SharedInformerFactory. Cheap to clone.
#[derive(Clone)]
pub struct Hub(Arc<Inner>);

struct Inner {
    config: Config,
    informers: RwLock<Vec<Arc<Informer>>>,
    pending: watch::Sender<Vec<Pending>>,
    subscribers: AtomicUsize,
    drain: CancellationToken,
    metrics: Metrics,
}

/// A watch that is configured but whose kind the API server does not know (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The name as configured.
    pub name: String,
    /// Why it is not known, in a sentence.
    pub message: String,
}

/// Time between two ends of streams at shutdown, so that clients come back one after the other.
const DRAIN_STEP: Duration = Duration::from_millis(2);

/// Why a subscription was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// `subscribers_max` is reached.
    #[error("all {max} subscriptions are taken")]
    Full {
        /// The limit.
        max: usize,
    },
    /// A watch of this name is configured, but its kind is not known yet.
    #[error("{name:?} is not known to the API server yet: {why}")]
    Pending {
        /// The name as configured.
        name: String,
        /// Why it is not known.
        why: String,
    },
    /// No informer for a name.
    #[error("no informer for {name:?}; there are informers for {known}")]
    Unknown {
        /// The name as asked for.
        name: String,
        /// Those that exist.
        known: String,
    },
}

impl Hub {
    /// A hub without informers. Streams end when `drain` is cancelled.
    pub fn new(config: Config, drain: CancellationToken) -> Self {
        Self(Arc::new(Inner {
            config,
            informers: RwLock::default(),
            pending: watch::channel(Vec::new()).0,
            subscribers: AtomicUsize::new(0),
            drain,
            metrics: Metrics::new(),
        }))
    }

    /// Limits and rhythms.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Adds an informer.
    pub fn add(&self, informer: Informer) {
        self.0.informers.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(informer));
    }

    /// Tells which watches have no informer yet.
    pub fn set_pending(&self, pending: Vec<Pending>) {
        self.0.pending.send_replace(pending);
    }

    /// The watches that have no informer yet.
    pub fn pending(&self) -> Vec<Pending> {
        self.0.pending.borrow().clone()
    }

    /// Waits until every configured watch has its informer; what is known by then is known at the return.
    pub async fn settled(&self) {
        // The sender lives as long as the hub.
        let _ = self.0.pending.subscribe().wait_for(Vec::is_empty).await;
    }

    /// All informers, in the order in which they were added.
    pub fn informers(&self) -> Vec<Arc<Informer>> {
        self.0.informers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The informers that a name as kubectl takes it stands for: one, or one per namespace followed.
    ///
    /// # Errors
    /// [`SubscribeError::Unknown`] with the names there are.
    pub fn resolve(&self, name: &str) -> Result<Vec<Arc<Informer>>, SubscribeError> {
        let informers = self.informers();
        let first = informers.iter().find(|informer| informer.resource.answers_to(name));
        let Some(resource) = first.map(|informer| informer.resource.clone()) else {
            if let Some(pending) = self.pending().into_iter().find(|pending| pending.name == name) {
                return Err(SubscribeError::Pending { name: pending.name, why: pending.message });
            }
            let mut known: Vec<_> = informers.iter().map(|informer| informer.resource.canonical()).collect();
            known.dedup();
            return Err(SubscribeError::Unknown { name: name.to_owned(), known: known.join(", ") });
        };
        Ok(informers.into_iter().filter(|informer| informer.resource == resource).collect())
    }

    /// Begins a subscription. Its place is taken now, not at the first poll, so that nothing in between is
    /// missed.
    ///
    /// # Errors
    /// [`SubscribeError::Full`].
    pub fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, SubscribeError> {
        let max = self.0.config.subscribers_max;
        let taken = self.0.subscribers.fetch_add(1, Ordering::Relaxed);
        let place = Place { hub: self.clone(), informers: subscription.informers.clone() };
        if taken >= max {
            self.0.metrics.refused.increment(1);
            // Nothing was counted for the informers yet.
            let mut place = place;
            place.informers.clear();
            return Err(SubscribeError::Full { max });
        }
        for informer in &place.informers {
            informer.subscribers.fetch_add(1, Ordering::Relaxed);
        }
        self.0.metrics.subscribers.set((taken + 1) as f64);
        Ok(Subscriber::new(subscription, self.0.config, self.0.drain.clone(), place))
    }

    /// Subscribers connected now.
    pub fn subscribers(&self) -> usize {
        self.0.subscribers.load(Ordering::Relaxed)
    }
}

/// A subscriber's place in the counts, given back when it is dropped.
pub(super) struct Place {
    hub: Hub,
    informers: Vec<Arc<Informer>>,
}

impl Place {
    /// Over how long the streams' ends are spread, by how many there are.
    pub(super) fn drain_spread(&self) -> Duration {
        let count = u32::try_from(self.hub.subscribers()).unwrap_or(u32::MAX);
        DRAIN_STEP.saturating_mul(count).min(self.hub.0.config.drain_spread_max)
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.hub.0.metrics
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for informer in &self.informers {
            informer.subscribers.fetch_sub(1, Ordering::Relaxed);
        }
        let left = self.hub.0.subscribers.fetch_sub(1, Ordering::Relaxed) - 1;
        self.hub.0.metrics.subscribers.set(left as f64);
    }
}
