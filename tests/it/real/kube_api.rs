//! The same requests to the API server and to informerd must get the same answers.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::administer;
use crate::support::client::get;
use crate::support::envtest::{self, Envtest, Options, Version};
use crate::support::eventually;
use crate::support::server::{Informerd, kubeconfig, serve_config};

const RESOURCES: [&str; 4] = ["pods", "configmaps", "namespaces", "secrets"];
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// An API server and an informerd that follows it and drops nothing.
struct Pair {
    version: Version,
    api: Envtest,
    client: kube::Client,
    informerd: Informerd,
}

/// An answer.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Pair {
    async fn start(version: Version) -> Option<Self> {
        let api = Envtest::start(version, Options::default()).await?;
        let client = envtest::client(&api.kubeconfig_path()).await;
        for name in ["a", "b", "c", "d", "e"] {
            write(&client, "POST", CONFIG_MAPS, &config_map(name)).await;
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]}});
        write(&client, "POST", "/api/v1/namespaces/default/pods", &pod).await;
        let mut config = serve_config(kubeconfig(api.kubeconfig_path()), &RESOURCES);
        for watch in &mut config.watches {
            (watch.keep_managed_fields, watch.keep_last_applied) = (true, true);
        }
        config.limits.bookmark_interval = Duration::from_millis(500);
        Some(Self { version, api, client, informerd: Informerd::start(config).await })
    }

    /// The answers of the API server and of informerd to a request.
    async fn ask(&self, path: &str, accept: &str) -> (Answer, Answer) {
        let request = http::Request::get(path).header("accept", accept);
        let request = request.body(kube::client::Body::empty()).unwrap();
        let response = self.client.send(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect_bytes().await.unwrap();
        let theirs = Answer { status, body: String::from_utf8(body.to_vec()).unwrap() };
        let ours = get(self.informerd.address, path, &[("Accept", accept)]).await;
        (theirs, Answer { status: ours.status(), body: ours.text().to_owned() })
    }

    /// Waits until informerd has reached a version.
    async fn reached(&self, resource: &str, version: &str) {
        let informer = self.informerd.hub.resolve(resource).unwrap().remove(0);
        let version: u128 = version.parse().unwrap();
        eventually("what was written", || {
            informer.reader.summary().position.to_string().parse::<u128>().unwrap() >= version
        })
        .await;
    }

    async fn stop(mut self) {
        self.informerd.stop().await;
        self.api.stop().await;
    }
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "<a> & \u{2028} b"},
        "metadata": {"name": name, "labels": {"app": "web", "name": name, "number": "5"}}})
}

async fn write(client: &kube::Client, method: &str, path: &str, body: &Value) -> Value {
    administer(client, method, path, Some(body), Duration::from_secs(10)).await
}

/// An answer without what differs by design: list items get kind and apiVersion, which the API server leaves out for
/// built-in kinds, and values of each server's own are removed.
fn comparable(answer: &Answer) -> Value {
    let mut list = answer.json();
    let kind = list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
    let api_version = list["apiVersion"].clone();
    for item in list["items"].as_array_mut().into_iter().flatten() {
        item["kind"] = kind.clone().into();
        item["apiVersion"] = api_version.clone();
    }
    let is_list = list["items"].is_array();
    if let Some(metadata) = list["metadata"].as_object_mut().filter(|_| is_list) {
        metadata.remove("resourceVersion");
        metadata.remove("selfLink");
        if metadata.contains_key("continue") {
            metadata.insert("continue".into(), "a token".into());
        }
    }
    list
}

/// Requests that every release refuses with the same bytes.
const REFUSED: [&str; 21] = [
    "/api/v1/nothing",
    "/api/v1/namespaces/default/nothing",
    "/api/v2",
    "/api/v1/namespaces/default/configmaps/none",
    "/api/v1/namespaces/none",
    "/api/v1/pods/p",
    "/api/v1/configmaps?labelSelector=a%3D%3D%3Db",
    "/api/v1/configmaps?labelSelector=a%3Db+c",
    "/api/v1/configmaps?labelSelector=a,",
    "/api/v1/configmaps?labelSelector=%3Da",
    "/api/v1/configmaps?labelSelector=a+in+x",
    "/api/v1/configmaps?labelSelector=a+in+(x",
    "/api/v1/configmaps?labelSelector=!",
    "/api/v1/configmaps?labelSelector=a+in+(x+y)",
    "/api/v1/configmaps?fieldSelector=a",
    "/api/v1/configmaps?fieldSelector=spec.x%3D1",
    "/api/v1/configmaps?limit=abc",
    "/api/v1/configmaps?limit=99999999999999999999",
    "/api/v1/configmaps?limit=",
    "/api/v1/configmaps?timeoutSeconds=1s",
    "/api/v1/configmaps?labelSelector=a%3E%3E1",
];

/// Requests that an old release does not know, refuses with another message, or accepts.
const REFUSED_LATELY: [&str; 21] = [
    "/api/v1/pods?fieldSelector=spec.x%3D1",
    "/api/v1/configmaps?labelSelector=number%3Ex",
    "/api/v1/configmaps?labelSelector=-a%3Db",
    "/api/v1/configmaps?labelSelector=a%3D-b",
    "/api/v1/configmaps?labelSelector=a+in+(b,-b)",
    "/api/v1/configmaps?resourceVersion=abc",
    "/api/v1/configmaps?resourceVersion=-1",
    "/api/v1/configmaps/?resourceVersion=1.5",
    "/api/v1/configmaps?labelSelector=a+foo+(x)",
    "/api/v1/configmaps?resourceVersionMatch=Exact",
    "/api/v1/configmaps?resourceVersionMatch=Exact&resourceVersion=0",
    "/api/v1/configmaps?resourceVersionMatch=Foo&resourceVersion=1",
    "/api/v1/configmaps?resourceVersionMatch=Foo",
    "/api/v1/configmaps?sendInitialEvents=true",
    "/api/v1/configmaps?sendInitialEvents=true&resourceVersionMatch=Exact",
    "/api/v1/configmaps?watch=1&sendInitialEvents=true",
    "/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
    "/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x",
    "/api/v1/configmaps?watch=1&resourceVersionMatch=NotOlderThan",
    "/api/v1/configmaps?watch=1&continue=x",
    "/api/v1/configmaps?watch=1&continue=x&resourceVersion=0",
];

const SHOWN: [&str; 22] = [
    "/api/v1/configmaps",
    "/api/v1/pods",
    "/api/v1/namespaces",
    "/api/v1/secrets",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/pods?watch=0",
    "/api/v1/namespaces/none/configmaps",
    "/api/v1/namespaces/default/configmaps?limit=2",
    "/api/v1/namespaces/default/configmaps?limit=5",
    "/api/v1/namespaces/default/configmaps?limit=-1",
    "/api/v1/namespaces/default/configmaps?limit=2&labelSelector=app",
    "/api/v1/configmaps?labelSelector=name+in+(a,b)",
    "/api/v1/configmaps?labelSelector=app,name+notin+(a,b),!none",
    "/api/v1/configmaps?labelSelector=number%3E4,number%3C6",
    "/api/v1/configmaps?labelSelector=app+in+()",
    "/api/v1/configmaps?labelSelector=app+notin+(+)",
    "/api/v1/configmaps?fieldSelector=metadata.name%3Da,metadata.namespace!%3Dx",
    "/api/v1/pods?fieldSelector=spec.nodeName%3D,status.phase%3DPending",
    "/api/v1/namespaces?fieldSelector=status.phase%3DActive",
    "/api/v1/configmaps?unknown=1&pretty=false&timeout=3s",
    "/api/v1/namespaces/default",
    "/api/v1/namespaces/default/pods/p",
];

/// Compares all answers, and reports all differences together.
async fn compare(version: Version) {
    let Some(pair) = Pair::start(version).await else { return };
    let json = "application/json";
    let mut differences = Vec::new();
    let late = REFUSED_LATELY.iter().filter(|_| version == Version::V1_36);
    for path in REFUSED.iter().chain(late) {
        let (theirs, ours) = pair.ask(path, json).await;
        if theirs.status != ours.status || theirs.body.trim_end() != ours.body.trim_end() {
            differences.push(format!("{path}\n  theirs {theirs:?}\n  ours   {ours:?}"));
        }
    }
    for path in SHOWN {
        for accept in [json, "application/vnd.kubernetes.protobuf;q=0.1, application/json"] {
            let (theirs, ours) = pair.ask(path, accept).await;
            if theirs.status != ours.status || comparable(&theirs) != comparable(&ours) {
                differences.push(format!("{path}\n  theirs {theirs:?}\n  ours   {ours:?}"));
            }
        }
    }
    for (path, kind) in [
        ("/api/v1/configmaps", "PartialObjectMetadataList"),
        ("/api/v1/namespaces/default/configmaps/a", "PartialObjectMetadata"),
    ] {
        let accept = format!("application/json;as={kind};g=meta.k8s.io;v=v1");
        let (theirs, ours) = pair.ask(path, &accept).await;
        if comparable(&theirs) != comparable(&ours) {
            differences.push(format!("{path}\n  theirs {theirs:?}\n  ours   {ours:?}"));
        }
    }
    differences.extend(discovery(&pair).await);
    differences.extend(watches(&pair).await);
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    pair.stop().await;
}

/// The differences in the discovery documents of served resources.
async fn discovery(pair: &Pair) -> Vec<String> {
    let (theirs, ours) = pair.ask("/version", "application/json").await;
    assert_eq!(theirs, ours);
    let (theirs, ours) = pair.ask("/api/v1", "application/json").await;
    let (theirs, ours) = (theirs.json(), ours.json());
    let mut differences = Vec::new();
    for resource in ours["resources"].as_array().unwrap() {
        let same = |other: &&Value| other["name"] == resource["name"];
        let mut expected = theirs["resources"].as_array().unwrap().iter().find(same).unwrap().clone();
        expected.as_object_mut().unwrap().remove("storageVersionHash");
        expected["verbs"] = json!(["get", "list", "watch"]);
        if expected != *resource {
            differences.push(format!("theirs {expected}\n  ours   {resource}"));
        }
    }
    assert_eq!(ours["resources"].as_array().unwrap().len(), RESOURCES.len());
    differences
}

/// The differences between watches of the same changes.
async fn watches(pair: &Pair) -> Vec<String> {
    let (list, _) = pair.ask(CONFIG_MAPS, "application/json").await;
    let from = list.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    pair.reached("configmaps", list.json()["items"][4]["metadata"]["resourceVersion"].as_str().unwrap())
        .await;
    let path = |name: &str| format!("{CONFIG_MAPS}/{name}");
    write(&pair.client, "POST", CONFIG_MAPS, &config_map("f")).await;
    let mut changed = config_map("a");
    changed["metadata"]["labels"]["app"] = "api".into();
    write(&pair.client, "PUT", &path("a"), &changed).await;
    write(&pair.client, "PUT", &path("a"), &config_map("a")).await;
    write(&pair.client, "DELETE", &path("b"), &json!({})).await;
    let last = write(&pair.client, "POST", CONFIG_MAPS, &config_map("b")).await;
    pair.reached("configmaps", last["metadata"]["resourceVersion"].as_str().unwrap()).await;
    let mut differences = Vec::new();
    for query in [
        format!("resourceVersion={from}"),
        format!("resourceVersion={from}&labelSelector=app%3Dapi"),
        format!("resourceVersion={from}&labelSelector=app%3Dweb"),
        format!("resourceVersion={from}&fieldSelector=metadata.name%3Db"),
        "resourceVersion=0".to_owned(),
    ] {
        let target = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=2&{query}");
        let (theirs, ours) = pair.ask(&target, "application/json").await;
        let lines = |answer: &Answer| -> Vec<Value> {
            let mut lines: Vec<Value> =
                answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if query == "resourceVersion=0" {
                // An old release sends the initial objects in any order.
                lines.sort_by_key(|line| line["object"]["metadata"]["name"].to_string());
            }
            lines
        };
        if theirs.status != ours.status || lines(&theirs) != lines(&ours) {
            differences.push(format!("{target}\n  theirs {theirs:?}\n  ours   {ours:?}"));
        }
    }
    if pair.version == Version::V1_36 {
        let old = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=2&resourceVersion=1");
        let ours = get(pair.informerd.address, &old, &[]).await.json();
        assert_eq!((&ours["type"], &ours["object"]["reason"]), (&json!("ERROR"), &json!("Expired")));
    }
    differences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informerd_answers_as_the_api_server_does_on_1_20() {
    Box::pin(compare(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informerd_answers_as_the_api_server_does_on_1_36() {
    Box::pin(compare(Version::V1_36)).await;
}
