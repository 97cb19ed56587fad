//! A subscriber's position in one informer, and what it pulls from there. No async, no clock.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::event::{Event, EventKind, ResetReason};
use super::generations::{Generations, HeldState, Holding};
use super::informer::Fate;
use super::token::TokenKind;
use super::{Candidates, CloseReason, Config, Informer, Matcher, Selection};
use crate::cache::{Cursor, Located, Mark, Past, Recalled, Revision, ScopeWake, UsedIndex};
use crate::k8s::{Key, ResourceVersion};

mod pull;

/// One informer of a subscription.
pub(super) struct Source {
    pub(super) informer: Arc<Informer>,
    matcher: Matcher,
    generations: Arc<Generations>,
    wake: watch::Receiver<Mark>,
    /// Where only one namespace, object or value is selected.
    scope: Option<ScopeWake>,
    phase: Phase,
    cursor: Cursor,
    /// The version by which the cursor was found, until something is read from there. A cursor behind the journal is
    /// found among the last changes of objects, and may be beyond earlier ones that the client has to learn of.
    located_by: Option<ResourceVersion>,
    /// How the catch-up under way finds what changed.
    finding: Option<Finding>,
    /// The version up to which the client has everything; zero while its snapshot is under way.
    position: ResourceVersion,
    /// The token, where it does not cover all that the client holds.
    holds_beyond: Option<ResourceVersion>,
    /// The version with which a replacement of the informer last deleted an object that it does not select.
    left_at: ResourceVersion,
    /// Whether every object is to be handed out again, once the client has all there is.
    resync_due: bool,
    /// Whether every change is told in order, or nothing more.
    ordered: bool,
}

enum Phase {
    /// Nothing begun.
    Idle,
    /// The client has everything up to the position, which the cache has not reached; `token_kind` says how its
    /// token is meant.
    Ahead { token_kind: TokenKind },
    /// Objects of a state are being handed out, as `kind`, after `last`.
    Snapshot { state: HeldState, last: Option<Key>, kind: EventKind },
    /// The state could not be held any longer. The client has everything up to the cursor of the keys up to `last`, and
    /// nothing of those behind; the current state is handed out from there on.
    Moving { last: Option<Key>, kind: EventKind },
    /// Told what changed from before the cache's history up to a place in it, from its `next` element on.
    Past { past: Arc<Past>, next: usize },
    /// Reading the journal.
    Live,
    /// Behind the journal: reading what changed, each object once.
    CatchUp,
    /// Handing out how an informer differs from the one in its place.
    Difference(Box<Difference>),
}

/// How a catch-up finds what changed. It stays so to the catch-up's end: an index does not remember the departure of an
/// object that changed again outside a value, once a look at everything has passed the departure by.
#[derive(Clone, Copy)]
enum Finding {
    /// By looking at everything that changed.
    Looking,
    /// By index: what has a value now, and what left it after this revision.
    ByIndex { departed_after: Revision },
}

/// The last state of an informer and that of its successor, handed out by key.
struct Difference {
    old: Candidates,
    new: Candidates,
    /// The last key that was handed out.
    last: Option<Key>,
}

/// What a source waits for.
pub(super) enum Wake<'a> {
    /// Any commit.
    All(&'a mut watch::Receiver<Mark>),
    /// One that touches its scope.
    Scope(&'a mut watch::Receiver<()>),
}

/// What a pull came to.
pub(super) enum Pulled {
    /// The batch is full; there may be more.
    More,
    /// Nothing is left.
    Done,
}

/// What going on with another informer came to.
pub(super) enum Succession {
    /// There is more of this one first.
    NotYet,
    /// What differs follows.
    Difference,
    /// What differs cannot be told.
    StartOver,
}

/// A batch under way.
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
        ordered: bool,
    ) -> Self {
        let matcher = Matcher::new(selection.clone(), &informer.reader);
        let (wake, scope) = (informer.reader.wake(), scope_wake(&informer, &matcher));
        let (cursor, position) = (Cursor::default(), ResourceVersion::ZERO);
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
            ordered,
        }
    }

    /// Takes what came so far as seen; to be done before reading.
    pub(super) fn saw(&mut self) {
        self.wake.borrow_and_update();
        if let Some(scope) = &mut self.scope {
            scope.saw();
        }
    }

    /// What to wait for. Until it reads changes that may be anything, even a position.
    pub(super) fn wake(&mut self) -> Wake<'_> {
        let scope = self.scope.as_mut().filter(|_| matches!(self.phase, Phase::Live));
        match scope.and_then(ScopeWake::receiver) {
            Some(scope) => Wake::Scope(scope),
            None => Wake::All(&mut self.wake),
        }
    }

    /// Whether its cache is complete.
    pub(super) fn synced(&self) -> bool {
        self.wake.borrow().synced
    }

    pub(super) fn position(&self) -> &ResourceVersion {
        &self.position
    }

    /// Begins with the current state.
    pub(super) fn begin_snapshot(&mut self, now: Instant) {
        let state = self.matcher.candidates();
        self.cursor = state.snapshot.cursor;
        self.position = ResourceVersion::ZERO;
        (self.holds_beyond, self.located_by, self.finding) = (None, None, None);
        self.left_at = ResourceVersion::ZERO;
        self.hand_out(state, EventKind::Added, now);
    }

    fn hand_out(&mut self, state: Candidates, kind: EventKind, now: Instant) {
        let holding = if self.ordered { Holding::Exact } else { Holding::Movable };
        let state = self.generations.hold(state, holding, now);
        self.phase = Phase::Snapshot { state, last: None, kind };
    }

    /// Begins with what comes from now on.
    pub(super) fn begin_now(&mut self) {
        let snapshot = self.informer.reader.snapshot();
        self.cursor = snapshot.cursor;
        self.position = snapshot.position;
        self.phase = Phase::Live;
    }

    /// Why there is nothing more to read.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        match self.informer.fate() {
            Some(Fate::Ended(reason)) => Some(*reason),
            Some(Fate::ReplacedBy(_)) | None => None,
        }
    }

    /// The informer to go on with.
    pub(super) fn successor(&self) -> Option<Arc<Informer>> {
        match self.informer.fate() {
            Some(Fate::ReplacedBy(successor)) => Some(successor.clone()),
            Some(Fate::Ended(_)) | None => None,
        }
    }

    /// Goes on with another informer, once the client has all there is of this one.
    pub(super) fn succeed(&mut self, successor: &Arc<Informer>) -> Succession {
        let old = self.matcher.candidates();
        let idle = matches!(self.phase, Phase::Idle);
        let ahead = matches!(self.phase, Phase::Ahead { .. });
        if !idle && !ahead && old.snapshot.cursor != self.cursor {
            return Succession::NotYet;
        }
        self.matcher = Matcher::new(self.matcher.selection().clone(), &successor.reader);
        let new = self.matcher.candidates();
        self.wake = successor.reader.wake();
        self.scope = scope_wake(successor, &self.matcher);
        self.informer = successor.clone();
        (self.located_by, self.finding) = (None, None);
        if idle {
            return Succession::Difference;
        }
        if ahead {
            // It starts over once the new one has got there, too.
            self.cursor = new.snapshot.cursor;
            return Succession::StartOver;
        }
        // An informer that is not as far could tell of older states; and what a client holds beyond its token may have
        // come and gone where neither informer saw it.
        let tells_all = new.snapshot.position >= self.position && self.holds_beyond.is_none();
        self.phase = Phase::Difference(Box::new(Difference { old, new, last: None }));
        if tells_all { Succession::Difference } else { Succession::StartOver }
    }

    /// Where a version from a token lies.
    pub(super) fn locate(&self, token_kind: TokenKind, version: &ResourceVersion) -> Located {
        let reader = &self.informer.reader;
        match token_kind {
            // Zero is what a client holds that was cut off within its first snapshot.
            TokenKind::PerEvent | TokenKind::Bookmark if version.is_zero() || self.is_fenced(version) => {
                Located::Lost
            }
            // What it holds beyond the token may have gone while nobody looked.
            TokenKind::Bookmark if reader.skipped_since(version) => Located::Lost,
            TokenKind::PerEvent | TokenKind::Bookmark => reader.locate(version),
        }
    }

    /// Where a version lies for whoever is told every change in order: within the journal, or nowhere.
    pub(super) fn locate_in_journal(&self, version: &ResourceVersion) -> Located {
        let reader = &self.informer.reader;
        // Until something comes, a list of this cache has the version that the other one ended with. Refused, its client
        // would list for ever; who holds that version of the other one was told to list, where it was connected.
        let is_listed = self.informer.fence() == Some(version) && reader.summary().position == *version;
        let located = match is_listed || !version.is_zero() && !self.is_fenced(version) {
            true => reader.locate_listed(version),
            false => Located::Lost,
        };
        match located {
            Located::At(cursor) if reader.changes_after(cursor, 0).is_none() => Located::Lost,
            located @ (Located::At(_) | Located::Ahead | Located::Lost) => located,
        }
    }

    /// Whether its cache is not older than a version.
    pub(super) fn is_not_older(&self, version: &ResourceVersion) -> bool {
        self.informer.reader.summary().position >= *version
    }

    /// Whether a version is of another cache, which held other objects.
    fn is_fenced(&self, version: &ResourceVersion) -> bool {
        self.informer.fence().is_some_and(|fence| version <= fence)
    }

    /// Begins after a version from a token.
    pub(super) fn begin_at(&mut self, cursor: Cursor, token_kind: TokenKind, version: ResourceVersion) {
        self.cursor = cursor;
        self.located_by = Some(version.clone());
        self.finding = None;
        self.holds_beyond = match token_kind {
            TokenKind::PerEvent => None,
            TokenKind::Bookmark => Some(version.clone()),
        };
        self.position = version;
        self.phase = Phase::Live;
    }

    /// Whether the API server has been at a version that the cache has not reached. If it is not known it is asked, and
    /// a wake-up comes once it has answered.
    pub(super) fn is_reached(&self, version: &ResourceVersion) -> bool {
        self.informer.reader.is_reached(version)
    }

    /// Begins after a version from a token that the cache will reach.
    pub(super) fn begin_ahead(&mut self, token_kind: TokenKind, version: ResourceVersion) {
        self.cursor = self.informer.reader.snapshot().cursor;
        self.position = version;
        self.phase = Phase::Ahead { token_kind };
    }

    /// Whether everything there is would take the client back.
    pub(super) fn is_ahead(&self) -> bool {
        let goes_on = self.wake.borrow().history == self.cursor.history;
        let ahead = matches!(self.phase, Phase::Ahead { .. }) && goes_on;
        ahead && matches!(self.informer.reader.locate(&self.position), Located::Ahead)
    }

    /// Goes on once the cache has reached what the client has.
    fn meet(&mut self, token_kind: TokenKind) -> Result<Pulled, ResetReason> {
        // Versions went back, perhaps that one too.
        if self.wake.borrow().history != self.cursor.history {
            return Err(ResetReason::HistoryLost);
        }
        let located = match self.ordered {
            true => self.locate_in_journal(&self.position),
            false => self.locate(token_kind, &self.position),
        };
        match located {
            Located::At(cursor) => {
                self.begin_at(cursor, token_kind, self.position.clone());
                Ok(Pulled::More)
            }
            Located::Ahead => Ok(Pulled::Done),
            Located::Lost => Err(ResetReason::TokenTooOld),
        }
    }

    /// What became of a version that is lost.
    pub(super) fn recall(&self, token_kind: TokenKind, version: &ResourceVersion) -> Recalled {
        match token_kind {
            TokenKind::PerEvent if self.is_fenced(version) => Recalled::Unknown,
            TokenKind::PerEvent => self.informer.reader.recall(version),
            // An object that came to be after the token and is gone by now would stay with the client for ever:
            // nobody can tell of it any more.
            TokenKind::Bookmark => Recalled::Unknown,
        }
    }

    /// Begins with what changed since a version from a token.
    pub(super) fn begin_past(&mut self, past: Arc<Past>, version: ResourceVersion) {
        self.cursor = past.cursor;
        (self.located_by, self.finding) = (None, None);
        self.position = version;
        self.phase = Phase::Past { past, next: 0 };
    }

    /// Every object is to be handed out again.
    pub(super) fn ask_resync(&mut self) {
        self.resync_due = true;
    }

    /// Begins to hand out every object again if it is due and the client has all there is; else it must pull
    /// first, or an older change would follow a newer state.
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

    /// Whether a resync waits for the changes before it.
    pub(super) fn is_resync_due(&self) -> bool {
        self.resync_due
    }
}

/// The wake-up of a source that selects one namespace, object or indexed value alone.
fn scope_wake(informer: &Informer, matcher: &Matcher) -> Option<ScopeWake> {
    let namespaced = informer.resource.namespaced();
    let selection = matcher.selection();
    match (selection.namespaces(), &selection.name) {
        ([namespace], name @ Some(_)) if namespaced => {
            Some(informer.reader.wake_scoped(namespace, name.as_deref()))
        }
        ([], Some(name)) if !namespaced => Some(informer.reader.wake_scoped("", Some(name))),
        ([namespace], None) if namespaced && matcher.index().is_none() => {
            Some(informer.reader.wake_scoped(namespace, None))
        }
        _ => matcher.index().and_then(UsedIndex::wake),
    }
}
