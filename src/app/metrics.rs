//! Metrics of informers, discovery and configuration.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use crate::hub::Started;

/// The outcome of reading the configuration again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReloadOutcome {
    /// It was applied.
    Applied,
    /// It has not changed.
    Unchanged,
    /// It is wrong, and the previous one stays in force.
    Refused,
}

/// Describes the metrics and makes them visible at zero.
pub(super) fn describe() {
    describe_gauge!("informerd_informers_running", "Informers that run now, by what started them.");
    describe_counter!("informerd_informers_started_total", "Informers started, by what started them.");
    describe_counter!("informerd_informers_stopped_total", "Informers stopped, by reason.");
    describe_counter!(
        "informerd_informers_replaced_total",
        "Informers replaced because their resource or configuration has changed."
    );
    describe_counter!("informerd_informers_failed_total", "Reflectors that panicked and were replaced.");
    describe_counter!(
        "informerd_discovery_requests_total",
        "Discoveries: times the API server was asked for its kinds."
    );
    describe_counter!(
        "informerd_config_reloads_total",
        "Times the configuration was read again, by outcome."
    );
    describe_gauge!(
        "informerd_config_last_reload_successful",
        "Whether the configuration was valid when it was last read."
    );
    for started in [Started::Configuration, Started::Demand] {
        gauge!("informerd_informers_running", "started" => started.as_str()).increment(0.0);
        counter!("informerd_informers_started_total", "started" => started.as_str()).absolute(0);
    }
    for reason in ["idle", "configuration"] {
        counter!("informerd_informers_stopped_total", "reason" => reason).absolute(0);
    }
    for outcome in ["ok", "failed"] {
        counter!("informerd_discovery_requests_total", "outcome" => outcome).absolute(0);
    }
    for outcome in [ReloadOutcome::Applied, ReloadOutcome::Unchanged, ReloadOutcome::Refused] {
        counter!("informerd_config_reloads_total", "outcome" => outcome.as_str()).absolute(0);
    }
    counter!("informerd_informers_replaced_total").absolute(0);
    counter!("informerd_informers_failed_total").absolute(0);
    gauge!("informerd_config_last_reload_successful").set(1.0);
}

/// Counts a configuration that was read again.
pub(super) fn reloaded(outcome: ReloadOutcome) {
    counter!("informerd_config_reloads_total", "outcome" => outcome.as_str()).increment(1);
    let successful = outcome != ReloadOutcome::Refused;
    gauge!("informerd_config_last_reload_successful").set(f64::from(u8::from(successful)));
}

/// Counts informers.
pub(super) struct Metrics;

impl Metrics {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn running(&self, started: Started, count: usize) {
        gauge!("informerd_informers_running", "started" => started.as_str()).set(count as f64);
    }

    pub(super) fn started(&self, started: Started, count: usize) {
        counter!("informerd_informers_started_total", "started" => started.as_str()).increment(count as u64);
    }

    pub(super) fn failed(&self, count: usize) {
        counter!("informerd_informers_failed_total").increment(count as u64);
    }

    pub(super) fn stopped_idle(&self, count: usize) {
        counter!("informerd_informers_stopped_total", "reason" => "idle").increment(count as u64);
    }

    pub(super) fn stopped_by_configuration(&self, count: usize) {
        counter!("informerd_informers_stopped_total", "reason" => "configuration").increment(count as u64);
    }

    pub(super) fn replaced(&self) {
        counter!("informerd_informers_replaced_total").increment(1);
    }

    pub(super) fn discovered(&self, answered: bool) {
        let outcome = if answered { "ok" } else { "failed" };
        counter!("informerd_discovery_requests_total", "outcome" => outcome).increment(1);
    }
}

impl ReloadOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}
