//! An informer that live views follow. No async, no clock.

use std::sync::Arc;

use super::live_place::{LivePosition, is_beyond, nothing_between};
use super::routes::Routes;
use super::{Informer, Matcher, Resumable};
use crate::cache::Cursor;
use crate::k8s::ResourceVersion;

/// An informer that views follow.
pub(super) struct Lane {
    pub(super) informer: Arc<Informer>,
    pub(super) cursor: Cursor,
    pub(super) position: Resumable,
    pub(super) relists: u64,
    pub(super) routes: Routes,
    pub(super) views: usize,
}

impl Lane {
    /// At the place of its first subscriber, without views.
    pub(super) fn new(source: &LivePosition) -> Self {
        Self {
            informer: source.informer.clone(),
            cursor: source.cursor,
            position: source.position.clone(),
            relists: source.informer.reader.mark().relists,
            routes: Routes::default(),
            views: 0,
        }
    }

    /// Updates its position if only that has moved.
    pub(super) fn refresh(&mut self) {
        let (cursor, position) = self.informer.head();
        if cursor == self.cursor {
            self.position = position;
        }
    }

    /// Whether no change of a selection lies between a subscriber and this place.
    pub(super) fn meets(&self, source: &LivePosition, matcher: &Matcher, ordered: bool) -> bool {
        let reader = &self.informer.reader;
        let may_hold_more =
            |token: &ResourceVersion| self.relists != reader.mark().relists || reader.skipped_since(token);
        if source.holds_beyond.as_ref().is_some_and(may_hold_more) {
            return false;
        }
        let (from, to) = (source.cursor, self.cursor);
        // The position of a stream never goes back. At one cursor, positions that cannot be compared are of one state.
        let is_same = from == to && source.position.partial_cmp(&self.position).is_none();
        if from.revision > to.revision || !is_same && is_beyond(&source.position, &self.position) {
            return false;
        }
        from == to || nothing_between(matcher, reader, from, to, ordered)
    }
}
