//! A subscriber's place in one informer, and what it pulls from there. No async, no clock.

use std::cmp::Ordering;
use std::sync::Arc;

use tokio::sync::watch;

use super::event::{Event, EventKind, Payload, ResetReason};
use super::informer::Fate;
use super::run::{Abreast, Run};
use super::subscriber::Covers;
use super::told::{AMID, changed_through, differing, latest_through, position_after, seen_through};
use super::{CloseReason, Config, Filter, Informer};
use crate::cache::{Cursor, Gone, Located, Mark, Past, Recalled, ScopeWake, Snapshot};
use crate::k8s::{Key, ResourceVersion};

/// One informer of a subscription.
pub(super) struct Source {
    pub(super) informer: Arc<Informer>,
    wake: watch::Receiver<Mark>,
    /// Where only one namespace or object is wanted.
    scope: Option<ScopeWake>,
    phase: Phase,
    cursor: Cursor,
    /// The version up to which the client has everything; zero while its snapshot is under way.
    position: ResourceVersion,
    /// The token, where it does not cover all that the client holds.
    holds_beyond: Option<ResourceVersion>,
    /// Whether every object is to be handed out again, once the client has all there is.
    resync_due: bool,
    /// Whether every change is told in order, or nothing more.
    ordered: bool,
}

enum Phase {
    /// Nothing begun.
    Idle,
    /// The client has everything up to the position, which the cache has not reached; `covers` says how its token is
    /// meant.
    Ahead { covers: Covers },
    /// Objects of a snapshot are being handed out, as `kind`, after `last`.
    Snapshot { snapshot: Snapshot, last: Option<Key>, kind: EventKind },
    /// Told what changed from before the cache's history up to a place in it, from its `next` element on.
    Past { past: Arc<Past>, next: usize },
    /// Reading the journal.
    Live,
    /// Behind the journal: reading what changed, each object once.
    CatchUp,
    /// Told what differs between the last state of an informer and the one in its place, by key, after `last`.
    Difference { old: Snapshot, new: Snapshot, last: Option<Key> },
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
    pub(super) fn new(informer: Arc<Informer>, filter: &Filter, ordered: bool) -> Self {
        let (wake, scope) = (informer.reader.wake(), scope_wake(&informer, filter));
        let (cursor, position) = (Cursor::default(), ResourceVersion::ZERO);
        Self {
            informer,
            wake,
            scope,
            phase: Phase::Idle,
            cursor,
            position,
            holds_beyond: None,
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

    /// Begins with everything there is.
    pub(super) fn begin_snapshot(&mut self) {
        let snapshot = self.informer.reader.snapshot();
        self.cursor = snapshot.cursor;
        self.position = ResourceVersion::ZERO;
        self.holds_beyond = None;
        self.phase = Phase::Snapshot { snapshot, last: None, kind: EventKind::Added };
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
    pub(super) fn succeed(&mut self, successor: &Arc<Informer>, filter: &Filter) -> Succession {
        let new = successor.reader.snapshot();
        let old = self.informer.reader.snapshot();
        let idle = matches!(self.phase, Phase::Idle);
        let ahead = matches!(self.phase, Phase::Ahead { .. });
        if !idle && !ahead && old.cursor != self.cursor {
            return Succession::NotYet;
        }
        self.wake = successor.reader.wake();
        self.scope = scope_wake(successor, filter);
        self.informer = successor.clone();
        if idle {
            return Succession::Difference;
        }
        if ahead {
            // It starts over once the new one has got there, too.
            self.cursor = new.cursor;
            return Succession::StartOver;
        }
        // An informer that is not as far could tell of older states; and what a client holds beyond its token may have
        // come and gone where neither informer saw it.
        let tells_all = new.position >= self.position && self.holds_beyond.is_none();
        self.phase = Phase::Difference { old, new, last: None };
        if tells_all { Succession::Difference } else { Succession::StartOver }
    }

    /// Where a version from a token lies.
    pub(super) fn locate(&self, covers: Covers, version: &ResourceVersion) -> Located {
        let reader = &self.informer.reader;
        match covers {
            // Zero is what a client holds that was cut off within its first snapshot.
            Covers::All | Covers::Some if version.is_zero() || self.is_fenced(version) => Located::Lost,
            // What it holds beyond the token may have gone while nobody looked.
            Covers::Some if reader.skipped_since(version) => Located::Lost,
            Covers::All | Covers::Some => reader.locate(version),
        }
    }

    /// Where a version lies for whoever is told every change in order: within the journal, or nowhere.
    pub(super) fn locate_in_journal(&self, version: &ResourceVersion) -> Located {
        let reader = &self.informer.reader;
        // Until something comes, a list of this cache has the version that the other one ended with. Refused, its client
        // would list for ever; who holds that version of the other one was told to list, where it was connected.
        let is_listed = self.informer.fence() == Some(version) && reader.summary().position == *version;
        let located = if is_listed { reader.locate(version) } else { self.locate(Covers::All, version) };
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
    pub(super) fn begin_at(&mut self, cursor: Cursor, covers: Covers, version: ResourceVersion) {
        self.cursor = cursor;
        self.holds_beyond = match covers {
            Covers::All => None,
            Covers::Some => Some(version.clone()),
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
    pub(super) fn begin_ahead(&mut self, covers: Covers, version: ResourceVersion) {
        self.cursor = self.informer.reader.snapshot().cursor;
        self.position = version;
        self.phase = Phase::Ahead { covers };
    }

    /// Whether everything there is would take the client back.
    pub(super) fn is_ahead(&self) -> bool {
        let goes_on = self.wake.borrow().history == self.cursor.history;
        let ahead = matches!(self.phase, Phase::Ahead { .. }) && goes_on;
        ahead && matches!(self.informer.reader.locate(&self.position), Located::Ahead)
    }

    /// Goes on once the cache has reached what the client has.
    fn meet(&mut self, covers: Covers) -> Result<Pulled, ResetReason> {
        // Versions went back, perhaps that one too.
        if self.wake.borrow().history != self.cursor.history {
            return Err(ResetReason::HistoryLost);
        }
        let located = match self.ordered {
            true => self.locate_in_journal(&self.position),
            false => self.locate(covers, &self.position),
        };
        match located {
            Located::At(cursor) => {
                self.begin_at(cursor, covers, self.position.clone());
                Ok(Pulled::More)
            }
            Located::Ahead => Ok(Pulled::Done),
            Located::Lost => Err(ResetReason::TokenTooOld),
        }
    }

    /// What became of a version that is lost.
    pub(super) fn recall(&self, covers: Covers, version: &ResourceVersion) -> Recalled {
        match covers {
            Covers::All if self.is_fenced(version) => Recalled::Unknown,
            Covers::All => self.informer.reader.recall(version),
            // An object that came to be after the token and is gone by now would stay with the client for ever:
            // nobody can tell of it any more.
            Covers::Some => Recalled::Unknown,
        }
    }

    /// Begins with what changed since a version from a token.
    pub(super) fn begin_past(&mut self, past: Arc<Past>, version: ResourceVersion) {
        self.cursor = past.cursor;
        self.position = version;
        self.phase = Phase::Past { past, next: 0 };
    }

    /// Every object is to be handed out again.
    pub(super) fn ask_resync(&mut self) {
        self.resync_due = true;
    }

    /// Begins to hand out every object again if it is due and the client has all there is; else it must pull
    /// first, or an older change would follow a newer state.
    pub(super) fn begin_resync(&mut self) {
        if !self.resync_due || !matches!(self.phase, Phase::Live) {
            return;
        }
        let snapshot = self.informer.reader.snapshot();
        if snapshot.cursor == self.cursor {
            self.phase = Phase::Snapshot { snapshot, last: None, kind: EventKind::Modified };
            self.resync_due = false;
        }
    }

    /// Whether a resync waits for the changes before it.
    pub(super) fn is_resync_due(&self) -> bool {
        self.resync_due
    }

    /// Whether the snapshot has been handed out.
    pub(super) fn is_past_snapshot(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Snapshot { .. })
    }

    /// Whether it reads what changed since it fell behind.
    pub(super) fn is_catching_up(&self) -> bool {
        matches!(self.phase, Phase::CatchUp)
    }

    /// Hands out the next objects of the snapshot.
    pub(super) fn pull_snapshot(
        &mut self,
        index: usize,
        filter: &Filter,
        batch: &mut BatchBuilder,
    ) -> Pulled {
        let Phase::Snapshot { snapshot, last, kind } = &mut self.phase else { return Pulled::Done };
        let before = batch.events.len();
        for object in filter.objects(snapshot, last.as_ref()) {
            let payload = Payload::Object(object.clone());
            batch.push(Event { source: index, kind: *kind, payload, position: self.position.clone() });
            if batch.is_full() {
                break;
            }
        }
        if batch.is_full() && batch.events.len() > before {
            *last = batch.events.last().and_then(|event| event.payload.key()).cloned();
            return Pulled::More;
        }
        self.position = snapshot.position.clone();
        self.phase = Phase::Live;
        Pulled::Done
    }

    /// The next changes, as everyone who keeps up and wants everything is told them.
    pub(super) fn pull_run(&mut self, config: &Config) -> Option<Arc<Run>> {
        if !self.is_alike() {
            return None;
        }
        let mark = *self.wake.borrow();
        if mark.history != self.cursor.history || mark.revision <= self.cursor.revision {
            return None;
        }
        let run = self.informer.run_after(self.cursor, config)?;
        let (cursor, position) = run.end();
        self.cursor = cursor;
        self.position = position.clone();
        Some(run)
    }

    /// Whether what it is told next is what everyone is who keeps up and wants everything: not where the client may hold
    /// more than its token says, and not where the informer ends.
    fn is_alike(&self) -> bool {
        let live = matches!(self.phase, Phase::Live) && self.holds_beyond.is_none() && !self.resync_due;
        live && !self.informer.is_over()
    }

    /// Where it is, if it has all there is.
    pub(super) fn abreast(&self) -> Option<Abreast> {
        let here = || Abreast::new(self.informer.clone(), self.cursor, self.position.clone());
        (self.is_alike() && self.is_at_head()).then(here)
    }

    /// Goes on from where somebody else has brought it.
    pub(super) fn go_on(&mut self, place: &Abreast) {
        self.cursor = place.cursor;
        self.position = place.position().clone();
    }

    /// Whether it has taken all there was when it last looked.
    pub(super) fn is_at_head(&self) -> bool {
        let mark = self.wake.borrow();
        mark.history == self.cursor.history && mark.revision == self.cursor.revision
    }

    /// Hands out the next changes.
    pub(super) fn pull_changes(
        &mut self,
        index: usize,
        filter: &Filter,
        batch: &mut BatchBuilder,
    ) -> Result<Pulled, ResetReason> {
        // A relist since: see `locate`. What this replica has not reached yet, another may have told the client.
        if self.holds_beyond.as_ref().is_some_and(|token| self.informer.reader.skipped_since(token)) {
            return Err(ResetReason::TokenTooOld);
        }
        loop {
            if batch.is_full() {
                return Ok(Pulled::More);
            }
            if let Phase::Ahead { covers } = self.phase {
                match self.meet(covers)? {
                    Pulled::More => continue,
                    Pulled::Done => return Ok(Pulled::Done),
                }
            }
            if matches!(self.phase, Phase::Past { .. }) {
                self.pull_past(index, filter, batch);
                continue;
            }
            if matches!(self.phase, Phase::Difference { .. }) {
                self.pull_difference(index, filter, batch);
                continue;
            }
            if matches!(self.phase, Phase::CatchUp) {
                if self.pull_catch_up(index, filter, batch)? {
                    self.phase = Phase::Live;
                }
                continue;
            }
            let quiet = self.scope.as_ref().and_then(|scope| scope.head_if_quiet_since(self.cursor));
            if let Some((head, position)) = quiet {
                (self.cursor, self.position) = (head, position);
                return Ok(Pulled::Done);
            }
            let len_max = batch.len_max - batch.events.len();
            let Some(run) = self.informer.reader.changes_after(self.cursor, len_max) else {
                if self.ordered {
                    return Err(ResetReason::Lagged);
                }
                self.phase = Phase::CatchUp;
                continue;
            };
            for change in &run.changes {
                // What stopped to match while nobody looked is told with its last change, perhaps after the place from
                // which the client resumes on a replica that has seen all, and tells it not again.
                if self.ordered && filter.selects() && change.is_amid_relist() {
                    return Err(ResetReason::Lagged);
                }
                self.cursor.revision = change.revision;
                self.position = position_after(change);
                if let Some((kind, payload)) = seen_through(filter, change) {
                    batch.push(Event { source: index, kind, payload, position: self.position.clone() });
                    if batch.is_full() && change.revision != run.cursor.revision {
                        return Ok(Pulled::More);
                    }
                }
            }
            self.cursor = run.cursor;
            if run.caught_up {
                self.position = run.position;
                return Ok(Pulled::Done);
            }
        }
    }

    /// Hands out what changed before the cache's history, until the batch is full.
    fn pull_past(&mut self, index: usize, filter: &Filter, batch: &mut BatchBuilder) {
        let Phase::Past { past, next } = &mut self.phase else { return };
        let before = batch.events.len();
        loop {
            let at = *next;
            if at == past.gone.len() + past.changed.len() {
                self.position = past.position.clone();
                // With the last one the client has everything.
                if let Some(last) = batch.events[before..].last_mut() {
                    last.position = self.position.clone();
                }
                self.phase = Phase::Live;
                return;
            }
            if batch.is_full() {
                return;
            }
            *next += 1;
            let event = if let Some(gone) = past.gone.get(at) {
                let Gone { key, uid, version } = gone.clone();
                filter.in_scope(&key).then_some((EventKind::Deleted, Payload::Identity { key, uid, version }))
            } else {
                self.position = AMID;
                changed_through(filter, &past.changed[at - past.gone.len()])
            };
            if let Some((kind, payload)) = event {
                batch.push(Event { source: index, kind, payload, position: self.position.clone() });
            }
        }
    }

    /// Hands out what differs between two informers, until the batch is full. The position stays that of the old
    /// one until the end: whoever is cut off in between must start over, and does, as it is fenced.
    fn pull_difference(&mut self, index: usize, filter: &Filter, batch: &mut BatchBuilder) {
        let Phase::Difference { old, new, last } = &mut self.phase else { return };
        let after = last.take();
        let mut before = filter.objects(old, after.as_ref()).peekable();
        let mut now = filter.objects(new, after.as_ref()).peekable();
        let mut reached = None;
        while !batch.is_full() {
            let order = match (before.peek(), now.peek()) {
                (Some(before), Some(now)) => before.key().cmp(now.key()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => {
                    self.cursor = new.cursor;
                    self.position = new.position.clone();
                    drop((before, now));
                    self.phase = Phase::Live;
                    return;
                }
            };
            let was = if order.is_le() { before.next() } else { None };
            let is = if order.is_ge() { now.next() } else { None };
            reached = was.or(is).map(|object| object.key().clone());
            for (kind, payload) in differing(was, is, &new.position) {
                batch.push(Event { source: index, kind, payload, position: self.position.clone() });
            }
        }
        drop((before, now));
        *last = reached.or(after);
    }

    /// Whether nothing is left to catch up with.
    fn pull_catch_up(
        &mut self,
        index: usize,
        filter: &Filter,
        batch: &mut BatchBuilder,
    ) -> Result<bool, ResetReason> {
        let len_max = batch.len_max - batch.events.len();
        // Of this piece, not of the whole catch-up: an object that came within an earlier piece is known by now.
        let since = self.cursor.revision;
        let history = self.wake.borrow().history;
        let piece = self.informer.reader.catch_up(self.cursor, len_max).map_err(|_| {
            if history == self.cursor.history { ResetReason::Lagged } else { ResetReason::HistoryLost }
        })?;
        let (count, before) = (piece.entries.len(), batch.events.len());
        for (at, entry) in piece.entries.into_iter().enumerate() {
            let revision = entry.revision;
            let covers = if self.holds_beyond.is_some() { Covers::Some } else { Covers::All };
            if let Some((kind, payload)) = latest_through(filter, since, covers, entry) {
                batch.push(Event { source: index, kind, payload, position: AMID });
            }
            if batch.is_full() && at + 1 < count {
                self.cursor.revision = revision;
                self.position = AMID;
                return Ok(false);
            }
        }
        self.cursor = piece.cursor;
        self.position = if piece.done { piece.position } else { AMID };
        // With the last one the client has everything.
        if let Some(last) = batch.events[before..].last_mut() {
            last.position = self.position.clone();
        }
        Ok(piece.done)
    }
}

/// The wake-up of who wants one namespace or object alone.
fn scope_wake(informer: &Informer, filter: &Filter) -> Option<ScopeWake> {
    let namespaced = informer.resource.namespaced();
    match (filter.namespaces(), &filter.name) {
        ([namespace], name) if namespaced => Some(informer.reader.wake_scoped(namespace, name.as_deref())),
        ([], Some(name)) if !namespaced => Some(informer.reader.wake_scoped("", Some(name))),
        _ => None,
    }
}
