//! Shutdown: unready first, then streams end as their transport requires, and everything within the drain timeout.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::client::{self, Item, Stream, Transport, head};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, eventually, in_time, informerd, mk_pod};

const WATCH: &str = "/v1/watch/pods";

#[tokio::test(flavor = "multi_thread")]
async fn at_shutdown_streams_end_with_a_fresh_token_and_their_transports_end() {
    let mut server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let token = format!("pods:{}", server.cluster.revision());
    let mut streams = Vec::new();
    for transport in TRANSPORTS {
        let mut stream = Stream::open(transport, server.address, WATCH, None).await.unwrap();
        stream.until("SYNCED").await;
        streams.push((transport, stream));
    }
    server.stop().await;
    for (transport, stream) in &mut streams {
        let Item::Event(last) = in_time("the last event", stream.item()).await else {
            panic!("{transport:?} got no bookmark");
        };
        let expected = ("BOOKMARK", Some(transport.bookmark(&token)));
        assert_eq!((&*last.kind, last.token), expected, "{transport:?}");
        let mut end = in_time("the end", stream.item()).await;
        if *transport == Transport::Sse {
            // The delays are spread, so that the clients do not all come back at the same moment.
            assert!(matches!(end, Item::Retry(500..3000)), "{end:?}");
            end = in_time("the end", stream.item()).await;
        }
        let code = (*transport == Transport::WebSocket).then_some(1001);
        assert!(matches!(end, Item::End(found) if found == code), "{transport:?}: {end:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_drain_it_is_unready_and_serves_for_the_shutdown_delay() {
    let delay = Duration::from_secs(2);
    let mut server = TestServer::start_with(&["pods"], |config| config.shutdown_delay = delay).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let (address, admin, cluster) = (server.address, server.admin, server.cluster.clone());
    let mut stream = Stream::sse(address, WATCH, None).await.unwrap();
    stream.until("SYNCED").await;
    let began = Instant::now();
    let served = async {
        in_time("unready", async { while client::get(admin, "/readyz", &[]).await.status() == 200 {} }).await;
        // The data listener's probe, too.
        assert_eq!(client::get(address, "/readyz", &[]).await.status(), 503);
        assert_eq!(client::get(admin, "/livez", &[]).await.status(), 200);
        assert_eq!(client::get(address, "/v1/snapshot/pods", &[]).await.status(), 200);
        let mut late = Stream::sse(address, WATCH, None).await.unwrap();
        late.until("SYNCED").await;
        cluster.create("pods", mk_pod("default", "b", "web")).unwrap();
        assert_eq!(stream.next().await.unwrap().name(), "b");
        assert_eq!(late.next().await.unwrap().name(), "b");
        assert!(began.elapsed() < delay, "not within the delay: {:?}", began.elapsed());
        let Item::Event(last) = in_time("the last event", stream.item()).await else { panic!("no bookmark") };
        assert_eq!(last.kind, "BOOKMARK");
        assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
    };
    tokio::join!(server.informerd.stop(), served);
}

#[tokio::test(flavor = "multi_thread")]
async fn during_the_drain_it_is_live_unready_and_accepts_no_new_stream() {
    let mut server = TestServer::start_with(&["pods"], |config| {
        config.limits.send_buffer_bytes = 4 << 10;
        config.drain_timeout = Duration::from_secs(3);
    })
    .await;
    server.cluster.bulk_load("pods", 3000, 6000).unwrap();
    server.caught_up("pods").await;
    let admin = server.admin;
    assert_eq!(client::get(admin, "/readyz", &[]).await.status(), 200);
    // A client that does not read keeps the drain from ending at once.
    let mut stuck = TcpStream::connect(server.address).await.unwrap();
    stuck.write_all(head("GET", WATCH, "localhost", &[], "keep-alive").as_bytes()).await.unwrap();
    eventually("an open stream", || server.hub.subscribers() == 1).await;
    let address = server.address;
    let began = Instant::now();
    let watched = async {
        loop {
            let ready = client::get(admin, "/readyz?verbose", &[]).await;
            if ready.status() == 503 {
                assert!(ready.text().contains("[-]shutdown failed: shutting down\n"), "{}", ready.text());
                assert!(ready.text().ends_with("readyz check failed\n"));
                break;
            }
        }
        assert_eq!(client::get(admin, "/livez", &[]).await.status(), 200);
        assert!(client::get(admin, "/metrics", &[]).await.text().contains("informerd_hub_subscribers"));
        in_time("the listener's end", async { while TcpStream::connect(address).await.is_ok() {} }).await;
    };
    let stopping = server.stop();
    tokio::join!(stopping, watched);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "the drain took longer than its limit: {:?}",
        began.elapsed()
    );
    assert!(TcpStream::connect(admin).await.is_err());
    let mut rest = Vec::new();
    let _ = in_time("the cut", stuck.read_to_end(&mut rest)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_under_way_is_completed_during_the_drain() {
    let mut server = TestServer::start_with(&["pods"], |config| {
        config.limits.send_buffer_bytes = 4 << 10;
        config.drain_timeout = Duration::from_secs(25);
    })
    .await;
    server.cluster.bulk_load("pods", 500, 6000).unwrap();
    server.caught_up("pods").await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(8 << 10).unwrap();
    socket
        .write_all(head("GET", "/v1/snapshot/pods", "localhost", &[], "keep-alive").as_bytes())
        .await
        .unwrap();
    let first = in_time("the first byte", socket.read_u8()).await.unwrap();
    assert_eq!(first, b'H');
    let mut rest = Vec::new();
    let reading = async { in_time("the whole answer", socket.read_to_end(&mut rest)).await };
    let stopping = server.stop();
    let (read, ()) = tokio::join!(reading, stopping);
    read.unwrap();
    assert!(rest.ends_with(b"]}\n\r\n0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest[rest.len() - 20..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_does_not_delay_the_shutdown() {
    let mut server = TestServer::start_with(&["pods"], |config| {
        config.drain_timeout = Duration::from_secs(20);
    })
    .await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(head("GET", "/v1/resources", "localhost", &[], "keep-alive").as_bytes()).await.unwrap();
    in_time("an answer", idle.read_u8()).await.unwrap();
    let mut recorder = Recorder::connect(Transport::WebSocket, server.address, WATCH).await;
    let began = Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    while recorder.step().await {}
    let mut rest = Vec::new();
    in_time("the end", idle.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn sigterm_ends_a_start_that_waits_for_an_exec_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let (path, started) = (folder.path().join("kubeconfig"), folder.path().join("started"));
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", format!("touch {}; exec sleep 20", started.display())],
            "interactiveMode": "Never",
        }}}],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let mut command = tokio::process::Command::from(informerd());
    command.args(["serve", "--watch=pods", "--listen=127.0.0.1:0", "--admin-listen=off", "--kubeconfig"]);
    let mut child = command.arg(&path).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    eventually("the plugin", || started.exists()).await;
    let pid = child.id().expect("it runs").to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let began = Instant::now();
    assert!(in_time("the end", child.wait()).await.unwrap().success());
    assert!(began.elapsed() < Duration::from_secs(15), "not only when the plugin has ended");
}
