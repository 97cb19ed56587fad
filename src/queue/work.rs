//! The work queue: where each key is, and how it moves.
//!
//! ```text
//!            add                     lease                 done
//!  (nowhere) ───▶ ready ───────────────────────▶ leased ─────────▶ (nowhere)
//!                  ▲  ▲   release, expiry, or     │  │ done with a delay, retry
//!                  │  └── added while leased ─────┘  ▼
//!                  └────────── due, add ───────── delayed
//!                  └──── add, put back ── failed ◀── retry or expiry after too many attempts
//! ```

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use hashbrown::HashTable;
use slab::Slab;
use tokio::time::Instant;

use super::age::{Ages, Linked, Links};
use super::outcome::{Added, Advanced, Failed, Full, InFlight, Leased, NotHeld, Retried, Summary};
use super::ready::{Priority, Ready, Turn};
use super::token::LeaseToken;
use crate::k8s::Key;

/// Bounds and delays of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Largest number of keys, in whatever state.
    pub keys_max: usize,
    /// Largest number of leases at once.
    pub leases_max: usize,
    /// Number of failed attempts after which a key is set aside; `None` for no end.
    pub attempts_max: Option<u32>,
    /// Delay after the first failed attempt. It doubles with each further one.
    pub retry_base: Duration,
    /// Longest delay after a failed attempt.
    pub retry_max: Duration,
}

/// A work queue. Resources are numbers, whose meaning the caller knows.
#[derive(Debug)]
pub struct WorkQueue {
    rates: Rates,
    issuer: String,
    /// Moments are kept as microseconds since this one.
    epoch: Instant,
    entries: Slab<Entry>,
    /// The slot of each key.
    slots: HashTable<u32>,
    /// Hashes keys and uids. Nothing that can be observed depends on it.
    hasher: RandomState,
    ready: Ready,
    ages: Ages,
    /// When delayed keys are due and leases run out.
    timers: BTreeSet<(u64, u32)>,
    /// The leases, by the moment at which they were given.
    leases: BTreeSet<(u64, u32)>,
    /// The sum of these moments.
    leases_since: u128,
    /// The failed keys, by the moment at which they were set aside.
    failed: BTreeSet<(u64, u32)>,
    serial: u64,
}

/// One key.
#[derive(Debug)]
struct Entry {
    key: Key,
    /// Hash of the object's uid; zero if it is unknown.
    uid: u64,
    place: KeyPlace,
    /// What the worker said about the last attempt of a key that is set aside.
    error: Option<Box<str>>,
    links: Links,
    /// Failed attempts in a row.
    attempts: u32,
    resource: u16,
    priority: Priority,
}

#[derive(Debug)]
enum KeyPlace {
    Ready { turn: Turn, since: u64 },
    Delayed { due: u64 },
    Leased(Box<Held>),
    Failed { since: u64 },
}

/// A lease.
#[derive(Clone, Copy, Debug)]
struct Held {
    serial: u64,
    since: u64,
    until: u64,
    /// The place that the key had among the ready ones.
    turn: Turn,
    /// Whether the key was added meanwhile, and how urgently.
    again: Option<Priority>,
    /// Whether a failure counts as an attempt: not if the object is another one since.
    counts: bool,
}

/// Timers that one call of [`WorkQueue::advance`] handles: less than a millisecond of work.
const TIMERS_AT_ONCE: usize = 1024;

/// Bytes of a worker's error that are kept.
const ERROR_BYTES_MAX: usize = 1024;

/// Number of slots by which the table of entries grows at least.
const GROWTH_MIN: usize = 64;

impl Linked for Entry {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl WorkQueue {
    /// An empty queue. `issuer` names the process and the queue in tokens; `now` is the earliest moment of later calls.
    pub fn new(issuer: String, rates: Rates, now: Instant) -> Self {
        Self {
            rates,
            issuer,
            epoch: now,
            entries: Slab::new(),
            slots: HashTable::new(),
            hasher: RandomState::new(),
            ready: Ready::default(),
            ages: Ages::default(),
            timers: BTreeSet::new(),
            leases: BTreeSet::new(),
            leases_since: 0,
            failed: BTreeSet::new(),
            serial: 0,
        }
    }

    /// Adds a key, or brings forward one that waits. `uid` is that of the object; empty if it is unknown. With another uid than
    /// before, the count of failed attempts starts anew.
    ///
    /// # Errors
    /// [`Full`] for a key that is not in the queue.
    pub fn add(
        &mut self,
        (resource, key): (u16, &Key),
        uid: &str,
        priority: Priority,
        now: Instant,
    ) -> Result<Added, Full> {
        let (now, uid) = (self.at(now), self.uid_hash(uid));
        let Some(slot) = self.find(resource, key) else {
            if self.entries.len() >= self.rates.keys_max {
                return Err(Full);
            }
            let slot = self.insert(Entry {
                key: key.clone(),
                uid,
                place: KeyPlace::Delayed { due: now },
                error: None,
                links: Links::default(),
                attempts: 0,
                resource,
                priority,
            });
            self.make_ready(slot, now);
            return Ok(Added::Queued);
        };
        let entry = &mut self.entries[slot as usize];
        let is_other = uid != 0 && entry.uid != 0 && uid != entry.uid;
        if uid != 0 {
            entry.uid = uid;
        }
        if is_other {
            (entry.attempts, entry.error) = (0, None);
        }
        match &mut entry.place {
            KeyPlace::Ready { turn, .. } => {
                if priority > entry.priority {
                    let turn = *turn;
                    self.raise(slot, turn, priority);
                }
                Ok(Added::Already)
            }
            KeyPlace::Leased(held) => {
                let before = held.again;
                held.again = before.max(Some(priority));
                held.counts &= !is_other;
                Ok(if before.is_some() { Added::AlreadyAfterwards } else { Added::Afterwards })
            }
            KeyPlace::Delayed { due } => {
                let due = *due;
                entry.priority = entry.priority.max(priority);
                self.timers.remove(&(due, slot));
                self.make_ready(slot, now);
                Ok(Added::Queued)
            }
            KeyPlace::Failed { since } => {
                let since = *since;
                (entry.attempts, entry.priority, entry.error) = (0, priority, None);
                self.failed.remove(&(since, slot));
                self.make_ready(slot, now);
                Ok(Added::Queued)
            }
        }
    }

    /// Hands the next key to a worker; `None` if no key is ready.
    ///
    /// # Errors
    /// [`Full`] if there are as many leases as there may be.
    pub fn lease(&mut self, length: Duration, now: Instant) -> Result<Option<Leased>, Full> {
        let now = self.at(now);
        if self.ready.len() > 0 && self.leases.len() >= self.rates.leases_max {
            return Err(Full);
        }
        let entries = &self.entries;
        let Some(slot) = self.ready.pop(|slot| entries[slot as usize].key.namespace()) else {
            return Ok(None);
        };
        self.ages.remove(&mut self.entries, slot);
        self.serial += 1;
        let entry = &mut self.entries[slot as usize];
        let KeyPlace::Ready { turn, since } = entry.place else { unreachable!("a key in line is ready") };
        let until = now.saturating_add(micros(length));
        let held = Held { serial: self.serial, since: now, until, turn, again: None, counts: true };
        entry.place = KeyPlace::Leased(Box::new(held));
        let leased = Leased {
            resource: entry.resource,
            key: entry.key.clone(),
            attempt: entry.attempts + 1,
            token: LeaseToken { issuer: self.issuer.clone(), slot, serial: self.serial },
            waited: Duration::from_micros(now.saturating_sub(since)),
        };
        self.timers.insert((until, slot));
        self.leases.insert((now, slot));
        self.leases_since += u128::from(now);
        Ok(Some(leased))
    }

    /// Lets a lease run out this long from now.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn extend(&mut self, token: &LeaseToken, length: Duration, now: Instant) -> Result<(), NotHeld> {
        let held = self.held(token, now)?;
        let until = self.at(now).saturating_add(micros(length));
        self.timers.remove(&(held.until, token.slot));
        self.timers.insert((until, token.slot));
        if let KeyPlace::Leased(held) = &mut self.entries[token.slot as usize].place {
            held.until = until;
        }
        Ok(())
    }

    /// The worker has reconciled the key. It leaves the queue; or comes again, at once if it was added meanwhile, else after a
    /// delay if one is given. Returns how long the worker had it.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn done(
        &mut self,
        token: &LeaseToken,
        after: Option<Duration>,
        now: Instant,
    ) -> Result<Duration, NotHeld> {
        let held = self.end_lease(token, now)?;
        let (slot, now) = (token.slot, self.at(now));
        let entry = &mut self.entries[slot as usize];
        (entry.attempts, entry.error) = (0, None);
        match (held.again, after) {
            (Some(priority), _) => {
                entry.priority = priority;
                self.make_ready(slot, now);
            }
            (None, Some(after)) => {
                entry.priority = Priority::Normal;
                self.delay(slot, after, now);
            }
            (None, None) => self.forget(slot),
        }
        Ok(Duration::from_micros(now.saturating_sub(held.since)))
    }

    /// The worker could not reconcile the key. It comes again after a delay that doubles each time, at once if it was added
    /// meanwhile, or is set aside. Returns that, and how long the worker had it.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn retry(
        &mut self,
        token: &LeaseToken,
        error: &str,
        now: Instant,
    ) -> Result<(Retried, Duration), NotHeld> {
        let held = self.end_lease(token, now)?;
        let now = self.at(now);
        let worked = Duration::from_micros(now.saturating_sub(held.since));
        Ok((self.fail(token.slot, &held, error, self.rates.retry_base, now), worked))
    }

    /// The worker gives the key back as it got it, to the place that it had. No attempt is counted.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn release(&mut self, token: &LeaseToken, now: Instant) -> Result<Duration, NotHeld> {
        let held = self.end_lease(token, now)?;
        let (slot, now) = (token.slot, self.at(now));
        let entry = &mut self.entries[slot as usize];
        if held.again.is_some_and(|again| again > entry.priority) {
            entry.priority = Priority::Normal;
            self.make_ready(slot, now);
        } else {
            entry.place = KeyPlace::Ready { turn: held.turn, since: now };
            self.ready.put_back(entry.priority, entry.key.namespace(), held.turn, slot);
            self.ages.push(&mut self.entries, slot);
        }
        Ok(Duration::from_micros(now.saturating_sub(held.since)))
    }

    /// Queues a key that was set aside; returns whether it was.
    pub fn put_back(&mut self, resource: u16, key: &Key, now: Instant) -> bool {
        let Some(slot) = self.find(resource, key) else { return false };
        let KeyPlace::Failed { since } = self.entries[slot as usize].place else { return false };
        self.put_back_slot(since, slot, now);
        true
    }

    /// Queues keys that were set aside, the oldest first, at most `len_max`; returns how many.
    pub fn put_back_all(&mut self, len_max: usize, now: Instant) -> usize {
        let slots: Vec<_> = self.failed.iter().take(len_max).copied().collect();
        slots.iter().for_each(|(since, slot)| self.put_back_slot(*since, *slot, now));
        slots.len()
    }

    /// Queues delayed keys that are due, and takes back leases that have run out. To be called at
    /// [`WorkQueue::next_at`] or later, and before a key is leased.
    pub fn advance(&mut self, now: Instant) -> Advanced {
        let (now, mut advanced) = (self.at(now), Advanced::default());
        while let Some((at, slot)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            if advanced.due + advanced.expired >= TIMERS_AT_ONCE {
                advanced.more = true;
                break;
            }
            match self.entries[slot as usize].place {
                KeyPlace::Leased(ref held) => {
                    let held = **held;
                    self.unlist(slot, &held);
                    let length = Duration::from_micros(held.until - held.since).as_secs_f64();
                    let error = format!("the lease ran out after {length:.1} s without an answer");
                    let retried = self.fail(slot, &held, &error, Duration::ZERO, now);
                    advanced.expired += 1;
                    advanced.failed += usize::from(retried == Retried::Failed);
                }
                KeyPlace::Ready { .. } | KeyPlace::Delayed { .. } | KeyPlace::Failed { .. } => {
                    self.timers.remove(&(at, slot));
                    self.make_ready(slot, now);
                    advanced.due += 1;
                }
            }
        }
        advanced
    }

    /// The next moment at which [`WorkQueue::advance`] has something to do.
    pub fn next_at(&self) -> Option<Instant> {
        let (at, _) = self.timers.first()?;
        // The caller bounds delays; one beyond what a clock can tell never comes.
        self.epoch.checked_add(Duration::from_micros(*at))
    }

    /// Number of keys that can be leased now.
    pub fn depth(&self) -> usize {
        self.ready.len()
    }

    /// Whether a key that is not in the queue can be added.
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.rates.keys_max
    }

    /// The queue in figures.
    pub fn summary(&self, now: Instant) -> Summary {
        let now = self.at(now);
        let oldest = self.ages.oldest().and_then(|slot| match self.entries[slot as usize].place {
            KeyPlace::Ready { since, .. } => Some(Duration::from_micros(now.saturating_sub(since))),
            KeyPlace::Delayed { .. } | KeyPlace::Leased(_) | KeyPlace::Failed { .. } => None,
        });
        let in_flight = self.leases.len();
        let unfinished = (u128::from(now) * in_flight as u128).saturating_sub(self.leases_since);
        let longest = self.leases.first().map_or(0, |(since, _)| now.saturating_sub(*since));
        Summary {
            depth: self.ready.len(),
            low: self.ready.low(),
            delayed: self.timers.len() - in_flight,
            in_flight,
            failed: self.failed.len(),
            oldest,
            unfinished: Duration::from_micros(u64::try_from(unfinished).unwrap_or(u64::MAX)),
            longest: Duration::from_micros(longest),
        }
    }

    /// The keys that were set aside, the oldest first.
    pub fn failed(&self, len_max: usize, now: Instant) -> Vec<Failed> {
        let now = self.at(now);
        let failed = self.failed.iter().take(len_max).map(|(since, slot)| {
            let entry = &self.entries[*slot as usize];
            Failed {
                resource: entry.resource,
                key: entry.key.clone(),
                attempts: entry.attempts,
                error: entry.error.as_deref().unwrap_or_default().to_owned(),
                since: Duration::from_micros(now.saturating_sub(*since)),
            }
        });
        failed.collect()
    }

    /// The leases, the oldest first.
    pub fn in_flight(&self, len_max: usize, now: Instant) -> Vec<InFlight> {
        let now = self.at(now);
        let leases = self.leases.iter().take(len_max).map(|(since, slot)| {
            let entry = &self.entries[*slot as usize];
            let until = if let KeyPlace::Leased(held) = &entry.place { held.until } else { now };
            InFlight {
                resource: entry.resource,
                key: entry.key.clone(),
                attempt: entry.attempts + 1,
                since: Duration::from_micros(now.saturating_sub(*since)),
                left: Duration::from_micros(until.saturating_sub(now)),
            }
        });
        leases.collect()
    }

    fn hash(&self, resource: u16, key: &Key) -> u64 {
        self.hasher.hash_one((resource, key))
    }

    fn uid_hash(&self, uid: &str) -> u64 {
        if uid.is_empty() { 0 } else { self.hasher.hash_one(uid).max(1) }
    }

    fn at(&self, moment: Instant) -> u64 {
        micros(moment.saturating_duration_since(self.epoch))
    }

    fn find(&self, resource: u16, key: &Key) -> Option<u32> {
        let same = |slot: &u32| {
            let entry = &self.entries[*slot as usize];
            entry.resource == resource && entry.key == *key
        };
        self.slots.find(self.hash(resource, key), same).copied()
    }

    fn insert(&mut self, entry: Entry) -> u32 {
        if self.entries.len() == self.entries.capacity() {
            // By a quarter instead of twice: the table is most of what a queued key costs.
            self.entries.reserve_exact((self.entries.len() / 4).max(GROWTH_MIN));
        }
        let hashed = self.hash(entry.resource, &entry.key);
        let slot = u32::try_from(self.entries.insert(entry)).expect("fewer keys than keys_max");
        let (entries, hasher) = (&self.entries, &self.hasher);
        let rehash = |slot: &u32| {
            let entry = &entries[*slot as usize];
            hasher.hash_one((entry.resource, &entry.key))
        };
        self.slots.insert_unique(hashed, slot, rehash);
        slot
    }

    /// Removes a key from the queue.
    fn forget(&mut self, slot: u32) {
        let entry = self.entries.remove(slot as usize);
        let hashed = self.hash(entry.resource, &entry.key);
        let found = self.slots.find_entry(hashed, |other| *other == slot);
        found.expect("each key has its slot in the table").remove();
        if self.entries.is_empty() && self.entries.capacity() > GROWTH_MIN {
            self.entries = Slab::new();
            self.slots = HashTable::new();
        }
    }

    /// Queues a key that is nowhere.
    fn make_ready(&mut self, slot: u32, now: u64) {
        let entry = &mut self.entries[slot as usize];
        let turn = self.ready.push(entry.priority, entry.key.namespace(), slot);
        entry.place = KeyPlace::Ready { turn, since: now };
        self.ages.push(&mut self.entries, slot);
    }

    /// Makes a ready key more urgent.
    fn raise(&mut self, slot: u32, turn: Turn, priority: Priority) {
        let entry = &mut self.entries[slot as usize];
        self.ready.remove(entry.priority, entry.key.namespace(), turn);
        entry.priority = priority;
        let moved = self.ready.push(priority, entry.key.namespace(), slot);
        if let KeyPlace::Ready { turn, .. } = &mut entry.place {
            *turn = moved;
        }
    }

    fn delay(&mut self, slot: u32, after: Duration, now: u64) {
        let due = now.saturating_add(micros(after));
        self.entries[slot as usize].place = KeyPlace::Delayed { due };
        self.timers.insert((due, slot));
    }

    /// What a failed attempt leads to. `base` is the delay after the first one.
    fn fail(&mut self, slot: u32, held: &Held, error: &str, base: Duration, now: u64) -> Retried {
        let Rates { attempts_max, retry_max, .. } = self.rates;
        let entry = &mut self.entries[slot as usize];
        if held.counts {
            entry.attempts = entry.attempts.saturating_add(1);
        }
        let used_up = attempts_max.is_some_and(|max| entry.attempts >= max);
        if let Some(priority) = held.again {
            if used_up {
                entry.attempts = 0;
            }
            entry.priority = priority;
            self.make_ready(slot, now);
            return Retried::After(Duration::ZERO);
        }
        if used_up {
            entry.place = KeyPlace::Failed { since: now };
            // Of a key that is tried again nobody sees it, and each could take a kilobyte.
            entry.error = Some(cut(error).into());
            self.failed.insert((now, slot));
            return Retried::Failed;
        }
        let doubled = 1_u32.checked_shl(entry.attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        let after = base.saturating_mul(doubled).min(retry_max);
        match after.is_zero() {
            true => self.make_ready(slot, now),
            false => self.delay(slot, after, now),
        }
        Retried::After(after)
    }

    fn put_back_slot(&mut self, since: u64, slot: u32, now: Instant) {
        self.failed.remove(&(since, slot));
        let entry = &mut self.entries[slot as usize];
        (entry.attempts, entry.priority, entry.error) = (0, Priority::Normal, None);
        let now = self.at(now);
        self.make_ready(slot, now);
    }

    /// The lease of a token, if it is held.
    fn held(&self, token: &LeaseToken, now: Instant) -> Result<Held, NotHeld> {
        if token.issuer != self.issuer {
            return Err(NotHeld::Foreign);
        }
        let now = self.at(now);
        match self.entries.get(token.slot as usize).map(|entry| &entry.place) {
            Some(KeyPlace::Leased(held)) if held.serial == token.serial && now < held.until => Ok(**held),
            Some(_) | None => Err(NotHeld::Over),
        }
    }

    fn end_lease(&mut self, token: &LeaseToken, now: Instant) -> Result<Held, NotHeld> {
        let held = self.held(token, now)?;
        self.unlist(token.slot, &held);
        Ok(held)
    }

    /// Takes a lease from the lists of leases and timers.
    fn unlist(&mut self, slot: u32, held: &Held) {
        self.timers.remove(&(held.until, slot));
        self.leases.remove(&(held.since, slot));
        self.leases_since -= u128::from(held.since);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The first bytes of an error, whole characters.
fn cut(error: &str) -> &str {
    let mut end = error.len().min(ERROR_BYTES_MAX);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    &error[..end]
}
