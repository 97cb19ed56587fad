//! The limit of one evaluation, in time and in memory.

use std::time::Duration;

use super::pattern::Pattern;

/// Largest work of one evaluation, in units of some five nanoseconds: two milliseconds. Values that are made take more of it than their
/// time, so that all of them together have a few megabytes.
const WORK_MAX: usize = 400_000;
/// Time of a unit.
const UNIT: Duration = Duration::from_nanos(5);
/// Units for an expression, and for an element that is made. A comparison or a look at an element takes one unit.
pub(super) const EXPRESSION: usize = 8;
/// Bytes of text that are read in the time of one unit.
const READ_AT_ONCE: usize = 32;
/// Bytes of text that are made in the time of one unit.
const MADE_AT_ONCE: usize = 8;

/// Why an evaluation gives no value.
#[derive(Debug, PartialEq)]
pub(super) enum Stop {
    /// The object lacks a member or an element that the expression reads.
    Missing,
    /// A function does not take arguments of these types. The caller tries the next function of the name.
    NoOverload,
    /// Another failure. `&&` and `||` ignore it if their other side decides, as with the two above.
    Failed(String),
    /// The work has reached its limit. This ends the whole evaluation.
    Spent,
}

/// The time that work takes.
pub(super) fn time_of(work: usize) -> Duration {
    UNIT * u32::try_from(work).unwrap_or(u32::MAX)
}

/// Counts the work of one evaluation. Whatever loops, copies or grows spends from it first.
#[derive(Debug)]
pub(super) struct Meter {
    left: usize,
}

impl Meter {
    /// A meter at which nothing is spent.
    pub(super) fn new() -> Self {
        Self { left: WORK_MAX }
    }

    /// What was spent.
    pub(super) fn spent(&self) -> usize {
        WORK_MAX - self.left
    }

    /// Counts work.
    ///
    /// # Errors
    /// [`Stop::Spent`] if that is more than is left.
    pub(super) fn spend(&mut self, units: usize) -> Result<(), Stop> {
        match self.left.checked_sub(units) {
            Some(left) => self.left = left,
            None => return Err(Stop::Spent),
        }
        Ok(())
    }

    /// Counts the reading of so many bytes of text.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn read(&mut self, bytes: usize) -> Result<(), Stop> {
        self.spend(1 + bytes / READ_AT_ONCE)
    }

    /// Counts a search for a pattern in so many bytes of text.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn search(&mut self, bytes: usize, pattern: &Pattern) -> Result<(), Stop> {
        self.spend(pattern.work(bytes))
    }

    /// Counts a new text of so many bytes. Before it is made, so that no text is larger than the limit allows.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn make_text(&mut self, bytes: usize) -> Result<(), Stop> {
        self.spend(1 + bytes / MADE_AT_ONCE)
    }

    /// Counts so many elements of a new list or map, before they are made.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn make_elements(&mut self, count: usize) -> Result<(), Stop> {
        self.spend(count.saturating_mul(EXPRESSION))
    }
}
