//! Kinds that are created, deleted and changed at run time.

use std::sync::Arc;
use std::time::Duration;

use informerd::testing::app::App;
use informerd::testing::config::{Listen, UpstreamSource};
use informerd::testing::sim::{ApiServer, Cluster};
use serde_json::{Value, json};

use super::{ONCE, answered, change, costs, next_event, resources};
use crate::support::client::{self, Stream, Transport};
use crate::support::server::{ANY_PORT, Informerd, TestServer, serve_config};
use crate::support::{TRANSPORTS, mk_pod};

const WIDGETS: &str = "widgets.demo.informerd.dev";
const DEFINITIONS: &str = "customresourcedefinitions";

fn mk_widget(name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = json!({"name": name});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    json!({"metadata": metadata, "spec": {"color": "red"}})
}

/// The definition of widgets, without the members that the server adds.
fn definition(cluster: &Cluster) -> Value {
    let found = cluster.get(DEFINITIONS, "", WIDGETS).expect("the simulator has it");
    json!({"metadata": {"name": WIDGETS}, "spec": found["spec"]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_created_later_is_followed_from_then_on() {
    let cluster = Cluster::default();
    let definition = definition(&cluster);
    cluster.delete(DEFINITIONS, "", WIDGETS).unwrap();
    let api = ApiServer::bind(cluster.clone(), ANY_PORT).await.unwrap();
    let config = serve_config(UpstreamSource::Server { url: api.url() }, &["pods", WIDGETS]);
    let informerd = Informerd::start_unsynced(config).await;
    answered(informerd.address, "/v1/snapshot/pods", 200).await;
    let refused = informerd.get(&format!("/v1/snapshot/{WIDGETS}?timeoutSeconds=1")).await;
    assert_eq!(refused.status(), 503, "{}", refused.text());
    let unready = client::get(informerd.admin, "/readyz", &[]).await;
    assert!(unready.text().contains("[-]informer/widgets.demo.informerd.dev failed: "), "{}", unready.text());
    assert_eq!(
        informerd.get("/v1/snapshot/nothing").await.status(),
        404,
        "a name that does not exist is not waited for"
    );
    cluster.create(DEFINITIONS, definition).unwrap();
    cluster.create(WIDGETS, mk_widget("a", Some("default"))).unwrap();
    let list = answered(informerd.address, "/v1/snapshot/widgets", 200).await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    informerd.synced().await;
    assert_eq!(client::get(informerd.admin, "/readyz", &[]).await.text(), "ok");
}

/// On one thread: nothing runs between the start and the first look.
#[tokio::test]
async fn readiness_waits_for_the_watches_from_the_start() {
    let url = "http://127.0.0.1:1".to_owned();
    let mut config = serve_config(UpstreamSource::Server { url }, &["pods"]);
    (config.listen, config.admin_listen) = (Listen::Tcp(ANY_PORT), None);
    let app = App::start(config, Arc::new(String::new)).await.unwrap();
    let pending = app.hub.pending();
    assert_eq!(pending.len(), 1, "{pending:?}");
    assert!(pending[0].awaited && pending[0].name == "pods", "{pending:?}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_created_again_is_followed_in_its_new_version_and_scope() {
    let server = TestServer::start(&["pods", WIDGETS]).await;
    let (cluster, address) = (&server.cluster, server.address);
    for name in ["a", "b"] {
        cluster.create(WIDGETS, mk_widget(name, Some("default"))).unwrap();
    }
    server.caught_up(WIDGETS).await;
    let mut definition = definition(cluster);
    let mut pods = Stream::ndjson(address, "/v1/watch/pods", None).await.unwrap();
    pods.until("SYNCED").await;
    let mut streams = Vec::new();
    for transport in TRANSPORTS {
        let mut stream = Stream::open(transport, address, "/v1/watch/widgets", None).await.unwrap();
        assert_eq!(stream.until("SYNCED").await.len(), 3);
        streams.push(stream);
    }
    let token = answered(address, "/v1/snapshot/widgets", 200).await.header("informerd-resume").unwrap();

    cluster.delete(DEFINITIONS, "", WIDGETS).unwrap();
    for stream in &mut streams {
        for name in ["a", "b"] {
            assert_eq!(next_event(stream).await, ("DELETED".to_owned(), name.to_owned()));
        }
    }
    let gone = || async {
        let said = resources(address).await["informers"][1]["lastError"].clone();
        said.as_str().is_some_and(|said| said.contains("does not serve widgets.demo.informerd.dev any more"))
    };
    crate::support::in_time("the deletion of the kind", async {
        while !gone().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let list = answered(address, "/v1/snapshot/widgets", 200).await.json();
    assert_eq!(list["items"], json!([]));
    assert_eq!(client::get(server.admin, "/readyz", &[]).await.status(), 200);

    // The kind is created again, in another version and scope.
    definition["spec"]["versions"][0]["name"] = "v2".into();
    definition["spec"]["scope"] = "Cluster".into();
    cluster.create(DEFINITIONS, definition).unwrap();
    cluster.create(WIDGETS, mk_widget("c", None)).unwrap();
    for stream in &mut streams {
        let event = change(stream).await;
        assert_eq!((&*event.kind, event.name()), ("ADDED", "c"));
        assert_eq!(event.object["apiVersion"], "demo.informerd.dev/v2");
        assert_eq!(event.object["metadata"]["namespace"], Value::Null);
    }
    cluster.create(WIDGETS, mk_widget("d", None)).unwrap();
    for stream in &mut streams {
        assert_eq!(next_event(stream).await, ("ADDED".to_owned(), "d".to_owned()));
    }
    let informer = resources(address).await["informers"][1].clone();
    assert_eq!(
        (&informer["apiVersion"], &informer["namespaced"]),
        (&json!("demo.informerd.dev/v2"), &json!(false))
    );
    assert_eq!(informer["lastError"], Value::Null);
    // A client that was disconnected starts over.
    let mut late = Stream::sse(address, "/v1/watch/widgets", Some(&token)).await.unwrap();
    assert_eq!(late.next().await.unwrap().kind, "RESET");
    assert_eq!(late.until("SYNCED").await.len(), 3);
    // The other informer is not affected.
    cluster.create("pods", mk_pod("default", "p", "web")).unwrap();
    assert_eq!(next_event(&mut pods).await, ("ADDED".to_owned(), "p".to_owned()));
    assert_eq!(costs(cluster, "pods"), ONCE);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_deletions_are_sent_once_the_kind_is_known_to_be_gone() {
    let mut server = TestServer::start(&[WIDGETS]).await;
    server.cluster.create(WIDGETS, mk_widget("a", Some("default"))).unwrap();
    server.caught_up(WIDGETS).await;
    let path = "/v1/watch/widgets";
    let mut stream = Stream::open(Transport::Sse, server.address, path, None).await.unwrap();
    stream.until("SYNCED").await;
    server.api.stop().await;
    server.cluster.delete(DEFINITIONS, "", WIDGETS).unwrap();
    server.api.start().await.unwrap();
    assert_eq!(next_event(&mut stream).await, ("DELETED".to_owned(), "a".to_owned()));
    let list = server.get("/v1/snapshot/widgets").await.json();
    assert_eq!(list["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_no_longer_served_is_replaced_by_a_served_one() {
    let server = TestServer::start(&[WIDGETS]).await;
    for name in ["a", "b"] {
        server.cluster.create(WIDGETS, mk_widget(name, Some("default"))).unwrap();
    }
    server.caught_up(WIDGETS).await;
    let path = "/v1/watch/widgets?namespace=default";
    let mut stream = Stream::open(Transport::WebSocket, server.address, path, None).await.unwrap();
    stream.until("SYNCED").await;
    let mut versions = definition(&server.cluster)["spec"]["versions"].clone();
    versions[0]["name"] = "v2".into();
    let patch = json!({"spec": {"versions": versions}});
    server.cluster.patch(DEFINITIONS, "", WIDGETS, &patch).unwrap();
    for name in ["a", "b"] {
        let event = change(&mut stream).await;
        assert_eq!((&*event.kind, event.name()), ("MODIFIED", name));
        assert_eq!(event.object["apiVersion"], "demo.informerd.dev/v2");
    }
    server.cluster.delete(WIDGETS, "default", "a").unwrap();
    assert_eq!(next_event(&mut stream).await, ("DELETED".to_owned(), "a".to_owned()));
}
