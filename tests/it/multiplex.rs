//! `/v1/ws`: many subscriptions on one WebSocket.

use futures_util::{SinkExt as _, StreamExt as _};
use informerd::testing::hub::Stage;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::support::client::{exchange, head};
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn open(server: &TestServer) -> Self {
        let url = format!("ws://{}/v1/ws", server.address);
        let (socket, _) = in_time("a handshake", tokio_tungstenite::connect_async(url)).await.unwrap();
        Self(socket)
    }

    async fn say(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).await.unwrap();
    }

    async fn subscribe(&mut self, id: &str, resources: &str, params: Value) {
        self.say(&json!({"subscribe": {"id": id, "resources": resources, "params": params}})).await;
    }

    /// The next message; at the end, the close code as `Err`.
    async fn next(&mut self) -> Result<Value, u16> {
        in_time("a message", async {
            loop {
                match self.0.next().await.expect("a close frame comes first").expect("a frame") {
                    Message::Text(text) => {
                        let message: Value = serde_json::from_str(&text).unwrap();
                        // The page reads the head of a message alone.
                        let head = r#","type":"CLOSED","reason":""#;
                        assert!(message["type"] != "CLOSED" || text.contains(head), "{text}");
                        return Ok(message);
                    }
                    Message::Close(frame) => return Err(frame.unwrap().code.into()),
                    Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
                }
            }
        })
        .await
    }

    /// The events up to the first one of this subscription and type, as `id TYPE name`.
    async fn until(&mut self, id: &str, kind: &str) -> Vec<String> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            let label = event["id"].as_str().unwrap_or("-");
            events.push(format!("{label} {} {name}", event["type"].as_str().unwrap()).trim_end().to_owned());
            if event["id"] == id && event["type"] == kind {
                return events;
            }
        }
    }
}

async fn server() -> TestServer {
    let server = TestServer::start(&["pods", "configmaps"]).await;
    server.cluster.create("pods", mk_pod("default", "web", "web")).unwrap();
    server.cluster.create("pods", mk_pod("shop", "db", "db")).unwrap();
    server.caught_up("pods").await;
    server.caught_up("configmaps").await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_come_and_go_on_one_connection() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    client.subscribe("all", "pods", json!({})).await;
    assert_eq!(client.until("all", "BOOKMARK").await, ["all ADDED web", "all ADDED db", "all BOOKMARK"]);
    let params = json!({"labelSelector": "app=web", "fields": "metadata.name", "timeoutSeconds": 3600});
    client.subscribe("some \"one\"", "pods,configmaps", params).await;
    assert_eq!(client.until("some \"one\"", "BOOKMARK").await.len(), 2);
    client.subscribe("place", "pods/shop", json!({"namespace": []})).await;
    client.until("place", "BOOKMARK").await;
    server.cluster.create("pods", mk_pod("default", "new", "web")).unwrap();
    let mut events = client.until("all", "ADDED").await;
    if events.len() == 1 {
        events.extend(client.until("some \"one\"", "ADDED").await);
    }
    events.sort_unstable();
    assert_eq!(events, ["all ADDED new", "some \"one\" ADDED new"]);
    client.say(&json!({"unsubscribe": {"id": "all"}})).await;
    assert_eq!(client.until("all", "CLOSED").await, ["all CLOSED"]);
    eventually("the end of that subscription", || server.hub.followers(Instant::now()).len() == 2).await;
    server.cluster.create("pods", mk_pod("shop", "last", "db")).unwrap();
    assert_eq!(client.until("place", "ADDED").await, ["place ADDED last"]);
    // The id can be used again.
    client.subscribe("all", "pods/shop/db", json!({})).await;
    assert_eq!(client.until("all", "BOOKMARK").await, ["all ADDED db", "all BOOKMARK"]);
    drop(client);
    eventually("the end of all subscriptions", || server.hub.followers(Instant::now()).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_resumes_where_another_ended() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    client.subscribe("a", "pods", json!({})).await;
    client.until("a", "ADDED").await;
    client.until("a", "ADDED").await;
    let synced = client.next().await.unwrap();
    let token = &synced["resume"];
    assert_eq!(token, &synced["object"]["metadata"]["annotations"]["informerd.dev/resume"]);
    server.cluster.patch("pods", "default", "web", &json!({"metadata": {"labels": {"app": "x"}}})).unwrap();
    let modified = client.next().await.unwrap();
    let version = modified["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(modified["resume"], format!("pods:{version}"), "an event without its token");
    client.say(&json!({"unsubscribe": {"id": "a"}})).await;
    let closed = client.next().await.unwrap();
    assert_eq!(closed, json!({"id": "a", "type": "CLOSED", "reason": "unsubscribed"}));
    server.cluster.delete("pods", "shop", "db").unwrap();
    server.cluster.create("pods", mk_pod("shop", "next", "db")).unwrap();
    server.caught_up("pods").await;
    let token = &modified["resume"];
    let mut client = Client::open(&server).await;
    client.say(&json!({"subscribe": {"id": "b", "resources": "pods", "resume": token}})).await;
    assert_eq!(client.until("b", "BOOKMARK").await, ["b DELETED db", "b ADDED next", "b BOOKMARK"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_reported_and_do_not_affect_other_subscriptions() {
    let server =
        TestServer::start_with(&["pods"], |config| config.limits.streams_per_connection_max = 2).await;
    let mut client = Client::open(&server).await;
    client.subscribe("good", "pods", json!({})).await;
    client.until("good", "BOOKMARK").await;
    for (message, names) in [
        (json!({"subscribe": {"id": "good", "resources": "pods"}}), "id"),
        (json!({"subscribe": {"id": "", "resources": "pods"}}), "id"),
        (json!({"unsubscribe": {"id": "none"}}), "id"),
        (json!({"subscribe": {"id": "x", "resources": "pods", "extra": 1}}), "message"),
        (json!({"subscribe": {"resources": "pods"}}), "message"),
        (json!({"subscript": {"id": "x"}}), "message"),
        (json!([1]), "message"),
    ] {
        client.say(&message).await;
        let error = client.next().await.unwrap();
        assert_eq!((&error["type"], &error["id"]), (&"ERROR".into(), &Value::Null), "{message}");
        assert_eq!(error["object"]["code"], 400);
        assert_eq!(error["object"]["details"]["causes"][0]["field"], names, "{message}: {error}");
    }
    for (resources, params, code, field) in [
        ("nothing", json!({}), 404, Value::Null),
        ("pods/a/b/c", json!({}), 400, "path".into()),
        ("pods", json!({"labelSelector": "a in"}), 400, Value::Null),
        ("pods", json!({"labelSelector": {}}), 400, "labelSelector".into()),
        ("pods", json!({"transport": "sse"}), 400, "transport".into()),
        ("pods", json!({"timeoutSeconds": 0}), 400, "timeoutSeconds".into()),
        ("pods", json!({"resume": "pods:1"}), 400, "resume".into()),
        ("pods", json!({"where": "object.("}), 400, "where".into()),
    ] {
        client.subscribe("bad", resources, params.clone()).await;
        let error = client.next().await.unwrap();
        assert_eq!((&error["type"], &error["id"]), (&"ERROR".into(), &"bad".into()), "{resources} {params}");
        assert_eq!(error["object"]["code"], code, "{error}");
        if field != Value::Null {
            assert_eq!(error["object"]["details"]["causes"][0]["field"], field, "{error}");
        }
        let closed = client.next().await.unwrap();
        assert_eq!(closed, json!({"id": "bad", "type": "CLOSED", "reason": "refused"}));
    }
    client.subscribe("second", "pods", json!({})).await;
    client.until("second", "BOOKMARK").await;
    client.subscribe("third", "pods", json!({})).await;
    let refused = client.next().await.unwrap();
    assert_eq!(refused["object"]["code"], 503, "{refused}");
    server.cluster.create("pods", mk_pod("default", "web", "web")).unwrap();
    client.until("good", "ADDED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_other_than_text_close_the_connection_with_their_code() {
    let server = server().await;
    for (message, code) in [
        (Message::binary(vec![1]), 1003),
        (Message::text("x".repeat(20_000)), 1009),
        (Message::Close(None), 1000),
    ] {
        let mut client = Client::open(&server).await;
        client.subscribe("a", "pods", json!({})).await;
        client.until("a", "BOOKMARK").await;
        client.0.send(message).await.unwrap();
        assert_eq!(client.next().await, Err(code));
        eventually("the end of its subscription", || server.hub.followers(Instant::now()).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_subscription_gets_closed_at_shutdown() {
    let mut server = server().await;
    let mut client = Client::open(&server).await;
    for id in ["a", "b"] {
        client.subscribe(id, "pods", json!({})).await;
        client.until(id, "BOOKMARK").await;
    }
    let mut idle = Client::open(&server).await;
    server.stop().await;
    let mut closed = Vec::new();
    let code = loop {
        match client.next().await {
            // Each subscription ends with its last token.
            Ok(event) if event["type"] == "BOOKMARK" => {}
            Ok(event) => closed.push(event),
            Err(code) => break code,
        }
    };
    closed.sort_by_key(|event| event["id"].to_string());
    let of = |id: &str| json!({"id": id, "type": "CLOSED", "reason": "shutdown"});
    assert_eq!((closed, code), (vec![of("a"), of("b")], 1001));
    assert_eq!(idle.next().await, Err(1001));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_times_out_leaves_the_others() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    client.subscribe("stays", "pods", json!({})).await;
    client.until("stays", "BOOKMARK").await;
    client.subscribe("short", "pods", json!({"timeoutSeconds": "1"})).await;
    client.until("short", "BOOKMARK").await;
    // The subscription ends with its last token.
    assert_eq!(client.until("short", "BOOKMARK").await, ["short BOOKMARK"]);
    let closed = client.next().await.unwrap();
    assert_eq!(closed, json!({"id": "short", "type": "CLOSED", "reason": "timeout"}));
    server.cluster.create("pods", mk_pod("default", "new", "web")).unwrap();
    assert_eq!(client.until("stays", "ADDED").await, ["stays ADDED new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_multiplexed_client_that_falls_behind_gets_the_latest_states() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    for id in ["a", "b"] {
        client.subscribe(id, "pods", json!({"labelSelector": "app=web"})).await;
        client.until(id, "BOOKMARK").await;
    }
    let noise: String = "noise ".repeat(30_000);
    let mut last = String::new();
    eventually("a client that delays its stream", || {
        last = format!("{} {noise}", server.cluster.revision());
        let patch = json!({"metadata": {"annotations": {"noise": last}}});
        server.cluster.patch("pods", "default", "web", &patch).unwrap();
        let followers = server.hub.followers(Instant::now());
        followers.iter().any(|follower| follower.is_writing)
    })
    .await;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        let event = client.next().await.unwrap();
        assert_eq!(event["type"], "MODIFIED");
        if event["object"]["metadata"]["annotations"]["noise"] == *last {
            seen.insert(event["id"].to_string());
        }
    }
    let followers = server.hub.followers(Instant::now());
    assert!(followers.iter().all(|follower| follower.stage >= Stage::CatchingUp));
    let origin = followers[0].origin.clone().unwrap();
    assert!(
        origin.request.starts_with("/v1/ws ") && origin.request.contains("app=web"),
        "{}",
        origin.request
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_up_no_index() {
    // The subscriptions build indexes one after the other, while the first state waits for the client.
    let server = TestServer::start(&["pods"]).await;
    server.cluster.bulk_load("pods", 10_000, 3_500).unwrap();
    server.caught_up("pods").await;
    let mut client = Client::open(&server).await;
    let subscribe = |id: String, params: Value| {
        let message = json!({"subscribe": {"id": id, "resources": "pods", "params": params}});
        Message::text(message.to_string())
    };
    client.0.feed(subscribe("all".to_owned(), json!({}))).await.unwrap();
    for number in 0..12 {
        let params = json!({"fieldSelector": format!("spec.none{number}=x")});
        client.0.feed(subscribe(number.to_string(), params)).await.unwrap();
    }
    client.0.flush().await.unwrap();
    eventually("a client that delays its stream", || {
        server.hub.followers(Instant::now()).iter().any(|follower| follower.is_writing)
    })
    .await;
    let path = "/v1/snapshot/pods?fieldSelector=spec.other%3Dx";
    assert_eq!(in_time("an answer that needs an index", server.get(path)).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_websocket_handshake_is_refused() {
    let server = server().await;
    let plain = server.get("/v1/ws").await;
    assert_eq!(plain.status(), 426);
    let handshake = [
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    ];
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let request = head("HEAD", "/v1/ws", "localhost", &handshake, "Upgrade");
    socket.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(exchange(socket, "HEAD", b"").await.status(), 426, "a HEAD is no handshake");
    let url = format!("ws://{}/v1/ws?resources=pods", server.address);
    let Err(Error::Http(refused)) = tokio_tungstenite::connect_async(url).await else {
        panic!("a parameter was accepted");
    };
    assert_eq!(refused.status(), 400);
}
