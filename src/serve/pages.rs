//! Consistent snapshots held for clients that read page by page.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::cache::Cursor;
use crate::hub::{Candidates, Informer, InformerId};

/// The snapshots that are held, the least recently used first.
///
/// Why bounded by count: a held snapshot shares what has not changed since, so an idle one costs almost
/// nothing, and a busy cache at most one copy of itself for each.
pub(crate) struct Pages {
    held: Mutex<VecDeque<Held>>,
    len_max: usize,
    ttl: Duration,
}

struct Held {
    id: u64,
    /// The informers, in the order of the states: the states of others mean nothing to a request.
    informers: Vec<InformerId>,
    /// The request that the states were picked for.
    request: u64,
    states: Vec<Candidates>,
    used: Instant,
    /// Whether a last page was read, so that hardly anybody needs it any more.
    finished: bool,
}

/// What a `continue` parameter carries, opaque to clients.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Continue {
    /// The snapshot.
    pub(super) id: u64,
    /// The informer to go on with.
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

    /// Holds states of these informers for a request; those of one moment are held once, however many read them.
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
            // One that was read to its end is not missed; another's reader has to start over.
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

    /// The states held under an id for a request to these informers; `None` when they expired.
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
