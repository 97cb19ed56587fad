//! Generations: states of caches that readers hold while they send them, with a bound on time and number.
//!
//! A held state keeps the objects alive that have changed in the cache since. A slow reader would hold one for hours, so
//! the time for which one is held, and the bytes that all of them keep, are bounded. States of one moment keep nothing more than one of
//! them, so that their number does not matter.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::{Candidates, InformerId};

/// Time for which a subscription of `/v1` may hold its first state. Then it continues in the current one. Tombstones
/// remember more than this at any rate of changes that an API server can make.
const MOVING_HELD_MAX: Duration = Duration::from_secs(5);

/// Time for which a list, or a subscription that must begin with a single state, may hold it. Then it ends. A client that
/// reads 10 MB a second reads 3 GB in this time.
const EXACT_HELD_MAX: Duration = Duration::from_secs(300);

/// Bytes of replaced objects that lists and such subscriptions keep in memory for an informer, or as many as its state has, if these are
/// more.
const EXACT_BYTES: u64 = 64 << 20;

/// Whether a reader can continue without the state with which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It can continue in the current state.
    Movable,
    /// All it sends has to be of one version.
    Exact,
}

/// All states that are held, and answers that were made of them.
#[derive(Debug, Default)]
pub struct Generations {
    movable: Mutex<VecDeque<Held>>,
    exact: Mutex<VecDeque<Held>>,
    answers: Mutex<VecDeque<(Instant, Weak<dyn LetGo>)>>,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    informer: InformerId,
    /// The bytes that had been replaced in its informer's cache until then. All states of the informer that are held keep at most what was
    /// replaced since the oldest of them.
    replaced: u64,
    slot: Weak<Slot<Candidates>>,
}

#[derive(Debug)]
struct Slot<T>(Mutex<Option<T>>);

/// A state, for as long as it may be held.
#[derive(Clone, Debug)]
pub struct HeldState(Arc<Slot<Candidates>>);

/// What is left of an answer that was made before it is sent, for as long as it may be held: as long as the state of a list.
#[derive(Debug)]
pub struct HeldAnswer<T>(Arc<Slot<T>>);

/// Gives up what is held.
trait LetGo: std::fmt::Debug + Send + Sync {
    fn let_go(&self);
}

impl Generations {
    /// Holds the current state of an informer from `now` on.
    pub fn hold(&self, informer: InformerId, state: Candidates, holding: Holding, now: Instant) -> HeldState {
        let (replaced, bytes_max) = (state.snapshot.replaced, EXACT_BYTES.max(state.snapshot.held as u64));
        let slot = Arc::new(Slot(Mutex::new(Some(state))));
        let (queue, _) = self.queue(holding);
        let mut over = Vec::new();
        let mut held = lock(queue);
        held.push_back(Held { since: now, informer, replaced, slot: Arc::downgrade(&slot) });
        if holding == Holding::Exact {
            held.retain(|one| {
                let keeps_too_much =
                    one.informer == informer && replaced.saturating_sub(one.replaced) > bytes_max;
                if keeps_too_much {
                    over.push(one.slot.clone());
                }
                !keeps_too_much && one.slot.strong_count() > 0
            });
        }
        drop(held);
        let_go(&over);
        HeldState(slot)
    }

    /// Holds an answer from `now` on. A client that takes nothing of it, such as one of HTTP/2 with a closed window, would keep it for
    /// as long as it is connected.
    pub fn hold_answer<T: std::fmt::Debug + Send + 'static>(&self, answer: T, now: Instant) -> HeldAnswer<T> {
        let slot = Arc::new(Slot(Mutex::new(Some(answer))));
        let for_all: Arc<dyn LetGo> = slot.clone();
        let mut answers = lock(&self.answers);
        // Now and then: one that is held for long may be before many that were sent.
        if answers.len().is_power_of_two() {
            answers.retain(|(_, slot)| slot.strong_count() > 0);
        }
        answers.push_back((now, Arc::downgrade(&for_all)));
        HeldAnswer(slot)
    }

    /// Drops states and answers that were held for too long. To be called about once a second.
    pub fn tend(&self, now: Instant) {
        // An answer may have a hundred thousand objects: new ones do not wait until those of an old one are gone.
        let mut over = Vec::new();
        let mut answers = lock(&self.answers);
        while let Some((since, _)) = answers.front()
            && now.saturating_duration_since(*since) >= EXACT_HELD_MAX
            && let Some((_, slot)) = answers.pop_front()
        {
            over.push(slot);
        }
        drop(answers);
        let_go(&over);
        for holding in [Holding::Movable, Holding::Exact] {
            let (queue, held_max) = self.queue(holding);
            let mut over = Vec::new();
            let mut held = lock(queue);
            while let Some(oldest) = held.front()
                && now.saturating_duration_since(oldest.since) >= held_max
                && let Some(oldest) = held.pop_front()
            {
                over.push(oldest.slot);
            }
            drop(held);
            let_go(&over);
        }
    }

    fn queue(&self, holding: Holding) -> (&Mutex<VecDeque<Held>>, Duration) {
        match holding {
            Holding::Movable => (&self.movable, MOVING_HELD_MAX),
            Holding::Exact => (&self.exact, EXACT_HELD_MAX),
        }
    }
}

impl<T: std::fmt::Debug + Send> LetGo for Slot<T> {
    fn let_go(&self) {
        let held = lock(&self.0).take();
        drop(held);
    }
}

impl<T> HeldAnswer<T> {
    /// Takes something of the rest; `None` once it was dropped.
    pub fn with<R>(&self, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        lock(&self.0.0).as_mut().map(take)
    }
}

impl HeldState {
    /// The state; `None` once it was dropped.
    pub fn get(&self) -> Option<Candidates> {
        lock(&self.0.0).clone()
    }
}

/// Gives up what these hold. To be called without a lock: the last holder of a state may free a hundred thousand objects.
fn let_go<T: LetGo + ?Sized>(over: &[Weak<T>]) {
    over.iter().filter_map(Weak::upgrade).for_each(|slot| slot.let_go());
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{self, Delta};
    use crate::hub::{Informer, InformerSpec, Scope};
    use crate::k8s::{DecodeOptions, Decoder, Object, Resource, ResourceParts};

    /// An object of a mebibyte.
    fn object(name: &str, version: u64) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 2 << 20 };
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"{version}"}},"data":"{}"}}"#,
            "x".repeat(1 << 20)
        );
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    #[test]
    fn an_answer_is_held_as_long_as_the_state_of_a_list() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let now = runtime.block_on(async { Instant::now() });
        let (generations, payload) = (Generations::default(), Arc::new(()));
        let (first, second) = (
            generations.hold_answer(payload.clone(), now),
            generations.hold_answer(payload.clone(), now + Duration::from_secs(1)),
        );
        generations.tend(now + EXACT_HELD_MAX - Duration::from_secs(1));
        assert_eq!((first.with(|_| 1), second.with(|_| 2)), (Some(1), Some(2)));
        generations.tend(now + EXACT_HELD_MAX);
        assert_eq!((first.with(|_| 1), second.with(|_| 2)), (None, Some(2)));
        assert_eq!(Arc::strong_count(&payload), 2);
        drop(second);
        generations.hold_answer((), now);
        let held = generations.hold_answer((), now);
        (0..1000).for_each(|_| drop(generations.hold_answer((), now)));
        let left = lock(&generations.answers).len();
        assert!(left <= 4, "answers that were sent are forgotten, but {left} are left");
        drop(held);
    }

    #[test]
    fn lists_of_one_moment_are_held_whatever_their_number_and_old_ones_as_far_as_their_bytes_allow() {
        let now =
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { Instant::now() });
        let config = cache::Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 4 };
        let (mut writer, reader) = cache::cache(config, now);
        writer.commit(vec![Delta::PassBegin, Delta::PassItem(object("a", 1)), Delta::PassEnd(1.into())]);
        let spec = InformerSpec::new(Resource::new(ResourceParts::default()), Scope::All);
        let (informer, other) = (Informer::new(spec.clone(), reader), {
            let (_, reader) = cache::cache(config, now);
            Informer::new(spec, reader)
        });
        let (generations, state) = (Generations::default(), || Candidates::all(informer.reader.snapshot()));
        let hold = |of: &Informer| generations.hold(of.id(), state(), Holding::Exact, now);
        let first: Vec<_> = (0..1000).map(|_| hold(&informer)).collect();
        let of_other = hold(&other);
        for version in 2..60 {
            writer.commit(vec![Delta::Apply(object("a", version))]);
        }
        let second = hold(&informer);
        assert!(first.iter().chain([&second]).all(|held| held.get().is_some()));
        for version in 60..100 {
            writer.commit(vec![Delta::Apply(object("a", version))]);
        }
        let third = hold(&informer);
        assert!(first.iter().all(|held| held.get().is_none()), "they keep more than 64 MiB");
        assert!([second, third, of_other].iter().all(|held| held.get().is_some()));
    }
}
