//! Lists, in pages or as a stream, and answers that are older than what the cache has seen.

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use super::pass::{Older, Pass, Streaming};
use super::{InitialList, Machine, MachineState, Then, delay_after};
use crate::cache::Delta;
use crate::k8s::{ListPage, ResourceVersion, Status, WatchEvent};
use crate::reflect::watching::{EndReason, RelistReason, WatchEnd, Watching};
use crate::reflect::{Failure, Moment, Reaction, Step};
use crate::upstream::{AsOf, FailureKind, PageRequest, Refusal, WatchFrom};

/// Number of expired continue tokens after which the list is requested without pages, as client-go's pager does.
const EXPIRED_TOKENS_MAX: u32 = 2;

/// First page size after a list without pages was too large. Source: client-go `tools/pager`.
const PAGE_SIZE: u32 = 500;

/// How long only pages are requested from a server that refused a streaming list. An upgrade is noticed within this time.
const PAGED_FOR: Duration = Duration::from_secs(3600);

/// Number of streaming lists in a row that may break off for reasons that do not show whether the server streams lists.
const BROKEN_STREAMS_MAX: u32 = 3;

/// Silence within a streaming list after which no end mark is expected any more: some proxies and aggregated servers send
/// none (U20).
const MARK_SILENCE_MAX: Duration = Duration::from_secs(30);

/// A streaming list that the server ends after this time without an end mark will never have one, even if events came.
const MARKLESS_MAX: Duration = Duration::from_secs(120);

// === impl Machine ===

impl Machine {
    /// Begins a list, as a stream or in pages, by what is known of this server.
    pub(super) fn begin_pass(&mut self, moment: Moment, deltas: &mut Vec<Delta>) -> Step {
        deltas.push(Delta::PassBegin);
        self.last_list = Some(moment.now);
        let as_of = if self.ask_at_least { AsOf::AtLeast(self.version.clone()) } else { AsOf::Now };
        if self.streams(moment.now) {
            self.state = MachineState::Streaming(Streaming { as_of: as_of.clone(), opened: None });
            return self.watch_step(WatchFrom::Everything(as_of), moment);
        }
        let pass = Pass { as_of, ..Pass::default() };
        let request = self.page_request(&pass);
        self.state = MachineState::Listing(pass);
        Step::List(request)
    }

    fn streams(&self, now: Instant) -> bool {
        match self.config.initial_list {
            InitialList::Stream => true,
            InitialList::Page => false,
            InitialList::Auto => self.paged_until.is_none_or(|until| now >= until),
        }
    }

    pub(super) fn page_request(&self, pass: &Pass) -> PageRequest {
        PageRequest {
            limit: self.page_limit,
            continue_token: pass.token.clone(),
            as_of: pass.as_of.clone(),
            metadata_only: false,
        }
    }

    pub(super) fn on_page(&mut self, page: ListPage, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let MachineState::Listing(pass) = &mut self.state else { return Reaction::default() };
        if page.continue_token.is_some() && page.continue_token == pass.token {
            // Such a list would never end.
            let sentence = "the API server repeats a continue token".to_owned();
            let failure = Failure { kind: FailureKind::Garbage, sentence, retry_after: None };
            deltas.push(Delta::PassAbort);
            return self.list_failed(failure, Then::List, moment);
        }
        if pass.version.is_none() && self.older.is_doubtful(&page.resource_version, &self.version, moment.now)
        {
            return self.took_older(&page.resource_version, moment, deltas);
        }
        deltas.extend(page.objects.into_iter().map(Delta::PassItem));
        let version = pass.version.get_or_insert(page.resource_version).clone();
        pass.token = page.continue_token;
        if pass.token.is_some() {
            let pass = mem::take(pass);
            let step = Step::List(self.page_request(&pass));
            self.state = MachineState::Listing(pass);
            return Reaction::step(step);
        }
        self.listed(version, moment, deltas);
        self.page_limit = if self.page_limit == 0 { self.config.page_size } else { self.page_limit };
        self.open(moment)
    }

    /// A list is complete.
    fn listed(&mut self, version: ResourceVersion, moment: Moment, deltas: &mut Vec<Delta>) {
        if mem::take(&mut self.doubted) {
            deltas.push(Delta::PassDoubted);
        }
        deltas.push(Delta::PassEnd(version.clone()));
        self.version = version;
        self.older = Older::default();
        self.ask_at_least = false;
        self.list_backoff.reset();
        (self.expired_tokens, self.broken_streams) = (0, 0);
        (self.failures_here, self.undecodable_here) = (0, 0);
        self.trust(moment);
    }

    pub(super) fn on_page_failed(
        &mut self,
        failure: Failure,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        let MachineState::Listing(pass) = &mut self.state else { return Reaction::default() };
        let pass = mem::take(pass);
        match failure.kind {
            FailureKind::Expired if pass.token.is_some() => {
                // The fresh token in the answer continues at a later state, which would give an inconsistent list (U5).
                deltas.push(Delta::PassAbort);
                self.expired_tokens += 1;
                if self.expired_tokens >= EXPIRED_TOKENS_MAX {
                    self.page_limit = 0;
                }
                let reaction = self.relist(RelistReason::Expired, failure.sentence, moment, deltas);
                Reaction { failed: Some(failure.kind), ..reaction }
            }
            // The continue token stays valid meanwhile.
            FailureKind::Transport
            | FailureKind::Idle
            | FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::Throttled
            | FailureKind::Unavailable
            | FailureKind::Garbage => self.list_failed(failure, Then::Page(pass), moment),
            FailureKind::TooLarge => {
                self.page_limit = match self.page_limit {
                    0 if self.config.page_size > 0 => self.config.page_size,
                    0 => PAGE_SIZE,
                    limit => (limit / 2).max(1),
                };
                self.list_failed(failure, Then::Page(pass), moment)
            }
            FailureKind::Behind if pass.as_of != AsOf::Now => self.is_behind(&failure, moment, deltas),
            // The refusal may be about the continue token or the requested version.
            FailureKind::NotFound
            | FailureKind::Expired
            | FailureKind::Refused
            | FailureKind::Internal
            | FailureKind::Behind
            | FailureKind::Config => {
                self.ask_at_least = false;
                deltas.push(Delta::PassAbort);
                self.list_failed(failure, Then::List, moment)
            }
        }
    }

    fn list_failed(&mut self, failure: Failure, then: Then, moment: Moment) -> Reaction {
        let delay = delay_after(&failure, &mut self.list_backoff, moment);
        let step = self.sleep(delay, then, failure.sentence, moment);
        Reaction { failed: Some(failure.kind), ..Reaction::step(step) }
    }
}

/// Streaming lists.
impl Machine {
    /// How long the stream may be silent.
    pub(super) fn mark_silence_max() -> Duration {
        MARK_SILENCE_MAX
    }

    /// Whether the open watch is a streaming list before its end mark.
    pub fn is_streaming_list(&self) -> bool {
        matches!(self.state, MachineState::Streaming(_))
    }

    pub(super) fn on_stream_opened(&mut self, moment: Moment) {
        if let MachineState::Streaming(streaming) = &mut self.state {
            streaming.opened = Some(moment.now);
        }
    }

    pub(super) fn on_initial_event(
        &mut self,
        event: WatchEvent,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        let MachineState::Streaming(Streaming { opened: Some(opened), .. }) = self.state else {
            return Reaction::default();
        };
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => deltas.push(Delta::PassItem(object)),
            // Some servers send live events before the mark (U18).
            WatchEvent::Deleted(object) => deltas.push(Delta::PassGone(object)),
            WatchEvent::Bookmark { resource_version, initial_events_end: true } => {
                if self.older.is_doubtful(&resource_version, &self.version, moment.now) {
                    return self.took_older(&resource_version, moment, deltas);
                }
                self.listed(resource_version, moment, deltas);
                self.state = MachineState::Watching(Watching::new(opened));
                self.message = None;
            }
            // A plain bookmark before the end mark shows that this server sends no end mark.
            WatchEvent::Bookmark { .. } => {
                let failure = incomplete("no end mark came, but a bookmark");
                return self.fall_back(failure, moment, deltas);
            }
            WatchEvent::Error(status) => return self.on_initial_error(*status, moment, deltas),
        }
        Reaction::default()
    }

    fn on_initial_error(&mut self, status: Status, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let expired = status.is_expired();
        let mut failure = Failure::from(Refusal::from(status));
        if expired {
            failure.kind = FailureKind::Expired;
        }
        let reaction = match failure.kind {
            // The answer of a server whose etcd lacks progress requests; it will not change (U20).
            FailureKind::Internal => self.fall_back(failure, moment, deltas),
            FailureKind::Transport
            | FailureKind::Idle
            | FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::NotFound
            | FailureKind::Expired
            | FailureKind::Throttled
            | FailureKind::Unavailable
            | FailureKind::Behind
            | FailureKind::Refused
            | FailureKind::TooLarge
            | FailureKind::Garbage
            | FailureKind::Config => self.stream_failed(failure, moment, deltas),
        };
        Reaction { ended: Some(if expired { EndReason::Expired } else { EndReason::Error }), ..reaction }
    }

    /// After a streaming list that was refused, or broke off with an error.
    pub(super) fn stream_failed(
        &mut self,
        failure: Failure,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        let MachineState::Streaming(Streaming { as_of, .. }) = &self.state else {
            return Reaction::default();
        };
        match failure.kind {
            FailureKind::Behind if *as_of != AsOf::Now => self.is_behind(&failure, moment, deltas),
            // Servers without streaming lists refuse them (U20). If only the verb `watch` is forbidden, pages may be allowed.
            FailureKind::Refused | FailureKind::Forbidden => self.fall_back(failure, moment, deltas),
            // These failures do not show whether the server streams lists; only a few of them are tolerated.
            FailureKind::Internal | FailureKind::Garbage | FailureKind::TooLarge | FailureKind::Behind => {
                self.stream_broke(failure, moment, deltas)
            }
            FailureKind::Transport
            | FailureKind::Idle
            | FailureKind::Unauthorized
            | FailureKind::NotFound
            | FailureKind::Expired
            | FailureKind::Throttled
            | FailureKind::Unavailable
            | FailureKind::Config => {
                self.ask_at_least = false;
                deltas.push(Delta::PassAbort);
                self.list_failed(failure, Then::List, moment)
            }
        }
    }

    /// After a streaming list that ended before its mark.
    pub(super) fn on_stream_ended(
        &mut self,
        end: WatchEnd,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        let MachineState::Streaming(Streaming { opened: Some(opened), .. }) = self.state else {
            return Reaction::default();
        };
        let reason = end.reason();
        let markless = moment.now.saturating_duration_since(opened) >= MARKLESS_MAX;
        let reaction = match end {
            WatchEnd::Eof | WatchEnd::Overdue if markless => {
                self.fall_back(incomplete("no end mark came"), moment, deltas)
            }
            WatchEnd::Silent => self.fall_back(incomplete("no end mark came"), moment, deltas),
            WatchEnd::Broken(failure) => self.stream_broke(failure, moment, deltas),
            WatchEnd::Eof => self.stream_broke(incomplete("the API server ended it"), moment, deltas),
            WatchEnd::Overdue | WatchEnd::Undecodable(_) | WatchEnd::Doubted(_) => {
                self.stream_broke(incomplete(&end.sentence()), moment, deltas)
            }
        };
        Reaction { ended: Some(reason), ..reaction }
    }

    fn stream_broke(&mut self, failure: Failure, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        self.broken_streams += 1;
        if self.broken_streams >= BROKEN_STREAMS_MAX {
            return self.fall_back(failure, moment, deltas);
        }
        deltas.push(Delta::PassAbort);
        self.list_failed(failure, Then::List, moment)
    }

    /// Lists in pages, now and for a while.
    fn fall_back(&mut self, failure: Failure, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        deltas.push(Delta::PassAbort);
        self.broken_streams = 0;
        if self.config.initial_list == InitialList::Stream {
            return self.list_failed(failure, Then::List, moment);
        }
        self.paged_until = Some(moment.now + PAGED_FOR);
        // A refusal is the expected answer of a server without streaming lists, and no error to show.
        self.message = (failure.kind != FailureKind::Refused).then_some(failure.sentence);
        let step = self.begin_pass(moment, deltas);
        Reaction { failed: Some(failure.kind), fell_back: true, ..Reaction::step(step) }
    }
}

fn incomplete(why: &str) -> Failure {
    let sentence = format!("the streaming list came without its end: {why}");
    Failure { kind: FailureKind::Garbage, sentence, retry_after: None }
}

/// Answers that are older than what the cache has seen.
impl Machine {
    /// Handles a list of an older version than the cache has seen. It is discarded and requested again, with the seen version
    /// as the least one.
    fn took_older(&mut self, version: &ResourceVersion, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let sentence = format!(
            "the API server answered as of {version}, but {} was seen already: one of several API servers is \
             behind, or the cluster was restored from a backup",
            self.version
        );
        self.ask_at_least = true;
        self.wait_for_newer(sentence, Duration::ZERO, moment, deltas)
    }

    /// Handles a server that says that it has not reached the version seen (U9).
    fn is_behind(&mut self, failure: &Failure, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        self.ask_at_least = false;
        let least = failure.retry_after.unwrap_or_default();
        let sentence = format!("{} was seen already: {}", self.version, failure.sentence);
        let reaction = self.wait_for_newer(sentence, least, moment, deltas);
        Reaction { failed: Some(failure.kind), ..reaction }
    }

    fn wait_for_newer(
        &mut self,
        sentence: String,
        least: Duration,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        deltas.push(Delta::PassAbort);
        self.doubted = true;
        self.older.answers += 1;
        self.older.since.get_or_insert(moment.now);
        let delay = self.older.backoff.next(moment.entropy).max(least);
        let step = self.sleep(delay, Then::List, sentence, moment);
        Reaction { older: true, ..Reaction::step(step) }
    }
}
