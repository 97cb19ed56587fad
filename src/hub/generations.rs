//! States of caches that readers hold while they are handed out, and when they must let go of them.
//!
//! A state that is held costs what has changed in the cache since. A reader that is slow would hold one for hours, so
//! each is held for a bounded time only, and so many at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Candidates;

/// How long a subscription to `/v1` may hold the state with which it began; then it goes on in the current one. Well
/// within what tombstones remember at any rate of changes that an API server makes.
const MOVING_HELD_MAX: Duration = Duration::from_secs(5);

/// How long a list, or a subscription that must begin with one state, may hold it; then it ends. A client at 10 MB a
/// second reads 3 GB in that time.
const EXACT_HELD_MAX: Duration = Duration::from_secs(300);

/// States that lists and such subscriptions hold at once. Readers that come in one moment share one.
const EXACT_MAX: usize = 64;

/// Whether a reader can go on without the state that it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It can, in the current one.
    Movable,
    /// What it hands out has to be of one version.
    Exact,
}

/// All states that are held.
#[derive(Debug, Default)]
pub struct Generations {
    movable: Mutex<VecDeque<Held>>,
    exact: Mutex<VecDeque<Held>>,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    slot: Weak<Slot>,
}

#[derive(Debug)]
struct Slot(Mutex<Option<Candidates>>);

/// A state, for as long as it may be held.
#[derive(Clone, Debug)]
pub struct HeldState(Arc<Slot>);

impl Generations {
    /// Holds a state from `now` on.
    pub fn hold(&self, state: Candidates, holding: Holding, now: Instant) -> HeldState {
        let slot = Arc::new(Slot(Mutex::new(Some(state))));
        let (queue, _) = self.queue(holding);
        let mut held = lock(queue);
        held.push_back(Held { since: now, slot: Arc::downgrade(&slot) });
        if holding == Holding::Exact {
            held.retain(|held| held.slot.strong_count() > 0);
            while held.len() > EXACT_MAX
                && let Some(oldest) = held.pop_front()
            {
                oldest.let_go();
            }
        }
        HeldState(slot)
    }

    /// Takes the states from those who have held them for too long. To be called every second or so.
    pub fn tend(&self, now: Instant) {
        for holding in [Holding::Movable, Holding::Exact] {
            let (queue, held_max) = self.queue(holding);
            let mut held = lock(queue);
            while let Some(oldest) = held.front()
                && now.saturating_duration_since(oldest.since) >= held_max
                && let Some(oldest) = held.pop_front()
            {
                oldest.let_go();
            }
        }
    }

    fn queue(&self, holding: Holding) -> (&Mutex<VecDeque<Held>>, Duration) {
        match holding {
            Holding::Movable => (&self.movable, MOVING_HELD_MAX),
            Holding::Exact => (&self.exact, EXACT_HELD_MAX),
        }
    }
}

impl Held {
    fn let_go(&self) {
        if let Some(slot) = self.slot.upgrade() {
            *lock(&slot.0) = None;
        }
    }
}

impl HeldState {
    /// The state; `None` once it may not be held any more.
    pub fn get(&self) -> Option<Candidates> {
        lock(&self.0.0).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
