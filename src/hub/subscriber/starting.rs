//! The start of a stream: at once, or when its caches have reached its token.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::event::ResetReason;
use super::super::source::Source;
use super::super::subscription::{Begin, StartAt, VERSION_WAIT};
use super::super::token::TokenKind;
use super::super::{CloseReason, Resumable, ResumeToken};
use super::{Subscriber, SubscriberState, resetting};
use crate::cache::{Backfill, BackfillAnswer, Cursor, Located};
use crate::k8s::Status;

/// How a source continues from a token.
enum Resume {
    At(Cursor),
    /// At a version that the cache has not reached.
    Ahead,
    Backfill(Arc<Backfill>),
}

impl Subscriber {
    /// Starts, once every cache is complete and the token can be followed.
    pub(super) fn start(&mut self, now: Instant) {
        let SubscriberState::Starting { from, until, histories } = &self.state else { return };
        // The time to wait for a token begins once all caches are complete; until then only their commits wake it.
        let is_joined = self.join.as_ref().is_none_or(|join| join.synced());
        if !self.sources.iter().all(Source::synced) || !is_joined {
            return;
        }
        let (from, waited) = (StartAt::clone(from), until.is_some_and(|until| now >= until));
        if *histories != self.histories() && self.refuse_of_before(&from) {
            return;
        }
        let from = match self.start_join(&from, waited) {
            Ok(Some(from)) => from,
            Ok(None) => {
                if let SubscriberState::Starting { until, .. } = &mut self.state {
                    until.get_or_insert(now + self.permit.config().resume_wait);
                }
                return;
            }
            Err(next) => {
                self.state = next;
                return;
            }
        };
        let SubscriberState::Starting { until, .. } = &mut self.state else { return };
        let (token, token_kind) = match from {
            StartAt::Start => {
                if let Some(join) = &mut self.join {
                    join.clear();
                }
                self.sources.iter_mut().for_each(|source| source.begin_snapshot(now));
                self.state = SubscriberState::Snapshot;
                return;
            }
            StartAt::Now => {
                self.sources.iter_mut().for_each(Source::begin_now);
                self.state = SubscriberState::Resumed;
                return;
            }
            StartAt::Token(token) => (token, TokenKind::PerEvent),
            StartAt::Bookmark(token) => (token, TokenKind::Bookmark),
            StartAt::Ordered(begin) => return self.start_ordered(&begin, now),
        };
        let until = *until.get_or_insert(now + self.permit.config().resume_wait);
        if let Some(next) = self.resume(&token, token_kind, now >= until) {
            self.state = next;
        }
    }

    /// Refuses a version that the client brought before the versions of an informer went back. The informer may have reached it again,
    /// with other objects. Returns whether `from` has one.
    fn refuse_of_before(&mut self, from: &StartAt) -> bool {
        match from {
            StartAt::Token(_) | StartAt::Bookmark(_) => self.state = resetting(ResetReason::HistoryLost),
            StartAt::Ordered(Begin::After(version)) => {
                let since = self.sources[0].informer.reader.complete_since();
                self.end(CloseReason::Expired, Status::watch_too_old(version, &since));
            }
            StartAt::Start
            | StartAt::Now
            | StartAt::Ordered(Begin::Start | Begin::Now | Begin::NotOlder(_)) => {
                return false;
            }
        }
        true
    }

    /// Starts as the API server's own watch does, or ends, or waits for the cache.
    fn start_ordered(&mut self, begin: &Begin, now: Instant) {
        let SubscriberState::Starting { until, .. } = &mut self.state else { return };
        let [source] = &mut *self.sources else { return };
        let reader = &source.informer.reader;
        match begin {
            Begin::Start => {
                source.begin_snapshot(now);
                self.state = SubscriberState::Snapshot;
            }
            Begin::Now => {
                source.begin_now();
                self.state = SubscriberState::Live;
            }
            Begin::NotOlder(version) if source.is_not_older(version) => {
                source.begin_snapshot(now);
                self.state = SubscriberState::Snapshot;
            }
            Begin::NotOlder(version) => {
                if now >= *until.get_or_insert(now + VERSION_WAIT) {
                    let reached = reader.summary().position.to_string();
                    let status = Status::too_large_version(&version.to_string(), &reached);
                    self.end(CloseReason::TooLarge, status);
                }
            }
            Begin::After(version) => match source.locate_in_journal(version) {
                Located::At(cursor) => {
                    source.begin_at(cursor, TokenKind::PerEvent, version.clone());
                    self.state = SubscriberState::Live;
                }
                Located::Ahead if source.request_version(version) => {
                    source.begin_ahead(TokenKind::PerEvent, version.clone());
                    self.state = SubscriberState::Live;
                }
                // The API server itself would be silent until it reaches the version, even if its versions went back.
                Located::Ahead if now < *until.get_or_insert(now + self.permit.config().resume_wait) => {}
                Located::Ahead | Located::Lost => {
                    let status = Status::watch_too_old(version, &reader.complete_since());
                    self.end(CloseReason::Expired, status);
                }
            },
        }
    }

    /// The state with which the stream continues from a token; `None` to wait for the caches.
    fn resume(
        &mut self,
        token: &ResumeToken,
        token_kind: TokenKind,
        waited: bool,
    ) -> Option<SubscriberState> {
        let mut places = Vec::new();
        let (mut ahead, mut asked, mut lost, mut of_others) = (false, false, false, false);
        if token.len() != self.sources.len() {
            return Some(resetting(ResetReason::TokenOfOthers));
        }
        for source in &self.sources {
            let name = source.informer.token_name();
            let Some(position) = token.get(name) else {
                of_others = true;
                let version = token.get_of_other_content(name).and_then(Resumable::version);
                ahead |= version.is_some_and(|version| source.is_behind(version));
                places.push(None);
                continue;
            };
            let Resumable::At(version) = position else {
                lost = true;
                places.push(None);
                continue;
            };
            // The token is of an informer before this one, which was further.
            ahead |= source.is_of_another_selection(version) && source.is_behind(version);
            let place = match source.locate(token_kind, version) {
                Located::At(cursor) => Some(Resume::At(cursor)),
                Located::Lost => match source.request_backfill(token_kind, version) {
                    BackfillAnswer::Known(backfill) => Some(Resume::Backfill(backfill)),
                    BackfillAnswer::Requested => {
                        asked = true;
                        None
                    }
                    BackfillAnswer::Unknown => {
                        lost = true;
                        None
                    }
                },
                Located::Ahead if source.request_version(version) => Some(Resume::Ahead),
                Located::Ahead => {
                    ahead = true;
                    None
                }
            };
            places.push(place.map(|place| (place, version.clone())));
        }
        // A stream that starts over must not take the client back, either: it waits for every cache, even if one of them cannot
        // continue from the token.
        let next = match () {
            () if ahead && !waited => return None,
            () if ahead => resetting(ResetReason::TokenAhead),
            () if of_others => resetting(ResetReason::TokenOfOthers),
            () if lost || (asked && waited) => resetting(ResetReason::TokenTooOld),
            () if asked => return None,
            () => SubscriberState::Resumed,
        };
        for (source, place) in self.sources.iter_mut().zip(places) {
            match place {
                Some((Resume::At(cursor), version)) => source.begin_at(cursor, token_kind, version),
                Some((Resume::Ahead, version)) => source.begin_ahead(token_kind, version),
                Some((Resume::Backfill(backfill), version)) => source.begin_backfill(backfill, version),
                None => {}
            }
        }
        Some(next)
    }
}
