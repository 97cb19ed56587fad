//! One connected reader: the snapshot, then every change, pulled when the transport can take more.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, select_all};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::event::{Event, EventKind, Payload, ResetReason};
use super::live::LivePlace;
use super::metrics::Metrics;
use super::registry::SubscriberPermit;
use super::shared_batch::SharedBatch;
use super::source::{BatchBuilder, Pulled, Source, Succession, Wake};
use super::subscription::{Delivery, StartAt, Subscription};
use super::{CloseReason, Config, Informer, Selection};
use crate::k8s::{ResourceVersion, Status};

mod starting;

/// How often a stream that is never quiet looks whether the process ends: all of them share that lock.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A connected reader. Owns no queue: a cursor per informer.
pub struct Subscriber {
    sources: Vec<Source>,
    selection: Arc<Selection>,
    config: Config,
    drain: CancellationToken,
    state: State,
    /// Sources that are other informers now, of which nobody was told yet.
    replaced: Vec<usize>,
    /// The source whose turn it is.
    turn: usize,
    /// Whether the last pull left nothing.
    caught_up: bool,
    /// Whether the last pull ended before it had looked at all there is.
    unfinished: bool,
    resync: Option<Duration>,
    resync_at: Option<Instant>,
    deadline: Option<Instant>,
    /// When this stream ends because the process does.
    drain_at: Option<Instant>,
    heartbeat_at: Instant,
    /// Until when changes are gathered after the last batch, where that is asked for.
    gather_until: Instant,
    bookmark_at: Instant,
    /// Kept, as events push back most of what it waits for: it fires early, and is set anew then.
    timer: Option<Pin<Box<Sleep>>>,
    /// Kept, as to begin to wait for it costs as much as an event.
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// When to look next whether the process ends; a stream that sleeps is woken.
    look_at: Instant,
    /// Whether every change is told in order, or nothing more.
    ordered: bool,
    /// What the client is to be told at the end, where that is an error.
    refusal: Option<Status>,
    permit: SubscriberPermit,
}

enum State {
    /// Waits for the caches to be complete, and for the token's version or what changed since it.
    Starting { from: StartAt, until: Option<Instant> },
    /// To be told RESET; until then at the latest, where a cache is not as far as the client yet.
    Resetting { reason: ResetReason, until: Option<Instant> },
    /// Hands out the snapshots; SYNCED follows.
    Snapshot,
    /// Hands out changes; a bookmark follows once the head is reached.
    Resumed,
    /// Hands out changes.
    Live,
    /// A last bookmark went out.
    Ended(CloseReason),
}

// === impl Subscriber ===

impl Subscriber {
    pub(super) fn new(
        subscription: Subscription,
        config: Config,
        drain: CancellationToken,
        permit: SubscriberPermit,
    ) -> Self {
        let now = Instant::now();
        let Subscription { informers, selection, from, resync, timeout } = subscription;
        let mut selection = selection;
        // A patch needs the state that it is made from. A client that holds events from beyond its token may have
        // deleted that object, or have it in a later state, and this replica may not be as far.
        selection.form.patch &= !matches!(from, StartAt::Bookmark(_));
        let selection = Arc::new(selection);
        assert!(!informers.is_empty(), "a subscription has at least one informer");
        let ordered = matches!(from, StartAt::Ordered(_));
        let generations = permit.generations();
        let source = |informer| Source::new(informer, &selection, generations.clone(), ordered);
        let sources: Vec<_> = informers.into_iter().map(source).collect();
        let mut subscriber = Self {
            sources,
            selection,
            config,
            state: State::Starting { from, until: None },
            replaced: Vec::new(),
            turn: 0,
            caught_up: false,
            unfinished: false,
            resync,
            resync_at: None,
            deadline: timeout.map(|timeout| now + timeout),
            drain_at: None,
            heartbeat_at: now + config.heartbeat_interval,
            gather_until: now,
            bookmark_at: now + config.bookmark_interval,
            timer: None,
            drained: Box::pin(drain.clone().cancelled_owned()),
            look_at: now,
            drain,
            ordered,
            refusal: None,
            permit,
        };
        // Taken now, not at the first poll: what happens in between must not be missed.
        subscriber.start(now);
        subscriber
    }

    /// The informers, in the order of [`Event::source`].
    pub fn informers(&self) -> impl Iterator<Item = &Arc<Informer>> {
        self.sources.iter().map(|source| &source.informer)
    }

    /// The next delivery; waits until there is one. Cancel-safe: what was not returned is not lost.
    pub async fn next(&mut self) -> Delivery {
        loop {
            let now = Instant::now();
            // Seen before read: a commit in between wakes again instead of being slept through.
            for source in &mut self.sources {
                source.saw();
            }
            if let Some(reason) = self.over(now) {
                if self.caught_up && matches!(self.state, State::Live) {
                    self.state = State::Ended(reason);
                    return Delivery::Events(vec![self.bookmark(EventKind::Bookmark)]);
                }
                return Delivery::Closed(reason);
            }
            let batches = self.pull_shared(now);
            if !batches.is_empty() {
                self.heartbeat_at = now + self.config.heartbeat_interval;
                let events = batches.iter().map(|batch| batch.len() as u64).sum();
                self.permit.metrics().events.increment(events);
                return Delivery::Shared(batches);
            }
            let mut events = if self.gathers_until(now).is_some() { Vec::new() } else { self.pull(now) };
            if let Some(source) = self.replaced.pop() {
                // Nothing of the new one was pulled together with it.
                return Delivery::Replaced { source, informer: self.sources[source].informer.clone() };
            }
            if let Some(interval) = self.selection.form.coalesce
                && !events.is_empty()
            {
                self.gather_until = now + interval;
            }
            // Also behind changes, as a stream that is never quiet needs its token too; not amid a catch-up, as
            // what a client holds at a bookmark is a state that was.
            if now >= self.bookmark_at && self.caught_up && matches!(self.state, State::Live) {
                self.bookmark_at = now + self.config.bookmark_interval;
                events.push(self.bookmark(EventKind::Bookmark));
            }
            if events.is_empty() && matches!(self.state, State::Ended(_)) {
                continue;
            }
            if !events.is_empty() {
                self.heartbeat_at = now + self.config.heartbeat_interval;
                self.permit.metrics().events.increment(events.len() as u64);
                return Delivery::Events(events);
            }
            if now >= self.heartbeat_at {
                self.heartbeat_at = now + self.config.heartbeat_interval;
                return Delivery::Heartbeat;
            }
            if self.unfinished {
                // Others are let run: much was looked at, and nothing of it is selected.
                tokio::task::yield_now().await;
                continue;
            }
            self.wait().await;
        }
    }

    /// Until when changes are gathered, where the client has all there was.
    fn gathers_until(&self, now: Instant) -> Option<Instant> {
        self.selection.form.coalesce?;
        let rests = self.caught_up && matches!(self.state, State::Live) && self.replaced.is_empty();
        Some(self.gather_until).filter(|at| rests && now < *at)
    }

    /// Its place, if it has taken all that there is: from here on a live view may serve it, and
    /// [`Subscriber::advance_to`] says how far that was.
    pub fn live_place(&self) -> Option<LivePlace> {
        let now = Instant::now();
        // A stream that is due to end or to begin a resync does that first.
        let over = self.deadline.into_iter().chain(self.resync_at).any(|at| now >= at);
        let live = matches!(self.state, State::Live) && self.caught_up && self.replaced.is_empty();
        // As the process ends, each stream ends at a moment of its own; and each gathers changes at its own moments.
        if !live || over || self.drain.is_cancelled() || self.selection.form.coalesce.is_some() {
            return None;
        }
        let sources = self.sources.iter().map(Source::live_position).collect::<Option<Vec<_>>>()?;
        let (selection, ordered) = (self.selection.clone(), self.ordered);
        let leave_at = self.deadline.into_iter().chain(self.resync_at).min();
        let (heartbeat_at, bookmark_at) = (self.heartbeat_at, self.bookmark_at);
        Some(LivePlace { sources, selection, ordered, leave_at, heartbeat_at, bookmark_at })
    }

    /// What the client is to be told at the end, where that is an error.
    pub fn refusal(&self) -> Option<&Status> {
        self.refusal.as_ref()
    }

    /// Whether it is handing out much at once: an initial state, or a catch-up.
    pub fn is_in_bulk(&self) -> bool {
        matches!(self.state, State::Snapshot | State::Resetting { until: None, .. })
            || self.sources.iter().any(Source::is_catching_up)
    }

    /// Goes on from where a live view has brought it. The view gave heartbeats and bookmarks, too.
    pub fn advance_to(&mut self, place: &LivePlace) {
        for (source, position) in self.sources.iter_mut().zip(&place.sources) {
            source.advance_to(position);
        }
        // A view may be amid what a relist found, where no bookmark has its place.
        self.caught_up &= !self.sources.iter().any(|source| source.position().is_zero());
        (self.heartbeat_at, self.bookmark_at) = (place.heartbeat_at, place.bookmark_at);
    }

    /// Counts events that a live view gave it and others.
    pub fn count(&self, events: usize) {
        self.permit.metrics().events.increment(events as u64);
    }

    /// Whether its next events equal those of every other subscriber that is live and selects everything.
    fn can_share(&self) -> bool {
        matches!(self.state, State::Live) && self.resync.is_none() && self.selection.is_all()
    }

    /// Sleeps until something may be there.
    async fn wait(&mut self) {
        let mut at = self.heartbeat_at;
        let next = match &self.state {
            State::Starting { until, .. } => *until,
            // Only now: a moment that has passed and cannot be acted upon would be no sleep at all.
            State::Live => Some(self.bookmark_at),
            State::Resetting { until, .. } => *until,
            State::Snapshot | State::Resumed | State::Ended(_) => None,
        };
        let gathers_until = self.gathers_until(Instant::now());
        for other in [self.deadline, self.drain_at, self.resync_at, next, gathers_until].into_iter().flatten()
        {
            at = at.min(other);
        }
        let draining = self.drain_at.is_some();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.is_elapsed() || timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        // One informer is the common case and needs no allocation.
        let any = async {
            if gathers_until.is_some() {
                return std::future::pending().await;
            }
            match &mut *self.sources {
                [source] => woken(source).await,
                sources => {
                    drop(select_all(sources.iter_mut().map(|source| woken(source).boxed())).await);
                }
            }
        };
        // All is looked at afterwards, whichever woke; in one order, so that any run can be repeated.
        tokio::select! {
            biased;
            () = any => {}
            () = timer.as_mut() => {}
            // Once seen, the moment of this stream's end is set.
            () = self.drained.as_mut(), if !draining => self.look_at = Instant::now(),
        }
    }

    /// Why the stream ends now, if it does.
    fn over(&mut self, now: Instant) -> Option<CloseReason> {
        if let State::Ended(reason) = self.state {
            return Some(reason);
        }
        if let Some(reason) = self.sources.iter().find_map(Source::ended) {
            return Some(reason);
        }
        let looks = self.drain_at.is_some() || now >= self.look_at;
        if looks {
            self.look_at = now + LOOK_INTERVAL;
        }
        if looks && self.drain.is_cancelled() {
            // Spread, so that thousands of clients do not come back in one moment.
            let spread = self.permit.drain_spread();
            let at = *self.drain_at.get_or_insert_with(|| now + spread.mul_f64(rand::random::<f64>()));
            if now >= at {
                return Some(CloseReason::Shutdown);
            }
        }
        self.deadline.is_some_and(|deadline| now >= deadline).then_some(CloseReason::Timeout)
    }

    /// The next batches, of a subscriber that is live and selects everything of one informer.
    fn pull_shared(&mut self, now: Instant) -> Vec<Arc<SharedBatch>> {
        let mut batches = Vec::new();
        // A bookmark that is due goes behind events of its own.
        let shares = self.can_share() && now < self.bookmark_at;
        let [source] = &mut *self.sources else { return batches };
        let mut bytes = 0;
        // Small batches are those of subscribers that were here sooner; they go out together.
        while shares
            && bytes < self.config.batch_bytes_max
            && let Some(batch) = source.pull_shared(&self.config)
        {
            bytes += batch.bytes();
            batches.push(batch);
        }
        if shares {
            self.caught_up = source.is_at_head();
        }
        batches
    }

    fn pull(&mut self, now: Instant) -> Vec<Event> {
        (self.caught_up, self.unfinished) = (false, false);
        let mut batch = BatchBuilder::new(&self.config);
        if matches!(self.state, State::Starting { .. }) {
            self.succeed_idle();
        }
        if !self.replaced.is_empty() {
            return batch.events;
        }
        self.start(now);
        if let State::Resetting { reason, .. } = self.state {
            self.reset(reason, now, &mut batch);
        }
        if matches!(self.state, State::Snapshot) {
            match self.pull_snapshots(now, &mut batch) {
                Some(true) => {}
                Some(false) => {
                    self.unfinished = true;
                    return batch.events;
                }
                None => return batch.events,
            }
            let synced = self.bookmark(EventKind::Synced);
            batch.push(synced);
            self.state = State::Live;
            self.resync_at = self.resync.map(|resync| now + resync);
        }
        if matches!(self.state, State::Resumed | State::Live) {
            self.pull_live(now, &mut batch);
        }
        batch.events
    }

    /// Ends the stream with an error.
    fn end(&mut self, reason: CloseReason, status: Status) {
        self.refusal = Some(status);
        self.state = State::Ended(reason);
    }

    /// Starts over, once no cache would take the client back, or none got further in time.
    fn reset(&mut self, mut reason: ResetReason, now: Instant, batch: &mut BatchBuilder) {
        if reason != ResetReason::TokenAhead && self.sources.iter().any(Source::is_ahead) {
            let held = if let State::Resetting { until, .. } = self.state { until } else { None };
            let until = held.unwrap_or(now + self.config.resume_wait);
            if now < until {
                self.state = State::Resetting { reason, until: Some(until) };
                return;
            }
            reason = ResetReason::TokenAhead;
        }
        Metrics::reset(reason);
        self.sources.iter_mut().for_each(|source| source.begin_snapshot(now));
        batch.push(Event {
            source: 0,
            kind: EventKind::Reset,
            payload: Payload::Mark { positions: self.positions(), reason: Some(reason) },
            position: ResourceVersion::ZERO,
            is_amid: false,
        });
        self.state = State::Snapshot;
        self.resync_at = None;
    }

    /// Whether all initial states are handed out; `None` where one is gone and what follows is said.
    fn pull_snapshots(&mut self, now: Instant, batch: &mut BatchBuilder) -> Option<bool> {
        for (index, source) in self.sources.iter_mut().enumerate() {
            match source.pull_snapshot(index, batch) {
                Ok(Pulled::Done) => {}
                Ok(Pulled::More) => return Some(false),
                Err(reason) => {
                    self.lose(reason, now, batch);
                    return None;
                }
            }
        }
        Some(true)
    }

    /// Starts over, or ends where only every change in order would do.
    fn lose(&mut self, reason: ResetReason, now: Instant, batch: &mut BatchBuilder) {
        if self.ordered {
            self.end(CloseReason::Expired, Status::watch_expired());
        } else {
            self.reset(reason, now, batch);
        }
    }

    fn pull_live(&mut self, now: Instant, batch: &mut BatchBuilder) {
        if self.resync_at.is_some_and(|at| now >= at) {
            self.sources.iter_mut().for_each(Source::ask_resync);
            self.resync_at = self.resync.map(|resync| now + resync);
        }
        let count = self.sources.len();
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let source = &mut self.sources[index];
            let behind = source.is_catching_up();
            source.begin_resync(now);
            let mut pulled = source.pull_snapshot(index, batch);
            if matches!(pulled, Ok(Pulled::More)) {
                self.unfinished = true;
                return;
            }
            if pulled.is_ok() {
                pulled = source.pull_changes(index, batch);
            }
            if source.is_resync_due() && matches!(pulled, Ok(Pulled::Done)) {
                // It has all there is now.
                source.begin_resync(now);
                pulled = source.pull_snapshot(index, batch);
            }
            if !behind && source.is_catching_up() {
                self.permit.metrics().catch_ups.increment(1);
            }
            match pulled {
                Ok(Pulled::Done) => {
                    if let Some(successor) = self.sources[index].successor() {
                        // After what is at hand, which is of the old one; and the first thing next time.
                        self.turn = index;
                        if batch.events.is_empty() {
                            self.succeed(index, &successor);
                        }
                        return;
                    }
                }
                Ok(Pulled::More) => {
                    self.unfinished = true;
                    // The next one first, so that a busy resource does not starve the others.
                    self.turn = (index + 1) % count;
                    return;
                }
                Err(reason) => {
                    self.lose(reason, now, batch);
                    return;
                }
            }
        }
        self.caught_up = true;
        if matches!(self.state, State::Resumed) {
            self.state = State::Live;
            self.resync_at = self.resync.map(|resync| now + resync);
            let bookmark = self.bookmark(EventKind::Bookmark);
            batch.push(bookmark);
        }
    }

    /// Goes on with other informers where nothing was handed out yet.
    fn succeed_idle(&mut self) {
        for index in 0..self.sources.len() {
            if let Some(successor) = self.sources[index].successor() {
                self.succeed(index, &successor);
            }
        }
    }

    fn succeed(&mut self, index: usize, successor: &Arc<Informer>) {
        let begun = !matches!(self.state, State::Starting { .. });
        match self.sources[index].succeed(successor) {
            Succession::NotYet => return,
            // What differs has no order.
            Succession::Difference | Succession::StartOver if self.ordered && begun => {
                self.end(CloseReason::Expired, Status::watch_expired());
            }
            Succession::Difference => {}
            Succession::StartOver => self.state = resetting(ResetReason::Replaced),
        }
        self.permit.moved(index, successor);
        self.replaced.push(index);
        let misses = |namespace: &String| !successor.scope.covers(namespace);
        if self.selection.namespaces().iter().any(misses) {
            self.state = State::Ended(CloseReason::Removed);
        }
    }

    fn bookmark(&self, kind: EventKind) -> Event {
        let position = self.sources[0].position().clone();
        Event {
            source: 0,
            kind,
            payload: Payload::Mark { positions: self.positions(), reason: None },
            position,
            is_amid: false,
        }
    }

    fn positions(&self) -> Vec<ResourceVersion> {
        self.sources.iter().map(|source| source.position().clone()).collect()
    }
}

fn resetting(reason: ResetReason) -> State {
    State::Resetting { reason, until: None }
}

/// Sleeps until a source may have something. Its informer is there, so it does not end otherwise.
async fn woken(source: &mut Source) {
    let _ = match source.wake() {
        Wake::All(wake) => wake.changed().await,
        Wake::Scope(wake) => wake.changed().await,
    };
}
