//! Tombstones: what is remembered of deletions once the journal has forgotten them.

use super::Revision;
use crate::k8s::{Key, ResourceVersion};

/// A deletion, or an object that left a value of an index: remembered longer than the journal remembers it.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) revision: Revision,
    pub(super) position: ResourceVersion,
    pub(super) created: Revision,
    pub(super) key: Key,
    pub(super) uid: Box<str>,
    pub(super) version: ResourceVersion,
    pub(super) reached: ResourceVersion,
}
