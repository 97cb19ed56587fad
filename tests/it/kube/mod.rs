//! The Kubernetes interface, by the conformance cases of its rules. Each test names the cases that it covers.

mod documents;
mod lists;
mod pass;
mod tiers;
mod watches;

use serde_json::{Value, json};

use crate::support::client::{Response, Stream, StreamEvent, request};
use crate::support::mk_pod;
use crate::support::server::TestServer;

const PODS: &str = "/api/v1/pods";
const DEFAULT_PODS: &str = "/api/v1/namespaces/default/pods";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Creates a pod of the default namespace and returns its version.
fn create(server: &TestServer, name: &str) -> u64 {
    server.cluster.create("pods", mk_pod("default", name, "web")).unwrap();
    server.cluster.revision()
}

fn relabel(server: &TestServer, name: &str, app: &str) -> u64 {
    let patch = json!({"metadata": {"labels": {"app": app}}});
    server.cluster.patch("pods", "default", name, &patch).unwrap();
    server.cluster.revision()
}

fn delete(server: &TestServer, name: &str) -> u64 {
    server.cluster.delete("pods", "default", name).unwrap();
    server.cluster.revision()
}

async fn watch(server: &TestServer, target: &str) -> Stream {
    watch_as(server, target, "application/json").await
}

async fn watch_as(server: &TestServer, target: &str, accept: &str) -> Stream {
    let opened = Stream::http(server.address, target, &[("Accept", accept)]).await;
    opened.unwrap_or_else(|refused| panic!("{target}: {refused:?}"))
}

/// An event as `KIND name@version`.
fn summary(event: &StreamEvent) -> String {
    let version = event.object["metadata"]["resourceVersion"].as_str().unwrap_or("-");
    format!("{} {}@{version}", event.kind, event.name())
}

/// The next events, as [`summary`] tells them.
async fn next(stream: &mut Stream, count: usize) -> Vec<String> {
    let mut events = Vec::new();
    for _ in 0..count {
        events.push(summary(&stream.next().await.expect("the stream goes on")));
    }
    events
}

/// The names of a list's items.
fn names(list: &Response) -> Vec<String> {
    assert_eq!(list.status(), 200, "{}", list.text());
    let list = list.json();
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// The Status of a refusal. Its bytes are those that the API server writes.
#[track_caller]
fn status(answer: &Response, code: u16, reason: &str) -> Value {
    assert_eq!(answer.status(), code, "{}", answer.text());
    assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
    let status = answer.json();
    assert_eq!((&status["kind"], &status["apiVersion"]), (&json!("Status"), &json!("v1")));
    assert_eq!((&status["code"], &status["reason"]), (&json!(code), &json!(reason)), "{status}");
    status
}

async fn send(server: &TestServer, method: &str, target: &str) -> Response {
    request(server.address, method, target, &[]).await
}
