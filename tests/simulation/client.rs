//! A client: it connects, reads at its pace, stalls, is cut off, and resumes with its token.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use informerd::testing::hub::{
    Delivery, Event, EventKind, LivePlace, Payload, Resumable, ResumeToken, StartAt, Subscriber, Subscription,
};
use informerd::testing::k8s::ResourceVersion;
use tokio::sync::Notify;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

use crate::checker::{Checker, View};
use crate::dice::Dice;
use crate::fault::{Fault, Hits};
use crate::notes::{self, Noted};
use crate::plan::{Habits, Keeps, Pace};
use crate::replica::{Inbox, Lists, Replica, position_number};
use crate::trace::Trace;
use crate::truth::{RESOURCES, Truth};
use crate::world::Restored;

/// The longest allowed time without an event or heartbeat: the heartbeat's interval plus one step of the driver.
const QUIET_MAX: Duration = Duration::from_secs(16);

/// What a client sees of the simulation.
pub(crate) struct Around<'a> {
    pub(crate) now: Instant,
    pub(crate) truth: &'a Truth,
    pub(crate) hits: &'a Hits,
    pub(crate) replicas: &'a [Replica],
    /// Number of started lists, by replica and resource.
    pub(crate) lists: [[u64; 2]; 2],
    pub(crate) journal_len_max: u64,
    pub(crate) driver: &'a Arc<Notify>,
    pub(crate) trace: &'a Trace,
    /// The state of the replicas when the cluster was restored.
    pub(crate) restored: Option<Restored>,
}

/// The process that gave a client its token.
#[derive(Clone, Copy)]
pub(crate) struct GivenBy {
    pub(crate) replica: usize,
    /// The replica's life: after a restart it has forgotten what it gave out.
    pub(crate) life: u64,
    /// The era of which it knew by then.
    pub(crate) era: usize,
}

impl Around<'_> {
    /// Whether these caches of a replica have all begun another history since the cluster was restored.
    pub(crate) fn has_noticed(&self, replica: usize, resources: &[usize]) -> bool {
        resources
            .iter()
            .all(|index| self.replicas[replica].history(*index) > self.history_before(replica, *index))
    }

    /// The history of a cache when the cluster was restored last.
    fn history_before(&self, replica: usize, index: usize) -> u64 {
        self.restored.map_or(0, |restored| restored.histories[replica][index])
    }

    /// The era of which the states of these caches are known to be.
    pub(crate) fn known_era(&self, replica: usize, resources: &[usize]) -> usize {
        let era = self.truth.era();
        if self.has_noticed(replica, resources) { era } else { era.saturating_sub(1) }
    }

    /// Whether each cache of a replica follows the restored cluster: it has begun another history, or has listed and
    /// found no contradiction.
    pub(crate) fn has_listed_since_restore(&self, replica: usize) -> bool {
        let (of, lists) = (&self.replicas[replica], self.lists[replica]);
        let Some(restored) = &self.restored else { return of.history(0) == 0 && of.history(1) == 0 };
        let listed = |index: usize| of.is_watching(index) && lists[index] > restored.lists[replica][index];
        [0, 1]
            .into_iter()
            .all(|index| of.history(index) > self.history_before(replica, index) || listed(index))
    }

    /// Whether these tokens may belong to either history. They do if they are beyond the version of the replica when
    /// the cluster was restored, and another process gave them: the replica then cannot tell.
    pub(crate) fn may_be_of_either_history(
        &self,
        given_by: GivenBy,
        replica: usize,
        sources: &[usize],
        tokens: &[u64],
    ) -> bool {
        let GivenBy { replica: last, life, era } = given_by;
        let is_same = last == replica && life == self.replicas[replica].life;
        let Some(restored) = self.restored.as_ref().filter(|_| !is_same) else { return false };
        let one_of_two = [last, replica].into_iter().any(|replica| !self.has_noticed(replica, sources));
        let beyond = |(source, token): (&usize, &u64)| *token > restored.greatest[replica][*source];
        one_of_two || era < self.truth.era() && sources.iter().zip(tokens).any(beyond)
    }

    /// Number of lists that a replica's informers have started; `None` if one is under way.
    fn lists_settled(&self, replica: usize) -> Lists {
        [0, 1].map(|index| self.replicas[replica].is_watching(index).then_some(self.lists[replica][index]))
    }
}

/// Set when a waiting stream has something to send.
struct Flag {
    set: AtomicBool,
    driver: Arc<Notify>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.set.store(true, Ordering::Relaxed);
        self.driver.notify_one();
    }
}

type Turn = Pin<Box<dyn Future<Output = (Subscriber, Option<Delivery>)>>>;

/// One stream.
struct Connection {
    replica: usize,
    turn: Option<Turn>,
    /// The inbox, while a live view serves the stream.
    inbox: Option<Rc<RefCell<Inbox>>>,
    /// The stream, while it is on its way to a live view.
    joining: Option<Joining>,
    cancel: Arc<Notify>,
    flag: Arc<Flag>,
    /// Events that were sent and not read yet.
    unread: VecDeque<Unread>,
    /// Whether the informers of its next events keep notes.
    noted: Noted,
    /// Number of started lists when the stream began.
    lists: Lists,
    /// The revision of each cache when the stream last had nothing left to send.
    drained: Vec<u64>,
    last_sign: Instant,
    /// Whether it has sent an event.
    begun: bool,
}

/// An event that was sent.
struct Unread {
    event: Event,
    /// The number of started lists at its sending.
    lists: Lists,
    noted: Noted,
}

/// A stream on its way to a live view: its place when it left, and when it arrives.
type Joining = (LivePlace, Subscriber, Instant);

impl Connection {
    /// Whether a live view has sent something.
    fn has_mail(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| {
            let inbox = inbox.borrow();
            !inbox.events.is_empty() || inbox.heartbeat || inbox.released.is_some()
        })
    }

    /// Joins a live view if the stream has caught up and the view accepts it: now, or later with its place of now. Otherwise the
    /// stream goes on by itself.
    fn join_view_or_continue(
        &mut self,
        subscriber: Subscriber,
        joins: bool,
        arrives: Option<Instant>,
        replica: &Replica,
        around: &Around<'_>,
    ) {
        (self.turn, self.inbox) = (None, None);
        let place = subscriber.live_place().filter(|_| joins);
        match (place, arrives) {
            (Some(place), Some(arrives)) => self.joining = Some((place, subscriber, arrives)),
            (place, _) => self.join(place, subscriber, replica, around),
        }
    }

    /// Joins a live view if the stream has arrived there. Returns whether it has.
    fn arrive(&mut self, joining: Joining, around: &Around<'_>) -> bool {
        let (place, subscriber, at) = joining;
        if around.now < at {
            self.joining = Some((place, subscriber, at));
            return false;
        }
        around.hits.count(Fault::InTransit);
        self.join(Some(place), subscriber, &around.replicas[self.replica], around);
        true
    }

    fn join(
        &mut self,
        place: Option<LivePlace>,
        subscriber: Subscriber,
        replica: &Replica,
        around: &Around<'_>,
    ) {
        let gathers = place.as_ref().is_some_and(|place| place.selection.form.coalesce.is_some());
        let subscriber = match place {
            Some(place) => match replica.join(place, subscriber, around.now) {
                Ok(inbox) => {
                    around.hits.count(if gathers { Fault::JoinedGathering } else { Fault::JoinedView });
                    self.inbox = Some(inbox);
                    return;
                }
                Err(subscriber) => {
                    around.hits.count(Fault::RefusedByView);
                    *subscriber
                }
            },
            None => subscriber,
        };
        self.turn = Some(turn(subscriber, self.cancel.clone()));
        self.flag.set.store(true, Ordering::Relaxed);
    }
}

/// A client.
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) habits: Habits,
    pub(crate) checker: Checker,
    dice: Dice,
    connection: Option<Connection>,
    /// The replica to which it was last connected, and that replica's life.
    last: Option<(usize, u64)>,
    /// The era that the caches of its replica knew of when it connected.
    era: usize,
    /// The process that gave it its token.
    given_by: Option<GivenBy>,
    pub(crate) next_at: Instant,
    /// The end of its stall.
    stalled_until: Option<Instant>,
}

impl Client {
    /// A client; `twin` are the dice that it shares with another one, which then asks for the same.
    pub(crate) fn new(number: usize, mut dice: Dice, twin: Option<Dice>, now: Instant) -> Self {
        let habits = match twin {
            Some(mut shared) => Habits::roll(&mut shared),
            None => Habits::roll(&mut dice),
        };
        let checker = Checker::new(habits.sources.clone(), habits.wanted.clone());
        let next_at = now + dice.millis(0, 20_000);
        Self {
            number,
            habits,
            checker,
            dice,
            connection: None,
            last: None,
            era: 0,
            given_by: None,
            next_at,
            stalled_until: None,
        }
    }

    pub(crate) fn is_connected_to(&self, replica: usize) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.replica == replica)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Closes its connection. Unread events are lost.
    pub(crate) fn cut_off(&mut self, now: Instant) {
        self.connection = None;
        // Some come back only after two restores.
        let is_long = self.dice.chance(0.1);
        self.next_at =
            now + if is_long { self.dice.millis(30_000, 600_000) } else { self.dice.millis(0, 30_000) };
    }

    pub(crate) fn stall(&mut self, now: Instant) {
        self.stalled_until = Some(now + self.dice.millis(5_000, 300_000));
    }

    /// What the informers keep that gave the token with which it resumes.
    fn noted_of_token(&self) -> Noted {
        match self.habits.keeps {
            Keeps::Nothing | Keeps::Event => self.checker.noted(),
            Keeps::Bookmark => self.checker.bookmark_noted(),
        }
    }

    /// P1: in the end it holds the cluster's state, as the informers of its replica keep it.
    pub(crate) fn final_check(&self, truth: &Truth, replicas: &[Replica]) -> Result<(), String> {
        let keeps_notes = |connection: &Connection| replicas[connection.replica].keeps_notes;
        let noted = self.connection.as_ref().map(keeps_notes).unwrap_or_default();
        self.checker.final_check(truth, noted)
    }

    /// From now on it reads everything at once and is not cut off.
    pub(crate) fn become_good(&mut self, now: Instant) {
        self.habits.pace = Pace::Fast;
        if let Some(connection) = &mut self.connection {
            // Until now it may have read slowly.
            connection.last_sign = now;
        }
        self.stalled_until = None;
        self.next_at = now;
    }

    /// When it acts next, unless something wakes it before.
    pub(crate) fn wants_at(&self) -> Option<Instant> {
        let stalled = self.stalled_until.unwrap_or(self.next_at);
        let at = self.next_at.max(stalled);
        match &self.connection {
            None => Some(at),
            Some(connection) => {
                let woken = connection.turn.is_some() && connection.flag.set.load(Ordering::Relaxed);
                let has_more = !connection.unread.is_empty() || woken;
                let joins_at = connection.joining.as_ref().map(|(_, _, arrives)| at.max(*arrives));
                (has_more || connection.has_mail()).then_some(at).or(joins_at)
            }
        }
    }

    /// Does what is due.
    pub(crate) fn run(&mut self, around: &Around<'_>) -> Result<(), String> {
        // Its first bookmark could belong to either of two histories (seed 1035247).
        if self.is_connected() && !self.checker.is_base_known() && around.truth.eras.len() > 1 {
            self.cut_off(around.now);
        }
        if self.stalled_until.is_some_and(|until| around.now < until) || around.now < self.next_at {
            return Ok(());
        }
        if self.stalled_until.take().is_some()
            && let Some(connection) = &mut self.connection
        {
            // Heartbeats that it did not read count, too.
            connection.last_sign = around.now;
        }
        if self.connection.is_none() {
            self.connect(around);
        }
        let (most, pause) = match self.habits.pace {
            Pace::Fast => (usize::MAX, Duration::ZERO),
            Pace::Slow { events, pause_ms } => (events, Duration::from_millis(pause_ms)),
        };
        let mut taken = 0;
        loop {
            while let Some(unread) =
                self.connection.as_mut().and_then(|connection| connection.unread.pop_front())
            {
                self.take(&unread, around)?;
                taken += 1;
                if taken >= most {
                    self.next_at = around.now + pause;
                    return Ok(());
                }
            }
            if !self.read(around)? {
                return self.check_signs(around);
            }
        }
    }

    fn take(&mut self, unread: &Unread, around: &Around<'_>) -> Result<(), String> {
        let Unread { event, lists, noted } = unread;
        let Some(connection) = &self.connection else { return Ok(()) };
        self.given_by = self.last.map(|(replica, life)| GivenBy { replica, life, era: self.era });
        around.trace.say(|| {
            let what = event.payload.key().map(|key| key.as_str().to_owned()).unwrap_or_default();
            let source = RESOURCES[self.habits.sources[event.source]];
            format!(
                "    client {}: {:?} {source} {what} {:?} at {}",
                self.number, event.kind, event.payload, event.position
            )
        });
        let view = View {
            truth: around.truth,
            hits: around.hits,
            lists: around.lists[connection.replica],
            lists_then: match event.kind {
                EventKind::Synced => [0, 1].map(|index| lists[index].and(connection.lists[index])),
                _ => *lists,
            },
            noted: *noted,
        };
        if let (EventKind::Bookmark, Payload::Mark { positions, .. }) = (event.kind, &event.payload) {
            let replica = &around.replicas[connection.replica];
            let ahead = |(source, position): (&usize, &Resumable)| {
                position_number(position) > replica.position(*source)
            };
            if self.habits.sources.iter().zip(positions).any(ahead) {
                around.hits.count(Fault::ServedAhead);
            }
        }
        self.checker.take(event, &view)
    }

    /// Reads the stream's next delivery. Returns whether there was one.
    fn read(&mut self, around: &Around<'_>) -> Result<bool, String> {
        let cancels = self.dice.chance(0.02);
        let cuts = self.dice.chance(0.01);
        if self.connection.as_ref().is_some_and(|connection| connection.inbox.is_some()) {
            return Ok(self.read_live(around));
        }
        let joins = self.dice.chance(0.5);
        // Between threads, a stream is on its way to a live view for a while.
        let is_on_way = self.dice.chance(0.5);
        let arrives = is_on_way.then(|| around.now + self.dice.millis(1, 300));
        let Some(connection) = &mut self.connection else { return Ok(false) };
        if let Some(joining) = connection.joining.take() {
            return Ok(connection.arrive(joining, around));
        }
        if cancels {
            // A transport may drop the future at any time, and must not lose anything by that.
            connection.cancel.notify_one();
            connection.flag.set.store(true, Ordering::Relaxed);
        }
        if !connection.flag.set.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        let replica = &around.replicas[connection.replica];
        let mut lists = around.lists_settled(connection.replica);
        for (at, source) in self.habits.sources.iter().enumerate() {
            if replica.revision(*source).saturating_sub(connection.drained[at]) > around.journal_len_max {
                self.checker.fell_behind(at, around.hits);
                lists[*source] = None;
            }
        }
        let waker = Waker::from(connection.flag.clone());
        let Some(under_way) = &mut connection.turn else { return Ok(false) };
        match under_way.as_mut().poll(&mut Context::from_waker(&waker)) {
            // A stream that waits for a cache has not looked at the others.
            Poll::Pending if !connection.begun => Ok(false),
            Poll::Pending => {
                for (at, source) in self.habits.sources.iter().enumerate() {
                    connection.drained[at] = replica.revision(*source);
                }
                Ok(false)
            }
            Poll::Ready((subscriber, delivery)) => {
                connection.join_view_or_continue(subscriber, joins, arrives, replica, around);
                let events = delivery.as_ref().map(Delivery::events).unwrap_or_default();
                match delivery {
                    None => {}
                    Some(Delivery::Replaced { source, informer }) => {
                        around.hits.count(Fault::ContinuedReplaced);
                        connection.noted[source] = notes::are_kept_by(&informer);
                    }
                    Some(Delivery::Heartbeat) => connection.last_sign = around.now,
                    Some(Delivery::Closed(reason)) => {
                        if !replica.drain.is_cancelled() {
                            return Err(format!("P4: the stream was ended from the other side: {reason:?}"));
                        }
                        self.cut_off(around.now);
                        return Ok(false);
                    }
                    Some(Delivery::Events(_) | Delivery::Shared(_)) => {
                        connection.last_sign = around.now;
                        connection.begun = true;
                        let noted = connection.noted;
                        let unread = |event| Unread { event, lists, noted };
                        connection.unread.extend(events.into_iter().map(unread));
                        if cuts {
                            return self.cut_in_batch(around);
                        }
                    }
                }
                Ok(true)
            }
        }
    }

    /// Is cut off after a part of what was sent.
    fn cut_in_batch(&mut self, around: &Around<'_>) -> Result<bool, String> {
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let left = self.dice.below(connection.unread.len());
        let rest: Vec<_> = connection.unread.drain(..).take(left).collect();
        around.hits.count(Fault::CutInBatch);
        for unread in &rest {
            self.take(unread, around)?;
        }
        self.cut_off(around.now);
        Ok(false)
    }

    /// Moves the events of a live view to the unread ones. Returns whether there were any.
    fn read_live(&mut self, around: &Around<'_>) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let replica = &around.replicas[connection.replica];
        let Some(inbox) = connection.inbox.clone() else { return false };
        let mut inbox = inbox.borrow_mut();
        let mut behind = [false; 2];
        for (at, source) in self.habits.sources.iter().enumerate() {
            connection.drained[at] = connection.drained[at].max(inbox.seen[*source]);
            if replica.revision(*source).saturating_sub(connection.drained[at]) > around.journal_len_max {
                self.checker.fell_behind(at, around.hits);
                behind[*source] = true;
            }
        }
        let events = std::mem::take(&mut inbox.events);
        let heartbeat = std::mem::take(&mut inbox.heartbeat);
        if heartbeat || !events.is_empty() {
            connection.last_sign = around.now;
        }
        let (came, noted) = (!events.is_empty(), connection.noted);
        connection.unread.extend(events.into_iter().map(|(event, lists)| {
            let lists = [0, 1].map(|index: usize| lists[index].filter(|_| !behind[index]));
            Unread { event, lists, noted }
        }));
        if let Some(subscriber) = inbox.released.take() {
            let holding = inbox.holding;
            drop(inbox);
            around.hits.count(if holding { Fault::LeftGathering } else { Fault::LeftView });
            connection.join_view_or_continue(subscriber, false, None, replica, around);
            return true;
        }
        came
    }

    /// P7: a stream that is read at once never goes without events or heartbeats for long.
    fn check_signs(&self, around: &Around<'_>) -> Result<(), String> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let quiet = around.now - connection.last_sign;
        if self.habits.pace == Pace::Fast && quiet > QUIET_MAX {
            return Err(format!("P7: no event and no heartbeat for {quiet:?}"));
        }
        Ok(())
    }

    fn connect(&mut self, around: &Around<'_>) {
        let number = match self.last {
            Some((last, _)) if self.dice.chance(0.6) => last,
            _ => self.dice.below(around.replicas.len()),
        };
        let replica = &around.replicas[number];
        // A replica that has not listed since the restore cannot know tokens of the restored cluster.
        if !around.has_listed_since_restore(number) {
            self.next_at = around.now + Duration::from_secs(1);
            return;
        }
        let sources = &self.habits.sources;
        let tokens = match self.habits.keeps {
            Keeps::Nothing => None,
            Keeps::Event => self.last.map(|_| self.checker.token()),
            Keeps::Bookmark => {
                self.last.map(|_| self.checker.bookmark().to_vec()).filter(|tokens| !tokens.contains(&0))
            }
        };
        // A client that waits for its first bookmark has no token to resume with.
        let tokens = tokens.filter(|_| self.checker.is_base_known());
        let is_ambiguous = |tokens: &Vec<u64>| {
            self.given_by.is_some_and(|by| around.may_be_of_either_history(by, number, sources, tokens))
        };
        let tokens = tokens.filter(|tokens| !is_ambiguous(tokens));
        self.era = around.known_era(number, sources);
        let covers = self.habits.keeps == Keeps::Event && !self.checker.holds_beyond();
        let from = match &tokens {
            None if self.habits.from_now && around.truth.eras.len() == 1 => {
                self.checker.start_anew(false);
                StartAt::Now
            }
            None => {
                self.checker.start_anew(true);
                StartAt::Start
            }
            Some(tokens) => {
                let noted = self.noted_of_token();
                let name = |(at, source): (usize, &usize)| notes::spec(*source, noted[at]).token_name();
                let versions = tokens.iter().map(|token| ResourceVersion::from(*token));
                let token: ResumeToken = sources.iter().enumerate().map(name).zip(versions).collect();
                // The token of an event within a batch is not that of a complete state, so the client resumes with it
                // as with a bookmark.
                if covers { StartAt::Token(token) } else { StartAt::Bookmark(token) }
            }
        };
        around.trace.say(|| format!("  client {} connects to {number}: {from:?}", self.number));
        let mut drained: Vec<_> = sources.iter().map(|source| replica.revision(*source)).collect();
        if let Some(tokens) = tokens {
            if self.last.is_some_and(|(last, _)| last != number) {
                around.hits.count(Fault::ResumedElsewhere);
            } else if self.last != Some((number, replica.life)) {
                around.hits.count(Fault::ResumedAfterRestart);
            }
            let strict = sources.iter().zip(&tokens).zip(&mut drained);
            let strict: Vec<_> = strict
                .map(|((source, token), drained)| strict_from(number, *source, *token, drained, around))
                .collect();
            self.checker.resume(&tokens, self.noted_of_token(), covers, &strict);
        }
        self.last = Some((number, replica.life));
        self.subscribe(number, from, drained, around);
    }

    fn subscribe(&mut self, number: usize, from: StartAt, drained: Vec<u64>, around: &Around<'_>) {
        let (replica, sources) = (&around.replicas[number], &self.habits.sources);
        let all = replica.hub.informers();
        let informers: Vec<_> = sources.iter().map(|source| all[*source].clone()).collect();
        let noted = [0, 1].map(|at: usize| informers.get(at).is_none_or(|one| notes::are_kept_by(one)));
        let selection = self.habits.selection();
        if self.dice.chance(0.4) {
            replica.index(&selection, around.now);
        }
        let subscription =
            Subscription { informers, selection, join: None, from, resync: None, timeout: None };
        let subscriber = replica.hub.subscribe(subscription).unwrap();
        let cancel = Arc::new(Notify::new());
        let flag = Arc::new(Flag { set: AtomicBool::new(true), driver: around.driver.clone() });
        self.connection = Some(Connection {
            replica: number,
            turn: Some(turn(subscriber, cancel.clone())),
            inbox: None,
            joining: None,
            cancel,
            flag,
            unread: VecDeque::new(),
            noted,
            lists: around.lists_settled(number),
            drained,
            last_sign: around.now,
            begun: false,
        });
    }
}

/// The number of started lists, if a client that resumes with this token must get every change since. Also moves back
/// `drained`, by the changes that are still to be sent.
fn strict_from(
    number: usize,
    source: usize,
    token: u64,
    drained: &mut u64,
    around: &Around<'_>,
) -> Option<u64> {
    let replica = &around.replicas[number];
    let lists = around.lists[number][source];
    let position = replica.position(source);
    let since =
        around.truth.log(source).after(token).iter().take_while(|write| write.version <= position).count()
            as u64;
    *drained = drained.saturating_sub(since);
    let known = replica.first[source].is_some_and(|first| token >= first);
    let owed = known
        && lists == 1
        && replica.is_watching(source)
        && since <= around.journal_len_max
        && around.truth.eras.len() == 1;
    owed.then_some(lists)
}

fn turn(mut subscriber: Subscriber, cancel: Arc<Notify>) -> Turn {
    Box::pin(unconstrained(async move {
        let delivery = tokio::select! {
            biased;
            () = cancel.notified() => None,
            delivery = subscriber.next() => Some(delivery),
        };
        (subscriber, delivery)
    }))
}
