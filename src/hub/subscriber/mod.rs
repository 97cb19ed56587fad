//! A subscriber: the snapshot, then every change, pulled when the transport can take more.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, select_all};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::event::{Event, EventKind, Payload, ResetReason};
use super::follower::{Follower, Stage};
use super::live_place::LivePlace;
use super::metrics::Metrics;
use super::registry::SubscriberPermit;
use super::shared_batch::SharedBatch;
use super::source::{BatchBuilder, Pulled, Source, Succession, Wake};
use super::subscription::{Delivery, StartAt, Subscription};
use super::{CloseReason, Config, Informer, InformerId, Selection};
use crate::cache::Cursor;
use crate::k8s::{ResourceVersion, Status};

mod starting;

/// How often a stream that is never quiet checks whether the process ends, as all streams share that lock.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A connected client. It has no queue, only a cursor for each informer.
pub struct Subscriber {
    sources: Vec<Source>,
    selection: Arc<Selection>,
    config: Config,
    drain: CancellationToken,
    state: State,
    /// Sources whose informer was replaced, and which the transport has not been told of yet.
    replaced: Vec<usize>,
    /// The source that is pulled first.
    turn: usize,
    /// Whether the last pull took everything.
    caught_up: bool,
    /// Whether the last pull stopped before it had read everything.
    unfinished: bool,
    resync: Option<Duration>,
    resync_at: Option<Instant>,
    deadline: Option<Instant>,
    /// When this stream ends because the process does.
    drain_at: Option<Instant>,
    heartbeat_at: Instant,
    /// Until when changes are gathered after the last batch, where that is asked for.
    gather_until: Instant,
    /// Until when no live view is tried.
    alone_until: Instant,
    bookmark_at: Instant,
    /// Reused: events push back most of its moments, so it may fire early, and is then set again.
    timer: Option<Pin<Box<Sleep>>>,
    /// Reused, as starting to wait for it costs as much as an event.
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// When to check next whether the process ends. A waiting stream is woken.
    look_at: Instant,
    /// Whether the client must get every change in order, or the stream ends.
    ordered: bool,
    /// The error with which the stream ends, if any.
    refusal: Option<Status>,
    permit: SubscriberPermit,
}

enum State {
    /// Waits for the caches to be complete, and for the token's version or the changes since.
    Starting { from: StartAt, until: Option<Instant> },
    /// Sends RESET, once no cache is behind the client, at `until` at the latest.
    Resetting { reason: ResetReason, until: Option<Instant> },
    /// Sends the snapshots; SYNCED follows.
    Snapshot,
    /// Sends changes; a bookmark follows at the head.
    Resumed,
    /// Sends changes.
    Live,
    /// The last bookmark was sent.
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
            alone_until: now,
            bookmark_at: now + config.bookmark_interval,
            timer: None,
            drained: Box::pin(drain.clone().cancelled_owned()),
            look_at: now,
            drain,
            ordered,
            refusal: None,
            permit,
        };
        // Started now, not at the first poll, so that nothing in between is missed.
        subscriber.start(now);
        subscriber
    }

    /// The informers, in the order of [`Event::source`].
    pub fn informers(&self) -> impl Iterator<Item = &Arc<Informer>> {
        self.sources.iter().map(|source| &source.informer)
    }

    /// Waits for the next delivery. Cancel-safe: nothing is lost.
    pub async fn next(&mut self) -> Delivery {
        loop {
            let now = Instant::now();
            self.note(now);
            // Marked as seen before reading, so that a commit in between wakes it again.
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
                self.permit.follower().sent(events as usize, 0);
                return Delivery::Shared(batches);
            }
            let mut events = if self.gathers_until(now).is_some() { Vec::new() } else { self.pull(now) };
            if let Some(source) = self.replaced.pop() {
                // No events of the new informer were pulled yet.
                return Delivery::Replaced { source, informer: self.sources[source].informer.clone() };
            }
            if let Some(interval) = self.selection.form.coalesce
                && !events.is_empty()
            {
                self.gather_until = now + interval;
            }
            // Also after changes, as a stream that is never quiet needs its token, too. Not in the middle of a catch-up, as at
            // a bookmark the client must hold a state that the cache had.
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
                self.permit.follower().sent(events.len(), 0);
                return Delivery::Events(events);
            }
            if now >= self.heartbeat_at {
                self.heartbeat_at = now + self.config.heartbeat_interval;
                return Delivery::Heartbeat;
            }
            if self.unfinished {
                // Much was read and nothing of it matched: let other tasks run.
                tokio::task::yield_now().await;
                continue;
            }
            self.wait().await;
        }
    }

    /// The subscriber in figures.
    pub fn follower(&self) -> &Arc<Follower> {
        self.permit.follower()
    }

    /// Notes how it is served, for the operator.
    fn note(&self, now: Instant) {
        let stage = match self.state {
            State::Starting { .. } | State::Resetting { .. } => Stage::Starting,
            State::Snapshot => Stage::Snapshot,
            State::Resumed | State::Live if self.sources.iter().any(Source::is_catching_up) => {
                Stage::CatchingUp
            }
            State::Resumed | State::Live | State::Ended(_) => Stage::Following,
        };
        let behind = match stage {
            Stage::Starting | Stage::Snapshot => 0,
            Stage::CatchingUp | Stage::Following | Stage::Live => {
                self.sources.iter().map(Source::behind).sum()
            }
        };
        self.permit.follower().reached(stage, behind, now);
    }

    /// Until when changes are gathered, where the client has all there was.
    fn gathers_until(&self, now: Instant) -> Option<Instant> {
        self.selection.form.coalesce?;
        let rests = self.caught_up && matches!(self.state, State::Live) && self.replaced.is_empty();
        Some(self.gather_until).filter(|at| rests && now < *at)
    }

    /// Its place, if it has caught up. From there a live view may serve it; [`Subscriber::advance_to`] then moves it to where the
    /// view has brought it.
    pub fn live_place(&self) -> Option<LivePlace> {
        let now = Instant::now();
        // A stream whose end or resync is due does that first.
        let over = self.deadline.into_iter().chain(self.resync_at).any(|at| now >= at);
        let live = matches!(self.state, State::Live) && self.caught_up && self.replaced.is_empty();
        let rests = now < self.alone_until;
        // At shutdown each stream ends at a moment of its own.
        if !live || over || rests || self.drain.is_cancelled() {
            return None;
        }
        let sources = self.sources.iter().map(Source::live_position).collect::<Option<Vec<_>>>()?;
        let gathers = self.selection.form.coalesce.is_some();
        if gathers && sources.iter().any(|source| source.holds_beyond.is_some()) {
            // Its client may hold states from in between, whose deletions the others need not be told.
            return None;
        }
        let (selection, ordered) = (self.selection.clone(), self.ordered);
        let leave_at = self.deadline.into_iter().chain(self.resync_at).min();
        let (heartbeat_at, bookmark_at) = (self.heartbeat_at, self.bookmark_at);
        let gather_until = self.gather_until;
        Some(LivePlace { sources, selection, ordered, leave_at, heartbeat_at, bookmark_at, gather_until })
    }

    /// The cursor in the cache of each informer up to which all changes were delivered. `None` amid a first state or a
    /// catch-up, where there is no such place.
    pub fn passed(&self) -> Option<Vec<(InformerId, Cursor)>> {
        let passed = |source: &Source| Some((source.informer.id(), source.passed()?));
        let live = matches!(self.state, State::Live) && self.replaced.is_empty();
        live.then(|| self.sources.iter().map(passed).collect())?
    }

    /// The error with which the stream ends, if any.
    pub fn refusal(&self) -> Option<&Status> {
        self.refusal.as_ref()
    }

    /// Whether it has much to send at once: a first state, or a catch-up.
    pub fn is_in_bulk(&self) -> bool {
        matches!(self.state, State::Snapshot | State::Resetting { until: None, .. })
            || self.sources.iter().any(Source::is_catching_up)
    }

    /// Moves to the place to which a live view has brought it. The view has sent heartbeats and bookmarks, too.
    pub fn advance_to(&mut self, place: &LivePlace) {
        for (source, position) in self.sources.iter_mut().zip(&place.sources) {
            source.advance_to(position);
        }
        // A view may be amid what a relist found, where no bookmark has its place.
        self.caught_up &= !self.sources.iter().any(|source| source.position().is_zero());
        (self.heartbeat_at, self.bookmark_at) = (place.heartbeat_at, place.bookmark_at);
        self.gather_until = place.gather_until;
    }

    /// Gathers changes up to the moment of a view that has not taken it in, and then takes them when the view tells them.
    pub fn rest_until(&mut self, at: Instant) {
        self.alone_until = at;
        self.gather_until = self.gather_until.max(at);
    }

    /// Counts events that a live view sent.
    pub fn count(&self, events: usize) {
        self.permit.metrics().events.increment(events as u64);
    }

    /// Whether its next events equal those of every other subscriber that is live and selects everything.
    fn can_share(&self) -> bool {
        matches!(self.state, State::Live) && self.resync.is_none() && self.selection.is_all()
    }

    /// Waits until there may be a delivery.
    async fn wait(&mut self) {
        let mut at = self.heartbeat_at;
        let next = match &self.state {
            State::Starting { until, .. } => *until,
            // Only in this state, as waiting for a past moment that has no effect would spin.
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
        // The common case of one informer needs no allocation.
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
        // Afterwards everything is checked, whatever has woken it. A fixed order, so that any run can be repeated.
        tokio::select! {
            biased;
            () = any => {}
            () = timer.as_mut() => {}
            // After this, the moment of this stream's end is set.
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
            // Spread, so that thousands of clients do not reconnect at once.
            let spread = self.permit.drain_spread();
            let at = *self.drain_at.get_or_insert_with(|| now + spread.mul_f64(rand::random::<f64>()));
            if now >= at {
                return Some(CloseReason::Shutdown);
            }
        }
        self.deadline.is_some_and(|deadline| now >= deadline).then_some(CloseReason::Timeout)
    }

    /// Pulls the next shared batches, for a subscriber that is live and selects everything of one informer.
    fn pull_shared(&mut self, now: Instant) -> Vec<Arc<SharedBatch>> {
        let mut batches = Vec::new();
        // A due bookmark is sent after events of its own.
        let shares = self.can_share() && now < self.bookmark_at;
        let [source] = &mut *self.sources else { return batches };
        let mut bytes = 0;
        // Batches that were made for earlier subscribers may be small; they are sent together.
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

    /// Starts over, once no cache is behind the client, or the time to wait for that is over.
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

    /// Whether all first states are sent; `None` if one was lost, so that the stream starts over or ends.
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

    /// Starts over, or ends if the client must get every change in order.
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
                // The client has caught up now.
                source.begin_resync(now);
                pulled = source.pull_snapshot(index, batch);
            }
            if !behind && source.is_catching_up() {
                self.permit.metrics().catch_ups.increment(1);
            }
            match pulled {
                Ok(Pulled::Done) => {
                    if let Some(successor) = self.sources[index].successor() {
                        // Only after the pulled events, which are of the old informer; then it comes first.
                        self.turn = index;
                        if batch.events.is_empty() {
                            self.succeed(index, &successor);
                        }
                        return;
                    }
                }
                Ok(Pulled::More) => {
                    self.unfinished = true;
                    // The next source comes first, so that a busy one does not starve the others.
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

    /// Continues with replacing informers before anything was sent.
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
            // The difference has no order.
            Succession::Difference | Succession::StartOver if self.ordered && begun => {
                self.end(CloseReason::Expired, Status::watch_expired());
            }
            Succession::Difference => {}
            Succession::StartOver => self.state = resetting(ResetReason::Replaced),
        }
        self.permit.moved(index, successor);
        self.replaced.push(index);
        let misses = |namespace: &String| !successor.spec.scope.covers(namespace);
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

/// Waits until a source may have events. The source holds its informer, so the channel does not close.
async fn woken(source: &mut Source) {
    let _ = match source.wake() {
        Wake::All(wake) => wake.changed().await,
        Wake::Scope(wake) => wake.changed().await,
    };
}
