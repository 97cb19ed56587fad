//! Lists that are refused, cut or incomplete, or older than the cache.

use std::time::Duration;

use informerd::testing::config::{InitialList, UpstreamSource};
use informerd::testing::sim::{ApiServer, Cut, Failure, Fault, Gone, Requests, StreamingLists, Verb};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{OBJECTS, PATIENCE, Trial, cluster_with, counter, message_has, object, until_state};
use crate::support::check::expected;
use crate::support::client::Stream;
use crate::support::eventually;
use crate::support::server::{Informerd, TestServer, serve_config};

/// Starts an informerd whose first list meets faults.
async fn first_list(
    name: &str,
    how: InitialList,
    order: impl FnOnce(&ApiServer, &str),
) -> (TestServer, String) {
    let (cluster, resource) = cluster_with(name);
    let api = TestServer::api(cluster.clone()).await;
    order(&api, &resource);
    let mut config = serve_config(UpstreamSource::Server { url: api.url() }, &[&resource]);
    config.initial_list = how;
    config.limits.page_size = 7;
    let informerd = Informerd::start_unsynced(config).await;
    (TestServer { cluster, api, informerd }, resource)
}

async fn is_synced(server: &TestServer, resource: &str) {
    let well = |state: &serde_json::Value| {
        state["state"] == "watching" && state["lastError"].is_null() && state["objects"] == OBJECTS
    };
    until_state(server, resource, "everything", well).await;
}

async fn reflector(server: &TestServer, resource: &str, name: &str, label: (&str, &str)) -> u64 {
    counter(server, &format!("informerd_reflector_{name}"), &[("resource", resource), label]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_streaming_lists_in_any_way_is_listed_in_pages() {
    for (name, mode, kind) in [
        ("stream-unknown", StreamingLists::Unknown, "refused"),
        ("stream-disabled", StreamingLists::Disabled, "refused"),
        ("stream-noprogress", StreamingLists::NoProgress, "internal"),
    ] {
        let (server, resource) =
            first_list(name, InitialList::Auto, |api, _| api.faults().streaming_lists(mode)).await;
        is_synced(&server, &resource).await;
        assert_eq!(server.api.faults().fired(Fault::StreamingListRefused), 1, "{name}");
        assert_eq!(
            reflector(&server, &resource, "streaming_list_fallbacks_total", ("resource", &resource)).await,
            1
        );
        assert_eq!(reflector(&server, &resource, "failures_total", ("kind", kind)).await, 1, "{name}");
        // The refusal is remembered: the relist asks for pages at once.
        let watches = Requests::of(Verb::Watch).on(&resource);
        server.api.faults().expire_next_watch(1, &watches, Gone::InStream);
        server.api.faults().cut_watches(&watches, Cut::Clean);
        eventually("the 410", || server.api.faults().fired(Fault::Gone) == 1).await;
        is_synced(&server, &resource).await;
        eventually("another list", || server.cluster.counters()[&resource].lists == 2).await;
        assert_eq!(reflector(&server, &resource, "lists_total", ("how", "stream")).await, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_list_that_never_ends_is_abandoned() {
    let began = Instant::now();
    let (server, resource) = first_list("stream-endless", InitialList::Auto, |api, _| {
        api.faults().streaming_lists(StreamingLists::Ignored);
        api.faults().drop_bookmarks(true);
    })
    .await;
    is_synced(&server, &resource).await;
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(
        reflector(&server, &resource, "streaming_list_fallbacks_total", ("resource", &resource)).await,
        1
    );
    assert_eq!(reflector(&server, &resource, "watch_ends_total", ("reason", "silent")).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_list_that_is_cut_before_its_mark_is_discarded() {
    for (name, cut, times) in [
        ("mark-clean", Cut::Clean, 1),
        ("mark-midline", Cut::MidLine, 1),
        ("mark-reset", Cut::Abort, 1),
        ("mark-never", Cut::Clean, 3),
    ] {
        let (server, resource) = first_list(name, InitialList::Auto, |api, resource| {
            api.faults().cut_before_mark(times, &Requests::of(Verb::Watch).on(resource), cut);
        })
        .await;
        let state = until_state(&server, &resource, name, |state| !state["lastError"].is_null()).await;
        assert!(message_has(&state, &["API server"]) || message_has(&state, &["reset"]), "{name}: {state}");
        assert_eq!((&state["synced"], &state["objects"]), (&false.into(), &0.into()), "{name}");
        is_synced(&server, &resource).await;
        assert_eq!(server.api.faults().fired(Fault::CutBeforeMark), u64::from(times), "{name}");
        let fallbacks =
            reflector(&server, &resource, "streaming_list_fallbacks_total", ("resource", &resource));
        assert_eq!(fallbacks.await, u64::from(times == 3), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_whose_continue_tokens_expire_restarts_and_at_last_is_unpaged() {
    for (name, times, lists) in [("token-once", 1, 2), ("token-always", 2, 3)] {
        let (server, resource) =
            first_list(name, InitialList::Page, |api, _| api.faults().expire_continue_tokens(times)).await;
        is_synced(&server, &resource).await;
        assert_eq!(server.api.faults().fired(Fault::ContinueExpired), u64::from(times), "{name}");
        assert_eq!(server.cluster.counters()[&resource].lists, lists, "{name}");
        assert_eq!(
            reflector(&server, &resource, "relists_total", ("reason", "expired")).await,
            u64::from(times)
        );
        let in_one_piece = format!("GET /apis/faults.example.com/v1/{name}");
        let whole = server.api.requests().contains(&in_one_piece);
        assert!(times < 2 || whole, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_list_is_retried_and_its_error_shown() {
    for (name, code, words) in [
        ("list-410", 410, "too old"),
        ("list-429", 429, "too many requests"),
        ("list-500", 500, "answered 500"),
        ("list-503", 503, "answered 503"),
    ] {
        let failure = Failure { code, retry_after_seconds: Some(1) };
        let (server, resource) = first_list(name, InitialList::Page, |api, resource| {
            api.faults().fail_next(1, &Requests::of(Verb::List).on(resource), failure);
        })
        .await;
        until_state(&server, &resource, name, |state| message_has(state, &[words])).await;
        is_synced(&server, &resource).await;
        assert_eq!(server.cluster.counters()[&resource].lists, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_without_metadata_is_skipped_and_the_others_are_kept() {
    for (name, how) in [("nameless-page", InitialList::Page), ("nameless-stream", InitialList::Auto)] {
        let (server, resource) = first_list(name, how, |api, _| api.faults().nameless_objects(1)).await;
        is_synced(&server, &resource).await;
        assert_eq!(server.api.faults().fired(Fault::Nameless), 1, "{name}");
        assert_eq!(
            reflector(&server, &resource, "objects_skipped_total", ("reason", "missing")).await,
            1,
            "{name}"
        );
    }
}

/// A relist reaches an API server that is behind and catches up later.
async fn check_behind(name: &str, how: InitialList) {
    let mut trial = Trial::with(name, |config| config.initial_list = how).await;
    let behind = trial.server.cluster.revision();
    trial.write();
    trial.converges().await;
    let lists = trial.costs().await.0;
    trial.faults().lag_at(Some(behind));
    trial.faults().expire_next_watch(1, &trial.requests(Verb::Watch), Gone::InStream);
    trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
    trial.shows_error(&["was seen already", "behind"]).await;
    trial.shows_error(&["was seen already", "Too large resource version"]).await;
    assert!(trial.counter("older_answers_total", &[]).await >= 2, "{name}");
    assert!(trial.counter("failures_total", &[("kind", "behind")]).await >= 1, "{name}");
    trial.write();
    trial.faults().lag_at(None);
    trial.converges().await;
    trial.is_watching().await;
    assert!(trial.costs().await.0 - lists <= 5, "{name}");
    assert!(trial.faults().fired(Fault::Lagged) >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paged_relist_waits_for_an_api_server_that_is_behind() {
    Box::pin(check_behind("behind-page", InitialList::Page)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_relist_waits_for_an_api_server_that_is_behind() {
    Box::pin(check_behind("behind-stream", InitialList::Auto)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_at_an_api_server_that_is_behind_resumes_once_it_has_caught_up() {
    let mut trial = Trial::start("behind-watch").await;
    let behind = trial.server.cluster.revision();
    trial.write();
    trial.converges().await;
    let lists = trial.costs().await.0;
    trial.faults().lag_at(Some(behind));
    trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
    trial.write();
    eventually("a request to the server that is behind", || trial.faults().fired(Fault::Lagged) > 0).await;
    trial.faults().lag_at(None);
    trial.converges().await;
    assert_eq!(trial.costs().await.0, lists);
}

/// Versions alone do not show the restore: those of the restored cluster are higher by the time informerd asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_cluster_with_higher_versions_is_detected_by_its_newest_object() {
    for (name, touched) in [("overtaken", false), ("overtaken-touched", true)] {
        let mut trial = Trial::start(name).await;
        trial.write();
        trial.converges().await;
        let seen = trial.server.cluster.revision();
        let (restored, _) = cluster_with(name);
        while restored.revision() < seen + 20 {
            restored.create(&trial.resource, object(&format!("of-{}", restored.revision()), 1)).unwrap();
        }
        if touched {
            // The object has a higher version than the cached one, as an ordinary change would.
            let patch = json!({"spec": {"n": "of the other history"}});
            restored.patch(&trial.resource, "default", "first-02", &patch).unwrap();
        }
        trial.server.cluster = restored.clone();
        trial.server.api.replace_cluster(restored.clone()).await.unwrap();
        trial.follower.wait_for_state(&expected(&restored, &trial.resource, |_| true)).await;
        assert_eq!(trial.follower.resets.len(), 1, "{name}: {:?}", trial.follower.resets);
        assert_eq!(trial.counter("relists_total", &[("reason", "went_back")]).await, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_restored_from_a_backup_resets_the_clients() {
    let mut trial = Trial::start("restored").await;
    for _ in 0..10 {
        trial.write();
    }
    trial.converges().await;
    let (restored, _) = cluster_with("restored");
    restored.create(&trial.resource, object("of-the-backup", 1)).unwrap();
    let began = Instant::now();
    trial.server.cluster = restored.clone();
    trial.server.api.replace_cluster(restored.clone()).await.unwrap();
    trial.shows_error(&["was seen already", "restored from a backup"]).await;
    let wanted = expected(&restored, &trial.resource, |_| true);
    let taken_over = timeout(PATIENCE, async {
        while trial.follower.state() != &wanted {
            trial.follower.step().await;
        }
    });
    taken_over.await.expect("the client did not get the state of the backup");
    println!("restored from a backup: taken over after {:.1?}", began.elapsed());
    assert_eq!(trial.follower.resets.len(), 1, "{:?}", trial.follower.resets);
    assert_eq!(trial.counter("relists_total", &[("reason", "went_back")]).await, 1);
    // A client of the Kubernetes interface lists, and watches from the list's version, which the old history had,
    // too.
    let path = "/apis/faults.example.com/v1/restored";
    let list = trial.server.get(path).await.json();
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
    let target = format!("{path}?watch=1&resourceVersion={version}");
    let mut watch = Stream::http(trial.server.address, &target, &[]).await.expect("a watch");
    restored.create(&trial.resource, object("after", 1)).unwrap();
    let event = timeout(PATIENCE, watch.next()).await.expect("in time").expect("an event");
    assert_eq!((&*event.kind, &event.object["metadata"]["name"]), ("ADDED", &json!("after")));
    // A version that no list carried may belong to either history.
    let target = format!("{path}?watch=1&resourceVersion={}", restored.revision());
    let mut watch = Stream::http(trial.server.address, &target, &[]).await.expect("a watch");
    let event = timeout(PATIENCE, watch.next()).await.expect("in time").expect("an event");
    assert_eq!((&*event.kind, &event.object["code"]), ("ERROR", &json!(410)));
    let wanted = expected(&restored, &trial.resource, |_| true);
    trial.follower.wait_for_state(&wanted).await;
    trial.is_watching().await;
}
