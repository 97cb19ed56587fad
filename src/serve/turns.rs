//! Work in turns: no request occupies a core for longer than a millisecond or two, and one core is left to live events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::{ApiError, metrics};
use crate::hub::{Informer, Selection};

/// Number of requests that may wait for a turn. Further ones are refused.
const WAITING_MAX: usize = 1024;

/// Permits for turns, one fewer than cores.
#[derive(Debug)]
pub(super) struct Turns {
    permits: Semaphore,
    waiting: AtomicUsize,
}

/// Counts a request as waiting until it is dropped, also because its client has left.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Arc::new(Self { permits: Semaphore::new((cores - 1).max(1)), waiting: AtomicUsize::new(0) })
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

    /// Waits for a turn, which lasts until the permit is dropped.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Some(permit);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        // The semaphore is never closed.
        self.permits.acquire().await.ok()
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
        if is_answered() {
            return;
        }
        // One request builds while the others wait. If its client leaves, the next one continues.
        let _building = informer.building().lock().await;
        if is_answered() {
            return;
        }
        // If all indexes are in use, the objects are scanned.
        let Ok(mut builder) = informer.reader.build_index(&wanted.path, Instant::now()) else { return };
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
