//! Requests to a complete informerd: each answer is the requested content or a Status that names the error.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;

use super::engine::Target;
use super::server::{PODS, get, send};

/// The limit, as configured.
const URL_BYTES_MAX: usize = 8 << 10;

const SNAPSHOT: [&str; 10] = [
    "labelSelector",
    "fieldSelector",
    "namespace",
    "where",
    "fields",
    "resourceVersion",
    "timeoutSeconds",
    "limit",
    "continue",
    "join",
];
const WATCH: [&str; 14] = [
    "labelSelector",
    "fieldSelector",
    "namespace",
    "where",
    "fields",
    "changed",
    "patch",
    "coalesceMs",
    "join",
    "resume",
    "transport",
    "sendInitialEvents",
    "timeoutSeconds",
    "resyncSeconds",
];
const INDEX: [&str; 6] = ["labelSelector", "fieldSelector", "namespace", "where", "fields", "value"];
const GRAPH: [&str; 6] = ["labelSelector", "fieldSelector", "namespace", "where", "depth", "direction"];
const WATCH_GRAPH: [&str; 9] = [
    "labelSelector",
    "fieldSelector",
    "namespace",
    "where",
    "depth",
    "direction",
    "coalesceMs",
    "timeoutSeconds",
    "transport",
];
const WATCH_INDEX: [&str; 3] = ["coalesceMs", "timeoutSeconds", "transport"];

/// The routes, each with all its parameters.
const ROUTES: [(&str, &[&str]); 6] = [
    ("/v1/snapshot/", &SNAPSHOT),
    ("/v1/watch/", &WATCH),
    ("/v1/index/", &INDEX),
    ("/v1/graph/", &GRAPH),
    ("/v1/watch-graph/", &WATCH_GRAPH),
    ("/v1/watch-index/", &WATCH_INDEX),
];

/// Decodes `%41` and `+`; `None` if the result is not text.
fn decode(text: &[u8]) -> Option<String> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let digits = text.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (text[at], digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                at += 2;
            }
            (b'+', _) => bytes.push(b' '),
            (other, _) => bytes.push(other),
        }
        at += 1;
    }
    String::from_utf8(bytes).ok()
}

/// The answer that a target must get, as far as its query decides it.
enum Verdict {
    /// A parameter is unknown, given twice, or not text.
    Refused,
    Unknown,
    /// The request would wait, which other tests cover.
    Waits,
}

fn verdict(target: &str, known: &[&str]) -> Verdict {
    let query = target.split('#').next().unwrap_or("").split_once('?').map_or("", |(_, query)| query);
    let mut pairs: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (decode(name.as_bytes()), decode(value.as_bytes())) else {
            return Verdict::Refused;
        };
        let twice = !matches!(&*name, "namespace" | "value") && pairs.iter().any(|(other, _)| *other == name);
        if !known.contains(&&*name) || twice {
            return Verdict::Refused;
        }
        pairs.push((name, value));
    }
    let given = |wanted: &str| pairs.iter().find(|(name, _)| name == wanted).map(|(_, value)| &**value);
    if given("resourceVersion").is_some() && given("timeoutSeconds") != Some("0") {
        return Verdict::Waits;
    }
    Verdict::Unknown
}

fn check_target(input: &[u8]) {
    let text = String::from_utf8_lossy(input).into_owned();
    let route = |prefix: &str| {
        text.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['?', '#']))
    };
    let known = ROUTES.into_iter().find(|(prefix, _)| route(prefix)).map(|(_, known)| known);
    let verdict = known.map_or(Verdict::Unknown, |known| verdict(&text, known));
    if matches!(verdict, Verdict::Waits) {
        return;
    }
    let answer = get(input, b"Host: localhost\r\n");
    let is_target = std::str::from_utf8(input).is_ok_and(|text| {
        text.starts_with('/')
            && text.bytes().all(|byte| byte.is_ascii_graphic())
            && text.parse::<http::Uri>().is_ok()
    });
    if !is_target && answer.body.is_empty() {
        // An input that is not a request is refused by the HTTP parser, which does not know Kubernetes' Status.
        assert!(matches!(answer.code, 0 | 400 | 414 | 431 | 505), "{}", answer.code);
        return;
    }
    let waited = text.contains("esource") && answer.code == 504;
    match answer.code {
        200 => {
            assert!(!matches!(verdict, Verdict::Refused), "an invalid query was accepted");
            assert!(input.len() <= URL_BYTES_MAX);
        }
        400 | 404 | 406 | 410 | 414 => answer.is_a_status(),
        // Routes for other methods, or for WebSockets only.
        405 if text.starts_with("/v1/queues") => answer.is_a_status(),
        426 if text.starts_with("/v1/ws") => answer.is_a_status(),
        // The target names another host than the Host header.
        403 if !text.starts_with('/') => answer.is_a_status(),
        // Kubernetes' code for options that exclude each other.
        422 if text.starts_with("/api") => answer.is_a_status(),
        _ => {
            assert!(waited, "answered with {}", answer.code);
            answer.is_a_status();
        }
    }
    if matches!(verdict, Verdict::Refused) && is_target && text.len() <= URL_BYTES_MAX {
        assert_eq!(answer.code, 400);
    }
    // An error message must not be many times as long as the request.
    let allowed = 4096 + 12 * input.len();
    assert!(answer.code == 200 || answer.body.len() <= allowed, "{} bytes say it", answer.body.len());
}

/// Sends header lines with requests for a snapshot and for a watch.
fn check_headers(input: &[u8]) {
    let mut headers = Vec::new();
    for line in input.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty()) {
        headers.extend_from_slice(line);
        headers.extend_from_slice(b"\r\n");
    }
    if !headers.to_ascii_lowercase().windows(5).any(|five| five == b"host:") {
        headers.extend_from_slice(b"Host: localhost\r\n");
    }
    for target in ["/v1/snapshot/pods?limit=2", "/v1/watch/pods?timeoutSeconds=1"] {
        let answer = get(target.as_bytes(), &headers);
        match answer.code {
            101 | 200 | 304 => {}
            // Refused by the HTTP parser.
            0 | 400 | 431 if answer.body.is_empty() => {}
            400 | 403 | 406 | 431 => answer.is_a_status(),
            code => panic!("answered with {code}"),
        }
    }
}

/// Sends any bytes in place of a request.
fn check_bytes(input: &[u8]) {
    let answer = send(input);
    assert!(answer.code < 500 || answer.code == 505, "answered with {}", answer.code);
}

/// Checks a continue token. `$ID` and `$REQUEST` stand for the parts of a valid token.
fn check_continue(input: &[u8]) {
    let first = get(b"/v1/snapshot/pods?limit=2", b"Host: localhost\r\n").json();
    let good = first["metadata"]["continue"].as_str().expect("there are more pages").to_owned();
    let decoded: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&good).unwrap()).unwrap();
    let text = String::from_utf8_lossy(input).into_owned();
    let text =
        text.replace("$ID", &decoded["id"].to_string()).replace("$REQUEST", &decoded["request"].to_string());
    for token in [
        URL_SAFE_NO_PAD.encode(&text),
        percent_encoding::utf8_percent_encode(&text, percent_encoding::NON_ALPHANUMERIC).to_string(),
    ] {
        let target = format!("/v1/snapshot/pods?limit=2&continue={token}");
        let answer = get(target.as_bytes(), b"Host: localhost\r\n");
        match answer.code {
            200 => {
                let page = answer.json();
                let items = page["items"].as_array().unwrap();
                assert!(items.len() <= 2 && page["kind"] == "PodList", "{page}");
                if text.is_empty() {
                    assert_eq!(page["items"], first["items"], "without a token the first page is served");
                }
                let after: Option<(String, String)> = serde_json::from_str::<serde_json::Value>(&text)
                    .ok()
                    .and_then(|token| serde_json::from_value(token["after"].clone()).ok());
                if let Some((namespace, name)) = after {
                    let after = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
                    for item in items {
                        let meta = &item["metadata"];
                        let key = format!(
                            "{}/{}",
                            meta["namespace"].as_str().unwrap(),
                            meta["name"].as_str().unwrap()
                        );
                        assert!(key > after, "{key} is not after {after}");
                    }
                }
            }
            400 | 410 | 414 => answer.is_a_status(),
            code => panic!("answered with {code}"),
        }
    }
}

const TARGET_TOKENS: &[&str] = &[
    "/v1/snapshot/",
    "/v1/watch/",
    "/v1/index/",
    "/v1/watch-graph/",
    "/v1/watch-index/",
    "/v1/world/",
    "/v1/graph/",
    "/v1/queues/",
    "/v1/ws",
    "pods",
    "po",
    "deployments.apps",
    "deployments.v1.apps",
    "nodes",
    "nope",
    ",",
    "/",
    "//",
    "..",
    "default",
    "?",
    "&",
    "=",
    "&&",
    "+",
    "%",
    "%2F",
    "%252F",
    "%2C",
    "%00",
    "%0A",
    "%ff",
    "%zz",
    "%C3%A9",
    "#",
    ";",
    "labelSelector=",
    "fieldSelector=",
    "namespace=default",
    "namespace=",
    "resourceVersion=0&timeoutSeconds=0",
    "resourceVersion=99999999999999999999&timeoutSeconds=0",
    "resourceVersion=abc&timeoutSeconds=0",
    "timeoutSeconds=0",
    "timeoutSeconds=-1",
    "limit=1",
    "limit=18446744073709551616",
    "continue=x",
    "resume=pods:1",
    "resume=pods:340282366920938463463374607431768211456",
    "resume=x",
    "transport=sse",
    "transport=ndjson",
    "transport=websocket",
    "sendInitialEvents=false",
    "resyncSeconds=1",
    "fields=metadata.name,status.phase",
    "fields=.",
    "changed=status",
    "changed=",
    "where=object.spec.nodeName%20!=%20%27%27",
    "where=object.",
    "where=1",
    "patch=merge",
    "patch=json",
    "coalesceMs=0",
    "coalesceMs=100",
    "value=n1",
    "state=full",
    "depth=2",
    "direction=both",
    "join=owners,nodes",
    "join=nope",
    "spec.nodeName",
    "metadata.labels.app",
    "a%3Db",
    "a+in+(b,c)",
    "metadata.name%3Dpod-1",
    "unknown=1",
    "watch=1",
];

#[test]
fn any_target_is_answered_or_refused_with_a_status() {
    let target = Target { name: "target", tokens: TARGET_TOKENS, check: &check_target };
    target.run(2);
    let names = prop_oneof![8 => prop::sample::select(ROUTES.map(|(_, known)| known).concat()), 1 => Just("unknown"), 1 => Just("l%69mit")];
    let value = prop::sample::select(
        &[
            "",
            "0",
            "1",
            "-1",
            "abc",
            "true",
            "a%3Db",
            "%ff",
            "pods:0",
            "web",
            "sse",
            "metadata.name%3Da",
            "status.phase",
            "merge",
            "object.metadata.name%3D%3D%27a%27",
        ][..],
    );
    let query = prop::collection::vec((names, value), 0..4);
    let path = prop::sample::select(
        &[
            "pods",
            "pods/web",
            "pods/web/pod-1",
            "nodes/x",
            "pods,nodes",
            "deploy.apps",
            "nope",
            "pods/",
            "pods//x",
            "%70ods",
            "pods,pods",
            "pods/%ff",
            "pods/spec.nodeName",
            "pods/metadata.labels.app",
            "pods/spec.nodeName/n1",
        ][..],
    );
    let routes = prop::sample::select(ROUTES.map(|(route, _)| route).to_vec());
    let targets = (routes, path, query).prop_map(|(route, path, query)| {
        let query: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{route}{path}?{}", query.join("&"))
    });
    target.generate(targets, 2);
}

#[test]
fn any_header_is_taken_or_refused_with_a_status() {
    let tokens = &[
        "Accept: ",
        "Accept-Encoding: ",
        "Last-Event-ID: ",
        "If-None-Match: ",
        "Host: localhost",
        "Host: evil.example",
        "Origin: ",
        "Range: bytes=0-1",
        "Connection: upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: x",
        "text/event-stream",
        "application/json",
        "application/x-ndjson",
        "*/*",
        ";q=0",
        ";q=NaN",
        ";q=1e99",
        ",",
        "W/\"",
        "\"",
        "*",
        "pods:1",
        "\n",
        ":",
        " ",
        "\t",
        "é",
        "\0",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
        "gzip",
        "zstd;q=-1",
        "br",
    ];
    Target { name: "headers", tokens, check: &check_headers }.run(4);
}

#[test]
fn no_bytes_stop_the_server() {
    let tokens = &[
        "GET ",
        "HEAD ",
        "POST ",
        "OPTIONS ",
        "/v1/snapshot/pods?limit=1",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        " HTTP/2.0\r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "Host: localhost\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "Connection: close\r\n",
        ":",
        "\0",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "http://localhost/",
        "*",
        "localhost:1",
    ];
    Target { name: "request", tokens, check: &check_bytes }.run(4);
    let answer = get(b"/v1/snapshot/pods", b"Host: localhost\r\n").json();
    assert_eq!(answer["items"].as_array().map(Vec::len), Some(PODS));
}

#[test]
fn any_continue_token_gives_a_page_or_is_refused() {
    let tokens = &[
        "$ID",
        "$REQUEST",
        "\"id\":",
        "\"source\":",
        "\"after\":",
        "\"request\":",
        "null",
        "0",
        "1",
        "-1",
        "18446744073709551615",
        "[\"default\",\"pod-2\"]",
        "[\"\",\"\"]",
        "[\"zzz\",\"\"]",
        "[\"web\",\"\\u0000\"]",
        "[\"a/b\",\"c/d\"]",
        "{",
        "}",
        ",",
        "\"",
        "é",
        "\u{10ffff}",
    ];
    Target { name: "continue", tokens, check: &check_continue }.run(8);
}
