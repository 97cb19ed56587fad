//! Asks the API server for its current version, for clients that bring a version which the cache has not reached.
//!
//! It runs beside the pump, because a watch brings no news of the version while nothing changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::metrics::LazyCounter;
use crate::cache::{ReflectorStats, VersionRequest, VersionRequests};
use crate::k8s::{DecodeError, ResourceVersion, identities};
use crate::upstream::{AsOf, Client, PageRequest, Target, UpstreamError};

/// Wait before asking. Mostly the cache itself reaches the client's version within this time.
const GRACE: Duration = Duration::from_millis(250);

/// Least time between two requests, however many clients wait.
const INTERVAL: Duration = Duration::from_secs(2);

/// Requests in a row, enough for half a minute: when another replica stops, its clients arrive here one after the other.
const BURST: u32 = 15;

/// Time after which one more request is allowed, once those in a row are used up. This bounds what clients with made-up
/// versions cost the API server. Meanwhile a client with a true version may have to wait, or gets RESET.
const REFILL: Duration = Duration::from_secs(60);

/// Tells a cache the API server's current version when it asks.
pub(super) struct Prober {
    pub(super) target: Target,
    pub(super) requests: VersionRequests,
    pub(super) stats: Arc<ReflectorStats>,
    pub(super) probes: LazyCounter,
}

/// How many requests are allowed now; refilled over time.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// When one more is added.
    refill_at: Instant,
}

/// Why the API server's version could not be read.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("the API server did not answer with a list")]
    Upstream(#[from] UpstreamError),
    #[error("the list cannot be read")]
    Decode(#[from] DecodeError),
}

// === impl Allowance ===

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { left: BURST, refill_at: now + REFILL }
    }

    /// Uses one request, and returns how long to wait before the next one.
    fn take(&mut self, now: Instant) -> Duration {
        while self.left < BURST && self.refill_at <= now {
            (self.left, self.refill_at) = (self.left + 1, self.refill_at + REFILL);
        }
        if self.left == BURST {
            self.refill_at = now + REFILL;
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 { INTERVAL } else { INTERVAL.max(self.refill_at.saturating_duration_since(now)) }
    }
}

// === impl Prober ===

impl Prober {
    /// Answers until it is dropped.
    pub(super) async fn drive(&self, client: &Client) -> Infallible {
        let mut requested = self.requests.requested();
        let mut allowance = Allowance::new(Instant::now());
        loop {
            requested.borrow_and_update();
            // Clients may have asked while the last answer was awaited.
            while let Some(question) = self.next().await {
                self.stats.probes.add(1);
                self.probes.increment(1);
                let version = self.ask(client).await;
                let version = version.inspect_err(|error| {
                    debug!(
                        error = error as &dyn std::error::Error,
                        "the API server's version could not be read"
                    );
                });
                self.requests.answer(question, version.ok());
                sleep(allowance.take(Instant::now())).await;
            }
            if requested.changed().await.is_err() {
                // The cache is gone, and this task ends with the pump.
                return std::future::pending().await;
            }
        }
    }

    /// The question of the cache, if it still stands after [`GRACE`].
    async fn next(&self) -> Option<VersionRequest> {
        self.requests.next()?;
        sleep(GRACE).await;
        self.requests.next()
    }

    async fn ask(&self, client: &Client) -> Result<ResourceVersion, ProbeError> {
        let request =
            PageRequest { limit: 1, metadata_only: true, as_of: AsOf::Now, ..PageRequest::default() };
        Ok(identities(&client.list_page(&self.target, &request).await?.body)?.resource_version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of requests made in a time by a cache that always asks.
    fn questions(allowance: &mut Allowance, now: &mut Instant, during: Duration) -> u32 {
        let (until, mut count) = (*now + during, 0);
        while *now < until {
            *now += allowance.take(*now);
            count += 1;
        }
        count
    }

    #[test]
    fn invented_versions_cost_one_probe_a_minute() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now);
        let hour = Duration::from_secs(3600);
        let first = questions(&mut allowance, &mut now, hour);
        assert!(first <= BURST + 60, "{first}");
        assert_eq!(questions(&mut allowance, &mut now, hour), 60);
    }

    #[test]
    fn a_burst_of_versions_of_another_replica_is_probed_at_once() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now);
        let half_a_minute = INTERVAL * BURST;
        assert!(questions(&mut allowance, &mut now, half_a_minute) >= BURST - 1);
        now += REFILL * BURST;
        assert!(questions(&mut allowance, &mut now, half_a_minute) >= BURST - 1);
    }
}
