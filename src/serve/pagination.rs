//! Snapshots that are held for clients that read in pages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::cache::Cursor;
use crate::hub::{Candidates, Informer, InformerId};

/// The held snapshots, the least recently used first.
///
/// Why they are bounded by number: a held snapshot shares all objects that have not changed since, so it costs almost nothing
/// for an idle cache, and at most one copy of a busy one.
pub(crate) struct Pages {
    held: Mutex<VecDeque<Held>>,
    len_max: usize,
    ttl: Duration,
}

struct Held {
    id: u64,
    /// The informers, in the order of the states. The states are valid only for requests to the same informers.
    informers: Vec<InformerId>,
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
    /// The request it belongs to.
    pub(super) request: u64,
}

impl Continue {
    pub(super) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token has string keys only"))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

impl Pages {
    pub(super) fn new(len_max: usize, ttl: Duration) -> Self {
        Self { held: Mutex::default(), len_max, ttl }
    }

    /// Holds states of these informers for a request. Equal states are held once, however many clients read them.
    pub(super) fn hold(
        &self,
        informers: &[Arc<Informer>],
        request: u64,
        states: &[Candidates],
        now: Instant,
    ) -> u64 {
        let mut held = self.lock(now);
        let informers: Vec<_> = informers.iter().map(|informer| informer.id()).collect();
        let cursors = |states: &[Candidates]| -> Vec<Cursor> {
            states.iter().map(|state| state.snapshot.cursor).collect()
        };
        let same = |one: &Held| {
            one.informers == informers && one.request == request && cursors(&one.states) == cursors(states)
        };
        if let Some(at) = held.iter().position(same)
            && let Some(mut one) = held.remove(at)
        {
            (one.used, one.finished) = (now, false);
            let id = one.id;
            held.push_back(one);
            return id;
        }
        while held.len() >= self.len_max.max(1) {
            // A snapshot that was read to its end goes first, as the reader of another one would have to start over.
            let finished = held.iter().position(|one| one.finished);
            if finished.is_none() {
                super::metrics::limit_hit("snapshot_pages_max");
            }
            held.remove(finished.unwrap_or(0));
        }
        let id = rand::random();
        let states = states.to_vec();
        held.push_back(Held { id, informers, request, states, used: now, finished: false });
        id
    }

    /// The states with an id, for a request to these informers; `None` if they have expired.
    pub(super) fn get(&self, id: u64, informers: &[Arc<Informer>], now: Instant) -> Option<Vec<Candidates>> {
        let mut held = self.lock(now);
        let is_of =
            |one: &Held| one.informers.iter().copied().eq(informers.iter().map(|informer| informer.id()));
        let at = held.iter().position(|one| one.id == id && is_of(one))?;
        let mut one = held.remove(at)?;
        one.used = now;
        let states = one.states.clone();
        held.push_back(one);
        Some(states)
    }

    /// Notes that a last page is being read.
    pub(super) fn finish(&self, id: u64, now: Instant) {
        if let Some(one) = self.lock(now).iter_mut().find(|one| one.id == id) {
            one.finished = true;
        }
    }

    fn lock(&self, now: Instant) -> std::sync::MutexGuard<'_, VecDeque<Held>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|one| now.saturating_duration_since(one.used) < self.ttl);
        held
    }
}
