//! The writers, and a ledger of their acknowledged writes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cluster::{Cluster, Kind, send};
use crate::support::check::version;

/// Number of writers; each one mostly waits for answers.
const WRITERS: usize = 4;

/// Time limit for one write. A write to a hung server is abandoned.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// Time limit for an object's creation at the start.
const CREATE_PATIENCE: Duration = Duration::from_secs(120);

/// All writers.
pub(super) struct Writers {
    ledger: Arc<Ledger>,
    tasks: JoinSet<()>,
}

/// Writes that the API server acknowledged.
#[derive(Default)]
pub(super) struct Ledger {
    /// Key and version of each acknowledged create and patch that is not accounted for yet.
    acknowledged: Mutex<Vec<(String, u128)>>,
    /// Number of acknowledged writes, deletions included.
    count: AtomicUsize,
    is_paused: AtomicBool,
    stop: AtomicBool,
    /// Number of writers with a write under way.
    busy: AtomicUsize,
}

// === impl Writers ===

impl Writers {
    /// Creates this many objects, then makes random writes until stopped.
    pub(super) async fn start(cluster: &Arc<Cluster>, objects: usize) -> Self {
        let ledger = Arc::new(Ledger::default());
        create(cluster, objects).await;
        let mut tasks = JoinSet::new();
        for seed in 0..WRITERS {
            tasks.spawn(write(cluster.clone(), objects, ledger.clone(), seed as u64));
        }
        Self { ledger, tasks }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Waits until no write is under way.
    pub(super) async fn pause(&self) {
        self.ledger.is_paused.store(true, Ordering::SeqCst);
        crate::support::eventually("a pause", || self.ledger.busy.load(Ordering::SeqCst) == 0).await;
    }

    pub(super) fn resume(&self) {
        self.ledger.is_paused.store(false, Ordering::SeqCst);
    }

    /// Waits until all writers have ended. Returns the number of writes.
    pub(super) async fn stop(mut self) -> usize {
        self.ledger.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic");
        }
        self.ledger.count()
    }
}

// === impl Ledger ===

impl Ledger {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes the writes up to a version: those to account for at followers that have reached it.
    pub(super) fn take_until(&self, at: u128) -> Vec<(String, u128)> {
        let mut acknowledged = self.acknowledged.lock().expect("no panic");
        acknowledged.extract_if(.., |(_, version)| *version <= at).collect()
    }

    /// Forgets all writes, as the cluster was restored to before them.
    pub(super) fn clear(&self) {
        self.acknowledged.lock().expect("no panic").clear();
    }

    fn acknowledge(&self, write: (String, u128)) {
        self.acknowledged.lock().expect("no panic").push(write);
    }
}

async fn create(cluster: &Arc<Cluster>, count: usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..2 * WRITERS {
        let (cluster, next) = (cluster.clone(), next.clone());
        workers.spawn(async move {
            let (client, kind) = (cluster.client(), cluster.kind());
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                create_one(&client, &kind, &name(index)).await;
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.expect("no panic");
    }
}

/// Creates an object, with as many attempts as it takes: a server that has just started may be slow on a busy
/// machine.
async fn create_one(client: &kube::Client, kind: &Kind, name: &str) {
    let deadline = Instant::now() + CREATE_PATIENCE;
    loop {
        let object = kind.object(name);
        if send(client, "POST", kind.collection, Some(&object), WRITE_PATIENCE).await.is_some() {
            return;
        }
        // It may exist already, created by a request whose answer came too late.
        let path = format!("{}/{name}", kind.collection);
        if send(client, "GET", &path, None, WRITE_PATIENCE).await.is_some() {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is not created");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn name(index: usize) -> String {
    format!("object-{index}")
}

/// Makes random writes. A write that fails while the server is down is not repeated.
async fn write(cluster: Arc<Cluster>, objects: usize, ledger: Arc<Ledger>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    while !ledger.stop.load(Ordering::SeqCst) {
        ledger.busy.fetch_add(1, Ordering::SeqCst);
        let mut wrote = false;
        if !ledger.is_paused.load(Ordering::SeqCst) {
            wrote = write_once(&cluster, &name(random.random_range(0..objects)), &mut random, &ledger).await;
        }
        ledger.busy.fetch_sub(1, Ordering::SeqCst);
        // At the pace of a client that writes steadily, without loading the whole machine.
        tokio::time::sleep(Duration::from_millis(if wrote { 2 } else { 10 })).await;
    }
}

async fn write_once(cluster: &Cluster, name: &str, random: &mut StdRng, ledger: &Ledger) -> bool {
    let (client, kind) = (cluster.client(), cluster.kind());
    let path = format!("{}/{name}", kind.collection);
    let (method, path, body) = match random.random_range(0..10) {
        0 => ("DELETE", &*path, json!({"gracePeriodSeconds": 0})),
        1 | 2 => ("POST", kind.collection, kind.object(name)),
        _ => {
            let turn = random.random_range(0..1_000_000).to_string();
            ("PATCH", &*path, json!({"metadata": {"labels": {"turn": turn}}}))
        }
    };
    let Some(answer) = send(&client, method, path, Some(&body), WRITE_PATIENCE).await else { return false };
    ledger.count.fetch_add(1, Ordering::Relaxed);
    // A deletion's answer does not tell its version.
    if method != "DELETE" {
        ledger.acknowledge((kind.key(name), version(&answer)));
    }
    true
}

/// Writes one more object, with as many attempts as it takes, and returns its key and version.
pub(super) async fn mark(cluster: &Cluster, name: &str) -> (String, u128) {
    loop {
        let (client, kind) = (cluster.client(), cluster.kind());
        let object: Value = kind.object(name);
        let created = send(&client, "POST", kind.collection, Some(&object), Duration::from_secs(2)).await;
        if let Some(created) = created {
            return (kind.key(name), version(&created));
        }
        // It may exist already, created by a request whose answer was lost.
        let path = format!("{}/{name}", kind.collection);
        if let Some(there) = send(&client, "GET", &path, None, Duration::from_secs(2)).await {
            return (kind.key(name), version(&there));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
