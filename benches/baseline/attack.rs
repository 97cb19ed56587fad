//! Latency of probes and live streams while clients ask for the most that the limits allow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::Bench;
use crate::attackers::Attackers;
use crate::client::{Measure, Readers};
use crate::report::{Row, millis_at};
use crate::server::{Server, get};
use crate::simulator::{Rhythm, Simulator};

const GROUP: &str = "attack";
/// Size of a pod's JSON, in bytes.
const POD_BYTES: usize = 5 << 10;
/// Number of changes a second, and the time between two.
const EVENTS_PER_SECOND: usize = 100;
const INTERVAL: Duration = Duration::from_millis(10);
/// Number of clients that follow everything and read at once.
const READERS: usize = 10;
/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Target for probes, and for the p99 of a live stream, in milliseconds.
const TARGET_MS: f64 = 100.0;
/// Target for memory: the peak in the second half of the attack, divided by the peak in the first half.
const FLAT: f64 = 1.1;

/// Requests `/livez`, each time on a new connection, as a kubelet does.
struct Prober {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Vec<u32>>>,
}

/// The results of a period. Latencies are sorted, in microseconds.
struct While {
    probes: Vec<u32>,
    live: Vec<u32>,
    /// Resident memory, measured four times a second, in bytes.
    rss: Vec<f64>,
    cores: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let pods = bench.pick(20_000, 200);
    let attackers = bench.pick(50, 10);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", pods, POD_BYTES)?;
    let (server, _) = Server::start(&simulator.url, &["pods"], &[])?;
    let path = "/v1/watch/pods?sendInitialEvents=false";
    let readers = Readers::connect(server.address, READERS, Some(path), Measure::Latency)?;
    readers.wait_for(READERS as u64)?;
    let (calm, rough) = (Duration::from_secs(bench.pick(15, 1)), bench.time(60));
    // Fills the journal first, so that its growth is not measured.
    watch(&mut simulator, &server, &readers, calm, bench.pick(10, 1))?;
    let before = watch(&mut simulator, &server, &readers, calm, 1)?;
    let mut attack = Attackers::start(server.address, attackers)?;
    let during = watch(&mut simulator, &server, &readers, rough, 1)?;
    let done = attack.done()?;
    drop(attack);
    let after = watch(&mut simulator, &server, &readers, calm, 1)?;

    for (case, what) in [("before", &before), ("during", &during), ("after", &after)] {
        let row = |metric, value, unit| Row::new(GROUP, case).value(metric, value, unit);
        for (metric, quantile) in [("/livez p50", 0.5), ("/livez p99", 0.99), ("/livez max", 1.0)] {
            let row = row(metric, millis_at(&what.probes, quantile), "ms");
            bench.report.add(row.against("at most", TARGET_MS));
        }
        for (metric, quantile) in [("live stream p50", 0.5), ("live stream p99", 0.99)] {
            bench
                .report
                .add(row(metric, millis_at(&what.live, quantile), "ms").against("at most", TARGET_MS));
        }
        bench.report.add(row("live stream max", millis_at(&what.live, 1.0), "ms"));
        bench.report.add(row("server RSS, max", most(&what.rss) / 1e6, "MB"));
        bench.report.add(row("server CPU", what.cores, "cores"));
    }
    let (first, second) = during.rss.split_at(during.rss.len() / 2);
    let growth = most(second) / most(first);
    let row = Row::new(GROUP, "during").value("RSS, second half by first", growth, "");
    bench.report.add(row.against("at most", FLAT));
    for (kind, times) in done {
        bench.report.add(Row::new(GROUP, format!("during: {kind}")).value("ended", times, "times"));
    }
    let holds = millis_at(&during.probes, 1.0) <= TARGET_MS
        && millis_at(&during.live, 0.99) <= TARGET_MS
        && growth <= FLAT;
    bench.report.add(Row::new(GROUP, "all targets hold").value("1 is yes", f64::from(u8::from(holds)), ""));
    Ok(())
}

/// Changes objects for a period and measures meanwhile.
fn watch(
    simulator: &mut Simulator,
    server: &Server,
    readers: &Readers,
    time: Duration,
    events_per_tick: usize,
) -> anyhow::Result<While> {
    let ticks = usize::try_from(time.as_secs())? * EVENTS_PER_SECOND;
    readers.take_latencies()?;
    let (before, began) = (server.usage()?, Instant::now());
    let prober = Prober::start(server.address);
    simulator.begin("pods", Rhythm { ticks, events_per_tick, interval: INTERVAL })?;
    let mut rss = vec![before.rss];
    while began.elapsed() < time {
        sleep(Duration::from_millis(250));
        rss.push(server.usage()?.rss);
    }
    simulator.end()?;
    let (after, seconds) = (server.usage()?, began.elapsed().as_secs_f64());
    // A stream that is far behind does not get every event, so frames cannot be counted. What arrives within a second
    // after the last change belongs to this period.
    sleep(Duration::from_secs(1));
    let probes = prober.stop()?;
    anyhow::ensure!(readers.seen()?.lost == 0, "clients that read were cut off");
    let live = readers.take_latencies()?;
    anyhow::ensure!(live.len() >= ticks * READERS / 2, "{} of {} events came", live.len(), ticks * READERS);
    Ok(While { probes, live, rss, cores: (after.cpu_seconds - before.cpu_seconds) / seconds })
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

impl Prober {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut latencies = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                let answer = get(address, "/livez")?;
                anyhow::ensure!(answer == b"ok", "/livez says {:?}", String::from_utf8_lossy(&answer));
                latencies.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
                sleep(PROBE_INTERVAL);
            }
            latencies.sort_unstable();
            Ok(latencies)
        });
        Self { stop, thread }
    }

    /// Stops the prober and returns the latencies, sorted, in microseconds.
    fn stop(self) -> anyhow::Result<Vec<u32>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the prober panicked"))?
    }
}
