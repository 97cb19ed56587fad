//! One informerd for all targets over HTTP, and a client that sends any bytes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use informerd::testing::app::App;
use informerd::testing::config::{
    CachePacking, General, InitialList, Limits, Listen, Log, OnDemand, Serve, UpstreamSource, WatchSpec,
};
use informerd::testing::k8s::DropPaths;
use informerd::testing::sim::{ApiServer, Cluster};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// Time limit of every wait; only a fault reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of pods in the cluster.
pub(crate) const PODS: usize = 7;

const RESOURCES: [&str; 3] = ["pods", "deployments", "nodes"];

struct Running {
    address: SocketAddr,
    _runtime: Runtime,
    _app: App,
    _api: ApiServer,
}

/// An answer.
pub(crate) struct Answer {
    /// The status code; 0 if there was no answer.
    pub(crate) code: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

fn running() -> &'static Running {
    static RUNNING: OnceLock<Running> = OnceLock::new();
    RUNNING.get_or_init(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let cluster = Cluster::default();
        for at in 0..PODS {
            let name = format!("pod-{at}");
            let namespace = if at % 2 == 0 { "default" } else { "web" };
            let metadata = json!({"name": name, "namespace": namespace, "labels": {"app": "a"}});
            cluster.create("pods", json!({"metadata": metadata, "spec": {"nodeName": "n"}})).unwrap();
        }
        let api = runtime.block_on(ApiServer::bind(cluster, any_port)).unwrap();
        let watch = |resource: &str| WatchSpec {
            resource: resource.to_owned(),
            namespaces: Vec::new(),
            namespaces_are_default: false,
            label_selector: None,
            field_selector: None,
            keep_managed_fields: false,
            keep_last_applied: false,
            metadata_only: false,
            drop: DropPaths::default(),
            indexes: Vec::new(),
        };
        let config = Serve {
            watches: RESOURCES.map(watch).to_vec(),
            on_demand: OnDemand { patterns: Vec::new(), idle: PATIENCE, template: watch("") },
            discovery_interval: PATIENCE,
            upstream: UpstreamSource::Server { url: api.url() },
            watch_http2: false,
            listen: Listen::Tcp(any_port),
            admin_listen: None,
            allow_origins: Vec::new(),
            allow_hosts: Vec::new(),
            pass_through: Default::default(),
            pass_through_proxy: Vec::new(),
            queue_mode: informerd::testing::config::QueueMode::Api,
            queues: Default::default(),
            election: None,
            links: Vec::new(),
            limits: Limits::DEFAULT,
            shutdown_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(1),
            unready_after: None,
            log: Log::default(),
            initial_list: InitialList::Auto,
            cache_packing: CachePacking::Auto,
            verify_interval: None,
            settings: Box::new(General::DEFAULT),
            source: None,
        };
        let app =
            runtime.block_on(runtime.spawn(App::start(config, Arc::new(String::new)))).unwrap().unwrap();
        let address = app.address.unwrap();
        let complete = || {
            let informers = app.hub.informers();
            informers.len() == RESOURCES.len() && informers.iter().all(|one| one.reader.mark().synced)
        };
        runtime.block_on(async {
            tokio::time::timeout(PATIENCE, async {
                while !complete() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await
            .expect("the first lists");
        });
        Running { address, _runtime: runtime, _app: app, _api: api }
    })
}

/// Sends a GET request for a target, with further header lines.
pub(crate) fn get(target: &[u8], headers: &[u8]) -> Answer {
    let head = [b"GET ", target, b" HTTP/1.1\r\nConnection: close\r\n", headers, b"\r\n"].concat();
    exchange(&head, false)
}

/// Sends bytes and closes the sending half; otherwise the server would wait for the rest of an incomplete request.
pub(crate) fn send(bytes: &[u8]) -> Answer {
    exchange(bytes, true)
}

/// The connection preface of an HTTP/2 client.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads the answer: the head of a stream, and any other answer completely.
fn exchange(bytes: &[u8], half_close: bool) -> Answer {
    let mut socket = TcpStream::connect(running().address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server that refuses before it has read everything may close meanwhile.
    let _ = socket.write_all(bytes);
    if half_close {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let (mut answer, mut buffer) = (Vec::new(), [0; 16 << 10]);
    let began = Instant::now();
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            // Bytes sent before a reset have been read.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("no end of an answer: {error}: {:?}", String::from_utf8_lossy(&answer)),
        }
        let is_stream = |head: &str| {
            head.contains("content-type: text/event-stream")
                || head.contains("x-accel-buffering")
                || head.starts_with("HTTP/1.1 101")
        };
        if head_of(&answer).is_some_and(|(head, _)| is_stream(&head)) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "an answer without end");
    }
    if bytes.starts_with(HTTP2) {
        // Frames, of which the first is SETTINGS (RFC 9113, 3.4).
        assert!(answer.is_empty() || answer.get(3) == Some(&4), "not HTTP/2: {answer:?}");
        return Answer { code: 0, head: String::new(), body: Vec::new() };
    }
    match head_of(&answer) {
        Some((head, body)) => {
            let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
            Answer { code: code.expect("a status line"), body: plain(&head, &answer[body..]), head }
        }
        None => {
            assert!(answer.is_empty(), "half a head: {:?}", String::from_utf8_lossy(&answer));
            Answer { code: 0, head: String::new(), body: Vec::new() }
        }
    }
}

/// The head in lower case, and the offset of the body.
fn head_of(answer: &[u8]) -> Option<(String, usize)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let (first, rest) = head.split_once("\r\n").unwrap_or((&head, ""));
    Some((format!("{first}\r\n{}\r\n", rest.to_ascii_lowercase()), end + 4))
}

/// A body without chunk framing.
fn plain(head: &str, mut body: &[u8]) -> Vec<u8> {
    if !head.contains("transfer-encoding: chunked") {
        return body.to_vec();
    }
    let mut plain = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size =
            std::str::from_utf8(&body[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.expect("a chunk's size");
        let Some(chunk) = body.get(end + 2..end + 2 + size).filter(|chunk| !chunk.is_empty()) else { break };
        plain.extend_from_slice(chunk);
        body = &body[end + 4 + size..];
    }
    plain
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}\n{text:?}", self.head))
    }

    /// Checks that a refusal is a Status with the code of the head and a message.
    pub(crate) fn is_a_status(&self) {
        let status = self.json();
        assert_eq!(status["kind"], "Status", "{status}");
        assert_eq!(status["code"], self.code, "{status}");
        assert!(status["message"].as_str().is_some_and(|message| !message.is_empty()), "{status}");
        assert!(self.head.contains("content-type: application/json\r\n"), "{}", self.head);
    }
}
