//! `/v1/watch-graph/…`: a graph that follows the cluster.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::graph::{ALL, object, shop};
use crate::support::client::Stream;
use crate::support::server::TestServer;
use crate::support::{in_time, mk_pod};

/// A client of a graph stream: it applies the first message, then the patches.
struct Folded {
    /// The path of the same graph as a single answer.
    graph: String,
    stream: Stream,
    nodes: BTreeMap<u64, Value>,
    edges: BTreeSet<(u64, u64, String)>,
    rest: Value,
}

/// A graph without node ids, for comparisons: the nodes by content, and the edges by their nodes' content.
type Comparable = (BTreeSet<String>, BTreeSet<String>, Value);

fn edges_of(list: &Value) -> impl Iterator<Item = (u64, u64, String)> + '_ {
    list.as_array().unwrap().iter().map(|edge| {
        let end = |name: &str| edge[name].as_u64().unwrap();
        (end("from"), end("to"), edge["by"].as_str().unwrap().to_owned())
    })
}

fn rest_of(graph: &Value) -> Value {
    json!([graph["notFollowed"], graph["notHeld"], graph["truncated"]])
}

fn comparable(nodes: &BTreeMap<u64, Value>, edges: &BTreeSet<(u64, u64, String)>, rest: Value) -> Comparable {
    let text = |id: &u64| {
        let mut node = nodes[id].clone();
        node.as_object_mut().unwrap().remove("id");
        node.to_string()
    };
    let edge = |(from, to, by): &(u64, u64, String)| format!("{} {by} {}", text(from), text(to));
    (nodes.keys().map(text).collect(), edges.iter().map(edge).collect(), rest)
}

impl Folded {
    async fn open(server: &TestServer, target: &str) -> Self {
        let asks = if target.contains('?') { '&' } else { '?' };
        let path = format!("/v1/watch-graph/{target}{asks}coalesceMs=1");
        let headers = [("Accept", "application/x-ndjson")];
        let stream = Stream::http(server.address, &path, &headers).await.unwrap();
        let graph = format!("/v1/graph/{target}");
        let (nodes, edges, rest) = Default::default();
        let mut folded = Self { graph, stream, nodes, edges, rest };
        assert_eq!(folded.step().await, "GRAPH");
        folded
    }

    async fn step(&mut self) -> String {
        let event = in_time(&self.graph, self.stream.next()).await.expect("the stream goes on");
        let graph = &event.object;
        if event.kind == "PATCHED" {
            for id in graph["deletedNodes"].as_array().unwrap() {
                self.nodes.remove(&id.as_u64().unwrap()).expect("an unknown node is deleted");
            }
            for edge in edges_of(&graph["deletedEdges"]) {
                assert!(self.edges.remove(&edge), "{edge:?} is unknown and deleted");
            }
        }
        let mut said = self.rest != rest_of(graph);
        self.rest = rest_of(graph);
        for node in graph["nodes"].as_array().unwrap() {
            let before = self.nodes.insert(node["id"].as_u64().unwrap(), node.clone());
            assert_ne!(before.as_ref(), Some(node), "an unchanged node was sent");
        }
        for edge in edges_of(&graph["edges"]) {
            assert!(self.edges.insert(edge), "an edge was sent twice");
        }
        for list in ["nodes", "deletedNodes", "edges", "deletedEdges"] {
            said |= graph[list].as_array().is_some_and(|list| !list.is_empty());
        }
        assert!(said || event.kind == "GRAPH", "a message without a change: {graph}");
        for (from, to, _) in &self.edges {
            assert!(
                self.nodes.contains_key(from) && self.nodes.contains_key(to),
                "an edge to a missing node"
            );
        }
        event.kind
    }

    /// Reads until the client holds the graph that `/v1/graph` answers with.
    async fn until_it_equals_the_answer(&mut self, server: &TestServer) {
        let answer = server.get(&self.graph).await;
        let expected = if answer.status() == 404 {
            (BTreeSet::new(), BTreeSet::new(), json!([[], [], null]))
        } else {
            let graph = answer.json();
            let nodes = graph["nodes"].as_array().unwrap_or_else(|| panic!("{graph}")).iter();
            let nodes = nodes.map(|node| (node["id"].as_u64().unwrap(), node.clone())).collect();
            comparable(&nodes, &edges_of(&graph["edges"]).collect(), rest_of(&graph))
        };
        while comparable(&self.nodes, &self.edges, self.rest.clone()) != expected {
            assert_eq!(self.step().await, "PATCHED");
        }
    }
}

/// Makes one change: an object is created, deleted, relabeled, or refers to others.
fn change(server: &TestServer, dice: &mut StdRng) {
    let cluster = &server.cluster;
    let resource = ["pods", "pods", "pods", "services", "nodes", "configmaps", "replicasets", "deployments"]
        [dice.random_range(0..8)];
    let namespace = ["shop", "other"][usize::from(dice.random_ratio(1, 5))];
    let pick = |dice: &mut StdRng, prefix: &str| format!("{prefix}{}", dice.random_range(0..3));
    let app = ["web", "db"][dice.random_range(0..2)];
    let (name, content) = match resource {
        "nodes" => (pick(dice, "n"), json!({})),
        "deployments" => ("web".to_owned(), json!({"spec": {}})),
        "services" => (pick(dice, "s"), json!({"spec": {"selector": {"app": app}}})),
        other => (pick(dice, &other[..1]), json!({"spec": {}})),
    };
    let place = if resource == "nodes" { "" } else { namespace };
    if dice.random_ratio(1, 3) {
        let _ = cluster.delete(resource, place, &name);
        return;
    }
    let mut made =
        if resource == "pods" { mk_pod(place, &name, app) } else { object(place, &name, &content) };
    if resource == "pods" {
        made["spec"]["nodeName"] = pick(dice, "n").into();
        made["spec"]["volumes"] = json!([{"configMap": {"name": pick(dice, "c")}}]);
    }
    let owner = match resource {
        "pods" => Some(("replicasets", "ReplicaSet", pick(dice, "r"))),
        "replicasets" => Some(("deployments", "Deployment", "web".to_owned())),
        _ => None,
    };
    let owner = owner.and_then(|(of, kind, name)| {
        let owner = cluster.get(of, namespace, &name)?;
        let uid = &owner["metadata"]["uid"];
        Some(json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid}]))
    });
    if let Some(owner) = owner {
        made["metadata"]["ownerReferences"] = owner;
    }
    if cluster.create(resource, made.clone()).is_err() {
        cluster.patch(resource, place, &name, &made).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folded_graph_stream_equals_the_graph_after_each_change() {
    let server = TestServer::start(ALL).await;
    for namespace in ["shop", "other"] {
        let _ = server.cluster.create("namespaces", object("", namespace, &json!({})));
    }
    for resource in ALL {
        server.caught_up(resource).await;
    }
    let mut dice = StdRng::seed_from_u64(15);
    let mut streams = Vec::new();
    for target in [
        "deployments/shop/web?depth=4",
        "services/shop?direction=owners",
        "pods?labelSelector=app%3Dweb&direction=owners&depth=2",
        "nodes/n1?direction=dependents&depth=2",
        "configmaps?direction=dependents",
    ] {
        streams.push(Folded::open(&server, target).await);
    }
    for _ in 0..150 {
        // Waits after each change, as a later one could hide that one was missed.
        change(&server, &mut dice);
        for resource in ALL {
            server.caught_up(resource).await;
        }
        for folded in &mut streams {
            folded.until_it_equals_the_answer(&server).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_stream_sends_changes_of_its_graph_only() {
    let mut server = shop(ALL).await;
    let mut graph = Folded::open(&server, "pods/shop/a?direction=owners&depth=1").await;
    assert_eq!(graph.nodes.len(), 4, "{:?}", graph.nodes);
    // Changes of objects that are neither in the graph nor looked up.
    server.cluster.patch("pods", "shop", "b", &json!({"status": {"phase": "Failed"}})).unwrap();
    server.cluster.delete("nodes", "", "n2").unwrap();
    server.caught_up("pods").await;
    server.caught_up("nodes").await;
    // The object that the pod refers to is created, and deleted.
    server.cluster.create("configmaps", object("shop", "missing", &json!({}))).unwrap();
    graph.step().await;
    assert_eq!((graph.nodes.len(), graph.edges.len()), (5, 4));
    server.cluster.delete("configmaps", "shop", "missing").unwrap();
    graph.step().await;
    assert_eq!((graph.nodes.len(), graph.edges.len()), (4, 3));
    // The first object of a resource that had none.
    let mut below = Folded::open(&server, "deployments/shop/web?direction=dependents&depth=1").await;
    let deployment = server.cluster.get("deployments", "shop", "web").unwrap();
    let mut secret = object("shop", "s", &json!({}));
    secret["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": deployment["metadata"]["uid"],
    }]);
    server.cluster.create("secrets", secret).unwrap();
    below.step().await;
    assert_eq!((below.nodes.len(), below.edges.len()), (3, 2), "{:?}", below.nodes);
    // The object itself is deleted, and another one of its name created.
    let ids: Vec<_> = graph.nodes.keys().copied().collect();
    server.cluster.delete("pods", "shop", "a").unwrap();
    graph.step().await;
    assert_eq!((graph.nodes.len(), graph.edges.len()), (0, 0));
    server.cluster.create("pods", mk_pod("shop", "a", "web")).unwrap();
    graph.step().await;
    assert!(graph.nodes.keys().all(|id| !ids.contains(id)), "{:?}", graph.nodes);
    server.stop().await;
    assert!(in_time("the end", graph.stream.next()).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_stream_refuses_invalid_parameters_and_is_sse_by_default() {
    let server = TestServer::start(&["pods"]).await;
    for (target, field) in [
        ("/v1/watch-graph/pods?depth=11", "depth"),
        ("/v1/watch-graph/pods?direction=up", "direction"),
        ("/v1/watch-graph/pods?coalesceMs=0", "coalesceMs"),
        ("/v1/watch-graph/pods?transport=websocket", "transport"),
        ("/v1/watch-graph/pods?limit=1", "limit"),
        ("/v1/watch-graph/pods?fields=spec", "fields"),
    ] {
        let answer = server.get(target).await;
        assert_eq!(answer.status(), 400, "{target}");
        assert!(answer.text().contains(field), "{target}: {}", answer.text());
    }
    assert_eq!(server.get("/v1/watch-graph/nothing").await.status(), 404);
    let answer = server.get("/v1/watch-graph/pods/shop/a?timeoutSeconds=1").await;
    assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream"));
    let none = r#"{"edges":[],"nodes":[],"notFollowed":[],"notHeld":[]}"#;
    assert!(answer.text().starts_with("event: GRAPH\ndata: {"), "{}", answer.text());
    assert!(answer.text().contains(none), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_added_informer_adds_its_objects_to_the_graph() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.on_demand.patterns = vec!["nodes".parse().unwrap()];
    })
    .await;
    server.cluster.create("nodes", object("", "n1", &json!({}))).unwrap();
    let mut pod = mk_pod("shop", "a", "web");
    pod["spec"]["nodeName"] = "n1".into();
    server.cluster.create("pods", pod).unwrap();
    server.caught_up("pods").await;
    let mut graph = Folded::open(&server, "pods/shop/a?direction=owners&depth=1").await;
    assert_eq!(graph.nodes.len(), 1);
    assert!(graph.rest[0].as_array().unwrap().contains(&json!("nodes")), "{}", graph.rest);
    assert_eq!(server.get("/v1/snapshot/nodes").await.status(), 200);
    graph.until_it_equals_the_answer(&server).await;
    assert_eq!((graph.nodes.len(), graph.edges.len()), (2, 1));
}
