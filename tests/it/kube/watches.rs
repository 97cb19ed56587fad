//! Cases 49 to 65: watches.

use std::collections::BTreeMap;
use std::time::Duration;

use informerd::testing::sim::{Cut, Gone, Requests, Verb};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{DEFAULT_PODS, PODS, create, delete, names, next, relabel, status, summary, watch};
use crate::support::client::{Item, Stream, StreamEvent, head};
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

/// A streaming list.
const STREAMING: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

async fn list_version(server: &TestServer) -> u64 {
    let list = server.get(PODS).await.json();
    list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn ends(stream: &mut Stream) {
    let end = in_time("the end", stream.item()).await;
    assert!(matches!(end, Item::End(None)), "{end:?}");
}

/// The only event of a refused watch, which then ends.
async fn refusal(stream: &mut Stream) -> Value {
    let event = stream.next().await.expect("an ERROR");
    assert_eq!(event.kind, "ERROR");
    ends(stream).await;
    event.object
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_49_and_65_the_response_head_comes_at_once_and_uncompressed() {
    let server = TestServer::start(&["pods"]).await;
    let version = list_version(&server).await;
    let began = Instant::now();
    let target = format!("{PODS}?watch=1&resourceVersion={version}");
    let headers = [("Accept", "application/json"), ("Accept-Encoding", "gzip")];
    let mut stream = Stream::http(server.address, &target, &headers).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(stream.header("content-type").as_deref(), Some("application/json"));
    assert_eq!(stream.header("cache-control").as_deref(), Some("no-cache, private"));
    assert_eq!(stream.header("content-encoding"), None);
    let version = create(&server, "a");
    assert_eq!(next(&mut stream, 1).await, [format!("ADDED a@{version}")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_50_a_watch_from_a_list_sends_every_change_once_in_order() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "before");
    server.caught_up("pods").await;
    let version = list_version(&server).await;
    let mut expected = vec![format!("ADDED a@{}", create(&server, "a"))];
    server.caught_up("pods").await;
    let mut stream = watch(&server, &format!("{PODS}?watch=1&resourceVersion={version}")).await;
    expected.push(format!("MODIFIED a@{}", relabel(&server, "a", "api")));
    expected.push(format!("MODIFIED before@{}", relabel(&server, "before", "api")));
    expected.push(format!("DELETED a@{}", delete(&server, "a")));
    expected.push(format!("ADDED a@{}", create(&server, "a")));
    assert_eq!(next(&mut stream, expected.len()).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_51_a_watch_without_version_begins_with_the_current_objects() {
    let server = TestServer::start(&["pods"]).await;
    let (a, b) = (create(&server, "a"), create(&server, "b"));
    server.caught_up("pods").await;
    let mut streams = Vec::new();
    for query in ["watch=true", "watch=true&resourceVersion=0", "watch=true&resourceVersion="] {
        let mut stream = watch(&server, &format!("{PODS}?{query}")).await;
        assert_eq!(next(&mut stream, 2).await, [format!("ADDED a@{a}"), format!("ADDED b@{b}")], "{query}");
        streams.push(stream);
    }
    let version = relabel(&server, "a", "api");
    for stream in &mut streams {
        assert_eq!(next(stream, 1).await, [format!("MODIFIED a@{version}")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_52_a_streaming_list_sends_the_current_objects_and_its_mark() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    create(&server, "b");
    let version = relabel(&server, "b", "api");
    server.caught_up("pods").await;
    for (query, expected) in [
        ("", vec!["a", "b"]),
        ("&resourceVersion=0", vec!["a", "b"]),
        ("&resourceVersion=1", vec!["a", "b"]),
        ("&labelSelector=app%3Dapi", vec!["b"]),
        ("&labelSelector=app%3Dnone", vec![]),
    ] {
        let mut stream = watch(&server, &format!("{PODS}?{STREAMING}{query}")).await;
        let mut events = stream.until("SYNCED").await;
        let mark = events.pop().unwrap();
        let metadata = json!({"resourceVersion": mark.object["metadata"]["resourceVersion"],
            "annotations": {"k8s.io/initial-events-end": "true"}});
        assert_eq!(mark.object, json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata}));
        assert!(events.iter().all(|event| event.kind == "ADDED"), "{query}");
        assert_eq!(events.iter().map(StreamEvent::name).collect::<Vec<_>>(), expected, "{query}");
    }
    // The wait ends once the cache has reached the version.
    let after = format!("{PODS}?{STREAMING}&resourceVersion={}", version + 1);
    let mut stream = watch(&server, &after).await;
    create(&server, "c");
    assert_eq!(stream.until("SYNCED").await.len(), 4);
    // Without bookmarks there is no mark.
    let quiet = STREAMING.replace("allowWatchBookmarks=true", "");
    let mut stream = watch(&server, &format!("{PODS}?{quiet}&labelSelector=app%3Dapi")).await;
    let version = relabel(&server, "a", "api");
    let events = next(&mut stream, 2).await;
    assert!(events[0].starts_with("ADDED b@") && events[1] == format!("ADDED a@{version}"), "{events:?}");
    let large = server.cluster.revision() + 1000;
    let mut stream = watch(&server, &format!("{PODS}?{STREAMING}&resourceVersion={large}")).await;
    let late = refusal(&mut stream).await;
    assert_eq!((&late["code"], &late["reason"]), (&json!(504), &json!("Timeout")));
    assert_eq!(late["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_53_conflicting_parameters_are_invalid() {
    let server = TestServer::start(&["pods"]).await;
    for query in [
        "sendInitialEvents=true",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=abc",
        "resourceVersionMatch=NotOlderThan",
    ] {
        let target = format!("{PODS}?watch=1&{query}");
        let refused = status(&server.get(&target).await, 422, "Invalid");
        let upstream = crate::support::client::get(server.api.address(), &target, &[]).await;
        assert_eq!(refused, upstream.json(), "{query}");
    }
    // Later changes only, without the current objects.
    create(&server, "a");
    server.caught_up("pods").await;
    let now = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0";
    let mut stream = watch(&server, &format!("{PODS}?{now}")).await;
    let version = create(&server, "b");
    assert_eq!(next(&mut stream, 1).await, [format!("ADDED b@{version}")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_54_and_55_a_version_older_than_the_journal_is_a_410() {
    let server = TestServer::start_with(&["pods"], |config| config.limits.journal_len_max = 3).await;
    let begin = list_version(&server).await;
    let versions: Vec<_> = ["a", "b", "c", "d"].map(|name| create(&server, name)).into();
    server.caught_up("pods").await;
    let target = |version: u64| format!("{PODS}?watch=1&resourceVersion={version}");
    for version in [1, begin] {
        let old = refusal(&mut watch(&server, &target(version)).await).await;
        assert_eq!((&old["code"], &old["reason"]), (&json!(410), &json!("Expired")));
        let message = format!("too old resource version: {version} ({})", versions[0]);
        assert_eq!(old["message"], json!(message));
        assert!(old["details"].is_null());
    }
    let mut stream = watch(&server, &target(versions[0])).await;
    let expected = [("b", versions[1]), ("c", versions[2]), ("d", versions[3])];
    assert_eq!(next(&mut stream, 3).await, expected.map(|(name, at)| format!("ADDED {name}@{at}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_56_a_watch_ends_after_timeout_seconds() {
    let server = TestServer::start(&["pods"]).await;
    let began = Instant::now();
    let mut marked = watch(
        &server,
        &format!("{PODS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=2&resourceVersion=1"),
    )
    .await;
    // These two watches become members of live views, which send their last bookmarks and ends.
    let version = list_version(&server).await;
    let target = format!("{PODS}?watch=1&timeoutSeconds=2&resourceVersion={version}");
    let mut plain = watch(&server, &target).await;
    let mut bookmarked = watch(&server, &format!("{target}&allowWatchBookmarks=true")).await;
    assert_eq!(marked.next().await.expect("a refusal").kind, "ERROR");
    ends(&mut plain).await;
    assert!(began.elapsed() >= Duration::from_secs(2));
    let last = in_time("the last event", bookmarked.item()).await;
    assert!(matches!(last, Item::Event(ref event) if event.kind == "BOOKMARK"), "{last:?}");
    ends(&mut bookmarked).await;
    let mut negative =
        watch(&server, &format!("{PODS}?watch=1&timeoutSeconds=-1&resourceVersion={version}")).await;
    ends(&mut negative).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_57_bookmarks_are_sent_on_request_only() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.bookmark_interval = Duration::from_millis(100);
        config.limits.heartbeat_interval = Duration::from_millis(50);
    })
    .await;
    let version = list_version(&server).await;
    let target = format!("{PODS}?watch=1&resourceVersion={version}");
    let mut plain = watch(&server, &target).await;
    let mut marked = watch(&server, &format!("{target}&allowWatchBookmarks=true")).await;
    for _ in 0..4 {
        let Item::Event(mark) = in_time("a bookmark", marked.item()).await else { panic!("no bookmark") };
        let metadata = json!({"resourceVersion": mark.object["metadata"]["resourceVersion"]});
        assert_eq!(mark.object, json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata}));
        assert!(
            mark.object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() >= version
        );
    }
    let version = create(&server, "a");
    let Item::Event(first) = in_time("the change", plain.item()).await else { panic!("not an event") };
    assert_eq!(summary(&first), format!("ADDED a@{version}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_58_objects_that_enter_or_leave_a_selector_are_added_or_deleted() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    create(&server, "outside");
    server.caught_up("pods").await;
    let version = list_version(&server).await;
    let target = format!("{PODS}?watch=1&labelSelector=app%3Dapi&resourceVersion={version}");
    let mut stream = watch(&server, &target).await;
    relabel(&server, "outside", "none");
    let entered = relabel(&server, "a", "api");
    server.cluster.patch("pods", "default", "a", &json!({"metadata": {"labels": {"x": "1"}}})).unwrap();
    let inside = server.cluster.revision();
    let left = relabel(&server, "a", "web");
    assert_eq!(next(&mut stream, 2).await, [format!("ADDED a@{entered}"), format!("MODIFIED a@{inside}")]);
    let event = stream.next().await.unwrap();
    assert_eq!(summary(&event), format!("DELETED a@{left}"));
    assert_eq!(
        event.object["metadata"]["labels"],
        json!({"app": "api", "x": "1"}),
        "not its last matching state"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_59_and_60_a_watch_of_one_object_or_one_namespace() {
    let server = TestServer::start(&["pods"]).await;
    let version = list_version(&server).await;
    let one = format!("{DEFAULT_PODS}?fieldSelector=metadata.name%3Da&watch=1&resourceVersion={version}");
    let space = format!("{DEFAULT_PODS}?watch=1&resourceVersion={version}");
    let all = format!("{PODS}?watch=1&resourceVersion={version}");
    let (mut one, mut space, mut all) =
        (watch(&server, &one).await, watch(&server, &space).await, watch(&server, &all).await);
    server.cluster.create("pods", mk_pod("other", "a", "web")).unwrap();
    let other = server.cluster.revision();
    let (b, a) = (create(&server, "b"), create(&server, "a"));
    let (b, a) = (format!("ADDED b@{b}"), format!("ADDED a@{a}"));
    assert_eq!(next(&mut one, 1).await, [&*a]);
    assert_eq!(next(&mut space, 2).await, [&*b, &*a]);
    assert_eq!(next(&mut all, 3).await, [&*format!("ADDED a@{other}"), &*b, &*a]);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_61_values_of_the_watch_parameter() {
    let server = TestServer::start(&["pods"]).await;
    let version = create(&server, "a");
    server.caught_up("pods").await;
    for query in ["watch=1", "watch=True", "&watch=true", "watch"] {
        let mut stream = watch(&server, &format!("{PODS}?{query}")).await;
        assert_eq!(next(&mut stream, 1).await, [format!("ADDED a@{version}")], "{query}");
    }
    for query in ["watch=0", "watch=false", ""] {
        assert_eq!(names(&server.get(&format!("{PODS}?{query}")).await), ["a"], "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_62_a_stalled_client_delays_no_other_and_gets_a_410() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.journal_len_max = 20;
        config.limits.send_buffer_bytes = 4 << 10;
    })
    .await;
    let version = list_version(&server).await;
    let target = format!("{PODS}?watch=1&resourceVersion={version}");
    let mut stalled = TcpStream::connect(server.address).await.unwrap();
    let request = head("GET", &target, "localhost", &[], "keep-alive");
    stalled.write_all(request.as_bytes()).await.unwrap();
    eventually("its subscription", || server.hub.subscribers() == 1).await;
    let mut reading = watch(&server, &target).await;
    let padding = "x".repeat(8 << 10);
    create(&server, "a");
    next(&mut reading, 1).await;
    for round in 0..2000 {
        let patch = json!({"metadata": {"annotations": {"padding": padding, "round": round.to_string()}}});
        server.cluster.patch("pods", "default", "a", &patch).unwrap();
        assert_eq!(next(&mut reading, 1).await, [format!("MODIFIED a@{}", server.cluster.revision())]);
    }
    // The client gets what was sent before it fell behind, then the reason for the end.
    let mut bytes = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut stalled, &mut bytes);
    in_time("the end of the stalled client", read).await.unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(
        text.contains(r#""message":"The resourceVersion for the provided watch is too old.""#),
        "no refusal"
    );
    assert!(text.ends_with("}}\n\r\n0\r\n\r\n"), "it does not end with a whole line and the last chunk");
    assert_eq!(text.matches(r#"{"type":"ERROR""#).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_63_many_watches_get_the_same_sequence_from_one_upstream_watch() {
    let server = TestServer::start(&["pods"]).await;
    let version = list_version(&server).await;
    let target = format!("{PODS}?watch=1&resourceVersion={version}");
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(watch(&server, &target).await);
    }
    let mut expected = Vec::new();
    for name in ["a", "b", "c"] {
        expected.push(format!("ADDED {name}@{}", create(&server, name)));
        expected.push(format!("MODIFIED {name}@{}", relabel(&server, name, "api")));
        expected.push(format!("DELETED {name}@{}", delete(&server, name)));
    }
    for stream in &mut streams {
        assert_eq!(next(stream, expected.len()).await, expected);
    }
    assert_eq!(server.cluster.counters()["pods"].watches_started, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_64_at_shutdown_every_watch_ends_cleanly() {
    let mut server = TestServer::start(&["pods"]).await;
    let version = list_version(&server).await;
    let mut plain = watch(&server, &format!("{PODS}?watch=1&resourceVersion={version}")).await;
    let selected = format!("{PODS}?watch=1&labelSelector=app&resourceVersion={version}");
    let mut selected = watch(&server, &selected).await;
    server.stop().await;
    ends(&mut plain).await;
    ends(&mut selected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_websocket_each_event_is_a_message() {
    let server = TestServer::start(&["pods"]).await;
    let version = create(&server, "a");
    server.caught_up("pods").await;
    let target = format!("{PODS}?watch=true&allowWatchBookmarks=true");
    let mut stream = Stream::websocket(server.address, &target, None).await.unwrap();
    let events = stream.until("SYNCED").await;
    assert_eq!(summary(&events[0]), format!("ADDED a@{version}"));
    assert!(events[1].token.is_none());
    let version = delete(&server, "a");
    assert_eq!(next(&mut stream, 1).await, [format!("DELETED a@{version}")]);
}

/// The state of a client that applies events, and resumes from the version of the last one.
#[derive(Default)]
struct Folded {
    objects: BTreeMap<String, String>,
    at: u64,
}

impl Folded {
    fn take(&mut self, event: &StreamEvent) {
        let version = event.object["metadata"]["resourceVersion"].as_str().unwrap();
        let number: u64 = version.parse().unwrap();
        assert!(number >= self.at, "{} goes back from {}", summary(event), self.at);
        self.at = number;
        match &*event.kind {
            "ADDED" | "MODIFIED" => drop(self.objects.insert(event.name().to_owned(), version.to_owned())),
            "DELETED" => drop(self.objects.remove(event.name())),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_relist_versions_rise_and_a_resumed_watch_misses_nothing() {
    let server = TestServer::start(&["pods"]).await;
    for name in ["a", "b", "c", "d", "e"] {
        create(&server, name);
    }
    server.caught_up("pods").await;
    let version = list_version(&server).await;
    let mut stream = watch(&server, &format!("{PODS}?watch=1&resourceVersion={version}")).await;
    // The upstream watch does not send this change; the list after it has it.
    let watches = Requests::of(Verb::Watch).on("pods");
    server.api.faults().delay(&watches, Duration::from_secs(1));
    server.api.faults().expire_next_watch(1, &watches, Gone::Http);
    server.api.faults().cut_watches(&watches, Cut::Clean);
    for name in ["e", "b"] {
        delete(&server, name);
    }
    create(&server, "f");
    relabel(&server, "a", "api");
    delete(&server, "d");
    create(&server, "d");
    let expected: BTreeMap<String, String> = server
        .cluster
        .list("pods")
        .iter()
        .map(|pod| {
            let text = |name: &str| pod["metadata"][name].as_str().unwrap().to_owned();
            (text("name"), text("resourceVersion"))
        })
        .collect();
    let start = || Folded {
        objects: ["a", "b", "c", "d", "e"].map(|name| (name.to_owned(), String::new())).into(),
        at: version,
    };
    let mut folded = start();
    let mut places = vec![version];
    // Three deletions, two creations (`d` again), one change.
    for _ in 0..6 {
        folded.take(&stream.next().await.unwrap());
        places.push(folded.at);
    }
    folded.objects.insert("c".to_owned(), expected["c"].clone());
    assert_eq!(folded.objects, expected);
    // The client is cut off after each number of events, and resumes with the version of the last one.
    for (taken, place) in places.into_iter().enumerate() {
        let mut again = watch(&server, &format!("{PODS}?watch=1&resourceVersion={place}")).await;
        let first = if taken < 6 { again.next().await } else { None };
        match first {
            Some(event) if event.kind == "ERROR" => assert_eq!(event.object["code"], 410),
            Some(event) => {
                // Only the version from before the relist can be resumed; then all events come again.
                assert_eq!(place, version, "after {taken}");
                let mut folded = start();
                folded.take(&event);
                for _ in 1..6 {
                    folded.take(&again.next().await.unwrap());
                }
                folded.objects.insert("c".to_owned(), expected["c"].clone());
                assert_eq!(folded.objects, expected, "after {taken}");
            }
            None => assert_eq!(taken, 6),
        }
    }
    assert_eq!(server.hub.resolve("pods").unwrap()[0].reader.stats().relists.get(), 1);
}
