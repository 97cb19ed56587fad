//! Workers of a queue die at random, while informerd and the API server are killed many times.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::Effort;
use super::rig::{Rig, Setup};
use crate::support::check::{key, version};
use crate::support::envtest::{Process, Version};

/// Number of workers.
const WORKERS: u64 = 10;

/// Time between the deaths of two workers.
const DEATH_INTERVAL: Duration = Duration::from_millis(300);

/// Length of a lease, in seconds: after that the key of a dead worker is leased again.
const LEASE_SECONDS: u64 = 3;

/// Longest time after the last fault until all objects are reconciled: the longest retry delay, and a lease.
const RECONCILED_MAX: Duration = Duration::from_secs(120);

/// Results of the workers.
#[derive(Default)]
struct Done {
    /// The version at which each object was reconciled last; `None` if it was deleted.
    versions: HashMap<String, Option<u128>>,
    /// The worker that holds each key, and a moment shortly before its lease ends.
    held: HashMap<String, (u64, Instant)>,
    /// Rises when informerd is killed, and when it is back. Leases of an earlier life do not count.
    life: u64,
    answers: usize,
    late: usize,
}

/// Workers of one queue.
struct Crew {
    address: SocketAddr,
    done: Arc<Mutex<Done>>,
    workers: Vec<JoinHandle<()>>,
    next: u64,
    random: StdRng,
    deaths: usize,
}

// === impl Crew ===

impl Crew {
    fn start(address: SocketAddr) -> Self {
        let random = StdRng::seed_from_u64(15);
        let mut crew =
            Self { address, done: Arc::default(), workers: Vec::new(), next: 0, random, deaths: 0 };
        for _ in 0..WORKERS {
            let worker = crew.worker();
            crew.workers.push(worker);
        }
        crew
    }

    fn worker(&mut self) -> JoinHandle<()> {
        self.next += 1;
        tokio::spawn(work(self.address, self.next, self.done.clone()))
    }

    /// Kills a worker at any point of its work, and starts another one.
    async fn kill_one(&mut self) {
        let at = self.random.random_range(0..self.workers.len());
        let worker = self.worker();
        let killed = std::mem::replace(&mut self.workers[at], worker);
        end(killed).await;
        self.deaths += 1;
    }

    /// Kills all workers for good.
    async fn stop(mut self) {
        for worker in self.workers.drain(..) {
            end(worker).await;
        }
    }

    /// Kills workers until something is done.
    async fn kill_until(&mut self, mut done: impl Future<Output = ()> + Unpin) {
        while timeout(DEATH_INTERVAL, &mut done).await.is_err() {
            self.kill_one().await;
        }
    }
}

/// Kills a worker. A worker that failed a check fails the test.
async fn end(worker: JoinHandle<()>) {
    worker.abort();
    if let Err(error) = worker.await
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.workers.iter().for_each(JoinHandle::abort);
    }
}

// === impl Done ===

impl Done {
    /// Notes a lease that was requested in this life of informerd. No other worker may hold the key then.
    fn begin(&mut self, key: &str, worker: u64, life: u64, ends: Instant) {
        let now = Instant::now();
        if life != self.life {
            return;
        }
        if let Some((other, until)) = self.held.insert(key.to_owned(), (worker, ends)) {
            assert!(until <= now, "{key} is given to worker {worker} while worker {other} has it");
        }
    }

    fn begin_life(&mut self) {
        self.life += 1;
        self.held.clear();
    }
}

/// An answer's status and body; `None` if there is no answer, as while informerd is down.
async fn send(address: SocketAddr, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let body = body.to_string();
    let request = format!(
        "{method} /v1/queues/reconcile{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut socket = TcpStream::connect(address).await.ok()?;
        socket.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).unwrap_or_default()))
    };
    timeout(Duration::from_secs(30), exchange).await.ok()?
}

async fn work(address: SocketAddr, worker: u64, done: Arc<Mutex<Done>>) {
    let mut random = StdRng::seed_from_u64(worker);
    loop {
        let (asked, life) = (Instant::now(), done.lock().unwrap().life);
        let answer = send(address, "POST", "/lease", &json!({"max": 5, "waitSeconds": 1})).await;
        let items = match answer {
            Some((200, answer)) => answer["items"].as_array().cloned().unwrap_or_default(),
            Some((404, _)) => {
                let spec = json!({
                    "watch": [{"resource": "pods"}],
                    "leaseSeconds": LEASE_SECONDS,
                    "retryBaseMilliseconds": 5,
                    "retryMaxSeconds": 2,
                });
                send(address, "PUT", "", &spec).await;
                continue;
            }
            Some(_) | None => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // The lease began after the request was sent, so it ends later than this.
        let ends = asked + Duration::from_secs(LEASE_SECONDS);
        let name = |item: &Value| {
            format!("Pod/{}/{}", item["namespace"].as_str().unwrap(), item["name"].as_str().unwrap())
        };
        for item in &items {
            done.lock().unwrap().begin(&name(item), worker, life, ends);
        }
        for item in &items {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..4))).await;
            if Instant::now() >= ends {
                // Another worker may hold the key now.
                break;
            }
            let object = &item["object"];
            let state = (!object.is_null()).then(|| version(object));
            let lease = json!({"lease": item["lease"]});
            if random.random_range(0..20) == 0 {
                done.lock().unwrap().held.remove(&name(item));
                send(address, "POST", "/retry", &lease).await;
                continue;
            }
            {
                let mut done = done.lock().unwrap();
                done.versions.insert(name(item), state);
                done.held.remove(&name(item));
            }
            let answer = send(address, "POST", "/done", &lease).await;
            let mut done = done.lock().unwrap();
            done.answers += usize::from(matches!(answer, Some((204, _))));
            done.late += usize::from(matches!(answer, Some((409, _))));
        }
    }
}

/// The objects whose last version is not reconciled.
async fn missing(rig: &Rig, done: &Mutex<Done>) -> Vec<String> {
    let objects = rig.cluster.now().await;
    let done = done.lock().unwrap();
    let is_missing = |object: &&Value| done.versions.get(&key(object)) != Some(&Some(version(object)));
    objects.values().filter(is_missing).map(key).collect()
}

async fn reconcile(api: Version) {
    let Some(mut rig) = Setup::new(api).start().await else { return };
    let mut crew = Crew::start(rig.informerd.address);
    for _ in 0..Effort::new().kills {
        for fault in ["informerd", "kube-apiserver"] {
            let writes = rig.writers.ledger().count() + Effort::new().writes;
            let ledger = rig.writers.ledger();
            let written = async {
                while ledger.count() < writes {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            crew.kill_until(Box::pin(written)).await;
            let (title, done) = (format!("{fault} killed amid workers"), crew.done.clone());
            let killed = Box::pin(rig.measure(&title, async move |rig| {
                if fault == "informerd" {
                    done.lock().unwrap().begin_life();
                    rig.kill_informerd().await;
                    rig.informerd.revive().await;
                    done.lock().unwrap().begin_life();
                } else {
                    rig.api.kill(Process::ApiServer).await;
                    rig.api.launch(Process::ApiServer);
                }
            }));
            let killed = async {
                killed.await;
            };
            crew.kill_until(Box::pin(killed)).await;
        }
    }
    rig.writers.pause().await;
    let deadline = Instant::now() + RECONCILED_MAX;
    loop {
        let missing = missing(&rig, &crew.done).await;
        if missing.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "not reconciled at the last version: {missing:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (answers, late) = {
        let done = crew.done.lock().unwrap();
        (done.answers, done.late)
    };
    println!(
        "{} objects reconciled at their last versions; {answers} keys done, {late} answers were late, {} workers died",
        rig.cluster.now().await.len(),
        crew.deaths
    );
    crew.stop().await;
    rig.writers.resume();
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_object_is_reconciled_while_workers_and_servers_die_on_1_20() {
    Box::pin(reconcile(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_object_is_reconciled_while_workers_and_servers_die_on_1_36() {
    Box::pin(reconcile(Version::V1_36)).await;
}
