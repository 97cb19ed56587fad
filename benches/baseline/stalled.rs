//! Clients that never read, for a period: memory of the server and of the kernel, and CPU time.

use std::time::{Duration, Instant};

use informerd::testing::config::Limits;

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::process::{Usage, kernel_tcp_bytes};
use crate::report::Row;
use crate::server::{QUIET, Server, wait_until};
use crate::simulator::{Rhythm, Simulator};

const GROUP: &str = "memory-stalled";
/// Number of clients that read.
const READERS: usize = 10;
const OBJECTS: usize = 1000;
const PATH: &str = "/v1/watch/pods?sendInitialEvents=false";
/// 200 events a second.
const INTERVAL: Duration = Duration::from_millis(5);

/// The results of a period.
struct While {
    usage: Usage,
    kernel_bytes: f64,
    /// CPU use of the server.
    cores: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let clients = bench.pick(500, 20);
    let time = bench.time(30);
    let mut simulator = Simulator::start()?;
    simulator.load("pods", OBJECTS, 5 << 10)?;
    let (server, _) = Server::start(&simulator.url, &["pods"], &QUIET)?;
    simulator.touch_all("pods", OBJECTS)?;
    let readers = Readers::connect(server.address, READERS, Some(PATH), Measure::Count)?;
    readers.wait_for(READERS as u64)?;
    // Fills the journal first, so that any further growth of memory belongs to clients.
    let events = bench.pick(Limits::DEFAULT.journal_len_max, 100);
    let warm_up = Rhythm { ticks: events / 50, events_per_tick: 50, interval: INTERVAL * 2 };
    play(&mut simulator, &server, &readers, warm_up)?;

    let rhythm = Rhythm {
        ticks: (time.as_millis() / INTERVAL.as_millis()) as usize,
        events_per_tick: 1,
        interval: INTERVAL,
    };
    let without = play(&mut simulator, &server, &readers, rhythm)?;
    let subscribers = server.subscribers()?;
    let stalled = Readers::connect(server.address, clients, Some(PATH), Measure::Stall)?;
    let all = subscribers + clients as u64;
    wait_until("stalled clients", || server.subscribers().is_ok_and(|count| count == all))?;
    let with = play(&mut simulator, &server, &readers, rhythm)?;
    anyhow::ensure!(stalled.seen()?.lost == 0, "stalled clients were cut off");

    let case = format!("{clients} that never read, {} s at 200/s of 5 KB", time.as_secs());
    let row = |metric, value, unit| Row::new(GROUP, &*case).value(metric, value, unit);
    let each = |with: f64, without: f64| (with - without) / clients as f64 / 1024.0;
    bench.report.add(row("server RSS, a client", each(with.usage.rss, without.usage.rss), "KiB"));
    bench.report.add(row(
        "kernel TCP memory, a client",
        each(with.kernel_bytes, without.kernel_bytes),
        "KiB",
    ));
    bench.report.add(row("server CPU", with.cores, "cores").against("without them", without.cores));
    bench.report.add(row("subscribers, end", server.subscribers()? as f64, "").against("begin", all as f64));
    Ok(())
}

/// Sends events at a rhythm until the reading clients have all of them.
fn play(
    simulator: &mut Simulator,
    server: &Server,
    readers: &Readers,
    rhythm: Rhythm,
) -> anyhow::Result<While> {
    let expected = readers.seen()?.frames + (rhythm.events() * READERS) as u64;
    let (before, began) = (server.usage()?, Instant::now());
    simulator.begin("pods", rhythm)?;
    simulator.end()?;
    readers.wait_for(expected)?;
    let (seconds, usage) = (began.elapsed().as_secs_f64(), server.usage()?);
    let cores = (usage.cpu_seconds - before.cpu_seconds) / seconds;
    Ok(While { usage, kernel_bytes: kernel_tcp_bytes(), cores })
}
