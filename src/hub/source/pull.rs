//! Pulls the next events of a source: the first state, changes, a catch-up. No async, no clock.

use std::cmp::Ordering;
use std::sync::Arc;

use super::super::event::{Event, EventKind, Payload, ResetReason};
use super::super::live_place::LivePosition;
use super::super::project::{
    differing, loses_order, position_after, project_backfill, project_change, project_gathered,
    project_latest,
};
use super::super::shared_batch::SharedBatch;
use super::super::token::TokenKind;
use super::super::{Candidates, Config, Resumable};
use super::{BatchBuilder, Difference, Finding, LOOKED_AT_MAX, Phase, Pulled, Source};
use crate::cache::{Batch, CatchUpEntry, Cursor, Gone, IndexCatchUp, Lost, Revision, UsedIndex};
use crate::k8s::{Key, Object, ResourceVersion};

/// A part of a catch-up.
struct Piece {
    entries: Vec<CatchUpEntry>,
    /// Where the next part begins.
    cursor: Cursor,
    finding: Finding,
    /// With the last part: the state that the client then has.
    state: Option<Candidates>,
}

/// Changes that a subscriber which gathers them takes as one, at most.
const GATHERED_MAX: usize = 1024;

/// How far the objects of a state were sent.
enum Put {
    /// Up to this key, if any; more may follow.
    Until(Option<Key>),
    /// To the end.
    All,
}

impl Source {
    /// Whether a catch-up is under way.
    pub(in crate::hub) fn is_catching_up(&self) -> bool {
        matches!(self.phase, Phase::CatchUp)
    }

    /// Pulls the next objects of the first state, or of a resync.
    ///
    /// # Errors
    /// If the state was dropped, and the client must start over.
    pub(in crate::hub) fn pull_snapshot(
        &mut self,
        index: usize,
        batch: &mut BatchBuilder,
    ) -> Result<Pulled, ResetReason> {
        self.matcher.refresh();
        if let Phase::Snapshot { state, last, kind } = &mut self.phase {
            let kind = *kind;
            if let Some(state) = state.get() {
                let last = last.take();
                return Ok(match self.put_objects(index, &state, last.as_ref(), kind, batch) {
                    Put::Until(last) => {
                        if let Phase::Snapshot { last: place, .. } = &mut self.phase {
                            *place = last;
                        }
                        Pulled::More
                    }
                    Put::All => self.end_snapshot(state),
                });
            }
            if self.ordered {
                return Err(ResetReason::Lagged);
            }
            let last = last.take();
            // From here on events are not in commit order, so a client that is cut off must start over.
            self.position = Resumable::No;
            self.phase = Phase::Moving { last, kind };
        }
        if matches!(self.phase, Phase::Moving { .. }) {
            return self.pull_moving(index, batch);
        }
        Ok(Pulled::Done)
    }

    fn end_snapshot(&mut self, state: Candidates) -> Pulled {
        self.cursor = state.snapshot.cursor;
        self.position = state.snapshot.position.into();
        self.phase = Phase::Live;
        Pulled::Done
    }

    /// Pulls the objects of a state after a key.
    fn put_objects(
        &self,
        index: usize,
        state: &Candidates,
        after: Option<&Key>,
        kind: EventKind,
        batch: &mut BatchBuilder,
    ) -> Put {
        let mut last = None;
        for (looked_at, object) in self.matcher.reach(state, after).enumerate() {
            // A condition shows only by its evaluation what it costs.
            if batch.is_full() || looked_at >= self.matcher.selection().looks_in(LOOKED_AT_MAX) {
                return Put::Until(last.or_else(|| after.cloned()));
            }
            last = Some(object.key().clone());
            if self.matcher.matches(object) {
                let payload = Payload::Object(self.matcher.selection().form.show(object));
                batch.push(Event {
                    source: index,
                    kind,
                    payload,
                    position: self.position.clone(),
                    is_amid: false,
                });
            }
        }
        Put::All
    }

    /// Continues the first state of a slow client: first the changes of the keys that it has, then the keys behind them, as of
    /// the same moment.
    fn pull_moving(&mut self, index: usize, batch: &mut BatchBuilder) -> Result<Pulled, ResetReason> {
        let mut looked_at = 0;
        loop {
            if batch.is_full() || looked_at >= self.matcher.selection().looks_in(LOOKED_AT_MAX) {
                return Ok(Pulled::More);
            }
            let Phase::Moving { last, kind } = &self.phase else { return Ok(Pulled::Done) };
            let (last, kind) = (last.clone(), *kind);
            let len_max = self.len_max_of(batch);
            let (since, history) = (self.cursor.revision, self.wake.borrow().history);
            let lost = self.lost(history);
            let Piece { entries, cursor, finding, state } = self.catch_up(len_max).map_err(|_| lost)?;
            looked_at += entries.len();
            // In a resync the client has the keys behind, too.
            let has =
                |key: &Key| kind == EventKind::Modified || last.as_ref().is_some_and(|last| key <= last);
            let count = entries.len();
            for (at, entry) in entries.into_iter().enumerate().filter(|(_, entry)| has(&entry.key)) {
                let revision = entry.revision;
                if let Some((kind, payload)) = project_latest(&self.matcher, since, self.token_kind(), entry)
                {
                    batch.push(Event {
                        source: index,
                        kind,
                        payload,
                        position: Resumable::No,
                        is_amid: false,
                    });
                }
                if batch.is_full() && at + 1 < count {
                    self.take_until(revision);
                    return Ok(Pulled::More);
                }
            }
            self.take_piece(cursor, finding, state.is_some());
            let Some(state) = state else { continue };
            if batch.is_full() {
                // The keys behind must be of the moment up to which the client has all changes of the keys before.
                continue;
            }
            match self.put_objects(index, &state, last.as_ref(), kind, batch) {
                Put::Until(last) => {
                    self.phase = Phase::Moving { last, kind };
                    return Ok(Pulled::More);
                }
                Put::All => return Ok(self.end_snapshot(state)),
            }
        }
    }

    /// The kind of the client's token.
    fn token_kind(&self) -> TokenKind {
        if self.holds_beyond.is_some() { TokenKind::Bookmark } else { TokenKind::PerEvent }
    }

    /// The next part of a catch-up. Afterwards [`Source::take_piece`] or [`Source::take_until`] notes how much of it was taken.
    fn catch_up(&mut self, len_max: usize) -> Result<Piece, Lost> {
        let index = self.matcher.index();
        let begin = |index: &UsedIndex| {
            let departed_after = index.begin_catch_up(self.cursor, self.located_by.as_ref())?;
            Some(Finding::ByIndex { departed_after })
        };
        let finding = self.finding.or_else(|| index.and_then(begin)).unwrap_or(Finding::Looking);
        if let (Finding::ByIndex { departed_after }, Some(index)) = (finding, index)
            && let Some(found) = index.catch_up_to_state(self.cursor, departed_after, len_max)
        {
            self.finding = Some(finding);
            let IndexCatchUp { piece: found, departed_after, state } = found;
            let state = state.map(|(snapshot, keys)| Candidates::of_keys(snapshot, keys));
            let finding = Finding::ByIndex { departed_after };
            return Ok(Piece { entries: found.entries, cursor: found.cursor, finding, state });
        }
        let finding = Finding::Looking;
        self.finding = Some(finding);
        let (found, state) = self.informer.reader.catch_up_to_state(self.cursor, len_max)?;
        let state = state.map(Candidates::all);
        Ok(Piece { entries: found.entries, cursor: found.cursor, finding, state })
    }

    /// Largest number of objects in a part of a catch-up, all of which are read.
    fn len_max_of(&self, batch: &BatchBuilder) -> usize {
        let room = batch.len_max - batch.events.len();
        room.min(self.matcher.selection().looks_in(LOOKED_AT_MAX))
    }

    /// Notes that all of a part was taken.
    fn take_piece(&mut self, cursor: Cursor, finding: Finding, is_last: bool) {
        self.cursor = cursor;
        self.finding = Some(finding);
        if is_last {
            (self.finding, self.located_by) = (None, None);
        }
    }

    /// Notes that a part was taken up to a revision.
    fn take_until(&mut self, revision: Revision) {
        self.cursor.revision = self.cursor.revision.max(revision);
        if let Some(Finding::ByIndex { departed_after }) = &mut self.finding {
            *departed_after = revision;
        }
    }

    /// Pulls the next shared batch, for a source that is live and selects everything.
    pub(in crate::hub) fn pull_shared(&mut self, config: &Config) -> Option<Arc<SharedBatch>> {
        if !self.can_share() {
            return None;
        }
        let mark = *self.wake.borrow();
        if mark.history != self.cursor.history || mark.revision <= self.cursor.revision {
            return None;
        }
        let batch = self.informer.batch_after(self.cursor, config)?;
        let (cursor, position) = batch.end();
        self.cursor = cursor;
        self.position = position.clone();
        Some(batch)
    }

    /// Whether its next events equal those of every other live source of its informer that selects everything.
    fn can_share(&self) -> bool {
        let live = matches!(self.phase, Phase::Live) && self.holds_beyond.is_none() && !self.resync_due;
        live && !self.informer.is_over()
    }

    /// Its position, if it is live and has caught up.
    pub(in crate::hub) fn live_position(&self) -> Option<LivePosition> {
        let live = matches!(self.phase, Phase::Live) && !self.resync_due && !self.informer.is_over();
        // It has to start over, which only its own reader does.
        let skipped = |token: &ResourceVersion| self.informer.reader.skipped_since(token);
        let live = live && !self.holds_beyond.as_ref().is_some_and(skipped);
        let here = || LivePosition {
            informer: self.informer.clone(),
            cursor: self.cursor,
            position: self.position.clone(),
            holds_beyond: self.holds_beyond.clone(),
        };
        (live && self.is_at_head()).then(here)
    }

    /// Whether it had taken everything when it last looked.
    pub(in crate::hub) fn is_at_head(&self) -> bool {
        let mark = self.wake.borrow();
        mark.history == self.cursor.history && mark.revision == self.cursor.revision
    }

    /// Number of changes of its informer between its place and the head.
    pub(in crate::hub) fn behind(&self) -> u64 {
        let mark = self.wake.borrow();
        let same = mark.history == self.cursor.history;
        if same { mark.revision.0.saturating_sub(self.cursor.revision.0) } else { 0 }
    }

    /// Pulls the next changes.
    pub(in crate::hub) fn pull_changes(
        &mut self,
        index: usize,
        batch: &mut BatchBuilder,
    ) -> Result<Pulled, ResetReason> {
        self.matcher.refresh();
        // A relist since has a gap: see `locate`. Another replica may have sent the client events that this one has not
        // reached.
        if self.holds_beyond.as_ref().is_some_and(|token| self.informer.reader.skipped_since(token)) {
            return Err(ResetReason::TokenTooOld);
        }
        let mut looked_at = 0;
        loop {
            if batch.is_full() || looked_at >= self.matcher.selection().looks_in(LOOKED_AT_MAX) {
                return Ok(Pulled::More);
            }
            match &self.phase {
                Phase::Ahead { token_kind, version } => {
                    let (token_kind, version) = (*token_kind, version.clone());
                    if let Pulled::Done = self.meet(token_kind, version)? {
                        return Ok(Pulled::Done);
                    }
                }
                Phase::Backfill { .. } => self.pull_backfill(index, batch),
                Phase::Difference(_) => looked_at += self.pull_difference(index, batch)?,
                Phase::CatchUp => {
                    looked_at += self.len_max_of(batch);
                    if self.pull_catch_up(index, batch)? {
                        self.phase = Phase::Live;
                    }
                }
                Phase::Live | Phase::Idle | Phase::Snapshot { .. } | Phase::Moving { .. } => {
                    if let Some(pulled) = self.pull_journal(index, batch, &mut looked_at)? {
                        return Ok(pulled);
                    }
                }
            }
        }
    }

    /// Hands out the next changes of the journal; `None` where there may be more to do.
    fn pull_journal(
        &mut self,
        index: usize,
        batch: &mut BatchBuilder,
        looked_at: &mut usize,
    ) -> Result<Option<Pulled>, ResetReason> {
        if let Some(head) = self.head_if_quiet() {
            (self.cursor, self.position) = head;
            return Ok(Some(Pulled::Done));
        }
        let gathers = self.matcher.selection().form.coalesce.is_some();
        let len_max = if gathers {
            GATHERED_MAX.min(self.matcher.selection().looks_in(LOOKED_AT_MAX))
        } else {
            batch.len_max - batch.events.len()
        };
        let Some(run) = self.changes_after(len_max) else {
            if self.ordered {
                return Err(ResetReason::Lagged);
            }
            self.phase = Phase::CatchUp;
            self.has_passed_over = true;
            return Ok(None);
        };
        self.located_by = None;
        *looked_at += run.changes.len();
        if gathers {
            return Ok(self.put_gathered(index, run, batch).then_some(Pulled::Done));
        }
        for (count, change) in (1..).zip(&run.changes) {
            // A relist loses the order in which objects stopped matching. Another replica, resumed from this
            // position, might never send those deletions; so end the watch.
            if self.ordered && loses_order(self.matcher.selection(), change) {
                return Err(ResetReason::Lagged);
            }
            self.cursor.revision = change.revision;
            self.position = position_after(change);
            if let Some((kind, payload)) = project_change(&self.matcher, change) {
                let position = self.position.clone();
                batch.push(Event { source: index, kind, payload, position, is_amid: false });
            }
            let is_enough = batch.is_full() || count >= self.matcher.selection().looks_in(LOOKED_AT_MAX);
            if is_enough && change.revision != run.cursor.revision {
                return Ok(Some(Pulled::More));
            }
        }
        self.cursor = run.cursor;
        if run.caught_up {
            self.position = run.position.into();
            return Ok(Some(Pulled::Done));
        }
        Ok(None)
    }

    /// Hands out changes as one, and tells whether the client then has all there is. They have no order among each other:
    /// until the last, the client's token is that of the state before.
    fn put_gathered(&mut self, index: usize, run: Batch, batch: &mut BatchBuilder) -> bool {
        let before = batch.events.len();
        for (kind, payload) in project_gathered(&self.matcher, self.token_kind(), &run.changes) {
            let position = self.position.clone();
            batch.push(Event { source: index, kind, payload, position, is_amid: true });
        }
        self.cursor = run.cursor;
        self.position = match run.changes.last() {
            Some(last) if !run.caught_up => position_after(last),
            Some(_) | None => run.position.into(),
        };
        if let Some(last) = batch.events[before..].last_mut() {
            (last.position, last.is_amid) = (self.position.clone(), false);
        }
        run.caught_up
    }

    /// The head, where nothing of its scope has changed since its cursor.
    fn head_if_quiet(&self) -> Option<(Cursor, Resumable)> {
        let scope = self.scope.as_ref().filter(|_| self.located_by.is_none())?;
        let (cursor, version) = scope.head_if_quiet_since(self.cursor)?;
        Some((cursor, version.into()))
    }

    /// Pulls the changes from before the cache's history, until the batch is full.
    fn pull_backfill(&mut self, index: usize, batch: &mut BatchBuilder) {
        let Phase::Backfill { backfill, next } = &mut self.phase else { return };
        let before = batch.events.len();
        loop {
            let at = *next;
            if at == backfill.gone.len() + backfill.changed.len() {
                self.position = backfill.position.clone().into();
                // With the last change the client has everything.
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
            let event = if let Some(gone) = backfill.gone.get(at) {
                let Gone { key, uid, version } = gone.clone();
                let form = &self.matcher.selection().form;
                if form.patch || form.coalesce.is_some() {
                    // Cut off here, the client would come back without an object of which another replica sends a patch. One that gets
                    // changes in batches would take the deletions alone for a state.
                    self.position = Resumable::No;
                }
                self.matcher
                    .selection()
                    .in_scope(&key)
                    .then_some((EventKind::Deleted, Payload::Identity { key, uid, version }))
            } else {
                self.position = Resumable::No;
                project_backfill(&self.matcher, &backfill.changed[at - backfill.gone.len()])
            };
            if let Some((kind, payload)) = event {
                batch.push(Event {
                    source: index,
                    kind,
                    payload,
                    position: self.position.clone(),
                    is_amid: false,
                });
            }
        }
    }

    /// Pulls the difference between two informers, until the batch is full or the turn is over. Returns how many objects it looked at.
    /// The client has no position until the end: cut off in between, it holds states of both informers, and must start over at any
    /// replica.
    ///
    /// # Errors
    /// Where an object comes back that an earlier replacement deleted, at a version before that deletion, and where the successor
    /// has another history: no version may go down on a stream, so the client must start over.
    fn pull_difference(&mut self, index: usize, batch: &mut BatchBuilder) -> Result<usize, ResetReason> {
        let Phase::Difference(difference) = &mut self.phase else { return Ok(0) };
        let after = difference.last.take();
        let Difference { old, new, .. } = &**difference;
        self.position = Resumable::No;
        let begin = batch.events.len();
        let (before, now) = [old, new].map(|state| self.matcher.reach(state, after.as_ref())).into();
        let (mut before, mut now) = (before.peekable(), now.peekable());
        let (mut reached, mut looked_at) = (None, 0);
        // A condition shows only by its evaluation what it costs.
        while !batch.is_full() && looked_at < self.matcher.selection().looks_in(LOOKED_AT_MAX) {
            let order = match (before.peek(), now.peek()) {
                (Some(before), Some(now)) => before.key().cmp(now.key()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => {
                    self.cursor = new.snapshot.cursor;
                    self.position = new.snapshot.position.clone().into();
                    drop((before, now));
                    self.phase = Phase::Live;
                    // With the last one the client has everything.
                    if let Some(last) = batch.events[begin..].last_mut() {
                        last.position = self.position.clone();
                    }
                    return Ok(looked_at);
                }
            };
            let was = if order.is_le() { before.next() } else { None };
            let is = if order.is_ge() { now.next() } else { None };
            looked_at += 1;
            reached = was.or(is).map(|object| object.key().clone());
            let is_selected = |object: &&Object| self.matcher.matches(object);
            let (was, is) = (was.filter(is_selected), is.filter(is_selected));
            match (was, is) {
                (None, Some(is)) if is.resource_version() <= self.left_at => {
                    return Err(ResetReason::Replaced);
                }
                (_, _) if difference.is_of_other_history(was, is) => return Err(ResetReason::Replaced),
                (Some(_), None) => self.left_at = new.snapshot.position.clone(),
                (_, _) => {}
            }
            let form = &self.matcher.selection().form;
            for (kind, payload) in differing(was, is, &new.snapshot.position, form) {
                batch.push(Event { source: index, kind, payload, position: Resumable::No, is_amid: false });
            }
        }
        drop((before, now));
        difference.last = reached.or(after);
        Ok(looked_at)
    }

    /// Pulls the next part of a catch-up. Returns whether nothing is left.
    fn pull_catch_up(&mut self, index: usize, batch: &mut BatchBuilder) -> Result<bool, ResetReason> {
        let len_max = self.len_max_of(batch);
        // Since the beginning of this part, not of the whole catch-up: an object of an earlier part is known already.
        let since = self.cursor.revision;
        let history = self.wake.borrow().history;
        let lost = self.lost(history);
        let Piece { entries, cursor, finding, state } = self.catch_up(len_max).map_err(|_| lost)?;
        let (count, before) = (entries.len(), batch.events.len());
        for (at, entry) in entries.into_iter().enumerate() {
            let revision = entry.revision;
            if let Some((kind, payload)) = project_latest(&self.matcher, since, self.token_kind(), entry) {
                batch.push(Event { source: index, kind, payload, position: Resumable::No, is_amid: false });
            }
            if batch.is_full() && at + 1 < count {
                self.take_until(revision);
                self.position = Resumable::No;
                return Ok(false);
            }
        }
        self.take_piece(cursor, finding, state.is_some());
        let done = state.is_some();
        self.position = state.map_or(Resumable::No, |state| state.snapshot.position.into());
        // With the last one the client has everything.
        if let Some(last) = batch.events[before..].last_mut() {
            last.position = self.position.clone();
        }
        Ok(done)
    }

    /// Why a client that cannot catch up starts over.
    fn lost(&self, history: u64) -> ResetReason {
        if history == self.cursor.history { ResetReason::Lagged } else { ResetReason::HistoryLost }
    }

    /// The next changes of the journal that may concern the selection.
    fn changes_after(&self, len_max: usize) -> Option<Batch> {
        // An ordered source must see every change of a relist.
        match self.matcher.index().filter(|_| !self.ordered) {
            Some(index) => {
                index.changes_after(self.cursor, len_max).or_else(|| self.all_changes_after(len_max))
            }
            None => self.all_changes_after(len_max),
        }
    }

    fn all_changes_after(&self, len_max: usize) -> Option<Batch> {
        self.informer.reader.changes_after(self.cursor, len_max)
    }
}
