//! The state behind the lock: store, journal and tombstones together.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use imbl::OrdMap;

use super::backfill::Backfills;
use super::cold::Cold;
use super::index::{Indexes, Step};
use super::journal::Journal;
use super::listed::Listed;
use super::pass::{Outcome, Pass};
use super::recent::Recent;
use super::scope::Touched;
use super::store::in_filling_order;
use super::tombstone::Tombstone;
use super::{Change, ChangeKind, Commit, Config, Cursor, Delta, Located, Revision, Snapshot, Stored};
use crate::k8s::{Key, Object, ResourceVersion};

/// The revision of objects of the first list: before every revision that a reader can have.
pub(super) const BEFORE_ALL: Revision = Revision(0);
/// Number of relists whose gap is remembered. Tokens from before the oldest one are lost.
const GAPS_LEN_MAX: usize = 64;

/// Number of versions of lists that are remembered after a restore: many more than the lists that are answered between a
/// client's list and the watch that follows it.
const LISTED_LEN_MAX: usize = 1000;

/// Number of the cache's objects that are looked at under the lock in one turn, before the end of a list.
const LOOK_LEN_MAX: usize = 2048;

/// The versions of a deletion: see [`Change`].
struct Removal {
    version: ResourceVersion,
    position: ResourceVersion,
    reached: ResourceVersion,
}

/// The versions that a cache gave out.
#[derive(Clone, Debug)]
pub struct GivenOut {
    /// The greatest of them.
    greatest: ResourceVersion,
    /// The greatest that was given out before the API server's versions went back.
    taken_back: ResourceVersion,
}

impl GivenOut {
    /// The greatest version that was given out.
    pub fn greatest(&self) -> &ResourceVersion {
        &self.greatest
    }
}

/// The whole of one cache.
#[derive(Debug)]
pub(super) struct State {
    config: Config,
    pub(super) store: Snapshot,
    journal: Journal,
    pub(super) recent: BTreeMap<Revision, Recent>,
    pub(super) tombstones: VecDeque<Arc<Tombstone>>,
    /// Deletions up to this revision may have been forgotten.
    pub(super) floor: Revision,
    /// Changes before this version are unknown. It is that of the first list of this history, of a forgotten deletion, or of the end of a
    /// forgotten gap, whichever is greatest.
    begin: ResourceVersion,
    /// Pairs of versions between which a relist skipped changes, oldest first.
    gaps: VecDeque<(ResourceVersion, ResourceVersion)>,
    /// The greatest version that was given out before the API server's versions went back. Versions up to it are ambiguous.
    taken_back: ResourceVersion,
    /// The greatest version that the caches before this one gave out.
    predecessors: ResourceVersion,
    /// Versions up to `taken_back` that lists of this history had, newest last.
    listed: VecDeque<ResourceVersion>,
    pub(super) synced: bool,
    /// Lists after the first.
    pub(super) relists: u64,
    /// Whether the next pass begins a new history.
    outdated: bool,
    pass: Option<Pass>,
    /// Keys that ended lists no longer need, to be freed without the lock.
    pub(super) spent: Vec<HashSet<Key>>,
    pub(super) backfills: Backfills,
    pub(super) touched: Touched,
    pub(super) indexes: Indexes,
    /// Objects that may be packed; `None` where nothing packs them.
    pub(super) cold: Option<Cold>,
    /// How many dictionaries packed objects refer to, and their bytes.
    pub(super) dictionaries: (usize, usize),
}

impl State {
    pub(super) fn new(config: Config) -> Self {
        let zero = ResourceVersion::ZERO;
        Self {
            config,
            store: Snapshot {
                objects: OrdMap::new(),
                bytes: 0,
                held: 0,
                replaced: 0,
                cursor: Cursor::default(),
                position: zero.clone(),
                changed_at: zero.clone(),
            },
            journal: Journal::new(Revision(0), zero.clone()),
            recent: BTreeMap::new(),
            tombstones: VecDeque::new(),
            floor: Revision(0),
            begin: zero.clone(),
            gaps: VecDeque::new(),
            taken_back: zero.clone(),
            predecessors: zero,
            listed: VecDeque::new(),
            synced: false,
            relists: 0,
            outdated: false,
            pass: None,
            spent: Vec::new(),
            touched: Touched::default(),
            indexes: Indexes::new(),
            backfills: Backfills::new(),
            cold: None,
            dictionaries: (0, 0),
        }
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    pub(super) fn tombstones_len(&self) -> usize {
        self.tombstones.len()
    }

    /// Applies one delta.
    pub(super) fn apply(&mut self, delta: Delta, commit: &mut Commit) {
        match delta {
            Delta::PassBegin => self.pass = Some(Pass::default()),
            Delta::PassAbort => self.pass = None,
            Delta::PassDoubted => {
                if let Some(pass) = &mut self.pass {
                    pass.doubted = true;
                }
            }
            Delta::OtherHistory => self.outdated = self.synced,
            Delta::PassItem(object) => {
                if let Some(pass) = &mut self.pass {
                    let noted = (!self.synced && self.cold.is_some()).then(|| object.key().clone());
                    let bytes = object.json_len();
                    pass.item(object, &self.store);
                    if let (Some(cold), Some(key)) = (&mut self.cold, noted) {
                        cold.push(&key, bytes);
                    }
                }
            }
            Delta::PassGone(object) => {
                if let Some(pass) = &mut self.pass {
                    pass.gone(object.key());
                }
            }
            Delta::PassEnd(version) => {
                if let Some(pass) = self.pass.take() {
                    self.end_pass(pass, version, commit);
                }
            }
            Delta::Apply(object) => self.put(object, commit),
            Delta::Delete(object) => self.remove(object, commit),
            Delta::Unheld(key, version) => self.let_go(&key, &version, commit),
            Delta::Bookmark(version) => self.advance(&version),
        }
    }

    fn end_pass(&mut self, mut pass: Pass, version: ResourceVersion, commit: &mut Commit) {
        let back = self.synced && (self.outdated || pass.is_of_other_history(&self.store, &version));
        if pass.doubted {
            // The API server's answer for an earlier version may be of either history.
            self.backfills.close();
        }
        let begins_history = !self.synced || back;
        let Outcome { changed, gone, spent } = pass.end(&self.store, begins_history);
        self.spent.push(spent);
        if begins_history {
            self.begin_history(changed, &gone, version, commit);
            commit.history_lost = back;
            return;
        }
        let short = self.store.position.clone();
        let mut left = gone.len() + changed.len();
        for (object, replaced_at) in gone {
            left -= 1;
            // The moment of the deletion is unknown. A reader that resumes from this position gets it again.
            let position = if left == 0 { version.clone() } else { short.clone() };
            let shown = replaced_at.unwrap_or_else(|| version.clone());
            let at = Removal { version: shown, position, reached: version.clone() };
            self.remove_at(object.clone(), object, at, commit);
        }
        for object in changed {
            left -= 1;
            // With the last change a reader has everything.
            let position =
                if left == 0 { version.clone() } else { self.at_least(&object.resource_version()) };
            self.put_at(object, position, version.clone(), commit);
        }
        self.relists += 1;
        self.remember_gap(short, &version);
        self.advance(&version);
    }

    /// Remembers that changes between two versions were missed. A client of another replica with a token from between may hold
    /// an object that was created and deleted there, and would keep it for ever.
    fn remember_gap(&mut self, from: ResourceVersion, to: &ResourceVersion) {
        if from >= *to {
            return;
        }
        if self.gaps.len() >= GAPS_LEN_MAX
            && let Some((_, end)) = self.gaps.pop_front()
        {
            self.forget_before(end);
        }
        self.gaps.push_back((from, to.clone()));
    }

    /// From now on every version before this one is lost, as a gap or a deletion up to it is forgotten. These are not forgotten in the
    /// order of their versions.
    fn forget_before(&mut self, version: ResourceVersion) {
        if version.partial_cmp(&self.begin) != Some(Ordering::Less) {
            self.begin = version;
        }
    }

    /// Begins a history, with the first list or after versions went back. Cursors from before are lost.
    fn begin_history(
        &mut self,
        mut changed: Vec<Object>,
        gone: &[(Object, Option<ResourceVersion>)],
        version: ResourceVersion,
        commit: &mut Commit,
    ) {
        let revision = self.store.cursor.revision;
        for (object, _) in gone {
            if let Some(old) = self.store.objects.remove(object.key()) {
                self.store.count_out(&old.object);
            }
            commit.count(ChangeKind::Deleted);
        }
        for object in in_filling_order(&mut changed) {
            self.store.count_in(object);
            let stored = Stored { object: object.clone(), revision };
            let old = self.store.objects.insert(object.key().clone(), stored);
            match old {
                Some(old) => {
                    self.store.count_out(&old.object);
                    commit.count(ChangeKind::Modified);
                }
                None => commit.count(ChangeKind::Added),
            }
        }
        self.indexes.begin(revision, &version, &self.store);
        if self.synced {
            self.store.cursor.history += 1;
            // The predecessors of this cache may have given out more than it has reached.
            self.take_back(self.given_out().greatest);
            self.listed.clear();
        }
        self.journal = Journal::new(revision, version.clone());
        // What only the journal kept from being packed.
        if self.synced {
            self.note_all(None);
        }
        self.recent.clear();
        self.tombstones.clear();
        self.gaps.clear();
        self.floor = revision;
        self.begin = version.clone();
        self.store.changed_at = version.clone();
        self.store.position = version;
        (self.synced, self.outdated) = (true, false);
    }

    /// The object that changed last among those held; `None` if none of them changed since the first list.
    pub(super) fn changed_last(&self) -> Option<&Object> {
        let (_, recent) = self.recent.last_key_value()?;
        self.store.get(&recent.key)
    }

    fn put(&mut self, object: Object, commit: &mut Commit) {
        let position = self.at_least(&object.resource_version());
        if let Some(old) = self.store.objects.get(object.key()) {
            let stale = old.object.resource_version() >= object.resource_version();
            if stale || old.object.resource_version() == object.resource_version() {
                return self.skip(&position, commit);
            }
        } else if object.resource_version() < self.store.position {
            commit.doubtful += 1;
            return;
        }
        self.put_at(object, position.clone(), position, commit);
    }

    fn put_at(
        &mut self,
        mut object: Object,
        position: ResourceVersion,
        reached: ResourceVersion,
        commit: &mut Commit,
    ) {
        let before = self.store.objects.get(object.key()).cloned();
        // An index keeps the key that it has, so another one would be held beside it.
        if let Some(old) = &before {
            object.share_key(&old.object);
        }
        let previous = match before {
            // Deleted and created again under the same name: two changes, the first one at the position before.
            Some(old) if old.object.uid() != object.uid() => {
                let (version, short) = (object.resource_version(), self.store.position.clone());
                let at = Removal { version, position: short, reached: reached.clone() };
                self.remove_at(old.object.clone(), old.object, at, commit);
                None
            }
            before => before,
        };
        let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        let revision = Revision(self.store.cursor.revision.0 + 1);
        let mut created = revision;
        self.store.count_in(&object);
        if let Some(old) = &previous {
            self.store.count_out(&old.object);
            created = self.recent.remove(&old.revision).map_or(BEFORE_ALL, |recent| recent.created);
        }
        self.store.objects.insert(object.key().clone(), Stored { object: object.clone(), revision });
        self.recent.insert(revision, Recent::new(created, &object, &position, &reached));
        let version = object.resource_version();
        let (key, uid) = (object.key(), object.uid());
        let departure = || {
            let (position, reached) = (position.clone(), reached.clone());
            let (key, uid, version) = (key.clone(), uid.clone().into(), version.clone());
            Arc::new(Tombstone { revision, position, created, key, uid, version, reached })
        };
        let before = previous.as_ref().map(|old| (&old.object, old.revision));
        let step = Step { revision, before, after: Some(&object), departure: &departure };
        let (touched, departures_max) = (&mut self.touched, self.config.tombstones_len_max);
        self.indexes.take(&step, departures_max, |path, value| touched.note_value(path, value, revision));
        let previous = previous.map(|old| old.object);
        self.record(Change { revision, position, kind, object, previous, version, reached }, commit);
    }

    fn remove(&mut self, mut object: Object, commit: &mut Commit) {
        let position = self.at_least(&object.resource_version());
        let old = self.store.objects.get(object.key()).map(|stored| stored.object.clone());
        if let Some(old) = &old {
            object.share_key(old);
        }
        match old {
            // A DELETED that is older than the stored state is a repetition.
            Some(old) if old.resource_version() > object.resource_version() => self.skip(&position, commit),
            Some(old) => {
                let version = object.resource_version();
                let at = Removal { version, position: position.clone(), reached: position };
                self.remove_at(object, old, at, commit);
            }
            None => self.skip(&position, commit),
        }
    }

    /// Removes an object that exists at the API server but is not held from a version on.
    fn let_go(&mut self, key: &Key, version: &ResourceVersion, commit: &mut Commit) {
        if let Some(pass) = &mut self.pass {
            return pass.gone(key);
        }
        let position = self.at_least(version);
        match self.store.objects.get(key).map(|stored| stored.object.clone()) {
            Some(old) if old.resource_version() < *version => {
                let at = Removal { version: version.clone(), position: position.clone(), reached: position };
                self.remove_at(old.clone(), old, at, commit);
            }
            Some(_) | None => self.skip(&position, commit),
        }
    }

    fn remove_at(&mut self, object: Object, previous: Object, at: Removal, commit: &mut Commit) {
        let Removal { version, position, reached } = at;
        let revision = Revision(self.store.cursor.revision.0 + 1);
        let (mut created, mut came_at) = (BEFORE_ALL, BEFORE_ALL);
        if let Some(old) = self.store.objects.remove(object.key()) {
            self.store.count_out(&old.object);
            came_at = old.revision;
            created = self.recent.remove(&old.revision).map_or(created, |recent| recent.created);
        }
        // Live readers share its bytes, which the journal counts.
        let object = Object::plain(object);
        let tombstone = Arc::new(Tombstone {
            revision,
            position: position.clone(),
            created,
            key: object.key().clone(),
            uid: previous.uid().into(),
            version: version.clone(),
            reached: reached.clone(),
        });
        let departure = || tombstone.clone();
        let before = Some((&previous, came_at));
        let step = Step { revision, before, after: None, departure: &departure };
        let (touched, departures_max) = (&mut self.touched, self.config.tombstones_len_max);
        self.indexes.take(&step, departures_max, |path, value| touched.note_value(path, value, revision));
        self.tombstones.push_back(tombstone);
        while self.tombstones.len() > self.config.tombstones_len_max {
            if let Some(oldest) = self.tombstones.pop_front() {
                self.floor = oldest.revision;
                self.forget_before(oldest.reached.clone());
            }
        }
        let kind = ChangeKind::Deleted;
        self.record(
            Change { revision, position, kind, object, previous: Some(previous), version, reached },
            commit,
        );
    }

    fn record(&mut self, change: Change, commit: &mut Commit) {
        let was_cold_to = self.cold_to();
        commit.count(change.kind);
        self.store.cursor.revision = change.revision;
        self.store.position = change.position.clone();
        self.store.changed_at = change.reached.clone();
        self.touched.note(change.object.key(), change.revision);
        let (store, cold) = (&self.store, &mut self.cold);
        commit.evicted += self.journal.push(Arc::new(change), &self.config, |left| {
            if let Some(cold) = cold
                && left.revision > was_cold_to
            {
                cold.note(left, store);
            }
        });
        self.indexes.trim(self.journal.base_revision());
        self.note_cold(was_cold_to);
    }

    /// Prepares the end of a list: looks for some objects that it does not name. Returns whether objects are left.
    pub(super) fn look_for_unnamed(&mut self) -> bool {
        self.pass.as_mut().is_some_and(|pass| pass.look(&self.store, LOOK_LEN_MAX))
    }

    /// The objects of the first list, while it is under way.
    pub(super) fn first_list(&self) -> Option<&Listed> {
        self.pass.as_ref().filter(|_| !self.synced).map(|pass| &pass.differing)
    }

    /// As [`State::first_list`].
    pub(super) fn first_list_mut(&mut self) -> Option<&mut Listed> {
        self.pass.as_mut().filter(|_| !self.synced).map(|pass| &mut pass.differing)
    }

    /// The position after an event at `version`. It never decreases, even if the server's events do.
    fn at_least(&self, version: &ResourceVersion) -> ResourceVersion {
        let back = *version < self.store.position;
        if back { self.store.position.clone() } else { version.clone() }
    }

    fn advance(&mut self, version: &ResourceVersion) {
        self.store.position = self.at_least(version);
    }

    /// Counts a delta that changes nothing. Its version still says how far the server is.
    fn skip(&mut self, position: &ResourceVersion, commit: &mut Commit) {
        commit.duplicates += 1;
        self.advance(position);
    }

    /// Versions up to this one are ambiguous from now on.
    fn take_back(&mut self, version: ResourceVersion) {
        // A version from before may be of the history that was taken back.
        self.backfills.close();
        // After two restores the first history may have had the greatest version.
        if version > self.taken_back {
            self.taken_back = version;
        }
    }

    /// The versions that this cache and its predecessors gave out.
    pub(super) fn given_out(&self) -> GivenOut {
        let position = &self.store.position;
        let greatest = if *position < self.predecessors { &self.predecessors } else { position };
        GivenOut { greatest: greatest.clone(), taken_back: self.taken_back.clone() }
    }

    /// Whether [`State::take_over`] would change nothing.
    pub(super) fn knows(&self, given_out: &GivenOut) -> bool {
        given_out.taken_back <= self.taken_back && given_out.greatest <= self.predecessors
    }

    /// Learns what the cache before this one gave out.
    pub(super) fn take_over(&mut self, given_out: &GivenOut) {
        if self.taken_back < given_out.taken_back {
            self.take_back(given_out.taken_back.clone());
        }
        if self.predecessors < given_out.greatest {
            self.predecessors = given_out.greatest.clone();
        }
    }

    /// Notes that a client got a list of the history of `cursor` at this version.
    pub(super) fn note_listed(&mut self, cursor: Cursor, version: &ResourceVersion) {
        if cursor.history != self.store.cursor.history
            || !self.is_ambiguous(version)
            || self.was_listed(version)
        {
            return;
        }
        if self.listed.len() >= LISTED_LEN_MAX {
            self.listed.pop_front();
        }
        self.listed.push_back(version.clone());
    }

    /// Whether a version may be of the history that was taken back or of the current one.
    pub(super) fn is_ambiguous(&self, version: &ResourceVersion) -> bool {
        *version <= self.taken_back
    }

    /// Whether a list of the current history had this version.
    pub(super) fn was_listed(&self, version: &ResourceVersion) -> bool {
        self.listed.contains(version)
    }

    /// Where a reader continues that has everything up to `version`.
    pub(super) fn locate(&self, version: &ResourceVersion) -> Located {
        // The version may be of either history. To start over is right in both cases.
        if self.is_ambiguous(version) { Located::Lost } else { self.locate_in_history(version) }
    }

    /// Where a reader continues that has everything up to `version` of the current history.
    pub(super) fn locate_in_history(&self, version: &ResourceVersion) -> Located {
        let head = self.store.cursor;
        let revision = match version.partial_cmp(&self.store.position) {
            Some(Ordering::Greater) => return Located::Ahead,
            Some(Ordering::Less) if *version < self.begin || self.is_in_gap(version) => return Located::Lost,
            Some(Ordering::Less) => {
                self.journal.locate(version).unwrap_or_else(|| self.locate_behind(version))
            }
            Some(Ordering::Equal) => self.journal.locate(version).unwrap_or(head.revision),
            None => match self.journal.locate(version) {
                Some(revision) => revision,
                None => return Located::Lost,
            },
        };
        if revision < self.floor { Located::Lost } else { Located::At(Cursor { revision, ..head }) }
    }

    /// Whether objects that were created and deleted after `version` may have been missed here.
    pub(super) fn skipped_since(&self, version: &ResourceVersion) -> bool {
        self.gaps.iter().any(|(_, to)| to > version)
    }

    fn is_in_gap(&self, version: &ResourceVersion) -> bool {
        self.gaps.iter().any(|(from, to)| from < version && version < to)
    }

    /// Searches for a version beyond the journal, among remembered objects and tombstones. Their reached versions rise with the
    /// revision.
    fn locate_behind(&self, version: &ResourceVersion) -> Revision {
        let (mut low, mut high) = (0, self.store.cursor.revision.0 + 1);
        // The lowest revision r such that the first remembered change at or after r reaches beyond the version.
        while low < high {
            let middle = low + (high - low) / 2;
            let survivor = self.recent.range(Revision(middle)..).next();
            let reached = survivor.and_then(|(_, recent)| recent.reached(&self.store));
            if reached.is_none_or(|reached| reached > *version) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let live = self.recent.range(Revision(low)..).next().map(|(revision, _)| *revision);
        let at = self.tombstones.partition_point(|tombstone| tombstone.reached <= *version);
        let dead = self.tombstones.get(at).map(|tombstone| tombstone.revision);
        let first = live.into_iter().chain(dead).min();
        let revision = first.map_or(self.store.cursor.revision, |revision| Revision(revision.0 - 1));
        // Not within the journal, even if no change lies between: a reader that missed changes which the journal has lost cannot
        // tell from its changes whether an object stops matching. A catch-up can.
        revision.min(Revision(self.journal.base_revision().0.saturating_sub(1)))
    }
}
