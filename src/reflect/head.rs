//! Asks the API server how far it is, for clients that come with a version which the cache has not reached.
//!
//! Beside the pump: while nothing changes, its watch brings nothing by which to tell.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::metrics::LazyCounter;
use super::stats::{Stats, count};
use crate::cache::{HeadAsked, HeadWriter};
use crate::k8s::{DecodeError, ResourceVersion, identities};
use crate::upstream::{AsOf, Client, PageRequest, Target, UpstreamError};

/// What a reader has come with is mostly on its way here, and comes within this time.
const GRACE: Duration = Duration::from_millis(250);

/// Between two questions, whatever clients come with.
const INTERVAL: Duration = Duration::from_secs(2);

/// Questions in a row: for half a minute, the clients of another replica that went away come here one after the other.
const BURST: u32 = 15;

/// Time after which one more question may be asked. Whoever makes versions up that nobody has reached costs the API
/// server no more than that; a client that comes with a true one meanwhile may wait as long, or be told RESET.
const REFILL: Duration = Duration::from_secs(60);

/// Answers a cache that asks how far the API server is.
pub(super) struct Scout {
    pub(super) target: Target,
    pub(super) writer: HeadWriter,
    pub(super) stats: Arc<Stats>,
    pub(super) probes: LazyCounter,
}

/// Questions that may be asked now, and more as time goes by.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// When the next one comes to those that are left.
    refill_at: Instant,
}

/// Why the version is not known.
#[derive(Debug, thiserror::Error)]
enum HeadError {
    #[error("the API server did not tell")]
    Upstream(#[from] UpstreamError),
    #[error("the list cannot be read")]
    Decode(#[from] DecodeError),
}

// === impl Allowance ===

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { left: BURST, refill_at: now + REFILL }
    }

    /// Takes a question out, and tells how long to wait before the next one.
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

// === impl Scout ===

impl Scout {
    /// Answers for as long as the cache lives.
    pub(super) async fn drive(&self, client: &Client) -> Infallible {
        let mut asked = self.writer.asked();
        let mut allowance = Allowance::new(Instant::now());
        loop {
            asked.borrow_and_update();
            // Asked for while the last answer was awaited, perhaps.
            while let Some(question) = self.next().await {
                count(&self.stats.probes, 1);
                self.probes.increment(1);
                let version = self.ask(client).await;
                let version = version.inspect_err(|error| {
                    debug!(error = error as &dyn std::error::Error, "how far the API server is is not known");
                });
                self.writer.answer(question, version.ok());
                sleep(allowance.take(Instant::now())).await;
            }
            if asked.changed().await.is_err() {
                // The pump is gone, and this with it.
                return std::future::pending().await;
            }
        }
    }

    /// What is asked, and still after a moment.
    async fn next(&self) -> Option<HeadAsked> {
        self.writer.next()?;
        sleep(GRACE).await;
        self.writer.next()
    }

    async fn ask(&self, client: &Client) -> Result<ResourceVersion, HeadError> {
        let request =
            PageRequest { limit: 1, metadata_only: true, as_of: AsOf::Now, ..PageRequest::default() };
        Ok(identities(&client.list_page(&self.target, &request).await?.body)?.resource_version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Questions asked by somebody who always has one.
    fn questions(allowance: &mut Allowance, now: &mut Instant, during: Duration) -> u32 {
        let (until, mut count) = (*now + during, 0);
        while *now < until {
            *now += allowance.take(*now);
            count += 1;
        }
        count
    }

    #[test]
    fn made_up_versions_cost_a_question_a_minute() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now);
        let hour = Duration::from_secs(3600);
        let first = questions(&mut allowance, &mut now, hour);
        assert!(first <= BURST + 60, "{first}");
        assert_eq!(questions(&mut allowance, &mut now, hour), 60);
    }

    #[test]
    fn clients_of_another_replica_are_asked_for_at_once() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now);
        let half_a_minute = INTERVAL * BURST;
        assert!(questions(&mut allowance, &mut now, half_a_minute) >= BURST - 1);
        now += REFILL * BURST;
        assert!(questions(&mut allowance, &mut now, half_a_minute) >= BURST - 1);
    }
}
