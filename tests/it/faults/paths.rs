//! The path to the API server: load balancers that close idle connections, connections that go dead silently.

use std::time::Duration;

use informerd::testing::config::UpstreamSource;
use informerd::testing::sim::{Cut, Failure, Fault, Requests, Verb};
use tokio::time::Instant;

use super::{Trial, cluster_with, counter, message_has, until_state};
use crate::support::client;
use crate::support::eventually;
use crate::support::proxy::Proxy;
use crate::support::relay::Relay;
use crate::support::server::{TestServer, kubeconfig};

/// A trial whose informerd reaches the API server over a relay.
async fn over_relay(
    name: &str,
    relay: impl AsyncFnOnce(std::net::SocketAddr) -> Relay,
    change: impl FnOnce(&mut informerd::testing::config::Serve),
) -> (Trial, Relay) {
    let (cluster, resource) = cluster_with(name);
    let api = TestServer::api(cluster.clone()).await;
    let relay = relay(api.address()).await;
    // Without this fault, a bookmark every 200 ms keeps every connection busy.
    api.faults().drop_bookmarks(true);
    let url = format!("http://{}", relay.address);
    let resources = [resource.as_str()];
    let server = TestServer::beside(cluster, api, &resources, |config| {
        config.upstream = UpstreamSource::Server { url };
        config.initial_list = informerd::testing::config::InitialList::Page;
        change(config);
    });
    let server = server.await;
    (Trial::over(server, resource).await, relay)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_timeout_of_a_load_balancer_costs_watches_and_no_list() {
    let idle = Duration::from_millis(1500);
    let (mut trial, relay) = over_relay("tiring", async |to| Relay::tiring(to, idle).await, |_| {}).await;
    let (before, began) = (trial.costs().await, Instant::now());
    eventually("four more watches", || {
        trial.server.cluster.counters()[&trial.resource].watches_started >= before.1 + 4
    })
    .await;
    let most = began.elapsed().as_millis() / idle.as_millis() + 2;
    trial.write();
    trial.converges().await;
    let after = trial.costs().await;
    assert_eq!(after.0, before.0);
    assert!(u128::from(after.1 - before.1) <= most, "{} watches of at most {most}", after.1 - before.1);
    // A load balancer closes the connection; it does not end the HTTP response. After each broken connection
    // informerd probes whether the API server still has the same history.
    assert!(trial.counter("watch_ends_total", &[("reason", "broken")]).await >= 4);
    assert!(u128::from(trial.counter("probes_total", &[]).await) <= most);
    assert!(relay.connections() >= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_detected_and_the_age_of_the_cache_shown() {
    let (mut trial, relay) = over_relay("half-open", Relay::to, |config| {
        config.limits.watch_silence_max = Duration::from_secs(3);
        config.unready_after = Some(Duration::from_secs(1));
    })
    .await;
    let before = trial.costs().await;
    let silent = trial.counter("watch_ends_total", &[("reason", "silent")]).await;
    // From here on, written bytes do not arrive.
    relay.freeze();
    let frozen = Instant::now();
    let told = trial.follower.events;
    trial.write();
    let age = |state: &serde_json::Value| state["ageSeconds"].as_f64().unwrap_or_default();
    until_state(&trial.server, &trial.resource, "an age of 1.5 s", |state| age(state) > 1.5).await;
    let answer = trial.server.get(&format!("/v1/snapshot/{}", trial.resource)).await;
    assert!(answer.header("age").unwrap().parse::<u64>().unwrap() >= 1);
    let ready = client::get(trial.server.admin, "/readyz", &[]).await;
    assert_eq!(ready.status(), 503, "{}", ready.text());
    assert!(ready.text().contains("last heard"), "{}", ready.text());
    assert_eq!(trial.follower.events, told);
    trial.converges().await;
    assert!(frozen.elapsed() < Duration::from_secs(15), "{:?}", frozen.elapsed());
    until_state(&trial.server, &trial.resource, "a young cache", |state| age(state) < 1.0).await;
    assert_eq!(client::get(trial.server.admin, "/readyz", &[]).await.status(), 200);
    assert!(trial.counter("watch_ends_total", &[("reason", "silent")]).await > silent);
    assert_eq!(trial.costs().await.0, before.0, "the version was still valid");
}

/// A stopped process: its kernel accepts connections, and nothing is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_api_server_shows_in_the_state_the_probe_and_a_metric() {
    let (trial, _relay) = over_relay("hung-shows", Relay::to, |config| {
        config.limits.watch_silence_max = Duration::from_secs(1);
    })
    .await;
    for verb in [Verb::Watch, Verb::List] {
        trial.faults().hang_next(100, &trial.requests(verb));
    }
    trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
    let hung = |state: &serde_json::Value| state["state"] == "connecting" && state["stale"] == true;
    until_state(&trial.server, &trial.resource, "no answer, and an old cache", hung).await;
    // Reads are served from the cache, so informerd stays ready.
    let ready = client::get(trial.server.admin, "/readyz?verbose", &[]).await;
    assert_eq!(ready.status(), 200, "{}", ready.text());
    let line = format!("[+]informer/{} ok: the API server was last heard", trial.resource);
    assert!(ready.text().contains(&line), "{}", ready.text());
    let stale = counter(&trial.server, "informerd_cache_stale", &[("resource", &trial.resource)]).await;
    assert_eq!(stale, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_a_dead_path_are_not_reused() {
    let (mut trial, relay) = over_relay("pooled", Relay::to, |config| {
        config.limits.watch_silence_max = Duration::from_secs(2);
        config.watches.push(crate::support::server::watch("configmaps"));
    })
    .await;
    // A refused watch leaves its connection in the pool. The next watch is due only after the end of this test.
    let others = Requests::of(Verb::Watch).on("configmaps");
    trial.faults().fail_next(1, &others, Failure { code: 503, retry_after_seconds: Some(60) });
    trial.faults().cut_watches(&others, Cut::Clean);
    until_state(&trial.server, "configmaps", "a refusal", |state| message_has(state, &["503"])).await;
    relay.freeze();
    let (frozen, connections) = (Instant::now(), relay.connections());
    trial.write();
    trial.converges().await;
    // On the idle connection, a watch would wait 20 s for its response head.
    assert!(frozen.elapsed() < Duration::from_secs(15), "{:?}", frozen.elapsed());
    assert!(relay.connections() > connections);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_an_answer_time_out() {
    let mut trial = Trial::start("hung").await;
    trial.faults().hang_next(1, &trial.requests(Verb::Watch));
    trial.faults().cut_watches(&Requests::of(Verb::Watch).on(&trial.resource), Cut::Clean);
    eventually("the request", || trial.faults().fired(Fault::Hung) == 1).await;
    let hung = Instant::now();
    trial.write();
    trial.shows_error(&["the API server sent nothing for 20s"]).await;
    trial.converges().await;
    assert!(hung.elapsed() < Duration::from_secs(50), "{:?}", hung.elapsed());
    assert_eq!(trial.counter("failures_total", &[("kind", "idle")]).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_and_socks_proxies_are_used() {
    for (name, scheme, user) in [("proxy-http", "http", "someone:p@ss"), ("proxy-socks", "socks5", "")] {
        let (cluster, resource) = cluster_with(name);
        let api = TestServer::api(cluster.clone()).await;
        let proxy = Proxy::start().await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let userinfo = if user.is_empty() { "" } else { "someone:p%40ss@" };
        let address = format!("proxy-url: \"{scheme}://{userinfo}{}\"", proxy.address);
        let text = api.kubeconfig().replace("server:", &format!("{address}\n    server:"));
        std::fs::write(&path, text).unwrap();
        let server =
            TestServer::beside(cluster, api, &[&resource], |config| config.upstream = kubeconfig(path)).await;
        let mut trial = Trial::over(server, resource).await;
        trial.write();
        trial.converges().await;
        let greetings = proxy.greetings.lock().unwrap().clone();
        assert!(!greetings.is_empty(), "{name}");
        for greeting in greetings {
            assert_eq!(greeting.target, trial.server.api.address().to_string(), "{name}");
            assert_eq!(greeting.user, user, "{name}");
        }
    }
}
