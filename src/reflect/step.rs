//! The messages between the pump and the machine.

use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;
use super::watching::{EndReason, RelistReason, WatchEnd};
use crate::k8s::{Key, ListPage, ResourceVersion, WatchEvent};
use crate::upstream::{FailureKind, PageRequest, WatchRequest};

/// The time of an input, and a random number for the machine's decision.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Now.
    pub now: Instant,
    /// In `0.0..1.0`.
    pub entropy: f64,
}

/// An outcome of a step, or an event of the open watch.
#[derive(Debug)]
pub enum Input {
    /// A page of a list arrived.
    Page(ListPage),
    /// The request for a page failed.
    PageFailed(Failure),
    /// A probe was answered.
    Probed(Probed),
    /// A probe failed.
    ProbeFailed(Failure),
    /// The watch is open.
    WatchOpened {
        /// Whether pings find out if its connection is dead. Then a silence says nothing about the connection.
        is_pinged: bool,
    },
    /// The watch was refused, or not answered.
    WatchRefused(Failure),
    /// The watch brought an event.
    Event(WatchEvent),
    /// The watch brought an object that is too large to be held.
    Unheld(Key, ResourceVersion),
    /// The watch is over.
    WatchEnded(WatchEnd),
    /// The delay is over.
    Woke,
}

/// What a probe asks the API server for before a watch resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Its current version, and that of the object that changed last in the cache.
    Now,
    /// The state of that object at the version that the cache holds.
    Then,
    /// The list's version in an answer for exactly the version that the cache holds: shows whether the server supports such
    /// requests. For a single object servers of 1.20 do, but answer with the current version.
    Exactness,
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The version of the answer.
    pub version: ResourceVersion,
    /// Whether a cache answered, which may be behind, and not the API server itself.
    pub is_cached: bool,
    /// The sample object; `None` if the cache is empty.
    pub sample: Option<SampleObject>,
}

/// The object of a probe. It tells one history from another: two histories hardly have the same object at the same
/// version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleObject {
    /// Namespace and name.
    pub key: Key,
    /// Its version in the cache.
    pub held: ResourceVersion,
    /// Its version in the answer; `None` if the answer lacks it.
    pub found: Option<ResourceVersion>,
}

/// What the pump does next. The step before is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask for a page; answer with [`Input::Page`] or [`Input::PageFailed`].
    List(PageRequest),
    /// Ask whether the API server's history is that of the cache; answer with [`Input::Probed`] or
    /// [`Input::ProbeFailed`].
    Probe(Question),
    /// Open a watch; answer with [`Input::WatchOpened`] or [`Input::WatchRefused`], and when open with events
    /// until [`Input::WatchEnded`].
    Watch {
        /// The request.
        request: WatchRequest,
        /// Time from the request on after which the watch ends as [`WatchEnd::Overdue`].
        deadline: Duration,
    },
    /// Wait; answer with [`Input::Woke`].
    Sleep(Duration),
}

/// The answer to an [`Input`]. All but the step is for metrics and log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// The next step; `None` if the current one continues.
    pub step: Option<Step>,
    /// A request failed, or an ERROR event came.
    pub failed: Option<FailureKind>,
    /// A watch is over.
    pub ended: Option<EndReason>,
    /// Everything will be listed again.
    pub relist: Option<RelistReason>,
    /// The server does not support streaming lists: from now on lists are requested in pages.
    pub fell_back: bool,
    /// A list was discarded, as it was older than the version seen.
    pub older: bool,
}

// === impl Reaction ===

impl Reaction {
    pub(super) fn step(step: Step) -> Self {
        Self { step: Some(step), ..Self::default() }
    }
}
