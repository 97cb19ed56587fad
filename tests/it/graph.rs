//! `/v1/graph/…`: the objects around others. `join=`: snapshots with related objects.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::mk_pod;
use crate::support::server::TestServer;

const ALL: &[&str] = &[
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

fn object(namespace: &str, name: &str, content: &Value) -> Value {
    let mut object = json!({"metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    for (member, value) in content.as_object().unwrap() {
        object[member] = value.clone();
    }
    object
}

fn owned(mut object: Value, kind: &str, owner: &Value) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }]);
    object
}

/// A deployment with two pods on two nodes, its service, and what they name; the same names elsewhere, and a pod of nobody.
async fn shop(resources: &[&str]) -> TestServer {
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

/// A graph as texts: `pods shop/a`, and `pods shop/a > nodes n1`.
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
async fn a_graph_has_what_an_object_refers_to_and_what_refers_to_it() {
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
    assert_eq!(shown(&graph).1, set(&both), "the node's other pod is not around this one");
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
    // Of a cluster's object, from all namespaces; and what a service selects.
    let graph = server.get("/v1/graph/nodes/n1?direction=dependents&depth=1").await.json();
    assert_eq!(shown(&graph).1, set(&["pods shop/a > nodes n1", "pods shop/alone > nodes n1"]));
    let graph = server.get("/v1/graph/services/shop?direction=owners&depth=1").await.json();
    assert_eq!(
        shown(&graph).0,
        set(&["services shop/none", "services shop/web", "pods shop/a", "pods shop/b"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_says_which_kinds_are_not_followed() {
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
async fn a_graph_that_is_too_large_says_so() {
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
async fn declared_links_are_links() {
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

/// The objects of a list: `Pod shop/a`.
fn listed(list: &Value) -> Vec<String> {
    let text = |object: &Value| {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().map(|name| format!("{name}/")).unwrap_or_default();
        format!("{} {namespace}{}", object["kind"].as_str().unwrap(), metadata["name"].as_str().unwrap())
    };
    list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_joins_what_the_selected_objects_are_linked_to() {
    let server = shop(ALL).await;
    for (target, expected) in [
        (
            "pods?fieldSelector=spec.nodeName%3Dn1&join=owners,namespaces,nodes,services",
            &["Pod shop/a", "Pod shop/alone", "Namespace shop", "Node n1", "Service shop/web"][..],
        ),
        ("pods/shop/a?join=configmaps", &["Pod shop/a", "ConfigMap shop/settings"]),
        ("pods/shop/alone?join=owners,svc", &["Pod shop/alone"]),
        // Against the direction of the link, by name and by selector.
        ("nodes/n1?join=pods", &["Node n1", "Pod shop/a", "Pod shop/alone"]),
        (
            "configmaps?join=pods",
            &["ConfigMap other/settings", "ConfigMap shop/settings", "Pod shop/a", "Pod shop/b"],
        ),
        ("services/shop?join=po", &["Service shop/none", "Service shop/web", "Pod shop/a", "Pod shop/b"]),
        ("services/other?join=pods", &["Service other/web"]),
        // All selected resources that have the relation.
        ("services,pods?labelSelector=app%3Ddb&join=nodes", &["Pod shop/alone", "Node n1"]),
    ] {
        let list = server.get(&format!("/v1/snapshot/{target}")).await.json();
        let mut found = listed(&list);
        let (selected, owners): (Vec<_>, Vec<_>) =
            found.drain(..).partition(|text| !text.starts_with("Replica") && !text.starts_with("Deploy"));
        assert_eq!(selected, expected, "{target}");
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("List"), &json!("v1")));
        let all_the_way = ["ReplicaSet shop/web-1", "Deployment shop/web"];
        assert_eq!(owners.len(), if target.contains("spec.nodeName") { 2 } else { 0 }, "{target}");
        assert!(owners.iter().all(|owner| all_the_way.contains(&&**owner)), "{owners:?}");
    }
    let answer = server.get("/v1/snapshot/pods/shop/a?join=nodes&fields=metadata.labels").await;
    let parts = answer.json();
    assert_eq!((listed(&parts).len(), &parts["items"][0]["spec"]), (2, &Value::Null), "{parts}");
    let answer = server.get_with("/v1/snapshot/pods?join=nodes", &[("Accept", "application/x-ndjson")]).await;
    assert_eq!(answer.text().trim_end().lines().count(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_has_a_tag_of_everything_in_it() {
    let server = shop(ALL).await;
    let target = "/v1/snapshot/pods/shop/a?join=nodes";
    let answer = server.get(target).await;
    let tag = answer.header("etag").unwrap().to_owned();
    assert!(answer.header("informerd-resume").unwrap().starts_with("pods:"));
    let same = server.get_with(target, &[("If-None-Match", &tag)]).await;
    assert_eq!(same.status(), 304);
    server.cluster.patch("nodes", "", "n2", &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    server.caught_up("nodes").await;
    assert_eq!(server.get_with(target, &[("If-None-Match", &tag)]).await.status(), 304);
    server.cluster.patch("nodes", "", "n1", &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    server.caught_up("nodes").await;
    assert_eq!(server.get_with(target, &[("If-None-Match", &tag)]).await.status(), 200);
}

/// The join that a reader of the whole state computes.
fn expected(server: &TestServer) -> BTreeSet<String> {
    let pods = server.cluster.list("pods");
    let pods: Vec<_> = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "web").collect();
    let mut found: BTreeSet<String> =
        pods.iter().map(|pod| format!("Pod shop/{}", pod["metadata"]["name"])).collect();
    for node in server.cluster.list("nodes") {
        let name = &node["metadata"]["name"];
        if pods.iter().any(|pod| pod["spec"]["nodeName"] == *name) {
            found.insert(format!("Node {name}"));
        }
    }
    for service in server.cluster.list("services") {
        let selector = service["spec"]["selector"].as_object().cloned().unwrap_or_default();
        let selects = |pod: &&&Value| {
            !selector.is_empty()
                && selector.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
        };
        if pods.iter().any(|pod| selects(&pod)) {
            found.insert(format!("Service shop/{}", service["metadata"]["name"]));
        }
    }
    found.iter().map(|text| text.replace('"', "")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_is_that_of_the_state_whatever_changes() {
    let server = TestServer::start(&["pods", "services", "nodes"]).await;
    let mut number = 0_u64;
    let mut dice = |sides: u64| {
        // A fixed sequence, so that a failure repeats.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) % sides
    };
    for node in 0..4 {
        server.cluster.create("nodes", object("", &format!("n{node}"), &json!({}))).unwrap();
    }
    for _ in 0..25 {
        for _ in 0..10 {
            let name = format!("x{}", dice(8));
            if dice(3) == 0 {
                let app = ["web", "db"][dice(2) as usize];
                let selector = json!({"app": app, "tier": format!("t{}", dice(2))});
                let spec = json!({"spec": {"type": "ClusterIP", "selector": selector}});
                if server.cluster.create("services", object("shop", &name, &spec)).is_err() {
                    server.cluster.delete("services", "shop", &name).unwrap();
                }
                continue;
            }
            let mut pod = mk_pod("shop", &name, ["web", "db"][dice(2) as usize]);
            pod["metadata"]["labels"]["tier"] = format!("t{}", dice(3)).into();
            pod["spec"]["nodeName"] = format!("n{}", dice(5)).into();
            if server.cluster.create("pods", pod).is_err() {
                server.cluster.delete("pods", "shop", &name).unwrap();
            }
        }
        for resource in ["pods", "services", "nodes"] {
            server.caught_up(resource).await;
        }
        let list = server.get("/v1/snapshot/pods?labelSelector=app%3Dweb&join=nodes,services").await.json();
        assert_eq!(listed(&list).into_iter().collect::<BTreeSet<_>>(), expected(&server));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_request_for_linked_objects_is_refused_by_name() {
    let server = TestServer::start_with(&["pods", "services", "nodes", "secrets"], |config| {
        config.watches[2].metadata_only = true;
        config.watches[1].metadata_only = true;
    })
    .await;
    server.cluster.create("pods", mk_pod("shop", "a", "web")).unwrap();
    server.caught_up("pods").await;
    for (target, status, field, told) in [
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
        ("/v1/watch/pods?join=nodes", 400, "join", "unknown parameter"),
    ] {
        let refused = server.get(target).await;
        assert_eq!(refused.status(), status, "{target}: {}", refused.text());
        let status = refused.json();
        assert!(status["message"].as_str().unwrap().contains(told), "{target}: {status}");
        if !field.is_empty() {
            assert_eq!(status["details"]["causes"][0]["field"], field, "{target}");
        }
    }
}
