//! Streams of a node's pods with related objects, compared with streams of the pods alone.

use std::time::Duration;

use crate::Bench;
use crate::client::NUMBER;
use crate::report::Row;
use crate::selected::{Case, Outcome, measure_over};
use crate::simulator::Simulator;

const GROUP: &str = "joins";
/// Size of a pod's JSON, in bytes.
const POD_BYTES: usize = 5000;
/// jemalloc gives back pages that are no longer needed within some seconds.
const REST: Duration = Duration::from_secs(30);
const RESOURCES: [&str; 6] = ["pods", "nodes", "namespaces", "services", "replicasets", "deployments"];

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let (pods, few, many, per_second) = bench.pick((100_000, 100, 10_000, 2_000), (1_000, 5, 50, 400));
    let rest = bench.pick(REST, Duration::ZERO);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", pods, POD_BYTES)?;
    simulator.relate(pods)?;
    let node = format!("/v1/watch/pods?sendInitialEvents=false&fieldSelector=spec.nodeName%3Dnode-{NUMBER}");
    let joined = format!("{node}&join=owners,namespaces,nodes,services");
    let mut measure = |name, streams, query: &str| {
        // Each node has ten pods.
        let frames_per_event = streams as f64 / (pods as f64 / 10.0);
        let case = Case { name, streams, query: query.to_owned(), frames_per_event };
        let outcome = measure_over(bench, &mut simulator, &RESOURCES, &case, per_second, rest)?;
        anyhow::Ok((case, outcome))
    };
    // The first server finds cold files and memory.
    measure("no stream", 0, "")?;
    let (none, base) = measure("no stream", 0, "")?;
    let mut rows = vec![(none, base, None)];
    for (name, query) in
        [("streams of a node's pods", node), ("streams with owners, namespaces, nodes and services", joined)]
    {
        // What all such streams need once, as the index, is there with few of them.
        let (case, outcome) = measure(name, few, &query)?;
        let at_few = outcome.rss;
        rows.push((case, outcome, None));
        let (case, outcome) = measure(name, many, &query)?;
        let each = (outcome.rss - at_few) / (many - few) as f64;
        rows.push((case, outcome, Some(each)));
    }
    let base_us = rows[0].1.cpu_us;
    for (case, outcome, each) in &rows {
        report(bench, case, per_second, outcome, base_us, *each);
    }
    Ok(())
}

/// `each`: the memory of a stream, in bytes.
fn report(
    bench: &mut Bench,
    case: &Case,
    per_second: usize,
    outcome: &Outcome,
    base_us: f64,
    each: Option<f64>,
) {
    let name = format!("{} {}, {per_second}/s", case.streams, case.name);
    let row = |metric, value, unit| Row::new(GROUP, name.clone()).value(metric, value, unit);
    bench.report.add(row("server CPU", outcome.cpu_us, "us/event").against("no stream", base_us));
    bench.report.add(row("server CPU", outcome.cpu_us * per_second as f64 / 1e6, "cores"));
    if case.streams > 0 {
        bench.report.add(row("p99", outcome.p99 / 1000.0, "ms"));
    }
    if let Some(each) = each {
        bench.report.add(row("memory, a stream", each / 1024.0, "KiB"));
    }
}
