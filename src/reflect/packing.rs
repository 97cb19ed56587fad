//! Drives the packer of a cache, beside the pump and on a thread of its own, so that no event waits for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{error, warn};

use super::verify::Doubts;
use super::watching::Doubt;
use crate::cache::{Backlog, Packer, Packing, Writer};

/// Time between two looks for objects to pack, while the first list is under way: what a list brings in this time is held
/// unpacked.
const LOOK_LISTING: Duration = Duration::from_millis(20);

/// Time between two looks for objects to pack, later on.
const LOOK: Duration = Duration::from_secs(1);

/// Time after a first list until the dictionary of its first objects is compared with one of all: longer than jemalloc keeps memory that
/// was freed (its `dirty_decay_ms` is 10 s).
const SETTLED: Duration = Duration::from_secs(15);

/// Time for which one cache is packed before another one has its turn.
const TURN: Duration = Duration::from_millis(10);

/// How caches are packed.
#[derive(Clone, Debug)]
pub struct Pack {
    /// The dictionaries.
    pub packing: Packing,
    /// Whose turn it is: one cache at a time, however many there are.
    pub turn: Arc<Semaphore>,
    /// What waits to be packed, of all caches.
    pub backlog: Arc<Backlog>,
}

impl Pack {
    /// Packing for the caches of a process.
    pub fn new(packing: Packing) -> Self {
        let backlog = Arc::new(Backlog::new(Backlog::BYTES_MAX));
        Self { packing, turn: Arc::new(Semaphore::new(1)), backlog }
    }
}

/// Waits until a first list may go on: lists bring objects faster than they are packed.
pub(super) async fn room(writer: &Writer) {
    while let Some(backlog) = writer.full_backlog() {
        let mut packed = std::pin::pin!(backlog.packed().notified());
        packed.as_mut().enable();
        // It may have been packed before this listened.
        if writer.full_backlog().is_some() {
            packed.await;
        }
    }
}

/// Packs one cache; `None` packs nothing.
pub(super) async fn drive(packer: Option<(Packer, Arc<Semaphore>)>, doubts: &Doubts) -> Infallible {
    let Some((mut packer, turn)) = packer else { return std::future::pending().await };
    let reader = packer.reader();
    let (mut damaged_in, mut synced) = (None, None);
    loop {
        let mark = reader.mark();
        if mark.synced && synced.get_or_insert_with(Instant::now).elapsed() >= SETTLED {
            packer.settle();
        }
        tokio::time::sleep(if mark.synced { LOOK } else { LOOK_LISTING }).await;
        if packer.is_damaged() {
            warn!("packed objects in memory are damaged: listing everything again, and readers start over");
            damaged_in = Some(reader.mark().history);
        }
        match damaged_in {
            // Until there is a new history: a list that was under way does not begin one.
            Some(history) if reader.mark().history == history => doubts.raise(Doubt::Rewritten),
            Some(_) | None => damaged_in = None,
        }
        while packer.has_work() {
            let Ok(permit) = turn.clone().acquire_owned().await else { break };
            let packed = tokio::task::spawn_blocking(move || {
                let begun = Instant::now();
                while packer.step() && begun.elapsed() < TURN {}
                drop(permit);
                packer
            });
            match packed.await {
                Ok(back) => packer = back,
                Err(panic) => {
                    // What is packed can still be read. The rest stays as it is.
                    error!(%panic, "packing failed, which is a bug: objects are held unpacked from now on");
                    return std::future::pending().await;
                }
            }
        }
    }
}
