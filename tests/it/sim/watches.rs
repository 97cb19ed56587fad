//! Cases of watches: order, selectors, bookmarks, streaming lists, ends.

use serde_json::{Value, json};

use super::{Server, Which, maps, version};

async fn list_version(server: &Server, namespace: &str) -> u64 {
    version(&server.get(&maps(namespace)).await.must_be(200))
}

pub(super) async fn events_come_in_order_with_their_states(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let start = list_version(server, namespace).await;
    let mut watch =
        server.watch(&format!("{path}?watch=true&resourceVersion={start}&timeoutSeconds=60")).await;
    let created = server.config_map(namespace, "m", json!({})).await;
    let one = format!("{path}/m");
    let labelled = server.patch(&one, &json!({"metadata": {"labels": {"a": "b"}}})).await.must_be(200);
    // A write without a change makes no event.
    let same = server.patch(&one, &json!({"metadata": {"labels": {"a": "b"}}})).await.must_be(200);
    assert_eq!(version(&same), version(&labelled));
    server.patch(&one, &json!({"metadata": {"finalizers": ["x.example.com/f"]}})).await.must_be(200);
    server.delete(&one).await.must_be(200);
    server.patch(&one, &json!({"metadata": {"finalizers": null}})).await.must_be(200);
    let again = server.config_map(namespace, "m", json!({})).await;
    let other = server.config_map(namespace, "n", json!({})).await;
    server.delete(&format!("{path}/n")).await.must_be(200);

    let mut events = vec![watch.expect("ADDED", "m").await];
    assert_eq!(events[0], created);
    events.push(watch.expect("MODIFIED", "m").await);
    assert_eq!(events[1], labelled);
    events.push(watch.expect("MODIFIED", "m").await);
    assert_eq!(events[2]["metadata"].get("deletionTimestamp"), None);
    events.push(watch.expect("MODIFIED", "m").await);
    assert!(events[3]["metadata"]["deletionTimestamp"].is_string());
    // The DELETED event has the state before the deletion, with its finalizer, and the version of the deletion.
    events.push(watch.expect("DELETED", "m").await);
    assert_eq!(events[4]["metadata"]["finalizers"], json!(["x.example.com/f"]));
    events.push(watch.expect("ADDED", "m").await);
    assert_eq!(events[5]["metadata"]["uid"], again["metadata"]["uid"]);
    assert_ne!(events[5]["metadata"]["uid"], created["metadata"]["uid"]);
    events.push(watch.expect("ADDED", "n").await);
    let gone = watch.expect("DELETED", "n").await;
    assert!(version(&gone) > version(&other));
    assert_eq!(gone["data"], other["data"]);
    events.push(gone);
    let versions: Vec<u64> = events.iter().map(version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b) && versions[0] > start, "{versions:?} from {start}");
    assert!(events.iter().all(|object| object["kind"] == "ConfigMap" && object["apiVersion"] == "v1"));

    // A second watch, from the middle, gets exactly the later events.
    let middle = versions[3];
    let mut late = server.watch(&format!("{path}?watch=1&resourceVersion={middle}&timeoutSeconds=60")).await;
    for expected in &events[4..] {
        assert_eq!(&late.next().await.unwrap()["object"], expected);
    }
}

pub(super) async fn leaving_a_selector_is_deleted_with_the_old_state(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let start = list_version(server, namespace).await;
    let query =
        format!("{path}?watch=true&resourceVersion={start}&labelSelector=app%3Ddemo&timeoutSeconds=60");
    let mut watch = server.watch(&query).await;
    server.config_map(namespace, "m", json!({})).await;
    let one = format!("{path}/m");
    let label = |value: Value| json!({"metadata": {"labels": {"app": value}}});
    let entered = server.patch(&one, &label("demo".into())).await.must_be(200);
    let inside = server.patch(&one, &json!({"data": {"a": "2"}})).await.must_be(200);
    let left = server.patch(&one, &label("x".into())).await.must_be(200);
    server.patch(&one, &json!({"data": {"a": "3"}})).await.must_be(200);
    let back = server.patch(&one, &label("demo".into())).await.must_be(200);
    server.delete(&one).await.must_be(200);
    assert_eq!(watch.expect("ADDED", "m").await, entered);
    assert_eq!(watch.expect("MODIFIED", "m").await, inside);
    let deleted = watch.expect("DELETED", "m").await;
    assert_eq!(version(&deleted), version(&left));
    assert_eq!(
        (&deleted["metadata"]["labels"], &deleted["data"]),
        (&json!({"app": "demo"}), &json!({"a": "2"}))
    );
    assert_eq!(watch.expect("ADDED", "m").await, back);
    let gone = watch.expect("DELETED", "m").await;
    assert!(version(&gone) > version(&back));
}

pub(super) async fn no_version_and_zero_begin_with_the_state(server: &Server, namespace: &str) {
    for name in ["c1", "c2", "c3"] {
        server.config_map(namespace, name, json!({})).await;
    }
    // The list makes sure that the watch cache is up to date before version 0 is requested.
    let newest = list_version(server, namespace).await;
    server.get(&format!("{}?resourceVersion={newest}", maps(namespace))).await.must_be(200);
    for query in ["watch=true", "watch=True&resourceVersion=0", "watch=banana&resourceVersion=0&limit=1"] {
        let mut watch = server.watch(&format!("{}?{query}&timeoutSeconds=60", maps(namespace))).await;
        let mut seen = Vec::new();
        for _ in 0..3 {
            let event = watch.next().await.unwrap();
            assert_eq!(event["type"], "ADDED");
            seen.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
        }
        seen.sort();
        assert_eq!(seen, ["c1", "c2", "c3"], "{query}");
        let live = format!("live-{}", query.len());
        server.config_map(namespace, &live, json!({})).await;
        watch.expect("ADDED", &live).await;
        server.delete(&format!("{}/{live}", maps(namespace))).await.must_be(200);
        watch.expect("DELETED", &live).await;
    }
    let list = server.get(&format!("{}?watch=0", maps(namespace))).await.must_be(200);
    assert_eq!(list["kind"], "ConfigMapList");
}

pub(super) async fn a_watch_from_a_future_version_is_silent(server: &Server, namespace: &str) {
    let path = format!("{}?watch=true&resourceVersion=99999999&timeoutSeconds=1", maps(namespace));
    let answer = server.get(&path).await;
    assert_eq!((answer.code, answer.text.as_str()), (200, ""));
}

pub(super) async fn bad_parameters_are_refused(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let answer = server.get(&format!("{path}?watch=true&resourceVersion=abc")).await;
    if server.which == Which::V1_20 {
        assert!(answer.code >= 400, "{}", answer.text);
        return; // It refuses in other words, and does not know streaming lists.
    }
    let message =
        "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax";
    answer.is_error(500, "", message);
    let invalid = |text: &str| {
        format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: {text}")
    };
    for (query, message) in [
        (
            "resourceVersion=5&resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (
            "sendInitialEvents=true&allowWatchBookmarks=true",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&continue=abc",
            "resourceVersionMatch is forbidden when continue is provided",
        ),
    ] {
        let answer = server.get(&format!("{path}?watch=true&timeoutSeconds=1&{query}")).await;
        answer.is_error(422, "Invalid", &invalid(message));
    }
    let exact =
        format!("{path}?watch=true&sendInitialEvents=true&resourceVersionMatch=Exact&timeoutSeconds=1");
    let message = "ListOptions.meta.k8s.io \"\" is invalid: [resourceVersionMatch: Forbidden: sendInitialEvents \
                   requires setting resourceVersionMatch to NotOlderThan, resourceVersionMatch: Unsupported value: \
                   \"Exact\": supported values: \"NotOlderThan\"]";
    server.get(&exact).await.is_error(422, "Invalid", message);
}

pub(super) async fn the_end_is_clean_and_a_bookmark_precedes_it(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let created = server.config_map(namespace, "c1", json!({})).await;
    let query = format!("{path}?watch=true&resourceVersion={}", version(&created));
    let began = tokio::time::Instant::now();
    let mut watch = server.watch(&format!("{query}&allowWatchBookmarks=true&timeoutSeconds=5")).await;
    // A write to another namespace: this watch has only the newer version to report.
    let elsewhere = server.config_map("default", "elsewhere", json!({})).await;
    let mut events = Vec::new();
    while let Some(event) = watch.next().await {
        events.push(event);
    }
    let lasted = began.elapsed().as_secs_f64();
    assert!((4.5..8.0).contains(&lasted), "{lasted} s");
    // 1.20 sends no bookmark while nothing in the watched namespace changes.
    assert!(!events.is_empty() || server.which == Which::V1_20);
    for event in events {
        assert_eq!((&event["type"], &event["object"]["kind"]), (&"BOOKMARK".into(), &"ConfigMap".into()));
        assert_eq!(event["object"]["apiVersion"], "v1");
        assert!(version(&event["object"]) >= version(&elsewhere));
        assert_eq!(event["object"]["metadata"].get("name"), None);
    }
    let without = server.get(&format!("{query}&timeoutSeconds=3")).await;
    assert_eq!((without.code, without.text.as_str()), (200, ""));
    assert_eq!(without.header("Content-Type"), "application/json");
}

pub(super) async fn a_streaming_list_ends_its_state_with_a_mark(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let stream =
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    if server.which == Which::V1_20 {
        let message = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch \
                       is forbidden for watch";
        let answer = server.get(&format!("{path}?{stream}&resourceVersion=0&timeoutSeconds=2")).await;
        answer.is_error(422, "Invalid", message);
        return;
    }
    let mut empty = server.watch(&format!("{path}?{stream}&timeoutSeconds=60")).await;
    let mark = empty.next().await.unwrap();
    let is_mark = |event: &Value| {
        event["type"] == "BOOKMARK"
            && event["object"]["metadata"]["annotations"] == json!({"k8s.io/initial-events-end": "true"})
    };
    assert!(is_mark(&mark), "{mark}");
    server.config_map(namespace, "c2", json!({"app": "x"})).await;
    let created = server.config_map(namespace, "c1", json!({})).await;
    empty.expect("ADDED", "c2").await;
    for (query, expected) in [
        (String::new(), vec!["c1", "c2"]),
        (format!("&resourceVersion={}", version(&created)), vec!["c1", "c2"]),
        (format!("&resourceVersion={}&labelSelector=app%3Dx", version(&created)), vec!["c2"]),
    ] {
        let mut watch = server.watch(&format!("{path}?{stream}{query}&timeoutSeconds=60")).await;
        for name in &expected {
            watch.expect("ADDED", name).await;
        }
        let mark = watch.next().await.unwrap();
        assert!(is_mark(&mark) && version(&mark["object"]) >= version(&created), "{mark}");
    }
    let legacy = format!("{path}?watch=true&resourceVersion=0&allowWatchBookmarks=true&timeoutSeconds=1");
    assert!(server.get(&legacy).await.events().iter().any(is_mark), "no mark without bookmarks");
    let unmarked = format!(
        "{path}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    );
    assert_eq!(server.get(&unmarked).await.events().len(), 2);
    let from_now = format!(
        "{path}?{}&resourceVersion=0&timeoutSeconds=1",
        stream.replace("Events=true", "Events=false")
    );
    assert_eq!(server.get(&from_now).await.text, "");
    let future = server.get(&format!("{path}?{stream}&resourceVersion=99999999&timeoutSeconds=20")).await;
    let events = future.events();
    assert_eq!((events.len(), &events[0]["type"]), (1, &"ERROR".into()));
    let error = &events[0]["object"];
    assert_eq!(
        (&error["code"], &error["details"]["causes"][0]["reason"]),
        (&json!(504), &"ResourceVersionTooLarge".into())
    );
}

pub(super) async fn metadata_only_on_request(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let created = server.config_map(namespace, "one", json!({})).await;
    let start = version(&created) - 1;
    let form = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    let query = format!("{path}?watch=true&resourceVersion={start}&timeoutSeconds=60");
    let mut watch = server.watch_as(&query, form).await;
    let object = watch.expect("ADDED", "one").await;
    assert_eq!((&object["kind"], object.get("data")), (&"PartialObjectMetadata".into(), None));
    assert_eq!(object["metadata"], created["metadata"]);
}
