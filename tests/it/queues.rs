//! Work queues over HTTP.

use std::net::SocketAddr;

use informerd::testing::config::{self, ConfigLayers, QueueMode, ServeSettings};
use informerd::testing::sim::Cluster;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::client::{Response, exchange, head, request};
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

/// Sends a request with a JSON body.
pub(crate) async fn send(address: SocketAddr, method: &str, target: &str, body: &Value) -> Response {
    let body = body.to_string();
    let length = body.len().to_string();
    let headers = [("Content-Type", "application/json"), ("Content-Length", &*length)];
    let mut bytes = head(method, target, &address.to_string(), &headers, "close").into_bytes();
    bytes.extend_from_slice(body.as_bytes());
    let socket = TcpStream::connect(address).await.expect("it listens");
    exchange(socket, method, &bytes).await
}

async fn post(server: &TestServer, target: &str, body: &Value) -> Response {
    send(server.address, "POST", &format!("/v1/queues/{target}"), body).await
}

async fn declare(server: &TestServer, name: &str, spec: &Value) -> Response {
    send(server.address, "PUT", &format!("/v1/queues/{name}"), spec).await
}

fn pods() -> Value {
    json!({"watch": [{"resource": "pods"}]})
}

/// A server with a queue `q` of its pods, whose first state is queued.
async fn queue_of(spec: &Value) -> TestServer {
    let server = TestServer::start(&["pods", "configmaps"]).await;
    assert_eq!(declare(&server, "q", spec).await.status(), 201);
    synced(&server).await;
    server
}

async fn detail(server: &TestServer) -> Value {
    server.get("/v1/queues/q").await.json()
}

async fn synced(server: &TestServer) {
    in_time("the first state", async { while detail(server).await["synced"] != true {} }).await;
}

/// Waits until a field of the queue has a value.
async fn until(server: &TestServer, field: &str, value: u64) {
    in_time(&format!("{field} {value}"), async { while detail(server).await[field] != value {} }).await;
}

/// Leases the next key, and waits for it.
async fn lease(server: &TestServer) -> Value {
    let answer = post(server, "q/lease", &json!({"waitSeconds": 20})).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let mut items = answer.json()["items"].as_array().unwrap().clone();
    assert_eq!(items.len(), 1, "{items:?}");
    items.remove(0)
}

async fn is_empty(server: &TestServer) -> bool {
    post(server, "q/lease", &json!({"waitSeconds": 0})).await.json()["items"] == json!([])
}

async fn answer(server: &TestServer, verb: &str, item: &Value) -> Response {
    post(server, &format!("q/{verb}"), &json!({"lease": item["lease"]})).await
}

/// Leases a key and finishes it; returns the key and its object.
async fn lease_and_finish(server: &TestServer) -> (String, Value) {
    let item = lease(server).await;
    assert_eq!(answer(server, "done", &item).await.status(), 204);
    (
        format!("{}/{}", item["namespace"].as_str().unwrap(), item["name"].as_str().unwrap()),
        item["object"].clone(),
    )
}

/// Starts a worker that waits in a task of its own.
fn wait(server: &TestServer, seconds: u32) -> JoinHandle<Response> {
    let address = server.address;
    tokio::spawn(async move {
        send(address, "POST", "/v1/queues/q/lease", &json!({"waitSeconds": seconds})).await
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_leased_to_one_worker_with_the_current_object() {
    let server = queue_of(&pods()).await;
    server.cluster.create("pods", mk_pod("one", "a", "web")).unwrap();
    let first = lease(&server).await;
    assert_eq!((&first["resource"], &first["attempt"]), (&json!("pods"), &json!(1)));
    assert_eq!(first["object"]["metadata"]["labels"]["app"], "web");
    assert!(is_empty(&server).await);
    // The object changes while the worker has the key: the key is queued again, with the new object.
    server.cluster.patch("pods", "one", "a", &json!({"metadata": {"labels": {"app": "db"}}})).unwrap();
    server.caught_up("pods").await;
    assert!(is_empty(&server).await);
    assert_eq!(answer(&server, "done", &first).await.status(), 204);
    assert_eq!(lease_and_finish(&server).await.1["metadata"]["labels"]["app"], "db");
    let again = answer(&server, "done", &first).await;
    assert_eq!((again.status(), &again.json()["reason"]), (409, &json!("Conflict")));
    server.cluster.delete("pods", "one", "a").unwrap();
    assert_eq!(lease_and_finish(&server).await, ("one/a".to_owned(), Value::Null));
    assert!(is_empty(&server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_until_a_key_is_ready_or_its_time_is_over() {
    let server = queue_of(&pods()).await;
    let answer = in_time("an empty answer", wait(&server, 1)).await.unwrap();
    assert_eq!((answer.status(), &answer.json()["items"]), (200, &json!([])));
    assert_eq!(answer.header("cache-control").as_deref(), Some("no-store"));
    let (one, two) = (wait(&server, 60), wait(&server, 60));
    until(&server, "waitingWorkers", 2).await;
    for name in ["a", "b"] {
        server.cluster.create("pods", mk_pod("one", name, "web")).unwrap();
    }
    let mut names = Vec::new();
    for worker in [one, two] {
        let items = in_time("a key", worker).await.unwrap().json()["items"].clone();
        names.push(items[0]["name"].as_str().unwrap().to_owned());
        assert_eq!(items.as_array().unwrap().len(), 1);
    }
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(detail(&server).await["inFlight"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_takes_the_filters_of_a_watch() {
    let spec = json!({"watch": [
        {"resource": "po", "namespaces": ["one"], "labelSelector": "app=web", "changed": "metadata.labels"},
        {"resource": "configmaps", "where": "has(object.data) && object.data.size() > 1"},
    ]});
    let server = queue_of(&spec).await;
    let map = |name: &str, data: Value| json!({"metadata": {"namespace": "one", "name": name}, "data": data});
    server.cluster.create("configmaps", map("small", json!({"a": "1"}))).unwrap();
    server.cluster.create("configmaps", map("large", json!({"a": "1", "b": "2"}))).unwrap();
    assert_eq!(lease_and_finish(&server).await.0, "one/large");
    for (namespace, name, app) in [("one", "a", "web"), ("one", "b", "db"), ("two", "c", "web")] {
        server.cluster.create("pods", mk_pod(namespace, name, app)).unwrap();
    }
    assert_eq!(lease_and_finish(&server).await.0, "one/a");
    // A change outside the selection, then a change after which the object is no longer selected: for the queue it is
    // deleted.
    server.cluster.patch("pods", "one", "a", &json!({"status": {"phase": "Running"}})).unwrap();
    server.caught_up("pods").await;
    assert!(is_empty(&server).await);
    server.cluster.patch("pods", "one", "a", &json!({"metadata": {"labels": {"app": "db"}}})).unwrap();
    assert_eq!(lease_and_finish(&server).await, ("one/a".to_owned(), Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declaration_is_idempotent_and_workers_of_a_deleted_queue_get_404() {
    let server = queue_of(&pods()).await;
    assert_eq!(declare(&server, "q", &pods()).await.status(), 200);
    // The defaults written out, and namespaces in another order, mean the same.
    let same = json!({"watch": [{"resource": "pods", "namespaces": []}], "leaseSeconds": 60});
    assert_eq!(declare(&server, "q", &same).await.status(), 200);
    let other = declare(&server, "q", &json!({"watch": [{"resource": "pods"}], "maxAttempts": 3})).await;
    assert_eq!((other.status(), &other.json()["reason"]), (409, &json!("Conflict")));
    let list = server.get("/v1/queues").await.json();
    assert_eq!(
        (&list["queues"][0]["name"], &list["queues"][0]["declaredBy"]),
        (&json!("q"), &json!("client"))
    );
    let worker = wait(&server, 60);
    until(&server, "waitingWorkers", 1).await;
    assert_eq!(request(server.address, "DELETE", "/v1/queues/q", &[]).await.status(), 204);
    assert_eq!(in_time("the worker", worker).await.unwrap().status(), 404);
    assert_eq!(server.get("/v1/queues/q").await.status(), 404);
    assert_eq!(request(server.address, "DELETE", "/v1/queues/q", &[]).await.status(), 404);
    // A queue declared again under the same name is a new queue.
    assert_eq!(declare(&server, "q", &pods()).await.status(), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_wait_and_failed_keys_are_listed_and_put_back() {
    let mut spec = pods();
    spec["maxAttempts"] = 2.into();
    let server = queue_of(&spec).await;
    server.cluster.create("pods", mk_pod("one", "a", "web")).unwrap();
    let retry = async |item: &Value| {
        let body = json!({"lease": item["lease"], "error": "no route to host"});
        post(&server, "q/retry", &body).await.json()
    };
    assert_eq!(retry(&lease(&server).await).await, json!({"failed": false, "retryInSeconds": 0.005}));
    let second = lease(&server).await;
    assert_eq!(second["attempt"], 2);
    assert_eq!(retry(&second).await, json!({"failed": true}));
    let failed = &detail(&server).await["failedKeys"][0];
    assert_eq!(
        (&failed["namespace"], &failed["name"], &failed["attempts"], &failed["error"]),
        (&json!("one"), &json!("a"), &json!(2), &json!("no route to host"))
    );
    let key = json!({"resource": "pods", "namespace": "one", "name": "a"});
    assert_eq!(post(&server, "q/requeue", &key).await.json(), json!({"requeued": 1}));
    assert_eq!(post(&server, "q/requeue", &key).await.status(), 404);
    assert_eq!(post(&server, "q/requeue", &json!({"all": true})).await.json(), json!({"requeued": 0}));
    // Requeued by hand, the key's attempts begin anew. Releasing the key does not count as an attempt.
    let item = lease(&server).await;
    assert_eq!(answer(&server, "release", &item).await.status(), 204);
    let item = lease(&server).await;
    assert_eq!(item["attempt"], 1);
    assert_eq!(answer(&server, "extend", &item).await.json(), json!({"leaseSeconds": 60}));
    let later = json!({"lease": item["lease"], "requeueAfterSeconds": 0.01});
    assert_eq!(post(&server, "q/done", &later).await.status(), 204);
    assert_eq!(lease_and_finish(&server).await.0, "one/a");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_an_expired_lease_goes_to_the_next_waiting_worker() {
    let server = queue_of(&pods()).await;
    server.cluster.create("pods", mk_pod("one", "a", "web")).unwrap();
    let body = json!({"waitSeconds": 20, "leaseSeconds": 1});
    let late = post(&server, "q/lease", &body).await.json()["items"][0].clone();
    let next =
        in_time("the key of the expired lease", wait(&server, 60)).await.unwrap().json()["items"][0].clone();
    assert_eq!((&next["name"], &next["attempt"]), (&json!("a"), &json!(2)));
    for verb in ["done", "retry", "release", "extend"] {
        assert_eq!(answer(&server, verb, &late).await.status(), 409, "{verb}");
    }
    assert_eq!(answer(&server, "done", &next).await.status(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_disconnects_while_waiting_loses_no_key() {
    let server = queue_of(&pods()).await;
    let body = json!({"waitSeconds": 60, "leaseSeconds": 1}).to_string();
    let length = body.len().to_string();
    let headers = [("Content-Type", "application/json"), ("Content-Length", &*length)];
    let head = head("POST", "/v1/queues/q/lease", &server.address.to_string(), &headers, "close");
    for _ in 0..5 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        socket.set_zero_linger().unwrap();
        until(&server, "waitingWorkers", 1).await;
        drop(socket);
        until(&server, "waitingWorkers", 0).await;
    }
    server.cluster.create("pods", mk_pod("one", "a", "web")).unwrap();
    assert_eq!(lease_and_finish(&server).await.0, "one/a");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_queue_requests_are_refused_by_field() {
    let server = queue_of(&pods()).await;
    server.cluster.create("pods", mk_pod("one", "a", "web")).unwrap();
    let item = lease(&server).await;
    let watch = |watch: Value| json!({"watch": [watch]});
    for (method, target, body, status, words) in [
        ("PUT", "Q", pods(), 400, "expected a queue's name"),
        ("PUT", "new", json!({}), 400, "watch"),
        ("PUT", "new", watch(json!({"resource": "none"})), 400, "watch[0]"),
        (
            "PUT",
            "new",
            watch(json!({"resource": "pods", "labelSelector": "="})),
            400,
            "watch[0].labelSelector",
        ),
        ("PUT", "new", watch(json!({"resource": "pods", "where": "("})), 400, "watch[0].where"),
        ("PUT", "new", watch(json!({"resource": "pods", "wher": ""})), 400, "wher"),
        (
            "PUT",
            "new",
            json!({"watch": [{"resource": "pods"}, {"resource": "po"}]}),
            400,
            "watch[1].resource",
        ),
        ("PUT", "new", json!({"watch": [{"resource": "pods"}], "leaseSeconds": 90000}), 400, "leaseSeconds"),
        ("POST", "none/lease", json!({}), 404, "there is no queue"),
        ("POST", "q/steal", json!({}), 404, "there are lease, extend, done"),
        ("POST", "q", json!({}), 405, "GET, HEAD, PUT, DELETE"),
        ("PUT", "q/lease", json!({}), 405, "POST"),
        ("POST", "q/lease", json!({"max": 0}), 400, "max"),
        ("POST", "q/lease", json!({"waitSeconds": 301}), 400, "waitSeconds"),
        ("POST", "q/lease", json!({"leaseSeconds": 0}), 400, "leaseSeconds"),
        ("POST", "q/lease", json!({"leaseSeconds": 1.5}), 400, "leaseSeconds"),
        ("POST", "q/lease?max=1", json!({}), 400, "unknown parameter"),
        ("POST", "q/done", json!({}), 400, "lease"),
        ("POST", "q/done", json!({"lease": "x"}), 400, "lease"),
        ("POST", "q/done", json!({"lease": "x-1.0.1"}), 409, "another queue"),
        (
            "POST",
            "q/done",
            json!({"lease": item["lease"], "requeueAfterSeconds": -1}),
            400,
            "requeueAfterSeconds",
        ),
        ("POST", "q/requeue", json!({"name": "a"}), 400, "body: invalid value \"{"),
        ("POST", "q/lease", json!([1, 0, 60]), 400, "body: invalid value \"[1,0,60]\": expected an object"),
        (
            "PUT",
            "new",
            json!({"watch": [{"resource": "pods"}], "leaseSeconds": -1}),
            400,
            "leaseSeconds: invalid value \"-1\"",
        ),
        ("PUT", "new", json!({"watch": [{"resource": 5}]}), 400, "watch[0].resource: invalid value \"5\""),
        ("POST", "q/retry", json!({"lease": "x", "error": "e".repeat(70_000)}), 413, "more than 65536 bytes"),
    ] {
        let refused = send(server.address, method, &format!("/v1/queues/{target}"), &body).await;
        assert_eq!(refused.status(), status, "{method} {target} {body}: {}", refused.text());
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(words), "{method} {target}: {message}");
    }
    // None of the refused requests had an effect.
    assert_eq!(answer(&server, "done", &item).await.status(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_of_other_origins_cannot_lease_keys() {
    let server = queue_of(&pods()).await;
    let all = |more: &'static [(&'static str, &'static str)]| [&[("Content-Length", "2")], more].concat();
    for (headers, status) in [
        (all(&[("Content-Type", "text/plain")]), 415),
        (all(&[]), 415),
        (all(&[("Content-Type", "application/json"), ("Origin", "http://evil.example")]), 403),
        (all(&[("Content-Type", "application/json"), ("Sec-Fetch-Site", "cross-site")]), 403),
    ] {
        let head = head("POST", "/v1/queues/q/lease", &server.address.to_string(), &headers, "close");
        let socket = TcpStream::connect(server.address).await.unwrap();
        let refused = exchange(socket, "POST", format!("{head}{{}}").as_bytes()).await;
        assert_eq!(refused.status(), status, "{headers:?}");
    }
    let headers = [("Host", "evil.example")];
    assert_eq!(request(server.address, "DELETE", "/v1/queues/q", &headers).await.status(), 403);
}

async fn limited(change: impl FnOnce(&mut config::Serve)) -> TestServer {
    let server = TestServer::start_with(&["pods", "configmaps"], change).await;
    assert_eq!(declare(&server, "q", &pods()).await.status(), 201);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_stops_reading_and_loses_nothing() {
    let server = limited(|config| config.limits.queue_keys_max = 3).await;
    for number in 0..30 {
        server.cluster.create("pods", mk_pod("one", &format!("p{number:02}"), "web")).unwrap();
    }
    server.cluster.delete("pods", "one", "p29").unwrap();
    until(&server, "depth", 3).await;
    let message = async || server.get("/v1/queues/q").await.json()["resources"][0]["message"].clone();
    let full = json!("the queue is full: it has 3 keys, of which 0 have failed");
    in_time("the queue says that it is full", async { while message().await != full {} }).await;
    let mut seen = std::collections::BTreeMap::new();
    while seen.len() < 29 || seen.contains_key("one/p29") {
        let (key, object) = lease_and_finish(&server).await;
        let there = !object.is_null();
        if there {
            seen.insert(key, ())
        } else {
            seen.remove(&key)
        };
    }
    in_time("the queue says that it has room", async { while !message().await.is_null() {} }).await;
    assert!(seen.keys().eq((0..29).map(|number| format!("one/p{number:02}")).collect::<Vec<_>>().iter()));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_a_queue_limit_get_503() {
    let server = limited(|config| {
        config.limits.queues_max = 1;
        config.limits.queue_leases_max = 2;
        config.limits.queue_workers_max = 1;
    })
    .await;
    let check_limit = |answer: Response, part: &str| {
        assert_eq!(answer.status(), 503, "{}", answer.text());
        assert!(answer.header("retry-after").is_some());
        assert!(answer.text().contains(part), "{}", answer.text());
    };
    check_limit(declare(&server, "other", &pods()).await, "queues");
    let worker = wait(&server, 60);
    until(&server, "waitingWorkers", 1).await;
    check_limit(post(&server, "q/lease", &json!({})).await, "workers");
    for name in ["a", "b", "c"] {
        server.cluster.create("pods", mk_pod("one", name, "web")).unwrap();
    }
    assert_eq!(in_time("a key", worker).await.unwrap().status(), 200);
    until(&server, "depth", 2).await;
    let more = post(&server, "q/lease", &json!({"max": 5})).await.json();
    assert_eq!(more["items"].as_array().unwrap().len(), 1);
    check_limit(post(&server, "q/lease", &json!({})).await, "leases");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_shutdown_workers_are_answered_and_after_it_queues_are_declared_again() {
    let mut server = queue_of(&pods()).await;
    server.cluster.create("pods", mk_pod("one", "a", "web")).unwrap();
    let before = lease(&server).await;
    let worker = wait(&server, 60);
    until(&server, "waitingWorkers", 1).await;
    server.informerd.stop().await;
    let answer_at_stop = in_time("the worker", worker).await.unwrap();
    assert_eq!((answer_at_stop.status(), &answer_at_stop.json()["items"]), (200, &json!([])));
    server.informerd.revive().await;
    server.synced().await;
    assert_eq!(answer(&server, "done", &before).await.status(), 404);
    assert_eq!(declare(&server, "q", &pods()).await.status(), 201);
    assert_eq!(
        answer(&server, "done", &before).await.status(),
        409,
        "a token of the process before was accepted"
    );
    assert_eq!(lease_and_finish(&server).await.0, "one/a", "a restart did not queue every key");
}

/// A configuration that follows the pods of an app.
fn following(app: &str) -> String {
    format!(
        "watch: [{{resource: pods, labelSelector: app={app}}}]\nqueues: {{q: {{watch: [{{resource: pods}}]}}}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_an_informer_queues_the_objects_no_longer_followed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("informerd.yaml");
    std::fs::write(&file, following("web")).unwrap();
    let source = ConfigLayers { file: Some(file.clone()), settings: ServeSettings::default() };
    let cluster = Cluster::default();
    for app in ["db", "web"] {
        cluster.create("pods", mk_pod("default", &format!("{app}-0"), app)).unwrap();
    }
    let loaded = source.load().unwrap();
    let server = TestServer::over(cluster, &[], |config| {
        (config.watches, config.queues) = (loaded.watches, loaded.queues);
        config.queue_mode = QueueMode::Config;
        config.source = Some(source);
    })
    .await;
    let (key, object) = lease_and_finish(&server).await;
    assert_eq!((&*key, object.is_null()), ("default/web-0", false));
    let new = folder.path().join("new");
    std::fs::write(&new, following("db")).unwrap();
    std::fs::rename(new, &file).unwrap();
    let mut after = [lease_and_finish(&server).await, lease_and_finish(&server).await];
    after.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!((&*after[0].0, after[0].1.is_null()), ("default/db-0", false));
    assert_eq!(
        after[1],
        ("default/web-0".to_owned(), Value::Null),
        "an object that is no longer followed must be null"
    );
    // Clients cannot delete the configuration's queue, and cannot declare others.
    assert_eq!(request(server.address, "DELETE", "/v1/queues/q", &[]).await.status(), 403);
    assert_eq!(declare(&server, "other", &pods()).await.status(), 403);
    assert_eq!(declare(&server, "q", &pods()).await.status(), 200);
    assert_eq!(detail(&server).await["declaredBy"], "configuration");
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_can_be_disabled() {
    let server = TestServer::start_with(&["pods"], |config| config.queue_mode = QueueMode::Off).await;
    for answer in [
        declare(&server, "q", &pods()).await,
        server.get("/v1/queues").await,
        post(&server, "q/lease", &json!({})).await,
    ] {
        assert_eq!(answer.status(), 403);
        assert!(answer.text().contains("--queues=off"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_the_configuration_waits_for_its_kind() {
    let yaml = "watch: [{resource: pods}]\nqueues: {q: {watch: [{resource: gadgets.example.com}]}}";
    let settings = ServeSettings::from_yaml(yaml, &|_| None).unwrap();
    let queues = ConfigLayers { file: None, settings }.load().unwrap().queues;
    let server = TestServer::start_with(&["pods"], |config| config.queues = queues).await;
    in_time("a sentence", async {
        loop {
            let resource = &detail(&server).await["resources"][0];
            if resource["message"].as_str().is_some_and(|message| message.contains("gadgets.example.com")) {
                assert_eq!(resource["synced"], false);
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_gos_dashboards_read_the_metrics() {
    let server = TestServer::start(&["pods"]).await;
    let path = "/v1/queues/measured";
    assert_eq!(send(server.address, "PUT", path, &pods()).await.status(), 201);
    for name in ["a", "b"] {
        server.cluster.create("pods", mk_pod("one", name, "web")).unwrap();
    }
    in_time("both", async { while server.get(path).await.json()["depth"] != 2 {} }).await;
    let take = format!("{path}/lease");
    let item =
        send(server.address, "POST", &take, &json!({"waitSeconds": 20})).await.json()["items"][0].clone();
    let retry = json!({"lease": item["lease"], "error": "e"});
    assert_eq!(send(server.address, "POST", &format!("{path}/retry"), &retry).await.status(), 200);
    let item =
        send(server.address, "POST", &take, &json!({"waitSeconds": 20})).await.json()["items"][0].clone();
    assert!(item["lease"].is_string());
    let page = crate::support::client::get(server.admin, "/metrics", &[]).await;
    let value = |series: &str| {
        let line = page.text().lines().find(|line| line.starts_with(&format!("{series} ")));
        let line = line.unwrap_or_else(|| panic!("no {series}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let of = |name: &str| value(&format!("{name}{{name=\"measured\"}}"));
    assert_eq!(of("workqueue_adds_total"), 2.0);
    assert_eq!(of("workqueue_retries_total"), 1.0);
    assert_eq!(of("workqueue_work_duration_seconds_count"), 1.0);
    assert_eq!(of("workqueue_queue_duration_seconds_count"), 2.0);
    assert!(of("workqueue_depth") <= 1.0);
    assert!(of("workqueue_unfinished_work_seconds") > 0.0);
    assert_eq!(of("workqueue_unfinished_work_seconds"), of("workqueue_longest_running_processor_seconds"));
    eventually("a bucket of client-go", || {
        page.text().contains("workqueue_work_duration_seconds_bucket{name=\"measured\",le=\"1000\"}")
    })
    .await;
}

/// A worker of the examples, in a process group of its own.
pub(crate) fn example(
    command: &[&str],
    folder: &std::path::Path,
    address: SocketAddr,
) -> tokio::process::Child {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(command[1]);
    tokio::process::Command::new(command[0])
        .arg(path)
        .current_dir(folder)
        .env("INFORMERD_URL", format!("http://{address}"))
        .env("NODE_NAME", "n1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Whether a program is installed, as its version shows; if not, prints a `skipped:` line.
pub(crate) async fn is_installed(program: &str, version: &str) -> bool {
    let found = tokio::process::Command::new(program).arg(version).output().await;
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        println!("skipped: {program} is not installed");
    }
    has
}

/// Two workers of a language write a file for each pod, while workers are killed and informerd restarts.
async fn reconciles_files(command: &[&str]) {
    let mut server = TestServer::start(&["pods"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut workers = [0, 1].map(|_| example(command, folder.path(), server.address));
    let phase = |number: u32| if number.is_multiple_of(2) { "Running" } else { "Pending" };
    for number in 0..40_u32 {
        let name = format!("p{}", number % 10);
        match server.cluster.get("pods", "one", &name) {
            None => drop(server.cluster.create("pods", mk_pod("one", &name, "web")).unwrap()),
            Some(_) if number % 7 == 0 => server.cluster.delete("pods", "one", &name).unwrap(),
            Some(_) => {
                let status = json!({"status": {"phase": phase(number / 10)}});
                server.cluster.patch("pods", "one", &name, &status).unwrap();
            }
        }
        if number == 10 {
            let answered = in_time("a file", async {
                while std::fs::read_dir(folder.path().join("pods")).map_or(0, Iterator::count) == 0 {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            });
            answered.await;
        }
        if number % 13 == 12 {
            let worker = &mut workers[number as usize % 2];
            worker.kill().await.unwrap();
            *worker = example(command, folder.path(), server.address);
        }
    }
    let cluster = server.cluster.clone();
    let expected = || {
        let pods = cluster.list("pods");
        let text = |pod: &Value, path: &str| pod.pointer(path).unwrap().as_str().unwrap().to_owned();
        let file =
            |pod: &Value| (format!("one_{}", text(pod, "/metadata/name")), text(pod, "/status/phase") + "\n");
        pods.iter().map(file).collect::<std::collections::BTreeMap<_, _>>()
    };
    let files = || {
        let entries = std::fs::read_dir(folder.path().join("pods")).unwrap().map(|entry| entry.unwrap());
        let file = |entry: std::fs::DirEntry| {
            (
                entry.file_name().into_string().unwrap(),
                std::fs::read_to_string(entry.path()).unwrap_or_default(),
            )
        };
        entries.map(file).collect::<std::collections::BTreeMap<_, _>>()
    };
    // Nobody reports what is deleted while informerd is down, so all deletions are reconciled before.
    eventually("a file for each pod before the restart", || files() == expected()).await;
    server.informerd.kill().await;
    server.cluster.patch("pods", "one", "p4", &json!({"status": {"phase": "Failed"}})).unwrap();
    server.informerd.revive().await;
    eventually("a file for each pod", || files() == expected()).await;
    server.cluster.delete("pods", "one", "p4").unwrap();
    eventually("no file of a deleted pod", || files() == expected()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_controller_reconciles_its_files() {
    if is_installed("python3", "--version").await {
        reconciles_files(&["python3", "controller.py"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_controller_reconciles_its_files() {
    if is_installed("node", "--version").await {
        reconciles_files(&["node", "controller.mjs"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_controller_reconciles_its_files() {
    if is_installed("jq", "--version").await && is_installed("curl", "--version").await {
        reconciles_files(&["sh", "controller.sh"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_controller_reconciles_its_files() {
    if !is_installed("go", "version").await {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("controller");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/controller.go");
    let mut build = tokio::process::Command::new("go");
    build
        .arg("build")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .env("GOFLAGS", "-mod=mod")
        .current_dir(folder.path());
    let built = build.output().await.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    reconciles_files(&[program.to_str().unwrap(), ""]).await;
}

#[test]
fn each_controller_is_short_and_the_document_has_one() {
    let document = include_str!("../../docs/controllers.md");
    let python = include_str!("../../examples/controller.py");
    assert!(document.contains(&format!("```python\n{python}```\n")));
    let others = [
        include_str!("../../examples/controller.mjs"),
        include_str!("../../examples/controller.sh"),
        include_str!("../../examples/controller.go"),
        include_str!("../../examples/pod_ips.py"),
    ];
    for example in [python].into_iter().chain(others) {
        assert!(example.lines().count() < 80);
    }
}

pub(crate) fn object(name: &str, more: &Value) -> Value {
    let mut object = json!({"metadata": {"namespace": "one", "name": name}});
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

/// Defines kinds that the simulator lacks as custom resources.
pub(crate) fn define(cluster: &Cluster) {
    for (group, plural, kind) in [
        ("networking.k8s.io", "ingresses", "Ingress"),
        ("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    ] {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        });
        cluster.create("customresourcedefinitions", definition).unwrap();
    }
}

/// A server with a queue `q` of several resources, whose first keys are all done.
async fn linked(resources: &[&str], spec: &Value, objects: &[(&str, Value)]) -> TestServer {
    let cluster = Cluster::default();
    define(&cluster);
    for (resource, object) in objects {
        cluster.create(resource, object.clone()).unwrap();
    }
    let server = TestServer::over(cluster, resources, |_| {}).await;
    let declared = declare(&server, "q", spec).await;
    assert_eq!(declared.status(), 201, "{}", declared.text());
    synced(&server).await;
    // All objects are queued.
    finish_all_keys(&server, 0).await;
    server
}

/// Finishes all keys that are queued, and returns their names. Waits for the expected number, then a moment for any
/// others.
async fn finish_all_keys(server: &TestServer, expected: usize) -> Vec<String> {
    let mut names = std::collections::BTreeSet::new();
    loop {
        let seconds = if names.len() < expected { 20 } else { 1 };
        let answer = post(server, "q/lease", &json!({"waitSeconds": seconds, "max": 100})).await.json();
        let items = answer["items"].as_array().unwrap().clone();
        if items.is_empty() {
            return names.into_iter().collect();
        }
        for item in items {
            assert_eq!(self::answer(server, "done", &item).await.status(), 204);
            assert!(item["object"].is_object(), "{item}");
            names.insert(format!(
                "{} {}",
                item["resource"].as_str().unwrap(),
                item["name"].as_str().unwrap()
            ));
        }
    }
}

/// Waits until exactly these keys were queued.
async fn expect_keys(server: &TestServer, expected: &[&str]) {
    assert_eq!(finish_all_keys(server, expected.len()).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_queues_the_objects_that_refer_to_the_changed_one() {
    let spec = json!({"watch": [
        {"resource": "ingresses"},
        {"resource": "secrets", "enqueue": [{"resource": "ingresses"}]},
        {"resource": "configmaps", "enqueue": [{"resource": "ingresses", "path": "metadata.annotations.map"}]},
    ]});
    let tls = |secret: &str| json!({"spec": {"tls": [{"secretName": "other"}, {"secretName": secret}]}});
    let mut annotated = object("annotated", &tls("none"));
    annotated["metadata"]["annotations"] = json!({"map": "settings"});
    let server = linked(
        &["ingresses", "secrets", "configmaps"],
        &spec,
        &[
            ("ingresses", object("web", &tls("cert"))),
            ("ingresses", object("shop", &tls("cert"))),
            ("ingresses", annotated),
            ("secrets", object("unused", &json!({}))),
        ],
    )
    .await;
    let cluster = &server.cluster;
    // The object is referred to before it exists.
    cluster.create("secrets", object("cert", &json!({}))).unwrap();
    expect_keys(&server, &["ingresses.networking.k8s.io shop", "ingresses.networking.k8s.io web"]).await;
    cluster.patch("secrets", "one", "unused", &json!({"data": {"a": "YQ=="}})).unwrap();
    let mut elsewhere = object("cert", &json!({}));
    elsewhere["metadata"]["namespace"] = "two".into();
    cluster.create("secrets", elsewhere).unwrap();
    // An object that nobody refers to, or that is in another namespace.
    expect_keys(&server, &[]).await;
    // The objects that refer to it now count, not those at the start of the queue.
    cluster.patch("ingresses", "one", "shop", &tls("new")).unwrap();
    expect_keys(&server, &["ingresses.networking.k8s.io shop"]).await;
    cluster.delete("secrets", "one", "cert").unwrap();
    expect_keys(&server, &["ingresses.networking.k8s.io web"]).await;
    cluster.create("configmaps", object("settings", &json!({}))).unwrap();
    expect_keys(&server, &["ingresses.networking.k8s.io annotated"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_queues_the_objects_referred_to_before_and_after() {
    let spec = json!({"watch": [
        {"resource": "services"},
        {"resource": "endpointslices", "enqueue": [{"resource": "services"}]},
    ]});
    let service = |name: &str| ("services", object(name, &json!({"spec": {}})));
    let server =
        linked(&["services", "endpointslices"], &spec, &[service("a"), service("b"), service("c")]).await;
    let cluster = &server.cluster;
    let of = |name: &str| json!({"metadata": {"labels": {"kubernetes.io/service-name": name}}});
    let mut slice = object("a-1", &json!({"endpoints": [], "addressType": "IPv4"}));
    slice["metadata"]["labels"] = of("a")["metadata"]["labels"].clone();
    cluster.create("endpointslices", slice).unwrap();
    expect_keys(&server, &["services a"]).await;
    cluster.patch("endpointslices", "one", "a-1", &of("b")).unwrap();
    expect_keys(&server, &["services a", "services b"]).await;
    cluster.patch("endpointslices", "one", "a-1", &of("missing")).unwrap();
    expect_keys(&server, &["services b"]).await;
    cluster.patch("endpointslices", "one", "a-1", &of("c")).unwrap();
    expect_keys(&server, &["services c"]).await;
    cluster.delete("endpointslices", "one", "a-1").unwrap();
    expect_keys(&server, &["services c"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_are_followed_in_both_directions() {
    let to_services = json!({"watch": [
        {"resource": "services"},
        {"resource": "pods", "enqueue": [{"resource": "services"}]},
    ]});
    let selecting = |app: &str| json!({"spec": {"type": "ClusterIP", "selector": {"app": app}}});
    let pod = |name: &str, app: &str| {
        let mut pod = object(name, &json!({"spec": {}}));
        pod["metadata"]["labels"] = json!({"app": app});
        pod
    };
    let first =
        [("services", object("web", &selecting("web"))), ("services", object("db", &selecting("db")))];
    let server = linked(&["services", "pods"], &to_services, &first).await;
    let cluster = &server.cluster;
    cluster.create("pods", pod("a", "web")).unwrap();
    expect_keys(&server, &["services web"]).await;
    // The service that the pod no longer matches must be reconciled, too.
    cluster.patch("pods", "one", "a", &json!({"metadata": {"labels": {"app": "db"}}})).unwrap();
    expect_keys(&server, &["services db", "services web"]).await;
    // A service that begins to select it, without a change of the pod.
    cluster.patch("services", "one", "web", &selecting("db")).unwrap();
    expect_keys(&server, &["services web"]).await;
    cluster.patch("pods", "one", "a", &json!({"metadata": {"labels": {"app": "none"}}})).unwrap();
    expect_keys(&server, &["services db", "services web"]).await;
    cluster.patch("services", "one", "web", &selecting("none")).unwrap();
    expect_keys(&server, &["services web"]).await;
    cluster.delete("pods", "one", "a").unwrap();
    expect_keys(&server, &["services web"]).await;
    let to_pods = json!({"watch": [
        {"resource": "pods"},
        {"resource": "services", "enqueue": [{"resource": "pods"}]},
    ]});
    let first = [("pods", pod("a", "web")), ("pods", pod("b", "db"))];
    let server = linked(&["services", "pods"], &to_pods, &first).await;
    server.cluster.create("services", object("s", &selecting("web"))).unwrap();
    expect_keys(&server, &["pods a"]).await;
    server.cluster.patch("services", "one", "s", &selecting("db")).unwrap();
    expect_keys(&server, &["pods a", "pods b"]).await;
    // A pod that begins to be selected, without a change of the service.
    server.cluster.patch("pods", "one", "a", &json!({"metadata": {"labels": {"app": "db"}}})).unwrap();
    expect_keys(&server, &["pods a"]).await;
    server.cluster.patch("services", "one", "s", &selecting("none")).unwrap();
    expect_keys(&server, &["pods a", "pods b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_are_followed_in_both_directions() {
    let spec = json!({"watch": [
        {"resource": "replicasets"},
        {"resource": "deployments", "enqueue": [{"resource": "replicasets", "by": "owner"}]},
        {"resource": "pods", "enqueue": [{"resource": "replicasets", "by": "owner"}]},
    ]});
    let server = linked(&["deployments", "replicasets", "pods"], &spec, &[]).await;
    let cluster = &server.cluster;
    let owned = |name: &str, kind: &str, owner: &Value| {
        let mut object = object(name, &json!({"spec": {}}));
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": kind, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        }]);
        object
    };
    let deployment = cluster.create("deployments", object("web", &json!({"spec": {}}))).unwrap();
    let set = cluster.create("replicasets", owned("web-1", "Deployment", &deployment)).unwrap();
    cluster.create("replicasets", object("alone", &json!({"spec": {}}))).unwrap();
    expect_keys(&server, &["replicasets.apps alone", "replicasets.apps web-1"]).await;
    cluster.patch("deployments", "one", "web", &json!({"spec": {"replicas": 2}})).unwrap();
    expect_keys(&server, &["replicasets.apps web-1"]).await;
    cluster.create("pods", owned("web-1-a", "ReplicaSet", &set)).unwrap();
    expect_keys(&server, &["replicasets.apps web-1"]).await;
    cluster.delete("pods", "one", "web-1-a").unwrap();
    expect_keys(&server, &["replicasets.apps web-1"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_dependents_are_refused() {
    let server = TestServer::start(&["pods", "configmaps", "secrets"]).await;
    let watch = |enqueue: Value| json!({"watch": [{"resource": "pods"}, {"resource": "configmaps", "enqueue": enqueue}]});
    for (enqueue, field, words) in [
        (json!([{"resource": "po"}]), "watch[1].enqueue[0].resource", "as it is written there"),
        (json!([{"resource": "configmaps"}]), "watch[1].enqueue[0].resource", "without enqueue"),
        (json!([{"resource": "pods", "path": "a..b"}]), "watch[1].enqueue[0].path", "empty"),
        (json!([{"resource": "pods", "path": "a", "by": "owner"}]), "watch[1].enqueue[0].path", "one of"),
        (json!([{"resource": "pods", "by": "chance"}]), "watch[1].enqueue[0].by", "owner"),
        (json!(vec![json!({"resource": "pods"}); 9]), "watch[1].enqueue", "at most 8"),
    ] {
        let refused = declare(&server, "new", &watch(enqueue.clone())).await;
        assert_eq!(refused.status(), 400, "{enqueue}: {}", refused.text());
        let cause = refused.json()["details"]["causes"][0].clone();
        assert_eq!(cause["field"], field, "{enqueue}");
        assert!(cause["message"].as_str().unwrap().contains(words), "{cause}");
    }
    let spec = json!({"watch": [{"resource": "secrets"}, {"resource": "configmaps", "enqueue": [{"resource": "secrets"}]}]});
    let refused = declare(&server, "new", &spec).await;
    assert_eq!(refused.status(), 400);
    assert!(refused.text().contains("no built-in link between configmaps and secrets"), "{}", refused.text());
}
