//! One connected reader: the snapshot, then every change, pulled when the transport can take more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, select_all};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::registry::Place;
use super::source::{BatchBuilder, Pulled, Source, Succession};
use super::{CloseReason, Config, Filter, Informer, ResumeToken};
use crate::cache::{Cursor, Located, Past, Recalled};
use crate::k8s::{Key, Object, ResourceVersion};

/// What is asked for.
#[derive(Debug)]
pub struct Subscription {
    /// Which informers; at least one.
    pub informers: Vec<Arc<Informer>>,
    /// Which objects.
    pub filter: Filter,
    /// From where.
    pub from: From,
    /// Hand out every matching object again at this interval.
    pub resync: Option<Duration>,
    /// End the stream after this long.
    pub timeout: Option<Duration>,
}

/// From where a subscription begins.
#[derive(Clone, Debug)]
pub enum From {
    /// Everything there is, then every change.
    Start,
    /// Every change from now on.
    Now,
    /// Every change after a token, which covers all that the client has: that of the last event it took.
    Token(ResumeToken),
    /// Every change after a token, beyond which the client may have taken events: that of the last bookmark.
    Bookmark(ResumeToken),
}

/// What [`Subscriber::next`] gives.
#[derive(Debug)]
pub enum Delivery {
    /// Events in order; at least one.
    Events(Vec<Event>),
    /// From now on a source is another informer; what differs follows.
    Replaced {
        /// Its place in [`Subscription::informers`].
        source: usize,
        /// The one to go on with.
        informer: Arc<Informer>,
    },
    /// Nothing for a while: show that the stream lives.
    Heartbeat,
    /// The stream ends.
    Closed(CloseReason),
}

/// What a subscription yields.
#[derive(Clone, Debug)]
pub struct Event {
    /// The informer it is of, by its place in [`Subscription::informers`].
    pub source: usize,
    /// What it means.
    pub kind: EventKind,
    /// What it is about.
    pub payload: Payload,
    /// The version of this informer up to which the client has everything once it took this event; zero
    /// while its snapshot is under way, or, with selectors, while it catches up, so that whoever is cut off there
    /// starts over.
    pub position: ResourceVersion,
}

/// What an event means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Before SYNCED: is there. After it: came to be, or began to match.
    Added,
    /// Changed.
    Modified,
    /// Is gone, or stopped matching.
    Deleted,
    /// The token is fresh.
    Bookmark,
    /// The snapshot is complete.
    Synced,
    /// Forget everything: the snapshot follows.
    Reset,
}

/// What an event is about. Objects by reference.
#[derive(Clone, Debug)]
pub enum Payload {
    /// An object.
    Object(Arc<Object>),
    /// An object shown at another version than its own.
    ObjectAt(Arc<Object>, ResourceVersion),
    /// An object of which only the identity is still known.
    Identity {
        /// Namespace and name.
        key: Key,
        /// Which object of that name.
        uid: Box<str>,
        /// The version of the deletion.
        version: ResourceVersion,
    },
    /// No object.
    Mark {
        /// Each informer's version up to which the client has everything.
        positions: Vec<ResourceVersion>,
        /// For a RESET, why.
        reason: Option<ResetReason>,
    },
}

/// Why a subscriber starts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// Deletions since the token are no longer known.
    TokenTooOld,
    /// The token is of other resources than the stream.
    TokenOfOthers,
    /// The cache did not reach the token within the bound: the cluster went back in time.
    TokenAhead,
    /// The subscriber fell behind everything that is remembered.
    Lagged,
    /// The API server's versions went back.
    HistoryLost,
    /// Another informer took the place of this one, and the difference cannot be told.
    Replaced,
}

/// A connected reader. Owns no queue: a cursor per informer.
pub struct Subscriber {
    sources: Vec<Source>,
    filter: Filter,
    config: Config,
    drain: CancellationToken,
    state: State,
    /// Sources that are other informers now, of which nobody was told yet.
    replaced: Vec<usize>,
    /// The source whose turn it is.
    turn: usize,
    /// Whether the last pull left nothing.
    caught_up: bool,
    resync: Option<Duration>,
    resync_at: Option<Instant>,
    deadline: Option<Instant>,
    /// When this stream ends because the process does.
    drain_at: Option<Instant>,
    heartbeat_at: Instant,
    bookmark_at: Instant,
    place: Place,
}

enum State {
    /// Waits for the caches to be complete, and for the token's version or what changed since it.
    Starting { from: From, until: Option<Instant> },
    /// To be told RESET.
    Resetting(ResetReason),
    /// Hands out the snapshots; SYNCED follows.
    Snapshot,
    /// Hands out changes; a bookmark follows once the head is reached.
    Resumed,
    /// Hands out changes.
    Live,
    /// A last bookmark went out.
    Ended(CloseReason),
}

/// How much of what the client has its token covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Covers {
    All,
    Some,
}

/// Where a source continues.
enum Resume {
    At(Cursor),
    Past(Arc<Past>),
}

// === impl Subscriber ===

impl Subscriber {
    pub(super) fn new(
        subscription: Subscription,
        config: Config,
        drain: CancellationToken,
        place: Place,
    ) -> Self {
        let now = Instant::now();
        let Subscription { informers, filter, from, resync, timeout } = subscription;
        assert!(!informers.is_empty(), "a subscription has at least one informer");
        let mut subscriber = Self {
            sources: informers.into_iter().map(Source::new).collect(),
            filter,
            config,
            drain,
            state: State::Starting { from, until: None },
            replaced: Vec::new(),
            turn: 0,
            caught_up: false,
            resync,
            resync_at: None,
            deadline: timeout.map(|timeout| now + timeout),
            drain_at: None,
            heartbeat_at: now + config.heartbeat_interval,
            bookmark_at: now + config.bookmark_interval,
            place,
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
                source.wake.borrow_and_update();
            }
            if let Some(reason) = self.over(now) {
                if self.caught_up && matches!(self.state, State::Live) {
                    self.state = State::Ended(reason);
                    return Delivery::Events(vec![self.bookmark(EventKind::Bookmark)]);
                }
                return Delivery::Closed(reason);
            }
            let mut events = self.pull(now);
            if let Some(source) = self.replaced.pop() {
                // Nothing of the new one was pulled together with it.
                return Delivery::Replaced { source, informer: self.sources[source].informer.clone() };
            }
            // Also behind changes, as a stream that is never quiet needs its token too; not amid a catch-up, as
            // what a client holds at a bookmark is a state that was.
            if now >= self.bookmark_at && self.caught_up && matches!(self.state, State::Live) {
                self.bookmark_at = now + self.config.bookmark_interval;
                events.push(self.bookmark(EventKind::Bookmark));
            }
            if !events.is_empty() {
                self.heartbeat_at = now + self.config.heartbeat_interval;
                self.place.metrics().events.increment(events.len() as u64);
                return Delivery::Events(events);
            }
            if now >= self.heartbeat_at {
                self.heartbeat_at = now + self.config.heartbeat_interval;
                return Delivery::Heartbeat;
            }
            self.wait().await;
        }
    }

    /// Sleeps until something may be there.
    async fn wait(&mut self) {
        let mut at = self.heartbeat_at;
        let next = match &self.state {
            State::Starting { until, .. } => *until,
            // Only now: a moment that has passed and cannot be acted upon would be no sleep at all.
            State::Live => Some(self.bookmark_at),
            State::Resetting(_) | State::Snapshot | State::Resumed | State::Ended(_) => None,
        };
        for other in [self.deadline, self.drain_at, self.resync_at, next].into_iter().flatten() {
            at = at.min(other);
        }
        let draining = self.drain_at.is_some();
        let drain = self.drain.clone();
        // One informer is the common case and needs no allocation.
        let woken = async {
            match &mut *self.sources {
                [source] => drop(source.wake.changed().await),
                sources => {
                    drop(select_all(sources.iter_mut().map(|source| source.wake.changed().boxed())).await);
                }
            }
        };
        // All is looked at afterwards, whichever woke; in one order, so that any run can be repeated.
        tokio::select! {
            biased;
            () = woken => {}
            () = sleep_until(at) => {}
            // Once seen, the moment of this stream's end is set.
            () = drain.cancelled(), if !draining => {}
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
        if self.drain.is_cancelled() {
            // Spread, so that thousands of clients do not come back in one moment.
            let spread = self.place.drain_spread();
            let at = *self.drain_at.get_or_insert_with(|| now + spread.mul_f64(rand::random::<f64>()));
            if now >= at {
                return Some(CloseReason::Shutdown);
            }
        }
        self.deadline.is_some_and(|deadline| now >= deadline).then_some(CloseReason::Timeout)
    }

    fn pull(&mut self, now: Instant) -> Vec<Event> {
        self.caught_up = false;
        let mut batch = BatchBuilder::new(&self.config);
        if matches!(self.state, State::Starting { .. }) {
            self.succeed_idle();
        }
        if !self.replaced.is_empty() {
            return batch.events;
        }
        self.start(now);
        if let State::Resetting(reason) = self.state {
            self.reset(reason, &mut batch);
        }
        if matches!(self.state, State::Snapshot) {
            if !self.pull_snapshots(&mut batch) {
                return batch.events;
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

    /// Begins, once every cache is complete and has reached the token.
    fn start(&mut self, now: Instant) {
        let State::Starting { from, until } = &mut self.state else { return };
        if !self.sources.iter().all(Source::synced) {
            return;
        }
        let (token, covers) = match from {
            From::Start => {
                self.sources.iter_mut().for_each(Source::begin_snapshot);
                self.state = State::Snapshot;
                return;
            }
            From::Now => {
                self.sources.iter_mut().for_each(Source::begin_now);
                self.state = State::Resumed;
                return;
            }
            From::Token(token) => (token.clone(), Covers::All),
            From::Bookmark(token) => (token.clone(), Covers::Some),
        };
        let until = *until.get_or_insert(now + self.config.resume_wait);
        if let Some(next) = self.resume(&token, covers, now >= until) {
            self.state = next;
        }
    }

    /// The state in which a token leaves the stream; `None` to wait for the caches.
    fn resume(&mut self, token: &ResumeToken, covers: Covers, waited: bool) -> Option<State> {
        let mut places = Vec::new();
        let (mut ahead, mut asked, mut lost) = (false, false, false);
        for source in &self.sources {
            let Some(version) =
                token.get(&source.informer.token_name()).filter(|_| token.len() == self.sources.len())
            else {
                return Some(State::Resetting(ResetReason::TokenOfOthers));
            };
            match source.locate(covers, version) {
                Located::At(cursor) => places.push((Resume::At(cursor), version.clone())),
                Located::Lost => match source.recall(covers, version) {
                    Recalled::Known(past) => places.push((Resume::Past(past), version.clone())),
                    Recalled::Asked => asked = true,
                    Recalled::Unknown => lost = true,
                },
                Located::Ahead => ahead = true,
            }
        }
        // Whoever starts over here must not be taken back either: it waits for every cache, even though one of them
        // cannot go on from the token.
        match () {
            () if ahead && !waited => return None,
            () if ahead => return Some(State::Resetting(ResetReason::TokenAhead)),
            () if lost || (asked && waited) => return Some(State::Resetting(ResetReason::TokenTooOld)),
            () if asked => return None,
            () => {}
        }
        for (source, (place, version)) in self.sources.iter_mut().zip(places) {
            match place {
                Resume::At(cursor) => source.begin_at(cursor, covers, version),
                Resume::Past(past) => source.begin_past(past, version),
            }
        }
        Some(State::Resumed)
    }

    fn reset(&mut self, reason: ResetReason, batch: &mut BatchBuilder) {
        Metrics::reset(reason);
        self.sources.iter_mut().for_each(Source::begin_snapshot);
        batch.push(Event {
            source: 0,
            kind: EventKind::Reset,
            payload: Payload::Mark { positions: self.positions(), reason: Some(reason) },
            position: ResourceVersion::ZERO,
        });
        self.state = State::Snapshot;
        self.resync_at = None;
    }

    /// Whether all snapshots are handed out.
    fn pull_snapshots(&mut self, batch: &mut BatchBuilder) -> bool {
        for (index, source) in self.sources.iter_mut().enumerate() {
            if matches!(source.pull_snapshot(index, &self.filter, batch), Pulled::More) {
                return false;
            }
        }
        true
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
            source.begin_resync();
            if !source.is_past_snapshot()
                && matches!(source.pull_snapshot(index, &self.filter, batch), Pulled::More)
            {
                return;
            }
            let mut pulled = source.pull_changes(index, &self.filter, batch);
            if source.is_resync_due() && matches!(pulled, Ok(Pulled::Done)) {
                // It has all there is now.
                source.begin_resync();
                pulled = Ok(source.pull_snapshot(index, &self.filter, batch));
            }
            if !behind && source.is_catching_up() {
                self.place.metrics().catch_ups.increment(1);
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
                    // The next one first, so that a busy resource does not starve the others.
                    self.turn = (index + 1) % count;
                    return;
                }
                Err(reason) => {
                    self.state = State::Resetting(reason);
                    self.reset(reason, batch);
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
        match self.sources[index].succeed(successor) {
            Succession::NotYet => return,
            Succession::Difference => {}
            Succession::StartOver => self.state = State::Resetting(ResetReason::Replaced),
        }
        self.place.moved(index, successor);
        self.replaced.push(index);
        let misses = |namespace: &String| !successor.scope.covers(namespace);
        if self.filter.namespaces().iter().any(misses) {
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
        }
    }

    fn positions(&self) -> Vec<ResourceVersion> {
        self.sources.iter().map(|source| source.position().clone()).collect()
    }
}

// === impl Payload ===

impl Payload {
    /// Namespace and name of what it is about.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Object(object) | Self::ObjectAt(object, _) => Some(object.key()),
            Self::Identity { key, .. } => Some(key),
            Self::Mark { .. } => None,
        }
    }

    /// Bytes it will take, about.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Object(object) | Self::ObjectAt(object, _) => object.json().len(),
            Self::Identity { .. } | Self::Mark { .. } => 200,
        }
    }
}

// === impl EventKind ===

impl EventKind {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Synced => "SYNCED",
            Self::Reset => "RESET",
        }
    }
}

// === impl ResetReason ===

impl ResetReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::TokenTooOld,
        Self::TokenOfOthers,
        Self::TokenAhead,
        Self::Lagged,
        Self::HistoryLost,
        Self::Replaced,
    ];

    /// The word for the client, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TokenTooOld => "TokenTooOld",
            Self::TokenOfOthers => "TokenOfOtherResources",
            Self::TokenAhead => "TokenAhead",
            Self::Lagged => "Lagged",
            Self::HistoryLost => "HistoryLost",
            Self::Replaced => "Replaced",
        }
    }
}
