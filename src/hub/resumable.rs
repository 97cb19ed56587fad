//! Where a client that is cut off can resume.

use std::fmt;

use crate::k8s::ResourceVersion;

/// Where a client that is cut off now can resume in one informer. Tokens and bookmarks consist of these.
///
/// [`Resumable::No`] is less than every [`Resumable::At`]. Two of the latter compare as their versions do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd)]
pub enum Resumable {
    /// Nowhere. The client has a part of a first state, of a catch-up, or of what a relist found. These events are not in
    /// commit order. Another replica that is not as far would not send the changes in between, nor deletions of objects
    /// that stopped matching. So a client that returns from here gets RESET and a new first state. A token has `:0` for it,
    /// which is the version of no object.
    No,
    /// After this version, which is not [`ResourceVersion::ZERO`]. The client has everything up to it.
    At(ResourceVersion),
}

/// The version that stands for [`Resumable::No`] in tokens and bookmarks.
static NO: ResourceVersion = ResourceVersion::ZERO;

impl Resumable {
    /// The version after which the client can resume, if it can.
    pub fn version(&self) -> Option<&ResourceVersion> {
        match self {
            Self::No => None,
            Self::At(version) => Some(version),
        }
    }

    /// The version that stands for it in tokens and bookmarks.
    pub fn written(&self) -> &ResourceVersion {
        match self {
            Self::No => &NO,
            Self::At(version) => version,
        }
    }
}

impl From<ResourceVersion> for Resumable {
    /// A version as a token or a cache has it. A cache has version 0 until its first list is complete.
    fn from(version: ResourceVersion) -> Self {
        if version.is_zero() { Self::No } else { Self::At(version) }
    }
}

impl fmt::Display for Resumable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_0_is_no_place_to_resume_from() {
        assert_eq!(Resumable::from(ResourceVersion::ZERO), Resumable::No);
        assert_eq!(Resumable::No.to_string(), "0");
        let at = |text: &str| Resumable::from(ResourceVersion::new(text));
        assert_eq!(at("7"), Resumable::At(7.into()));
        assert_eq!(at("7").to_string(), "7");
        assert!(Resumable::No < at("7") && at("7") < at("12") && Resumable::No < at("opaque"));
        assert_eq!(at("7").partial_cmp(&at("opaque")), None);
    }
}
