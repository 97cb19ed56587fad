//! 304 answers on kept connections, compared with a loop that answers every request with as many bytes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::Bench;
use crate::peer::Peer;
use crate::process::Usage;
use crate::report::{Row, median};
use crate::server::Server;
use crate::simulator::Simulator;

/// Number of connections, each with one request under way.
const CONNECTIONS: usize = 32;

/// One measurement of one server.
struct Sample {
    requests_per_second: f64,
    cpu_micros: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let mut simulator = Simulator::start()?;
    simulator.load("pods", 1000, 5 << 10)?;
    let (server, _) = Server::start(&simulator.url, &["pods"], &[])?;
    let head =
        |extra: &str| format!("GET /v1/snapshot/pods HTTP/1.1\r\nHost: {}\r\n{extra}\r\n", server.address);
    let answer = ask(server.address, &head("").replace("GET", "HEAD"))?;
    let tag = answer.lines().find_map(|line| line.strip_prefix("etag: ")).context("no ETag")?;
    let request = head(&format!("If-None-Match: {}\r\n", tag.trim()));
    let answer = ask(server.address, &request)?;
    anyhow::ensure!(answer.starts_with("HTTP/1.1 304"), "not a 304: {answer}");
    let plain = Peer::responder(answer.len())?;
    let time = Duration::from_millis(bench.pick(2000, 100));
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..bench.pick(3, 1) {
        ours.push(sample(server.address, &request, time, || server.usage())?);
        limit.push(sample(plain.address, &request, time, || plain.usage())?);
    }
    let case = format!("{CONNECTIONS} connections, one client thread");
    let middle = |of: &[Sample], figure: fn(&Sample) -> f64| median(of.iter().map(figure).collect());
    let rate = |sample: &Sample| sample.requests_per_second;
    let row = Row::new("not-modified", &*case).value("304 answers", middle(&ours, rate), "/s");
    bench.report.add(row.against("plain responder", middle(&limit, rate)));
    let cpu = |sample: &Sample| sample.cpu_micros;
    let row = Row::new("not-modified", case).value("server CPU", middle(&ours, cpu), "us/answer");
    bench.report.add(row.against("plain responder", middle(&limit, cpu)));
    Ok(())
}

/// Requests an answer that has a head only.
fn ask(address: SocketAddr, request: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    Ok(String::from_utf8(answer)?)
}

fn sample(
    address: SocketAddr,
    request: &str,
    time: Duration,
    usage: impl Fn() -> anyhow::Result<Usage>,
) -> anyhow::Result<Sample> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = usage()?;
    let began = Instant::now();
    let answers: u64 = runtime.block_on(async {
        let mut clients = JoinSet::new();
        for _ in 0..CONNECTIONS {
            clients.spawn(answers(address, request.to_owned(), began + time));
        }
        let mut sum = 0;
        while let Some(joined) = clients.join_next().await {
            sum += joined??;
        }
        anyhow::Ok(sum)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_seconds = usage()?.cpu_seconds - before.cpu_seconds;
    Ok(Sample {
        requests_per_second: answers as f64 / seconds,
        cpu_micros: cpu_seconds * 1e6 / answers as f64,
    })
}

/// Repeats a request for a period; returns the number of answers.
async fn answers(address: SocketAddr, request: String, until: Instant) -> anyhow::Result<u64> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 8 << 10];
    let mut count = 0;
    while Instant::now() < until {
        stream.write_all(request.as_bytes()).await?;
        let mut filled = 0;
        while !buffer[..filled].ends_with(b"\r\n\r\n") {
            let read = stream.read(&mut buffer[filled..]).await?;
            anyhow::ensure!(read > 0, "the connection was closed");
            filled += read;
        }
        count += 1;
    }
    Ok(count)
}
