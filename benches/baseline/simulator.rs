//! The role of the API server: a simulated cluster whose objects change on command.

use std::io::BufRead as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use informerd::sim::{ApiServer, Cluster, Cut, Gone, Requests, Verb};
use serde_json::json;

use crate::process::Process;

/// The annotation with the microseconds since 1970 at which an object was changed; always 16 digits.
pub(crate) const CHANGED_AT: &str = "bench/at";

/// The simulator as seen from the benchmark.
pub(crate) struct Simulator {
    process: Process,
    /// Where it serves.
    pub(crate) url: String,
}

/// Changes at a rhythm: at each tick some at once.
#[derive(Clone, Copy)]
pub(crate) struct Rhythm {
    pub(crate) ticks: usize,
    pub(crate) events_per_tick: usize,
    pub(crate) interval: Duration,
}

/// What a rhythm came to.
pub(crate) struct Changed {
    /// What one change took the simulator: the time between the events of a burst.
    pub(crate) spacing: Duration,
}

impl Rhythm {
    pub(crate) fn events(&self) -> usize {
        self.ticks * self.events_per_tick
    }
}

impl Simulator {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut process = Process::role("simulator")?;
        let url = process.receive()?;
        Ok(Self { process, url })
    }

    /// Creates objects of about so many bytes.
    pub(crate) fn load(&mut self, resource: &str, count: usize, bytes: usize) -> anyhow::Result<()> {
        self.process.ask(&format!("load {resource} {count} {bytes}")).map(drop)
    }

    /// Ends the watches of a resource and tells the next one that its version is too old.
    pub(crate) fn expire(&mut self, resource: &str) -> anyhow::Result<()> {
        self.process.ask(&format!("expire {resource}")).map(drop)
    }

    /// Begins to change objects, one after the other.
    pub(crate) fn begin(&mut self, resource: &str, rhythm: Rhythm) -> anyhow::Result<()> {
        let Rhythm { ticks, events_per_tick, interval } = rhythm;
        self.process.send(&format!("change {resource} {ticks} {events_per_tick} {}", interval.as_micros()))
    }

    /// Waits for the end of what was begun.
    pub(crate) fn end(&mut self) -> anyhow::Result<Changed> {
        let answer = self.process.receive()?;
        Ok(Changed { spacing: Duration::from_micros(answer.parse()?) })
    }
}

/// Plays the role until standard input ends.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let cluster = Cluster::default();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = runtime.block_on(ApiServer::bind(cluster.clone(), address))?;
    println!("{}", server.url());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["load", resource, count, bytes] => {
                let loaded = cluster.bulk_load(resource, count.parse()?, bytes.parse()?);
                loaded.map_err(|status| anyhow::anyhow!(status.message))?;
                println!("loaded");
            }
            ["expire", resource] => {
                let watches = Requests::of(Verb::Watch).on(resource);
                server.faults().expire_next_watch(1, &watches, Gone::InStream);
                server.faults().cut_watches(&watches, Cut::Clean);
                println!("expired");
            }
            ["change", resource, ticks, events_per_tick, micros] => {
                let (ticks, events_per_tick) = (ticks.parse()?, events_per_tick.parse()?);
                let rhythm =
                    Rhythm { ticks, events_per_tick, interval: Duration::from_micros(micros.parse()?) };
                let spacing = change(&cluster, resource, rhythm)?;
                println!("{}", spacing.as_micros());
            }
            _ => bail!("unknown command {line:?}"),
        }
    }
    Ok(())
}

/// Changes loaded objects one after the other; tells the time that one takes.
fn change(cluster: &Cluster, resource: &str, rhythm: Rhythm) -> anyhow::Result<Duration> {
    let objects = cluster.len(resource).max(1);
    let began = Instant::now();
    let (mut next, mut busy) = (0, Duration::ZERO);
    for tick in 0..rhythm.ticks {
        let at = rhythm.interval * u32::try_from(tick)?;
        sleep(at.saturating_sub(began.elapsed()));
        let tick_began = Instant::now();
        for _ in 0..rhythm.events_per_tick {
            // Names and namespaces as bulk_load gives them.
            let (name, namespace) = (format!("load-{next:07}"), format!("load-{:02}", next % 100));
            let patch = json!({"metadata": {"annotations": {CHANGED_AT: micros_since_1970().to_string()}}});
            let patched = cluster.patch(resource, &namespace, &name, &patch);
            patched.map_err(|status| anyhow::anyhow!(status.message))?;
            next = (next + 1) % objects;
        }
        busy += tick_began.elapsed();
    }
    Ok(busy / u32::try_from(rhythm.events().max(1))?)
}

/// The same clock for every process of this machine.
pub(crate) fn micros_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
