//! One live view: a selection of some informers, with its members. No async, no clock.

use std::sync::Arc;

use tokio::time::Instant;

use super::event::Event;
use super::gathering::Gathering;
use super::live_place::{Group, Member};
use super::project::position_after;
use super::routes::Route;
use super::{Matcher, Resumable, Selection};
use crate::cache::{Change, Cursor};

/// A selection of some informers, with its members.
pub(super) struct View<M: Member> {
    pub(super) selection: Arc<Selection>,
    /// Lanes in the order of the subscription, each with its matcher and route.
    pub(super) sources: Vec<(usize, Matcher, Route)>,
    pub(super) groups: Vec<Group<M>>,
    pub(super) members: usize,
    pub(super) heartbeat_at: Instant,
    pub(super) bookmark_at: Instant,
    pub(super) armed: Instant,
    /// The last change that was projected for it.
    pub(super) seen: (usize, u64),
    pub(super) pending: Vec<Event>,
    pub(super) gathering: Option<Gathering>,
    /// Where it stopped to look at changes, as its condition turned out to be costly. Its members leave from there.
    pub(super) stopped: Option<Box<StoppedAt>>,
}

/// A place before that of a lane.
pub(super) struct StoppedAt {
    source: usize,
    cursor: Cursor,
    position: Resumable,
}

impl<M: Member> View<M> {
    /// Whether it selects everything of one informer, so that its batches are shared.
    pub(super) fn is_everything(&self) -> bool {
        self.sources.len() == 1 && self.selection.is_all()
    }

    /// When it tells the changes that it holds, if any.
    pub(super) fn tells_at(&self) -> Option<Instant> {
        self.gathering.as_ref().and_then(Gathering::tells_at)
    }

    /// When something is due for its members.
    pub(super) fn due_at(&self) -> Instant {
        let at = self.heartbeat_at.min(self.bookmark_at);
        self.tells_at().map_or(at, |tells_at| at.min(tells_at))
    }

    /// Stops after a change of a source if its condition has turned out to be costly: the other views do not wait until it is evaluated for the
    /// rest of the batch, whose changes are after `cursor`. Returns whether it stops.
    pub(super) fn stops_after(&mut self, source: usize, change: &Change, cursor: Cursor) -> bool {
        if !self.selection.is_costly() {
            return false;
        }
        let cursor = Cursor { revision: change.revision, ..cursor };
        self.stopped = Some(Box::new(StoppedAt { source, cursor, position: position_after(change) }));
        true
    }

    /// Where it stopped in a source.
    pub(super) fn stopped_at(&self, source: usize) -> Option<(Cursor, Resumable)> {
        let at = self.stopped.as_ref().filter(|stopped| stopped.source == source)?;
        Some((at.cursor, at.position.clone()))
    }
}
