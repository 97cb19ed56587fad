//! The switchboard of faults: orders what the API server does wrong, and counts how often it did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

/// The requests that a fault hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requests {
    verb: Verb,
    resource: Option<String>,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Every request.
    Any,
    /// Lists, pages of lists included.
    List,
    /// Watches, streaming lists included.
    Watch,
    /// Single objects.
    Get,
    /// Anything that changes objects.
    Write,
    /// Everything that is not about a resource: discovery, version, health.
    Other,
}

impl Verb {
    /// The verb in authorization.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Any | Self::Get | Self::Other => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Write => "update",
        }
    }
}

impl Requests {
    /// Requests of one verb, on any resource.
    #[must_use]
    pub fn of(verb: Verb) -> Self {
        Self { verb, resource: None }
    }

    /// The same, on one resource (`pods`, `deployments.apps`).
    #[must_use]
    pub fn on(self, resource: &str) -> Self {
        Self { resource: Some(resource.into()), ..self }
    }

    fn include(&self, verb: Verb, resource: &str) -> bool {
        (self.verb == Verb::Any || self.verb == verb) && self.resource.as_ref().is_none_or(|r| r == resource)
    }
}

/// How a watch is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// At a line's end, with the final chunk.
    Clean,
    /// Half a line, then the final chunk.
    MidLine,
    /// TCP reset.
    Abort,
}

/// The form in which a watch gets 410.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// 200 and an ERROR event, as today's servers do.
    InStream,
    /// HTTP 410, as proxies and old servers do.
    Http,
}

/// How requests with `sendInitialEvents` are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamingLists {
    /// Served.
    #[default]
    On,
    /// 422 as kube-apiserver 1.20 words it, which does not know the parameter.
    Unknown,
    /// 422 as 1.27 and later word it with the feature gate off.
    Disabled,
    /// 200 and an in-stream 500, as with an etcd that lacks progress requests.
    NoProgress,
    /// Served as a plain watch, without end mark, as by some proxies and aggregated servers.
    Ignored,
}

/// An HTTP error to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status.
    pub code: u16,
    /// `Retry-After`, in seconds.
    pub retry_after_seconds: Option<u32>,
}

/// One kind of fault, for [`Faults::fired`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A watch was cut.
    Cut,
    /// A bookmark was left out.
    BookmarkDropped,
    /// A request was answered with an ordered error.
    Failed,
    /// A watch got 410 though its version was valid.
    Gone,
    /// A valid continue token was refused as expired.
    ContinueExpired,
    /// An event was sent twice.
    Duplicated,
    /// A request was accepted and never answered.
    Hung,
    /// An open watch did not send events or bookmarks.
    Silenced,
    /// An answer was delayed.
    Delayed,
    /// A line that is not JSON was sent.
    Garbage,
    /// A streaming list was refused or ignored.
    StreamingListRefused,
    /// A line without an end was sent.
    EndlessLine,
    /// An object without metadata was sent.
    Nameless,
    /// Two events were sent in the wrong order.
    Disordered,
    /// After a deletion an old state of the object was sent.
    Ghost,
    /// A request was answered as of an older revision.
    Lagged,
    /// A streaming list was cut before its end mark.
    CutBeforeMark,
    /// An event was left out.
    Swallowed,
}

/// The switchboard: a handle on the faults of one API server. Cloning makes another handle.
///
/// An order concerns later requests and events. `n` is the number of them that it hits.
#[derive(Debug, Clone)]
pub struct Faults {
    orders: Arc<Mutex<Orders>>,
    cut: watch::Sender<Option<CutOrder>>,
    lag: watch::Sender<Option<u64>>,
}

/// A cut in progress, as open watches see it.
#[derive(Debug, Clone)]
pub(super) struct CutOrder {
    pub(super) cut: Cut,
    requests: Requests,
}

impl CutOrder {
    pub(super) fn includes(&self, resource: &str) -> bool {
        self.requests.include(Verb::Watch, resource)
    }
}

#[derive(Debug, Default)]
struct Orders {
    failures: Vec<(u32, Requests, Failure)>,
    hangs: Vec<(u32, Requests)>,
    delays: Vec<(Requests, Duration)>,
    gone: Vec<(u32, Requests, Gone)>,
    expire_continues: u32,
    duplicates: u32,
    swallowed: u32,
    garbage_lines: u32,
    endless_lines: u32,
    nameless: u32,
    disorders: u32,
    ghosts: u32,
    cuts_before_mark: Vec<(u32, Requests, Cut)>,
    drop_bookmarks: bool,
    silent: bool,
    chunk_bytes: Option<usize>,
    streaming_lists: StreamingLists,
    legacy_discovery: bool,
    fired: BTreeMap<Fault, u64>,
}

/// What to do with a request before it is served.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) delay: Option<Duration>,
    pub(super) hang: bool,
    pub(super) failure: Option<Failure>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { orders: Arc::default(), cut: watch::Sender::new(None), lag: watch::Sender::new(None) }
    }
}

impl Faults {
    /// Withdraws every order. The counts stay.
    pub fn clear(&self) {
        let mut orders = self.lock();
        *orders = Orders { fired: std::mem::take(&mut orders.fired), ..Orders::default() };
        self.lag.send_replace(None);
    }

    /// Cuts the watches that are open now.
    pub fn cut_watches(&self, requests: &Requests, cut: Cut) {
        self.cut.send_replace(Some(CutOrder { cut, requests: requests.clone() }));
    }

    /// Answers the next `n` such requests with an error.
    pub fn fail_next(&self, n: u32, requests: &Requests, failure: Failure) {
        self.lock().failures.push((n, requests.clone(), failure));
    }

    /// Accepts the next `n` such requests and never answers.
    pub fn hang_next(&self, n: u32, requests: &Requests) {
        self.lock().hangs.push((n, requests.clone()));
    }

    /// Delays every such request until [`Faults::clear`].
    pub fn delay(&self, requests: &Requests, by: Duration) {
        self.lock().delays.push((requests.clone(), by));
    }

    /// Answers the next `n` such watches with 410, as if their version were too old.
    pub fn expire_next_watch(&self, n: u32, requests: &Requests, gone: Gone) {
        self.lock().gone.push((n, requests.clone(), gone));
    }

    /// Refuses the next `n` continue tokens as expired: 410 with a fresh token.
    pub fn expire_continue_tokens(&self, n: u32) {
        self.lock().expire_continues = n;
    }

    /// Sends the next `n` events twice.
    pub fn duplicate_events(&self, n: u32) {
        self.lock().duplicates = n;
    }

    /// Leaves out the next `n` events, like a server whose watch cache has lost them: the watch continues, and its bookmarks
    /// claim that nothing is missing.
    pub fn swallow_events(&self, n: u32) {
        self.lock().swallowed = n;
    }

    /// Puts a line that is not JSON before the next `n` batches of events.
    pub fn garbage_lines(&self, n: u32) {
        self.lock().garbage_lines = n;
    }

    /// Sends a line that never ends in place of the next `n` batches of events.
    pub fn endless_lines(&self, n: u32) {
        self.lock().endless_lines = n;
    }

    /// Puts an object without metadata into the next `n` lists, streaming lists or batches of events.
    pub fn nameless_objects(&self, n: u32) {
        self.lock().nameless = n;
    }

    /// Sends the next `n` events each after the one that follows it.
    pub fn disorder_events(&self, n: u32) {
        self.lock().disorders = n;
    }

    /// After each of the next `n` deletions, sends the previous state again, as MODIFIED with its old version.
    pub fn ghosts(&self, n: u32) {
        self.lock().ghosts = n;
    }

    /// Cuts the next `n` such streaming lists after half of their objects.
    pub fn cut_before_mark(&self, n: u32, requests: &Requests, cut: Cut) {
        self.lock().cuts_before_mark.push((n, requests.clone(), cut));
    }

    /// Answers as of this revision, like one of several API servers that is behind; `None` for the newest. The cluster must
    /// still remember it.
    pub fn lag_at(&self, revision: Option<u64>) {
        self.lag.send_replace(revision);
    }

    /// Leaves out every bookmark, the end marks of streaming lists included.
    pub fn drop_bookmarks(&self, on: bool) {
        self.lock().drop_bookmarks = on;
    }

    /// Silences open watches, as on a half-open connection. What happened meanwhile is sent when the order is withdrawn.
    pub fn silence_watches(&self, on: bool) {
        self.lock().silent = on;
    }

    /// Writes watches in chunks of this many bytes (at least 1); `None` for 2048 again.
    pub fn chunk_bytes(&self, bytes: Option<usize>) {
        self.lock().chunk_bytes = bytes.map(|b| b.max(1));
    }

    /// Sets how streaming lists are answered.
    pub fn streaming_lists(&self, mode: StreamingLists) {
        self.lock().streaming_lists = mode;
    }

    /// Serves only the older discovery documents.
    pub fn legacy_discovery(&self, on: bool) {
        self.lock().legacy_discovery = on;
    }

    /// How often a fault was played.
    #[must_use]
    pub fn fired(&self, fault: Fault) -> u64 {
        self.lock().fired.get(&fault).copied().unwrap_or(0)
    }

    pub(super) fn judge(&self, verb: Verb, resource: &str) -> Verdict {
        let mut orders = self.lock();
        let delay =
            orders.delays.iter().find(|(requests, _)| requests.include(verb, resource)).map(|(_, by)| *by);
        let hang =
            take(&mut orders.hangs, |(n, requests)| requests.include(verb, resource).then_some(n)).is_some();
        let failure = if hang {
            None
        } else {
            take(&mut orders.failures, |(n, requests, _)| requests.include(verb, resource).then_some(n))
        };
        for (fault, fired) in
            [(Fault::Delayed, delay.is_some()), (Fault::Hung, hang), (Fault::Failed, failure.is_some())]
        {
            if fired {
                orders.count(fault);
            }
        }
        Verdict { delay, hang, failure: failure.map(|(_, _, failure)| failure) }
    }

    pub(super) fn take_gone(&self, resource: &str) -> Option<Gone> {
        let mut orders = self.lock();
        let taken =
            take(&mut orders.gone, |(n, requests, _)| requests.include(Verb::Watch, resource).then_some(n));
        taken.map(|(_, _, gone)| {
            orders.count(Fault::Gone);
            gone
        })
    }

    pub(super) fn take_expired_continue(&self) -> bool {
        self.lock().take_one(Fault::ContinueExpired, |orders| &mut orders.expire_continues)
    }

    pub(super) fn take_duplicate(&self) -> bool {
        self.lock().take_one(Fault::Duplicated, |orders| &mut orders.duplicates)
    }

    pub(super) fn take_swallowed(&self) -> bool {
        self.lock().take_one(Fault::Swallowed, |orders| &mut orders.swallowed)
    }

    pub(super) fn take_garbage_line(&self) -> bool {
        self.lock().take_one(Fault::Garbage, |orders| &mut orders.garbage_lines)
    }

    pub(super) fn take_endless_line(&self) -> bool {
        self.lock().take_one(Fault::EndlessLine, |orders| &mut orders.endless_lines)
    }

    pub(super) fn take_nameless(&self) -> bool {
        self.lock().take_one(Fault::Nameless, |orders| &mut orders.nameless)
    }

    pub(super) fn take_disorder(&self) -> bool {
        self.lock().take_one(Fault::Disordered, |orders| &mut orders.disorders)
    }

    pub(super) fn take_ghost(&self) -> bool {
        self.lock().take_one(Fault::Ghost, |orders| &mut orders.ghosts)
    }

    pub(super) fn take_cut_before_mark(&self, resource: &str) -> Option<Cut> {
        let mut orders = self.lock();
        let includes = |requests: &Requests| requests.include(Verb::Watch, resource);
        let taken = take(&mut orders.cuts_before_mark, |(n, requests, _)| includes(requests).then_some(n));
        taken.map(|(_, _, cut)| {
            orders.count(Fault::CutBeforeMark);
            cut
        })
    }

    /// The revision as of which requests are answered, with the cluster at `newest`.
    pub(super) fn seen(&self, newest: u64) -> u64 {
        self.lag.borrow().map_or(newest, |lag| lag.min(newest))
    }

    /// Wakes when that revision changes.
    pub(super) fn lags(&self) -> watch::Receiver<Option<u64>> {
        self.lag.subscribe()
    }

    pub(super) fn takes_bookmark(&self) -> bool {
        let mut orders = self.lock();
        if orders.drop_bookmarks {
            orders.count(Fault::BookmarkDropped);
        }
        orders.drop_bookmarks
    }

    pub(super) fn is_silent(&self) -> bool {
        self.lock().silent
    }

    pub(super) fn chunk_bytes_now(&self) -> Option<usize> {
        self.lock().chunk_bytes
    }

    pub(super) fn streaming_lists_now(&self) -> StreamingLists {
        self.lock().streaming_lists
    }

    pub(super) fn is_legacy_discovery(&self) -> bool {
        self.lock().legacy_discovery
    }

    pub(super) fn count(&self, fault: Fault) {
        self.lock().count(fault);
    }

    /// Sees only cuts ordered from now on.
    pub(super) fn cuts(&self) -> watch::Receiver<Option<CutOrder>> {
        self.cut.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Orders {
    fn count(&mut self, fault: Fault) {
        *self.fired.entry(fault).or_default() += 1;
    }

    fn take_one(&mut self, fault: Fault, left: impl Fn(&mut Self) -> &mut u32) -> bool {
        let left = left(self);
        let take = *left > 0;
        if take {
            *left -= 1;
            self.count(fault);
        }
        take
    }
}

/// Uses one hit of the first order that `counter` accepts and that has hits left.
fn take<T: Clone>(orders: &mut [T], mut counter: impl FnMut(&mut T) -> Option<&mut u32>) -> Option<T> {
    for order in orders {
        let copy = order.clone();
        if let Some(left) = counter(order).filter(|left| **left > 0) {
            *left -= 1;
            return Some(copy);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_as_often_as_ordered_and_is_counted() {
        let faults = Faults::default();
        let failure = Failure { code: 503, retry_after_seconds: Some(1) };
        faults.fail_next(2, &Requests::of(Verb::List).on("pods"), failure);
        assert_eq!(faults.judge(Verb::Watch, "pods"), Verdict::default());
        assert_eq!(faults.judge(Verb::List, "nodes"), Verdict::default());
        assert_eq!(faults.judge(Verb::List, "pods").failure, Some(failure));
        assert_eq!(faults.judge(Verb::List, "pods").failure, Some(failure));
        assert_eq!(faults.judge(Verb::List, "pods").failure, None);
        assert_eq!(faults.fired(Fault::Failed), 2);
    }
}
