//! Indexes: for each value at a path, the objects that have it and the changes of the journal that touched it.
//!
//! Like client-go's `Indexer`, but with changes: a reader that selects by a value reads only the objects and changes of that
//! value, however many others the cache holds. The indexes are behind the cache's lock and change together with the
//! store.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdSet;

use super::key_set::KeySet;
use super::tombstone::Tombstone;
use super::{Revision, Snapshot, Stored};
use crate::k8s::{IndexPath, IndexPaths, Key, Object, ResourceVersion};

/// Number of keys of one value up to which they are kept in a sorted list; beyond it, in a tree. Nearly all values have
/// fewer. Tests and simulations have few objects.
const FEW: usize = if cfg!(debug_assertions) { 1 } else { 64 };

/// Approximate cost of an index entry without its key, in bytes.
const ENTRY_BYTES: usize = 56;
/// Approximate cost of a value, in bytes.
const VALUE_BYTES: usize = 184;
/// What a departure costs, about, in bytes: that of a deletion is shared with the cache's tombstone.
const DEPARTURE_BYTES: usize = 200;

/// How many objects have each value, in no order.
pub type ValueCounts = Vec<(Arc<str>, usize)>;

/// All indexes of one cache.
#[derive(Debug)]
pub(super) struct Indexes {
    /// The paths in use, including those of the indexes.
    pub(super) paths: Arc<IndexPaths>,
    pub(super) all: Vec<Index>,
}

/// The objects by their values at one path.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) path: IndexPath,
    /// Whether it contains every object of the store.
    pub(super) complete: bool,
    /// It does not know changes up to this revision.
    pub(super) begun: Revision,
    values: HashMap<Arc<str>, Posting>,
    /// The values that each change of the journal touched, oldest first.
    changes: VecDeque<(Revision, Arc<str>)>,
    entries: usize,
    /// Number of values that an object has. Others are remembered by changes and departures alone.
    held: usize,
    /// Bytes of all values' text.
    text: usize,
    /// The values that an object left, by the revision of the departure, oldest first.
    departures: VecDeque<(Revision, Arc<str>)>,
    /// Departures up to this revision may be forgotten.
    departures_floor: Revision,
    /// Departures that were reached at this version or before it may be forgotten.
    departures_begin: ResourceVersion,
}

/// The objects and changes of one value.
#[derive(Debug, Default)]
struct Posting {
    keys: Keys,
    /// Changes in the journal that touch the value, oldest first.
    changes: VecDeque<Revision>,
    /// Objects that had the value and were deleted or changed to another one, oldest first: remembered longer than the
    /// journal remembers the change.
    departures: VecDeque<Arc<Tombstone>>,
}

/// The keys of the objects that have a value, sorted, and when these objects changed last.
#[derive(Debug)]
enum Keys {
    Few(Vec<(Key, Revision)>),
    /// The revisions are sorted by themselves. Those of objects that did not change since the first list may be missing.
    Many(OrdSet<Key>, BTreeSet<Revision>),
}

/// One committed step as the indexes see it.
pub(super) struct Step<'a> {
    pub(super) revision: Revision,
    /// The state before, and when it came; `None` if there was none.
    pub(super) before: Option<(&'a Object, Revision)>,
    /// The state after; `None` for a deletion.
    pub(super) after: Option<&'a Object>,
    /// Makes what is remembered where the object left a value.
    pub(super) departure: &'a dyn Fn() -> Arc<Tombstone>,
}

impl Default for Keys {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Keys {
    /// Adds a key, or notes that its object changed, which had changed last at `before`. Returns whether the key is new.
    fn insert(&mut self, key: &Key, before: Option<Revision>, now: Revision) -> bool {
        match self {
            Self::Few(keys) => match keys.binary_search_by(|(one, _)| one.cmp(key)) {
                Ok(at) => {
                    keys[at].1 = now;
                    false
                }
                Err(at) if keys.len() < FEW => {
                    keys.insert(at, (key.clone(), now));
                    true
                }
                Err(_) => {
                    let (mut many, mut recent): (OrdSet<Key>, BTreeSet<Revision>) = keys.drain(..).unzip();
                    many.insert(key.clone());
                    recent.insert(now);
                    *self = Self::Many(many, recent);
                    true
                }
            },
            Self::Many(keys, recent) => {
                before.map(|before| recent.remove(&before));
                recent.insert(now);
                // A key that is there stays, as the nodes on the way to it would be copied if a reader holds them.
                !keys.contains(key) && keys.insert(key.clone()).is_none()
            }
        }
    }

    /// Removes a key whose object had changed last at this revision. Returns whether it was there.
    fn remove(&mut self, key: &Key, before: Revision) -> bool {
        match self {
            Self::Few(keys) => match keys.binary_search_by(|(one, _)| one.cmp(key)) {
                Ok(at) => {
                    keys.remove(at);
                    true
                }
                Err(_) => false,
            },
            Self::Many(keys, recent) => {
                recent.remove(&before);
                keys.remove(key).is_some()
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Few(keys) => keys.len(),
            Self::Many(keys, _) => keys.len(),
        }
    }

    fn contains(&self, key: &Key) -> bool {
        match self {
            Self::Few(keys) => keys.binary_search_by(|(one, _)| one.cmp(key)).is_ok(),
            Self::Many(keys, _) => keys.contains(key),
        }
    }

    /// Adds to `out` the first `len_max` of the revisions after another one, or more.
    fn recent_after(&self, revision: Revision, len_max: usize, out: &mut Vec<Revision>) {
        match self {
            Self::Few(keys) => {
                out.extend(keys.iter().map(|(_, recent)| *recent).filter(|one| *one > revision))
            }
            Self::Many(_, recent) => {
                out.extend(recent.range((Bound::Excluded(revision), Bound::Unbounded)).take(len_max));
            }
        }
    }
}

impl Indexes {
    pub(super) fn new() -> Self {
        Self { paths: Arc::new(IndexPaths::new(Vec::new())), all: Vec::new() }
    }

    pub(super) fn get(&self, path: &IndexPath) -> Option<&Index> {
        self.all.iter().find(|index| index.path == *path)
    }

    pub(super) fn get_mut(&mut self, path: &IndexPath) -> Option<&mut Index> {
        self.all.iter_mut().find(|index| index.path == *path)
    }

    /// Applies a step of the store. Calls `touched` with the path and value of each index entry that the step concerns.
    /// Each index remembers up to `departures_max` departures.
    pub(super) fn take(
        &mut self,
        step: &Step<'_>,
        departures_max: usize,
        mut touched: impl FnMut(&IndexPath, &str),
    ) {
        let paths = &self.paths;
        for index in &mut self.all {
            index.take(step, paths, &mut touched);
            index.trim_departures(departures_max);
        }
    }

    /// Begins another history with the objects of the store: no change before this revision is known.
    pub(super) fn begin(&mut self, revision: Revision, version: &ResourceVersion, store: &Snapshot) {
        for index in &mut self.all {
            index.changes.clear();
            index.departures.clear();
            index.begun = revision;
            index.departures_floor = revision;
            index.departures_begin = version.clone();
            // From the objects themselves: those of before may be what was wrong.
            index.values.clear();
            (index.entries, index.held, index.text) = (0, 0, 0);
            for Stored { object, revision } in store.stored_after(None) {
                index.insert(object, *revision, &self.paths);
            }
        }
    }

    /// Forgets changes that left the journal.
    pub(super) fn trim(&mut self, journal_base: Revision) {
        for index in &mut self.all {
            index.trim(journal_base);
        }
    }
}

impl Index {
    /// An empty index of a cache that is at this revision and version.
    pub(super) fn new(path: IndexPath, now: Revision, version: ResourceVersion) -> Self {
        Self {
            path,
            complete: false,
            begun: now,
            values: HashMap::new(),
            changes: VecDeque::new(),
            entries: 0,
            held: 0,
            text: 0,
            departures: VecDeque::new(),
            departures_floor: now,
            departures_begin: version,
        }
    }

    /// Its approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let logged = self.changes.len() * 2 * size_of::<(Revision, Arc<str>)>();
        let departures = self.departures.len() * DEPARTURE_BYTES;
        self.entries * ENTRY_BYTES + self.values.len() * VALUE_BYTES + self.text + logged + departures
    }

    /// How many values it has.
    pub(super) fn values(&self) -> usize {
        self.held
    }

    /// How many objects have each value; `None` where there are more values than this.
    pub(super) fn counts(&self, values_max: usize) -> Option<ValueCounts> {
        let held = || self.values.iter().filter(|(_, posting)| posting.keys.len() > 0);
        let counts = || held().map(|(value, posting)| (value.clone(), posting.keys.len())).collect();
        (self.values.len() <= values_max).then(counts)
    }

    /// Calls `visit` with each value and how many objects have it. Returns whether it did: not where there are more values than
    /// `values_max`. It clones no value: a clone and its drop are two atomic operations on memory that is seldom in the processor's
    /// cache.
    pub(super) fn visit_counts(&self, values_max: usize, mut visit: impl FnMut(&str, usize)) -> bool {
        if self.values.len() > values_max {
            return false;
        }
        let held = self.values.iter().filter(|(_, posting)| posting.keys.len() > 0);
        held.for_each(|(value, posting)| visit(value, posting.keys.len()));
        true
    }

    /// How many objects have each value that changes after a revision have touched; `None` if there are more such changes than
    /// this.
    pub(super) fn counts_after(&self, revision: Revision, changes_max: usize) -> Option<ValueCounts> {
        let at = self.changes.partition_point(|(change, _)| *change <= revision);
        if self.changes.len() - at > changes_max {
            return None;
        }
        let mut touched: Vec<_> = self.changes.range(at..).map(|(_, value)| value).collect();
        touched.sort_unstable();
        touched.dedup();
        let count = |value: &Arc<str>| self.values.get(value).map_or(0, |posting| posting.keys.len());
        Some(touched.into_iter().map(|value| (value.clone(), count(value))).collect())
    }

    /// An upper bound of the number of objects that have one of these values.
    pub(super) fn count(&self, values: &[String]) -> usize {
        self.postings(values).map(|posting| posting.keys.len()).sum()
    }

    /// The keys of the objects that have one of these values.
    pub(super) fn keys(&self, values: &[String]) -> KeySet {
        let (mut few, mut many) = (Vec::new(), Vec::new());
        for posting in self.postings(values) {
            match &posting.keys {
                Keys::Few(keys) => few.extend(keys.iter().map(|(key, _)| key.clone())),
                Keys::Many(keys, _) => many.push(keys.clone()),
            }
        }
        KeySet::new(few, many)
    }

    /// Whether the object with a key has one of these values.
    pub(super) fn has(&self, values: &[String], key: &Key) -> bool {
        self.postings(values).any(|posting| posting.keys.contains(key))
    }

    /// The first `len_max` changes of the journal after a revision that touch one of these values, oldest first, without duplicates.
    pub(super) fn changes_after(
        &self,
        values: &[String],
        revision: Revision,
        len_max: usize,
    ) -> Vec<Revision> {
        let changes = self.postings(values).flat_map(|posting| {
            let at = posting.changes.partition_point(|change| *change <= revision);
            posting.changes.range(at..).take(len_max).copied()
        });
        first_of(changes.collect(), len_max)
    }

    /// When the objects that have one of these values changed last: the first `len_max` of these revisions after another one, each once.
    pub(super) fn recent_after(
        &self,
        values: &[String],
        revision: Revision,
        len_max: usize,
    ) -> Vec<Revision> {
        let mut recent = Vec::new();
        self.postings(values).for_each(|posting| posting.keys.recent_after(revision, len_max, &mut recent));
        first_of(recent, len_max)
    }

    /// The revision after which a reader has all departures of these values to learn of, where they are all remembered:
    /// a reader that has taken what is up to `revision`, or a client that has everything up to `version`. The revision
    /// that a version was located at may be beyond departures that the client has to learn of: it was found among the
    /// last changes of objects, and one that left a value may have changed again since.
    pub(super) fn departed_after(
        &self,
        values: &[String],
        revision: Revision,
        version: Option<&ResourceVersion>,
    ) -> Option<Revision> {
        let Some(version) = version else { return (revision >= self.departures_floor).then_some(revision) };
        if version.partial_cmp(&self.departures_begin).is_none_or(Ordering::is_lt) {
            return None;
        }
        let first = |posting: &Posting| {
            let at = posting.departures.partition_point(|departure| departure.reached <= *version);
            posting.departures.get(at).map(|departure| Revision(departure.revision.0 - 1))
        };
        let first = self.postings(values).filter_map(first).min();
        Some(first.map_or(revision, |first| first.min(revision)).max(self.departures_floor))
    }

    /// Whether all departures after a revision are remembered.
    pub(super) fn has_departures_after(&self, revision: Revision) -> bool {
        revision >= self.departures_floor
    }

    /// Departures from one of these values after a revision, in no order, several of an object among them.
    pub(super) fn departures_after<'a>(
        &'a self,
        values: &'a [String],
        revision: Revision,
    ) -> impl Iterator<Item = &'a Arc<Tombstone>> {
        self.postings(values).flat_map(move |posting| {
            let at = posting.departures.partition_point(|departure| departure.revision <= revision);
            posting.departures.range(at..)
        })
    }

    /// Adds an object of the store, which changed last at this revision. It may be in it already.
    pub(super) fn insert(&mut self, object: &Object, revision: Revision, paths: &IndexPaths) {
        let Some(slot) = paths.slot(&self.path) else { return };
        for value in object.values(paths).get(slot).iter() {
            self.put(value, object.key(), None, revision);
        }
    }

    fn take(&mut self, step: &Step<'_>, paths: &IndexPaths, touched: &mut impl FnMut(&IndexPath, &str)) {
        let Some(slot) = paths.slot(&self.path) else { return };
        let before = step.before.map(|(object, _)| object.values(paths));
        let after = step.after.map(|object| object.values(paths));
        let before = before.as_ref().map(|values| values.get(slot));
        let after = after.as_ref().map(|values| values.get(slot));
        let key = step.before.map(|(object, _)| object).or(step.after).map(|object| object.key());
        let Some(key) = key else { return };
        let came_at = step.before.map(|(_, revision)| revision);
        // Each value once, with whether the object had it and has it. Sorted, as a tenant may write tens of thousands of values.
        let had = before.into_iter().flat_map(|values| values.iter()).map(|value| (value, true, false));
        let has = after.into_iter().flat_map(|values| values.iter()).map(|value| (value, false, true));
        let mut all: Vec<(&Arc<str>, bool, bool)> = had.chain(has).collect();
        all.sort_unstable_by_key(|(value, ..)| *value);
        all.dedup_by(|(value, was, is), (kept, kept_was, kept_is)| {
            let is_same = value == kept;
            (*kept_was, *kept_is) = (*kept_was || is_same && *was, *kept_is || is_same && *is);
            is_same
        });
        for (value, was, is) in all {
            self.touch(value, step.revision);
            if is {
                self.put(value, key, came_at.filter(|_| was), step.revision);
            } else if let Some(came_at) = came_at
                && let Some(posting) = self.values.get_mut(value)
            {
                let was_there = posting.keys.remove(key, came_at);
                self.entries -= usize::from(was_there);
                self.held -= usize::from(was_there && posting.keys.len() == 0);
                posting.departures.push_back((step.departure)());
                let value = self.shared(value);
                self.departures.push_back((step.revision, value));
            }
            touched(&self.path, value);
        }
    }

    /// Puts a key to a value, or notes that its object changed. See [`Keys::insert`].
    fn put(&mut self, value: &Arc<str>, key: &Key, before: Option<Revision>, now: Revision) {
        let posting = self.posting_mut(value);
        let is_new = posting.keys.insert(key, before, now);
        let is_first = is_new && posting.keys.len() == 1;
        self.entries += usize::from(is_new);
        self.held += usize::from(is_first);
    }

    fn touch(&mut self, value: &Arc<str>, revision: Revision) {
        let value = self.shared(value);
        self.posting_mut(&value).changes.push_back(revision);
        self.changes.push_back((revision, value));
    }

    fn trim(&mut self, journal_base: Revision) {
        while let Some((revision, _)) = self.changes.front()
            && *revision <= journal_base
            && let Some((_, value)) = self.changes.pop_front()
        {
            if let Some(posting) = self.values.get_mut(&value) {
                posting.changes.pop_front();
            }
            self.drop_if_empty(&value);
        }
    }

    fn trim_departures(&mut self, len_max: usize) {
        while self.departures.len() > len_max
            && let Some((revision, value)) = self.departures.pop_front()
        {
            if let Some(departure) =
                self.values.get_mut(&value).and_then(|posting| posting.departures.pop_front())
            {
                self.departures_begin = departure.reached.clone();
            }
            self.departures_floor = revision;
            self.drop_if_empty(&value);
        }
    }

    fn drop_if_empty(&mut self, value: &Arc<str>) {
        let is_empty = |posting: &Posting| {
            posting.keys.len() == 0 && posting.changes.is_empty() && posting.departures.is_empty()
        };
        if self.values.get(value).is_some_and(is_empty) {
            self.values.remove(value);
            self.text -= value.len();
        }
    }

    /// The shared text of a value, so that each text is held once.
    fn shared(&self, value: &Arc<str>) -> Arc<str> {
        self.values.get_key_value(value).map_or(value, |(held, _)| held).clone()
    }

    fn posting_mut(&mut self, value: &Arc<str>) -> &mut Posting {
        // Looked up first, as the entry API would clone the reference to the text each time.
        if !self.values.contains_key(value) {
            self.values.insert(value.clone(), Posting::default());
            self.text += value.len();
        }
        self.values.get_mut(value).expect("it was just put there")
    }

    fn postings<'a>(&'a self, values: &'a [String]) -> impl Iterator<Item = &'a Posting> {
        values.iter().filter_map(|value| self.values.get(value.as_str()))
    }
}

/// The first of these revisions, in order and each once.
fn first_of(mut revisions: Vec<Revision>, len_max: usize) -> Vec<Revision> {
    revisions.sort_unstable();
    revisions.dedup();
    revisions.truncate(len_max);
    revisions
}
