//! Many clients of which one gets the events: whether an event costs more because of the others.

use std::time::Duration;

use crate::Bench;
use crate::client::{Measure, NUMBER, Readers};
use crate::report::{Row, median};
use crate::server::{QUIET, Server};
use crate::simulator::{Rhythm, Simulator};

const GROUP: &str = "scoped";
const OBJECTS: usize = 1000;
/// The simulator loads objects of one namespace at this distance.
const NAMESPACES: usize = 100;
pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let (few, many) = bench.pick((100, 10_000), (10, 100));
    let rhythm =
        Rhythm { ticks: bench.pick(400, 50), events_per_tick: 1, interval: Duration::from_millis(5) };
    let mut simulator = Simulator::start()?;
    simulator.load("configmaps", OBJECTS, 640)?;
    // Each client has a namespace of its own. The events are in the namespace of the first.
    let path = format!("/v1/watch/configmaps?sendInitialEvents=false&namespace=load-{NUMBER}");
    // Two servers that get the same events at the same time.
    let mut sides = Vec::new();
    for clients in [few, many] {
        let (server, _) = Server::start(&simulator.url, &["configmaps"], &QUIET)?;
        let readers = Readers::connect(server.address, clients, Some(&path), Measure::Count)?;
        readers.wait_for(clients as u64)?;
        sides.push((server, readers, Vec::new()));
    }
    for _ in 0..bench.pick(5, 1) {
        let mut before = Vec::new();
        for (server, readers, _) in &sides {
            before.push((server.usage()?, readers.seen()?));
        }
        simulator.begin_every("configmaps", rhythm, NAMESPACES)?;
        simulator.end()?;
        for ((server, readers, samples), (usage, seen)) in sides.iter_mut().zip(before) {
            readers.wait_for(seen.frames + rhythm.events() as u64)?;
            let cpu = server.usage()?.cpu_seconds - usage.cpu_seconds;
            samples.push(cpu * 1e6 / rhythm.events() as f64);
        }
    }
    let mut cpu = sides.into_iter().map(|(_, _, samples)| median(samples));
    let (of_few, of_many) = (cpu.next().unwrap_or(f64::NAN), cpu.next().unwrap_or(f64::NAN));
    let case = format!("{many} clients, a namespace each, 200/s in one");
    let row = Row::new(GROUP, case).value("server CPU", of_many, "us/event");
    bench.report.add(row.against(bench.pick("100 clients", "10 clients"), of_few));
    Ok(())
}
