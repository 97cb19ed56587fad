//! Limits (P5): a request beyond a limit is refused or ended, without effect on other clients.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::check::expected;
use crate::support::client::{self, Stream, Transport, exchange, head, request};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, eventually, in_time, mk_pod};

const WATCH: &str = "/v1/watch/pods";

/// Sends bytes on a connection of their own, and reads until the connection ends.
async fn raw(server: &TestServer, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let _ = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    // The connection may also end in a reset.
    let _ = in_time("the end", socket.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// The value of a series; 0 if the series is missing.
async fn metric(server: &TestServer, series: &str) -> f64 {
    let page = client::get(server.admin, "/metrics", &[]).await;
    let line = page.text().lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    line.unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_beyond_the_limit_is_refused_and_the_next_one_is_accepted() {
    let server = TestServer::start_with(&["pods"], |config| config.limits.connections_max = 2).await;
    let mut first = Stream::sse(server.address, WATCH, None).await.unwrap();
    let second = Stream::websocket(server.address, WATCH, None).await.unwrap();
    let refused = server.get("/v1/resources").await;
    assert_eq!((refused.status(), refused.header("retry-after").as_deref()), (503, Some("5")));
    assert_eq!(refused.json()["reason"], "ServiceUnavailable");
    assert!(refused.json()["message"].as_str().unwrap().contains("all 2 connections"));
    drop(second);
    in_time("a place", async { while server.get("/v1/resources").await.status() != 200 {} }).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    assert_eq!(first.until("ADDED").await.last().unwrap().name(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_to_the_admin_listener_do_not_hold_up_a_probe() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.header_timeout = Duration::from_secs(60);
    })
    .await;
    let mut idle = Vec::new();
    for _ in 0..600 {
        idle.push(TcpStream::connect(server.admin).await.unwrap());
    }
    let probe = client::get(server.admin, "/livez", &[]).await;
    assert_eq!((probe.status(), probe.text()), (200, "ok"));
    // The oldest connections were closed for the newer ones.
    let mut oldest = idle.swap_remove(0);
    let mut end = Vec::new();
    let _ = in_time("its end", oldest.read_to_end(&mut end)).await;
    assert!(end.is_empty());
    let hits = r#"informerd_http_limit_hits_total{limit="admin_connections_max"}"#;
    assert!(metric(&server, hits).await >= 300.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn few_connections_get_a_refusal_at_a_time_and_the_rest_are_closed() {
    let server = TestServer::start_with(&["pods"], |config| config.limits.connections_max = 1).await;
    let _stream = Stream::sse(server.address, WATCH, None).await.unwrap();
    let mut refused = Vec::new();
    for _ in 0..400 {
        refused.push(TcpStream::connect(server.address).await.unwrap());
    }
    // Each connection gets an error or is closed, without having sent anything.
    let mut told = 0;
    for mut socket in refused {
        let mut answer = Vec::new();
        let _ = in_time("an end", socket.read_to_end(&mut answer)).await;
        told += usize::from(answer.starts_with(b"HTTP/1.1 503"));
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 503"));
    }
    assert!((1..400).contains(&told), "{told}");
    assert_eq!(server.get("/v1/resources").await.status(), 503, "a single connection is not refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_resource_name_causes_no_discovery() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.on_demand.patterns = vec!["*".parse().unwrap()];
    })
    .await;
    let name = "x".repeat(7000);
    let before = server.api.requests().len();
    for (path, code) in [
        (format!("/v1/snapshot/{name}"), 404),
        (format!("/v1/watch/{name}"), 404),
        (format!("/api/v1/{name}"), 404),
    ] {
        let refused = server.get(&path).await;
        assert_eq!((refused.status(), refused.json()["reason"].as_str()), (code, Some("NotFound")));
        assert!(refused.body.len() < 1000, "the whole name is repeated");
    }
    let asked = server.api.requests()[before..].iter().filter(|request| request.contains("/apis")).count();
    assert_eq!(asked, 0, "the API server was asked for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_beyond_the_limit_is_refused_and_the_next_one_is_accepted() {
    let server = TestServer::start_with(&["pods"], |config| config.limits.subscribers_max = 1).await;
    let first = Stream::ndjson(server.address, WATCH, None).await.unwrap();
    for transport in TRANSPORTS {
        let refused = Stream::open(transport, server.address, WATCH, None).await.err().unwrap();
        assert_eq!((refused.status(), refused.header("retry-after").as_deref()), (503, Some("5")));
        assert_eq!(server.get("/v1/snapshot/pods").await.status(), 200, "a snapshot took a subscription");
    }
    drop(first);
    let mut recorder = Recorder::new(Transport::Sse, server.address, WATCH);
    recorder.wait_until("a place", |recorder| recorder.synced).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_joins_no_more_informers_than_the_limit() {
    let server =
        TestServer::start_with(&["pods", "services"], |config| config.limits.streams_per_connection_max = 1)
            .await;
    for path in ["/v1/watch/pods,services", "/v1/snapshot/pods,services"] {
        let refused = server.get(path).await;
        assert_eq!(refused.status(), 400, "{path}");
        assert!(refused.text().contains("more than the limit of 1"), "{}", refused.text());
    }
    assert_eq!(server.get("/v1/snapshot/services").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlong_url_or_head_is_refused_with_the_limit() {
    let server = TestServer::start_with(&["pods"], |config| config.limits.url_bytes_max = 1000).await;
    let path = |bytes: usize| {
        let start = "/v1/snapshot/pods?labelSelector=app%3D";
        format!("{start}{}", "x".repeat(bytes - start.len()))
    };
    let refused = server.get(&path(1001)).await;
    assert_eq!((refused.status(), &refused.json()["reason"]), (414, &json!("RequestURITooLong")));
    assert_ne!(server.get(&path(1000)).await.status(), 414);
    for (bytes, code) in [(8 << 10, 200), (16 << 10, 431), (60 << 10, 431), (1 << 20, 431)] {
        let value = "x".repeat(bytes);
        let answer = server.get_with("/v1/snapshot/pods", &[("X-Padding", &value)]).await;
        assert_eq!(answer.status(), code, "{bytes} bytes");
    }
    let refused = server.get_with("/v1/snapshot/pods", &[("Cookie", &"x".repeat(17 << 10))]).await;
    assert_eq!(refused.json()["reason"], "RequestHeaderFieldsTooLarge");
    assert!(refused.text().contains("limit of 16384"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_header_fields_are_refused_with_a_status() {
    let server = TestServer::start(&["pods"]).await;
    // Host and Connection count, too.
    for (fields, code) in [(98, 200), (99, 431), (200, 431), (900, 431)] {
        let headers: Vec<(&str, &str)> = (0..fields).map(|_| ("X-A", "b")).collect();
        let answer = server.get_with("/v1/snapshot/pods", &headers).await;
        assert_eq!(answer.status(), code, "{fields}");
        if code != 200 {
            assert_eq!(answer.json()["reason"], "RequestHeaderFieldsTooLarge", "{fields}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_arrive_in_time_ends_its_connection() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.header_timeout = Duration::from_millis(200);
    })
    .await;
    let mut stream = Stream::sse(server.address, WATCH, None).await.unwrap();
    for bytes in ["", "G", "GET /v1/resources HTTP/1.1\r\nHost: localhost\r\n"] {
        let answer = raw(&server, bytes.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{bytes:?}: {answer}");
    }
    stream.until("SYNCED").await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    assert_eq!(stream.next().await.unwrap().name(), "a", "the timeout ended an open stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_client_that_stops_reading_is_closed() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.write_stall_timeout = Duration::from_secs(1);
        config.limits.send_buffer_bytes = 4 << 10;
    })
    .await;
    let stalls = "informerd_http_write_stalls_total";
    let before = metric(&server, stalls).await;
    server.cluster.bulk_load("pods", 3000, 6000).unwrap();
    server.caught_up("pods").await;
    let mut recorder = Recorder::connect(Transport::Sse, server.address, WATCH).await;
    let mut stuck = Vec::new();
    for target in [WATCH, "/v1/watch/pods?transport=ndjson", "/v1/snapshot/pods"] {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let request = head("GET", target, "localhost", &[], "keep-alive");
        socket.write_all(request.as_bytes()).await.unwrap();
        stuck.push(socket);
    }
    stuck.extend(websocket_that_never_reads(&server).await);
    eventually("four open streams", || server.hub.subscribers() == 4).await;
    eventually("only the reader's stream", || server.hub.subscribers() == 1).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    recorder.wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
    assert_eq!(recorder.connections, 1);
    let mut after = metric(&server, stalls).await;
    for _ in 0..200 {
        if after >= before + 4.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        after = metric(&server, stalls).await;
    }
    assert!(after >= before + 4.0, "{before} {after}");
}

/// A connection with the smallest window that the kernel allows. A slow reader's window then opens after each read.
fn with_small_window(server: &TestServer) -> std::io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_recv_buffer_size(1)?;
    socket.connect(&server.address.into())?;
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_but_steady_reader_is_not_closed() {
    let stall_timeout = Duration::from_secs(2);
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.write_stall_timeout = stall_timeout;
        config.limits.heartbeat_interval = Duration::from_secs(1);
        config.limits.send_buffer_bytes = 4 << 10;
    })
    .await;
    server.cluster.bulk_load("pods", 300, 6000).unwrap();
    server.caught_up("pods").await;
    let targets = [WATCH, "/v1/watch/pods?transport=ndjson", "/v1/snapshot/pods", "/api/v1/pods"];
    let readers = targets.map(|target| {
        let socket = with_small_window(&server).unwrap();
        tokio::spawn(async move {
            let mut socket = socket;
            let request = head("GET", target, "localhost", &[], "keep-alive");
            socket.write_all(request.as_bytes()).await.unwrap();
            // 2 KB a second, for several times as long as a client may read nothing.
            let mut buffer = [0; 512];
            for _ in 0..40 {
                let read = tokio::io::AsyncReadExt::read(&mut socket, &mut buffer).await.unwrap();
                assert!(read > 0, "{target}: cut off");
                tokio::time::sleep(stall_timeout / 8).await;
            }
        })
    });
    for reader in readers {
        reader.await.unwrap();
    }
}

async fn websocket_that_never_reads(server: &TestServer) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(server.address).await.ok()?;
    let handshake = [
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    ];
    let request = head("GET", WATCH, "localhost", &handshake, "Upgrade");
    socket.write_all(request.as_bytes()).await.ok()?;
    Some(socket)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_client_gets_the_whole_response() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.bulk_load("pods", 2000, 6000).unwrap();
    server.caught_up("pods").await;
    for path in ["/v1/snapshot/pods", "/api/v1/pods", "/v1/resources"] {
        // The client closes its half, as `nc -N` does.
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(head("GET", path, "localhost", &[], "keep-alive").as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let answer = exchange(socket, "GET", b"").await;
        assert!(answer.complete && answer.status() == 200, "{path}: {} bytes", answer.body.len());
        let items = answer.json()["items"].as_array().map_or(0, Vec::len);
        assert_eq!(items, if path == "/v1/resources" { 0 } else { 2000 }, "{path}");
    }
}

/// Reads until the text arrives.
async fn read_until(socket: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    let arrives = async {
        while !String::from_utf8_lossy(&seen).contains(text) {
            let read = socket.read_buf(&mut seen).await.unwrap();
            assert!(read > 0, "ended before {text:?}: {}", String::from_utf8_lossy(&seen));
        }
    };
    in_time(text, arrives).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_client_keeps_its_watch_until_it_leaves() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "there", "web")).unwrap();
    server.caught_up("pods").await;
    let mut created = 0;
    for target in [
        "/v1/watch/pods?transport=sse",
        "/v1/watch/pods?transport=ndjson",
        "/v1/watch/pods?labelSelector=app%3Dweb&transport=ndjson",
        "/api/v1/pods?watch=true",
    ] {
        // The client closes its half with its request, or while it follows.
        for at_once in [true, false] {
            let mut socket = TcpStream::connect(server.address).await.unwrap();
            socket.write_all(head("GET", target, "localhost", &[], "keep-alive").as_bytes()).await.unwrap();
            if at_once {
                socket.shutdown().await.unwrap();
            }
            read_until(&mut socket, "there").await;
            socket.shutdown().await.unwrap();
            for _ in 0..2 {
                created += 1;
                let name = format!("pod-{created}");
                server.cluster.create("pods", mk_pod("default", &name, "web")).unwrap();
                read_until(&mut socket, &name).await;
            }
            assert_eq!(server.hub.subscribers(), 1, "{target}");
            drop(socket);
            // A write shows that the client has left.
            let leaves = async {
                while server.hub.subscribers() > 0 {
                    created += 1;
                    server
                        .cluster
                        .create("pods", mk_pod("default", &format!("pod-{created}"), "web"))
                        .unwrap();
                    server.caught_up("pods").await;
                }
            };
            in_time("no subscriber", leaves).await;
        }
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(head("GET", target, "localhost", &[], "keep-alive").as_bytes()).await.unwrap();
        read_until(&mut socket, "there").await;
        assert_eq!(server.hub.subscribers(), 1, "{target}");
        drop(socket);
        // The end of its half is enough where nothing changes.
        eventually("no subscriber", || server.hub.subscribers() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused_and_the_server_keeps_serving() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.header_timeout = Duration::from_millis(300);
    })
    .await;
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    for rubbish in [
        "\r\n\r\n",
        "hello\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET /v1/snapshot/pods HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        "GET /v1/snapshot/pods HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        "GET /v1/snapshot/pods HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /v1/snapshot/pods HTTP/1.1\r\nHost: a\r\nHost: b\r\n: x\r\n\r\n",
        "\u{0}\u{1}\u{2}\u{16}\u{3}\u{1}",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT example.com:80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "GET http://localhost/v1/resources HTTP/1.1\r\nConnection: close\r\n\r\n",
        &long,
    ] {
        let answer = raw(&server, rubbish.as_bytes()).await;
        let shown = &rubbish[..rubbish.len().min(60)];
        let status = answer.split(' ').nth(1).unwrap_or("none").to_owned();
        assert!(!status.starts_with('5') && !answer.contains("panic"), "{shown:?}: {answer}");
    }
    for path in ["/v1/snapshot/%ff", "/v1/snapshot/", "/v1/watch//", "/v1/snapshot/pods/%00/%00", "/%2e%2e/x"]
    {
        let code = server.get(path).await.status();
        assert!((400..500).contains(&code), "{path}: {code}");
    }
    assert_eq!(server.get("/v1/snapshot/pods").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_write_are_refused_with_any_body() {
    let server = TestServer::start(&["pods"]).await;
    for path in ["/v1/snapshot/pods", WATCH, "/v1/resources", "/openapi.json", "/"] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"] {
            let refused = request(server.address, method, path, &[]).await;
            assert_eq!(refused.status(), 405, "{method} {path}");
            assert_eq!(refused.header("allow").as_deref(), Some("GET, HEAD"), "{method} {path}");
            assert_eq!(refused.json()["reason"], "MethodNotAllowed");
        }
    }
    let body = "x".repeat(1 << 20);
    for framing in [
        format!("Content-Length: {}\r\n\r\n{body}", body.len()),
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_owned(),
    ] {
        let post =
            format!("POST /v1/snapshot/pods HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{framing}");
        let socket = TcpStream::connect(server.address).await.unwrap();
        assert_eq!(exchange(socket, "POST", post.as_bytes()).await.status(), 405);
    }
    let get = "GET /v1/snapshot/pods HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    let socket = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(exchange(socket, "GET", get.as_bytes()).await.status(), 200, "a body of GET was not ignored");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_requests_are_answered_on_one_connection() {
    let server = TestServer::start(&["pods"]).await;
    let (one, last) = (
        head("GET", "/v1/snapshot/pods", "localhost", &[], "keep-alive"),
        head("GET", "/nowhere", "localhost", &[], "close"),
    );
    let answers = raw(&server, format!("{one}{one}{last}").as_bytes()).await;
    let codes: Vec<_> = answers.match_indices("HTTP/1.1 ").map(|(at, _)| &answers[at + 9..at + 12]).collect();
    assert_eq!(codes, ["200", "200", "404"], "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_cost_the_api_server_one_list_and_one_watch() {
    let wanted = 3 * 1000 + 500;
    let files = rlimit::increase_nofile_limit(wanted).unwrap_or(0);
    let count = usize::try_from(files.min(wanted).saturating_sub(500) / 3).unwrap();
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(Stream::sse(server.address, WATCH, None).await.unwrap());
    }
    assert_eq!(server.hub.subscribers(), count);
    server.cluster.create("pods", mk_pod("default", "b", "web")).unwrap();
    for stream in &mut streams {
        assert_eq!(stream.until("SYNCED").await.len(), 2);
        assert_eq!(stream.until("ADDED").await.last().unwrap().name(), "b");
    }
    let counters = server.cluster.counters()["pods"];
    // The streaming list goes on as the one watch.
    assert_eq!((counters.lists, counters.watches_started, counters.watches_open), (0, 1, 1), "{counters:?}");
    drop(streams);
    eventually("the end of all subscriptions", || server.hub.subscribers() == 0).await;
}
