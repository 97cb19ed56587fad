//! `/v1/world`: batches over several kinds, each with a token.

use std::collections::BTreeMap;

use rand::Rng as _;
use serde_json::{Value, json};

use crate::support::client::{Item, Stream, Transport};
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, eventually, in_time, mk_pod};

/// A client that follows the contract.
struct Client {
    transport: Transport,
    target: String,
    stream: Stream,
    objects: BTreeMap<String, Value>,
    resume: Option<String>,
}

/// A message, over any transport.
async fn message(stream: &mut Stream) -> Option<Value> {
    in_time("a message", async {
        loop {
            match stream.item().await {
                Item::Event(event) => {
                    let text = String::from_utf8(event.raw).unwrap();
                    let line = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text);
                    return Some(serde_json::from_str(line).unwrap());
                }
                Item::Heartbeat | Item::Retry(_) => {}
                Item::End(_) | Item::Broken => return None,
            }
        }
    })
    .await
}

impl Client {
    async fn open(server: &TestServer, transport: Transport, target: &str) -> Self {
        let stream = Stream::open(transport, server.address, target, None).await.unwrap();
        let (target, objects) = (target.to_owned(), BTreeMap::new());
        Self { transport, target, stream, objects, resume: None }
    }

    async fn reconnect(&mut self, server: &TestServer) {
        let resume = self.resume.as_deref();
        self.stream = Stream::open(self.transport, server.address, &self.target, resume).await.unwrap();
    }

    /// Receives one message, and returns it if it is complete.
    async fn step(&mut self) -> Option<Value> {
        let message = message(&mut self.stream).await.expect("the stream goes on");
        if message["reset"] == true {
            self.objects.clear();
        }
        for update in message["updates"].as_array().unwrap() {
            let object = &update["object"];
            let metadata = &object["metadata"];
            let key = format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"]);
            match update["type"].as_str().unwrap() {
                "ADDED" | "MODIFIED" => drop(self.objects.insert(key, object.clone())),
                "DELETED" => drop(self.objects.remove(&key)),
                other => panic!("{other} is no update"),
            }
        }
        self.resume = message["resume"].as_str().map(str::to_owned);
        if message["more"] == true {
            return None;
        }
        assert!(self.resume.is_some(), "{message}");
        if let Some(state) = message["state"].as_array() {
            let state: Vec<_> = state.iter().collect();
            let mut held: Vec<_> = self.objects.values().collect();
            held.sort_by_key(|object| {
                let metadata = &object["metadata"];
                let name = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
                (object["kind"] != "Pod", name("namespace"), name("name"))
            });
            assert_eq!(state, held, "the state is not the fold of the updates");
        }
        Some(message)
    }

    async fn until(&mut self, expected: &BTreeMap<String, Value>) {
        in_time("the state", async { while self.step().await.is_none() || self.objects != *expected {} })
            .await;
    }
}

/// The objects that a client of pods and ConfigMaps must hold.
async fn state(server: &TestServer) -> BTreeMap<String, Value> {
    server.caught_up("pods").await;
    server.caught_up("configmaps").await;
    let list = server.get("/v1/snapshot/pods,configmaps").await.json();
    let keyed = |object: &Value| {
        let metadata = &object["metadata"];
        format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"])
    };
    list["items"].as_array().unwrap().iter().map(|object| (keyed(object), object.clone())).collect()
}

fn write(server: &TestServer) {
    let name = format!("o{}", rand::random_range(0..8));
    let kind = ["pods", "configmaps"][rand::random_range(0..2)];
    let object = match kind {
        "pods" => mk_pod("shop", &name, "web"),
        _ => {
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "shop"}})
        }
    };
    if rand::rng().random_bool(0.3) {
        let _ = server.cluster.delete(kind, "shop", &name);
    } else if server.cluster.create(kind, object).is_err() {
        let patch = json!({"metadata": {"annotations": {"step": rand::random::<u32>().to_string()}}});
        server.cluster.patch(kind, "shop", &name, &patch).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_each_complete_message_a_client_holds_one_state_of_all_kinds() {
    let mut server =
        TestServer::start_with(&["pods", "configmaps"], |config| config.limits.batch_len_max = 4).await;
    for _ in 0..30 {
        write(&server);
    }
    let expected = state(&server).await;
    let mut clients = Vec::new();
    for transport in TRANSPORTS {
        for query in ["coalesceMs=1", "coalesceMs=20"] {
            let target = format!("/v1/world/pods,configmaps?{query}");
            clients.push(Client::open(&server, transport, &target).await);
        }
        let full = "/v1/world/pods,configmaps?coalesceMs=5&state=full";
        clients.push(Client::open(&server, transport, full).await);
    }
    for client in &mut clients {
        client.until(&expected).await;
    }
    for round in 0..4 {
        for _ in 0..100 {
            write(&server);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            // Some clients are cut off within a batch, and resume with their token.
            if (number + round) % 3 == 0 {
                client.step().await;
                client.reconnect(&server).await;
            }
        }
        if round == 2 {
            server.kill().await;
            write(&server);
            server.revive().await;
            for client in &mut clients {
                client.reconnect(&server).await;
            }
        }
        let expected = state(&server).await;
        for client in &mut clients {
            client.until(&expected).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_world_message_has_the_changes_since_the_previous_one() {
    let server = TestServer::start(&["pods", "configmaps"]).await;
    server.cluster.create("pods", mk_pod("shop", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let mut client = Client::open(&server, Transport::Ndjson, "/v1/world/pods,configmaps?coalesceMs=1").await;
    let first = loop {
        if let Some(message) = client.step().await {
            break message;
        }
    };
    assert_eq!(client.objects.len(), 1);
    assert!(first["resume"].as_str().unwrap().starts_with("pods:"), "{first}");
    server.cluster.patch("pods", "shop", "a", &json!({"status": {"phase": "Running"}})).unwrap();
    let next = client.step().await.unwrap();
    assert_eq!(next.get("reset"), None);
    assert_eq!(
        (next["updates"].as_array().unwrap().len(), &next["updates"][0]["type"]),
        (1, &"MODIFIED".into())
    );
    // Over SSE the token is the id. That of an incomplete message says that the client holds more than the token
    // covers.
    let mut stream = Stream::sse(server.address, "/v1/world/pods", None).await.unwrap();
    let first = stream.next().await.unwrap();
    let text = String::from_utf8(first.raw).unwrap();
    assert!(text.starts_with("event: UPDATES\nid: ") && text.contains("\"reset\":true"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_world_state_beyond_the_limit_ends_the_stream() {
    let server = TestServer::start(&["pods"]).await;
    let noise = "x".repeat(100_000);
    for number in 0..340 {
        let mut pod = mk_pod("shop", &format!("p{number}"), "web");
        pod["metadata"]["annotations"] = json!({"noise": noise});
        server.cluster.create("pods", pod).unwrap();
    }
    server.caught_up("pods").await;
    for accept in ["application/x-ndjson", "text/event-stream"] {
        let answer = server.get_with("/v1/world/pods?state=full", &[("Accept", accept)]).await;
        assert!(answer.complete, "{accept}");
        let last = answer.text().trim_end().lines().last().unwrap();
        let last: Value = serde_json::from_str(last.trim_start_matches("data: ")).unwrap();
        assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &413.into()), "{accept}");
    }
    eventually("the end of all subscriptions", || server.hub.subscribers() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn world_states_that_exceed_the_room_for_all_end_until_there_is_room() {
    let server =
        TestServer::start_with(&["pods"], |config| config.limits.world_states_bytes_max = 150_000).await;
    let mut pod = mk_pod("shop", "large", "web");
    pod["metadata"]["annotations"] = json!({"noise": "x".repeat(100_000)});
    server.cluster.create("pods", pod).unwrap();
    server.caught_up("pods").await;
    let path = "/v1/world/pods?state=full";
    let mut first = Stream::ndjson(server.address, path, None).await.unwrap();
    assert_eq!(message(&mut first).await.unwrap()["state"].as_array().map(Vec::len), Some(1));
    let mut second = Stream::ndjson(server.address, path, None).await.unwrap();
    let refused = message(&mut second).await.unwrap();
    assert_eq!((&refused["type"], &refused["object"]["code"]), (&"ERROR".into(), &503.into()));
    // The other stream goes on.
    server.cluster.create("pods", mk_pod("shop", "small", "web")).unwrap();
    assert_eq!(message(&mut first).await.unwrap()["state"].as_array().map(Vec::len), Some(2));
    server.cluster.delete("pods", "shop", "small").unwrap();
    drop(first);
    eventually("the end of both", || server.hub.subscribers() == 0).await;
    let mut third = Stream::ndjson(server.address, path, None).await.unwrap();
    assert_eq!(message(&mut third).await.unwrap()["state"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_world_request_is_refused_by_parameter() {
    let server = TestServer::start(&["pods"]).await;
    for (target, field) in [
        ("/v1/world/pods?state=half", "state"),
        ("/v1/world/pods?patch=merge", "patch"),
        ("/v1/world/pods?sendInitialEvents=false", "sendInitialEvents"),
        ("/v1/world/pods?coalesceMs=x", "coalesceMs"),
    ] {
        let refused = server.get(target).await;
        assert_eq!(refused.status(), 400, "{target}");
        assert_eq!(refused.json()["details"]["causes"][0]["field"], field, "{target}");
    }
}
