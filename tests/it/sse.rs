//! Watch as Server-Sent Events.

use serde_json::json;

use crate::support::check::expected;
use crate::support::client::{Stream, Transport};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;

fn pod(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": "n1"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transport_gives_the_state_then_every_change() {
    let mut server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", pod("a")).unwrap();
    server.caught_up("pods").await;
    let mut recorders = Vec::new();
    for transport in [Transport::Sse, Transport::Ndjson, Transport::WebSocket] {
        let recorder = Recorder::connect(transport, server.address, "/v1/watch/pods").await;
        assert_eq!(*recorder.state(), expected(&server.cluster, "pods", |_| true));
        recorders.push(recorder);
    }
    server.cluster.create("pods", pod("b")).unwrap();
    server.cluster.patch("pods", "default", "a", &json!({"status": {"phase": "Running"}})).unwrap();
    server.cluster.create("pods", pod("c")).unwrap();
    server.cluster.delete("pods", "default", "b").unwrap();
    let state = expected(&server.cluster, "pods", |_| true);
    for recorder in &mut recorders {
        recorder.wait_for_state(&state).await;
        recorder.disconnect();
    }
    server.cluster.delete("pods", "default", "c").unwrap();
    server.restart().await;
    let state = expected(&server.cluster, "pods", |_| true);
    for recorder in &mut recorders {
        recorder.wait_for_state(&state).await;
    }
    server.kill().await;
    server.revive().await;
    server.cluster.create("pods", pod("d")).unwrap();
    let state = expected(&server.cluster, "pods", |_| true);
    for recorder in &mut recorders {
        recorder.wait_for_state(&state).await;
    }
    let mut stream = Stream::sse(server.address, "/v1/watch/pods", None).await.ok().unwrap();
    stream.until("SYNCED").await;
}
