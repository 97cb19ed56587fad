//! Against real API servers: whoever folds a stream holds what the API server holds, at every bookmark, while
//! informerd and the API server are killed over and over.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::support::check::{Objects, items, stripped};
use crate::support::client::Transport;
use crate::support::envtest::{self, Envtest, Options, Version};
use crate::support::recorder::Recorder;
use crate::support::server::{Informerd, kubeconfig, serve_config};

const TRANSPORTS: [Transport; 3] = [Transport::Sse, Transport::Ndjson, Transport::WebSocket];

/// How much is done; the whole of it is asked for by the environment, as it takes a quarter of an hour.
struct Effort {
    pods: usize,
    kills: usize,
}

impl Effort {
    fn new() -> Self {
        let number = |name: &str, default| {
            std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
        };
        Self { pods: number("INFORMERD_TEST_PODS", 300), kills: number("INFORMERD_TEST_KILLS", 2) }
    }
}

/// What the API server held at each version that was asked for.
struct Oracle {
    client: kube::Client,
    states: Mutex<HashMap<String, Option<Arc<Objects>>>>,
}

impl Oracle {
    /// The pods at exactly one version; `None` where the API server cannot tell (it is down, or forgot).
    async fn at(&self, version: &str) -> Option<Arc<Objects>> {
        let mut states = self.states.lock().await;
        if let Some(known) = states.get(version) {
            return known.clone();
        }
        let path = format!("/api/v1/pods?resourceVersion={version}&resourceVersionMatch=Exact");
        let state = get(&self.client, &path).await.map(|list| Arc::new(pods(&list)));
        states.insert(version.to_owned(), state.clone());
        state
    }
}

async fn get(client: &kube::Client, path: &str) -> Option<Value> {
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    tokio::time::timeout(Duration::from_secs(60), client.request(request)).await.ok()?.ok()
}

/// A list's items as informerd shows them: whole objects with their type.
fn pods(list: &Value) -> Objects {
    let mut list = list.clone();
    for item in list["items"].as_array_mut().expect("a list has items") {
        item["kind"] = "Pod".into();
        item["apiVersion"] = "v1".into();
        *item = stripped(item.take());
    }
    items(&list)
}

async fn send(client: &kube::Client, method: &str, path: &str, body: &Value) -> bool {
    let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(serde_json::to_vec(body).expect("JSON"))
        .expect("a request");
    let answer = tokio::time::timeout(Duration::from_secs(10), client.request::<Value>(request)).await;
    matches!(answer, Ok(Ok(_)))
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "soak"},
        "annotations": {"note": "<a> & \u{2028} b"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]}})
}

const COLLECTION: &str = "/api/v1/namespaces/default/pods";

async fn create(client: &kube::Client, count: usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let (client, next) = (client.clone(), next.clone());
        workers.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                let name = format!("pod-{index}");
                assert!(send(&client, "POST", COLLECTION, &pod(&name)).await, "{name} is not created");
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.expect("no panic");
    }
}

/// Writes whatever comes to mind until told to stop; what fails while the server is down is not repeated.
async fn write(client: kube::Client, count: usize, stop: Arc<AtomicBool>) -> usize {
    let mut random = StdRng::seed_from_u64(7);
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("pod-{}", random.random_range(0..count));
        let path = format!("{COLLECTION}/{name}");
        let wrote = match random.random_range(0..10) {
            0 => send(&client, "DELETE", &path, &json!({"gracePeriodSeconds": 0})).await,
            1 | 2 => send(&client, "POST", COLLECTION, &pod(&name)).await,
            _ => {
                let labels = json!({"turn": random.random_range(0..1000).to_string()});
                send(&client, "PATCH", &path, &json!({"metadata": {"labels": labels}})).await
            }
        };
        done += usize::from(wrote);
        // As fast as one client writes, without keeping the machine from everything else.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    done
}

/// How far a follower is.
#[derive(Default)]
struct Progress {
    /// Bookmarks at which it held what the API server held.
    compared: AtomicUsize,
    /// Connections it made.
    connections: AtomicUsize,
}

/// Folds a stream until told to stop, and compares at each bookmark.
async fn follow(
    transport: Transport,
    address: SocketAddr,
    oracle: Arc<Oracle>,
    progress: Arc<Progress>,
    stop: Arc<AtomicBool>,
) -> Recorder {
    let mut recorder = Recorder::new(transport, address, "/v1/watch/pods");
    let mut marks = 0;
    while !stop.load(Ordering::Relaxed) {
        recorder.step().await;
        progress.connections.store(recorder.connections, Ordering::Relaxed);
        if recorder.marks == marks || !recorder.synced {
            continue;
        }
        marks = recorder.marks;
        let version = recorder.token().and_then(|token| token.rsplit_once(':')).map(|(_, version)| version);
        let Some(expected) = oracle.at(version.expect("a bookmark has a token")).await else { continue };
        assert!(recorder.state() == &*expected, "P1: {transport:?} differs at {version:?}");
        progress.compared.fetch_add(1, Ordering::Relaxed);
    }
    recorder
}

async fn soak(version: Version) {
    let Some(mut api) = Envtest::start(version, Options::default()).await else { return };
    let effort = Effort::new();
    let client = envtest::client(&api.kubeconfig_path()).await;
    create(&client, effort.pods).await;
    let mut config = serve_config(kubeconfig(api.kubeconfig_path()), &["pods"]);
    config.limits.bookmark_interval = Duration::from_millis(700);
    let mut informerd = Informerd::start(config).await;
    let stop = Arc::new(AtomicBool::new(false));
    let oracle = Arc::new(Oracle { client: client.clone(), states: Mutex::default() });
    let writer = tokio::spawn(write(client, effort.pods, stop.clone()));
    let followers = TRANSPORTS.map(|transport| {
        let progress = Arc::new(Progress::default());
        let follower = follow(transport, informerd.address, oracle.clone(), progress.clone(), stop.clone());
        (tokio::spawn(follower), progress)
    });
    // Every follower has connected so often, and holds what the API server holds at a bookmark after that.
    let progress = async |connections: usize, what: &str| {
        let done = async {
            for (follower, progress) in &followers {
                let wait = async |holds: &dyn Fn() -> bool| {
                    while !holds() {
                        assert!(!follower.is_finished(), "a follower failed");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                wait(&|| progress.connections.load(Ordering::Relaxed) >= connections).await;
                let before = progress.compared.load(Ordering::Relaxed);
                wait(&|| progress.compared.load(Ordering::Relaxed) > before).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(120), done);
        done.await.unwrap_or_else(|_| panic!("no progress {what}"));
    };
    progress(1, "at first").await;
    for round in 1..=effort.kills {
        informerd.kill().await;
        informerd.revive().await;
        progress(round + 1, &format!("after informerd's kill {round}")).await;
        api.kill_api_server().await;
        api.start_api_server().await;
        progress(round + 1, &format!("after the API server's kill {round}")).await;
    }
    stop.store(true, Ordering::Relaxed);
    let writes = writer.await.expect("no panic");
    let expected = kubectl(&api.kubeconfig_path()).await;
    let mut report = Vec::new();
    for (follower, progress) in followers {
        let mut recorder = follower.await.expect("no panic");
        if let Some(expected) = &expected {
            recorder.wait_for_state(expected).await;
        }
        let compared = progress.compared.load(Ordering::Relaxed);
        report.push(format!(
            "{:?}: {compared} bookmarks equal, {} events, {} connections, {} resets",
            recorder.transport,
            recorder.events,
            recorder.connections,
            recorder.resets.len()
        ));
    }
    println!(
        "{version:?}: {} pods, {writes} writes, {} kills of each; {}",
        effort.pods,
        effort.kills,
        report.join("; ")
    );
    informerd.stop().await;
    api.stop().await;
}

/// What `kubectl get pods -o json` prints.
async fn kubectl(kubeconfig: &Path) -> Option<Objects> {
    let mut command = tokio::process::Command::new("kubectl");
    command.arg("--kubeconfig").arg(kubeconfig).args(["get", "pods", "-A", "-o", "json"]);
    let output = match command.output().await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no kubectl to compare with; apt-get install kubernetes-client");
            return None;
        }
        output => output.expect("kubectl runs"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(pods(&serde_json::from_slice(&output.stdout).expect("kubectl prints JSON")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_equal_the_api_server_at_every_bookmark_over_kills_on_1_20() {
    soak(Version::V1_20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_equal_the_api_server_at_every_bookmark_over_kills_on_1_36() {
    soak(Version::V1_36).await;
}
