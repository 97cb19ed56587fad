//! Credentials, permissions, and kinds that are created and deleted.

use std::time::Duration;

use informerd::testing::config::{InitialList, UpstreamSource};
use informerd::testing::sim::{Cluster, Cut, Failure, Fault, Requests, Verb};
use serde_json::json;
use tokio::time::Instant;

use super::{OBJECTS, Trial, cluster_with, counter, definition, message_has, object, state_of, until_state};
use crate::support::check::expected;
use crate::support::client::Transport;
use crate::support::eventually;
use crate::support::recorder::Recorder;
use crate::support::server::{Informerd, TestServer, kubeconfig, serve_config};

const FORBIDDEN: Failure = Failure { code: 403, retry_after_seconds: None };
const UNAUTHORIZED: Failure = Failure { code: 401, retry_after_seconds: None };

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_read_again_after_a_401_and_streams_go_on() {
    let (cluster, resource) = cluster_with("code-401");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let api = TestServer::api(cluster.clone()).await;
    std::fs::write(&path, api.kubeconfig()).unwrap();
    let server =
        TestServer::beside(cluster, api, &[&resource], |config| config.upstream = kubeconfig(path)).await;
    let mut trial = Trial::over(server, resource).await;
    let renewals =
        counter(&trial.server, "informerd_upstream_renewals_total", &[("reason", "unauthorized")]).await;
    trial.faults().fail_next(1, &trial.requests(Verb::Watch), UNAUTHORIZED);
    trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
    eventually("the 401", || trial.faults().fired(Fault::Failed) == 1).await;
    trial.write();
    trial.converges().await;
    trial.is_watching().await;
    assert_eq!(trial.counter("failures_total", &[("kind", "unauthorized")]).await, 0);
    let renewed =
        counter(&trial.server, "informerd_upstream_renewals_total", &[("reason", "unauthorized")]).await;
    assert!(renewed > renewals);
    // Invalid credentials are shown as a state, which heals once they are valid.
    trial.faults().fail_next(u32::MAX, &trial.requests(Verb::Watch), UNAUTHORIZED);
    trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
    trial.write();
    trial.shows_error(&["unauthorized", "credentials"]).await;
    trial.faults().clear();
    trial.converges().await;
    trial.is_watching().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_is_reported_and_heals_once_granted() {
    for (name, verbs, how) in [
        ("forbid-list", &[Verb::List][..], InitialList::Page),
        ("forbid-watch", &[Verb::Watch], InitialList::Auto),
        ("forbid-both", &[Verb::List, Verb::Watch], InitialList::Auto),
    ] {
        let (cluster, resource) = cluster_with(name);
        let api = TestServer::api(cluster.clone()).await;
        for verb in verbs {
            api.faults().fail_next(u32::MAX, &Requests::of(*verb).on(&resource), FORBIDDEN);
        }
        let mut config = serve_config(UpstreamSource::Server { url: api.url() }, &[&resource]);
        config.initial_list = how;
        let informerd = Informerd::start_unsynced(config).await;
        let server = TestServer { cluster, api, informerd };
        let told = until_state(&server, &resource, name, |state| {
            message_has(state, &["forbidden", "grant list and watch on", &resource])
                && state["state"] == "backing off"
        });
        let state = told.await;
        assert_eq!(state["synced"], json!(!verbs.contains(&Verb::List)), "{name}: {state}");
        let verb = if verbs.contains(&Verb::List) { "cannot list" } else { "cannot watch" };
        assert!(message_has(&state, &[verb]), "{name}: {state}");
        server.api.faults().clear();
        server.informerd.synced().await;
        let well = |state: &serde_json::Value| state["state"] == "watching" && state["lastError"].is_null();
        until_state(&server, &resource, "granted", well).await;
        let labels = [("resource", resource.as_str()), ("kind", "forbidden")];
        let failures = counter(&server, "informerd_reflector_failures_total", &labels).await;
        assert!((1..=6).contains(&failures), "{name}: {failures}");
        assert_eq!(state_of(&server, &resource).await["objects"], OBJECTS);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_permission_keeps_the_cache_and_its_version() {
    let mut trial = Trial::start("forbid-later").await;
    let before = trial.costs().await;
    trial.faults().fail_next(u32::MAX, &trial.requests(Verb::Any), FORBIDDEN);
    trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
    let state = trial.shows_error(&["forbidden", "cannot watch", "grant list and watch on"]).await;
    assert_eq!((&state["synced"], &state["objects"]), (&json!(true), &json!(OBJECTS)));
    trial.write();
    trial.faults().clear();
    trial.converges().await;
    trial.is_watching().await;
    assert_eq!(trial.costs().await.0, before.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_may_be_created_deleted_and_created_with_another_schema() {
    let resource = "comes.faults.example.com";
    let cluster = Cluster::default();
    let api = TestServer::api(cluster.clone()).await;
    let config = serve_config(UpstreamSource::Server { url: api.url() }, &[resource]);
    let server =
        TestServer { cluster: cluster.clone(), api, informerd: Informerd::start_unsynced(config).await };
    eventually("the informer waits for the kind", || {
        let pending = server.hub.pending();
        pending.first().is_some_and(|one| one.name == resource && one.message.contains("comes"))
    })
    .await;
    cluster.create("customresourcedefinitions", definition("comes")).unwrap();
    cluster.create(resource, object("a", 1)).unwrap();
    server.informerd.synced().await;
    let target = format!("/v1/watch/{resource}");
    let mut follower = Recorder::connect(Transport::Ndjson, server.address, &target).await;
    follower.wait_for_state(&expected(&cluster, resource, |_| true)).await;
    // The definition is deleted: the informer deletes its objects and reports that the kind is not served.
    let before = server.api.requests().len();
    cluster.delete("customresourcedefinitions", "", "comes.faults.example.com").unwrap();
    follower.wait_for_state(&expected(&cluster, resource, |_| true)).await;
    assert!(follower.state().is_empty());
    let gone = Instant::now();
    until_state(&server, resource, "not found", |state| message_has(state, &["not found", "does not serve"]))
        .await;
    // The definition is created again with another schema.
    let mut changed = definition("comes");
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    });
    cluster.create("customresourcedefinitions", changed).unwrap();
    cluster.create(resource, object("b", 2)).unwrap();
    let asked = (server.api.requests().len() - before) as u128;
    assert!(asked <= 6 + gone.elapsed().as_millis() / 400, "{asked} requests in {:?}", gone.elapsed());
    follower.wait_for_state(&expected(&cluster, resource, |_| true)).await;
    assert_eq!(follower.state().len(), 1);
    let well = |state: &serde_json::Value| state["state"] == "watching" && state["lastError"].is_null();
    until_state(&server, resource, "the kind is served again", well).await;
    let failures = [("resource", resource), ("kind", "not_found")];
    assert!(counter(&server, "informerd_reflector_failures_total", &failures).await >= 1);
    assert!(gone.elapsed() < Duration::from_secs(60));
}
