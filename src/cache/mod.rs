//! The table in the middle: the current objects of one resource and a bounded window of recent changes.
//!
//! In comes a batch of [`Delta`]s through the one [`Writer`]; out go [`Snapshot`]s and runs of [`Change`]s
//! through any number of [`Reader`]s, which sleep on a wake-up and never hold up the writer. This room has
//! no async fn, does no I/O, reads no clock (time is an argument) and knows no format.
//!
//! # Revisions and positions
//! Each change gets the next [`Revision`], our own dense counter, and a *position*: the resourceVersion up to
//! which a reader that has taken this change has everything. Positions never decrease within one history.
//! Where several changes only together bring the cache to a resourceVersion (the deletions found by a
//! relist), all but the last keep the position before, so that a reader cut off among them resumes ahead of
//! them and loses none.

mod change;
mod cursor;
mod journal;
mod pass;
mod shared;
mod state;
mod store;

pub use change::{Change, ChangeKind, Commit, Delta};
pub use cursor::{Cursor, Located, Lost, Revision};
pub use shared::{Batch, CatchUp, CatchUpEntry, Condition, Mark, Phase, Reader, Summary, Writer, cache};
pub use store::{Snapshot, Stored};

/// Limits of one cache.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Changes the journal holds at most.
    pub journal_len_max: usize,
    /// Bytes of JSON that the journal may hold beyond the store's.
    pub journal_bytes_max: usize,
    /// Deletions remembered beyond the journal, about 150 bytes each.
    pub tombstones_len_max: usize,
}
