//! Changes of the configuration while informerd runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use informerd::testing::config::{ConfigLayers, ServeSettings};
use informerd::testing::sim::{ApiServer, Cluster, Requests, Verb};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{ONCE, answered, change, costs, last_words, mk_config_map, names, next_event, resources};
use crate::support::client::{self, Item, Stream, Transport};
use crate::support::server::{ANY_PORT, TestServer};
use crate::support::{TRANSPORTS, check, eventually, in_time, informerd, mk_pod};

/// An informerd with a configuration file.
struct Configured {
    server: TestServer,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Configured {
    async fn start(cluster: Cluster, yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("informerd.yaml");
        std::fs::write(&file, yaml).unwrap();
        let source = ConfigLayers { file: Some(file.clone()), settings: ServeSettings::default() };
        let loaded = source.load().unwrap();
        let server = TestServer::over(cluster, &[], |config| {
            (config.watches, config.on_demand) = (loaded.watches, loaded.on_demand);
            config.source = Some(source);
        })
        .await;
        Self { server, file, _folder: folder }
    }

    /// Replaces the configuration file by a rename.
    fn put(&self, yaml: &str) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, yaml).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    async fn follows(&self, expected: &[&str]) {
        in_time(&format!("{expected:?}"), async {
            while names(self.server.address).await != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

/// A cluster with a pod and a ConfigMap of each of two apps.
fn cluster() -> Cluster {
    let cluster = Cluster::default();
    for app in ["db", "web"] {
        cluster.create("pods", mk_pod("default", &format!("{app}-0"), app)).unwrap();
        cluster.create("configmaps", mk_config_map("default", &format!("{app}-0"), app)).unwrap();
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn informers_are_added_and_removed_without_effect_on_others() {
    let configured = Configured::start(cluster(), "watch: [{resource: pods}, {resource: services}]").await;
    let server = &configured.server;
    let mut streams = Vec::new();
    for transport in TRANSPORTS {
        let mut pods = Stream::open(transport, server.address, "/v1/watch/pods", None).await.unwrap();
        let mut services = Stream::open(transport, server.address, "/v1/watch/services", None).await.unwrap();
        pods.until("SYNCED").await;
        services.until("SYNCED").await;
        streams.push((transport, pods, services));
    }
    configured.put("watch: [{resource: configmaps}, {resource: po}]");
    for (transport, _, services) in &mut streams {
        let (status, end) = last_words(services).await;
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(404)), "{transport:?}");
        assert!(status["message"].as_str().unwrap().starts_with("services: no longer followed"), "{status}");
        let code = (*transport == Transport::WebSocket).then_some(1000);
        assert!(matches!(end, Item::End(found) if found == code), "{transport:?} {end:?}");
    }
    configured.follows(&["pods", "configmaps"]).await;
    assert_eq!(server.get("/v1/snapshot/services").await.status(), 404);
    let list = answered(server.address, "/v1/snapshot/configmaps", 200).await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    server.cluster.create("pods", mk_pod("default", "new", "web")).unwrap();
    for (transport, pods, _) in &mut streams {
        assert_eq!(next_event(pods).await, ("ADDED".to_owned(), "new".to_owned()), "{transport:?}");
    }
    assert_eq!(costs(&server.cluster, "pods"), ONCE);
    assert_eq!(costs(&server.cluster, "services"), ONCE);
    eventually("the end of its watch", || server.cluster.counters()["services"].watches_open == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_watch_is_404_even_with_on_demand_patterns() {
    let configured = Configured::start(
        cluster(),
        "watch: [{resource: pods}, {resource: services}]\nonDemand: [configmaps]",
    )
    .await;
    let address = configured.server.address;
    configured.put("watch: [{resource: pods}]\nonDemand: [configmaps]");
    configured.follows(&["pods"]).await;
    for path in ["/v1/snapshot/services", "/v1/watch/services", "/api/v1/services"] {
        let refused = client::get(address, path, &[]).await;
        assert_eq!((refused.status(), refused.json()["reason"].as_str()), (404, Some("NotFound")), "{path}");
    }
    // A resource that was never followed gets another answer.
    assert_eq!(client::get(address, "/v1/snapshot/nodes", &[]).await.status(), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_informer_is_served_until_replaced_and_then_sends_the_difference() {
    let web = "watch: [{resource: pods, labelSelector: app=web}, {resource: configmaps}]";
    let configured = Configured::start(cluster(), web).await;
    let server = &configured.server;
    let mut other = Stream::ndjson(server.address, "/v1/watch/configmaps", None).await.unwrap();
    other.until("SYNCED").await;
    let mut streams = Vec::new();
    for transport in TRANSPORTS {
        for path in ["/v1/watch/pods", "/v1/watch/pods,configmaps"] {
            let mut stream = Stream::open(transport, server.address, path, None).await.unwrap();
            stream.until("SYNCED").await;
            streams.push(stream);
        }
    }
    let snapshot = server.get("/v1/snapshot/pods").await;
    let (token, tag) = (snapshot.header("informerd-resume").unwrap(), snapshot.header("etag").unwrap());
    server.api.faults().delay(&Requests::of(Verb::List).on("pods"), Duration::from_secs(1));
    server.api.faults().delay(&Requests::of(Verb::Watch).on("pods"), Duration::from_secs(1));
    configured.put("watch: [{resource: pods, labelSelector: app=db}, {resource: configmaps}]");
    in_time("a pending informer", async {
        while resources(server.address).await["pending"] == json!([]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let list = server.get("/v1/snapshot/pods").await.json();
    assert_eq!(list["items"][0]["metadata"]["name"], "web-0", "the old informer does not serve meanwhile");
    for stream in &mut streams {
        assert_eq!(next_event(stream).await, ("ADDED".to_owned(), "db-0".to_owned()));
        assert_eq!(next_event(stream).await, ("DELETED".to_owned(), "web-0".to_owned()));
    }
    let again = server.get_with("/v1/snapshot/pods", &[("If-None-Match", &tag)]).await;
    assert_eq!(again.status(), 200, "another state has the same tag");
    assert_eq!(again.json()["items"][0]["metadata"]["name"], "db-0");
    server.api.faults().clear();
    server.cluster.create("pods", mk_pod("default", "web-1", "web")).unwrap();
    server.cluster.create("pods", mk_pod("default", "db-1", "db")).unwrap();
    for stream in &mut streams {
        assert_eq!(next_event(stream).await, ("ADDED".to_owned(), "db-1".to_owned()));
    }
    // A client with an older token may hold objects that are no longer followed.
    for transport in TRANSPORTS {
        let mut late = Stream::open(transport, server.address, "/v1/watch/pods", Some(&token)).await.unwrap();
        assert_eq!(late.next().await.unwrap().kind, "RESET");
        assert_eq!(late.until("SYNCED").await.len(), 3);
    }
    server.cluster.create("configmaps", mk_config_map("default", "new", "web")).unwrap();
    assert_eq!(next_event(&mut other).await, ("ADDED".to_owned(), "new".to_owned()));
    assert_eq!(costs(&server.cluster, "configmaps"), ONCE);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_get_the_objects_in_their_new_form_after_a_reload() {
    for (before, after) in [
        ("watch: [{resource: pods}]", "watch: [{resource: pods, keepManagedFields: true}]"),
        // The informer that a client started changes, too.
        (
            "{watch: [{resource: nodes}], onDemand: [pods]}",
            "{watch: [{resource: nodes}], onDemand: [pods], keepManagedFields: true}",
        ),
    ] {
        let configured = Configured::start(cluster(), before).await;
        let address = configured.server.address;
        let mut stream = Stream::sse(address, "/v1/watch/pods/default/web-0", None).await.unwrap();
        let before = stream.until("SYNCED").await.remove(0);
        configured.put(after);
        let after = change(&mut stream).await;
        assert_eq!(
            (&*after.kind, check::version(&after.object)),
            ("MODIFIED", check::version(&before.object))
        );
        assert!(before.object["metadata"]["managedFields"].is_null());
        assert!(after.object["metadata"]["managedFields"].is_array());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_start_over_where_a_reload_changes_the_kind_of_the_objects() {
    let (whole, metadata) = ("watch: [{resource: pods}]", "watch: [{resource: pods, metadataOnly: true}]");
    let configured = Configured::start(cluster(), whole).await;
    let address = configured.server.address;
    let paths =
        ["/v1/watch/pods", "/v1/watch/pods?fields=metadata.name&patch=merge", "/v1/watch/pods?join=owners"];
    let mut streams = Vec::new();
    for path in paths {
        let mut stream = Stream::sse(address, path, None).await.unwrap();
        stream.until("SYNCED").await;
        streams.push(stream);
    }
    for (after, kind) in [(metadata, "PartialObjectMetadata"), (whole, "Pod")] {
        configured.put(after);
        // A client that tells objects apart by their kind would hold each of them twice.
        for stream in &mut streams {
            let mut event = stream.next().await.unwrap();
            while event.kind == "BOOKMARK" {
                event = stream.next().await.unwrap();
            }
            assert_eq!((&*event.kind, event.reason()), ("RESET", "Replaced"));
            let added = stream.until("SYNCED").await.remove(0);
            assert_eq!((&*added.kind, added.object["kind"].as_str()), ("ADDED", Some(kind)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_informer_that_a_client_started_gets_the_namespaces_of_a_reload() {
    let configured = Configured::start(cluster(), "{watch: [{resource: nodes}], onDemand: [pods]}").await;
    answered(configured.server.address, "/v1/snapshot/pods", 200).await;
    configured.put("{watch: [{resource: nodes}], onDemand: [pods], namespaces: [default, web]}");
    configured.follows(&["nodes", "pods/default", "pods/web"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_reload_may_change_the_namespaces_and_the_indexes() {
    let cluster = cluster();
    cluster.create("namespaces", json!({"metadata": {"name": "web"}})).unwrap();
    let configured = Configured::start(cluster, "watch: [{resource: pods, namespaces: [default]}]").await;
    configured.put("watch: [{resource: pods, namespaces: [default, web], indexes: [spec.nodeName]}]");
    configured.follows(&["pods/default", "pods/web"]).await;
    eventually("the index in both namespaces", || {
        let informers = configured.server.hub.informers();
        informers
            .iter()
            .all(|one| one.reader.indexes().iter().any(|index| index.path.to_string() == "spec.nodeName"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_counts_and_graphs_end_when_their_informer_is_replaced() {
    let configured = Configured::start(cluster(), "watch: [{resource: pods}, {resource: nodes}]").await;
    let mut streams = Vec::new();
    for path in ["/v1/watch-index/pods/spec.nodeName", "/v1/watch-graph/pods"] {
        let mut stream = Stream::ndjson(configured.server.address, path, None).await.unwrap();
        assert!(stream.next().await.is_some());
        streams.push((path, stream));
    }
    configured.put("watch: [{resource: pods, keepManagedFields: true}, {resource: nodes}]");
    for (path, stream) in &mut streams {
        // Their clients come back, and begin with the whole state.
        in_time(path, async { while stream.next().await.is_some() {} }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_added_namespace_relists_no_other_and_resets_streams() {
    let cluster = Cluster::default();
    for namespace in ["a", "b", "c"] {
        cluster.create("namespaces", json!({"metadata": {"name": namespace}})).unwrap();
        cluster.create("pods", mk_pod(namespace, "p", "web")).unwrap();
    }
    let configured = Configured::start(cluster, "watch: [{resource: pods, namespaces: [a, b]}]").await;
    let server = &configured.server;
    let mut stream = Stream::sse(server.address, "/v1/watch/pods", None).await.unwrap();
    let token = stream.until("SYNCED").await.pop().unwrap().token.unwrap();
    configured.put("watch: [{resource: pods, namespaces: [a, b, c]}]");
    while stream.next().await.is_some_and(|event| event.kind == "BOOKMARK") {}
    configured.follows(&["pods/a", "pods/b", "pods/c"]).await;
    assert_eq!(costs(&server.cluster, "pods"), (0, 3));
    let mut again = Stream::sse(server.address, "/v1/watch/pods", Some(&token)).await.unwrap();
    assert_eq!(again.next().await.unwrap().reason(), "TokenOfOtherResources");
    assert_eq!(again.until("SYNCED").await.len(), 4);
    server.cluster.create("pods", mk_pod("b", "new", "web")).unwrap();
    assert_eq!(next_event(&mut again).await, ("ADDED".to_owned(), "new".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_added_watch_does_not_make_the_process_unready() {
    let configured = Configured::start(cluster(), "watch: [{resource: pods}]").await;
    let server = &configured.server;
    configured.put("watch: [{resource: pods}, {resource: gadgets.example.com}]");
    in_time("the pending entry", async {
        while resources(server.address).await["pending"][0]["name"] != "gadgets.example.com" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(client::get(server.admin, "/readyz", &[]).await.status(), 200);
    let refused = server.get("/v1/snapshot/gadgets.example.com?timeoutSeconds=0").await;
    assert_eq!(refused.status(), 503, "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swapped_config_map_is_read_and_an_invalid_one_is_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mount = |version: &str, yaml: &str| {
        // As the kubelet's AtomicWriter does: a folder for each version, and a link that is replaced by a rename.
        let data = folder.path().join(version);
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("informerd.yaml"), yaml).unwrap();
        let link = folder.path().join("..data_tmp");
        std::os::unix::fs::symlink(version, &link).unwrap();
        std::fs::rename(link, folder.path().join("..data")).unwrap();
    };
    mount("..1", "watch: [{resource: pods}]");
    let file = folder.path().join("informerd.yaml");
    std::os::unix::fs::symlink("..data/informerd.yaml", &file).unwrap();
    let source = ConfigLayers { file: Some(file.clone()), settings: ServeSettings::default() };
    let server = TestServer::start_with(&["pods"], |config| config.source = Some(source)).await;
    let configured = Configured { server, file, _folder: tempfile::tempdir().unwrap() };
    mount("..2", "watch: [{resource: pods}, {resource: services}]");
    configured.follows(&["pods", "services"]).await;
    // A file that is invalid against the API server's discovery, and a file that is invalid by itself.
    for (version, yaml) in [
        ("..3", "watch: [{resource: configmaps}, {resource: cm}]"),
        ("..4", "watch: [{resource: configmaps}\n"),
    ] {
        let before = refused(configured.server.admin).await;
        mount(version, yaml);
        in_time("the refusal", async {
            while refused(configured.server.admin).await == before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(names(configured.server.address).await, ["pods", "services"]);
    }
    mount("..5", "watch: [{resource: pods}]");
    configured.follows(&["pods"]).await;
}

/// The line of the metric that counts refused configurations in this process.
async fn refused(admin: SocketAddr) -> String {
    let page = client::get(admin, "/metrics", &[]).await;
    let counter = "informerd_config_reloads_total{outcome=\"refused\"}";
    page.text().lines().find(|line| line.starts_with(counter)).expect("it exists").to_owned()
}

/// The informerd program with a configuration file, and its log.
struct Process {
    child: tokio::process::Child,
    log: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>,
}

impl Process {
    fn start(file: &Path) -> Self {
        let mut command = tokio::process::Command::from(informerd());
        command.args(["serve", "--log-format=json", "--config"]).arg(file);
        let mut child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log }
    }

    /// The next line of the log that contains this text.
    async fn logs(&mut self, text: &str) -> serde_json::Value {
        in_time(text, async {
            loop {
                let line = self.log.next_line().await.unwrap().expect("the log goes on");
                if line.contains(text) {
                    return serde_json::from_str(&line).unwrap();
                }
            }
        })
        .await
    }

    async fn hang_up(&self) {
        let id = self.child.id().unwrap().to_string();
        let status = tokio::process::Command::new("kill").args(["-HUP", &id]).status().await.unwrap();
        assert!(status.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reads_the_file_at_once_and_an_invalid_file_changes_nothing() {
    let api = ApiServer::bind(cluster(), ANY_PORT).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("informerd.yaml");
    let head = format!("server: {}\nlisten: 127.0.0.1:0\nadminListen: 127.0.0.1:0\n", api.url());
    let put = |rest: &str| std::fs::write(&file, format!("{head}{rest}")).unwrap();
    put("watch: [{resource: pods}]\n");
    let mut process = Process::start(&file);
    let listening = process.logs("\"listening\"").await;
    let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
    let (data, admin) = (address("address"), address("admin"));
    answered(data, "/v1/snapshot/pods", 200).await;
    let mut pods = Stream::ndjson(data, "/v1/watch/pods", None).await.unwrap();
    pods.until("SYNCED").await;
    let metric = async |line: &str| {
        let page = client::get(admin, "/metrics", &[]).await;
        assert!(page.text().lines().any(|found| found == line), "{line} not in\n{}", page.text());
    };
    metric("informerd_config_last_reload_successful 1").await;

    put("watch: [{resource: pods}, {resource: services}]\nlimits: {pageSize: 7}\nunreadyAfter: 1h\n");
    process.hang_up().await;
    let settings = [process.logs("needs a restart").await, process.logs("needs a restart").await];
    assert_eq!(settings.map(|line| line["setting"].clone()), ["page_size", "unready_after"]);
    let line = process.logs("the configuration was read again").await;
    assert_eq!((&line["added"], &line["changed"], &line["removed"]), (&json!(1), &json!(0), &json!(0)));
    answered(data, "/v1/snapshot/services", 200).await;
    metric("informerd_config_reloads_total{outcome=\"applied\"} 1").await;

    put("watch: [{resource: services}]\ndrainTimeout: soon\n");
    process.hang_up().await;
    let line = process.logs("the configuration is refused").await;
    assert!(line["error"].as_str().unwrap().contains("drainTimeout \"soon\""), "{line}");
    metric("informerd_config_last_reload_successful 0").await;
    metric("informerd_config_reloads_total{outcome=\"refused\"} 1").await;
    assert_eq!(names(data).await, ["pods", "services"]);

    put("onDemand: [configmaps]\nwatch: [{resource: pods}]\n");
    process.hang_up().await;
    process.logs("the configuration was read again").await;
    metric("informerd_config_last_reload_successful 1").await;
    assert_eq!(names(data).await, ["pods"]);
    answered(data, "/v1/snapshot/configmaps", 200).await;
    api.cluster().create("pods", mk_pod("default", "new", "web")).unwrap();
    assert_eq!(next_event(&mut pods).await, ("ADDED".to_owned(), "new".to_owned()));
    assert_eq!(costs(api.cluster(), "pods"), ONCE);
    process.child.start_kill().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_added_and_removed_without_replacing_the_informer() {
    let configured = Configured::start(cluster(), "watch: [{resource: pods}]").await;
    let address = configured.server.address;
    let mut stream = Stream::open(Transport::Sse, address, "/v1/watch/pods", None).await.unwrap();
    stream.until("SYNCED").await;
    let indexes = async || {
        let answer = client::get(address, "/v1/index/pods", &[]).await.json();
        let users = |index: &serde_json::Value| (index["path"].clone(), index["users"].clone());
        answer["indexes"].as_array().unwrap().iter().map(users).collect::<Vec<_>>()
    };
    let until = async |expected: &[(&str, u64)]| {
        let expected: Vec<_> = expected.iter().map(|(path, users)| (json!(path), json!(users))).collect();
        in_time(&format!("{expected:?}"), async {
            while indexes().await != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    until(&[]).await;
    configured.put("watch: [{resource: pods, indexes: [spec.nodeName]}]");
    until(&[("spec.nodeName", 1)]).await;
    let nodes = client::get(address, "/v1/index/pods/spec.nodeName", &[]).await.json();
    assert_eq!(nodes["values"].as_array().map(Vec::len), Some(1), "{nodes}");
    configured.put("watch: [{resource: pods, indexes: [metadata.labels.app]}]");
    // An index that is no longer configured is kept for ten minutes.
    until(&[("metadata.labels.app", 1), ("spec.nodeName", 0)]).await;
    // The stream was not interrupted.
    configured.server.cluster.create("pods", mk_pod("default", "new", "web")).unwrap();
    stream.until("ADDED").await;
}
