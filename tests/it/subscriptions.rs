//! `/v1/subscriptions` on the admin listener: the open subscriptions, and how far each is behind.

use serde_json::Value;

use crate::support::client::{Stream, Transport, get};
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

async fn list(server: &TestServer, query: &str) -> Value {
    get(server.admin, &format!("/v1/subscriptions{query}"), &[]).await.json()
}

/// Waits until all subscriptions are in this state, and returns the list.
async fn settled(server: &TestServer, count: u64, state: &str) -> Value {
    in_time("subscriptions", async {
        loop {
            let found = list(server, "").await;
            let all = found["subscriptions"].as_array().unwrap().iter().all(|one| one["state"] == state);
            if found["count"] == count && all {
                return found;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_subscription_is_listed_with_its_request_and_counts() {
    let server = TestServer::start(&["pods"]).await;
    assert_eq!(list(&server, "").await, serde_json::json!({"count": 0, "subscriptions": []}));
    let target = "/v1/watch/pods?labelSelector=app%3Dweb&resume=";
    let mut selecting = Stream::sse(server.address, target, None).await.unwrap();
    let mut lines = Stream::ndjson(server.address, "/v1/watch/pods", None).await.unwrap();
    let over_http2 = "/v1/watch/pods?labelSelector=app%21%3Ddb";
    let mut http2 = Stream::open(Transport::Http2, server.address, over_http2, None).await.unwrap();
    for stream in [&mut selecting, &mut lines, &mut http2] {
        stream.until("SYNCED").await;
    }
    let before = settled(&server, 3, "live").await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    for stream in [&mut selecting, &mut lines, &mut http2] {
        assert_eq!(stream.next().await.unwrap().name(), "a");
    }
    let found = settled(&server, 3, "live").await;
    for (request, transport) in
        [("/v1/watch/pods?labelSelector=app%3Dweb", "sse"), ("/v1/watch/pods", "ndjson"), (over_http2, "sse")]
    {
        let of = |list: &Value| {
            let all = list["subscriptions"].as_array().unwrap();
            all.iter().find(|one| one["request"] == request).cloned().unwrap_or_else(|| panic!("{list}"))
        };
        let one = of(&found);
        assert_eq!((&one["transport"], &one["waitsFor"]), (&transport.into(), &"changes".into()));
        assert_eq!((&one["behindChanges"], one["behindSeconds"].as_f64()), (&0.into(), Some(0.0)));
        assert!(one["peer"].as_str().unwrap().starts_with("127.0.0.1"));
        // The event was written by a live view.
        assert!(one["bytesSent"].as_u64() > of(&before)["bytesSent"].as_u64(), "{one}");
    }
    assert_eq!(list(&server, "?limit=1").await["subscriptions"].as_array().unwrap().len(), 1);
    drop((selecting, lines, http2));
    eventually("no subscription", || server.hub.followers(tokio::time::Instant::now()).is_empty()).await;
    let refused = get(server.admin, "/v1/subscriptions?limit=0", &[]).await;
    assert_eq!(refused.json()["details"]["causes"][0]["field"], "limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_behind_only_from_the_moment_it_falls_behind() {
    for transport in [Transport::Ndjson, Transport::Http2] {
        falls_behind(transport).await;
    }
}

async fn falls_behind(transport: Transport) {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    // The client reads nothing after its first state.
    let _slow = Stream::open(transport, server.address, "/v1/watch/pods", None).await.unwrap();
    settled(&server, 1, "live").await;
    let long_ago = std::time::Duration::from_secs(1);
    eventually("a stream that was live for a while", || {
        server.hub.followers(tokio::time::Instant::now())[0].age > long_ago
    })
    .await;
    let noise = "x".repeat(200_000);
    let mut version = 0;
    let found = in_time("a stream that is behind", async {
        loop {
            version += 1;
            let patch =
                serde_json::json!({"metadata": {"annotations": {"noise": format!("{version}{noise}")}}});
            server.cluster.patch("pods", "default", "a", &patch).unwrap();
            server.caught_up("pods").await;
            let found = list(&server, "").await["subscriptions"][0].clone();
            if found["waitsFor"] == "client" {
                return found;
            }
        }
    })
    .await;
    assert_ne!(found["state"], "live", "{found}");
    let (behind, since) = (found["behindSeconds"].as_f64().unwrap(), found["ageSeconds"].as_f64().unwrap());
    assert!(since > 1.0 && behind < since - 0.9, "{found}");
}
