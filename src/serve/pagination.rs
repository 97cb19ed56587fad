//! Snapshots that are held for clients that read in pages.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Config;
use super::list_body::ListPosition;
use crate::hub::{Candidates, Informer, InformerId};
use crate::k8s::Key;

/// How often snapshots are looked for that are not to be held any longer.
const TEND_INTERVAL: Duration = Duration::from_secs(1);

/// The held snapshots, bounded by number, time, and the bytes that they keep in memory.
///
/// A held snapshot shares all objects that have not changed since, so it costs almost nothing for an idle cache, and at most one
/// copy of a busy one. The snapshot that was used last stays, whatever it keeps: a client that reads page after page gets to the end.
pub(crate) struct Pages(Arc<Shelf>);

struct Shelf {
    places: Mutex<Places>,
    len_max: usize,
    bytes_max: u64,
    ttl: Duration,
}

/// The locked shelf, and what was removed from it. The lock is released before that is freed, as fields are dropped in their order: a
/// snapshot may be the last to hold a hundred thousand objects.
struct Locked<'a> {
    places: MutexGuard<'a, Places>,
    over: Vec<Held>,
}

#[derive(Default)]
struct Places {
    /// The least recently used first.
    held: VecDeque<Held>,
    /// Whether a task looks for snapshots that are to be dropped.
    tended: bool,
}

struct Held {
    id: u64,
    /// The informers, in the order of the states. The states are valid only for requests to the same informers.
    informers: Vec<(InformerId, Weak<Informer>)>,
    /// The request for which the states were selected.
    request: u64,
    states: Vec<Candidates>,
    used: Instant,
    /// Whether a last page was read, so that the snapshot is probably no longer needed.
    finished: bool,
}

/// The content of a `continue` parameter, opaque to clients.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Continue {
    /// The snapshot.
    pub(super) id: u64,
    /// The index of the informer with which the page begins.
    pub(super) source: usize,
    /// The last key of the page before.
    pub(super) after: Option<(String, String)>,
    /// How many objects were left after it, if that is known.
    pub(super) left: Option<usize>,
    /// The request it belongs to.
    pub(super) request: u64,
}

impl Continue {
    /// The token of the page that begins at a place.
    pub(super) fn new(id: u64, place: &ListPosition, request: u64) -> Self {
        let after = place.after.as_ref().map(|key| (key.namespace().to_owned(), key.name().to_owned()));
        Self { id, source: place.source, after, left: place.left, request }
    }

    /// Where the page begins.
    pub(super) fn place(&self) -> ListPosition {
        let after = self.after.as_ref().map(|(namespace, name)| Key::new(namespace, name));
        ListPosition { source: self.source, after, left: self.left }
    }

    pub(super) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token has string keys only"))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

impl Pages {
    pub(super) fn new(config: &Config) -> Self {
        Self(Arc::new(Shelf {
            places: Mutex::default(),
            len_max: config.snapshot_pages_max.max(1),
            bytes_max: config.snapshot_pages_bytes_max as u64,
            ttl: config.snapshot_pages_ttl,
        }))
    }

    /// Holds states of these informers for a request. Equal states are held once, however many clients read them.
    pub(super) fn hold(
        &self,
        informers: &[Arc<Informer>],
        request: u64,
        states: &[Candidates],
        now: Instant,
    ) -> u64 {
        let mut places = self.0.lock(now);
        let same = |one: &Held| one.is_of(informers) && one.request == request && one.has(states);
        if let Some(mut one) = places.take(same) {
            (one.used, one.finished) = (now, false);
            let id = one.id;
            places.held.push_back(one);
            return id;
        }
        let id = rand::random();
        let (informers, states) =
            (informers.iter().map(|one| (one.id(), Arc::downgrade(one))).collect(), states.to_vec());
        places.held.push_back(Held { id, informers, request, states, used: now, finished: false });
        self.0.make_room(&mut places);
        if !std::mem::replace(&mut places.tended, true) {
            tokio::spawn(tend(Arc::downgrade(&self.0)));
        }
        id
    }

    /// The states with an id, for a request to these informers; `None` if they have expired.
    pub(super) fn get(&self, id: u64, informers: &[Arc<Informer>], now: Instant) -> Option<Vec<Candidates>> {
        let mut places = self.0.lock(now);
        let mut one = places.take(|one| one.id == id && one.is_of(informers))?;
        one.used = now;
        let states = one.states.clone();
        places.held.push_back(one);
        Some(states)
    }

    /// Notes that a last page is being read.
    pub(super) fn finish(&self, id: u64, now: Instant) {
        if let Some(one) = self.0.lock(now).held.iter_mut().find(|one| one.id == id) {
            one.finished = true;
        }
    }
}

impl Shelf {
    /// The shelf, without what has expired.
    fn lock(&self, now: Instant) -> Locked<'_> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locked = Locked { places, over: Vec::new() };
        while let Some(first) = locked.places.held.front()
            && now.saturating_duration_since(first.used) >= self.ttl
        {
            let first = locked.places.held.pop_front();
            locked.over.extend(first);
        }
        locked
    }

    /// Drops snapshots beyond the bounds.
    fn make_room(&self, places: &mut Locked<'_>) {
        loop {
            let limit = match places.held.len() {
                ..=1 => return,
                len if len > self.len_max => "snapshot_pages_max",
                _ if places.kept_bytes() > self.bytes_max => "snapshot_pages_bytes_max",
                _ => return,
            };
            // A snapshot that was read to its end goes first, as the reader of another one would have to start over.
            let finished = places.held.iter().position(|one| one.finished);
            if finished.is_none() {
                super::metrics::limit_hit(limit);
            }
            let over = places.held.remove(finished.unwrap_or(0));
            places.over.extend(over);
        }
    }

    /// Drops what is not to be held any longer. Tells whether anything is left.
    fn tend(&self, now: Instant) -> bool {
        let mut places = self.lock(now);
        self.make_room(&mut places);
        places.tended = !places.held.is_empty();
        places.tended
    }
}

impl Deref for Locked<'_> {
    type Target = Places;

    fn deref(&self) -> &Places {
        &self.places
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Places {
        &mut self.places
    }
}

impl Places {
    fn take(&mut self, is_meant: impl Fn(&Held) -> bool) -> Option<Held> {
        let at = self.held.iter().position(is_meant)?;
        self.held.remove(at)
    }

    /// The most bytes that the snapshots keep in memory beside the current states: what was replaced in each cache since the oldest
    /// of its snapshots, and no more than a copy for each snapshot.
    fn kept_bytes(&self) -> u64 {
        struct Kept {
            /// What the cache has replaced by now; `None` if its informer is over, so that nothing else shares the objects.
            now: Option<u64>,
            since_oldest: u64,
            copies: u64,
        }
        let mut kept: HashMap<InformerId, Kept> = HashMap::new();
        for held in &self.held {
            for ((id, informer), state) in held.informers.iter().zip(&held.states) {
                let now = || informer.upgrade().map(|informer| informer.reader.snapshot().replaced);
                let of = kept.entry(*id).or_insert_with(|| Kept { now: now(), since_oldest: 0, copies: 0 });
                let since = of.now.map_or(u64::MAX, |now| now.saturating_sub(state.snapshot.replaced));
                of.since_oldest = of.since_oldest.max(since);
                of.copies = of.copies.saturating_add(since.min(state.snapshot.held as u64));
            }
        }
        kept.into_values().map(|of| of.since_oldest.min(of.copies)).fold(0, u64::saturating_add)
    }
}

impl Held {
    fn is_of(&self, informers: &[Arc<Informer>]) -> bool {
        self.informers.iter().map(|(id, _)| *id).eq(informers.iter().map(|informer| informer.id()))
    }

    fn has(&self, states: &[Candidates]) -> bool {
        // A bookmark moves the version alone, and all pages of a list have one version.
        let is_same = |(held, other): (&Candidates, &Candidates)| {
            let [held, other] = [held, other].map(|state| &state.snapshot);
            held.cursor == other.cursor && held.position == other.position
        };
        self.states.iter().zip(states).all(is_same)
    }
}

async fn tend(shelf: Weak<Shelf>) {
    loop {
        tokio::time::sleep(TEND_INTERVAL).await;
        let Some(shelf) = shelf.upgrade() else { return };
        if !shelf.tend(Instant::now()) {
            return;
        }
    }
}
