//! The first state for many clients at once, as the beginning of streams and as snapshots.

use std::time::{Duration, Instant};

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::peer::Peer;
use crate::process::{Usage, kernel_tcp_bytes};
use crate::report::{Figure, Row, median, millis_at};
use crate::server::{QUIET, Server, wait_until};
use crate::simulator::{Rhythm, Simulator, micros_since_1970};

const GROUP: &str = "initial";
/// Number of clients that follow something else meanwhile.
pub(crate) const OTHERS: usize = 10;
const PLAIN: &str = "plain write loop";

/// The transfer of all bytes to all clients, from the first connection to the last byte.
struct Transfer {
    bytes: f64,
    seconds: f64,
    cpu_seconds: f64,
    client_cores: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    streams(bench)?;
    snapshots(bench)
}

fn streams(bench: &mut Bench) -> anyhow::Result<()> {
    // 10,000 pods for 1,000 clients would be 50 GB.
    let (clients, objects) = bench.pick((1000, 1000), (20, 100));
    let mut simulator = Simulator::start()?;
    simulator.load("pods", objects, 5 << 10)?;
    // The other clients follow this, so that those that join get the state and nothing else.
    simulator.load("configmaps", 1000, 640)?;
    let (server, _) = Server::start(&simulator.url, &["pods", "configmaps"], &QUIET)?;
    let path = "/v1/watch/configmaps?sendInitialEvents=false";
    let others = Readers::connect(server.address, OTHERS, Some(path), Measure::Last)?;
    others.wait_for(OTHERS as u64)?;
    let rhythm = |seconds: usize| Rhythm {
        ticks: seconds * 100,
        events_per_tick: 1,
        interval: Duration::from_millis(10),
    };
    let (_, mut alone) = beside(&mut simulator, &others, rhythm(bench.pick(3, 1)), || Ok(()), |_| true)?;

    server.reset_peak()?;
    let before = server.usage()?;
    let plain = Peer::plain()?;
    let (mut ours, mut limit, mut meanwhile) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.pick(3, 1) {
        let joined = std::cell::Cell::new(0);
        let join = || {
            let transfer = transfer(
                server.address,
                clients,
                Some("/v1/watch/pods"),
                || server.usage(),
                |readers| {
                    // An event for each object, and one at the end of the state.
                    readers.wait_for((clients * (objects + 1)) as u64)
                },
            );
            joined.set(micros_since_1970());
            transfer
        };
        let during = |changed| changed <= joined.get();
        let (transfer, latencies) = beside(&mut simulator, &others, rhythm(bench.pick(6, 1)), join, during)?;
        meanwhile.extend(latencies);
        let bytes = transfer.bytes as usize / clients;
        ours.push(transfer);
        limit.push(of_plain(&plain, clients, bytes)?);
    }
    alone.sort_unstable();
    meanwhile.sort_unstable();
    let case = format!("{clients} join, {objects} pods, {:.1} GB", ours[0].bytes / 1e9);
    report_transfers(bench, &case, &ours, &limit);
    let row = |metric, value, unit| Row::new(GROUP, &*case).value(metric, value, unit);
    let (peak, begin) = (server.usage()?.rss_peak / 1e6, before.rss / 1e6);
    bench.report.add(row("server RSS, peak", peak, "MB").against("before", begin));
    bench.report.add(row("of it, a client", (peak - begin) * 1e3 / clients as f64, "kB"));
    for (metric, quantile) in
        [("latency of others, p50", 0.5), ("latency of others, p99", 0.99), ("latency of others, max", 1.0)]
    {
        let row = row(metric, millis_at(&meanwhile, quantile), "ms");
        bench.report.add(row.against("alone", millis_at(&alone, quantile)));
    }
    Ok(())
}

fn snapshots(bench: &mut Bench) -> anyhow::Result<()> {
    let (clients, objects) = bench.pick((50, 10_000), (5, 500));
    let path = "/v1/snapshot/pods";
    let mut simulator = Simulator::start()?;
    simulator.load("pods", objects, 5 << 10)?;
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    // Memory that a single reader allocates is not counted.
    transfer(server.address, 1, Some(path), || server.usage(), |readers| readers.wait_ended(1))?;
    server.reset_peak()?;
    let before = server.usage()?;
    let plain = Peer::plain()?;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..bench.pick(3, 1) {
        let usage = || server.usage();
        let transfer =
            transfer(server.address, clients, Some(path), usage, |readers| readers.wait_ended(clients))?;
        let bytes = transfer.bytes as usize / clients;
        ours.push(transfer);
        limit.push(of_plain(&plain, clients, bytes)?);
    }
    let case = format!("{clients} snapshots at once, {objects} pods, {:.1} GB", ours[0].bytes / 1e9);
    report_transfers(bench, &case, &ours, &limit);
    let row = |metric, value, unit| Row::new(GROUP, &*case).value(metric, value, unit);
    let (peak, begin) = (server.usage()?.rss_peak / 1e6, before.rss / 1e6);
    bench.report.add(row("server RSS, peak", peak, "MB").against("before", begin));
    bench.report.add(row("of it, a reader", (peak - begin) * 1e3 / clients as f64, "kB"));

    // Clients that request and do not read can keep what is held for them for as long as they like.
    server.reset_peak()?;
    let (before, kernel_before) = (server.usage()?, kernel_tcp_bytes());
    let stalled = Readers::connect(server.address, clients, Some(path), Measure::Stall)?;
    let growing = std::cell::Cell::new((before.rss_peak, Instant::now()));
    wait_until("memory to stay as it is", || {
        let peak = server.usage().map_or(0.0, |usage| usage.rss_peak);
        if peak > growing.get().0 {
            growing.set((peak, Instant::now()));
        }
        growing.get().1.elapsed() >= Duration::from_millis(bench.pick(1000, 100))
    })?;
    let (after, kernel_after) = (server.usage()?, kernel_tcp_bytes());
    drop(stalled);
    let case = format!("{clients} that do not read theirs, {objects} pods");
    let row = |metric, value, unit| Row::new(GROUP, &*case).value(metric, value, unit);
    let each = |after: f64, before: f64| (after - before) / clients as f64 / 1e3;
    bench.report.add(row("server RSS, peak, a reader", each(after.rss_peak, before.rss), "kB"));
    bench.report.add(row("kernel TCP memory, a reader", each(kernel_after, kernel_before), "kB"));
    Ok(())
}

/// Runs something while objects change that other clients follow. Returns its result and, for each change within the
/// measured time, how long it took until all other clients had it. Waits for the last of these changes, so that late
/// ones are counted, too.
pub(crate) fn beside<T>(
    simulator: &mut Simulator,
    others: &Readers,
    rhythm: Rhythm,
    work: impl FnOnce() -> anyhow::Result<T>,
    counts: impl Fn(u64) -> bool,
) -> anyhow::Result<(T, Vec<u32>)> {
    let expected = others.seen()?.frames + (rhythm.events() * OTHERS) as u64;
    simulator.begin("configmaps", rhythm)?;
    let outcome = work()?;
    simulator.end()?;
    others.wait_for(expected)?;
    let last = others.take_last(OTHERS)?;
    let latency =
        |(changed, last): (u64, u64)| u32::try_from(last.saturating_sub(changed)).unwrap_or(u32::MAX);
    Ok((outcome, last.into_iter().filter(|(changed, _)| counts(*changed)).map(latency).collect()))
}

/// The same bytes from the plain loop.
fn of_plain(plain: &Peer, clients: usize, bytes: usize) -> anyhow::Result<Transfer> {
    transfer(
        plain.address,
        clients,
        None,
        || plain.usage(),
        |readers| {
            plain.connected(clients)?;
            plain.stream(bytes)?;
            readers.wait_ended(clients)
        },
    )
}

fn transfer(
    address: std::net::SocketAddr,
    clients: usize,
    path: Option<&str>,
    usage: impl Fn() -> anyhow::Result<Usage>,
    wait: impl FnOnce(&Readers) -> anyhow::Result<()>,
) -> anyhow::Result<Transfer> {
    let (before, began) = (usage()?, Instant::now());
    let readers = Readers::connect(address, clients, path, Measure::Count)?;
    wait(&readers)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Transfer {
        bytes: readers.seen()?.bytes as f64,
        seconds,
        cpu_seconds: usage()?.cpu_seconds - before.cpu_seconds,
        client_cores: readers.usage()?.cpu_seconds / seconds,
    })
}

fn report_transfers(bench: &mut Bench, case: &str, ours: &[Transfer], limit: &[Transfer]) {
    let figures: [Figure<Transfer>; 3] = [
        ("delivered", "MB/s", |transfer| transfer.bytes / transfer.seconds / 1e6),
        ("server CPU", "s/GB", |transfer| transfer.cpu_seconds / (transfer.bytes / 1e9)),
        ("clients' CPU", "cores", |transfer| transfer.client_cores),
    ];
    for (metric, unit, figure) in figures {
        let middle = |of: &[Transfer]| median(of.iter().map(figure).collect());
        let row = Row::new(GROUP, case).value(metric, middle(ours), unit);
        bench.report.add(row.against(PLAIN, middle(limit)));
    }
}
