//! Baselines: the cost of informerd compared with the least work that gives the same result, as ratios in one run.
//!
//! `cargo bench --features jemalloc` runs everything and prints a table; `docs/benchmarks.md` says what is measured
//! and how. The servers under measurement, the simulator and the plain loops are processes of their own: this binary,
//! started again with a role, and `informerd` itself.
#![expect(clippy::print_stdout, reason = "the table and the answers of the roles go to standard output")]
#![expect(clippy::disallowed_methods, reason = "benchmarks read the real clock")]

mod attack;
mod attackers;
mod axum_sse;
mod client;
mod clock;
mod commit;
mod contender;
mod decode;
mod fanout;
mod first_sync;
mod ingest;
mod initial;
mod isolation;
mod joins;
mod kube_api;
mod latency;
mod memory;
mod mix;
mod not_modified;
mod nuisance;
mod packing;
mod peer;
mod plain;
mod pods;
mod process;
mod queues;
mod real_server;
mod reconnect;
mod report;
mod scoped;
mod selected;
mod server;
mod simulator;
mod snapshot;
mod stalled;
mod views;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};

use report::Report;

/// The daemon's allocator, so that measurements in this process are those of the daemon.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Baseline benchmarks of informerd.
#[derive(Parser)]
struct Args {
    /// Small sizes and short times: shows that everything runs, not how fast
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only groups whose name contains this
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Seconds of each case of isolation [default 6], memory-stalled [default 30] and attack [default 60]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// What cargo says when it runs benchmarks
    #[arg(long, hide = true)]
    bench: bool,
    /// What this process is to play
    #[arg(long, hide = true)]
    role: Option<Role>,
}

/// The other processes that this binary plays.
#[derive(Clone, Copy, ValueEnum)]
enum Role {
    /// The API server.
    Simulator,
    /// Clients.
    Clients,
    /// Clients that cause as much work as the limits allow.
    Attackers,
    /// A write loop to every socket.
    Plain,
    /// A server made with axum.
    Axum,
    /// A loop that answers every request with the same bytes.
    Responder,
    /// A client that lists and watches as informerd does.
    Contender,
}

/// How thorough a run is, and where its results go.
struct Bench {
    quick: bool,
    /// Whether groups were chosen, so that each may take its time.
    chosen: bool,
    /// Duration of each case whose length is free.
    seconds: Option<u64>,
    report: Report,
}

/// The name of a group, and its function.
type Group = (&'static str, fn(&mut Bench) -> anyhow::Result<()>);

const GROUPS: [Group; 23] = [
    ("decode", decode::run),
    ("commit", commit::run),
    ("first-sync", first_sync::run),
    ("snapshot", snapshot::run),
    ("fan-out", fanout::run),
    ("latency", latency::run),
    ("scoped", scoped::run),
    ("selected", selected::run),
    ("shared", selected::shared),
    ("views", views::run),
    ("reconnect", reconnect::run),
    ("joins", joins::run),
    ("queues", queues::run),
    ("initial", initial::run),
    ("ingest", ingest::run),
    ("not-modified", not_modified::run),
    ("memory", memory::objects),
    ("packing", packing::run),
    ("memory-idle", memory::idle_clients),
    ("memory-stalled", stalled::run),
    ("isolation", isolation::run),
    ("attack", attack::run),
    ("kube-api", kube_api::run),
];

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // Thousands of sockets are needed. If the limit cannot be raised, connecting fails with the error.
    let _ = rlimit::increase_nofile_limit(rlimit::INFINITY);
    match args.role {
        Some(Role::Simulator) => return simulator::run(),
        Some(Role::Clients) => return client::run(),
        Some(Role::Attackers) => return attackers::run(),
        Some(Role::Axum) => return axum_sse::run(),
        Some(Role::Plain) => return plain::run_writer(),
        Some(Role::Responder) => return plain::run_responder(),
        Some(Role::Contender) => return contender::run(),
        None => {}
    }
    // Without `--bench`, `cargo test` checks that the benchmarks still run.
    let quick = args.quick || !args.bench;
    let shipped = cfg!(feature = "jemalloc");
    anyhow::ensure!(
        quick || shipped,
        "what is measured has to be what is shipped: cargo bench --features jemalloc"
    );
    let mut bench =
        Bench { quick, chosen: args.filter.is_some(), seconds: args.seconds, report: Report::default() };
    for (name, run) in GROUPS {
        if args.filter.as_deref().is_none_or(|filter| name.contains(filter)) {
            run(&mut bench).with_context(|| format!("benchmark {name}"))?;
        }
    }
    if let Some(path) = args.json {
        let json = bench.report.to_json(quick)?;
        std::fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Bench {
    /// The first value for a full run, the second for a quick one.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The duration of a case whose length is free.
    fn time(&self, default: u64) -> Duration {
        Duration::from_secs(self.pick(self.seconds.unwrap_or(default), 1))
    }
}
