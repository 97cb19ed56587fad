//! Access to the listeners: hosts and origins, Unix sockets, probes, metrics, the OpenAPI document.

use std::collections::{BTreeMap, BTreeSet};

use informerd::testing::config::{DeclaredQueues, Value as _};
use informerd::testing::config::{HostName, Listen, Origin};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};

use crate::support::client::{self, Response, exchange, get, head, request};
use crate::support::server::TestServer;
use crate::support::{eventually, mk_pod};

const SNAPSHOT: &str = "/v1/snapshot/pods";

#[tokio::test(flavor = "multi_thread")]
async fn host_names_that_dns_could_point_here_are_refused_on_the_loopback() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.allow_hosts = vec!["informerd.internal".parse::<HostName>().unwrap()];
    })
    .await;
    for (host, code) in [
        ("localhost", 200),
        ("localhost:8090", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("informerd.internal", 200),
        ("informerd.internal:8090", 200),
        ("evil.example", 403),
        ("evil.example:8090", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.nip.io", 403),
    ] {
        for path in [SNAPSHOT, "/v1/resources", "/", "/openapi.json"] {
            let answer = server.get_with(path, &[("Host", host)]).await;
            assert_eq!(answer.status(), code, "{host} {path}");
        }
    }
    let refused = server.get_with(SNAPSHOT, &[("Host", "evil.example")]).await.json();
    assert_eq!((&refused["kind"], &refused["reason"]), (&json!("Status"), &json!("Forbidden")));
    assert!(refused["message"].as_str().unwrap().contains("--allow-host"), "{refused}");
    let probe = get(server.admin, "/livez", &[("Host", "pod-ip.example")]).await;
    assert_eq!(probe.status(), 200, "a probe may use any host");
    for (host, code) in [("evil.example", 403), ("informerd.internal", 200), ("10.0.0.1:8091", 200)] {
        assert_eq!(get(server.admin, "/metrics", &[("Host", host)]).await.status(), code, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_names_within_a_cluster_and_without_a_dot_are_served() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.allow_hosts = vec!["*.apps.example".parse::<HostName>().unwrap()];
    })
    .await;
    for (host, code) in [
        ("informerd", 200),
        ("informerd:8090", 200),
        ("informerd.web.svc:8090", 200),
        ("informerd.web.svc.cluster.local", 200),
        ("informerd.apps.example", 200),
        ("apps.example", 403),
        // A namespace may have the name of a top-level domain.
        ("informerd.dev", 403),
        ("informerd.web.svc.evil.example", 403),
    ] {
        let answer = server.get_with(SNAPSHOT, &[("Host", host)]).await;
        assert_eq!(answer.status(), code, "{host}");
    }
    let refused = server.get_with(SNAPSHOT, &[("Host", "informerd.dev:8090")]).await.json();
    assert!(refused["message"].as_str().unwrap().contains("--allow-host informerd.dev "), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_no_host_or_two_hosts_is_refused() {
    let server = TestServer::start(&["pods"]).await;
    for (first, host, code) in [
        ("GET /v1/snapshot/pods HTTP/1.1", &b""[..], 400),
        ("GET /v1/snapshot/pods HTTP/1.1", b"Host:\r\n", 400),
        ("GET /v1/snapshot/pods HTTP/1.1", b"Host: localhost\r\nHost: localhost\r\n", 400),
        ("GET /v1/snapshot/pods HTTP/1.1", b"Host: caf\xc3\xa9\r\n", 400),
        ("GET /v1/snapshot/pods HTTP/1.1", b"Host: localhost, evil.example\r\n", 400),
        ("GET /v1/snapshot/pods HTTP/1.1", b"Host: user@localhost\r\n", 400),
        ("GET http://evil.example/v1/snapshot/pods HTTP/1.1", b"Host: localhost\r\n", 403),
        ("GET http://evil.example/v1/snapshot/pods HTTP/1.1", b"Host: evil.example\r\n", 403),
        ("GET http://localhost/v1/snapshot/pods HTTP/1.1", b"", 400),
        ("GET http://localhost/v1/snapshot/pods HTTP/1.1", b"Host: localhost\r\n", 200),
        // HTTP/1.0, which no browser speaks, needs no Host. Its Origin then cannot be informerd's own.
        ("GET /v1/snapshot/pods HTTP/1.0", b"", 200),
        ("GET /v1/snapshot/pods HTTP/1.0", b"Origin: http://\r\n", 403),
    ] {
        let request = [first.as_bytes(), b"\r\nConnection: close\r\n", host, b"\r\n"].concat();
        let socket = TcpStream::connect(server.address).await.unwrap();
        let answer = exchange(socket, "GET", &request).await;
        assert_eq!(answer.status(), code, "{}", String::from_utf8_lossy(&request));
        if code != 200 {
            assert_eq!(answer.json()["kind"], "Status");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_is_refused_unless_it_is_allowed() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.allow_origins = vec!["https://app.example".parse::<Origin>().unwrap()];
    })
    .await;
    for path in [SNAPSHOT, "/v1/watch/pods?timeoutSeconds=1", "/v1/resources"] {
        for origin in
            ["https://evil.example", "null", "http://app.example", "https://app.example.evil.example"]
        {
            let refused = server.get_with(path, &[("Origin", origin)]).await;
            assert_eq!(refused.status(), 403, "{origin} {path}");
            assert_eq!(refused.header("access-control-allow-origin"), None);
        }
        let allowed = server.get_with(path, &[("Origin", "https://app.example")]).await;
        assert_eq!(allowed.status(), 200, "{path}");
        let header = |name| allowed.header(name).unwrap_or_default();
        assert_eq!(header("access-control-allow-origin"), "https://app.example");
        assert!(header("vary").contains("Origin"), "{}", allowed.head);
        assert!(header("access-control-expose-headers").contains("informerd-resume"));
        let own = format!("http://{}", server.address);
        assert_eq!(server.get_with(path, &[("Origin", &own)]).await.status(), 200, "its own page");
    }
    let asks = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "GET")];
    let preflight = request(server.address, "OPTIONS", SNAPSHOT, &asks).await;
    assert_eq!(preflight.status(), 204);
    assert_eq!(preflight.header("access-control-allow-methods").as_deref(), Some("GET, HEAD"));
    let headers = preflight.header("access-control-allow-headers").unwrap();
    assert!(headers.contains("last-event-id") && headers.contains("if-none-match"), "{headers}");
    let asks = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "GET")];
    assert_eq!(request(server.address, "OPTIONS", SNAPSHOT, &asks).await.status(), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sites_may_only_link_to_the_dashboard_and_metrics() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.allow_origins = vec!["https://app.example".parse::<Origin>().unwrap()];
    })
    .await;
    for path in
        [SNAPSHOT, "/v1/watch/pods?timeoutSeconds=1", "/v1/resources", "/api/v1/pods", "/openapi.json"]
    {
        for (site, code) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
            for mode in ["no-cors", "navigate"] {
                let headers = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode)];
                let answer = server.get_with(path, &headers).await;
                assert_eq!(answer.status(), code, "{site} {mode} {path}");
            }
        }
        let allowed = [("Sec-Fetch-Site", "cross-site"), ("Origin", "https://app.example")];
        assert_eq!(server.get_with(path, &allowed).await.status(), 200, "{path}");
    }
    let link = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")];
    assert_eq!(server.get_with("/", &link).await.status(), 200);
    // Prometheus' page of targets links to the metrics.
    assert_eq!(get(server.admin, "/metrics", &link).await.status(), 200);
    let image = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")];
    assert_eq!(get(server.admin, "/metrics", &image).await.status(), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_dashboard_may_run_scripts_in_a_browser() {
    let server = TestServer::start(&["pods"]).await;
    let policy = |answer: &Response| answer.header("content-security-policy");
    for path in
        [SNAPSHOT, "/v1/watch/pods?timeoutSeconds=1", "/v1/resources", "/api/v1/pods", "/none", "/a/%2e%2e/b"]
    {
        let answer = server.get(path).await;
        assert_eq!(policy(&answer).as_deref(), Some("sandbox"), "{path}");
        assert_eq!(answer.header("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
    }
    let page = server.get("/").await;
    assert!(policy(&page).unwrap().contains("script-src 'self'"), "{}", page.head);
    assert_eq!(server.get("/a/%2e%2e/b").await.status(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_serves_the_same_interface() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("informerd.sock");
    // A socket left behind by a killed process is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut server =
        TestServer::start_with(&["pods"], |config| config.listen = Listen::Unix(path.clone())).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let get = async |target: &str, host: &str| -> Response {
        let socket = UnixStream::connect(&path).await.unwrap();
        exchange(socket, "GET", head("GET", target, host, &[], "close").as_bytes()).await
    };
    let list = get(SNAPSHOT, "localhost").await;
    assert_eq!((list.status(), list.json()["items"].as_array().unwrap().len()), (200, 1));
    let stream = get("/v1/watch/pods?timeoutSeconds=1", "localhost").await;
    assert!(stream.complete && stream.text().starts_with("event: ADDED\nid: pods:0\n"), "{}", stream.text());
    assert_eq!(get(SNAPSHOT, "evil.example").await.status(), 403);
    server.stop().await;
    assert!(!path.exists(), "the socket was not removed at shutdown");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_report_each_check_by_name() {
    let mut server = TestServer::start_with(&["pods", "services"], |config| {
        config.unready_after = Some(std::time::Duration::from_secs(3600));
    })
    .await;
    let probe = async |path: &str| {
        let answer = get(server.admin, path, &[]).await;
        (answer.status(), answer.text().to_owned())
    };
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(probe(path).await, (200, "ok".to_owned()), "{path}");
        let (code, text) = probe(&format!("{path}?quiet")).await;
        assert_eq!((code, text.contains("quiet: unknown parameter")), (400, true), "{path}");
    }
    let verbose = "[+]shutdown ok\n[+]informer/pods ok\n[+]informer/services ok\nreadyz check passed\n";
    assert_eq!(probe("/readyz?verbose").await, (200, verbose.to_owned()));
    assert!(probe("/healthz?verbose").await.1.ends_with("\nhealthz check passed\n"));
    assert_eq!(probe("/livez?verbose").await, (200, "[+]ping ok\nlivez check passed\n".to_owned()));
    assert_eq!(probe("/v1/snapshot/pods").await.0, 404, "no data on the admin listener");
    assert_eq!(request(server.admin, "POST", "/livez", &[]).await.status(), 405);
    // Without an API server a new process is live, says why it is not ready, and serves no data.
    server.stop().await;
    server.api.stop().await;
    server.revive().await;
    assert_eq!(get(server.admin, "/livez", &[]).await.status(), 200);
    let unready = get(server.admin, "/readyz", &[]).await;
    assert_eq!(unready.status(), 503);
    assert!(unready.text().contains("[-]informer/pods failed: "), "{}", unready.text());
    assert!(unready.text().ends_with("readyz check failed\n"));
    server.api.start().await.unwrap();
    server.synced().await;
    assert_eq!(get(server.admin, "/readyz", &[]).await.text(), "ok");
}

/// The series of a page in the Prometheus text format, by name and labels. Panics if the page is not valid.
fn series(page: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped: BTreeSet<&str> = BTreeSet::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (keyword, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(matches!(keyword, "HELP" | "TYPE"), "{line}");
            if keyword == "HELP" {
                assert!(helped.insert(name), "{name} has its help twice");
            } else {
                let kind = words.next().unwrap();
                assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
                assert!(types.insert(name, kind).is_none(), "{name} has its type twice");
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let family = name.split('{').next().unwrap();
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| family.strip_suffix(suffix));
        let known =
            types.contains_key(family) || stem.is_some_and(|stem| types.get(stem) == Some(&"histogram"));
        assert!(known, "{line} has no type");
        let helps = |name: &str| helped.contains(name);
        assert!(helps(family) || stem.is_some_and(helps), "{line} has no help");
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        assert!(family.chars().all(plain), "{line}");
        assert!(series.insert(name.to_owned(), value).is_none(), "{name} occurs twice");
    }
    series
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_prometheus_text_without_a_series_twice() {
    let server = TestServer::start(&["configmaps"]).await;
    server.get("/v1/snapshot/configmaps").await;
    server.get("/v1/snapshot/none").await;
    let _stream = client::Stream::sse(server.address, "/v1/watch/configmaps", None).await.unwrap();
    let page = get(server.admin, "/metrics", &[]).await;
    assert_eq!(page.header("content-type").as_deref(), Some("text/plain; version=0.0.4; charset=utf-8"));
    let readme = include_str!("../../README.md");
    for name in page.text().lines().filter_map(|line| line.strip_prefix("# TYPE informerd_")) {
        let name = format!("informerd_{}", name.split(' ').next().unwrap());
        assert!(readme.contains(&name), "{name} is served, but the README names another one or none");
    }
    let series = series(page.text());
    for (name, least) in [
        (r#"informerd_cache_synced{resource="configmaps"}"#, 1.0),
        (r#"informerd_cache_subscribers{resource="configmaps"}"#, 1.0),
        (r#"informerd_http_requests_total{route="snapshot",method="GET",code="200"}"#, 1.0),
        (r#"informerd_http_requests_total{route="snapshot",method="GET",code="404"}"#, 1.0),
        (r#"informerd_http_streams{transport="sse"}"#, 1.0),
        ("informerd_http_connections", 1.0),
        ("informerd_hub_subscribers", 0.0),
        (r#"informerd_hub_resets_total{reason="TokenTooOld"}"#, 0.0),
        (r#"informerd_http_limit_hits_total{limit="connections_max"}"#, 0.0),
        ("informerd_http_write_stalls_total", 0.0),
        ("process_open_fds", 1.0),
    ] {
        let found = series.get(name).unwrap_or_else(|| panic!("{name} not in\n{}", page.text()));
        assert!(*found >= least, "{name} is {found}");
    }
}

/// Runs `promtool check metrics` over a page.
fn check_by_promtool(page: &str) {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = match command.spawn() {
        Ok(promtool) => promtool,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no promtool; apt-get install prometheus");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && told.is_empty(), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    let server = TestServer::start(&["configmaps", "pods"]).await;
    server.get("/v1/snapshot/configmaps").await;
    server.get("/api/v1/pods").await;
    let _stream = client::Stream::sse(server.address, "/v1/watch/configmaps", None).await.unwrap();
    let page = get(server.admin, "/metrics", &[]).await.text().to_owned();
    tokio::task::spawn_blocking(move || check_by_promtool(&page)).await.unwrap();
}

/// The query parameters of a path in the OpenAPI document.
fn documented(document: &Value, path: &str) -> BTreeSet<String> {
    let parameters = document["paths"][path]["get"]["parameters"].as_array().cloned().unwrap_or_default();
    let whole = parameters.iter().map(|parameter| match parameter["$ref"].as_str() {
        Some(pointer) => document.pointer(pointer.trim_start_matches('#')).unwrap(),
        None => parameter,
    });
    let query = whole.filter(|parameter| parameter["in"] == "query");
    query
        .map(|parameter| {
            assert!(parameter["schema"].is_object() && parameter["description"].is_string(), "{parameter}");
            parameter["name"].as_str().unwrap().to_owned()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_document_lists_exactly_the_accepted_parameters() {
    let queue = r#"q={"watch":[{"resource":"pods"}]}"#.to_owned();
    let queues = DeclaredQueues::from_texts(&[queue]).unwrap().plain();
    let server = TestServer::start_with(&["pods"], |config| config.queues = queues).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let document = server.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    for (documented_as, address, path) in [
        ("/v1/snapshot/{resources}", server.address, SNAPSHOT),
        ("/v1/snapshot/{resources}/{namespace}", server.address, "/v1/snapshot/pods/default"),
        ("/v1/snapshot/{resources}/{namespace}/{name}", server.address, "/v1/snapshot/pods/default/a"),
        ("/v1/watch/{resources}", server.address, "/v1/watch/pods"),
        ("/v1/watch/{resources}/{namespace}", server.address, "/v1/watch/pods/default"),
        ("/v1/watch/{resources}/{namespace}/{name}", server.address, "/v1/watch/pods/default/a"),
        ("/v1/world/{resources}", server.address, "/v1/world/pods"),
        ("/v1/world/{resources}/{namespace}", server.address, "/v1/world/pods/default"),
        ("/v1/world/{resources}/{namespace}/{name}", server.address, "/v1/world/pods/default/a"),
        ("/v1/graph/{resources}", server.address, "/v1/graph/pods"),
        ("/v1/graph/{resources}/{namespace}", server.address, "/v1/graph/pods/default"),
        ("/v1/graph/{resources}/{namespace}/{name}", server.address, "/v1/graph/pods/default/a"),
        ("/v1/index/{resource}/{path}", server.address, "/v1/index/pods/spec.nodeName"),
        ("/v1/watch-graph/{resources}", server.address, "/v1/watch-graph/pods"),
        ("/v1/watch-graph/{resources}/{namespace}", server.address, "/v1/watch-graph/pods/default"),
        ("/v1/watch-graph/{resources}/{namespace}/{name}", server.address, "/v1/watch-graph/pods/default/a"),
        ("/v1/watch-index/{resource}/{path}", server.address, "/v1/watch-index/pods/spec.nodeName"),
        ("/v1/resources", server.address, "/v1/resources"),
        ("/v1/queues", server.address, "/v1/queues"),
        ("/v1/queues/{queue}", server.address, "/v1/queues/q"),
        ("/livez", server.admin, "/livez"),
        ("/readyz", server.admin, "/readyz"),
        ("/healthz", server.admin, "/healthz"),
    ] {
        let refused = get(address, &format!("{path}?nonsense=1"), &[]).await.json();
        let message = refused["message"].as_str().unwrap().to_owned();
        let mut accepted: BTreeSet<_> = match message.rsplit_once("accepted are ") {
            Some((_, accepted)) => accepted.split(", ").map(str::to_owned).collect(),
            None => {
                assert!(message.ends_with("; the path has no parameters"), "{message}");
                BTreeSet::new()
            }
        };
        // A path has one namespace; the query may have several.
        if documented_as.contains("{namespace}") {
            accepted.remove("namespace");
        }
        assert_eq!(documented(&document, documented_as), accepted, "{documented_as}");
    }
    let filled = [
        ("{resources}", "pods"),
        ("{namespace}", "default"),
        ("{name}", "a"),
        ("{resource}", "pods"),
        ("{path}", "spec.nodeName"),
        ("{value}", "node-1"),
        ("{queue}", "q"),
    ];
    for (path, item) in document["paths"].as_object().unwrap() {
        let address = if item["get"]["tags"][0] == "admin" { server.admin } else { server.address };
        let target = filled.iter().fold(path.clone(), |path, (segment, value)| path.replace(segment, value));
        let answer = request(address, "HEAD", &target, &[]).await;
        // Only a WebSocket needs more than a plain request.
        let get = &item["get"];
        let (method, status) = if get.is_null() {
            ("post", 405)
        } else if get["responses"]["200"].is_null() {
            ("get", 426)
        } else {
            ("get", 200)
        };
        assert_eq!(answer.status(), status, "{path} is not served");
        assert!(item[method]["operationId"].is_string(), "{path} has no name for generators");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reference_in_the_openapi_document_resolves() {
    let server = TestServer::start(&["pods"]).await;
    let answer = server.get("/openapi.json").await;
    let document = answer.json();
    for (at, _) in answer.text().match_indices("\"#/") {
        let pointer = answer.text()[at + 2..].split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    let tag = answer.header("etag").unwrap();
    let same = server.get_with("/openapi.json", &[("If-None-Match", &tag)]).await;
    assert_eq!((same.status(), same.body.len()), (304, 0));
    // Every field that `/v1/resources` shows of an informer is described.
    let informer = &server.get("/v1/resources").await.json()["informers"][0];
    let described = &document["components"]["schemas"]["Informer"]["properties"];
    for field in informer.as_object().unwrap().keys() {
        assert!(described[field].is_object(), "{field}");
    }
    eventually("the end of all subscriptions", || server.hub.subscribers() == 0).await;
}
