//! The lock around a cache, its two ends, and the wake-up.
//!
//! Why one `RwLock` and a `watch` channel instead of a channel per subscriber: readers own a cursor, so
//! a slow one costs nothing, the writer never waits, and a wake-up carries no data that could pile up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::catch_up::CatchUp;
use super::inquiries::Inquiries;
use super::scope::{Scope, Wakes};
use super::state::{GivenOut, State};
use super::uses::Uses;
use super::{Change, Commit, Config, Cursor, Delta, Located, Lost, ReflectorStats, Revision, Snapshot};
use crate::k8s::{Key, Object, ResourceVersion};

/// Makes a cache. Until the API server is heard, its age counts from `now`.
pub fn cache(config: Config, now: Instant) -> (Writer, Reader) {
    let (wake_tx, wake_rx) = watch::channel(Mark::default());
    let shared = Arc::new(Shared {
        state: RwLock::new(State::new(config)),
        uses: Uses::default(),
        condition: Mutex::new(ReflectorCondition {
            phase: Phase::Starting,
            message: None,
            retry_at: None,
            forbidden: false,
            quiet_max: None,
        }),
        stats: Arc::default(),
        born: now,
        heard_ms: AtomicU64::new(0),
        inquiries: Inquiries::default(),
        wake_tx,
        scoped: Wakes::default(),
    });
    (Writer { shared: shared.clone() }, Reader { shared, wake_rx })
}

#[derive(Debug)]
pub(super) struct Shared {
    state: RwLock<State>,
    pub(super) uses: Uses,
    condition: Mutex<ReflectorCondition>,
    stats: Arc<ReflectorStats>,
    born: Instant,
    /// Milliseconds from `born` to when the API server was last heard; 0 is never.
    heard_ms: AtomicU64,
    /// What readers request of the API server.
    pub(super) inquiries: Inquiries,
    /// Here and not in the [`Writer`], so that it never closes: a reader may outlive the reflector.
    wake_tx: watch::Sender<Mark>,
    /// Wakes readers of one namespace, object or value.
    pub(super) scoped: Wakes,
}

/// The end that changes a cache. Not `Clone`: one reflector for each cache.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
}

/// The end that reads a cache. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) shared: Arc<Shared>,
    wake_rx: watch::Receiver<Mark>,
}

/// The wake-up of a reader of one namespace, object or value.
#[derive(Debug)]
pub struct ScopeWake {
    shared: Arc<Shared>,
    scope: Scope,
    wake: Arc<Notify>,
}

/// How far a cache is. Readers are woken with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Whether the cache was complete at least once.
    pub synced: bool,
    /// The newest revision.
    pub revision: Revision,
    /// Rises with each history.
    pub history: u64,
    /// Rises with each commit that readers can see, bookmarks included.
    pub commits: u64,
    /// Rises with each relist, in which short-lived objects may have been missed.
    pub relists: u64,
}

/// The activity of a cache's reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not begun.
    Starting,
    /// A list is under way.
    Listing,
    /// A watch, or a probe before it, was requested, and the head of the answer is awaited.
    Connecting,
    /// The watch is open.
    Watching,
    /// Waiting before the next try.
    BackingOff,
    /// The reflector panicked. Nothing changes until another one replaces it.
    Failed,
}

/// The activity of a cache's reflector, and its last failure in a sentence.
#[derive(Clone, Debug)]
pub struct ReflectorCondition {
    /// Its activity.
    pub phase: Phase,
    /// The last failure; `None` after a success.
    pub message: Option<String>,
    /// When the next try comes, while backing off.
    pub retry_at: Option<Instant>,
    /// Whether the last failure is that the API server forbids the request.
    pub forbidden: bool,
    /// While the connection of the open watch is known to be alive by other means: the time for which nothing may be heard all
    /// the same.
    pub quiet_max: Option<Duration>,
}

/// A run of changes.
#[derive(Debug)]
pub struct Batch {
    /// The changes, oldest first, without gaps.
    pub changes: Vec<Arc<Change>>,
    /// Where the reader is after them.
    pub cursor: Cursor,
    /// The position after them; ahead of the last change's when the reader is at the head.
    pub position: ResourceVersion,
    /// Whether nothing is left.
    pub caught_up: bool,
}

/// A cache in figures.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Whether it was complete at least once.
    pub synced: bool,
    /// Its resourceVersion; zero before the first sync.
    pub position: ResourceVersion,
    /// Objects held.
    pub objects: usize,
    /// The sum of their JSON, in bytes.
    pub bytes: usize,
    /// The bytes that hold it: fewer where objects are packed, dictionaries included.
    pub held: usize,
    /// Changes in the journal.
    pub journal_len: usize,
    /// Bytes that only the journal holds.
    pub journal_bytes: usize,
    /// Deletions remembered.
    pub tombstones: usize,
    /// The newest revision: changes since the first sync.
    pub revision: Revision,
}

// === impl Writer ===

impl Writer {
    /// Commits a batch in one step: readers see all of it or nothing. The lock is held for memory work only.
    pub fn commit(&mut self, deltas: Vec<Delta>) -> Commit {
        let mut commit = Commit::default();
        self.read_values(&deltas);
        let mut state = self.shared.write();
        let before = (state.synced, state.store.cursor, state.store.position.clone(), state.relists);
        for delta in deltas {
            state.apply(delta, &mut commit);
        }
        let cursor = state.store.cursor;
        let (synced, relists) = (state.synced, state.relists);
        let (touched, spent) = (state.touched.take_dirty(), std::mem::take(&mut state.spent));
        // Items of a pass become visible only at its end.
        let shows = before != (synced, cursor, state.store.position.clone(), relists);
        // Released before readers are woken, so that they do not wait for it.
        drop(state);
        if shows {
            self.shared.wake_tx.send_modify(|mark| {
                let commits = mark.commits + 1;
                let (revision, history) = (cursor.revision, cursor.history);
                *mark = Mark { synced, revision, history, commits, relists };
            });
            if cursor.history == before.1.history {
                self.shared.scoped.wake(touched);
            } else {
                self.shared.scoped.wake_all();
            }
        }
        drop(spent);
        commit
    }

    /// Prepares the end of a list of which every object was committed: looks for objects of the cache that the list does not name,
    /// for one turn. Returns whether turns are left. [`Delta::PassEnd`] takes them all at once otherwise.
    pub fn look_for_unnamed(&mut self) -> bool {
        self.shared.write().look_for_unnamed()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Reads the values that indexes and selections need, so that they are not read under the lock.
    fn read_values(&self, deltas: &[Delta]) {
        let paths = self.shared.read().indexes.paths.clone();
        if paths.paths().is_empty() {
            return;
        }
        for delta in deltas {
            if let Delta::Apply(object) | Delta::Delete(object) | Delta::PassItem(object) = delta {
                object.values(&paths);
            }
        }
    }

    /// Notes that bytes arrived from the API server.
    pub fn heard(&self, now: Instant) {
        let millis = now.saturating_duration_since(self.shared.born).as_millis() as u64;
        self.shared.heard_ms.store(millis.max(1), Ordering::Relaxed);
    }

    /// Sets the activity of the reflector.
    pub fn set_condition(&self, condition: ReflectorCondition) {
        *self.shared.condition.lock().unwrap_or_else(PoisonError::into_inner) = condition;
    }

    /// A reading end.
    pub fn reader(&self) -> Reader {
        self.shared.reader()
    }

    /// The cache's resourceVersion; zero before the first sync.
    pub fn position(&self) -> ResourceVersion {
        self.shared.read().store.position.clone()
    }
}

// === impl ScopeWake ===

impl ScopeWake {
    /// Marks commits so far as seen. Call it before reading, or a commit may be missed.
    pub fn saw(&self) {
        let _ = self.wake.notified().now_or_never();
    }

    /// Waits for a commit that was not seen yet.
    pub fn woken(&self) -> Notified<'_> {
        self.wake.notified()
    }

    /// The head, with its position, if nothing of the scope lies between it and a cursor.
    pub fn head_if_quiet_since(&self, cursor: Cursor) -> Option<(Cursor, ResourceVersion)> {
        let state = self.shared.read();
        let head = state.store.cursor;
        let quiet =
            head.history == cursor.history && state.touched.is_quiet_since(self.scope, cursor.revision);
        quiet.then(|| (head, state.store.position.clone()))
    }
}

impl Drop for ScopeWake {
    fn drop(&mut self) {
        self.shared.forget(self.scope, &self.wake);
    }
}

// === impl Reader ===

impl Reader {
    /// The counters of the reflector that writes the cache.
    pub fn stats(&self) -> &Arc<ReflectorStats> {
        &self.shared.stats
    }

    /// The current state: a pointer copy.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.read().store.clone()
    }

    /// The newest place in the journal, and the version of the current state.
    pub fn head(&self) -> (Cursor, ResourceVersion) {
        let state = self.shared.read();
        (state.store.cursor, state.store.position.clone())
    }

    /// The object that changed last among those held. Costs a scan of all of them if nothing changed since the first list.
    pub fn newest(&self) -> Option<Object> {
        let state = self.shared.read();
        if let Some(newest) = state.changed_last() {
            return Some(newest.clone());
        }
        let store = state.store.clone();
        // The scan does without the lock.
        drop(state);
        store
            .after(None)
            .reduce(|a, b| if b.resource_version() > a.resource_version() { b } else { a })
            .cloned()
    }

    /// How far the cache is. Does not take the lock.
    pub fn mark(&self) -> Mark {
        *self.wake_rx.borrow()
    }

    /// A receiver that wakes at each commit. Mark it seen *before* reading, or a commit may be missed.
    pub fn wake(&self) -> watch::Receiver<Mark> {
        self.wake_rx.clone()
    }

    /// A wake-up for a reader of one namespace, of one object in it, or of one cluster-scoped object. It wakes at each commit
    /// that touches this scope, when versions went back, and at [`Reader::rouse`]. `wake` may be that of others of the same reader.
    pub fn wake_scoped(&self, namespace: &str, name: Option<&str>, wake: Arc<Notify>) -> ScopeWake {
        let scope = match name {
            Some(name) => Scope::object(&Key::new(namespace, name)),
            None => Scope::namespace(namespace),
        };
        Shared::wake_at(&self.shared, scope, wake)
    }

    /// Wakes every waiting reader without a commit.
    pub fn rouse(&self) {
        self.shared.wake_waiting();
        self.shared.scoped.wake_all();
    }

    /// At most `len_max` changes after a cursor, oldest first; `None` if the cursor left the journal, and
    /// the reader must [`Reader::catch_up`].
    ///
    /// Shape: revisions rise by one. Cost: `len_max` pointer clones under the read lock.
    pub fn changes_after(&self, cursor: Cursor, len_max: usize) -> Option<Batch> {
        let state = self.shared.read();
        let head = state.store.cursor;
        if cursor.history != head.history || cursor.revision > head.revision {
            return None;
        }
        let changes = state.journal().after(cursor.revision, len_max)?;
        let revision = changes.last().map_or(cursor.revision, |change| change.revision);
        let caught_up = revision == head.revision;
        let position = match changes.last() {
            Some(last) if !caught_up => last.position.clone(),
            _ => state.store.position.clone(),
        };
        Some(Batch { changes, cursor: Cursor { revision, ..cursor }, position, caught_up })
    }

    /// At most `len_max` objects that changed after a cursor, each once in its latest state.
    ///
    /// Shape: by rising revision, so that every prefix is a place to resume from. To be repeated until `done`: an object that
    /// changes meanwhile moves to the end, so only then [`Reader::changes_after`] continues without a gap.
    ///
    /// # Errors
    /// [`Lost`] when deletions since the cursor are no longer known.
    pub fn catch_up(&self, cursor: Cursor, len_max: usize) -> Result<CatchUp, Lost> {
        self.shared.read().catch_up(cursor, len_max)
    }

    /// As [`Reader::catch_up`]. With the last part comes the state that the reader then has.
    ///
    /// # Errors
    /// Those of [`Reader::catch_up`].
    pub fn catch_up_to_state(
        &self,
        cursor: Cursor,
        len_max: usize,
    ) -> Result<(CatchUp, Option<Snapshot>), Lost> {
        let state = self.shared.read();
        let piece = state.catch_up(cursor, len_max)?;
        let then = piece.done.then(|| state.store.clone());
        Ok((piece, then))
    }

    /// Where a reader continues that has everything up to a resourceVersion, which may be from any replica.
    pub fn locate(&self, version: &ResourceVersion) -> Located {
        self.shared.read().locate(version)
    }

    /// As [`Reader::locate`], for a client that lists and then watches from the list's version. After the API server's
    /// versions went back, a version may be of either history. A version that a list of this history had
    /// ([`Reader::note_listed`]) is taken as this history's. A client of the old history that holds exactly the same
    /// version was told to start over, if it was connected.
    pub fn locate_listed(&self, version: &ResourceVersion) -> Located {
        let state = self.shared.read();
        if state.was_listed(version) { state.locate_in_history(version) } else { state.locate(version) }
    }

    /// Notes that a client got a list with the version of this snapshot, or with an earlier one of the same state.
    pub fn note_listed(&self, snapshot: &Snapshot, version: &ResourceVersion) {
        let is_new = {
            let state = self.shared.read();
            state.is_ambiguous(version) && !state.was_listed(version)
        };
        if is_new {
            self.shared.write().note_listed(snapshot.cursor, version);
        }
    }

    /// The version from which on the journal has every change.
    pub fn complete_since(&self) -> ResourceVersion {
        self.shared.read().journal().base_version().clone()
    }

    /// The versions that this cache gave out, for the cache that takes its place.
    pub fn given_out(&self) -> GivenOut {
        self.shared.read().given_out()
    }

    /// Learns what the cache before this one gave out. Clients come back with those versions, and a restore may take them back
    /// before this cache has reached them.
    pub fn take_over(&self, given_out: &GivenOut) {
        if !self.shared.read().knows(given_out) {
            self.shared.write().take_over(given_out);
        }
    }

    /// Whether a relist skipped changes after a version. Objects that were created and deleted in the gap are unknown here, so
    /// a reader that may hold one cannot be told of its deletion.
    pub fn skipped_since(&self, version: &ResourceVersion) -> bool {
        self.shared.read().skipped_since(version)
    }

    /// The figures.
    pub fn summary(&self) -> Summary {
        let state = self.shared.read();
        Summary {
            synced: state.synced,
            position: state.store.position.clone(),
            objects: state.store.len(),
            bytes: state.store.bytes,
            held: state.store.held + state.dictionaries.1,
            journal_len: state.journal().len(),
            journal_bytes: state.journal().bytes(),
            tombstones: state.tombstones_len(),
            revision: state.store.cursor.revision,
        }
    }

    /// The activity of the reflector, and its last failure.
    pub fn condition(&self) -> ReflectorCondition {
        self.shared.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Marks the reflector as failed, after it has panicked.
    pub fn set_failed(&self, why: &str) {
        let message = Some(why.to_owned());
        let failed = ReflectorCondition {
            phase: Phase::Failed,
            message,
            retry_at: None,
            forbidden: false,
            quiet_max: None,
        };
        *self.shared.condition.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }

    /// How long ago the API server was last heard; since the start if never.
    pub fn age(&self, now: Instant) -> Duration {
        let heard = Duration::from_millis(self.shared.heard_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.shared.born).saturating_sub(heard)
    }

    /// The revision from which on the journal is complete.
    pub fn journal_begin(&self) -> Revision {
        self.shared.read().journal().base_revision()
    }
}

impl Shared {
    /// A reading end.
    pub(super) fn reader(self: &Arc<Self>) -> Reader {
        Reader { shared: self.clone(), wake_rx: self.wake_tx.subscribe() }
    }

    /// Wakes readers that wait for any commit, though there was none.
    pub(super) fn wake_waiting(&self) {
        self.wake_tx.send_modify(|mark| mark.commits += 1);
    }

    /// A wake-up at each commit that touches a scope.
    pub(super) fn wake_at(shared: &Arc<Self>, scope: Scope, wake: Arc<Notify>) -> ScopeWake {
        shared.listen(scope, wake.clone());
        ScopeWake { shared: shared.clone(), scope, wake }
    }

    /// Wakes a reader from now on at each commit that touches a scope.
    pub(super) fn listen(&self, scope: Scope, wake: Arc<Notify>) {
        let mut waiting = self.scoped.lock();
        waiting.listen(scope, wake);
        let mut state = self.write();
        let now = state.store.cursor.revision;
        state.touched.begin(scope, now);
    }

    /// Wakes a reader no longer at commits that touch a scope.
    pub(super) fn forget(&self, scope: Scope, wake: &Arc<Notify>) {
        let mut waiting = self.scoped.lock();
        if waiting.unlisten(scope, wake) {
            self.write().touched.end(scope);
        }
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        // A panic under the write lock is a bug. The state is still consistent enough to be read, as each step is small.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}
