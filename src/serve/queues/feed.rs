//! Feeds a queue: follows one of its resources and adds the keys of changed objects.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::super::params::Params;
use super::super::target::{self, Target};
use super::super::{ApiError, hub_error};
use super::dependents::Dependents;
use super::shared::Shared;
use super::workers::{Changed, Workers};
use crate::hub::{
    CloseReason, Delivery, Event, EventKind, Form, Origin, Resumable, StartAt, Subscriber, Subscription,
};
use crate::k8s::{Key, damages};
use crate::queue::{Priority, Watch};

/// How long a look for informers takes at most, before the queue says what it waits for.
const FIND_WAIT: Duration = Duration::from_secs(10);

/// Time between two attempts to follow a resource.
const AGAIN: Duration = Duration::from_secs(1);

/// Time that is added to [`AGAIN`] after damage. Each attempt queues every key again, and the list that replaces the damaged objects may
/// take seconds.
const AFTER_DAMAGE: Duration = Duration::from_secs(5);

/// The task that follows one resource of a queue.
pub(super) struct Feed {
    shared: Arc<Shared>,
    queue: Arc<Workers>,
    /// The place of the resource in the queue's declaration.
    index: usize,
    /// The keys of all objects that the queue knows to exist. After RESET they tell which objects are gone: a key costs a
    /// pointer to the text that it shares with its object.
    known: HashSet<Key>,
    /// The keys of a first state that is under way.
    first: Option<HashSet<Key>>,
    /// [`damages`] when the subscription began.
    damages: u64,
    /// Whether it has passed over states of objects, which the caches had for a while, since it last knew everything.
    skipped: bool,
    /// Which keys of other resources are added in place of the resource's own.
    dependents: Vec<Dependents>,
}

impl Feed {
    pub(super) fn new(shared: Arc<Shared>, queue: Arc<Workers>, index: usize) -> Self {
        Self {
            shared,
            queue,
            index,
            known: HashSet::new(),
            first: None,
            damages: damages(),
            skipped: false,
            dependents: Vec::new(),
        }
    }

    /// Follows until the queue is deleted, or the process drains.
    pub(super) async fn run(mut self) {
        let watch = &self.queue.spec().watch[self.index];
        // The declaration was checked: each has its target.
        let targets = watch.enqueue.iter().filter_map(|enqueue| {
            let target = self.queue.spec().target(&enqueue.resource)?;
            Some(Dependents::new(target, enqueue.clone(), self.shared.config.links.clone()))
        });
        self.dependents = targets.collect();
        let (closed, drain) = (self.queue.closed().clone(), self.shared.drain.clone());
        tokio::select! {
            () = self.follow_on() => {}
            () = closed.cancelled() => {}
            () = drain.cancelled() => {}
        }
    }

    async fn follow_on(&mut self) {
        loop {
            match self.subscribe().await {
                Ok(subscriber) => {
                    let reason = self.follow(subscriber).await;
                    debug!(queue = self.queue.name(), reason = reason.as_str(), "a queue follows anew");
                    if reason == CloseReason::Removed {
                        // Its cache no longer changes, so that workers would get states of now for ever.
                        self.queue.objects(self.index).forget();
                    }
                    if self.is_damaged() {
                        self.queue.waits(self.index, "an object could not be unpacked, and is fetched again");
                        sleep(AFTER_DAMAGE).await;
                    } else {
                        self.queue.waits(self.index, "its informer has ended, and is looked for");
                    }
                    // The next stream's first state has the objects that were left of this one's.
                    if let Some(first) = self.first.take() {
                        self.known.extend(first);
                    }
                }
                Err(error) => self.queue.waits(self.index, &error.status().message),
            }
            sleep(AGAIN).await;
        }
    }

    async fn subscribe(&mut self) -> Result<Subscriber, ApiError> {
        let watched = self.queue.spec().watch[self.index].clone();
        self.damages = damages();
        let target = find(&self.shared, &watched, Instant::now() + FIND_WAIT).await?;
        let kind = &target.informers[0].spec.resource;
        if !self.queue.claim(self.index, kind) {
            let canonical = kind.canonical();
            let why = "is watched twice by this queue; one watch takes several namespaces and one selection";
            return Err(ApiError::bad_request(format!("{canonical} {why}")));
        }
        let Target { informers, selection, .. } = target;
        let subscription = Subscription {
            informers: informers.clone(),
            selection: selection.clone(),
            join: None,
            from: StartAt::Start,
            resync: None,
            timeout: None,
        };
        let subscriber =
            self.shared.hub.subscribe(subscription).map_err(|error| hub_error::not_subscribed(&error))?;
        let request = format!("/v1/queues/{}", self.queue.name());
        subscriber.follower().comes_from(Origin { request, transport: "queue", peer: String::new() });
        let wait = self.shared.hub.config().resume_wait;
        self.queue.objects(self.index).follow(informers, selection, wait, Instant::now());
        self.first = Some(HashSet::new());
        Ok(subscriber)
    }

    /// Whether an object could not be unpacked since the subscription began. Such an object may not match its selection, and may
    /// not lead to its dependents.
    fn is_damaged(&self) -> bool {
        damages() != self.damages
    }

    async fn follow(&mut self, mut subscriber: Subscriber) -> CloseReason {
        loop {
            // A subscription has batches without a pause while a first state or a backlog lasts. Others must have their turn, too.
            yield_now().await;
            let delivery = subscriber.next().await;
            if self.is_damaged() && !matches!(delivery, Delivery::Closed(_)) {
                // Its events may be wrong. The next subscription brings every object again.
                return CloseReason::Regrouped;
            }
            self.skipped |= subscriber.take_passed_over();
            match delivery {
                Delivery::Events(events) => {
                    self.take(&events).await;
                    self.catch_up(&subscriber).await;
                }
                Delivery::Shared(batches) => {
                    for batch in batches {
                        let events: Vec<_> = batch.events().collect();
                        self.take(&events).await;
                    }
                    self.catch_up(&subscriber).await;
                }
                Delivery::Replaced { source, informer } => {
                    // The difference between both brings each object in its last state.
                    self.skipped = true;
                    let wait = self.shared.hub.config().resume_wait;
                    self.queue.objects(self.index).replace(source, informer, wait, Instant::now());
                }
                Delivery::Heartbeat => self.catch_up(&subscriber).await,
                Delivery::Closed(reason) => return reason,
            }
        }
    }

    /// Adds the keys of events. While the queue is full nothing is read from the caches, and nothing is lost: the
    /// subscription goes on from its cursor.
    async fn take(&mut self, events: &[Event]) {
        let mut changed = VecDeque::with_capacity(events.len());
        // A first state and a relist bring each object in its last state, as a catch-up does.
        self.skipped |= events.iter().any(|event| event.is_amid || event.position == Resumable::No);
        for event in events {
            self.note(event, &mut changed);
        }
        let queue = self.queue.clone();
        if self.dependents.is_empty() {
            add(&queue, self.index, changed).await;
            changed = VecDeque::new();
        }
        for dependents in &mut self.dependents {
            match dependents.of(&queue, self.index, &changed).await {
                Ok(keys) => add(&queue, dependents.target(), keys).await,
                Err(why) => return queue.waits(self.index, &why),
            }
        }
        // Only now: then all its keys are queued.
        if events.iter().any(|event| event.kind == EventKind::Synced) {
            queue.synced(self.index);
        }
    }

    /// Adds the keys of objects that workers got, but of which this feed never heard: the objects are gone. Adds those of objects that
    /// workers got from an informer which was replaced. Adds the dependents whose workers may have read states that this feed has
    /// passed over.
    async fn catch_up(&mut self, subscriber: &Subscriber) {
        let Some(passed) = subscriber.passed() else { return };
        let queue = self.queue.clone();
        let (mut missed, outdated, dependents) = {
            let mut objects = queue.objects(self.index);
            let dependents =
                if std::mem::take(&mut self.skipped) { objects.passed_over() } else { Vec::new() };
            (objects.fed(passed), objects.outdated(Instant::now()), dependents)
        };
        missed.retain(|key| !self.known.contains(key));
        let again = missed.into_iter().chain(outdated).map(Changed::gone);
        add(&queue, self.index, again.collect()).await;
        for (target, key) in dependents {
            if queue.objects(target).has(&key, Instant::now()) {
                add(&queue, target, VecDeque::from([Changed::gone(key)])).await;
            }
        }
    }

    /// Which keys an event adds, and what the queue then knows.
    fn note(&mut self, event: &Event, changed: &mut VecDeque<Changed>) {
        let priority = if self.first.is_some() { Priority::Low } else { Priority::Normal };
        match event.kind {
            EventKind::Added | EventKind::Modified | EventKind::Patched => {
                let Some((key, uid)) = event.payload.identity() else { return };
                self.first.as_mut().unwrap_or(&mut self.known).insert(key.clone());
                let object = event.payload.object().cloned();
                changed.push_back(Changed { key: key.clone(), uid: uid.into(), object, priority });
            }
            EventKind::Deleted => {
                let Some((key, uid)) = event.payload.identity() else { return };
                self.first.as_mut().unwrap_or(&mut self.known).remove(key);
                changed.push_back(Changed { uid: uid.into(), ..Changed::gone(key.clone()) });
            }
            EventKind::Bookmark => {}
            EventKind::Synced => {
                if let Some(first) = self.first.take() {
                    let before = std::mem::replace(&mut self.known, first);
                    let gone = before.into_iter().filter(|key| !self.known.contains(key));
                    // In one order, so that any run can be repeated.
                    let mut gone: Vec<_> = gone.collect();
                    gone.sort_unstable();
                    changed.extend(gone.into_iter().map(Changed::gone));
                }
            }
            // The whole state follows. Every key of it is added again, and those that are missing in it are gone.
            EventKind::Reset => {
                if let Some(first) = self.first.replace(HashSet::new()) {
                    self.known.extend(first);
                }
            }
        }
    }
}

/// Adds keys of a resource, waiting for room.
async fn add(queue: &Workers, index: usize, mut changed: VecDeque<Changed>) {
    while !changed.is_empty() {
        if !queue.add_some(index, &mut changed) {
            queue.room(index).await;
        } else if !changed.is_empty() {
            yield_now().await;
        }
    }
}

/// The informers and the selection of a watch.
pub(super) async fn find(shared: &Shared, watched: &Watch, deadline: Instant) -> Result<Target, ApiError> {
    let pairs = watched.parameters().into_iter();
    let params = Params::of(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
    let max = shared.config.informers_max;
    let mut target = Target::find(&shared.hub, max, &watched.resource, &params, deadline).await?;
    let changed = target::mask(&target.informers, "changed", &params)?;
    target.selection.form = Form { changed, ..Form::default() };
    Ok(target)
}
