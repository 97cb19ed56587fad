//! The example controller `pod-ips`: it writes a ConfigMap for each Service, with the IPs of its ready pods.

use std::collections::BTreeMap;

use informerd::testing::config::PassThrough;
use informerd::testing::sim::Cluster;
use serde_json::{Value, json};

use crate::queues::{define, example, is_installed, object};
use crate::support::eventually;
use crate::support::server::TestServer;

const COMMAND: [&str; 2] = ["python3", "pod_ips.py"];

/// An EndpointSlice of a Service: addresses, each with its `ready` condition, which may be missing.
fn slice(name: &str, service: &str, endpoints: &[(&str, Option<bool>)]) -> Value {
    let endpoints = endpoints.iter().map(|(ip, ready)| match ready {
        Some(ready) => json!({"addresses": [ip], "conditions": {"ready": ready}}),
        None => json!({"addresses": [ip]}),
    });
    let mut slice = object(name, &json!({"addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>()}));
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": service});
    slice
}

/// The IPs that the example has written, by ConfigMap.
fn written(cluster: &Cluster) -> BTreeMap<String, String> {
    let maps = cluster.list("configmaps");
    let ours =
        maps.iter().filter(|map| map["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "pod-ips");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ours.map(|map| (text(&map["metadata"]["name"]), text(&map["data"]["ips"]))).collect()
}

async fn until(cluster: &Cluster, expected: &[(&str, &str)]) {
    let expected = expected.iter().map(|(name, ips)| ((*name).to_owned(), (*ips).to_owned()));
    let expected: BTreeMap<_, _> = expected.collect();
    eventually(&format!("{expected:?}"), || written(cluster) == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_has_the_ips_of_the_ready_pods_of_its_service() {
    if !is_installed(COMMAND[0], "--version").await {
        return;
    }
    let cluster = Cluster::default();
    define(&cluster);
    let service = |name: &str| object(name, &json!({"spec": {}}));
    for name in ["web", "db"] {
        cluster.create("services", service(name)).unwrap();
    }
    cluster
        .create("endpointslices", slice("web-1", "web", &[("10.0.0.2", Some(true)), ("10.0.0.1", None)]))
        .unwrap();
    cluster.create("endpointslices", slice("web-2", "web", &[("10.0.0.3", Some(false))])).unwrap();
    // A ConfigMap without the example's label is left alone.
    let other = object("taken-pod-ips", &json!({"data": {"ips": "mine"}}));
    cluster.create("configmaps", other.clone()).unwrap();
    cluster.create("services", service("taken")).unwrap();
    let resources = ["services", "endpointslices", "configmaps"];
    let mut server =
        TestServer::over(cluster.clone(), &resources, |config| config.pass_through = PassThrough::All).await;
    let folder = tempfile::tempdir().unwrap();
    let start = |server: &TestServer| example(&COMMAND, folder.path(), server.address);
    let mut workers = [start(&server), start(&server)];
    until(&cluster, &[("db-pod-ips", ""), ("web-pod-ips", "10.0.0.1\n10.0.0.2\n")]).await;

    // A pod becomes ready, another one is deleted, and a worker dies.
    let ready = json!({"endpoints": [{"addresses": ["10.0.0.3"], "conditions": {"ready": true}}]});
    cluster.patch("endpointslices", "one", "web-2", &ready).unwrap();
    workers[0].kill().await.unwrap();
    cluster
        .patch("endpointslices", "one", "web-1", &json!({"endpoints": [{"addresses": ["10.0.0.1"]}]}))
        .unwrap();
    until(&cluster, &[("db-pod-ips", ""), ("web-pod-ips", "10.0.0.1\n10.0.0.3\n")]).await;

    // A ConfigMap that is changed or deleted by others is written again.
    cluster.patch("configmaps", "one", "web-pod-ips", &json!({"data": {"ips": "none"}})).unwrap();
    until(&cluster, &[("db-pod-ips", ""), ("web-pod-ips", "10.0.0.1\n10.0.0.3\n")]).await;
    cluster.delete("configmaps", "one", "db-pod-ips").unwrap();
    cluster.create("endpointslices", slice("db-1", "db", &[("10.0.1.1", None)])).unwrap();
    until(&cluster, &[("db-pod-ips", "10.0.1.1\n"), ("web-pod-ips", "10.0.0.1\n10.0.0.3\n")]).await;
    cluster.delete("configmaps", "one", "db-pod-ips").unwrap();
    until(&cluster, &[("db-pod-ips", "10.0.1.1\n"), ("web-pod-ips", "10.0.0.1\n10.0.0.3\n")]).await;

    // informerd restarts, and a Service is deleted.
    server.informerd.kill().await;
    cluster.delete("endpointslices", "one", "web-2").unwrap();
    server.informerd.revive().await;
    until(&cluster, &[("db-pod-ips", "10.0.1.1\n"), ("web-pod-ips", "10.0.0.1\n")]).await;
    cluster.delete("services", "one", "db").unwrap();
    until(&cluster, &[("web-pod-ips", "10.0.0.1\n")]).await;
    let kept = cluster.get("configmaps", "one", "taken-pod-ips").unwrap();
    assert_eq!(kept["data"], other["data"]);
    let owner = &cluster.get("configmaps", "one", "web-pod-ips").unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("Service"), &json!("web")));
}
