//! Consistent snapshots held for clients that read page by page.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::cache::Snapshot;

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
    snapshots: Vec<Snapshot>,
    names: Vec<String>,
    used: Instant,
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

    /// Holds snapshots of these informers; those of one state are held once, however many read them.
    pub(super) fn hold(&self, names: &[String], snapshots: &[Snapshot], now: Instant) -> u64 {
        let mut held = self.lock(now);
        let same = |one: &Held| {
            one.names == names
                && one.snapshots.iter().map(|s| s.cursor).eq(snapshots.iter().map(|s| s.cursor))
        };
        if let Some(at) = held.iter().position(same)
            && let Some(mut one) = held.remove(at)
        {
            one.used = now;
            let id = one.id;
            held.push_back(one);
            return id;
        }
        while held.len() >= self.len_max.max(1) {
            super::metrics::limit_hit("snapshot_pages_max");
            held.pop_front();
        }
        let id = rand::random();
        held.push_back(Held { id, snapshots: snapshots.to_vec(), names: names.to_vec(), used: now });
        id
    }

    /// The snapshots held under an id; `None` when they expired.
    pub(super) fn get(&self, id: u64, now: Instant) -> Option<Vec<Snapshot>> {
        let mut held = self.lock(now);
        let at = held.iter().position(|one| one.id == id)?;
        let mut one = held.remove(at)?;
        one.used = now;
        let snapshots = one.snapshots.clone();
        held.push_back(one);
        Some(snapshots)
    }

    fn lock(&self, now: Instant) -> std::sync::MutexGuard<'_, VecDeque<Held>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|one| now.saturating_duration_since(one.used) < self.ttl);
        held
    }
}
