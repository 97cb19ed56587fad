//! `join=`: snapshots and streams with related objects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::graph::{ALL, listed, object, owned, shop};
use crate::support::client::{Stream, StreamEvent, Transport};
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, in_time, mk_pod};

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_with_join_has_the_related_objects() {
    let server = shop(ALL).await;
    for (target, expected) in [
        (
            "pods?fieldSelector=spec.nodeName%3Dn1&join=owners,namespaces,nodes,services",
            &["Pod shop/a", "Pod shop/alone", "Namespace shop", "Node n1", "Service shop/web"][..],
        ),
        ("pods/shop/a?join=configmaps", &["Pod shop/a", "ConfigMap shop/settings"]),
        ("pods/shop/alone?join=owners,svc", &["Pod shop/alone"]),
        // Against the direction of the link, by name and by selector.
        ("nodes/n1?join=pods", &["Node n1", "Pod shop/a", "Pod shop/alone"]),
        (
            "configmaps?join=pods",
            &["ConfigMap other/settings", "ConfigMap shop/settings", "Pod shop/a", "Pod shop/b"],
        ),
        ("services/shop?join=po", &["Service shop/none", "Service shop/web", "Pod shop/a", "Pod shop/b"]),
        ("services/other?join=pods", &["Service other/web"]),
        // The relation applies to all selected resources that have it.
        ("services,pods?labelSelector=app%3Ddb&join=nodes", &["Pod shop/alone", "Node n1"]),
    ] {
        let list = server.get(&format!("/v1/snapshot/{target}")).await.json();
        let mut found = listed(&list);
        let (selected, owners): (Vec<_>, Vec<_>) =
            found.drain(..).partition(|text| !text.starts_with("Replica") && !text.starts_with("Deploy"));
        assert_eq!(selected, expected, "{target}");
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("List"), &json!("v1")));
        let all_the_way = ["ReplicaSet shop/web-1", "Deployment shop/web"];
        assert_eq!(owners.len(), if target.contains("spec.nodeName") { 2 } else { 0 }, "{target}");
        assert!(owners.iter().all(|owner| all_the_way.contains(&&**owner)), "{owners:?}");
    }
    let answer = server.get("/v1/snapshot/pods/shop/a?join=nodes&fields=metadata.labels").await;
    let parts = answer.json();
    assert_eq!((listed(&parts).len(), &parts["items"][0]["spec"]), (2, &Value::Null), "{parts}");
    let answer = server.get_with("/v1/snapshot/pods?join=nodes", &[("Accept", "application/x-ndjson")]).await;
    assert_eq!(answer.text().trim_end().lines().count(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tag_of_a_join_covers_the_related_objects() {
    let server = shop(ALL).await;
    let target = "/v1/snapshot/pods/shop/a?join=nodes";
    let answer = server.get(target).await;
    let tag = answer.header("etag").unwrap().to_owned();
    assert!(answer.header("informerd-resume").unwrap().starts_with("pods:"));
    let same = server.get_with(target, &[("If-None-Match", &tag)]).await;
    assert_eq!(same.status(), 304);
    server.cluster.patch("nodes", "", "n2", &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    server.caught_up("nodes").await;
    assert_eq!(server.get_with(target, &[("If-None-Match", &tag)]).await.status(), 304);
    server.cluster.patch("nodes", "", "n1", &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    server.caught_up("nodes").await;
    assert_eq!(server.get_with(target, &[("If-None-Match", &tag)]).await.status(), 200);
}

/// The join as computed from the whole state.
fn expected(server: &TestServer) -> BTreeSet<String> {
    let pods = server.cluster.list("pods");
    let pods: Vec<_> = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "web").collect();
    let mut found: BTreeSet<String> =
        pods.iter().map(|pod| format!("Pod shop/{}", pod["metadata"]["name"])).collect();
    for node in server.cluster.list("nodes") {
        let name = &node["metadata"]["name"];
        if pods.iter().any(|pod| pod["spec"]["nodeName"] == *name) {
            found.insert(format!("Node {name}"));
        }
    }
    for service in server.cluster.list("services") {
        let selector = service["spec"]["selector"].as_object().cloned().unwrap_or_default();
        let selects = |pod: &&&Value| {
            !selector.is_empty()
                && selector.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
        };
        if pods.iter().any(|pod| selects(&pod)) {
            found.insert(format!("Service shop/{}", service["metadata"]["name"]));
        }
    }
    found.iter().map(|text| text.replace('"', "")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_equals_the_join_of_the_current_state_after_each_change() {
    let server = TestServer::start(&["pods", "services", "nodes"]).await;
    let mut number = 0_u64;
    let mut dice = |sides: u64| {
        // A fixed sequence, so that a failure can be reproduced.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) % sides
    };
    for node in 0..4 {
        server.cluster.create("nodes", object("", &format!("n{node}"), &json!({}))).unwrap();
    }
    for _ in 0..25 {
        for _ in 0..10 {
            let name = format!("x{}", dice(8));
            if dice(3) == 0 {
                let app = ["web", "db"][dice(2) as usize];
                let selector = json!({"app": app, "tier": format!("t{}", dice(2))});
                let spec = json!({"spec": {"type": "ClusterIP", "selector": selector}});
                if server.cluster.create("services", object("shop", &name, &spec)).is_err() {
                    server.cluster.delete("services", "shop", &name).unwrap();
                }
                continue;
            }
            let mut pod = mk_pod("shop", &name, ["web", "db"][dice(2) as usize]);
            pod["metadata"]["labels"]["tier"] = format!("t{}", dice(3)).into();
            pod["spec"]["nodeName"] = format!("n{}", dice(5)).into();
            if server.cluster.create("pods", pod).is_err() {
                server.cluster.delete("pods", "shop", &name).unwrap();
            }
        }
        for resource in ["pods", "services", "nodes"] {
            server.caught_up(resource).await;
        }
        let list = server.get("/v1/snapshot/pods?labelSelector=app%3Dweb&join=nodes,services").await.json();
        assert_eq!(listed(&list).into_iter().collect::<BTreeSet<_>>(), expected(&server));
    }
}

/// The objects that a client of a stream holds.
#[derive(Default)]
struct Fold {
    /// The version of each object, by kind, namespace and name.
    objects: BTreeMap<String, String>,
    token: Option<String>,
    resets: usize,
}

impl Fold {
    fn take(&mut self, event: &StreamEvent) {
        if let Some(token) = &event.token {
            self.token = Some(token.clone());
        }
        let name = || listed(&json!({"items": [event.object]})).remove(0);
        match event.kind.as_str() {
            "RESET" => {
                self.objects.clear();
                self.resets += 1;
            }
            "SYNCED" | "BOOKMARK" => {}
            "DELETED" => {
                self.objects.remove(&name());
            }
            kind => {
                let version = event.object["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
                let before = self.objects.insert(name(), version.clone());
                assert!(before != Some(version), "{kind} of {} came twice", name());
            }
        }
    }

    /// Reads until the client holds these objects.
    async fn read_until(&mut self, stream: &mut Stream, wanted: &BTreeMap<String, String>) {
        in_time("the join of the state", async {
            while self.objects != *wanted {
                let event = stream.next().await.expect("the stream goes on");
                self.take(&event);
            }
        })
        .await;
    }
}

/// The objects of a snapshot, in the form of [`Fold::objects`].
async fn snapshot(server: &TestServer, target: &str) -> BTreeMap<String, String> {
    let list = server.get(&format!("/v1/snapshot/{target}")).await.json();
    let versions = list["items"].as_array().unwrap().iter();
    let versions = versions.map(|item| item["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
    listed(&list).into_iter().zip(versions).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_join_begins_with_the_snapshot() {
    let server = shop(ALL).await;
    for target in [
        "pods?fieldSelector=spec.nodeName%3Dn1&join=owners,namespaces,nodes,services",
        "pods/shop/a?join=configmaps",
        "nodes/n1?join=pods",
        "configmaps?join=pods",
        "services/shop?join=po",
        "services,pods?labelSelector=app%3Ddb&join=nodes",
        "pods?join=nodes&fields=metadata.labels",
        // The second resource is selected too, but none of its objects is. A join leaves such objects out.
        "pods,deployments?labelSelector=app%3Dweb&join=owners",
        "pods,replicasets?labelSelector=app%3Dweb&join=owners",
    ] {
        let expected = snapshot(&server, target).await;
        for transport in [TRANSPORTS[0], TRANSPORTS[1], TRANSPORTS[2], Transport::Http2] {
            let watch = format!("/v1/watch/{target}");
            let mut stream = Stream::open(transport, server.address, &watch, None).await.unwrap();
            let mut fold = Fold::default();
            stream.until("SYNCED").await.iter().for_each(|event| fold.take(event));
            assert_eq!(fold.objects, expected, "{target} over {transport:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_only_owners_are_held_without_may_be_asked_for() {
    let server = TestServer::start_with(&["pods", "replicasets"], |config| {
        config.watches[1].metadata_only = true;
    })
    .await;
    let set = server.cluster.create("replicasets", object("shop", "web-1", &json!({"spec": {}}))).unwrap();
    server.cluster.create("pods", owned(mk_pod("shop", "a", "web"), "ReplicaSet", &set)).unwrap();
    server.caught_up("pods").await;
    server.caught_up("replicasets").await;
    let list = server.get("/v1/snapshot/pods?join=owners&fields=spec").await.json();
    let held = |item: &Value| (item["kind"].clone(), item["spec"].is_object());
    let held: Vec<_> = list["items"].as_array().unwrap().iter().map(held).collect();
    assert_eq!(held, [("Pod".into(), true), ("PartialObjectMetadata".into(), false)]);
    let watch = "/v1/watch/pods?join=owners&fields=spec&changed=spec";
    let mut stream = Stream::sse(server.address, watch, None).await.unwrap();
    assert_eq!(stream.until("SYNCED").await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_related_object_is_added_with_its_first_link_and_deleted_with_its_last() {
    let server = shop(ALL).await;
    let target = "/v1/watch/pods?labelSelector=app%3Dweb&join=nodes,owners";
    let mut stream = Stream::open(Transport::Sse, server.address, target, None).await.unwrap();
    stream.until("SYNCED").await;
    let summaries = |events: Vec<StreamEvent>| -> Vec<String> {
        let text = |event: &StreamEvent| match event.kind.as_str() {
            "BOOKMARK" => event.kind.clone(),
            kind => format!("{kind} {}", listed(&json!({"items": [event.object]}))[0]),
        };
        events.iter().map(text).collect()
    };
    server.cluster.delete("pods", "shop", "b").unwrap();
    let events = stream.until("BOOKMARK").await;
    let (amid, end) = (events[0].token.clone().unwrap(), events[2].token.clone().unwrap());
    assert_eq!(summaries(events), ["DELETED Pod shop/b", "DELETED Node n2", "BOOKMARK"]);
    // The other pod's node and its owners stay related. An event that comes alone needs no bookmark.
    let mut pod = mk_pod("shop", "c", "web");
    pod["spec"]["nodeName"] = "n1".into();
    server.cluster.create("pods", pod).unwrap();
    assert_eq!(summaries(vec![stream.next().await.unwrap()]), ["ADDED Pod shop/c"]);
    server.cluster.patch("nodes", "", "n1", &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    let event = stream.next().await.unwrap();
    let alone = event.token.clone().unwrap();
    assert_eq!(summaries(vec![event]), ["MODIFIED Node n1"]);
    server.cluster.delete("pods", "shop", "a").unwrap();
    let mut last = summaries(stream.until("BOOKMARK").await);
    last.sort();
    let gone =
        ["BOOKMARK", "DELETED Deployment shop/web", "DELETED Pod shop/a", "DELETED ReplicaSet shop/web-1"];
    assert_eq!(last, gone);
    drop(stream);
    // Resumed from these tokens, the stream sends the rest once; resumed from within a batch, it starts over.
    let mut stream = Stream::open(Transport::Sse, server.address, target, Some(&alone)).await.unwrap();
    let mut again = summaries(stream.until("BOOKMARK").await);
    again.sort();
    assert_eq!(again, gone);
    let mut stream = Stream::open(Transport::Sse, server.address, target, Some(&end)).await.unwrap();
    let events = summaries(stream.until("BOOKMARK").await);
    assert!(
        events.contains(&"ADDED Pod shop/c".to_owned()) && !events.contains(&"DELETED Node n2".to_owned())
    );
    let mut stream = Stream::open(Transport::Sse, server.address, target, Some(&amid)).await.unwrap();
    assert_eq!(stream.next().await.unwrap().kind, "RESET");
    let bookmark = Transport::Ndjson.bookmark(&end);
    let mut stream = Stream::open(Transport::Ndjson, server.address, target, Some(&bookmark)).await.unwrap();
    assert_eq!(stream.next().await.unwrap().kind, "RESET");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_stream_converges_through_restarts() {
    let mut server = TestServer::start(&["pods", "services", "nodes"]).await;
    for node in 0..4 {
        server.cluster.create("nodes", object("", &format!("n{node}"), &json!({}))).unwrap();
    }
    let mut number = 7_u64;
    let mut dice = |sides: u64| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) % sides
    };
    const TARGETS: [&str; 3] =
        ["pods?labelSelector=app%3Dweb&join=nodes,services", "nodes?join=pods", "services?join=pods"];
    let mut clients: Vec<(&str, Fold, Option<Stream>)> =
        TARGETS.iter().map(|target| (*target, Fold::default(), None)).collect();
    for round in 0..24 {
        for _ in 0..10 {
            let name = format!("x{}", dice(8));
            let app = ["web", "db"][dice(2) as usize];
            if dice(3) == 0 {
                let spec = json!({"spec": {"type": "ClusterIP", "selector": {"app": app}}});
                if server.cluster.create("services", object("shop", &name, &spec)).is_err() {
                    server.cluster.delete("services", "shop", &name).unwrap();
                }
                continue;
            }
            let mut pod = mk_pod("shop", &name, app);
            pod["spec"]["nodeName"] = format!("n{}", dice(5)).into();
            if server.cluster.create("pods", pod).is_err() {
                server.cluster.delete("pods", "shop", &name).unwrap();
            }
        }
        if round % 8 == 5 {
            clients.iter_mut().for_each(|(_, _, stream)| *stream = None);
            server.informerd.restart().await;
            server.informerd.synced().await;
        }
        for resource in ["pods", "services", "nodes"] {
            server.caught_up(resource).await;
        }
        for (target, fold, stream) in &mut clients {
            if dice(3) == 0 {
                *stream = None;
            }
            if stream.is_none() {
                let watch = format!("/v1/watch/{target}");
                let opened = Stream::open(Transport::Sse, server.address, &watch, fold.token.as_deref());
                *stream = Some(opened.await.unwrap());
            }
            let wanted = snapshot(&server, target).await;
            fold.read_until(stream.as_mut().unwrap(), &wanted).await;
        }
    }
    // A restarted informerd has no journal of the changes before.
    assert!(clients.iter().all(|(_, fold, _)| fold.resets <= 24), "no client ever resumed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_join_parameter_of_a_stream_is_refused() {
    let server = TestServer::start(&["pods", "nodes"]).await;
    for (target, part) in [
        ("pods?join=secrets", "secrets"),
        ("pods?join=pods", "join"),
        ("pods?join=nodes,nodes", "expected each relation once"),
        ("pods?join=", "join"),
    ] {
        let refused = Stream::sse(server.address, &format!("/v1/watch/{target}"), None).await.err().unwrap();
        assert_eq!(refused.status(), 400, "{target}");
        assert!(refused.text().contains(part), "{target}: {}", refused.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_owners_longer_than_the_stack_is_followed() {
    const LEN: usize = 20_000;
    let server = TestServer::start(&["pods", "configmaps"]).await;
    let owner = |object: &Value, kind: &str| {
        let metadata = &object["metadata"];
        json!([{"apiVersion": "v1", "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}])
    };
    let mut owners = json!([]);
    for number in 0..LEN {
        let metadata = json!({"name": format!("c{number}"), "namespace": "shop", "ownerReferences": owners});
        let created = server.cluster.create("configmaps", json!({"metadata": metadata})).unwrap();
        owners = owner(&created, "ConfigMap");
    }
    let mut pod = mk_pod("shop", "a", "web");
    pod["metadata"]["ownerReferences"] = owners;
    server.cluster.create("pods", pod).unwrap();
    server.caught_up("pods").await;
    server.caught_up("configmaps").await;
    let mut stream = Stream::sse(server.address, "/v1/watch/pods?join=owners", None).await.unwrap();
    let mut count = 0;
    in_time("the first state", async {
        while stream.next().await.unwrap().kind != "SYNCED" {
            count += 1;
        }
    })
    .await;
    assert_eq!(count, LEN + 1);
}
