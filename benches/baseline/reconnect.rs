//! A node agent on each of many nodes, all of which come back at once: their first states, and with tokens.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::Bench;
use crate::client::{Measure, NUMBER, Readers};
use crate::initial::{OTHERS, beside};
use crate::report::{Row, millis_at};
use crate::server::{QUIET, Server, wait_until};
use crate::simulator::{Rhythm, Simulator, micros_since_1970};

const GROUP: &str = "reconnect";
/// Size of a pod's JSON, in bytes.
const POD_BYTES: usize = 5000;
/// Changes of pods per second before clients come back.
const PER_SECOND: usize = 4_000;

/// What it took until all clients had what they lacked.
struct Wave {
    seconds: f64,
    cpu_seconds: f64,
    bytes: f64,
    frames: u64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let (pods, clients) = bench.pick((100_000, 5_000), (1_000, 50));
    let mut simulator = Simulator::start()?;
    simulator.load("pods", pods, POD_BYTES)?;
    // Others follow this meanwhile.
    simulator.load("configmaps", 1000, 640)?;
    let (server, _) = Server::start(&simulator.url, &["pods", "configmaps"], &QUIET)?;
    let path = "/v1/watch/configmaps?sendInitialEvents=false";
    let others = Readers::connect(server.address, OTHERS, Some(path), Measure::Last)?;
    others.wait_for(OTHERS as u64)?;
    let seconds = bench.pick(6, 1);
    let rhythm = Rhythm { ticks: seconds * 100, events_per_tick: 1, interval: Duration::from_millis(10) };
    let (_, mut alone) = beside(&mut simulator, &others, rhythm, || Ok(()), |_| true)?;
    alone.sort_unstable();
    let node = format!("/v1/watch/pods?fieldSelector=spec.nodeName%3Dnode-{NUMBER}");
    let mut token = token(&server)?;
    let mut first_bytes = 0.0;
    // Nothing changes before the second wave; the others are within the journal, and behind it.
    let ages = bench.pick(
        [None, Some(0), Some(8_000), Some(120_000), Some(320_000)],
        [None, Some(0), Some(100), Some(400), Some(800)],
    );
    for age in ages {
        let (case, path) = match age {
            None => (format!("{clients} streams of a node each, first states"), node.clone()),
            Some(changes) => {
                if changes > 0 {
                    let events_per_tick = PER_SECOND / 200;
                    let ticks = changes / events_per_tick;
                    let interval = Duration::from_millis(5);
                    simulator.begin_every("pods", Rhythm { ticks, events_per_tick, interval }, 7)?;
                    simulator.end()?;
                }
                (
                    format!("{clients} streams of a node each, {changes} changes behind"),
                    format!("{node}&resume={token}"),
                )
            }
        };
        let done = Cell::new(0);
        let work = || {
            let wave = wave(bench, &server, clients, &path);
            done.set(micros_since_1970());
            wave
        };
        let (wave, mut meanwhile) =
            beside(&mut simulator, &others, rhythm, work, |changed| changed <= done.get())?;
        meanwhile.sort_unstable();
        if age.is_none() {
            first_bytes = wave.bytes;
        }
        let row = |metric, value, unit| Row::new(GROUP, &*case).value(metric, value, unit);
        bench.report.add(row("until the last client has all", wave.seconds, "s"));
        bench.report.add(row("server CPU", wave.cpu_seconds, "s"));
        bench.report.add(row("frames", wave.frames as f64, ""));
        bench.report.add(row("bytes", wave.bytes / 1e6, "MB").against("first states", first_bytes / 1e6));
        let p99 = row("latency of others, p99", millis_at(&meanwhile, 0.99), "ms");
        bench.report.add(p99.against("alone", millis_at(&alone, 0.99)));
        if age.is_none() {
            token = self::token(&server)?;
        }
    }
    Ok(())
}

/// A token of what the server has.
fn token(server: &Server) -> anyhow::Result<String> {
    let informers = server.informers()?;
    let pods = informers.iter().find(|informer| informer["resource"] == "pods").context("no pods")?;
    let version = pods["resourceVersion"].as_str().context("no resourceVersion")?;
    Ok(format!("pods:{version}"))
}

/// Connects clients, and waits until nothing more comes. That wait is not counted.
fn wave(bench: &Bench, server: &Server, clients: usize, path: &str) -> anyhow::Result<Wave> {
    let quiet = bench.pick(Duration::from_secs(1), Duration::from_millis(300));
    let (before, began) = (server.usage()?, Instant::now());
    let readers = Readers::connect(server.address, clients, Some(path), Measure::Count)?;
    // Each client gets a bookmark at the end.
    readers.wait_for(clients as u64)?;
    let last = Cell::new((readers.seen()?, Instant::now()));
    wait_until("all frames", || {
        let Ok(seen) = readers.seen() else { return false };
        if seen.frames != last.get().0.frames {
            last.set((seen, Instant::now()));
        }
        last.get().1.elapsed() >= quiet
    })?;
    let (seen, at) = last.get();
    Ok(Wave {
        seconds: (at - began).as_secs_f64(),
        cpu_seconds: server.usage()?.cpu_seconds - before.cpu_seconds,
        bytes: seen.bytes as f64,
        frames: seen.frames,
    })
}
