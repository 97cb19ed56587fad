//! Packed caches compared with unpacked ones, in one run: resident memory, the first sync, and the CPU of reads.
//!
//! Three sources. `alike`: pods as the simulator loads them, 5 KB each, with about 450 bytes that no other pod has. `random`: pods of
//! 5 KB of which 2 KB are an annotation of random Base64 (1.5 KB of entropy). `mix`: twenty kinds in the shares of a cluster.

use std::thread::sleep;
use std::time::Duration;

use crate::Bench;
use crate::mix;
use crate::process::Usage;
use crate::report::Row;
use crate::server::{Server, get, wait_until};
use crate::simulator::{Rhythm, Simulator};

const MEGABYTE: f64 = 1e6;
const GROUP: &str = "packing";
/// After a first list, dictionaries are compared, and jemalloc gives back pages that are no longer needed.
const REST: Duration = Duration::from_secs(60);

/// The reads. The first list of everything also computes the content hash of each object, for the list's ETag. The fifty objects are those
/// of five nodes: always of the same five, which stay in the processor's cache, or of other five each time.
const READS: [&str; 5] = [
    "CPU, first list of everything",
    "CPU, list of everything",
    "CPU, one object",
    "CPU, fifty by index",
    "CPU, other fifty by index",
];

/// The results with one setting.
struct Figures {
    seconds: f64,
    synced: Usage,
    steady: Usage,
    json: f64,
    held: f64,
    after_changes: f64,
    /// CPU of [`READS`], in microseconds.
    reads: [f64; READS.len()],
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let count = bench.pick(100_000, 1_000);
    for source in ["alike", "random", "mix"] {
        let mut simulator = Simulator::start()?;
        let kinds = load(bench, &mut simulator, source, count)?;
        let packed = measure(bench, &mut simulator, source, &kinds, "auto")?;
        let plain = measure(bench, &mut simulator, source, &kinds, "off")?;
        report(bench, &format!("{source}: {count} objects"), count, &packed, &plain);
    }
    // Ten times as many take 10 GB and minutes.
    if bench.chosen { large(bench) } else { Ok(()) }
}

/// Loads about this many objects of a source. Returns their kinds.
fn load(
    bench: &mut Bench,
    simulator: &mut Simulator,
    source: &str,
    count: usize,
) -> anyhow::Result<Vec<&'static str>> {
    match source {
        "alike" => simulator.load("pods", count, 5 << 10)?,
        "random" => simulator.load_random("pods", count)?,
        _ => {
            let entropy = simulator.load_mix(count)?;
            let case = format!("{source}: {count} objects");
            bench.report.add(Row::new(GROUP, case).value("entropy, an object", entropy, "B"));
            return Ok(mix::KINDS.each_ref().map(|kind| kind.resource).to_vec());
        }
    }
    Ok(vec!["pods"])
}

/// A million similar pods and a million objects of the mix, packed.
fn large(bench: &mut Bench) -> anyhow::Result<()> {
    let count = bench.pick(1_000_000, 2_000);
    for source in ["alike", "mix"] {
        let mut simulator = Simulator::start()?;
        let kinds = load(bench, &mut simulator, source, count)?;
        let figures = measure(bench, &mut simulator, "large", &kinds, "auto")?;
        let case = format!("{source}: {count} objects");
        let row = |metric, value, unit| Row::new(GROUP, &case).value(metric, value, unit);
        let json = figures.json / MEGABYTE;
        let resident = row("resident, packed", figures.steady.rss / MEGABYTE, "MB");
        bench.report.add(resident.against("MB of JSON", json));
        let peak = row("peak of the first sync, packed", figures.steady.rss_peak / MEGABYTE, "MB");
        bench.report.add(peak.against("MB steady", figures.steady.rss / MEGABYTE));
        bench.report.add(row("first sync, packed", count as f64 / figures.seconds, "objects/s"));
    }
    Ok(())
}

fn measure(
    bench: &Bench,
    simulator: &mut Simulator,
    source: &str,
    kinds: &[&str],
    packing: &str,
) -> anyhow::Result<Figures> {
    let (server, took) = Server::start(&simulator.url, kinds, &["--cache-packing", packing])?;
    let synced = server.usage()?;
    // A million objects are packed anew for almost a minute, if another dictionary turns out to be better.
    let rest = if source == "large" { 3 * REST } else { REST };
    sleep(bench.pick(rest, Duration::from_secs(2)));
    let steady = server.usage()?;
    let sum = |name: &str| -> anyhow::Result<f64> {
        Ok(server.informers()?.iter().filter_map(|informer| informer[name].as_f64()).sum())
    };
    let (json, held) = (sum("bytes")?, sum("heldBytes")?);
    let reads = if source == "alike" { read(bench, &server)? } else { [f64::NAN; READS.len()] };
    let mut after_changes = f64::NAN;
    if source == "alike" {
        // Each change is of another object, in another order than that of the keys, until the journal was filled several times.
        let ticks = bench.pick(600, 5);
        let changes = || -> anyhow::Result<f64> { sum("changes") };
        let before = changes()?;
        let rhythm = Rhythm { ticks, events_per_tick: 100, interval: Duration::from_millis(50) };
        simulator.begin_every("pods", rhythm, 7919)?;
        simulator.end()?;
        let wanted = before + (ticks * 100) as f64;
        wait_until("the changes", || changes().is_ok_and(|now| now >= wanted))?;
        sleep(bench.pick(REST, Duration::from_secs(1)));
        after_changes = server.usage()?.rss;
    }
    Ok(Figures { seconds: took.as_secs_f64(), synced, steady, json, held, after_changes, reads })
}

/// The CPU of [`READS`], in microseconds.
fn read(bench: &Bench, server: &Server) -> anyhow::Result<[f64; READS.len()]> {
    let cpu = |times: usize, path: &dyn Fn(usize) -> String| -> anyhow::Result<f64> {
        let before = server.usage()?.cpu_seconds;
        for nth in 0..times {
            let path = path(nth);
            anyhow::ensure!(get(server.address, &path)?.len() > 100, "nothing at {path}");
        }
        Ok((server.usage()?.cpu_seconds - before) * 1e6 / times as f64)
    };
    let all = |_: usize| "/v1/snapshot/pods".to_owned();
    let one = |_: usize| "/v1/snapshot/pods/load-07/load-0000007".to_owned();
    // Ten pods are on a node.
    let nodes = bench.pick(10_000, 100);
    let fifty_from = |node: usize| {
        let values = (node..node + 5).map(|node| format!("value=node-{node:02}"));
        format!("/v1/index/pods/spec.nodeName?{}", values.collect::<Vec<_>>().join("&"))
    };
    let (fifty, other_fifty) = (|_: usize| fifty_from(7), |nth: usize| fifty_from(nth * 1009 % (nodes - 5)));
    // The first request of each kind has costs that do not recur.
    for path in [one(0), fifty(0)] {
        get(server.address, &path)?;
    }
    let first = cpu(1, &all)?;
    let (lists, small) = (bench.pick(8, 1), bench.pick(4000, 10));
    Ok([first, cpu(lists, &all)?, cpu(small, &one)?, cpu(small, &fifty)?, cpu(small, &other_fifty)?])
}

fn report(bench: &mut Bench, case: &str, count: usize, packed: &Figures, plain: &Figures) {
    let row = |metric, value, unit| Row::new(GROUP, case).value(metric, value, unit);
    let json = packed.json / MEGABYTE;
    let mut add = |row| bench.report.add(row);
    add(row("bytes held", packed.held / MEGABYTE, "MB").against("MB of JSON", json));
    for (metric, figures) in [("resident, packed", packed), ("resident, off", plain)] {
        add(row(metric, figures.steady.rss / MEGABYTE, "MB").against("MB of JSON", json));
    }
    let peak = row("peak of the first sync, packed", packed.steady.rss_peak / MEGABYTE, "MB");
    add(peak.against("MB steady", packed.steady.rss / MEGABYTE));
    let rate = |figures: &Figures| count as f64 / figures.seconds;
    add(row("first sync, packed", rate(packed), "objects/s").against("off", rate(plain)));
    let cpu = |usage: &Usage| usage.cpu_seconds * 1e6 / count as f64;
    add(row("CPU of the first sync, packed", cpu(&packed.steady), "us/object")
        .against("off", cpu(&plain.steady)));
    add(row("of this until it is complete", cpu(&packed.synced), "us/object"));
    if packed.after_changes.is_nan() {
        return;
    }
    for (metric, figures) in [("after changes, packed", packed), ("after changes, off", plain)] {
        add(row(metric, figures.after_changes / MEGABYTE, "MB").against("MB of JSON", json));
    }
    for (at, metric) in READS.into_iter().enumerate() {
        add(row(metric, packed.reads[at], "us").against("off", plain.reads[at]));
    }
}
