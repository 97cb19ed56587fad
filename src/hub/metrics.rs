//! The hub's metrics.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use super::event::ResetReason;

/// Describes this room's metrics, and makes those with a closed set of labels visible at zero.
pub fn describe() {
    describe_gauge!("informerd_hub_subscribers", "Subscribers connected now.");
    describe_counter!("informerd_hub_events_total", "Events handed to transports.");
    describe_counter!(
        "informerd_hub_catch_ups_total",
        "Times a subscriber fell behind the journal and began a catch-up."
    );
    describe_counter!(
        "informerd_hub_resets_total",
        "RESETs: times a subscriber had to start over, by reason."
    );
    describe_counter!(
        "informerd_hub_refused_total",
        "Subscriptions refused because subscribers_max was reached."
    );
    describe_counter!(
        "informerd_hub_where_failures_total",
        "Objects for which the CEL expression of a where parameter failed, other than by a member that the object lacks."
    );
    for reason in ResetReason::ALL {
        counter!("informerd_hub_resets_total", "reason" => reason.as_str()).absolute(0);
    }
    let _ = Metrics::new();
}

/// Handles, made once and shared.
#[derive(Clone)]
pub(super) struct Metrics {
    pub(super) subscribers: Gauge,
    pub(super) events: Counter,
    pub(super) catch_ups: Counter,
    pub(super) refused: Counter,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            subscribers: gauge!("informerd_hub_subscribers"),
            events: counter!("informerd_hub_events_total"),
            catch_ups: counter!("informerd_hub_catch_ups_total"),
            refused: counter!("informerd_hub_refused_total"),
        }
    }

    pub(super) fn condition_failed() {
        counter!("informerd_hub_where_failures_total").increment(1);
    }

    pub(super) fn reset(reason: ResetReason) {
        counter!("informerd_hub_resets_total", "reason" => reason.as_str()).increment(1);
    }
}
