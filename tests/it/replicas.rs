//! Replicas of which one is behind the other. In a cluster without changes a replica learns newer versions from
//! bookmarks only. Here there is one a minute, longer than any of these tests takes.

use std::time::Duration;

use informerd::testing::config;
use informerd::testing::sim::{ApiServer, Cluster};

use crate::support::client::Stream;
use crate::support::gate::Gate;
use crate::support::recorder::Recorder;
use crate::support::server::{ANY_PORT, Informerd, serve_config};
use crate::support::{TRANSPORTS, eventually, mk_pod};

const WATCH: &str = "/v1/watch/pods";

struct Replicas {
    cluster: Cluster,
    api: ApiServer,
    /// A replica whose list is older than all objects but the first pod.
    behind: Informerd,
    ahead: Informerd,
    /// The version of the list of the replica that is ahead.
    version: u64,
}

impl Replicas {
    async fn start() -> Self {
        let cluster = Cluster::default();
        cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
        let api = ApiServer::bind(cluster.clone(), ANY_PORT).await.unwrap();
        let behind = Informerd::start(config(&api)).await;
        for name in ["one", "two", "three"] {
            let mut service = mk_pod("default", name, "web");
            service["kind"] = "Service".into();
            service["spec"] = serde_json::json!({"ports": [{"port": 80}]});
            cluster.create("services", service).unwrap();
        }
        let ahead = Informerd::start(config(&api)).await;
        let version = cluster.revision();
        let positions = [&ahead, &behind].map(position);
        assert!(positions[0] == version.to_string() && positions[1] != positions[0], "{positions:?}");
        Self { cluster, api, behind, ahead, version }
    }

    fn create(&self, name: &str) {
        self.cluster.create("pods", mk_pod("default", name, "web")).unwrap();
    }

    /// The number of requests that ask for a version only.
    fn probes(&self) -> usize {
        self.api.requests().iter().filter(|request| request.ends_with("/api/v1/pods?limit=1")).count()
    }
}

fn config(api: &ApiServer) -> config::Serve {
    let mut config = serve_config(config::UpstreamSource::Server { url: api.url() }, &["pods"]);
    config.limits.bookmark_interval = Duration::from_millis(200);
    config
}

fn position(informerd: &Informerd) -> String {
    informerd.hub.resolve("pods").unwrap()[0].reader.summary().position.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_served_at_once_by_a_replica_behind_its_token() {
    let replicas = Replicas::start().await;
    for transport in TRANSPORTS {
        let token = format!("pods:{}", replicas.version);
        let mut stream = Stream::open(transport, replicas.behind.address, WATCH, Some(&token)).await.unwrap();
        let first = stream.next().await.unwrap();
        assert_eq!(first.kind, "BOOKMARK", "{transport:?}");
        assert_eq!(first.object["metadata"]["resourceVersion"], replicas.version.to_string());
    }
    assert_eq!(replicas.probes(), 1, "the API server was not asked exactly once");
    assert_ne!(position(&replicas.behind), position(&replicas.ahead));
    for transport in TRANSPORTS {
        let replicas = Replicas::start().await;
        let mut recorder = Recorder::connect(transport, replicas.ahead.address, WATCH).await;
        recorder.disconnect();
        recorder.address = replicas.behind.address;
        recorder.reconnect().await;
        let events = recorder.events;
        replicas.create("b");
        recorder.wait_until("the new pod", |recorder| recorder.events > events).await;
        assert_eq!((recorder.events - events, recorder.resets.len()), (1, 0), "{transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_a_version_ahead_is_silent_until_the_next_change() {
    let replicas = Replicas::start().await;
    let target = format!(
        "/api/v1/pods?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds=60",
        replicas.version
    );
    let mut stream =
        Stream::http(replicas.behind.address, &target, &[("Accept", "application/json")]).await.unwrap();
    let bookmark = stream.next().await.unwrap();
    assert_eq!(bookmark.kind, "BOOKMARK");
    assert_eq!(bookmark.object["metadata"]["resourceVersion"], replicas.version.to_string());
    replicas.create("b");
    let told = stream.until("ADDED").await;
    assert_eq!(told.last().unwrap().name(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_moves_to_a_replica_that_is_behind_without_a_list() {
    let replicas = Replicas::start().await;
    let gate = Gate::start(&[replicas.ahead.address]).await;
    let url = format!("http://{}", gate.address);
    let upper = Informerd::start(serve_config(config::UpstreamSource::Server { url }, &["pods"])).await;
    let opened = || upper.hub.resolve("pods").unwrap()[0].reader.stats().watches.get();
    let watches = opened();
    gate.set_backends(&[replicas.behind.address]);
    gate.cut().await;
    eventually("another watch", || opened() > watches).await;
    replicas.create("b");
    let newest = replicas.cluster.revision().to_string();
    eventually("the new pod", || position(&upper) == newest).await;
    let stats = upper.hub.resolve("pods").unwrap()[0].reader.stats().clone();
    assert_eq!((stats.relists.get(), stats.watches.get()), (0, watches + 1));
}
