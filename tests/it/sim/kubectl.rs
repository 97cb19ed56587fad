//! The simulator with the real kubectl, if it is installed: what users of the demo type must work.

use std::process::Stdio;
use std::time::Duration;

use informerd::testing::sim::{ApiServer, Scenario};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::{WAIT, simulator};

/// A kubectl with a home folder and a kubeconfig of its own.
struct Kubectl {
    home: tempfile::TempDir,
}

impl Kubectl {
    /// `None`, with a `skipped:` line, if kubectl is not installed.
    async fn find(api_server: &ApiServer) -> Option<Self> {
        let version = Command::new("kubectl").args(["version", "--client"]).output().await;
        if version.is_err() {
            println!("skipped: no kubectl on the path");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config"), api_server.kubeconfig()).unwrap();
        Some(Self { home })
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("kubectl");
        command.args(line.split_whitespace()).env("HOME", self.home.path());
        command.env("KUBECONFIG", self.home.path().join("config")).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs a command that must succeed, and returns its output.
    async fn run(&self, line: &str) -> String {
        let output = tokio::time::timeout(WAIT, self.command(line).output()).await;
        let output = output.unwrap_or_else(|_| panic!("kubectl {line} hangs")).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {line}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command until its output is this.
    async fn until(&self, line: &str, expected: &str) {
        let deadline = tokio::time::Instant::now() + WAIT;
        loop {
            let printed = self.run(line).await;
            if printed == expected {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "kubectl {line}: {printed}, not {expected}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

const MANIFEST: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: mine}
data: {a: "1"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: mine}
spec:
  replicas: 2
  selector: {matchLabels: {app: mine}}
  template:
    metadata: {labels: {app: mine}}
    spec: {containers: [{name: main, image: "mine:1"}]}
---
apiVersion: demo.informerd.dev/v1
kind: Widget
metadata: {name: mine}
spec: {color: red, size: 1}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_writes_and_the_scenario_follows() {
    let (api_server, _) = simulator().await;
    let Some(kubectl) = Kubectl::find(&api_server).await else { return };
    let cancel = CancellationToken::new();
    let scenario = Scenario::new(api_server.cluster().clone(), 1, 50.0);
    let life = tokio::spawn(scenario.run(cancel.clone()));
    let file = kubectl.home.path().join("manifest.yaml");
    let apply = format!("apply -f {}", file.display());

    std::fs::write(&file, MANIFEST).unwrap();
    let applied = kubectl.run(&apply).await;
    assert_eq!(applied.matches(" created").count(), 3, "{applied}");
    let ready = "get deploy mine -o jsonpath={.status.readyReplicas}";
    let image = "get pods -l app=mine -o jsonpath={.items[*].spec.containers[0].image}";
    kubectl.until(ready, "2").await;
    std::fs::write(&file, MANIFEST.replace("mine:1", "mine:2").replace("size: 1", "size: 2")).unwrap();
    let applied = kubectl.run(&apply).await;
    assert_eq!(
        (applied.matches(" configured").count(), applied.matches(" unchanged").count()),
        (2, 1),
        "{applied}"
    );
    kubectl.run("rollout status deploy/mine --timeout=30s").await;
    kubectl.run("scale deploy mine --replicas=3").await;
    kubectl.until(ready, "3").await;
    assert_eq!(kubectl.run(image).await, "mine:2 mine:2 mine:2");

    kubectl.run("label cm mine x=y").await;
    kubectl.run("annotate wd mine x=y").await;
    kubectl.run(r#"patch cm mine -p {"data":{"a":"2"}}"#).await;
    kubectl.run(r#"patch wd mine --type=merge -p {"spec":{"size":7}}"#).await;
    kubectl.run("set image deploy/mine main=mine:3").await;
    assert_eq!(kubectl.run("get cm mine -o jsonpath={.metadata.labels.x}{.data.a}").await, "y2");
    assert_eq!(kubectl.run("get widgets.demo.informerd.dev mine -o jsonpath={.spec.size}").await, "7");
    assert_eq!(kubectl.run("auth can-i list pods").await, "yes\n");
    let server_side = kubectl.run(&format!("{apply} --server-side --force-conflicts")).await;
    assert_eq!(server_side.matches(" serverside-applied").count(), 3, "{server_side}");

    // The forced apply has set the image and two replicas again. Until the pods are those, the scenario deletes others.
    kubectl.until(image, "mine:2 mine:2").await;
    let pod = kubectl.run("get pods -l app=mine -o jsonpath={.items[0].metadata.name}").await;
    kubectl.run(&format!("delete pod {pod}")).await;
    kubectl.until(ready, "2").await;
    assert!(!kubectl.run("get pods -l app=mine -o name").await.contains(&pod));
    kubectl.run(&format!("delete -f {}", file.display())).await;
    kubectl.until("get pods -l app=mine -o name", "").await;
    assert!(kubectl.run("get all -A").await.contains("pod/"));
    cancel.cancel();
    life.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_watches() {
    let (api_server, _) = simulator().await;
    let Some(kubectl) = Kubectl::find(&api_server).await else { return };
    let cluster = api_server.cluster();
    let map = |name: &str| serde_json::json!({"metadata": {"name": name, "namespace": "default"}});
    cluster.create("configmaps", map("first")).unwrap();
    let mut child = kubectl.command("get cm -w -o name").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || tokio::time::timeout(WAIT, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert_eq!(next().await, "configmap/first");
    cluster.create("configmaps", map("second")).unwrap();
    assert_eq!(next().await, "configmap/second");
    child.kill().await.unwrap();
}
