//! Which of several replicas gives out keys. Only the leader has queues: with its term they begin, and with its term they end, as
//! with the process of a controller that elects a leader by client-go.

use tokio::time::Instant;
use tracing::info;

use super::workers::QueueError;
use super::{DeclaredBy, Queues, Registry, metrics};
use crate::queue::Standing;

/// The election among the replicas, as far as it is fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// The Lease, `NAMESPACE/NAME`.
    pub lease: String,
    /// This replica's name in it.
    pub identity: String,
}

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
pub(super) struct Shown {
    pub(super) config: ElectionConfig,
    pub(super) leads: bool,
    pub(super) leader: Option<String>,
    pub(super) trouble: Option<String>,
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

    fn refusal(&self) -> QueueError {
        QueueError::Follows {
            identity: self.config.identity.clone(),
            lease: self.config.lease.clone(),
            leader: self.leader(Instant::now()).map(str::to_owned),
            trouble: self.trouble.clone(),
        }
    }
}

impl Registry {
    /// Refuses what only the leader may do.
    pub(super) fn lead(&self) -> Result<(), QueueError> {
        match &self.leading {
            Some(leading) if !leading.leads(Instant::now()) => Err(leading.refusal()),
            _ => Ok(()),
        }
    }
}

impl Queues {
    /// Refuses what only the leader may do: anything with a queue.
    ///
    /// # Errors
    /// [`QueueError::Follows`].
    pub fn lead(&self) -> Result<(), QueueError> {
        self.registry().lead()
    }

    /// Takes the outcome of the election. With a new term the queues of the configuration begin; all queues of the last one end.
    /// `trouble` says why the Lease could not be read or written.
    pub fn stand(&self, standing: Standing, trouble: Option<String>) {
        let mut registry = self.registry();
        let Some(leading) = &mut registry.leading else { return };
        let before = std::mem::replace(&mut leading.standing, standing);
        leading.trouble = trouble;
        tell(leading, &before);
        let is_same = before.term() == leading.standing.term();
        let leads = leading.standing.term().is_some();
        if is_same {
            return;
        }
        let ended = std::mem::take(&mut registry.by_name);
        drop(registry);
        ended.values().for_each(|queue| queue.close());
        if leads {
            self.declare_configured();
        }
    }

    /// Starts the queues of the configuration.
    pub(super) fn declare_configured(&self) {
        for (name, spec) in self.0.config.declared.clone() {
            // The configuration's names differ, and there are fewer than `queues_max`. A term that is over needs none.
            let _ = self.declare(&name, spec, DeclaredBy::Configuration);
        }
    }

    /// Where the election stands; `None` without one.
    pub(super) fn election(&self) -> Option<Shown> {
        let now = Instant::now();
        self.registry().leading.as_ref().map(|leading| Shown {
            config: leading.config.clone(),
            leads: leading.leads(now),
            leader: leading.leader(now).map(str::to_owned),
            trouble: leading.trouble.clone(),
        })
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
