//! One line of a watch.

use super::{Object, ResourceVersion, Status};

/// A watch event, `{"type":…,"object":…}` on the wire.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// The object came to be, or began to match the watch's selectors.
    Added(Object),
    /// The object changed.
    Modified(Object),
    /// The object is gone, or stopped matching. Carries the last state at the version of the deletion.
    Deleted(Object),
    /// Everything up to this version has been sent.
    Bookmark {
        /// The version to resume from.
        resource_version: ResourceVersion,
        /// Whether this one ends the initial events of a streaming list.
        initial_events_end: bool,
    },
    /// The server ends this watch with an error.
    Error(Box<Status>),
}
