//! Streams that follow a part of an informer: the cost of a change, for few and for many streams.

use std::time::Duration;

use crate::Bench;
use crate::client::{Measure, NUMBER, Readers};
use crate::fanout::{self, Shape};
use crate::report::Row;
use crate::server::{QUIET, Server, get};
use crate::simulator::{Rhythm, Simulator};

const GROUP: &str = "selected";
const LOOKUP: &str = "lookup";
const SHARED: &str = "shared";
/// Time between the first bookmark of all streams and the first change.
const SETTLING: Duration = Duration::from_secs(3);
/// Time after the last change, in which the allocator gives back what connections took while they began.
const RESTING: Duration = Duration::from_secs(15);
/// Size of a pod's JSON, in bytes.
const POD_BYTES: usize = 5000;

/// The streams of a case, and the changes meanwhile.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) streams: usize,
    /// The request of each stream; `{}` is the stream's number.
    pub(crate) query: String,
    /// Frames for each change, over all streams: at most one, as a pod is in one stream's selection.
    pub(crate) frames_per_event: f64,
}

/// The results of a case.
pub(crate) struct Outcome {
    /// CPU time of informerd for each change, in microseconds.
    pub(crate) cpu_us: f64,
    /// Resident memory of informerd, in bytes.
    pub(crate) rss: f64,
    /// 99th percentile of the time from a change in the API server to its arrival, in microseconds.
    pub(crate) p99: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let pods = bench.pick(100_000, 1_000);
    let (few, many) = bench.pick((100, 10_000), (10, 100));
    let mut simulator = Simulator::start()?;
    simulator.load("pods", pods, POD_BYTES)?;
    let per_second = bench.pick(8_000, 400);
    let node = format!("/v1/watch/pods?sendInitialEvents=false&fieldSelector=spec.nodeName%3Dnode-{NUMBER}");
    let ip_in = format!(
        "/v1/watch/pods?sendInitialEvents=false&fieldSelector=spec.nodeName%3Dnode-{NUMBER}&labelSelector=load%20in%20(true,other)"
    );
    let nobody =
        format!("/v1/watch/pods?sendInitialEvents=false&labelSelector=load!%3Dtrue,app!%3Dx{NUMBER}");
    let idle = Case { name: "no stream", streams: 0, query: String::new(), frames_per_event: 0.0 };
    let base = measure(bench, &mut simulator, &idle, per_second)?;
    report(bench, "no stream", per_second, &base, &base);
    // The simulator's nodes have ten pods each, so there is a node for every ten pods.
    let share = |streams: usize| streams as f64 / (pods as f64 / 10.0);
    let cases = [
        Case {
            name: "few streams of a node each",
            streams: few,
            query: node.clone(),
            frames_per_event: share(few),
        },
        Case { name: "streams of a node each", streams: many, query: node, frames_per_event: share(many) },
        Case {
            name: "streams of a node each, and in (a,b)",
            streams: many,
            query: ip_in,
            frames_per_event: share(many),
        },
        Case {
            name: "distinct selections of !=, none matches",
            streams: bench.pick(1_000, 50),
            query: nobody,
            frames_per_event: 0.0,
        },
    ];
    for case in &cases {
        let outcome = measure(bench, &mut simulator, case, per_second)?;
        report(bench, &format!("{} {}", case.streams, case.name), per_second, &outcome, &base);
    }
    lookup(bench, &simulator)?;
    drop(simulator);
    tens(bench, pods, per_second)
}

/// Streams of a label's value each, and of a namespace each. As a node has, each has ten pods.
fn tens(bench: &mut Bench, pods: usize, per_second: usize) -> anyhow::Result<()> {
    let mut simulator = Simulator::start()?;
    simulator.load_tens("pods", pods, POD_BYTES)?;
    let watch = "/v1/watch/pods?sendInitialEvents=false";
    let (label, namespace) = (
        format!("{watch}&labelSelector=app%3Dapp-{NUMBER}"),
        format!("/v1/watch/pods/load-{NUMBER}?sendInitialEvents=false"),
    );
    let idle = Case { name: "no stream", streams: 0, query: String::new(), frames_per_event: 0.0 };
    let base = measure(bench, &mut simulator, &idle, per_second)?;
    // As many deliveries as to a stream for each value, by a hundredth of the streams.
    let few = (pods / 10).min(100);
    let each: Vec<_> =
        (0..pods / 10 / few).map(|at| if at == 0 { String::new() } else { at.to_string() }).collect();
    let labels = each.iter().map(|at| format!("app-{at}{NUMBER}")).collect::<Vec<_>>().join(",");
    let labels = format!("{watch}&labelSelector=app%20in%20({labels})");
    let namespaces = each.iter().map(|at| format!("&namespace=load-{at}{NUMBER}")).collect::<String>();
    let namespaces = format!("{watch}{namespaces}");
    let cases = [
        ("streams of a label each", pods / 1_000, 0.01, &label),
        ("streams of many labels each, of all in all", few, 1.0, &labels),
        ("streams of a label each", pods / 10, 1.0, &label),
        ("streams of a namespace each", pods / 1_000, 0.01, &namespace),
        ("streams of many namespaces each, of all in all", few, 1.0, &namespaces),
        ("streams of a namespace each", pods / 10, 1.0, &namespace),
    ];
    for (name, streams, frames_per_event, query) in cases {
        let case = Case { name, streams, query: query.clone(), frames_per_event };
        let outcome = measure(bench, &mut simulator, &case, per_second)?;
        report(bench, &format!("{streams} {name}"), per_second, &outcome, &base);
    }
    Ok(())
}

fn measure(
    bench: &Bench,
    simulator: &mut Simulator,
    case: &Case,
    per_second: usize,
) -> anyhow::Result<Outcome> {
    measure_over(bench, simulator, &["pods"], case, per_second, bench.pick(RESTING, Duration::ZERO))
}

/// Measures a case over these resources, of which the pods change. Memory is measured after a pause.
pub(crate) fn measure_over(
    bench: &Bench,
    simulator: &mut Simulator,
    resources: &[&str],
    case: &Case,
    per_second: usize,
    rest: Duration,
) -> anyhow::Result<Outcome> {
    let ticks = bench.pick(1_000, 20);
    let rhythm = Rhythm { ticks, events_per_tick: per_second / 200, interval: Duration::from_millis(5) };
    let (server, _) = Server::start(&simulator.url, resources, &QUIET)?;
    let readers = match case.streams {
        0 => None,
        streams => Some(Readers::connect(server.address, streams, Some(&case.query), Measure::Latency)?),
    };
    if let Some(readers) = &readers {
        // Each stream begins with a bookmark.
        readers.wait_for(case.streams as u64)?;
        // Time for ten thousand streams to join their views, so that their beginning is not measured.
        std::thread::sleep(bench.pick(SETTLING, Duration::ZERO));
        readers.take_latencies()?;
    }
    let usage = server.usage()?;
    let seen = readers.as_ref().map(Readers::seen).transpose()?;
    simulator.begin_every("pods", rhythm, 7)?;
    simulator.end()?;
    let expected = (rhythm.events() as f64 * case.frames_per_event * 0.9) as u64;
    let mut p99 = 0.0;
    if let (Some(readers), Some(seen)) = (&readers, seen) {
        readers.wait_for(seen.frames + expected)?;
        let latencies = readers.take_latencies()?;
        p99 = latencies.get(latencies.len() * 99 / 100).copied().map_or(0.0, f64::from);
    }
    let after = server.usage()?;
    let cpu_us = (after.cpu_seconds - usage.cpu_seconds) * 1e6 / rhythm.events() as f64;
    std::thread::sleep(rest);
    let rss = server.usage()?.rss;
    drop(readers);
    Ok(Outcome { cpu_us, rss, p99 })
}

fn report(bench: &mut Bench, case: &str, per_second: usize, outcome: &Outcome, base: &Outcome) {
    let case = format!("{case}, {per_second}/s");
    let row = Row::new(GROUP, case.clone()).value("server CPU", outcome.cpu_us, "us/event");
    bench.report.add(row.against("no stream", base.cpu_us));
    if outcome.p99 > 0.0 {
        bench.report.add(Row::new(GROUP, case.clone()).value("p99", outcome.p99 / 1000.0, "ms"));
    }
    let row = Row::new(GROUP, case).value("resident", outcome.rss / f64::from(1 << 20), "MiB");
    bench.report.add(row.against("no stream", base.rss / f64::from(1 << 20)));
}

/// Many streams of one selection, and of two informers, compared with a plain write loop to as many sockets.
pub(crate) fn shared(bench: &mut Bench) -> anyhow::Result<()> {
    let mut simulator = Simulator::start()?;
    simulator.load("pods", 1000, POD_BYTES)?;
    simulator.load("configmaps", 1000, 640)?;
    let (server, _) = Server::start(&simulator.url, &["pods", "configmaps"], &QUIET)?;
    simulator.touch_all("pods", 1000)?;
    let rhythm =
        Rhythm { ticks: bench.pick(60, 10), events_per_tick: 1, interval: Duration::from_millis(50) };
    let not = "pods?labelSelector=app!%3Dnope";
    let shapes = [
        ("everything, 20/s", "pods", Measure::Count),
        ("one selection of !=, 20/s", not, Measure::Count),
        ("one selection of =, 20/s", "pods?labelSelector=load%3Dtrue", Measure::Count),
        ("two informers, 20/s", "pods,configmaps", Measure::Count),
        ("everything over HTTP/2, 20/s", "pods", Measure::Http2),
        ("one selection of != over HTTP/2, 20/s", not, Measure::Http2),
    ];
    for (name, follows, measure) in shapes {
        let shape = Shape { name, resource: "pods", follows, rhythm, measure };
        fanout::compare(bench, SHARED, &mut simulator, &server, bench.pick(1_000, 20), &shape)?;
    }
    Ok(())
}

/// A list of the ten pods of one node, among all pods.
fn lookup(bench: &mut Bench, simulator: &Simulator) -> anyhow::Result<()> {
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    let path = "/v1/snapshot/pods?fieldSelector=spec.nodeName%3Dnode-42";
    let before = server.usage()?;
    let body = get(server.address, path)?;
    let built = server.usage()?;
    anyhow::ensure!(!body.is_empty(), "an empty answer");
    let rounds = bench.pick(500, 20);
    for _ in 0..rounds {
        get(server.address, path)?;
    }
    let after = server.usage()?;
    let first = (built.cpu_seconds - before.cpu_seconds) * 1e3;
    let row = Row::new(LOOKUP, "list of a node's pods, the first, which builds the index");
    bench.report.add(row.value("server CPU", first, "ms"));
    let each = (after.cpu_seconds - built.cpu_seconds) * 1e3 / f64::from(rounds);
    let row = Row::new(LOOKUP, "list of a node's pods by index");
    bench.report.add(row.value("server CPU", each, "ms").against("the first", first));
    Ok(())
}
