//! Work in turns: no request occupies a core for longer than a millisecond or two, and one core is left to live events.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::{ApiError, metrics};
use crate::cache::IndexTerm;
use crate::hub::{Informer, Selection};
use crate::k8s::IndexPath;

/// Number of requests that may wait for a turn. Further ones are refused.
const WAITING_MAX: usize = 1024;

/// Time after which a request that waits looks for a turn by itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Permits for turns, one fewer than cores.
///
/// A request that is woken takes its permit only when it runs. hyper does not poll the answer to an HTTP/2 request whose client has
/// closed its window. If such a request were given a permit while it waits, as a semaphore does, all others would wait for that
/// client.
#[derive(Debug)]
pub(super) struct Turns {
    free: AtomicUsize,
    freed: Notify,
    waiting: AtomicUsize,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

/// Counts a request as waiting until it is dropped, also because its client has left.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Release);
        self.0.freed.notify_one();
    }
}

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Arc::new(Self {
            free: AtomicUsize::new((cores - 1).max(1)),
            freed: Notify::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Refuses a request if too many are waiting already.
    ///
    /// # Errors
    /// 503 with `Retry-After`.
    pub(super) fn admit(&self) -> Result<(), ApiError> {
        if self.waiting.load(Ordering::Relaxed) < WAITING_MAX {
            return Ok(());
        }
        metrics::limit_hit("turns_waiting_max");
        Err(ApiError::unavailable(format!("{WAITING_MAX} requests wait for their turn already"), 1))
    }

    /// Waits for a turn, which lasts until it is dropped.
    pub(super) async fn take(&self) -> Turn<'_> {
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Some(turn) = self.try_take()
        {
            return turn;
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        // A request that has just come stands behind those that wait, which are woken in their order.
        let mut looks = before == 0;
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if looks && let Some(turn) = self.try_take() {
                return turn;
            }
            // The request that was woken may be one that does not run.
            let _ = timeout(LOOK_INTERVAL, freed).await;
            looks = true;
        }
    }

    fn try_take(&self) -> Option<Turn<'_>> {
        let taken = self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, |free| free.checked_sub(1));
        taken.ok().map(|_| Turn(self))
    }

    /// Builds the index that a selection needs in each of these informers, unless it has one.
    pub(super) async fn index(&self, informers: &[Arc<Informer>], selection: &Selection) {
        for informer in informers {
            self.index_one(informer, selection).await;
        }
    }

    async fn index_one(&self, informer: &Informer, selection: &Selection) {
        let Some(wanted) = selection.index_wanted() else { return };
        let is_answered =
            || selection.index_terms().iter().any(|term| informer.reader.use_index(term).is_some());
        self.build(informer, &wanted.path, is_answered).await;
    }

    /// Builds the index of a path, unless the informer has it. It may be one of the key, which no selection needs.
    pub(super) async fn index_at(&self, informer: &Informer, path: &IndexPath) {
        let any = IndexTerm { path: path.clone(), values: Vec::new().into() };
        self.build(informer, path, || informer.reader.use_index(&any).is_some()).await;
    }

    async fn build(&self, informer: &Informer, path: &IndexPath, is_answered: impl Fn() -> bool) {
        if is_answered() {
            return;
        }
        // One request builds while the others wait. If its client leaves, the next one continues.
        let _building = informer.building().lock().await;
        if is_answered() {
            return;
        }
        // If all indexes are in use, the objects are scanned.
        let Ok(mut builder) = informer.reader.build_index(path, Instant::now()) else { return };
        loop {
            let permit = self.take().await;
            let complete = builder.turn();
            drop(permit);
            if complete {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn one() -> Turns {
        Turns { free: AtomicUsize::new(1), freed: Notify::new(), waiting: AtomicUsize::new(0) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_no_longer_polled_blocks_no_other() {
        let turns = one();
        let turn = turns.take().await;
        let mut closed_window = Box::pin(turns.take());
        assert!(closed_window.as_mut().now_or_never().is_none());
        let mut other = Box::pin(turns.take());
        assert!(other.as_mut().now_or_never().is_none());
        // The first request is woken, but not polled.
        drop(turn);
        let begun = Instant::now();
        let turn = timeout(10 * LOOK_INTERVAL, other).await.expect("a turn for the other one");
        assert!(begun.elapsed() <= LOOK_INTERVAL);
        drop(turn);
        // It is polled again.
        let turn = timeout(10 * LOOK_INTERVAL, closed_window).await.expect("a turn");
        drop(turn);
        assert_eq!((turns.free.load(Ordering::Relaxed), turns.waiting.load(Ordering::Relaxed)), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_passed_on_without_delay() {
        let turns = one();
        let turn = turns.take().await;
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(turns.take())).collect();
        for request in &mut waiting {
            assert!(request.as_mut().now_or_never().is_none());
        }
        drop(turn);
        let begun = Instant::now();
        for request in waiting {
            drop(request.await);
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "a request was not woken by the one before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_dropped_when_woken_wakes_the_next() {
        let turns = one();
        let turn = turns.take().await;
        let mut leaves = Box::pin(turns.take());
        assert!(leaves.as_mut().now_or_never().is_none());
        let mut stays = Box::pin(turns.take());
        assert!(stays.as_mut().now_or_never().is_none());
        drop(turn);
        drop(leaves);
        let begun = Instant::now();
        drop(stays.await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
