//! informerd as the API server of another informerd: events and requests of a tier, and what its clients notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use informerd::testing::config::{self, InitialList, UpstreamSource};
use informerd::testing::sim::{ApiServer, Cluster};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{PARTIAL, PARTIAL_LIST, PODS, create, delete, names, relabel, status};
use crate::support::check::{Objects, expected, items, key, version};
use crate::support::client::{Item, Stream, StreamEvent, Transport, get};
use crate::support::gate::Gate;
use crate::support::recorder::Recorder;
use crate::support::server::{Informerd, TestServer, serve_config, watch};
use crate::support::{PATIENCE, eventually, in_time, mk_pod};

const WATCH: &str = "/v1/watch/pods";

/// Number of clients that follow the tier.
const FOLLOWERS: usize = 200;
/// A change is written only when the slowest follower is at most this many changes behind.
const BEHIND_MAX: usize = 5;
/// Wait between attempts to connect while the server is down.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The configuration of an informerd that follows another informerd.
fn above(address: std::net::SocketAddr, resources: &[&str]) -> config::Serve {
    serve_config(UpstreamSource::Server { url: format!("http://{address}") }, resources)
}

/// Requests for lists of pods: streaming lists and first pages. A probe of one object is no list.
fn lists(api: &ApiServer) -> Vec<String> {
    let is_list = |request: &String| {
        let Some((path, query)) = request.split_once('?') else { return request.ends_with(PODS) };
        let has = |parameter: &str| query.split('&').any(|one| one == parameter);
        let further = query.contains("continue=") || has("limit=1");
        path.ends_with(PODS) && (has("sendInitialEvents=true") || !has("watch=true") && !further)
    };
    api.requests().into_iter().filter(is_list).collect()
}

/// Waits until an informer of an upper tier has reached the cluster's version.
async fn reached(informerd: &Informerd, cluster: &Cluster) {
    let informer = informerd.hub.resolve("pods").unwrap().remove(0);
    let newest = u128::from(cluster.revision());
    eventually(&format!("pods at {newest}"), || {
        informer.reader.summary().position.to_string().parse::<u128>().is_ok_and(|at| at >= newest)
    })
    .await;
}

async fn held(informerd: &Informerd) -> Objects {
    let list = informerd.get("/v1/snapshot/pods").await;
    assert_eq!(list.status(), 200, "{}", list.text());
    items(&list.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_lists_as_a_stream_or_in_pages_and_gets_every_change() {
    for how in [InitialList::Stream, InitialList::Page] {
        let server = TestServer::start(&["pods"]).await;
        for name in ["a", "b", "c", "d", "e"] {
            create(&server, name);
        }
        server.caught_up("pods").await;
        let mut config = above(server.address, &["pods"]);
        config.initial_list = how;
        config.limits.page_size = 2;
        let upper = Informerd::start(config).await;
        reached(&upper, &server.cluster).await;
        assert_eq!(held(&upper).await, expected(&server.cluster, "pods", |_| true), "{how:?}");
        let mut recorder = Recorder::connect(Transport::Sse, upper.address, WATCH).await;
        create(&server, "f");
        relabel(&server, "a", "api");
        delete(&server, "b");
        let events = recorder.events;
        recorder.wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
        assert!(recorder.events >= events + 3);
        let informer = upper.hub.resolve("pods").unwrap().remove(0);
        let stats = informer.reader.stats().clone();
        assert_eq!((stats.lists.get(), stats.relists.get()), (1, 0), "{how:?}");
        assert_eq!(lists(&server.api).len(), 1, "the upper tier sent a list to the API server");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_token_of_one_tier_is_valid_at_the_other() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "stays");
    create(&server, "goes");
    server.caught_up("pods").await;
    let upper = Informerd::start(above(server.address, &["pods"])).await;
    reached(&upper, &server.cluster).await;
    for transport in [Transport::Sse, Transport::Ndjson, Transport::WebSocket] {
        let mut recorder = Recorder::connect(transport, upper.address, WATCH).await;
        for (round, address) in [server.address, upper.address, server.address].into_iter().enumerate() {
            recorder.disconnect();
            let connected = recorder.events;
            delete(&server, "goes");
            create(&server, "goes");
            relabel(&server, "stays", &format!("round-{round}"));
            recorder.address = address;
            recorder.wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
            assert!(recorder.events > connected);
            assert_eq!(recorder.resets, Vec::<String>::new(), "{transport:?}");
        }
    }
    assert_eq!(lists(&server.api).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_works_through_the_tiers() {
    let resources = ["pods", "deployments.apps", "namespaces", "services"];
    let server = TestServer::start(&resources).await;
    let mut config = above(server.address, &["po", "deploy", "ns", "svc"]);
    config.on_demand.patterns = vec!["*".parse().unwrap()];
    let upper = Informerd::start(config).await;
    let top = Informerd::start(above(upper.address, &["pod", "Deployment", "namespace", "service"])).await;
    for path in ["/version", "/api", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1"] {
        let below = server.get(path).await;
        assert_eq!(below.status(), 200, "{path}");
        for tier in [&upper, &top] {
            assert_eq!(tier.get(path).await.text(), below.text(), "{path}");
        }
    }
    let pods = &top.get("/api/v1").await.json()["resources"][1];
    assert_eq!((&pods["shortNames"], &pods["categories"]), (&json!(["po"]), &json!(["all"])));
    for name in ["po", "pods", "Pod", "pods.v1"] {
        assert_eq!(top.get(&format!("/v1/snapshot/{name}")).await.status(), 200, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_missing_in_the_tier_below_is_reported() {
    let server = TestServer::start(&["pods"]).await;
    let upper = Informerd::start_unsynced(above(server.address, &["pods", "services"])).await;
    let asked = || upper.hub.pending().len() == 1 && upper.hub.informers().len() == 1;
    eventually("the pending watch", asked).await;
    let resources = upper.get("/v1/resources").await.json();
    let pending = resources["pending"].as_array().unwrap();
    assert_eq!(pending.len(), 1, "{resources}");
    assert_eq!(pending[0]["name"], "services");
    let message = pending[0]["message"].as_str().unwrap();
    assert!(message.contains(r#"no resource "services""#), "{message}");
    status(&upper.get("/api/v1/services").await, 404, "NotFound");
    // The tier below follows one namespace only, so the whole cluster cannot be followed.
    let server = TestServer::start_with(&[], |config| {
        config.watches.push(config::WatchSpec { namespaces: vec!["default".to_owned()], ..watch("pods") });
    })
    .await;
    let upper = Informerd::start_unsynced(above(server.address, &["pods"])).await;
    in_time("discovery", upper.hub.settled()).await;
    let informer = upper.hub.resolve("pods").unwrap().remove(0);
    let forbidden = || informer.reader.condition().message.is_some_and(|said| said.contains("forbidden"));
    eventually("the refusal", forbidden).await;
    let resources = upper.get("/v1/resources").await.json();
    assert!(resources["informers"][0]["lastError"].as_str().unwrap().contains("default"), "{resources}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_only_watches_work_through_the_tiers() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    server.caught_up("pods").await;
    let metadata = |address| {
        let mut config = above(address, &["pods"]);
        config.watches[0].metadata_only = true;
        config
    };
    let upper = Informerd::start(metadata(server.address)).await;
    let top = Informerd::start(metadata(upper.address)).await;
    create(&server, "b");
    for tier in [&upper, &top] {
        reached(tier, &server.cluster).await;
        let list = tier.get_with(PODS, &[("Accept", PARTIAL_LIST)]).await;
        assert_eq!(names(&list), ["a", "b"]);
        let below = server.get_with(PODS, &[("Accept", PARTIAL_LIST)]).await.json();
        assert_eq!(list.json()["items"], below["items"]);
        let one = tier.get_with("/api/v1/namespaces/default/pods/a", &[("Accept", PARTIAL)]).await.json();
        assert_eq!((&one["kind"], &one["spec"]), (&json!("PartialObjectMetadata"), &Value::Null));
    }
    // A tier that holds metadata only has no whole objects to serve.
    let whole = Informerd::start_unsynced(above(upper.address, &["pods"])).await;
    in_time("discovery", whole.hub.settled()).await;
    let informer = whole.hub.resolve("pods").unwrap().remove(0);
    let refused = || informer.reader.condition().message.is_some_and(|said| said.contains("metadata"));
    eventually("the refusal", refused).await;
    assert!(!informer.reader.mark().synced);
}

/// After a broken connection, a tier finds out by lists whether the one below still has the same history.
#[tokio::test(flavor = "multi_thread")]
async fn a_tier_resumes_after_a_broken_connection_without_a_list() {
    let server = TestServer::start(&["pods"]).await;
    create(&server, "a");
    server.caught_up("pods").await;
    let gate = Gate::start(&[server.address]).await;
    let upper = Informerd::start(above(gate.address, &["pods"])).await;
    let informer = upper.hub.resolve("pods").unwrap().remove(0);
    let watches = || informer.reader.stats().watches.get();
    for round in 0..3 {
        reached(&upper, &server.cluster).await;
        let before = watches();
        gate.set_backends(&[]);
        gate.cut().await;
        match round {
            // The newest object that the tier holds is unchanged, changed, or deleted.
            0 => create(&server, "b"),
            1 => relabel(&server, "b", "api"),
            _ => delete(&server, "b"),
        };
        gate.set_backends(&[server.address]);
        eventually("another watch", || watches() > before).await;
    }
    reached(&upper, &server.cluster).await;
    assert_eq!(held(&upper).await, expected(&server.cluster, "pods", |_| true));
    assert_eq!(informer.reader.stats().relists.get(), 0);
    // The requests of the tier: the version, the newest object, and that object at an exact version.
    let at = version(&server.get(PODS).await.json());
    let probe = format!("{PODS}?fieldSelector=metadata.name%3Da&limit=1");
    let exact = format!("&resourceVersion={at}&resourceVersionMatch=Exact");
    for target in [probe.clone(), format!("{probe}{exact}"), format!("{PODS}?limit=1{exact}")] {
        let list = server.get_with(&target, &[("Accept", PARTIAL_LIST)]).await;
        assert_eq!((names(&list), version(&list.json())), (vec!["a".to_owned()], at), "{target}");
    }
    let old = format!("{probe}&resourceVersion=1&resourceVersionMatch=Exact");
    status(&server.get_with(&old, &[("Accept", PARTIAL_LIST)]).await, 410, "Expired");
}

/// A client like a reflector of client-go: it lists, watches from the list's version, resumes from the last version
/// seen, and lists again after 410.
struct Follower {
    shared: Arc<Shared>,
    task: JoinHandle<(Objects, Vec<String>)>,
}

#[derive(Default)]
struct Shared {
    /// The last version seen.
    at: AtomicU64,
    lists: AtomicU64,
    connections: AtomicU64,
    stop: AtomicBool,
}

impl Follower {
    fn start(address: std::net::SocketAddr) -> Self {
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(follow(address, shared.clone()));
        Self { shared, task }
    }

    fn at(&self) -> u64 {
        assert!(!self.task.is_finished(), "a follower failed");
        self.shared.at.load(Ordering::SeqCst)
    }
}

/// Follows the pods. Returns the objects held at the end, and the events received.
async fn follow(address: std::net::SocketAddr, shared: Arc<Shared>) -> (Objects, Vec<String>) {
    let (mut objects, mut events) = (Objects::new(), Vec::new());
    let mut at = None;
    while !shared.stop.load(Ordering::SeqCst) {
        let Some(from) = at else {
            let list = get(address, PODS, &[]).await;
            if list.head.split(' ').nth(1) == Some("200") && list.complete {
                shared.lists.fetch_add(1, Ordering::SeqCst);
                let list = list.json();
                objects = items(&list);
                let newest = u64::try_from(version(&list)).unwrap();
                at = Some(newest);
                shared.at.store(newest, Ordering::SeqCst);
            } else {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            continue;
        };
        let target =
            format!("{PODS}?allowWatchBookmarks=true&resourceVersion={from}&timeoutSeconds=600&watch=true");
        match Stream::http(address, &target, &[("Accept", "application/json")]).await {
            Ok(mut stream) => {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                while let Item::Event(event) = stream.item().await {
                    at = take(&event, from, &mut objects, &mut events);
                    let Some(at) = at else { break };
                    shared.at.store(at, Ordering::SeqCst);
                    if shared.stop.load(Ordering::SeqCst) {
                        break;
                    }
                }
            }
            Err(answer) if matches!(answer.head.split(' ').nth(1), None | Some("0" | "503")) => {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Err(answer) if answer.status() == 410 => at = None,
            Err(answer) => panic!("{target}: {}{}", answer.head, answer.text()),
        }
    }
    (objects, events)
}

/// Applies an event. Returns the version to resume from; `None` if the follower must list again.
fn take(event: &StreamEvent, from: u64, objects: &mut Objects, events: &mut Vec<String>) -> Option<u64> {
    if event.kind == "ERROR" {
        assert_eq!(event.object["code"], 410, "{}", event.object);
        return None;
    }
    let at = u64::try_from(version(&event.object)).unwrap();
    assert!(at >= from, "{} at {at} though watched from {from}", event.kind);
    match &*event.kind {
        "ADDED" | "MODIFIED" => drop(objects.insert(key(&event.object), event.object.clone())),
        "DELETED" => drop(objects.remove(&key(&event.object))),
        other => assert_eq!(other, "BOOKMARK"),
    }
    if event.kind != "BOOKMARK" {
        events.push(super::summary(event));
    }
    Some(at)
}

/// Writes until stopped, never far ahead of the slowest follower. Returns the events that each watch must have sent.
async fn write(cluster: Cluster, followers: Arc<Vec<Follower>>, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut written: Vec<(u64, String)> = Vec::new();
    for round in 0_usize.. {
        let name = format!("pod-{}", round / 3 % 50);
        let kind = match cluster.get("pods", "default", &name) {
            None => {
                cluster.create("pods", mk_pod("default", &name, "web")).unwrap();
                "ADDED"
            }
            Some(_) if round % 3 == 1 => {
                let patch = json!({"metadata": {"labels": {"round": round.to_string()}}});
                cluster.patch("pods", "default", &name, &patch).unwrap();
                "MODIFIED"
            }
            Some(_) => {
                cluster.delete("pods", "default", &name).unwrap();
                "DELETED"
            }
        };
        let at = cluster.revision();
        written.push((at, format!("{kind} {name}@{at}")));
        let bound = written.len().checked_sub(BEHIND_MAX).map_or(0, |index| written[index].0);
        eventually("the slowest follower", || followers.iter().all(|one| one.at() >= bound)).await;
        if stop.load(Ordering::SeqCst) {
            break;
        }
    }
    written.into_iter().map(|(_, event)| event).collect()
}

/// Three replicas over one API server, with a load balancer before them and followers behind it. Each replica is
/// replaced in turn, as in a rolling update, while objects change.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_a_tier_costs_one_list_per_replica_and_no_relist() {
    let cluster = Cluster::default();
    for name in 0..20 {
        cluster.create("pods", mk_pod("default", &format!("first-{name}"), "web")).unwrap();
    }
    let api = TestServer::api(cluster.clone()).await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        let source = UpstreamSource::Server { url: api.url() };
        replicas.push(Informerd::start(serve_config(source, &["pods"])).await);
    }
    let addresses: Vec<_> = replicas.iter().map(|replica| replica.address).collect();
    let gate = Gate::start(&addresses).await;
    let upper = Informerd::start(above(gate.address, &["pods"])).await;
    let followers: Arc<Vec<_>> = Arc::new((0..FOLLOWERS).map(|_| Follower::start(gate.address)).collect());
    let all_at = |at: u64| followers.iter().all(|one| one.at() >= at);
    let connected = || followers.iter().all(|one| one.shared.connections.load(Ordering::SeqCst) > 0);
    eventually("the followers", || all_at(1) && connected()).await;
    let stop = Arc::<AtomicBool>::default();
    let writer = tokio::spawn(write(cluster.clone(), followers.clone(), stop.clone()));
    for (index, replica) in replicas.iter_mut().enumerate() {
        // All clients are beyond the first versions of the replicas that were replaced before.
        let now = cluster.revision();
        eventually("every follower", || all_at(now)).await;
        let others: Vec<_> = addresses.iter().copied().filter(|one| *one != addresses[index]).collect();
        gate.set_backends(&others);
        // One replica is stopped as by a kubelet, one killed as by a failing node.
        if index % 2 == 0 {
            replica.stop().await;
        } else {
            replica.kill().await;
        }
        // A follower that gets further events is connected to another replica, and up to date.
        let ended = cluster.revision();
        eventually("every follower elsewhere", || all_at(ended + 1)).await;
        replica.revive().await;
        replica.synced().await;
        gate.set_backends(&addresses);
        let now = cluster.revision();
        eventually("every follower", || all_at(now)).await;
    }
    stop.store(true, Ordering::SeqCst);
    let written = in_time("the writer", writer).await.unwrap();
    let last = cluster.revision();
    eventually("every follower at the end", || all_at(last)).await;
    reached(&upper, &cluster).await;
    let wanted = expected(&cluster, "pods", |_| true);
    assert_eq!(held(&upper).await, wanted);
    // Each process of a replica: the three that were stopped, and their successors.
    assert_eq!(lists(&api).len(), 6, "{:?}", lists(&api));
    let stats = upper.hub.resolve("pods").unwrap()[0].reader.stats().clone();
    assert_eq!((stats.lists.get(), stats.relists.get()), (1, 0), "the tier above lists nothing again");
    let followers = Arc::into_inner(followers).expect("the writer is done");
    followers.iter().for_each(|one| one.shared.stop.store(true, Ordering::SeqCst));
    let mut connections = 0;
    // One more event, by which each follower sees that it is done.
    cluster.create("pods", mk_pod("default", "last", "web")).unwrap();
    for follower in followers {
        assert_eq!(follower.shared.lists.load(Ordering::SeqCst), 1, "a follower listed again");
        connections += follower.shared.connections.load(Ordering::SeqCst);
        let (mut objects, mut events) = tokio::time::timeout(PATIENCE, follower.task).await.unwrap().unwrap();
        objects.remove("Pod/default/last");
        events.retain(|event| !event.contains(" last@"));
        assert!(objects == wanted, "a follower's objects differ");
        assert_eq!(events, written, "an event was lost or came twice");
    }
    println!("{FOLLOWERS} followers, {} changes, {connections} connections, 6 lists", written.len());
}
