//! HTTP/2 without TLS, by prior knowledge: many streams over one connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::check::expected;
use crate::support::client::{self, Item, Stream, Transport, exchange, head};
use crate::support::http2::Connection;
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

const WATCH: &str = "/v1/watch/pods";

/// Reads a body until it contains a text.
async fn read_until(body: &mut (impl tokio::io::AsyncRead + Unpin), text: &str) -> String {
    let mut read = Vec::new();
    in_time(text, async {
        while !String::from_utf8_lossy(&read).contains(text) {
            assert_ne!(body.read_buf(&mut read).await.unwrap(), 0, "it ended before {text:?}");
        }
    })
    .await;
    String::from_utf8(read).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_carries_snapshots_and_any_number_of_streams() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "first", "web")).unwrap();
    server.caught_up("pods").await;
    let mut connection = Connection::open(server.address, None).await.unwrap();
    let mut streams = Vec::new();
    for accept in ["text/event-stream", "application/x-ndjson", "text/event-stream", "application/x-ndjson"] {
        let mut answer = connection.get(WATCH, &[("accept", accept)]).await.unwrap();
        assert_eq!(
            (answer.status.as_u16(), &answer.headers["content-type"]),
            (200, &accept.parse().unwrap())
        );
        assert!(answer.headers.contains_key("age") && !answer.headers.contains_key("transfer-encoding"));
        read_until(&mut answer.body, "k8s.io/initial-events-end").await;
        streams.push(answer);
    }
    server.cluster.create("pods", mk_pod("default", "second", "web")).unwrap();
    for stream in &mut streams {
        let told = read_until(&mut stream.body, r#""name":"second""#).await;
        assert!(told.contains("ADDED"), "{told}");
    }
    let mut answer = connection.get("/v1/snapshot/pods", &[]).await.unwrap();
    let mut over_2 = String::new();
    in_time("a snapshot", answer.body.read_to_string(&mut over_2)).await.unwrap();
    let over_1 = client::get(server.address, "/v1/snapshot/pods", &[]).await;
    assert_eq!(over_2, over_1.text());
    assert_eq!(Some(answer.headers["etag"].to_str().unwrap()), over_1.header("etag").as_deref());
    let tag = answer.headers["etag"].to_str().unwrap().to_owned();
    let unchanged = connection.get("/v1/snapshot/pods", &[("if-none-match", &tag)]).await.unwrap();
    assert_eq!(unchanged.status, 304);
    let mut wrong = connection.get("/v1/snapshot/pods?labels=x", &[]).await.unwrap();
    let mut status = String::new();
    in_time("a Status", wrong.body.read_to_string(&mut status)).await.unwrap();
    assert!(wrong.status == 400 && status.contains("labels"), "{status}");
    assert_eq!(server.hub.subscribers(), 4);
    // A stream that its client resets ends; the others go on.
    streams.pop();
    eventually("three subscribers", || server.hub.subscribers() == 3).await;
    drop((connection, streams));
    eventually("no subscriber", || server.hub.subscribers() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_stream_does_not_block_others_of_its_connection() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.bulk_load("pods", 500, 5000).unwrap();
    server.caught_up("pods").await;
    // Flow-control windows in which one response can be stuck while others go on.
    let mut connection = Connection::open(server.address, Some((64 << 10, 4 << 20))).await.unwrap();
    let stuck = connection.get("/v1/snapshot/pods", &[]).await.unwrap();
    let idle = connection.get(WATCH, &[]).await.unwrap();
    let mut reads = connection.get(&format!("{WATCH}/default/mark"), &[]).await.unwrap();
    read_until(&mut reads.body, "k8s.io/initial-events-end").await;
    for round in 0..20 {
        let _ = server.cluster.delete("pods", "default", "mark");
        server.cluster.create("pods", mk_pod("default", "mark", &format!("round-{round}"))).unwrap();
        read_until(&mut reads.body, &format!(r#""round-{round}""#)).await;
    }
    // Once it is read, the stuck response is complete.
    let (mut rest, mut body) = (Vec::new(), stuck.body);
    in_time("the rest", body.read_to_end(&mut rest)).await.unwrap();
    let list: serde_json::Value = serde_json::from_slice(&rest).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 500);
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_streams_with_a_fresh_token_and_then_the_connection() {
    let mut server = TestServer::start_with(&["pods"], |config| {
        config.drain_timeout = Duration::from_secs(20);
    })
    .await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let token = format!("pods:{}", server.cluster.revision());
    let mut stream = Stream::open(Transport::Http2, server.address, WATCH, None).await.unwrap();
    stream.until("SYNCED").await;
    let idle = Connection::open(server.address, None).await.unwrap();
    let began = Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let Item::Event(last) = in_time("the last event", stream.item()).await else { panic!("no bookmark") };
    assert_eq!((&*last.kind, last.token.as_deref()), ("BOOKMARK", Some(&*token)));
    assert!(matches!(in_time("the retry delay", stream.item()).await, Item::Retry(500..3000)));
    assert!(matches!(in_time("the end", stream.item()).await, Item::End(None)));
    // The connection may also end in a reset, as it may not have read what was sent last.
    let _ = in_time("the end of the idle connection", idle.ended()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_client_that_resumes_gets_the_missed_changes() {
    let server = TestServer::start(&["pods"]).await;
    let mut recorder = Recorder::connect(Transport::Http2, server.address, WATCH).await;
    recorder.disconnect();
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    recorder.wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
    assert_eq!((recorder.connections, recorder.resets.len()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_guards_apply_to_http2() {
    let server = TestServer::start(&["pods"]).await;
    let mut connection = Connection::open(server.address, None).await.unwrap();
    for headers in [[("host", "evil.example.com")], [("origin", "http://evil.example.com")]] {
        let answer = connection.get("/v1/snapshot/pods", &headers).await.unwrap();
        assert_eq!(answer.status, 403, "{headers:?}");
    }
    let long = format!("/v1/snapshot/pods?x={}", "y".repeat(20_000));
    assert_eq!(connection.get(&long, &[]).await.unwrap().status, 414);
    // There are no WebSockets over HTTP/2.
    let headers = [("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="), ("sec-websocket-version", "13")];
    let answer = connection.get(&format!("{WATCH}?transport=websocket"), &headers).await.unwrap();
    assert_eq!(answer.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_or_invalid_http2_preface_closes_the_connection() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.header_timeout = Duration::from_millis(300);
    })
    .await;
    // An HTTP/1 request whose method begins like the preface.
    let post = head("POST", "/v1/snapshot/pods", "localhost", &[], "close");
    let socket = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(exchange(socket, "POST", post.as_bytes()).await.status(), 405);
    for (bytes, waits) in
        [(&b"PRI * HTTP/2.0\r\n"[..], true), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish", false)]
    {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // Closed with or without an HTTP/2 frame; half a preface is closed after the header timeout.
        let _ = in_time("the end", socket.read_to_end(&mut answer)).await;
        assert!(!waits || answer.is_empty(), "{answer:?}");
    }
    assert_eq!(client::get(server.address, "/v1/snapshot/pods", &[]).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_http2_connection_is_closed_unless_it_has_a_stream() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.header_timeout = Duration::from_millis(200);
    })
    .await;
    let mut follows = Connection::open(server.address, None).await.unwrap();
    let mut stream = follows.get(WATCH, &[]).await.unwrap();
    read_until(&mut stream.body, "k8s.io/initial-events-end").await;
    let mut asked = Connection::open(server.address, None).await.unwrap();
    drop(asked.get("/v1/resources", &[]).await.unwrap());
    for idle in [asked, Connection::open(server.address, None).await.unwrap()] {
        in_time("the end", idle.closed()).await;
    }
    server.cluster.create("pods", mk_pod("default", "late", "web")).unwrap();
    read_until(&mut stream.body, r#""late""#).await;
}
