//! Cursors: places in a cache's history.

/// Our own dense counter per cache: one more for each change. 0 is the state of the first list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A reader's place: it has taken everything up to `revision` of `history`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Counts how often the API server's versions went back. Cursors of another history are [`Lost`].
    pub history: u64,
    /// The last revision taken.
    pub revision: Revision,
}

/// Where a client's resourceVersion lies in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// Known: continue after this cursor.
    At(Cursor),
    /// The cache has not reached it yet.
    Ahead,
    /// Deletions since are no longer known: start over.
    Lost,
}

/// The deletions since a cursor are no longer known: the reader must start over with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("deletions since the cursor are no longer known")]
pub struct Lost;
