//! What the cells of a row depend on beside the object.

use super::time::{Timestamp, ago};
use super::tree::Tree;

/// What the cells of a row depend on beside the object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    pub(super) now: Timestamp,
    pub(super) minor: u32,
}

impl Context {
    /// How old an object is.
    pub(super) fn age(&self, object: &Tree<'_>) -> String {
        ago(Timestamp::at(object, "metadata.creationTimestamp"), self.now)
    }
}
