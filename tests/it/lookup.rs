//! `/v1/index/…`: indexes, counts by value, objects by value.

use informerd::testing::hub::Stage;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::client::{Stream, StreamEvent, exchange, head};
use crate::support::server::TestServer;
use crate::support::{in_time, mk_pod};

async fn pods() -> TestServer {
    let server = TestServer::start(&["pods"]).await;
    for (number, (namespace, node)) in [("one", "n1"), ("one", "n2"), ("two", "n1")].into_iter().enumerate() {
        let mut pod = mk_pod(namespace, &format!("p{number}"), "web");
        pod["spec"]["nodeName"] = node.into();
        pod["status"]["podIPs"] =
            json!([{"ip": format!("10.0.0.{number}")}, {"ip": format!("fd00::{number}")}]);
        server.cluster.create("pods", pod).unwrap();
    }
    server.caught_up("pods").await;
    server
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_counted_and_follow_each_change() {
    let server = pods().await;
    let path = "/v1/index/pods/spec.nodeName";
    let version = server.cluster.revision().to_string();
    let counts = |answer: &Value| answer["values"].clone();
    let answer = server.get(path).await.json();
    assert_eq!((&answer["path"], &answer["resourceVersion"]), (&json!("spec.nodeName"), &json!(version)));
    assert_eq!(counts(&answer), json!([{"value": "n1", "count": 2}, {"value": "n2", "count": 1}]));
    // Filters apply to the counted objects.
    let answer = server.get(&format!("{path}?namespace=one&labelSelector=app%3Dweb")).await.json();
    assert_eq!(counts(&answer), json!([{"value": "n1", "count": 1}, {"value": "n2", "count": 1}]));
    let answer = server.get(&format!("{path}?where=object.metadata.name%3D%3D%27p1%27")).await.json();
    assert_eq!(counts(&answer), json!([{"value": "n2", "count": 1}]));
    // Each value of an array counts.
    let answer = server.get("/v1/index/pods/status.podIPs.ip").await.json();
    assert_eq!(answer["values"].as_array().unwrap().len(), 6);
    server.cluster.patch("pods", "one", "p0", &json!({"spec": {"nodeName": "n2"}})).unwrap();
    server.cluster.delete("pods", "two", "p2").unwrap();
    server.caught_up("pods").await;
    assert_eq!(counts(&server.get(path).await.json()), json!([{"value": "n2", "count": 2}]));
    let indexes = server.get("/v1/index/pods").await.json();
    let paths: Vec<_> = indexes["indexes"].as_array().unwrap().iter().map(|index| &index["path"]).collect();
    assert_eq!(paths, ["metadata.labels.app", "spec.nodeName", "status.podIPs.ip"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_found_by_value() {
    let server = pods().await;
    for (target, expected) in [
        ("/v1/index/pods/spec.nodeName/n1", vec!["p0", "p2"]),
        ("/v1/index/pods/spec.nodeName/n1?namespace=two", vec!["p2"]),
        ("/v1/index/pods/status.podIPs.ip/fd00::1", vec!["p1"]),
        ("/v1/index/pods/status.podIPs.ip?value=10.0.0.0&value=10.0.0.2", vec!["p0", "p2"]),
        ("/v1/index/pods/spec.nodeName/none", vec![]),
    ] {
        let list = server.get(target).await.json();
        assert_eq!(names(&list["items"]), expected, "{target}");
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
    }
    let part = server.get("/v1/index/pods/spec.nodeName/n2?fields=status.podIPs").await.json();
    assert_eq!(part["items"][0]["status"], json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}));
    assert_eq!(part["items"][0]["spec"], Value::Null);
}

async fn post(server: &TestServer, target: &str, kind: &str, body: &str) -> (u16, Value) {
    let length = body.len().to_string();
    let headers = [("Content-Type", kind), ("Content-Length", &*length)];
    let head = head("POST", target, &server.address.to_string(), &headers, "close");
    let socket = TcpStream::connect(server.address).await.unwrap();
    let answer = exchange(socket, "POST", &[head.as_bytes(), body.as_bytes()].concat()).await;
    (answer.status(), answer.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_values_are_looked_up_at_once() {
    let server = pods().await;
    let target = "/v1/index/pods/status.podIPs.ip?fields=metadata.name";
    let body = json!({"values": ["10.0.0.1", "fd00::2", "10.9.9.9", "10.0.0.1"]}).to_string();
    let (status, answer) = post(&server, target, "application/json", &body).await;
    assert_eq!(status, 200, "{answer}");
    let found: Vec<_> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| (result["value"].as_str().unwrap(), names(&result["objects"])))
        .collect();
    assert_eq!(found, [("10.0.0.1", vec!["p1"]), ("10.9.9.9", vec![]), ("fd00::2", vec!["p2"])]);
    assert_eq!(answer["resourceVersion"], server.cluster.revision().to_string());
    for (kind, body, status, part) in [
        ("text/plain", &*body, 415, "application/json"),
        ("application/json", "{", 400, "expected"),
        ("application/json", r#"{"values":[]}"#, 400, "1 to 1024"),
        ("application/json", r#"{"value":["a"]}"#, 400, "unknown field"),
        ("application/json", r#"[["a"]]"#, 400, r#"invalid value \"[[\\\"a\\\"]]\": expected"#),
        ("application/json", "nonsense", 400, r#"invalid value \"nonsense\": expected"#),
    ] {
        let (code, answer) = post(&server, target, kind, body).await;
        assert_eq!(code, status, "{body}");
        assert!(answer.to_string().contains(part), "{answer}");
    }
    let large = json!({"values": ["x".repeat(200 << 10)]}).to_string();
    assert_eq!(post(&server, target, "application/json", &large).await.0, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_whose_answer_is_too_large_is_refused() {
    let server = pods().await;
    for number in 0..36 {
        let mut pod = mk_pod("one", &format!("large{number}"), "large");
        pod["metadata"]["annotations"] = json!({"note": "x".repeat(1 << 20)});
        server.cluster.create("pods", pod).unwrap();
    }
    server.caught_up("pods").await;
    let target = "/v1/index/pods/metadata.labels.app";
    let body = json!({"values": ["large"]}).to_string();
    let (status, answer) = post(&server, target, "application/json", &body).await;
    assert_eq!((status, &answer["details"]["causes"][0]["field"]), (400, &json!("values")), "{answer}");
    // With `fields`, the answer with the same objects is small.
    let (status, answer) =
        post(&server, &format!("{target}?fields=metadata.name"), "application/json", &body).await;
    assert_eq!((status, answer["results"][0]["objects"].as_array().map(Vec::len)), (200, Some(36)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_lookup_is_refused() {
    let server = pods().await;
    for (target, status, part) in [
        ("/v1/index/none", 404, "none"),
        ("/v1/index/pods/spec..a", 400, "a name is empty"),
        ("/v1/index/pods/a,b", 400, "expected one path"),
        ("/v1/index/pods/a/b/c", 400, "%2F"),
        ("/v1/index/pods,services/a", 400, "%2F"),
        ("/v1/index/pods/spec.nodeName?limit=1", 400, "unknown parameter"),
    ] {
        let answer = server.get(target).await;
        assert_eq!(answer.status(), status, "{target}");
        assert!(answer.json().to_string().contains(part), "{target}: {}", answer.text());
    }
}

/// A client of a stream of counts: it applies the first message, then merge patches.
struct Counts {
    stream: Stream,
    counts: Value,
}

impl Counts {
    async fn open(server: &TestServer, target: &str) -> Self {
        let headers = [("Accept", "application/x-ndjson")];
        let stream = Stream::http(server.address, target, &headers).await.unwrap();
        let mut counts = Self { stream, counts: Value::Null };
        assert_eq!(counts.step().await, "COUNTS");
        counts
    }

    async fn step(&mut self) -> String {
        let event = self.stream.next().await.expect("the stream goes on");
        self.take(event)
    }

    fn take(&mut self, event: StreamEvent) -> String {
        if event.kind == "COUNTS" {
            self.counts = event.object["counts"].clone();
            return event.kind;
        }
        for (value, count) in event.object["counts"].as_object().unwrap() {
            let counts = self.counts.as_object_mut().unwrap();
            assert_ne!(counts.get(value), Some(count), "an unchanged count was sent");
            if count.is_null() {
                counts.remove(value).expect("an unknown value was deleted");
            } else {
                counts.insert(value.clone(), count.clone());
            }
        }
        event.kind
    }

    async fn until(&mut self, expected: Value) {
        in_time(&expected.to_string(), async {
            while self.counts != expected {
                assert_eq!(self.step().await, "PATCHED");
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_counts_sends_changed_counts_only() {
    let server = pods().await;
    let mut nodes = Counts::open(&server, "/v1/watch-index/pods/spec.nodeName?coalesceMs=1").await;
    let mut slow = Counts::open(&server, "/v1/watch-index/pods/spec.nodeName?coalesceMs=300").await;
    let followers = server.hub.followers(Instant::now());
    assert!(followers.iter().all(|follower| follower.stage == Stage::Live), "they wait for changes");
    assert_eq!(nodes.counts, json!({"n1": 2, "n2": 1}));
    // A change that does not concern the node, then one that does.
    server.cluster.patch("pods", "one", "p0", &json!({"status": {"phase": "Failed"}})).unwrap();
    server.caught_up("pods").await;
    server.cluster.patch("pods", "one", "p1", &json!({"spec": {"nodeName": "n1"}})).unwrap();
    nodes.step().await;
    assert_eq!(nodes.counts, json!({"n1": 3}));
    let mut pod = mk_pod("two", "p9", "web");
    pod["spec"]["nodeName"] = "n9".into();
    server.cluster.create("pods", pod).unwrap();
    nodes.step().await;
    assert_eq!(nodes.counts, json!({"n1": 3, "n9": 1}));
    server.cluster.delete("pods", "two", "p9").unwrap();
    nodes.step().await;
    slow.until(json!({"n1": 3})).await;
    assert_eq!(
        server.get("/v1/index/pods/spec.nodeName").await.json()["values"],
        json!([{"value": "n1", "count": 3}])
    );
}

/// A selection by these two needs no index, but counts do.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_the_key_are_counted_too() {
    let server = pods().await;
    for (path, value) in [("metadata.namespace", "two"), ("metadata.name", "p9")] {
        let target = format!("/v1/watch-index/pods/{path}?coalesceMs=1");
        let mut counts = Counts::open(&server, &target).await;
        server.cluster.create("pods", mk_pod("two", "p9", "web")).unwrap();
        counts.step().await;
        let of_all = counts.counts[value].clone();
        server.cluster.delete("pods", "two", "p9").unwrap();
        counts.step().await;
        assert_eq!(of_all, counts.counts[value].as_u64().unwrap_or(0) + 1, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn folded_counts_equal_the_counts_of_the_state() {
    let mut server = pods().await;
    let mut counts = Counts::open(&server, "/v1/watch-index/pods/metadata.labels.app?coalesceMs=1").await;
    for number in 0..300 {
        let name = format!("r{}", rand::random_range(0..20));
        let app = ["web", "db", "api", "cache"][rand::random_range(0..4)];
        if number % 3 == 2 {
            let _ = server.cluster.delete("pods", "one", &name);
        } else if server.cluster.create("pods", mk_pod("one", &name, app)).is_err() {
            let patch = json!({"metadata": {"labels": {"app": app}}});
            server.cluster.patch("pods", "one", &name, &patch).unwrap();
        }
    }
    server.caught_up("pods").await;
    let answer = server.get("/v1/index/pods/metadata.labels.app").await.json();
    let expected: serde_json::Map<_, _> = answer["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| (value["value"].as_str().unwrap().to_owned(), value["count"].clone()))
        .collect();
    // An earlier state may have the same counts, so equal counts do not mark the last change.
    counts.until(expected.clone().into()).await;
    server.stop().await;
    while let Some(event) = in_time("the end", counts.stream.next()).await {
        counts.take(event);
    }
    assert_eq!(counts.counts, Value::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_request_for_counts_is_refused_by_parameter() {
    let server = pods().await;
    for (target, field) in [
        ("/v1/watch-index/pods%2Fone/spec.nodeName", "path"),
        ("/v1/index/pods/spec.nodeName?fields=spec", "fields"),
        ("/v1/watch-index/pods", "path"),
        ("/v1/watch-index/pods/spec.nodeName/n1", "path"),
        ("/v1/watch-index/pods/spec..nodeName", "path"),
        ("/v1/watch-index/pods/spec.nodeName?labelSelector=a", "labelSelector"),
        ("/v1/watch-index/pods/spec.nodeName?coalesceMs=0", "coalesceMs"),
        ("/v1/watch-index/pods/spec.nodeName?transport=websocket", "transport"),
    ] {
        let refused = server.get(target).await;
        assert_eq!(refused.status(), 400, "{target}");
        assert_eq!(refused.json()["details"]["causes"][0]["field"], field, "{target}");
    }
    assert_eq!(server.get("/v1/watch-index/nothing/spec.nodeName").await.status(), 404);
    let answer = server.get("/v1/watch-index/pods/spec.nodeName?timeoutSeconds=1").await;
    assert!(answer.complete && answer.text().starts_with("event: COUNTS\ndata: {"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_index_is_built_before_the_first_request() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.watches[0].indexes = vec!["metadata.labels.app".into(), "spec.nodeName".into()];
    })
    .await;
    let mut pod = mk_pod("one", "a", "web");
    pod["spec"]["nodeName"] = "n1".into();
    server.cluster.create("pods", pod).unwrap();
    server.caught_up("pods").await;
    let indexes = server.get("/v1/index/pods").await.json()["indexes"].clone();
    for (index, path) in indexes.as_array().unwrap().iter().zip(["metadata.labels.app", "spec.nodeName"]) {
        assert_eq!((&index["path"], &index["values"], &index["users"]), (&path.into(), &1.into(), &1.into()));
    }
    // Label selectors and counts use this index.
    server.get("/v1/snapshot/pods?labelSelector=app%3Dweb").await;
    let counts = server.get("/v1/index/pods/spec.nodeName").await.json();
    assert_eq!(counts["values"], json!([{"value": "n1", "count": 1}]));
    assert_eq!(server.get("/v1/index/pods").await.json()["indexes"].as_array().unwrap().len(), 2);
}
