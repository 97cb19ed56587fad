//! Streams with `Content-Encoding`. Their blocks are shared by all streams of a view.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use informerd::testing::hub::Stage;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::client::{Response, Stream, exchange, get, head};
use crate::support::http2::Connection;
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

const CODINGS: [&str; 2] = ["gzip", "zstd"];

/// The decompressed content of a stream that ended as its coding requires.
#[track_caller]
fn unpacked(coding: &str, body: &[u8]) -> String {
    let mut text = String::new();
    match coding {
        // The decoder compares checksum and length at the end.
        "gzip" => {
            let mut rest = flate2::bufread::GzDecoder::new(body);
            rest.read_to_string(&mut text).unwrap();
            assert!(rest.into_inner().is_empty(), "there are bytes after the one member");
        }
        "zstd" => text = String::from_utf8(zstd::stream::decode_all(body).unwrap()).unwrap(),
        _ => text = String::from_utf8(body.to_vec()).unwrap(),
    }
    text
}

/// Reads a whole stream in a task of its own, up to the server's shutdown.
fn whole(server: &TestServer, target: &str, accept: &str, coding: &'static str) -> JoinHandle<Response> {
    let (address, target, accept) = (server.address, target.to_owned(), accept.to_owned());
    tokio::spawn(
        async move { get(address, &target, &[("Accept", &accept), ("Accept-Encoding", coding)]).await },
    )
}

/// Waits until this many streams are in a live view.
async fn live(server: &TestServer, count: usize) {
    eventually("live streams", || {
        let followers = server.hub.followers(Instant::now());
        followers.len() == count
            && followers.iter().all(|follower| follower.stage == Stage::Live && !follower.is_writing)
    })
    .await;
}

/// The names of the pods in a stream, in order.
fn names(text: &str) -> Vec<&str> {
    let named = text.split(r#""name":""#).skip(1).filter_map(|rest| rest.split('"').next());
    // The other names are those of containers.
    named.filter(|name| *name != "main").collect()
}

/// Streams of every coding join at two moments and stay until the server stops.
async fn joins_at_two_moments(target: &str, accept: &str) {
    let mut server = TestServer::start(&["pods"]).await;
    let create = async |names: &[&str]| {
        for name in names {
            let bytes = || {
                let followers = server.hub.followers(Instant::now());
                followers
                    .into_iter()
                    .map(|follower| (follower.id, follower.bytes))
                    .collect::<BTreeMap<_, _>>()
            };
            let before = bytes();
            server.cluster.create("pods", mk_pod("default", name, "web")).unwrap();
            server.caught_up("pods").await;
            // Waits for the write, as the server's shutdown would overtake it.
            let written =
                || bytes().iter().all(|(id, bytes)| before.get(id).is_some_and(|before| bytes > before));
            eventually("the change on each stream", written).await;
        }
    };
    let open = || ["identity", "gzip", "zstd"].map(|coding| (coding, whole(&server, target, accept, coding)));
    create(&["first"]).await;
    let early = open();
    live(&server, 3).await;
    create(&["second"]).await;
    let late = open();
    live(&server, 6).await;
    create(&["third", "fourth"]).await;
    server.stop().await;
    let mut texts = Vec::new();
    for (coding, answer) in early.into_iter().chain(late) {
        let answer = in_time("the end", answer).await.unwrap();
        assert!(answer.complete && answer.status() == 200, "{coding} {target} {accept}");
        let coded = (coding != "identity").then_some(coding);
        assert_eq!(answer.header("content-encoding").as_deref(), coded);
        assert_eq!(answer.header("vary").as_deref(), Some("Accept, Accept-Encoding"));
        let text = unpacked(coding, &answer.body);
        assert_eq!(names(&text), ["first", "second", "third", "fourth"], "{coding} {target} {accept}");
        // The `retry` of each stream is another one.
        let told = text.lines().filter(|line| !line.starts_with("retry: ")).collect::<Vec<_>>().join("\n");
        texts.push(told);
    }
    // All streams that joined at the same moment have the same text, whatever their coding.
    for stream in 0..6 {
        assert_eq!(texts[stream], texts[stream / 3 * 3], "{target} {accept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_as_it_is_cannot_be_refused() {
    let server = TestServer::start(&["pods"]).await;
    for refusal in ["identity;q=0", "*;Q=0"] {
        for target in
            ["/v1/snapshot/pods", "/api/v1/pods", "/v1/watch/pods?timeoutSeconds=1", "/v1/resources"]
        {
            let answer = server.get_with(target, &[("Accept-Encoding", refusal)]).await;
            assert_eq!(
                (answer.status(), answer.header("content-encoding")),
                (200, None),
                "{target} {refusal}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_and_plain_streams_carry_the_same_events_whenever_they_join() {
    for accept in ["text/event-stream", "application/x-ndjson"] {
        // A view of everything, whose batches are shared, and a view of a selection.
        joins_at_two_moments("/v1/watch/pods", accept).await;
        joins_at_two_moments("/v1/watch/pods?labelSelector=app%3Dweb", accept).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_a_compressed_stream_gets_whole_events_and_a_valid_end() {
    for coding in CODINGS {
        let mut server = TestServer::start(&["pods"]).await;
        server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
        server.caught_up("pods").await;
        let target = "/v1/watch/pods";
        let headers = [("Accept", "application/x-ndjson"), ("Accept-Encoding", coding)];
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let request = head("GET", target, "localhost", &headers, "close");
        socket.write_all(request.as_bytes()).await.unwrap();
        live(&server, 1).await;
        // Random text, which no coding makes small: more than the buffers of both ends hold.
        let noise: String = (0..200_000).map(|_| char::from(rand::random_range(b'a'..=b'z'))).collect();
        eventually("a stream that is behind", || {
            let noise = format!("{}-{noise}", server.cluster.revision());
            let patch = serde_json::json!({"metadata": {"annotations": {"noise": noise}}});
            server.cluster.patch("pods", "default", "a", &patch).unwrap();
            server.hub.followers(Instant::now()).iter().any(|follower| follower.is_writing)
        })
        .await;
        let answer = tokio::spawn(async move { exchange(socket, "GET", b"").await });
        live(&server, 1).await;
        server.stop().await;
        let answer = in_time("the end", answer).await.unwrap();
        assert!(answer.complete, "{coding}");
        let text = unpacked(coding, &answer.body);
        // The stream has left the view and joined it again. The checksum at its end covers both parts. Which states
        // it was sent before the shutdown depends on how soon it read.
        assert!(text.contains("\"type\":\"MODIFIED\""), "{coding}");
        assert!(
            text.lines()
                .filter(|line| !line.is_empty())
                .all(|line| line.starts_with('{') && line.ends_with('}'))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_stream_over_http_2_ends_as_its_coding_requires() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    server.caught_up("pods").await;
    let mut connection = Connection::open(server.address, None).await.unwrap();
    for coding in CODINGS {
        let headers = [("accept", "text/event-stream"), ("accept-encoding", coding)];
        let mut answer = connection.get("/v1/watch/pods?timeoutSeconds=2", &headers).await.unwrap();
        assert_eq!(answer.headers["content-encoding"], coding);
        let mut body = Vec::new();
        in_time("the end", answer.body.read_to_end(&mut body)).await.unwrap();
        assert!(unpacked(coding, &body).contains("event: SYNCED\n"), "{coding}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_kubernetes_watches_and_refused_codings_stay_uncompressed() {
    let server = TestServer::start(&["pods"]).await;
    let coded = |stream: &Stream| stream.header("content-encoding");
    // WebSockets are not compressed, and clients of the Kubernetes watch do not expect compression.
    let websocket = Stream::websocket(server.address, "/v1/watch/pods", None).await.unwrap();
    assert_eq!(coded(&websocket), None);
    let headers = [("Accept-Encoding", "gzip")];
    let watch = Stream::http(server.address, "/api/v1/pods?watch=1", &headers).await.unwrap();
    assert_eq!(coded(&watch), None);
    let headers = [("Accept-Encoding", "br, gzip;q=0")];
    let stream = Stream::http(server.address, "/v1/watch/pods", &headers).await.unwrap();
    assert_eq!(coded(&stream), None);
}

/// A program that prints each event's object as soon as it has it; `None`, with a `skipped:` line, if it is not
/// installed.
fn reader(program: &str, arguments: &[&str]) -> Option<Command> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    if std::process::Command::new(program).arg("--version").output().is_err() {
        println!("skipped: no {program} to read a compressed stream with; install it");
        return None;
    }
    Some(command)
}

/// Prints the events of a stream with the standard library only.
const PYTHON: &str = "
import sys, urllib.request, zlib
request = urllib.request.Request(sys.argv[1], headers={'Accept': 'application/x-ndjson', 'Accept-Encoding': 'gzip'})
answer, unpack = urllib.request.urlopen(request), zlib.decompressobj(31)
while chunk := answer.read1():
    sys.stdout.write(unpack.decompress(chunk).decode()), sys.stdout.flush()
";
/// Reads the body undecoded: Node's own fetch asks for gzip by itself.
const NODE: &str = "
const answer = await fetch(process.argv[1], { headers: { accept: 'application/x-ndjson' } });
if (answer.headers.get('content-encoding') !== 'gzip') throw new Error('not compressed');
for await (const chunk of answer.body) process.stdout.write(chunk);
";

#[tokio::test(flavor = "multi_thread")]
async fn clients_read_a_compressed_stream_event_by_event() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "there", "web")).unwrap();
    server.caught_up("pods").await;
    let url = format!("http://{}/v1/watch/pods", server.address);
    let lines = ["-sN", "--compressed", "-H", "Accept: application/x-ndjson", &url];
    let zstd = [&["-H", "Accept-Encoding: zstd"], &lines[..]].concat();
    let readers = [
        ("curl, gzip", reader("curl", &lines)),
        ("curl, zstd", reader("curl", &zstd)),
        ("python", reader("python3", &["-c", PYTHON, &url])),
        ("node", reader("node", &["--input-type=module", "-e", NODE, &url])),
    ];
    for (number, (what, command)) in readers.into_iter().enumerate() {
        let Some(mut command) = command else { continue };
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut until = async |text: &str| {
            in_time(what, async {
                while !lines
                    .next_line()
                    .await
                    .unwrap()
                    .unwrap_or_else(|| panic!("{what} ended"))
                    .contains(text)
                {}
            })
            .await;
        };
        until("initial-events-end").await;
        live(&server, 1).await;
        for event in 0..3 {
            let name = format!("pod-{number}-{event}");
            server.cluster.create("pods", mk_pod("default", &name, "web")).unwrap();
            // Each event arrives before anything else is sent.
            until(&format!("\"{name}\"")).await;
        }
        child.kill().await.unwrap();
        eventually("the end of its subscription", || server.hub.followers(Instant::now()).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_compressed_stream_sends_heartbeats() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.heartbeat_interval = Duration::from_millis(100);
    })
    .await;
    let answer = whole(&server, "/v1/watch/pods?timeoutSeconds=3", "text/event-stream", "gzip");
    let text = unpacked("gzip", &in_time("the end", answer).await.unwrap().body);
    assert!(text.matches("\n:\n\n").count() >= 3, "{text}");
}
