//! Time of an event to the last of many clients, compared with loops that write the same bytes to as many.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Bench;
use crate::axum_sse;
use crate::client::{Measure, Readers};
use crate::peer::{Load, Peer};
use crate::report::{Row, median, millis_at};
use crate::server::{QUIET, Server};
use crate::simulator::{Rhythm, Simulator};

const GROUP: &str = "latency";
const OBJECTS: usize = 1000;

/// The results of one server, in all rounds.
#[derive(Default)]
struct Side {
    /// Latencies in microseconds.
    latencies: Vec<u32>,
    /// CPU use of the clients' one thread: near 1, the clients are what is measured.
    client_cores: Vec<f64>,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let clients = bench.pick(1000, 20);
    let rhythm =
        Rhythm { ticks: bench.pick(100, 20), events_per_tick: 1, interval: Duration::from_millis(20) };
    let mut simulator = Simulator::start()?;
    simulator.load("pods", OBJECTS, 5 << 10)?;
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    simulator.touch_all("pods", OBJECTS)?;
    let path = "/v1/watch/pods?sendInitialEvents=false";
    let readers = Readers::connect(server.address, clients, Some(path), Measure::Last)?;
    readers.wait_for(clients as u64)?;
    // A watch beside informerd's own measures when the API server's event arrived.
    let watch = Readers::connect(simulator.address()?, 1, Some("/api/v1/pods?watch=true"), Measure::Last)?;
    let plain = Peer::plain()?;
    let plain_readers = Readers::connect(plain.address, clients, None, Measure::Last)?;
    plain.connected(clients)?;
    let axum = Peer::axum()?;
    let axum_readers = Readers::connect(axum.address, clients, Some(axum_sse::PATH), Measure::Last)?;
    axum.connected(clients)?;
    // The initial objects.
    sleep(Duration::from_millis(500));
    watch.take_last(1)?;

    let (mut ours, mut limit, mut usual) = (Side::default(), Side::default(), Side::default());
    let (mut upstream, mut whole) = (Vec::new(), Vec::new());
    let frames = (rhythm.events() * clients) as u64;
    for _ in 0..bench.pick(5, 1) {
        let before = readers.seen()?;
        let mut spacing = Duration::ZERO;
        ours.client_cores.push(cores(&readers, frames, || {
            simulator.begin("pods", rhythm)?;
            spacing = simulator.end()?.spacing;
            Ok(())
        })?);
        let frame_bytes = usize::try_from((readers.seen()?.bytes - before.bytes) / frames)?;
        let (came, last) = (watch.take_last(1)?, readers.take_last(clients)?);
        for (changed, last) in complete(last, rhythm)? {
            if let Some(came) = came.get(&changed) {
                ours.latencies.push(between(*came, last));
                upstream.push(between(changed, *came));
            }
            whole.push(between(changed, last));
        }
        let load = Load { rhythm, spacing, frame_bytes };
        for (side, peer, readers) in
            [(&mut limit, &plain, &plain_readers), (&mut usual, &axum, &axum_readers)]
        {
            side.client_cores.push(cores(readers, frames, || peer.frames(&load))?);
            let last = complete(readers.take_last(clients)?, rhythm)?;
            side.latencies.extend(last.into_iter().map(|(due, last)| between(due, last)));
        }
    }
    let case = format!("last of {clients} clients, 5 KB, 50/s");
    for latencies in [&mut ours.latencies, &mut limit.latencies, &mut usual.latencies] {
        latencies.sort_unstable();
    }
    for (metric, quantile) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        for (what, of) in [("plain write loop", &limit), ("axum Sse", &usual)] {
            let row = Row::new(GROUP, &*case).value(metric, millis_at(&ours.latencies, quantile), "ms");
            bench.report.add(row.against(what, millis_at(&of.latencies, quantile)));
        }
    }
    let (ours, limit) = (median(ours.client_cores), median(limit.client_cores));
    let row = Row::new(GROUP, case).value("clients' CPU", ours, "cores");
    bench.report.add(row.against("plain write loop", limit));
    from_the_change(bench, "a change until a watch has it", upstream);
    from_the_change(bench, "a change until the last client has it", whole);
    Ok(())
}

/// Latencies to which the simulator contributes.
fn from_the_change(bench: &mut Bench, case: &str, mut latencies: Vec<u32>) {
    latencies.sort_unstable();
    for (metric, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        bench.report.add(Row::new(GROUP, case).value(metric, millis_at(&latencies, quantile), "ms"));
    }
}

/// Runs something until every client has every frame. Returns the CPU use of the clients' thread.
fn cores(readers: &Readers, frames: u64, play: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let expected = readers.seen()?.frames + frames;
    let (before, began) = (readers.usage()?, Instant::now());
    play()?;
    readers.wait_for(expected)?;
    Ok((readers.usage()?.cpu_seconds - before.cpu_seconds) / began.elapsed().as_secs_f64())
}

/// Checks that every event arrived at every client.
fn complete(last: HashMap<u64, u64>, rhythm: Rhythm) -> anyhow::Result<HashMap<u64, u64>> {
    let (events, expected) = (last.len(), rhythm.events());
    anyhow::ensure!(events == expected, "{events} of {expected} events came to all");
    Ok(last)
}

fn between(earlier: u64, later: u64) -> u32 {
    u32::try_from(later.saturating_sub(earlier)).unwrap_or(u32::MAX)
}
