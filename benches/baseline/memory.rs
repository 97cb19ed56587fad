//! Resident memory: of objects, of the first sync, of idle clients.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::process::kernel_tcp_bytes;
use crate::report::Row;
use crate::server::Server;
use crate::simulator::Simulator;

const MEGABYTE: f64 = 1e6;

pub(crate) fn objects(bench: &mut Bench) -> anyhow::Result<()> {
    let count = bench.pick(100_000, 2_000);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", count, 5 << 10)?;
    let (empty, _) = Server::start(&simulator.url, &["configmaps"], &[])?;
    let base = empty.usage()?.rss;
    drop(empty);
    let (server, took) = Server::start(&simulator.url, &["pods"], &[])?;
    // jemalloc gives memory back within some seconds.
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

pub(crate) fn idle_clients(bench: &mut Bench) -> anyhow::Result<()> {
    for clients in bench.pick([1000, 10_000].as_slice(), [50].as_slice()) {
        idle(bench, *clients)?;
    }
    Ok(())
}

fn idle(bench: &mut Bench, clients: usize) -> anyhow::Result<()> {
    let settle = Duration::from_secs(bench.pick(12, 0));
    let simulator = Simulator::start()?;
    // With the default heartbeats of quiet clients.
    let flags = ["--connections-max", "12000"];
    let (server, _) = Server::start(&simulator.url, &["configmaps"], &flags)?;
    // Memory that the first client allocates once is not counted.
    let first = Readers::connect(server.address, 1, Some("/v1/watch/configmaps"), Measure::Count)?;
    first.wait_for(1)?;
    sleep(Duration::from_secs(bench.pick(3, 0)));
    let (before, kernel_before, began) = (server.usage()?, kernel_tcp_bytes(), Instant::now());
    let readers = Readers::connect(server.address, clients, Some("/v1/watch/configmaps"), Measure::Count)?;
    readers.wait_for(clients as u64)?;
    let (connected, connecting) = (server.usage()?, began.elapsed());
    // The time between two heartbeats.
    let (quiet, while_quiet) = (server.usage()?, Instant::now());
    sleep(Duration::from_secs(bench.pick(15, 1)));
    let (after, seconds) = (server.usage()?, while_quiet.elapsed().as_secs_f64());
    anyhow::ensure!(readers.seen()?.lost == 0, "{} clients did not stay", readers.seen()?.lost);
    let case = format!("{clients} idle SSE clients");
    let each = |of: f64, before: f64| (of - before) / clients as f64;
    let row = |metric, value, unit| Row::new("memory-idle", &*case).value(metric, value, unit);
    bench.report.add(row("a client", each(after.rss, before.rss), "B"));
    bench.report.add(row("a client, kernel TCP memory", each(kernel_tcp_bytes(), kernel_before), "B"));
    let cpu = each(connected.cpu_seconds, before.cpu_seconds) * 1e6;
    bench.report.add(row("CPU to connect", cpu, "us/client"));
    bench.report.add(row("connected", clients as f64 / connecting.as_secs_f64(), "clients/s"));
    let cores = (after.cpu_seconds - quiet.cpu_seconds) / seconds;
    bench.report.add(row("CPU while idle", cores, "cores"));
    drop(readers);
    sleep(settle);
    let left = each(server.usage()?.rss, before.rss);
    bench.report.add(row("after they left, a client", left, "B"));
    Ok(())
}
