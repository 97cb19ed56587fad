//! Counters of the reflectors. Each reflector makes its handles once, so that an event costs one addition.
//!
//! A series that stays at zero costs its scrapers as much as any other. So only those series exist from the start whose first
//! increment is worth an alert: `increase()` sees it only after a zero. The others appear with their first increment.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Counter, Gauge, Label, Unit, counter, describe_counter, describe_gauge, gauge};

use super::{DifferenceKind, EndReason, RelistReason};
use crate::cache::{Commit, VerifyOutcome};
use crate::k8s::{DecodeError, Resource, WatchEvent};
use crate::upstream::FailureKind;

const LISTS: &str = "informerd_reflector_lists_total";
const STREAM_REFUSALS: &str = "informerd_reflector_streaming_list_fallbacks_total";
const OLDER: &str = "informerd_reflector_older_answers_total";
const PROBES: &str = "informerd_reflector_probes_total";
const PAGES: &str = "informerd_reflector_list_pages_total";
const WATCHES: &str = "informerd_reflector_watches_total";
const RELISTS: &str = "informerd_reflector_relists_total";
const WATCH_ENDS: &str = "informerd_reflector_watch_ends_total";
const EVENTS: &str = "informerd_reflector_events_total";
const SKIPPED: &str = "informerd_reflector_objects_skipped_total";
const FAILURES: &str = "informerd_reflector_failures_total";
const PAST_LISTS: &str = "informerd_reflector_past_lists_total";
const VERIFICATIONS: &str = "informerd_verify_runs_total";
const DIFFERENCES: &str = "informerd_verify_differences_total";
const VERIFIED_AT: &str = "informerd_verify_last_run_timestamp_seconds";
const BACKOFF: &str = "informerd_reflector_backoff_seconds";
const CHANGES: &str = "informerd_cache_changes_total";

const EVENT_TYPES: [&str; 5] = ["added", "modified", "deleted", "bookmark", "error"];
const SKIP_REASONS: [&str; 4] = ["json", "missing", "too_large", "type"];
const CHANGE_TYPES: [&str; 4] = ["added", "modified", "deleted", "duplicate"];

/// Describes this room's metrics. Call it once the recorder is installed.
pub fn describe() {
    describe_counter!(
        LISTS,
        Unit::Count,
        "Lists started, including the first one, by how they were requested: page or stream"
    );
    describe_counter!(
        STREAM_REFUSALS,
        Unit::Count,
        "Times a reflector found that the API server does not support streaming lists"
    );
    describe_counter!(
        OLDER,
        Unit::Count,
        "Lists discarded because they were older than the version already seen"
    );
    describe_counter!(PROBES, Unit::Count, "Requests for the API server's current version only");
    describe_counter!(PAGES, Unit::Count, "Pages of lists received");
    describe_counter!(WATCHES, Unit::Count, "Watches requested");
    describe_counter!(RELISTS, Unit::Count, "Lists after the first one, by reason");
    describe_counter!(WATCH_ENDS, Unit::Count, "Watches that ended, by reason");
    describe_counter!(EVENTS, Unit::Count, "Watch events received, by type");
    describe_counter!(SKIPPED, Unit::Count, "Objects and events that could not be decoded, by reason");
    describe_counter!(FAILURES, Unit::Count, "Failed requests and ERROR events, by kind");
    describe_counter!(PAST_LISTS, Unit::Count, "Lists of a version from before the start, by outcome");
    describe_counter!(VERIFICATIONS, Unit::Count, "Comparisons with the API server, by outcome");
    describe_counter!(
        DIFFERENCES,
        Unit::Count,
        "Differences between cache and API server found by comparisons, by kind; 0 if all is well"
    );
    describe_gauge!(
        VERIFIED_AT,
        Unit::Seconds,
        "Unix time at which the last comparison ended; 0 if none did"
    );
    describe_gauge!(BACKOFF, Unit::Seconds, "Current delay before the next try; 0 while there is none");
    describe_counter!(CHANGES, Unit::Count, "Changes committed to the cache, by type");
}

/// A counter that is registered with its first increment. Its clones count in the same series.
#[derive(Clone)]
pub(super) struct LazyCounter {
    metric: &'static str,
    labels: Vec<Label>,
    handle: OnceLock<Counter>,
}

/// The handles of one reflector.
pub(super) struct Metrics {
    pub(super) paged_lists: LazyCounter,
    pub(super) streaming_lists: LazyCounter,
    pub(super) fallbacks: LazyCounter,
    pub(super) older: LazyCounter,
    pub(super) probes: LazyCounter,
    pub(super) pages: LazyCounter,
    pub(super) watches: LazyCounter,
    pub(super) backoff_seconds: Gauge,
    relists: [LazyCounter; RelistReason::ALL.len()],
    watch_ends: [LazyCounter; EndReason::ALL.len()],
    failures: [LazyCounter; FailureKind::ALL.len()],
    events: [LazyCounter; EVENT_TYPES.len()],
    skipped: [LazyCounter; SKIP_REASONS.len()],
    changes: [LazyCounter; CHANGE_TYPES.len()],
}

/// Counts lists of past versions, apart from other lists: they do not serve to keep the cache true.
pub(super) struct BackfillLists([LazyCounter; BackfillOutcome::ALL.len()]);

/// Counts comparisons with the API server.
pub(super) struct Verifications {
    runs: [LazyCounter; VerifyOutcome::ALL.len()],
    differences: [LazyCounter; DifferenceKind::ALL.len()],
    ended_at: Gauge,
}

/// The outcome of a list of a past version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackfillOutcome {
    /// The changes since that version are known.
    Known,
    /// The API server refused, mostly with 410, as it has forgotten the version.
    Refused,
    /// The answer contradicts the cache: the two are of different clusters.
    Contradicted,
    /// No answer in time, or one that cannot be decoded.
    Failed,
}

// === impl LazyCounter ===

impl LazyCounter {
    fn new(metric: &'static str, resource: &str) -> Self {
        let labels = vec![Label::new("resource", resource.to_owned())];
        Self { metric, labels, handle: OnceLock::new() }
    }

    fn with(mut self, label: &'static str, value: &'static str) -> Self {
        self.labels.push(Label::from_static_parts(label, value));
        self
    }

    /// Registered now, at zero.
    fn registered(self) -> Self {
        self.handle();
        self
    }

    fn handle(&self) -> &Counter {
        self.handle.get_or_init(|| counter!(self.metric, self.labels.clone()))
    }

    /// Adds to it.
    pub(super) fn increment(&self, count: u64) {
        if count > 0 {
            self.handle().increment(count);
        }
    }
}

// === impl Metrics ===

impl Metrics {
    pub(super) fn new(resource: &Resource) -> Self {
        let name = resource.canonical();
        let plain = |metric: &'static str| LazyCounter::new(metric, &name);
        let by = |metric: &'static str, label: &'static str, value: &'static str| {
            LazyCounter::new(metric, &name).with(label, value)
        };
        Self {
            paged_lists: by(LISTS, "how", "page"),
            streaming_lists: by(LISTS, "how", "stream"),
            fallbacks: plain(STREAM_REFUSALS),
            older: plain(OLDER),
            probes: plain(PROBES),
            pages: plain(PAGES),
            watches: plain(WATCHES),
            backoff_seconds: gauge!(BACKOFF, "resource" => name.clone()),
            // A restored cluster, or a server that cannot be followed.
            relists: RelistReason::ALL.map(|reason| by(RELISTS, "reason", reason.as_str()).registered()),
            watch_ends: EndReason::ALL.map(|reason| by(WATCH_ENDS, "reason", reason.as_str())),
            failures: FailureKind::ALL.map(|kind| by(FAILURES, "kind", kind.as_str())),
            events: EVENT_TYPES.map(|kind| by(EVENTS, "type", kind)),
            // Objects that no client gets.
            skipped: SKIP_REASONS.map(|reason| by(SKIPPED, "reason", reason).registered()),
            changes: CHANGE_TYPES.map(|kind| by(CHANGES, "type", kind)),
        }
    }

    pub(super) fn event(&self, event: &WatchEvent) {
        let index = match event {
            WatchEvent::Added(_) => 0,
            WatchEvent::Modified(_) => 1,
            WatchEvent::Deleted(_) => 2,
            WatchEvent::Bookmark { .. } => 3,
            WatchEvent::Error(_) => 4,
        };
        self.events[index].increment(1);
    }

    pub(super) fn skipped(&self, error: &DecodeError) {
        let index = match error {
            DecodeError::Json(_) | DecodeError::Utf8(_) | DecodeError::Slash(_) => 0,
            DecodeError::Missing(_) => 1,
            DecodeError::TooLarge { .. } => 2,
            DecodeError::UnknownType(_) => 3,
        };
        self.skipped[index].increment(1);
    }

    pub(super) fn relist(&self, reason: RelistReason) {
        self.relists[reason as usize].increment(1);
    }

    pub(super) fn watch_ended(&self, reason: EndReason) {
        self.watch_ends[reason as usize].increment(1);
    }

    pub(super) fn failed(&self, kind: FailureKind) {
        self.failures[kind as usize].increment(1);
    }

    pub(super) fn committed(&self, commit: &Commit) {
        for (counter, count) in
            self.changes.iter().zip([commit.added, commit.modified, commit.deleted, commit.duplicates])
        {
            counter.increment(count as u64);
        }
    }
}

// === impl BackfillLists ===

impl BackfillLists {
    pub(super) fn new(resource: &Resource) -> Self {
        let name = resource.canonical();
        Self(
            BackfillOutcome::ALL
                .map(|outcome| LazyCounter::new(PAST_LISTS, &name).with("outcome", outcome.as_str())),
        )
    }

    pub(super) fn count(&self, outcome: BackfillOutcome) {
        self.0[outcome as usize].increment(1);
    }
}

// === impl Verifications ===

impl Verifications {
    pub(super) fn new(resource: &Resource) -> Self {
        let name = resource.canonical();
        let by = |metric: &'static str, label: &'static str, value: &'static str| {
            LazyCounter::new(metric, &name).with(label, value)
        };
        Self {
            runs: VerifyOutcome::ALL.map(|outcome| by(VERIFICATIONS, "outcome", outcome.as_str())),
            // A cache that was wrong.
            differences: DifferenceKind::ALL.map(|kind| by(DIFFERENCES, "kind", kind.as_str()).registered()),
            ended_at: gauge!(VERIFIED_AT, "resource" => name.clone()),
        }
    }

    /// `at` is Unix time.
    pub(super) fn ended(&self, outcome: VerifyOutcome, at: Duration) {
        self.runs[outcome as usize].increment(1);
        self.ended_at.set(at.as_secs_f64());
    }

    pub(super) fn different(&self, kind: DifferenceKind) {
        self.differences[kind as usize].increment(1);
    }
}

// === impl BackfillOutcome ===

impl BackfillOutcome {
    pub(super) const ALL: [Self; 4] = [Self::Known, Self::Refused, Self::Contradicted, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Refused => "refused",
            Self::Contradicted => "contradicted",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_in_the_order_of_their_variants() {
        for (index, reason) in RelistReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
        for (index, reason) in EndReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
        for (index, outcome) in BackfillOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
        for (index, outcome) in VerifyOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
        for (index, kind) in DifferenceKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        for (index, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn series_for_alerts_exist_from_the_start_and_others_once_counted() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let parts = crate::k8s::ResourceParts { plural: "pods".into(), ..Default::default() };
        let resource = Resource::new(parts);
        let text = metrics::with_local_recorder(&recorder, || {
            let metrics = Metrics::new(&resource);
            let (_verifications, _past) = (Verifications::new(&resource), BackfillLists::new(&resource));
            let text = handle.render();
            metrics.relist(RelistReason::Stuck);
            metrics.watch_ended(EndReason::Silent);
            metrics.committed(&Commit { added: 3, duplicates: 1, ..Commit::default() });
            text
        });
        let series = text.lines().filter(|line| line.contains(r#"resource="pods""#));
        assert_eq!(series.count(), 15, "each costs every scrape of every informer:\n{text}");
        for line in [
            r#"informerd_reflector_relists_total{resource="pods",reason="expired"} 0"#,
            r#"informerd_reflector_relists_total{resource="pods",reason="went_back"} 0"#,
            r#"informerd_reflector_objects_skipped_total{resource="pods",reason="too_large"} 0"#,
            r#"informerd_verify_differences_total{resource="pods",kind="missing"} 0"#,
            r#"informerd_verify_last_run_timestamp_seconds{resource="pods"} 0"#,
            r#"informerd_reflector_backoff_seconds{resource="pods"} 0"#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        let text = handle.render();
        for line in [
            r#"informerd_reflector_relists_total{resource="pods",reason="stuck"} 1"#,
            r#"informerd_reflector_watch_ends_total{resource="pods",reason="silent"} 1"#,
            r#"informerd_cache_changes_total{resource="pods",type="added"} 3"#,
            r#"informerd_cache_changes_total{resource="pods",type="duplicate"} 1"#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        assert!(!text.contains(r#"type="modified"}"#), "{text}");
    }
}
