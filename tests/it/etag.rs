//! ETags of snapshots. Answers with the same tag show the same objects, on any replica and after any restart.

use std::time::Duration;

use informerd::testing::config::{ConfigLayers, ServeSettings};
use informerd::testing::sim::{Cluster, ClusterConfig};
use serde_json::{Value, json};

use crate::support::server::TestServer;
use crate::support::{in_time, mk_pod};

/// Each kind of snapshot: a list, NDJSON, a page, several kinds, selections with and without an index, one object.
const PATHS: [&str; 9] = [
    "/v1/snapshot/pods",
    "/v1/snapshot/pods?limit=1",
    "/v1/snapshot/pods,configmaps",
    "/v1/snapshot/pods/one",
    "/v1/snapshot/pods?labelSelector=app%3Dweb",
    "/v1/snapshot/pods?labelSelector=app%20in%20(web,db)",
    "/v1/snapshot/pods?labelSelector=app!%3Ddb",
    "/v1/snapshot/pods?fieldSelector=spec.nodeName%3Dnode-1",
    "/v1/snapshot/pods/one/a",
];

/// A cluster of two pods with an annotation. The same calls give the same uids and versions.
fn cluster(note: &str) -> Cluster {
    let cluster = Cluster::new(ClusterConfig::default());
    cluster.set_clock(Some(1_700_000_000_000));
    for (namespace, name) in [("one", "a"), ("two", "b")] {
        let mut pod = mk_pod(namespace, name, "web");
        pod["metadata"]["annotations"] = json!({"note": note});
        cluster.create("pods", pod).unwrap();
    }
    cluster
}

async fn start(cluster: &Cluster) -> TestServer {
    let server = TestServer::over(cluster.clone(), &["pods", "configmaps"], |_| {}).await;
    server.caught_up("pods").await;
    server.caught_up("configmaps").await;
    server
}

async fn tag(server: &TestServer, path: &str) -> String {
    let answer = server.get(path).await;
    answer.header("etag").unwrap_or_else(|| panic!("{path}: {} without ETag", answer.status()))
}

async fn status(server: &TestServer, path: &str, tag: &str) -> u16 {
    server.get_with(path, &[("If-None-Match", tag)]).await.status()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_objects_at_the_same_version_after_a_restore_give_another_tag() {
    let (before, after) = (cluster("before"), cluster("after"));
    assert_eq!(before.revision(), after.revision());
    let (old, new) = (start(&before).await, start(&after).await);
    for path in PATHS {
        let (was, is) = (old.get(path).await, new.get(path).await);
        assert_eq!(
            was.header("informerd-resume"),
            is.header("informerd-resume"),
            "{path}: the versions differ"
        );
        let tag = was.header("etag").unwrap();
        assert_eq!(status(&new, path, &tag).await, 200, "{path}: the objects differ");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_the_same_objects_give_the_same_tag() {
    let cluster = cluster("one");
    let one = start(&cluster).await;
    let patch = json!({"metadata": {"labels": {"app": "db"}}});
    cluster.patch("pods", "two", "b", &patch).unwrap();
    cluster.create("pods", mk_pod("two", "gone", "web")).unwrap();
    cluster.delete("pods", "two", "gone").unwrap();
    one.caught_up("pods").await;
    // This replica has seen the last state only.
    let other = start(&cluster).await;
    for path in PATHS {
        let tag = tag(&one, path).await;
        assert_eq!(status(&other, path, &tag).await, 304, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_outside_a_selection_keeps_its_tag() {
    let cluster = cluster("one");
    let server = start(&cluster).await;
    let mut tags = Vec::new();
    for path in &PATHS[3..] {
        tags.push((path, tag(&server, path).await));
    }
    cluster
        .create("pods", json!({"metadata": {"namespace": "two", "name": "c", "labels": {"app": "db"}}}))
        .unwrap();
    cluster.delete("pods", "two", "c").unwrap();
    server.caught_up("pods").await;
    for (path, tag) in &tags {
        assert_eq!(status(&server, path, tag).await, 304, "{path}");
    }
    cluster.create("pods", json!({"metadata": {"namespace": "two", "name": "c"}})).unwrap();
    server.caught_up("pods").await;
    for (path, tag) in &tags {
        let touched = path.contains("app!%3Ddb");
        assert_eq!(status(&server, path, tag).await, if touched { 200 } else { 304 }, "{path}");
    }
    cluster.patch("pods", "one", "a", &json!({"status": {"phase": "Running"}})).unwrap();
    server.caught_up("pods").await;
    for (path, tag) in &tags {
        assert_eq!(status(&server, path, tag).await, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_parts_of_objects_change_the_tag() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("informerd.yaml");
    let forms = [
        "watch: [{resource: pods}, {resource: configmaps}]",
        "watch: [{resource: pods, drop: [.spec.containers]}, {resource: configmaps}]",
        "watch: [{resource: pods, metadataOnly: true}, {resource: configmaps}]",
    ];
    std::fs::write(&file, forms[0]).unwrap();
    let source = ConfigLayers { file: Some(file.clone()), settings: ServeSettings::default() };
    let loaded = source.load().unwrap();
    let server = TestServer::over(cluster("one"), &[], |config| {
        config.watches = loaded.watches;
        config.source = Some(source);
    })
    .await;
    let paths = PATHS.iter().filter(|path| !path.contains("nodeName"));
    let mut seen: Vec<(&str, String)> = Vec::new();
    for (at, form) in forms.iter().enumerate() {
        let new = file.with_extension("new");
        std::fs::write(&new, form).unwrap();
        std::fs::rename(new, &file).unwrap();
        in_time("the reload", async {
            while !holds(&server, at).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        for path in paths.clone() {
            let tag = tag(&server, path).await;
            for (_, before) in seen.iter().filter(|(other, _)| other == path) {
                assert_eq!(status(&server, path, before).await, 200, "{path}: {form}");
            }
            seen.push((path, tag));
        }
    }
}

/// Whether a pod is served in this form: whole, without containers, or as metadata only.
async fn holds(server: &TestServer, form: usize) -> bool {
    let pod: Value = server.get("/v1/snapshot/pods/one/a").await.json();
    let shown = (pod["spec"]["containers"].is_array(), pod["status"].is_object());
    shown == [(true, true), (false, true), (false, false)][form]
}
