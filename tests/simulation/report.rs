//! Runs histories, and reports the results.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::{Fault, Hits};
use crate::trace::Trace;
use crate::world::World;

/// Number of failing seeds that are reported.
const FAILURES_TOLD_MAX: usize = 20;

/// Number of histories after which every fault must have happened.
const ENOUGH_SEEDS: u64 = 300;

/// The result of a history.
pub(crate) struct Outcome {
    pub(crate) result: Result<(), String>,
    pub(crate) digest: u64,
    pub(crate) hits: Hits,
    pub(crate) virtual_seconds: f64,
}

/// Runs the history of a seed.
pub(crate) fn history(seed: u64, traced: bool) -> Outcome {
    let run = AssertUnwindSafe(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let began = tokio::time::Instant::now();
            let trace = if traced { Trace::on() } else { Trace::off() };
            let mut world = World::new(seed, trace);
            let result = world.run().await;
            let hits = Hits::default();
            hits.add(world.hits());
            let virtual_seconds = began.elapsed().as_secs_f64();
            Outcome { result, digest: world.digest(), hits, virtual_seconds }
        })
    });
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let result = Err(format!("panic: {}", text.unwrap_or_default()));
        Outcome { result, digest: 0, hits: Hits::default(), virtual_seconds: 0.0 }
    })
}

/// Runs one seed, and prints everything that happens.
pub(crate) fn run_one(seed: u64) {
    let outcome = history(seed, true);
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "seed {seed}: {:?}, digest {:016x}", outcome.result, outcome.digest);
    drop(out);
    assert_eq!(outcome.result, Ok(()), "seed {seed}");
}

/// Runs many seeds, on all cores.
pub(crate) fn run_many(first: u64, seeds: u64) {
    let began = std::time::SystemTime::now();
    let next = AtomicU64::new(first);
    let (hits, failures) = (Hits::default(), Mutex::new(Vec::new()));
    let millis = AtomicU64::new(0);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return;
            }
            let outcome = history(seed, false);
            hits.add(&outcome.hits);
            millis.fetch_add((outcome.virtual_seconds * 1000.0) as u64, Ordering::Relaxed);
            if let Err(why) = outcome.result {
                failures.lock().unwrap().push((seed, why));
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    let seconds = began.elapsed().unwrap_or_default().as_secs_f64();
    let days = millis.load(Ordering::Relaxed) as f64 / 86_400_000.0;
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "{seeds} histories, {days:.1} days of them, in {seconds:.1} s");
    for fault in Fault::ALL {
        let _ = writeln!(out, "{:>10}  {}", hits.of(*fault), fault.text());
    }
    for (seed, why) in failures.iter().take(FAILURES_TOLD_MAX) {
        let _ = writeln!(
            out,
            "seed {seed}: {why}\n  INFORMERD_SEED={seed} cargo test --test simulation every_client"
        );
    }
    drop(out);
    assert!(failures.is_empty(), "{} of {seeds} seeds failed", failures.len());
    let never: Vec<_> = Fault::ALL.iter().filter(|fault| hits.of(**fault) == 0).collect();
    assert!(
        seeds < ENOUGH_SEEDS || never.is_empty(),
        "these faults never happened, so the histories do not test them: {never:?}"
    );
}
