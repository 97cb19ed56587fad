//! Resident memory: of objects, of the first sync, of idle clients.

use std::thread::sleep;
use std::time::Duration;

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::report::Row;
use crate::server::Server;
use crate::simulator::Simulator;

const MEGABYTE: f64 = 1e6;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    objects(bench)?;
    idle_clients(bench)
}

fn objects(bench: &mut Bench) -> anyhow::Result<()> {
    let count = bench.pick(100_000, 2_000);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", count, 5 << 10)?;
    let (empty, _) = Server::start(&simulator.url, &["configmaps"], &[])?;
    let base = empty.usage()?.rss;
    drop(empty);
    let (server, took) = Server::start(&simulator.url, &["pods"], &[])?;
    // The allocator gives back what it does not need within ten seconds or so.
    sleep(Duration::from_secs(bench.pick(20, 0)));
    let usage = server.usage()?;
    let informer = server.informers()?.swap_remove(0);
    let json = informer["bytes"].as_f64().unwrap_or(f64::NAN);
    let case = format!("{count} pods, {:.0} MB of JSON", json / MEGABYTE);
    let row = Row::new("memory", &*case).value("resident, steady", usage.rss / MEGABYTE, "MB");
    bench.report.add(row.against("MB of JSON", json / MEGABYTE));
    let row = Row::new("memory", &*case).value("peak of the first sync", usage.rss_peak / MEGABYTE, "MB");
    bench.report.add(row.against("MB steady", usage.rss / MEGABYTE));
    let each = (usage.rss - base) / count as f64;
    let row = Row::new("memory", &*case).value("an object", each, "B");
    bench.report.add(row.against("B of its JSON", json / count as f64));
    let rate = count as f64 / took.as_secs_f64();
    bench.report.add(Row::new("memory", &*case).value("first sync", rate, "objects/s"));
    let cpu = usage.cpu_seconds * 1e6 / count as f64;
    bench.report.add(Row::new("memory", case).value("CPU of the first sync", cpu, "us/object"));
    bench.report.add(Row::new("memory", "no objects").value("resident", base / MEGABYTE, "MB"));
    Ok(())
}

fn idle_clients(bench: &mut Bench) -> anyhow::Result<()> {
    let clients = bench.pick(1000, 50);
    let settle = Duration::from_secs(bench.pick(12, 0));
    let simulator = Simulator::start()?;
    let (server, _) = Server::start(&simulator.url, &["configmaps"], &[])?;
    // What the first client alone brings about is not counted.
    let first = Readers::connect(server.address, 1, Some("/v1/watch/configmaps"), Measure::Count)?;
    first.wait_for(1)?;
    sleep(settle);
    let before = server.usage()?;
    let readers = Readers::connect(server.address, clients, Some("/v1/watch/configmaps"), Measure::Count)?;
    readers.wait_for(clients as u64)?;
    sleep(settle);
    let after = server.usage()?;
    let case = format!("{clients} idle SSE clients");
    let each = (after.rss - before.rss) / clients as f64;
    bench.report.add(Row::new("memory", &*case).value("a client", each, "B"));
    drop(readers);
    sleep(settle);
    let left = (server.usage()?.rss - before.rss) / clients as f64;
    bench.report.add(Row::new("memory", case).value("after they left", left, "B"));
    Ok(())
}
