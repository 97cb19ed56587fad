use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::cache::{self, Delta, Reader, Writer};
use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

/// One write to a cluster with few names. Its version is its place in the history.
#[derive(Clone, Debug)]
struct Write {
    name: usize,
    /// Whether the write deletes the object; otherwise it creates or changes it.
    delete: bool,
}

/// Uid and version of each existing object, by name. The uid is the version of the creation.
type State = BTreeMap<usize, (u64, u64)>;

fn key(name: usize) -> Key {
    // Namespaces around the slash, where the order of keys differs from that of pairs.
    Key::new(["a", "a-b", "b"][name % 3], &format!("n{name}"))
}

/// The state after each write; the first one is empty.
fn states(writes: &[Write]) -> Vec<State> {
    let mut states = vec![State::new()];
    for (at, write) in writes.iter().enumerate() {
        let (mut state, version) = (states[at].clone(), at as u64 + 1);
        if write.delete {
            state.remove(&write.name);
        } else {
            state.entry(write.name).or_insert((version, version)).1 = version;
        }
        states.push(state);
    }
    states
}

/// A cache that receives all writes except the swallowed ones.
struct Follower {
    decoder: Decoder,
    writer: Writer,
    reader: Reader,
    /// The number of writes that it has received.
    reached: usize,
}

impl Follower {
    fn new(begin: usize, states: &[State]) -> Self {
        let pods = ResourceParts { version: "v1".into(), plural: "pods".into(), ..Default::default() };
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let limits =
            cache::Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 1000 };
        let (writer, reader) = cache::cache(limits, Instant::now());
        let decoder = Decoder::new(Resource::new(pods), options);
        let mut this = Self { decoder, writer, reader, reached: begin };
        let mut deltas = vec![Delta::PassBegin];
        for (name, (uid, version)) in &states[begin] {
            deltas.push(Delta::PassItem(this.object(*name, *uid, *version)));
        }
        deltas.push(Delta::PassEnd((begin as u64).into()));
        this.writer.commit(deltas);
        this
    }

    fn object(&mut self, name: usize, uid: u64, version: u64) -> Object {
        let key = key(name);
        let (namespace, name) = (key.namespace(), key.name());
        let json = serde_json::json!({"metadata": {"namespace": namespace, "name": name,
            "uid": uid.to_string(), "resourceVersion": version.to_string()}});
        self.decoder.object(&json.to_string()).unwrap()
    }

    fn advance(&mut self, to: usize, writes: &[Write], states: &[State], swallowed: &BTreeSet<usize>) {
        for at in self.reached..to.max(self.reached) {
            let (name, version) = (writes[at].name, at as u64 + 1);
            if swallowed.contains(&at) {
                continue;
            }
            let delta = match (states[at].get(&name), states[at + 1].get(&name)) {
                (_, Some((uid, version))) => Delta::Apply(self.object(name, *uid, *version)),
                (Some((uid, _)), None) => Delta::Delete(self.object(name, *uid, version)),
                (None, None) => continue,
            };
            self.writer.commit(vec![delta]);
        }
        self.reached = to.max(self.reached);
        // A bookmark says that nothing is missing.
        self.writer.commit(vec![Delta::Bookmark((self.reached as u64).into())]);
    }
}

/// A series of writes, and how many of them cache and list have at each moment.
#[derive(Clone, Debug)]
struct History {
    writes: Vec<Write>,
    /// Number of writes before the comparison begins, before the list, and before the end.
    begin: usize,
    listed: usize,
    settled: usize,
    /// How far the cache is at each page, as a fraction.
    progress: Vec<f64>,
    page_len: usize,
    swallowed: BTreeSet<usize>,
}

fn history() -> impl Strategy<Value = History> {
    let write = (0..6_usize, prop::bool::weighted(0.35)).prop_map(|(name, delete)| Write { name, delete });
    let places = [0.0..1.0_f64, 0.0..1.0_f64, 0.0..1.0_f64];
    let progress = prop::collection::vec(0.0..1.0_f64, 6);
    let swallowed = prop::collection::btree_set(0..40_usize, 0..3);
    (prop::collection::vec(write, 1..40), places, progress, 1..4_usize, swallowed).prop_map(
        |(writes, mut places, progress, page_len, swallowed)| {
            places.sort_by(f64::total_cmp);
            let [begin, listed, settled] = places.map(|place| (place * (writes.len() + 1) as f64) as usize);
            History { writes, begin, listed, settled, progress, page_len, swallowed }
        },
    )
}

/// The differences that a comparison finds.
fn compare(history: &History, swallowed: &BTreeSet<usize>) -> Vec<Difference> {
    let History { writes, begin, listed, settled, progress, page_len, .. } = history;
    let states = states(writes);
    // Swallowed before the comparison, so that the difference exists from the beginning.
    let mut follower = Follower::new(0, &states);
    follower.advance(*begin, writes, &states, swallowed);
    let cursor = follower.reader.snapshot().cursor;
    let mut names: Vec<Identity> = states[*listed]
        .iter()
        .map(|(name, (uid, version))| Identity {
            key: key(*name),
            uid: uid.to_string().into(),
            version: Some((*version).into()),
        })
        .collect();
    names.sort_by(|a, b| a.key.cmp(&b.key));
    let pages: Vec<Vec<Identity>> = names.chunks(*page_len).map(<[Identity]>::to_vec).collect();
    let pages = if pages.is_empty() { vec![Vec::new()] } else { pages };
    let mut comparison = Comparison::new((*listed as u64).into());
    for (index, page) in pages.iter().enumerate() {
        let to = begin + (progress[index % progress.len()] * (settled - begin) as f64) as usize;
        follower.advance(to, writes, &states, swallowed);
        let mut page = page.clone();
        page.reverse();
        comparison.page(page, index + 1 == pages.len(), &follower.reader.snapshot()).unwrap();
    }
    assert_eq!(comparison.listed(), names.len());
    follower.advance(*settled, writes, &states, swallowed);
    let snapshot = follower.reader.snapshot();
    let since = follower.reader.catch_up(cursor, usize::MAX).unwrap();
    comparison.settle(&snapshot, &since.entries)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// In both cases: the cache lags behind the list, or is ahead of it.
    #[test]
    fn a_cache_without_lost_events_shows_no_difference(history in history()) {
        prop_assert_eq!(compare(&history, &BTreeSet::new()), []);
    }

    /// A swallowed write is found, unless a later write of the same object was received.
    #[test]
    fn exactly_the_swallowed_writes_are_found(history in history()) {
        let (states, swallowed) = (states(&history.writes), &history.swallowed);
        let found: BTreeSet<_> = compare(&history, swallowed).into_iter().map(|one| one.key).collect();
        let mut touched = BTreeSet::new();
        for &at in swallowed.iter().filter(|at| **at < history.settled && **at < history.writes.len()) {
            let name = history.writes[at].name;
            touched.insert(key(name));
            let told = (at + 1..history.settled)
                .any(|later| history.writes[later].name == name && !swallowed.contains(&later));
            let changed = states[at].get(&name) != states[at + 1].get(&name);
            // Of several swallowed writes in a row, only the combined effect can be seen.
            let first = (0..at).rev().find(|before| history.writes[*before].name == name);
            let alone = first.is_none_or(|before| !swallowed.contains(&before));
            // A write that becomes due only after its page was compared is found by the next comparison.
            if at < history.begin && !told && changed && alone {
                let end = states[history.listed].get(&name);
                if end != states[at].get(&name) {
                    prop_assert!(found.contains(&key(name)), "{} at {}: {:?}", key(name), at, found);
                }
            }
        }
        prop_assert!(found.is_subset(&touched), "{found:?} of {touched:?}");
    }
}

#[test]
fn differences_are_reported_by_kind() {
    let writes: Vec<Write> = [(0, false), (1, false), (2, false), (0, false), (1, true), (3, false)]
        .map(|(name, delete)| Write { name, delete })
        .into();
    let history = History {
        writes,
        begin: 3,
        listed: 6,
        settled: 6,
        progress: vec![1.0],
        page_len: 2,
        swallowed: BTreeSet::new(),
    };
    let found = compare(&history, &BTreeSet::from([3, 4, 5]));
    let found: Vec<_> = found.iter().map(|one| (one.key.as_str(), one.kind().as_str())).collect();
    assert_eq!(found, [("a-b/n1", "extra"), ("a/n0", "stale"), ("a/n3", "missing")]);
}

#[test]
fn pages_out_of_order_are_not_compared() {
    let states = states(&[]);
    let follower = Follower::new(0, &states);
    let mut comparison = Comparison::new(5.into());
    let one = |name| vec![Identity { key: key(name), uid: "u".into(), version: Some(1.into()) }];
    comparison.page(one(2), false, &follower.reader.snapshot()).unwrap();
    assert_eq!(comparison.page(one(0), true, &follower.reader.snapshot()), Err(Unordered));
}
