//! Streams that are told the same, served by one loop.
//!
//! A task for each stream costs as much as the kernel's work for a small event: it is woken, it looks at what is new, and
//! all it touches has left the processor's cache since the last time. Streams of one informer that keep up and want
//! everything are all in the same place, so one task writes to all of them, one system call each, and a stream that does
//! not take all of a write goes on by itself until it keeps up again.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use slab::Slab;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::stream::{Attached, READ_BYTES};
use crate::cache::Mark;
use crate::encode::{Encoder, Format, Frames, Framing};
use crate::hub::{Abreast, Config, Informer, InformerId};

/// Streams that are written to before others are let go on.
const TURN: usize = 128;

/// Streams that may wait to be taken into a group.
const JOINING_MAX: usize = 4096;

/// Events that come this soon after others wait for more of their kind.
const GATHER: Duration = Duration::from_micros(500);

/// Within a burst they wait for as long as the last round took, so that half of the time is left to who brings more, and
/// the next round has as many more to tell. At most so long.
const BURST_GATHER_MAX: Duration = Duration::from_millis(10);

/// How long the first event after a pause waits for more, for each member: a good deal less than to tell it to all of
/// them takes, so that a burst is told in one go, not its first event and then the others.
const GATHER_PER_MEMBER: Duration = Duration::from_micros(1);
const GATHER_MAX: Duration = Duration::from_millis(1);

/// With fewer members it goes out at once.
const GATHER_MEMBERS_MIN: usize = 64;

/// What streams of a group have in common, and its number among those of its kind.
type Kind = (InformerId, Format, Framing, usize);

/// The groups of a server.
pub(super) struct Groups {
    config: Config,
    drain: CancellationToken,
    tasks: TaskTracker,
    open: Mutex<HashMap<Kind, mpsc::Sender<Joining>>>,
    /// Groups of one kind.
    cores: usize,
    next: AtomicUsize,
    /// Streams that may write much at once: one core is left to what is live.
    bulk: Semaphore,
}

/// A stream on its way into a group.
struct Joining {
    place: Abreast,
    stream: Box<Attached>,
}

/// One group.
struct Group {
    groups: Arc<Groups>,
    kind: Kind,
    informer: Arc<Informer>,
    wake: watch::Receiver<Mark>,
    joining: mpsc::Receiver<Joining>,
    encoder: Encoder,
    framing: Framing,
    members: Slab<Member>,
    /// Where all of them are.
    place: Abreast,
    signs: Arc<Signs>,
    heartbeat_at: Instant,
    bookmark_at: Instant,
    /// When the first of them ends by itself.
    ends_at: Option<Instant>,
    /// What comes before then waits until then.
    gather_until: Instant,
}

struct Member {
    stream: Box<Attached>,
    /// Wakes the group when the client says something, or leaves.
    waker: Waker,
}

/// Members whose clients said something.
#[derive(Default)]
struct Signs {
    keys: Mutex<Vec<usize>>,
    wake: Notify,
}

struct Sign {
    key: usize,
    signs: Arc<Signs>,
}

/// How a member leaves.
enum Leave {
    /// The client is gone.
    Gone,
    /// It did not take all: this is left.
    With(Bytes),
}

impl Wake for Sign {
    fn wake(self: Arc<Self>) {
        self.signs.keys.lock().unwrap_or_else(PoisonError::into_inner).push(self.key);
        self.signs.wake.notify_one();
    }
}

// === impl Groups ===

impl Groups {
    pub(super) fn new(config: Config, drain: CancellationToken, tasks: TaskTracker) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (open, next, bulk) = (Mutex::default(), AtomicUsize::new(0), Semaphore::new((cores - 1).max(1)));
        Arc::new(Self { config, drain, tasks, open, cores, next, bulk })
    }

    /// Whether nobody is taken in any more, as the process ends.
    pub(super) fn is_closed(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Waits for leave to write much.
    pub(super) async fn bulk_turn(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.bulk.acquire().await.ok()
    }

    /// Takes a stream in that is abreast of its informer.
    pub(super) fn join(self: &Arc<Self>, place: Abreast, stream: Box<Attached>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.cores;
        let kind = (place.informer.id(), stream.format(), stream.framing(), number);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut joining = Joining { place, stream };
        if let Some(group) = open.get(&kind) {
            match group.try_send(joining) {
                Ok(()) => return,
                // It goes on by itself, and tries again.
                Err(TrySendError::Full(back)) => return self.release(back.stream, Frames::new(), false),
                // That group has just ended.
                Err(TrySendError::Closed(back)) => joining = back,
            }
        }
        let (sender, receiver) = mpsc::channel(JOINING_MAX);
        let group = Group::new(self.clone(), kind, &joining, receiver);
        // There is room in it.
        let _ = sender.try_send(joining);
        open.insert(kind, sender);
        self.tasks.spawn(unconstrained(group.run()));
    }

    /// Lets a stream go on by itself, with what is left to write.
    fn release(&self, stream: Box<Attached>, rest: Frames, last: bool) {
        self.tasks.spawn(stream.run(rest, last));
    }
}

// === impl Group ===

impl Group {
    fn new(groups: Arc<Groups>, kind: Kind, first: &Joining, joining: mpsc::Receiver<Joining>) -> Self {
        let informer = first.place.informer.clone();
        let now = Instant::now();
        Self {
            wake: informer.reader.wake(),
            encoder: Encoder::new(first.stream.format(), [&*informer]),
            framing: first.stream.framing(),
            informer,
            joining,
            members: Slab::new(),
            place: first.place.clone(),
            signs: Arc::default(),
            heartbeat_at: now,
            bookmark_at: now,
            ends_at: None,
            gather_until: now,
            kind,
            groups,
        }
    }

    /// Serves its members for as long as all are told alike.
    async fn run(mut self) {
        let drained = self.groups.drain.clone();
        let signs = self.signs.clone();
        loop {
            // Seen before read: a commit in between wakes again instead of being slept through.
            self.wake.borrow_and_update();
            let goes_on = !self.informer.is_over() && !drained.is_cancelled() && self.deliver().await;
            self.admit_all();
            if !goes_on {
                return self.dissolve();
            }
            self.hear();
            self.end_due();
            self.mark_time().await;
            // One without members would keep an informer that nobody uses.
            if self.members.is_empty() {
                return self.dissolve();
            }
            let at = self.heartbeat_at.min(self.bookmark_at);
            let at = self.ends_at.map_or(at, |ends_at| at.min(ends_at));
            tokio::select! {
                biased;
                _ = self.wake.changed() => Self::gather(self.gather_until, self.members.len(), &self.wake).await,
                Some(joining) = self.joining.recv() => self.admit(joining),
                () = signs.wake.notified() => {}
                () = sleep_until(at) => {}
                () = drained.cancelled() => {}
            }
        }
    }

    /// Waits for more where there just was something, and a moment where telling all members takes many times as long.
    async fn gather(until: Instant, members: usize, wake: &watch::Receiver<Mark>) {
        if Instant::now() < until {
            return sleep_until(until).await;
        }
        if members < GATHER_MEMBERS_MIN {
            return;
        }
        let most = (GATHER_PER_MEMBER * u32::try_from(members).unwrap_or(u32::MAX)).min(GATHER_MAX);
        // Shorter than a timer can tell. Whoever brings more runs meanwhile.
        let began = Instant::now();
        let (mut told, mut changed) = (wake.borrow().commits, began);
        while began.elapsed() < most && changed.elapsed() < most / 8 {
            tokio::task::yield_now().await;
            let commits = wake.borrow().commits;
            if commits != told {
                (told, changed) = (commits, Instant::now());
            }
        }
    }

    /// Tells all members what is new. `false` where they cannot be told alike.
    async fn deliver(&mut self) -> bool {
        loop {
            let mark = *self.wake.borrow();
            if self.members.is_empty() {
                return true;
            }
            if mark.history != self.place.cursor.history {
                return false;
            }
            if mark.revision <= self.place.cursor.revision {
                return true;
            }
            let Some(run) = self.informer.run_after(self.place.cursor, &self.groups.config) else {
                return false;
            };
            let began = Instant::now();
            let bytes = self.encoder.run(&run, self.framing);
            let leaving = self.write_all(&bytes, run.len()).await;
            self.place.take(&run);
            self.let_go(leaving);
            let now = Instant::now();
            self.heartbeat_at = now + self.groups.config.heartbeat_interval;
            self.gather_until = now + pause_after(now - began, run.len());
            self.mark_time().await;
            if self.wake.borrow().revision > self.place.cursor.revision {
                sleep_until(self.gather_until).await;
            }
        }
    }

    /// Writes the same to every member, and gives those who cannot stay.
    async fn write_all(&mut self, bytes: &Bytes, events: usize) -> Vec<(usize, Leave)> {
        let mut leaving = Vec::new();
        let mut told = 0;
        for (key, member) in &mut self.members {
            let written = member.stream.try_write(bytes);
            told += 1;
            match written {
                Poll::Ready(Ok(count)) if count == bytes.len() => {}
                Poll::Ready(Ok(count)) => leaving.push((key, Leave::With(bytes.slice(count..)))),
                Poll::Pending => leaving.push((key, Leave::With(bytes.clone()))),
                Poll::Ready(Err(_)) => leaving.push((key, Leave::Gone)),
            }
            if told % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        if let Some((_, member)) = self.members.iter().next() {
            member.stream.count(told * events, told * bytes.len());
        }
        if !leaving.is_empty() {
            tokio::task::yield_now().await;
            leaving.retain_mut(|(key, leave)| !self.catches_up(*key, leave));
        }
        leaving
    }

    /// Whether a member takes what it did not take before. While the others were told, it has had time to read: to go
    /// on by itself for a moment would cost it as much as a whole round.
    fn catches_up(&mut self, key: usize, leave: &mut Leave) -> bool {
        let Leave::With(rest) = leave else { return false };
        match self.members[key].stream.try_write(rest) {
            Poll::Ready(Ok(count)) => {
                rest.advance(count);
                rest.is_empty()
            }
            Poll::Pending => false,
            Poll::Ready(Err(_)) => {
                *leave = Leave::Gone;
                false
            }
        }
    }

    /// Lets members go.
    fn let_go(&mut self, leaving: Vec<(usize, Leave)>) {
        for (key, leave) in leaving {
            let stream = self.remove(key);
            if let Leave::With(rest) = leave {
                let mut frames = Frames::new();
                frames.share(rest);
                self.groups.release(stream, frames, false);
            }
        }
    }

    fn remove(&mut self, key: usize) -> Box<Attached> {
        let mut stream = self.members.remove(key).stream;
        stream.go_on(&self.place, self.heartbeat_at, self.bookmark_at);
        stream
    }

    /// Sends what is due by the clock.
    async fn mark_time(&mut self) {
        let now = Instant::now();
        if self.members.is_empty() || now < self.heartbeat_at.min(self.bookmark_at) {
            return;
        }
        let mut frames = Frames::new();
        if now >= self.bookmark_at {
            self.bookmark_at = now + self.groups.config.bookmark_interval;
            // The API server's bookmarks move the position where nothing changes.
            self.place.refresh();
            self.encoder.encode(&[self.place.bookmark()], &mut frames);
        } else {
            self.encoder.heartbeat(&mut frames);
        }
        self.heartbeat_at = now + self.groups.config.heartbeat_interval;
        let mut framed = Frames::new();
        self.framing.append(frames, &mut framed);
        if !framed.has_remaining() {
            return;
        }
        let leaving = self.write_all(&framed.to_vec().into(), 0).await;
        self.let_go(leaving);
    }

    /// Lets members go whose time is over; they end by themselves.
    fn end_due(&mut self) {
        let now = Instant::now();
        if self.ends_at.is_none_or(|ends_at| now < ends_at) {
            return;
        }
        let is_due = |member: &Member| member.stream.deadline().is_some_and(|deadline| now >= deadline);
        let due = self.members.iter().filter(|(_, member)| is_due(member));
        let due: Vec<_> = due.map(|(key, _)| (key, Leave::With(Bytes::new()))).collect();
        self.let_go(due);
        self.ends_at = self.members.iter().filter_map(|(_, member)| member.stream.deadline()).min();
    }

    /// Takes in who has come.
    fn admit_all(&mut self) {
        while let Ok(joining) = self.joining.try_recv() {
            self.admit(joining);
        }
    }

    fn admit(&mut self, joining: Joining) {
        let Joining { place, stream } = joining;
        if self.members.is_empty() {
            let now = Instant::now();
            self.place = place;
            self.heartbeat_at = now + self.groups.config.heartbeat_interval;
            self.bookmark_at = now + self.groups.config.bookmark_interval;
        } else if place.cursor != self.place.cursor {
            // Something came in between; it takes that by itself and comes back.
            return self.groups.release(stream, Frames::new(), false);
        }
        self.ends_at = self.ends_at.into_iter().chain(stream.deadline()).min();
        let entry = self.members.vacant_entry();
        let key = entry.key();
        let waker = Waker::from(Arc::new(Sign { key, signs: self.signs.clone() }));
        entry.insert(Member { stream, waker });
        self.listen(key);
    }

    /// Takes what clients said.
    fn hear(&mut self) {
        let keys = std::mem::take(&mut *self.signs.keys.lock().unwrap_or_else(PoisonError::into_inner));
        keys.into_iter().for_each(|key| self.listen(key));
    }

    /// Reads what a client says, if it is there, and waits for more.
    fn listen(&mut self, key: usize) {
        // A key may be another member's by now, of which nothing is to be read.
        let Some(member) = self.members.get_mut(key) else { return };
        let mut context = Context::from_waker(&member.waker);
        let mut space = [0; READ_BYTES];
        let mut buffer = ReadBuf::new(&mut space);
        match Pin::new(&mut member.stream.socket).poll_read(&mut context, &mut buffer) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                let mut stream = self.remove(key);
                let mut frames = Frames::new();
                let last = stream.said(buffer.filled(), &mut frames);
                self.groups.release(stream, frames, last);
            }
            // It has left.
            Poll::Ready(_) => drop(self.members.remove(key)),
        }
    }

    /// Everyone goes on by itself.
    fn dissolve(mut self) {
        self.joining.close();
        let mut open = self.groups.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Another may have its place by now.
        if open.get(&self.kind).is_some_and(mpsc::Sender::is_closed) {
            open.remove(&self.kind);
        }
        drop(open);
        while let Ok(Joining { stream, .. }) = self.joining.try_recv() {
            self.groups.release(stream, Frames::new(), false);
        }
        let keys: Vec<usize> = self.members.iter().map(|(key, _)| key).collect();
        for key in keys {
            let stream = self.remove(key);
            self.groups.release(stream, Frames::new(), false);
        }
    }
}

/// How long what comes next waits for more, after a round of so many events.
fn pause_after(round: Duration, events: usize) -> Duration {
    if events > 1 { round.clamp(GATHER, BURST_GATHER_MAX) } else { GATHER }
}
