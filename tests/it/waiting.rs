//! Requests that wait until their selection changes (`Prefer: wait`).

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use informerd::testing::config;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::client::{self, Response, head};
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

/// Selections with each kind of wake-up: everything, a namespace, an index, several values of an index, none, one
/// object.
const PATHS: [&str; 8] = [
    "/v1/snapshot/pods",
    "/v1/snapshot/pods,configmaps",
    "/v1/snapshot/pods/one",
    "/v1/snapshot/pods?labelSelector=app%3Dweb",
    "/v1/snapshot/pods?labelSelector=app%20in%20(web,api)",
    "/v1/snapshot/pods?labelSelector=app!%3Ddb",
    "/v1/snapshot/pods/one?fieldSelector=spec.nodeName%3Dnode-1&limit=1",
    "/v1/snapshot/pods/one/a",
];

async fn server() -> TestServer {
    server_with(|_| {}).await
}

async fn server_with(change: impl FnOnce(&mut config::Serve)) -> TestServer {
    let server = TestServer::start_with(&["pods", "configmaps"], change).await;
    server.cluster.create("pods", mk_pod("one", "a", "web")).unwrap();
    server.cluster.create("pods", mk_pod("two", "b", "db")).unwrap();
    server.caught_up("pods").await;
    server.caught_up("configmaps").await;
    server
}

async fn tag(server: &TestServer, path: &str) -> String {
    server.get(path).await.header("etag").unwrap()
}

/// Sends a request that waits, in a task of its own. Repeats it after a 503, as the probe of [`full`] may hold the
/// last place.
fn wait(address: SocketAddr, path: &str, tag: &str, prefer: &str) -> JoinHandle<Response> {
    let (path, tag, prefer) = (path.to_owned(), tag.to_owned(), prefer.to_owned());
    tokio::spawn(async move {
        loop {
            let answer = client::get(address, &path, &[("If-None-Match", &tag), ("Prefer", &prefer)]).await;
            if answer.status() != 503 {
                return answer;
            }
        }
    })
}

/// Waits until as many requests wait as the limit allows, so that the next one is refused.
async fn full(server: &TestServer, path: &str, tag: &str) {
    in_time("waiting requests", async {
        while server.get_with(path, &[("If-None-Match", tag), ("Prefer", "wait=1")]).await.status() != 503 {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_is_answered_when_its_selection_changes() {
    let server = server_with(|config| config.limits.waiting_requests_max = PATHS.len()).await;
    let mut waiting = Vec::new();
    for path in PATHS {
        let tag = tag(&server, path).await;
        waiting.push((path, tag.clone(), wait(server.address, path, &tag, "wait=60")));
    }
    full(&server, PATHS[0], &waiting[0].1).await;
    // The new pod is in the first two selections only.
    server.cluster.create("pods", mk_pod("two", "c", "db")).unwrap();
    server.caught_up("pods").await;
    for (path, tag, answer) in waiting.drain(..2) {
        let answer = in_time(path, answer).await.unwrap();
        assert_eq!((answer.status(), answer.header("preference-applied").as_deref()), (200, Some("wait=60")));
        assert_ne!(answer.header("etag"), Some(tag), "{path}");
        assert!(answer.text().contains("\"c\""), "{path}");
    }
    for (path, tag, answer) in &waiting {
        assert_eq!(server.get_with(path, &[("If-None-Match", tag)]).await.status(), 304, "{path}");
        assert!(!answer.is_finished(), "{path}");
    }
    server.cluster.patch("pods", "one", "a", &json!({"status": {"phase": "Running"}})).unwrap();
    for (path, tag, answer) in waiting {
        let answer = in_time(path, answer).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert_ne!(answer.header("etag"), Some(tag), "{path}");
        assert!(answer.text().contains("Running"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_for_an_object_is_answered_404_when_it_is_deleted() {
    let server = server_with(|config| config.limits.waiting_requests_max = 1).await;
    let path = "/v1/snapshot/pods/one/a";
    let tag = tag(&server, path).await;
    let answer = wait(server.address, path, &tag, "wait=60");
    full(&server, path, &tag).await;
    server.cluster.delete("pods", "one", "a").unwrap();
    assert_eq!(in_time("404", answer).await.unwrap().status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_is_answered_304_at_its_timeout() {
    let server = server().await;
    for path in PATHS {
        let tag = tag(&server, path).await;
        let began = Instant::now();
        let answer = in_time(path, wait(server.address, path, &tag, "wait=1")).await.unwrap();
        assert_eq!((answer.status(), answer.header("etag")), (304, Some(tag.clone())), "{path}");
        assert_eq!(answer.header("preference-applied").as_deref(), Some("wait=1"));
        assert!(began.elapsed() >= Duration::from_secs(1), "{path}");
        let answer = server.get_with(path, &[("If-None-Match", &tag), ("Prefer", "wait=0")]).await;
        assert_eq!(answer.status(), 304);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_the_current_tag_does_not_wait() {
    let server = server().await;
    let path = PATHS[0];
    let answer = server.get_with(path, &[("Prefer", "wait=60")]).await;
    assert_eq!((answer.status(), answer.header("preference-applied")), (200, None));
    let headers = [("Prefer", "respond-async, wait=100000"), ("If-None-Match", "W/\"other\"")];
    let answer = server.get_with(path, &headers).await;
    // No request waits for longer than 300 s.
    assert_eq!((answer.status(), answer.header("preference-applied").as_deref()), (200, Some("wait=300")));
    let refused = server.get_with(path, &[("Prefer", "wait=soon")]).await;
    assert_eq!(refused.status(), 400);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("Prefer: invalid value \"wait=soon\""), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_client_that_disconnects_frees_its_place() {
    let server = server_with(|config| config.limits.waiting_requests_max = 1).await;
    let path = PATHS[0];
    let tag = tag(&server, path).await;
    let headers = [("If-None-Match", &*tag), ("Prefer", "wait=300")];
    let leaver = in_time("a request that waits", async {
        loop {
            let mut leaver = TcpStream::connect(server.address).await.unwrap();
            let request = head("GET", path, &server.address.to_string(), &headers, "close");
            leaver.write_all(request.as_ref()).await.unwrap();
            // The probe may have been first, and have the place.
            let probe = server.get_with(path, &[("If-None-Match", &tag), ("Prefer", "wait=1")]).await;
            if probe.status() == 503 {
                break leaver;
            }
        }
    })
    .await;
    let refused = server.get_with(path, &headers).await;
    assert_eq!((refused.status(), refused.header("retry-after").as_deref()), (503, Some("5")));
    drop(leaver);
    in_time("a free place", async {
        while server.get_with(path, &[("If-None-Match", &tag), ("Prefer", "wait=1")]).await.status() != 304 {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_are_answered_at_shutdown() {
    let mut server = server_with(|config| config.limits.waiting_requests_max = 1).await;
    let path = PATHS[0];
    let tag = tag(&server, path).await;
    let answer = wait(server.address, path, &tag, "wait=300");
    full(&server, path, &tag).await;
    in_time("the end", server.informerd.stop()).await;
    assert_eq!(answer.await.unwrap().status(), 304);
}

/// The shell loop of docs/contract.md, taken from that document.
#[tokio::test(flavor = "multi_thread")]
async fn the_shell_loop_of_the_contract_follows_with_curl() {
    let server = server().await;
    let contract = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/contract.md")).unwrap();
    let (_, polling) = contract.split_once("## Polling").unwrap();
    let (_, script) = polling.split_once("```sh\n").unwrap();
    let (script, _) = script.split_once("```").unwrap();
    let script = script.replace("localhost:8090", &server.address.to_string()).replace("/shop", "/one");
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    let mut versions = Vec::new();
    for phase in ["Pending", "Running", "Failed"] {
        if phase != "Pending" {
            // The pod is in another namespace.
            server.cluster.patch("pods", "two", "b", &json!({"status": {"phase": phase}})).unwrap();
            server.cluster.patch("pods", "one", "a", &json!({"status": {"phase": phase}})).unwrap();
        }
        let line = in_time("a change", lines.next_line()).await.unwrap();
        assert_eq!(line.as_deref(), Some("changed"));
        let list = std::fs::read_to_string(folder.path().join("pods.json")).unwrap();
        assert!(list.contains(phase), "{phase}: {list}");
        versions.push(list);
    }
    versions.dedup();
    assert_eq!(versions.len(), 3);
    shell.kill().await.unwrap();
    eventually("the end of the shell", || shell.try_wait().unwrap().is_some()).await;
}
