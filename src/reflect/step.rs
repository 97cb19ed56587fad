//! The words in which the pump and the machine speak.

use std::time::Duration;

use tokio::time::Instant;

use super::watching::{EndReason, RelistReason, WatchEnd};
use crate::k8s::{Key, ListPage, ResourceVersion, WatchEvent};
use crate::upstream::{FailureKind, PageRequest, Refusal, UpstreamError, WatchRequest};

/// When something happened, with the randomness that may be spent on it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Now.
    pub now: Instant,
    /// In `0.0..1.0`.
    pub entropy: f64,
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A page came.
    Page(ListPage),
    /// A page did not.
    PageFailed(Failure),
    /// The API server told its version, and of what changed last.
    Probed(Probed),
    /// It did not.
    ProbeFailed(Failure),
    /// The watch is open.
    WatchOpened,
    /// The watch was refused, or not answered.
    WatchRefused(Failure),
    /// The watch brought an event.
    Event(WatchEvent),
    /// The watch brought an object in a state that cannot be held: it is too large.
    Unheld(Key, ResourceVersion),
    /// The watch is over.
    WatchEnded(WatchEnd),
    /// The delay is over.
    Woke,
}

/// What the API server is asked before a watch goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Its version, and that of the object which changed last of those held.
    Now,
    /// How that object was at the version that is held.
    Then,
    /// Its version at the version that is held: whether it knows how to tell how something was. For one object servers
    /// of 1.20 do, and yet show the version of now.
    Exactness,
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The version of the answer.
    pub version: ResourceVersion,
    /// Whether it is a cache's, which may be behind, and not the API server's own.
    pub is_cached: bool,
    /// The object asked for; `None` where none is held.
    pub witness: Option<Witness>,
}

/// An object that tells one history from another: no two write the same object at the same version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Which.
    pub key: Key,
    /// Its version here.
    pub held: ResourceVersion,
    /// Its version in the answer; `None` where it is not there.
    pub found: Option<ResourceVersion>,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// What a person should read.
    pub sentence: String,
    /// How long the server wants us to wait.
    pub retry_after: Option<Duration>,
}

/// What to do now. The one before is over.
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
        /// What to ask for.
        request: WatchRequest,
        /// From the request on, after which it is [`WatchEnd::Overdue`].
        deadline: Duration,
    },
    /// Wait; answer with [`Input::Woke`].
    Sleep(Duration),
}

/// The answer to an [`Input`]; what is not a step is for metrics and log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// What to do now; `None` to go on with what is under way.
    pub step: Option<Step>,
    /// A request failed, or an ERROR event came.
    pub failed: Option<FailureKind>,
    /// A watch is over.
    pub ended: Option<EndReason>,
    /// Everything will be listed again.
    pub relist: Option<RelistReason>,
    /// The server takes no streaming list: from now on pages are asked for.
    pub fell_back: bool,
    /// A list was not taken, as it was older than what was seen.
    pub older: bool,
}

// === impl Failure ===

impl From<&UpstreamError> for Failure {
    fn from(error: &UpstreamError) -> Self {
        Self { kind: error.kind(), sentence: error.sentence(), retry_after: error.retry_after() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::from(&UpstreamError::Refused(Box::new(refusal)))
    }
}

// === impl Reaction ===

impl Reaction {
    pub(super) fn step(step: Step) -> Self {
        Self { step: Some(step), ..Self::default() }
    }
}
