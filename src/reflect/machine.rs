//! What to do next: a state machine without I/O, clock or randomness.
//!
//! It is told what happened and answers with at most one [`Step`], which is then the only one under way
//! until its outcome is told. What the cache is to learn is appended to a list of deltas.
//!
//! ```text
//!            ┌───── next page ─────┐
//! start ──▶ Listing ──last page──▶ Opening ──▶ Watching ──ended──┐
//!            ▲  ▲ │ failed           ▲ │ failed       │ ERROR     │ at once
//!            │  │ ▼                  │ ▼              ▼           │
//!            │ BackingOff ◀──────────┴─BackingOff ◀───┴───────────┘
//!            └── 410, stuck, undecodable twice ──────┘
//! ```
//! A streaming list (KEP-3157) will be one more state beside Listing: a watch whose events are items of a
//! pass until the bookmark that ends them.

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use super::step::{Failure, Input, Moment, Reaction, Step};
use super::watching::{EndReason, RelistReason, Verdict, WatchEnd, Watching};
use crate::cache::{Condition, Delta, Phase};
use crate::k8s::{ListPage, ResourceVersion, Status, WatchEvent};
use crate::upstream::{Backoff, FailureKind, PageRequest, Refusal, WatchRequest};

/// Between the beginnings of two lists, at least.
const LIST_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// After this long without a relist the next one is a first one again. Source: client-go
/// `tools/cache/reflector.go`, the backoff manager's reset of 2 minutes.
const RELIST_CALM: Duration = Duration::from_secs(120);

/// Failures at one version without progress after which the version itself is suspect.
const FAILURES_MAX: u32 = 5;

/// Times that the same event may fail to decode before it is gone around with a list.
const UNDECODABLE_MAX: u32 = 2;

/// Continue tokens that may expire before the list is asked for in one piece, as client-go's pager does.
const EXPIRED_TOKENS_MAX: u32 = 2;

/// The first size of pages where a list in one piece was too large. Source: client-go `tools/pager`.
const PAGE_SIZE: u32 = 500;

/// The server is asked to end a watch after 240 to 300 s, so that all do not come at once (U29).
const WATCH_TIMEOUT: Duration = Duration::from_secs(240);
const WATCH_TIMEOUT_SPREAD: Duration = Duration::from_secs(60);

/// What a watch may take beyond the timeout that was asked for.
const WATCH_GRACE: Duration = Duration::from_secs(5);

/// Silence on a watch of a server that sends bookmarks about each minute (U29).
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// Decides what the reflector of one resource does.
#[derive(Debug)]
pub struct Machine {
    page_size: u32,
    state: State,
    /// Where a watch resumes: the version of the last thing taken from list or watch (U2).
    version: ResourceVersion,
    /// Objects asked for in a page; smaller after a page that was too large, 0 for all.
    page_limit: u32,
    list_backoff: Backoff,
    watch_backoff: Backoff,
    relist_backoff: Backoff,
    last_list: Option<Instant>,
    relists_lately: u32,
    expired_tokens: u32,
    /// Failures at `version` that may be its fault.
    failures_here: u32,
    undecodable_here: u32,
    /// Watches in a row that ended soon.
    soon_ended: u32,
    bookmarks_known: bool,
    message: Option<String>,
    retry_at: Option<Instant>,
}

#[derive(Debug)]
enum State {
    /// A page is awaited.
    Listing(Pass),
    /// The head of a watch's response is awaited.
    Opening,
    /// Events are awaited.
    Watching(Watching),
    /// The end of a delay is awaited.
    BackingOff(Then),
}

/// A list under way.
#[derive(Debug, Default)]
struct Pass {
    /// The version of its first page, which is the list's.
    version: Option<ResourceVersion>,
    token: Option<String>,
}

/// What follows a delay.
#[derive(Debug)]
enum Then {
    /// A new list.
    List,
    /// The same page of the pass that is under way.
    Page(Pass),
    Watch,
}

// === impl Machine ===

impl Machine {
    /// A machine at its start, and the first step: the first page of `page_size` objects (0 for all).
    pub fn start(page_size: u32, now: Instant, deltas: &mut Vec<Delta>) -> (Self, Step) {
        let mut machine = Self {
            page_size,
            state: State::Opening,
            version: ResourceVersion::ZERO,
            page_limit: page_size,
            list_backoff: Backoff::default(),
            watch_backoff: Backoff::default(),
            relist_backoff: Backoff::default(),
            last_list: None,
            relists_lately: 0,
            expired_tokens: 0,
            failures_here: 0,
            undecodable_here: 0,
            soon_ended: 0,
            bookmarks_known: false,
            message: None,
            retry_at: None,
        };
        let step = machine.begin_pass(now, deltas);
        (machine, step)
    }

    /// Takes what happened. An input that does not answer the step under way changes nothing.
    pub fn on(&mut self, input: Input, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        match input {
            Input::Event(event) => self.on_event(event, moment, deltas),
            Input::Page(page) => self.on_page(page, moment, deltas),
            Input::PageFailed(failure) => self.on_page_failed(failure, moment, deltas),
            Input::WatchOpened => self.on_opened(moment),
            Input::WatchRefused(failure) => self.on_refused(failure, moment, deltas),
            Input::WatchEnded(end) => self.on_ended(&end, moment, deltas),
            Input::Woke => self.on_woke(moment, deltas),
        }
    }

    /// How long the open watch may be silent; `None` where nothing is known of the server's bookmarks.
    pub fn silence_max(&self) -> Option<Duration> {
        self.bookmarks_known.then_some(SILENCE_MAX)
    }

    /// Where a watch resumes.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// What goes on, for people.
    pub fn condition(&self) -> Condition {
        let phase = match self.state {
            State::Listing(_) => Phase::Listing,
            State::Opening | State::Watching(_) => Phase::Watching,
            State::BackingOff(_) => Phase::BackingOff,
        };
        Condition { phase, message: self.message.clone(), retry_at: self.retry_at }
    }

    fn on_page(&mut self, page: ListPage, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let State::Listing(pass) = &mut self.state else { return Reaction::default() };
        if page.continue_token.is_some() && page.continue_token == pass.token {
            // It would never end.
            let sentence = "the API server repeats a continue token".to_owned();
            let failure = Failure { kind: FailureKind::Garbage, sentence, retry_after: None };
            deltas.push(Delta::PassAbort);
            return self.page_failed(failure, Then::List, moment);
        }
        self.list_backoff.reset();
        deltas.extend(page.objects.into_iter().map(Delta::PassItem));
        let version = pass.version.get_or_insert(page.resource_version).clone();
        pass.token = page.continue_token;
        if let Some(token) = &pass.token {
            let step =
                Step::List(PageRequest { limit: self.page_limit, continue_token: Some(token.clone()) });
            return Reaction::step(step);
        }
        deltas.push(Delta::PassEnd(version.clone()));
        self.version = version;
        self.page_limit = if self.page_limit == 0 { self.page_size } else { self.page_limit };
        (self.expired_tokens, self.failures_here, self.undecodable_here) = (0, 0, 0);
        self.open(moment)
    }

    fn on_page_failed(&mut self, failure: Failure, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let State::Listing(pass) = &mut self.state else { return Reaction::default() };
        let pass = mem::take(pass);
        match failure.kind {
            FailureKind::Expired if pass.token.is_some() => {
                // The answer holds a token that goes on with a later state; a mixed list is no list (U5).
                deltas.push(Delta::PassAbort);
                self.expired_tokens += 1;
                if self.expired_tokens >= EXPIRED_TOKENS_MAX {
                    self.page_limit = 0;
                }
                let reaction = self.relist(RelistReason::Expired, failure.sentence, moment, deltas);
                Reaction { failed: Some(failure.kind), ..reaction }
            }
            // The token stays good meanwhile.
            FailureKind::Transport
            | FailureKind::Idle
            | FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::Throttled
            | FailureKind::Unavailable
            | FailureKind::Garbage => self.page_failed(failure, Then::Page(pass), moment),
            FailureKind::TooLarge => {
                self.page_limit = match self.page_limit {
                    0 if self.page_size > 0 => self.page_size,
                    0 => PAGE_SIZE,
                    limit => (limit / 2).max(1),
                };
                self.page_failed(failure, Then::Page(pass), moment)
            }
            // The token may be what is refused.
            FailureKind::NotFound | FailureKind::Expired | FailureKind::Refused | FailureKind::Config => {
                deltas.push(Delta::PassAbort);
                self.page_failed(failure, Then::List, moment)
            }
        }
    }

    fn page_failed(&mut self, failure: Failure, then: Then, moment: Moment) -> Reaction {
        let delay = delay_after(&failure, &mut self.list_backoff, moment);
        let step = self.sleep(delay, then, failure.sentence, moment);
        Reaction { failed: Some(failure.kind), ..Reaction::step(step) }
    }

    fn on_opened(&mut self, moment: Moment) -> Reaction {
        if matches!(self.state, State::Opening) {
            self.state = State::Watching(Watching::new(moment.now));
            self.message = None;
        }
        Reaction::default()
    }

    fn on_refused(&mut self, failure: Failure, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        if !matches!(self.state, State::Opening) {
            return Reaction::default();
        }
        self.failed(failure, moment, deltas)
    }

    fn on_event(&mut self, event: WatchEvent, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let State::Watching(watching) = &mut self.state else { return Reaction::default() };
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.advance(object.resource_version().clone());
                deltas.push(Delta::Apply(object));
            }
            WatchEvent::Deleted(object) => {
                self.advance(object.resource_version().clone());
                deltas.push(Delta::Delete(object));
            }
            WatchEvent::Bookmark { resource_version, .. } => {
                self.bookmarks_known |= watching.bookmark(moment.now);
                self.advance(resource_version.clone());
                deltas.push(Delta::Bookmark(resource_version));
            }
            WatchEvent::Error(status) => return self.on_error(status, moment, deltas),
        }
        Reaction::default()
    }

    fn on_error(&mut self, status: Status, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let expired = status.is_expired();
        let mut failure = Failure::from(Refusal::from(status));
        if expired {
            failure.kind = FailureKind::Expired;
        }
        let ended = if expired { EndReason::Expired } else { EndReason::Error };
        Reaction { ended: Some(ended), ..self.failed(failure, moment, deltas) }
    }

    fn on_ended(&mut self, end: &WatchEnd, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let State::Watching(watching) = &self.state else { return Reaction::default() };
        let verdict = watching.verdict(moment.now);
        let mut failed = None;
        if let WatchEnd::Broken(failure) = end {
            failed = Some(failure.kind);
        }
        if *end == WatchEnd::Silent {
            // Learned anew: this server may send bookmarks only while something changes (U25).
            self.bookmarks_known = false;
        }
        if let WatchEnd::Undecodable(_) = end {
            self.undecodable_here += 1;
        }
        let reaction = if self.undecodable_here >= UNDECODABLE_MAX {
            self.relist(RelistReason::Undecodable, end.sentence(), moment, deltas)
        } else {
            self.resume(end, verdict, moment, deltas)
        };
        Reaction { ended: Some(end.reason()), failed: failed.or(reaction.failed), ..reaction }
    }

    /// After a watch that was open: at once where it did well, later where it did not.
    fn resume(
        &mut self,
        end: &WatchEnd,
        verdict: Verdict,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        let delay = match verdict {
            Verdict::Healthy => {
                (self.soon_ended, self.failures_here) = (0, 0);
                self.watch_backoff.reset();
                return self.open(moment);
            }
            Verdict::Useful => {
                self.soon_ended = 0;
                return self.open(moment);
            }
            // An event that cannot be read is asked for once more before anything is concluded.
            Verdict::Short if matches!(end, WatchEnd::Undecodable(_)) => return self.open(moment),
            Verdict::Short => {
                // A connection that breaks says nothing about the version.
                if *end == WatchEnd::Eof && self.is_stuck() {
                    return self.relist(RelistReason::Stuck, end.sentence(), moment, deltas);
                }
                self.watch_backoff.next(moment.entropy)
            }
            Verdict::Brief | Verdict::Quiet(_) => {
                self.soon_ended += 1;
                if self.soon_ended == 1 {
                    return self.open(moment);
                }
                match verdict {
                    // Not longer than it lived: at least half of the time a watch is open.
                    Verdict::Quiet(lived) => self.watch_backoff.next(moment.entropy).min(lived),
                    Verdict::Brief | Verdict::Useful | Verdict::Healthy | Verdict::Short => {
                        Backoff::default().next(moment.entropy)
                    }
                }
            }
        };
        Reaction::step(self.sleep(delay, Then::Watch, end.sentence(), moment))
    }

    /// After a watch that was refused, or ended by an ERROR event.
    fn failed(&mut self, failure: Failure, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let kind = failure.kind;
        let reaction = match kind {
            FailureKind::Expired => self.relist(RelistReason::Expired, failure.sentence, moment, deltas),
            // The answer may be about the version.
            FailureKind::Refused if self.is_stuck() => {
                self.relist(RelistReason::Stuck, failure.sentence, moment, deltas)
            }
            // An outage, a missing permission or a missing kind says nothing about the version; the cache
            // stays, and the watch goes on where it was (U27, U28, U32).
            FailureKind::Refused
            | FailureKind::Transport
            | FailureKind::Idle
            | FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::NotFound
            | FailureKind::Throttled
            | FailureKind::Unavailable
            | FailureKind::TooLarge
            | FailureKind::Garbage
            | FailureKind::Config => {
                let delay = delay_after(&failure, &mut self.watch_backoff, moment);
                Reaction::step(self.sleep(delay, Then::Watch, failure.sentence, moment))
            }
        };
        Reaction { failed: Some(kind), ..reaction }
    }

    /// Counts a failure that may be the version's fault. Tells whether it was one too many.
    fn is_stuck(&mut self) -> bool {
        self.failures_here += 1;
        self.failures_here >= FAILURES_MAX
    }

    fn on_woke(&mut self, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let State::BackingOff(then) = &mut self.state else { return Reaction::default() };
        let then = mem::replace(then, Then::Watch);
        self.retry_at = None;
        match then {
            Then::List => Reaction::step(self.begin_pass(moment.now, deltas)),
            Then::Watch => self.open(moment),
            Then::Page(pass) => {
                let request = PageRequest { limit: self.page_limit, continue_token: pass.token.clone() };
                self.state = State::Listing(pass);
                Reaction::step(Step::List(request))
            }
        }
    }

    /// Lists again, the sooner the longer ago the last time.
    fn relist(
        &mut self,
        reason: RelistReason,
        sentence: String,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        let since = self.last_list.map_or(RELIST_CALM, |last| moment.now.saturating_duration_since(last));
        if since >= RELIST_CALM {
            self.relists_lately = 0;
            self.relist_backoff.reset();
        }
        self.relists_lately += 1;
        let mut delay = LIST_INTERVAL_MIN.saturating_sub(since);
        if self.relists_lately > 1 {
            delay = delay.max(self.relist_backoff.next(moment.entropy));
        }
        let step = if delay.is_zero() {
            self.message = Some(sentence);
            self.begin_pass(moment.now, deltas)
        } else {
            self.sleep(delay, Then::List, sentence, moment)
        };
        Reaction { relist: Some(reason), ..Reaction::step(step) }
    }

    fn begin_pass(&mut self, now: Instant, deltas: &mut Vec<Delta>) -> Step {
        deltas.push(Delta::PassBegin);
        self.last_list = Some(now);
        self.state = State::Listing(Pass::default());
        Step::List(PageRequest { limit: self.page_limit, continue_token: None })
    }

    fn open(&mut self, moment: Moment) -> Reaction {
        let spread = WATCH_TIMEOUT_SPREAD.mul_f64(moment.entropy.clamp(0.0, 1.0));
        let timeout = Duration::from_secs((WATCH_TIMEOUT + spread).as_secs());
        self.state = State::Opening;
        let request = WatchRequest { resource_version: self.version.clone(), timeout };
        Reaction::step(Step::Watch { request, deadline: timeout + WATCH_GRACE })
    }

    fn sleep(&mut self, delay: Duration, then: Then, sentence: String, moment: Moment) -> Step {
        self.state = State::BackingOff(then);
        self.message = Some(sentence);
        self.retry_at = Some(moment.now + delay);
        Step::Sleep(delay)
    }

    /// Something with this version came from the watch.
    fn advance(&mut self, version: ResourceVersion) {
        if version <= self.version || version == self.version || version.is_zero() {
            return;
        }
        self.version = version;
        (self.failures_here, self.undecodable_here) = (0, 0);
        self.watch_backoff.reset();
        if let State::Watching(watching) = &mut self.state {
            watching.progressed = true;
        }
    }
}

/// What the server asks for, or the next delay of ours.
fn delay_after(failure: &Failure, backoff: &mut Backoff, moment: Moment) -> Duration {
    match failure.retry_after {
        Some(retry_after) => Backoff::obey(retry_after, moment.entropy),
        None => backoff.next(moment.entropy),
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
