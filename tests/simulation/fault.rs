//! The faults of a history, and how often each of them happened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Names the faults, and lists them for the report.
macro_rules! faults {
    ($($name:ident = $text:literal,)+) => {
        /// A kind of fault, or a situation that faults lead to and that the histories must reach.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            $($name,)+
        }

        impl Fault {
            /// All of them.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The text for reports.
            pub(crate) fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

faults! {
    Refused = "connection refused",
    Hung = "request never answered",
    Delayed = "answer delayed",
    Unauthorized = "401",
    Forbidden = "403",
    NotFound = "404 of a resource that exists",
    WatchGoneHttp = "410 as HTTP status of a watch",
    Throttled = "429 with Retry-After",
    Unavailable = "503 with Retry-After",
    InternalError = "500",
    BadGateway = "502 with a proxy's page",
    GarbageAnswer = "200 with a proxy's page",
    CutClean = "watch ended cleanly",
    CutMidLine = "watch ended within a line",
    CutReset = "watch reset",
    Stalled = "watch half-open: no further bytes",
    Paused = "watch silent for a while",
    WatchGoneInStream = "410 as ERROR event, version good",
    ErrorInStream = "500 as ERROR event",
    GarbageLine = "line that is not JSON",
    EndlessLine = "line without end",
    NoMetadata = "object without metadata",
    UnknownType = "event of unknown type",
    Duplicate = "event sent twice",
    Replayed = "older event sent again",
    BookmarkDropped = "bookmark left out",
    ListCutShort = "list ended within its JSON",
    ListReset = "list reset",
    ListStalled = "list half-open",
    TokenExpired = "continue token expired",
    Compacted = "history compacted",
    RealGone = "410 as the cluster's history is gone",
    ServerRestarted = "API server restarted",
    StaleWatch = "watch on an API server that is behind",
    StaleList = "list of an API server that is behind",
    Restored = "cluster restored from a backup",
    RestoredAgain = "restored cluster restored again",
    Oversized = "object too large to be held",
    Overtaken = "restored cluster with higher versions than before, while writes go on",
    DefinitionRemoved = "definition of a custom resource removed",
    DefinitionCreated = "definition created again",
    DefinitionChanged = "definition changed",
    Absent = "404 of a resource that does not exist",
    Killed = "replica killed",
    Drained = "replica drained",
    Disconnected = "client cut off",
    CutInBatch = "client cut off within a batch",
    ClientStalled = "client stalled",
    ResumedElsewhere = "token taken to the other replica",
    ResumedAfterRestart = "token taken to a replica started since",
    ServedAhead = "token ahead of the replica, and served",
    Reloaded = "informer replaced by a reload",
    ContentChanged = "reload that changes the members that an informer drops",
    ContinuedReplaced = "client continued with a replaced informer",
    Packed = "objects packed while clients read",
    PackedAmidList = "dictionary trained in the middle of a first list",
    Listed = "client watches from the version of its list",
    InTransit = "client on its way to a live view for a while",
    JoinedView = "client joined a live view",
    RefusedByView = "client refused by a live view, as it lacked a change",
    LeftView = "client left a live view",
    JoinedGathering = "client joined a live view that gathers changes",
    LeftGathering = "client left a live view that held changes",
    NotModified = "304: the client has the snapshot",
    PagesRead = "list read page by page",
    PagesExpired = "410 as the pages of a list expired",
    GraphPatched = "graph changed while a client follows it",
    FellBehind = "client behind the journal",
    ResetTokenTooOld = "RESET: token too old",
    ResetTokenAhead = "RESET: token ahead of the replica",
    ResetLagged = "RESET: client behind everything remembered",
    ResetHistoryLost = "RESET: versions went back",
    ResetReplaced = "RESET: informer replaced",
    ResetOfOthers = "RESET: informer with other members than the token's",
    Relisted = "relist",
    WorkerDied = "worker died with a key",
    WorkerLate = "worker answered after its lease",
    WorkerAnsweredTwice = "worker answered twice",
    JoinCut = "client of a join cut off within a batch",
    JoinLeft = "related object left a join",
    JoinReset = "RESET of a stream with a join",
}

/// How often each fault hit.
#[derive(Debug)]
pub(crate) struct Hits(Vec<AtomicU64>);

impl Default for Hits {
    fn default() -> Self {
        Self(Fault::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Hits {
    pub(crate) fn count(&self, fault: Fault) {
        self.0[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, other: &Self) {
        for (sum, more) in self.0.iter().zip(&other.0) {
            sum.fetch_add(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
