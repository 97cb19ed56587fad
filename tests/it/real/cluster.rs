//! A plain client of the API server, which writes and lists.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::check::{Objects, items, stripped};

/// A resource that is written and followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    pub(super) api_version: &'static str,
    /// The path of the resource in all namespaces.
    pub(super) list: &'static str,
    /// The path of the resource in the namespace that is written to.
    pub(super) collection: &'static str,
    spec: fn() -> Value,
}

pub(super) const PODS: Kind = Kind {
    plural: "pods",
    kind: "Pod",
    api_version: "v1",
    list: "/api/v1/pods",
    collection: "/api/v1/namespaces/default/pods",
    spec: || json!({"containers": [{"name": "main", "image": "example.com/image:1"}]}),
};

pub(super) const WIDGETS: Kind = Kind {
    plural: "widgets",
    kind: "Widget",
    api_version: "demo.example.com/v1",
    list: "/apis/demo.example.com/v1/widgets",
    collection: "/apis/demo.example.com/v1/namespaces/default/widgets",
    spec: || json!({"size": 3}),
};

/// Remembered states. Several followers ask for the same ones; as a state has thousands of objects, few are kept.
const STATES_MAX: usize = 4;

/// Access to the API server, shared by writers and followers.
pub(super) struct Cluster {
    kind: Kind,
    client: Mutex<kube::Client>,
    /// Whether a fault is on. Meanwhile no lists are requested, as the answer might take too long.
    pub(super) is_faulty: watch::Sender<bool>,
    states: tokio::sync::Mutex<VecDeque<(String, Option<Arc<Objects>>)>>,
}

// === impl Kind ===

impl Kind {
    /// A new object.
    pub(super) fn object(&self, name: &str) -> Value {
        json!({"apiVersion": self.api_version, "kind": self.kind, "spec": (self.spec)(), "metadata": {
            "name": name, "labels": {"app": "soak"}, "annotations": {"note": "<a> & \u{2028} b"}}})
    }

    /// The object's key as in the recorder.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/default/{name}", self.kind)
    }

    /// A list's items as informerd shows them: whole objects with kind and apiVersion.
    fn objects(&self, mut list: Value) -> Objects {
        for item in list["items"].as_array_mut().expect("a list has items") {
            item["kind"] = self.kind.into();
            item["apiVersion"] = self.api_version.into();
            *item = stripped(item.take());
        }
        items(&list)
    }
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(kind: Kind, client: kube::Client) -> Self {
        Self {
            kind,
            client: Mutex::new(client),
            is_faulty: watch::Sender::new(false),
            states: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn client(&self) -> kube::Client {
        self.client.lock().expect("no panic").clone()
    }

    /// From now on sends requests to another API server.
    pub(super) fn set_client(&self, client: kube::Client) {
        *self.client.lock().expect("no panic") = client;
    }

    /// Forgets all remembered states, as the cluster has another history.
    pub(super) async fn forget(&self) {
        self.states.lock().await.clear();
    }

    /// The objects at exactly one version; `None` if the API server is down or has compacted that version.
    pub(super) async fn at(&self, version: &str) -> Option<Arc<Objects>> {
        let mut states = self.states.lock().await;
        if let Some((_, known)) = states.iter().find(|(at, _)| at == version) {
            return known.clone();
        }
        let (kind, client) = (self.kind(), self.client());
        let path = format!("{}?resourceVersion={version}&resourceVersionMatch=Exact", kind.list);
        let mut faulty = self.is_faulty.subscribe();
        let list = tokio::select! {
            biased;
            _ = faulty.wait_for(|is_faulty| *is_faulty) => return None,
            list = send(&client, "GET", &path, None, Duration::from_secs(20)) => list,
        };
        let state = list.map(|list| Arc::new(kind.objects(list)));
        states.push_back((version.to_owned(), state.clone()));
        if states.len() > STATES_MAX {
            states.pop_front();
        }
        state
    }

    /// The current objects.
    pub(super) async fn now(&self) -> Objects {
        let list = send(&self.client(), "GET", self.kind().list, None, Duration::from_secs(60)).await;
        self.kind().objects(list.expect("the API server answers"))
    }

    /// The objects as printed by `kubectl get -o json`; `None`, with a `skipped:` line, if kubectl is not installed.
    pub(super) async fn kubectl(&self, kubeconfig: &Path) -> Option<Objects> {
        let mut command = tokio::process::Command::new("kubectl");
        command.arg("--kubeconfig").arg(kubeconfig).args(["get", self.kind().plural, "-A", "-o", "json"]);
        let output = match command.output().await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: no kubectl to compare with; apt-get install kubernetes-client");
                return None;
            }
            output => output.expect("kubectl runs"),
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(self.kind().objects(serde_json::from_slice(&output.stdout).expect("kubectl prints JSON")))
    }
}

/// Sends a request. Returns the answer if it is a success.
pub(super) async fn send(
    client: &kube::Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
    patience: Duration,
) -> Option<Value> {
    tokio::time::timeout(patience, request(client, method, path, body)).await.ok()?.ok()
}

/// A request of an administrator, to prepare or change the cluster.
///
/// # Panics
/// If the API server refuses, or does not answer in time.
pub(super) async fn administer(
    client: &kube::Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
    patience: Duration,
) -> Value {
    let answer = tokio::time::timeout(patience, request(client, method, path, body)).await;
    let answer = answer.unwrap_or_else(|_| panic!("{method} {path}: no answer in {patience:?}"));
    answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

async fn request(
    client: &kube::Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> kube::Result<Value> {
    let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = body.map(|body| serde_json::to_vec(body).expect("JSON")).unwrap_or_default();
    let request =
        http::Request::builder().method(method).uri(path).header("content-type", content).body(body);
    client.request(request.expect("a request")).await
}
