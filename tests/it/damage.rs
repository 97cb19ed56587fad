//! Bytes of packed objects change in the memory of a running informerd: no client gets a wrong object, and the objects are fetched again.
//!
//! Each test has an informerd process of its own, as damage ends all streams of a process.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::Duration;

use informerd::testing::sim::{ApiServer, Cluster, ClusterConfig};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::queues::send;
use crate::support::check::{Objects, expected, items};
use crate::support::client::{Response, Transport, get};
use crate::support::port::Port;
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, in_time, informerd};

/// About 3.6 MB, more than the objects from which a dictionary is trained.
const PODS: usize = 1000;

/// The start of a list's objects. What stands before it differs from list to list.
const ITEMS: &str = r#""items":["#;

/// Bytes by which packed data says that a UUID follows: with the places of the identity behind it, and in the usual form without.
const UUID_FOLLOWS: [u8; 2] = [u8::MAX, u8::MAX - 1];

/// Offsets of the changed byte from that byte. The uid and any places end before 26. The values follow, some 264 bytes in these pods: any
/// change of them changes the JSON.
const DEPTHS: [u64; 4] = [26, 40, 60, 90];

/// Most bytes of the packed data of such a pod.
const PACKED_BYTES_MAX: u64 = 4096;

/// An informerd process that has packed its pods.
struct Packed {
    cluster: Cluster,
    child: Child,
    address: SocketAddr,
    _api: ApiServer,
    _port: Port,
}

// === impl Packed ===

impl Packed {
    async fn start() -> Self {
        let cluster = Cluster::new(ClusterConfig::default());
        cluster.bulk_load("pods", PODS, 4000).unwrap();
        let api = TestServer::api(cluster.clone()).await;
        let port = Port::hold();
        let address = port.address;
        let mut command = Command::from(informerd());
        command.args(["serve", "--server", &api.url(), "--watch", "pods", "--cache-packing", "auto"]);
        command.args(["--listen", &address.to_string(), "--admin-listen", "off", "--log", "error"]);
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().expect("informerd starts");
        let packed = Self { cluster, child, address, _api: api, _port: port };
        in_time("packed", async { while !packed.is_packed().await {} }).await;
        packed
    }

    async fn is_packed(&self) -> bool {
        pause().await;
        if tokio::net::TcpStream::connect(self.address).await.is_err() {
            return false;
        }
        let informer = self.informer().await;
        let figure = |name: &str| informer[name].as_u64().unwrap_or_default();
        informer["synced"] == true && figure("heldBytes") * 4 < figure("bytes")
    }

    async fn informer(&self) -> Value {
        self.get("/v1/resources").await.json()["informers"][0].clone()
    }

    /// How often the damage made informerd list everything again.
    async fn relists(&self) -> u64 {
        self.informer().await["relists"].as_u64().unwrap()
    }

    async fn get(&self, target: &str) -> Response {
        get(self.address, target, &[]).await
    }

    /// The namespace and the name of a pod.
    fn pod(at: usize) -> (String, String) {
        (format!("load-{:02}", at % 100), format!("load-{at:07}"))
    }

    /// What the API server has of a pod.
    fn truth(&self, at: usize) -> Value {
        let (namespace, name) = Self::pod(at);
        let all = expected(&self.cluster, "pods", |pod| pod["metadata"]["name"] == name);
        all[&format!("Pod/{namespace}/{name}")].clone()
    }

    fn all(&self) -> Objects {
        expected(&self.cluster, "pods", |_| true)
    }

    /// Changes one byte of a pod's packed data. `false`, with a `skipped:` line, if the system does not let this process write into the
    /// memory of another.
    fn damage(&self, at: usize) -> bool {
        let uid = self.truth(at)["metadata"]["uid"].as_str().unwrap().to_owned();
        let pid = self.child.id().expect("it runs");
        let memory = match File::options().read(true).write(true).open(format!("/proc/{pid}/mem")) {
            Ok(memory) => memory,
            Err(error) => {
                println!(
                    "skipped: no access to a child's memory ({error}); set kernel.yama.ptrace_scope to 0 or 1"
                );
                return false;
            }
        };
        signal("STOP", pid);
        let places = flip(&memory, pid, &uid, DEPTHS[at % DEPTHS.len()]).expect("its memory can be changed");
        signal("CONT", pid);
        assert!(places > 0, "no packed data of {uid} in the memory of informerd");
        true
    }
}

fn signal(name: &str, pid: u32) {
    let status = std::process::Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.expect("kill is there").success());
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Changes a byte at each place where a process' memory has packed data with this uid. Returns the number of places.
fn flip(memory: &File, pid: u32, uid: &str, depth: u64) -> io::Result<usize> {
    let digits: String = uid.chars().filter(|letter| *letter != '-').collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let wanted: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    assert_eq!(wanted.len(), 16, "{uid} is a UUID");
    let mut changed = 0;
    for line in std::fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let Some((start, end)) = line.split_once(" rw-p").and_then(|(range, _)| range.split_once('-')) else {
            continue;
        };
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, end) = (number(start), number(end));
        let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
        memory.read_exact_at(&mut bytes, start)?;
        let found = memchr::memmem::find_iter(&bytes, &wanted).filter_map(|at| at.checked_sub(1));
        for at in found.filter(|at| UUID_FOLLOWS.contains(&bytes[*at])) {
            // An object's allocation has the length of the data before the data. Elsewhere it is no object.
            let len = bytes[..at].last_chunk().map_or(0, |len| u64::from_ne_bytes(*len));
            if !(depth + 1..PACKED_BYTES_MAX).contains(&len) {
                continue;
            }
            let place = start + at as u64 + depth;
            let mut byte = [0];
            memory.read_exact_at(&mut byte, place)?;
            memory.write_all_at(&[byte[0] ^ 0x10], place)?;
            changed += 1;
        }
    }
    Ok(changed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_is_answered_with_503_until_it_is_fetched_again() {
    let packed = Packed::start().await;
    let mut relists = 0;
    for at in [7, 8] {
        let (namespace, name) = Packed::pod(at);
        let target = format!("/v1/snapshot/pods/{namespace}/{name}");
        if !packed.damage(at) {
            return;
        }
        let refused = packed.get(&target).await;
        assert_eq!((refused.status(), &*refused.header("retry-after").unwrap()), (503, "1"));
        let status = refused.json();
        assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("ServiceUnavailable")));
        assert_eq!(status["message"], "an object's packed bytes are damaged");
        in_time("the object", async {
            loop {
                let answer = packed.get(&target).await;
                match answer.status() {
                    200 => break assert_eq!(answer.json(), packed.truth(at)),
                    status => assert_eq!(status, 503),
                }
                pause().await;
            }
        })
        .await;
        relists += 1;
        assert_eq!(packed.relists().await, relists);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_ends_before_a_damaged_object() {
    let packed = Packed::start().await;
    let mut sent = 0;
    for (at, coding) in [(509, None), (510, None), (511, Some("gzip")), (512, Some("zstd"))] {
        if !packed.damage(at) {
            return;
        }
        let headers: Vec<_> = coding.map(|coding| ("Accept-Encoding", coding)).into_iter().collect();
        let cut = get(packed.address, "/v1/snapshot/pods", &headers).await;
        // A connection that is closed at once may lose the head, too.
        let is_cut = cut.head.is_empty() || cut.status() == 200 && !cut.complete;
        assert!(is_cut, "{coding:?} {}", cut.head);
        // Later lists know the hashes of the objects from before.
        assert!(at > 509 || cut.header("etag").is_none(), "no tag of what could not be read");
        let whole = in_time("a whole list", async {
            loop {
                let answer = packed.get("/v1/snapshot/pods").await;
                if !answer.head.is_empty() && answer.complete {
                    break answer;
                }
                pause().await;
            }
        })
        .await;
        assert_eq!(items(&whole.json()), packed.all());
        if coding.is_none()
            && let Some((_, cut)) = cut.text().split_once(ITEMS)
        {
            let (_, whole) = whole.text().split_once(ITEMS).unwrap();
            assert!(whole.starts_with(cut), "what was sent is right");
            sent += cut.len();
        }
    }
    assert!(sent > 0, "no list was cut amid its objects");
    assert!(packed.relists().await >= 4);
}

/// The state of the object before the change has to be read, to tell whether it matched the condition.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_meets_damage_ends_and_its_client_gets_the_truth() {
    let packed = Packed::start().await;
    let is_running = |pod: &Value| pod["status"]["phase"] == "Running";
    let target = "/v1/watch/pods?where=object.status.phase%3D%3D%22Running%22";
    let mut recorders = Vec::new();
    for transport in TRANSPORTS.into_iter().chain([Transport::Http2]) {
        recorders.push(Recorder::connect(transport, packed.address, target).await);
    }
    // A change while all is well: the streams are live.
    let change = |at: usize, phase: &str| {
        let (namespace, name) = Packed::pod(at);
        packed.cluster.patch("pods", &namespace, &name, &json!({"status": {"phase": phase}})).unwrap();
    };
    change(3, "Failed");
    for recorder in &mut recorders {
        recorder.wait_for_state(&expected(&packed.cluster, "pods", is_running)).await;
        assert_eq!(recorder.connections, 1);
    }
    if !packed.damage(42) {
        return;
    }
    change(42, "Failed");
    change(43, "Pending");
    for recorder in &mut recorders {
        recorder.wait_for_state(&expected(&packed.cluster, "pods", is_running)).await;
        assert!(recorder.connections > 1, "{:?} met the damage", recorder.transport);
    }
    assert!(packed.relists().await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_object_is_damaged_gives_it_to_a_worker_once_it_is_fetched_again() {
    let packed = Packed::start().await;
    let (namespace, name) = Packed::pod(42);
    let condition = format!("object.metadata.name == '{name}' && object.status.phase == 'Running'");
    let spec = json!({"watch": [{"resource": "pods", "where": condition}]});
    let declared = send(packed.address, "PUT", "/v1/queues/q", &spec).await;
    assert_eq!(declared.status(), 201, "{}", declared.text());
    in_time("the first state", async {
        while packed.get("/v1/queues/q").await.json()["synced"] != true {
            pause().await;
        }
    })
    .await;
    if !packed.damage(42) {
        return;
    }
    let request = json!({"waitSeconds": 5});
    let lease = async || {
        in_time("a lease", async {
            loop {
                let leased = send(packed.address, "POST", "/v1/queues/q/lease", &request).await;
                assert_eq!(leased.status(), 200, "{}", leased.text());
                if let Some(item) = leased.json()["items"].as_array().unwrap().first() {
                    break item.clone();
                }
            }
        })
        .await
    };
    let item = lease().await;
    assert_eq!(item["object"], packed.truth(42));
    assert!(packed.relists().await > 0, "the damage was met");
    // What comes later reaches the worker, too.
    let done = json!({"lease": item["lease"]});
    assert_eq!(send(packed.address, "POST", "/v1/queues/q/done", &done).await.status(), 204);
    let patch = json!({"metadata": {"annotations": {"turn": "2"}}});
    packed.cluster.patch("pods", &namespace, &name, &patch).unwrap();
    assert_eq!(lease().await["object"], packed.truth(42));
}
