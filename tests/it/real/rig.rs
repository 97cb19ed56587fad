//! An API server, informerd, followers on each transport, and writers. The rig measures what a fault does to them, as
//! a row of a table.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use informerd::testing::config::{self, UpstreamSource};
use serde_json::Value;
use tokio::time::Instant;

use super::Effort;
use super::cluster::{Cluster, Kind, PODS};
use super::follower::{Follower, Seen};
use super::writers::{Writers, mark};
use crate::support::TRANSPORTS;
use crate::support::envtest::{self, Envtest, Options, Process, Version};
use crate::support::gate::Gate;
use crate::support::server::{Informerd, kubeconfig, serve_config};

/// Allowed difference of ages: events on their way at a fault's beginning may arrive a little later, and `Age` is in
/// whole seconds.
pub(super) const AGE_SLACK: Duration = Duration::from_secs(2);

/// Longest time until every follower holds a write made after a fault.
const RECOVERY_MAX: Duration = Duration::from_secs(240);

/// The settings of a rig.
pub(super) struct Setup {
    pub(super) version: Version,
    pub(super) options: Options,
    pub(super) kind: Kind,
    pub(super) objects: usize,
    /// Whether informerd reaches the API server through the gate.
    pub(super) is_gated: bool,
    /// The kubeconfig line by which informerd authenticates, if it is not an administrator.
    pub(super) user: Option<String>,
    /// The address behind the gate if the API server is reached without TLS and credentials.
    pub(super) plain: Option<SocketAddr>,
    /// Changes informerd's settings.
    pub(super) change: fn(&mut config::Serve),
}

/// The running processes and tasks.
pub(super) struct Rig {
    pub(super) version: Version,
    pub(super) api: Envtest,
    /// Stands between informerd and the API server if the setup says so.
    pub(super) gate: Gate,
    pub(super) informerd: Informerd,
    pub(super) cluster: Arc<Cluster>,
    pub(super) writers: Writers,
    followers: Vec<Follower>,
    marks: usize,
    /// Whether informerd was killed since the last row, so that its counters began at 0.
    counts_anew: bool,
    started: Instant,
}

/// The requests of informerd to the API server, and the error that it shows.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    pub(super) lists: u64,
    pub(super) watches: u64,
    /// The shown error.
    pub(super) error: String,
}

/// The effect of a fault on the followers.
#[derive(Debug)]
pub(super) struct Row {
    /// From the fault's end until every follower had a write made after it.
    pub(super) recovered: Duration,
    pub(super) lists: u64,
    pub(super) watches: u64,
    /// Number of RESETs, over all followers.
    pub(super) resets: usize,
}

// === impl Setup ===

impl Setup {
    pub(super) fn new(version: Version) -> Self {
        Self {
            version,
            options: Options::default(),
            kind: PODS,
            objects: Effort::new().pods,
            is_gated: false,
            user: None,
            plain: None,
            change: |_| {},
        }
    }

    /// Starts everything and waits until every follower has once equaled the API server; `None`, with a `skipped:`
    /// line, if the binaries are missing.
    pub(super) async fn start(self) -> Option<Rig> {
        let api = Envtest::start(self.version, self.options.clone()).await?;
        Some(self.over(api).await)
    }

    /// As [`Setup::start`], on an API server that the test has prepared.
    pub(super) async fn over(self, api: Envtest) -> Rig {
        let gate = Gate::start(&[self.plain.unwrap_or(api.address(Process::ApiServer))]).await;
        let cluster = Arc::new(Cluster::new(self.kind, envtest::client(&api.kubeconfig_path()).await));
        let writers = Writers::start(&cluster, self.objects).await;
        let address = if self.is_gated { gate.address } else { api.address(Process::ApiServer) };
        let user = self.user.unwrap_or_else(|| format!("token: {}", api.token()));
        let mut upstream = kubeconfig(api.write_kubeconfig("kubeconfig.informerd", address, &user));
        if self.plain.is_some() {
            upstream = UpstreamSource::Server { url: format!("http://{}", gate.address) };
        }
        let mut config = serve_config(upstream, &[self.kind.plural]);
        config.limits.bookmark_interval = Duration::from_millis(500);
        (self.change)(&mut config);
        let informerd = Informerd::start(config).await;
        let target = format!("/v1/watch/{}", self.kind.plural);
        let followers = TRANSPORTS
            .map(|transport| Follower::start(transport, informerd.address, &target, &cluster))
            .into();
        let (version, started) = (self.version, Instant::now());
        let mut rig = Rig {
            version,
            api,
            gate,
            informerd,
            cluster,
            writers,
            followers,
            marks: 0,
            counts_anew: false,
            started,
        };
        let (_, version) = rig.reach_mark("the start").await;
        rig.wait("the first comparison", |seen| seen.compared_at >= version).await;
        // Writes from before the followers started are not accounted for.
        rig.account(false);
        rig
    }
}

// === impl Rig ===

impl Rig {
    /// Runs a fault. Waits until every follower has a write made after its end, and then equals the API server at a
    /// bookmark. Prints the row of the table.
    ///
    /// # Panics
    /// If this takes too long, or if a write was lost or sent twice.
    pub(super) async fn measure(&mut self, fault: &str, provoke: impl AsyncFnOnce(&mut Self)) -> Row {
        let (before, writes) = (self.figures().await, self.writers.ledger().count());
        let resets: usize = self.sum(|seen| seen.resets.len());
        self.counts_anew = false;
        self.cluster.is_faulty.send_replace(true);
        Box::pin(provoke(self)).await;
        let ended = Instant::now();
        let (writable, version) = self.reach_mark(fault).await;
        let recovered = ended.elapsed();
        self.cluster.is_faulty.send_replace(false);
        self.wait(fault, |seen| seen.compared_at >= version).await;
        let after = self.figures().await;
        // An informer that replaces another one, as when its kind was created again, begins at 0, too.
        let anew = after.lists < before.lists || after.watches < before.watches;
        let before = if std::mem::take(&mut self.counts_anew) || anew { Figures::default() } else { before };
        let (lost, folded) = self.account(!anew && after.lists == before.lists);
        let row = Row {
            recovered,
            lists: after.lists - before.lists,
            watches: after.watches - before.watches,
            resets: self.sum(|seen| seen.resets.len()) - resets,
        };
        let repeated = self.sum(|seen| seen.repeated);
        println!(
            "| {fault} | {} | {:.1} s | {:.1} s | {} | {} | {} | {folded} | {} | {lost} | {repeated} |",
            label(self.version),
            recovered.as_secs_f64(),
            writable.as_secs_f64(),
            row.lists,
            row.watches,
            self.writers.ledger().count() - writes,
            row.resets,
        );
        assert_eq!((lost, repeated), (0, 0), "{fault}: lost and repeated");
        row
    }

    /// Makes a write and waits until every follower has it. Returns the time until it was accepted, and its version.
    pub(super) async fn reach_mark(&mut self, what: &str) -> (Duration, u128) {
        self.marks += 1;
        let (begun, name) = (Instant::now(), format!("mark-{}", self.marks));
        let written = tokio::time::timeout(RECOVERY_MAX, mark(&self.cluster, &name)).await;
        let (key, version) = written.unwrap_or_else(|_| panic!("{what}: the API server takes no write"));
        let writable = begun.elapsed();
        self.wait(what, |seen| seen.has(&key, version)).await;
        (writable, version)
    }

    /// The number of acknowledged writes that a follower lost, and of those that arrived as part of a later state
    /// only.
    fn account(&self, is_whole: bool) -> (usize, usize) {
        let reached = self.followers.iter().map(|follower| follower.seen().compared_at).min().unwrap_or(0);
        let written = self.writers.ledger().take_until(reached);
        let (mut lost, mut folded) = (0, 0);
        for follower in &self.followers {
            let account = follower.seen().account(&written, is_whole);
            if !account.lost.is_empty() {
                println!("lost over {:?}: {:?}", follower.transport, account.lost);
            }
            assert!(!account.is_whole || account.folded == 0, "P4: {:?}: {account:?}", follower.transport);
            (lost, folded) = (lost + account.lost.len(), folded + account.folded);
        }
        (lost, folded)
    }

    fn sum(&self, of: impl Fn(&Seen) -> usize) -> usize {
        self.followers.iter().map(|follower| of(&follower.seen())).sum()
    }

    /// Waits until a condition holds for each follower.
    pub(super) async fn wait(&self, what: &str, holds: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + RECOVERY_MAX;
        for follower in &self.followers {
            while !holds(&follower.seen()) {
                if Instant::now() > deadline {
                    let (figures, transport) = (self.figures().await, follower.transport);
                    let seen = follower.seen();
                    panic!(
                        "{what}: not in time over {transport:?}: {figures:?}, {} bookmarks equal, resets {:?}",
                        seen.compared, seen.resets
                    );
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Kills informerd by SIGKILL, so that its memory is lost.
    pub(super) async fn kill_informerd(&mut self) {
        self.informerd.kill().await;
        self.counts_anew = true;
    }

    /// The figures and the error that informerd shows.
    pub(super) async fn figures(&self) -> Figures {
        let resources = self.informerd.get("/v1/resources").await.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let Some(informer) = resources["informers"].as_array().and_then(|informers| informers.first()) {
            let number = |name: &str| informer[name].as_u64().expect("a number");
            return Figures {
                lists: number("lists"),
                watches: number("watches"),
                error: text(&informer["lastError"]),
            };
        }
        let error = text(&resources["pending"][0]["message"]);
        Figures { error, ..Figures::default() }
    }

    /// Waits until the error that informerd shows contains these words.
    pub(super) async fn wait_for_error(&self, words: &str) {
        let deadline = Instant::now() + RECOVERY_MAX;
        loop {
            let figures = self.figures().await;
            if figures.error.to_lowercase().contains(&words.to_lowercase()) {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?} is not in {figures:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until informerd's cache is empty. It must be by the time informerd reports that the kind is gone.
    pub(super) async fn wait_for_no_objects(&self) {
        let deadline = Instant::now() + RECOVERY_MAX;
        loop {
            let is_gone = self.figures().await.error.contains("any more");
            let list = self.informerd.get(&format!("/v1/snapshot/{}", self.cluster.kind().plural)).await;
            assert_eq!(list.status(), 200, "{}", list.text());
            let items = &list.json()["items"];
            if items.as_array().is_some_and(Vec::is_empty) {
                return;
            }
            assert!(!is_gone && Instant::now() < deadline, "still there: {items}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits while something is down, and checks that informerd answers from its cache meanwhile. Returns the `Age`
    /// at the end.
    pub(super) async fn stay_away(&self, pause: Duration) -> Duration {
        tokio::time::sleep(pause).await;
        let answer = self.informerd.get(&format!("/v1/snapshot/{}", self.cluster.kind().plural)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        Duration::from_secs(answer.header("age").expect("an Age").parse().expect("seconds"))
    }

    /// Stops everything, and compares each follower with the API server and with kubectl.
    pub(super) async fn finish(mut self) {
        let (seconds, version) = (self.started.elapsed().as_secs_f64(), label(self.version));
        let writes = self.writers.stop().await;
        let expected = self.cluster.now().await;
        if let Some(printed) = self.cluster.kubectl(&self.api.kubeconfig_path()).await {
            assert!(printed == expected, "kubectl and the API server differ");
        }
        let mut report = Vec::new();
        for follower in self.followers {
            let compared = follower.seen().compared;
            let mut recorder = follower.stop().await;
            recorder.wait_for_state(&expected).await;
            report.push(format!(
                "{:?} {} events, {compared} bookmarks equal, {} connections, {} resets",
                recorder.transport,
                recorder.events,
                recorder.connections,
                recorder.resets.len()
            ));
        }
        println!(
            "{version}: {} objects, {writes} writes in {seconds:.0} s; {}",
            expected.len(),
            report.join("; ")
        );
        self.informerd.stop().await;
        self.api.stop().await;
    }
}

fn label(version: Version) -> &'static str {
    match version {
        Version::V1_20 => "1.20",
        Version::V1_36 => "1.36",
    }
}
