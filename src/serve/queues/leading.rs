//! Which of several replicas gives out keys. Only the leader has queues: with its term they begin, and with its term they end, as
//! with the process of a controller that elects a leader by client-go.

use tokio::time::Instant;
use tracing::info;

use super::config::ElectionConfig;
use super::error::QueueError;
use super::metrics;
use crate::queue::Standing;

/// Where the election stands.
#[derive(Clone, Debug)]
pub(super) struct Leading {
    config: ElectionConfig,
    standing: Standing,
    /// Why the Lease cannot be read or written.
    trouble: Option<String>,
}

/// Where the election stands, for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ElectionStatus {
    pub(super) config: ElectionConfig,
    pub(super) leads: bool,
    pub(super) leader: Option<String>,
    pub(super) trouble: Option<String>,
}

/// What an outcome of the election is to the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turnover {
    /// The term goes on, or there is still none.
    Same,
    /// A term begins: the queues of the last one end, and those of the configuration begin.
    Begins,
    /// The term is over, and its queues end.
    Ends,
}

impl Leading {
    pub(super) fn new(config: ElectionConfig) -> Self {
        metrics::leads(false);
        Self { config, standing: Standing::Follows { leader: None }, trouble: None }
    }

    /// Whether it leads, by the clock: at the end of its term it ceases, whether or not anybody has noticed.
    fn leads(&self, now: Instant) -> bool {
        matches!(self.standing, Standing::Leads { until, .. } if now < until)
    }

    fn leader(&self, now: Instant) -> Option<&str> {
        match &self.standing {
            Standing::Leads { .. } => self.leads(now).then_some(&self.config.identity),
            Standing::Follows { leader } => leader.as_deref(),
        }
    }

    /// Refuses what only the leader may do.
    pub(super) fn lead(&self) -> Result<(), QueueError> {
        if self.leads(Instant::now()) {
            return Ok(());
        }
        Err(QueueError::Follows {
            identity: self.config.identity.clone(),
            lease: self.config.lease.clone(),
            leader: self.leader(Instant::now()).map(str::to_owned),
            trouble: self.trouble.clone(),
        })
    }

    /// Takes the outcome of the election. `trouble` says why the Lease could not be read or written. Returns which queues it
    /// ends and begins.
    pub(super) fn stand(&mut self, standing: Standing, trouble: Option<String>) -> Turnover {
        let before = std::mem::replace(&mut self.standing, standing);
        self.trouble = trouble;
        tell(self, &before);
        let term = self.standing.term();
        match before.term() == term {
            true => Turnover::Same,
            false if term.is_some() => Turnover::Begins,
            false => Turnover::Ends,
        }
    }

    /// Where the election stands now.
    pub(super) fn shown(&self) -> ElectionStatus {
        let now = Instant::now();
        ElectionStatus {
            config: self.config.clone(),
            leads: self.leads(now),
            leader: self.leader(now).map(str::to_owned),
            trouble: self.trouble.clone(),
        }
    }
}

/// Logs and counts what has changed.
fn tell(leading: &Leading, before: &Standing) {
    let lease = &leading.config.lease;
    let (was, is) = (before.term(), leading.standing.term());
    metrics::leads(is.is_some());
    if was.is_some() && was != is {
        info!(lease, trouble = leading.trouble, "no longer gives out the keys of queues");
    }
    if is.is_some() && was != is {
        metrics::led();
        info!(lease, identity = leading.config.identity, "gives out the keys of queues");
    }
    if let Standing::Follows { leader: Some(leader) } = &leading.standing
        && *before != leading.standing
    {
        info!(lease, leader, "another replica gives out the keys of queues");
    }
}
