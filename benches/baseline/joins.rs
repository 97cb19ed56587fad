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
const REST: Duration = Duration::from_secs(15);
const RESOURCES: [&str; 6] = ["pods", "nodes", "namespaces", "services", "replicasets", "deployments"];

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let (pods, streams, per_second) = bench.pick((100_000, 10_000, 2_000), (1_000, 50, 400));
    // Within this time the allocator returns memory that only the first states needed.
    let rest = bench.pick(REST, Duration::ZERO);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", pods, POD_BYTES)?;
    simulator.relate(pods)?;
    let node = format!("/v1/watch/pods?sendInitialEvents=false&fieldSelector=spec.nodeName%3Dnode-{NUMBER}");
    // Each node has ten pods.
    let frames_per_event = streams as f64 / (pods as f64 / 10.0);
    let case = |name, streams, query: String| Case { name, streams, query, frames_per_event };
    let none = case("no stream", 0, String::new());
    let alone = case("streams of a node's pods", streams, node.clone());
    let joined = format!("{node}&join=owners,namespaces,nodes,services");
    let joined = case("streams with owners, namespaces, nodes and services", streams, joined);
    let base = measure_over(bench, &mut simulator, &RESOURCES, &none, per_second, rest)?;
    for case in [none, alone, joined] {
        let outcome = measure_over(bench, &mut simulator, &RESOURCES, &case, per_second, rest)?;
        report(bench, &case, per_second, &outcome, &base);
    }
    Ok(())
}

fn report(bench: &mut Bench, case: &Case, per_second: usize, outcome: &Outcome, base: &Outcome) {
    let name = format!("{} {}, {per_second}/s", case.streams, case.name);
    let row = Row::new(GROUP, name.clone()).value("server CPU", outcome.cpu_us, "us/event");
    bench.report.add(row.against("no stream", base.cpu_us));
    let cores = outcome.cpu_us * per_second as f64 / 1e6;
    bench.report.add(Row::new(GROUP, name.clone()).value("server CPU", cores, "cores"));
    if case.streams == 0 {
        return;
    }
    bench.report.add(Row::new(GROUP, name.clone()).value("p99", outcome.p99 / 1000.0, "ms"));
    let each = (outcome.rss - base.rss) / case.streams as f64;
    bench.report.add(Row::new(GROUP, name).value("memory, a stream", each / 1024.0, "KiB"));
}
