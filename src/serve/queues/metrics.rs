//! Metrics of work queues under the names that client-go has for them, so that its dashboards read them unchanged.
//!
//! Source: Kubernetes `component-base/metrics/prometheus/workqueue/metrics.go`.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::queue::Summary;

/// Number of queue names with metrics of their own in the life of a process. A name's metrics stay after its queue is
/// deleted, so further ones share the name [`OTHERS`].
const NAMES_MAX: usize = 1000;

/// The name of queues without metrics of their own. No queue can have it.
const OTHERS: &str = "_others";

const LEADER: &str = "informerd_queue_leader";
const TRANSITIONS: &str = "informerd_queue_leader_transitions_total";

static NAMES: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Describes the metrics.
pub(in crate::serve) fn describe() {
    describe_gauge!("workqueue_depth", "Keys that a worker could lease now, by queue.");
    describe_counter!(
        "workqueue_adds_total",
        "Keys added, by queue. A key that was queued already is not counted."
    );
    describe_histogram!(
        "workqueue_queue_duration_seconds",
        Unit::Seconds,
        "Time for which a key was queued before it was leased, by queue."
    );
    describe_histogram!(
        "workqueue_work_duration_seconds",
        Unit::Seconds,
        "Time from a lease to its answer, by queue."
    );
    describe_gauge!(
        "workqueue_unfinished_work_seconds",
        Unit::Seconds,
        "The ages of all leases together, by queue. Growth without end shows workers that hang."
    );
    describe_gauge!(
        "workqueue_longest_running_processor_seconds",
        Unit::Seconds,
        "The age of the oldest lease, by queue."
    );
    describe_counter!("workqueue_retries_total", "Keys that were queued again after a delay, by queue.");
    describe_counter!("informerd_queue_leases_expired_total", "Leases that ran out, by queue.");
    describe_gauge!("informerd_queue_failed", "Keys set aside after too many attempts, by queue.");
    describe_gauge!("informerd_queue_waiting_workers", "Workers that wait for a key now, over all queues.");
    describe_gauge!(LEADER, "1 where this replica gives out the keys of queues, 0 where another one leads.");
    describe_counter!(
        TRANSITIONS,
        "Times that this replica began to give out the keys of queues, where a leader is elected."
    );
    waiting_workers().increment(0.0);
}

/// Whether this replica leads. Shown only where a leader is elected.
pub(super) fn leads(leads: bool) {
    gauge!(LEADER).set(if leads { 1.0 } else { 0.0 });
    counter!(TRANSITIONS).increment(0);
}

/// Counts a term that begins.
pub(super) fn led() {
    counter!(TRANSITIONS).increment(1);
}

/// Workers that wait for a key now.
pub(super) fn waiting_workers() -> Gauge {
    gauge!("informerd_queue_waiting_workers")
}

/// The metrics of one queue.
pub(super) struct Meter {
    depth: Gauge,
    adds: Counter,
    queued: Histogram,
    worked: Histogram,
    unfinished: Gauge,
    longest: Gauge,
    retries: Counter,
    expired: Counter,
    failed: Gauge,
}

impl Meter {
    pub(super) fn new(queue: &str) -> Self {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let has_own = names.contains(queue) || names.len() < NAMES_MAX && names.insert(queue.to_owned());
        drop(names);
        let name = if has_own { queue.to_owned() } else { OTHERS.to_owned() };
        let meter = Self {
            depth: gauge!("workqueue_depth", "name" => name.clone()),
            adds: counter!("workqueue_adds_total", "name" => name.clone()),
            queued: histogram!("workqueue_queue_duration_seconds", "name" => name.clone()),
            worked: histogram!("workqueue_work_duration_seconds", "name" => name.clone()),
            unfinished: gauge!("workqueue_unfinished_work_seconds", "name" => name.clone()),
            longest: gauge!("workqueue_longest_running_processor_seconds", "name" => name.clone()),
            retries: counter!("workqueue_retries_total", "name" => name.clone()),
            expired: counter!("informerd_queue_leases_expired_total", "name" => name.clone()),
            failed: gauge!("informerd_queue_failed", "name" => name),
        };
        meter.adds.increment(0);
        meter.retries.increment(0);
        meter.expired.increment(0);
        meter.show(&Summary::default());
        meter
    }

    pub(super) fn depth(&self, depth: usize) {
        self.depth.set(depth as f64);
    }

    pub(super) fn added(&self, count: usize) {
        self.adds.increment(count as u64);
    }

    pub(super) fn leased(&self, waited: Duration) {
        self.queued.record(waited);
    }

    pub(super) fn answered(&self, worked: Duration) {
        self.worked.record(worked);
    }

    pub(super) fn retried(&self) {
        self.retries.increment(1);
    }

    pub(super) fn expired(&self, count: usize) {
        self.expired.increment(count as u64);
    }

    /// Shows what grows with time.
    pub(super) fn show(&self, summary: &Summary) {
        self.depth(summary.depth);
        self.unfinished.set(summary.unfinished.as_secs_f64());
        self.longest.set(summary.longest.as_secs_f64());
        self.failed.set(summary.failed as f64);
    }
}
