//! A client of informerd that records what it receives.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::cluster::Cluster;
use crate::support::check::Objects;
use crate::support::client::Transport;
use crate::support::recorder::Recorder;

/// Folds one stream until stopped, and compares with the API server at each bookmark.
pub(super) struct Follower {
    pub(super) transport: Transport,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<Recorder>,
}

/// What a follower has received so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The newest version of each object, and whether that was a DELETED.
    newest: HashMap<String, (u128, bool)>,
    /// All versions of all objects. They are kept, as a write may be acknowledged long after its event.
    events: HashSet<(String, u128)>,
    /// Type, object and version of each event on this connection since the last RESET.
    received_here: HashSet<(String, String, u128)>,
    /// Number of repeated events.
    pub(super) repeated: usize,
    /// The reason of each RESET.
    pub(super) resets: Vec<String>,
    connections: usize,
    /// Number of connections at the last accounting.
    connections_before: usize,
    /// The version reached at the last accounting.
    accounted_at: u128,
    /// Number of bookmarks at which its state equaled that of the API server.
    pub(super) compared: usize,
    /// The version of the last such bookmark; 0 after a RESET.
    pub(super) compared_at: u128,
}

/// How writes arrived.
#[derive(Debug)]
pub(super) struct Account {
    /// Writes of which neither their event nor a later state of the object arrived.
    pub(super) lost: Vec<(String, u128)>,
    /// Number of writes that arrived as part of a later state only.
    pub(super) folded: usize,
    /// Whether each write had to arrive as an event of its own.
    pub(super) is_whole: bool,
}

// === impl Follower ===

impl Follower {
    pub(super) fn start(
        transport: Transport,
        address: SocketAddr,
        target: &str,
        cluster: &Arc<Cluster>,
    ) -> Self {
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let recorder = Recorder::new(transport, address, target);
        let task = tokio::spawn(follow(recorder, seen.clone(), cluster.clone(), stop.clone()));
        Self { transport, seen, stop, task }
    }

    /// What it has received. The follower waits while the guard is held.
    ///
    /// # Panics
    /// If the follower failed a check.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        assert!(!self.task.is_finished(), "the follower over {:?} failed", self.transport);
        self.seen.lock().expect("no panic")
    }

    /// Stops it after its next event.
    pub(super) async fn stop(self) -> Recorder {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("the follower did not fail")
    }
}

async fn follow(
    mut recorder: Recorder,
    seen: Arc<Mutex<Seen>>,
    cluster: Arc<Cluster>,
    stop: Arc<AtomicBool>,
) -> Recorder {
    let (mut events, mut marks) = (0, 0);
    let mut compare_from = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        recorder.step().await;
        if recorder.events > events {
            events = recorder.events;
            seen.lock().expect("no panic").take(&recorder);
        }
        if recorder.marks == marks || !recorder.synced {
            continue;
        }
        marks = recorder.marks;
        let begun = Instant::now();
        if begun < compare_from {
            continue;
        }
        // A bookmark's token names its kind, except over SSE.
        let token = recorder.token().map(|token| token.trim_end_matches(",.kind:bookmark"));
        let version = token.and_then(|token| token.rsplit_once(':')).map(|(_, version)| version);
        let version = version.expect("a bookmark has a token");
        let Some(expected) = cluster.at(version).await else { continue };
        assert!(
            recorder.state() == &*expected,
            "P1: over {:?} it differs at {version}: {}",
            recorder.transport,
            difference(recorder.state(), &expected)
        );
        // A comparison of thousands of objects takes long; most of the time should remain for the stream.
        compare_from = Instant::now() + 2 * begun.elapsed();
        let mut seen = seen.lock().expect("no panic");
        seen.compared += 1;
        seen.compared_at = version.parse().expect("a number");
    }
    recorder
}

fn difference(held: &Objects, expected: &Objects) -> String {
    let missing: Vec<_> = expected.keys().filter(|key| !held.contains_key(*key)).collect();
    let left: Vec<_> = held.keys().filter(|key| !expected.contains_key(*key)).collect();
    let at = |object: &Value| object["metadata"]["resourceVersion"].to_string();
    let other = held.iter().filter_map(|(key, object)| {
        let expected = expected.get(key).filter(|expected| *expected != object)?;
        Some(format!("{key} at {} and not {}", at(object), at(expected)))
    });
    let other: Vec<_> = other.collect();
    format!("missing {missing:?}, left over {left:?}, different {other:?}")
}

// === impl Seen ===

impl Seen {
    /// Whether this state of an object, or a later one, has arrived.
    pub(super) fn has(&self, key: &str, at: u128) -> bool {
        self.newest.get(key).is_some_and(|(version, _)| *version >= at)
    }

    /// Accounts for writes up to the version that it has passed. `is_whole`: informerd itself received each change.
    pub(super) fn account(&mut self, written: &[(String, u128)], is_whole: bool) -> Account {
        let is_whole = is_whole && self.connections == self.connections_before;
        self.connections_before = self.connections;
        let is_lost = |key: &str, at: u128| match self.newest.get(key) {
            Some((version, false)) => *version < at,
            // An object created and deleted in between: clients that get states instead of changes need not see it.
            Some((version, true)) => is_whole && at > self.accounted_at && *version < at,
            None => is_whole && at > self.accounted_at,
        };
        let lost: Vec<_> = written.iter().filter(|(key, at)| is_lost(key, *at)).cloned().collect();
        // A write acknowledged late may be older than the last accounting.
        let is_folded = |write: &&(String, u128)| write.1 > self.accounted_at && !self.events.contains(write);
        let folded = written.iter().filter(is_folded).count();
        self.accounted_at = self.compared_at;
        Account { lost, folded, is_whole }
    }

    fn take(&mut self, recorder: &Recorder) {
        if self.connections < recorder.connections {
            self.connections = recorder.connections;
            // Events after the token are sent again.
            self.received_here.clear();
        }
        if self.resets.len() < recorder.resets.len() {
            self.resets.clone_from(&recorder.resets);
            self.received_here.clear();
            self.newest.clear();
            self.compared_at = 0;
        }
        let Some((kind, key, version)) = &recorder.last else { return };
        self.newest.insert(key.clone(), (*version, kind == "DELETED"));
        self.events.insert((key.clone(), *version));
        if !self.received_here.insert((kind.clone(), key.clone(), *version)) {
            self.repeated += 1;
        }
    }
}
