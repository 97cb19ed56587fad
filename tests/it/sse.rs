//! Watches as Server-Sent Events: the bytes, the headers, and how an EventSource resumes.

use std::time::Duration;

use serde_json::json;

use crate::support::client::{Item, Stream, StreamEvent, Transport};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, in_time, mk_pod};

const WATCH: &str = "/v1/watch/pods";

async fn open(server: &TestServer, token: Option<&str>) -> Stream {
    Stream::sse(server.address, WATCH, token).await.expect("a stream")
}

fn text(events: &[StreamEvent]) -> String {
    events.iter().map(|event| String::from_utf8_lossy(&event.raw)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_an_event_stream() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let single = server.get("/v1/snapshot/pods/default/a").await;
    let (object, version) = (single.text().trim_end().to_owned(), server.cluster.revision());

    let mut stream = open(&server, None).await;
    let mark = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","annotations":{{"informerd.dev/resume":"pods:{version}","k8s.io/initial-events-end":"true"}}}}}}"#
    );
    let expected = format!(
        "event: ADDED\nid: pods:0\ndata: {{\"type\":\"ADDED\",\"object\":{object}}}\n\n\
         event: SYNCED\nid: pods:{version}\ndata: {{\"type\":\"BOOKMARK\",\"object\":{mark}}}\n\n"
    );
    assert_eq!(text(&stream.until("SYNCED").await), expected);

    server.cluster.patch("pods", "default", "a", &json!({"status": {"phase": "Running"}})).unwrap();
    server.caught_up("pods").await;
    let single = server.get("/v1/snapshot/pods/default/a").await;
    let (object, modified) = (single.text().trim_end(), server.cluster.revision());
    server.cluster.delete("pods", "default", "a").unwrap();
    let deleted = server.cluster.revision();
    let gone = object
        .replace(&format!(r#""resourceVersion":"{modified}""#), &format!(r#""resourceVersion":"{deleted}""#));
    let expected = format!(
        "event: MODIFIED\nid: pods:{modified}\ndata: {{\"type\":\"MODIFIED\",\"object\":{object}}}\n\n\
         event: DELETED\nid: pods:{deleted}\ndata: {{\"type\":\"DELETED\",\"object\":{gone}}}\n\n"
    );
    assert_eq!(text(&stream.until("DELETED").await), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_tells_proxies_not_to_buffer_it() {
    let server = TestServer::start(&["pods"]).await;
    let headers = [("Accept-Encoding", "br"), ("Accept", "text/event-stream")];
    let stream = Stream::http(server.address, WATCH, &headers).await.unwrap();
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store"),
        ("x-accel-buffering", "no"),
        ("transfer-encoding", "chunked"),
        ("vary", "Accept, Accept-Encoding"),
        ("age", "0"),
    ] {
        assert_eq!(stream.header(name).as_deref(), Some(value), "{name}: {}", stream.head);
    }
    assert_eq!(stream.header("content-encoding"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_gets_the_headers_of_a_stream() {
    let server = TestServer::start(&["pods"]).await;
    let headers = [("Accept", "text/event-stream")];
    // Kept, so that their ends do not change the number of subscribers.
    let mut streams = Vec::new();
    for path in [WATCH, "/v1/world/pods", "/v1/watch-index/pods/spec.nodeName", "/v1/watch-graph/pods"] {
        let stream = Stream::http(server.address, path, &headers).await.unwrap();
        let subscribers = server.hub.subscribers();
        let head = crate::support::client::request(server.address, "HEAD", path, &headers).await;
        assert_eq!((head.status(), server.hub.subscribers()), (200, subscribers), "{path}");
        assert!(head.body.is_empty() && head.complete, "{path}");
        for name in ["content-type", "content-length", "cache-control", "vary", "x-accel-buffering"] {
            assert_eq!(head.header(name), stream.header(name), "{path} {name}");
        }
        streams.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_is_the_default_transport() {
    let server = TestServer::start(&["pods"]).await;
    for accept in [None, Some("*/*"), Some("text/*"), Some("text/event-stream, application/json;q=0.5")] {
        let headers: Vec<_> = accept.iter().map(|accept| ("Accept", *accept)).collect();
        let stream = Stream::http(server.address, WATCH, &headers).await.unwrap();
        assert_eq!(stream.header("content-type").as_deref(), Some("text/event-stream"), "{accept:?}");
    }
    let refused = Stream::http(server.address, WATCH, &[("Accept", "text/html")]).await.err().unwrap();
    assert_eq!((refused.status(), &refused.json()["reason"]), (406, &json!("NotAcceptable")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_event_id_wins_over_the_token_in_the_url() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    let old = server.cluster.revision();
    server.cluster.create("pods", mk_pod("default", "b", "web")).unwrap();
    let new = server.cluster.revision();
    server.cluster.create("pods", mk_pod("default", "c", "web")).unwrap();
    server.caught_up("pods").await;
    let names = |events: &[StreamEvent]| {
        let named = events.iter().filter(|event| event.kind != "BOOKMARK");
        named.map(|event| format!("{} {}", event.kind, event.name())).collect::<Vec<_>>()
    };
    let target = format!("{WATCH}?resume=pods:{old}");
    for (last, expected) in [
        (None, vec!["ADDED b", "ADDED c"]),
        (Some(String::new()), vec!["ADDED b", "ADDED c"]),
        (Some(format!("pods:{new}")), vec!["ADDED c"]),
    ] {
        let mut stream = Stream::sse(server.address, &target, last.as_deref()).await.unwrap();
        assert_eq!(names(&stream.until("BOOKMARK").await), expected, "{last:?}");
    }
    let mut stream = Stream::sse(server.address, &format!("{WATCH}?resume="), None).await.unwrap();
    assert_eq!(names(&stream.until("SYNCED").await).len(), 4, "an empty token was not ignored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumed_from_a_bookmark_gives_tokens_of_bookmarks_until_a_reset() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    for transport in [Transport::Sse, Transport::Http2] {
        let held = format!("pods:{}", server.cluster.revision());
        let of_bookmark = format!("{held},.kind:bookmark");
        let resumed = async |token: &str| {
            let mut stream = Stream::open(transport, server.address, WATCH, Some(token)).await.unwrap();
            // All of them have caught up, so that they share a live view.
            stream.until("BOOKMARK").await;
            stream
        };
        let [mut exact, mut beyond, mut other] =
            [resumed(&held).await, resumed(&of_bookmark).await, resumed(&of_bookmark).await];
        server.cluster.patch("pods", "default", "a", &json!({"metadata": {"labels": {"of": held}}})).unwrap();
        let version = server.cluster.revision();
        for (stream, kind) in
            [(&mut exact, ""), (&mut beyond, ",.kind:bookmark"), (&mut other, ",.kind:bookmark")]
        {
            let event = stream.until("MODIFIED").await.pop().unwrap();
            assert_eq!(event.token, Some(format!("pods:{version}{kind}")), "{transport:?}");
        }
        // A RESET makes the client drop what it held.
        let mut reset =
            Stream::open(transport, server.address, WATCH, Some("pods:0,.kind:bookmark")).await.unwrap();
        let events = reset.until("SYNCED").await;
        assert_eq!(events[0].kind, "RESET", "{transport:?}");
        assert_eq!(events.last().unwrap().token, Some(format!("pods:{version}")), "{transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_events_of_a_resumed_stream_have_tokens_of_all_resources() {
    let server = TestServer::start(&["pods", "services"]).await;
    let of = |pods: u64, services: u64| format!("pods:{pods},services:{services}");
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    let old = server.cluster.revision();
    server.cluster.create("pods", mk_pod("default", "b", "web")).unwrap();
    let middle = server.cluster.revision();
    server.cluster.create("pods", mk_pod("default", "c", "web")).unwrap();
    server.caught_up("pods").await;
    let path = "/v1/watch/pods,services";
    let services = Stream::sse(server.address, path, None).await.unwrap().until("SYNCED").await;
    let token = services.last().unwrap().token.clone().unwrap();
    let services = token.rsplit_once(':').unwrap().1.parse().unwrap();
    let mut stream = Stream::sse(server.address, path, Some(&of(old, services))).await.unwrap();
    // A client that is cut off here has everything of the services up to its first token.
    assert_eq!(stream.until("ADDED").await[0].token, Some(of(middle, services)));
    let mut stream = Stream::sse(server.address, path, Some(&of(middle, services))).await.unwrap();
    let resumed = stream.until("BOOKMARK").await;
    assert_eq!(resumed.iter().map(|event| &*event.kind).collect::<Vec<_>>(), ["ADDED", "BOOKMARK"]);
    // A client that starts over in one resource has nothing of the others.
    let mut stream = Stream::sse(server.address, path, Some(&of(0, services))).await.unwrap();
    let events = stream.until("SYNCED").await;
    assert_eq!((&*events[0].kind, events[0].token.clone()), ("RESET", Some(of(0, 0))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_transport_works_on_every_other() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "old", "web")).unwrap();
    server.caught_up("pods").await;
    for (number, from) in TRANSPORTS.into_iter().enumerate() {
        for to in TRANSPORTS {
            let mut recorder = Recorder::connect(from, server.address, WATCH).await;
            recorder.disconnect();
            recorder.transport = to;
            let name = format!("new-{number}-{to:?}").to_lowercase();
            server.cluster.create("pods", mk_pod("default", &name, "web")).unwrap();
            server.caught_up("pods").await;
            let before = recorder.events;
            recorder
                .wait_until("the new pod", |recorder| recorder.state().keys().any(|k| k.ends_with(&name)))
                .await;
            assert_eq!(recorder.events, before + 1, "{from:?} to {to:?}: not only the new event");
            assert!(recorder.resets.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_chooses_the_transport_and_passes_the_token() {
    let server = TestServer::start(&["pods"]).await;
    let sse = [("Accept", "text/event-stream")];
    let stream = Stream::http(server.address, &format!("{WATCH}?transport=ndjson"), &sse).await.unwrap();
    assert_eq!(stream.header("content-type").as_deref(), Some("application/x-ndjson"));
    let lines = [("Accept", "application/x-ndjson")];
    let stream = Stream::http(server.address, &format!("{WATCH}?transport=sse"), &lines).await.unwrap();
    assert_eq!(stream.header("content-type").as_deref(), Some("text/event-stream"));
    let target = format!("{WATCH}?transport=websocket");
    let mut stream = Stream::websocket(server.address, &target, None).await.unwrap();
    assert_eq!(stream.until("SYNCED").await.len(), 1);
    for (target, upgrade) in [
        (&*format!("{WATCH}?transport=websocket"), false),
        (&*format!("{WATCH}?transport=carrier-pigeon"), false),
        (&*format!("{WATCH}?transport=sse"), true),
        (&*format!("{WATCH}?transport=ndjson"), true),
    ] {
        let refused = match upgrade {
            true => Stream::websocket(server.address, target, None).await,
            false => Stream::http(server.address, target, &[]).await,
        };
        let refused = refused.err().unwrap();
        assert_eq!(refused.status(), 400, "{target}");
        assert_eq!(refused.json()["details"]["causes"][0]["field"], "transport", "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_stream_sends_heartbeats() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.heartbeat_interval = Duration::from_millis(100);
    })
    .await;
    for transport in TRANSPORTS {
        let mut stream = Stream::open(transport, server.address, WATCH, None).await.unwrap();
        stream.until("SYNCED").await;
        for _ in 0..3 {
            let item = in_time("a heartbeat", stream.item()).await;
            assert!(matches!(item, Item::Heartbeat), "{transport:?}: {item:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_keep_the_token_of_a_quiet_filter_fresh() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.bookmark_interval = Duration::from_millis(100);
    })
    .await;
    for transport in TRANSPORTS {
        let target = format!("{WATCH}?labelSelector=app%3Dnone");
        let mut recorder = Recorder::connect(transport, server.address, &target).await;
        let name = format!("{transport:?}").to_lowercase();
        server.cluster.create("pods", mk_pod("default", &name, "web")).unwrap();
        let token = transport.bookmark(&format!("pods:{}", server.cluster.revision()));
        recorder.wait_until("a fresh token", |recorder| recorder.token() == Some(&*token)).await;
        assert!(recorder.state().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_source_survives_a_restart_without_gap_or_repeat() {
    let mut server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    let mut recorder = Recorder::connect(Transport::Sse, server.address, WATCH).await;
    for round in 0..3 {
        if round == 1 {
            server.kill().await
        } else {
            server.stop().await
        }
        while recorder.step().await {}
        let name = format!("while-away-{round}");
        server.cluster.create("pods", mk_pod("default", &name, "web")).unwrap();
        server
            .cluster
            .patch("pods", "default", "a", &json!({"metadata": {"labels": {"round": name}}}))
            .unwrap();
        server.revive().await;
        let expected = crate::support::check::expected(&server.cluster, "pods", |_| true);
        recorder.wait_for_state(&expected).await;
    }
    // The new process does not know of deletions before its first list, so clients start over.
    assert!(recorder.resets.iter().all(|reason| reason == "TokenTooOld"), "{:?}", recorder.resets);
}
