//! Parts of objects, conditions and patches: the parameters `fields`, `changed`, `patch`, `where` and `coalesceMs`.

use std::time::Duration;

use informerd::testing::config;
use serde_json::{Value, json};

use crate::support::client::{Stream, StreamEvent, Transport};
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, mk_pod};

fn pod(name: &str, app: &str) -> Value {
    let mut pod = mk_pod("default", name, app);
    // Makes a patch shorter than the object.
    pod["metadata"]["annotations"] = json!({"note": "x".repeat(400)});
    pod
}

fn patch(server: &TestServer, name: &str, patch: &Value) {
    server.cluster.patch("pods", "default", name, patch).unwrap();
}

async fn open(transport: Transport, server: &TestServer, query: &str) -> Stream {
    let target = format!("/v1/watch/pods?{query}");
    Stream::open(transport, server.address, &target, None)
        .await
        .unwrap_or_else(|refused| panic!("{query}: {refused:?}"))
}

fn identity(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
    })
}

async fn two_pods() -> TestServer {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", pod("a", "web")).unwrap();
    server.cluster.create("pods", pod("b", "db")).unwrap();
    server.caught_up("pods").await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_fields_shows_those_fields_and_their_changes_only() {
    let server = two_pods().await;
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let mut stream =
            open(transport, &server, "fields=status.phase,spec.containers.image&labelSelector=app%3Dweb")
                .await;
        let events = stream.until("SYNCED").await;
        let mut expected = identity(&events[0].object);
        expected["spec"] = json!({"containers": [{"image": "registry.example.com/main:1"}]});
        expected["status"] =
            json!({"phase": if number == 0 { "Pending".to_owned() } else { format!("Phase{}", number - 1) }});
        assert_eq!((events.len(), &events[0].object), (2, &expected), "{transport:?}");
        // A change outside the shown fields is no change, apart from the version.
        patch(&server, "a", &json!({"metadata": {"annotations": {"other": number.to_string()}}}));
        patch(&server, "a", &json!({"status": {"phase": format!("Phase{number}")}}));
        let event = stream.next().await.unwrap();
        expected["status"]["phase"] = format!("Phase{number}").into();
        expected["metadata"]["resourceVersion"] = server.cluster.revision().to_string().into();
        assert_eq!((&*event.kind, &event.object), ("MODIFIED", &expected), "{transport:?}");
        // An object that stops matching is sent in the same form.
        patch(&server, "a", &json!({"metadata": {"labels": {"app": "api"}}}));
        let event = stream.next().await.unwrap();
        expected["metadata"]["resourceVersion"] = server.cluster.revision().to_string().into();
        assert_eq!((&*event.kind, &event.object), ("DELETED", &expected), "{transport:?}");
        patch(&server, "a", &json!({"metadata": {"labels": {"app": "web"}}}));
        assert_eq!(stream.next().await.unwrap().kind, "ADDED");
        server.caught_up("pods").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_changed_parameter_sends_whole_objects_when_a_path_differs() {
    let server = two_pods().await;
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let mut stream = open(transport, &server, "changed=metadata.labels,spec").await;
        stream.until("SYNCED").await;
        patch(&server, "a", &json!({"status": {"phase": format!("Phase{number}")}}));
        patch(&server, "a", &json!({"metadata": {"labels": {"round": number.to_string()}}}));
        let event = stream.next().await.unwrap();
        assert_eq!((&*event.kind, event.name()), ("MODIFIED", "a"), "{transport:?}");
        assert_eq!(event.object["metadata"]["labels"]["round"], number.to_string());
        assert_eq!(event.object["status"]["phase"], format!("Phase{number}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_patch_turns_the_previous_state_into_the_next() {
    let server = two_pods().await;
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let mut stream = open(transport, &server, "patch=merge").await;
        stream.until("SYNCED").await;
        patch(&server, "a", &json!({"status": {"phase": format!("Phase{number}")}}));
        let event = stream.next().await.unwrap();
        let mut expected = identity(&event.object);
        expected["status"] = json!({"phase": format!("Phase{number}")});
        assert_eq!((&*event.kind, &event.object), ("PATCHED", &expected), "{transport:?}");
        patch(&server, "a", &json!({"status": {"phase": null}}));
        let event = stream.next().await.unwrap();
        expected["metadata"]["resourceVersion"] = server.cluster.revision().to_string().into();
        expected["status"] = json!({"phase": null});
        assert_eq!((&*event.kind, &event.object), ("PATCHED", &expected), "{transport:?}");
        server.caught_up("pods").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_where_condition_selects_on_streams_and_in_snapshots() {
    let server = two_pods().await;
    let condition =
        "where=object.metadata.labels.app%3D%3D%27web%27%26%26size(object.spec.containers)%3D%3D1";
    let list = server.get(&format!("/v1/snapshot/pods?{condition}&fields=metadata.labels")).await.json();
    let mut expected = identity(&list["items"][0]);
    expected["metadata"]["labels"] = json!({"app": "web"});
    assert_eq!(list["items"], json!([expected]));
    for transport in TRANSPORTS {
        let mut stream = open(transport, &server, condition).await;
        let told =
            |events: &[StreamEvent]| events.iter().map(|event| event.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(told(&stream.until("SYNCED").await), ["a", ""], "{transport:?}");
        patch(&server, "b", &json!({"metadata": {"labels": {"app": "web"}}}));
        let event = stream.next().await.unwrap();
        assert_eq!((&*event.kind, event.name()), ("ADDED", "b"), "{transport:?}");
        patch(&server, "b", &json!({"metadata": {"labels": {"app": "db"}}}));
        let event = stream.next().await.unwrap();
        assert_eq!((&*event.kind, event.name()), ("DELETED", "b"), "{transport:?}");
        server.caught_up("pods").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_with_fields_shows_those_fields_and_its_tag_covers_them() {
    let server = two_pods().await;
    let path = "/v1/snapshot/pods?fields=status.phase";
    let first = server.get(path).await;
    let one = server.get("/v1/snapshot/pods/default/a?fields=status.phase").await;
    let mut expected = identity(&one.json());
    expected["status"] = json!({"phase": "Pending"});
    assert_eq!(one.json(), expected);
    assert_eq!(first.json()["items"][0], expected);
    let tag = first.header("etag").unwrap();
    patch(&server, "a", &json!({"metadata": {"annotations": {"other": "1"}}}));
    server.caught_up("pods").await;
    assert_eq!(server.get_with(path, &[("If-None-Match", &tag)]).await.status(), 304);
    patch(&server, "a", &json!({"status": {"phase": "Running"}}));
    server.caught_up("pods").await;
    assert_eq!(server.get_with(path, &[("If-None-Match", &tag)]).await.status(), 200);
    assert_ne!(server.get("/v1/snapshot/pods").await.header("etag"), Some(tag));
}

#[tokio::test(flavor = "multi_thread")]
async fn gathered_changes_come_in_one_batch_with_the_latest_state_of_each_object() {
    let server = two_pods().await;
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let mut stream = open(transport, &server, "coalesceMs=1000").await;
        let before = stream.until("SYNCED").await.pop().unwrap().token.unwrap();
        let before = before.trim_end_matches(",.kind:bookmark").to_owned();
        // The first change after a pause is sent at once. It starts the interval in which others are gathered.
        patch(&server, "b", &json!({"status": {"phase": format!("First{number}")}}));
        let first = stream.next().await.unwrap();
        assert_eq!((&*first.kind, first.name()), ("MODIFIED", "b"), "{transport:?}");
        let start = format!("pods:{}", server.cluster.revision());
        assert_ne!(before, start);
        server.cluster.create("pods", pod("comes-and-goes", "web")).unwrap();
        server.cluster.create("pods", pod(&format!("c{number}"), "web")).unwrap();
        for step in 0..5 {
            patch(&server, "a", &json!({"status": {"phase": format!("Phase{number}-{step}")}}));
        }
        server.cluster.delete("pods", "default", "comes-and-goes").unwrap();
        let events = [stream.next().await.unwrap(), stream.next().await.unwrap()];
        let told = events.each_ref().map(|event| format!("{} {}", event.kind, event.name()));
        assert_eq!(told, [format!("ADDED c{number}"), "MODIFIED a".to_owned()], "{transport:?}");
        assert_eq!(events[1].object["status"]["phase"], format!("Phase{number}-4"));
        if let Transport::Sse | Transport::Http2 = transport {
            // Events of a batch are in no order, so all but the last have the token of the batch's start.
            assert_eq!(events[0].token, Some(format!("{start},.kind:bookmark")), "{transport:?}");
            assert_eq!(events[1].token, Some(format!("pods:{}", server.cluster.revision())), "{transport:?}");
        }
        server.caught_up("pods").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_view_parameters_are_refused_by_name() {
    let held = |config: &mut config::Serve| config.limits.resume_wait = Duration::from_millis(100);
    let server = TestServer::start_with(&["pods"], held).await;
    for (target, field, part) in [
        ("/v1/watch/pods?fields=spec..a", "fields", "a name is empty"),
        ("/v1/snapshot/pods?fields=spec.containers[0]", "fields", "no brackets"),
        ("/v1/watch/pods?changed=", "changed", "a name is empty"),
        ("/v1/watch/pods?patch=json", "patch", "expected merge"),
        ("/v1/watch/pods?patch=merge&changed=spec", "patch", "needs each change"),
        ("/v1/snapshot/pods?patch=merge", "patch", "unknown parameter"),
        ("/v1/snapshot/pods?changed=spec", "changed", "unknown parameter"),
        ("/v1/watch/pods?coalesceMs=0", "coalesceMs", "60000"),
        ("/v1/snapshot/pods?coalesceMs=10", "coalesceMs", "unknown parameter"),
        ("/v1/watch/pods?where=object.spec.replicas%20%3E", "where", "line 1 column"),
        ("/v1/watch/pods?where=pod.spec", "where", "expected object"),
        ("/v1/watch/pods?where=", "where", "expected a CEL expression"),
    ] {
        let refused = server.get(target).await;
        assert_eq!(refused.status(), 400, "{target}");
        let cause = &refused.json()["details"]["causes"][0];
        assert_eq!(cause["field"], field, "{target}");
        assert!(cause["message"].as_str().unwrap().contains(part), "{target}: {cause}");
    }
}
