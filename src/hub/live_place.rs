//! Who joins a live view, from where, and what its members are sent. No async, no clock.

use std::cmp::Ordering;
use std::sync::Arc;

use tokio::time::Instant;

use super::event::Event;
use super::project::{loses_order, project_change};
use super::shared_batch::SharedBatch;
use super::{Informer, Matcher, Resumable, Selection};
use crate::cache::{Cursor, Reader};
use crate::k8s::ResourceVersion;

/// Largest number of changes between a subscriber and a lane that are checked when it joins. With more, the subscriber
/// catches up by itself first.
const JOIN_CHANGES_MAX: usize = 256;

/// The position of a caught-up subscriber in one informer.
#[derive(Clone, Debug)]
pub struct LivePosition {
    /// The informer.
    pub informer: Arc<Informer>,
    /// The cursor in its cache.
    pub cursor: Cursor,
    /// Where the client resumes if it is cut off.
    pub position: Resumable,
    /// The token with which the client resumed, if the client may hold events from beyond it.
    pub holds_beyond: Option<ResourceVersion>,
}

impl LivePosition {
    /// What the client may hold beyond its tokens, for each source; empty if that is nothing.
    pub(super) fn all_holds_beyond(sources: &[Self]) -> Box<[Option<ResourceVersion>]> {
        let is_some = sources.iter().any(|source| source.holds_beyond.is_some());
        sources.iter().filter(|_| is_some).map(|source| source.holds_beyond.clone()).collect()
    }
}

/// A subscriber that is ready to join a view.
#[derive(Clone, Debug)]
pub struct LivePlace {
    /// The position in each informer, in the order of the subscription.
    pub sources: Vec<LivePosition>,
    /// Its selection.
    pub selection: Arc<Selection>,
    /// Whether it must get every change in order, or end.
    pub ordered: bool,
    /// When it has to leave the view, at the latest.
    pub leave_at: Option<Instant>,
    /// When its next heartbeat is due.
    pub heartbeat_at: Instant,
    /// When its next bookmark is due.
    pub bookmark_at: Instant,
    /// Until when changes are gathered, where the selection says so.
    pub gather_until: Instant,
}

/// A member of a view: the receiver of its events.
pub trait Member {
    /// Members with the same kind get the same bytes.
    type Kind: Copy + Eq;
    /// The encoder of a kind, with its state between batches.
    type Encoder;

    /// Its kind.
    fn kind(&self) -> Self::Kind;

    /// Makes an encoder for its kind.
    fn encoder(&self, informers: &[Arc<Informer>]) -> Self::Encoder;

    /// Sets the positions of an encoder, one for each informer, for the tokens.
    fn advance(encoder: &mut Self::Encoder, positions: &[Resumable]);

    /// It joins the members that are sent the bytes of this encoder.
    fn joins(&mut self, encoder: &Self::Encoder) {
        let _ = encoder;
    }

    /// It leaves them.
    fn leaves(&mut self, encoder: &Self::Encoder) {
        let _ = encoder;
    }
}

/// What to send to the members of a view.
#[derive(Debug)]
pub enum Told {
    /// Events of this view alone; at least one.
    Events(Vec<Event>),
    /// A batch that views of everything on other cores, and other transports, send, too.
    Shared(Arc<SharedBatch>),
    /// A heartbeat, as there was no event for a while.
    Heartbeat,
}

/// The result of a look at an informer or at the timers.
#[derive(Debug, Default)]
pub struct Round {
    /// What to send to which views.
    pub told: Vec<(usize, Told)>,
    /// Keys of members that the view cannot serve any longer. To be taken out before anything is sent.
    pub leaving: Vec<usize>,
    /// Whether more changes are waiting.
    pub more: bool,
    /// Whether another reader has made the next batch already. It gets no more changes by waiting.
    pub is_behind: bool,
}

/// Members of a view that get the same bytes.
pub struct Group<M: Member> {
    pub(super) kind: M::Kind,
    pub(super) ordered: bool,
    /// Their encoder.
    pub encoder: M::Encoder,
    /// Their keys.
    pub members: Vec<usize>,
}

impl<M: Member> Group<M> {
    /// The kind of its members.
    pub fn kind(&self) -> M::Kind {
        self.kind
    }
}

/// Whether a position is beyond another one, or cannot be compared with it.
pub(super) fn is_beyond(position: &Resumable, other: &Resumable) -> bool {
    position.partial_cmp(other).is_none_or(Ordering::is_gt)
}

/// Whether no change between two cursors concerns a selection.
pub(super) fn nothing_between(
    matcher: &Matcher,
    reader: &Reader,
    from: Cursor,
    to: Cursor,
    ordered: bool,
) -> bool {
    let by_index = matcher.index().filter(|_| !ordered);
    let batch = match by_index.and_then(|index| index.changes_after(from, JOIN_CHANGES_MAX)) {
        Some(batch) => Some(batch),
        None => reader.changes_after(from, JOIN_CHANGES_MAX),
    };
    let Some(batch) = batch.filter(|batch| batch.cursor.revision >= to.revision) else { return false };
    let mut between = batch.changes.iter().take_while(|change| change.revision <= to.revision);
    let breaks = |change: &crate::cache::Change| ordered && loses_order(matcher.selection(), change);
    !between.any(|change| breaks(change) || project_change(matcher, change).is_some())
}
