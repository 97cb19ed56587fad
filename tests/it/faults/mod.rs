//! Faults between informerd and the API server, over real sockets. After each fault the cache equals the cluster
//! again, and a client that follows it has missed nothing and received nothing twice. The error is shown, a metric
//! counts it, and the API server got no more requests than necessary.

mod answers;
mod lists;
mod paths;
mod tls;
mod watches;

use std::time::Duration;

use informerd::testing::config;
use informerd::testing::sim::{Cluster, Faults, Requests, Verb};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::support::check::{expected, items};
use crate::support::client::{self, Transport};
use crate::support::eventually;
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;

/// Longest time until recovery, including a few steps of backoff on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Number of objects at the start.
const OBJECTS: usize = 20;

/// A cluster, informerd, and a client that follows one resource. Each trial has a resource of its own, so that the
/// metrics of that name count this trial only.
struct Trial {
    server: TestServer,
    follower: Recorder,
    resource: String,
    round: usize,
}

/// The definition of a custom resource `NAME.faults.example.com`.
fn definition(name: &str) -> Value {
    json!({
        "metadata": {"name": format!("{name}.faults.example.com")},
        "spec": {
            "group": "faults.example.com", "scope": "Namespaced",
            "names": {"plural": name, "singular": format!("{name}-one"), "kind": "Faulty"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

fn object(name: &str, value: usize) -> Value {
    json!({"metadata": {"namespace": "default", "name": name}, "spec": {"n": value}})
}

/// A cluster with a custom resource and some objects of it.
fn cluster_with(name: &str) -> (Cluster, String) {
    let cluster = Cluster::default();
    cluster.create("customresourcedefinitions", definition(name)).unwrap();
    let resource = format!("{name}.faults.example.com");
    for index in 0..OBJECTS {
        cluster.create(&resource, object(&format!("first-{index:02}"), index)).unwrap();
    }
    (cluster, resource)
}

/// The informer's entry in `/v1/resources`.
async fn state_of(server: &TestServer, resource: &str) -> Value {
    let answer = client::get(server.address, "/v1/resources", &[]).await.json();
    let informers = answer["informers"].as_array().unwrap().iter();
    informers.clone().find(|one| one["resource"] == resource).cloned().unwrap_or_default()
}

/// Waits for a state of an informer; panics with the last state at the deadline.
async fn until_state(
    server: &TestServer,
    resource: &str,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = state_of(server, resource).await;
        if holds(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "not in time: {what}: {state:#}\n{:#?}", server.api.requests());
        sleep(Duration::from_millis(5)).await;
    }
}

/// Whether the error message of a state has all these words.
fn message_has(state: &Value, words: &[&str]) -> bool {
    let sentence = state["lastError"].as_str().unwrap_or_default();
    !sentence.is_empty() && words.iter().all(|word| sentence.contains(word))
}

/// A counter, summed over all series with these labels.
async fn counter(server: &TestServer, name: &str, labels: &[(&str, &str)]) -> u64 {
    let answer = client::get(server.admin, "/metrics", &[]).await;
    let lines = answer.text().lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let wanted = |line: &&str| labels.iter().all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")));
    let value = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok());
    lines.filter(wanted).filter_map(value).sum::<f64>() as u64
}

// === impl Trial ===

impl Trial {
    /// A trial with a resource of this name.
    async fn start(name: &str) -> Self {
        Self::with(name, |_| {}).await
    }

    /// As [`Trial::start`], with settings changed.
    async fn with(name: &str, change: impl FnOnce(&mut config::Serve)) -> Self {
        let (cluster, resource) = cluster_with(name);
        Self::over(TestServer::over(cluster, &[&resource], change).await, resource).await
    }

    async fn over(server: TestServer, resource: String) -> Self {
        let target = format!("/v1/watch/{resource}");
        let follower = Recorder::connect(Transport::Sse, server.address, &target).await;
        let trial = Self { server, follower, resource, round: 0 };
        trial.is_watching().await;
        trial
    }

    fn faults(&self) -> &Faults {
        self.server.api.faults()
    }

    /// Requests for this trial's resource.
    fn requests(&self, verb: Verb) -> Requests {
        Requests::of(verb).on(&self.resource)
    }

    /// Makes four changes: creates one object, changes one, deletes one and creates it again. Returns how many.
    fn write(&mut self) -> usize {
        let (cluster, resource) = (&self.server.cluster, &self.resource);
        cluster.create(resource, object(&format!("round-{}", self.round), self.round)).unwrap();
        let patch = json!({"spec": {"n": format!("patched in {}", self.round)}});
        cluster.patch(resource, "default", "first-01", &patch).unwrap();
        cluster.delete(resource, "default", "first-02").unwrap();
        cluster.create(resource, object("first-02", self.round)).unwrap();
        self.round += 1;
        4
    }

    /// Checks that the cache and the client equal the cluster, and that the client got no RESET.
    async fn converges(&mut self) {
        let cluster = expected(&self.server.cluster, &self.resource, |_| true);
        let follower = timeout(PATIENCE, async {
            while self.follower.state() != &cluster {
                self.follower.step().await;
            }
        });
        let reached = follower.await.is_ok();
        let state = state_of(&self.server, &self.resource).await;
        assert!(reached, "not in time: {state:#}\n{:#?}", self.server.api.requests());
        let target = format!("/v1/snapshot/{}", self.resource);
        assert_eq!(items(&self.server.get(&target).await.json()), cluster);
        assert_eq!(self.follower.resets, Vec::<String>::new());
        assert_eq!(self.follower.connections, 1);
    }

    /// Waits until the informer watches and shows no error.
    async fn is_watching(&self) {
        let well = |state: &Value| state["state"] == "watching" && state["lastError"].is_null();
        until_state(&self.server, &self.resource, "a watch without an error", well).await;
        eventually("an open watch", || self.open_watches() > 0).await;
    }

    fn open_watches(&self) -> u64 {
        self.server.cluster.counters()[&self.resource].watches_open
    }

    /// Waits until the shown error has all these words.
    async fn shows_error(&self, words: &[&str]) -> Value {
        let what = format!("an error with {words:?}");
        until_state(&self.server, &self.resource, &what, |state| message_has(state, words)).await
    }

    /// Lists and watches that were requested so far.
    async fn costs(&self) -> (u64, u64) {
        let state = state_of(&self.server, &self.resource).await;
        (state["lists"].as_u64().unwrap(), state["watches"].as_u64().unwrap())
    }

    /// One of this trial's counters.
    async fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let mut all = vec![("resource", self.resource.as_str())];
        all.extend_from_slice(labels);
        counter(&self.server, &format!("informerd_reflector_{name}"), &all).await
    }
}
