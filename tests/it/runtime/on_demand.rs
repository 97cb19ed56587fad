//! Informers on demand: they start at the first request, and stop when they are not in use.

use std::sync::Arc;
use std::time::Duration;

use informerd::testing::config;
use informerd::testing::sim::{Failure, Requests, Verb};

use super::{ONCE, answered, change, costs, mk_config_map, names, resources};
use crate::support::client::{self, Stream, Transport};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, check, eventually, in_time, mk_pod};

async fn start(patterns: &[&str], change: impl FnOnce(&mut config::Serve)) -> TestServer {
    TestServer::start_with(&["pods"], |config| {
        config.on_demand.patterns = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        change(config);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_first_requests_share_one_list_and_one_watch() {
    let server = Arc::new(start(&["configmaps"], |_| {}).await);
    for index in 0..20 {
        server.cluster.create("configmaps", mk_config_map("default", &format!("c{index}"), "web")).unwrap();
    }
    assert_eq!(costs(&server.cluster, "configmaps"), (0, 0));
    let mut asking = tokio::task::JoinSet::new();
    for index in 0..50 {
        let server = server.clone();
        asking.spawn(async move {
            if index % 2 == 0 {
                let list = server.get("/v1/snapshot/cm").await;
                assert_eq!((list.status(), check::items(&list.json()).len()), (200, 20));
                return None;
            }
            let transport = TRANSPORTS[index % 3];
            let path = "/v1/watch/pods,configmaps";
            let mut stream = Stream::open(transport, server.address, path, None).await.unwrap();
            assert_eq!(stream.until("SYNCED").await.len(), 21);
            Some(stream)
        });
    }
    let mut streams = Vec::new();
    while let Some(stream) = in_time("all of them", asking.join_next()).await {
        streams.extend(stream.unwrap());
    }
    server.cluster.create("configmaps", mk_config_map("default", "new", "web")).unwrap();
    for stream in &mut streams {
        assert_eq!(change(stream).await.name(), "new");
    }
    assert_eq!(costs(&server.cluster, "configmaps"), ONCE);
    let listed = resources(server.address).await;
    let informer = &listed["informers"][1];
    assert_eq!((&informer["name"], &informer["started"]), (&"configmaps".into(), &"demand".into()));
    assert_eq!(
        (&informer["idleSeconds"], &listed["informers"][0]["started"]),
        (&().into(), &"configuration".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_informer_stops_and_its_tokens_stay_valid() {
    let server = start(&["*"], |config| config.on_demand.idle = Duration::from_millis(600)).await;
    server.cluster.create("configmaps", mk_config_map("default", "a", "web")).unwrap();
    let path = "/v1/watch/configmaps";
    let mut recorder = Recorder::connect(Transport::Sse, server.address, path).await;
    // While a client reads, the informer is in use, even if nothing changes.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(names(server.address).await, ["pods", "configmaps"]);
    recorder.disconnect();
    eventually("it stops", || server.hub.informers().len() == 1).await;
    let watching = || server.cluster.counters()["configmaps"].watches_open;
    eventually("the end of its watch", || watching() == 0).await;
    server.cluster.create("configmaps", mk_config_map("default", "b", "web")).unwrap();
    server.cluster.delete("configmaps", "default", "a").unwrap();
    recorder.wait_for_state(&check::expected(&server.cluster, "configmaps", |_| true)).await;
    assert_eq!(recorder.resets, Vec::<String>::new(), "a RESET, though the changes could be listed");
    let page = client::get(server.admin, "/metrics", &[]).await;
    assert!(page.text().contains("informerd_cache_objects{resource=\"configmaps\"} 1"), "{}", page.text());
    recorder.disconnect();
    eventually("it stops again", || server.hub.informers().len() == 1).await;
    let page = client::get(server.admin, "/metrics", &[]).await;
    assert!(
        !page.text().contains("informerd_cache_objects{resource=\"configmaps\"}"),
        "a gauge of an informer that was stopped"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_not_allowed_on_demand_is_refused_with_the_patterns() {
    let server =
        start(&["configmaps", "*.apps", "*.demo.informerd.dev"], |config| config.limits.on_demand_max = 2)
            .await;
    for (name, code, reason, expected) in [
        (
            "secrets",
            403,
            "Forbidden",
            "secrets is not followed, and informers start on demand only for configmaps, *.apps",
        ),
        ("svc", 403, "Forbidden", "services is not followed"),
        ("deployment", 200, "", ""),
        ("deployments.apps", 200, "", ""),
        ("wd", 200, "", ""),
        ("configmaps", 503, "ServiceUnavailable", "all 2 informers that may start on demand are in use"),
        ("gadgets", 404, "NotFound", "has no resource \"gadgets\""),
        ("widget.nowhere.example.com", 404, "NotFound", "informers start on demand for configmaps, *.apps"),
    ] {
        for door in ["snapshot", "watch"] {
            let answer = server.get(&format!("/v1/{door}/{name}?timeoutSeconds=1")).await;
            assert_eq!(answer.status(), code, "{door} {name}: {}", answer.text());
            if code != 200 {
                let status = answer.json();
                let message = status["message"].as_str().unwrap();
                assert_eq!(
                    (&status["kind"], &status["reason"]),
                    (&"Status".into(), &reason.into()),
                    "{name}"
                );
                assert!(message.contains(expected), "{door} {name}: {message}");
            }
        }
    }
    assert_eq!(names(server.address).await, ["pods", "deployments.apps", "widgets.demo.informerd.dev"]);
    for resource in ["secrets", "services", "configmaps"] {
        assert_eq!(costs(&server.cluster, resource), (0, 0), "{resource}");
    }
    let discoveries = server.api.requests().iter().filter(|line| *line == "GET /apis").count();
    assert!(discoveries <= 3, "{discoveries}: discoveries, so unknown names are looked up each time");
    assert_eq!(client::get(server.admin, "/readyz", &[]).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_does_not_include_secrets() {
    let server = start(&["*"], |_| {}).await;
    assert_eq!(server.get("/v1/snapshot/services").await.status(), 200);
    assert_eq!(server.get("/v1/snapshot/secrets").await.status(), 403);
    let server = start(&["*", "secrets"], |_| {}).await;
    assert_eq!(server.get("/v1/snapshot/secrets").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_forbidden_resource_gets_the_reason_in_time() {
    let server = start(&["configmaps"], |_| {}).await;
    let forbidden = Failure { code: 403, retry_after_seconds: None };
    server.api.faults().fail_next(1000, &Requests::of(Verb::Any).on("configmaps"), forbidden);
    for door in ["snapshot", "watch"] {
        let refused = server.get(&format!("/v1/{door}/configmaps?timeoutSeconds=1")).await;
        assert_eq!(refused.status(), 503, "{door}");
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("configmaps is not complete yet: forbidden"), "{door}: {message}");
    }
    // Kubernetes clients repeat a request after a 503, so a forbidden resource gets another code.
    for path in ["/api/v1/configmaps", "/api/v1/configmaps?watch=1", "/api/v1/namespaces/web/configmaps/a"] {
        let refused = server.get(path).await;
        assert_eq!(refused.status(), 403, "{path}: {}", refused.text());
        let refused = refused.json();
        assert_eq!(
            (&refused["reason"], &refused["details"]["kind"]),
            (&"Forbidden".into(), &"configmaps".into())
        );
        let message = refused["message"].as_str().unwrap();
        assert!(
            message.starts_with("configmaps is forbidden: this informerd may not list it: "),
            "{message}"
        );
    }
    assert_eq!(
        client::get(server.admin, "/readyz", &[]).await.status(),
        200,
        "a client made informerd unready"
    );
    server.api.faults().clear();
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    answered(server.address, "/v1/snapshot/configmaps", 200).await;
}
