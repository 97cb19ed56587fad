//! What is known of each subscriber, for the operator who asks which client is slow. No async, no clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Longest request text that is kept, in bytes.
const REQUEST_BYTES_MAX: usize = 512;

/// How a subscriber is served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Its caches are not complete, or not as far as its token.
    Starting,
    /// It is given its first state.
    Snapshot,
    /// It is given what changed while it was away or slow.
    CatchingUp,
    /// It has everything, or reads the journal by itself.
    Following,
    /// A live view serves it: each change is written to it at once.
    Live,
}

/// One subscriber in figures. Its writer updates them; nobody waits for anybody.
#[derive(Debug)]
pub struct Follower {
    /// Its number in this process.
    pub id: u64,
    since: Instant,
    /// The request without its token, the transport, and the client's address.
    origin: OnceLock<Origin>,
    stage: AtomicU8,
    /// Whether its writer waits for the client to take bytes.
    is_writing: AtomicU8,
    behind: AtomicU64,
    /// When it last had everything, in milliseconds since it began; `u64::MAX` if never.
    caught_up_ms: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
}

/// Where a subscriber comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Path and query, without tokens.
    pub request: String,
    /// The transport's name in metrics.
    pub transport: &'static str,
    /// The client's address.
    pub peer: String,
}

/// What is known of a follower at one moment.
#[derive(Clone, Debug)]
pub struct FollowerSummary {
    /// Its number.
    pub id: u64,
    /// Where it comes from; `None` before its answer begins.
    pub origin: Option<Origin>,
    /// Since when it follows.
    pub age: Duration,
    /// How it is served.
    pub stage: Stage,
    /// Whether it was last seen waiting for its client to take bytes.
    pub is_writing: bool,
    /// Changes of its informers between its place and the head, when it last read; those of other selections are among them.
    pub behind: u64,
    /// Since when it has not had everything; zero where it has.
    pub lag: Duration,
    /// Events that it was given by itself; those of a live view are not counted for each member.
    pub events: u64,
    /// Bytes that were written to its socket, or handed to it.
    pub bytes: u64,
}

/// All followers.
#[derive(Debug, Default)]
pub(super) struct Followers {
    all: Mutex<HashMap<u64, Arc<Follower>>>,
    next: AtomicU64,
}

const STAGES: [Stage; 5] =
    [Stage::Starting, Stage::Snapshot, Stage::CatchingUp, Stage::Following, Stage::Live];

impl Stage {
    /// The word for the operator.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Snapshot => "snapshot",
            Self::CatchingUp => "catching-up",
            Self::Following => "following",
            Self::Live => "live",
        }
    }

    /// All of them.
    pub fn all() -> [Self; 5] {
        STAGES
    }
}

impl Followers {
    /// Registers a follower.
    pub(super) fn add(&self, now: Instant) -> Arc<Follower> {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let follower = Arc::new(Follower {
            id,
            since: now,
            origin: OnceLock::new(),
            stage: AtomicU8::new(0),
            is_writing: AtomicU8::new(0),
            behind: AtomicU64::new(0),
            caught_up_ms: AtomicU64::new(u64::MAX),
            events: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        self.lock().insert(id, follower.clone());
        follower
    }

    pub(super) fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// All of them at this moment, in no order.
    pub(super) fn summaries(&self, now: Instant) -> Vec<FollowerSummary> {
        let all: Vec<_> = self.lock().values().cloned().collect();
        all.iter().map(|follower| follower.summary(now)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Follower>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower {
    /// Notes where it comes from.
    pub fn comes_from(&self, mut origin: Origin) {
        let cut = origin.request.floor_char_boundary(REQUEST_BYTES_MAX);
        origin.request.truncate(cut);
        // Set once, at the beginning of its answer.
        let _ = self.origin.set(origin);
    }

    /// Notes that a live view serves it.
    pub fn joined(&self, now: Instant) {
        self.reached(Stage::Live, 0, now);
    }

    /// Notes that it leaves its live view, where it had everything until now.
    pub fn left(&self, now: Instant) {
        self.reached(Stage::Following, 0, now);
    }

    /// Notes how it is served and how many changes it is behind.
    pub(super) fn reached(&self, stage: Stage, behind: u64, now: Instant) {
        self.stage.store(stage as u8, Ordering::Relaxed);
        self.behind.store(behind, Ordering::Relaxed);
        if behind == 0 && stage >= Stage::Following {
            let ms = now.saturating_duration_since(self.since).as_millis();
            self.caught_up_ms.store(u64::try_from(ms).unwrap_or(u64::MAX - 1), Ordering::Relaxed);
        }
    }

    /// Counts events and bytes. Only the writer of the subscriber calls this.
    pub fn sent(&self, events: usize, bytes: usize) {
        // With one writer no addition can be lost.
        let add = |count: &AtomicU64, more: usize| {
            count.store(count.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
        };
        add(&self.events, events);
        add(&self.bytes, bytes);
    }

    /// Notes whether its writer waits for the client.
    pub fn writes(&self, is_writing: bool) {
        self.is_writing.store(u8::from(is_writing), Ordering::Relaxed);
    }

    fn summary(&self, now: Instant) -> FollowerSummary {
        let age = now.saturating_duration_since(self.since);
        let stage = STAGES[usize::from(self.stage.load(Ordering::Relaxed)).min(STAGES.len() - 1)];
        let behind = self.behind.load(Ordering::Relaxed);
        let is_writing = self.is_writing.load(Ordering::Relaxed) != 0;
        let has_all = stage >= Stage::Following && behind == 0 && !is_writing;
        let lag = match self.caught_up_ms.load(Ordering::Relaxed) {
            _ if has_all => Duration::ZERO,
            u64::MAX => age,
            ms => age.saturating_sub(Duration::from_millis(ms)),
        };
        let (events, bytes) = (self.events.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let origin = self.origin.get().cloned();
        FollowerSummary { id: self.id, origin, age, stage, is_writing, behind, lag, events, bytes }
    }
}
