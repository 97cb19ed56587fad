//! kubectl against informerd. `real/tables.rs` compares its tables with those of real API servers.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use super::{WIDGETS, World};
use crate::support::{eventually, in_time, mk_pod};

/// How often two outputs may differ because an age advanced between them.
const TRIES_MAX: usize = 5;

/// Commands that print the same at both servers.
const SAME: [&str; 26] = [
    "get pods object-1 -o yaml",
    "get pods object-1 object-10 -o json",
    "get pods -o json",
    "get pods -A -o yaml",
    "get pods -A -o name",
    "get pods -A -l app=a -o name",
    "get pods -A -l app!=a,step -o yaml",
    "get pods -A --field-selector=status.phase=Pending -o name",
    "get pods -A --field-selector=metadata.namespace!=default,status.phase=Running -o name",
    "get pods -A --chunk-size=2 -o name",
    "get pods -A --sort-by=.metadata.uid -o name",
    "get pods -A -o custom-columns=NAME:.metadata.name,PHASE:.status.phase",
    "get pods -n monitoring -o jsonpath={.items[*].status.podIP}",
    "get widgets,nodes,deploy -A -o name",
    "get deploy,rs,pods -n monitoring -o name",
    "get pods none",
    "get --raw /api/v1/namespaces/default/pods/none",
    "describe pods object-1",
    "describe pods -n monitoring",
    "describe deployments -A",
    "describe replicasets -A",
    "describe nodes",
    "describe widgets",
    "events -A",
    "rollout history deployment/grafana -n monitoring",
    "version",
];

/// Commands for what informerd does not serve, and kubectl's message for each.
const REFUSED: [(&str, &str); 12] = [
    ("logs object-1", "the server could not find the requested resource"),
    ("explain pods", "the server could not find the requested resource"),
    ("exec object-1 -- true", "the server does not allow this method on the requested resource"),
    (
        "port-forward -n monitoring deploy/grafana 0:80",
        "the server does not allow this method on the requested",
    ),
    ("delete pod object-1", "the server does not allow this method on the requested resource"),
    ("delete widgets --all", "the server does not allow this method on the requested resource"),
    ("label pod object-1 x=y", "the server does not allow this method on the requested resource"),
    ("patch pod object-1 -p {}", "the server does not allow this method on the requested resource"),
    (
        "scale deploy/grafana -n monitoring --replicas=1",
        "the server does not allow this method on the requested",
    ),
    ("create configmap new", "the server does not allow this method on the requested resource"),
    ("auth can-i list pods", "the server does not allow this method on the requested resource"),
    ("get secrets", "the server doesn't have a resource type \"secrets\""),
];

/// kubectl with a home folder of its own, so that it has no cached discovery of earlier servers.
struct Kubectl {
    home: tempfile::TempDir,
}

impl Kubectl {
    /// `None`, with a line that says so, where there is no kubectl.
    async fn find() -> Option<Self> {
        if Command::new("kubectl").args(["version", "--client"]).output().await.is_err() {
            println!("skipped: no kubectl; apt-get install kubernetes-client");
            return None;
        }
        Some(Self { home: tempfile::tempdir().unwrap() })
    }

    fn command(&self, server: &str, line: &str) -> Command {
        let mut command = Command::new("kubectl");
        command.args(["--server", server]).args(line.split_whitespace()).env("HOME", self.home.path());
        command.env("KUBECONFIG", self.home.path().join("none")).env_remove("KUBERNETES_SERVICE_HOST");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    async fn run(&self, server: &str, line: &str) -> Output {
        in_time(line, self.command(server, line).output()).await.unwrap()
    }

    /// What a command prints on both channels, with its exit code.
    async fn print(&self, server: &str, line: &str) -> String {
        let output = self.run(server, line).await;
        let text = [output.stdout, output.stderr].concat();
        format!("{}exit code {}", String::from_utf8(text).unwrap(), output.status.code().unwrap_or(-1))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_prints_the_same_at_informerd_and_at_the_api_server() {
    let Some(kubectl) = Kubectl::find().await else { return };
    let mut world = World::start().await;
    world.pause().await;
    let pod = world.server.cluster.get("pods", "default", "object-1").expect("it exists");
    let event = json!({
        "metadata": {"name": "told", "namespace": "default"}, "type": "Normal", "reason": "Told", "message": "of it",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "object-1", "uid": pod["metadata"]["uid"]},
    });
    world.server.cluster.create("events", event).unwrap();
    world.server.caught_up("events").await;
    let described = kubectl.print(&world.url(), "describe pods object-1").await;
    assert!(described.contains("of it"), "{described}");
    let mut different = Vec::new();
    for line in SAME {
        for tried in 1..=TRIES_MAX {
            let (ours, theirs) = (world.url(), world.server.api.url());
            let (ours, theirs) = tokio::join!(kubectl.print(&ours, line), kubectl.print(&theirs, line));
            if ours == theirs {
                break;
            }
            if tried == TRIES_MAX {
                different.push(format!("kubectl {line}\n--- informerd\n{ours}\n--- API server\n{theirs}"));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_api_resources_lists_the_followed_resources() {
    let Some(kubectl) = Kubectl::find().await else { return };
    let world = World::start().await;
    let lines = async |line: &str| {
        let output = kubectl.run(&world.url(), line).await;
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(
        lines("api-versions").await,
        ["apps/v1", "coordination.k8s.io/v1", "demo.informerd.dev/v1", "v1"]
    );
    let mut resources = lines("api-resources --no-headers").await;
    resources.sort();
    let followed = [
        "configmaps cm v1 true ConfigMap",
        "deployments deploy apps/v1 true Deployment",
        "events ev v1 true Event",
        "leases coordination.k8s.io/v1 true Lease",
        "nodes no v1 false Node",
        "pods po v1 true Pod",
        "replicasets rs apps/v1 true ReplicaSet",
        "widgets wd demo.informerd.dev/v1 true Widget",
    ];
    assert_eq!(resources, followed);
    assert_eq!(lines("api-resources --namespaced=false -o name").await, ["nodes"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_commands_that_do_more_than_read_are_refused() {
    let Some(kubectl) = Kubectl::find().await else { return };
    let mut world = World::start().await;
    world.pause().await;
    let before = world.server.cluster.revision();
    for (line, words) in REFUSED {
        let printed = kubectl.print(&world.url(), line).await;
        assert!(printed.contains(words) && !printed.ends_with("exit code 0"), "{line}: {printed}");
    }
    let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}});
    let unchecked = "the server does not allow this method on the requested resource";
    for (line, words) in [
        ("apply -f -", "failed to download openapi: the server could not find the requested resource"),
        ("apply --validate=false -f -", unchecked),
        ("apply --validate=false --server-side -f -", unchecked),
        ("create --validate=false -f -", unchecked),
    ] {
        let mut child = kubectl.command(&world.url(), line).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifest.to_string().as_bytes()).await.unwrap();
        let output = in_time(line, child.wait_with_output()).await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(words) && !output.status.success(), "{line}: {errors}");
    }
    assert_eq!(world.server.cluster.revision(), before, "something was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_wait_survives_a_cut_connection_and_a_restart() {
    let Some(kubectl) = Kubectl::find().await else { return };
    let mut world = World::start().await;
    for name in ["conditioned", "phased", "doomed"] {
        world.server.cluster.create("pods", mk_pod("default", name, "waits")).unwrap();
    }
    world.pause().await;
    let url = world.url();
    let wait = |what: &str| {
        let line = format!("wait --timeout=60s --for={what}");
        kubectl.command(&url, &line).spawn().unwrap()
    };
    let waiting = [
        ("pod/conditioned", wait("condition=Ready pod/conditioned")),
        ("pod/phased", wait("jsonpath={.status.phase}=Running pod/phased")),
        ("pod/doomed", wait("delete pod/doomed")),
        // `kubectl wait` for this condition asks again each second.
        ("pod/born", wait("create pod/born")),
    ];
    watched(&world, 3).await;
    world.gate.cut().await;
    watched(&world, 3).await;
    world.server.informerd.restart().await;
    world.server.synced().await;
    let cluster = &world.server.cluster;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    cluster.patch("pods", "default", "conditioned", &ready).unwrap();
    cluster.patch("pods", "default", "phased", &json!({"status": {"phase": "Running"}})).unwrap();
    cluster.delete("pods", "default", "doomed").unwrap();
    cluster.create("pods", mk_pod("default", "born", "waits")).unwrap();
    for (name, child) in waiting {
        let output = in_time(name, child.wait_with_output()).await.unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        // kubectl may warn of watches that were cut short.
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(*printed, format!("{name} condition met\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_watches_until_informerd_drains() {
    let Some(kubectl) = Kubectl::find().await else { return };
    let mut world = World::start().await;
    world.pause().await;
    let mut child = kubectl.command(&world.url(), "get widgets -A -w -o name").spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || in_time("a line", lines.next_line()).await.unwrap();
    for widget in world.server.cluster.list(WIDGETS) {
        assert_eq!(next().await, Some(named(&widget)));
    }
    let widget =
        |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"size": 1}});
    world.server.cluster.create(WIDGETS, widget("new")).unwrap();
    world.server.cluster.patch(WIDGETS, "default", "new", &json!({"spec": {"size": 2}})).unwrap();
    world.server.cluster.delete(WIDGETS, "default", "new").unwrap();
    for _ in 0..3 {
        assert_eq!(next().await.as_deref(), Some("widget.demo.informerd.dev/new"));
    }
    world.server.informerd.stop().await;
    assert_eq!(next().await, None);
    let output = in_time("kubectl's end", child.wait_with_output()).await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
}

fn named(widget: &Value) -> String {
    format!("widget.demo.informerd.dev/{}", widget["metadata"]["name"].as_str().unwrap())
}

/// Waits until informerd has this number of subscribers.
async fn watched(world: &World, subscribers: usize) {
    eventually("the watches", || world.server.hub.subscribers() == subscribers).await;
}
