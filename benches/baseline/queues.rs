//! Work queues: the cost of a queued key, of a change that queues a key, and of a lease, with many waiting workers.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memchr::memmem;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::peer::Peer;
use crate::report::Row;
use crate::server::{QUIET, Server, get, wait_until};
use crate::simulator::{CHANGED_AT, Rhythm, Simulator, micros_since_1970};

const GROUP: &str = "queues";
/// Size of a pod's JSON, in bytes.
const POD_BYTES: usize = 5000;
const QUEUE: &str = "/v1/queues/bench";
/// Within this time the allocator returns memory that only loading needed.
const REST: Duration = Duration::from_secs(15);

/// The results of all workers together.
#[derive(Default)]
struct Work {
    leases: usize,
    /// Sizes of the last two answers, to a lease and to its completion, in bytes.
    answers_bytes: usize,
    /// Latencies from a change in the API server until a worker has its key, in microseconds.
    latencies: Vec<u64>,
}

/// A kept connection.
struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    buffer: Vec<u8>,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let (pods, workers) = bench.pick((100_000, 1_000), (1_000, 20));
    let rest = bench.pick(REST, Duration::ZERO);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", pods, POD_BYTES)?;
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let none = cpu_of_changes(bench, &mut simulator, &server)?;
    let readers = Readers::connect(server.address, 1, Some("/v1/watch/pods"), Measure::Count)?;
    readers.wait_for(pods as u64)?;
    let streamed = cpu_of_changes(bench, &mut simulator, &server)?;
    drop(readers);

    std::thread::sleep(rest);
    let before = server.usage()?.rss;
    let declared = r#"{"watch":[{"resource":"pods"}],"leaseSeconds":600}"#;
    runtime.block_on(async {
        let (head, _) = Connection::open(server.address).await?.call("PUT", "", declared).await?;
        anyhow::ensure!(head.starts_with("HTTP/1.1 201"), "{head}");
        anyhow::Ok(())
    })?;
    wait_until("the first state in the queue", || depth(&server).is_ok_and(|depth| depth == pods))?;
    std::thread::sleep(rest);
    let each = (server.usage()?.rss - before) / pods as f64;
    bench.report.add(Row::new(GROUP, format!("{pods} keys")).value("memory, a queued key", each, "bytes"));

    work_through(bench, &runtime, &server, workers, pods)?;
    // Each key is new to the queue.
    let queued = cpu_of_changes(bench, &mut simulator, &server)?;
    for (case, cpu) in [("one stream of everything", streamed), ("a queue of everything", queued)] {
        let row = Row::new(GROUP, format!("{case}, 2000 changes/s")).value("server CPU", cpu, "us/change");
        bench.report.add(row.against("neither", none));
    }
    let left = depth(&server)?;
    work_through(bench, &runtime, &server, workers, left)?;
    wait_for_changes(bench, &runtime, &mut simulator, &server, workers, none)
}

/// The number of queued keys.
fn depth(server: &Server) -> anyhow::Result<usize> {
    let queue: Value = serde_json::from_slice(&get(server.address, QUEUE)?)?;
    let depth = queue["depth"].as_u64().context("a queue without depth")?;
    Ok(usize::try_from(depth)?)
}

/// CPU of informerd for one change, in microseconds.
fn cpu_of_changes(bench: &Bench, simulator: &mut Simulator, server: &Server) -> anyhow::Result<f64> {
    let rhythm =
        Rhythm { ticks: bench.pick(1_000, 20), events_per_tick: 10, interval: Duration::from_millis(5) };
    let before = server.usage()?.cpu_seconds;
    simulator.begin_every("pods", rhythm, 7)?;
    simulator.end()?;
    // Waits until the change has arrived.
    std::thread::sleep(Duration::from_millis(200));
    Ok((server.usage()?.cpu_seconds - before) * 1e6 / rhythm.events() as f64)
}

/// All workers take keys until none is left, compared with a responder that answers as many requests with as many
/// bytes.
fn work_through(
    bench: &mut Bench,
    runtime: &Runtime,
    server: &Server,
    workers: usize,
    keys: usize,
) -> anyhow::Result<()> {
    let work = Rc::new(RefCell::new(Work::default()));
    let before = server.usage()?.cpu_seconds;
    let began = Instant::now();
    let done = || work.borrow().leases >= keys;
    all(runtime, workers, || take(server.address, work.clone(), 0, keys), done)?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (server.usage()?.cpu_seconds - before) * 1e6 / keys as f64;
    let answer_bytes = work.borrow().answers_bytes / 2;
    let plain = Peer::responder(answer_bytes)?;
    let answered = Rc::new(RefCell::new(Work::default()));
    let before = plain.usage()?.cpu_seconds;
    let began = Instant::now();
    let done = || answered.borrow().leases >= keys;
    all(runtime, workers, || exchange_twice(plain.address, answer_bytes, answered.clone(), keys), done)?;
    let limit = keys as f64 / began.elapsed().as_secs_f64();
    let limit_cpu = (plain.usage()?.cpu_seconds - before) * 1e6 / keys as f64;
    let case = format!("{workers} workers, {keys} keys");
    let row = Row::new(GROUP, case.clone()).value("leased and done", keys as f64 / seconds, "/s");
    bench.report.add(row.against("plain responder", limit));
    let row = Row::new(GROUP, case).value("server CPU", cpu, "us/key");
    bench.report.add(row.against("plain responder", limit_cpu));
    Ok(())
}

/// Waiting workers get the keys of changes.
fn wait_for_changes(
    bench: &mut Bench,
    runtime: &Runtime,
    simulator: &mut Simulator,
    server: &Server,
    workers: usize,
    none: f64,
) -> anyhow::Result<()> {
    let rhythm =
        Rhythm { ticks: bench.pick(1_000, 20), events_per_tick: 5, interval: Duration::from_millis(5) };
    let work = Rc::new(RefCell::new(Work::default()));
    let waiting = server.usage()?.cpu_seconds;
    let mut begun: Option<(f64, anyhow::Result<()>)> = None;
    let changes = rhythm.events();
    let done = || {
        if begun.is_none() && waits(server).is_ok_and(|waiting| waiting == workers) {
            let before = server.usage().map_or(waiting, |usage| usage.cpu_seconds);
            begun = Some((before, simulator.begin_every("pods", rhythm, 7)));
        }
        work.borrow().leases >= changes
    };
    all(runtime, workers, || take(server.address, work.clone(), 60, usize::MAX), done)?;
    let (before, began) = begun.context("the workers never waited")?;
    began?;
    simulator.end()?;
    let cpu = (server.usage()?.cpu_seconds - before) * 1e6 / changes as f64;
    let case = format!("{workers} waiting workers, 1000 changes/s");
    let row = Row::new(GROUP, case.clone()).value("server CPU", cpu, "us/change");
    bench.report.add(row.against("no queue", none));
    let mut latencies = std::mem::take(&mut work.borrow_mut().latencies);
    latencies.sort_unstable();
    let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(0);
    bench.report.add(Row::new(GROUP, case).value("p99", p99 as f64 / 1000.0, "ms"));
    Ok(())
}

fn waits(server: &Server) -> anyhow::Result<usize> {
    let queue: Value = serde_json::from_slice(&get(server.address, QUEUE)?)?;
    Ok(usize::try_from(queue["waitingWorkers"].as_u64().unwrap_or(0))?)
}

/// Runs workers until they are done, all on this thread.
fn all<F: Future<Output = anyhow::Result<()>> + 'static>(
    runtime: &Runtime,
    workers: usize,
    worker: impl Fn() -> F,
    mut done: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    LocalSet::new().block_on(runtime, async {
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..workers {
            running.spawn_local(worker());
        }
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        while !done() {
            tokio::select! {
                Some(ended) = running.join_next() => ended??,
                _ = ticks.tick() => {}
            }
        }
        anyhow::Ok(())
    })
}

/// Leases keys and reports them as done, until all workers together have done this number.
async fn take(address: SocketAddr, work: Rc<RefCell<Work>>, wait: u64, keys: usize) -> anyhow::Result<()> {
    let mut connection = Connection::open(address).await?;
    let lease = format!(r#"{{"max":1,"waitSeconds":{wait}}}"#);
    while work.borrow().leases < keys {
        let (head, body) = connection.call("POST", "/lease", &lease).await?;
        anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        let Some(token) = after(&body, br#""lease":""#) else { continue };
        let token = String::from_utf8_lossy(token.split(|byte| *byte == b'"').next().unwrap_or_default());
        let done = format!(r#"{{"lease":"{token}"}}"#);
        let changed_at = after(&body, format!(r#""{CHANGED_AT}":""#).as_bytes());
        let changed_at = changed_at.and_then(|text| std::str::from_utf8(text.get(..16)?).ok()?.parse().ok());
        let latency = changed_at.map(|at: u64| micros_since_1970().saturating_sub(at));
        let lease_bytes = head.len() + body.len();
        let (head, _) = connection.call("POST", "/done", &done).await?;
        anyhow::ensure!(head.starts_with("HTTP/1.1 2"), "{head}");
        let mut work = work.borrow_mut();
        work.leases += 1;
        work.answers_bytes = lease_bytes + head.len();
        work.latencies.extend(latency);
    }
    Ok(())
}

/// Sends as many requests to a responder as a lease takes.
async fn exchange_twice(
    address: SocketAddr,
    bytes: usize,
    work: Rc<RefCell<Work>>,
    keys: usize,
) -> anyhow::Result<()> {
    let mut stream = Connection::open(address).await?.stream;
    let mut answer = vec![0; bytes];
    while work.borrow().leases < keys {
        for _ in 0..2 {
            stream.write_all(format!("POST {QUEUE} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
            stream.read_exact(&mut answer).await?;
        }
        work.borrow_mut().leases += 1;
    }
    Ok(())
}

fn after<'b>(bytes: &'b [u8], mark: &[u8]) -> Option<&'b [u8]> {
    memmem::find(bytes, mark).map(|at| &bytes[at + mark.len()..])
}

impl Connection {
    async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address, buffer: Vec::new() })
    }

    /// Sends a request, and returns the head and the body of the answer.
    async fn call(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<(String, Vec<u8>)> {
        let (address, length) = (self.address, body.len());
        let request = format!(
            "{method} {QUEUE}{path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            anyhow::ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the connection was closed");
            let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.unwrap_or("0").parse()?;
            if self.buffer.len() >= end + 4 + length {
                let body = self.buffer[end + 4..].to_vec();
                return Ok((String::from_utf8_lossy(&self.buffer[..end]).into_owned(), body));
            }
        }
    }
}
