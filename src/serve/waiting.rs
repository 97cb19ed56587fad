//! Requests that wait until what they select changes: `Prefer: wait=N` (RFC 7240) with `If-None-Match`.
//!
//! A request that waits holds a receiver and no state of a cache, and takes no turn. For each distinct selection that requests
//! wait for, one task follows the cache: it wakes at changes of the selection's index value, namespace or object if it has
//! one, and updates the selection's hash. Only a different hash wakes the requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use futures_util::future::select_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::content::Contents;
use super::{ApiError, metrics};
use crate::cache::{Cursor, Mark, ScopeWake};
use crate::hub::{Informer, InformerId, Matcher, Selection};
use crate::k8s::ContentHash;

/// Longest wait of a request, in seconds. A client that asks for more finds this in `Preference-Applied`, and asks again.
pub(super) const WAIT_SECONDS_MAX: u64 = 300;

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Names the preferences that the answer honours (RFC 7240, section 3).
pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The content of each selection that requests wait for, as it changes.
type Followed = HashMap<(InformerId, Arc<Selection>), Arc<watch::Sender<Published>>>;

/// The requests that wait.
pub(super) struct Waiting {
    permits: Arc<Semaphore>,
    requests_max: usize,
    followed: Mutex<Followed>,
    contents: Arc<Contents>,
    /// The tasks that follow selections.
    tasks: TaskTracker,
    /// Ends waiting.
    drain: CancellationToken,
}

/// A request's place among those that wait.
pub(super) struct WaitPermit(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl WaitPermit {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        metrics::waiting().increment(1.0);
        Self(permit)
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        metrics::waiting().decrement(1.0);
    }
}

/// What a request waits for.
pub(super) struct Awaited {
    pub(super) informers: Vec<Arc<Informer>>,
    pub(super) selection: Arc<Selection>,
    /// The selected objects of each informer when the request began to wait.
    pub(super) contents: Vec<ContentAt>,
}

/// The hash of the selected objects at one place in a cache's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentAt {
    pub(super) cursor: Cursor,
    pub(super) hash: ContentHash,
}

/// What the task that follows a selection has last seen.
struct Published {
    content: ContentAt,
    /// The latest place that a waiting request has seen. It may be beyond that of the task.
    requests_at: Cursor,
}

/// What wakes the task that follows a selection.
enum Wake {
    /// Changes of one index value, namespace or object.
    Scoped(ScopeWake),
    /// Every commit.
    Any(watch::Receiver<Mark>),
}

/// How long the headers ask to wait; `None` if they do not.
///
/// # Errors
/// 400 for a `wait` that is not a number of seconds.
pub(super) fn preferred(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let wrong = |text: &str| ApiError::invalid("Prefer", text, "expected wait=SECONDS, a whole number");
    for value in headers.get_all(PREFER) {
        let text = value.to_str().map_err(|_| wrong("(bytes)"))?;
        // A preference may have parameters, which `wait` does not use. Of several `wait`s, the first counts.
        for preference in text.split(',') {
            let preference = preference.split(';').next().unwrap_or_default();
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            if !name.trim().eq_ignore_ascii_case("wait") {
                continue;
            }
            let digits = value.trim().trim_matches('"');
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(wrong(preference.trim()));
            }
            // Digits that do not fit a `u64` are more than the maximum.
            let seconds = digits.parse().unwrap_or(u64::MAX).min(WAIT_SECONDS_MAX);
            return Ok(Some(Duration::from_secs(seconds)));
        }
    }
    Ok(None)
}

/// The header that says for how long a request may have waited.
pub(super) fn applied(wait: Duration) -> HeaderValue {
    HeaderValue::from_str(&format!("wait={}", wait.as_secs())).expect("digits are visible ASCII")
}

impl Waiting {
    /// Lets up to `requests_max` requests wait.
    pub(super) fn new(
        requests_max: usize,
        contents: Arc<Contents>,
        tasks: TaskTracker,
        drain: CancellationToken,
    ) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(requests_max));
        Arc::new(Self { permits, requests_max, followed: Mutex::default(), contents, tasks, drain })
    }

    /// A place among the requests that wait.
    ///
    /// # Errors
    /// 503 if too many wait already.
    pub(super) fn permit(&self) -> Result<WaitPermit, ApiError> {
        self.permits.clone().try_acquire_owned().map(WaitPermit::new).map_err(|_| {
            metrics::limit_hit("waiting_requests_max");
            let message = format!("{} requests wait for a change already", self.requests_max);
            ApiError::unavailable(message, 5)
        })
    }

    /// Waits until the selected objects are different, an informer is replaced, the time is over, or the server drains.
    pub(super) async fn wait(self: &Arc<Self>, awaited: Awaited, until: Instant) {
        let Awaited { informers, selection, contents } = awaited;
        let followed = informers.iter().zip(&contents);
        let mut receivers: Vec<_> =
            followed.map(|(informer, content)| self.follow(informer, &selection, *content)).collect();
        drop((informers, selection));
        let changes = receivers.iter_mut().zip(contents).map(|(receiver, awaited)| {
            Box::pin(async move {
                // It closes when its informer ends: then the request looks for another one.
                let _ = receiver.wait_for(|published| published.is_news_for(&awaited)).await;
            })
        });
        let change = select_all(changes);
        tokio::select! {
            _ = change => {}
            () = sleep_until(until) => {}
            () = self.drain.cancelled() => {}
        }
    }

    /// The selected objects as they change, from one task for all requests.
    fn follow(
        self: &Arc<Self>,
        informer: &Arc<Informer>,
        selection: &Arc<Selection>,
        content: ContentAt,
    ) -> watch::Receiver<Published> {
        let key = (informer.id(), selection.clone());
        let mut followed = self.lock();
        if let Some(sender) = followed.get(&key) {
            let receiver = sender.subscribe();
            sender.send_if_modified(|published| {
                published.joins(content.cursor);
                false
            });
            return receiver;
        }
        let (sender, receiver) = watch::channel(Published { content, requests_at: content.cursor });
        let sender = Arc::new(sender);
        followed.insert(key, sender.clone());
        let follower = Follower {
            waiting: self.clone(),
            informer: informer.clone(),
            selection: selection.clone(),
            sender,
        };
        self.tasks.spawn(follower.run());
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that follows a selection for as long as requests wait for it.
struct Follower {
    waiting: Arc<Waiting>,
    informer: Arc<Informer>,
    selection: Arc<Selection>,
    sender: Arc<watch::Sender<Published>>,
}

impl Published {
    /// Takes in a request that has seen the cache at this place.
    fn joins(&mut self, at: Cursor) {
        if is_before(self.requests_at, at) {
            self.requests_at = at;
        }
    }

    /// Takes what the task has seen. Returns whether the requests have to look at it. A request that has seen more than the task so
    /// far may wait at another content: the task does not see each state.
    fn moves_to(&mut self, content: ContentAt) -> bool {
        let differs = self.content.hash != content.hash || is_before(self.content.cursor, self.requests_at);
        self.content = content;
        differs
    }

    /// Whether a request at this content has something else to see. What the task has seen before is nothing new.
    fn is_news_for(&self, awaited: &ContentAt) -> bool {
        self.content.hash != awaited.hash && !is_before(self.content.cursor, awaited.cursor)
    }
}

/// Whether a place in a cache's history is before another.
fn is_before(one: Cursor, other: Cursor) -> bool {
    (one.history, one.revision) < (other.history, other.revision)
}

impl Follower {
    async fn run(self) {
        let _used = self.informer.in_use();
        let matcher = Matcher::once(self.selection.clone(), &self.informer.reader);
        let mut wake = Wake::of(&self.informer, &matcher);
        loop {
            wake.saw();
            let Some(content) = self.content(&matcher).await else { break };
            self.sender.send_if_modified(|published| published.moves_to(content));
            tokio::select! {
                () = self.sender.closed() => {
                    let mut followed = self.waiting.lock();
                    // A request may have come meanwhile.
                    if self.sender.receiver_count() == 0 {
                        followed.remove(&(self.informer.id(), self.selection.clone()));
                        return;
                    }
                }
                () = wake.woken() => {}
            }
        }
        self.waiting.lock().remove(&(self.informer.id(), self.selection.clone()));
    }

    /// The objects that are selected now. `None` if the informer has ended, or as for [`Contents::of`].
    async fn content(&self, matcher: &Matcher) -> Option<ContentAt> {
        if self.informer.is_over() {
            return None;
        }
        let mut state = matcher.candidates();
        let hash = self.waiting.contents.of(&self.informer, &self.selection, &mut state).await?;
        Some(ContentAt { cursor: state.snapshot.cursor, hash })
    }
}

impl Wake {
    fn of(informer: &Informer, matcher: &Matcher) -> Self {
        let (selection, reader) = (matcher.selection(), &informer.reader);
        let namespace = match selection.namespaces() {
            [] => None,
            [namespace] => Some(&**namespace),
            _ => return Self::Any(reader.wake()),
        };
        if let Some(name) = &selection.name {
            return Self::Scoped(reader.wake_scoped(
                namespace.unwrap_or_default(),
                Some(name),
                Arc::default(),
            ));
        }
        let by_value = matcher.index().and_then(|index| index.wake(Arc::default()));
        let scoped = by_value.or_else(|| Some(reader.wake_scoped(namespace?, None, Arc::default())));
        scoped.map_or_else(|| Self::Any(reader.wake()), Self::Scoped)
    }

    /// Marks the commits so far as seen. Call it before the cache is read, or a commit in between is missed.
    fn saw(&mut self) {
        match self {
            Self::Scoped(wake) => wake.saw(),
            Self::Any(wake) => drop(wake.borrow_and_update()),
        }
    }

    async fn woken(&mut self) {
        match self {
            Self::Scoped(wake) => wake.woken().await,
            Self::Any(receiver) => {
                let ended = receiver.changed().await.is_err();
                // A cache keeps its wake-ups for as long as it has readers.
                debug_assert!(!ended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Revision;

    fn at(revision: u64, content: &str) -> ContentAt {
        let cursor = Cursor { history: 0, revision: Revision(revision) };
        ContentAt { cursor, hash: ContentHash::of(content.as_bytes()) }
    }

    /// A request that has seen a later state than the task was answered at once with what it had, and asked again, until the task had
    /// seen that state, too.
    #[test]
    fn a_request_ahead_of_the_task_waits_for_it_and_misses_nothing() {
        let mut published = Published { content: at(1, "a"), requests_at: at(1, "a").cursor };
        let awaited = at(3, "b");
        published.joins(awaited.cursor);
        assert!(!published.is_news_for(&awaited), "the request has seen more than the task");
        assert!(published.moves_to(at(2, "c")) && !published.is_news_for(&awaited));
        assert!(published.moves_to(at(3, "b")) && !published.is_news_for(&awaited));
        assert!(published.moves_to(at(4, "a")) && published.is_news_for(&awaited));
        // What the task has seen before may be what has come again, over the state that the request has seen.
        let awaited = at(6, "b");
        published.joins(awaited.cursor);
        assert!(published.moves_to(at(7, "a")) && published.is_news_for(&awaited));
        assert!(!published.moves_to(at(8, "a")), "every request has looked at it");
    }

    fn seconds(values: &[&'static str]) -> Result<Option<u64>, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(PREFER, HeaderValue::from_static(value));
        }
        let found = preferred(&headers).map_err(|error| error.status().message.clone());
        found.map(|wait| wait.map(|wait| wait.as_secs()))
    }

    #[test]
    fn only_the_first_wait_preference_counts() {
        for (values, expected) in [
            (&[][..], None),
            (&["respond-async"], None),
            (&["wait=30"], Some(30)),
            (&["respond-async, Wait = \"7\" ; x=1, wait=9"], Some(7)),
            (&["return=minimal", "wait=5", "wait=x"], Some(5)),
            (&["wait=0"], Some(0)),
            (&["wait=301"], Some(300)),
            (&["wait=99999999999999999999999"], Some(300)),
        ] {
            assert_eq!(seconds(values), Ok(expected), "{values:?}");
        }
        for value in ["wait", "wait=", "wait=-1", "wait=1.5", "wait=1s", "wait=+1"] {
            let message = seconds(&[value]).unwrap_err();
            assert!(message.starts_with("Prefer: invalid value") && message.contains(value), "{message}");
        }
    }
}
