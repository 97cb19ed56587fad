//! What clients ask for instead of whole objects: members of objects, conditions, compressed streams, look-ups, long polls.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::Bench;
use crate::client::{Measure, NUMBER, Readers};
use crate::report::Row;
use crate::server::{QUIET, Server, get};
use crate::simulator::{Rhythm, Simulator};

const GROUP: &str = "views";
/// Size of a pod's JSON, in bytes.
const POD_BYTES: usize = 5000;
/// Of this many changes, one touches the members that are shown.
const TURNS: usize = 5;
/// The label of which every fifth change sets another value.
const SHOWN: &str = "fields=metadata.name,metadata.labels.turn,spec.nodeName";
/// Time without another byte after which all have arrived.
const STILL: Duration = Duration::from_millis(300);
/// Time in which streams join their views, and a server becomes idle.
const SETTLING: Duration = Duration::from_secs(3);

/// Streams, and the changes that they are measured with.
struct Case {
    name: &'static str,
    streams: usize,
    /// The request of each stream, and its further header fields as in [`Readers::connect`].
    path: String,
    per_second: usize,
}

/// The results of a case.
struct Outcome {
    /// CPU time of informerd for each change, in microseconds.
    cpu_us: f64,
    /// Bytes that each stream got for each change.
    bytes: f64,
    /// Frames that each stream got for each change. Of compressed ones this says nothing.
    frames: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let pods = bench.pick(100_000, 1_000);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", pods, POD_BYTES)?;
    members(bench, &mut simulator)?;
    compressed(bench, &mut simulator)?;
    conditions(bench, &mut simulator, pods)?;
    lookups(bench, &simulator)?;
    long_polls(bench, &simulator)
}

/// Streams of three members of every pod, of which one change in five touches one, beside streams of whole pods.
fn members(bench: &mut Bench, simulator: &mut Simulator) -> anyhow::Result<()> {
    let all = "/v1/watch/pods?sendInitialEvents=false";
    let streams = bench.pick(1_000, 20);
    let (few, many) = bench.pick((20, 2_000), (20, 200));
    let cases = [
        Case { name: "no stream", streams: 0, path: all.into(), per_second: many },
        Case { name: "whole pods", streams, path: all.into(), per_second: few },
        Case { name: "three members", streams, path: format!("{all}&{SHOWN}"), per_second: few },
        Case { name: "three members", streams, path: format!("{all}&{SHOWN}"), per_second: many },
        Case {
            name: "one stream of three members",
            streams: 1,
            path: format!("{all}&{SHOWN}"),
            per_second: many,
        },
    ];
    let mut whole = None;
    for case in &cases {
        let outcome = measure(bench, simulator, case)?;
        let name = format!("{} streams, {}, {}/s", case.streams, case.name, case.per_second);
        let mut row = Row::new(GROUP, name.clone()).value("server CPU", outcome.cpu_us, "us/event");
        if let Some(Outcome { cpu_us, .. }) = &whole {
            row = row.against("whole pods", *cpu_us);
        }
        bench.report.add(row);
        if case.streams > 0 {
            bench.report.add(Row::new(GROUP, name.clone()).value("a stream", outcome.bytes, "B/event"));
            bench.report.add(Row::new(GROUP, name).value("a stream", outcome.frames, "frames/event"));
        }
        if case.name == "whole pods" {
            whole = Some(outcome);
        }
    }
    Ok(())
}

/// Compressed streams of one view, beside uncompressed ones; and streams that each have a view of their own.
fn compressed(bench: &mut Bench, simulator: &mut Simulator) -> anyhow::Result<()> {
    let all = "/v1/watch/pods?sendInitialEvents=false";
    let node = format!("{all}&fieldSelector=spec.nodeName%3Dnode-{NUMBER}");
    let small = format!("{all}&{SHOWN}");
    let (streams, nodes) = (bench.pick(1_000, 20), bench.pick(10_000, 100));
    for (name, streams, path, per_second) in [
        ("one view of whole pods", streams, all, 20),
        ("one view of three members", streams, &*small, 200),
        ("a view of a node's pods each", nodes, &*node, bench.pick(2_000, 200)),
    ] {
        let mut plain = None;
        for (coding, header) in
            [("identity", ""), ("gzip", "#Accept-Encoding:gzip"), ("zstd", "#Accept-Encoding:zstd")]
        {
            let case = Case { name, streams, path: format!("{path}{header}"), per_second };
            let outcome = measure(bench, simulator, &case)?;
            let label = format!("{streams} streams, {name}, {coding}, {per_second}/s");
            let base = plain.get_or_insert((outcome.cpu_us, outcome.bytes));
            let row = Row::new(GROUP, label.clone()).value("server CPU", outcome.cpu_us, "us/event");
            bench.report.add(row.against("identity", base.0));
            let row = Row::new(GROUP, label).value("a stream", outcome.bytes, "B/event");
            bench.report.add(row.against("identity", base.1));
        }
    }
    Ok(())
}

/// Conditions in CEL: over all pods once, and a hundred different ones over changes.
fn conditions(bench: &mut Bench, simulator: &mut Simulator, pods: usize) -> anyhow::Result<()> {
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    let condition = "where=object.spec.nodeName%20%3D%3D%20'node-42'";
    let before = server.usage()?;
    let body = get(server.address, &format!("/v1/snapshot/pods?{condition}"))?;
    anyhow::ensure!(!body.is_empty(), "an empty answer");
    let each = (server.usage()?.cpu_seconds - before.cpu_seconds) * 1e6 / pods as f64;
    let row = Row::new(GROUP, format!("a snapshot of {pods} pods by where"));
    bench.report.add(row.value("server CPU", each, "us/object"));
    drop(server);
    let streams = bench.pick(100, 10);
    let path = format!(
        "/v1/watch/pods?sendInitialEvents=false&where=object.spec.nodeName%20%3D%3D%20'node-{NUMBER}'"
    );
    let case = |streams| Case { name: "where", streams, path: path.clone(), per_second: 200 };
    let (base, outcome) = (measure(bench, simulator, &case(0))?, measure(bench, simulator, &case(streams))?);
    let row = Row::new(GROUP, format!("{streams} streams, each with its own where, 200/s"));
    bench.report.add(row.value("server CPU", outcome.cpu_us, "us/event").against("no stream", base.cpu_us));
    Ok(())
}

/// A look-up of a hundred addresses at once, and the number of pods of each node.
fn lookups(bench: &mut Bench, simulator: &Simulator) -> anyhow::Result<()> {
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    let values: Vec<_> = (0..100).map(|ip| format!(r#""10.0.{}.{}""#, ip % 3, ip * 2)).collect();
    let body = format!(r#"{{"values":[{}]}}"#, values.join(","));
    let json = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let by_ip = "POST /v1/index/pods/status.podIP";
    let requests = [
        ("100 addresses, names", format!("{by_ip}?fields=metadata.name"), json.clone()),
        ("100 addresses, whole pods", by_ip.to_owned(), json),
        ("counts of 10,000 nodes", "GET /v1/index/pods/spec.nodeName".to_owned(), "\r\n".to_owned()),
        (
            "one node's count and pods",
            "GET /v1/index/pods/spec.nodeName/node-42".to_owned(),
            "\r\n".to_owned(),
        ),
    ];
    let rounds = bench.pick(100, 5);
    for (name, line, rest) in requests {
        // The first one builds the index.
        let answer = exchange(server.address, &line, &rest)?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{name}: {}", &answer[..answer.len().min(500)]);
        let before = server.usage()?;
        for _ in 0..rounds {
            exchange(server.address, &line, &rest)?;
        }
        let each = (server.usage()?.cpu_seconds - before.cpu_seconds) * 1e3 / f64::from(rounds);
        bench.report.add(Row::new(GROUP, format!("look-up: {name}")).value("server CPU", each, "ms"));
        let row = Row::new(GROUP, format!("look-up: {name}"));
        bench.report.add(row.value("answer", answer.len() as f64 / 1024.0, "KiB"));
    }
    Ok(())
}

/// Ten thousand clients that wait for a change of one namespace.
fn long_polls(bench: &mut Bench, simulator: &Simulator) -> anyhow::Result<()> {
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    let path = "/v1/snapshot/pods/load-00?fields=metadata.name";
    let answer = exchange(server.address, &format!("GET {path}"), "\r\n")?;
    let tag = answer.lines().find_map(|line| line.strip_prefix("etag: ")).context("no ETag")?;
    let waits = format!("{path}#Prefer:wait=300#If-None-Match:{}", tag.trim());
    let (few, many) = bench.pick((100, 10_000), (10, 50));
    let few_readers = Readers::connect(server.address, few, Some(&waits), Measure::Count)?;
    sleep(bench.pick(SETTLING, Duration::ZERO));
    let before = server.usage()?;
    let readers = Readers::connect(server.address, many - few, Some(&waits), Measure::Count)?;
    sleep(bench.pick(5 * SETTLING, Duration::ZERO));
    let waiting = server.usage()?;
    let idle = bench.pick(Duration::from_secs(10), Duration::from_millis(100));
    sleep(idle);
    let after = server.usage()?;
    anyhow::ensure!(readers.seen()?.bytes == 0, "a request did not wait");
    let each = (waiting.rss - before.rss) / (many - few) as f64 / 1024.0;
    let row = Row::new(GROUP, format!("{many} requests that wait"));
    bench.report.add(row.value("memory, a request", each, "KiB"));
    let cores = (after.cpu_seconds - waiting.cpu_seconds) / idle.as_secs_f64();
    let row = Row::new(GROUP, format!("{many} requests that wait"));
    bench.report.add(row.value("server CPU", cores * 1e6 / many as f64, "us/s each"));
    drop((readers, few_readers));
    Ok(())
}

fn measure(bench: &Bench, simulator: &mut Simulator, case: &Case) -> anyhow::Result<Outcome> {
    let ticks = if case.per_second < 200 { bench.pick(100, 10) } else { bench.pick(1_000, 10) };
    let interval = Duration::from_millis(if case.per_second < 200 { 50 } else { 5 });
    let events_per_tick = (case.per_second * interval.as_millis() as usize / 1000).max(1);
    let rhythm = Rhythm { ticks, events_per_tick, interval };
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    let readers = match case.streams {
        0 => None,
        streams => Some(Readers::connect(server.address, streams, Some(&case.path), Measure::Count)?),
    };
    sleep(bench.pick(SETTLING, STILL));
    let seen = || readers.as_ref().map(Readers::seen).transpose();
    let (usage, before) = (server.usage()?, seen()?);
    simulator.begin_turning("pods", rhythm, TURNS)?;
    simulator.end()?;
    let (mut last, mut moved) = (None, Instant::now());
    while moved.elapsed() < STILL {
        let bytes = seen()?.map(|seen| seen.bytes);
        if bytes != last {
            (last, moved) = (bytes, Instant::now());
        }
        sleep(Duration::from_millis(20));
    }
    let (after, usage_after) = (seen()?, server.usage()?);
    let events = rhythm.events() as f64;
    let (mut bytes, mut frames) = (0.0, 0.0);
    if let (Some(before), Some(after)) = (before, after) {
        anyhow::ensure!(after.lost == 0, "{} streams were cut off", after.lost);
        let each = events * case.streams as f64;
        bytes = (after.bytes - before.bytes) as f64 / each;
        frames = (after.frames - before.frames) as f64 / each;
        anyhow::ensure!(after.bytes > before.bytes, "no stream got anything");
    }
    let cpu_us = (usage_after.cpu_seconds - usage.cpu_seconds) * 1e6 / events;
    Ok(Outcome { cpu_us, bytes, frames })
}

/// The answer to a request on a connection of its own. `line` is method and path, `rest` the header fields and body.
fn exchange(address: SocketAddr, line: &str, rest: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{rest}")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
