//! An informer that live views follow. No async, no clock.

use std::sync::Arc;

use super::live_place::LivePosition;
use super::routes::Routes;
use super::{Informer, Resumable};
use crate::cache::Cursor;

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
}
