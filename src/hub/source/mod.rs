//! A source: a subscriber's position in one informer, and what it pulls from there. No async, no clock.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::event::{Event, EventKind, ResetReason};
use super::generations::{Generations, HeldState, Holding};
use super::informer::Retirement;
use super::join::{changes_between, undo};
use super::live_place::LivePosition;
use super::token::TokenKind;
use super::{Candidates, CloseReason, Config, Informer, Matcher, Resumable, Selection};
use crate::cache::{Backfill, BackfillAnswer, Cursor, Located, Mark, Revision, ScopeWake};
use crate::k8s::{Key, Object, ResourceVersion};

mod pull;

/// Largest number of objects that are read for one batch, matching or not: about a millisecond.
const LOOKED_AT_MAX: usize = 4096;

/// One informer of a subscription.
pub(super) struct Source {
    pub(super) informer: Arc<Informer>,
    matcher: Matcher,
    generations: Arc<Generations>,
    wake: watch::Receiver<Mark>,
    /// The scope whose changes wake its subscriber, if only one namespace, object or value is selected.
    scope: Option<ScopeWake>,
    phase: Phase,
    cursor: Cursor,
    /// The version by which the cursor was found, until something is read from there. A cursor behind the journal is found
    /// among the last changes of objects, and may be beyond earlier changes that the client needs.
    located_by: Option<ResourceVersion>,
    /// How the current catch-up finds changes.
    finding: Option<Finding>,
    /// Where the client resumes if it is cut off.
    position: Resumable,
    /// The client's token, if the client may hold events from beyond it.
    holds_beyond: Option<ResourceVersion>,
    /// The version with which a replacement of the informer last deleted an object that it does not select.
    left_at: ResourceVersion,
    /// Whether a resync is due, which begins once the client has caught up.
    resync_due: bool,
    /// Whether it has read from behind the journal since this was last asked: objects that came and went meanwhile were passed over.
    pub(super) has_passed_over: bool,
    /// Whether the last of its events that the client got had no position.
    pub(super) lacks_position: bool,
    /// Whether its informer was replaced, and the transport does not know that yet.
    pub(super) is_replaced: bool,
    /// Whether the client must get every change in order, or the stream ends.
    ordered: bool,
}

enum Phase {
    /// Not begun.
    Idle,
    /// The client has everything up to the version of its token, which the cache has not reached.
    Ahead { token_kind: TokenKind, version: ResourceVersion },
    /// Sends the objects of a state, as `kind`, after the key `last`.
    Snapshot { state: HeldState, last: Option<Key>, kind: EventKind },
    /// The state could not be held any longer. For keys up to `last` the client has everything up to the cursor, and nothing
    /// for keys behind it. The rest is sent from the current state.
    Moving { last: Option<Key>, kind: EventKind },
    /// Sends the changes from before the cache's history up to a place in it, from element `next` on.
    Backfill { backfill: Arc<Backfill>, next: usize },
    /// Reads the journal.
    Live,
    /// Is behind the journal, and reads each object that changed once.
    CatchUp,
    /// Sends the difference between an informer and its successor.
    Difference(Box<Difference>),
}

/// How a catch-up finds changes. It keeps to one way until its end: a scan of everything passes over the departure of an object
/// that changed again outside of the value, and only the index knows that departure.
#[derive(Clone, Copy)]
enum Finding {
    /// By a scan of everything that changed.
    Looking,
    /// By index: the objects that have a value now, and those that left it after this revision.
    ByIndex { departed_after: Revision },
}

/// The last state of an informer and that of its successor, compared key by key.
struct Difference {
    old: Candidates,
    new: Candidates,
    /// The last key that was sent.
    last: Option<Key>,
    /// Whether both informers hold the same objects, and as much of each.
    is_same_content: bool,
    /// Whether both informers hold the same objects, and perhaps other members of each.
    are_same_objects: bool,
}

// === impl Difference ===

impl Difference {
    /// Whether a key shows that the successor has another history: the cluster was restored from a backup meanwhile. The successor
    /// is at the version of the old informer or later. In one history a version names one state of an object.
    fn is_of_other_history(&self, was: Option<&Object>, is: Option<&Object>) -> bool {
        match (was, is) {
            (Some(was), Some(is)) if is.resource_version() == was.resource_version() => {
                was.uid() != is.uid() || (self.is_same_content && was.text() != is.text())
            }
            (Some(was), Some(is)) => is.resource_version() < was.resource_version(),
            (None, Some(is)) => {
                let old = &self.old.snapshot;
                // A selection by a member that only the new informer keeps selects the object from now on.
                let is_known = || {
                    let known = old.get(is.key());
                    known.is_some_and(|known| known.resource_version() == is.resource_version())
                };
                self.are_same_objects
                    && is.resource_version() <= old.position
                    && (self.is_same_content || !is_known())
            }
            (Some(was), None) => match self.new.snapshot.get(was.key()) {
                Some(is) if is.resource_version() == was.resource_version() => was.uid() != is.uid(),
                Some(is) => is.resource_version() < was.resource_version(),
                // An object that was there at a version can be gone only at a later one.
                None => self.are_same_objects && was.resource_version() >= self.new.snapshot.position,
            },
            (None, None) => false,
        }
    }
}

/// A part of the objects that were selected at a cursor.
pub(super) struct PastObjects {
    pub(super) objects: Vec<Object>,
    /// The last key that was looked at, if more may follow.
    pub(super) last: Option<Key>,
}

/// The result of a pull.
pub(super) enum Pulled {
    /// The batch is full; there may be more.
    More,
    /// Nothing is left.
    Done,
}

/// The result of continuing with another informer.
pub(super) enum Succession {
    /// Changes of the old informer have to be sent first.
    NotYet,
    /// The difference follows.
    Difference,
    /// The difference follows, and the client then holds other objects, or other members, than its token says.
    DifferenceOfContent,
    /// The difference is unknown.
    StartOver,
}

/// A batch that is being filled.
pub(super) struct BatchBuilder {
    pub(super) events: Vec<Event>,
    bytes: usize,
    len_max: usize,
    bytes_max: usize,
}

impl BatchBuilder {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            events: Vec::new(),
            bytes: 0,
            len_max: config.batch_len_max,
            bytes_max: config.batch_bytes_max,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= self.len_max || self.bytes >= self.bytes_max
    }

    pub(super) fn push(&mut self, event: Event) {
        self.bytes += event.payload.len();
        self.events.push(event);
    }
}

impl Source {
    pub(super) fn new(
        informer: Arc<Informer>,
        selection: &Arc<Selection>,
        generations: Arc<Generations>,
        waker: &Arc<Notify>,
        ordered: bool,
    ) -> Self {
        let matcher = Matcher::new(selection.clone(), &informer.reader);
        let (wake, scope) = (informer.reader.wake(), scope_wake(&informer, &matcher, waker));
        let (cursor, position) = (Cursor::default(), Resumable::No);
        Self {
            informer,
            matcher,
            generations,
            wake,
            scope,
            phase: Phase::Idle,
            cursor,
            located_by: None,
            finding: None,
            position,
            holds_beyond: None,
            left_at: ResourceVersion::ZERO,
            resync_due: false,
            has_passed_over: false,
            lacks_position: false,
            is_replaced: false,
            ordered,
        }
    }

    /// Goes on from the position to which a live view has brought its stream.
    pub(super) fn at(
        position: &LivePosition,
        selection: &Arc<Selection>,
        generations: Arc<Generations>,
        waker: &Arc<Notify>,
        ordered: bool,
        left_at: ResourceVersion,
    ) -> Self {
        let LivePosition { informer, cursor, position, holds_beyond } = position.clone();
        let (phase, lacks_position) = (Phase::Live, position == Resumable::No);
        let new = Self::new(informer, selection, generations, waker, ordered);
        Self { phase, cursor, position, holds_beyond, left_at, lacks_position, ..new }
    }

    /// Marks all commits so far as seen. To be called before reading.
    pub(super) fn saw(&mut self) {
        self.wake.borrow_and_update();
    }

    /// The commits to wait for, beside the wake-up of its subscriber. Before a source reads the journal, any commit may matter, even one
    /// that only moves the position. `None` where those that touch its scope are enough: they cause the wake-up.
    pub(super) fn commits(&mut self) -> Option<&mut watch::Receiver<Mark>> {
        let is_scoped = self.scope.is_some() && matches!(self.phase, Phase::Live);
        (!is_scoped).then_some(&mut self.wake)
    }

    /// Whether its cache is complete.
    pub(super) fn synced(&self) -> bool {
        self.wake.borrow().synced
    }

    /// The cursor up to which it has sent everything. `None` where there is none: amid a first state or a catch-up.
    pub(super) fn passed(&self) -> Option<Cursor> {
        matches!(self.phase, Phase::Live).then_some(self.cursor)
    }

    /// Where the client resumes if it is cut off.
    pub(super) fn position(&self) -> &Resumable {
        &self.position
    }

    /// The version with which a replacement of the informer last deleted an object that it does not select.
    pub(super) fn left_at(&self) -> &ResourceVersion {
        &self.left_at
    }

    /// Begins with the current state.
    pub(super) fn begin_snapshot(&mut self, now: Instant) {
        let state = self.matcher.candidates();
        self.cursor = state.snapshot.cursor;
        self.position = Resumable::No;
        (self.holds_beyond, self.located_by, self.finding) = (None, None, None);
        self.left_at = ResourceVersion::ZERO;
        self.hand_out(state, EventKind::Added, now);
    }

    fn hand_out(&mut self, state: Candidates, kind: EventKind, now: Instant) {
        let holding = if self.ordered { Holding::Exact } else { Holding::Movable };
        let state = self.generations.hold(self.informer.id(), state, holding, now);
        self.phase = Phase::Snapshot { state, last: None, kind };
    }

    /// Begins with later changes only.
    pub(super) fn begin_now(&mut self) {
        let snapshot = self.informer.reader.snapshot();
        self.cursor = snapshot.cursor;
        self.position = snapshot.position.into();
        self.phase = Phase::Live;
    }

    /// Why its informer has ended, if it has.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        match self.informer.retirement() {
            Some(Retirement::Ended(reason)) => Some(*reason),
            Some(Retirement::ReplacedBy(_)) | None => None,
        }
    }

    /// The informer that has replaced its own, if any.
    pub(super) fn successor(&self) -> Option<Arc<Informer>> {
        match self.informer.retirement() {
            Some(Retirement::ReplacedBy(successor)) => Some(successor.clone()),
            Some(Retirement::Ended(_)) | None => None,
        }
    }

    /// Continues with another informer, once the client has everything of this one.
    pub(super) fn succeed(&mut self, successor: &Arc<Informer>, waker: &Arc<Notify>) -> Succession {
        let old = self.matcher.candidates();
        let idle = matches!(self.phase, Phase::Idle);
        let ahead = matches!(self.phase, Phase::Ahead { .. });
        if !idle && !ahead && old.snapshot.cursor != self.cursor {
            return Succession::NotYet;
        }
        let is_same_content = self.informer.spec.digest() == successor.spec.digest();
        let are_same_objects = self.informer.spec.selects_as(&successor.spec);
        // Clients tell objects apart by their kind.
        let is_same_kind = self.informer.spec.content.metadata_only == successor.spec.content.metadata_only;
        self.matcher = Matcher::new(self.matcher.selection().clone(), &successor.reader);
        let new = self.matcher.candidates();
        self.wake = successor.reader.wake();
        self.scope = scope_wake(successor, &self.matcher, waker);
        self.informer = successor.clone();
        (self.located_by, self.finding) = (None, None);
        if idle {
            return Succession::Difference;
        }
        if ahead {
            // It starts over once the new informer has reached the position, too.
            self.cursor = new.snapshot.cursor;
            return Succession::StartOver;
        }
        // An informer that is not as far could send older states. And objects that the client holds beyond its token may have
        // been deleted where neither informer saw it.
        let is_as_far = match &self.position {
            Resumable::No => true,
            Resumable::At(version) => new.snapshot.position >= *version,
        };
        let tells_all = is_as_far && is_same_kind && self.holds_beyond.is_none();
        self.phase = Phase::Difference(Box::new(Difference {
            old,
            new,
            last: None,
            is_same_content,
            are_same_objects,
        }));
        match tells_all {
            true if is_same_content => Succession::Difference,
            true => {
                self.position = Resumable::No;
                Succession::DifferenceOfContent
            }
            false => Succession::StartOver,
        }
    }

    /// Locates a version from a token.
    pub(super) fn locate(&self, token_kind: TokenKind, version: &ResourceVersion) -> Located {
        let reader = &self.informer.reader;
        match token_kind {
            TokenKind::PerEvent | TokenKind::Bookmark if self.is_of_another_selection(version) => {
                Located::Lost
            }
            // An object that it holds beyond the token may have been deleted in a relist's gap.
            TokenKind::Bookmark if reader.skipped_since(version) => Located::Lost,
            TokenKind::PerEvent | TokenKind::Bookmark => reader.locate(version),
        }
    }

    /// Locates a version for a client that must get every change in order: within the journal, or lost.
    pub(super) fn locate_in_journal(&self, version: &ResourceVersion) -> Located {
        let reader = &self.informer.reader;
        // Right after a replacement, a list of the new cache has the old one's last version, or an earlier one if the new cache is
        // behind. Accept exactly the version that the cache is at, or clients would relist until it is further. A client that was
        // connected to the old cache got 410. One that listed the old cache at just this version, and comes only now, cannot be told
        // from one that listed the new one.
        let is_listed = self.is_of_another_selection(version) && reader.summary().position == *version;
        let located = match is_listed || !version.is_zero() && !self.is_of_another_selection(version) {
            true => reader.locate_listed(version),
            false => Located::Lost,
        };
        match located {
            Located::At(cursor) if reader.changes_after(cursor, 0).is_none() => Located::Lost,
            located @ (Located::At(_) | Located::Ahead | Located::Lost) => located,
        }
    }

    /// Whether its cache has reached a version.
    pub(super) fn is_not_older(&self, version: &ResourceVersion) -> bool {
        self.informer.reader.summary().position >= *version
    }

    /// Whether its cache will reach a version, so that its state would take a client back that has been there.
    pub(super) fn is_behind(&self, version: &ResourceVersion) -> bool {
        matches!(self.informer.reader.locate(version), Located::Ahead)
    }

    /// Whether a version is of an earlier cache with another selection.
    pub(super) fn is_of_another_selection(&self, version: &ResourceVersion) -> bool {
        self.informer.tokens_valid_after().is_some_and(|tokens_valid_after| version <= tokens_valid_after)
    }

    /// Begins after a version from a token, at a cursor.
    pub(super) fn begin_at(&mut self, cursor: Cursor, token_kind: TokenKind, version: ResourceVersion) {
        self.cursor = cursor;
        self.located_by = Some(version.clone());
        self.finding = None;
        self.holds_beyond = match token_kind {
            TokenKind::PerEvent => None,
            TokenKind::Bookmark => Some(version.clone()),
        };
        self.position = version.into();
        self.phase = Phase::Live;
    }

    /// Whether the API server has been at a version that the cache has not reached. If it is not known it is asked, and
    /// a wake-up comes once it has answered.
    pub(super) fn request_version(&self, version: &ResourceVersion) -> bool {
        self.informer.reader.request_version(version)
    }

    /// Begins after a version from a token that the cache will reach.
    pub(super) fn begin_ahead(&mut self, token_kind: TokenKind, version: ResourceVersion) {
        self.cursor = self.informer.reader.snapshot().cursor;
        self.position = version.clone().into();
        self.phase = Phase::Ahead { token_kind, version };
    }

    /// Whether the cache is still behind the client, so that its state would take the client back.
    pub(super) fn is_ahead(&self) -> bool {
        let goes_on = self.wake.borrow().history == self.cursor.history;
        let Phase::Ahead { version, .. } = &self.phase else { return false };
        goes_on && matches!(self.informer.reader.locate(version), Located::Ahead)
    }

    /// Continues once the cache has reached the client's version.
    fn meet(&mut self, token_kind: TokenKind, version: ResourceVersion) -> Result<Pulled, ResetReason> {
        // The API server's versions went back, perhaps behind the client's.
        if self.wake.borrow().history != self.cursor.history {
            return Err(ResetReason::HistoryLost);
        }
        let located = match self.ordered {
            true => self.locate_in_journal(&version),
            false => self.locate(token_kind, &version),
        };
        match located {
            Located::At(cursor) => {
                self.begin_at(cursor, token_kind, version);
                Ok(Pulled::More)
            }
            Located::Ahead => Ok(Pulled::Done),
            Located::Lost => Err(ResetReason::TokenTooOld),
        }
    }

    /// Asks for the changes since a version that is lost.
    pub(super) fn request_backfill(
        &self,
        token_kind: TokenKind,
        version: &ResourceVersion,
    ) -> BackfillAnswer {
        match token_kind {
            TokenKind::PerEvent if self.is_of_another_selection(version) => BackfillAnswer::Unknown,
            TokenKind::PerEvent => self.informer.reader.request_backfill(version),
            // The client may hold an object that was created after the token and deleted since. No list shows it, so the
            // client would keep it for ever.
            TokenKind::Bookmark => BackfillAnswer::Unknown,
        }
    }

    /// Begins with the changes since a version from a token.
    pub(super) fn begin_backfill(&mut self, backfill: Arc<Backfill>, version: ResourceVersion) {
        self.cursor = backfill.cursor;
        (self.located_by, self.finding) = (None, None);
        self.position = version.into();
        self.phase = Phase::Backfill { backfill, next: 0 };
    }

    /// Selected objects as they were at its cursor, of the keys after one. `None` where its journal no longer has the changes since,
    /// or there are more than `undone_max`.
    pub(super) fn selected_at_cursor(
        &mut self,
        after: Option<&Key>,
        undone_max: usize,
    ) -> Option<PastObjects> {
        self.matcher.refresh();
        let state = self.matcher.candidates();
        let changes = changes_between(&self.informer.reader, self.cursor, state.snapshot.cursor, undone_max)?;
        let undone = undo(&changes);
        let (mut objects, mut last) = (Vec::new(), None);
        for (looked_at, object) in self.matcher.reach(&state, after).enumerate() {
            // A condition shows only by its evaluation what it costs.
            if looked_at >= self.matcher.selection().looks_in(LOOKED_AT_MAX) {
                return Some(PastObjects { objects, last });
            }
            last = Some(object.key().clone());
            if !undone.contains_key(object.key()) && self.matcher.matches(object) {
                objects.push(object.clone());
            }
        }
        let mut before: Vec<_> =
            undone.into_values().flatten().filter(|object| self.matcher.matches(object)).collect();
        before.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        objects.extend(before);
        Some(PastObjects { objects, last: None })
    }

    /// Makes a resync due.
    pub(super) fn ask_resync(&mut self) {
        self.resync_due = true;
    }

    /// Begins a due resync if the client has caught up. If not, it must pull first, or an older change would follow a newer
    /// state.
    pub(super) fn begin_resync(&mut self, now: Instant) {
        if !self.resync_due || !matches!(self.phase, Phase::Live) {
            return;
        }
        let state = self.matcher.candidates();
        if state.snapshot.cursor == self.cursor {
            self.hand_out(state, EventKind::Modified, now);
            self.resync_due = false;
        }
    }

    /// Whether a resync is due and waits for the changes before it.
    pub(super) fn is_resync_due(&self) -> bool {
        self.resync_due
    }
}

/// The scope of a source that selects only one namespace, object or indexed value, with the wake-up of its subscriber.
fn scope_wake(informer: &Informer, matcher: &Matcher, waker: &Arc<Notify>) -> Option<ScopeWake> {
    let namespaced = informer.spec.resource.namespaced();
    let selection = matcher.selection();
    let wake = |namespace: &str, name| Some(informer.reader.wake_scoped(namespace, name, waker.clone()));
    match (selection.namespaces(), &selection.name) {
        ([namespace], name @ Some(_)) if namespaced => wake(namespace, name.as_deref()),
        ([], Some(name)) if !namespaced => wake("", Some(name)),
        ([namespace], None) if namespaced && matcher.index().is_none() => wake(namespace, None),
        _ => matcher.index().and_then(|index| index.wake(waker.clone())),
    }
}
