//! One watch, from its opening to its end, and the words for how it ended.

use std::time::Duration;

use tokio::time::Instant;

use super::Failure;

/// A watch that lived at least this long was healthy: what ended it (a load balancer, a timeout) is normal,
/// and the next one follows at once.
const HEALTHY: Duration = Duration::from_secs(10);

/// A watch that ended sooner, and brought nothing, was refused by another name. Source: client-go
/// `tools/cache/reflector.go`, `VeryShortWatchError`.
const SHORT: Duration = Duration::from_secs(1);

/// A watch on which a silence took this part of the time that it may be silent is idle. What the server says just before
/// the end of a watch that it was asked to end early is no sign of life.
const IDLE: f64 = 0.85;

/// How a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The server ended it cleanly: its timeout, a shutdown, a changed definition, too slow a reader.
    Eof,
    /// The connection broke.
    Broken(Failure),
    /// No byte came where this server would have sent one.
    Silent,
    /// The server did not end it when asked to.
    Overdue,
    /// A line that is no watch event, or has no end.
    Undecodable(String),
    /// What it brought, or what it left out, makes the cache doubtful.
    Doubted(Doubt),
}

/// What makes a cache doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// An event older than one before it, of an object that is not there: it may be new to us, or long gone.
    Disorder,
    /// A comparison with the API server found differences.
    Differs,
    /// A comparison found an object whose content is another one under the same version. A list heals that only as one of
    /// another history: in one history a version is one state.
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
    /// What it told is doubtful.
    Doubted,
}

/// Why everything is listed again, from a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelistReason {
    /// 410: the version or the continue token is too old.
    Expired,
    /// Again and again no progress at one version.
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

/// What is known of the watch that is open.
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

/// How well a watch did, judged at its end.
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

    /// An event came, bookmarks included.
    pub(super) fn heard(&mut self, now: Instant) {
        self.gap = self.gap.max(now.saturating_duration_since(self.last));
        self.last = now;
    }

    /// Whether a silence was about as long as a watch may be silent, or as this one lived; nothing if it lived too short
    /// for that to say how the next one does.
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
    /// The word for it in metrics.
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

    /// What a person should read.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Eof => "the API server ends each watch soon after it began".to_owned(),
            Self::Broken(failure) => format!("the watch broke off: {}", failure.sentence),
            Self::Silent => "the watch fell silent: the connection is taken for dead".to_owned(),
            Self::Overdue => "the API server did not end the watch in time".to_owned(),
            Self::Undecodable(error) => format!("the watch brought something that cannot be read: {error}"),
            Self::Doubted(Doubt::Disorder) => "the API server told events out of order".to_owned(),
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
