//! Packed caches over sockets: every answer is the same as without packing.

use std::collections::BTreeMap;

use informerd::testing::cache::Summary;
use informerd::testing::config::{CachePacking, Serve};
use informerd::testing::sim::{Cluster, ClusterConfig};
use serde_json::{Value, json};

use crate::support::check::{expected, items};
use crate::support::client::{Stream, get};
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, eventually};

/// About 3.6 MB, more than the objects from which a dictionary is trained.
const PODS: usize = 1000;

fn summary(server: &TestServer) -> Summary {
    server.hub.resolve("pods").unwrap()[0].reader.summary()
}

/// A server whose cluster had all its pods before the first list, so that all are packed.
async fn packed() -> TestServer {
    let cluster = Cluster::new(ClusterConfig::default());
    cluster.bulk_load("pods", PODS, 4000).unwrap();
    let server =
        TestServer::over(cluster, &["pods"], |config| config.cache_packing = CachePacking::Auto).await;
    eventually("packed", || {
        let summary = summary(&server);
        summary.held * 2 < summary.bytes
    })
    .await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packed_cache_gives_the_same_answers() {
    let server = packed().await;
    let list = server.get("/v1/snapshot/pods").await;
    assert_eq!(items(&list.json()), expected(&server.cluster, "pods", |_| true));
    // The bytes and the tag are the same.
    let (cluster, api) = (server.cluster.clone(), TestServer::api(server.cluster.clone()).await);
    let plain = |config: &mut Serve| config.cache_packing = CachePacking::Off;
    let plain = TestServer::beside(cluster, api, &["pods"], plain).await;
    assert_eq!(summary(&plain).held, summary(&plain).bytes);
    let other = plain.get("/v1/snapshot/pods").await;
    assert_eq!((other.text(), other.header("etag")), (list.text(), list.header("etag")));
    let one = server.get("/v1/snapshot/pods/load-07/load-0000007").await;
    let upstream = "/api/v1/namespaces/load-07/pods/load-0000007";
    let upstream = get(server.api.address(), upstream, &[]).await.json();
    assert_eq!(one.json(), crate::support::check::stripped(upstream));
    let found = server.get("/v1/index/pods/spec.nodeName/node-07").await.json();
    assert_eq!(found["items"].as_array().unwrap().len(), 10);
    let matching = server.get("/v1/snapshot/pods?labelSelector=app%3Dapp-07").await.json();
    assert_eq!(matching["items"].as_array().unwrap().len(), PODS / 50);
    let conditional = "/v1/snapshot/pods?fields=status.podIP&where=object.status.podIP%3D%3D%2710.0.0.9%27";
    let part = server.get(conditional).await.json();
    assert_eq!(part["items"][0]["status"], json!({"podIP": "10.0.0.9"}));
    let figures = server.get("/v1/resources").await.json()["informers"][0].clone();
    let figure = |name: &str| figures[name].as_u64().unwrap();
    assert_eq!(figure("bytes"), figure("heldBytes") + figure("savedBytes"));
    assert!(figure("heldBytes") * 2 < figure("bytes"), "{figures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_packed_cache_sends_each_object_and_each_change() {
    let server = packed().await;
    for transport in TRANSPORTS {
        let mut stream = Stream::open(transport, server.address, "/v1/watch/pods", None).await.unwrap();
        let first = stream.until("SYNCED").await;
        let objects: BTreeMap<String, Value> = first
            .into_iter()
            .filter(|event| event.kind == "ADDED")
            .map(|event| (crate::support::check::key(&event.object), event.object))
            .collect();
        assert_eq!(objects.len(), server.cluster.len("pods"));
        // A packed object changes, and is deleted.
        let name = objects.values().next().unwrap()["metadata"].clone();
        let (namespace, name) = (name["namespace"].as_str().unwrap(), name["name"].as_str().unwrap());
        server.cluster.patch("pods", namespace, name, &json!({"status": {"phase": "Failed"}})).unwrap();
        let changed = stream.until("MODIFIED").await.pop().unwrap();
        assert_eq!(changed.object["status"]["phase"], "Failed");
        server.cluster.delete("pods", namespace, name).unwrap();
        let gone = stream.until("DELETED").await.pop().unwrap();
        assert_eq!(gone.object["metadata"]["name"], name);
        assert_eq!(gone.object["status"]["phase"], "Failed");
    }
}
