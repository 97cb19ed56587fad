//! The role of the API server: a simulated cluster whose objects change on command.

use std::io::BufRead as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use informerd::testing::sim::{ApiServer, Cluster, Cut, Gone, Requests, Spread, Verb};
use serde_json::json;

use crate::process::Process;

/// The annotation with the time of an object's change, in microseconds since 1970; always 16 digits.
pub(crate) const CHANGED_AT: &str = "bench/at";

/// The simulator, as the benchmark controls it.
pub(crate) struct Simulator {
    process: Process,
    /// The URL of its API server.
    pub(crate) url: String,
}

/// Changes at a rhythm: a number of them at each tick.
#[derive(Clone, Copy)]
pub(crate) struct Rhythm {
    pub(crate) ticks: usize,
    pub(crate) events_per_tick: usize,
    pub(crate) interval: Duration,
}

/// As many events as possible: new objects, and now and then a change that contains its time.
#[derive(Clone, Copy)]
pub(crate) struct Pour {
    pub(crate) events: usize,
    /// 0 is as fast as possible.
    pub(crate) events_per_second: usize,
    /// Size of an object, in bytes.
    pub(crate) bytes: usize,
}

/// The results of a rhythm.
pub(crate) struct Changed {
    /// The simulator's time for one change, which is the time between the events of a burst.
    pub(crate) spacing: Duration,
}

/// Number of events of a pour from one that contains its time to the next.
pub(crate) const POUR_STEP: usize = 50;
/// Number of events that a pour may be ahead of the watch that sends them. The pour notices that the reader cannot
/// keep up only by the watch waiting for its socket.
const AHEAD_MAX: u64 = 1000;

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

    /// Creates objects of about this size.
    pub(crate) fn load(&mut self, resource: &str, count: usize, bytes: usize) -> anyhow::Result<()> {
        let Spread { namespaces, apps } = Spread::default();
        self.process.ask(&format!("load {resource} {count} {bytes} {namespaces} {apps}")).map(drop)
    }

    /// Creates objects of about this size, of which each namespace, and each value of the label `app`, has ten.
    pub(crate) fn load_tens(&mut self, resource: &str, count: usize, bytes: usize) -> anyhow::Result<()> {
        let tens = count / 10;
        self.process.ask(&format!("load {resource} {count} {bytes} {tens} {tens}")).map(drop)
    }

    /// Creates pods, each with an annotation of random text.
    pub(crate) fn load_random(&mut self, resource: &str, count: usize) -> anyhow::Result<()> {
        self.process.ask(&format!("random {resource} {count}")).map(drop)
    }

    /// Creates about this many objects of the twenty kinds of a mix. Returns the entropy of an object, in bytes.
    pub(crate) fn load_mix(&mut self, count: usize) -> anyhow::Result<f64> {
        Ok(self.process.ask(&format!("mix {count}"))?.parse()?)
    }

    /// Gives loaded pods their nodes, namespaces, services and owners.
    pub(crate) fn relate(&mut self, pods: usize) -> anyhow::Result<()> {
        self.process.ask(&format!("relate {pods}")).map(drop)
    }

    /// Ends the watches of a resource and answers the next one with 410.
    pub(crate) fn expire(&mut self, resource: &str) -> anyhow::Result<()> {
        self.process.ask(&format!("expire {resource}")).map(drop)
    }

    /// Begins to change objects, one after the other.
    pub(crate) fn begin(&mut self, resource: &str, rhythm: Rhythm) -> anyhow::Result<()> {
        self.begin_every(resource, rhythm, 1)
    }

    /// Begins to change every `step`-th object, one after the other.
    pub(crate) fn begin_every(&mut self, resource: &str, rhythm: Rhythm, step: usize) -> anyhow::Result<()> {
        self.begin_walk(resource, rhythm, step, 0)
    }

    /// Begins to change every seventh object, one after the other. Each `turns`-th change also sets the label `turn`.
    pub(crate) fn begin_turning(
        &mut self,
        resource: &str,
        rhythm: Rhythm,
        turns: usize,
    ) -> anyhow::Result<()> {
        self.begin_walk(resource, rhythm, 7, turns)
    }

    fn begin_walk(
        &mut self,
        resource: &str,
        rhythm: Rhythm,
        step: usize,
        turns: usize,
    ) -> anyhow::Result<()> {
        let Rhythm { ticks, events_per_tick, interval } = rhythm;
        let interval = interval.as_micros();
        self.process.send(&format!("change {resource} {ticks} {events_per_tick} {interval} {step} {turns}"))
    }

    /// Changes each of the first `count` objects once, so that all have the annotation and all later frames have one
    /// size.
    pub(crate) fn touch_all(&mut self, resource: &str, count: usize) -> anyhow::Result<()> {
        let rhythm = Rhythm { ticks: 10, events_per_tick: count / 10, interval: Duration::from_millis(10) };
        self.begin(resource, rhythm)?;
        self.end().map(drop)
    }

    /// Begins to pour.
    pub(crate) fn begin_pour(&mut self, resource: &str, pour: Pour) -> anyhow::Result<()> {
        let Pour { events, events_per_second, bytes } = pour;
        self.process.send(&format!("pour {resource} {events} {events_per_second} {bytes}"))
    }

    /// The address of its API server.
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.url.trim_start_matches("http://").trim_end_matches('/').parse()?)
    }

    /// Waits for the end of the changes that were begun.
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
    // Of the objects that were loaded last.
    let mut namespaces = Spread::default().namespaces;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["load", resource, count, bytes, over, apps] => {
                namespaces = over.parse()?;
                let spread = Spread { namespaces, apps: apps.parse()? };
                let loaded = cluster.bulk_load_over(resource, count.parse()?, bytes.parse()?, spread);
                loaded.map_err(|status| anyhow::anyhow!(status.message))?;
                println!("loaded");
            }
            ["random", resource, count] => {
                for at in 0..count.parse()? {
                    create_random(&cluster, resource, at)?;
                }
                println!("loaded");
            }
            ["mix", count] => println!("{}", crate::mix::create(&cluster, count.parse()?)?),
            ["relate", pods] => {
                relate(&cluster, pods.parse()?)?;
                println!("loaded");
            }
            ["expire", resource] => {
                let watches = Requests::of(Verb::Watch).on(resource);
                server.faults().expire_next_watch(1, &watches, Gone::InStream);
                server.faults().cut_watches(&watches, Cut::Clean);
                println!("expired");
            }
            ["pour", resource, events, events_per_second, bytes] => {
                let (events, events_per_second) = (events.parse()?, events_per_second.parse()?);
                let spacing =
                    pour(&cluster, resource, Pour { events, events_per_second, bytes: bytes.parse()? })?;
                println!("{}", spacing.as_micros());
            }
            ["change", resource, ticks, events_per_tick, micros, step, turns] => {
                let (ticks, events_per_tick) = (ticks.parse()?, events_per_tick.parse()?);
                let rhythm =
                    Rhythm { ticks, events_per_tick, interval: Duration::from_micros(micros.parse()?) };
                let walk = Walk { step: step.parse()?, turns: turns.parse()?, namespaces };
                let spacing = change(&cluster, resource, rhythm, &walk)?;
                println!("{}", spacing.as_micros());
            }
            _ => bail!("unknown command {line:?}"),
        }
    }
    Ok(())
}

/// Creates a pod with an annotation of 2 KB of random Base64.
fn create_random(cluster: &Cluster, resource: &str, at: usize) -> anyhow::Result<()> {
    use base64::Engine as _;
    let mut pod: serde_json::Value = serde_json::from_str(&crate::pods::list_item(at, 1, false))?;
    let bytes: Vec<u8> = (0..1536).map(|_| rand::random()).collect();
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    pod["metadata"]["annotations"]["example.com/random"] = text.into();
    // Replaces the padding that made it 5 KB.
    pod["status"]["message"] = "".into();
    cluster.create(resource, pod).map_err(|status| anyhow::anyhow!(status.message))?;
    Ok(())
}

/// Gives loaded pods their nodes and namespaces, a service for each namespace, and a ReplicaSet and a Deployment for each ten pods.
fn relate(cluster: &Cluster, pods: usize) -> anyhow::Result<()> {
    let create = |resource: &str, object: serde_json::Value| {
        cluster.create(resource, object).map_err(|status| anyhow::anyhow!(status.message))
    };
    for node in 0..pods.div_ceil(10).min(10_000) {
        create("nodes", json!({"metadata": {"name": format!("node-{node:02}")}}))?;
    }
    let namespaces = pods.min(100);
    for number in 0..namespaces {
        let namespace = format!("load-{number:02}");
        create("namespaces", json!({"metadata": {"name": namespace}}))?;
        let selector = json!({"app": format!("app-{:02}", number % 50)});
        let spec = json!({"type": "ClusterIP", "selector": selector});
        create("services", json!({"metadata": {"name": "web", "namespace": namespace}, "spec": spec}))?;
    }
    let owned_by = |kind: &str, owner: &serde_json::Value| {
        let (name, uid) = (&owner["metadata"]["name"], &owner["metadata"]["uid"]);
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid}])
    };
    let mut sets = std::collections::HashMap::new();
    for pod in 0..pods {
        let (spread, set) = (pod % 100, pod / 1_000);
        let namespace = format!("load-{spread:02}");
        if let std::collections::hash_map::Entry::Vacant(entry) = sets.entry((spread, set)) {
            let name = format!("set-{set}");
            let metadata = json!({"name": name, "namespace": namespace});
            let deployment = create("deployments", json!({"metadata": metadata, "spec": {}}))?;
            let mut metadata = metadata;
            metadata["ownerReferences"] = owned_by("Deployment", &deployment);
            entry.insert(create("replicasets", json!({"metadata": metadata, "spec": {}}))?);
        }
        let owner = owned_by("ReplicaSet", &sets[&(spread, set)]);
        let patch = json!({"metadata": {"ownerReferences": owner}});
        let patched = cluster.patch("pods", &namespace, &format!("load-{pod:07}"), &patch);
        patched.map_err(|status| anyhow::anyhow!(status.message))?;
    }
    Ok(())
}

/// Which loaded objects are changed.
struct Walk {
    /// Every `step`-th, one after the other.
    step: usize,
    /// Of this many changes one sets the label `turn`; 0 if none does.
    turns: usize,
    /// The namespaces that the objects are spread over.
    namespaces: usize,
}

/// Changes loaded objects one after the other; returns the time of one change.
fn change(cluster: &Cluster, resource: &str, rhythm: Rhythm, walk: &Walk) -> anyhow::Result<Duration> {
    let objects = cluster.len(resource).max(1);
    let began = Instant::now();
    let (mut next, mut count, mut busy) = (0, 0, Duration::ZERO);
    for tick in 0..rhythm.ticks {
        let at = rhythm.interval * u32::try_from(tick)?;
        sleep(at.saturating_sub(began.elapsed()));
        let tick_began = Instant::now();
        for _ in 0..rhythm.events_per_tick {
            count += 1;
            let turns = walk.turns > 0 && count % walk.turns == 0;
            touch(cluster, resource, next, walk.namespaces, turns)?;
            next = (next + walk.step) % objects;
        }
        busy += tick_began.elapsed();
    }
    Ok(busy / u32::try_from(rhythm.events().max(1))?)
}

/// Changes one object by writing the time into it, and into its label `turn` if it `turns`.
fn touch(
    cluster: &Cluster,
    resource: &str,
    number: usize,
    namespaces: usize,
    turns: bool,
) -> anyhow::Result<()> {
    // Names and namespaces as in bulk_load.
    let (name, namespace) = (format!("load-{number:07}"), format!("load-{:02}", number % namespaces));
    let time = micros_since_1970().to_string();
    let mut patch = json!({"metadata": {"annotations": {CHANGED_AT: time}}});
    if turns {
        patch["metadata"]["labels"] = json!({"turn": time});
    }
    let patched = cluster.patch(resource, &namespace, &name, &patch);
    patched.map_err(|status| anyhow::anyhow!(status.message))?;
    Ok(())
}

/// Creates objects as fast as their watch sends them; returns the time of one creation.
fn pour(cluster: &Cluster, resource: &str, pour: Pour) -> anyhow::Result<Duration> {
    let sent = || cluster.counters().get(resource).map(|counters| counters.events_sent);
    let sent_before = sent().context("no such resource")?;
    let began = Instant::now();
    for events in (0..pour.events).step_by(POUR_STEP) {
        if pour.events_per_second > 0 {
            let due_at = Duration::from_secs_f64(events as f64 / pour.events_per_second as f64);
            sleep(due_at.saturating_sub(began.elapsed()));
        }
        while events as u64 > sent().unwrap_or(0) - sent_before + AHEAD_MAX {
            sleep(Duration::from_micros(50));
        }
        touch(cluster, resource, 0, Spread::default().namespaces, false)?;
        let loaded = cluster.bulk_load(resource, POUR_STEP - 1, pour.bytes);
        loaded.map_err(|status| anyhow::anyhow!(status.message))?;
    }
    Ok(began.elapsed() / u32::try_from(pour.events.max(1))?)
}

/// A clock that all processes of this machine share.
pub(crate) fn micros_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
