//! A pass: a list on its way into the cache.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::listed::Listed;
use super::{Revision, Snapshot};
use crate::k8s::{Key, Object, ResourceVersion};

/// The objects that a list has named so far. Unchanged objects cost only their key, so that a relist of a large cluster
/// needs no second copy of it. Others cost one pointer, so that the first list of a large cluster takes little more than the cache.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Objects that differ from the cache's.
    pub(super) differing: Listed,
    /// Keys of objects that the cache has as the list has them.
    same: HashSet<Key>,
    look: Look,
    /// Whether the API server gave an older answer before this list.
    pub(super) doubted: bool,
}

/// How far the cache was looked through for objects that the list does not name.
#[derive(Debug, Default)]
struct Look {
    /// The cache's revision. At another one, looking begins again.
    revision: Revision,
    /// The last key that was looked at.
    last: Option<Key>,
    is_done: bool,
    /// The objects' keys, in order.
    unnamed: Vec<Key>,
}

/// The result of a complete pass, in the order of its commit: deletions, then changes.
///
/// Why in this order: a reader that is cut off after a change at version v then has every deletion up to v, wherever it
/// resumes.
pub(super) struct Outcome {
    /// Objects that the pass did not name, or named with another uid; then with the version of the new object.
    pub(super) gone: Vec<(Object, Option<ResourceVersion>)>,
    /// Changed and new objects. By rising resourceVersion, so that the position after each is the object's; in no particular order if the
    /// list begins a history.
    pub(super) changed: Vec<Object>,
    /// Keys that are no longer needed, maybe a hundred thousand. The caller frees them without the lock.
    pub(super) spent: HashSet<Key>,
}

impl Pass {
    /// Adds an object of the list. Of two with the same key the newer one counts, as a streaming list may contain live events.
    pub(super) fn item(&mut self, object: Object, store: &Snapshot) {
        let stored = store.objects.get(object.key()).map(|stored| &stored.object);
        let same = stored.filter(|_| self.same.contains(object.key()));
        let before = same.or_else(|| self.differing.get(object.key()));
        if before.is_some_and(|before| object.resource_version() <= before.resource_version()) {
            return;
        }
        if stored.is_some_and(|stored| is_of_version(stored, &object) && stored.text() == object.text()) {
            self.differing.remove(object.key());
            self.same.insert(object.key().clone());
        } else {
            if same.is_some() {
                self.same.remove(object.key());
            }
            self.differing.insert(object);
        }
    }

    /// Removes an object that was deleted while the list was under way.
    pub(super) fn gone(&mut self, key: &Key) {
        self.look = Look::default();
        self.differing.remove(key);
        self.same.remove(key);
    }

    /// Looks whether the list, now complete, names the cache's next `len_max` objects. Returns whether objects are left.
    pub(super) fn look(&mut self, store: &Snapshot, len_max: usize) -> bool {
        let revision = store.cursor.revision;
        if self.look.revision != revision {
            self.look = Look { revision, ..Look::default() };
        }
        if self.look.is_done {
            return false;
        }
        let mut last = None;
        let mut left = len_max;
        let mut unnamed = std::mem::take(&mut self.look.unnamed);
        for stored in store.stored_after(self.look.last.as_ref()).take(len_max) {
            left -= 1;
            let key = stored.object.key();
            if !self.names(key) {
                unnamed.push(key.clone());
            }
            last = Some(key);
        }
        self.look.unnamed = unnamed;
        self.look.is_done = left > 0;
        self.look.last = last.cloned().or(self.look.last.take());
        !self.look.is_done
    }

    /// The cache's objects that the list does not name, once all were looked at. One that it has named since is left out.
    fn unnamed(&self) -> impl Iterator<Item = &Key> {
        self.look.unnamed.iter().filter(|key| !self.names(key))
    }

    fn names(&self, key: &Key) -> bool {
        self.same.contains(key) || self.differing.get(key).is_some()
    }

    /// Whether the API server's versions went back behind what the cache holds (an etcd restored from a backup, another
    /// cluster behind the same address; U30): the list as a whole is older, or it names an object in an older state.
    ///
    /// A doubted list may be of a restored cluster whose versions have passed the cache's since. In a list of the cache's own
    /// history, each object that is not newer than the cache's version is exactly as in the cache. If one differs, the list is
    /// of another history, and so it is if an object is missing in a list at the very version of the cache. If none differs, the
    /// two histories can only differ in objects at newer versions, or in missing ones. Applied as changes and deletions, these
    /// make the cache and its readers right in either case.
    pub(super) fn is_of_other_history(&mut self, store: &Snapshot, version: &ResourceVersion) -> bool {
        self.look(store, usize::MAX);
        let seen = &store.position;
        let contradicts = |object: &Object| {
            if is_rewritten(object, store) {
                return self.doubted;
            }
            let is_known = object.resource_version() <= *seen;
            let held = store.objects.get(object.key()).map(|stored| &stored.object);
            let is_older = held.is_some_and(|held| object.resource_version() < held.resource_version());
            is_older || self.doubted && is_known
        };
        let lacks = self.doubted && version == seen && self.unnamed().next().is_some();
        version < seen || lacks || self.differing.iter().any(contradicts)
    }

    /// Ends the pass. If it begins a history, objects that differ under the same version count as changed, and the changes are not sorted: no
    /// reader sees their order.
    pub(super) fn end(mut self, store: &Snapshot, begins_history: bool) -> Outcome {
        self.look(store, usize::MAX);
        let unnamed = self.unnamed().filter_map(|key| store.objects.get(key));
        let mut gone: Vec<_> = unnamed.map(|stored| (stored.object.clone(), None)).collect();
        let mut changed = self.differing.into_vec();
        if !begins_history {
            changed.retain(|object| !is_rewritten(object, store));
            changed.sort_unstable_by(in_order);
        }
        gone.extend(changed.iter().filter_map(|object| {
            let old = &store.objects.get(object.key())?.object;
            (old.uid() != object.uid()).then(|| (old.clone(), Some(object.resource_version())))
        }));
        Outcome { gone, changed, spent: self.same }
    }
}

/// Rising numbers, then versions that have no order, by key. A sort may panic without a total order: numbers among each other by
/// version, but numbers and others by key, is none.
fn in_order(a: &Object, b: &Object) -> Ordering {
    let (one, other) = (a.resource_version(), b.resource_version());
    let is_number = other.is_number().cmp(&one.is_number());
    let version = || one.partial_cmp(&other).unwrap_or(Ordering::Equal);
    is_number.then_with(version).then_with(|| a.key().cmp(b.key()))
}

/// Whether the cache has the same version of the same object, but with other bytes. Either another release of the API server
/// writes it differently, which is no change; or the version is of a history that a restore took back.
fn is_rewritten(object: &Object, store: &Snapshot) -> bool {
    store.objects.get(object.key()).is_some_and(|stored| is_of_version(&stored.object, object))
}

fn is_of_version(stored: &Object, object: &Object) -> bool {
    stored.resource_version() == object.resource_version() && stored.uid() == object.uid()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::cache::{Config, Delta, Reader, Writer, cache};
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

    fn object(name: u8, version: u64) -> Object {
        at_version(name, &version.to_string())
    }

    fn at_version(name: u8, version: &str) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let text =
            format!(r#"{{"metadata":{{"name":"o{name:03}","uid":"{name}","resourceVersion":"{version}"}}}}"#);
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    fn filled(names: &BTreeSet<u8>) -> (Writer, Reader) {
        let config = Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 4 };
        let (mut writer, reader) = cache(config, Instant::now());
        let items = names.iter().map(|name| Delta::PassItem(object(*name, 1)));
        let deltas = [Delta::PassBegin].into_iter().chain(items).chain([Delta::PassEnd(1.into())]);
        writer.commit(deltas.collect());
        (writer, reader)
    }

    proptest! {
        /// A list names objects and takes some back, before the cache is looked through, in between and afterwards.
        #[test]
        fn looking_in_turns_finds_what_the_list_does_not_name(
            held in prop::collection::btree_set(0..40u8, 0..40),
            steps in prop::collection::vec((0..3u8, 0..40u8, 1..3u64), 0..60),
        ) {
            let store = filled(&held).1.snapshot();
            let (mut pass, mut named) = (Pass::default(), BTreeSet::new());
            for (what, name, version) in steps {
                match what {
                    0 => {
                        pass.item(object(name, version), &store);
                        named.insert(name);
                    }
                    1 => {
                        pass.gone(object(name, 1).key());
                        named.remove(&name);
                    }
                    _ => drop(pass.look(&store, usize::from(name / 8))),
                }
            }
            let gone = pass.end(&store, false).gone;
            let found: Vec<_> = gone.iter().map(|(object, _)| object.key().clone()).collect();
            let expected: Vec<_> =
                held.difference(&named).map(|name| object(*name, 1).key().clone()).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_cache_that_has_changed_is_looked_through_again() {
        let (mut writer, reader) = filled(&[1, 2, 3].into());
        let mut pass = Pass::default();
        pass.item(object(2, 1), &reader.snapshot());
        while pass.look(&reader.snapshot(), 2) {}
        writer.commit(vec![Delta::Apply(object(0, 2))]);
        let gone = pass.end(&reader.snapshot(), false).gone;
        let found: Vec<_> = gone.iter().map(|(object, _)| object.key().name()).collect();
        assert_eq!(found, ["o000", "o001", "o003"]);
    }

    #[test]
    fn numbers_rise_among_versions_that_have_no_order() {
        let (_, reader) = filled(&[].into());
        let mut pass = Pass::default();
        for name in 0..=u8::MAX {
            let version = if name % 3 == 0 { format!("x{name}") } else { name.wrapping_mul(37).to_string() };
            pass.item(at_version(name, &version), &reader.snapshot());
        }
        let changed = pass.end(&reader.snapshot(), false).changed;
        let versions: Vec<_> = changed.iter().map(|object| object.resource_version()).collect();
        let numbers: Vec<_> = versions.iter().filter(|version| version.is_number()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        assert_eq!(versions.len(), 256);
    }
}
