//! Tests of the work queue: single rules, and histories compared with a simpler model.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::outcome::{Advanced, Full};
use super::ready::LOW_SHARE;
use super::*;
use crate::k8s::Key;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(60);

fn rates() -> Rates {
    Rates {
        keys_max: 100,
        leases_max: 100,
        attempts_max: None,
        retry_base: Duration::from_millis(5),
        retry_max: Duration::from_secs(1000),
    }
}

/// A queue with its clock.
struct Bench {
    queue: WorkQueue,
    now: Instant,
}

impl Bench {
    fn new(rates: Rates) -> Self {
        let now = Instant::now();
        Self { queue: WorkQueue::new("p-1".to_owned(), rates, now), now }
    }

    fn add(&mut self, namespace: &str, name: &str) -> Added {
        self.queue.add((0, &Key::new(namespace, name)), "", Priority::Normal, self.now).unwrap()
    }

    fn add_low(&mut self, namespace: &str, name: &str) {
        self.queue.add((0, &Key::new(namespace, name)), "", Priority::Low, self.now).unwrap();
    }

    fn add_uid(&mut self, name: &str, uid: &str) -> Added {
        self.queue.add((0, &Key::new("a", name)), uid, Priority::Normal, self.now).unwrap()
    }

    fn lease(&mut self) -> Option<Leased> {
        self.queue.advance(self.now);
        self.queue.lease(LEASE, self.now).unwrap()
    }

    fn take(&mut self) -> Leased {
        self.lease().expect("a key is ready")
    }

    /// Leases all ready keys and finishes each at once; returns their names in order.
    fn drain(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(leased) = self.lease() {
            names.push(leased.key.as_str().to_owned());
            self.queue.done(&leased.token, None, self.now).unwrap();
        }
        names
    }

    fn retry(&mut self, leased: &Leased) -> Retried {
        self.queue.retry(&leased.token, "it is broken", self.now).unwrap().0
    }

    fn pass(&mut self, span: Duration) -> Advanced {
        self.now += span;
        self.queue.advance(self.now)
    }
}

#[test]
fn a_key_is_queued_once_and_again_if_added_while_leased() {
    let mut bench = Bench::new(rates());
    assert_eq!(bench.add("a", "x"), Added::Queued);
    assert_eq!(bench.add("a", "x"), Added::Already);
    let first = bench.take();
    assert!(bench.lease().is_none());
    assert_eq!(bench.add("a", "x"), Added::Afterwards);
    assert_eq!(bench.add("a", "x"), Added::AlreadyAfterwards);
    assert!(bench.lease().is_none(), "a second lease of the same key");
    // The event wins over the delay, as the worker has not seen it.
    bench.queue.done(&first.token, Some(LEASE), bench.now).unwrap();
    let second = bench.take();
    assert_ne!(second.token, first.token);
    assert_eq!(bench.queue.done(&first.token, None, bench.now), Err(NotHeld::Over));
    bench.queue.done(&second.token, None, bench.now).unwrap();
    assert_eq!(bench.queue.summary(bench.now), Summary::default());
}

#[test]
fn an_expired_lease_returns_the_key_and_invalidates_its_token() {
    let mut bench = Bench::new(rates());
    bench.add("a", "x");
    let late = bench.take();
    bench.pass(LEASE - SECOND);
    bench.queue.extend(&late.token, LEASE, bench.now).unwrap();
    assert_eq!(bench.pass(LEASE - SECOND), Advanced::default());
    // The token is invalid even if the clock was not advanced yet.
    bench.now += SECOND;
    assert_eq!(bench.queue.extend(&late.token, LEASE, bench.now), Err(NotHeld::Over));
    assert_eq!(bench.pass(Duration::ZERO), Advanced { expired: 1, ..Advanced::default() });
    let next = bench.take();
    assert_eq!((&next.key, next.attempt), (&late.key, 2));
    for answer in [
        bench.queue.done(&late.token, None, bench.now),
        bench.queue.retry(&late.token, "", bench.now).map(|(_, worked)| worked),
        bench.queue.release(&late.token, bench.now),
    ] {
        assert_eq!(answer, Err(NotHeld::Over));
    }
    let foreign = LeaseToken { issuer: "p-2".to_owned(), ..next.token.clone() };
    assert_eq!(bench.queue.done(&foreign, None, bench.now), Err(NotHeld::Foreign));
    bench.queue.done(&next.token, None, bench.now).unwrap();
}

#[test]
fn retries_back_off_as_in_client_go_until_max_attempts() {
    let mut bench = Bench::new(Rates { attempts_max: Some(20), ..rates() });
    bench.add_uid("x", "u1");
    for attempt in 1..20 {
        let leased = bench.take();
        assert_eq!(leased.attempt, attempt);
        let Retried::After(delay) = bench.retry(&leased) else { panic!("set aside too early") };
        assert_eq!(delay, Duration::from_millis(5 << (attempt - 1)).min(Duration::from_secs(1000)));
        assert!(bench.lease().is_none());
        bench.pass(delay);
    }
    let leased = bench.take();
    assert_eq!(bench.retry(&leased), Retried::Failed);
    bench.pass(SECOND);
    assert!(bench.lease().is_none());
    let failed = bench.queue.failed(10, bench.now);
    assert_eq!((failed.len(), failed[0].attempts, &*failed[0].error), (1, 20, "it is broken"));
    assert_eq!(failed[0].since, SECOND);
    // Requeued by hand, once.
    assert!(bench.queue.put_back(0, &failed[0].key, bench.now));
    assert!(!bench.queue.put_back(0, &failed[0].key, bench.now));
    assert_eq!(bench.take().attempt, 1);
}

#[test]
fn an_event_requeues_a_failed_key_and_a_new_uid_resets_its_attempts() {
    let mut bench = Bench::new(Rates { attempts_max: Some(2), ..rates() });
    bench.add_uid("x", "u1");
    let leased = bench.take();
    bench.retry(&leased);
    // An event makes the key ready at once, and its attempts count on.
    assert_eq!(bench.add_uid("x", "u1"), Added::Queued);
    let leased = bench.take();
    assert_eq!(leased.attempt, 2);
    assert_eq!(bench.retry(&leased), Retried::Failed);
    assert_eq!(bench.add_uid("x", "u1"), Added::Queued);
    let leased = bench.take();
    assert_eq!(leased.attempt, 1);
    bench.retry(&leased);
    bench.add_uid("x", "u2");
    let leased = bench.take();
    assert_eq!(leased.attempt, 1);
    // The worker fails on a predecessor of the object, which says nothing about the new one.
    bench.add_uid("x", "u3");
    assert_eq!(bench.retry(&leased), Retried::After(Duration::ZERO));
    assert_eq!(bench.take().attempt, 1);
}

#[test]
fn a_key_whose_leases_keep_expiring_is_set_aside() {
    let mut bench = Bench::new(Rates { attempts_max: Some(2), ..rates() });
    bench.add("a", "poison");
    bench.add("a", "other");
    assert_eq!(bench.take().key.name(), "poison");
    bench.pass(LEASE);
    assert_eq!(
        bench.take().key.name(),
        "other",
        "the expired key is first again and would hold up all others"
    );
    assert_eq!(bench.take().key.name(), "poison");
    assert_eq!(bench.pass(LEASE).failed, 1);
    let failed = bench.queue.failed(10, bench.now);
    assert_eq!(failed[0].error, "the lease ran out after 60.0 s without an answer");
    assert_eq!(bench.queue.put_back_all(10, bench.now), 1);
    assert_eq!(bench.queue.summary(bench.now).failed, 0);
}

#[test]
fn a_released_key_keeps_its_place_and_its_count() {
    let mut bench = Bench::new(rates());
    for name in ["x", "y"] {
        bench.add("a", name);
    }
    let leased = bench.take();
    bench.queue.release(&leased.token, bench.now).unwrap();
    let again = bench.take();
    assert_eq!((again.key.name(), again.attempt), ("x", 1));
    assert_eq!(bench.queue.release(&leased.token, bench.now), Err(NotHeld::Over));
}

#[test]
fn done_with_a_delay_requeues_the_key_then_or_at_the_next_event() {
    let mut bench = Bench::new(rates());
    bench.add("a", "x");
    let leased = bench.take();
    bench.queue.done(&leased.token, Some(SECOND), bench.now).unwrap();
    assert_eq!(bench.queue.next_at(), Some(bench.now + SECOND));
    bench.pass(SECOND / 2);
    assert!(bench.lease().is_none());
    bench.add("a", "x");
    assert_eq!(bench.drain(), ["a/x"]);
    assert_eq!(bench.pass(SECOND), Advanced::default(), "queued twice");
}

#[test]
fn events_precede_the_first_state_and_do_not_starve_it() {
    let mut bench = Bench::new(rates());
    for number in 0..3 {
        bench.add_low("a", &format!("low-{number}"));
    }
    for number in 0..30 {
        bench.add("a", &format!("event-{number}"));
    }
    // An event makes a key of the first state urgent.
    bench.add("a", "low-1");
    let order = bench.drain();
    let place = |name: &str| order.iter().position(|other| other == &format!("a/{name}")).unwrap();
    assert_eq!(order.len(), 33);
    assert_eq!(place("low-0") as u32, LOW_SHARE - 1);
    assert_eq!(place("low-2") as u32, 2 * LOW_SHARE - 1);
    assert_eq!(place("low-1"), 32);
}

#[test]
fn a_flooding_namespace_takes_turns_with_the_others() {
    let mut bench = Bench::new(rates());
    for number in 0..20 {
        bench.add("flood", &format!("{number:02}"));
    }
    for number in 0..3 {
        bench.add("quiet", &format!("{number}"));
        bench.add("still", &format!("{number}"));
    }
    let order = bench.drain();
    let last = order.iter().rposition(|key| !key.starts_with("flood")).unwrap();
    assert_eq!(last, 8, "{order:?}");
    // Within a namespace, the oldest key comes first.
    let flood: Vec<_> = order.iter().filter(|key| key.starts_with("flood")).collect();
    assert!(flood.is_sorted(), "{flood:?}");
    // A namespace gets no extra turns for those that it did not use.
    for number in 0..4 {
        bench.add("flood", &format!("{number}"));
    }
    bench.add("new", "0");
    assert_eq!(bench.drain()[1], "new/0");
}

#[test]
fn nothing_is_dropped_at_a_limit() {
    let mut bench = Bench::new(Rates { keys_max: 2, leases_max: 1, ..rates() });
    bench.add("a", "x");
    bench.add("a", "y");
    assert!(!bench.queue.has_room());
    let key = Key::new("a", "z");
    assert_eq!(bench.queue.add((0, &key), "", Priority::Normal, bench.now), Err(Full));
    assert_eq!(bench.add("a", "x"), Added::Already, "adding a known key was refused");
    let leased = bench.take();
    assert_eq!(bench.queue.lease(LEASE, bench.now), Err(Full));
    bench.queue.done(&leased.token, None, bench.now).unwrap();
    assert!(bench.queue.add((0, &key), "", Priority::Normal, bench.now).is_ok());
    // The same key of another resource is another item.
    let leased = bench.take();
    bench.queue.done(&leased.token, None, bench.now).unwrap();
    assert_eq!(bench.queue.add((1, &key), "", Priority::Normal, bench.now), Ok(Added::Queued));
}

#[test]
fn the_figures_of_a_queue() {
    let mut bench = Bench::new(rates());
    for name in ["w", "x", "y"] {
        bench.add("a", name);
        bench.pass(SECOND);
    }
    bench.add_low("a", "z");
    let first = bench.take();
    assert_eq!(first.waited, 3 * SECOND);
    bench.pass(SECOND);
    bench.take();
    bench.pass(SECOND);
    let summary = bench.queue.summary(bench.now);
    let expected = Summary {
        depth: 2,
        low: 1,
        in_flight: 2,
        oldest: Some(3 * SECOND),
        unfinished: 3 * SECOND,
        longest: 2 * SECOND,
        ..Summary::default()
    };
    assert_eq!(summary, expected);
    let leases = bench.queue.in_flight(10, bench.now);
    assert_eq!(leases.iter().map(|lease| lease.since).collect::<Vec<_>>(), [2 * SECOND, SECOND]);
    assert_eq!(leases[0].left, LEASE - 2 * SECOND);
    assert_eq!(bench.queue.done(&first.token, Some(SECOND), bench.now), Ok(2 * SECOND));
    assert_eq!(bench.queue.summary(bench.now).delayed, 1);
}

#[test]
fn many_keys_due_at_once_are_handled_in_portions() {
    let mut bench = Bench::new(Rates { keys_max: 3000, leases_max: 3000, ..rates() });
    for number in 0..2000 {
        bench.add("a", &number.to_string());
        let leased = bench.take();
        bench.queue.done(&leased.token, Some(SECOND), bench.now).unwrap();
    }
    let advanced = bench.pass(SECOND);
    assert!(advanced.more && advanced.due < 2000, "{advanced:?}");
    assert_eq!(advanced.due + bench.pass(Duration::ZERO).due, 2000);
}

// === the model ===

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    Add { key: usize, uid: usize, low: bool },
    Lease { seconds: u64 },
    Extend { token: usize, seconds: u64 },
    Done { token: usize, after: Option<u64> },
    Retry { token: usize },
    Release { token: usize },
    PutBack { key: usize },
    Pass { millis: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let token = || 0_usize..12;
    let step = prop_oneof![
        6 => (0_usize..8, 0_usize..3, any::<bool>()).prop_map(|(key, uid, low)| Step::Add { key, uid, low }),
        6 => (1_u64..30).prop_map(|seconds| Step::Lease { seconds }),
        1 => (token(), 1_u64..30).prop_map(|(token, seconds)| Step::Extend { token, seconds }),
        4 => (token(), proptest::option::of(0_u64..20)).prop_map(|(token, after)| Step::Done { token, after }),
        3 => token().prop_map(|token| Step::Retry { token }),
        1 => token().prop_map(|token| Step::Release { token }),
        1 => (0_usize..8).prop_map(|key| Step::PutBack { key }),
        3 => (0_u64..12_000).prop_map(|millis| Step::Pass { millis }),
    ];
    proptest::collection::vec(step, 0..120)
}

/// The model's state of a key; keys without one are not in the queue.
#[derive(Clone, Debug, Default)]
struct Known {
    uid: usize,
    attempts: u32,
    low: bool,
    ready: bool,
    due: Option<Instant>,
    failed: bool,
    /// The number of the token, and the end of its lease.
    lease: Option<(usize, Instant)>,
    again: Option<bool>,
    counts: bool,
}

/// The same rules, without order, bounds and efficiency.
struct Model {
    keys: BTreeMap<usize, Known>,
    tokens: Vec<(usize, Leased)>,
    attempts_max: u32,
    now: Instant,
}

impl Model {
    fn add(&mut self, key: usize, uid: usize, low: bool) {
        let fresh = !self.keys.contains_key(&key);
        let known = self.keys.entry(key).or_default();
        let other = !fresh && known.uid != uid && uid != 0 && known.uid != 0;
        if other {
            known.attempts = 0;
        }
        if uid != 0 {
            known.uid = uid;
        }
        if known.lease.is_some() {
            known.again = Some(known.again.unwrap_or(true) && low);
            known.counts &= !other;
        } else if known.failed || fresh {
            (known.attempts, known.failed, known.ready, known.low) = (0, false, true, low);
        } else {
            known.low &= low;
            (known.due, known.ready) = (None, true);
        }
    }

    /// The key of a token whose lease is held.
    fn held(&self, token: usize) -> Option<usize> {
        let (key, _) = self.tokens.get(token)?;
        let lease = self.keys.get(key)?.lease?;
        (lease.0 == token && lease.1 > self.now).then_some(*key)
    }

    fn fail(&mut self, key: usize, backs_off: bool) -> Retried {
        let max = self.attempts_max;
        let now = self.now;
        let known = self.keys.get_mut(&key).unwrap();
        known.lease = None;
        if known.counts {
            known.attempts += 1;
        }
        let used_up = known.attempts >= max;
        if let Some(low) = known.again.take() {
            if used_up {
                known.attempts = 0;
            }
            (known.ready, known.low) = (true, low);
            return Retried::After(Duration::ZERO);
        }
        if used_up {
            known.failed = true;
            return Retried::Failed;
        }
        if !backs_off {
            known.ready = true;
            return Retried::After(Duration::ZERO);
        }
        let delay = Duration::from_millis(5) * 2_u32.pow(known.attempts.max(1) - 1);
        known.due = Some(now + delay);
        Retried::After(delay)
    }

    fn advance(&mut self) {
        let now = self.now;
        for known in self.keys.values_mut() {
            if known.due.is_some_and(|due| due <= now) {
                (known.due, known.ready) = (None, true);
            }
        }
        let over = |known: &Known| known.lease.is_some_and(|(_, until)| until <= now);
        let over: Vec<_> = self.keys.iter().filter(|(_, known)| over(known)).map(|(key, _)| *key).collect();
        for key in over {
            self.fail(key, false);
        }
    }

    fn ready(&self) -> BTreeSet<usize> {
        self.keys.iter().filter(|(_, known)| known.ready).map(|(key, _)| *key).collect()
    }
}

fn name_of(key: usize) -> Key {
    Key::new(["a", "b", ""][key % 3], &format!("k{key}"))
}

/// A queue and its model.
struct Pair {
    bench: Bench,
    model: Model,
    keys: HashMap<Key, usize>,
    /// Leases of events since the last one of a first state.
    in_a_row: u32,
}

const UIDS: [&str; 3] = ["", "u1", "u2"];

impl Pair {
    fn new() -> Self {
        let attempts_max = 3;
        let rates = Rates { attempts_max: Some(attempts_max), keys_max: 8, leases_max: 8, ..rates() };
        let bench = Bench::new(rates);
        let model = Model { keys: BTreeMap::new(), tokens: Vec::new(), attempts_max, now: bench.now };
        Self { bench, model, keys: (0..8).map(|key| (name_of(key), key)).collect(), in_a_row: 0 }
    }

    fn advance(&mut self) {
        self.bench.queue.advance(self.bench.now);
        self.model.advance();
    }

    fn step(&mut self, step: &Step) {
        let now = self.bench.now;
        match *step {
            Step::Add { key, uid, low } => {
                let priority = if low { Priority::Low } else { Priority::Normal };
                self.bench.queue.add((0, &name_of(key)), UIDS[uid], priority, now).unwrap();
                self.model.add(key, uid, low);
            }
            Step::Lease { seconds } => self.lease(Duration::from_secs(seconds)),
            Step::PutBack { key } => {
                let known = self.model.keys.get_mut(&key).filter(|known| known.failed);
                assert_eq!(self.bench.queue.put_back(0, &name_of(key), now), known.is_some());
                if let Some(known) = known {
                    (known.failed, known.ready, known.low, known.attempts) = (false, true, false, 0);
                }
            }
            Step::Pass { millis } => {
                self.bench.now += Duration::from_millis(millis);
                self.model.now = self.bench.now;
                self.advance();
            }
            Step::Extend { token, .. }
            | Step::Done { token, .. }
            | Step::Retry { token }
            | Step::Release { token } => self.answer(step, token),
        }
    }

    fn lease(&mut self, length: Duration) {
        let now = self.bench.now;
        let ready = self.model.ready();
        let leased = self.bench.queue.lease(length, now).unwrap();
        assert_eq!(leased.is_some(), !ready.is_empty(), "a key is leased if one is ready");
        let Some(leased) = leased else { return };
        let key = self.keys[&leased.key];
        assert!(ready.contains(&key), "{key} was not ready");
        let lows = ready.iter().filter(|key| self.model.keys[key].low).count();
        let low = self.model.keys[&key].low;
        if low && lows < ready.len() {
            assert!(self.in_a_row + 1 >= LOW_SHARE, "an event waits behind a first state");
        }
        assert!(low || self.in_a_row + 1 < LOW_SHARE || lows == 0, "a first state starves");
        self.in_a_row = if low || lows == 0 { 0 } else { self.in_a_row + 1 };
        let known = self.model.keys.get_mut(&key).unwrap();
        assert_eq!(leased.attempt, known.attempts + 1);
        let token = self.model.tokens.len();
        (known.ready, known.counts, known.again) = (false, true, None);
        known.lease = Some((token, now + length));
        self.model.tokens.push((key, leased));
    }

    /// Answers with one of the last tokens, held or not.
    fn answer(&mut self, step: &Step, token: usize) {
        let Some(token) = self.model.tokens.len().checked_sub(1 + token) else { return };
        let text = self.model.tokens[token].1.token.clone();
        let held = self.model.held(token);
        let (queue, now) = (&mut self.bench.queue, self.bench.now);
        let known = held.and_then(|key| self.model.keys.get_mut(&key));
        match *step {
            Step::Extend { seconds, .. } => {
                let length = Duration::from_secs(seconds);
                assert_eq!(queue.extend(&text, length, now).is_ok(), held.is_some());
                if let Some(known) = known {
                    known.lease = Some((token, now + length));
                }
            }
            Step::Done { after, .. } => {
                let after = after.map(Duration::from_secs);
                assert_eq!(queue.done(&text, after, now).is_ok(), held.is_some());
                let Some(known) = known else { return };
                (known.lease, known.attempts) = (None, 0);
                match (known.again.take(), after) {
                    (Some(low), _) => (known.ready, known.low) = (true, low),
                    (None, Some(after)) => (known.due, known.low) = (Some(now + after), false),
                    (None, None) => drop(held.map(|key| self.model.keys.remove(&key))),
                }
            }
            Step::Retry { .. } => {
                let retried = queue.retry(&text, "e", now).ok().map(|(retried, _)| retried);
                assert_eq!(retried, held.map(|key| self.model.fail(key, true)));
            }
            Step::Release { .. }
            | Step::Add { .. }
            | Step::Lease { .. }
            | Step::PutBack { .. }
            | Step::Pass { .. } => {
                assert_eq!(queue.release(&text, now).is_ok(), held.is_some());
                let Some(known) = known else { return };
                (known.lease, known.ready) = (None, true);
                known.low &= known.again.take().unwrap_or(true);
            }
        }
    }

    fn compare(&self, step: &Step) {
        let summary = self.bench.queue.summary(self.bench.now);
        let count = |is: fn(&Known) -> bool| self.model.keys.values().filter(|known| is(known)).count();
        assert_eq!(summary.depth, self.model.ready().len(), "after {step:?}");
        assert_eq!(summary.low, count(|known| known.ready && known.low), "after {step:?}");
        assert_eq!(summary.delayed, count(|known| known.due.is_some()), "after {step:?}");
        assert_eq!(summary.in_flight, count(|known| known.lease.is_some()), "after {step:?}");
        assert_eq!(summary.failed, count(|known| known.failed), "after {step:?}");
        assert_eq!(summary.oldest.is_some(), summary.depth > 0);
    }
}

fn play(history: &[Step]) {
    let mut pair = Pair::new();
    for step in history {
        pair.advance();
        pair.step(step);
        pair.compare(step);
    }
    let Pair { mut bench, mut model, keys, .. } = pair;
    settle(&mut bench, &mut model, &keys);
}

/// Leases every key once all leases are over, and compares with the model.
fn settle(bench: &mut Bench, model: &mut Model, keys: &HashMap<Key, usize>) {
    bench.now += Duration::from_secs(3600);
    model.now = bench.now;
    model.advance();
    bench.queue.advance(bench.now);
    bench.queue.put_back_all(usize::MAX, bench.now);
    let mut left: BTreeSet<usize> = model.keys.keys().copied().collect();
    while let Some(leased) = bench.lease() {
        assert!(left.remove(&keys[&leased.key]), "{} was leased twice", leased.key);
        bench.queue.done(&leased.token, None, bench.now).unwrap();
    }
    assert!(left.is_empty(), "lost: {left:?}");
    assert_eq!(bench.queue.summary(bench.now), Summary::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn a_queue_equals_its_model(history in steps()) {
        play(&history);
    }

    #[test]
    fn no_key_starves_under_a_flood(
        namespaces in 1_usize..6, mine in 1_usize..10, is_low in any::<bool>(), workers in 1_usize..4,
    ) {
        let mut bench = Bench::new(Rates { keys_max: 10_000, ..rates() });
        for number in 0..100 {
            bench.add("flood-0", &format!("old-{number}"));
        }
        for number in 0..mine {
            let (namespace, name) = ("mine", format!("{number}"));
            if is_low { bench.add_low(namespace, &name) } else { let _ = bench.add(namespace, &name); };
        }
        let mut left = mine;
        // Each round adds more keys than are leased.
        let rounds = mine * (LOW_SHARE as usize).max(namespaces + 1) + 1;
        for round in 0..rounds {
            for number in 0..2 * workers {
                bench.add(&format!("flood-{}", number % namespaces), &format!("{round}-{number}"));
            }
            for _ in 0..workers {
                let leased = bench.take();
                left -= usize::from(leased.key.namespace() == "mine");
                bench.queue.done(&leased.token, None, bench.now).unwrap();
            }
        }
        prop_assert_eq!(left, 0);
    }
}
