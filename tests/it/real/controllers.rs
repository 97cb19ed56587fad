//! The example controllers against real API servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use informerd::testing::config::PassThrough;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cluster::administer;
use crate::queues::{example, is_installed};
use crate::support::envtest::{self, Envtest, FIRST_TOKEN, Options, Process, Version};
use crate::support::server::{Informerd, kubeconfig, serve_config};
use crate::support::{eventually, in_time};

/// A script for each language, with the programs that it needs and their version arguments.
const WORKERS: [([&str; 2], &[[&str; 2]]); 3] = [
    (["python3", "controller.py"], &[["python3", "--version"]]),
    (["node", "controller.mjs"], &[["node", "--version"]]),
    (["sh", "controller.sh"], &[["curl", "--version"], ["jq", "--version"]]),
];

/// An API server, an administrator's client, and an informerd whose kubeconfig may also write.
struct Stage {
    api: Envtest,
    client: kube::Client,
    informerd: Informerd,
    folder: TempDir,
}

impl Stage {
    /// `None`, with a `skipped:` line, if the servers are not installed.
    async fn start(version: Version, resources: &[&str]) -> Option<Self> {
        let api = Envtest::start(version, Options::default()).await?;
        let client = envtest::client(&api.kubeconfig_path()).await;
        let address = api.address(Process::ApiServer);
        let path = api.write_kubeconfig("kubeconfig.informerd", address, &format!("token: {FIRST_TOKEN}"));
        let mut config = serve_config(kubeconfig(path), resources);
        config.pass_through = PassThrough::All;
        let stage = Self {
            api,
            client,
            informerd: Informerd::start(config).await,
            folder: tempfile::tempdir().unwrap(),
        };
        stage.send("POST", "/api/v1/namespaces", Some(json!({"metadata": {"name": "one"}}))).await;
        Some(stage)
    }

    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        administer(&self.client, method, path, body.as_ref(), Duration::from_secs(30)).await
    }

    fn worker(&self, command: &[&str]) -> tokio::process::Child {
        example(command, self.folder.path(), self.informerd.address)
    }
}

/// The phase that the workers wrote to each pod's file.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(folder.join("pods")) else { return BTreeMap::new() };
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let text = std::fs::read_to_string(entry.path()).ok()?;
        Some((entry.file_name().into_string().ok()?, text.trim().to_owned()))
    };
    entries.filter_map(read).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_in_several_languages_share_a_queue_on_1_20() {
    Box::pin(share_a_queue(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_in_several_languages_share_a_queue_on_1_36() {
    Box::pin(share_a_queue(Version::V1_36)).await;
}

/// Workers in several languages reconcile one folder of files, while pods change, workers die and informerd restarts.
async fn share_a_queue(version: Version) {
    const PODS: &str = "/api/v1/namespaces/one/pods";
    let Some(mut stage) = Stage::start(version, &["pods"]).await else { return };
    let mut workers = Vec::new();
    for (command, needs) in WORKERS {
        let mut is_here = true;
        for [program, version] in needs {
            is_here &= is_installed(program, version).await;
        }
        if is_here {
            workers.push((command, stage.worker(&command)));
        }
    }
    if workers.is_empty() {
        return;
    }
    let mut expected = BTreeMap::new();
    for number in 0..60 {
        let name = format!("p{}", number % 12);
        let (file, path) = (format!("one_{name}"), format!("{PODS}/{name}"));
        if !expected.contains_key(&file) {
            let spec = json!({"containers": [{"name": "main", "image": "main:1"}]});
            let pod = json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Pending"}});
            stage.send("POST", PODS, Some(pod)).await;
            expected.insert(file.clone(), String::new());
        }
        if number % 9 == 8 {
            stage.send("DELETE", &format!("{path}?gracePeriodSeconds=0"), None).await;
            expected.remove(&file);
        } else {
            let phase = ["Pending", "Running", "Failed"][number % 3];
            // The small 1.36 server has no status subresource for pods.
            let path = if version == Version::V1_20 { format!("{path}/status") } else { path };
            stage.send("PATCH", &path, Some(json!({"status": {"phase": phase}}))).await;
            expected.insert(file, phase.to_owned());
        }
        if number % 20 == 19 {
            let at = number / 20 % workers.len();
            let (command, worker) = &mut workers[at];
            worker.kill().await.unwrap();
            *worker = stage.worker(&*command);
        }
    }
    let folder = stage.folder.path().to_owned();
    eventually("a file for each pod", || files(&folder) == expected).await;
    // Every key is queued again after a restart. All deletions happen before it, as nobody reports deletions made
    // meanwhile.
    stage.informerd.kill().await;
    let path = format!("{PODS}/p1{}", if version == Version::V1_20 { "/status" } else { "" });
    stage.send("PATCH", &path, Some(json!({"status": {"phase": "Succeeded"}}))).await;
    expected.insert("one_p1".to_owned(), "Succeeded".to_owned());
    stage.informerd.revive().await;
    eventually("a file for each pod after the restart", || files(&folder) == expected).await;
    drop(workers);
    stage.api.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_has_the_ips_of_the_ready_pods_of_its_service_on_1_20() {
    const MAP: &str = "/api/v1/namespaces/one/configmaps/web-pod-ips";
    const SLICES: &str = "/apis/discovery.k8s.io/v1beta1/namespaces/one/endpointslices";
    if !is_installed("python3", "--version").await {
        return;
    }
    let resources = ["services", "endpointslices", "configmaps"];
    let Some(stage) = Stage::start(Version::V1_20, &resources).await else { return };
    let mut workers = [0, 1].map(|_| stage.worker(&["python3", "pod_ips.py"]));
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    stage.send("POST", "/api/v1/namespaces/one/services", Some(service)).await;
    let endpoint = |ip: &str, ready: bool| json!({"addresses": [ip], "conditions": {"ready": ready}});
    let slice = json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [endpoint("10.0.0.2", true), endpoint("10.0.0.3", false)],
    });
    stage.send("POST", SLICES, Some(slice)).await;
    let until = async |ips: &str| {
        let reached = async {
            loop {
                let map =
                    super::cluster::send(&stage.client, "GET", MAP, None, Duration::from_secs(10)).await;
                if map.is_some_and(|map| map["data"]["ips"] == ips) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        in_time(&format!("{ips:?}"), reached).await;
    };
    until("10.0.0.2\n").await;
    workers[0].kill().await.unwrap();
    let ready = json!({"endpoints": [endpoint("10.0.0.2", true), endpoint("10.0.0.3", true)]});
    stage.send("PATCH", &format!("{SLICES}/web-1"), Some(ready)).await;
    until("10.0.0.2\n10.0.0.3\n").await;
    // A ConfigMap that is changed or deleted by others is written again.
    stage.send("PATCH", MAP, Some(json!({"data": {"ips": "none"}}))).await;
    until("10.0.0.2\n10.0.0.3\n").await;
    stage.send("DELETE", MAP, None).await;
    until("10.0.0.2\n10.0.0.3\n").await;
    stage.send("DELETE", &format!("{SLICES}/web-1"), None).await;
    until("").await;
    drop(workers);
    stage.api.stop().await;
}
