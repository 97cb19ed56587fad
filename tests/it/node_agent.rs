//! The example `node_agent`: it keeps phase and IP of a node's pods in a file.

use informerd::testing::sim::Cluster;
use serde_json::{Value, json};

use crate::queues::{example, is_installed, object};
use crate::support::eventually;
use crate::support::server::TestServer;

const COMMAND: [&str; 2] = ["python3", "node_agent.py"];

#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_phase_and_ip_of_the_pods_of_a_node() {
    if !is_installed(COMMAND[0], "--version").await {
        return;
    }
    let cluster = Cluster::default();
    let pod = |name: &str, node: &str| {
        let status = json!({"phase": "Pending", "podIP": "10.0.0.1", "qosClass": "Burstable"});
        object(name, &json!({"spec": {"nodeName": node}, "status": status}))
    };
    cluster.create("pods", pod("a", "n1")).unwrap();
    cluster.create("pods", pod("b", "n2")).unwrap();
    let mut server = TestServer::over(cluster.clone(), &["pods"], |_| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pods.json");
    let written = || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    let until = async |expected: Value| eventually("the file", || written() == expected).await;
    let status = |phase: &str| json!({"phase": phase, "podIP": "10.0.0.1"});
    let mut agent = example(&COMMAND, folder.path(), server.address);
    until(json!({"one/a": status("Pending")})).await;

    let phase = |phase: &str| json!({"status": {"phase": phase}});
    cluster.patch("pods", "one", "a", &phase("Running")).unwrap();
    cluster.patch("pods", "one", "b", &phase("Running")).unwrap();
    cluster.create("pods", pod("c", "n1")).unwrap();
    until(json!({"one/a": status("Running"), "one/c": status("Pending")})).await;

    // informerd restarts, and a pod is deleted meanwhile.
    server.informerd.kill().await;
    cluster.delete("pods", "one", "c").unwrap();
    cluster.patch("pods", "one", "a", &phase("Succeeded")).unwrap();
    server.informerd.revive().await;
    until(json!({"one/a": status("Succeeded")})).await;
    cluster.delete("pods", "one", "a").unwrap();
    until(json!({})).await;
    assert!(agent.try_wait().unwrap().is_none(), "the agent has ended");
}
