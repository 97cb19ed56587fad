//! Reads a cache by index, and builds indexes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::index::Index;
use super::key_set::KeySet;
use super::scope::Scope;
use super::shared::Shared;
use super::state::State;
use super::tombstone::Tombstone;
use super::uses::Counts;
use super::{Batch, CatchUp, Cursor, Reader, Revision, ScopeWake, Snapshot, Stored, ValueCounts};
use crate::k8s::{IndexPath, IndexPaths, Key, ResourceVersion, damages_of_thread};

/// Largest number of indexes of a cache. Each costs some 100 bytes for each object, and a little time for each change.
pub const INDEXES_MAX: usize = 16;

/// Largest number of paths that are read together. Users of further paths read objects separately.
const PATHS_MAX: usize = 64;

/// Time for which an index is kept after its last use, so that clients that restart find it again.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Bytes of JSON that one turn of building an index reads: about a millisecond.
const TURN_BYTES: usize = 512 << 10;

/// Departures from the values of a term that are looked at in one turn, at most.
const DEPARTURES_MAX: usize = if cfg!(debug_assertions) { 8 } else { 4096 };

/// A condition that an index answers: one of these values at a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexTerm {
    /// The path to the values.
    pub path: IndexPath,
    /// The values, sorted, without duplicates.
    pub values: Arc<[String]>,
}

/// An index in figures.
#[derive(Clone, Debug)]
pub struct IndexSummary {
    /// Its path.
    pub path: IndexPath,
    /// Whether it contains every object; otherwise it is being built.
    pub complete: bool,
    /// Number of different values.
    pub values: usize,
    /// Its approximate size in bytes.
    pub bytes: usize,
    /// Number of streams and requests that use it now.
    pub users: usize,
}

/// A registration of paths: until it is dropped, their values are read together with those at all other paths in use.
#[derive(Debug)]
pub struct UsedPaths {
    shared: Arc<Shared>,
    paths: Vec<IndexPath>,
}

/// A complete index in use. The index is kept until this is dropped.
#[derive(Debug)]
pub struct UsedIndex {
    shared: Arc<Shared>,
    term: IndexTerm,
}

/// How many objects have each value of an index.
#[derive(Clone, Debug)]
pub struct IndexCounts {
    /// The state that was counted.
    pub cursor: Cursor,
    /// Its version.
    pub position: ResourceVersion,
    /// Whether these are all values, and not those alone that were touched since an earlier state.
    pub is_whole: bool,
    /// The values, in no order.
    pub counts: ValueCounts,
}

/// An index that is being built, in turns.
#[derive(Debug)]
pub struct IndexBuilder {
    shared: Arc<Shared>,
    path: IndexPath,
    snapshot: Snapshot,
    last: Option<Key>,
}

/// A piece of a catch-up by index.
#[derive(Debug)]
pub struct IndexCatchUp {
    /// What changed.
    pub piece: CatchUp,
    /// Where to continue with departures.
    pub departed_after: Revision,
    /// With the last piece the state that the reader then has everything of, and the keys that have one of the values.
    pub state: Option<(Snapshot, KeySet)>,
}

/// The largest number of indexes is reached, and all of them are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all {INDEXES_MAX} indexes are in use")]
pub struct IndexesInUse;

impl Reader {
    /// The paths in use. Values of an object are read at all of them together.
    pub fn paths(&self) -> Arc<IndexPaths> {
        self.shared.read().indexes.paths.clone()
    }

    /// Registers paths, so that their values are read together with those at all other paths in use. `None` if there are too
    /// many; then the caller has to read objects separately.
    pub fn use_paths(&self, paths: &[IndexPath]) -> Option<UsedPaths> {
        let mut counts = self.shared.uses.lock();
        self.add_paths(&mut counts, paths)?;
        for (path, users) in &mut counts.paths {
            *users += usize::from(paths.contains(path));
        }
        Some(UsedPaths { shared: self.shared.clone(), paths: paths.to_vec() })
    }

    /// Adds paths to those in use. If there are too many, unused ones are removed first.
    fn add_paths(&self, counts: &mut Counts, paths: &[IndexPath]) -> Option<()> {
        let known = |counts: &Counts, path: &IndexPath| counts.paths.iter().any(|(one, _)| one == path);
        let new: Vec<_> = paths.iter().filter(|path| !known(counts, path)).cloned().collect();
        if new.is_empty() {
            return Some(());
        }
        let mut kept = counts.paths.clone();
        if kept.len() + new.len() > PATHS_MAX {
            let indexed = |path: &IndexPath| counts.indexes.iter().any(|uses| uses.path == *path);
            kept.retain(|(path, users)| *users > 0 || indexed(path) || paths.contains(path));
        }
        if kept.len() + new.len() > PATHS_MAX {
            return None;
        }
        kept.extend(new.into_iter().map(|path| (path, 0)));
        counts.paths = kept;
        let all = counts.paths.iter().map(|(path, _)| path.clone()).collect();
        self.shared.write().indexes.paths = Arc::new(IndexPaths::new(all));
        Some(())
    }

    /// The index that answers a term, if it exists and is complete.
    pub fn use_index(&self, term: &IndexTerm) -> Option<UsedIndex> {
        let mut counts = self.shared.uses.lock();
        let complete = self.shared.read().indexes.get(&term.path).is_some_and(|index| index.complete);
        if !complete {
            return None;
        }
        let uses = counts.index_mut(&term.path);
        (uses.users, uses.idle_since) = (uses.users + 1, None);
        Some(UsedIndex { shared: self.shared.clone(), term: term.clone() })
    }

    /// Begins to build an index, or continues one that was not completed.
    ///
    /// # Errors
    /// [`IndexesInUse`].
    pub fn build_index(&self, path: &IndexPath, now: Instant) -> Result<IndexBuilder, IndexesInUse> {
        self.expire_indexes(now);
        // Freed when the locks are released, as an index may be large.
        let mut dropped = Vec::new();
        let mut counts = self.shared.uses.lock();
        if self.shared.read().indexes.get(path).is_none() {
            while self.shared.read().indexes.all.len() >= INDEXES_MAX {
                let idle = counts.indexes.iter().filter(|uses| uses.users == 0);
                let oldest = idle.min_by_key(|uses| uses.idle_since.unwrap_or(now));
                let oldest = oldest.map(|uses| uses.path.clone()).ok_or(IndexesInUse)?;
                dropped.extend(self.drop_index(&mut counts, &oldest));
            }
            self.add_paths(&mut counts, std::slice::from_ref(path)).ok_or(IndexesInUse)?;
            counts.index_mut(path);
            let mut state = self.shared.write();
            let (revision, version) = (state.store.cursor.revision, state.store.position.clone());
            state.indexes.all.push(Index::new(path.clone(), revision, version));
        }
        let snapshot = self.snapshot();
        Ok(IndexBuilder { shared: self.shared.clone(), path: path.clone(), snapshot, last: None })
    }

    /// Drops indexes that were unused for a while. To be called from time to time.
    pub fn expire_indexes(&self, now: Instant) {
        let mut counts = self.shared.uses.lock();
        let mut over = Vec::new();
        for uses in counts.indexes.iter_mut().filter(|uses| uses.users == 0) {
            let since = *uses.idle_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= IDLE_MAX {
                over.push(uses.path.clone());
            }
        }
        let dropped: Vec<_> = over.iter().filter_map(|path| self.drop_index(&mut counts, path)).collect();
        drop(counts);
        drop(dropped);
    }

    /// The current state, and for each term the keys of the objects that have one of its values; `None` where no complete index answers
    /// it. All of one moment.
    pub fn find(&self, terms: &[IndexTerm]) -> (Snapshot, Vec<Option<KeySet>>) {
        let state = self.shared.read();
        let found = terms.iter().map(|term| {
            let index = state.indexes.get(&term.path).filter(|index| index.complete)?;
            Some(index.keys(&term.values))
        });
        (state.store.clone(), found.collect())
    }

    /// Takes an index out. The caller drops it without a lock.
    fn drop_index(&self, counts: &mut Counts, path: &IndexPath) -> Option<Index> {
        counts.indexes.retain(|uses| uses.path != *path);
        let mut state = self.shared.write();
        let at = state.indexes.all.iter().position(|index| index.path == *path)?;
        Some(state.indexes.all.swap_remove(at))
    }

    /// The indexes in figures.
    pub fn indexes(&self) -> Vec<IndexSummary> {
        let mut counts = self.shared.uses.lock();
        let state = self.shared.read();
        let summary = |index: &Index| IndexSummary {
            path: index.path.clone(),
            complete: index.complete,
            values: index.values(),
            bytes: index.bytes(),
            users: counts.index_mut(&index.path).users,
        };
        state.indexes.all.iter().map(summary).collect()
    }
}

impl Drop for UsedPaths {
    fn drop(&mut self) {
        let mut counts = self.shared.uses.lock();
        for (path, users) in &mut counts.paths {
            *users -= usize::from(self.paths.contains(path));
        }
    }
}

impl Drop for UsedIndex {
    fn drop(&mut self) {
        self.shared.uses.lock().index_mut(&self.term.path).users -= 1;
    }
}

impl IndexBuilder {
    /// Builds for one turn, about a millisecond, and returns whether the index is complete, or was dropped.
    pub fn turn(&mut self) -> bool {
        let paths = self.shared.read().indexes.paths.clone();
        let mut bytes = 0;
        let mut objects: Vec<Stored> = Vec::new();
        let damages = damages_of_thread();
        for stored in self.snapshot.stored_after(self.last.as_ref()) {
            let object = &stored.object;
            bytes += object.json_len();
            // Values are read without the lock, and stay with the object.
            object.values(&paths);
            objects.push(stored.clone());
            if bytes >= TURN_BYTES {
                break;
            }
        }
        if damages_of_thread() != damages {
            // The index would lack an object that cannot be unpacked. Without the index its readers meet that object.
            let reader = self.shared.reader();
            let dropped = reader.drop_index(&mut self.shared.uses.lock(), &self.path);
            drop(dropped);
            return true;
        }
        let mut state = self.shared.write();
        let state = &mut *state;
        let (store, indexes) = (&state.store, &mut state.indexes);
        let paths = indexes.paths.clone();
        // The index may have been dropped meanwhile; the caller looks it up again.
        let Some(index) = indexes.get_mut(&self.path) else { return true };
        let is_same_history = store.cursor.history == self.snapshot.cursor.history;
        for Stored { object, revision } in &objects {
            // Objects that changed meanwhile are in it already. Packing an object is no change.
            let held = store.objects.get(object.key());
            if is_same_history && held.is_some_and(|held| held.revision == *revision) {
                index.insert(object, *revision, &paths);
            }
        }
        match objects.last() {
            Some(last) => {
                self.last = Some(last.object.key().clone());
                false
            }
            None => {
                index.complete = true;
                true
            }
        }
    }
}

impl UsedIndex {
    /// The condition that it answers.
    pub fn term(&self) -> &IndexTerm {
        &self.term
    }

    /// How many objects have one of the values.
    pub fn count(&self) -> usize {
        let state = self.shared.read();
        state.indexes.get(&self.term.path).map_or(0, |index| index.count(&self.term.values))
    }

    /// The current state, and the keys of the objects that have one of the values. The cost grows with the values, not with these keys.
    pub fn snapshot(&self) -> (Snapshot, KeySet) {
        let state = self.shared.read();
        let keys = state.indexes.get(&self.term.path).map(|index| index.keys(&self.term.values));
        (state.store.clone(), keys.unwrap_or_default())
    }

    /// How many objects have each value at the path, whatever the values of this term. With a cursor of before only values that
    /// changes have touched since, if they are all known; a value that no object has any longer counts 0. `None` where there
    /// are more values than this: they are counted under the cache's lock.
    pub fn counts(&self, after: Option<Cursor>, values_max: usize) -> Option<IndexCounts> {
        let state = self.shared.read();
        let cursor = state.store.cursor;
        let index = state.indexes.get(&self.term.path)?;
        let known = after.filter(|after| {
            let known_from = index.begun.max(state.journal().base_revision());
            after.history == cursor.history && (known_from..=cursor.revision).contains(&after.revision)
        });
        let touched = known.and_then(|after| index.counts_after(after.revision, values_max));
        let is_whole = touched.is_none();
        let counts = touched.or_else(|| index.counts(values_max))?;
        Some(IndexCounts { cursor, position: state.store.position.clone(), is_whole, counts })
    }

    /// Calls `visit` with each value at the path and how many objects have it, in no order, under the cache's lock. Returns the
    /// version of the cache. `None` where there are more values than `values_max`; `visit` is not called then.
    pub fn visit_counts(&self, values_max: usize, visit: impl FnMut(&str, usize)) -> Option<ResourceVersion> {
        let state = self.shared.read();
        let index = state.indexes.get(&self.term.path)?;
        index.visit_counts(values_max, visit).then(|| state.store.position.clone())
    }

    /// As [`Reader::changes_after`], but only changes that touch one of the values.
    ///
    /// Shape: revisions rise; the cursor after them is also beyond changes that touch none of the values.
    pub fn changes_after(&self, cursor: Cursor, len_max: usize) -> Option<Batch> {
        let state = self.shared.read();
        let head = state.store.cursor;
        let in_journal = cursor.revision >= state.journal().base_revision();
        if cursor.history != head.history || cursor.revision > head.revision || !in_journal {
            return None;
        }
        let index = state.indexes.get(&self.term.path)?;
        // The index does not know changes from before it was begun.
        if cursor.revision < index.begun {
            return None;
        }
        let revisions = index.changes_after(&self.term.values, cursor.revision, len_max.saturating_add(1));
        let caught_up = revisions.len() <= len_max;
        let changes: Option<Vec<_>> =
            revisions.iter().take(len_max).map(|revision| state.journal().get(*revision).cloned()).collect();
        let changes = changes?;
        let (revision, position) = match changes.last() {
            Some(last) if !caught_up => (last.revision, last.position.clone()),
            _ => (head.revision, state.store.position.clone()),
        };
        Some(Batch { changes, cursor: Cursor { revision, ..cursor }, position, caught_up })
    }

    /// Begins a catch-up by index for a reader behind the journal: the revision after which it has to learn of
    /// departures. `version` is that of the client's token where the cursor was found by it. `None` where the index
    /// does not remember all departures since: then the reader looks through everything that changed.
    pub fn begin_catch_up(&self, cursor: Cursor, version: Option<&ResourceVersion>) -> Option<Revision> {
        let state = self.shared.read();
        if cursor.history != state.store.cursor.history {
            return None;
        }
        state.indexes.get(&self.term.path)?.departed_after(&self.term.values, cursor.revision, version)
    }

    /// As [`Reader::catch_up_to_state`], what has or had one of the values alone: objects that changed after `cursor`,
    /// and those that left after `departed_after`, by rising revision. A reader that has begun so may end with
    /// [`Reader::catch_up_to_state`], but not the other way round. `None` where departures are no longer remembered, or are too many.
    ///
    /// The cost grows with `len_max` and with the departures, not with the objects that have one of the values.
    pub fn catch_up_to_state(
        &self,
        cursor: Cursor,
        departed_after: Revision,
        len_max: usize,
    ) -> Option<IndexCatchUp> {
        let state = self.shared.read();
        let head = state.store.cursor;
        let index = state.indexes.get(&self.term.path)?;
        if cursor.history != head.history || !index.has_departures_after(departed_after) {
            return None;
        }
        let values = &self.term.values;
        let recent = index.recent_after(values, cursor.revision, len_max.saturating_add(1));
        // Departures after the end of this piece belong to a later one.
        let end = recent.get(len_max).copied().unwrap_or(head.revision);
        let gone = departures(index, values, (departed_after, end), &state)?.take(len_max.saturating_add(1));
        let changed: Option<Vec<_>> = recent.iter().map(|revision| state.recent_at(*revision)).collect();
        let mut entries = changed?;
        entries.extend(gone.map(|departure| departure.entry()));
        entries.sort_unstable_by_key(|entry| entry.revision);
        let done = entries.len() <= len_max;
        entries.truncate(len_max);
        let (revision, position) = match entries.last() {
            Some(last) if !done => (last.revision, last.position.clone()),
            _ => (head.revision, state.store.position.clone()),
        };
        let reached = Cursor { revision: revision.max(cursor.revision), ..cursor };
        let piece = CatchUp { entries, cursor: reached, position, done };
        let state = done.then(|| (state.store.clone(), index.keys(values)));
        Some(IndexCatchUp { piece, departed_after: revision, state })
    }

    /// A wake-up at each commit that touches the value, as that of [`Reader::wake_scoped`]; `None` for several values.
    pub fn wake(&self, wake: Arc<Notify>) -> Option<ScopeWake> {
        let [value] = &*self.term.values else { return None };
        Some(Shared::wake_at(&self.shared, Scope::value(&self.term.path, value), wake))
    }
}

/// The departures from some values between two revisions, by rising revision: of each object the last one of all, unless the object came
/// back. `None` if there are too many after the first of the revisions to look at in one turn.
fn departures<'a>(
    index: &'a Index,
    values: &'a [String],
    (after, end): (Revision, Revision),
    state: &'a State,
) -> Option<impl Iterator<Item = &'a Arc<Tombstone>>> {
    let all: Vec<_> = index.departures_after(values, after).take(DEPARTURES_MAX + 1).collect();
    if all.len() > DEPARTURES_MAX {
        return None;
    }
    // An object that was deleted and created again, even with the same uid, is another one: a reader that has neither event
    // needs both.
    let mut last: HashMap<(&Key, Revision), &Arc<Tombstone>> = HashMap::with_capacity(all.len());
    for departure in all {
        let held = last.entry((&departure.key, departure.created)).or_insert(departure);
        if departure.revision > held.revision {
            *held = departure;
        }
    }
    let mut last: Vec<_> = last.into_values().filter(|departure| departure.revision <= end).collect();
    last.sort_unstable_by_key(|departure| departure.revision);
    // If it came back, its last change says all. Looked up only for departures that the reader takes.
    let is_back = |departure: &Tombstone| {
        state.created(&departure.key) == Some(departure.created) && index.has(values, &departure.key)
    };
    Some(last.into_iter().filter(move |departure| !is_back(departure)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::cache::{Config, Delta, Writer, cache};
    use crate::k8s::{DecodeOptions, Decoder, Object, Resource, ResourceParts};

    /// An object with or without a label.
    fn object(name: u8, app: Option<u8>, version: u64) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let labels = app.map_or("{}".to_owned(), |app| format!(r#"{{"app":"{app}"}}"#));
        let text = format!(
            r#"{{"metadata":{{"name":"o{name}","uid":"{name}","resourceVersion":"{version}","labels":{labels}}}}}"#
        );
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    fn term(values: &[&str]) -> IndexTerm {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        IndexTerm { path: IndexPath::Label("app".into()), values }
    }

    fn has(object: &Object, values: &[String]) -> bool {
        object.labels().iter().any(|(_, value)| values.iter().any(|one| *one == **value))
    }

    /// Compares an index with a full scan, for the current state and for every cursor of the journal.
    fn check(reader: &Reader, cursors: &[Cursor], values: &[&str]) {
        let term = term(values);
        let Some(used) = reader.use_index(&term) else { return };
        let counts = used.counts(None, 100).unwrap().counts;
        let [summary] = &*reader.indexes() else { panic!("one index") };
        assert_eq!(summary.values, counts.len());
        let (snapshot, keys) = used.snapshot();
        let expected = snapshot.after(None).filter(|object| has(object, &term.values));
        assert!(keys.iter().eq(expected.map(|object| object.key())));
        for cursor in cursors {
            let Some(found) = used.changes_after(*cursor, 100) else { continue };
            let all = reader.changes_after(*cursor, 100).expect("the index knows no more than the journal");
            let touches = |change: &&Arc<crate::cache::Change>| {
                let previous = change.previous.as_ref().is_some_and(|object| has(object, &term.values));
                previous
                    || change.kind != crate::cache::ChangeKind::Deleted && has(&change.object, &term.values)
            };
            let expected: Vec<_> = all.changes.iter().filter(touches).map(|change| change.revision).collect();
            assert_eq!(found.changes.iter().map(|change| change.revision).collect::<Vec<_>>(), expected);
            assert_eq!((found.cursor, found.position), (all.cursor, all.position));
        }
    }

    fn commit(writer: &mut Writer, (name, app): (u8, u8), version: u64) {
        let app = (app < 3).then_some(app);
        let gone = name % 16 > 11;
        let object = object(name % 5, app, version);
        writer.commit(vec![if gone { Delta::Delete(object) } else { Delta::Apply(object) }]);
    }

    /// A client of one value, with the version of each object that it holds.
    struct Client {
        cursor: Cursor,
        version: Option<ResourceVersion>,
        held: BTreeMap<String, (String, String)>,
        departed_after: Option<Revision>,
    }

    impl Client {
        fn new(reader: &Reader, values: &[String], by_version: bool) -> Self {
            let (cursor, version) = reader.head();
            let (held, version) = (holding(reader, values), by_version.then_some(version));
            Self { cursor, version, held, departed_after: None }
        }

        /// Applies a piece of a catch-up; returns whether it was the last. `None` if the catch-up cannot go on by
        /// index.
        fn take(&mut self, index: &UsedIndex, len_max: usize) -> Option<bool> {
            let begun =
                self.departed_after.or_else(|| index.begin_catch_up(self.cursor, self.version.as_ref()));
            let since = self.cursor.revision;
            let found = index.catch_up_to_state(self.cursor, begun?, len_max)?;
            assert!(found.piece.entries.is_sorted_by_key(|entry| entry.revision));
            for entry in found.piece.entries {
                let key = entry.key.as_str().to_owned();
                match entry.object.filter(|object| has(object, &index.term().values)) {
                    Some(object) => {
                        self.held.insert(key, (object.uid().into(), entry.version.to_string()));
                    }
                    // As the hub does: a client with this token cannot have the object.
                    None if entry.created > since => {}
                    None if self.held.get(&key).is_some_and(|(uid, _)| **uid == *entry.uid) => {
                        self.held.remove(&key);
                    }
                    None => {}
                }
            }
            (self.cursor, self.departed_after) = (found.piece.cursor, Some(found.departed_after));
            Some(found.piece.done)
        }
    }

    fn holding(reader: &Reader, values: &[String]) -> BTreeMap<String, (String, String)> {
        let held = |object: &Object| {
            let version = object.resource_version().to_string();
            (object.key().as_str().to_owned(), (object.uid().into_owned(), version))
        };
        reader.snapshot().after(None).filter(|object| has(object, values)).map(held).collect()
    }

    fn listed(config: Config) -> (Writer, Reader, Instant) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let now = runtime.block_on(async { Instant::now() });
        let (mut writer, reader) = cache(config, now);
        let first = (0..5).map(|name| Delta::PassItem(object(name, Some(name % 3), 1)));
        let list = std::iter::once(Delta::PassBegin).chain(first).chain([Delta::PassEnd(1.into())]);
        writer.commit(list.collect());
        (writer, reader, now)
    }

    proptest! {
        #[test]
        fn an_index_agrees_with_a_full_scan(
            steps in prop::collection::vec((any::<u8>(), 0..4u8), 1..60),
            begins in 0..40usize,
        ) {
            let config = Config { journal_len_max: 8, journal_bytes_max: 1 << 20, tombstones_len_max: 16 };
            let (mut writer, reader, now) = listed(config);
            let (mut builder, mut cursors) = (None, Vec::new());
            for (at, step) in steps.into_iter().enumerate() {
                if at == begins {
                    builder = reader.build_index(&term(&[]).path, now).ok();
                }
                commit(&mut writer, step, 2 + at as u64);
                // One turn between two commits, until the index is complete.
                builder = builder.and_then(|mut builder: IndexBuilder| (!builder.turn()).then_some(builder));
                cursors.push(reader.head().0);
                check(&reader, &cursors, &["1"]);
                check(&reader, &cursors, &["0", "2"]);
            }
        }

        /// A reader that folds the counts of touched values always has those of the current state.
        #[test]
        fn folded_counts_of_touched_values_equal_the_current_counts(
            steps in prop::collection::vec((any::<u8>(), 0..4u8, any::<bool>()), 1..60),
            history_at in 0..80usize,
        ) {
            let config = Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 16 };
            let (mut writer, reader, now) = listed(config);
            let mut builder = reader.build_index(&term(&[]).path, now).unwrap();
            while !builder.turn() {}
            let index = reader.use_index(&term(&[])).unwrap();
            let (mut cursor, mut held): (Option<Cursor>, BTreeMap<Arc<str>, usize>) = (None, BTreeMap::new());
            for (at, (name, app, looks)) in steps.into_iter().enumerate() {
                let version = 2 + at as u64;
                if at == history_at {
                    writer.commit(vec![
                        Delta::PassBegin,
                        Delta::PassItem(object(name % 5, Some(app % 3), version)),
                        Delta::PassEnd(version.into()),
                    ]);
                } else {
                    commit(&mut writer, (name, app), version);
                }
                if !looks {
                    continue;
                }
                let found = index.counts(cursor, 100).unwrap();
                if found.is_whole {
                    held.clear();
                }
                held.extend(found.counts);
                held.retain(|_, count| *count > 0);
                cursor = Some(found.cursor);
                let mut expected: BTreeMap<Arc<str>, usize> = BTreeMap::new();
                for object in reader.snapshot().after(None) {
                    for (_, value) in object.labels() {
                        *expected.entry(Arc::from(&*value)).or_default() += 1;
                    }
                }
                prop_assert_eq!(&held, &expected);
            }
        }

        /// A reader that catches up by index, one part between two commits, ends with the objects of its values. It
        /// starts from a cursor, or from a version whose cursor is found by the surviving objects.
        #[test]
        fn a_catch_up_by_index_ends_with_the_current_objects(
            steps in prop::collection::vec((any::<u8>(), 0..4u8), 1..60),
            (joins, begins, by_version, len_max) in (0..30usize, 0..60usize, any::<bool>(), 1..4usize),
            departures in 2..20usize,
        ) {
            let config = Config { journal_len_max: 2, journal_bytes_max: 1 << 20, tombstones_len_max: departures };
            let (mut writer, reader, now) = listed(config);
            let term = term(&["0", "2"]);
            let mut builder = reader.build_index(&term.path, now).unwrap();
            while !builder.turn() {}
            let index = reader.use_index(&term).unwrap();
            let (mut client, mut gone, mut done) = (None, false, false);
            for (at, step) in steps.into_iter().enumerate() {
                if at == joins {
                    client = Some(Client::new(&reader, &term.values, by_version));
                }
                commit(&mut writer, step, 2 + at as u64);
                let Some(client) = client.as_mut().filter(|_| at >= joins + begins && !gone && !done) else { continue };
                if let (None, Some(version)) = (client.departed_after, &client.version) {
                    let crate::cache::Located::At(cursor) = reader.locate(version) else { gone = true; continue };
                    client.cursor = cursor;
                }
                match client.take(&index, len_max) {
                    Some(last) => done = last,
                    None => gone = true,
                }
                if done {
                    prop_assert_eq!(&client.held, &holding(&reader, &term.values));
                }
            }
        }
    }
}
