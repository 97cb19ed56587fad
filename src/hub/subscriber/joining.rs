//! A stream with a join: its related objects, behind its selected ones.

use tokio::time::Instant;

use super::super::event::{Event, EventKind, ResetReason};
use super::super::join::{JOINED_MAX, JoinError, JoinReader, is_behind, locate};
use super::super::source::BatchBuilder;
use super::super::subscription::StartAt;
use super::super::{CloseReason, Resumable};
use super::{Subscriber, SubscriberState, resetting};
use crate::cache::Located;
use crate::k8s::Status;

impl Subscriber {
    /// Takes the selected objects that the client has, where it continues. Returns whether that is done.
    pub(super) fn rebuild(&mut self, now: Instant, batch: &mut BatchBuilder) -> bool {
        let Some(join) = &mut self.join else { return true };
        match join.rebuild(&mut self.sources) {
            Ok(true) => true,
            Ok(false) => {
                self.unfinished = true;
                false
            }
            Err(error) => {
                self.lose_join(error, now, batch);
                false
            }
        }
    }

    /// Adds the changes of related objects to the events of selected ones.
    pub(super) fn step(&mut self, events: Vec<Event>, now: Instant) -> Vec<Event> {
        let is_located = matches!(self.state, SubscriberState::Resumed | SubscriberState::Live)
            && !self.sources.iter().any(|source| *source.position() == Resumable::No);
        let Some(join) = &mut self.join else { return events };
        if !join.is_begun() && !events.iter().any(|event| event.kind == EventKind::Reset) {
            return events;
        }
        let own: Vec<_> = self.sources.iter().map(|source| source.position().clone()).collect();
        match join.step(events, &own, is_located) {
            Ok(mut events) => {
                self.unfinished |= join.is_unfinished();
                if is_located && JoinReader::wants_bookmark(&events) {
                    let positions = self.positions();
                    self.join.iter_mut().for_each(|join| join.tell(&positions));
                    events.push(self.bookmark(EventKind::Bookmark));
                }
                events
            }
            Err(error) => {
                let mut batch = BatchBuilder::new(self.permit.config());
                self.lose_join(error, now, &mut batch);
                // The first state follows in the next batch.
                self.unfinished = true;
                self.step(batch.events, now)
            }
        }
    }

    fn lose_join(&mut self, error: JoinError, now: Instant, batch: &mut BatchBuilder) {
        if let Some(join) = &mut self.join {
            join.lose();
        }
        match error {
            JoinError::Lost(reason) => self.reset(reason, now, batch),
            JoinError::TooMany => {
                let message = format!(
                    "the selected objects and those that join adds are more than {JOINED_MAX}: expected a narrower selection"
                );
                self.end(CloseReason::TooLarge, Status::failure(413, "RequestEntityTooLarge", message));
            }
        }
    }

    /// Where the stream begins in its own informers, as far as a join says: `None` while a related cache has not reached the token.
    /// All related caches are complete.
    ///
    /// # Errors
    /// The state of a stream that cannot continue from its token.
    pub(super) fn start_join(
        &mut self,
        from: &StartAt,
        waited: bool,
    ) -> Result<Option<StartAt>, SubscriberState> {
        let Some(join) = &mut self.join else { return Ok(Some(from.clone())) };
        let token = match from {
            StartAt::Start | StartAt::Ordered(_) => return Ok(Some(from.clone())),
            StartAt::Now => {
                join.begin(None);
                return Ok(Some(StartAt::Now));
            }
            StartAt::Token(token) | StartAt::Bookmark(token) => token,
        };
        if token.len() != self.sources.len() + join.positions().count() {
            return Err(resetting(ResetReason::TokenOfOthers));
        }
        // A stream that starts over must not take the client back, either.
        let own = self.sources.iter().map(|source| &source.informer);
        if own.chain(join.related_informers()).any(|informer| is_behind(informer, token)) {
            return if waited { Err(resetting(ResetReason::TokenAhead)) } else { Ok(None) };
        }
        // The client may hold related objects from beyond the token. Nothing here knows which, so that those which left since could
        // not be told.
        if let StartAt::Bookmark(_) = from {
            return Err(resetting(ResetReason::TokenTooOld));
        }
        let (mut own, mut located) = (Vec::new(), vec![join.locate(token)]);
        for source in &self.sources {
            let name = source.informer.token_name();
            let Some(position) = token.get(name) else { return Err(resetting(ResetReason::TokenOfOthers)) };
            located.push(locate(&source.informer, position));
            own.push((name, position.clone()));
        }
        if located.contains(&Located::Lost) {
            return Err(resetting(ResetReason::TokenTooOld));
        }
        join.begin(Some(token));
        Ok(Some(StartAt::Token(own.into_iter().collect())))
    }
}
