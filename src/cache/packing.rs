//! Packing: objects that have not changed for a while are held packed, by a dictionary of their kind.
//!
//! Packing an object is no change: it has no revision, wakes nobody, and a reader sees the same. An object is *cold* once
//! it is not among the newest changes of the journal ([`Packing::hot_len`]). Until then, live readers that keep up share the bytes of its
//! JSON. A [`Packer`] takes cold objects in batches and packs them without the lock. Where the unpacked object is still the current state,
//! the packed one takes its place in the store and in the journal. An object that changed again meanwhile stays unpacked, so an object
//! that changes often is never packed.
//!
//! Objects of the first list are cold from the start, and packed while the list is under way. Those of a later list may
//! become changes, which are sent unpacked.
//!
//! A list is sorted by namespace, so its first objects may differ from the others. Where a dictionary was trained from a list's first
//! objects, another one is trained from all of them once they are packed. The same is done each time that a small cache has doubled. The
//! other dictionary takes over if it makes the objects at least a tenth smaller ([`GAIN_MIN`]).

use std::sync::{Arc, Weak};

use super::backlog::Backlog;
use super::cold::Cold;
use super::shared::Shared;
use super::state::State;
use super::{Reader, Revision, Writer};
use crate::k8s::{CommonLabels, Dictionary, Key, Object, Press};

/// Objects of one step, at most: some milliseconds.
const STEP_LEN_MAX: usize = 128;

/// Bytes of JSON of one step, at most, but for one object.
const STEP_BYTES_MAX: usize = 1 << 20;

/// Least gain by another dictionary for which all objects are packed anew, in hundredths of their packed bytes. Packing anew leaves gaps that
/// the allocator keeps: 45 MB of a million pods, 5 % of their memory. A smaller gain would be lost to them.
const GAIN_MIN: usize = 10;

/// Number of objects from which the other dictionary is trained, for each object that is packed with both to compare them.
const COMPARED_SHARE: usize = 4;

/// How packing is done.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// A cache with fewer bytes of JSON is not packed: a dictionary would cost about as much as it saves.
    pub packed_bytes_min: usize,
    /// Bytes of JSON of cold objects from which a dictionary is trained, or half of those of a smaller cache.
    pub train_bytes_min: usize,
    /// Bytes of JSON that a dictionary is trained from, at most.
    pub train_bytes_max: usize,
    /// Most bytes of a dictionary.
    pub dictionary_bytes: usize,
    /// Number of dictionaries of one cache. One more is alive while the objects of the oldest are packed anew.
    pub dictionaries_max: usize,
    /// Bytes of JSON after which it is looked at whether the dictionary still fits.
    pub look_bytes: usize,
    /// Number of newest changes in the journal whose objects are not packed. Readers that are further behind unpack what they get.
    pub hot_len: u64,
}

impl Packing {
    /// A dictionary of 32 KiB may hold several objects of a kind. It costs at least 59 KiB then ([`Dictionary::held_bytes`]). Live readers
    /// that keep up have taken a change before 256 others have followed, so only slower ones would gain from more unpacked objects.
    pub const DEFAULT: Self = Self {
        packed_bytes_min: 256 << 10,
        train_bytes_min: 1 << 20,
        train_bytes_max: 4 << 20,
        dictionary_bytes: 32 << 10,
        dictionaries_max: 4,
        look_bytes: 4 << 20,
        hot_len: 256,
    };

    /// For tests: dictionaries are trained from a few objects, so that several come and go.
    #[cfg(test)]
    pub(crate) const EAGER: Self = Self {
        packed_bytes_min: 2000,
        train_bytes_min: 2000,
        train_bytes_max: 8000,
        dictionary_bytes: 1024,
        dictionaries_max: 2,
        look_bytes: 3000,
        hot_len: 2,
    };
}

/// Packs the cold objects of one cache. Its owner calls [`Packer::step`].
pub struct Packer {
    shared: Arc<Shared>,
    packing: Packing,
    /// Those that objects may still be packed with, oldest first. The last one is used.
    dictionaries: Vec<Weak<Dictionary>>,
    /// Those whose objects are being packed anew.
    retired: Vec<Weak<Dictionary>>,
    /// The one in use. Without one, the next is trained from what is cold.
    current: Option<Arc<Dictionary>>,
    /// Its press, while there is something to do.
    press: Option<Press>,
    /// The bytes of JSON from which the one in use was trained, if it is to be compared with another one. That is so if it was trained
    /// amid the first list or from few objects.
    trained_early: Option<usize>,
    /// Whether dictionaries may be compared ([`Packer::settle`]).
    is_settled: bool,
    labels: CommonLabels,
    /// Whether all objects together are too few for a dictionary.
    is_small: bool,
    /// The ratio of packed to unpacked bytes in thousandths, at first and since the last look.
    ratio_at_first: Option<usize>,
    seen: Seen,
}

/// What was packed since the last look.
#[derive(Debug, Default)]
struct Seen {
    before: usize,
    after: usize,
}

/// An object that is to be packed, and what it becomes.
struct Swap {
    key: Key,
    old: Object,
    new: Object,
}

// === impl State ===

impl State {
    /// The object with a key that is to be packed: of the list under way, or of the store. `place` is as in
    /// [`get_next`](super::listed::Listed::get_next).
    fn to_pack(&self, key: &Key, place: &mut usize) -> impl Iterator<Item = &Object> {
        let listed = self.first_list().and_then(|listed| listed.get_next(key, place));
        // An object of a newer change is found again when it gets cold.
        let cold_to = self.cold_to();
        let held = self.store.objects.get(key).filter(|stored| stored.revision <= cold_to);
        listed.into_iter().chain(held.map(|stored| &stored.object))
    }

    /// The last revision whose object may be packed.
    pub(super) fn cold_to(&self) -> Revision {
        let base = self.journal().base_revision();
        let newest = self.store.cursor.revision;
        self.cold.as_ref().map_or(base, |cold| cold.cold_to(newest).max(base))
    }

    /// After a change, notes the object of the change that is no longer among the newest. `was_cold_to` is what [`State::cold_to`] was
    /// before.
    pub(super) fn note_cold(&mut self, was_cold_to: Revision) {
        let cold_to = self.cold_to();
        if cold_to > was_cold_to
            && let Some(change) = self.journal().get(cold_to).cloned()
            && let Some(cold) = &mut self.cold
        {
            cold.note(&change, &self.store);
        }
    }

    /// Notes all objects of the store that could be packed, with those of a dictionary that is retired.
    pub(super) fn note_all(&mut self, retired: Option<&Arc<Dictionary>>) {
        let cold_to = self.cold_to();
        if let Some(cold) = &mut self.cold {
            cold.note_all(&self.store, cold_to, retired);
        }
    }

    /// Replaces objects with what is packed of them, where they are still the current state. Returns what to drop.
    fn swap(&mut self, swaps: Vec<Swap>) -> Vec<Object> {
        let mut replaced = Vec::with_capacity(swaps.len());
        let mut place = 0;
        for Swap { key, old, new } in swaps {
            let is_held = self.store.objects.get(&key).is_some_and(|stored| stored.object.is_same(&old));
            if is_held && let Some(stored) = self.store.objects.get_mut(&key) {
                self.store.held += new.held_bytes();
                self.store.held -= old.held_bytes();
                self.store.replaced += old.held_bytes() as u64;
                stored.object = new.clone();
                let revision = stored.revision;
                self.journal_mut().swap(revision, &old, &new);
            }
            if let Some(listed) = self.first_list_mut() {
                listed.swap(&old, new, &mut place);
            }
            replaced.push(old);
        }
        replaced
    }
}

// === impl Writer ===

impl Writer {
    /// From now on cold objects are noted, and this packs them.
    pub fn packer(&self, packing: Packing, backlog: Arc<Backlog>) -> Packer {
        let mut state = self.shared().write();
        state.cold = Some(Cold::new(packing.train_bytes_min, packing.hot_len, backlog));
        state.note_all(None);
        drop(state);
        Packer {
            shared: self.shared().clone(),
            packing,
            dictionaries: Vec::new(),
            retired: Vec::new(),
            current: None,
            press: None,
            trained_early: None,
            is_settled: false,
            labels: CommonLabels::default(),
            is_small: false,
            ratio_at_first: None,
            seen: Seen::default(),
        }
    }

    /// The backlog, while it is full and the packer has objects of this cache's first list to pack: the list has to wait then. Objects that
    /// other caches leave in the backlog do not hold it up.
    pub fn full_backlog(&self) -> Option<Arc<Backlog>> {
        let state = self.shared().read();
        let waits = |cold: &&Cold| cold.is_to_pack() && cold.backlog().is_full();
        let cold = state.cold.as_ref().filter(|_| !state.synced).filter(waits)?;
        Some(cold.backlog().clone())
    }
}

impl Drop for Packer {
    /// What is not packed yet stays as it is.
    fn drop(&mut self) {
        self.shared.write().cold = None;
    }
}

// === impl Packer ===

impl Packer {
    /// A reading end of its cache.
    pub fn reader(&self) -> Reader {
        self.shared.reader()
    }

    /// Whether a step would do something. If not, what costs memory between steps is given up.
    pub fn has_work(&mut self) -> bool {
        self.mind_size();
        let has_work = self.has_cold() || self.is_to_compare();
        if !has_work {
            self.press = None;
        }
        has_work
    }

    /// Whether there are cold objects to pack, and enough of them if a dictionary is to be trained first.
    fn has_cold(&self) -> bool {
        let state = self.shared.read();
        state.cold.as_ref().is_some_and(|cold| match self.current {
            Some(_) => !cold.keys.is_empty(),
            None => cold.bytes >= self.train_bytes(&state),
        })
    }

    /// Bytes of JSON of cold objects from which the next dictionary is trained. Until a first list ends, nobody knows how long it is.
    fn train_bytes(&self, state: &State) -> usize {
        let Packing { packed_bytes_min, train_bytes_min, .. } = self.packing;
        match state.synced {
            true => train_bytes_min.min(packed_bytes_min.max(state.store.bytes / 2)),
            false => train_bytes_min,
        }
    }

    /// While all objects together are too few for a dictionary, what gets cold is not noted, or it would grow with each
    /// change. Once there are enough, all of them are.
    fn mind_size(&mut self) {
        let (is_small, noted) = {
            let state = self.shared.read();
            let is_small = state.synced && state.store.bytes < self.packing.packed_bytes_min;
            (is_small && self.current.is_none(), state.cold.as_ref().map_or(0, |cold| cold.keys.len()))
        };
        if is_small && noted > 0 {
            self.shared.write().cold.iter_mut().for_each(Cold::clear);
        }
        if self.is_small && !is_small {
            self.shared.write().note_all(None);
        }
        self.is_small = is_small;
    }

    /// Lets the packer compare dictionaries from now on. The driver calls this a while after the first list: a comparison takes some
    /// megabytes for a moment, which would count on top of those of the list.
    pub fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Whether packed bytes were found damaged since it was last asked: then nothing that is held can be relied on, and
    /// everything has to be fetched again.
    pub fn is_damaged(&mut self) -> bool {
        let known = self.dictionaries.iter().chain(&self.retired).filter_map(Weak::upgrade);
        let is_damaged = known.filter(|dictionary| dictionary.take_damaged()).count() > 0;
        if is_damaged {
            // What is damaged may be what objects have in common, so others are packed without it.
            (self.current, self.press, self.labels) = (None, None, CommonLabels::default());
        }
        is_damaged
    }

    /// Packs some cold objects: some milliseconds, but for a step that trains a dictionary. Returns whether it did
    /// something.
    pub fn step(&mut self) -> bool {
        if !self.has_work() {
            return false;
        }
        if self.is_to_compare() {
            self.compare();
            return true;
        }
        if self.current.is_none() && !self.train() {
            return false;
        }
        let mut batch = self.take();
        // A damaged one is left: it is about to be fetched again.
        batch.retain(|(_, object)| object.try_text().is_ok());
        let Some(current) = &self.current else { return false };
        let press = self.press.get_or_insert_with(|| Press::new(current.clone()));
        let plain: Vec<_> = batch.iter().map(|(_, object)| Object::plain(object.clone())).collect();
        let packed = press.pack(&plain, &mut self.labels);
        let mut swaps = Vec::with_capacity(batch.len());
        for (((key, old), plain), packed) in batch.into_iter().zip(plain).zip(packed) {
            self.seen.before += plain.json_len();
            self.seen.after += packed.as_ref().unwrap_or(&plain).held_bytes();
            // One whose dictionary is retired, and that does not fit the new one, is held as it is.
            let new = packed.unwrap_or(plain);
            if !old.is_same(&new) {
                swaps.push(Swap { key, old, new });
            }
        }
        let replaced = self.shared.write().swap(swaps);
        // Dropped without the lock: it gives back thousands of bytes of each.
        drop(replaced);
        self.look();
        true
    }

    /// The objects of the next step.
    fn take(&self) -> Vec<(Key, Object)> {
        let mut guard = self.shared.write();
        let state = &mut *guard;
        let (mut batch, mut bytes, mut place) = (Vec::new(), 0, 0);
        while batch.len() < STEP_LEN_MAX
            && bytes < STEP_BYTES_MAX
            && let Some(key) = state.cold.as_mut().and_then(Cold::pop)
        {
            let found = state.to_pack(&key, &mut place).filter(|object| self.wants(object));
            let found: Vec<_> = found.cloned().collect();
            for object in found {
                bytes += object.json_len();
                batch.push((key.clone(), object));
            }
        }
        batch
    }

    /// Whether an object is to be packed: it is not yet and can be, or it is with a dictionary that is retired.
    fn wants(&self, object: &Object) -> bool {
        match object.dictionary() {
            None => object.can_be_packed(),
            Some(dictionary) => {
                let is_known = self.dictionaries.iter().any(|one| one.as_ptr() == Arc::as_ptr(dictionary));
                !is_known
            }
        }
    }

    /// Trains a dictionary from what is cold. If all places are taken, the objects of the oldest are packed anew.
    fn train(&mut self) -> bool {
        let samples = self.samples();
        let Some(dictionary) = Dictionary::train(&samples, self.packing.dictionary_bytes) else {
            // Nothing of it is there any more, or can be packed.
            self.shared.write().cold.iter_mut().for_each(Cold::clear);
            return false;
        };
        // They hold the dictionary before, which would count as alive.
        self.labels = CommonLabels::default();
        let alive = self.alive();
        self.dictionaries.retain(|one| one.strong_count() > 0);
        let retired = (alive.len() >= self.packing.dictionaries_max).then(|| &alive[0]);
        self.begin(dictionary, retired);
        let bytes = samples.iter().map(Object::json_len).sum();
        let is_amid_list = !self.shared.read().synced;
        self.trained_early = (is_amid_list || bytes < self.packing.train_bytes_min).then_some(bytes);
        true
    }

    /// Packs with this dictionary from now on, also the objects of one that is retired.
    fn begin(&mut self, dictionary: Dictionary, retired: Option<&Arc<Dictionary>>) {
        self.retired.retain(|one| one.strong_count() > 0);
        if let Some(retired) = retired.map(Arc::downgrade) {
            self.dictionaries.retain(|one| !one.ptr_eq(&retired));
            self.retired.push(retired);
        }
        let dictionary = Arc::new(dictionary);
        let is_first = self.dictionaries.is_empty() && retired.is_none();
        self.dictionaries.push(Arc::downgrade(&dictionary));
        (self.current, self.press) = (Some(dictionary), None);
        (self.ratio_at_first, self.seen) = (None, Seen::default());
        self.note_dictionaries();
        if !is_first {
            // With it, objects may get small that did not with the last one.
            self.shared.write().note_all(retired);
        }
    }

    /// Whether everything is packed, and the dictionary in use was trained from less than half of it.
    fn is_to_compare(&self) -> bool {
        let is_due = self.is_settled && self.current.is_some();
        let Some(bytes) = self.trained_early.filter(|_| is_due) else { return false };
        let state = self.shared.read();
        let is_packed = state.synced && state.cold.as_ref().is_some_and(|cold| cold.keys.is_empty());
        is_packed && state.store.bytes > 2 * bytes
    }

    /// Trains another dictionary from objects of the whole cache. If it makes them at least a tenth smaller, all are packed anew.
    fn compare(&mut self) {
        let bytes = self.shared.read().store.bytes;
        self.trained_early = (bytes < self.packing.train_bytes_min).then_some(bytes);
        let (samples, measured) = self.packed_samples();
        let Some(other) = Dictionary::train(&samples, self.packing.dictionary_bytes) else { return };
        let plain: Vec<_> = measured.iter().cloned().map(Object::plain).collect();
        let other = Arc::new(other);
        let packed = Press::new(other.clone()).pack(&plain, &mut CommonLabels::default());
        let by_other = packed.into_iter().zip(&plain);
        let by_other: usize =
            by_other.map(|(packed, plain)| packed.as_ref().unwrap_or(plain).held_bytes()).sum();
        let by_current: usize = measured.iter().map(Object::held_bytes).sum();
        if by_other * 100 < by_current * (100 - GAIN_MIN)
            && let Some(other) = Arc::into_inner(other)
        {
            self.labels = CommonLabels::default();
            let current = self.current.take();
            self.begin(other, current.as_ref());
        }
    }

    /// Packed objects of the whole cache: unpacked ones to train a dictionary from, and others to compare dictionaries by.
    fn packed_samples(&self) -> (Vec<Object>, Vec<Object>) {
        let store = self.reader().snapshot();
        let every = store.bytes.div_ceil(self.packing.train_bytes_max).max(2);
        let is_readable = |object: &&Object| object.dictionary().is_some() && object.try_text().is_ok();
        let sample = |first: usize, every: usize| {
            store.after(None).skip(first).step_by(every).filter(is_readable).cloned()
        };
        let trained_from = sample(0, every).map(Object::plain).collect();
        (trained_from, sample(1, every * COMPARED_SHARE).collect())
    }

    /// Objects to train a dictionary from, from all of what is cold.
    fn samples(&self) -> Vec<Object> {
        let state = self.shared.read();
        let Some(cold) = &state.cold else { return Vec::new() };
        let every = cold.bytes.div_ceil(self.packing.train_bytes_max).max(1);
        let (mut samples, mut place) = (Vec::new(), 0);
        for (key, _) in cold.keys.iter().step_by(every) {
            let found = state.to_pack(key, &mut place);
            samples.extend(found.filter(|object| object.can_be_packed()).cloned());
        }
        samples
    }

    fn alive(&self) -> Vec<Arc<Dictionary>> {
        self.dictionaries.iter().filter_map(Weak::upgrade).collect()
    }

    /// Looks from time to time whether objects get as small as they did when the dictionary was new.
    fn look(&mut self) {
        if self.seen.before < self.packing.look_bytes {
            return;
        }
        let Seen { before, after } = std::mem::take(&mut self.seen);
        let ratio = after * 1000 / before.max(1);
        match self.ratio_at_first {
            None => self.ratio_at_first = Some(ratio),
            // Half as much again, and at least two of a hundred.
            Some(first) if ratio > first + (first / 2).max(20) => (self.current, self.press) = (None, None),
            Some(_) => {}
        }
        self.note_dictionaries();
    }

    fn note_dictionaries(&self) {
        let alive = self.alive();
        let bytes = alive.iter().map(|dictionary| dictionary.held_bytes()).sum();
        self.shared.write().dictionaries = (alive.len(), bytes);
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packer({} dictionaries)", self.dictionaries.len())
    }
}

#[cfg(test)]
#[path = "packing_tests.rs"]
mod tests;
