//! What a subscription yields.

use std::sync::Arc;

use bytes::Bytes;

use crate::k8s::{Key, Object, ResourceVersion};

/// What a subscription yields.
#[derive(Clone, Debug)]
pub struct Event {
    /// The informer it is of, by its place in [`Subscription::informers`](super::Subscription::informers).
    pub source: usize,
    /// What it means.
    pub kind: EventKind,
    /// What it is about.
    pub payload: Payload,
    /// The version of this informer up to which the client has everything once it took this event; zero
    /// while its snapshot is under way, and while it catches up or is told what a relist found, so that whoever is cut
    /// off there starts over.
    pub position: ResourceVersion,
    /// Whether the client holds events from beyond the position: the event stands amid a batch without an order, and a token
    /// of it is one of [`TokenKind::Bookmark`](super::TokenKind::Bookmark).
    pub is_amid: bool,
}

/// What an event means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Before SYNCED: is there. After it: came to be, or began to match.
    Added,
    /// Changed.
    Modified,
    /// Changed: what differs from the state before.
    Patched,
    /// Is gone, or stopped matching.
    Deleted,
    /// The token is fresh.
    Bookmark,
    /// The snapshot is complete.
    Synced,
    /// Forget everything: the snapshot follows.
    Reset,
}

/// What an event is about. Objects by reference.
#[derive(Clone, Debug)]
pub enum Payload {
    /// An object.
    Object(Arc<Object>),
    /// An object shown at another version than its own.
    ObjectAt(Arc<Object>, ResourceVersion),
    /// An object that a relist found gone: shown at the list's version, or, to whoever takes each event's version for
    /// the place to resume from, at the version up to which it had everything before.
    ObjectSince {
        /// Its last state.
        object: Arc<Object>,
        /// At which it was known to be gone.
        version: ResourceVersion,
        /// Up to which nothing was missed.
        since: ResourceVersion,
    },
    /// What makes an object's new state of the one that the client has.
    Patch {
        /// The new state.
        object: Arc<Object>,
        /// A JSON merge patch (RFC 7386) with what identifies the object.
        patch: Bytes,
    },
    /// An object of which only the identity is still known.
    Identity {
        /// Namespace and name.
        key: Key,
        /// Which object of that name.
        uid: Box<str>,
        /// The version of the deletion.
        version: ResourceVersion,
    },
    /// No object.
    Mark {
        /// Each informer's version up to which the client has everything.
        positions: Vec<ResourceVersion>,
        /// For a RESET, why.
        reason: Option<ResetReason>,
    },
}

/// Why a subscriber starts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// Deletions since the token are no longer known.
    TokenTooOld,
    /// The token is of other resources than the stream.
    TokenOfOthers,
    /// The cache did not reach the token within the bound: the cluster went back in time.
    TokenAhead,
    /// The subscriber fell behind everything that is remembered.
    Lagged,
    /// The API server's versions went back.
    HistoryLost,
    /// Another informer took the place of this one, and the difference cannot be told.
    Replaced,
}

// === impl Payload ===

impl Payload {
    /// Namespace and name of what it is about.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Object(object) | Self::ObjectAt(object, _) | Self::ObjectSince { object, .. } => {
                Some(object.key())
            }
            Self::Patch { object, .. } => Some(object.key()),
            Self::Identity { key, .. } => Some(key),
            Self::Mark { .. } => None,
        }
    }

    /// Bytes it will take, about.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Object(object) | Self::ObjectAt(object, _) | Self::ObjectSince { object, .. } => {
                object.json().len()
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
