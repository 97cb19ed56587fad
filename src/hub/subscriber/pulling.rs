//! What a stream is given next: shared batches, first states, changes, and what a replaced informer brings.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::event::{Event, EventKind, Payload, ResetReason};
use super::super::metrics::Metrics;
use super::super::shared_batch::SharedBatch;
use super::super::source::{BatchBuilder, Pulled, Source, Succession};
use super::super::{CloseReason, Informer, Resumable};
use super::{Subscriber, SubscriberState, resetting};
use crate::k8s::Status;

impl Subscriber {
    /// Pulls the next shared batches, for a subscriber that is live and selects everything of one informer.
    pub(super) fn pull_shared(&mut self, now: Instant) -> Vec<Arc<SharedBatch>> {
        let mut batches = Vec::new();
        // A due bookmark is sent after events of its own.
        let shares = self.can_share() && now < self.bookmark_at;
        let [source] = &mut *self.sources else { return batches };
        let mut bytes = 0;
        // Batches that were made for earlier subscribers may be small; they are sent together.
        while shares
            && bytes < self.permit.config().batch_bytes_max
            && let Some(batch) = source.pull_shared(self.permit.config())
        {
            bytes += batch.bytes();
            batches.push(batch);
        }
        if shares {
            self.caught_up = source.is_at_head();
        }
        batches
    }

    pub(super) fn pull(&mut self, now: Instant) -> Vec<Event> {
        let events = self.pull_selected(now);
        if self.replaced().is_some() {
            // The transport hears of the replacement first. Changes of related objects are taken with the next events.
            return events;
        }
        self.step(events, now)
    }

    /// Pulls the next events of selected objects.
    fn pull_selected(&mut self, now: Instant) -> Vec<Event> {
        (self.caught_up, self.unfinished) = (false, false);
        let mut batch = BatchBuilder::new(self.permit.config());
        if matches!(self.state, SubscriberState::Starting { .. }) {
            self.succeed_idle();
        }
        if self.replaced().is_some() {
            return batch.events;
        }
        self.start(now);
        if let SubscriberState::Resetting { reason, .. } = self.state {
            self.reset(reason, now, &mut batch);
        }
        if matches!(self.state, SubscriberState::Snapshot) {
            match self.pull_snapshots(now, &mut batch) {
                Some(true) => {}
                Some(false) => {
                    self.unfinished = true;
                    return batch.events;
                }
                None => return batch.events,
            }
            let synced = self.bookmark(EventKind::Synced);
            batch.push(synced);
            self.state = SubscriberState::Live;
            self.set_resync(now);
        }
        if matches!(self.state, SubscriberState::Resumed | SubscriberState::Live)
            && self.rebuild(now, &mut batch)
        {
            if std::mem::take(&mut self.voids_token) {
                // A client that keeps the token of its last bookmark would take it to a replica that still has the old content, and
                // keep there what the difference has changed. From this bookmark it starts over; one follows the difference.
                batch.push(self.bookmark(EventKind::Bookmark));
                self.bookmark_at = now;
            }
            self.pull_live(now, &mut batch);
        }
        batch.events
    }

    /// Ends the stream with an error.
    pub(super) fn end(&mut self, reason: CloseReason, status: Status) {
        self.refusal = Some(Box::new(status));
        self.state = SubscriberState::Ended(reason);
    }

    /// Starts over, once no cache is behind the client, or the time to wait for that is over.
    pub(super) fn reset(&mut self, mut reason: ResetReason, now: Instant, batch: &mut BatchBuilder) {
        if reason != ResetReason::TokenAhead && self.sources.iter().any(Source::is_ahead) {
            let held = if let SubscriberState::Resetting { until, .. } = self.state { until } else { None };
            let until = held.unwrap_or(now + self.permit.config().resume_wait);
            if now < until {
                self.state = SubscriberState::Resetting { reason, until: Some(until) };
                return;
            }
            reason = ResetReason::TokenAhead;
        }
        Metrics::reset(reason);
        self.sources.iter_mut().for_each(|source| source.begin_snapshot(now));
        batch.push(Event {
            source: 0,
            kind: EventKind::Reset,
            payload: Payload::Mark { positions: self.positions(), reason: Some(reason) },
            position: Resumable::No,
            is_amid: false,
        });
        self.state = SubscriberState::Snapshot;
        if let Some(resync) = &mut self.resync {
            resync.at = None;
        }
    }

    /// Whether all first states are sent; `None` if one was lost, so that the stream starts over or ends.
    fn pull_snapshots(&mut self, now: Instant, batch: &mut BatchBuilder) -> Option<bool> {
        for (index, source) in self.sources.iter_mut().enumerate() {
            match source.pull_snapshot(index, batch) {
                Ok(Pulled::Done) => {}
                Ok(Pulled::More) => return Some(false),
                Err(reason) => {
                    self.lose(reason, now, batch);
                    return None;
                }
            }
        }
        Some(true)
    }

    /// Starts over, or ends if the client must get every change in order.
    fn lose(&mut self, reason: ResetReason, now: Instant, batch: &mut BatchBuilder) {
        if self.ordered {
            self.end(CloseReason::Expired, Status::watch_expired());
        } else {
            self.reset(reason, now, batch);
        }
    }

    fn pull_live(&mut self, now: Instant, batch: &mut BatchBuilder) {
        if self.resync_at().is_some_and(|at| now >= at) {
            self.sources.iter_mut().for_each(Source::ask_resync);
            self.set_resync(now);
        }
        let count = self.sources.len();
        for offset in 0..count {
            let index = (self.turn as usize + offset) % count;
            let source = &mut self.sources[index];
            let behind = source.is_catching_up();
            source.begin_resync(now);
            let mut pulled = source.pull_snapshot(index, batch);
            if matches!(pulled, Ok(Pulled::More)) {
                self.unfinished = true;
                return;
            }
            if pulled.is_ok() {
                pulled = source.pull_changes(index, batch);
            }
            if source.is_resync_due() && matches!(pulled, Ok(Pulled::Done)) {
                // The client has caught up now.
                source.begin_resync(now);
                pulled = source.pull_snapshot(index, batch);
            }
            if !behind && source.is_catching_up() {
                self.permit.metrics().catch_ups.increment(1);
            }
            match pulled {
                Ok(Pulled::Done) => {
                    if let Some(successor) = self.sources[index].successor() {
                        // Only after the pulled events, which are of the old informer; then it comes first.
                        self.turn = index as u32;
                        if batch.events.is_empty() {
                            self.succeed(index, &successor);
                        }
                        return;
                    }
                }
                Ok(Pulled::More) => {
                    self.unfinished = true;
                    // The next source comes first, so that a busy one does not starve the others.
                    self.turn = ((index + 1) % count) as u32;
                    return;
                }
                Err(reason) => {
                    self.lose(reason, now, batch);
                    return;
                }
            }
        }
        self.caught_up = true;
        if matches!(self.state, SubscriberState::Resumed) {
            self.state = SubscriberState::Live;
            self.set_resync(now);
            let bookmark = self.bookmark(EventKind::Bookmark);
            batch.push(bookmark);
        }
    }

    /// Continues with replacing informers before anything was sent.
    fn succeed_idle(&mut self) {
        for index in 0..self.sources.len() {
            if let Some(successor) = self.sources[index].successor() {
                self.succeed(index, &successor);
            }
        }
    }

    fn succeed(&mut self, index: usize, successor: &Arc<Informer>) {
        let begun = !matches!(self.state, SubscriberState::Starting { .. });
        let before = self.histories();
        match self.sources[index].succeed(successor, &self.wake) {
            Succession::NotYet => return,
            // The difference has no order.
            Succession::Difference | Succession::DifferenceOfContent | Succession::StartOver
                if self.ordered && begun =>
            {
                self.end(CloseReason::Expired, Status::watch_expired());
            }
            Succession::Difference => {}
            // A related object has no part in it: a stream with a join does not resume from a bookmark's token.
            Succession::DifferenceOfContent if self.join.is_some() => {}
            Succession::DifferenceOfContent if matches!(self.state, SubscriberState::Live) => {
                self.voids_token = true;
            }
            // Before its first bookmark the client has no state that a bookmark could confirm.
            Succession::DifferenceOfContent => self.state = resetting(ResetReason::Replaced),
            Succession::StartOver => self.state = resetting(ResetReason::Replaced),
        }
        let after = self.histories();
        if let SubscriberState::Starting { histories, .. } = &mut self.state {
            // The successor counts for itself.
            *histories = histories.wrapping_sub(before).wrapping_add(after);
        }
        self.permit.moved(index, successor);
        self.sources[index].is_replaced = true;
        let misses = |namespace: &String| !successor.spec.scope.covers(namespace);
        if self.selection.namespaces().iter().any(misses) {
            self.state = SubscriberState::Ended(CloseReason::Removed);
        }
    }
}
