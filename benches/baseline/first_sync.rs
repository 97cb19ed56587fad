//! The first sync, and a relist of an unchanged cluster: time and memory, compared with kube-rs.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Bench;
use crate::contender::{Contender, Initial, Kind};
use crate::process::Usage;
use crate::report::{Row, median};
use crate::server::{Server, wait_until};
use crate::simulator::Simulator;

const MEGABYTE: f64 = 1e6;
const GROUP: &str = "first-sync";

/// The other programs, and their names in the table.
const CONTENDERS: [(&str, Kind, Initial); 6] = [
    ("kube-rs Pod, paged", Kind::Typed, Initial::Page),
    ("kube-rs Pod, streaming", Kind::Typed, Initial::Stream),
    ("kube-rs DynamicObject, paged", Kind::Dynamic, Initial::Page),
    ("kube-rs DynamicObject, streaming", Kind::Dynamic, Initial::Stream),
    ("bytes only, paged", Kind::Bytes, Initial::Page),
    ("bytes only, streaming", Kind::Bytes, Initial::Stream),
];

/// The figures of a process after its first sync.
#[derive(Default)]
struct Figures {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    first: Option<Usage>,
    relist_peak: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let count = bench.pick(100_000, 2_000);
    // The longest group: each of the other programs takes half a minute in a round.
    let rounds = if bench.chosen { bench.pick(3, 1) } else { 1 };
    let settle = Duration::from_secs(bench.pick(if bench.chosen { 15 } else { 10 }, 0));
    let mut simulator = Simulator::start()?;
    simulator.load("pods", count, 5 << 10)?;
    let mut ours = Figures::default();
    let mut others: [Figures; CONTENDERS.len()] = Default::default();
    let mut json = 0.0;
    for round in 0..rounds {
        let last = round + 1 == rounds;
        let settle = if last { settle } else { Duration::ZERO };
        json = informerd(&mut simulator, count, settle, &mut ours)?;
        for ((_, kind, initial), figures) in CONTENDERS.iter().zip(&mut others) {
            contender(&mut simulator, (*kind, *initial), count, settle, figures)?;
        }
    }
    report(bench, count, json, &ours, &others);
    Ok(())
}

fn informerd(
    simulator: &mut Simulator,
    count: usize,
    settle: Duration,
    figures: &mut Figures,
) -> anyhow::Result<f64> {
    let (server, took) = Server::start(&simulator.url, &["pods"], &[])?;
    figures.seconds.push(took.as_secs_f64());
    figures.cpu_seconds.push(server.usage()?.cpu_seconds);
    sleep(settle);
    figures.first = Some(server.usage()?);
    let informer = || anyhow::Ok(server.informers()?.swap_remove(0));
    let before = informer()?;
    anyhow::ensure!(before["objects"] == count, "not everything is there: {before}");
    server.reset_peak()?;
    simulator.expire("pods")?;
    // The watch that gets the 410, and the watch after the relist.
    let wanted = before["watches"].as_u64().unwrap_or(0) + 2;
    let watches = || informer().ok().and_then(|now| now["watches"].as_u64());
    wait_until("the relist", || watches().is_some_and(|watches| watches >= wanted))?;
    let after = informer()?;
    anyhow::ensure!(after["relists"] == 1, "no relist: {after}");
    for unchanged in ["changes", "objects", "bytes", "journalEvents", "tombstones"] {
        anyhow::ensure!(
            before[unchanged] == after[unchanged],
            "{unchanged} after a relist: {before}, {after}"
        );
    }
    figures.relist_peak = server.usage()?.rss_peak;
    Ok(before["bytes"].as_f64().unwrap_or(f64::NAN))
}

fn contender(
    simulator: &mut Simulator,
    (kind, initial): (Kind, Initial),
    count: usize,
    settle: Duration,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let (mut contender, took, found) = Contender::start(&simulator.url, kind, initial)?;
    anyhow::ensure!(found == count, "{kind:?} {initial:?} found {found} objects");
    figures.seconds.push(took.as_secs_f64());
    figures.cpu_seconds.push(contender.usage()?.cpu_seconds);
    if kind == Kind::Bytes {
        return Ok(());
    }
    sleep(settle);
    figures.first = Some(contender.usage()?);
    contender.reset_peak()?;
    simulator.expire("pods")?;
    let began = Instant::now();
    let found = contender.synced_again()?;
    anyhow::ensure!(found == count, "{kind:?} {initial:?} found {found} objects after {:?}", began.elapsed());
    figures.relist_peak = contender.usage()?.rss_peak;
    Ok(())
}

fn report(bench: &mut Bench, count: usize, json: f64, ours: &Figures, others: &[Figures; CONTENDERS.len()]) {
    let case = format!("{count} pods, {:.0} MB of JSON", json / MEGABYTE);
    let row = |metric, value, unit| Row::new(GROUP, &*case).value(metric, value, unit);
    let rate = |figures: &Figures| count as f64 / median(figures.seconds.clone());
    let cpu = |figures: &Figures| median(figures.cpu_seconds.clone()) * 1e6 / count as f64;
    let names = CONTENDERS.map(|(name, ..)| name);
    for (name, figures) in names.iter().zip(others) {
        bench.report.add(row("synced", rate(ours), "objects/s").against(name, rate(figures)));
    }
    for (name, figures) in names.iter().zip(others) {
        bench.report.add(row("CPU", cpu(ours), "us/object").against(name, cpu(figures)));
    }
    let Some(first) = ours.first else { return };
    let steady = row("resident, steady", first.rss / MEGABYTE, "MB");
    bench.report.add(steady.against("MB of JSON", json / MEGABYTE));
    let peak = row("peak of the first sync", first.rss_peak / MEGABYTE, "MB");
    bench.report.add(peak.against("MB steady", first.rss / MEGABYTE));
    let peak = row("peak of a relist", ours.relist_peak / MEGABYTE, "MB");
    bench.report.add(peak.against("MB steady", first.rss / MEGABYTE));
    for (name, figures) in names.iter().zip(others) {
        let Some(usage) = figures.first else { continue };
        let row = |metric, value: f64| Row::new(GROUP, *name).value(metric, value / MEGABYTE, "MB");
        bench.report.add(row("resident, steady", usage.rss).against("MB of JSON", json / MEGABYTE));
        bench
            .report
            .add(row("peak of the first sync", usage.rss_peak).against("MB steady", usage.rss / MEGABYTE));
        bench
            .report
            .add(row("peak of a relist", figures.relist_peak).against("MB steady", usage.rss / MEGABYTE));
    }
}
