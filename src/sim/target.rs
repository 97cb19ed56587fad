//! What a request is about.

use super::kinds::Kind;

/// A path below a group version, resolved to a served kind.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) version: String,
    /// Empty for cluster-wide collections and cluster-scoped objects.
    pub(super) namespace: String,
    /// Empty for collections.
    pub(super) name: String,
    /// Empty for the object itself.
    pub(super) subresource: String,
    /// The deprecated `/watch/` form of the path.
    pub(super) watch: bool,
}

impl Target {
    pub(super) fn resource(&self) -> String {
        self.kind.resource()
    }
}
