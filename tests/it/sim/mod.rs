//! The simulator against the rules of real API servers. Each case is written once. It runs against the simulator and,
//! if `KUBEBUILDER_ASSETS` has them, against two real servers.
#![allow(clippy::print_stdout, reason = "skipped and running cases are told in the test's output")]

mod faults;
mod kubectl;
mod lists;
mod resources;
mod watches;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use informerd::testing::sim::{ApiServer, Cluster};
use kube::client::Body;
use serde_json::{Value, json};

use crate::support::envtest::{self, Envtest, Options, Version};

/// Longest time that anything in these tests may take.
const WAIT: Duration = Duration::from_secs(30);

/// The servers on which the cases run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Simulator,
    V1_20,
    V1_36,
}

/// A server under test.
struct Server {
    which: Which,
    client: kube::Client,
    /// The address of etcd, or the simulator's cluster: needed to forget history.
    etcd: Option<String>,
    cluster: Option<Cluster>,
}

/// A whole answer.
#[derive(Debug)]
struct Answer {
    code: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error} in {}: {}", self.code, self.text))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The lines of a watch that has ended.
    fn events(&self) -> Vec<Value> {
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Checks code, reason and message of an error.
    #[track_caller]
    fn is_error(&self, code: u16, reason: &str, message: &str) -> &Self {
        let body = self.json();
        let is = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        assert_eq!((self.code, is("reason").as_str(), is("message").as_str()), (code, reason, message));
        assert_eq!(
            (&body["kind"], &body["status"], &body["code"]),
            (&"Status".into(), &"Failure".into(), &code.into())
        );
        self
    }

    #[track_caller]
    fn must_be(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.text);
        self.json()
    }
}

impl Server {
    async fn send(&self, request: Request<Body>) -> Answer {
        let what = format!("{} {}", request.method(), request.uri());
        let answered = tokio::time::timeout(WAIT, async {
            let (parts, body) = self.client.send(request).await.unwrap().into_parts();
            let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
            Answer { code: parts.status.as_u16(), headers: parts.headers, text }
        });
        answered.await.unwrap_or_else(|_| panic!("no answer to {what}"))
    }

    async fn get(&self, path: &str) -> Answer {
        self.get_as(path, "application/json").await
    }

    async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.send(Request::get(path).header("Accept", accept).body(Body::empty()).unwrap()).await
    }

    async fn write(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Answer {
        let request = Request::builder().method(method).uri(path).header("Content-Type", content_type);
        let accepting = request.header("Accept", "application/json");
        self.send(accepting.body(Body::from(body.to_string().into_bytes())).unwrap()).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.write("POST", path, "application/json", body).await
    }

    async fn put(&self, path: &str, body: &Value) -> Answer {
        self.write("PUT", path, "application/json", body).await
    }

    async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.write("PATCH", path, "application/merge-patch+json", body).await
    }

    async fn delete(&self, path: &str) -> Answer {
        self.send(Request::delete(path).body(Body::empty()).unwrap()).await
    }

    /// Opens a watch; its lines come one by one.
    async fn watch(&self, path: &str) -> Lines {
        self.watch_as(path, "application/json").await
    }

    async fn watch_as(&self, path: &str, accept: &str) -> Lines {
        let request = Request::get(path).header("Accept", accept).body(Body::empty()).unwrap();
        let sent = tokio::time::timeout(WAIT, self.client.send(request)).await;
        let response = sent.unwrap_or_else(|_| panic!("no headers for {path}")).unwrap();
        assert_eq!(response.status(), 200, "{path}");
        Lines { body: response.into_body(), rest: Vec::new(), chunks: 0 }
    }

    /// Makes every older resourceVersion too old for lists.
    async fn compact(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.compact();
        }
        if let Some(etcd) = &self.etcd {
            let newest = self.get("/api/v1/configmaps").await.must_be(200);
            let revision = newest["metadata"]["resourceVersion"].as_str().unwrap();
            let config = kube::Config::new(etcd.parse().unwrap());
            let client = kube::Client::try_from(config).unwrap();
            let body = json!({"revision": revision, "physical": true}).to_string().into_bytes();
            let request = Request::post("/v3/kv/compaction").body(body).unwrap();
            client.request_text(request).await.unwrap();
        }
    }

    /// Creates a namespace for one case.
    async fn namespace(&self, case: &str) -> String {
        let name = case.replace('_', "-");
        self.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.must_be(201);
        name
    }

    async fn config_map(&self, namespace: &str, name: &str, labels: Value) -> Value {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"},
        });
        self.post(&maps(namespace), &map).await.must_be(201)
    }
}

/// The lines of an open watch as they arrive.
struct Lines {
    body: Body,
    rest: Vec<u8>,
    chunks: usize,
}

impl Lines {
    /// The next event; `None` at a clean end, an error at a broken connection.
    async fn try_next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|error| error.to_string());
            }
            let frame =
                tokio::time::timeout(WAIT, self.body.frame()).await.map_err(|_| "no event in time")?;
            match frame {
                Some(Ok(frame)) => {
                    self.chunks += 1;
                    self.rest.extend_from_slice(&frame.into_data().unwrap());
                }
                Some(Err(error)) => return Err(error.to_string()),
                None if self.rest.is_empty() => return Ok(None),
                None => return Err("half a line at the end".into()),
            }
        }
    }

    async fn next(&mut self) -> Option<Value> {
        self.try_next().await.unwrap()
    }

    /// The next event, which must have this type and object.
    async fn expect(&mut self, event_type: &str, name: &str) -> Value {
        let event = self.next().await.unwrap_or_else(|| panic!("ended before {event_type} {name}"));
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&event_type.into(), &name.into()),
            "{event}"
        );
        event["object"].clone()
    }
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

async fn simulator() -> (ApiServer, Server) {
    let api_server =
        ApiServer::bind(Cluster::default(), SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let mut config = kube::Config::new(api_server.url().parse().unwrap());
    config.default_retry = false;
    let client = kube::Client::try_from(config).unwrap();
    let cluster = Some(api_server.cluster().clone());
    (api_server, Server { which: Which::Simulator, client, etcd: None, cluster })
}

macro_rules! run_cases {
    ($server:expr, $($room:ident::$case:ident),* $(,)?) => {{
        let mut failed = Vec::new();
        $(
            let name = concat!(stringify!($room), "-", stringify!($case));
            println!("{:?}: {name}", $server.which);
            let case = async {
                let namespace = $server.namespace(name).await;
                $room::$case($server, &namespace).await;
            };
            // A case that fails does not hide the others.
            if AssertUnwindSafe(case).catch_unwind().await.is_err() {
                failed.push(name);
            }
        )*
        assert!(failed.is_empty(), "{:?} does not conform: {failed:?}", $server.which);
    }};
}

async fn conforms(server: &Server) {
    run_cases!(
        server,
        lists::items_of_built_ins_have_no_kind,
        lists::pages_are_one_snapshot,
        lists::bad_parameters_are_refused,
        lists::version_zero_ignores_the_limit,
        lists::a_future_version_is_waited_for_then_504,
        lists::selectors_filter_lists,
        lists::metadata_only_on_request,
        watches::events_come_in_order_with_their_states,
        watches::leaving_a_selector_is_deleted_with_the_old_state,
        watches::no_version_and_zero_begin_with_the_state,
        watches::a_watch_from_a_future_version_is_silent,
        watches::bad_parameters_are_refused,
        watches::the_end_is_clean_and_a_bookmark_precedes_it,
        watches::a_streaming_list_ends_its_state_with_a_mark,
        watches::metadata_only_on_request,
        resources::errors_of_objects,
        resources::patches_dry_runs_and_deletes_take_effect,
        resources::text_is_escaped_for_streams,
        resources::discovery_has_what_clients_need,
        resources::unsupported_methods_are_refused,
        resources::a_custom_kind_is_served_until_deleted,
        lists::compaction_expires_lists_and_tokens,
    );
}

#[tokio::test]
async fn the_simulator_conforms() {
    let (_api_server, server) = simulator().await;
    conforms(&server).await;
}

#[tokio::test]
async fn kube_apiserver_1_36_conforms() {
    real_server_conforms(Version::V1_36, Which::V1_36).await;
}

#[tokio::test]
async fn kube_apiserver_1_20_conforms() {
    real_server_conforms(Version::V1_20, Which::V1_20).await;
}

async fn real_server_conforms(version: Version, which: Which) {
    let mut options = Options::default();
    if version == Version::V1_36 {
        // Without this flag the server answers from its own snapshots lists that etcd has compacted.
        options.flags.push("--feature-gates=ListFromCacheSnapshot=false".into());
    }
    let Some(envtest) = Envtest::start(version, options).await else { return };
    let client = envtest::client(&envtest.kubeconfig_path()).await;
    conforms(&Server { which, client, etcd: Some(envtest.etcd_url()), cluster: None }).await;
    envtest.stop().await;
}

#[tokio::test]
async fn a_killed_server_comes_back_with_its_data() {
    let Some(mut envtest) = Envtest::start(Version::V1_36, Options::default()).await else { return };
    let client = envtest::client(&envtest.kubeconfig_path()).await;
    let server = Server { which: Which::V1_36, client, etcd: None, cluster: None };
    let namespace = server.namespace("kept").await;
    let created = server.config_map(&namespace, "one", json!({})).await;
    envtest.kill_api_server().await;
    let address = envtest.url().replace("http://", "");
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
    envtest.start_api_server().await;
    let kept = server.get(&format!("{}/one", maps(&namespace))).await.must_be(200);
    assert_eq!(kept["metadata"], created["metadata"]);
    assert!(!envtest.token().is_empty());
    envtest.stop().await;
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
}
