//! Comparisons of cache and API server: every event that a watch lost is found, counted and healed, and changes that
//! are merely under way are never reported.

use std::time::Duration;

use informerd::testing::sim::Fault;
use serde_json::{Value, json};

use crate::support::check::expected;
use crate::support::client::{Stream, Transport};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{PATIENCE, eventually, informerd, mk_pod};

/// Far more often than in any real configuration.
const OFTEN: Option<Duration> = Some(Duration::from_millis(100));

/// The entry of the only informer in `/v1/resources`.
async fn info(server: &TestServer) -> Value {
    server.get("/v1/resources").await.json()["informers"][0].clone()
}

/// Waits until that entry meets a condition.
async fn wait_for_info(server: &TestServer, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let info = info(server).await;
        if holds(&info) {
            return info;
        }
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}: {info}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The sum of a metric's samples that have all these labels.
async fn metric(server: &TestServer, name: &str, labels: &[&str]) -> f64 {
    let text = crate::support::client::get(server.admin, "/metrics", &[]).await;
    let samples = text.text().lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && labels.iter().all(|label| line.contains(label))
    });
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn a_lost_event_is_found_by_comparison_counted_healed_and_sent() {
    // A resource that no other test uses, as tests in one process share the metrics.
    let kind = "serviceaccounts";
    let server = TestServer::start_with(&[kind], |config| config.verify_interval = OFTEN).await;
    let object = |name: &str, n: u32| json!({"metadata": {"namespace": "web", "name": name, "labels": {"n": n.to_string()}}});
    for name in ["stays", "changes", "goes"] {
        server.cluster.create(kind, object(name, 0)).unwrap();
    }
    server.caught_up(kind).await;
    wait_for_info(&server, "a comparison without differences", |info| {
        info["lastVerify"]["outcome"] == "equal"
    })
    .await;
    let mut stream = Stream::ndjson(server.address, &format!("/v1/watch/{kind}"), None).await.unwrap();
    stream.until("SYNCED").await;

    server.api.faults().swallow_events(3);
    server.cluster.patch(kind, "web", "changes", &json!({"metadata": {"labels": {"n": "1"}}})).unwrap();
    server.cluster.delete(kind, "web", "goes").unwrap();
    server.cluster.create(kind, object("comes", 2)).unwrap();
    eventually("the lost events", || server.api.faults().fired(Fault::Swallowed) == 3).await;

    let mut events = Vec::new();
    while events.len() < 3 {
        let event =
            crate::support::in_time("the differences", stream.next()).await.expect("the stream goes on");
        if event.kind != "BOOKMARK" {
            events.push(format!("{} {}", event.kind, event.name()));
        }
    }
    assert_eq!(events, ["DELETED goes", "MODIFIED changes", "ADDED comes"]);
    let info = wait_for_info(&server, "a comparison after it", |info| {
        info["lastVerify"]["outcome"] == "equal" && info["relists"].as_u64() >= Some(1)
    })
    .await;
    assert_eq!(info["lastVerify"]["missing"], 0);
    for kind_of in ["missing", "extra", "stale"] {
        let label = format!("kind=\"{kind_of}\"");
        let labels = ["resource=\"serviceaccounts\"", &label];
        assert!(metric(&server, "informerd_verify_differences_total", &labels).await >= 1.0, "{kind_of}");
    }
    let labels = ["resource=\"serviceaccounts\"", "reason=\"verify\""];
    assert!(metric(&server, "informerd_reflector_relists_total", &labels).await >= 1.0);
    assert!(metric(&server, "informerd_verify_last_run_timestamp_seconds", &labels[..1]).await > 1e9);
    // No other event was sent.
    server.cluster.create(kind, object("last", 3)).unwrap();
    loop {
        let event =
            crate::support::in_time("the last event", stream.next()).await.expect("the stream goes on");
        if event.kind != "BOOKMARK" {
            assert_eq!((&*event.kind, event.name()), ("ADDED", "last"));
            break;
        }
    }
}

#[tokio::test]
async fn concurrent_writes_are_never_reported_as_differences() {
    let kind = "configmaps";
    let server = TestServer::start_with(&[kind], |config| config.verify_interval = OFTEN).await;
    let mut recorder =
        Recorder::connect(Transport::Ndjson, server.address, &format!("/v1/watch/{kind}")).await;
    let equal = ["resource=\"configmaps\"", "outcome=\"equal\""];
    let mut round = 0_u64;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    // Until enough comparisons have run amid the writes, on a machine of any speed.
    while metric(&server, "informerd_verify_runs_total", &equal).await < 10.0 {
        for index in 0..40 {
            round += 1;
            let name = format!("q{}", (round * 7 + index) % 60);
            let patch = json!({"metadata": {"labels": {"n": round.to_string()}}});
            if server.cluster.patch(kind, "web", &name, &patch).is_err() {
                let object = json!({"metadata": {"namespace": "web", "name": name}});
                server.cluster.create(kind, object).unwrap();
            } else if round.is_multiple_of(3) {
                server.cluster.delete(kind, "web", &name).unwrap();
            }
        }
        assert!(tokio::time::Instant::now() < deadline, "not in time: ten comparisons");
    }
    let differences = ["resource=\"configmaps\""];
    assert_eq!(metric(&server, "informerd_verify_differences_total", &differences).await, 0.0);
    assert_eq!(info(&server).await["relists"], 0);
    recorder.wait_for_state(&expected(&server.cluster, kind, |_| true)).await;
}

#[tokio::test]
async fn metadata_only_secrets_are_never_fetched_held_or_shown_whole() {
    let server = TestServer::start_with(&["secrets"], |config| {
        config.watches[0].metadata_only = true;
        config.verify_interval = OFTEN;
    })
    .await;
    let secret = |n: u32| {
        json!({"metadata": {"namespace": "web", "name": "s", "labels": {"app": "web"}, "annotations": {"n": n.to_string()}},
            "data": {"password": "c2VjcmV0"}})
    };
    server.cluster.create("secrets", secret(0)).unwrap();
    server.caught_up("secrets").await;
    let list = server.get("/v1/snapshot/secrets").await.json();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("PartialObjectMetadataList"), &json!("meta.k8s.io/v1"))
    );
    let one = server.get("/v1/snapshot/secrets/web/s").await.json();
    let mut expected = server.cluster.list("secrets")[0]["metadata"].clone();
    expected.as_object_mut().unwrap().remove("managedFields");
    assert_eq!(
        one,
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": expected})
    );

    let mut stream =
        Stream::ndjson(server.address, "/v1/watch/secrets?labelSelector=app=web", None).await.unwrap();
    let initial = stream.until("SYNCED").await;
    let marks: Vec<_> = initial.iter().map(|event| (&*event.kind, event.object["kind"].as_str())).collect();
    assert_eq!(marks, [("ADDED", Some("PartialObjectMetadata")), ("SYNCED", Some("PartialObjectMetadata"))]);
    server.cluster.patch("secrets", "web", "s", &json!({"data": {"password": "b3RoZXI="}})).unwrap();
    let modified = stream.until("MODIFIED").await.pop().unwrap();
    assert_eq!(modified.object["kind"], "PartialObjectMetadata");
    assert!(modified.object.get("data").is_none());
    server.cluster.delete("secrets", "web", "s").unwrap();
    let deleted = stream.until("DELETED").await.pop().unwrap();
    assert_eq!(deleted.object["kind"], "PartialObjectMetadata");

    let refused = server.get("/v1/snapshot/secrets?fieldSelector=type=Opaque").await;
    assert_eq!(refused.status(), 400);
    let why = "type is not held: of secrets only their metadata is";
    assert!(refused.text().contains(why), "{}", refused.text());
    assert_eq!(server.get("/v1/snapshot/secrets?fieldSelector=metadata.name=s").await.status(), 200);
    let info = wait_for_info(&server, "a comparison", |info| info["lastVerify"]["outcome"] == "equal").await;
    assert_eq!(info["metadataOnly"], true);
    assert_eq!(info["kind"], "Secret");
}

#[tokio::test]
async fn dropped_parts_are_not_held_but_their_changes_are_sent() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.watches[0].drop = ".spec,.status.phase".parse().unwrap();
        config.verify_interval = OFTEN;
    })
    .await;
    server.cluster.create("pods", mk_pod("web", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let mut stream = Stream::ndjson(server.address, "/v1/watch/pods", None).await.unwrap();
    let initial = stream.until("SYNCED").await;
    let before = initial[0].object.clone();
    assert!(before.get("spec").is_none() && before["status"].get("phase").is_none(), "{before}");
    assert_eq!((&before["kind"], &before["metadata"]["labels"]["app"]), (&json!("Pod"), &json!("web")));
    server.cluster.patch("pods", "web", "a", &json!({"spec": {"nodeName": "node-2"}})).unwrap();
    let mut after = stream.until("MODIFIED").await.pop().unwrap().object;
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    assert_eq!(after, before);
    for field in ["spec.nodeName", "status.phase"] {
        let refused = server.get(&format!("/v1/watch/pods?fieldSelector={field}!=x")).await;
        assert_eq!(refused.status(), 400, "{field}");
        let why = format!("{field} is not held: of pods everything but .spec,.status.phase is");
        assert!(refused.text().contains(&why), "{}", refused.text());
    }
    let info = wait_for_info(&server, "a comparison", |info| info["lastVerify"]["outcome"] == "equal").await;
    assert_eq!(info["dropped"], json!([".spec", ".status.phase"]));
    assert_eq!(info["metadataOnly"], false);
}

/// Runs `informerd check` on a server's API server; returns the exit code and the report.
async fn check(server: &TestServer, resource: &str, more: &[&str]) -> (Option<i32>, Value) {
    check_at(&server.api.url(), resource, more).await
}

/// Runs `informerd check` on the API server at a URL.
async fn check_at(url: &str, resource: &str, more: &[&str]) -> (Option<i32>, Value) {
    let mut command = informerd();
    command.args(["check", "--output=json", "--log=off", "--verify", "--watch", resource, "--server", url]);
    command.args(more);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = crate::support::in_time("the check", output).await.unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_verify_compares_once_and_names_what_differs() {
    let server = TestServer::start(&["services"]).await;
    let service = |name: &str| json!({"metadata": {"namespace": "web", "name": name}, "spec": {"ports": [{"port": 80}]}});
    for name in ["a", "b", "c"] {
        server.cluster.create("services", service(name)).unwrap();
    }
    server.caught_up("services").await;
    let (code, report) = check(&server, "services", &[]).await;
    assert_eq!(code, Some(0), "{report}");
    let compared = |report: &Value| {
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|one| one["what"] == "compare services in all namespaces").unwrap().clone()
    };
    assert!(
        compared(&report)["detail"].as_str().unwrap().starts_with("3 objects at resourceVersion "),
        "{report}"
    );

    // A comparison with the running informerd, which has lost a deletion and an update.
    let url = format!("http://{}", server.address);
    let (code, report) = check(&server, "services", &["--against", &url]).await;
    assert_eq!((code, compared(&report)["ok"].as_bool()), (Some(0), Some(true)), "{report}");
    server.api.faults().swallow_events(2);
    server.cluster.delete("services", "web", "b").unwrap();
    server.cluster.patch("services", "web", "c", &json!({"metadata": {"labels": {"x": "y"}}})).unwrap();
    eventually("the lost events", || server.api.faults().fired(Fault::Swallowed) == 2).await;
    let (code, report) = check(&server, "services", &["--against", &url]).await;
    assert_eq!(code, Some(1), "{report}");
    let differences = compared(&report)["differences"].clone();
    let told: Vec<_> = differences
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["key"].as_str(), one["kind"].as_str()))
        .collect();
    assert_eq!(told, [(Some("web/b"), Some("extra")), (Some("web/c"), Some("stale"))], "{report}");
    assert_eq!(differences[0]["listed"], Value::Null);
    // A cache made for the comparison has lost no event.
    assert_eq!(check(&server, "services", &[]).await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn check_verify_against_a_running_informerd_finds_other_content_at_the_same_version() {
    let server = TestServer::start(&["services"]).await;
    for name in ["a", "b"] {
        let service =
            json!({"metadata": {"namespace": "web", "name": name}, "spec": {"ports": [{"port": 80}]}});
        server.cluster.create("services", service).unwrap();
    }
    // The cluster is restored from a backup, and writes the same object at the same version with another content.
    let restored = server.cluster.fork();
    server.cluster.patch("services", "web", "b", &json!({"spec": {"clusterIP": "10.0.0.1"}})).unwrap();
    restored.patch("services", "web", "b", &json!({"spec": {"clusterIP": "10.0.0.2"}})).unwrap();
    assert_eq!(server.cluster.revision(), restored.revision());
    server.caught_up("services").await;
    let api = TestServer::api(restored).await;
    let against = format!("http://{}", server.address);
    let (code, report) = check_at(&api.url(), "services", &["--against", &against]).await;
    assert_eq!(code, Some(1), "{report}");
    let findings = report["findings"].as_array().unwrap();
    let compared = findings.iter().find(|one| one["differences"].is_array()).expect("a difference");
    let different = &compared["differences"][0];
    assert_eq!((&different["key"], &different["kind"]), (&json!("web/b"), &json!("stale")), "{report}");
    assert_eq!(different["listed"], different["held"]);
    assert_eq!(compared["differences"].as_array().unwrap().len(), 1, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_an_exposed_listener_and_of_secrets() {
    let server = TestServer::start(&["secrets"]).await;
    let warning = async |more: &[&str]| {
        let (code, report) = check(&server, "secrets", more).await;
        assert_eq!(code, Some(0), "a warning failed the check: {report}");
        let findings = report["findings"].as_array().unwrap().clone();
        let warned = findings.iter().find(|one| one["warning"] == true);
        warned.map(|one| one["detail"].as_str().unwrap().to_owned())
    };
    assert_eq!(warning(&[]).await, None);
    assert_eq!(warning(&["--listen=unix:/run/informerd.sock"]).await, None);
    let exposed = warning(&["--listen=0.0.0.0:8090", "--pass-through=reads"]).await.unwrap();
    for told in ["0.0.0.0:8090 has no authentication", "SECRETS WITH THEIR CONTENT", "--pass-through=reads"] {
        assert!(exposed.contains(told), "{told}: {exposed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_estimates_the_memory_of_a_watch_from_a_page() {
    let server = TestServer::start(&["configmaps"]).await;
    let create = |namespace: &str, index: usize| {
        let data = format!("{index}").repeat(200);
        let metadata = json!({"namespace": namespace, "name": format!("map-{index}")});
        server.cluster.create("configmaps", json!({"metadata": metadata, "data": {"a": data}})).unwrap();
    };
    (0..620).for_each(|index| create("web", index));
    (0..120).for_each(|index| create("few", index));
    let size = async |resource: &str, place: &str| {
        let (_, report) = check(&server, resource, &[]).await;
        let what = format!("size of configmaps in {place}");
        let findings = report["findings"].as_array().unwrap();
        let finding = findings.iter().find(|one| one["what"] == what).unwrap();
        finding["detail"].as_str().unwrap().to_owned()
    };
    let whole = size("configmaps", "all namespaces").await;
    assert!(whole.starts_with("740 objects of about "), "{whole}");
    assert!(whole.contains(" kB with --cache-packing=auto; and at most 67 MB for recent changes"), "{whole}");
    // Fewer than 256 KiB are not packed.
    let few = size("configmaps?namespace=few", "namespace few").await;
    assert!(few.starts_with("120 objects of about ") && !few.contains("--cache-packing"), "{few}");
    // With a selector the API server does not report the number of objects.
    server
        .cluster
        .patch("configmaps", "web", "map-1", &json!({"metadata": {"labels": {"no": "x"}}}))
        .unwrap();
    let selected = size("configmaps?labelSelector=!no", "all namespaces").await;
    assert!(selected.starts_with("more than 500 objects of about "), "{selected}");
    assert_eq!(size("configmaps?namespace=shop", "namespace shop").await, "no objects now");
}
