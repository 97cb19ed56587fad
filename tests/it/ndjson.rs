//! Watches as NDJSON, and what all transports have in common: parameters, filters, resume.

use std::time::Duration;

use informerd::testing::config;
use serde_json::{Value, json};

use crate::support::check::{expected, labeled, version};
use crate::support::client::{Item, Stream, StreamEvent, Transport};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, in_time, mk_pod};

const WATCH: &str = "/v1/watch/pods";

async fn open(transport: Transport, server: &TestServer, target: &str, token: Option<&str>) -> Stream {
    let opened = Stream::open(transport, server.address, target, token).await;
    opened.unwrap_or_else(|refused| panic!("{transport:?} {target}: {refused:?}"))
}

/// `KIND name` of each event.
fn summaries(events: &[StreamEvent]) -> Vec<String> {
    let line = |event: &StreamEvent| format!("{} {}", event.kind, event.name()).trim_end().to_owned();
    events.iter().map(line).collect()
}

/// Writes to pods of the default namespace.
fn create(server: &TestServer, name: &str) -> u64 {
    server.cluster.create("pods", mk_pod("default", name, "web")).unwrap();
    server.cluster.revision()
}

fn relabel(server: &TestServer, name: &str, app: &str) {
    let patch = json!({"metadata": {"labels": {"app": app}}});
    server.cluster.patch("pods", "default", name, &patch).unwrap();
}

fn delete(server: &TestServer, name: &str) {
    server.cluster.delete("pods", "default", name).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_an_ndjson_stream() {
    let server = TestServer::start(&["pods"]).await;
    let version = create(&server, "a");
    server.caught_up("pods").await;
    let object = server.get("/v1/snapshot/pods/default/a").await;
    let mut stream = open(Transport::Ndjson, &server, WATCH, None).await;
    assert_eq!(stream.header("content-type").as_deref(), Some("application/x-ndjson"));
    let mark = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","annotations":{{"informerd.dev/resume":"pods:{version},.kind:bookmark","k8s.io/initial-events-end":"true"}}}}}}"#
    );
    let events = stream.until("SYNCED").await;
    let lines: String = events.iter().map(|event| String::from_utf8_lossy(&event.raw)).collect();
    let object = object.text().trim_end();
    let expected =
        format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n{{\"type\":\"BOOKMARK\",\"object\":{mark}}}\n");
    assert_eq!(lines, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_has_the_same_bytes_in_snapshots_and_on_every_transport() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.bulk_load("pods", 20, 3000).unwrap();
    server.caught_up("pods").await;
    let lines = server.get_with("/v1/snapshot/pods", &[("Accept", "application/x-ndjson")]).await;
    let objects: Vec<&[u8]> =
        lines.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert_eq!(objects.len(), 20);
    for transport in TRANSPORTS {
        let mut stream = open(transport, &server, WATCH, None).await;
        let mut events = stream.until("SYNCED").await;
        events.pop();
        assert_eq!(events.len(), objects.len());
        for (event, object) in events.iter().zip(&objects) {
            let raw = event.raw.windows(object.len()).any(|window| window == *object);
            assert!(raw, "{transport:?}: {}", event.name());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transport_sends_the_state_and_then_every_change() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    server.caught_up("pods").await;
    let mut streams = Vec::new();
    for transport in TRANSPORTS {
        let mut stream = open(transport, &server, WATCH, None).await;
        assert_eq!(summaries(&stream.until("SYNCED").await), ["ADDED a", "SYNCED"], "{transport:?}");
        streams.push((transport, stream));
    }
    create(&server, "b");
    relabel(&server, "a", "api");
    delete(&server, "b");
    let deleted = server.cluster.revision();
    for (transport, stream) in &mut streams {
        let events = stream.until("DELETED").await;
        assert_eq!(summaries(&events), ["ADDED b", "MODIFIED a", "DELETED b"], "{transport:?}");
        assert_eq!(version(&events[2].object), u128::from(deleted));
        assert_eq!(events[2].object["spec"]["nodeName"], "node-1", "not the last state");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_begin_or_stop_matching_are_added_or_deleted() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    server.caught_up("pods").await;
    let selectors = [
        "labelSelector=app%3Dapi",
        "labelSelector=app+in+(api,job),app!%3Djob",
        "fieldSelector=metadata.labels.app%3Dapi",
    ];
    let mut streams = Vec::new();
    for transport in TRANSPORTS {
        for selector in selectors {
            let mut stream = open(transport, &server, &format!("{WATCH}?{selector}"), None).await;
            assert_eq!(summaries(&stream.until("SYNCED").await), ["SYNCED"], "{transport:?} {selector}");
            streams.push((selector, stream));
        }
    }
    create(&server, "b");
    relabel(&server, "a", "api");
    server.cluster.patch("pods", "default", "a", &json!({"status": {"phase": "Running"}})).unwrap();
    relabel(&server, "a", "web");
    let left = server.cluster.revision();
    relabel(&server, "b", "api");
    delete(&server, "a");
    delete(&server, "b");
    for (selector, stream) in &mut streams {
        let mut events = stream.until("DELETED").await;
        assert_eq!(summaries(&events), ["ADDED a", "MODIFIED a", "DELETED a"], "{selector}");
        let last = events.pop().unwrap().object;
        assert!(labeled(&last, "app", "api"), "not the last state that matched");
        assert_eq!(version(&last), u128::from(left), "not the version of the change");
        assert_eq!(summaries(&stream.until("DELETED").await), ["ADDED b", "DELETED b"], "{selector}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_filtered_by_namespaces_and_names() {
    let server = TestServer::start(&["pods"]).await;
    for namespace in ["one", "two", "three"] {
        server.cluster.create("pods", mk_pod(namespace, "a", "web")).unwrap();
        server.cluster.create("pods", mk_pod(namespace, "b", "web")).unwrap();
    }
    server.caught_up("pods").await;
    for (target, wanted) in [
        ("/v1/watch/pods/two", vec!["two/a", "two/b"]),
        ("/v1/watch/pods/two/b", vec!["two/b"]),
        ("/v1/watch/pods/two/none", vec![]),
        ("/v1/watch/pods/none", vec![]),
        ("/v1/watch/pods?namespace=two&namespace=one", vec!["one/a", "one/b", "two/a", "two/b"]),
        (
            "/v1/watch/pods?fieldSelector=metadata.name%3Da,metadata.namespace!%3Dtwo",
            vec!["one/a", "three/a"],
        ),
    ] {
        for transport in TRANSPORTS {
            let recorder = Recorder::connect(transport, server.address, target).await;
            let keys: Vec<_> = recorder.state().keys().map(|key| key.trim_start_matches("Pod/")).collect();
            assert_eq!(keys, wanted, "{transport:?} {target}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_joins_several_resources_under_one_token() {
    let mut server = TestServer::start(&["pods", "services", "namespaces"]).await;
    create(&server, "a");
    let all = |server: &TestServer| {
        let mut all = expected(&server.cluster, "pods", |_| true);
        all.extend(expected(&server.cluster, "services", |_| true));
        all.extend(expected(&server.cluster, "namespaces", |_| true));
        all
    };
    let mut recorders = Vec::new();
    for transport in TRANSPORTS {
        recorders.push(Recorder::connect(transport, server.address, "/v1/watch/po,svc,ns").await);
    }
    for round in 0..2 {
        for recorder in &mut recorders {
            recorder.disconnect();
        }
        let service = json!({"metadata": {"name": format!("s{round}"), "namespace": "default"}});
        server.cluster.create("services", service).unwrap();
        server.cluster.create("namespaces", json!({"metadata": {"name": format!("n{round}")}})).unwrap();
        relabel(&server, "a", &format!("round-{round}"));
        if round == 1 {
            server.restart().await;
        }
        for recorder in &mut recorders {
            recorder.wait_for_state(&all(&server)).await;
            let token = recorder.token().unwrap();
            let versions = token.trim_end_matches(",.kind:bookmark");
            assert_eq!(token, recorder.transport.bookmark(versions));
            let names: Vec<_> = versions.split(',').filter_map(|part| part.split(':').next()).collect();
            assert_eq!(names, ["pods", "services", "namespaces"], "{token}");
            // After a restart, only clients with a token per event (SSE) resume without RESET.
            let whole = round == 0 || matches!(recorder.transport, Transport::Sse);
            assert_eq!(recorder.resets.is_empty(), whole, "{:?} {:?}", recorder.transport, recorder.resets);
        }
    }
    // The order of the resources does not matter.
    let recorder = &recorders[0];
    let mut stream =
        Stream::sse(server.address, "/v1/watch/namespaces,services,pods", recorder.token()).await.unwrap();
    assert_eq!(summaries(&[stream.next().await.unwrap()]), ["BOOKMARK"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_within_the_journal_gives_exactly_the_missed_changes() {
    let server = TestServer::start(&["pods"]).await;
    let token = format!("pods:{}", create(&server, "a"));
    create(&server, "b");
    relabel(&server, "a", "api");
    relabel(&server, "a", "web");
    delete(&server, "b");
    server.caught_up("pods").await;
    let newest = format!("pods:{}", server.cluster.revision());
    for transport in TRANSPORTS {
        let mut stream = open(transport, &server, WATCH, Some(&token)).await;
        let events = stream.until("BOOKMARK").await;
        let missed = ["ADDED b", "MODIFIED a", "MODIFIED a", "DELETED b", "BOOKMARK"];
        assert_eq!(summaries(&events), missed, "{transport:?}");
        assert_eq!(events[4].token, Some(transport.bookmark(&newest)));
        let mut stream = open(transport, &server, WATCH, Some(&newest)).await;
        assert_eq!(summaries(&stream.until("BOOKMARK").await), ["BOOKMARK"], "{transport:?}");
    }
}

fn small(config: &mut config::Serve) {
    config.limits.journal_len_max = 16;
    config.limits.tombstones_len_max = 32;
    config.limits.batch_len_max = 3;
    config.limits.resume_wait = Duration::from_millis(100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_behind_the_journal_gives_latest_states_and_deletions() {
    let server = TestServer::start_with(&["pods"], small).await;
    create(&server, "stays");
    create(&server, "goes");
    let token = format!("pods:{}", create(&server, "changes"));
    create(&server, "comes-and-goes");
    delete(&server, "goes");
    delete(&server, "comes-and-goes");
    for round in 0..40 {
        relabel(&server, "changes", &format!("round-{round}"));
    }
    create(&server, "comes");
    server.caught_up("pods").await;
    for transport in TRANSPORTS {
        let mut stream = open(transport, &server, WATCH, Some(&token)).await;
        let events = stream.until("BOOKMARK").await;
        // A DELETED may name an object that the client never had, as its creation after the token is forgotten.
        let latest =
            ["DELETED goes", "DELETED comes-and-goes", "MODIFIED changes", "ADDED comes", "BOOKMARK"];
        assert_eq!(summaries(&events), latest, "{transport:?}");
        assert!(labeled(&events[2].object, "app", "round-39"));
        assert_eq!(events[0].object["metadata"]["namespace"], "default");
        // With a filter, an object that does not match is sent as deleted, as it may have matched before.
        let target = format!("{WATCH}?labelSelector=app%3Dweb");
        let mut stream = open(transport, &server, &target, Some(&token)).await;
        let latest = ["DELETED goes", "DELETED comes-and-goes", "DELETED changes", "ADDED comes", "BOOKMARK"];
        assert_eq!(summaries(&stream.until("BOOKMARK").await), latest, "{transport:?}");
    }
}

/// Opens streams with a token, and expects a RESET followed by the whole state.
async fn resets(server: &TestServer, target: &str, token: &str, reason: &str) {
    for transport in TRANSPORTS {
        let mut stream = open(transport, server, target, Some(token)).await;
        let events = stream.until("SYNCED").await;
        assert_eq!((&*events[0].kind, events[0].reason()), ("RESET", reason), "{transport:?} {token}");
        let objects = server.cluster.len("pods");
        assert_eq!(events.len(), objects + 2, "{transport:?} {token}: {:?}", summaries(&events));
        assert!(events[1..=objects].iter().all(|event| event.kind == "ADDED"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_resumed_gives_a_reset_with_the_reason() {
    let server = TestServer::start_with(&["pods", "services"], small).await;
    create(&server, "stays");
    let old = format!("pods:{}", create(&server, "goes"));
    for round in 0..40 {
        create(&server, &format!("goes-{round}"));
        delete(&server, &format!("goes-{round}"));
    }
    // A change of another object, so that a catch-up has something to send.
    create(&server, "last");
    server.caught_up("pods").await;
    // The API server has compacted that version, too.
    server.cluster.compact();
    resets(&server, WATCH, &old, "TokenTooOld").await;
    resets(&server, WATCH, "pods:0", "TokenTooOld").await;
    resets(&server, WATCH, "pods:1", "TokenTooOld").await;
    let now = server.cluster.revision();
    resets(&server, WATCH, &format!("services:{now}"), "TokenOfOtherResources").await;
    resets(&server, WATCH, &format!("pods:{now},services:{now}"), "TokenOfOtherResources").await;
    let both = "/v1/watch/pods,services";
    resets(&server, both, &format!("pods:{now}"), "TokenOfOtherResources").await;
    resets(&server, WATCH, "pods:99999999999999999999999999", "TokenAhead").await;
    resets(&server, WATCH, "pods:not-a-number", "TokenTooOld").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_behind_a_token_waits_until_it_has_caught_up() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    for transport in TRANSPORTS {
        let token = format!("pods:{}", server.cluster.revision() + 2);
        let mut stream = open(transport, &server, WATCH, Some(&token)).await;
        for part in ["one", "two", "three"] {
            create(&server, &format!("{part}-{transport:?}").to_lowercase());
        }
        // The bookmark says that the token is reached. Earlier changes are not sent again.
        let third = format!("ADDED three-{}", format!("{transport:?}").to_lowercase());
        assert_eq!(summaries(&stream.until("ADDED").await).last(), Some(&third), "{transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_read_is_refused_by_name() {
    let server = TestServer::start(&["pods"]).await;
    let long = format!("pods:1,{}", "x".repeat(7000));
    for token in
        ["pods", "48213", "pods:", ":7", "pods:1,", "pods:1;services:2", "p%20s:1", "pods:1%00", &long]
    {
        for transport in [Transport::Ndjson, Transport::WebSocket] {
            let refused = Stream::open(transport, server.address, WATCH, Some(token)).await.err();
            let refused = refused.unwrap_or_else(|| panic!("{token} was accepted"));
            let status = refused.json();
            assert_eq!((refused.status(), &status["reason"]), (400, &json!("BadRequest")), "{token}");
            assert_eq!(status["details"]["causes"][0]["field"], "resume", "{token}");
        }
    }
    for token in ["pods", "p s:1", "pods:\u{fc}"] {
        let refused = Stream::sse(server.address, WATCH, Some(token)).await.err().unwrap().json();
        assert_eq!(refused["details"]["causes"][0]["field"], "Last-Event-ID", "{token}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_initial_events_sends_changes_only() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    server.caught_up("pods").await;
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let target = format!("{WATCH}?sendInitialEvents=false");
        let mut stream = open(transport, &server, &target, None).await;
        let first = stream.next().await.unwrap();
        assert_eq!(first.kind, "BOOKMARK", "{transport:?}");
        assert_eq!(first.token, Some(transport.bookmark(&format!("pods:{}", server.cluster.revision()))));
        create(&server, &format!("b{number}"));
        assert_eq!(summaries(&[stream.next().await.unwrap()]), [format!("ADDED b{number}")], "{transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_cleanly_after_timeout_seconds() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    server.caught_up("pods").await;
    for transport in TRANSPORTS {
        let target = format!("{WATCH}?timeoutSeconds=1");
        let mut stream = open(transport, &server, &target, None).await;
        assert_eq!(summaries(&stream.until("BOOKMARK").await), ["ADDED a", "SYNCED", "BOOKMARK"]);
        let end = in_time("the end", stream.item()).await;
        let code = (transport == Transport::WebSocket).then_some(1000);
        assert!(matches!(end, Item::End(found) if found == code), "{transport:?}: {end:?}");
    }
    super::support::eventually("no subscriber is left", || server.hub.subscribers() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resync_sends_every_matching_object_again() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    create(&server, "b");
    server.cluster.create("pods", mk_pod("default", "other", "api")).unwrap();
    server.caught_up("pods").await;
    let target = format!("{WATCH}?resyncSeconds=1&labelSelector=app%3Dweb");
    for transport in TRANSPORTS {
        let mut stream = open(transport, &server, &target, None).await;
        stream.until("SYNCED").await;
        let mut again = Vec::new();
        for _ in 0..4 {
            again.push(stream.next().await.unwrap());
        }
        assert_eq!(
            summaries(&again),
            ["MODIFIED a", "MODIFIED b", "MODIFIED a", "MODIFIED b"],
            "{transport:?}"
        );
        assert_eq!(again[0].object, again[2].object);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_the_latest_states_and_keeps_its_connection() {
    let server = TestServer::start_with(&["pods"], |config| {
        small(config);
        config.limits.send_buffer_bytes = 4 << 10;
    })
    .await;
    create(&server, "a");
    create(&server, "goes");
    for transport in TRANSPORTS {
        let mut recorder = Recorder::connect(transport, server.address, WATCH).await;
        let (before, writes) = (recorder.events, 2000);
        let padding: Value = "x".repeat(8 << 10).into();
        for round in 0..writes {
            let patch =
                json!({"metadata": {"annotations": {"round": round.to_string(), "padding": padding}}});
            server.cluster.patch("pods", "default", "a", &patch).unwrap();
        }
        let state = expected(&server.cluster, "pods", |_| true);
        recorder.wait_for_state(&state).await;
        let events = recorder.events - before;
        assert!(events < writes, "{transport:?}: {events} events of {writes} changes");
        assert_eq!((recorder.connections, recorder.resets.len()), (1, 0), "{transport:?}");
    }
}
