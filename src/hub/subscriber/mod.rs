//! A subscriber: the snapshot, then every change, pulled when the transport can take more.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, SelectAll, select, select_all};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::event::{Event, EventKind, Payload, ResetReason};
use super::follower::{Follower, Stage};
use super::join::JoinReader;
use super::live_place::LivePlace;
use super::registry::{Hub, SubscriberPermit};
use super::source::Source;
use super::subscription::{Delivery, StartAt, Subscription};
use super::{CloseReason, Form, Informer, InformerId, Resumable, Selection, SubscribeError};
use crate::cache::{Cursor, Mark};
use crate::k8s::Status;

mod joining;
mod live_subscriber;
mod pulling;
mod starting;

pub use live_subscriber::LiveSubscriber;

/// How often a stream that is never quiet checks whether the process ends, as all streams share that lock.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A connected client. It has no queue, only a cursor for each informer.
pub struct Subscriber {
    sources: Box<[Source]>,
    /// Wakes it where something of its own changed in a part of a cache: one wake-up for all that it follows.
    wake: Arc<Notify>,
    /// The related objects, where they are asked for.
    join: Option<Box<JoinReader>>,
    selection: Arc<Selection>,
    state: SubscriberState,
    /// Whether an informer was replaced by one with other content, so that the client must not keep the token of its last bookmark.
    voids_token: bool,
    /// The source that is pulled first.
    turn: u32,
    /// Whether the last pull took everything.
    caught_up: bool,
    /// Whether the last pull stopped before it had read everything.
    unfinished: bool,
    resync: Option<Box<Resync>>,
    /// When the stream ends, by its timeout or by a drain.
    deadline: Option<Instant>,
    /// Why it ends then.
    deadline_reason: CloseReason,
    /// Whether it has noticed that the process ends.
    is_draining: bool,
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
    refusal: Option<Box<Status>>,
    permit: SubscriberPermit,
}

enum SubscriberState {
    /// Waits for the caches to be complete, and for the token's version or the changes since. `histories` is what
    /// [`Subscriber::histories`] was when the client came.
    Starting { from: Box<StartAt>, until: Option<Instant>, histories: u64 },
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

/// The commits that a subscriber waits for. The common cases need no allocation: parts of any number of informers, and all of one.
enum Commits<'a> {
    /// Its wake-up alone tells it what it follows.
    WakeUp,
    One(&'a mut watch::Receiver<Mark>),
    /// Those of several informers, beside its wake-up.
    Several(SelectAll<BoxFuture<'a, ()>>),
}

/// The client gets the whole state again from time to time.
struct Resync {
    interval: Duration,
    /// The next time. `None` until the first state is sent.
    at: Option<Instant>,
}

// === impl Hub ===

impl Hub {
    /// Begins a subscription. Its position is taken now, not at the first poll, so that nothing in between is missed.
    ///
    /// # Errors
    /// [`SubscribeError::Full`].
    pub fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, SubscribeError> {
        let permit = self.permit(subscription.informers.clone())?;
        Ok(Subscriber::new(subscription, permit))
    }
}

// === impl Subscriber ===

impl Subscriber {
    pub(super) fn new(subscription: Subscription, permit: SubscriberPermit) -> Self {
        let now = Instant::now();
        let Subscription { informers, mut selection, join, from, resync, timeout } = subscription;
        // A patch needs the state that it is made from. A client that holds events from beyond its token may have
        // deleted that object, or have it in a later state, and this replica may not be as far. One that begins without objects has none.
        selection.form.patch &= !matches!(from, StartAt::Bookmark(_) | StartAt::Now);
        let wake = Arc::<Notify>::default();
        let join = join.map(|join| {
            let whole = Form { coalesce: selection.form.coalesce, ..Form::default() };
            Box::new(JoinReader::new(join, std::mem::replace(&mut selection.form, whole), wake.clone()))
        });
        let selection = Arc::new(selection);
        assert!(!informers.is_empty(), "a subscription has at least one informer");
        let ordered = matches!(from, StartAt::Ordered(_));
        let generations = permit.generations();
        let source = |informer| Source::new(informer, &selection, generations.clone(), &wake, ordered);
        let sources = informers.into_iter().map(source).collect();
        let state = SubscriberState::Starting { from: Box::new(from), until: None, histories: 0 };
        let deadline = timeout.map(|timeout| now + timeout);
        let idle = Self::idle(selection, sources, wake, state, permit, now);
        let resync = resync.map(|interval| Box::new(Resync { interval, at: None }));
        let mut subscriber = Self { join, ordered, resync, deadline, ..idle };
        let known = subscriber.histories();
        if let SubscriberState::Starting { histories, .. } = &mut subscriber.state {
            *histories = known;
        }
        // Started now, not at the first poll, so that nothing in between is missed.
        subscriber.start(now);
        subscriber
    }

    /// A subscriber without a join, a resync and an end. Its heartbeats and bookmarks are due from `now` on.
    fn idle(
        selection: Arc<Selection>,
        sources: Box<[Source]>,
        wake: Arc<Notify>,
        state: SubscriberState,
        permit: SubscriberPermit,
        now: Instant,
    ) -> Self {
        let config = permit.config();
        Self {
            sources,
            wake,
            join: None,
            heartbeat_at: now + config.heartbeat_interval,
            bookmark_at: now + config.bookmark_interval,
            selection,
            state,
            voids_token: false,
            turn: 0,
            caught_up: false,
            unfinished: false,
            resync: None,
            deadline: None,
            deadline_reason: CloseReason::Timeout,
            is_draining: false,
            gather_until: now,
            alone_until: now,
            timer: None,
            drained: Box::pin(permit.drain().cancelled_owned()),
            look_at: now,
            ordered: false,
            refusal: None,
            permit,
        }
    }

    /// The informers, in the order of [`Event::source`]: those of the subscription, then those of its join.
    pub fn informers(&self) -> impl Iterator<Item = &Arc<Informer>> {
        let related = self.join.iter().flat_map(|join| join.positions().map(|(informer, _)| informer));
        self.sources.iter().map(|source| &source.informer).chain(related)
    }

    /// Waits for the next delivery. Cancel-safe: nothing is lost.
    pub async fn next(&mut self) -> Delivery {
        loop {
            let now = Instant::now();
            if let Some(delivery) = self.delivery(now) {
                return delivery;
            }
            if self.unfinished {
                // Much was read and nothing of it matched: let other tasks run.
                tokio::task::yield_now().await;
            } else {
                self.wait(now).await;
            }
        }
    }

    /// The next delivery, if there is one now. A function of its own, as its variables would be part of each stream that waits.
    fn delivery(&mut self, now: Instant) -> Option<Delivery> {
        self.note(now);
        // Marked as seen before reading, so that a commit in between wakes it again.
        let _ = self.wake.notified().now_or_never();
        for source in &mut self.sources {
            source.saw();
        }
        if let Some(join) = &mut self.join {
            join.saw();
        }
        if let Some(reason) = self.over(now) {
            if self.caught_up && matches!(self.state, SubscriberState::Live) {
                self.state = SubscriberState::Ended(reason);
                return Some(Delivery::Events(vec![self.bookmark(EventKind::Bookmark)]));
            }
            return Some(Delivery::Closed(reason));
        }
        let batches = self.pull_shared(now);
        if !batches.is_empty() {
            self.heartbeat_at = now + self.permit.config().heartbeat_interval;
            let events = batches.iter().map(|batch| batch.len() as u64).sum();
            self.permit.metrics().events.increment(events);
            self.permit.follower().sent(events as usize, 0);
            return Some(Delivery::Shared(batches));
        }
        let mut events = if self.gathers_until(now).is_some() { Vec::new() } else { self.pull(now) };
        if let Some(source) = self.replaced() {
            self.sources[source].is_replaced = false;
            // No events of the new informer were pulled yet.
            return Some(Delivery::Replaced { source, informer: self.sources[source].informer.clone() });
        }
        if let Some(interval) = self.selection.form.coalesce
            && !events.is_empty()
        {
            self.gather_until = now + interval;
        }
        // Also after changes, as a stream that is never quiet needs its token, too. Not in the middle of a catch-up, as at
        // a bookmark the client must hold a state that the cache had.
        let is_due = self.owes_position(&events) || now >= self.bookmark_at;
        if is_due && self.caught_up && matches!(self.state, SubscriberState::Live) {
            self.sources.iter_mut().for_each(|source| source.lacks_position = false);
            self.bookmark_at = now + self.permit.config().bookmark_interval;
            events.push(self.bookmark(EventKind::Bookmark));
        }
        if let SubscriberState::Ended(reason) = self.state
            && events.is_empty()
        {
            return Some(Delivery::Closed(reason));
        }
        if !events.is_empty() {
            self.heartbeat_at = now + self.permit.config().heartbeat_interval;
            self.permit.metrics().events.increment(events.len() as u64);
            self.permit.follower().sent(events.len(), 0);
            return Some(Delivery::Events(events));
        }
        if now >= self.heartbeat_at {
            self.heartbeat_at = now + self.permit.config().heartbeat_interval;
            return Some(Delivery::Heartbeat);
        }
        None
    }

    /// The subscriber in figures.
    pub fn follower(&self) -> &Arc<Follower> {
        self.permit.follower()
    }

    /// A source whose informer was replaced, which the transport has not been told of yet.
    fn replaced(&self) -> Option<usize> {
        self.sources.iter().position(|source| source.is_replaced)
    }

    fn resync_at(&self) -> Option<Instant> {
        self.resync.as_ref().and_then(|resync| resync.at)
    }

    /// Sets the moment of the next resync, as of `now`.
    fn set_resync(&mut self, now: Instant) {
        if let Some(resync) = &mut self.resync {
            resync.at = Some(now + resync.interval);
        }
    }

    /// Notes how it is served, for the operator.
    fn note(&self, now: Instant) {
        let stage = match self.state {
            SubscriberState::Starting { .. } | SubscriberState::Resetting { .. } => Stage::Starting,
            SubscriberState::Snapshot => Stage::Snapshot,
            SubscriberState::Resumed | SubscriberState::Live
                if self.sources.iter().any(Source::is_catching_up) =>
            {
                Stage::CatchingUp
            }
            SubscriberState::Resumed | SubscriberState::Live | SubscriberState::Ended(_) => Stage::Following,
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
        let rests =
            self.caught_up && matches!(self.state, SubscriberState::Live) && self.replaced().is_none();
        Some(self.gather_until).filter(|at| rests && now < *at)
    }

    /// Its place, if it has caught up. From there a live view may serve it, as the member that [`Subscriber::into_live`] makes of it.
    pub fn live_place(&self) -> Option<LivePlace> {
        let now = Instant::now();
        // A stream whose end or resync is due does that first.
        let over = self.deadline.into_iter().chain(self.resync_at()).any(|at| now >= at);
        let live = matches!(self.state, SubscriberState::Live) && self.caught_up && self.replaced().is_none();
        let rests = now < self.alone_until;
        // At shutdown each stream ends at a moment of its own.
        if !live || over || rests || self.permit.is_draining() || self.join.is_some() {
            return None;
        }
        // A view would evaluate it for many changes in one go, and others wait for that.
        if self.selection.stays_out() {
            return None;
        }
        let sources = self.sources.iter().map(Source::live_position).collect::<Option<Vec<_>>>()?;
        let gathers = self.selection.form.coalesce.is_some();
        if gathers && sources.iter().any(|source| source.holds_beyond.is_some()) {
            // Its client may hold states from in between, whose deletions the others need not be told.
            return None;
        }
        let (selection, ordered) = (self.selection.clone(), self.ordered);
        let leave_at = self.deadline.into_iter().chain(self.resync_at()).min();
        let (heartbeat_at, bookmark_at) = (self.heartbeat_at, self.bookmark_at);
        let gather_until = self.gather_until;
        Some(LivePlace { sources, selection, ordered, leave_at, heartbeat_at, bookmark_at, gather_until })
    }

    /// The cursor in the cache of each informer up to which all changes were delivered. `None` amid a first state or a
    /// catch-up, where there is no such place.
    pub fn passed(&self) -> Option<Vec<(InformerId, Cursor)>> {
        let passed = |source: &Source| Some((source.informer.id(), source.passed()?));
        let live = matches!(self.state, SubscriberState::Live) && self.replaced().is_none();
        live.then(|| self.sources.iter().map(passed).collect())?
    }

    /// Whether it has read from behind the journal since this was last asked. Its events then are of the last states alone, and there may
    /// be none: an object that was created and deleted meanwhile is not told.
    pub fn take_passed_over(&mut self) -> bool {
        let taken = self.sources.iter_mut().map(|source| std::mem::take(&mut source.has_passed_over));
        taken.fold(false, |any, one| any | one)
    }

    /// The error with which the stream ends, if any.
    pub fn refusal(&self) -> Option<&Status> {
        self.refusal.as_deref()
    }

    /// Whether it has much to send at once: a first state, or a catch-up.
    pub fn is_in_bulk(&self) -> bool {
        matches!(self.state, SubscriberState::Snapshot | SubscriberState::Resetting { until: None, .. })
            || self.sources.iter().any(Source::is_catching_up)
            || self.join.as_ref().is_some_and(|join| join.is_rebuilding())
    }

    /// Gathers changes up to the moment of a view that has not taken it in, and then takes them when the view tells them.
    pub fn rest_until(&mut self, at: Instant) {
        self.alone_until = at;
        self.gather_until = self.gather_until.max(at);
    }

    /// Whether its next events equal those of every other subscriber that is live and selects everything.
    fn can_share(&self) -> bool {
        let live = matches!(self.state, SubscriberState::Live) && self.join.is_none();
        live && self.resync.is_none() && self.selection.is_all()
    }

    /// Waits until there may be a delivery, as of `now`: a moment that has come since is not waited for.
    async fn wait(&mut self, now: Instant) {
        self.set_timer(now);
        let is_draining = self.is_draining;
        let gathers = self.gathers_until(now).is_some();
        let commits = Commits::of(&mut self.sources, self.join.as_deref_mut());
        let wake = &self.wake;
        // Its informers are held, so the channels do not close.
        let change = async {
            match commits {
                Commits::WakeUp => wake.notified().await,
                Commits::One(commits) => drop(commits.changed().await),
                Commits::Several(commits) => drop(select(commits, pin!(wake.notified())).await),
            }
        };
        let timer = self.timer.as_mut().expect("it was set above");
        // Afterwards everything is checked, whatever has woken it. A fixed order, so that any run can be repeated.
        tokio::select! {
            biased;
            () = change, if !gathers => {}
            () = timer.as_mut() => {}
            // After this, the moment of this stream's end is set.
            () = self.drained.as_mut(), if !is_draining => self.look_at = Instant::now(),
        }
    }

    /// Sets the timer to the next moment at which something is to be done. A function of its own, as its variables would be part of each
    /// stream that waits.
    fn set_timer(&mut self, now: Instant) {
        let mut at = self.heartbeat_at;
        let next = match &self.state {
            SubscriberState::Starting { until, .. } => *until,
            // Only in this state, as waiting for a past moment that has no effect would spin.
            SubscriberState::Live => Some(self.bookmark_at),
            SubscriberState::Resetting { until, .. } => *until,
            SubscriberState::Snapshot | SubscriberState::Resumed | SubscriberState::Ended(_) => None,
        };
        let gathers_until = self.gathers_until(now);
        // A resync waits while changes are gathered and before a first state: then `pull_live` is not called.
        let is_live = matches!(self.state, SubscriberState::Live);
        let resync_at = self.resync_at().filter(|_| is_live && gathers_until.is_none());
        for other in [self.deadline, resync_at, next, gathers_until].into_iter().flatten() {
            at = at.min(other);
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.is_elapsed() || timer.deadline() > at {
            timer.as_mut().reset(at);
        }
    }

    /// Why the stream ends now, if it does.
    fn over(&mut self, now: Instant) -> Option<CloseReason> {
        if let SubscriberState::Ended(reason) = self.state {
            return Some(reason);
        }
        let related = || self.join.as_ref().and_then(|join| join.ended());
        if let Some(reason) = self.sources.iter().find_map(Source::ended).or_else(related) {
            return Some(reason);
        }
        if !self.is_draining && now >= self.look_at {
            self.look_at = now + LOOK_INTERVAL;
            self.is_draining = self.permit.is_draining();
            if self.is_draining {
                // Spread, so that thousands of clients do not reconnect at once.
                let at = now + self.permit.drain_spread().mul_f64(rand::random::<f64>());
                if self.deadline.is_none_or(|deadline| at <= deadline) {
                    (self.deadline, self.deadline_reason) = (Some(at), CloseReason::Shutdown);
                }
            }
        }
        self.deadline.is_some_and(|deadline| now >= deadline).then_some(self.deadline_reason)
    }

    /// Whether the client lacks a position that is known now, behind these events: the last event of a source had none, and the changes
    /// behind it, in a relist or a catch-up, do not concern the client. Without a bookmark it would start over if it were cut off.
    fn owes_position(&mut self, events: &[Event]) -> bool {
        for event in events {
            if let Payload::Mark { positions, .. } = &event.payload {
                for (source, position) in self.sources.iter_mut().zip(positions) {
                    source.lacks_position = *position == Resumable::No;
                }
            } else if let Some(source) = self.sources.get_mut(event.source) {
                // Positions of related objects are told by the bookmark that follows them.
                source.lacks_position = event.position == Resumable::No;
            }
        }
        let lacks = self.sources.iter().any(|source| source.lacks_position);
        lacks && self.sources.iter().all(|source| *source.position() != Resumable::No)
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

    /// How often the versions of its informers went back.
    fn histories(&self) -> u64 {
        let related = self.join.iter().flat_map(|join| join.positions().map(|(informer, _)| informer));
        let informers = self.sources.iter().map(|source| &source.informer).chain(related);
        informers.map(|informer| informer.reader.head().0.history).sum()
    }

    fn positions(&self) -> Vec<Resumable> {
        let related = self.join.iter().flat_map(|join| join.positions().map(|(_, position)| position));
        self.sources.iter().map(Source::position).chain(related).cloned().collect()
    }
}

// === impl Commits ===

impl<'a> Commits<'a> {
    fn of(sources: &'a mut [Source], join: Option<&'a mut JoinReader>) -> Self {
        let is_one = sources.len() == 1 && join.is_none();
        let own = sources.iter_mut().filter_map(Source::commits);
        let mut commits = own.chain(join.into_iter().flat_map(|join| join.commits()));
        match commits.next() {
            None => Self::WakeUp,
            Some(commits) if is_one => Self::One(commits),
            Some(first) => {
                let all = std::iter::once(first).chain(commits);
                Self::Several(select_all(all.map(|commits| commits.changed().map(drop).boxed())))
            }
        }
    }
}

fn resetting(reason: ResetReason) -> SubscriberState {
    SubscriberState::Resetting { reason, until: None }
}
