//! Isolation (P5): latency of well-behaved clients while other clients stall, read slowly or vanish.

use std::thread::sleep;
use std::time::{Duration, Instant};

use informerd::testing::config::Limits;

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::nuisance::{Manner, Nuisance};
use crate::process::kernel_tcp_bytes;
use crate::report::{Row, millis_at};
use crate::server::Server;
use crate::simulator::{Rhythm, Simulator};

/// The misbehaving clients of a case, and the server's settings.
struct Case {
    name: &'static str,
    nuisance: Option<(usize, Manner)>,
    flags: &'static [&'static str],
    /// Shortest duration of the case: longer than the stall timeout where that must pass.
    seconds_min: u64,
}

/// The results of a case.
struct Outcome {
    latencies: Vec<u32>,
    rss_begin: f64,
    rss_end: f64,
    rss_max: f64,
    kernel_bytes: f64,
    cpu_share: f64,
    subscribers: u64,
    nuisances: usize,
}

/// Number of changes a second.
const EVENTS_PER_SECOND: usize = 100;
/// The time between two changes.
const INTERVAL: Duration = Duration::from_millis(10);
/// Number of clients that read as fast as they can.
const CLIENTS: usize = 100;
/// A timeout that no client reaches within the test.
const PATIENT: &[&str] = &["--write-stall-timeout", "1h"];

const CASES: [Case; 6] = [
    Case { name: "alone", nuisance: None, flags: &[], seconds_min: 0 },
    Case {
        name: "50 that never read, never closed",
        nuisance: Some((50, Manner::NeverReads)),
        flags: PATIENT,
        seconds_min: 0,
    },
    Case {
        name: "50 that never read, closed after 60 s",
        nuisance: Some((50, Manner::NeverReads)),
        flags: &[],
        seconds_min: 90,
    },
    Case {
        name: "50 that read 1 B/s, never closed",
        nuisance: Some((50, Manner::Trickles(1))),
        flags: PATIENT,
        seconds_min: 0,
    },
    Case {
        name: "50 that read 64 KiB/s",
        nuisance: Some((50, Manner::Trickles(64 << 10))),
        flags: &[],
        seconds_min: 0,
    },
    Case {
        name: "1000 a second connect and vanish",
        nuisance: Some((1000, Manner::Vanishes)),
        flags: &[],
        seconds_min: 0,
    },
];

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let objects = bench.pick(5_000, 200);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", objects, 5 << 10)?;
    let all_of_them = Rhythm { ticks: objects / 100, events_per_tick: 100, interval: INTERVAL };
    simulator.begin("pods", all_of_them)?;
    simulator.end()?;
    let mut alone = None;
    for case in &CASES {
        // A quick run does not wait for the timeout.
        let time = bench.time(6);
        let least = if time >= Duration::from_secs(60) { case.seconds_min } else { 0 };
        let time = time.max(Duration::from_secs(least));
        let outcome = play(&mut simulator, case, time)?;
        let (first_p50, first_p99) = *alone.get_or_insert((outcome.millis(0.5), outcome.millis(0.99)));
        let row = |metric, value, unit| Row::new("isolation", case.name).value(metric, value, unit);
        bench.report.add(row("latency p50", outcome.millis(0.5), "ms").against("alone", first_p50));
        bench.report.add(row("latency p99", outcome.millis(0.99), "ms").against("alone", first_p99));
        bench.report.add(row("latency max", outcome.millis(1.0), "ms"));
        bench.report.add(row("server RSS, begin", outcome.rss_begin / 1e6, "MB"));
        let begin = outcome.rss_begin / 1e6;
        bench.report.add(row("server RSS, max", outcome.rss_max / 1e6, "MB").against("begin", begin));
        bench.report.add(row("server RSS, end", outcome.rss_end / 1e6, "MB").against("begin", begin));
        bench.report.add(row("kernel TCP memory, end", outcome.kernel_bytes / 1e6, "MB"));
        bench.report.add(row("server CPU", outcome.cpu_share, "cores"));
        bench.report.add(row("subscribers, end", outcome.subscribers as f64, ""));
        bench.report.add(row("bad connections", outcome.nuisances as f64, ""));
    }
    Ok(())
}

impl Outcome {
    /// A quantile of the latencies, in milliseconds.
    fn millis(&self, quantile: f64) -> f64 {
        millis_at(&self.latencies, quantile)
    }
}

fn play(simulator: &mut Simulator, case: &Case, time: Duration) -> anyhow::Result<Outcome> {
    let (server, _) = Server::start(&simulator.url, &["pods"], case.flags)?;
    let path = "/v1/watch/pods?sendInitialEvents=false";
    let readers = Readers::connect(server.address, CLIENTS, Some(path), Measure::Latency)?;
    readers.wait_for(CLIENTS as u64)?;
    // Fills the journal first, so that any further growth of memory belongs to clients.
    let warm_up = Rhythm {
        ticks: if time.as_secs() >= 5 { Limits::DEFAULT.journal_len_max / 100 } else { 1 },
        events_per_tick: 100,
        interval: INTERVAL * 5,
    };
    simulator.begin("pods", warm_up)?;
    simulator.end()?;
    readers.wait_for((CLIENTS * (1 + warm_up.events())) as u64)?;
    readers.take_latencies()?;

    let ticks = usize::try_from(time.as_secs())? * EVENTS_PER_SECOND;
    let rhythm = Rhythm { ticks, events_per_tick: 1, interval: INTERVAL };
    let frames = readers.seen()?.frames + (rhythm.events() * CLIENTS) as u64;
    let (before, began) = (server.usage()?, Instant::now());
    let nuisance =
        case.nuisance.map(|(count, manner)| Nuisance::start(server.address, count, manner, "/v1/watch/pods"));
    simulator.begin("pods", rhythm)?;
    let mut rss_max = before.rss;
    while began.elapsed() < time {
        sleep(Duration::from_millis(250));
        rss_max = rss_max.max(server.usage()?.rss);
    }
    simulator.end()?;
    readers.wait_for(frames)?;
    let (after, seconds) = (server.usage()?, began.elapsed().as_secs_f64());
    Ok(Outcome {
        latencies: readers.take_latencies()?,
        rss_begin: before.rss,
        rss_end: after.rss,
        rss_max: rss_max.max(after.rss),
        kernel_bytes: kernel_tcp_bytes(),
        cpu_share: (after.cpu_seconds - before.cpu_seconds) / seconds,
        subscribers: server.subscribers()?,
        nuisances: nuisance.as_ref().map_or(0, Nuisance::connected),
    })
}
