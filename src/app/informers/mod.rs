//! Starts, replaces and stops informers: those that the configuration names, and those that clients ask for. One task
//! decides, so that nothing is started twice.
//!
//! Discovery is repeated at long intervals, at growing intervals while a wanted kind is unknown, and at once when a reflector
//! gets 404 repeatedly. An informer is replaced when its resource or its watch has changed: the old cache serves until the
//! new one is complete, and then streams get the difference. Other informers are not affected.

mod configured_watch;
mod demand;
mod reconfigure;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::metrics::Metrics;
use crate::cache::Packing;
use crate::config::{self, CachePacking, WatchSpec};
use crate::hub::{Catalog, Demand, Hub, Names, Pending, Started};
use crate::k8s::Resource;
use crate::reflect::{Pack, Verify};
use crate::upstream::{Again, Backoff, Client, Discovery, UpstreamError};
use configured_watch::{ConfiguredWatch, Maker, Next, are_same, wanted};

/// Time between two checks for idle informers, and for reflectors whose resource is gone.
const TICK: Duration = Duration::from_secs(1);

/// The same with a short idle time.
const TICK_MIN: Duration = Duration::from_millis(20);

/// Least time between two discoveries.
const DISCOVERY_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Number of 404 answers after which discovery is asked. A single one may come from an API server that is behind.
const NOT_FOUND_MAX: u64 = 2;

/// A new configuration, valid in itself.
pub(super) struct Reload {
    pub(super) config: Box<config::Serve>,
    /// Receives what it changed, or why it was refused.
    pub(super) answer: oneshot::Sender<Result<Changes, String>>,
}

/// How many watches a new configuration has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) added: usize,
    pub(super) changed: usize,
    pub(super) removed: usize,
}

/// The messages to the task.
pub(super) struct Inbox {
    pub(super) demands: mpsc::Receiver<Demand>,
    pub(super) reloads: mpsc::Receiver<Reload>,
}

/// The state of the task that runs the informers.
pub(super) struct Informers {
    on_demand: config::OnDemand,
    discovery_interval: Duration,
    hub: Hub,
    maker: Maker,
    groups: Vec<ConfiguredWatch>,
    next_id: u64,
    discovery: Option<Arc<Discovery>>,
    /// The API server's version document.
    version: Option<Bytes>,
    /// When discovery was last asked.
    asked_at: Option<Instant>,
    /// When to ask discovery again.
    ask_at: Instant,
    tick_at: Instant,
    backoff: Backoff,
    /// Until when no reflector that panicked is replaced.
    restart_at: Instant,
    restart_backoff: Backoff,
    /// Why the last discovery failed.
    trouble: Option<String>,
    /// Demands that wait for discovery.
    demands: Vec<Demand>,
    /// Tasks that wait until successors are complete; each gives group and generation.
    completing: JoinSet<(u64, u64)>,
    metrics: Metrics,
}

/// What the API server serves, and its version document.
type Discovered = (Result<Discovery, UpstreamError>, Result<Vec<u8>, UpstreamError>);

/// A message to the task.
enum Said {
    Demand(Demand),
    Reload(Reload),
}

impl Inbox {
    async fn next(&mut self) -> Said {
        tokio::select! {
            Some(demand) = self.demands.recv() => Said::Demand(demand),
            Some(reload) = self.reloads.recv() => Said::Reload(reload),
            else => std::future::pending().await,
        }
    }
}

impl Informers {
    /// Informers that do not run yet. The hub is told at once which watches it has to wait for.
    pub(super) fn new(config: &config::Serve, client: Client, hub: Hub, cancel: CancellationToken) -> Self {
        let turn = Arc::new(Semaphore::new(1));
        let verify = config.verify_interval.map(|interval| Verify { interval, turn });
        let initial_list = config.initial_list;
        let pack = match config.cache_packing {
            CachePacking::Auto => Some(Pack::new(Packing::DEFAULT)),
            CachePacking::Off => None,
        };
        let mut informers = Self {
            on_demand: config.on_demand.clone(),
            discovery_interval: config.discovery_interval,
            hub,
            maker: Maker { client, limits: config.limits.clone(), initial_list, verify, pack, cancel },
            groups: Vec::new(),
            next_id: 0,
            discovery: None,
            version: None,
            asked_at: None,
            ask_at: Instant::now(),
            tick_at: Instant::now(),
            backoff: Backoff::default(),
            restart_at: Instant::now(),
            restart_backoff: Backoff::default(),
            trouble: None,
            demands: Vec::new(),
            completing: JoinSet::new(),
            metrics: Metrics::new(),
        };
        for spec in &config.watches {
            informers.push(spec.clone(), Started::Configuration, true);
        }
        informers.tell_pending();
        informers
    }

    /// Runs informers until cancelled.
    ///
    /// # Errors
    /// A configuration that cannot be followed, found by the first discovery: one resource twice, or a namespace for a
    /// cluster-scoped one.
    pub(super) async fn run(mut self, mut inbox: Inbox) -> anyhow::Result<()> {
        let (client, cancel) = (self.maker.client.clone(), self.maker.cancel.clone());
        let mut discovering: JoinSet<Discovered> = JoinSet::new();
        loop {
            if Instant::now() >= self.ask_at && discovering.is_empty() {
                let client = client.clone();
                self.asked_at = Some(Instant::now());
                discovering.spawn(async move {
                    let version = client.document("/version", "application/json");
                    tokio::join!(client.discover(), version)
                });
            }
            if Instant::now() >= self.tick_at {
                self.tick();
            }
            let wake_at = self.wake_at(discovering.is_empty());
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(Ok((discovery, version))) = discovering.join_next() => {
                    self.note_version(version);
                    self.discovered(discovery).await?;
                }
                Some(Ok((id, generation))) = self.completing.join_next() => self.complete(id, generation).await,
                said = inbox.next() => self.hear(said).await,
                () = sleep_until(wake_at) => {}
            }
        }
        self.stop().await;
        Ok(())
    }

    fn push(&mut self, spec: WatchSpec, started: Started, awaited: bool) -> usize {
        let id = self.next_id;
        self.next_id += 1;
        let (current, next, problem) = (Vec::new(), None, None);
        self.groups.push(ConfiguredWatch { id, spec, started, awaited, current, next, problem });
        self.groups.len() - 1
    }

    async fn hear(&mut self, said: Said) {
        match said {
            Said::Demand(demand) => self.demanded(demand).await,
            Said::Reload(Reload { config, answer }) => {
                let result = self.reconfigure(*config).await;
                let _ = answer.send(result);
            }
        }
    }

    /// Handles the result of a discovery.
    async fn discovered(&mut self, asked: Result<Discovery, UpstreamError>) -> anyhow::Result<()> {
        self.metrics.discovered(asked.is_ok());
        match asked {
            Err(error) => {
                let sentence = error.sentence();
                warn!(error = %sentence, "discovery failed");
                self.trouble = Some(sentence);
            }
            Ok(discovery) => {
                let first = self.discovery.is_none();
                self.trouble = None;
                self.take_discovery(discovery);
                if first {
                    self.check_first()?;
                }
                self.settle().await;
            }
        }
        self.schedule();
        self.tell_pending();
        if self.discovery.is_some() {
            self.hub.set_discovered();
        }
        self.answer_demands().await;
        Ok(())
    }

    fn take_discovery(&mut self, discovery: Discovery) {
        let discovery = Arc::new(discovery);
        self.discovery = Some(discovery);
        let running = self.groups.iter_mut().flat_map(|group| &mut group.current);
        running.for_each(configured_watch::RunningInformer::looked);
        self.tell_catalog();
    }

    /// Keeps the version document. The server can be followed without it.
    fn note_version(&mut self, version: Result<Vec<u8>, UpstreamError>) {
        match version {
            Ok(version) => self.version = Some(version.into()),
            Err(error) => debug!(error = %error.sentence(), "the API server's version could not be read"),
        }
        self.tell_catalog();
    }

    /// Gives the hub what the API server serves. The resources that clients may start are each in its preferred version.
    fn tell_catalog(&self) {
        let version = self.version.clone();
        let Some(discovery) = self.discovery.clone() else {
            return self.hub.set_catalog(Catalog { version, ..Catalog::default() });
        };
        let mut groups: Vec<String> = discovery.resources().map(|one| one.group().to_owned()).collect();
        groups.dedup();
        let mut offered: Vec<Resource> = Vec::new();
        for resource in
            discovery.resources().filter(|one| self.on_demand.is_on() && self.on_demand.allows(one))
        {
            if !offered.iter().any(|other| other.canonical() == resource.canonical()) {
                offered.push(resource);
            }
        }
        let find = move |name: &str| discovery.find(name).map(|found| found.canonical());
        let names = self.on_demand.is_on().then(|| Arc::new(find) as Arc<Names>);
        self.hub.set_catalog(Catalog { names, offered, groups, version });
    }

    /// Checks the watches against the first discovery. An error ends the process, as nobody depends on this configuration yet.
    fn check_first(&self) -> anyhow::Result<()> {
        let specs: Vec<_> = self.groups.iter().map(|group| group.spec.clone()).collect();
        Ok(self.check(&specs).map_err(config::ConfigError::Cluster)?)
    }

    /// Checks that watches do not conflict, as far as their kinds are known.
    fn check(&self, specs: &[WatchSpec]) -> Result<(), String> {
        let Some(discovery) = &self.discovery else { return Ok(()) };
        let mut seen: Vec<Resource> = Vec::new();
        for spec in specs {
            let Some(resource) = discovery.find(&spec.resource) else { continue };
            fits(spec, &resource, &seen)?;
            seen.push(resource);
        }
        Ok(())
    }

    /// Makes each group run the informers that its watch and discovery want.
    async fn settle(&mut self) {
        for index in 0..self.groups.len() {
            self.settle_one(index).await;
        }
    }

    async fn settle_one(&mut self, index: usize) {
        let Some(discovery) = self.discovery.clone() else { return };
        let group = &self.groups[index];
        let name = &group.spec.resource;
        let served = match group.resource() {
            Some(resource) => match discovery.again(name, resource) {
                Again::Served(resource) => Ok(resource),
                Again::Untold => return,
                Again::Gone => return self.vanish(index).await,
            },
            None => discovery.resolve(name).map_err(|error| error.to_string()),
        };
        let served = served.and_then(|resource| {
            let taken = |other: &ConfiguredWatch| {
                other.resource().is_some_and(|one| one.canonical() == resource.canonical())
            };
            let twice_there = self.groups.iter().enumerate().any(|(at, other)| at != index && taken(other));
            if twice_there { Err(twice(&resource, &group.spec)) } else { Ok(resource) }
        });
        let applied = match served {
            Ok(resource) => self.apply(index, resource).await,
            Err(why) => Err(why),
        };
        let group = &mut self.groups[index];
        if let Err(why) = &applied
            && group.problem.as_ref() != Some(why)
        {
            warn!(
                resource = group.spec.resource,
                error = why,
                broken = broken(&discovery),
                "cannot be followed"
            );
        }
        group.problem = applied.err();
    }

    /// Makes a group follow a resource as its watch wants.
    async fn apply(&mut self, index: usize, resource: Resource) -> Result<(), String> {
        let group = &mut self.groups[index];
        let wanted = wanted(&group.spec, &resource)?;
        if group.is(&wanted) && group.current.iter().all(configured_watch::RunningInformer::is_running) {
            group.next = None;
            self.redescribe(index, &resource).await;
            return Ok(());
        }
        let underway = group.next.as_ref().is_some_and(|next| are_same(next.wanted.iter(), &wanted));
        if underway {
            return Ok(());
        }
        group.next = None;
        let successors = group.successors(&self.maker, &wanted);
        self.metrics.started(group.started, successors.iter().filter(|one| one.is_new()).count());
        if group.current.is_empty() {
            let (old, new) = group.succeed(successors).await;
            self.hub.swap(&old, new);
            return Ok(());
        }
        info!(informer = %resource, "informer will be replaced once the new one is complete");
        let completion = group.completion(&successors);
        let (id, generation) = (group.id, self.next_id);
        self.next_id += 1;
        let waiting = self.completing.spawn(async move {
            completion.await;
            (id, generation)
        });
        group.next = Some(Next { resource, wanted, successors, generation, waiting });
        Ok(())
    }

    /// Updates the hub's description of informers that stay, and the indexes that they keep.
    async fn redescribe(&mut self, index: usize, resource: &Resource) {
        let group = &mut self.groups[index];
        let (started, awaited) = (group.started, group.awaited);
        let as_is = |running: &configured_watch::RunningInformer| {
            let informer = &running.informer;
            informer.spec.resource.parts() == resource.parts()
                && informer.spec.started == started
                && informer.spec.awaited == awaited
                && running.has_indexes(&group.spec.indexes)
        };
        if group.current.iter().all(as_is) {
            return;
        }
        for running in &mut group.current {
            running.informer.spec.resource = resource.clone();
            if !running.has_indexes(&group.spec.indexes) {
                running.keep_indexes(&group.spec.indexes).await;
            }
        }
        group.describe();
        let informers = group.current.iter().map(|running| running.informer.clone()).collect();
        self.hub.swap(&group.ids(), informers);
    }

    /// Replaces the informers of a watch by their successors, which are complete.
    async fn complete(&mut self, id: u64, generation: u64) {
        let Some(index) = self.groups.iter().position(|group| group.id == id) else { return };
        let group = &mut self.groups[index];
        let Some(next) = group.next.take_if(|next| next.generation == generation) else { return };
        let (resource, successors) = next.into_parts();
        info!(informer = %resource, "informer is replaced");
        let (old, new) = group.succeed(successors).await;
        self.hub.swap(&old, new);
        // Those that stay may have to keep other indexes.
        self.redescribe(index, &resource).await;
        self.metrics.replaced();
        self.tell_pending();
    }

    async fn vanish(&mut self, index: usize) {
        let group = &mut self.groups[index];
        let Some(resource) = group.resource().map(Resource::canonical) else { return };
        let why = format!("the API server does not serve {resource} any more");
        group.next = None;
        if let Some((old, new)) = group.vanish(&self.maker, &why).await {
            warn!(resource, "the kind is gone, and its objects with it");
            self.hub.swap(&old, new);
        }
        group.problem = Some(why);
    }

    /// Sets the time of the next discovery: soon while something is missing.
    fn schedule(&mut self) {
        let missing = self.trouble.is_some() || self.groups.iter().any(|group| group.problem.is_some());
        let wait = if missing {
            self.backoff.next(rand::random())
        } else {
            self.backoff.reset();
            // With jitter, so that many informerds do not ask together.
            self.discovery_interval.mul_f64(rand::random_range(0.9..1.1))
        };
        self.ask_at = Instant::now() + wait;
    }

    /// Makes discovery be asked as soon as [`DISCOVERY_INTERVAL_MIN`] allows.
    fn ask_soon(&mut self) {
        let earliest = self.asked_at.map_or_else(Instant::now, |asked| asked + DISCOVERY_INTERVAL_MIN);
        self.ask_at = self.ask_at.min(earliest);
    }

    /// When the task wakes at the latest.
    fn wake_at(&self, may_ask: bool) -> Instant {
        if may_ask { self.tick_at.min(self.ask_at) } else { self.tick_at }
    }

    fn tick(&mut self) {
        let idle = if self.on_demand.is_on() { self.on_demand.idle / 4 } else { TICK };
        self.tick_at = Instant::now() + idle.clamp(TICK_MIN, TICK);
        let missing =
            |group: &ConfiguredWatch| group.current.iter().any(|one| one.not_found() >= NOT_FOUND_MAX);
        if self.groups.iter().any(missing) {
            self.ask_soon();
        }
        self.look_for_failures();
        self.retire();
        self.tell_pending();
    }

    /// Replaces reflectors that panicked, at growing intervals, as the same object may make the new ones panic, too.
    fn look_for_failures(&mut self) {
        if Instant::now() < self.restart_at {
            return;
        }
        let failed = self.groups.iter_mut().filter_map(|group| group.look_for_failures().then_some(group.id));
        let failed = failed.count();
        if failed > 0 {
            error!(failed, "reflectors panicked and are replaced");
            self.metrics.failed(failed);
            self.restart_at = Instant::now() + self.restart_backoff.next(rand::random());
            // The next discovery starts the replacements.
            self.ask_soon();
        }
    }

    /// Gives the hub the watches that have no informer yet, or not the configured one.
    fn tell_pending(&self) {
        let mut pending = Vec::new();
        for group in self.groups.iter().filter(|group| group.started == Started::Configuration) {
            let name = group.spec.resource.clone();
            if group.current.is_empty() {
                let unasked = || "the API server has not been asked yet".to_owned();
                let why = group.problem.clone().or_else(|| self.trouble.clone()).unwrap_or_else(unasked);
                pending.push(Pending { name, message: why, awaited: group.awaited });
            } else if let Some(why) = group.next.as_ref().and_then(Next::problem) {
                let message = format!("goes on as before until it is complete as configured: {why}");
                pending.push(Pending { name, message, awaited: false });
            }
        }
        if self.hub.pending() != pending {
            self.hub.set_pending(pending);
        }
        let count = |started| {
            let of = self.groups.iter().filter(|group| group.started == started);
            of.map(|group| group.current.len()).sum::<usize>()
        };
        self.metrics.running(Started::Configuration, count(Started::Configuration));
        self.metrics.running(Started::Demand, count(Started::Demand));
    }

    async fn stop(&mut self) {
        for group in &mut self.groups {
            group.stop().await;
        }
    }
}

/// Checks that a watch of a resource does not conflict with those of other resources.
///
/// # Errors
/// The conflict, in a sentence.
pub(super) fn fits(spec: &WatchSpec, resource: &Resource, others: &[Resource]) -> Result<(), String> {
    if others.iter().any(|other| other.canonical() == resource.canonical()) {
        return Err(twice(resource, spec));
    }
    wanted(spec, resource).map(|_| ())
}

fn twice(resource: &Resource, spec: &WatchSpec) -> String {
    format!(
        "{resource} is watched twice (as {:?} the second time): put its namespaces into one watch",
        spec.resource
    )
}

fn broken(discovery: &Discovery) -> String {
    let groups: Vec<_> = discovery.broken().iter().map(|broken| broken.group_version.as_str()).collect();
    groups.join(",")
}
