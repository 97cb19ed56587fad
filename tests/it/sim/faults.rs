//! The simulator's faults: each does what it says, and is counted.

use std::time::Duration;

use informerd::testing::sim::{Cluster, Cut, Failure, Fault, Gone, Requests, StreamingLists, Verb};
use serde_json::json;

use super::{Lines, Server, WAIT, maps, simulator, version};

const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true";

fn map(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": {"a": "1"}})
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + WAIT;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn open_watch(server: &Server, cluster: &Cluster) -> Lines {
    let watch = server.watch(&format!("{WATCH}&resourceVersion={}", cluster.revision())).await;
    until("the watch is not open", || cluster.counters()["configmaps"].watches_open > 0).await;
    watch
}

#[tokio::test]
async fn watches_are_cut_in_each_configured_way() {
    let (api_server, server) = simulator().await;
    let (cluster, faults) = (api_server.cluster(), api_server.faults());
    for (at, cut) in [Cut::Clean, Cut::MidLine, Cut::Abort].into_iter().enumerate() {
        let mut watch = open_watch(&server, cluster).await;
        cluster.create("configmaps", map(&format!("m{at}"))).unwrap();
        watch.expect("ADDED", &format!("m{at}")).await;
        faults.cut_watches(&Requests::of(Verb::Watch).on("pods"), Cut::Abort);
        faults.cut_watches(&Requests::of(Verb::Watch).on("configmaps"), cut);
        let end = watch.try_next().await;
        match cut {
            Cut::Clean => assert_eq!(end, Ok(None)),
            Cut::MidLine => assert_eq!(end, Err("half a line at the end".into())),
            Cut::Abort => assert!(end.as_ref().is_err_and(|e| !e.contains("half")), "{end:?}"),
        }
        assert_eq!(faults.fired(Fault::Cut), at as u64 + 1);
        until("the watch is still open", || cluster.counters()["configmaps"].watches_open == 0).await;
    }
}

#[tokio::test]
async fn requests_fail_hang_and_are_delayed() {
    let (api_server, server) = simulator().await;
    let faults = api_server.faults();
    let lists = Requests::of(Verb::List).on("configmaps");
    faults.fail_next(2, &lists, Failure { code: 429, retry_after_seconds: Some(2) });
    for _ in 0..2 {
        let answer = server.get(&maps("default")).await;
        assert_eq!((answer.code, answer.header("Retry-After")), (429, "2"));
        assert_eq!(answer.json()["reason"], "TooManyRequests");
    }
    assert_eq!(server.get(&maps("default")).await.code, 200);
    faults.hang_next(1, &lists);
    let hung = tokio::time::timeout(Duration::from_millis(300), server.get(&maps("default"))).await;
    assert!(hung.is_err());
    faults.delay(&lists, Duration::from_millis(200));
    let began = tokio::time::Instant::now();
    assert_eq!(server.get(&maps("default")).await.code, 200);
    assert!(began.elapsed() >= Duration::from_millis(200));
    faults.clear();
    for (fault, fired) in [(Fault::Failed, 2), (Fault::Hung, 1), (Fault::Delayed, 1)] {
        assert_eq!(faults.fired(fault), fired, "{fault:?}");
    }
    assert_eq!(api_server.requests().len(), 5);
}

#[tokio::test]
async fn ordered_expirations_give_410() {
    let (api_server, server) = simulator().await;
    let (cluster, faults) = (api_server.cluster(), api_server.faults());
    for name in ["a", "b"] {
        cluster.create("configmaps", map(name)).unwrap();
    }
    let from_now = format!("{WATCH}&resourceVersion={}&timeoutSeconds=1", cluster.revision());
    faults.expire_next_watch(1, &Requests::of(Verb::Watch), Gone::InStream);
    assert_eq!(server.get(&from_now).await.events()[0]["object"]["code"], 410);
    faults.expire_next_watch(1, &Requests::of(Verb::Watch), Gone::Http);
    assert_eq!(server.get(&from_now).await.code, 410);
    assert_eq!(server.get(&from_now).await.text, "");
    let page = server.get(&format!("{}?limit=1", maps("default"))).await.must_be(200);
    let next = format!("{}?continue={}", maps("default"), page["metadata"]["continue"].as_str().unwrap());
    faults.expire_continue_tokens(1);
    assert_eq!(server.get(&next).await.code, 410);
    assert_eq!(server.get(&next).await.code, 200);
    assert_eq!((faults.fired(Fault::Gone), faults.fired(Fault::ContinueExpired)), (2, 1));
}

#[tokio::test]
async fn ordered_faults_garble_streams() {
    let (api_server, server) = simulator().await;
    let (cluster, faults) = (api_server.cluster(), api_server.faults());
    let mut watch = open_watch(&server, cluster).await;
    faults.duplicate_events(1);
    faults.chunk_bytes(Some(7));
    cluster.create("configmaps", map("twice")).unwrap();
    let first = watch.expect("ADDED", "twice").await;
    assert_eq!(watch.expect("ADDED", "twice").await, first);
    // hyper may merge several chunks into one, but never splits a chunk.
    assert!(watch.chunks > 20, "{} chunks", watch.chunks);
    faults.chunk_bytes(None);
    faults.silence_watches(true);
    cluster.create("configmaps", map("quiet")).unwrap();
    until("the watch is not silent", || {
        faults.fired(Fault::Silenced) > 0 || faults.fired(Fault::Duplicated) > 9
    })
    .await;
    faults.silence_watches(false);
    watch.expect("ADDED", "quiet").await;
    faults.garbage_lines(1);
    cluster.create("configmaps", map("loud")).unwrap();
    assert!(watch.try_next().await.is_err());
    watch.expect("ADDED", "loud").await;
    assert_eq!((faults.fired(Fault::Duplicated), faults.fired(Fault::Garbage)), (1, 1));
}

#[tokio::test]
async fn streaming_lists_are_refused_in_each_way() {
    let (api_server, server) = simulator().await;
    let faults = api_server.faults();
    let path = format!(
        "{WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    for (mode, expected) in [
        (StreamingLists::Unknown, "resourceVersionMatch is forbidden for watch"),
        (StreamingLists::Disabled, "unless the WatchList feature gate is enabled"),
        (StreamingLists::NoProgress, "RequestWatchProgress is disabled"),
    ] {
        faults.streaming_lists(mode);
        let answer = server.get(&path).await;
        assert!(answer.text.contains(expected), "{mode:?}: {}", answer.text);
        assert_eq!(answer.code, if mode == StreamingLists::NoProgress { 200 } else { 422 });
    }
    faults.streaming_lists(StreamingLists::Ignored);
    assert_eq!(server.get(&path).await.text, "");
    assert_eq!(faults.fired(Fault::StreamingListRefused), 4);
    faults.streaming_lists(StreamingLists::On);
    faults.drop_bookmarks(true);
    assert_eq!(server.get(&path).await.text, "");
    assert_eq!(faults.fired(Fault::BookmarkDropped), 1);
    faults.legacy_discovery(true);
    let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    assert_eq!(server.get_as("/apis", form).await.code, 406);
}

#[tokio::test]
async fn a_server_stops_and_comes_back_at_the_same_address() {
    let (mut api_server, server) = simulator().await;
    let (address, cluster) = (api_server.address(), api_server.cluster().clone());
    let mut watch = open_watch(&server, &cluster).await;
    api_server.stop().await;
    assert!(watch.try_next().await.is_err());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    cluster.create("configmaps", map("meanwhile")).unwrap();
    api_server.start().await.unwrap();
    assert_eq!(server.get(&maps("default")).await.must_be(200)["items"].as_array().unwrap().len(), 1);
    let younger = Cluster::default();
    let before = cluster.revision();
    api_server.replace_cluster(younger).await.unwrap();
    assert_eq!(api_server.address(), address);
    assert!(version(&server.get(&maps("default")).await.must_be(200)) < before);
}

#[tokio::test]
async fn an_old_version_is_gone_and_an_open_watch_goes_on_when_the_window_is_dropped() {
    let (api_server, server) = simulator().await;
    let cluster = api_server.cluster();
    let start = cluster.revision();
    let mut watch = open_watch(&server, cluster).await;
    cluster.create("configmaps", map("a")).unwrap();
    watch.expect("ADDED", "a").await;
    cluster.create("secrets", json!({"metadata": {"name": "s"}})).unwrap();
    cluster.compact();
    let old = server.get(&format!("{WATCH}&resourceVersion={start}")).await;
    let message = format!("too old resource version: {start} ({})", cluster.revision());
    assert_eq!(old.events()[0]["object"]["message"], message.as_str());
    cluster.create("configmaps", map("b")).unwrap();
    watch.expect("ADDED", "b").await;
    let counters = cluster.counters()["configmaps"];
    assert_eq!((counters.watches_started, counters.events_sent, counters.lists), (2, 2, 0));
}

#[tokio::test]
async fn a_server_that_is_behind_serves_its_state_and_refuses_newer_versions() {
    let (api_server, server) = simulator().await;
    let (cluster, faults) = (api_server.cluster(), api_server.faults());
    cluster.create("configmaps", map("then")).unwrap();
    let behind = cluster.revision();
    cluster.create("configmaps", map("now")).unwrap();
    faults.lag_at(Some(behind));
    let list = server.get(&maps("default")).await.must_be(200);
    assert_eq!((version(&list), list["items"].as_array().unwrap().len()), (behind, 1));
    let newest = cluster.revision();
    let least = format!("resourceVersion={newest}&resourceVersionMatch=NotOlderThan");
    let refused = server.get(&format!("{}?{least}", maps("default"))).await;
    assert_eq!((refused.code, refused.header("Retry-After")), (504, "1"));
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    let stream = format!("{WATCH}&sendInitialEvents=true&allowWatchBookmarks=true&{least}");
    let events = server.get(&stream).await.events();
    assert_eq!((events.len(), &events[0]["object"]["code"]), (1, &json!(504)));
    let mut watch = server.watch(&format!("{WATCH}&resourceVersion={behind}")).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), watch.try_next()).await.is_err());
    faults.lag_at(None);
    watch.expect("ADDED", "now").await;
    assert_eq!(version(&server.get(&maps("default")).await.must_be(200)), newest);
    assert!(faults.fired(Fault::Lagged) > 0);
}

#[tokio::test]
async fn stale_events_and_endless_lines_are_sent_on_order() {
    let (api_server, server) = simulator().await;
    let (cluster, faults) = (api_server.cluster(), api_server.faults());
    let mut watch = open_watch(&server, cluster).await;
    faults.disorder_events(1);
    cluster.create("configmaps", map("first")).unwrap();
    cluster.create("configmaps", map("second")).unwrap();
    let second = watch.expect("ADDED", "second").await;
    let first = watch.expect("ADDED", "first").await;
    assert!(version(&first) < version(&second));
    faults.ghosts(1);
    cluster.delete("configmaps", "default", "first").unwrap();
    watch.expect("DELETED", "first").await;
    assert_eq!(version(&watch.expect("MODIFIED", "first").await), version(&first));
    faults.endless_lines(1);
    cluster.create("configmaps", map("third")).unwrap();
    let endless = tokio::time::timeout(Duration::from_millis(500), watch.try_next()).await;
    assert!(endless.is_err(), "{endless:?}");
    for fault in [Fault::Disordered, Fault::Ghost, Fault::EndlessLine] {
        assert_eq!(faults.fired(fault), 1, "{fault:?}");
    }
}
