//! Pass-through of requests that the caches cannot answer: off, reads, all.

use std::time::Duration;

use informerd::testing::config::{PassThrough, Proxied, UpstreamSource};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{DEFAULT_PODS, PODS, create, next, send, status, watch};
use crate::support::client::{Response, exchange, get, head};
use crate::support::in_time;
use crate::support::server::{ANY_PORT, Informerd, TestServer, serve_config};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

async fn start(pass: PassThrough) -> TestServer {
    let server = TestServer::start_with(&["pods"], |config| config.pass_through = pass).await;
    let map = json!({"metadata": {"namespace": "default", "name": "a"}, "data": {"key": "value"}});
    server.cluster.create("configmaps", map).unwrap();
    create(&server, "a");
    server.caught_up("pods").await;
    server
}

/// Sends a request with a body.
async fn submit(server: &TestServer, method: &str, target: &str, kind: &str, body: &str) -> Response {
    let length = body.len().to_string();
    let headers = [("Content-Type", kind), ("Content-Length", &*length)];
    let head = head(method, target, &server.address.to_string(), &headers, "close");
    let socket = TcpStream::connect(server.address).await.unwrap();
    exchange(socket, method, format!("{head}{body}").as_bytes()).await
}

/// The number of requests to the API server for paths with this prefix.
fn upstream(server: &TestServer, method: &str, path: &str) -> usize {
    let begin = format!("{method} {path}");
    server.api.requests().iter().filter(|request| request.starts_with(&begin)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn pass_through_off_forwards_nothing() {
    let server = start(PassThrough::Off).await;
    let log = format!("{DEFAULT_PODS}/a/log");
    for path in [CONFIG_MAPS, &*log, "/openapi/v3", "/openapi/v2"] {
        status(&server.get(path).await, 404, "NotFound");
        assert_eq!(upstream(&server, "GET", path), 0, "{path}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        status(&send(&server, method, DEFAULT_PODS).await, 405, "MethodNotAllowed");
        assert_eq!(upstream(&server, method, "/"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pass_through_reads_forwards_what_the_cache_cannot_answer() {
    let server = start(PassThrough::Reads).await;
    let log = format!("{DEFAULT_PODS}/a/log?container=main");
    let missing = format!("{CONFIG_MAPS}/none");
    let unknown = format!("{CONFIG_MAPS}?resourceVersionMatch=Later&resourceVersion=5");
    for target in [
        CONFIG_MAPS,
        // A value that informerd does not know: of a kind that it does not follow, this is for the API server to say.
        &*unknown,
        &*missing,
        &*log,
        "/openapi/v3",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps/v1",
        "/apis/none/v1",
    ] {
        let there = get(server.api.address(), target, &[]).await;
        let here = server.get(target).await;
        assert_eq!((here.status(), here.text()), (there.status(), there.text()), "{target}");
        assert_eq!(here.header("content-type"), there.header("content-type"), "{target}");
    }
    // A request that the cache can answer is not forwarded, nor is one for an object that the cache knows to be
    // missing.
    let before = upstream(&server, "GET", "/api/v1/namespaces/default/pods");
    assert_eq!(server.get(DEFAULT_PODS).await.status(), 200);
    let none = server.get(&format!("{DEFAULT_PODS}/none")).await;
    assert_eq!(status(&none, 404, "NotFound")["details"]["name"], "none");
    assert_eq!(server.get("/version").await.status(), 200);
    assert_eq!(upstream(&server, "GET", "/api/v1/namespaces/default/pods"), before);
    // A watch of a resource that is not cached is forwarded event by event.
    let mut stream = watch(&server, &format!("{CONFIG_MAPS}?watch=1")).await;
    assert!(next(&mut stream, 1).await[0].starts_with("ADDED a@"));
    server.cluster.delete("configmaps", "default", "a").unwrap();
    let gone = server.cluster.revision();
    assert_eq!(next(&mut stream, 1).await, [format!("DELETED a@{gone}")]);
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        status(
            &submit(&server, method, CONFIG_MAPS, "application/json", "{}").await,
            405,
            "MethodNotAllowed",
        );
        assert_eq!(upstream(&server, method, "/"), 0);
    }
    let upgrade = [("Upgrade", "websocket"), ("Connection", "upgrade")];
    let exec = server.get_with(&format!("{DEFAULT_PODS}/a/exec?command=id"), &upgrade).await;
    let refused = status(&exec, 501, "NotImplemented");
    assert!(refused["message"].as_str().unwrap().contains("exec"), "{refused}");
    assert_eq!(upstream(&server, "GET", &format!("{DEFAULT_PODS}/a/exec")), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pass_through_of_proxy_paths_needs_its_own_flag() {
    let proxies = |proxies: Vec<Proxied>| {
        TestServer::start_with(&["pods"], |config| {
            config.pass_through = PassThrough::All;
            config.pass_through_proxy = proxies;
        })
    };
    let service = "/api/v1/namespaces/default/services/a/proxy/delete?id=1";
    let encoded = "/api/v1/namespaces/default/services%2fa/%70roxy/delete?id=1";
    let pod = "/api/v1/namespaces/default/pods/a/proxy";
    let server = proxies(Vec::new()).await;
    for target in [service, encoded, pod, "/api/v1/nodes/node-1/proxy/stats"] {
        for method in ["GET", "POST", "DELETE"] {
            let refused = status(&send(&server, method, target).await, 403, "Forbidden");
            let message = refused["message"].as_str().unwrap();
            assert!(message.contains("--pass-through-proxy"), "{method} {target}: {message}");
            assert_eq!(upstream(&server, method, target), 0);
        }
    }
    let server = proxies(vec![Proxied::Services]).await;
    assert_eq!(server.get(service).await.status(), 404, "the simulator has no proxy");
    assert_eq!(upstream(&server, "GET", "/api/v1/namespaces/default/services/a/proxy"), 1);
    status(&server.get(pod).await, 403, "Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_answers_are_sandboxed_and_path_traversal_is_refused() {
    let server = start(PassThrough::All).await;
    let answer = server.get(CONFIG_MAPS).await;
    assert_eq!(answer.header("content-security-policy").as_deref(), Some("sandbox"));
    assert_eq!(answer.header("x-content-type-options").as_deref(), Some("nosniff"));
    for path in ["/api/v1/../v1/configmaps", "/api/v1/%2e%2e/v1/configmaps", "/api/v1/a%2f..%2fconfigmaps"] {
        status(&server.get(path).await, 400, "BadRequest");
        status(&send(&server, "DELETE", path).await, 400, "BadRequest");
        assert_eq!(upstream(&server, "GET", path) + upstream(&server, "DELETE", path), 0, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_local_printer_is_forwarded() {
    let partly = |pass| {
        TestServer::start_with(&["pods"], move |config| {
            config.pass_through = pass;
            config.watches[0].metadata_only = true;
        })
    };
    let server = partly(PassThrough::Off).await;
    status(&server.get_with(PODS, &[("Accept", TABLE)]).await, 406, "NotAcceptable");
    let server = partly(PassThrough::Reads).await;
    create(&server, "a");
    let there = get(server.api.address(), PODS, &[("Accept", TABLE)]).await;
    let here = server.get_with(PODS, &[("Accept", TABLE)]).await;
    assert_eq!((here.status(), here.text()), (200, there.text()));
    // The same holds for whole objects if the cache has only a part of them.
    let one = server.get(&format!("{DEFAULT_PODS}/a")).await.json();
    assert_eq!(one["spec"]["nodeName"], "node-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn pass_through_all_forwards_writes() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.pass_through = PassThrough::All;
        config.limits.pass_through_body_bytes_max = 4096;
    })
    .await;
    create(&server, "a");
    let map = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "made"}}).to_string();
    let made = submit(&server, "POST", CONFIG_MAPS, "application/json", &map).await;
    assert_eq!(made.status(), 201, "{}", made.text());
    assert!(server.cluster.get("configmaps", "default", "made").is_some());
    let patch = r#"{"metadata":{"labels":{"app":"api"}}}"#;
    let target = format!("{DEFAULT_PODS}/a");
    let patched = submit(&server, "PATCH", &target, "application/merge-patch+json", patch).await;
    assert_eq!(patched.status(), 200, "{}", patched.text());
    assert_eq!(server.cluster.get("pods", "default", "a").unwrap()["metadata"]["labels"]["app"], "api");
    assert_eq!(send(&server, "DELETE", &format!("{CONFIG_MAPS}/made")).await.status(), 200);
    assert!(server.cluster.get("configmaps", "default", "made").is_none());
    // The API server's refusal is passed on to the client.
    let wrong = submit(&server, "POST", CONFIG_MAPS, "application/json", "{").await;
    assert_eq!(wrong.status(), 400, "{}", wrong.text());
    let posts = upstream(&server, "POST", "/");
    let large = submit(&server, "POST", CONFIG_MAPS, "application/json", &" ".repeat(5000)).await;
    status(&large, 413, "RequestEntityTooLarge");
    assert_eq!(upstream(&server, "POST", "/"), posts);
}

/// Sends a request with a chunked body.
async fn submit_chunked(server: &TestServer, target: &str, chunks: &[&str]) -> Response {
    let headers = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")];
    let mut request = head("POST", target, &server.address.to_string(), &headers, "close");
    for chunk in chunks {
        request.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    }
    request.push_str("0\r\n\r\n");
    exchange(TcpStream::connect(server.address).await.unwrap(), "POST", request.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunked_body_is_forwarded_whole_or_not_at_all() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.pass_through = PassThrough::All;
        config.limits.pass_through_body_bytes_max = 4096;
    })
    .await;
    let map =
        |name: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}}).to_string();
    let small = map("small");
    let (begin, end) = small.split_at(20);
    let made = submit_chunked(&server, CONFIG_MAPS, &[begin, end]).await;
    assert_eq!(made.status(), 201, "{}", made.text());
    assert!(server.cluster.get("configmaps", "default", "small").is_some());
    // JSON followed by blanks: the part within the limit would be a valid object.
    let large = submit_chunked(&server, CONFIG_MAPS, &[&map("large"), &" ".repeat(4096)]).await;
    status(&large, 413, "RequestEntityTooLarge");
    assert!(server.cluster.get("configmaps", "default", "large").is_none());
}

/// Reads until the text has arrived.
async fn read_until(socket: &mut TcpStream, text: &str) -> String {
    let mut bytes = Vec::new();
    in_time(text, async {
        while !String::from_utf8_lossy(&bytes).contains(text) {
            assert!(socket.read_buf(&mut bytes).await.unwrap() > 0, "it ends");
        }
    })
    .await;
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_forwarded_as_it_arrives_and_ends_with_its_client() {
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let source = UpstreamSource::Server { url: format!("http://{}", listener.local_addr().unwrap()) };
    let mut config = serve_config(source, &["pods"]);
    config.pass_through = PassThrough::All;
    let server = Informerd::start_unsynced(config).await;
    for is_whole in [true, false] {
        let headers = [("Content-Type", "application/json"), ("Content-Length", "10")];
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let request =
            head("PUT", &format!("{CONFIG_MAPS}/a"), &server.address.to_string(), &headers, "close");
        client.write_all(format!("{request}first").as_bytes()).await.unwrap();
        let (mut socket, head) = request_with(&listener, "PUT ").await;
        assert!(head.to_ascii_lowercase().contains("content-length: 10\r\n"), "{head}");
        // Only the first half is sent so far.
        assert_eq!(read_until(&mut socket, "first").await, "first");
        if is_whole {
            client.write_all(b"after").await.unwrap();
            assert_eq!(read_until(&mut socket, "after").await, "after");
            let end = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            socket.write_all(end).await.unwrap();
            let answer = read_until(&mut client, "{}").await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        } else {
            drop(client);
            let mut rest = Vec::new();
            // The connection may also end in a reset.
            let _ = in_time("the request's end", socket.read_to_end(&mut rest)).await;
            assert!(rest.is_empty(), "a body that broke off must not look whole");
        }
    }
}

/// Reads the head of a request.
async fn asked(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // Byte by byte, as the body must stay unread.
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(socket.read_u8().await.expect("a whole head"));
    }
    String::from_utf8(bytes).unwrap()
}

/// Accepts requests until one contains this text; the others are answered with 404.
async fn request_with(listener: &TcpListener, text: &str) -> (TcpStream, String) {
    in_time("a request", async {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let head = asked(&mut socket).await;
            if head.contains(text) {
                return (socket, head);
            }
            let nothing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            socket.write_all(nothing).await.unwrap();
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn client_credentials_are_not_forwarded_and_a_disconnect_ends_the_request() {
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let source = UpstreamSource::Server { url: format!("http://{}", listener.local_addr().unwrap()) };
    let mut config = serve_config(source, &["pods"]);
    config.pass_through = PassThrough::Reads;
    config.limits.pass_through_max = 1;
    let server = Informerd::start_unsynced(config).await;
    let target = format!("{DEFAULT_PODS}/a/log?follow=true&timeoutSeconds=7");
    let headers = [
        ("Accept", "text/plain"),
        ("Authorization", "Bearer secret"),
        ("Impersonate-User", "admin"),
        ("Impersonate-Group", "system:masters"),
        ("X-Remote-User", "admin"),
        ("X-Forwarded-For", "1.2.3.4"),
        ("Cookie", "secret=1"),
        ("Proxy-Authorization", "Basic secret"),
        ("TE", "trailers"),
    ];
    let mut client = TcpStream::connect(server.address).await.unwrap();
    let request = head("GET", &target, &server.address.to_string(), &headers, "keep-alive");
    client.write_all(request.as_bytes()).await.unwrap();
    let (mut socket, head) = request_with(&listener, "/log?").await;
    assert!(head.starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{head}");
    let lower = head.to_ascii_lowercase();
    assert!(lower.contains("accept: text/plain\r\n") && lower.contains("user-agent: informerd/"), "{head}");
    for leaked in ["secret", "admin", "impersonate", "masters", "1.2.3.4", "authorization", "cookie", "te: "]
    {
        assert!(!lower.contains(leaked), "{leaked} in {head}");
    }
    // The first line arrives before the response ends.
    let begin = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nSet-Cookie: theirs=1\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nline 1\r\n";
    socket.write_all(begin).await.unwrap();
    let mut answer = Vec::new();
    in_time("the first line", async {
        while !answer.ends_with(b"line 1\r\n") {
            assert!(client.read_buf(&mut answer).await.unwrap() > 0, "it ends");
        }
    })
    .await;
    let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(answer.contains("content-type: text/plain\r\n") && !answer.contains("set-cookie"), "{answer}");
    // The only place for a forwarded request is taken.
    let refused = status(&server.get(&target).await, 503, "ServiceUnavailable");
    assert!(refused["message"].as_str().unwrap().contains("all 1 requests"), "{refused}");
    drop(client);
    let mut rest = Vec::new();
    // The connection may also end in a reset.
    let _ = in_time("the request's end", socket.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
    // The place is free again.
    let (answer, ()) = tokio::join!(
        async {
            loop {
                let answer = server.get(&target).await;
                if answer.status() != 503 {
                    break answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        },
        async {
            let (mut socket, _) = request_with(&listener, "/log?").await;
            let end = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone";
            socket.write_all(end).await.unwrap();
        }
    );
    assert_eq!((answer.status(), answer.text()), (200, "done"));
    drop(listener);
    status(&server.get(&target).await, 502, "BadGateway");
}
