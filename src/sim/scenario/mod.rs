//! Life for a cluster: nodes with heartbeats, deployments that roll out and scale, pods that crash and recover.
//!
//! The controllers are real enough that a user's `kubectl scale`, `edit` or `delete` has the expected effect.

mod controllers;
mod kubelet;
mod life;
mod mirror;
mod stage;
mod templates;

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::cluster::Cluster;
use mirror::Mirror;
use stage::Stage;

/// Shortest time between two wake-ups of [`Scenario::run`]; faster rates do several steps at once.
const TICK_MIN: Duration = Duration::from_millis(10);

/// Age of the cluster at its start, so that objects look older than a second.
const AGE_MILLIS: u64 = 20 * 60 * 1000;

/// Steps that the controllers get to bring a new cluster to rest.
const SETTLE_STEPS_MAX: usize = 5_000;

/// Life in a cluster, the same for the same seed.
#[derive(Debug)]
pub struct Scenario {
    cluster: Cluster,
    rng: StdRng,
    events_per_second: f64,
    deployments: Mirror,
    replica_sets: Mirror,
    pods: Mirror,
    /// Revisions of the three mirrors at which the controllers had nothing to do.
    at_rest: [u64; 3],
    /// Generation and template hash of each deployment, by uid.
    template_hashes: BTreeMap<String, (u64, String)>,
    /// When each pod, by uid, was first seen in its present stage.
    stages: BTreeMap<String, (Stage, u64)>,
    /// Pods, by uid, that crash until this time.
    crashing: BTreeMap<String, u64>,
    /// The last number that was given to an object.
    serial: u64,
}

impl Scenario {
    /// Fills `cluster` with namespaces, nodes, deployments and what belongs to them, all at rest, and prepares to
    /// make `events_per_second` writes (about; at least 0.01).
    #[must_use]
    pub fn new(cluster: Cluster, seed: u64, events_per_second: f64) -> Self {
        let now = cluster.now_millis();
        let mut scenario = Self {
            rng: StdRng::seed_from_u64(seed),
            events_per_second: events_per_second.max(0.01),
            deployments: Mirror::new("deployments.apps"),
            replica_sets: Mirror::new("replicasets.apps"),
            pods: Mirror::new("pods"),
            at_rest: [0; 3],
            template_hashes: BTreeMap::new(),
            stages: BTreeMap::new(),
            crashing: BTreeMap::new(),
            serial: 0,
            cluster,
        };
        scenario.cluster.set_graceful_pods(true);
        let mut then = now.saturating_sub(AGE_MILLIS);
        let clock = scenario.cluster.swap_clock(Some(then));
        templates::found(&scenario.cluster);
        for _ in 0..SETTLE_STEPS_MAX {
            let busy = scenario.reconcile(then);
            if !busy && !scenario.is_waiting() {
                break;
            }
            // Writes take a moment, waiting for a container a little longer.
            then = (then + if busy { 10 } else { 500 }).min(now);
            scenario.cluster.swap_clock(Some(then));
        }
        scenario.cluster.swap_clock(clock);
        scenario
    }

    /// Makes at most one write, as of `now_millis` (since 1970): one of the controllers, or else a random event. Returns
    /// whether there was one.
    ///
    /// Deterministic: the same cluster, seed, and calls make the same writes.
    pub fn step(&mut self, now_millis: u64) -> bool {
        let clock = self.cluster.swap_clock(Some(now_millis));
        let wrote = self.reconcile(now_millis) || self.happen(now_millis);
        self.cluster.swap_clock(clock);
        wrote
    }

    /// Steps at the scenario's rate, in the cluster's time, until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let tick = Duration::from_secs_f64(1.0 / self.events_per_second).max(TICK_MIN);
        let mut ticks = tokio::time::interval(tick);
        // After a stall, continue at the rate instead of catching up in a burst.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut budget = 0.0;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = ticks.tick() => {}
            }
            budget += self.events_per_second * tick.as_secs_f64();
            while budget >= 1.0 - 1e-9 {
                budget -= 1.0;
                self.step(self.cluster.now_millis());
            }
        }
    }

    /// One write of the controllers, if they have something to do.
    fn reconcile(&mut self, now: u64) -> bool {
        self.deployments.refresh(&self.cluster);
        self.replica_sets.refresh(&self.cluster);
        self.pods.refresh(&self.cluster);
        self.run_kubelet(now) || self.run_controllers()
    }

    /// A number that no other object of this scenario has.
    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Five characters as generated names end with.
    fn suffix(&mut self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(ALPHABET[self.rng.random_range(0..ALPHABET.len())])).collect()
    }
}

#[cfg(test)]
mod tests;
