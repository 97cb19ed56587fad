//! Clients resume after a restart of informerd and get the changes since, not all objects.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::check::{expected, labeled};
use crate::support::client::{Stream, Transport};
use crate::support::eventually;
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;

fn pod(name: &str, app: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": {"nodeName": "n1"}})
}

fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

fn patch(server: &TestServer, name: &str, app: &str) {
    let patch = json!({"metadata": {"labels": {"app": app}}});
    server.cluster.patch("pods", "default", name, &patch).unwrap();
}

/// Pods, whose names say what happens to them while informerd is down, and one ConfigMap.
async fn start() -> TestServer {
    let server = TestServer::start(&["pods", "configmaps"]).await;
    for name in ["stays", "goes", "changes", "replaced", "leaves"] {
        server.cluster.create("pods", pod(name, "web")).unwrap();
    }
    server.cluster.create("pods", pod("enters", "db")).unwrap();
    server.cluster.create("configmaps", config_map("stays")).unwrap();
    // Waits for a bookmark, so that all tokens have the same version.
    let revision = server.cluster.revision().to_string();
    eventually("bookmarks", || {
        let informers = server.hub.informers();
        informers.iter().all(|informer| informer.reader.summary().position.to_string() == revision)
    })
    .await;
    server
}

fn changes_meanwhile(server: &TestServer) {
    let cluster = &server.cluster;
    cluster.create("configmaps", config_map("first")).unwrap();
    cluster.delete("pods", "default", "goes").unwrap();
    cluster.patch("pods", "default", "changes", &json!({"status": {"phase": "Running"}})).unwrap();
    cluster.delete("pods", "default", "replaced").unwrap();
    cluster.create("pods", pod("replaced", "web")).unwrap();
    patch(server, "leaves", "db");
    patch(server, "enters", "web");
    cluster.create("pods", pod("comes", "web")).unwrap();
    cluster.create("configmaps", config_map("last")).unwrap();
}

fn past_lists(server: &TestServer) -> Vec<String> {
    let requests = server.api.requests().into_iter();
    requests.filter(|request| request.contains("resourceVersionMatch=Exact")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_source_gets_only_the_changes_made_while_informerd_was_down() {
    let mut server = start().await;
    let all = "/v1/watch/pods";
    let some = "/v1/watch/pods?labelSelector=app%3Dweb";
    let one = "/v1/watch/pods/default/goes";
    let both = "/v1/watch/pods,configmaps";
    let mut recorders = Vec::new();
    for target in [all, some, one, both] {
        recorders.push(Recorder::connect(Transport::Sse, server.address, target).await);
    }
    server.kill().await;
    changes_meanwhile(&server);
    server.revive().await;
    // Events of the pods: goes, replaced (two), changes, leaves, enters, comes. With the selector, `leaves` is a
    // deletion. And two of ConfigMaps.
    for (recorder, told) in recorders.iter_mut().zip([7, 7, 1, 9]) {
        let (marks, events) = (recorder.marks, recorder.events);
        recorder.wait_until("the bookmark", |recorder| recorder.marks > marks).await;
        assert_eq!(recorder.resets, Vec::<String>::new());
        assert_eq!(recorder.events - events, told + 1);
    }
    let is_web = |pod: &Value| labeled(pod, "app", "web");
    assert_eq!(*recorders[0].state(), expected(&server.cluster, "pods", |_| true));
    assert_eq!(*recorders[1].state(), expected(&server.cluster, "pods", is_web));
    assert!(recorders[2].state().is_empty());
    let mut everything = expected(&server.cluster, "pods", |_| true);
    everything.extend(expected(&server.cluster, "configmaps", |_| true));
    assert_eq!(*recorders[3].state(), everything);
    assert_eq!(past_lists(&server).len(), 2, "one for each resource: {:?}", past_lists(&server));
    // The stream goes on, also after the next restart.
    for round in 0..2 {
        server.cluster.delete("pods", "default", "comes").unwrap();
        server.cluster.create("pods", pod("comes", "web")).unwrap();
        patch(&server, "enters", if round == 0 { "db" } else { "web" });
        recorders[0].wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
        recorders[1].wait_for_state(&expected(&server.cluster, "pods", is_web)).await;
        server.cluster.create("configmaps", config_map(&format!("round-{round}"))).unwrap();
        server.kill().await;
        server.cluster.delete("pods", "default", "comes").unwrap();
        server.cluster.create("pods", pod("comes", "db")).unwrap();
        server.revive().await;
        recorders[0].wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
        recorders[1].wait_for_state(&expected(&server.cluster, "pods", is_web)).await;
    }
    assert!(recorders.iter().all(|recorder| recorder.resets.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_whose_version_was_compacted_gives_a_reset() {
    let mut server = start().await;
    let mut recorder = Recorder::connect(Transport::Sse, server.address, "/v1/watch/pods").await;
    server.kill().await;
    changes_meanwhile(&server);
    server.cluster.compact();
    server.revive().await;
    recorder.wait_until("RESET", |recorder| !recorder.resets.is_empty()).await;
    recorder.wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
    assert_eq!(recorder.resets, ["TokenTooOld"]);
    assert_eq!(past_lists(&server).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_clients_with_one_token_cause_one_backfill_list() {
    let mut server = start().await;
    let mut recorders = Vec::new();
    for _ in 0..200 {
        recorders.push(Recorder::connect(Transport::Sse, server.address, "/v1/watch/pods").await);
    }
    let lists = server.cluster.counters()["pods"].lists;
    server.kill().await;
    changes_meanwhile(&server);
    server.revive().await;
    let state = expected(&server.cluster, "pods", |_| true);
    let mut clients = JoinSet::new();
    for mut recorder in recorders {
        let state = state.clone();
        clients.spawn(async move {
            recorder.wait_for_state(&state).await;
            assert!(recorder.resets.is_empty());
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    assert_eq!(past_lists(&server).len(), 1);
    // The list of the new process is a streaming list.
    assert_eq!(server.cluster.counters()["pods"].lists - lists, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_may_hold_objects_from_after_its_token_gets_a_reset() {
    let mut server = start().await;
    for transport in [Transport::Ndjson, Transport::WebSocket] {
        let mut stream = Stream::open(transport, server.address, "/v1/watch/pods", None).await.ok().unwrap();
        let token = stream.until("SYNCED").await.pop().unwrap().token.unwrap();
        // The pod is created after the last bookmark, and deleted before the first list of the next informerd. Only
        // this client knows that it existed.
        server.cluster.create("pods", pod("brief", "web")).unwrap();
        assert_eq!(stream.until("ADDED").await.pop().unwrap().name(), "brief");
        server.kill().await;
        server.cluster.delete("pods", "default", "brief").unwrap();
        server.revive().await;
        server.synced().await;
        let resumed = Stream::open(transport, server.address, "/v1/watch/pods", Some(&token)).await;
        let first = resumed.ok().unwrap().next().await.unwrap();
        assert_eq!((&*first.kind, first.reason()), ("RESET", "TokenTooOld"));
    }
    assert!(past_lists(&server).is_empty());
}
