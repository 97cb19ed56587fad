//! The open watch, and the ways in which it can end.

use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;

/// A watch that lived at least this long was healthy: its end (by a load balancer, a timeout) is normal, and the next
/// one follows at once.
const HEALTHY: Duration = Duration::from_secs(10);

/// A watch that ended sooner than this and brought nothing counts as refused. Source: client-go
/// `tools/cache/reflector.go`, `VeryShortWatchError`.
const SHORT: Duration = Duration::from_secs(1);

/// A watch is idle if it was silent for this fraction of the allowed time. The bookmark just before the requested end of a
/// watch does not count as a sign of life.
const IDLE: f64 = 0.85;

/// How a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The server ended it cleanly: its timeout, a shutdown, a changed definition, too slow a reader.
    Eof,
    /// The connection broke.
    Broken(Failure),
    /// No byte came for longer than the watch may be silent.
    Silent,
    /// The server did not end it when asked to.
    Overdue,
    /// A line that is no watch event, or is too long.
    Undecodable(String),
    /// An event, or a comparison, makes the cache doubtful.
    Doubted(Doubt),
}

/// Why a cache is doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// An event older than an earlier one, for an object that the cache lacks: the object may be new, or deleted already.
    Disorder,
    /// A comparison with the API server found differences.
    Differs,
    /// A comparison found different content under the same version. Only a list that begins a new history heals that, as
    /// within one history a version stands for one state.
    Rewritten,
}

/// Why a watch ended, from a closed set: [`WatchEnd`], or an ERROR event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The server ended it cleanly.
    Eof,
    /// The connection broke.
    Broken,
    /// No byte came for too long.
    Silent,
    /// The server did not end it when asked to.
    Overdue,
    /// A line could not be read.
    Undecodable,
    /// An ERROR event: 410.
    Expired,
    /// Any other ERROR event.
    Error,
    /// The cache became doubtful.
    Doubted,
}

/// The reason for a relist, from a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelistReason {
    /// 410: the version or the continue token is too old.
    Expired,
    /// No progress at one version, several times in a row.
    Stuck,
    /// The same event could not be decoded twice.
    Undecodable,
    /// Events came out of order.
    Disorder,
    /// The API server's versions went back.
    WentBack,
    /// A comparison found differences.
    Verify,
}

/// The open watch.
#[derive(Clone, Debug)]
pub(super) struct Watching {
    opened: Instant,
    /// When the last event came.
    last: Instant,
    /// The longest time between two events.
    gap: Duration,
    /// Whether anything new came.
    pub(super) progressed: bool,
}

/// How well a watch did, judged by its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It lived long: go on at once.
    Healthy,
    /// It brought something new, but lived less than a second.
    Brief,
    /// It brought something new and ended.
    Useful,
    /// It brought nothing, but lived a while.
    Quiet(Duration),
    /// It brought nothing and ended at once: a failure.
    Short,
}

// === impl Watching ===

impl Watching {
    pub(super) fn new(opened: Instant) -> Self {
        Self { opened, last: opened, gap: Duration::ZERO, progressed: false }
    }

    /// Notes an event or bookmark.
    pub(super) fn heard(&mut self, now: Instant) {
        self.gap = self.gap.max(now.saturating_duration_since(self.last));
        self.last = now;
    }

    /// Whether a silence took about as long as is allowed, or as the watch lived. `None` if the watch was too short to say
    /// anything about the next one.
    pub(super) fn is_idle(&self, now: Instant, silence_max: Duration) -> Option<bool> {
        let lived = now.saturating_duration_since(self.opened);
        let gap = self.gap.max(now.saturating_duration_since(self.last));
        (lived * 2 >= silence_max).then(|| gap >= lived.min(silence_max).mul_f64(IDLE))
    }

    pub(super) fn verdict(&self, now: Instant) -> Verdict {
        let lived = now.saturating_duration_since(self.opened);
        match (self.progressed, lived) {
            (_, lived) if lived >= HEALTHY => Verdict::Healthy,
            (true, lived) if lived < SHORT => Verdict::Brief,
            (true, _) => Verdict::Useful,
            (false, lived) if lived < SHORT => Verdict::Short,
            (false, lived) => Verdict::Quiet(lived),
        }
    }
}

// === impl WatchEnd ===

impl WatchEnd {
    /// The reason, for metrics.
    pub(super) fn reason(&self) -> EndReason {
        match self {
            Self::Eof => EndReason::Eof,
            Self::Broken(_) => EndReason::Broken,
            Self::Silent => EndReason::Silent,
            Self::Overdue => EndReason::Overdue,
            Self::Undecodable(_) => EndReason::Undecodable,
            Self::Doubted(_) => EndReason::Doubted,
        }
    }

    /// The sentence for people.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Eof => "the API server ends each watch soon after it began".to_owned(),
            Self::Broken(failure) => format!("the watch broke off: {}", failure.sentence),
            Self::Silent => "the watch was silent for too long: the connection counts as dead".to_owned(),
            Self::Overdue => "the API server did not end the watch in time".to_owned(),
            Self::Undecodable(error) => format!("the watch sent a line that cannot be decoded: {error}"),
            Self::Doubted(Doubt::Disorder) => "the API server sent events out of order".to_owned(),
            Self::Doubted(Doubt::Differs) => "a comparison with the API server found differences".to_owned(),
            Self::Doubted(Doubt::Rewritten) => {
                "a comparison with the API server found other content under the same version".to_owned()
            }
        }
    }
}

// === impl Doubt ===

impl Doubt {
    pub(super) fn relist_reason(self) -> RelistReason {
        match self {
            Self::Disorder => RelistReason::Disorder,
            Self::Differs | Self::Rewritten => RelistReason::Verify,
        }
    }
}

// === impl EndReason ===

impl EndReason {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Eof,
        Self::Broken,
        Self::Silent,
        Self::Overdue,
        Self::Undecodable,
        Self::Expired,
        Self::Error,
        Self::Doubted,
    ];

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eof => "eof",
            Self::Broken => "broken",
            Self::Silent => "silent",
            Self::Overdue => "overdue",
            Self::Undecodable => "undecodable",
            Self::Expired => "expired",
            Self::Error => "error",
            Self::Doubted => "doubted",
        }
    }
}

// === impl RelistReason ===

impl RelistReason {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Expired, Self::Stuck, Self::Undecodable, Self::Disorder, Self::WentBack, Self::Verify];

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Stuck => "stuck",
            Self::Undecodable => "undecodable",
            Self::Disorder => "disorder",
            Self::WentBack => "went_back",
            Self::Verify => "verify",
        }
    }
}
