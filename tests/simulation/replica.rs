//! One informerd without HTTP: reflectors, caches, a hub.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use informerd::testing::cache::{self, Backlog, IndexBuilder, Packer, Packing, Phase, Reader};
use informerd::testing::hub::{
    self, Event, Hub, Informer, InformerSpec, Live, LivePlace, LivePosition, LiveSubscriber, Member,
    Resumable, Round, Selection, Subscriber, Told,
};
use informerd::testing::k8s::{DecodeOptions, Object, Resource, ResourceParts};
use informerd::testing::reflect::{Reflector, ReflectorConfig};
use informerd::testing::serve::{self, InProcess, QueueAccess, QueueConfig, Queues};
use informerd::testing::upstream::{Client, Config, Selectors, Target, UpstreamSource};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dice::Dice;
use crate::joiner::{links, links_by_name};
use crate::network::Link;
use crate::notes;
use crate::plan::Profile;
use crate::trace::Trace;
use crate::truth::{RESOURCES, Seen, State};
use crate::wire::{LINE_BYTES_MAX, OBJECT_BYTES_MAX};

/// Largest number of polls of one reflector in a second of virtual time; with more, it spins. Chunks of one byte and
/// pages of two objects need a few hundred.
const POLLS_PER_SECOND_MAX: u64 = 20_000;

/// One informerd.
pub(crate) struct Replica {
    /// Rises with each restart.
    pub(crate) life: u64,
    pub(crate) hub: Hub,
    pub(crate) readers: [Reader; 2],
    /// Its HTTP interface, without sockets.
    pub(crate) http: InProcess,
    pub(crate) born: Instant,
    pub(crate) drain: CancellationToken,
    cancel: CancellationToken,
    maker: Maker,
    /// Whether the informer of each resource is configured to keep notes.
    pub(crate) keeps_notes: [bool; 2],
    /// Informers that are to replace those of the same resource.
    successors: [Option<Successor>; 2],
    /// The caches of informers that were replaced: a task that has not heard of it reads them still.
    pub(crate) replaced: [Vec<Reader>; 2],
    revisions_before: [u64; 2],
    histories_before: [u64; 2],
    tasks: [JoinHandle<()>; 2],
    polls: [Arc<AtomicU64>; 2],
    polls_seen: (Instant, [u64; 2]),
    /// The version of each cache when it was first complete.
    pub(crate) first: [Option<u64>; 2],
    /// The streams that have caught up, as in a live loop.
    live: RefCell<Live<Follower>>,
    /// Indexes that are being built, a turn at a time.
    builders: RefCell<Vec<IndexBuilder>>,
    /// The objects of the caches when they were last read, by key.
    parsed: RefCell<[Parsed; 2]>,
    /// The packers of the caches, and the dice that decide when they pack.
    packers: RefCell<([Option<Packer>; 2], Dice)>,
    /// Probability of packing after something happened; 0 is never. Drawn for each life of a replica.
    packing_chance: f64,
}

/// Dictionaries are made from a few objects, so that several come and go in a history.
const PACKING: Packing = Packing {
    packed_bytes_min: 1000,
    train_bytes_min: 1500,
    train_bytes_max: 8000,
    dictionary_bytes: 2048,
    dictionaries_max: 2,
    look_bytes: 4000,
    hot_len: 2,
};

/// Probability that a packer which has its turn may compare dictionaries from then on.
const SETTLE_CHANCE: f64 = 0.1;

/// Bytes of a dictionary so small that zstd chooses its text from those few objects, which takes a while.
const TRAINED_BYTES: usize = 256;

/// Time for a successor to get as far as the informer that it replaces, as in a reload of the configuration.
const REPLACE_WAIT: Duration = Duration::from_secs(10);

/// Starts the informers of a replica.
struct Maker {
    upstream: Client,
    profile: Profile,
    /// `None` if nothing is packed.
    packing: Option<Packing>,
    driver: Arc<Notify>,
    cancel: CancellationToken,
}

/// A cache with its reflector.
struct Started {
    reader: Reader,
    packer: Option<Packer>,
    task: JoinHandle<()>,
}

/// The cache of an informer that is to replace another.
struct Successor {
    reader: Reader,
    spec: InformerSpec,
    since: Instant,
}

/// The objects of a cache with what was read in them.
type Parsed = BTreeMap<String, (Object, Rc<Seen>)>;

/// A stream that has caught up.
struct Follower {
    subscriber: LiveSubscriber,
    inbox: Rc<RefCell<Inbox>>,
}

/// The events that a live stream was sent.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The events, each with the number of started lists at its sending.
    pub(crate) events: Vec<(Event, Lists)>,
    pub(crate) heartbeat: bool,
    /// The revision of each cache when the stream last was up to date.
    pub(crate) seen: [u64; 2],
    /// The stream, after it has left the view.
    pub(crate) released: Option<Subscriber>,
    /// Whether the view then held changes that were not sent to the stream.
    pub(crate) holding: bool,
}

impl Member for Follower {
    type Kind = ();
    type Encoder = ();

    fn kind(&self) {}

    fn encoder(&self, _: &[Arc<Informer>]) {}

    fn advance((): &mut (), _: &[Resumable]) {}
}

/// Number of started lists of each resource; `None` if one was under way.
pub(crate) type Lists = [Option<u64>; 2];

/// A future whose polls are counted.
struct Counted<F> {
    future: Pin<Box<F>>,
    polls: Arc<AtomicU64>,
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.future.as_mut().poll(context)
    }
}

/// The resource as discovery would describe it.
pub(crate) fn resource(index: usize) -> Resource {
    let (plural, group) = RESOURCES[index].split_once('.').unwrap_or((RESOURCES[index], ""));
    let kind = if index == 0 { "ConfigMap" } else { "Widget" };
    Resource::new(ResourceParts {
        group: group.into(),
        version: "v1".into(),
        plural: plural.into(),
        kind: kind.into(),
        namespaced: true,
        ..Default::default()
    })
}

impl Maker {
    fn start(&self, spec: &InformerSpec, seed: u64, polls: &Arc<AtomicU64>) -> Started {
        let (writer, reader) = cache::cache(self.profile.cache, Instant::now());
        let packer = self.packing.map(|packing| writer.packer(packing, Arc::new(Backlog::new(usize::MAX))));
        let config = ReflectorConfig {
            target: Target {
                resource: spec.resource.clone(),
                namespace: None,
                selectors: Selectors::default(),
                metadata_only: false,
            },
            decode: DecodeOptions {
                drop_managed_fields: true,
                drop_last_applied: true,
                object_bytes_max: OBJECT_BYTES_MAX,
            },
            machine: self.profile.machine,
            line_bytes_max: LINE_BYTES_MAX,
            seed,
        };
        let reflector = Reflector::new(config, self.upstream.clone(), writer);
        let reflector = reflector.dropping(spec.content.dropped.clone());
        let future = Box::pin(reflector.run(self.cancel.clone()));
        let task = tokio::spawn(Counted { future, polls: polls.clone() });
        let (mut wake, driver) = (reader.wake(), self.driver.clone());
        tokio::spawn(async move {
            while wake.changed().await.is_ok() {
                driver.notify_one();
            }
        });
        Started { reader, packer, task }
    }
}

impl Replica {
    pub(crate) fn start(
        life: u64,
        seed: u64,
        profile: &Profile,
        link: &Arc<Link>,
        driver: &Arc<Notify>,
        keeps_notes: [bool; 2],
    ) -> Self {
        let drain = CancellationToken::new();
        let cancel = CancellationToken::new();
        let hub = Hub::new(profile.hub, drain.clone());
        let service = link.clone();
        let kube =
            kube::Client::new(tower::service_fn(move |request| service.clone().answer(request)), "default");
        let upstream = Client::over(kube, &Config::new(UpstreamSource::InCluster));
        let mut packing = Dice::new(seed, 3);
        let packing_chance = packing.weighted(&[(0.0, 1), (0.1, 1), (0.5, 1), (1.0, 2)]);
        let dictionary_bytes = packing.weighted(&[(PACKING.dictionary_bytes, 9), (TRAINED_BYTES, 1)]);
        let hot_len = packing.weighted(&[(0, 1), (PACKING.hot_len, 2), (8, 1)]);
        let maker = Maker {
            upstream,
            profile: profile.clone(),
            packing: (packing_chance > 0.0).then_some(Packing { dictionary_bytes, hot_len, ..PACKING }),
            driver: driver.clone(),
            cancel: cancel.clone(),
        };
        let polls = <[Arc<AtomicU64>; 2]>::default();
        let specs = [0, 1].map(|index| notes::spec(index, keeps_notes[index]));
        let [first, second] =
            [0, 1].map(|index| maker.start(&specs[index], seed.wrapping_add(index as u64), &polls[index]));
        let born = Instant::now();
        let replica = Self {
            life,
            http: http(&hub, &drain, profile.graph_selects),
            hub,
            readers: [first.reader, second.reader],
            maker,
            keeps_notes,
            successors: [None, None],
            replaced: Default::default(),
            revisions_before: [0; 2],
            histories_before: [0; 2],
            born,
            drain,
            cancel,
            tasks: [first.task, second.task],
            polls,
            polls_seen: (born, [0; 2]),
            first: [None; 2],
            live: RefCell::new(Live::new(profile.hub)),
            builders: RefCell::default(),
            parsed: RefCell::default(),
            packers: RefCell::new(([first.packer, second.packer], packing)),
            packing_chance,
        };
        for (spec, reader) in specs.into_iter().zip(&replica.readers) {
            replica.hub.add(Informer::new(spec, reader.clone()));
        }
        replica
    }

    /// Begins to replace an informer, as a reload of the configuration does. The old one is served until the new one is complete,
    /// and receives nothing more: two reflectors of one resource would draw from the same dice.
    pub(crate) fn reload(&mut self, index: usize, seed: u64, now: Instant) {
        self.tasks[index].abort();
        let spec = notes::spec(index, self.keeps_notes[index]);
        let Started { reader, packer, task } = self.maker.start(&spec, seed, &self.polls[index]);
        self.tasks[index] = task;
        self.packers.borrow_mut().0[index] = packer;
        self.successors[index] = Some(Successor { reader, spec, since: now });
    }

    /// Lets informers take the places of those that they replace, as soon as they are complete. Returns whether one
    /// did.
    pub(crate) fn succeed(&mut self, now: Instant, trace: &Trace) -> bool {
        let mut succeeded = false;
        for index in [0, 1] {
            let old = self.readers[index].snapshot().position;
            let is_complete = |successor: &mut Successor| {
                let Successor { reader, since, .. } = successor;
                reader.mark().synced && (reader.snapshot().position >= old || now >= *since + REPLACE_WAIT)
            };
            let Some(Successor { reader, spec, .. }) = self.successors[index].take_if(is_complete) else {
                continue;
            };
            let position = reader.snapshot().position;
            trace
                .say(|| format!("  an informer of {} is replaced: {old}, then {position}", RESOURCES[index]));
            let informers = self.hub.informers();
            self.hub.swap(&[informers[index].id()], vec![Informer::new(spec, reader.clone())]);
            self.revisions_before[index] = self.revision(index) + 1;
            self.histories_before[index] = self.history(index);
            self.replaced[index].push(std::mem::replace(&mut self.readers[index], reader));
            self.first[index] = Some(self.position(index));
            succeeded = true;
        }
        succeeded
    }

    /// Whether an informer is being replaced.
    pub(crate) fn is_reloading(&self, index: usize) -> bool {
        self.successors[index].is_some()
    }

    /// Lets a stream that has caught up join a view; returns it if the view refuses.
    pub(crate) fn join(
        &self,
        place: LivePlace,
        subscriber: Subscriber,
        now: Instant,
    ) -> Result<Rc<RefCell<Inbox>>, Box<Subscriber>> {
        let inbox = Rc::new(RefCell::new(Inbox::default()));
        let follower = Follower { subscriber: subscriber.into_live(), inbox: inbox.clone() };
        let mut live = self.live.borrow_mut();
        let ids: Vec<_> = place.sources.iter().map(|source| source.informer.id()).collect();
        let selection = place.selection.clone();
        match live.join(place, follower, now) {
            Ok(_) => Ok(inbox),
            Err((Follower { subscriber, .. }, place)) => {
                let mut subscriber = subscriber.leave(&place);
                if let Some(at) = live.gathers_until(&ids, &selection) {
                    subscriber.rest_until(at);
                }
                Err(Box::new(subscriber))
            }
        }
    }

    /// Begins to build the indexes that a selection asks for.
    pub(crate) fn index(&self, selection: &Selection, now: Instant) {
        let Some(term) = selection.index_wanted() else { return };
        let build = |reader: &Reader| reader.build_index(&term.path, now).ok();
        self.builders.borrow_mut().extend(self.readers.iter().filter_map(build));
    }

    /// Packs some objects, now and then. Returns whether it did, and whether that was in the middle of a first list.
    pub(crate) fn pack(&self) -> [bool; 2] {
        let (packers, dice) = &mut *self.packers.borrow_mut();
        let mut packed = [false; 2];
        for packer in packers.iter_mut().flatten() {
            if dice.chance(SETTLE_CHANCE) {
                packer.settle();
            }
            if dice.chance(self.packing_chance) && packer.step() {
                let reader = packer.reader();
                packed[0] |= reader.snapshot().held < reader.snapshot().bytes;
                packed[1] |= !reader.mark().synced;
            }
        }
        packed
    }

    /// When a view next has something to do.
    pub(crate) fn live_due(&self) -> Option<Instant> {
        self.live.borrow().next_due()
    }

    /// Sends all new events to the streams in views, as a live loop does.
    pub(crate) fn advance_live(&self, now: Instant, lists: Lists) {
        self.hub.tend(now);
        self.builders.borrow_mut().retain_mut(|builder| !builder.turn());
        let mut live = self.live.borrow_mut();
        for key in live.keys() {
            let gone = live.member_mut(key).is_some_and(|member| Rc::strong_count(&member.inbox) == 1);
            if gone {
                drop(live.leave(key));
            } else if self.drain.is_cancelled() {
                release(&mut live, key);
            }
        }
        let followed: Vec<_> = live.informers().map(|informer| informer.id()).collect();
        for informer in followed {
            loop {
                let round = live.advance(informer, now);
                let more = round.more;
                send(&mut live, round, lists);
                if !more {
                    break;
                }
            }
        }
        let round = live.due(now);
        send(&mut live, round, lists);
        let seen = [0, 1].map(|index| self.revision(index));
        for key in live.keys() {
            if let Some(member) = live.member_mut(key) {
                member.inbox.borrow_mut().seen = seen;
            }
        }
    }

    /// Ends at once, like a process on `kill -9`.
    pub(crate) fn kill(&self) {
        self.cancel.cancel();
    }

    /// Whether a cache is complete, its watch is open, and nothing is being listed.
    pub(crate) fn is_watching(&self, index: usize) -> bool {
        let reader = &self.readers[index];
        !self.is_reloading(index) && reader.mark().synced && reader.condition().phase == Phase::Watching
    }

    /// The objects of its caches, as the oracle knows objects. An object is parsed once: a change and packing make another one.
    pub(crate) fn states(&self) -> [State; 2] {
        let mut parsed = self.parsed.borrow_mut();
        [0, 1].map(|index| {
            let before = std::mem::take(&mut parsed[index]);
            let parse = |object: &Object| Seen::of(&serde_json::from_slice(&object.json()).unwrap());
            let snapshot = self.readers[index].snapshot();
            for object in snapshot.after(None) {
                let key = object.key().as_str();
                let known = before.get(key).filter(|(known, _)| known.is_same(object));
                let seen = known.map_or_else(|| Rc::new(parse(object)), |(_, seen)| seen.clone());
                parsed[index].insert(key.to_owned(), (object.clone(), seen));
            }
            parsed[index].iter().map(|(key, (_, seen))| (key.clone(), seen.clone())).collect()
        })
    }

    /// How often its reflectors were polled.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.iter().map(|polls| polls.load(Ordering::Relaxed)).sum()
    }

    /// Rises with each change, also where an informer is replaced.
    pub(crate) fn revision(&self, index: usize) -> u64 {
        self.revisions_before[index] + self.readers[index].mark().revision.0
    }

    /// The history of a cache: 0 until it notices that the cluster was restored.
    pub(crate) fn history(&self, index: usize) -> u64 {
        self.histories_before[index] + self.readers[index].mark().history
    }

    /// The version of a cache; 0 before its first list.
    pub(crate) fn position(&self, index: usize) -> u64 {
        number(&self.readers[index].snapshot().position)
    }

    /// Checks that no reflector has ended, and that none spins.
    pub(crate) fn check(&mut self, now: Instant) -> Result<(), String> {
        for (index, resource) in RESOURCES.into_iter().enumerate() {
            if self.first[index].is_none() && self.readers[index].mark().synced {
                self.first[index] = Some(self.position(index));
            }
            if self.tasks[index].is_finished() {
                return Err(format!("the reflector of {resource} has ended: it panicked"));
            }
        }
        let (since, seen) = self.polls_seen;
        if now - since >= Duration::from_secs(1) {
            let polls = [0, 1].map(|index: usize| self.polls[index].load(Ordering::Relaxed));
            for index in 0..2 {
                let per_second = (polls[index] - seen[index]) as f64 / (now - since).as_secs_f64();
                if per_second > POLLS_PER_SECOND_MAX as f64 {
                    return Err(format!(
                        "spin: the reflector of {} was polled {per_second} times in a second",
                        RESOURCES[index]
                    ));
                }
            }
            self.polls_seen = (now, polls);
        }
        Ok(())
    }
}

/// The HTTP interface of a replica, without work queues.
fn http(hub: &Hub, drain: &CancellationToken, graph_selects: bool) -> InProcess {
    let queues = QueueConfig {
        access: QueueAccess::Off,
        declared: Default::default(),
        process: 0,
        queues_max: 0,
        keys_max: 0,
        leases_max: 0,
        workers_max: 0,
        informers_max: 10,
        election: None,
        links: Default::default(),
    };
    let config = serve::Config {
        connections_max: 1,
        streams_per_connection_max: 10,
        header_bytes_max: 1000,
        url_bytes_max: 1000,
        header_timeout: Duration::from_secs(1),
        write_stall_timeout: Duration::from_secs(60),
        send_buffer_bytes: 0,
        snapshot_pages_max: 2,
        snapshot_pages_bytes_max: 1 << 20,
        snapshot_pages_ttl: Duration::from_secs(60),
        waiting_requests_max: 10,
        world_states_bytes_max: 32 << 20,
        drain_timeout: Duration::from_secs(1),
        batch_bytes_max: 64 << 10,
        allow_origins: Vec::new(),
        allow_hosts: Vec::new(),
        links: if graph_selects { links() } else { links_by_name() },
    };
    let queues = Queues::new(hub.clone(), queues, drain.clone());
    InProcess::new(hub.clone(), config, queues, drain.clone())
}

/// A position as a number; 0 for none.
pub(crate) fn position_number(position: &Resumable) -> u64 {
    number(position.written())
}

/// A version as a number.
pub(crate) fn number(version: &informerd::testing::k8s::ResourceVersion) -> u64 {
    version.to_string().parse().unwrap_or(0)
}

/// The limits of hubs and caches that do not vary.
pub(crate) fn hub_config(batch_len_max: usize, bookmark_seconds: u64) -> hub::Config {
    hub::Config {
        subscribers_max: 1000,
        batch_len_max,
        batch_bytes_max: 64 << 10,
        heartbeat_interval: Duration::from_secs(15),
        bookmark_interval: Duration::from_secs(bookmark_seconds),
        resume_wait: Duration::from_secs(10),
        // Its randomness would not come from the seed.
        drain_spread_max: Duration::ZERO,
    }
}

/// Gives a round to the streams that it concerns. A stream that has not read the events before leaves the view with
/// those.
fn send(live: &mut Live<Follower>, round: Round, lists: Lists) {
    for key in round.leaving {
        release(live, key);
    }
    for (view, told) in round.told {
        let events = match &told {
            Told::Events(events) => events.clone(),
            Told::Shared(batch) => batch.events().collect(),
            Told::Heartbeat => Vec::new(),
        };
        let mut leaving = Vec::new();
        let (groups, mut members) = live.groups_mut(view);
        for key in groups.iter().flat_map(|group| &group.members) {
            let mut inbox = members.get_mut(*key).inbox.borrow_mut();
            if !inbox.events.is_empty() && !events.is_empty() {
                leaving.push(*key);
            }
            inbox.events.extend(events.iter().map(|event| (event.clone(), lists)));
            inbox.heartbeat |= events.is_empty();
        }
        leaving.into_iter().for_each(|key| release(live, key));
    }
}

/// Takes a stream out of its view.
fn release(live: &mut Live<Follower>, key: usize) {
    let (Follower { subscriber, inbox }, place) = live.leave(key);
    let is_behind = |source: &LivePosition| {
        let mark = source.informer.reader.mark();
        mark.history == source.cursor.history && mark.revision > source.cursor.revision
    };
    let mut inbox = inbox.borrow_mut();
    inbox.holding = place.selection.form.coalesce.is_some() && place.sources.iter().any(is_behind);
    inbox.released = Some(subscriber.leave(&place));
}
