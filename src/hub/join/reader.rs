//! The steps of a stream with a join. No async, no clock.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::Join;
use super::joined::{Follow, FollowedPart, Joined, RelatedUpdate};
use super::state::{READ_LEN, StateAt, changes_between, undo};
use crate::cache::{ChangeKind, Cursor, IndexTerm, Interest, KeySet, Located, Mark, Part};
use crate::hub::event::{Event, EventKind, Payload, ResetReason};
use crate::hub::informer::{InUse, Retirement};
use crate::hub::source::Source;
use crate::hub::{CloseReason, Form, Informer, Resumable, ResumeToken};
use crate::k8s::{Key, Object};

/// Largest number of objects of a stream with a join, selected and related. The stream holds a reference to each, and its edges.
pub const JOINED_MAX: usize = 100_000;

/// Largest number of changes that are read in one step. With more, each related object is compared with its current state.
const READ_MAX: usize = 8 * READ_LEN;

/// Largest number of related objects of a stream that are looked at to tell that none of them changed. With more, the journal is read.
const QUIET_MAX: usize = 1024;

/// Largest number of changes of one informer between a token and now. With more, the stream starts over: it has to undo them.
const UNDONE_MAX: usize = 4096;

/// Why a stream with a join cannot go on.
#[derive(Clone, Copy, Debug)]
pub(in crate::hub) enum JoinError {
    /// It starts over.
    Lost(ResetReason),
    /// There are more objects than [`JOINED_MAX`].
    TooMany,
}

/// The related objects of one stream, and its positions in their informers.
pub(in crate::hub) struct JoinReader {
    joined: Joined,
    /// The form in which objects are shown. The sources of the stream deliver whole objects, as links may be in any part of them.
    form: Form,
    related: Box<[Related]>,
    /// The client's token: where it resumes in the stream's own informers, and in the related ones. Empty until a bookmark has them.
    told: Box<[Resumable]>,
    wake: Arc<Notify>,
    /// Wakes at each commit of a related informer, until the stream begins.
    commits: Box<[watch::Receiver<Mark>]>,
    rebuild: Option<Box<Rebuild>>,
    /// Whether something that is followed since the last step may have changed before.
    again: bool,
    /// Whether it waits for a RESET.
    lost: bool,
}

/// A position in a related informer.
struct Related {
    /// Kept, if it runs on demand.
    informer: InUse,
    interest: Interest,
    cursor: Cursor,
    position: Resumable,
}

/// The events of selected objects in a step.
#[derive(Default)]
struct Taken {
    events: Vec<Event>,
    /// Whether there were others that the client did not ask for. They may have changed links.
    is_partial: bool,
}

/// How far the objects that were selected at the stream's positions are known. The client has them, so it is told nothing.
struct Rebuild {
    source: usize,
    last: Option<Key>,
}

impl JoinReader {
    /// The reader of a stream whose wake-up is `wake`.
    pub(in crate::hub) fn new(join: Arc<Join>, form: Form, wake: Arc<Notify>) -> Self {
        let related = join.informers().map(|informer| {
            let (cursor, position) = informer.head();
            let interest = informer.reader.interest(wake.clone());
            Related { informer: informer.in_use(), interest, cursor, position }
        });
        let related = related.collect();
        let commits = join.informers().map(|informer| informer.reader.wake()).collect();
        let joined = Joined::new(join);
        let (told, rebuild, again, lost) = (Box::default(), None, false, false);
        Self { joined, form, related, told, wake, commits, rebuild, again, lost }
    }

    /// Marks all commits so far as seen. To be called before reading.
    pub(in crate::hub) fn saw(&mut self) {
        for commits in &mut self.commits {
            commits.borrow_and_update();
        }
    }

    /// The commits of related informers that it waits for, until the stream begins, beside the stream's wake-up.
    pub(in crate::hub) fn commits(&mut self) -> impl Iterator<Item = &mut watch::Receiver<Mark>> {
        self.commits.iter_mut()
    }

    /// The related informers, and where the client resumes in each.
    pub(in crate::hub) fn positions(&self) -> impl Iterator<Item = (&Arc<Informer>, &Resumable)> {
        self.related.iter().map(|related| (&*related.informer, &related.position))
    }

    /// Whether the caches of the related informers are complete.
    pub(in crate::hub) fn synced(&self) -> bool {
        self.related.iter().all(|related| related.informer.reader.mark().synced)
    }

    /// Why the stream ends, if a related informer has. One that was replaced has other objects: the client comes back.
    pub(in crate::hub) fn ended(&self) -> Option<CloseReason> {
        self.related.iter().find_map(|related| match related.informer.retirement() {
            Some(Retirement::Ended(reason)) => Some(*reason),
            Some(Retirement::ReplacedBy(_)) => Some(CloseReason::Regrouped),
            None => None,
        })
    }

    /// Whether steps can be taken: it knows where the stream continues, and what the client has there.
    pub(in crate::hub) fn is_begun(&self) -> bool {
        self.commits.is_empty() && self.rebuild.is_none()
    }

    /// Whether it still finds out what the client has.
    pub(in crate::hub) fn is_rebuilding(&self) -> bool {
        self.rebuild.is_some()
    }

    /// Begins anew, with the first state. Forgets everything, as the client does.
    pub(in crate::hub) fn clear(&mut self) {
        self.forget_objects();
        self.joined = Joined::new(self.joined.join().clone());
        (self.commits, self.rebuild, self.again, self.lost) = (Box::default(), None, false, false);
        for related in &mut self.related {
            related.interest = related.informer.reader.interest(self.wake.clone());
            (related.cursor, related.position) = related.informer.head();
        }
    }

    /// Whether another step has to be taken at once.
    pub(in crate::hub) fn is_unfinished(&self) -> bool {
        self.again || self.rebuild.is_some()
    }

    /// Where the related informers have the versions of a token: all in their journals, one ahead of its cache, or one lost.
    pub(in crate::hub) fn locate(&self, token: &ResumeToken) -> Located {
        let mut found = Located::At(Cursor::default());
        for Related { informer, .. } in &self.related {
            let Some(position) = token.get(informer.token_name()) else { return Located::Lost };
            match locate(informer, position) {
                Located::At(_) => {}
                Located::Ahead => found = Located::Ahead,
                Located::Lost => return Located::Lost,
            }
        }
        found
    }

    /// The related informers.
    pub(in crate::hub) fn related_informers(&self) -> impl Iterator<Item = &Arc<Informer>> {
        self.related.iter().map(|related| &*related.informer)
    }

    /// Continues from the versions of a token, or from now. The sources of the stream stand at theirs.
    pub(in crate::hub) fn begin(&mut self, token: Option<&ResumeToken>) {
        for Related { informer, cursor, position, .. } in &mut self.related {
            (*cursor, *position) = informer.head();
            if let Some(told) = token.and_then(|token| token.get(informer.token_name()))
                && let Located::At(at) = locate(informer, told)
            {
                (*cursor, *position) = (at, told.clone());
            }
        }
        self.commits = Box::default();
        self.rebuild = Some(Box::new(Rebuild { source: 0, last: None }));
    }

    /// Takes a part of what was selected where the stream continues, and returns whether that was all.
    pub(in crate::hub) fn rebuild(&mut self, sources: &mut [Source]) -> Result<bool, JoinError> {
        let Some(rebuild) = self.rebuild.take() else { return Ok(true) };
        let Rebuild { source, last } = *rebuild;
        let lost = || JoinError::Lost(ResetReason::TokenTooOld);
        let piece = sources[source].selected_at_cursor(last.as_ref(), UNDONE_MAX).ok_or_else(lost)?;
        for object in &piece.objects {
            self.joined.select(source, object);
        }
        let states = self.states_before().ok_or_else(lost)?;
        self.joined.settle(&states);
        self.follow();
        self.bounded()?;
        let next = match piece.last {
            Some(last) => Some(Rebuild { source, last: Some(last) }),
            None => Some(Rebuild { source: source + 1, last: None }).filter(|_| source + 1 < sources.len()),
        };
        self.rebuild = next.map(Box::new);
        if self.rebuild.is_none() {
            self.joined.shrink();
        }
        Ok(self.rebuild.is_none())
    }

    /// The states of the related informers where the stream continues. `None` where they are no longer known.
    fn states_before(&mut self) -> Option<Vec<StateAt>> {
        let mut states = Vec::new();
        for at in 0..self.related.len() {
            let terms = self.new_terms(at);
            let Related { informer, cursor, .. } = &self.related[at];
            let (snapshot, keys) = informer.reader.find(&terms);
            let changes = changes_between(&informer.reader, *cursor, snapshot.cursor, UNDONE_MAX)?;
            let state = StateAt::before(snapshot, undo(&changes));
            if !terms.is_empty() {
                let found = keys.iter().flatten().flat_map(KeySet::iter);
                self.joined.compare(at, found.chain(state.undone()).cloned());
            }
            states.push(state);
        }
        Some(states)
    }

    /// Takes a step: the next events of the selected objects, and what changed of related ones. `own` has the positions of the stream's
    /// own informers behind the events. `is_located` says that the stream is at a position of each of them, which it is not amid a first
    /// state, a catch-up or what a relist found.
    pub(in crate::hub) fn step(
        &mut self,
        events: Vec<Event>,
        own: &[Resumable],
        is_located: bool,
    ) -> Result<Vec<Event>, JoinError> {
        let mut out = Vec::new();
        let mut taken = Taken::default();
        for mut event in events {
            let Payload::Mark { positions, .. } = &mut event.payload else {
                match self.take(event) {
                    Some(event) => taken.events.push(event),
                    None => taken.is_partial = true,
                }
                continue;
            };
            if event.kind == EventKind::Reset {
                out.append(&mut taken.events);
                self.clear();
            }
            self.change(std::mem::take(&mut taken), own, is_located, &mut out)?;
            positions.truncate(own.len());
            let is_reset = event.kind == EventKind::Reset;
            positions.extend(
                self.related
                    .iter()
                    .map(|related| if is_reset { Resumable::No } else { related.position.clone() }),
            );
            self.told = positions.as_slice().into();
            if event.kind == EventKind::Synced {
                self.joined.shrink();
            }
            out.push(event);
        }
        self.change(taken, own, is_located, &mut out)?;
        Ok(out)
    }

    /// Notes the versions of a bookmark that follows the events of a step.
    pub(in crate::hub) fn tell(&mut self, positions: &[Resumable]) {
        self.told = positions.into();
    }

    /// Whether a bookmark has to follow events: only it has a token of all informers.
    pub(in crate::hub) fn wants_bookmark(events: &[Event]) -> bool {
        events.last().is_some_and(|event| event.is_amid)
    }

    /// Takes an event of a selected object, and gives it the stream's form. `None` if the client did not ask for such changes.
    fn take(&mut self, event: Event) -> Option<Event> {
        let Event { source, kind, payload, position, is_amid } = event;
        let (kind, payload) = match payload {
            Payload::Object(object) if kind != EventKind::Deleted => {
                let before = self.joined.selected(source, object.key()).cloned();
                self.joined.select(source, &object);
                let is_change = |before: &Object| {
                    let is_same = before.uid() == object.uid();
                    is_same && before.resource_version() != object.resource_version()
                };
                match before.filter(is_change).filter(|_| kind == EventKind::Modified) {
                    Some(before) => self.form.modified(&before, &object)?,
                    None => (kind, self.form.show_payload(Payload::Object(object))),
                }
            }
            payload @ (Payload::Object(_)
            | Payload::ObjectAt(..)
            | Payload::ObjectSince { .. }
            | Payload::Patch { .. }
            | Payload::Identity { .. }
            | Payload::Mark { .. }) => {
                if let Some(key) = payload.key() {
                    self.joined.unselect(source, key);
                }
                (kind, self.form.show_payload(payload))
            }
        };
        Some(Event { source, kind, payload, position, is_amid })
    }

    /// Brings the related objects to their current states, behind events of selected ones.
    fn change(
        &mut self,
        selected: Taken,
        own: &[Resumable],
        is_located: bool,
        out: &mut Vec<Event>,
    ) -> Result<(), JoinError> {
        if self.lost {
            return Ok(());
        }
        let (begin, sources) = (out.len(), own.len());
        out.extend(selected.events);
        let states = self.states()?;
        let shown = self.joined.settle(&states);
        self.follow();
        self.bounded()?;
        for shown in shown {
            self.put(shown, sources, &states, out);
        }
        // Between several events the client may be at no position of all informers: a selected object that goes and comes back leaves
        // what it is linked with as it was.
        let has_position = |event: &Event| event.source < sources && event.position != Resumable::No;
        let is_amid = match &out[begin..] {
            [] => false,
            [event] => {
                let gives = is_located || has_position(event);
                gives && (selected.is_partial || !self.is_told(event, own))
            }
            several => is_located || several.iter().any(has_position),
        };
        if is_amid {
            out[begin..].iter_mut().for_each(|event| event.is_amid = true);
        } else {
            for event in &out[begin..] {
                if let Some(told) = self.told.get_mut(event.source) {
                    told.clone_from(&event.position);
                }
            }
        }
        Ok(())
    }

    /// Whether a client that takes the version of an event into its token has the positions of all informers. It has not where another
    /// informer moved on without an event: at its version of before, other objects may be linked.
    fn is_told(&self, event: &Event, own: &[Resumable]) -> bool {
        let related = self.related.iter().map(|related| &related.position);
        let positions = own.iter().chain(related).enumerate();
        self.told.len() == own.len() + self.related.len()
            && positions.zip(&*self.told).all(|((at, position), told)| at == event.source || position == told)
    }

    /// The current states of the related informers, with what changed in them noted.
    fn states(&mut self) -> Result<Vec<StateAt>, JoinError> {
        self.again = false;
        let mut states = Vec::new();
        for at in 0..self.related.len() {
            let related = &self.related[at];
            let is_short = self.joined.related_len() <= QUIET_MAX;
            let followed = self.joined.followed().take_while(|_| is_short);
            let objects = followed.filter(|(relation, _)| *relation == at);
            let (snapshot, is_quiet) = related.interest.look(related.cursor, objects.map(|(_, key)| key));
            let mut state = StateAt::now(snapshot);
            self.advance(at, &mut state, is_quiet && is_short)?;
            states.push(state);
        }
        for (at, state) in states.iter_mut().enumerate() {
            let terms = self.new_terms(at);
            if terms.is_empty() {
                continue;
            }
            let (newer, keys) = self.related[at].informer.reader.find(&terms);
            state.advance_to(newer);
            self.advance(at, state, false)?;
            self.joined.compare(at, keys.iter().flatten().flat_map(KeySet::iter).cloned());
        }
        Ok(states)
    }

    /// Moves to a later state of a related informer, and notes what changed until then.
    fn advance(&mut self, at: usize, to: &mut StateAt, is_quiet: bool) -> Result<(), JoinError> {
        let related = &mut self.related[at];
        let cursor = to.cursor();
        let from = std::mem::replace(&mut related.cursor, cursor);
        related.position = to.current_version().clone().into();
        if from.history != cursor.history {
            return Err(JoinError::Lost(ResetReason::HistoryLost));
        }
        if is_quiet || from == cursor {
            return Ok(());
        }
        match changes_between(&related.informer.reader, from, cursor, READ_MAX) {
            Some(changes) => {
                for change in changes {
                    let key = change.object.key();
                    self.joined.changed(at, key);
                    if change.kind == ChangeKind::Deleted {
                        to.note_deleted(key, &change.version);
                    }
                }
            }
            None => self.joined.all_changed(at),
        }
        Ok(())
    }

    /// The terms by which the objects of a related informer are found that name new selected ones.
    fn new_terms(&self, at: usize) -> Vec<IndexTerm> {
        let names = self.joined.join().relations[at].names.iter().enumerate();
        let terms = names.map(|(link, name)| {
            let values = self.joined.new_names(at, link).into_iter().map(str::to_owned).collect();
            IndexTerm { path: name.path.clone(), values }
        });
        terms.filter(|term| !term.values.is_empty()).collect()
    }

    /// Appends the events of a related object.
    fn put(&self, shown: RelatedUpdate, sources: usize, states: &[StateAt], out: &mut Vec<Event>) {
        let RelatedUpdate { relation, before, after } = shown;
        let mut put = |kind, payload| {
            let position = self.related[relation].position.clone();
            out.push(Event { source: sources + relation, kind, payload, position, is_amid: false });
        };
        match (before, after) {
            (None, None) => {}
            (None, Some(after)) => put(EventKind::Added, Payload::Object(self.form.show(&after))),
            (Some(before), Some(after)) if before.uid() == after.uid() => {
                if let Some((kind, payload)) = self.form.modified(&before, &after) {
                    put(kind, payload);
                }
            }
            (Some(before), Some(after)) => {
                let version = after.resource_version();
                put(EventKind::Deleted, Payload::ObjectAt(self.form.show(&before), version));
                put(EventKind::Added, Payload::Object(self.form.show(&after)));
            }
            (Some(before), None) => {
                let key = before.key().clone();
                let shown = self.form.show(&before);
                let payload = if states[relation].get(&key).is_some() {
                    // It exists, and nothing selected is linked with it any longer.
                    Payload::Object(shown)
                } else {
                    Payload::ObjectAt(shown, states[relation].deleted_at(&key).clone())
                };
                put(EventKind::Deleted, payload);
            }
        }
    }

    /// Follows what edges lead to since this step, and no longer what they do not.
    fn follow(&mut self) {
        for Follow { relation, part, begins } in self.joined.take_follows() {
            let Related { informer, interest, cursor, .. } = &mut self.related[relation];
            let part = match &part {
                FollowedPart::Object(key) => Err(key),
                FollowedPart::Namespace(namespace) => Ok(Part::Namespace(namespace)),
                FollowedPart::Named(link, name) => {
                    Ok(Part::Value(&self.joined.join().relations[relation].names[*link].path, name))
                }
                FollowedPart::Everything => Ok(Part::Everything),
            };
            match part {
                Ok(part) if begins => interest.add(part),
                Ok(part) => interest.remove(part),
                Err(key) if begins => interest.add_remembered(key),
                Err(key) => interest.remove_remembered(key),
            }
            // It may have changed between the step's state and now.
            self.again |= begins && informer.reader.head().0 != *cursor;
        }
    }

    /// Follows the ends of edges no longer, which are forgotten.
    fn forget_objects(&mut self) {
        for (relation, key) in self.joined.followed() {
            self.related[relation].interest.remove_remembered(key);
        }
    }

    /// Waits for a RESET from now on.
    pub(in crate::hub) fn lose(&mut self) {
        self.lost = true;
    }

    fn bounded(&self) -> Result<(), JoinError> {
        if self.joined.len() <= JOINED_MAX { Ok(()) } else { Err(JoinError::TooMany) }
    }
}

impl Drop for JoinReader {
    fn drop(&mut self) {
        self.forget_objects();
    }
}

/// Whether an informer has not reached the version of a token, so that its state would take the client back. The token may be of an
/// informer that it replaced, or of one with other content.
pub(in crate::hub) fn is_behind(informer: &Informer, token: &ResumeToken) -> bool {
    let name = informer.token_name();
    let position = token.get(name).or_else(|| token.get_of_other_content(name));
    let version = position.and_then(Resumable::version);
    version.is_some_and(|version| informer.reader.locate(version) == Located::Ahead)
}

/// Where an informer has a position of a token: in its journal, where all changes since are known, or not.
pub(in crate::hub) fn locate(informer: &Informer, position: &Resumable) -> Located {
    let Resumable::At(version) = position else { return Located::Lost };
    let is_of_another = informer.tokens_valid_after().is_some_and(|valid_after| version <= valid_after);
    // In a relist's gap an object may have come and gone that the client holds.
    if is_of_another || informer.reader.skipped_since(version) {
        return Located::Lost;
    }
    match informer.reader.locate(version) {
        Located::At(cursor) if informer.reader.changes_after(cursor, 0).is_none() => Located::Lost,
        located @ (Located::At(_) | Located::Ahead | Located::Lost) => located,
    }
}
