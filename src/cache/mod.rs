//! The table in the middle: the current objects of one resource and a bounded window of recent changes.
//!
//! In comes a batch of [`Delta`]s through the one [`Writer`]; out go [`Snapshot`]s and runs of [`Change`]s
//! through any number of [`Reader`]s, which sleep on a wake-up and never hold up the writer. This room has
//! no async fn, does no I/O, reads no clock (time is an argument) and knows no format.
//!
//! # Revisions and positions
//! Each change gets the next [`Revision`], our own dense counter, and a *position*: the resourceVersion up to
//! which a reader that has taken this change has everything, so that any position is a place to resume from, on
//! any replica. Positions never decrease within one history. What a relist found happened somewhere between two
//! versions: deletions are told first, at the position before, then changes by rising version. A reader that is
//! cut off among them, or amid a catch-up, and comes back to a replica that is not as far yet, is told what it
//! lacks once that replica gets there; it is never told of an older state than it has.
//!
//! # Before the first list
//! What was deleted before it is not known here, so a position from before it (a client's that has outlived an
//! informerd) is [`Located::Lost`]. While a cache is young a reader may [`Reader::recall`] such a position: the
//! [`PastWriter`] is asked for who was there at that version, and from its answer and the store comes a [`Past`],
//! which leads the reader to a place in the journal. Few versions are asked for, and only for a while: a start
//! is when such clients come back. If it cannot be told, the reader starts over.
//!
//! # After the position
//! A reader may come with a version that the cache has not reached, from a replica that heard of it sooner. It is
//! [`Located::Ahead`], and waits. If the API server has been there ([`Reader::is_reached`]), it may wait as long as that
//! takes: it has everything until then.

mod catch_up;
mod change;
mod cursor;
mod head;
mod index;
mod indexed;
mod journal;
mod pass;
mod past;
mod scope;
mod shared;
mod state;
mod store;

pub use change::{Change, ChangeKind, Commit, Delta};
pub use cursor::{Cursor, Located, Lost, Recalled, Revision};
pub use head::{HeadAsked, HeadWriter};
pub use indexed::{
    INDEXES_MAX, IndexBuilder, IndexCatchUp, IndexSummary, IndexTerm, IndexesInUse, UsedIndex, UsedPaths,
};
pub use past::{Gone, Past, PastChange};
pub use shared::{
    Batch, CatchUp, CatchUpEntry, Condition, Mark, PastWriter, Phase, Reader, ScopeWake, Summary, Writer,
    cache,
};
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

#[cfg(test)]
mod tests;
