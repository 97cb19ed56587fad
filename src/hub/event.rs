//! Events: what a subscription yields.

use std::borrow::Cow;

use bytes::Bytes;

use super::Resumable;
use crate::k8s::{Key, Object, ResourceVersion};

/// An event of a subscription.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its informer, as the index in [`Subscription::informers`](super::Subscription::informers).
    pub source: usize,
    /// What it means.
    pub kind: EventKind,
    /// What it is about.
    pub payload: Payload,
    /// Where a client that is cut off after this event resumes in this informer.
    pub position: Resumable,
    /// Whether the client holds events from beyond the position: the event stands amid a batch without an order, and a token
    /// of it is one of [`TokenKind::Bookmark`](super::TokenKind::Bookmark).
    pub is_amid: bool,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Before SYNCED: the object exists. After it: it was created, or began to match.
    Added,
    /// The object changed.
    Modified,
    /// Changed: what differs from the state before.
    Patched,
    /// The object is gone, or stopped matching.
    Deleted,
    /// No change; brings a fresh token.
    Bookmark,
    /// The snapshot is complete.
    Synced,
    /// Forget everything: the snapshot follows.
    Reset,
}

/// The content of an event. Objects are shared by reference.
#[derive(Clone, Debug)]
pub enum Payload {
    /// An object.
    Object(Object),
    /// An object shown at another version than its own.
    ObjectAt(Object, ResourceVersion),
    /// An object that a relist found deleted. It is shown at the list's version; or, to clients that resume from the version
    /// of an event, at the version up to which they had everything before.
    ObjectSince {
        /// Its last state.
        object: Object,
        /// The version at which it was found deleted.
        version: ResourceVersion,
        /// The version up to which nothing was missed.
        since: ResourceVersion,
    },
    /// What makes an object's new state of the one that the client has.
    Patch {
        /// The new state.
        object: Object,
        /// A JSON merge patch (RFC 7386) with what identifies the object.
        patch: Bytes,
    },
    /// An object of which only the identity is still known.
    Identity {
        /// Namespace and name.
        key: Key,
        /// Tells it from other objects of the same key.
        uid: Box<str>,
        /// The version of the deletion.
        version: ResourceVersion,
    },
    /// No object.
    Mark {
        /// Where the client resumes in each informer.
        positions: Vec<Resumable>,
        /// The reason of a RESET.
        reason: Option<ResetReason>,
    },
}

/// Why a subscriber has to start over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// Deletions since the token are no longer known.
    TokenTooOld,
    /// The token is of other resources than the stream.
    TokenOfOthers,
    /// The cache did not reach the token in time, so the cluster probably went back in time.
    TokenAhead,
    /// The subscriber fell behind everything that is remembered.
    Lagged,
    /// The API server's versions went back.
    HistoryLost,
    /// The informer was replaced by another one, and the difference is unknown.
    Replaced,
}

// === impl Payload ===

impl Payload {
    /// Namespace and name of its object.
    pub fn key(&self) -> Option<&Key> {
        if let Self::Identity { key, .. } = self {
            return Some(key);
        }
        self.object().map(|object| object.key())
    }

    /// The key and the uid of its object.
    pub fn identity(&self) -> Option<(&Key, Cow<'_, str>)> {
        if let Self::Identity { key, uid, .. } = self {
            return Some((key, Cow::Borrowed(uid)));
        }
        self.object().map(|object| (object.key(), object.uid()))
    }

    /// Its object, where more than the identity is known.
    pub fn object(&self) -> Option<&Object> {
        match self {
            Self::Object(object)
            | Self::ObjectAt(object, _)
            | Self::ObjectSince { object, .. }
            | Self::Patch { object, .. } => Some(object),
            Self::Identity { .. } | Self::Mark { .. } => None,
        }
    }

    /// Its approximate size in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Object(object) | Self::ObjectAt(object, _) | Self::ObjectSince { object, .. } => {
                object.json_len()
            }
            Self::Patch { patch, .. } => patch.len(),
            Self::Identity { .. } | Self::Mark { .. } => 200,
        }
    }
}

// === impl EventKind ===

impl EventKind {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Patched => "PATCHED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Synced => "SYNCED",
            Self::Reset => "RESET",
        }
    }
}

// === impl ResetReason ===

impl ResetReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::TokenTooOld,
        Self::TokenOfOthers,
        Self::TokenAhead,
        Self::Lagged,
        Self::HistoryLost,
        Self::Replaced,
    ];

    /// The word for the client, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TokenTooOld => "TokenTooOld",
            Self::TokenOfOthers => "TokenOfOtherResources",
            Self::TokenAhead => "TokenAhead",
            Self::Lagged => "Lagged",
            Self::HistoryLost => "HistoryLost",
            Self::Replaced => "Replaced",
        }
    }
}
