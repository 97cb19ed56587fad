//! The registry of all informers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::demand::{Demand, Names};
use super::follower::{Follower, FollowerSummary, Followers};
use super::informer::Retirement;
use super::metrics::Metrics;
use super::{CloseReason, Config, ContentDigest, Generations, Informer, InformerId, SubscribeError};
use crate::cache::GivenOut;
use crate::k8s::{Resource, ResourceVersion};

/// All informers, like client-go's SharedInformerFactory. Cheap to clone.
#[derive(Clone)]
pub struct Hub(Arc<Inner>);

struct Inner {
    config: Config,
    registry: RwLock<Registry>,
    waiting: watch::Sender<Waiting>,
    /// Where demands for informers are sent; `None` if none may start on demand.
    demand: Option<mpsc::Sender<Demand>>,
    subscribers: AtomicUsize,
    drain: CancellationToken,
    metrics: Metrics,
    generations: Arc<Generations>,
    followers: Followers,
}

/// The state behind the lock.
#[derive(Default)]
struct Registry {
    informers: Vec<Arc<Informer>>,
    /// The last removed cache of each name. Bounded by the number of kinds of the cluster, not by requests.
    retired: HashMap<String, Retired>,
    catalog: Catalog,
}

/// What the API server serves, as far as it was discovered.
#[derive(Clone, Default)]
pub struct Catalog {
    /// Resolves names in the whole cluster, if informers may start on demand. Then a name means the same whichever informers
    /// run.
    pub names: Option<Arc<Names>>,
    /// The resources that may start on demand.
    pub offered: Vec<Resource>,
    /// The API server's groups, in its order of priority.
    pub groups: Vec<String>,
    /// The API server's version document.
    pub version: Option<Bytes>,
}

/// What is remembered of a removed informer, for the tokens that it gave out.
#[derive(Clone)]
struct Retired {
    digest: ContentDigest,
    given_out: GivenOut,
    tokens_valid_after: Option<ResourceVersion>,
}

/// What is missing yet. Also changes when an informer is added or removed.
#[derive(Default)]
struct Waiting {
    /// Whether discovery has answered.
    discovered: bool,
    pending: Vec<Pending>,
}

/// A configured watch without its informer: its kind is unknown, or the configuration does not fit the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The name as configured.
    pub name: String,
    /// The reason, in a sentence.
    pub message: String,
    /// Whether the process is unready until the informer exists.
    pub awaited: bool,
}

/// Longest name of a resource, in bytes: plural, version and group, for which API servers allow 63, 63 and 253, and two
/// dots. A longer one is refused without a look-up.
const NAME_LEN_MAX: usize = 63 + 1 + 63 + 1 + 253;

/// Bytes of such a name that the error repeats.
const NAME_SHOWN_LEN_MAX: usize = 63;

/// Time between the ends of two streams at shutdown, so that clients reconnect one after the other.
const DRAIN_STEP: Duration = Duration::from_millis(2);

impl Hub {
    /// A hub without informers. Streams end when `drain` is cancelled.
    pub fn new(config: Config, drain: CancellationToken) -> Self {
        Self::build(config, drain, None)
    }

    /// A hub that sends demands for informers that do not run.
    pub fn with_demand(config: Config, drain: CancellationToken, demand: mpsc::Sender<Demand>) -> Self {
        Self::build(config, drain, Some(demand))
    }

    fn build(config: Config, drain: CancellationToken, demand: Option<mpsc::Sender<Demand>>) -> Self {
        Self(Arc::new(Inner {
            config,
            registry: RwLock::default(),
            waiting: watch::Sender::default(),
            demand,
            subscribers: AtomicUsize::new(0),
            drain,
            metrics: Metrics::new(),
            generations: Arc::default(),
            followers: Followers::default(),
        }))
    }

    /// Its limits and intervals.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Adds an informer.
    pub fn add(&self, informer: Informer) {
        self.swap(&[], vec![informer]);
    }

    /// Replaces informers of one resource by others, in one step.
    ///
    /// A new informer that is a clone of an old one only has another description, which its subscribers do not notice. If the
    /// names stay the same, the subscribers of each informer continue with the new one of its name, which must be complete, and
    /// get the difference. If the names change, subscribers end and may reconnect; if there are no new informers, they end for
    /// good.
    pub fn swap(&self, old: &[InformerId], new: Vec<Informer>) {
        let mut registry = self.write();
        let leaves = |informer: &Arc<Informer>| old.contains(&informer.id());
        let at = registry.informers.iter().position(leaves).unwrap_or(registry.informers.len());
        let (gone, mut kept): (Vec<_>, Vec<_>) = registry.informers.drain(..).partition(leaves);
        for informer in &gone {
            registry.retire(informer);
        }
        let new: Vec<_> = new
            .into_iter()
            .map(|mut informer| {
                informer.tokens_valid_after = registry.tokens_valid_after(&informer);
                if let Some(before) = registry.retired.get(&informer.spec.name) {
                    // Clients come back with tokens of the informer before it.
                    informer.reader.take_over(&before.given_out);
                }
                Arc::new(informer)
            })
            .collect();
        kept.splice(at..at, new.iter().cloned());
        registry.informers = kept;
        // Released before subscribers are woken.
        drop(registry);
        let same_names = gone.len() == new.len()
            && gone.iter().all(|one| new.iter().any(|other| one.spec.name == other.spec.name));
        for informer in &gone {
            if new.iter().any(|other| other.id() == informer.id()) {
                continue;
            }
            let successor = new.iter().find(|other| same_names && other.spec.name == informer.spec.name);
            informer.end(match successor {
                Some(successor) => Retirement::ReplacedBy(successor.clone()),
                None if new.is_empty() => Retirement::Ended(CloseReason::Removed),
                None => Retirement::Ended(CloseReason::Regrouped),
            });
        }
        self.0.waiting.send_modify(|_| ());
    }

    /// Removes informers that were unused for `idle`; `false` if one of them is in use.
    ///
    /// A request that has found an informer holds a reference to it, so none is removed between being found and being read. The
    /// caller passes its only description of each, so that others count as uses.
    pub fn retire(&self, informers: &[&Informer], idle: Duration, now: Instant) -> bool {
        let mut registry = self.write();
        let leaves = |informer: &&Arc<Informer>| informers.iter().any(|one| one.id() == informer.id());
        let in_use = |informer: &Arc<Informer>| {
            let held = Arc::strong_count(informer) > 1 || Arc::strong_count(&informer.shared) > 2;
            held || informer.subscribers() > 0 || now.saturating_duration_since(informer.used()) < idle
        };
        if registry.informers.iter().filter(leaves).any(in_use) {
            return false;
        }
        let (gone, kept) = registry.informers.drain(..).partition(|informer| leaves(&informer));
        let gone: Vec<_> = gone;
        registry.informers = kept;
        for informer in &gone {
            registry.retire(informer);
        }
        drop(registry);
        // A graph may have searched them, and no longer follows them.
        self.0.waiting.send_modify(|_| ());
        true
    }

    /// Sets the watches that have no informer yet.
    pub fn set_pending(&self, pending: Vec<Pending>) {
        self.0.waiting.send_modify(|waiting| waiting.pending = pending);
    }

    /// The watches that have no informer yet.
    pub fn pending(&self) -> Vec<Pending> {
        self.0.waiting.borrow().pending.clone()
    }

    /// Notes that discovery has answered: from now on requests do not wait for unknown names.
    pub fn set_discovered(&self) {
        self.0.waiting.send_modify(|waiting| waiting.discovered = true);
    }

    /// Sets what the API server serves.
    pub fn set_catalog(&self, catalog: Catalog) {
        self.write().catalog = catalog;
    }

    /// The API server's version document; `None` before it was read.
    pub fn version(&self) -> Option<Bytes> {
        self.read().catalog.version.clone()
    }

    /// Every resource that can be read, without duplicates, in the order of the API server's groups: followed ones in the version
    /// in which they are followed, then those that may start on demand.
    pub fn served(&self) -> Vec<Resource> {
        let registry = self.read();
        let followed = registry.informers.iter().map(|informer| &informer.spec.resource);
        let mut served: Vec<Resource> = Vec::new();
        for resource in followed.chain(&registry.catalog.offered) {
            let same =
                |other: &Resource| other.group() == resource.group() && other.plural() == resource.plural();
            if !served.iter().any(same) {
                served.push(resource.clone());
            }
        }
        let groups = &registry.catalog.groups;
        let place = |resource: &Resource| groups.iter().position(|group| group == resource.group());
        // A group that the API server does not list now comes last.
        served.sort_by_key(|resource| place(resource).unwrap_or(usize::MAX));
        served
    }

    /// Waits until `deadline` for discovery; returns whether it has answered.
    pub async fn discovered(&self, deadline: Instant) -> bool {
        let mut waiting = self.0.waiting.subscribe();
        timeout_at(deadline, waiting.wait_for(|waiting| waiting.discovered)).await.is_ok()
    }

    /// Waits until every configured watch has its informer, at most until `deadline`.
    pub async fn settled(&self) {
        let settled = |waiting: &Waiting| waiting.discovered && waiting.pending.is_empty();
        // The sender lives as long as the hub.
        let _ = self.0.waiting.subscribe().wait_for(settled).await;
    }

    /// Completes when an informer comes or is replaced after this call.
    pub fn next_arrival(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut waiting = self.0.waiting.subscribe();
        async move {
            // The sender lives as long as the hub.
            let _ = waiting.changed().await;
        }
    }

    /// All informers, in the order in which they were added.
    pub fn informers(&self) -> Vec<Arc<Informer>> {
        self.read().informers.clone()
    }

    /// Whether informers may start on demand.
    pub fn starts_on_demand(&self) -> bool {
        self.0.demand.is_some()
    }

    /// The informers of a resource; none if it is not followed. A name cannot tell `deployments` of `apps/v1` from those of a group
    /// `v1.apps`, which anybody who may define resources can make.
    pub fn followed(&self, group: &str, version: &str, plural: &str) -> Vec<Arc<Informer>> {
        let is_meant = |informer: &&Arc<Informer>| {
            let resource = &informer.spec.resource;
            (resource.group(), resource.version(), resource.plural()) == (group, version, plural)
        };
        let found: Vec<_> = self.read().informers.iter().filter(is_meant).cloned().collect();
        found.iter().for_each(|informer| informer.touch());
        found
    }

    /// The informers of a name as kubectl accepts it: one, or one for each followed namespace.
    ///
    /// # Errors
    /// [`SubscribeError::Unknown`] with the existing names, [`SubscribeError::Pending`].
    pub fn resolve(&self, name: &str) -> Result<Vec<Arc<Informer>>, SubscribeError> {
        if name.len() > NAME_LEN_MAX {
            let shown: String = name.chars().take(NAME_SHOWN_LEN_MAX).collect();
            return Err(SubscribeError::TooLong { name: shown, len: name.len() });
        }
        // Read first, as a pending watch is removed from the list only after its informer was added.
        let pending = self.0.waiting.borrow().pending.iter().find(|pending| pending.name == name).cloned();
        let (informers, names) = {
            let registry = self.read();
            (registry.informers.clone(), registry.catalog.names.clone())
        };
        let answers = |informer: &&Arc<Informer>| informer.spec.resource.answers_to(name);
        let exactly = informers.iter().find(|informer| informer.spec.resource.canonical() == name);
        let first = exactly.or_else(|| match names.and_then(|names| names(name)) {
            Some(meant) => {
                informers.iter().filter(answers).find(|informer| informer.spec.resource.canonical() == meant)
            }
            None => informers.iter().find(answers),
        });
        let Some(resource) = first.map(|informer| informer.spec.resource.clone()) else {
            if let Some(pending) = pending {
                return Err(SubscribeError::Pending { name: pending.name, why: pending.message });
            }
            let mut known: Vec<_> =
                informers.iter().map(|informer| informer.spec.resource.canonical()).collect();
            known.dedup();
            return Err(SubscribeError::Unknown { name: name.to_owned(), known: known.join(", ") });
        };
        let found: Vec<_> =
            informers.into_iter().filter(|informer| informer.spec.resource == resource).collect();
        found.iter().for_each(|informer| informer.touch());
        Ok(found)
    }

    /// As [`Hub::resolve`], but waits until `deadline` for the first discovery, for a configured kind, or for an informer that
    /// starts on demand.
    ///
    /// # Errors
    /// [`SubscribeError`], but never [`SubscribeError::Full`].
    pub async fn find(&self, name: &str, deadline: Instant) -> Result<Vec<Arc<Informer>>, SubscribeError> {
        let mut waiting = self.0.waiting.subscribe();
        loop {
            let discovered = waiting.borrow_and_update().discovered;
            let error = match self.resolve(name) {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            if matches!(error, SubscribeError::TooLong { .. }) {
                return Err(error);
            }
            let unknown = matches!(error, SubscribeError::Unknown { .. });
            match &self.0.demand {
                Some(demand) if unknown => match timeout_at(deadline, Demand::ask(demand, name)).await {
                    // It exists now, unless it was just removed again.
                    Ok(Ok(())) => return self.resolve(name),
                    // The resource was followed and is no longer: the same error as without informers on demand.
                    Ok(Err(SubscribeError::NotOnDemand { resource, .. })) if self.was_followed(&resource) => {
                        return Err(error);
                    }
                    Ok(Err(refused)) => return Err(refused),
                    Err(_) => return Err(SubscribeError::late(name)),
                },
                Some(_) | None if unknown && discovered => return Err(error),
                Some(_) | None => {}
            }
            if timeout_at(deadline, waiting.changed()).await.is_err() {
                return Err(error);
            }
        }
    }

    /// Whether a resource had an informer that was removed.
    fn was_followed(&self, resource: &str) -> bool {
        let of = |name: &String| name.split('/').next() == Some(resource);
        self.read().retired.keys().any(of)
    }

    /// Counts a subscriber to these informers, which follows them in a way of its own.
    ///
    /// # Errors
    /// [`SubscribeError::Full`].
    pub fn permit(&self, informers: Vec<Arc<Informer>>) -> Result<SubscriberPermit, SubscribeError> {
        let max = self.0.config.subscribers_max;
        let taken = self.0.subscribers.fetch_add(1, Ordering::Relaxed);
        let follower = self.0.followers.add(Instant::now());
        let permit = SubscriberPermit { hub: self.clone(), informers: informers.into(), follower };
        if taken >= max {
            self.0.metrics.refused.increment(1);
            // It was not counted for the informers yet.
            let mut permit = permit;
            permit.informers = Box::default();
            return Err(SubscribeError::Full { max });
        }
        permit.informers.iter().for_each(|informer| informer.joined());
        self.0.metrics.subscribers.set((taken + 1) as f64);
        Ok(permit)
    }

    /// What tells subscribers that informerd stops.
    pub(super) fn drain(&self) -> CancellationToken {
        self.0.drain.clone()
    }

    /// The states that subscribers and lists hold.
    pub fn generations(&self) -> &Arc<Generations> {
        &self.0.generations
    }

    /// Drops states that were held for too long, and unused indexes. To be called about once a second.
    pub fn tend(&self, now: Instant) {
        self.0.generations.tend(now);
        self.informers().iter().for_each(|informer| informer.reader.expire_indexes(now));
    }

    /// The subscribers in figures, in no order.
    pub fn followers(&self, now: Instant) -> Vec<FollowerSummary> {
        self.0.followers.summaries(now)
    }

    /// Subscribers connected now.
    pub fn subscribers(&self) -> usize {
        self.0.subscribers.load(Ordering::Relaxed)
    }

    fn read(&self) -> RwLockReadGuard<'_, Registry> {
        self.0.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Registry> {
        self.0.registry.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Remembers the versions that a removed informer gave out.
    fn retire(&mut self, informer: &Informer) {
        let retired = Retired {
            digest: informer.spec.digest(),
            given_out: informer.reader.given_out(),
            tokens_valid_after: informer.tokens_valid_after.clone(),
        };
        self.retired.insert(informer.spec.name.clone(), retired);
    }

    /// The version up to which tokens of an informer's name are of other contents. A client with such a token must start over,
    /// as it would never learn of the deletion of objects that are no longer held.
    fn tokens_valid_after(&self, informer: &Informer) -> Option<ResourceVersion> {
        let before = self.retired.get(&informer.spec.name)?;
        if before.digest == informer.spec.digest() {
            return before.tokens_valid_after.clone();
        }
        let position = informer.reader.summary().position;
        let greatest = before.given_out.greatest();
        Some(if position < *greatest { greatest.clone() } else { position })
    }
}

/// Counts a subscriber until it is dropped.
pub struct SubscriberPermit {
    hub: Hub,
    informers: Box<[Arc<Informer>]>,
    follower: Arc<Follower>,
}

impl SubscriberPermit {
    /// The subscriber in figures.
    pub fn follower(&self) -> &Arc<Follower> {
        &self.follower
    }

    /// The time over which the ends of streams are spread, by their number.
    pub(super) fn drain_spread(&self) -> Duration {
        let count = u32::try_from(self.hub.subscribers()).unwrap_or(u32::MAX);
        DRAIN_STEP.saturating_mul(count).min(self.hub.0.config.drain_spread_max)
    }

    /// Counts the subscriber for another informer from now on.
    pub(super) fn moved(&mut self, index: usize, to: &Arc<Informer>) {
        if let Some(informer) = self.informers.get_mut(index) {
            informer.left();
            to.joined();
            *informer = to.clone();
        }
    }

    /// The limits and intervals of its hub.
    pub(super) fn config(&self) -> &Config {
        self.hub.config()
    }

    /// Cancelled when the process ends.
    pub(super) fn drain(&self) -> CancellationToken {
        self.hub.drain()
    }

    /// Whether the process ends.
    pub(super) fn is_draining(&self) -> bool {
        self.hub.0.drain.is_cancelled()
    }

    /// The states that subscribers hold.
    pub(super) fn generations(&self) -> Arc<Generations> {
        self.hub.0.generations.clone()
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.hub.0.metrics
    }
}

impl Drop for SubscriberPermit {
    fn drop(&mut self) {
        self.hub.0.followers.remove(self.follower.id);
        self.informers.iter().for_each(|informer| informer.left());
        let left = self.hub.0.subscribers.fetch_sub(1, Ordering::Relaxed) - 1;
        self.hub.0.metrics.subscribers.set(left as f64);
    }
}
