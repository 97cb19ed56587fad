//! The reflector against the simulator's API server, over loopback sockets: after every fault of the server the cache
//! equals the cluster.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by unwrapping; clippy knows only functions marked as tests"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use informerd::testing::cache::{self, Phase, Reader, ReflectorStats};
use informerd::testing::k8s::{DecodeOptions, Resource, ResourceParts};
use informerd::testing::reflect::{InitialList, MachineConfig, Reflector, ReflectorConfig};
use informerd::testing::sim::{ApiServer, Cluster, Cut, Failure, Fault, Gone, Requests, Verb};
use informerd::testing::upstream::{Client, Config, Selectors, Target, UpstreamSource};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Longer than any recovery here takes: a few steps of backoff.
const PATIENCE: Duration = Duration::from_secs(30);

struct Run {
    server: ApiServer,
    cluster: Cluster,
    reader: Reader,
    stats: std::sync::Arc<ReflectorStats>,
    cancel: CancellationToken,
}

fn config_maps() -> Resource {
    let (version, plural, kind) = ("v1".into(), "configmaps".into(), "ConfigMap".into());
    Resource::new(ResourceParts { version, plural, kind, namespaced: true, ..Default::default() })
}

fn config_map(name: &str, value: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": name}, "data": {"n": value.to_string()}})
}

async fn client(server: &ApiServer) -> Client {
    Client::connect(Config::new(UpstreamSource::Server { url: server.url() })).await.unwrap()
}

impl Run {
    async fn new(page_size: u32) -> Self {
        Self::with(page_size, |_| {}).await
    }

    /// As [`Run::new`], with faults ordered before the first request.
    async fn with(page_size: u32, order: impl FnOnce(&ApiServer)) -> Self {
        let cluster = Cluster::default();
        for index in 0..20 {
            cluster.create("configmaps", config_map(&format!("first-{index:02}"), index)).unwrap();
        }
        let server = ApiServer::bind(cluster.clone(), "127.0.0.1:0".parse().unwrap()).await.unwrap();
        order(&server);
        let limits = cache::Config {
            journal_len_max: 10_000,
            journal_bytes_max: 64 << 20,
            tombstones_len_max: 10_000,
        };
        let (writer, reader) = cache::cache(limits, Instant::now());
        let config = ReflectorConfig {
            target: Target {
                resource: config_maps(),
                namespace: None,
                selectors: Selectors::default(),
                metadata_only: false,
            },
            decode: DecodeOptions {
                drop_managed_fields: true,
                drop_last_applied: true,
                object_bytes_max: 8 << 20,
            },
            machine: MachineConfig {
                page_size,
                initial_list: InitialList::Page,
                silence_max: Duration::from_secs(30),
                pinged_silence_max: Duration::from_secs(90),
            },
            line_bytes_max: 8 << 20,
            seed: 1,
        };
        let reflector = Reflector::new(config, client(&server).await, writer);
        let (stats, cancel) = (reader.stats().clone(), CancellationToken::new());
        tokio::spawn(reflector.run(cancel.clone()));
        Self { server, cluster, reader, stats, cancel }
    }

    /// Waits until the cache equals the cluster, object for object.
    async fn converge(&self, what: &str) {
        let equal = async {
            while self.cached() != self.expected() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let converged = timeout(PATIENCE, equal).await.is_ok();
        assert!(
            converged,
            "{what}: {:?} {:?}\n{:#?}",
            self.reader.condition(),
            self.stats,
            self.server.requests()
        );
    }

    fn cached(&self) -> BTreeMap<String, Value> {
        let snapshot = self.reader.snapshot();
        let objects = snapshot.after(None);
        objects
            .map(|object| (object.key().to_string(), serde_json::from_slice(&object.json()).unwrap()))
            .collect()
    }

    fn expected(&self) -> BTreeMap<String, Value> {
        let objects = self.cluster.list("configmaps").into_iter();
        objects
            .map(|mut object| {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
                let meta = &object["metadata"];
                let key =
                    format!("{}/{}", meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
                (key, object)
            })
            .collect()
    }

    /// Makes a few writes of every kind; `round` makes them different each time.
    fn write(&self, round: usize) {
        let name = format!("round-{round}");
        self.cluster.create("configmaps", config_map(&name, round)).unwrap();
        let patch = json!({"data": {"n": format!("patched in {round}")}});
        self.cluster.patch("configmaps", "default", "first-01", &patch).unwrap();
        if round > 0 {
            self.cluster.delete("configmaps", "default", &format!("round-{}", round - 1)).unwrap();
        }
        // Deleted, and created again under the same name.
        self.cluster.delete("configmaps", "default", "first-02").unwrap();
        self.cluster.create("configmaps", config_map("first-02", round)).unwrap();
    }

    /// The lists and watches that this resource has cost. Lists of a single object, which ask for the version, do not
    /// count.
    fn costs(&self) -> (u64, u64) {
        let counters = self.cluster.counters()["configmaps"];
        (counters.lists - self.stats.probes.get(), counters.watches_started)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

#[tokio::test]
async fn case_28_a_cluster_without_faults_costs_one_list_and_one_watch() {
    let run = Run::new(7).await;
    run.converge("first sync").await;
    for round in 0..50 {
        run.write(round);
    }
    run.converge("writes").await;
    assert_eq!(run.costs(), (1, 1));
    let counts = [&run.stats.lists, &run.stats.pages, &run.stats.watches, &run.stats.failures];
    assert_eq!(counts.map(|count| count.get()), [1, 3, 1, 0]);
    assert_eq!(run.reader.condition().phase, Phase::Watching);
}

#[tokio::test]
async fn a_watch_cut_in_any_way_resumes_without_a_list() {
    let run = Run::new(500).await;
    run.converge("first sync").await;
    let watches = Requests::of(Verb::Watch);
    run.server.faults().chunk_bytes(Some(7));
    for (round, cut) in [Cut::Clean, Cut::MidLine, Cut::Abort].into_iter().enumerate() {
        run.server.faults().cut_watches(&watches, cut);
        run.write(round);
        run.converge(&format!("{cut:?}")).await;
        // Longer than a watch that counts as short. To count as healthy, it would have to live for longer than a test
        // should take.
        sleep(Duration::from_millis(1100)).await;
    }
    assert_eq!(run.server.faults().fired(Fault::Cut), 3);
    assert_eq!(run.costs().0, 1);
}

#[tokio::test]
async fn a_410_in_either_form_relists_and_nothing_is_lost() {
    let run = Run::new(500).await;
    run.converge("first sync").await;
    let watches = Requests::of(Verb::Watch);
    for (round, gone) in [Gone::InStream, Gone::Http].into_iter().enumerate() {
        run.server.faults().expire_next_watch(1, &watches, gone);
        run.server.faults().cut_watches(&watches, Cut::Clean);
        run.write(round);
        run.converge(&format!("{gone:?}")).await;
    }
    assert_eq!(run.server.faults().fired(Fault::Gone), 2);
    // The last relist may still be under way, though the watch before it has sent everything.
    let relisted = async {
        while run.costs().0 < 3 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, relisted).await.unwrap();
    assert_eq!(run.stats.relists.get(), 2);
}

#[tokio::test]
async fn duplicates_and_garbage_in_a_watch_change_nothing() {
    let run = Run::new(500).await;
    run.converge("first sync").await;
    run.server.faults().duplicate_events(3);
    run.write(0);
    run.converge("duplicates").await;
    run.server.faults().garbage_lines(1);
    run.write(1);
    run.converge("garbage").await;
    assert_eq!(run.server.faults().fired(Fault::Duplicated), 3);
    assert_eq!(run.server.faults().fired(Fault::Garbage), 1);
    assert_eq!((run.costs().0, run.stats.skipped.get()), (1, 1));
}

#[tokio::test]
async fn server_errors_are_waited_out_and_the_cache_is_served() {
    let run = Run::new(500).await;
    run.converge("first sync").await;
    let watches = Requests::of(Verb::Watch);
    let before = run.cached().len();
    run.server.faults().fail_next(2, &watches, Failure { code: 503, retry_after_seconds: Some(1) });
    run.server.faults().cut_watches(&watches, Cut::Abort);
    run.write(0);
    let told = async {
        while !run.reader.condition().message.unwrap_or_default().contains("503") {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, told).await.unwrap();
    assert_eq!(run.reader.condition().phase, Phase::BackingOff);
    assert!(run.cached().len() >= before, "still served");
    // Written while no watch is open, so that only the watch after the second refusal can send it.
    run.write(1);
    run.converge("503").await;
    assert_eq!((run.costs().0, run.server.faults().fired(Fault::Failed)), (1, 2));
    assert_eq!(run.reader.condition().message, None);
}

#[tokio::test]
async fn an_expired_continue_token_starts_the_list_over() {
    let run = Run::with(3, |server| server.faults().expire_continue_tokens(1)).await;
    run.converge("expired token").await;
    assert_eq!((run.costs().0, run.server.faults().fired(Fault::ContinueExpired)), (2, 1));
}

#[tokio::test]
async fn a_server_that_comes_back_costs_no_list() {
    let mut run = Run::new(500).await;
    run.converge("first sync").await;
    run.server.stop().await;
    run.write(0);
    sleep(Duration::from_millis(300)).await;
    assert!(run.reader.mark().synced, "still served");
    run.server.start().await.unwrap();
    run.converge("restart").await;
    assert_eq!(run.costs().0, 1);
}

#[tokio::test]
async fn discovery_in_both_forms_finds_the_same_resources() {
    let server = ApiServer::bind(Cluster::default(), "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let client = client(&server).await;
    let aggregated = client.discover().await.unwrap();
    server.faults().legacy_discovery(true);
    let legacy = client.discover().await.unwrap();
    let names = |discovery: &informerd::testing::upstream::Discovery| -> Vec<String> {
        discovery.resources().map(|resource| format!("{resource:?} {}", resource.kind())).collect()
    };
    assert_eq!(names(&aggregated), names(&legacy));
    for discovery in [aggregated, legacy] {
        assert!(discovery.broken().is_empty());
        for (name, expected) in [("po", "pods"), ("Deployment", "deployments.apps"), ("cm", "configmaps")] {
            assert_eq!(discovery.resolve(name).unwrap().canonical(), expected);
        }
    }
    assert!(!client.version().await.unwrap().is_empty());
}
