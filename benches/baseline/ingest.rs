//! Ingestion of as many events as possible, while clients follow everything.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::report::{Row, millis_at};
use crate::server::{QUIET, Server, wait_until};
use crate::simulator::{POUR_STEP, Pour, Simulator};

const GROUP: &str = "ingest";
const PATH: &str = "/v1/watch/configmaps?sendInitialEvents=false";
/// Number of clients that read times: that costs a client more than counting.
const WATCHMEN: usize = 10;
/// Size of an object in the simulator, in bytes; about 500 in a frame.
const BYTES: usize = 640;
/// Events a second that informerd must ingest.
const TARGET: usize = 20_000;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    for clients in [0, bench.pick(100, 20)] {
        for rate in [TARGET, 0] {
            pour(bench, clients, rate)?;
        }
    }
    Ok(())
}

fn pour(bench: &mut Bench, clients: usize, rate: usize) -> anyhow::Result<()> {
    let mut simulator = Simulator::start()?;
    simulator.load("configmaps", 1000, BYTES)?;
    let (server, _) = Server::start(&simulator.url, &["configmaps"], &QUIET)?;
    let others = clients.saturating_sub(WATCHMEN);
    // At least one client that reads times: without other clients, it measures the lag of informerd alone.
    let watchmen = clients.clamp(1, WATCHMEN);
    let watchmen = (watchmen, Readers::connect(server.address, watchmen, Some(PATH), Measure::Latency)?);
    let others = (others, Readers::connect(server.address, others, Some(PATH), Measure::Count)?);
    for (count, readers) in [&watchmen, &others] {
        readers.wait_for(*count as u64)?;
    }
    let events = bench.pick(60_000, 2_000);
    let before = informer(&server)?;
    let changes = figure(&before, "changes")? + events as f64;
    let (usage, clients_usage, began) = (server.usage()?, others.1.usage()?, Instant::now());
    simulator.begin_pour("configmaps", Pour { events, events_per_second: rate, bytes: BYTES })?;
    let spacing = simulator.end()?.spacing;
    wait_until("the last event", || {
        informer(&server).and_then(|now| figure(&now, "changes")).is_ok_and(|now| now >= changes)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    // A client that fell behind the journal gets latest states instead of each change, so fewer events than were
    // ingested. Therefore the end is when nothing arrives any more.
    let mut frames = 0;
    wait_until("the clients", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = watchmen.1.seen().and_then(|seen| Ok(seen.frames + others.1.seen()?.frames));
        let now = now.unwrap_or(u64::MAX);
        std::mem::replace(&mut frames, now) == now
    })?;
    let all = watchmen.0 + others.0;
    let cpu = server.usage()?.cpu_seconds - usage.cpu_seconds;
    let cores = (others.1.usage()?.cpu_seconds - clients_usage.cpu_seconds) / seconds;
    let lags = watchmen.1.take_latencies()?;
    let after = informer(&server)?;

    let offered = if rate > 0 { format!("{rate}/s") } else { "all that goes".to_owned() };
    let case = format!("{all} clients, 500 B, {offered}");
    let row = |metric, value, unit| Row::new(GROUP, &*case).value(metric, value, unit);
    let written = 1.0 / spacing.as_secs_f64();
    bench.report.add(
        row("ingested", events as f64 / seconds, "events/s").against("written by the simulator", written),
    );
    bench.report.add(row("server CPU", cpu * 1e6 / events as f64, "us/event"));
    bench.report.add(row("lag p50", millis_at(&lags, 0.5), "ms"));
    bench.report.add(row("lag p99", millis_at(&lags, 0.99), "ms"));
    let expected = (events / POUR_STEP * watchmen.0) as f64;
    bench.report.add(row("events with a time, delivered", lags.len() as f64, "").against("sent", expected));
    let expected = (events * all) as f64;
    let delivered = frames as f64 - all as f64;
    bench.report.add(row("frames delivered", delivered, "").against("events by clients", expected));
    bench.report.add(row("clients' CPU", cores, "cores"));
    let relists = figure(&after, "relists")? - figure(&before, "relists")?;
    bench.report.add(row("relists", relists, ""));
    Ok(())
}

fn informer(server: &Server) -> anyhow::Result<Value> {
    server.informers()?.pop().context("no informer")
}

fn figure(informer: &Value, name: &str) -> anyhow::Result<f64> {
    informer[name].as_f64().with_context(|| format!("no {name} in an informer"))
}
