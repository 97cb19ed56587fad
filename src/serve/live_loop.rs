//! Live loops: one on each core writes to all streams that have caught up.
//!
//! A task for each stream costs as much as the kernel's work for a small event: it is woken, looks for new events, and all
//! its memory has left the processor's cache since the last one. So one task writes to all live streams, by one system
//! call each. A stream that does not take all of a write leaves the loop and continues by itself until it has caught up.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, watch};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{StreamExt as _, StreamMap};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::live_stream::LiveStream;
use super::stream::{Attached, READ_BYTES};
use crate::cache::Mark;
use crate::encode::{Checksum, Encoder, EncoderKind, Frames, Framing};
use crate::hub::{
    CloseReason, Config, Group, Informer, InformerId, Live, LivePlace, Member, Pacer, Pause, Resumable,
    Round, Told,
};
use crate::k8s::damages;

/// Number of streams that are written to before other tasks may run.
const TURN: usize = 128;

/// Number of rounds of one informer before other informers, new streams and timers have their turn.
const ROUNDS_MAX: usize = 16;

/// Number of streams that may wait to join a loop.
const JOINING_MAX: usize = 4096;

/// The loops of a server.
pub(super) struct LiveLoops {
    config: Config,
    drain: CancellationToken,
    tasks: TaskTracker,
    /// Each one starts with its first stream.
    loops: Vec<Mutex<Option<mpsc::Sender<Joining>>>>,
    next: AtomicUsize,
}

/// A stream that joins a loop.
struct Joining {
    place: LivePlace,
    stream: Box<LiveStream>,
}

/// One loop.
struct LiveLoop {
    loops: Arc<LiveLoops>,
    joining: mpsc::Receiver<Joining>,
    live: Live<Listener>,
    /// Wake-ups by commits of the followed informers.
    commits: StreamMap<InformerId, WatchStream<Mark>>,
    signs: Arc<Signs>,
    pacer: Pacer,
    /// How many objects could not be unpacked in this process when the loop last looked. Every stream in the loop began at this number.
    damages: u64,
}

/// A stream in a loop.
struct Listener {
    stream: Box<LiveStream>,
    /// Wakes the loop when the client sends bytes or leaves.
    waker: Waker,
    /// What its group's encoder had said when it joined.
    joined: Checksum,
}

/// Streams whose clients have sent bytes or left.
#[derive(Default)]
struct Signs {
    keys: Mutex<Vec<usize>>,
    wake: Notify,
}

struct Sign {
    key: usize,
    signs: Arc<Signs>,
}

/// How a stream leaves the loop.
enum Leave {
    /// The client is gone.
    Gone,
    /// It did not take all bytes: these are left.
    With(Bytes),
}

impl Wake for Sign {
    fn wake(self: Arc<Self>) {
        self.signs.keys.lock().unwrap_or_else(PoisonError::into_inner).push(self.key);
        self.signs.wake.notify_one();
    }
}

impl Member for Listener {
    type Kind = (EncoderKind, Framing);
    type Encoder = Encoder;

    fn kind(&self) -> Self::Kind {
        self.stream.kind()
    }

    fn encoder(&self, informers: &[Arc<Informer>]) -> Encoder {
        self.stream.kind().0.encoder(informers)
    }

    fn advance(encoder: &mut Encoder, positions: &[Resumable]) {
        encoder.advance_to(positions.iter());
    }

    fn joins(&mut self, encoder: &Encoder) {
        self.joined = encoder.checksum();
    }

    fn leaves(&mut self, encoder: &Encoder) {
        self.stream.said_elsewhere(encoder.checksum().since(self.joined));
    }
}

// === impl LiveLoops ===

impl LiveLoops {
    pub(super) fn new(config: Config, drain: CancellationToken, tasks: TaskTracker) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let loops = (0..cores).map(|_| Mutex::default()).collect();
        Arc::new(Self { config, drain, tasks, loops, next: AtomicUsize::new(0) })
    }

    /// Takes in a stream that has caught up.
    fn join(self: &Arc<Self>, place: LivePlace, stream: LiveStream) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.loops.len();
        let mut open = self.loops[number].lock().unwrap_or_else(PoisonError::into_inner);
        let mut joining = Joining { place, stream: Box::new(stream) };
        if let Some(sender) = &*open {
            match sender.try_send(joining) {
                Ok(()) => return,
                // The stream continues by itself, and tries again.
                Err(TrySendError::Full(back)) => {
                    return self.release(back.stream.leave(&back.place));
                }
                // That loop has just ended.
                Err(TrySendError::Closed(back)) => joining = back,
            }
        }
        let (sender, receiver) = mpsc::channel(JOINING_MAX);
        let live_loop = LiveLoop {
            loops: self.clone(),
            joining: receiver,
            live: Live::new(self.config),
            commits: StreamMap::new(),
            signs: Arc::default(),
            pacer: Pacer::new(Instant::now()),
            damages: damages(),
        };
        // A new channel has room.
        let _ = sender.try_send(joining);
        *open = Some(sender);
        self.tasks.spawn(unconstrained(live_loop.run()));
    }

    /// Lets a stream continue in a task of its own.
    fn release(self: &Arc<Self>, stream: Box<Attached>) {
        self.tasks.spawn(self.clone().follow(stream));
    }

    /// Lets a stream write by itself, in this task, until it ends or has caught up. Takes it in then.
    pub(super) async fn follow(self: Arc<Self>, stream: Box<Attached>) {
        if let Some((place, kind, stream)) = stream.run(&self.drain).await {
            self.join(place, LiveStream::new(*stream, kind));
        }
    }
}

// === impl LiveLoop ===

impl LiveLoop {
    /// Serves its streams until the process ends.
    async fn run(mut self) {
        let drained = self.loops.drain.clone();
        let signs = self.signs.clone();
        loop {
            if drained.is_cancelled() {
                return self.dissolve();
            }
            let more = self.deliver().await;
            self.tell_due().await;
            self.admit_all();
            self.hear();
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            let at = self.live.next_due();
            tokio::select! {
                biased;
                Some(_) = self.commits.next(), if !self.commits.is_empty() => self.gather().await,
                Some(joining) = self.joining.recv() => {
                    // Deliver changes from before it joins first, also those that its view has gathered up to now.
                    self.deliver().await;
                    self.tell_due().await;
                    self.admit(joining);
                }
                () = signs.wake.notified() => {}
                () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {}
                () = drained.cancelled() => {}
            }
        }
    }

    /// Sends what is due.
    async fn tell_due(&mut self) {
        loop {
            let round = self.live.due(Instant::now());
            let more = round.more;
            self.send(round).await;
            if !more {
                return;
            }
        }
    }

    /// Waits for more changes shortly after a round, and for a moment if writing to all streams takes much longer.
    async fn gather(&mut self) {
        match self.pacer.before_round(Instant::now(), self.live.crowd()) {
            Pause::None => {}
            Pause::Until(at) => sleep_until(at).await,
            Pause::Yield { most, quiet } => {
                let wakes: Vec<watch::Receiver<Mark>> =
                    self.live.informers().map(|informer| informer.reader.wake()).collect();
                let commits = || wakes.iter().map(|wake| wake.borrow().commits).sum::<u64>();
                let began = Instant::now();
                let (mut seen, mut changed) = (commits(), began);
                while began.elapsed() < most && changed.elapsed() < quiet {
                    tokio::task::yield_now().await;
                    let now = commits();
                    if now != seen {
                        (seen, changed) = (now, Instant::now());
                    }
                }
            }
        }
    }

    /// Sends new events. Returns whether more are waiting, as an informer may change faster than its events are sent.
    async fn deliver(&mut self) -> bool {
        let followed: Vec<InformerId> = self.live.informers().map(|informer| informer.id()).collect();
        let mut unfinished = false;
        for informer in followed {
            for number in 1..=ROUNDS_MAX {
                let last = number == ROUNDS_MAX;
                let began = Instant::now();
                let round = self.live.advance(informer, began);
                let more = round.more;
                // Further changes of a small view are few. Waiting for them saves nothing, and delays those of all other views.
                let is_shared = self.live.is_shared(&round);
                let may_wait = is_shared && !round.is_behind;
                let events = round.told.iter().map(|(_, told)| len_of(told)).max();
                self.send(round).await;
                if let Some(events) = events {
                    let now = Instant::now();
                    self.pacer.sent(now, now - began, if is_shared { events } else { 1 });
                }
                unfinished |= more && last;
                if !more {
                    break;
                }
                let pause = self.pacer.before_round(Instant::now(), 0);
                if let (Some(_), true, Pause::Until(at)) = (events, may_wait, pause) {
                    sleep_until(at).await;
                }
                tokio::task::yield_now().await;
            }
        }
        unfinished
    }

    /// Writes a round to the members of each view.
    async fn send(&mut self, round: Round) {
        if self.ends_by_damage() {
            return;
        }
        for key in round.leaving {
            self.release(key, Frames::new());
        }
        let mut written = 0;
        for (view, told) in &round.told {
            let mut leaving = Vec::new();
            let groups = self.live.groups_mut(*view).0.len();
            for at in 0..groups {
                let (groups, mut members) = self.live.groups_mut(*view);
                // The view may have been removed with its last stream.
                let Some(group) = groups.get_mut(at) else { break };
                let (bytes, events) = render(group, told);
                if damages() != self.damages {
                    break;
                }
                if bytes.is_empty() {
                    continue;
                }
                let mut count = 0;
                for key in &group.members {
                    let stream = &mut members.get_mut(*key).stream;
                    match stream.try_write(&bytes) {
                        Poll::Ready(Ok(count)) if count == bytes.len() => {}
                        Poll::Ready(Ok(count)) => leaving.push((*key, Leave::With(bytes.slice(count..)))),
                        Poll::Pending => leaving.push((*key, Leave::With(bytes.clone()))),
                        Poll::Ready(Err(_)) => leaving.push((*key, Leave::Gone)),
                    }
                    count += 1;
                    written += 1;
                    if written % TURN == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                if let Some(key) = group.members.first() {
                    members.get_mut(*key).stream.count(count * events, count * bytes.len());
                }
            }
            self.let_go(leaving).await;
            if self.ends_by_damage() {
                return;
            }
        }
    }

    /// Ends all streams if an object could not be unpacked: events that were made of it must not be sent. The clients come back with what
    /// they have.
    fn ends_by_damage(&mut self) -> bool {
        let damages = damages();
        if damages == std::mem::replace(&mut self.damages, damages) {
            return false;
        }
        for key in self.live.keys() {
            let mut stream = self.take_out(key);
            stream.end(CloseReason::Regrouped);
            self.loops.release(stream);
        }
        true
    }

    /// Handles the streams that did not take all bytes.
    async fn let_go(&mut self, mut leaving: Vec<(usize, Leave)>) {
        if leaving.is_empty() {
            return;
        }
        // Their clients had time to read while the others were written to. Leaving the loop for a moment would cost as much as
        // a whole round.
        tokio::task::yield_now().await;
        leaving.retain_mut(|(key, leave)| !self.catches_up(*key, leave));
        for (key, leave) in leaving {
            match leave {
                Leave::Gone => drop(self.take_out(key)),
                Leave::With(rest) => {
                    let mut frames = Frames::new();
                    frames.share(rest);
                    self.release(key, frames);
                }
            }
        }
    }

    /// Whether a stream now takes the bytes that were left.
    fn catches_up(&mut self, key: usize, leave: &mut Leave) -> bool {
        let (Leave::With(rest), Some(member)) = (&mut *leave, self.live.member_mut(key)) else {
            return false;
        };
        match member.stream.try_write(rest) {
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

    /// Takes a stream out, and moves it to its place.
    fn take_out(&mut self, key: usize) -> Box<Attached> {
        let (Listener { stream, .. }, place) = self.live.leave(key);
        let stream = stream.leave(&place);
        for source in &place.sources {
            if !self.live.follows(source.informer.id()) {
                self.commits.remove(&source.informer.id());
            }
        }
        stream
    }

    /// Lets a stream continue in a task of its own, with the bytes that are left to write.
    fn release(&mut self, key: usize, rest: Frames) {
        let mut stream = self.take_out(key);
        stream.frames = rest;
        self.loops.release(stream);
    }

    /// Takes in the streams that wait to join.
    fn admit_all(&mut self) {
        while let Ok(joining) = self.joining.try_recv() {
            self.admit(joining);
        }
    }

    fn admit(&mut self, joining: Joining) {
        self.ends_by_damage();
        let Joining { place, stream } = joining;
        if stream.damages() != self.damages {
            // It may have passed over a change whose object it could not read.
            let mut stream = stream.leave(&place);
            stream.end(CloseReason::Regrouped);
            return self.loops.release(stream);
        }
        for source in &place.sources {
            let id = source.informer.id();
            if !self.commits.contains_key(&id) {
                // Subscribed before the view is made, so that a commit in between wakes the loop.
                self.commits.insert(id, WatchStream::from_changes(source.informer.reader.wake()));
            }
        }
        let ids: Vec<_> = place.sources.iter().map(|source| source.informer.id()).collect();
        let selection = place.selection.clone();
        let listener = Listener { stream, waker: Waker::noop().clone(), joined: Checksum::default() };
        match self.live.join(place, listener, Instant::now()) {
            Ok(key) => {
                if let Some(member) = self.live.member_mut(key) {
                    member.waker = Waker::from(Arc::new(Sign { key, signs: self.signs.clone() }));
                }
                self.listen(key);
                // There may be changes since it has left its task.
                self.signs.wake.notify_one();
            }
            // A change of its selection lies between; it takes that by itself and joins again.
            Err((Listener { stream, .. }, place)) => {
                let mut stream = stream.leave(&place);
                if let Some(at) = self.live.gathers_until(&ids, &selection) {
                    stream.rest_until(at);
                }
                ids.iter().filter(|id| !self.live.follows(**id)).for_each(|id| {
                    self.commits.remove(id);
                });
                self.loops.release(stream);
            }
        }
    }

    /// Handles the clients that have sent bytes or left.
    fn hear(&mut self) {
        let keys = std::mem::take(&mut *self.signs.keys.lock().unwrap_or_else(PoisonError::into_inner));
        keys.into_iter().for_each(|key| self.listen(key));
    }

    /// Reads what a client has sent, if anything, and waits for more.
    fn listen(&mut self, key: usize) {
        // The key may belong to another stream by now, which then has nothing to read.
        let Some(member) = self.live.member_mut(key) else { return };
        if !member.stream.hears() {
            return;
        }
        let mut context = Context::from_waker(&member.waker);
        let mut space = [0; READ_BYTES];
        let mut buffer = ReadBuf::new(&mut space);
        match Pin::new(&mut member.stream.socket).poll_read(&mut context, &mut buffer) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                let mut stream = self.take_out(key);
                stream.said(buffer.filled());
                self.loops.release(stream);
            }
            Poll::Ready(Ok(())) if member.stream.ended_half() => self.release(key, Frames::new()),
            // The client has left.
            Poll::Ready(_) => drop(self.take_out(key)),
        }
    }

    /// Lets every stream continue and end by itself, at shutdown.
    fn dissolve(mut self) {
        self.joining.close();
        while let Ok(Joining { place, stream }) = self.joining.try_recv() {
            self.loops.release(stream.leave(&place));
        }
        for key in self.live.keys() {
            self.release(key, Frames::new());
        }
    }
}

/// The bytes for the members of a group, in one piece, and the number of events in them.
fn render(group: &mut Group<Listener>, told: &Told) -> (Bytes, usize) {
    let framing = group.kind().1;
    match told {
        Told::Shared(batch) => (group.encoder.shared(batch, framing), batch.len()),
        Told::Events(events) => (group.encoder.whole(events, framing), events.len()),
        Told::Heartbeat => (group.encoder.whole_heartbeat(framing), 0),
    }
}

fn len_of(told: &Told) -> usize {
    match told {
        Told::Shared(batch) => batch.len(),
        Told::Events(events) => events.len(),
        Told::Heartbeat => 0,
    }
}
