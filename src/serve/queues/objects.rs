//! Reads the objects of leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::{Cursor, Revision};
use crate::hub::{Informer, InformerId, Scope, Selection};
use crate::k8s::{Damaged, Key, Object, damages_of_thread};

/// The caches from which one resource of a queue reads the objects of its leases.
#[derive(Default)]
pub(super) struct Objects {
    informers: Vec<Arc<Informer>>,
    selection: Selection,
    /// The informers before these. While a new one is not as far as the one before it, objects are read from that one: its
    /// state is what the queued keys are about.
    before: Option<Before>,
    /// What workers got from those; `None` for no object.
    from_before: HashMap<Key, Option<Object>>,
    /// Where the feed last knew everything.
    fed: Vec<(InformerId, Cursor)>,
    /// The keys whose objects workers got in states from beyond that, with the informers and places of those states. The feed may never
    /// hear of such an object: where it has fallen behind the journal, and the object is gone by then.
    ahead: HashMap<Key, (InformerId, Cursor)>,
    /// The leased keys to which changes of this resource lead, by slot. Their workers may read this resource in states that the feed does
    /// not know.
    leased: HashMap<u32, Dependent>,
    /// Those that were reconciled while the caches were at places beyond the feed's.
    reconciled: HashMap<Dependent, Vec<(InformerId, Cursor)>>,
}

/// A key to which changes of another resource lead, with the place of its own resource in the queue's declaration.
pub(super) type Dependent = (usize, Key);

/// An object, and the place of the state that it is from.
type Found = (Object, (InformerId, Cursor));

struct Before {
    informers: Vec<Arc<Informer>>,
    /// Until when they are read at most: the versions of a restored cluster may never get as far.
    until: Instant,
}

impl Objects {
    /// Follows these informers from now on.
    pub(super) fn follow(
        &mut self,
        informers: Vec<Arc<Informer>>,
        selection: Selection,
        wait: Duration,
        now: Instant,
    ) {
        self.selection = selection;
        self.set(informers, wait, now);
    }

    /// Follows the successor of one informer from now on.
    pub(super) fn replace(&mut self, index: usize, by: Arc<Informer>, wait: Duration, now: Instant) {
        let mut informers = self.informers.clone();
        if let Some(informer) = informers.get_mut(index) {
            *informer = by;
        }
        self.set(informers, wait, now);
    }

    fn set(&mut self, informers: Vec<Arc<Informer>>, wait: Duration, now: Instant) {
        let last = std::mem::replace(&mut self.informers, informers);
        // Where the last ones were not as far either, those before them still are the ones that count.
        let waits = |before: &Before| now < before.until && behind(&last, &before.informers);
        if !last.is_empty() && !self.before.as_ref().is_some_and(waits) {
            self.before = Some(Before { informers: last, until: now + wait });
        }
    }

    /// Its informers are gone: there are no objects until others are followed.
    pub(super) fn forget(&mut self) {
        self.informers.clear();
        self.before = None;
        self.fed.clear();
        self.ahead.clear();
        self.from_before.clear();
        self.leased.clear();
        self.reconciled.clear();
    }

    /// The informers that are followed.
    pub(super) fn informers(&self) -> &[Arc<Informer>] {
        &self.informers
    }

    /// The object of a key as the queue selects it, for a worker; `None` if there is none.
    ///
    /// # Errors
    /// [`Damaged`], if the selection reads the object and it cannot be unpacked.
    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Result<Option<Object>, Damaged> {
        let found = self.find(key, now)?;
        if self.before.is_some() {
            let object = found.as_ref().map(|(object, _)| object.clone());
            self.from_before.insert(key.clone(), object);
        }
        let Some((object, state)) = found else { return Ok(None) };
        if !self.fed.contains(&state) {
            self.ahead.insert(key.clone(), state);
        }
        Ok(Some(object))
    }

    /// Whether there is an object of a key that the queue selects, or may select.
    pub(super) fn has(&mut self, key: &Key, now: Instant) -> bool {
        !matches!(self.find(key, now), Ok(None))
    }

    /// The keys whose objects workers got from informers that are no longer read, where the object is another one now. The feed may
    /// have told their changes while those informers still counted.
    pub(super) fn outdated(&mut self, now: Instant) -> Vec<Key> {
        self.leave_before(now);
        if self.before.is_some() {
            return Vec::new();
        }
        let given = std::mem::take(&mut self.from_before).into_iter();
        // In a restored cluster an object may have another content at the same version.
        let is_same = |one: &Object, other: &Object| one.uid() == other.uid() && one.text() == other.text();
        let is_outdated = |(key, object): (Key, Option<Object>)| {
            let Ok(found) = self.find(&key, now) else { return Some(key) };
            let found = found.map(|(found, _)| found);
            let is_current = match (&found, &object) {
                (Some(found), Some(object)) => is_same(found, object),
                (found, object) => found.is_none() && object.is_none(),
            };
            (!is_current).then_some(key)
        };
        let mut keys: Vec<_> = given.filter_map(is_outdated).collect();
        // In one order, so that any run can be repeated.
        keys.sort_unstable();
        keys
    }

    /// Reads the informers before no longer, once they do not count any more.
    fn leave_before(&mut self, now: Instant) {
        let is_over =
            |before: &mut Before| now >= before.until || !behind(&self.informers, &before.informers);
        self.before.take_if(is_over);
    }

    /// The object of a key, with the place of the state that it is from.
    fn find(&mut self, key: &Key, now: Instant) -> Result<Option<Found>, Damaged> {
        self.leave_before(now);
        let informers = self.before.as_ref().map_or(&self.informers, |before| &before.informers);
        let mut informers = informers.iter();
        let Some(informer) = informers.find(|informer| informer.spec.scope.covers(key.namespace())) else {
            return Ok(None);
        };
        let snapshot = informer.reader.snapshot();
        let Some(object) = snapshot.get(key) else { return Ok(None) };
        let before = damages_of_thread();
        if self.selection.matches(object) {
            return Ok(Some((object.clone(), (informer.id(), snapshot.cursor))));
        }
        // An object that cannot be unpacked may not match, and is not gone.
        if damages_of_thread() == before { Ok(None) } else { Err(Damaged) }
    }

    /// Notes that a worker has a dependent.
    pub(super) fn leased(&mut self, slot: u32, dependent: Dependent) {
        self.leased.insert(slot, dependent);
    }

    /// Notes that the worker of a slot has reconciled its key.
    pub(super) fn reconciled(&mut self, slot: u32) {
        let Some(dependent) = self.leased.remove(&slot) else { return };
        // The worker of an informer that was replaced has read the new one, of which the feed has not heard yet.
        let place = |informer: &Informer| match informer.is_over() {
            true => Cursor { history: u64::MAX, revision: Revision(u64::MAX) },
            false => informer.reader.snapshot().cursor,
        };
        let places = self.informers.iter().map(|informer| (informer.id(), place(informer)));
        let is_known = |(id, place): &(InformerId, Cursor)| {
            self.fed.iter().any(|(fed, _)| fed == id) && !is_beyond(&(*id, *place), &self.fed)
        };
        let ahead: Vec<_> = places.filter(|place| !is_known(place)).collect();
        if !ahead.is_empty() {
            self.reconciled.insert(dependent, ahead);
        }
    }

    /// The dependents whose workers may have read states that the feed has passed over: it cannot tell which of their links have ended. Call
    /// it before [`Self::fed`].
    pub(super) fn passed_over(&self) -> Vec<Dependent> {
        let mut dependents: Vec<_> = self.leased.values().chain(self.reconciled.keys()).cloned().collect();
        // In one order, so that any run can be repeated.
        dependents.sort_unstable();
        dependents
    }

    /// Notes the places up to which the feed knows everything. Returns the keys whose objects workers got in states that the
    /// feed has passed since.
    pub(super) fn fed(&mut self, fed: Vec<(InformerId, Cursor)>) -> Vec<Key> {
        let heard = self.ahead.extract_if(|_, state| !is_beyond(state, &fed));
        let mut keys: Vec<_> = heard.map(|(key, _)| key).collect();
        // In one order, so that any run can be repeated.
        keys.sort_unstable();
        self.reconciled.retain(|_, places| places.iter().any(|place| is_beyond(place, &fed)));
        self.fed = fed;
        keys
    }
}

/// Whether a state is beyond everything that the feed knows. That of an informer which is not followed any more is not: the
/// keys of its objects were compared with those of its successor.
fn is_beyond((informer, cursor): &(InformerId, Cursor), fed: &[(InformerId, Cursor)]) -> bool {
    fed.iter()
        .any(|(id, fed)| id == informer && (cursor.history, cursor.revision) > (fed.history, fed.revision))
}

/// Whether one of these informers is not as far as one that it follows in some namespace.
fn behind(informers: &[Arc<Informer>], before: &[Arc<Informer>]) -> bool {
    informers.iter().any(|informer| {
        let shared = |other: &Informer| {
            other.spec.scope == informer.spec.scope
                || [&other.spec.scope, &informer.spec.scope].contains(&&Scope::All)
        };
        before.iter().filter(|other| shared(other) && other.id() != informer.id()).any(|other| {
            // Not `>=`: versions that cannot be compared are those of another cluster.
            informer.reader.head().1 < other.reader.head().1
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{self, Delta, Writer};
    use crate::hub::InformerSpec;
    use crate::k8s::{
        CommonLabels, DecodeOptions, Decoder, Dictionary, FieldSelector, LabelSelector, Press, Resource,
        ResourceParts, ResourceVersion,
    };

    const WAIT: Duration = Duration::from_secs(10);

    fn config_maps() -> Resource {
        let (version, plural, kind) = ("v1".into(), "configmaps".into(), "ConfigMap".into());
        Resource::new(ResourceParts { version, plural, kind, namespaced: true, ..Default::default() })
    }

    fn decoded(text: &str) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        Decoder::new(config_maps(), options).object(text).unwrap()
    }

    fn object(version: u64) -> Object {
        decoded(&format!(
            r#"{{"metadata":{{"name":"x","namespace":"a","uid":"u","resourceVersion":"{version}"}}}}"#
        ))
    }

    /// An informer that is complete at a version, and has one object at it.
    fn informer(scope: Scope, version: u64, now: Instant) -> (Writer, Arc<Informer>) {
        let config =
            cache::Config { journal_len_max: 16, journal_bytes_max: 1 << 20, tombstones_len_max: 16 };
        let (mut writer, reader) = cache::cache(config, now);
        commit(&mut writer, version);
        (writer, Arc::new(Informer::new(InformerSpec::new(config_maps(), scope), reader)))
    }

    fn commit(writer: &mut Writer, version: u64) {
        let version_of = ResourceVersion::from(version);
        writer.commit(vec![Delta::PassBegin, Delta::PassItem(object(version)), Delta::PassEnd(version_of)]);
    }

    fn version(objects: &mut Objects, now: Instant) -> Option<String> {
        let object = objects.get(&Key::new("a", "x"), now).unwrap();
        object.map(|object| object.resource_version().to_string())
    }

    #[test]
    fn a_worker_gets_no_object_of_an_informer_that_is_gone() {
        let now = Instant::now();
        let (_writer, informer) = informer(Scope::All, 5, now);
        let mut objects = Objects::default();
        objects.follow(vec![informer.clone()], Selection::default(), WAIT, now);
        assert_eq!(version(&mut objects, now).as_deref(), Some("5"));
        objects.forget();
        assert_eq!(version(&mut objects, now), None);
        objects.follow(vec![informer], Selection::default(), WAIT, now);
        assert_eq!(version(&mut objects, now).as_deref(), Some("5"));
    }

    #[test]
    fn an_object_that_cannot_be_unpacked_is_not_gone() {
        let now = Instant::now();
        let config =
            cache::Config { journal_len_max: 16, journal_bytes_max: 1 << 20, tombstones_len_max: 16 };
        let (mut writer, reader) = cache::cache(config, now);
        let filler = "like many others, ".repeat(30);
        let text = |name: &str| {
            let metadata = format!(r#"{{"name":"{name}","namespace":"a","resourceVersion":"5"}}"#);
            format!(r#"{{"metadata":{metadata},"spec":{{"node":"n1","note":"{filler}"}}}}"#)
        };
        let plain: Vec<_> = ["x", "y", "z"].into_iter().map(|name| decoded(&text(name))).collect();
        let dictionary = Arc::new(Dictionary::train(&plain, 4096).unwrap());
        let packed = Press::new(dictionary).pack(&plain, &mut CommonLabels::default());
        let [x, y, _] = &packed[..] else { panic!("three objects") };
        let (good, bad) = (x.clone().unwrap(), y.as_ref().unwrap().damaged());
        writer.commit(vec![Delta::PassBegin, Delta::PassItem(good), Delta::PassItem(bad)]);
        writer.commit(vec![Delta::PassEnd(5.into())]);
        let informer = Arc::new(Informer::new(InformerSpec::new(config_maps(), Scope::All), reader));
        let selected_by = |fields: &str| {
            let fields = FieldSelector::parse(fields).unwrap();
            let mut objects = Objects::default();
            let selection = Selection::new(Vec::new(), None, &LabelSelector::default(), &fields);
            objects.follow(vec![informer.clone()], selection, WAIT, now);
            objects
        };
        for node in ["n1", "n2"] {
            let mut objects = selected_by(&format!("spec.node={node}"));
            let found = objects.get(&Key::new("a", "x"), now).unwrap();
            assert_eq!(found.is_some(), node == "n1");
            assert!(objects.get(&Key::new("a", "y"), now).is_err());
            assert!(objects.has(&Key::new("a", "y"), now), "it may be selected");
            assert!(objects.get(&Key::new("a", "w"), now).unwrap().is_none());
        }
    }

    #[test]
    fn a_lease_gets_no_older_object_from_a_replacement_informer() {
        let now = Instant::now();
        for (before, after) in [
            (Scope::All, Scope::All),
            (Scope::Namespace("a".to_owned()), Scope::All),
            (Scope::All, Scope::Namespace("a".to_owned())),
        ] {
            let (_old, first) = informer(before, 7, now);
            let mut objects = Objects::default();
            objects.follow(vec![first], Selection::default(), WAIT, now);
            let (mut writer, second) = informer(after, 5, now);
            objects.replace(0, second, WAIT, now);
            assert_eq!(version(&mut objects, now).as_deref(), Some("7"));
            commit(&mut writer, 8);
            assert_eq!(version(&mut objects, now).as_deref(), Some("8"));
            // Two replacements, and neither is as far as the first informer.
            let (_, third) = informer(Scope::All, 6, now);
            objects.replace(0, third, WAIT, now);
            let (_, fourth) = informer(Scope::All, 4, now);
            objects.replace(0, fourth, WAIT, now);
            assert_eq!(version(&mut objects, now).as_deref(), Some("8"));
            // The versions of another cluster may never get as far, so the wait is bounded.
            assert_eq!(version(&mut objects, now + WAIT).as_deref(), Some("4"));
        }
    }

    #[test]
    fn a_key_whose_object_was_of_an_informer_before_is_queued_again_where_the_object_is_another_one() {
        let now = Instant::now();
        let (_old, first) = informer(Scope::All, 7, now);
        let mut objects = Objects::default();
        objects.follow(vec![first], Selection::default(), WAIT, now);
        assert_eq!(version(&mut objects, now).as_deref(), Some("7"));
        let (_new, second) = informer(Scope::All, 5, now);
        objects.replace(0, second, WAIT, now);
        assert_eq!(objects.outdated(now), [], "no worker got it meanwhile");
        assert_eq!(version(&mut objects, now).as_deref(), Some("7"));
        assert_eq!(objects.outdated(now), [], "the informer before is read still");
        assert_eq!(objects.outdated(now + WAIT), [Key::new("a", "x")]);
        assert_eq!(objects.outdated(now + WAIT), [], "once is enough");
        // A successor that gets as far, and holds what the worker got.
        let (mut writer, third) = informer(Scope::All, 4, now);
        objects.replace(0, third, WAIT, now);
        assert_eq!(version(&mut objects, now).as_deref(), Some("5"));
        commit(&mut writer, 5);
        assert_eq!(objects.outdated(now), []);
    }

    #[test]
    fn an_object_is_ahead_until_the_feed_has_passed_it() {
        let now = Instant::now();
        let (mut writer, informer) = informer(Scope::All, 7, now);
        let mut objects = Objects::default();
        let (id, reader) = (informer.id(), informer.reader.clone());
        objects.follow(vec![informer], Selection::default(), WAIT, now);
        let key = Key::new("a", "x");
        let first = reader.snapshot().cursor;
        assert!(objects.fed(vec![(id, first)]).is_empty());
        assert!(objects.get(&key, now).unwrap().is_some());
        assert!(objects.fed(vec![(id, first)]).is_empty(), "the feed had passed that state already");
        commit(&mut writer, 8);
        assert!(objects.get(&key, now).unwrap().is_some());
        assert!(objects.fed(vec![(id, first)]).is_empty());
        let second = reader.snapshot().cursor;
        assert_eq!(objects.fed(vec![(id, second)]).first(), Some(&key));
        assert!(objects.fed(vec![(id, second)]).is_empty());
        // The versions go back. The feed passes the object's new state only later, whatever its revision was.
        writer.commit(vec![Delta::OtherHistory]);
        commit(&mut writer, 3);
        assert!(objects.get(&key, now).unwrap().is_some());
        assert!(objects.fed(vec![(id, second)]).is_empty());
        assert_eq!(objects.fed(vec![(id, reader.snapshot().cursor)]), [key]);
    }

    #[test]
    fn a_dependent_counts_until_the_feed_has_passed_what_its_worker_may_have_read() {
        let now = Instant::now();
        let (mut writer, informer) = informer(Scope::All, 7, now);
        let mut objects = Objects::default();
        let (id, reader) = (informer.id(), informer.reader.clone());
        objects.follow(vec![informer], Selection::default(), WAIT, now);
        let dependent = (1, Key::new("a", "service"));
        let mut reconcile = |objects: &mut Objects, version: Option<u64>| {
            objects.leased(0, dependent.clone());
            assert_eq!(objects.passed_over(), std::slice::from_ref(&dependent), "leased");
            version.into_iter().for_each(|version| commit(&mut writer, version));
            objects.reconciled(0);
            objects.passed_over().len()
        };
        assert_eq!(reconcile(&mut objects, None), 1, "the feed knows no state yet");
        let first = reader.snapshot().cursor;
        objects.fed(vec![(id, first)]);
        assert!(objects.passed_over().is_empty());
        assert_eq!(reconcile(&mut objects, None), 0, "the feed knows the state");
        assert_eq!(reconcile(&mut objects, Some(8)), 1);
        objects.fed(vec![(id, first)]);
        assert_eq!(objects.passed_over().len(), 1);
        objects.fed(vec![(id, reader.snapshot().cursor)]);
        assert!(objects.passed_over().is_empty());
    }

    #[test]
    fn a_resource_not_followed_has_no_object() {
        let now = Instant::now();
        let mut objects = Objects::default();
        assert_eq!(version(&mut objects, now), None);
        let (_writer, informer) = informer(Scope::Namespace("b".to_owned()), 3, now);
        objects.follow(vec![informer], Selection::default(), WAIT, now);
        assert_eq!(version(&mut objects, now), None);
    }
}
