//! Streams with related objects over real API servers: writes, clients that are cut off, and kills of informerd and
//! the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::cluster::{administer, send};
use crate::graph::listed;
use crate::support::client::{Stream, StreamEvent, Transport, get};
use crate::support::envtest::{self, Envtest, FIRST_TOKEN, Options, Process, Version};
use crate::support::in_time;
use crate::support::server::{Informerd, kubeconfig, serve_config};

const RESOURCES: [&str; 5] = ["pods", "nodes", "services", "replicasets", "deployments"];

/// The targets of the clients.
const TARGETS: [&str; 3] =
    ["pods?labelSelector=app%3Dweb&join=nodes,services,owners", "nodes?join=pods", "services?join=pods"];

const ROUNDS: usize = 12;
const WRITES: usize = 15;

/// An EventSource of a stream with a join.
struct Follower {
    target: &'static str,
    stream: Option<Stream>,
    token: Option<String>,
    /// The version of each object.
    objects: BTreeMap<String, String>,
    resets: usize,
}

impl Follower {
    fn take(&mut self, event: &StreamEvent) {
        self.token = event.token.clone().or(self.token.take());
        let name = || listed(&json!({"items": [event.object]})).remove(0);
        match event.kind.as_str() {
            "RESET" => {
                self.objects.clear();
                self.resets += 1;
            }
            "SYNCED" | "BOOKMARK" => {}
            "DELETED" => {
                self.objects.remove(&name());
            }
            _ => {
                let version = event.object["metadata"]["resourceVersion"].as_str().unwrap();
                self.objects.insert(name(), version.to_owned());
            }
        }
    }

    /// Reads until it holds the join of the cluster's current objects.
    async fn follow(&mut self, informerd: &Informerd, cluster: &Objects) {
        let wanted = cluster.joined(self.target);
        let what = format!("the join of the state for {}", self.target);
        let until = async {
            while self.objects != wanted {
                let Some(stream) = &mut self.stream else {
                    let target = format!("/v1/watch/{}", self.target);
                    let token = self.token.as_deref();
                    match Stream::open(Transport::Sse, informerd.address, &target, token).await {
                        Ok(stream) => self.stream = Some(stream),
                        // informerd may not have listed everything yet.
                        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                    continue;
                };
                match stream.next().await {
                    Some(event) => self.take(&event),
                    None => self.stream = None,
                }
            }
        };
        in_time(&what, Box::pin(until)).await;
    }
}

/// The current objects of the API server.
struct Objects(Vec<Value>);

impl Objects {
    async fn list(client: &kube::Client) -> Self {
        let mut all = Vec::new();
        for resource in RESOURCES {
            let list = administer(client, "GET", &path(resource, ""), None, Duration::from_secs(30)).await;
            let kind = list["kind"].as_str().unwrap().trim_end_matches("List").to_owned();
            for item in list["items"].as_array().unwrap() {
                let mut item = item.clone();
                item["kind"] = kind.as_str().into();
                all.push(item);
            }
        }
        Self(all)
    }

    /// The join, computed in the simplest way.
    fn joined(&self, target: &str) -> BTreeMap<String, String> {
        let of = |kind: &'static str| self.0.iter().filter(move |object| object["kind"] == kind);
        let app = |object: &Value| object["metadata"]["labels"]["app"].clone();
        let on = |pod: &Value, node: &Value| pod["spec"]["nodeName"] == node["metadata"]["name"];
        let selects = |service: &Value, pod: &Value| {
            let wanted = &service["spec"]["selector"]["app"];
            wanted.is_string()
                && *wanted == app(pod)
                && service["metadata"]["namespace"] == pod["metadata"]["namespace"]
        };
        let mut found: Vec<&Value> = Vec::new();
        if target.starts_with("pods") {
            let pods: Vec<_> = of("Pod").filter(|pod| app(pod) == "web").collect();
            found.extend(of("Node").filter(|node| pods.iter().any(|pod| on(pod, node))));
            found.extend(of("Service").filter(|service| pods.iter().any(|pod| selects(service, pod))));
            let mut frontier = pods.clone();
            found.extend(pods);
            while let Some(object) = frontier.pop() {
                let uid = &object["metadata"]["ownerReferences"][0]["uid"];
                let owner = self.0.iter().find(|owner| uid.is_string() && owner["metadata"]["uid"] == *uid);
                if let Some(owner) = owner.filter(|owner| !found.contains(owner)) {
                    found.push(owner);
                    frontier.push(owner);
                }
            }
        } else {
            let kind = if target.starts_with("nodes") { "Node" } else { "Service" };
            let linked = |pod: &Value, other: &Value| {
                if kind == "Node" { on(pod, other) } else { selects(other, pod) }
            };
            found.extend(of("Pod").filter(|pod| of(kind).any(|other| linked(pod, other))));
            found.extend(of(kind));
        }
        let version = |object: &&Value| object["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let name = |object: &Value| listed(&json!({"items": [object]})).remove(0);
        found.into_iter().map(|object| (name(object), version(&object))).collect()
    }
}

fn path(resource: &str, namespace: &str) -> String {
    let group = if matches!(resource, "replicasets" | "deployments") { "/apis/apps/v1" } else { "/api/v1" };
    let namespace = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
    format!("{group}{namespace}/{resource}")
}

/// Makes one write; a write that does not fit changes nothing.
async fn write(client: &kube::Client, random: &mut StdRng) {
    let send_to = async |method: &str, path: &str, body: Option<&Value>| {
        send(client, method, path, body, Duration::from_secs(30)).await
    };
    let name = format!("x{}", random.random_range(0..6));
    let app = ["web", "db"][random.random_range(0..2)];
    let resource = ["pods", "pods", "pods", "services", "replicasets"][random.random_range(0..5)];
    let here = path(resource, "one");
    let metadata = json!({"name": name, "labels": {"app": app}});
    if random.random_range(0..3) == 0 {
        send_to("DELETE", &format!("{here}/{name}?gracePeriodSeconds=0&propagationPolicy=Orphan"), None)
            .await;
        return;
    }
    let template = json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": "main:1"}]},
    });
    let mut object = match resource {
        "services" => json!({"spec": {"selector": {"app": app}, "ports": [{"port": 80}]}}),
        "replicasets" => {
            json!({"spec": {"selector": {"matchLabels": {"app": app}}, "template": template, "replicas": 0}})
        }
        _ => {
            let node = format!("n{}", random.random_range(0..3));
            json!({"spec": {"nodeName": node, "containers": template["spec"]["containers"]}})
        }
    };
    object["metadata"] = metadata;
    let (owners, kind) =
        if resource == "pods" { ("replicasets", "ReplicaSet") } else { ("deployments", "Deployment") };
    let owner =
        send_to("GET", &format!("{}/x{}", path(owners, "one"), random.random_range(0..6)), None).await;
    if let Some(owner) = owner.filter(|_| resource != "services") {
        let uid = &owner["metadata"]["uid"];
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": owner["metadata"]["name"], "uid": uid}]);
    }
    if send_to("POST", &here, Some(&object)).await.is_none() {
        let patch = json!({"metadata": {"labels": {"app": app}}});
        send_to("PATCH", &format!("{here}/{name}"), Some(&patch)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn join_streams_converge_through_faults_on_1_20() {
    Box::pin(follow(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn join_streams_converge_through_faults_on_1_36() {
    Box::pin(follow(Version::V1_36)).await;
}

async fn follow(version: Version) {
    let Some(mut api) = Envtest::start(version, Options::default()).await else { return };
    let mut client = envtest::client(&api.kubeconfig_path()).await;
    let wait = Duration::from_secs(30);
    let namespace = json!({"metadata": {"name": "one"}});
    administer(&client, "POST", "/api/v1/namespaces", Some(&namespace), wait).await;
    for node in 0..3 {
        let node = json!({"metadata": {"name": format!("n{node}")}});
        administer(&client, "POST", "/api/v1/nodes", Some(&node), wait).await;
    }
    for number in 0..6 {
        let template = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "main:1"}]},
        });
        let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template});
        let deployment = json!({"metadata": {"name": format!("x{number}")}, "spec": spec});
        administer(&client, "POST", &path("deployments", "one"), Some(&deployment), wait).await;
    }
    let address = api.address(Process::ApiServer);
    let kubeconfig_path =
        api.write_kubeconfig("kubeconfig.informerd", address, &format!("token: {FIRST_TOKEN}"));
    let mut informerd = Informerd::start(serve_config(kubeconfig(kubeconfig_path), &RESOURCES)).await;
    let mut followers = TARGETS.map(|target| Follower {
        target,
        stream: None,
        token: None,
        objects: BTreeMap::new(),
        resets: 0,
    });
    let mut random = StdRng::seed_from_u64(15);
    for round in 0..ROUNDS {
        for _ in 0..WRITES {
            write(&client, &mut random).await;
        }
        match round {
            4 => {
                informerd.kill().await;
                informerd.revive().await;
            }
            8 => {
                api.kill_api_server().await;
                api.start_api_server().await;
                client = envtest::client(&api.kubeconfig_path()).await;
            }
            _ => {}
        }
        let cluster = Objects::list(&client).await;
        for follower in &mut followers {
            if random.random_range(0..3) == 0 {
                follower.stream = None;
            }
            Box::pin(follower.follow(&informerd, &cluster)).await;
        }
    }
    // A snapshot has the same join, and clients did not start over after each cut.
    for follower in &followers {
        let answer = get(informerd.address, &format!("/v1/snapshot/{}", follower.target), &[]).await;
        let mut named = listed(&answer.json());
        named.sort();
        assert!(named.iter().eq(follower.objects.keys()), "{}: {named:?}", follower.target);
        assert!(follower.resets < ROUNDS / 2, "{}: {} resets", follower.target, follower.resets);
    }
    drop(followers);
    api.stop().await;
}
