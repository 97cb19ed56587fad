//! A packed cache against an unpacked one: readers see no difference.

use futures_util::FutureExt as _;
use proptest::prelude::*;
use tokio::time::Instant;

use super::super::{
    Batch, CatchUpEntry, Change, Config, Cursor, Delta, IndexBuilder, IndexTerm, Revision, cache,
};
use super::*;
use crate::k8s::{
    DecodeOptions, Decoder, FieldPath, IndexPath, Resource, ResourceParts, ResourceVersion, damages,
};

const EAGER: Packing = Packing::EAGER;

const LIMITS: Config = Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 8 };

fn object(name: u8, version: u64, style: u8) -> Object {
    object_at(name, version, &version.to_string(), style)
}

/// An object whose content is that of a version, with a version as text.
fn object_at(name: u8, version: u64, text_of_version: &str, style: u8) -> Object {
    let options =
        DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
    let text = match style % 3 {
        0 => "ready and serving ".repeat(20),
        1 => "waiting for another one ".repeat(15),
        // Text that does not compress.
        _ => (0..300u64).map(|at| char::from(33 + ((at * at * 31 + version * 17) % 57) as u8)).collect(),
    };
    let json = serde_json::json!({
        "metadata": {
            "name": format!("o{name}"), "uid": format!("uid-{name}"), "resourceVersion": text_of_version,
            "labels": {"app": format!("a{}", version % 3)},
        },
        "status": {"text": text, "phase": format!("p{}", version % 2)},
    });
    Decoder::new(Resource::new(ResourceParts::default()), options).object(&json.to_string()).unwrap()
}

fn backlog(bytes_max: usize) -> Arc<Backlog> {
    Arc::new(Backlog::new(bytes_max))
}

fn new_cache() -> (Writer, Reader, Instant) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let now = runtime.block_on(async { Instant::now() });
    let (writer, reader) = cache(LIMITS, now);
    (writer, reader, now)
}

/// All that a change shows to readers.
fn shown(change: &Change) -> impl PartialEq + std::fmt::Debug + use<> {
    let previous = change.previous.as_ref().map(|object| object.json());
    let (position, version) = (change.position.to_string(), change.version.to_string());
    (change.revision, change.kind, position, version, change.object.json(), previous)
}

fn entry(entry: &CatchUpEntry) -> impl PartialEq + std::fmt::Debug + use<> {
    let json = entry.object.as_ref().map(|object| object.json());
    (entry.revision, entry.created, entry.key.clone(), entry.uid.clone(), entry.version.to_string(), json)
}

fn batch(batch: Option<Batch>) -> Option<impl PartialEq + std::fmt::Debug> {
    batch.map(|batch| {
        (batch.changes.iter().map(|one| shown(one)).collect::<Vec<_>>(), batch.cursor, batch.caught_up)
    })
}

fn term(path: IndexPath, value: &str) -> IndexTerm {
    IndexTerm { path, values: vec![value.to_owned()].into() }
}

fn terms() -> [IndexTerm; 2] {
    let phase = crate::k8s::FieldPath::new("status.phase");
    [term(IndexPath::Label("app".into()), "a1"), term(IndexPath::Field(phase), "p1")]
}

/// Compares all that readers of two caches can see.
fn compare(one: &Reader, other: &Reader, cursors: &[Cursor]) {
    let json = |reader: &Reader| {
        let objects = reader.snapshot();
        let object = |object: &Object| (object.json(), object.content_hash(), object.uid().into_owned());
        objects.after(None).map(object).collect::<Vec<_>>()
    };
    assert_eq!(json(one), json(other));
    assert_eq!(one.mark(), other.mark());
    assert_eq!(one.newest().map(|object| object.json()), other.newest().map(|object| object.json()));
    let (a, b) = (one.summary(), other.summary());
    assert_eq!((a.bytes, a.objects, a.journal_len), (b.bytes, b.objects, b.journal_len));
    let held: usize = other.snapshot().after(None).map(|object| object.held_bytes()).sum();
    assert_eq!(other.snapshot().held, held);
    for cursor in cursors {
        assert_eq!(batch(one.changes_after(*cursor, 100)), batch(other.changes_after(*cursor, 100)));
        let entries = |reader: &Reader| {
            let piece = reader.catch_up(*cursor, 100).ok()?;
            Some((piece.entries.iter().map(entry).collect::<Vec<_>>(), piece.cursor, piece.done))
        };
        assert_eq!(entries(one), entries(other));
    }
    for term in terms() {
        let keys = |reader: &Reader| {
            reader.use_index(&term).map(|index| index.snapshot().1.iter().cloned().collect::<Vec<_>>())
        };
        assert_eq!(keys(one), keys(other));
    }
}

/// The journal's changes, oldest first.
fn journal(reader: &Reader) -> Vec<Arc<Change>> {
    let state = reader.shared.read();
    state.journal().after(state.journal().base_revision(), 100).unwrap()
}

/// The objects of the newest changes are unpacked, so that live readers get them by reference. The journal has every other object in the
/// form that the store has.
fn newest_are_plain(reader: &Reader, packing: &Packing) {
    let (changes, snapshot) = (journal(reader), reader.snapshot());
    let cold_to = reader.mark().revision.0.saturating_sub(packing.hot_len);
    for change in changes {
        let is_packed = change.object.dictionary().is_some();
        assert!(!is_packed || change.revision.0 <= cold_to, "{change:?}");
        let stored = snapshot.objects.get(change.object.key());
        if let Some(stored) = stored.filter(|stored| stored.revision == change.revision) {
            assert!(stored.object.is_same(&change.object), "{change:?}");
        }
    }
}

/// A write between two steps of packing.
#[derive(Clone, Debug)]
enum Event {
    Put {
        name: u8,
        style: u8,
    },
    Delete(u8),
    /// A list of some of the objects, in several commits.
    List {
        names: Vec<u8>,
        style: u8,
        fails: bool,
    },
    OtherHistory,
    Index,
}

fn event() -> impl Strategy<Value = Event> {
    let list = (prop::collection::vec(0..24u8, 0..24), any::<u8>(), prop::bool::weighted(0.2));
    prop_oneof![
        12 => (0..24u8, any::<u8>()).prop_map(|(name, style)| Event::Put { name, style }),
        3 => (0..24u8).prop_map(Event::Delete),
        2 => list.prop_map(|(names, style, fails)| Event::List { names, style, fails }),
        1 => Just(Event::OtherHistory),
        1 => Just(Event::Index),
    ]
}

/// The commits of an event.
fn commits(event: &Event, version: &mut u64) -> Vec<Vec<Delta>> {
    let mut next = || {
        *version += 1;
        *version
    };
    match event {
        Event::Put { name, style } => vec![vec![Delta::Apply(object(*name, next(), *style))]],
        Event::Delete(name) => vec![vec![Delta::Delete(object(*name, next(), 0))]],
        Event::List { names, style, fails } => {
            let mut commits = vec![vec![Delta::PassBegin]];
            commits.extend(names.iter().map(|name| vec![Delta::PassItem(object(*name, next(), *style))]));
            commits.push(vec![if *fails { Delta::PassAbort } else { Delta::PassEnd(next().into()) }]);
            commits
        }
        Event::OtherHistory => vec![vec![Delta::OtherHistory]],
        Event::Index => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn readers_see_no_difference_between_packed_and_unpacked_caches(
        first in prop::collection::vec(0..24u8, 0..24),
        style in any::<u8>(),
        events in prop::collection::vec((event(), 0..3usize), 1..60),
        hot_len in 0..6u64,
    ) {
        let eager = Packing { hot_len, ..EAGER };
        let (mut plain, plain_reader, now) = new_cache();
        let (mut writer, reader, _) = new_cache();
        let mut packer = writer.packer(eager, backlog(Backlog::BYTES_MAX));
        packer.settle();
        let (mut version, mut cursors) = (0, Vec::new());
        let mut builders: Vec<IndexBuilder> = Vec::new();
        let first = (Event::List { names: first, style, fails: false }, 1);
        for (event, steps) in std::iter::once(first).chain(events) {
            if matches!(event, Event::Index) {
                for (reader, term) in [&plain_reader, &reader].into_iter().zip([terms(), terms()]) {
                    builders.extend(term.iter().filter_map(|term| reader.build_index(&term.path, now).ok()));
                }
            }
            let (mut of_plain, mut of_packed) = (version, version);
            for deltas in commits(&event, &mut of_plain) {
                plain.commit(deltas);
            }
            for deltas in commits(&event, &mut of_packed) {
                writer.commit(deltas);
                (0..steps).for_each(|_| {
                    packer.step();
                });
            }
            version = of_plain;
            builders.retain_mut(|builder| !builder.turn());
            cursors.push(reader.head().0);
            newest_are_plain(&reader, &eager);
            compare(&plain_reader, &reader, &cursors);
            prop_assert!(packer.alive().len() <= EAGER.dictionaries_max + 1);
        }
    }
}

fn listed(names: std::ops::Range<u8>, style: u8) -> (Writer, Reader, Packer) {
    let (mut writer, reader, _) = new_cache();
    let mut packer = writer.packer(EAGER, backlog(Backlog::BYTES_MAX));
    writer.commit(vec![Delta::PassBegin]);
    for name in names {
        writer.commit(vec![Delta::PassItem(object(name, 1 + u64::from(name), style))]);
        packer.step();
    }
    (writer, reader, packer)
}

fn packed(reader: &Reader) -> usize {
    reader.snapshot().after(None).filter(|object| object.dictionary().is_some()).count()
}

#[test]
fn the_first_list_is_packed_while_it_is_under_way() {
    let (mut writer, reader, mut packer) = listed(0..40, 0);
    // Only the last objects are still unpacked.
    assert!(!packer.step() && !packer.has_work());
    writer.commit(vec![Delta::PassEnd(100.into())]);
    assert_eq!((reader.snapshot().len(), packed(&reader)), (40, 40));
    let summary = reader.summary();
    assert!(reader.snapshot().held * 3 < summary.bytes, "{summary:?}");
    assert_eq!(reader.mark().commits, 1);
}

#[test]
fn a_list_of_objects_whose_versions_are_no_numbers_waits_for_no_dictionary() {
    let (mut writer, reader, _) = new_cache();
    let mut packer = writer.packer(EAGER, backlog(0));
    writer.commit(vec![Delta::PassBegin]);
    let mut waited = false;
    for name in 0..40 {
        let version = u64::from(name);
        writer.commit(vec![Delta::PassItem(object_at(name, version, &format!("x{name}"), 0))]);
        waited |= writer.full_backlog().is_some();
        packer.step();
        assert!(writer.full_backlog().is_none());
    }
    assert!(waited, "there was enough for a dictionary");
    writer.commit(vec![Delta::PassEnd(ResourceVersion::new("x40"))]);
    assert!(!packer.step() && !packer.has_work());
    assert_eq!((reader.snapshot().len(), packed(&reader), packer.dictionaries.len()), (40, 0, 0));
}

/// The objects of a first list, of which the first ones have one style and the others another one.
fn listed_in_two_styles(styles: [u8; 2], train_bytes_min: usize) -> (Reader, Packer, Weak<Dictionary>) {
    let (mut writer, reader, _) = new_cache();
    // Nothing else begins another dictionary.
    let packing = Packing { look_bytes: usize::MAX, train_bytes_min, dictionary_bytes: 8 << 10, ..EAGER };
    let mut packer = writer.packer(packing, backlog(Backlog::BYTES_MAX));
    writer.commit(vec![Delta::PassBegin]);
    for name in 0..100 {
        let style = styles[usize::from(name >= 8)];
        writer.commit(vec![Delta::PassItem(object(name, 1 + u64::from(name), style))]);
        while packer.step() {}
    }
    let first = packer.dictionaries[0].clone();
    writer.commit(vec![Delta::PassEnd(100.into())]);
    while packer.step() {}
    assert_eq!(packer.dictionaries.len(), 1);
    packer.settle();
    while packer.step() {}
    (reader, packer, first)
}

#[test]
fn a_dictionary_of_the_first_objects_gives_way_to_one_of_all() {
    let (reader, packer, first) = listed_in_two_styles([0, 1], 2000);
    assert_eq!(packed(&reader), 100);
    assert_eq!((packer.dictionaries.len(), first.strong_count()), (1, 0), "{packer:?}");
    let held = reader.snapshot().held;
    // What an object takes that is packed by a dictionary of its like.
    let (alike, ..) = listed_in_two_styles([1, 1], 2000);
    assert!(held < alike.snapshot().held * 5 / 4, "{held} {}", alike.snapshot().held);
}

#[test]
fn a_kind_of_few_objects_is_packed_after_its_list_and_again_when_it_has_grown() {
    let (mut writer, reader, _) = new_cache();
    let packing = Packing { train_bytes_min: 1 << 20, look_bytes: usize::MAX, ..EAGER };
    let mut packer = writer.packer(packing, backlog(Backlog::BYTES_MAX));
    packer.settle();
    writer.commit(vec![Delta::PassBegin]);
    writer.commit((0..8).map(|name| Delta::PassItem(object(name, 1, 0))).collect());
    // The list might become longer, and a dictionary of more objects better.
    assert!(!packer.step());
    writer.commit(vec![Delta::PassEnd(1.into())]);
    while packer.step() {}
    assert_eq!((packed(&reader), packer.dictionaries.len()), (8, 1));
    let first = packer.dictionaries[0].clone();
    for name in 8..60 {
        writer.commit(vec![Delta::Apply(object(name, u64::from(name), 1))]);
    }
    while packer.step() {}
    // The objects of the newest changes are not packed.
    assert_eq!((packed(&reader), packer.dictionaries.len(), first.strong_count()), (58, 1, 0));
}

#[test]
fn a_dictionary_stays_if_another_one_is_hardly_better() {
    let (reader, packer, first) = listed_in_two_styles([0, 0], 12_000);
    let is_first = |object: &Object| {
        object.dictionary().is_some_and(|dictionary| std::ptr::eq(Arc::as_ptr(dictionary), first.as_ptr()))
    };
    assert_eq!(packer.trained_early, None, "the dictionaries were compared");
    assert!(reader.snapshot().after(None).all(is_first));
}

#[test]
fn an_object_is_packed_once_it_is_not_among_the_newest_changes() {
    let (mut writer, reader, mut packer) = listed(0..40, 0);
    writer.commit(vec![Delta::PassEnd(100.into())]);
    let before = reader.mark();
    for version in 101..=110 {
        writer.commit(vec![Delta::Apply(object((version - 101) as u8, version, 0))]);
        while packer.step() {}
    }
    // The journal has four changes. The older two are packed there, too, so that nothing holds their JSON.
    assert_eq!(packed(&reader), 38);
    let forms: Vec<_> = journal(&reader).iter().map(|change| change.object.dictionary().is_some()).collect();
    assert_eq!(forms, [true, true, false, false]);
    assert_eq!(reader.mark().commits, before.commits + 10);
    assert_eq!(reader.mark().revision, Revision(10));
}

#[test]
fn a_small_cache_stays_as_it_is() {
    let (mut writer, reader, mut packer) = listed(0..2, 0);
    writer.commit(vec![Delta::PassEnd(100.into())]);
    assert!(!packer.step());
    // Changes of its objects do not make it worth packing.
    for version in 101..200 {
        writer.commit(vec![Delta::Apply(object((version % 2) as u8, version, 0))]);
        writer.commit((0..5).map(|at| Delta::Apply(object(5, version * 10 + at, 0))).collect());
        assert!(!packer.step());
    }
    assert_eq!(packed(&reader), 0);
    assert_eq!(packer.shared.read().cold.as_ref().map(|cold| cold.keys.len()), Some(0));
    // After it has grown, all of it is packed.
    writer.commit((10..40).map(|name| Delta::Apply(object(name, 10_000 + u64::from(name), 0))).collect());
    while packer.step() {}
    assert_eq!(packed(&reader), reader.snapshot().len() - 2);
}

#[test]
fn dictionaries_follow_the_objects_and_are_bounded() {
    let (mut writer, reader, mut packer) = listed(0..40, 0);
    writer.commit(vec![Delta::PassEnd(100.into())]);
    let mut most = 0;
    let mut version = 100;
    for round in 0..12u8 {
        for name in 0..40 {
            version += 1;
            writer.commit(vec![Delta::Apply(object(name, version, [0, 2, 1, 2][usize::from(round) % 4]))]);
            packer.step();
            most = most.max(packer.alive().len());
        }
    }
    while packer.step() {}
    assert!((2..=EAGER.dictionaries_max + 1).contains(&most), "{most} dictionaries");
    assert_eq!(reader.summary().objects, 40);
}

/// After damage to packed bytes, the next list begins a new history and replaces the damaged object.
#[test]
fn damaged_objects_are_fetched_again() {
    let (mut writer, reader, mut packer) = listed(0..40, 0);
    writer.commit(vec![Delta::PassEnd(100.into())]);
    let snapshot = reader.snapshot();
    let old = snapshot.get(&Key::new("", "o7")).unwrap().clone();
    let swap = Swap { key: old.key().clone(), old: old.clone(), new: old.damaged() };
    packer.shared.write().swap(vec![swap]);
    assert!(!packer.is_damaged());
    let before = damages();
    let held = reader.snapshot().get(old.key()).unwrap().clone();
    assert!(held.try_json().is_err() && packer.is_damaged() && !packer.is_damaged());
    assert!(damages() > before);
    assert!(!String::from_utf8_lossy(&held.json()).contains("status"));
    // The reflector's reaction to this doubt.
    writer.commit(vec![Delta::OtherHistory, Delta::PassBegin]);
    let items = (0..40).map(|name| Delta::PassItem(object(name, 1 + u64::from(name), 0)));
    writer.commit(items.chain([Delta::PassEnd(100.into())]).collect());
    while packer.step() {}
    assert_eq!(reader.mark().history, 1);
    let held = reader.snapshot().get(old.key()).unwrap().clone();
    assert_eq!(held.json(), old.json());
    // The dictionary may be what is damaged.
    let is_same = |dictionary| old.dictionary().is_some_and(|old| Arc::ptr_eq(old, dictionary));
    assert!(!held.dictionary().is_some_and(is_same));
}

/// An index that had to read a damaged object would lack it.
#[test]
fn an_index_that_meets_a_damaged_object_is_dropped() {
    let (mut writer, reader, mut packer) = listed(0..40, 0);
    writer.commit(vec![Delta::PassEnd(100.into())]);
    while packer.step() {}
    let old = reader.snapshot().get(&Key::new("", "o7")).unwrap().clone();
    assert!(old.dictionary().is_some());
    let swap = Swap { key: old.key().clone(), old: old.clone(), new: old.damaged() };
    packer.shared.write().swap(vec![swap]);
    let is_built = |path: IndexPath| {
        let mut builder = reader.build_index(&path, Instant::now()).unwrap();
        while !builder.turn() {}
        reader.use_index(&term(path, "p1")).is_some()
    };
    assert!(is_built(IndexPath::Label("app".into())), "labels are read without unpacking");
    assert!(!is_built(IndexPath::Field(FieldPath::new("status.phase"))));
    assert_eq!(reader.indexes().len(), 1);
}

/// The objects of a first list that are not packed yet are bounded; so is the wait where nothing packs them any more.
#[test]
fn a_first_list_waits_for_the_packer() {
    let (mut writer, reader, _) = new_cache();
    let items = |names: std::ops::Range<u8>| {
        names.map(|name| Delta::PassItem(object(name, 1 + u64::from(name), 0))).collect::<Vec<_>>()
    };
    // Another cache of the process has brought as much as may wait, and waits for more to train a dictionary from.
    let backlog = backlog(4000);
    let (mut other_writer, ..) = new_cache();
    let _other_packer = other_writer.packer(Packing { train_bytes_min: 1 << 20, ..EAGER }, backlog.clone());
    other_writer.commit(vec![Delta::PassBegin]);
    other_writer.commit(items(0..15));
    assert!(other_writer.full_backlog().is_none(), "it has nothing that is packed");
    let mut packer = writer.packer(EAGER, backlog.clone());
    writer.commit(vec![Delta::PassBegin]);
    writer.commit(items(0..2));
    assert!(writer.full_backlog().is_none());
    writer.commit(items(2..15));
    assert!(writer.full_backlog().is_some());
    let mut packed = Box::pin(backlog.packed().notified());
    packed.as_mut().enable();
    while packer.step() {}
    assert!(writer.full_backlog().is_none() && packed.now_or_never().is_some());
    writer.commit(items(15..30));
    assert!(writer.full_backlog().is_some());
    let mut packed = Box::pin(backlog.packed().notified());
    packed.as_mut().enable();
    drop(packer);
    assert!(writer.full_backlog().is_none() && packed.now_or_never().is_some(), "nobody packs any more");
    // After the first list nothing waits: what changes is in the journal.
    let mut packer = writer.packer(EAGER, backlog.clone());
    writer.commit(vec![Delta::PassEnd(100.into())]);
    assert!(writer.full_backlog().is_none());
    while packer.step() {}
    assert_eq!(reader.snapshot().len(), 30);
}

#[test]
fn damage_to_an_object_of_a_retired_dictionary_is_found() {
    let (mut writer, reader, mut packer) = listed(0..40, 0);
    writer.commit(vec![Delta::PassEnd(100.into())]);
    let first = Arc::downgrade(reader.snapshot().get(&Key::new("", "o7")).unwrap().dictionary().unwrap());
    // A second dictionary retires the first, whose objects are not packed anew yet.
    (packer.packing.dictionaries_max, packer.current) = (1, None);
    let changed = (20..40).map(|name| Delta::Apply(object(name, 100 + u64::from(name), 1)));
    writer.commit(changed.collect());
    assert!(packer.train());
    let old = reader.snapshot().get(&Key::new("", "o7")).unwrap().clone();
    assert!(packer.dictionaries.iter().all(|one| !one.ptr_eq(&first)));
    assert!(first.upgrade().is_some_and(|first| Arc::ptr_eq(old.dictionary().unwrap(), &first)));
    let swap = Swap { key: old.key().clone(), old: old.clone(), new: old.damaged() };
    packer.shared.write().swap(vec![swap]);
    let held = reader.snapshot().get(old.key()).unwrap().clone();
    assert!(held.try_json().is_err() && packer.is_damaged());
}
