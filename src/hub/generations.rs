//! Generations: states of caches that readers hold while they send them, with a bound on time and number.
//!
//! A held state keeps the objects alive that have changed in the cache since. A slow reader would hold one for hours, so
//! the time for which one is held, and the number of held ones, are bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Candidates;

/// Time for which a subscription of `/v1` may hold its first state. Then it continues in the current one. Tombstones
/// remember more than this at any rate of changes that an API server can make.
const MOVING_HELD_MAX: Duration = Duration::from_secs(5);

/// Time for which a list, or a subscription that must begin with a single state, may hold it. Then it ends. A client that
/// reads 10 MB a second reads 3 GB in this time.
const EXACT_HELD_MAX: Duration = Duration::from_secs(300);

/// Largest number of states that lists and such subscriptions hold. Readers that come at the same moment share one.
const EXACT_MAX: usize = 64;

/// Whether a reader can continue without the state with which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It can continue in the current state.
    Movable,
    /// All it sends has to be of one version.
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

    /// Drops states that were held for too long. To be called about once a second.
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
    /// The state; `None` once it was dropped.
    pub fn get(&self) -> Option<Candidates> {
        lock(&self.0.0).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
