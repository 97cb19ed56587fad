//! What the simulator's request handlers share: the cluster, the switchboard of faults, and the log of requests.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::cluster::Cluster;
use super::fault::{Fault, Faults};

/// Timings of the server, as kube-apiserver has them by default.
#[derive(Debug, Clone, Copy)]
pub struct ApiServerConfig {
    /// Time between bookmarks on a watch that asks for them.
    pub bookmark_interval: Duration,
    /// A watch without `timeoutSeconds` ends after once to twice this (`--min-request-timeout`).
    pub watch_timeout_min: Duration,
    /// How long a request waits for a revision the cluster has not reached.
    pub revision_wait: Duration,
}

impl Default for ApiServerConfig {
    fn default() -> Self {
        Self {
            bookmark_interval: Duration::from_secs(60),
            watch_timeout_min: Duration::from_secs(1800),
            revision_wait: Duration::from_secs(3),
        }
    }
}

/// Request lines that are kept; older ones are dropped.
const REQUEST_LOG_LEN_MAX: usize = 10_000;

/// The state that all request handlers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) cluster: Cluster,
    pub(super) faults: Faults,
    pub(super) config: ApiServerConfig,
    log: Mutex<VecDeque<String>>,
    /// Randomness for the ends of watches, from a fixed seed, so that any run can be repeated.
    jitter: Mutex<StdRng>,
}

impl Shared {
    pub(super) fn new(cluster: Cluster, faults: Faults, config: ApiServerConfig) -> Self {
        let jitter = Mutex::new(StdRng::seed_from_u64(0));
        Self { cluster, faults, config, log: Mutex::default(), jitter }
    }

    /// The next of a repeatable sequence in `0.0..1.0`.
    pub(super) fn jitter(&self) -> f64 {
        self.jitter.lock().unwrap_or_else(PoisonError::into_inner).random()
    }

    /// The revision as of which requests are answered: the cluster's, or an older one that the switchboard orders.
    pub(super) fn revision(&self) -> u64 {
        self.seen(self.cluster.revision())
    }

    /// The same, with a known revision of the cluster.
    pub(super) fn seen(&self, newest: u64) -> u64 {
        let seen = self.faults.seen(newest);
        if seen < newest {
            self.faults.count(Fault::Lagged);
        }
        seen
    }

    pub(super) fn record(&self, line: String) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == REQUEST_LOG_LEN_MAX {
            log.pop_front();
        }
        log.push_back(line);
    }

    /// The recorded lines, oldest first.
    pub(super) fn requests(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The same over another cluster: timings, faults and log go on.
    pub(super) fn over(&self, cluster: Cluster) -> Self {
        let log = Mutex::new(self.requests().into());
        Self { log, ..Self::new(cluster, self.faults.clone(), self.config) }
    }
}
