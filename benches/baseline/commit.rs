//! Commits to a cache of many objects, with a journal, and readers that are woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use informerd::testing::cache::{Delta, Writer, cache};
use informerd::testing::config::Limits;
use informerd::testing::hub::{
    self, Delivery, Hub, Informer, InformerSpec, Scope, Selection, StartAt, Subscription,
};
use informerd::testing::k8s::{Decoder, ResourceVersion};
use tokio_util::sync::CancellationToken;

use crate::clock::thread_cpu;
use crate::report::{Row, median};
use crate::server::wait_until;
use crate::{Bench, pods};

/// A cache with its readers.
struct Subject {
    writer: Writer,
    decoder: Decoder,
    objects: usize,
    /// The last resourceVersion.
    version: u64,
    /// Events that all readers together have received.
    delivered: Arc<AtomicU64>,
}

/// The times of a round of commits.
struct Round {
    /// CPU time of the writer.
    cpu: Duration,
    /// Wall-clock time of the writer.
    written: Duration,
    /// Wall-clock time until every reader had every event.
    delivered: Duration,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let objects = bench.pick(100_000, 2_000);
    let (rounds, events) = (bench.pick(9, 1), bench.pick(5_000, 500));
    for readers in [0, 100] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut subject = Subject::new(objects, readers, &runtime)?;
        for len in [1, 100] {
            let mut taken = Vec::new();
            for _ in 0..rounds {
                taken.push(subject.round(events, len, readers)?);
            }
            let middle = |figure: fn(&Round) -> Duration| {
                median(taken.iter().map(|round| figure(round).as_secs_f64()).collect())
            };
            let case = format!("{objects} objects, by {len}, {readers} readers");
            let row = |metric, value, unit| Row::new("commit", &*case).value(metric, value, unit);
            // Summed over all rounds, as the kernel counts in ticks.
            let cpu: Duration = taken.iter().map(|round| round.cpu).sum();
            let cpu = cpu.as_secs_f64() * 1e6 / (taken.len() * events / len) as f64;
            bench.report.add(row("a commit, CPU", cpu, "us"));
            bench.report.add(row("an event, CPU", cpu / len as f64, "us"));
            bench.report.add(row("committed", events as f64 / middle(|round| round.written), "events/s"));
            if readers > 0 {
                let rate = (events * readers) as f64 / middle(|round| round.delivered);
                bench.report.add(row("taken by readers", rate, "events/s"));
            }
        }
    }
    Ok(())
}

impl Subject {
    fn new(objects: usize, readers: usize, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Self> {
        let (mut writer, reader) = cache(Limits::DEFAULT.cache(), tokio::time::Instant::now());
        let mut decoder = pods::decoder();
        writer.commit(vec![Delta::PassBegin]);
        for at in 0..objects {
            let item = decoder.object(&pods::list_item(at, 1000 + at as u64, false))?;
            writer.commit(vec![Delta::PassItem(item)]);
        }
        let version = 1000 + objects as u64;
        writer.commit(vec![Delta::PassEnd(ResourceVersion::from(version))]);
        let hub = Hub::new(hub_config(), CancellationToken::new());
        hub.add(Informer::new(InformerSpec::new(pods::resource(), Scope::All), reader));
        let delivered = Arc::new(AtomicU64::new(0));
        for _ in 0..readers {
            let selection = Selection::default();
            let informers = hub.informers();
            let subscription = Subscription {
                informers,
                selection,
                join: None,
                from: StartAt::Now,
                resync: None,
                timeout: None,
            };
            let mut subscriber = {
                let _entered = runtime.enter();
                hub.subscribe(subscription)?
            };
            let delivered = delivered.clone();
            runtime.spawn(async move {
                loop {
                    match subscriber.next().await {
                        Delivery::Events(events) => {
                            delivered.fetch_add(events.len() as u64, Ordering::Relaxed);
                        }
                        Delivery::Shared(runs) => {
                            let events: usize = runs.iter().map(|run| run.len()).sum();
                            delivered.fetch_add(events as u64, Ordering::Relaxed);
                        }
                        Delivery::Replaced { .. } | Delivery::Heartbeat => {}
                        Delivery::Closed(_) => return,
                    }
                }
            });
        }
        // Each reader begins with a bookmark.
        wait_until("readers", || delivered.load(Ordering::Relaxed) >= readers as u64)?;
        Ok(Self { writer, decoder, objects, version, delivered })
    }

    /// Commits `events` changes in batches of `len`.
    fn round(&mut self, events: usize, len: usize, readers: usize) -> anyhow::Result<Round> {
        let mut batches = Vec::new();
        for _ in 0..events / len {
            let mut deltas = Vec::new();
            for _ in 0..len {
                self.version += 1;
                // Far apart in the key order, like changes in a cluster.
                let at = usize::try_from(self.version)? * 7919 % self.objects;
                deltas.push(Delta::Apply(self.decoder.object(&pods::whole(at, self.version, false))?));
            }
            batches.push(deltas);
        }
        let expected = self.delivered.load(Ordering::Relaxed) + (events * readers) as u64;
        let (began, cpu_began) = (Instant::now(), thread_cpu()?);
        for deltas in batches {
            self.writer.commit(deltas);
        }
        let (written, cpu) = (began.elapsed(), thread_cpu()? - cpu_began);
        wait_until("readers", || self.delivered.load(Ordering::Relaxed) >= expected)?;
        Ok(Round { cpu, written, delivered: began.elapsed() })
    }
}

fn hub_config() -> hub::Config {
    let limits = Limits::DEFAULT;
    hub::Config {
        subscribers_max: limits.subscribers_max,
        batch_len_max: limits.batch_len_max,
        batch_bytes_max: limits.batch_bytes_max,
        heartbeat_interval: Duration::from_secs(3600),
        bookmark_interval: Duration::from_secs(3600),
        resume_wait: limits.resume_wait,
        drain_spread_max: Duration::ZERO,
    }
}
