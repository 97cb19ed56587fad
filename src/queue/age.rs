//! The slots of queued keys by age: a linked list, of which the entries hold the links.

use slab::Slab;

/// The neighbors of an entry in the list; [`NONE`] for no neighbor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    before: u32,
    after: u32,
}

/// What holds links.
pub(super) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// The ends of the list: the oldest and the youngest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ages {
    oldest: u32,
    youngest: u32,
}

/// No slot.
const NONE: u32 = u32::MAX;

impl Default for Links {
    fn default() -> Self {
        Self { before: NONE, after: NONE }
    }
}

impl Default for Ages {
    fn default() -> Self {
        Self { oldest: NONE, youngest: NONE }
    }
}

impl Ages {
    /// The slot of the oldest entry.
    pub(super) fn oldest(self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Adds an entry as the youngest.
    pub(super) fn push<T: Linked>(&mut self, entries: &mut Slab<T>, slot: u32) {
        *entries[slot as usize].links() = Links { before: self.youngest, after: NONE };
        match self.youngest {
            NONE => self.oldest = slot,
            youngest => entries[youngest as usize].links().after = slot,
        }
        self.youngest = slot;
    }

    /// Removes an entry.
    pub(super) fn remove<T: Linked>(&mut self, entries: &mut Slab<T>, slot: u32) {
        let Links { before, after } = std::mem::take(entries[slot as usize].links());
        match before {
            NONE => self.oldest = after,
            before => entries[before as usize].links().after = after,
        }
        match after {
            NONE => self.youngest = before,
            after => entries[after as usize].links().before = before,
        }
    }
}
