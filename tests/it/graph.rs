//! `/v1/graph/…`: objects and those around them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::mk_pod;
use crate::support::server::TestServer;

pub(crate) const ALL: &[&str] = &[
    "pods",
    "services",
    "nodes",
    "namespaces",
    "configmaps",
    "replicasets",
    "deployments",
    "secrets",
    "serviceaccounts",
];

pub(crate) fn object(namespace: &str, name: &str, content: &Value) -> Value {
    let mut object = json!({"metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    for (member, value) in content.as_object().unwrap() {
        object[member] = value.clone();
    }
    object
}

pub(crate) fn owned(mut object: Value, kind: &str, owner: &Value) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }]);
    object
}

/// A deployment with two pods on two nodes, its service, and the objects that these refer to; objects of the same
/// names in another namespace; and a pod without owner.
pub(crate) async fn shop(resources: &[&str]) -> TestServer {
    let server = TestServer::start(resources).await;
    fill(&server).await;
    server
}

async fn fill(server: &TestServer) {
    let cluster = &server.cluster;
    for name in ["n1", "n2"] {
        cluster.create("nodes", object("", name, &json!({}))).unwrap();
    }
    for namespace in ["shop", "other"] {
        let _ = cluster.create("namespaces", object("", namespace, &json!({})));
        cluster.create("configmaps", object(namespace, "settings", &json!({}))).unwrap();
        let selector = json!({"spec": {"type": "ClusterIP", "selector": {"app": "web"}}});
        cluster.create("services", object(namespace, "web", &selector)).unwrap();
    }
    cluster.create("services", object("shop", "none", &json!({"spec": {"type": "ClusterIP"}}))).unwrap();
    let deployment = cluster.create("deployments", object("shop", "web", &json!({"spec": {}}))).unwrap();
    let set = owned(object("shop", "web-1", &json!({"spec": {}})), "Deployment", &deployment);
    let set = cluster.create("replicasets", set).unwrap();
    for (name, node) in [("a", "n1"), ("b", "n2")] {
        let mut pod = owned(mk_pod("shop", name, "web"), "ReplicaSet", &set);
        pod["spec"]["nodeName"] = node.into();
        pod["spec"]["volumes"] =
            json!([{"configMap": {"name": "settings"}}, {"configMap": {"name": "missing"}}]);
        cluster.create("pods", pod).unwrap();
    }
    let mut pod = mk_pod("shop", "alone", "db");
    pod["spec"]["nodeName"] = "n1".into();
    cluster.create("pods", pod).unwrap();
    for informer in server.hub.informers() {
        server.caught_up(&informer.spec.resource.canonical()).await;
    }
}

/// The nodes and edges of a graph as texts: `pods shop/a`, and `pods shop/a > nodes n1`.
fn shown(graph: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let text = |node: &Value| {
        let namespace =
            node["namespace"].as_str().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {namespace}{}", node["resource"].as_str().unwrap(), node["name"].as_str().unwrap())
    };
    let nodes: Vec<_> = graph["nodes"].as_array().unwrap().iter().map(text).collect();
    let at = |id: &Value| &nodes[id.as_u64().unwrap() as usize];
    let edges = graph["edges"].as_array().unwrap().iter();
    let edges = edges.map(|edge| format!("{} > {}", at(&edge["from"]), at(&edge["to"]))).collect();
    (nodes.iter().cloned().collect(), edges)
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_has_the_owners_and_dependents_of_an_object() {
    let server = shop(ALL).await;
    let up = [
        "pods shop/a > nodes n1",
        "pods shop/a > configmaps shop/settings",
        "pods shop/a > replicasets.apps shop/web-1",
        "replicasets.apps shop/web-1 > deployments.apps shop/web",
    ];
    let graph = server.get("/v1/graph/pods/shop/a?direction=owners").await.json();
    assert_eq!(shown(&graph).1, set(&up), "{graph}");
    assert_eq!(graph["nodes"][0]["selected"], true);
    assert_eq!((&graph["notFollowed"], &graph["truncated"]), (&json!([]), &Value::Null));
    let paths: BTreeSet<_> =
        graph["edges"].as_array().unwrap().iter().map(|edge| edge["by"].as_str().unwrap()).collect();
    let expected = ["metadata.ownerReferences.uid", "spec.nodeName", "spec.volumes.configMap.name"];
    assert_eq!(paths, expected.into_iter().collect());
    let graph = server.get("/v1/graph/pods/shop/a").await.json();
    let both: Vec<_> = up.into_iter().chain(["services shop/web > pods shop/a"]).collect();
    assert_eq!(shown(&graph).1, set(&both), "the node's other pod is in the graph");
    let graph = server.get("/v1/graph/pods/shop/a?direction=owners&depth=1").await.json();
    assert_eq!(shown(&graph).1, set(&up[..3]));
    let graph = server.get("/v1/graph/pods/shop/a?depth=0").await.json();
    assert_eq!(shown(&graph), (set(&["pods shop/a"]), set(&[])));
    let graph = server.get("/v1/graph/deployments/shop/web?direction=dependents").await.json();
    let down = [
        "replicasets.apps shop/web-1 > deployments.apps shop/web",
        "pods shop/a > replicasets.apps shop/web-1",
        "pods shop/b > replicasets.apps shop/web-1",
        "services shop/web > pods shop/a",
        "services shop/web > pods shop/b",
    ];
    assert_eq!(shown(&graph).1, set(&down), "{graph}");
    // A cluster-scoped object, with pods of all namespaces; then the pods that a service selects.
    let graph = server.get("/v1/graph/nodes/n1?direction=dependents&depth=1").await.json();
    assert_eq!(shown(&graph).1, set(&["pods shop/a > nodes n1", "pods shop/alone > nodes n1"]));
    let graph = server.get("/v1/graph/services/shop?direction=owners&depth=1").await.json();
    assert_eq!(
        shown(&graph).0,
        set(&["services shop/none", "services shop/web", "pods shop/a", "pods shop/b"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_lists_linked_kinds_that_are_not_followed() {
    let server = shop(&["pods", "replicasets", "services"]).await;
    let graph = server.get("/v1/graph/pods/shop/a?direction=owners").await.json();
    assert_eq!(shown(&graph).0, set(&["pods shop/a", "replicasets.apps shop/web-1"]));
    assert_eq!(graph["notFollowed"], json!(["configmaps", "deployments.apps", "nodes", "serviceaccounts"]));
    let graph = server.get("/v1/graph/pods/shop/a?direction=dependents&depth=1").await.json();
    assert_eq!(shown(&graph).0, set(&["pods shop/a", "services shop/web"]));
    let missing = graph["notFollowed"].as_array().unwrap();
    assert!(missing.contains(&"networkpolicies.networking.k8s.io".into()), "{graph}");
    let server =
        TestServer::start_with(&["pods", "nodes"], |config| config.watches[0].metadata_only = true).await;
    fill(&server).await;
    let graph = server.get("/v1/graph/pods/shop/a?direction=owners").await.json();
    assert!(graph["notHeld"].as_array().unwrap().contains(&"pods spec.nodeName".into()), "{graph}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_beyond_graph_nodes_max_is_truncated_and_says_so() {
    let server = TestServer::start(&["pods", "nodes"]).await;
    server.cluster.create("nodes", object("", "node-1", &json!({}))).unwrap();
    for number in 0..1005 {
        server.cluster.create("pods", mk_pod("shop", &format!("p{number}"), "web")).unwrap();
    }
    server.caught_up("pods").await;
    let graph = server.get("/v1/graph/nodes/node-1").await.json();
    assert_eq!(graph["truncated"], json!({"limit": "graph_nodes_max", "max": 1000}));
    assert_eq!(graph["nodes"].as_array().unwrap().len(), 1000);
    let graph = server.get("/v1/graph/pods/shop?depth=0").await.json();
    assert_eq!(graph["truncated"]["limit"], "graph_nodes_max");
    let graph = server.get("/v1/graph/pods/shop/p0?direction=owners").await.json();
    assert_eq!((graph["nodes"].as_array().unwrap().len(), &graph["truncated"]), (2, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn declared_links_make_edges_and_relations() {
    let server = TestServer::start_with(&["configmaps", "secrets", "pods"], |config| {
        let links = [
            r#"{"from":"configmaps","path":"data.secret","to":"secrets"}"#,
            r#"{"from":"configmaps","selector":"picks","to":"pods"}"#,
        ];
        config.links = links.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    })
    .await;
    let content = json!({"data": {"secret": "s"}, "picks": {"matchExpressions": [
        {"key": "app", "operator": "In", "values": ["web", "db"]},
    ]}});
    server.cluster.create("configmaps", object("shop", "c", &content)).unwrap();
    server.cluster.create("secrets", object("shop", "s", &json!({}))).unwrap();
    for (namespace, name, app) in [("shop", "a", "web"), ("shop", "b", "api"), ("other", "c", "web")] {
        server.cluster.create("pods", mk_pod(namespace, name, app)).unwrap();
    }
    for resource in ["configmaps", "secrets", "pods"] {
        server.caught_up(resource).await;
    }
    let graph = server.get("/v1/graph/configmaps/shop/c?direction=owners").await.json();
    assert_eq!(
        shown(&graph).1,
        set(&["configmaps shop/c > secrets shop/s", "configmaps shop/c > pods shop/a"]),
        "{graph}"
    );
    let graph = server.get("/v1/graph/secrets/shop/s").await.json();
    assert_eq!(shown(&graph).1, set(&["configmaps shop/c > secrets shop/s"]));
    let list = server.get("/v1/snapshot/secrets/shop/s?join=configmaps").await.json();
    assert_eq!(listed(&list), ["Secret shop/s", "ConfigMap shop/c"]);
}

/// The objects of a list, as `Pod shop/a`.
pub(crate) fn listed(list: &Value) -> Vec<String> {
    let text = |object: &Value| {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().map(|name| format!("{name}/")).unwrap_or_default();
        format!("{} {namespace}{}", object["kind"].as_str().unwrap(), metadata["name"].as_str().unwrap())
    };
    list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_graph_or_join_request_is_refused_by_parameter() {
    let server = TestServer::start_with(&["pods", "services", "nodes", "secrets"], |config| {
        config.watches[2].metadata_only = true;
        config.watches[1].metadata_only = true;
    })
    .await;
    server.cluster.create("pods", mk_pod("shop", "a", "web")).unwrap();
    server.caught_up("pods").await;
    for (target, status, field, words) in [
        ("/v1/graph/pods?depth=11", 400, "depth", "from 0 to 10"),
        ("/v1/graph/pods?depth=x", 400, "depth", "from 0 to 10"),
        ("/v1/graph/pods?direction=up", 400, "direction", "owners, dependents or both"),
        ("/v1/graph/pods?fields=spec", 400, "fields", "unknown parameter"),
        ("/v1/graph/pods/shop/none", 404, "", "not found"),
        ("/v1/graph/nothing", 404, "", "nothing"),
        ("/v1/snapshot/pods/shop/none?join=nodes", 404, "", "not found"),
        ("/v1/snapshot/pods?join=", 400, "join", "pods have "),
        ("/v1/snapshot/pods?join=wings", 400, "join", "networkpolicies.networking.k8s.io, nodes, owners"),
        ("/v1/snapshot/pods?join=nodes,no", 400, "join", "each relation once"),
        ("/v1/snapshot/pods?join=configmaps", 400, "join", "configmaps"),
        ("/v1/snapshot/pods,nodes?join=nodes", 400, "join", "another resource"),
        ("/v1/snapshot/pods?join=services", 400, "join", "keeps no spec.selector of services"),
        ("/v1/snapshot/pods?join=nodes&limit=5", 400, "limit", "no pages"),
        ("/v1/snapshot/pods?join=nodes&fields=spec", 400, "fields", "nodes"),
        ("/v1/watch/pods?join=wings", 400, "join", "networkpolicies.networking.k8s.io, nodes, owners"),
        ("/v1/watch/pods?join=services", 400, "join", "keeps no spec.selector of services"),
        ("/v1/watch/pods?join=nodes&fields=spec", 400, "fields", "nodes"),
        ("/v1/watch/pods?join=nodes&changed=spec", 400, "changed", "nodes"),
        ("/v1/world/pods?join=nodes", 400, "join", "unknown parameter"),
    ] {
        let refused = server.get(target).await;
        assert_eq!(refused.status(), status, "{target}: {}", refused.text());
        let status = refused.json();
        assert!(status["message"].as_str().unwrap().contains(words), "{target}: {status}");
        if !field.is_empty() {
            assert_eq!(status["details"]["causes"][0]["field"], field, "{target}");
        }
    }
}
