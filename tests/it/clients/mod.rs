//! Clients of other projects over the Kubernetes interface. After every fault each client holds what the API server
//! has.
//!
//! The Python and Node libraries are found by `INFORMERD_PYTHON` and `INFORMERD_NODE_MODULES`.

mod generated;
mod kube_rs;
mod kubectl;
mod node;
mod python;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use informerd::testing::sim::{Cluster, Cut, Requests, Scenario, Verb};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use crate::support::check::{expected, labeled};
use crate::support::gate::Gate;
use crate::support::server::TestServer;
use crate::support::{PATIENCE, in_time, mk_pod};

const WIDGETS: &str = "widgets.demo.informerd.dev";
/// Changes that the journal of each informer remembers: more than are written while a client is cut off, fewer than a
/// burst.
const JOURNAL: usize = 2_000;
const BURST: u64 = 3 * JOURNAL as u64;

/// What one follower holds, and how it got there.
#[derive(Debug, Default, serde::Deserialize)]
struct Report {
    /// `VERSION STEP` by `NAMESPACE/NAME`.
    objects: BTreeMap<String, String>,
    /// How often it listed.
    lists: u64,
    /// How often it received an object in an older version than it had.
    went_back: u64,
}

/// The followers of one client library, by name.
trait Followers {
    async fn report(&mut self) -> BTreeMap<String, Report>;
}

/// A client's program. It prints a report for each line that it reads.
struct Program {
    _child: Child,
    ask: ChildStdin,
    reports: Lines<BufReader<ChildStdout>>,
    _folder: tempfile::TempDir,
}

/// The name of a follower, the resource that it follows, and which objects of it the follower must hold.
type Wanted = (&'static str, &'static str, fn(&Value) -> bool);

/// An informerd whose cluster has already changed, behind a gate.
struct World {
    server: TestServer,
    gate: Gate,
    writer: Writer,
    writing: Option<(CancellationToken, tokio::task::JoinHandle<()>)>,
}

/// Creates, changes and deletes pods and widgets without end, always in the same order.
#[derive(Clone)]
struct Writer {
    cluster: Cluster,
    steps: Arc<AtomicU64>,
}

// === impl Program ===

impl Program {
    #[expect(
        clippy::print_stderr,
        reason = "what a client's program says of its errors is shown with the tests"
    )]
    fn start(mut command: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The Python client keeps what it discovered in the temporary folder, by the server's port.
        command.env("TMPDIR", folder.path()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Node.js makes each pipe that it inherits non-blocking for all processes that write to it. If Node.js is killed, the pipe stays
        // so, and the test harness cannot print which tests failed. So the program gets a pipe of its own for its errors.
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                eprintln!("{line}");
            }
        });
        let ask = child.stdin.take().unwrap();
        let reports = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, ask, reports, _folder: folder }
    }
}

impl Followers for Program {
    async fn report(&mut self) -> BTreeMap<String, Report> {
        self.ask.write_all(b"\n").await.expect("the client's program runs");
        let line = in_time("a report", self.reports.next_line()).await.unwrap();
        serde_json::from_str(&line.expect("the client's program goes on")).unwrap()
    }
}

// === impl Writer ===

impl Writer {
    fn new(cluster: Cluster) -> Self {
        Self { cluster, steps: Arc::default() }
    }

    /// Makes one write.
    fn step(&self) {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        let (name, namespace) = (
            format!("object-{}", step * 7 % 13),
            if step.is_multiple_of(3) { "kube-system" } else { "default" },
        );
        let resource = if step.is_multiple_of(2) { "pods" } else { WIDGETS };
        let labels = json!({"app": if step * 5 % 7 < 4 { "a" } else { "b" }, "step": step.to_string()});
        let written = if self.cluster.get(resource, namespace, &name).is_none() {
            let mut object = mk_pod(namespace, &name, "a");
            if resource == WIDGETS {
                object = json!({"metadata": object["metadata"], "spec": {"color": "red", "size": 1},
                    "apiVersion": "demo.informerd.dev/v1", "kind": "Widget"});
            }
            object["metadata"]["labels"] = labels;
            self.cluster.create(resource, object).map(drop)
        } else if step * 3 % 11 < 3 {
            self.cluster.delete(resource, namespace, &name)
        } else {
            self.cluster.patch(resource, namespace, &name, &json!({"metadata": {"labels": labels}})).map(drop)
        };
        written.unwrap_or_else(|refused| panic!("{resource} {namespace}/{name}: {}", refused.to_json()));
    }

    /// Makes 200 writes a second until it is cancelled.
    async fn run(self, cancel: CancellationToken) {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        while cancel.run_until_cancelled(pace.tick()).await.is_some() {
            self.step();
        }
    }
}

// === impl World ===

impl World {
    async fn start() -> Self {
        let cluster = Cluster::default();
        // The objects that the demo's cluster starts with: nodes, deployments, pods.
        drop(Scenario::new(cluster.clone(), 1, 1.0));
        let resources =
            ["pods", WIDGETS, "nodes", "events", "deployments", "replicasets", "configmaps", "leases"];
        let server = TestServer::over(cluster.clone(), &resources, |config| {
            config.limits.journal_len_max = JOURNAL;
        });
        let server = server.await;
        let gate = Gate::start(&[server.address]).await;
        let writer = Writer::new(cluster);
        (0..100).for_each(|_| writer.step());
        Self { server, gate, writer, writing: None }
    }

    /// Where clients connect.
    fn url(&self) -> String {
        format!("http://{}", self.gate.address)
    }

    /// Starts to write in the background.
    fn write(&mut self) {
        assert!(self.writing.is_none(), "the writer runs already");
        let cancel = CancellationToken::new();
        let task = tokio::spawn(self.writer.clone().run(cancel.clone()));
        self.writing = Some((cancel, task));
    }

    /// Stops the writer and waits until informerd has everything that was written.
    async fn pause(&mut self) {
        if let Some((cancel, task)) = self.writing.take() {
            cancel.cancel();
            task.await.unwrap();
        }
        self.server.synced().await;
        self.server.caught_up("pods").await;
        self.server.caught_up(WIDGETS).await;
    }

    /// Waits until this many more writes are made.
    async fn writes(&self, more: u64) {
        let until = self.writer.steps.load(Ordering::Relaxed) + more;
        let reached = || self.writer.steps.load(Ordering::Relaxed) >= until;
        crate::support::eventually("writes", reached).await;
    }

    /// Waits until each follower holds what the API server has, and returns how often each has listed.
    async fn converge(
        &mut self,
        after: &str,
        followers: &mut impl Followers,
        wanted: &[Wanted],
    ) -> BTreeMap<String, u64> {
        self.pause().await;
        let text = |object: &Value| {
            let step = object["metadata"]["labels"]["step"].as_str().unwrap_or("None");
            format!("{} {step}", object["metadata"]["resourceVersion"].as_str().unwrap())
        };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let reports = followers.report().await;
            assert_eq!(reports.len(), wanted.len(), "{:?}", reports.keys());
            let different = wanted.iter().find_map(|(name, resource, is_wanted)| {
                let objects = expected(&self.server.cluster, resource, is_wanted).into_iter();
                let objects: BTreeMap<_, _> = objects
                    .map(|(key, object)| (key.split_once('/').unwrap().1.to_owned(), text(&object)))
                    .collect();
                let report = &reports[*name];
                assert_eq!(report.went_back, 0, "{name} went back, after {after}");
                (report.objects != objects).then_some((name, &report.objects, objects))
            });
            let Some((name, held, there)) = different else {
                return reports.into_iter().map(|(name, report)| (name, report.lists)).collect();
            };
            let late = tokio::time::Instant::now() >= deadline;
            assert!(!late, "after {after}, {name} holds\n{held:?}\nand not\n{there:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Takes the followers through every fault, while objects change.
    async fn survive_every_fault(mut self, followers: &mut impl Followers, wanted: &[Wanted]) {
        self.write();
        let first = self.converge("the start", followers, wanted).await;

        self.write();
        for _ in 0..3 {
            self.writes(20).await;
            self.gate.cut().await;
            self.writes(20).await;
        }
        let cut = self.converge("cut connections", followers, wanted).await;
        assert_eq!(cut, first, "a client that was cut off continues without a list");

        self.write();
        self.server.informerd.kill().await;
        self.writes(50).await;
        self.server.informerd.revive().await;
        self.writes(50).await;
        self.converge("a kill", followers, wanted).await;

        self.write();
        self.server.informerd.restart().await;
        self.writes(50).await;
        let restarted = self.converge("a restart", followers, wanted).await;

        self.gate.set_backends(&[]);
        self.gate.cut().await;
        (0..BURST).for_each(|_| self.writer.step());
        self.pause().await;
        self.gate.set_backends(&[self.server.address]);
        self.write();
        let expired = self.converge("more writes than the journal has", followers, wanted).await;
        for (name, lists) in &expired {
            assert!(
                *lists > restarted[name],
                "{name} has listed {lists} times, so it was not told to list again"
            );
        }

        self.write();
        let watches = [Requests::of(Verb::Watch).on("pods"), Requests::of(Verb::Watch).on(WIDGETS)];
        self.server.cluster.compact();
        for watches in &watches {
            self.server.api.faults().cut_watches(watches, Cut::Clean);
        }
        self.writes(50).await;
        self.server.cluster.compact();
        self.converge("a compaction and an end of informerd's own watches", followers, wanted).await;
        self.server.stop().await;
    }
}

fn any(_: &Value) -> bool {
    true
}

fn has_the_app(object: &Value) -> bool {
    labeled(object, "app", "a")
}

fn is_in_the_namespace(object: &Value) -> bool {
    object["metadata"]["namespace"] == "default"
}

/// The path of a client's script.
fn script(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients").join(path)
}

/// Checks that a script which only reads prints the same for informerd and for the API server.
async fn reads_the_same(world: &World, command: impl Fn() -> Command) {
    let mut read = Vec::new();
    for url in [world.url(), world.server.api.url()] {
        read.push(printed(command().args(["read", &url])).await);
    }
    let (theirs, ours) = (read.pop().unwrap(), read.pop().unwrap());
    let theirs = theirs.as_object().unwrap();
    assert!(theirs["list"].as_array().is_some_and(|pods| pods.len() > 3), "too few to tell: {theirs:?}");
    for (what, answer) in theirs {
        assert_eq!(comparable(ours[what].clone()), comparable(answer.clone()), "{what}");
    }
    assert_eq!(ours.as_object().unwrap().len(), theirs.len());
}

/// Checks that requests which informerd does not serve are refused with the API server's reasons.
async fn is_refused(world: &World, mut command: Command) {
    let refused = printed(command.args(["refused", &world.url()])).await;
    let verbs = ["get", "list", "watch"];
    let followed = ["configmaps", "events", "nodes", "pods"];
    let expected = json!({
        "create": [405, "MethodNotAllowed"], "delete": [405, "MethodNotAllowed"], "log": [404, "NotFound"],
        "groups": ["demo.informerd.dev", "apps", "coordination.k8s.io"], "resources": followed.map(|name| json!([name, verbs])),
    });
    let sorted = |value: &Value| {
        let mut all = value.as_array().unwrap().clone();
        all.sort_by_key(Value::to_string);
        all
    };
    for (what, expected) in expected.as_object().unwrap() {
        assert_eq!(sorted(&refused[what]), sorted(expected), "{what}");
    }
}

/// The JSON that a script prints; panics with the script's errors if it fails.
async fn printed(command: &mut Command) -> Value {
    let folder = tempfile::tempdir().unwrap();
    command.env("TMPDIR", folder.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = in_time("a script", command.output()).await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// An answer without managedFields, which informerd drops, and without the types of list items, which informerd adds.
fn comparable(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("managedFields");
            fields.values_mut().for_each(|field| *field = comparable(field.take()));
        }
        Value::Array(items) => {
            for item in items {
                if let Some(object) = item.as_object_mut().filter(|item| item.contains_key("metadata")) {
                    object.remove("kind");
                    object.remove("apiVersion");
                }
                *item = comparable(item.take());
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}
