//! Checks the promises of a stream, event by event, against the truth. The checker applies events like a client, and
//! does not know how they are made.

use std::collections::BTreeMap;

use informerd::testing::hub::{Event, EventKind, Payload, ResetReason};
use informerd::testing::k8s::Object;
use serde_json::{Value, json};

use crate::fault::{Fault, Hits};
use crate::notes::{NOTE, Noted, note_of};
use crate::replica::{number, position_number};
use crate::truth::{Key, Log, RESOURCES, Seen, Truth, Wanted, Write};

/// The state of the simulation at one moment, for a checker.
pub(crate) struct View<'a> {
    pub(crate) truth: &'a Truth,
    pub(crate) hits: &'a Hits,
    /// Number of lists that the informers of the client's replica have started.
    pub(crate) lists: [u64; 2],
    /// The number of started lists at an earlier moment: for the events of a snapshot when the stream began, else
    /// when the event was sent. `None` if a list was under way then.
    pub(crate) lists_then: [Option<u64>; 2],
    /// What the informers keep that sent the event.
    pub(crate) noted: Noted,
}

/// The state of an object that a client holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    uid: String,
    version: u64,
    content: String,
    app: Option<String>,
    color: Option<String>,
}

/// A client's state of one resource.
#[derive(Default)]
struct Fold {
    objects: BTreeMap<Key, Held>,
    /// The objects as JSON, as the client received them: patches apply to them.
    json: BTreeMap<Key, Value>,
    /// The newest version of each object that the client received, deletions included.
    received: BTreeMap<Key, u64>,
    /// The last version of each object on this connection, and whether it was a deletion.
    received_here: BTreeMap<Key, (u64, bool)>,
    /// The newest version of each object that the client received beyond the token with which this connection
    /// resumed. A replica that is behind that version cannot know of it.
    beyond: BTreeMap<Key, u64>,
    /// The token this connection resumed with.
    resumed_at: u64,
    /// The version up to which the client has everything; 0 while a snapshot is under way.
    token: u64,
    strict: Option<Strict>,
}

/// For a client that keeps up, and therefore must get every change in order.
struct Strict {
    /// The version up to which the client has every change.
    at: u64,
    /// Number of started lists at that moment. After another list, changes may be left out.
    lists: u64,
}

/// What an event sends of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    State,
    /// A state with more or fewer members than the one that the client has.
    Reformed,
    Deletion,
}

/// The checker of one client.
pub(crate) struct Checker {
    wanted: Wanted,
    sources: Vec<usize>,
    folds: Vec<Fold>,
    /// What the informers keep that sent the last event.
    noted: Noted,
    /// What those keep that gave the token with which this connection resumed, if any.
    resumed_noted: Option<Noted>,
    /// The tokens of the last bookmark, and what its informers keep.
    bookmark: Vec<u64>,
    bookmark_noted: Noted,
    /// Whether the right state of the client is known. For a client that began with later changes only, it is known
    /// from the first bookmark on.
    base_known: bool,
    /// Whether the last event was in the middle of a batch, so that its token does not cover it.
    amid: bool,
    /// Whether the client resumed from a token that did not cover all that it held. Then no later token does, until a RESET.
    holds_beyond: bool,
    /// Digest of the received events, for the digest of the history.
    pub(crate) digest: u64,
}

impl Checker {
    pub(crate) fn new(sources: Vec<usize>, wanted: Wanted) -> Self {
        let folds = sources.iter().map(|_| Fold::default()).collect();
        let bookmark = vec![0; sources.len()];
        Self {
            wanted,
            sources,
            folds,
            noted: [true; 2],
            resumed_noted: None,
            bookmark,
            bookmark_noted: [true; 2],
            base_known: true,
            amid: false,
            holds_beyond: false,
            digest: 0,
        }
    }

    /// The client connects without a token. `base_known` is false if it begins with later changes only.
    pub(crate) fn start_anew(&mut self, base_known: bool) {
        self.folds = self.sources.iter().map(|_| Fold::default()).collect();
        self.bookmark = vec![0; self.sources.len()];
        self.base_known = base_known;
        self.holds_beyond = false;
        self.resumed_noted = None;
    }

    /// The client connects with tokens, which cover all that it holds or not. `lists` has, for each source, the number of
    /// started lists if the client must get every change.
    pub(crate) fn resume(&mut self, tokens: &[u64], noted: Noted, covers: bool, lists: &[Option<u64>]) {
        self.holds_beyond = !covers;
        self.resumed_noted = Some(noted);
        for ((fold, token), lists) in self.folds.iter_mut().zip(tokens).zip(lists) {
            fold.received_here.clear();
            fold.resumed_at = *token;
            fold.token = *token;
            // Events beyond the token are sent again.
            let Fold { received, beyond, .. } = fold;
            received.retain(|key, received| {
                if *received > *token {
                    let beyond = beyond.entry(key.clone()).or_default();
                    *beyond = (*beyond).max(*received);
                }
                *received <= *token
            });
            // A client that gathers changes does not get each of them.
            let lists = lists.filter(|_| self.wanted.coalesce_ms.is_none());
            fold.strict = lists.map(|lists| Strict { at: *token, lists });
        }
    }

    pub(crate) fn is_base_known(&self) -> bool {
        self.base_known
    }

    /// Whether the client may hold events that its token does not cover.
    pub(crate) fn holds_beyond(&self) -> bool {
        self.amid || self.holds_beyond
    }

    pub(crate) fn token(&self) -> Vec<u64> {
        self.folds.iter().map(|fold| fold.token).collect()
    }

    pub(crate) fn bookmark(&self) -> &[u64] {
        &self.bookmark
    }

    pub(crate) fn noted(&self) -> Noted {
        self.noted
    }

    pub(crate) fn bookmark_noted(&self) -> Noted {
        self.bookmark_noted
    }

    /// Notes that the client did not keep up with this source.
    pub(crate) fn fell_behind(&mut self, at: usize, hits: &Hits) {
        if self.folds[at].strict.take().is_some() {
            hits.count(Fault::FellBehind);
        }
    }

    /// Applies an event as the client does, and checks it.
    pub(crate) fn take(&mut self, event: &Event, view: &View<'_>) -> Result<(), String> {
        let before = self.folds[event.source].token;
        self.amid = event.is_amid;
        let is_reformed = std::mem::replace(&mut self.noted, view.noted) != view.noted;
        match (&event.kind, &event.payload) {
            (EventKind::Added | EventKind::Modified, Payload::Object(object)) => {
                let json = serde_json::from_slice(&object.json()).unwrap();
                self.put(event.source, event.kind, object.key().as_str(), json, view)?;
                self.moved(event, before, view)?;
            }
            (EventKind::Patched, Payload::Patch { object, patch }) => {
                let json = self.patched(event.source, object, patch)?;
                self.put(event.source, event.kind, object.key().as_str(), json, view)?;
                self.moved(event, before, view)?;
            }
            (EventKind::Deleted, Payload::Object(object)) => {
                let version = number(&object.resource_version());
                self.remove(event.source, object.key().as_str(), &object.uid(), version, view)?;
                self.moved(event, before, view)?;
            }
            (
                EventKind::Deleted,
                Payload::ObjectAt(object, version) | Payload::ObjectSince { object, version, .. },
            ) => {
                self.remove(event.source, object.key().as_str(), &object.uid(), number(version), view)?;
                self.moved(event, before, view)?;
            }
            (EventKind::Deleted, Payload::Identity { key, uid, version }) => {
                self.remove(event.source, key.as_str(), uid, number(version), view)?;
                self.moved(event, before, view)?;
            }
            (EventKind::Bookmark | EventKind::Synced, Payload::Mark { positions, .. }) => {
                let positions: Vec<_> = positions.iter().map(position_number).collect();
                self.mark(event.kind, &positions, is_reformed, view)?;
            }
            (EventKind::Reset, Payload::Mark { reason, .. }) => {
                self.holds_beyond = false;
                self.reset(*reason, view)?;
            }
            (kind, payload) => return Err(format!("an event that makes no sense: {kind:?} {payload:?}")),
        }
        Ok(())
    }

    /// Applies a patch to what the client holds.
    fn patched(&self, source: usize, object: &Object, patch: &[u8]) -> Result<Value, String> {
        let (fold, key) = (&self.folds[source], object.key().as_str());
        let Some(mut json) = fold.json.get(key).cloned() else {
            return Err(format!("P1: a patch of {key}, which the client does not hold"));
        };
        merge(&mut json, &serde_json::from_slice(patch).unwrap());
        let whole: Value = serde_json::from_slice(&object.json()).unwrap();
        // A client that holds a later state will get that state again.
        if json != whole && !fold.beyond.contains_key(key) {
            return Err(format!("P1: a patch of {key} gave {json} and not {whole}"));
        }
        Ok(json)
    }

    fn put(
        &mut self,
        source: usize,
        kind: EventKind,
        key: &str,
        json: Value,
        view: &View<'_>,
    ) -> Result<(), String> {
        let held = Held::of_json(&json);
        let name = RESOURCES[self.sources[source]];
        self.hash(&[key, name, kind.as_str()], held.version);
        // The cluster must have had this state, and the client must have selected it.
        let resource = self.sources[source];
        let hides_content = self.wanted.shows.hides_content();
        let on_the_way = kind == EventKind::Patched && self.folds[source].beyond.contains_key(key);
        let real = view.truth.eras.iter().any(|era| {
            era[resource].last(key, held.version).and_then(|write| write.after.clone()).is_some_and(|after| {
                let shown = Held {
                    content: if hides_content { String::new() } else { after.content.clone() },
                    ..Held::of(&after)
                };
                (on_the_way || shown == held) && self.wanted.wants(key, &after)
            })
        });
        if !real {
            return Err(format!("P1: {kind:?} {name} {key}@{} was never so, or is not wanted", held.version));
        }
        let note = note_of(&json);
        let keeps = view.noted[source] && !hides_content;
        if !on_the_way && note != keeps.then_some(&held.content) {
            return Err(format!("P1: {kind:?} {name} {key}@{} has the note {note:?}", held.version));
        }
        // A replacing informer may keep other members, so that the state that the client has is sent anew.
        let fold = &mut self.folds[source];
        let is_reformed = fold.json.get(key).is_some_and(|had| note_of(had).is_some() != note.is_some());
        if is_reformed && !on_the_way {
            fold.strict = None;
        }
        self.note_version(source, key, held.version, Sent::state(is_reformed))?;
        self.folds[source].objects.insert(key.to_owned(), held.clone());
        self.folds[source].json.insert(key.to_owned(), json);
        self.in_order(source, kind, key, held.version, view)
    }

    fn remove(
        &mut self,
        source: usize,
        key: &str,
        uid: &str,
        version: u64,
        view: &View<'_>,
    ) -> Result<(), String> {
        let name = RESOURCES[self.sources[source]];
        self.hash(&[key, name, "DELETED"], version);
        let resource = self.sources[source];
        let gone = view.truth.eras.iter().any(|era| {
            let state = era[resource].at(version);
            state.get(key).is_none_or(|seen| seen.uid != uid || !self.wanted.wants(key, seen))
        });
        if !gone || !self.wanted.in_scope(key) {
            return Err(format!("P1: DELETED {name} {key}@{version}, which was there and wanted"));
        }
        self.note_version(source, key, version, Sent::Deletion)?;
        self.folds[source].objects.remove(key);
        self.folds[source].json.remove(key);
        self.in_order(source, EventKind::Deleted, key, version, view)
    }

    /// P2 and P3: versions of an object never decrease, and increase with each event of a connection.
    fn note_version(&mut self, source: usize, key: &str, version: u64, sent: Sent) -> Result<(), String> {
        let name = RESOURCES[self.sources[source]];
        let fold = &mut self.folds[source];
        if let Some(received) = fold.received.get(key)
            && version < *received
        {
            return Err(format!("P2: {name} {key} went back from {received} to {version}"));
        }
        if version <= fold.resumed_at && sent != Sent::Reformed {
            return Err(format!("P3: {name} {key}@{version} was sent after a resume at {}", fold.resumed_at));
        }
        if let Some((before, was_deleted)) =
            fold.received_here.insert(key.to_owned(), (version, sent == Sent::Deletion))
        {
            // An object may be created again at the version with which the deletion of the previous one is sent.
            let again = match sent {
                Sent::State if !was_deleted => version <= before,
                Sent::State | Sent::Reformed => version < before,
                Sent::Deletion => version <= before,
            };
            if again {
                return Err(format!("P3: {name} {key}@{version} was sent twice on a connection"));
            }
        }
        fold.received.insert(key.to_owned(), version);
        Ok(())
    }

    /// P4: a client that keeps up with an informer without relists gets each change once and in order.
    fn in_order(
        &mut self,
        source: usize,
        kind: EventKind,
        key: &str,
        version: u64,
        view: &View<'_>,
    ) -> Result<(), String> {
        let resource = self.sources[source];
        let fold = &mut self.folds[source];
        let Some(strict) = &mut fold.strict else { return Ok(()) };
        if strict.lists != view.lists[resource] {
            fold.strict = None;
            return Ok(());
        }
        let fits = view.truth.eras.iter().any(|era| {
            let next = next_visible(&era[resource], &self.wanted, strict.at);
            // A patch counts as the MODIFIED that it stands for.
            let kind = if kind == EventKind::Patched { EventKind::Modified } else { kind };
            next.is_some_and(|(next, write)| next == kind && write.key == key && write.version == version)
        });
        if !fits {
            let next = next_visible(view.truth.log(resource), &self.wanted, strict.at);
            let next = next.map(|(kind, write)| format!("{kind:?} {}@{}", write.key, write.version));
            return Err(format!(
                "P4: after {} came {kind:?} {} {key}@{version}, and not {next:?}",
                strict.at, RESOURCES[resource]
            ));
        }
        strict.at = version;
        Ok(())
    }

    /// Moves the token to the event's position.
    fn moved(&mut self, event: &Event, before: u64, view: &View<'_>) -> Result<(), String> {
        let position = position_number(&event.position);
        let resource = self.sources[event.source];
        // Position 0 makes the client start over.
        if position < before && position > 0 {
            return Err(format!(
                "P2: the token of {} went back from {before} to {position}",
                RESOURCES[resource]
            ));
        }
        self.folds[event.source].token = position;
        if position == 0 || !self.base_known {
            return Ok(());
        }
        self.check_notes(event.source, view.noted, position)?;
        let fold = &self.folds[event.source];
        let mut missing = None;
        let covered = view.truth.eras.iter().any(|era| {
            missing = uncovered(&era[resource], &self.wanted, fold, position);
            missing.is_none()
        });
        match missing {
            Some(missing) if !covered => {
                Err(format!("P1: at token {position} of {} {missing}", RESOURCES[resource]))
            }
            _ => Ok(()),
        }
    }

    /// P1: the objects that a client holds have the members that its informer keeps.
    fn check_notes(&self, source: usize, noted: Noted, position: u64) -> Result<(), String> {
        let (fold, keeps) = (&self.folds[source], noted[source] && !self.wanted.shows.hides_content());
        let beyond = |key: &Key| fold.beyond.get(key).is_some_and(|beyond| *beyond > position);
        let differs = |(key, json): &(&Key, &Value)| note_of(json).is_some() != keeps && !beyond(key);
        match fold.json.iter().find(differs) {
            Some((key, json)) => {
                let resource = RESOURCES[self.sources[source]];
                Err(format!(
                    "P1: at {position} of {resource} {key} is held as {json}, keeping notes: {keeps}"
                ))
            }
            None => Ok(()),
        }
    }

    /// P1: at a mark the client holds exactly the cluster's state at this version.
    fn mark(
        &mut self,
        kind: EventKind,
        positions: &[u64],
        is_reformed: bool,
        view: &View<'_>,
    ) -> Result<(), String> {
        let voids = |position: u64| position == 0 && is_reformed;
        let voids_any = positions.iter().any(|position| voids(*position));
        for (at, position) in positions.iter().enumerate() {
            self.hash(&[kind.as_str()], *position);
            let resource = self.sources[at];
            let name = RESOURCES[resource];
            let fold = &mut self.folds[at];
            // Its informer was replaced by one that keeps other members, so older tokens are void.
            if voids(*position) {
                (fold.token, fold.strict, self.bookmark[at]) = (0, None, 0);
                continue;
            }
            if *position < fold.token {
                return Err(format!("P2: a mark took the token of {name} from {} to {position}", fold.token));
            }
            if self.base_known {
                let differs: Vec<_> = view
                    .truth
                    .eras
                    .iter()
                    .map(|era| difference(&era[resource], &self.wanted, fold, *position))
                    .collect();
                if differs.iter().all(Option::is_some) {
                    let last = differs.last().cloned().flatten().unwrap_or_default();
                    return Err(format!("P1: at {kind:?} {position} of {name} {last}"));
                }
            } else {
                let state = view.truth.log(resource).at(*position);
                let wanted = state.iter().filter(|(key, seen)| self.wanted.wants(key, seen));
                fold.objects = wanted.map(|(key, seen)| (key.clone(), Held::of(seen))).collect();
                let keeps = view.noted[at] && !self.wanted.shows.hides_content();
                let json = |content: &String| json!({ "data": { NOTE: keeps.then_some(content) } });
                let objects = fold.objects.iter();
                fold.json = objects.map(|(key, held)| (key.clone(), json(&held.content))).collect();
            }
            if let Some(strict) = &fold.strict
                && strict.lists == view.lists[resource]
            {
                let missed = |log: &Log| {
                    next_visible(log, &self.wanted, strict.at)
                        .filter(|(_, write)| write.version <= *position)
                        .is_some()
                };
                if view.truth.eras.iter().all(|era| missed(&era[resource])) {
                    return Err(format!(
                        "P4: {kind:?} {position} of {name} without the changes after {}",
                        strict.at
                    ));
                }
            }
            fold.token = *position;
            if voids_any {
                // Such a bookmark comes at once. Elsewhere there may be changes that the client does not have yet, and those that a
                // list has found have no order.
                fold.strict = fold.strict.take().map(|strict| Strict { at: *position, ..strict });
            } else {
                let lists = view.lists_then[resource].filter(|_| self.wanted.coalesce_ms.is_none());
                fold.strict = lists.map(|lists| Strict { at: *position, lists });
            }
            self.bookmark[at] = *position;
            self.check_notes(at, view.noted, *position)?;
        }
        self.base_known = true;
        self.bookmark_noted = view.noted;
        Ok(())
    }

    fn reset(&mut self, reason: Option<ResetReason>, view: &View<'_>) -> Result<(), String> {
        self.hash(&["RESET"], 0);
        let may_go_back = match reason {
            Some(ResetReason::TokenAhead) => {
                view.hits.count(Fault::ResetTokenAhead);
                true
            }
            Some(ResetReason::HistoryLost) => {
                view.hits.count(Fault::ResetHistoryLost);
                if view.truth.eras.len() == 1 {
                    return Err("P2: RESET as if versions had gone back, and they did not".into());
                }
                true
            }
            Some(ResetReason::TokenTooOld) => {
                view.hits.count(Fault::ResetTokenTooOld);
                // A token from within a first snapshot has no version.
                view.truth.eras.len() > 1 || self.folds.iter().any(|fold| fold.token == 0)
            }
            Some(ResetReason::Lagged) => {
                view.hits.count(Fault::ResetLagged);
                view.truth.eras.len() > 1
            }
            Some(ResetReason::Replaced) => {
                view.hits.count(Fault::ResetReplaced);
                // The new informer may be behind the old one.
                true
            }
            Some(ResetReason::TokenOfOthers)
                if self.resumed_noted.is_some_and(|noted| noted != view.noted) =>
            {
                view.hits.count(Fault::ResetOfOthers);
                view.truth.eras.len() > 1 || self.folds.iter().any(|fold| fold.token == 0)
            }
            Some(ResetReason::TokenOfOthers) | None => {
                return Err(format!("RESET for {reason:?}"));
            }
        };
        self.resumed_noted = None;
        // The client forgets its tokens with its state.
        self.bookmark = vec![0; self.sources.len()];
        for fold in &mut self.folds {
            let received = std::mem::take(&mut fold.received);
            *fold = Fold::default();
            if !may_go_back {
                fold.received = received;
            }
        }
        self.base_known = true;
        Ok(())
    }

    /// P1: at the end of the history the client holds the cluster's state.
    pub(crate) fn final_check(&self, truth: &Truth, keeps_notes: [bool; 2]) -> Result<(), String> {
        if !self.base_known {
            return Err("P1: in the end the client never got a bookmark".into());
        }
        let noted = [0, 1].map(|at: usize| self.sources.get(at).is_none_or(|source| keeps_notes[*source]));
        for (at, (fold, resource)) in self.folds.iter().zip(&self.sources).enumerate() {
            self.check_notes(at, noted, u64::MAX)?;
            if let Some(difference) = difference(truth.log(*resource), &self.wanted, fold, u64::MAX) {
                return Err(format!("P1: in the end of {} {difference}", RESOURCES[*resource]));
            }
        }
        Ok(())
    }

    fn hash(&mut self, words: &[&str], number: u64) {
        for byte in words.iter().flat_map(|word| word.bytes()).chain(number.to_le_bytes()) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Sent {
    fn state(is_reformed: bool) -> Self {
        if is_reformed { Self::Reformed } else { Self::State }
    }
}

impl Held {
    fn of(seen: &Seen) -> Self {
        let (app, color) = (seen.app.clone(), seen.color.clone());
        Self { uid: seen.uid.clone(), version: seen.version, content: seen.content.clone(), app, color }
    }

    fn of_json(json: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (metadata, data) = (&json["metadata"], &json["data"]);
        Self {
            uid: text(&metadata["uid"]).unwrap_or_default(),
            version: text(&metadata["resourceVersion"])
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            content: text(&data["write"]).unwrap_or_default(),
            app: text(&metadata["labels"]["app"]),
            color: text(&data["color"]),
        }
    }

    /// Whether this is a state of the cluster, as far as the selection shows it.
    fn is(&self, seen: &Seen, wanted: &Wanted) -> bool {
        match wanted.shows.is_part() {
            true => (&self.uid, &self.app, &self.color) == (&seen.uid, &seen.app, &seen.color),
            false => *self == Self::of(seen),
        }
    }
}

/// The next change after a version that concerns a client with this filter, and the expected kind of event.
fn next_visible<'a>(log: &'a Log, wanted: &Wanted, after: u64) -> Option<(EventKind, &'a Write)> {
    log.after(after).iter().find_map(|write| {
        let wants = |seen: &Option<std::rc::Rc<Seen>>| {
            seen.as_ref().is_some_and(|seen| wanted.wants(&write.key, seen))
        };
        match (wants(&write.before), wants(&write.after)) {
            (false, false) => None,
            (false, true) => Some((EventKind::Added, write)),
            (true, true) => {
                let same = write.before.as_ref().zip(write.after.as_ref());
                let same = same.is_some_and(|(before, after)| wanted.shows_same(before, after));
                (!same).then_some((EventKind::Modified, write))
            }
            (true, false) => Some((EventKind::Deleted, write)),
        }
    })
}

/// The first object that contradicts a token: up to its version the client lacks the object, or holds an old state.
/// Later states are allowed.
fn uncovered(log: &Log, wanted: &Wanted, fold: &Fold, position: u64) -> Option<String> {
    let state = log.at(position);
    // An object that changed again is sent in its later state.
    let changes = |key: &Key| log.after(position).iter().any(|write| write.key == *key);
    for (key, seen) in state.iter().filter(|(key, seen)| wanted.wants(key, seen) && !changes(key)) {
        let received = fold.received.get(key).copied().unwrap_or(0);
        let held = fold.objects.get(key).map_or(0, |held| held.version);
        let shows = fold.objects.get(key).is_some_and(|held| held.is(seen, wanted));
        if received.max(held) < seen.version && !(wanted.shows.is_part() && shows) {
            return Some(format!("{key}@{} was not sent, only {}", seen.version, received.max(held)));
        }
    }
    for (key, held) in &fold.objects {
        let there = state.get(key).filter(|seen| wanted.wants(key, seen));
        let known_since = log.last(key, position).map_or(0, |write| write.version);
        if there.is_none() && held.version <= known_since.max(1) && !changes(key) {
            return Some(format!("{key}@{} is still held, which was gone at {known_since}", held.version));
        }
    }
    None
}

/// How the objects of a client differ from the state at a version; `None` if they do not.
fn difference(log: &Log, wanted: &Wanted, fold: &Fold, position: u64) -> Option<String> {
    let state = log.at(position);
    // The client got a later state on another stream, and this stream is behind it.
    let beyond = |key: &Key| fold.beyond.get(key).is_some_and(|beyond| *beyond > position);
    for (key, seen) in state.iter().filter(|(key, seen)| wanted.wants(key, seen) && !beyond(key)) {
        match fold.objects.get(key) {
            None => return Some(format!("it lacks {key}@{}", seen.version)),
            Some(held) if !held.is(seen, wanted) => {
                return Some(format!("it holds {key}@{}, and the cluster {}", held.version, seen.version));
            }
            Some(_) => {}
        }
    }
    let unwanted = |key: &Key| !state.get(key).is_some_and(|seen| wanted.wants(key, seen));
    let extra = fold.objects.iter().find(|(key, _)| unwanted(key) && !beyond(key));
    extra.map(|(key, held)| format!("it still holds {key}@{}", held.version))
}

/// Applies a merge patch (RFC 7386, section 2).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let members = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The number of the write that made an object's state.
pub(crate) fn content_of(object: &informerd::testing::k8s::Object) -> String {
    let json: serde_json::Value = serde_json::from_slice(&object.json()).unwrap();
    json["data"]["write"].as_str().unwrap_or_default().to_owned()
}
