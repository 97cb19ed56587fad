//! One queue between its feeds and its workers: the lock around its state, and who waits for what.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::config::DeclaredBy;
use super::error::QueueError;
use super::metrics::{Meter, waiting_workers};
use super::objects::Objects;
use super::shared::Shared;
use crate::k8s::{Key, Object, Resource};
use crate::queue::{
    Added, Failed, InFlight, LeaseToken, Leased, Priority, Retried, Spec, Summary, Watch, WorkQueue,
};

/// A queue that is fed, and its workers.
pub struct Workers {
    name: String,
    spec: Spec,
    by: DeclaredBy,
    state: Mutex<WorkersState>,
    /// What is known of each watched resource.
    feeds: Vec<Mutex<FeedState>>,
    objects: Vec<Mutex<Objects>>,
    /// Workers wait for keys.
    ready: Notify,
    /// Feeds wait for room.
    room: Notify,
    /// Feeds wait for the kinds of others.
    found: Notify,
    /// The keeper waits for an earlier moment than it knows of.
    sooner: Notify,
    closed: CancellationToken,
    shared: Arc<Shared>,
    waiting: AtomicUsize,
    meter: Meter,
}

struct WorkersState {
    work: WorkQueue,
    /// The moment for which the keeper waits.
    kept_until: Option<Instant>,
}

/// What is known of one watched resource of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FeedState {
    /// Its canonical name, once it was found.
    pub(super) resource: Option<String>,
    /// The same with its kind.
    pub(super) kind: Option<Resource>,
    /// Whether its first state is queued.
    pub(super) synced: bool,
    /// What it waits for, in a sentence.
    pub(super) message: Option<String>,
    /// How many feeds wait for room for a key of it: its own, and those of objects that it depends on.
    full: usize,
}

/// A feed that waits for room for a key.
struct WaitsForRoom<'a> {
    queue: &'a Workers,
    index: usize,
}

/// A key to add. The uid is empty where it is not known.
pub(super) struct Changed {
    pub(super) key: Key,
    pub(super) uid: Box<str>,
    /// Its state after the change; `None` if it is gone.
    pub(super) object: Option<Object>,
    pub(super) priority: Priority,
}

impl<'a> WaitsForRoom<'a> {
    fn begin(queue: &'a Workers, index: usize) -> Self {
        queue.feed(index).full += 1;
        Self { queue, index }
    }
}

impl Drop for WaitsForRoom<'_> {
    fn drop(&mut self) {
        self.queue.feed(self.index).full -= 1;
    }
}

impl Changed {
    /// The key of an object that is gone.
    pub(super) fn gone(key: Key) -> Self {
        Self { key, uid: "".into(), object: None, priority: Priority::Normal }
    }
}

/// Keys that were set aside, and leases, the oldest first, with the names of their resources.
pub(super) struct Listed {
    pub(super) failed: Vec<(String, Failed)>,
    pub(super) leases: Vec<(String, InFlight)>,
}

/// What a worker asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Largest number of keys.
    pub max: usize,
    /// How long it waits for the first one.
    pub wait: Duration,
    /// How long each lease lasts.
    pub length: Duration,
}

/// A key that a worker gets.
#[derive(Clone, Debug)]
pub struct Given {
    /// The lease.
    pub leased: Leased,
    /// The canonical name of its resource.
    pub resource: String,
    /// The object now; `None` if there is none.
    pub object: Option<Object>,
}

/// Keys for a worker. Unless they are handed over, they go back to the queue when this is dropped.
pub struct Taken {
    queue: Arc<Workers>,
    /// The keys.
    pub given: Vec<Given>,
}

/// Bytes of objects in one answer. The last object may exceed it.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Time after which a key comes again whose object cannot be unpacked.
const AFTER_DAMAGE: Duration = Duration::from_secs(1);

/// Keys that are put back in one turn of the lock.
const PUT_BACK_AT_ONCE: usize = 1024;

/// Keys that are added in one turn of the lock.
const ADDED_AT_ONCE: usize = 256;

/// How long the keeper sleeps where nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Counts a worker that waits until it is dropped, also because its client has left.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        waiting_workers().increment(1.0);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        waiting_workers().decrement(1.0);
    }
}

impl Taken {
    /// The worker has them now.
    pub fn hand_over(mut self) -> Vec<Given> {
        std::mem::take(&mut self.given)
    }

    /// Takes out the key at an index, whose object cannot be unpacked.
    pub(super) fn postpone(&mut self, index: usize) {
        let given = self.given.remove(index);
        self.queue.postpone(&given.leased.token);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // The last one first, so that each is at its place again before those behind it.
        for given in self.given.drain(..).rev() {
            let _ = self.queue.release(&given.leased.token);
        }
    }
}

impl Workers {
    pub(super) fn new(shared: &Arc<Shared>, name: &str, spec: Spec, by: DeclaredBy, issuer: String) -> Self {
        let rates = spec.rates(shared.config.keys_max, shared.config.leases_max);
        let state = WorkersState { work: WorkQueue::new(issuer, rates, Instant::now()), kept_until: None };
        let resources = spec.watch.len();
        Self {
            name: name.to_owned(),
            by,
            state: Mutex::new(state),
            feeds: (0..resources).map(|_| Mutex::default()).collect(),
            objects: (0..resources).map(|_| Mutex::default()).collect(),
            ready: Notify::new(),
            room: Notify::new(),
            found: Notify::new(),
            sooner: Notify::new(),
            closed: CancellationToken::new(),
            shared: shared.clone(),
            waiting: AtomicUsize::new(0),
            meter: Meter::new(name),
            spec,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is declared.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Who declared it.
    pub fn declared_by(&self) -> DeclaredBy {
        self.by
    }

    /// The next keys. Waits for the first one.
    ///
    /// # Errors
    /// [`QueueError::TooManyLeases`], [`QueueError::TooManyWorkers`], [`QueueError::Stopping`]; [`QueueError::Unknown`] if the
    /// queue is deleted meanwhile.
    pub async fn lease(self: &Arc<Self>, ask: Ask) -> Result<Taken, QueueError> {
        if self.shared.drain.is_cancelled() {
            return Err(QueueError::Stopping);
        }
        let until = Instant::now() + ask.wait;
        let mut place = None;
        loop {
            let mut ready = std::pin::pin!(self.ready.notified());
            // Register for the wake-up before looking for keys, so that none is missed in between.
            ready.as_mut().enable();
            if self.closed.is_cancelled() {
                return Err(QueueError::Unknown { name: self.name.clone() });
            }
            let taken = self.take(&ask)?;
            if !taken.given.is_empty() || Instant::now() >= until || self.shared.drain.is_cancelled() {
                return Ok(taken);
            }
            drop(taken);
            if place.is_none() {
                let max = self.shared.config.workers_max;
                let permit =
                    self.shared.places.try_acquire().map_err(|_| QueueError::TooManyWorkers { max })?;
                place = Some((permit, Waits::begin(&self.waiting)));
            }
            tokio::select! {
                () = ready => {}
                () = sleep_until(until) => {}
                () = self.closed.cancelled() => {}
                () = self.shared.drain.cancelled() => {}
            }
        }
    }

    /// The next keys that are ready now.
    fn take(self: &Arc<Self>, ask: &Ask) -> Result<Taken, QueueError> {
        let mut taken = Taken { queue: self.clone(), given: Vec::new() };
        let mut bytes = 0;
        // One by one: a key that is leased and given back because of the bytes would lose its turn.
        while taken.given.len() < ask.max && bytes < ANSWER_BYTES_MAX {
            let (leased, now) = {
                let mut state = self.lock();
                let now = Instant::now();
                self.advance(&mut state, now);
                let leased = state.work.lease(ask.length, now);
                self.changed(&mut state);
                (leased, now)
            };
            let leased = match leased {
                Ok(Some(leased)) => leased,
                Err(_) if taken.given.is_empty() => {
                    return Err(QueueError::TooManyLeases { max: self.shared.config.leases_max });
                }
                Ok(None) | Err(_) => break,
            };
            let index = usize::from(leased.resource);
            // Before the worker can read anything.
            for own in self.leading_to(index) {
                self.objects(own).leased(leased.token.slot, (index, leased.key.clone()));
            }
            let Ok(object) = self.objects(index).get(&leased.key, now) else {
                self.postpone(&leased.token);
                continue;
            };
            bytes += object.as_ref().map_or(0, |object| object.json_len());
            let resource = self.feed(index).resource.clone().unwrap_or_default();
            taken.given.push(Given { leased, resource, object });
        }
        taken.given.iter().for_each(|given| self.meter.leased(given.leased.waited));
        Ok(taken)
    }

    /// Lets a lease run out this long from now.
    ///
    /// # Errors
    /// [`QueueError::NotHeld`].
    pub fn extend(&self, token: &LeaseToken, length: Duration) -> Result<(), QueueError> {
        let mut state = self.lock();
        state.work.extend(token, length, Instant::now())?;
        self.changed(&mut state);
        Ok(())
    }

    /// Takes a worker's word that a key is reconciled.
    ///
    /// # Errors
    /// [`QueueError::NotHeld`].
    pub fn done(&self, token: &LeaseToken, after: Option<Duration>) -> Result<(), QueueError> {
        let mut state = self.lock();
        let worked = state.work.done(token, after, Instant::now())?;
        self.meter.answered(worked);
        if after.is_some() {
            self.meter.retried();
        }
        self.changed(&mut state);
        drop(state);
        for (own, watch) in self.spec.watch.iter().enumerate() {
            if !watch.enqueue.is_empty() {
                self.objects(own).reconciled(token.slot);
            }
        }
        Ok(())
    }

    /// The watches whose changes lead to keys of the resource at `index`.
    fn leading_to(&self, index: usize) -> impl Iterator<Item = usize> {
        let leads = move |watch: &Watch| {
            watch.enqueue.iter().any(|enqueue| self.spec.target(&enqueue.resource) == Some(index))
        };
        self.spec.watch.iter().enumerate().filter(move |(_, watch)| leads(watch)).map(|(own, _)| own)
    }

    /// Takes a worker's word that it failed. Returns what follows.
    ///
    /// # Errors
    /// [`QueueError::NotHeld`].
    pub fn retry(&self, token: &LeaseToken, error: &str) -> Result<Retried, QueueError> {
        let mut state = self.lock();
        let (retried, worked) = state.work.retry(token, error, Instant::now())?;
        self.meter.answered(worked);
        if matches!(retried, Retried::After(_)) {
            self.meter.retried();
        }
        self.changed(&mut state);
        Ok(retried)
    }

    /// Takes a key back as it was given.
    ///
    /// # Errors
    /// [`QueueError::NotHeld`].
    pub fn release(&self, token: &LeaseToken) -> Result<(), QueueError> {
        let mut state = self.lock();
        state.work.release(token, Instant::now())?;
        self.changed(&mut state);
        Ok(())
    }

    /// Gives back a key whose object cannot be unpacked, after a delay. At its old place it would be leased next again, and keep other keys
    /// from workers.
    fn postpone(&self, token: &LeaseToken) {
        let mut state = self.lock();
        // The lease is held, as no worker got its token. The key's failed attempts count anew.
        let _ = state.work.done(token, Some(AFTER_DAMAGE), Instant::now());
        self.changed(&mut state);
    }

    /// Queues a key that was set aside; returns whether it was.
    pub fn put_back(&self, resource: &str, key: &Key) -> bool {
        let Some(index) = (0..self.feeds.len()).find(|index| self.is_called(*index, resource)) else {
            return false;
        };
        let mut state = self.lock();
        let was = state.work.put_back(index_of(index), key, Instant::now());
        self.changed(&mut state);
        was
    }

    /// Queues all keys that were set aside; returns how many.
    pub fn put_back_all(&self) -> usize {
        let mut count = 0;
        loop {
            let mut state = self.lock();
            let some = state.work.put_back_all(PUT_BACK_AT_ONCE, Instant::now());
            self.changed(&mut state);
            count += some;
            if some < PUT_BACK_AT_ONCE {
                return count;
            }
        }
    }

    /// The queue in figures.
    pub fn summary(&self) -> Summary {
        self.lock().work.summary(Instant::now())
    }

    /// Workers that wait for a key.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether the first state of each resource is queued.
    pub fn is_synced(&self) -> bool {
        (0..self.feeds.len()).all(|index| self.feed(index).synced)
    }

    /// Keys that were set aside, and leases, the oldest first, with the names of their resources.
    pub(super) fn listed(&self, len_max: usize) -> Listed {
        let now = Instant::now();
        let (failed, leases) = {
            let state = self.lock();
            (state.work.failed(len_max, now), state.work.in_flight(len_max, now))
        };
        let name = |resource: u16| self.feed(resource.into()).resource.clone().unwrap_or_default();
        let failed = failed.into_iter().map(|one| (name(one.resource), one)).collect();
        let leases = leases.into_iter().map(|one| (name(one.resource), one)).collect();
        Listed { failed, leases }
    }

    /// What is known of each watched resource.
    pub(super) fn feeds(&self) -> Vec<FeedState> {
        (0..self.feeds.len()).map(|index| self.feed(index).clone()).collect()
    }

    /// Shows in the metrics what grows with time.
    pub(super) fn observe(&self) {
        self.meter.show(&self.summary());
    }

    /// Cancelled once the queue is deleted.
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Ends it: workers that wait are answered, and feeds stop.
    pub(super) fn close(&self) {
        self.closed.cancel();
        self.meter.show(&Summary::default());
    }

    /// Runs until the queue is deleted: queues what is due, and takes back leases that run out.
    pub(super) async fn keep(self: Arc<Self>) {
        loop {
            let (more, until) = {
                let mut state = self.lock();
                let more = self.advance(&mut state, Instant::now());
                state.kept_until = state.work.next_at();
                (more, state.kept_until)
            };
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = self.sooner.notified() => {}
                () = sleep_until(until.unwrap_or_else(|| Instant::now() + IDLE)) => {}
                () = self.closed.cancelled() => return,
                () = self.shared.drain.cancelled() => return,
            }
        }
    }

    // === for feeds ===

    /// Adds keys from the front until there is no room, but at most as many as one turn of the lock allows. Returns whether there is room
    /// for the next one.
    pub(super) fn add_some(&self, index: usize, changed: &mut VecDeque<Changed>) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        let (mut added, mut has_room) = (0, true);
        for _ in 0..ADDED_AT_ONCE {
            let Some(next) = changed.front() else { break };
            match state.work.add((index_of(index), &next.key), &next.uid, next.priority, now) {
                Ok(Added::Queued | Added::Afterwards) => added += 1,
                Ok(Added::Already | Added::AlreadyAfterwards) => {}
                Err(_) => {
                    has_room = false;
                    break;
                }
            }
            changed.pop_front();
        }
        self.meter.added(added);
        self.changed(&mut state);
        has_room
    }

    /// Waits until a key of a resource can be added.
    pub(super) async fn room(&self, index: usize) {
        super::super::metrics::limit_hit("queue_keys_max");
        let _waits = WaitsForRoom::begin(self, index);
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            if self.lock().work.has_room() {
                return;
            }
            room.await;
        }
    }

    /// What a resource waits for, in a sentence. Where the queue is full, keys that are set aside take room until somebody puts them back,
    /// and nothing else tells why no key comes. `failed` is their number.
    pub(super) fn message(&self, feed: &FeedState, failed: usize) -> Option<String> {
        if feed.full == 0 {
            return feed.message.clone();
        }
        let max = self.shared.config.keys_max;
        Some(format!("the queue is full: it has {max} keys, of which {failed} have failed"))
    }

    /// The resource of a watch. Waits until it is found.
    pub(super) async fn kind(&self, index: usize) -> Resource {
        loop {
            let mut found = std::pin::pin!(self.found.notified());
            found.as_mut().enable();
            let kind = self.feed(index).kind.clone();
            match kind {
                Some(kind) => return kind,
                None => found.await,
            }
        }
    }

    /// Notes what a resource is called; `false` if another watch of the queue has it.
    pub(super) fn claim(&self, index: usize, kind: &Resource) -> bool {
        let canonical = kind.canonical();
        let others = (0..self.feeds.len()).filter(|other| *other != index);
        let mut taken = others.map(|other| self.feed(other).resource.clone());
        if taken.any(|other| other.as_deref() == Some(&*canonical)) {
            return false;
        }
        let mut feed = self.feed(index);
        (feed.resource, feed.kind, feed.message) = (Some(canonical), Some(kind.clone()), None);
        self.found.notify_waiters();
        true
    }

    /// Notes that the first state of a resource is queued.
    pub(super) fn synced(&self, index: usize) {
        let mut feed = self.feed(index);
        (feed.synced, feed.message) = (true, None);
    }

    /// Notes what a resource waits for.
    pub(super) fn waits(&self, index: usize, message: &str) {
        self.feed(index).message = Some(message.to_owned());
    }

    /// The objects of a resource.
    pub(super) fn objects(&self, index: usize) -> MutexGuard<'_, Objects> {
        self.objects[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn feed(&self, index: usize) -> MutexGuard<'_, FeedState> {
        self.feeds[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a resource has a name: the canonical one, or the one it was declared with.
    fn is_called(&self, index: usize, name: &str) -> bool {
        self.spec.watch[index].resource == name || self.feed(index).resource.as_deref() == Some(name)
    }

    fn lock(&self) -> MutexGuard<'_, WorkersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues what is due. Returns whether more is.
    fn advance(&self, state: &mut WorkersState, now: Instant) -> bool {
        let advanced = state.work.advance(now);
        self.meter.expired(advanced.expired);
        if advanced.due + advanced.expired > 0 {
            self.changed(state);
        }
        advanced.more
    }

    /// Wakes those whom a step concerns.
    fn changed(&self, state: &mut WorkersState) {
        let depth = state.work.depth();
        self.meter.depth(depth);
        // One worker: if it leaves keys behind, it wakes the next one.
        if depth > 0 {
            self.ready.notify_one();
        }
        if state.work.has_room() {
            self.room.notify_waiters();
        }
        let next = state.work.next_at();
        if next.is_some_and(|next| state.kept_until.is_none_or(|kept| next < kept)) {
            state.kept_until = next;
            self.sooner.notify_one();
        }
    }
}

/// The number of a watch of a queue.
fn index_of(index: usize) -> u16 {
    u16::try_from(index).expect("a queue has at most WATCHES_MAX resources")
}
