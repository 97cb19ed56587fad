//! The cache of one resource: its current objects and a bounded window of recent changes.
//!
//! In come batches of [`Delta`]s through the one [`Writer`]; out go [`Snapshot`]s and runs of [`Change`]s
//! through any number of [`Reader`]s, which wait on a wake-up and never delay the writer. This room has
//! no async fn, does no I/O, reads no clock (time is an argument) and knows no format.
//!
//! # Revisions and positions
//! Each change gets the next [`Revision`], our own dense counter, and a *position*: the resourceVersion up to which a
//! reader has everything once it took this change. So a reader can resume from any position, on any replica. Positions
//! never decrease within one history. Changes that a relist finds happened at unknown moments between two versions:
//! deletions come first, at the position before the relist, then changes by rising version. A reader that is cut off in
//! the middle of these, or of a catch-up, may return to a replica that is not as far. It gets what it lacks once that
//! replica is far enough, and never an older state than it has.
//!
//! # Before the first list
//! Deletions from before the first list are unknown, so a position from before it is [`Located::Lost`]; a client that
//! outlived a restart has one. While a cache is young, a reader may [`Reader::request_backfill`] such a position: the
//! reflector lists the objects ([`BackfillRequests`]) that existed at that version. From the answer and the store comes a [`Backfill`],
//! which leads the reader to a place in the journal. Only a few versions are requested, and only for a while after the
//! start, when such clients return. If the version cannot be listed, the reader starts over.
//!
//! # After the position
//! A reader may have a version that this cache has not reached, from a replica that is further. It is
//! [`Located::Ahead`]. If the API server has been at that version ([`Reader::request_version`]), the reader is served at once
//! and waits for newer changes, as it has everything up to there.

mod backfill;
mod backlog;
mod catch_up;
mod change;
mod cold;
mod cursor;
mod index;
mod indexed;
mod inquiries;
mod interest;
mod journal;
mod key_set;
mod listed;
mod packing;
mod pass;
mod recent;
mod requests;
mod scope;
mod shared;
mod state;
mod stats;
mod store;
mod tombstone;
mod uses;

pub use backfill::{Backfill, BackfillAnswer, BackfillBuilder, BackfillChange, Gone};
pub use backlog::Backlog;
pub use catch_up::{CatchUp, CatchUpEntry};
pub use change::{Change, ChangeKind, Commit, Delta};
pub use cursor::{Cursor, Located, Lost, Revision};
pub use index::ValueCounts;
pub use indexed::{IndexBuilder, IndexCatchUp, IndexSummary, IndexTerm, UsedIndex, UsedPaths};
pub use interest::{Interest, Part};
pub use key_set::KeySet;
pub use packing::{Packer, Packing};
pub use requests::{BackfillRequests, VersionRequest, VersionRequests};
pub use shared::{Batch, Mark, Phase, Reader, ReflectorCondition, ScopeWake, Summary, Writer, cache};
pub use state::GivenOut;
pub use stats::{LastVerification, ReflectorStats, VerifyOutcome};
pub use store::{Snapshot, Stored};

/// Limits of one cache.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Largest number of changes in the journal.
    pub journal_len_max: usize,
    /// Largest size of JSON that only the journal holds, in bytes.
    pub journal_bytes_max: usize,
    /// Number of deletions that are remembered beyond the journal, about 150 bytes each.
    pub tombstones_len_max: usize,
}

#[cfg(test)]
mod tests;
