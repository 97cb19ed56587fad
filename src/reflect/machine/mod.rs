//! Decides what the reflector does next: a state machine without I/O, clock or randomness.
//!
//! Each [`Input`] is answered with at most one [`Step`]. That step is the only one under way until its outcome comes as
//! another input. Changes for the cache are appended to a list of deltas.
//!
//! ```text
//!          ┌────────────── end mark ────────────────┐
//! start ─▶ Streaming (KEP-3157)                      ▼
//!   ▲  │     │ refused: for an hour in pages     Watching ──ended──┐
//!   │  │     ▼                                      ▲              │
//!   │  └─▶ Listing ──last page──▶ Opening ──────────┘              │
//!   │        │ failed              ▲   ▲ │ refused                 │ at once,
//!   │        ▼                     │   │ ▼                         │ or after
//!   ├── BackingOff                 │ BackingOff ◀──────────────────┤ a delay
//!   │        ▲ older than seen     │                               │
//!   │        │               Probing (is it the same history?) ◀───┘
//!   └────────┴── 410, stuck, undecodable twice, doubted, went back ┘
//! ```

mod listing;
mod pass;
mod silence;

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use self::pass::{Older, Pass, Streaming};
use super::failure::Failure;
use super::step::{Input, Moment, Probed, Question, Reaction, SampleObject, Step};
use super::watching::{Doubt, EndReason, RelistReason, Verdict, WatchEnd, Watching};
use crate::cache::{Delta, Phase, ReflectorCondition};
use crate::k8s::{Key, ResourceVersion, Status, WatchEvent};
use crate::upstream::{Backoff, FailureKind, Refusal, WatchFrom};

/// Least time between the starts of two lists.
const LIST_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Time without a relist after which the backoff of relists starts over. Source: client-go `tools/cache/reflector.go`, the
/// backoff manager's reset of 2 minutes.
const RELIST_CALM: Duration = Duration::from_secs(120);

/// Failures at one version without progress after which the version itself is suspected, and everything is listed.
const FAILURES_MAX: u32 = 5;

/// Number of times that the same event may fail to decode before it is bypassed by a list.
const UNDECODABLE_MAX: u32 = 2;

/// How often the API server is asked for its version while a watch is idle, as an idle watch does not show that versions
/// went back (U30).
const PROBE_INTERVAL: Duration = Duration::from_secs(300);

/// Settings of the machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineConfig {
    /// Objects in a page of a list; 0 for no pages.
    pub page_size: u32,
    /// How lists are requested.
    pub initial_list: InitialList,
    /// Time without a byte on an open watch after which its connection counts as dead.
    ///
    /// If watches are quiet for that long, the server is asked to end them within this time (`timeoutSeconds`). Just before
    /// the end it sends a bookmark, so that the version of an idle resource stays fresh, and the connection is kept for
    /// the next watch. Then only a watch that does not end counts as dead. The actual time is up to a seventh shorter, at
    /// random, so that watches do not reconnect together.
    pub silence_max: Duration,
    /// The same for a watch whose connection is pinged, so that silence is no sign of a dead connection. It is longer than the
    /// time between two bookmarks of an API server (60 s), so that the version of an idle resource moves on one watch.
    pub pinged_silence_max: Duration,
}

/// How lists are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialList {
    /// As a stream if the server supports that, else in pages.
    #[default]
    Auto,
    /// As a stream only.
    Stream,
    /// In pages only.
    Page,
}

/// Decides what the reflector of one resource does.
#[derive(Debug)]
pub struct Machine {
    config: MachineConfig,
    state: MachineState,
    /// The version from which a watch resumes: that of the last thing received by list or watch (U2).
    version: ResourceVersion,
    /// Requested page size: smaller after a page that was too large, 0 for no pages.
    page_limit: u32,
    /// Until when lists are requested in pages only.
    paged_until: Option<Instant>,
    /// Streaming lists in a row that broke off.
    broken_streams: u32,
    older: Older,
    /// Whether the next list asks for at least the version seen.
    ask_at_least: bool,
    list_backoff: Backoff,
    watch_backoff: Backoff,
    relist_backoff: Backoff,
    last_list: Option<Instant>,
    relists_lately: u32,
    expired_tokens: u32,
    /// Failures at `version` that the version itself may have caused.
    failures_here: u32,
    undecodable_here: u32,
    /// Watches in a row that ended soon.
    soon_ended: u32,
    /// When a list or a probe last gave the API server's version.
    last_probe: Option<Instant>,
    /// Whether the API server has answered with an older version than the one seen: it is behind, or was restored from a
    /// backup. A later list that is not older does not decide which, as writes take a restored cluster beyond the version
    /// seen. So that list is checked against the content of the cache.
    doubted: bool,
    /// Whether a connection was lost or refused, so that another server may answer from now on.
    suspicious: bool,
    /// Whether the last watch brought nothing new.
    quiet: bool,
    /// Whether the connection of the last watch was pinged. The next one is expected to be so, too.
    is_pinged: bool,
    /// Whether the last watch was silent for about as long as is allowed, so that the server is asked to end the next one early.
    idle: bool,
    /// How long the current watch may be silent.
    silence_max: Duration,
    message: Option<String>,
    retry_at: Option<Instant>,
    /// Whether the last failure was that the API server forbids what was asked.
    forbidden: bool,
}

#[derive(Debug)]
enum MachineState {
    /// A page is awaited.
    Listing(Pass),
    /// The head or the events of a streaming list are awaited.
    Streaming(Streaming),
    /// The answer to a probe is awaited.
    Probing(Question),
    /// The head of a watch's response is awaited.
    Opening,
    /// Events are awaited.
    Watching(Watching),
    /// The end of a delay is awaited.
    BackingOff(Then),
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
    /// A machine at its start, and the first step.
    pub fn start(config: MachineConfig, moment: Moment, deltas: &mut Vec<Delta>) -> (Self, Step) {
        let mut machine = Self {
            config,
            state: MachineState::Opening,
            version: ResourceVersion::ZERO,
            page_limit: config.page_size,
            paged_until: None,
            broken_streams: 0,
            older: Older::default(),
            ask_at_least: false,
            list_backoff: Backoff::default(),
            watch_backoff: Backoff::default(),
            relist_backoff: Backoff::default(),
            last_list: None,
            relists_lately: 0,
            expired_tokens: 0,
            failures_here: 0,
            undecodable_here: 0,
            soon_ended: 0,
            last_probe: None,
            doubted: false,
            suspicious: false,
            quiet: false,
            is_pinged: false,
            idle: false,
            silence_max: config.silence_max,
            message: None,
            retry_at: None,
            forbidden: false,
        };
        let step = machine.begin_pass(moment, deltas);
        (machine, step)
    }

    /// Handles an input. An input that does not answer the step under way changes nothing.
    pub fn on(&mut self, input: Input, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        // A forbidden streaming list decides nothing if pages may still be allowed.
        if let Input::PageFailed(failure) | Input::WatchRefused(failure) = &input {
            let decides =
                matches!(input, Input::PageFailed(_)) || self.config.initial_list == InitialList::Stream;
            self.forbidden = decides && failure.kind == FailureKind::Forbidden;
        }
        match input {
            Input::Event(event) => self.on_event(event, moment, deltas),
            Input::Page(page) => self.on_page(page, moment, deltas),
            Input::PageFailed(failure) => self.on_page_failed(failure, moment, deltas),
            Input::Probed(probed) => self.on_probed(&probed, moment, deltas),
            Input::ProbeFailed(failure) => self.on_probe_failed(failure, moment),
            Input::WatchOpened { is_pinged } => self.on_opened(is_pinged, moment),
            Input::WatchRefused(failure) => self.on_refused(failure, moment, deltas),
            Input::Unheld(key, version) => self.on_unheld(key, version, moment, deltas),
            Input::WatchEnded(end) => self.on_ended(end, moment, deltas),
            Input::Woke => self.on_woke(moment, deltas),
        }
    }

    /// How long the open watch may be silent.
    pub fn silence_max(&self) -> Duration {
        if self.is_streaming_list() { Self::mark_silence_max() } else { self.silence_max }
    }

    /// The version from which a watch resumes.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// The current phase and the last failure, for people.
    pub fn condition(&self) -> ReflectorCondition {
        let phase = match self.state {
            MachineState::Listing(_) | MachineState::Streaming(_) => Phase::Listing,
            MachineState::Probing(_) | MachineState::Opening => Phase::Connecting,
            MachineState::Watching(_) => Phase::Watching,
            MachineState::BackingOff(_) => Phase::BackingOff,
        };
        let forbidden = self.forbidden && self.message.is_some();
        let quiet_max =
            (self.is_pinged && phase == Phase::Watching).then_some(self.config.pinged_silence_max);
        ReflectorCondition {
            phase,
            message: self.message.clone(),
            retry_at: self.retry_at,
            forbidden,
            quiet_max,
        }
    }

    fn on_opened(&mut self, is_pinged: bool, moment: Moment) -> Reaction {
        if is_pinged != self.is_pinged
            && matches!(self.state, MachineState::Opening | MachineState::Streaming(_))
        {
            self.is_pinged = is_pinged;
            self.draw_silence(moment);
        }
        if matches!(self.state, MachineState::Opening) {
            self.state = MachineState::Watching(Watching::new(moment.now));
            self.message = None;
        }
        self.on_stream_opened(moment);
        Reaction::default()
    }

    fn on_refused(&mut self, failure: Failure, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        match &self.state {
            MachineState::Opening => {
                self.suspicious |= matches!(
                    failure.kind,
                    FailureKind::Transport
                        | FailureKind::Idle
                        | FailureKind::Unavailable
                        | FailureKind::NotFound
                );
                self.failed(failure, moment, deltas)
            }
            MachineState::Streaming(streaming) if !streaming.is_open() => {
                self.stream_failed(failure, moment, deltas)
            }
            MachineState::Listing(_)
            | MachineState::Streaming(_)
            | MachineState::Probing(_)
            | MachineState::Watching(_)
            | MachineState::BackingOff(_) => Reaction::default(),
        }
    }

    fn on_event(&mut self, event: WatchEvent, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        if self.is_streaming_list() {
            return self.on_initial_event(event, moment, deltas);
        }
        let MachineState::Watching(watching) = &mut self.state else { return Reaction::default() };
        watching.heard(moment.now);
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.advance(object.resource_version());
                deltas.push(Delta::Apply(object));
            }
            WatchEvent::Deleted(object) => {
                self.advance(object.resource_version());
                deltas.push(Delta::Delete(object));
            }
            WatchEvent::Bookmark { resource_version, .. } => {
                self.advance(resource_version.clone());
                deltas.push(Delta::Bookmark(resource_version));
            }
            WatchEvent::Error(status) => return self.on_error(*status, moment, deltas),
        }
        Reaction::default()
    }

    /// Handles an object that is too large: the watch continues without it, as a new request would only bring it again.
    fn on_unheld(
        &mut self,
        key: Key,
        version: ResourceVersion,
        moment: Moment,
        deltas: &mut Vec<Delta>,
    ) -> Reaction {
        if let MachineState::Watching(watching) = &mut self.state {
            watching.heard(moment.now);
            self.advance(version.clone());
        }
        let is_open = match &self.state {
            MachineState::Watching(_) => true,
            MachineState::Streaming(streaming) => streaming.is_open(),
            MachineState::Listing(_)
            | MachineState::Probing(_)
            | MachineState::Opening
            | MachineState::BackingOff(_) => false,
        };
        if is_open {
            deltas.push(Delta::Unheld(key, version));
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

    fn on_ended(&mut self, end: WatchEnd, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        if self.is_streaming_list() {
            return self.on_stream_ended(end, moment, deltas);
        }
        let MachineState::Watching(watching) = &self.state else { return Reaction::default() };
        let verdict = watching.verdict(moment.now);
        if let Some(idle) = watching.is_idle(moment.now, self.allowed_silence()) {
            self.idle = idle;
        }
        self.quiet = !watching.progressed;
        let mut failed = None;
        if let WatchEnd::Broken(failure) = &end {
            failed = Some(failure.kind);
        }
        // Another server may answer next. A silence alone proves nothing, as it is common on idle resources.
        self.suspicious |= matches!(end, WatchEnd::Broken(_) | WatchEnd::Overdue);
        if let WatchEnd::Silent | WatchEnd::Overdue = end {
            self.message = Some(end.sentence());
        }
        if let WatchEnd::Undecodable(_) = end {
            self.undecodable_here += 1;
        }
        if end == WatchEnd::Doubted(Doubt::Rewritten) {
            deltas.push(Delta::OtherHistory);
        }
        let reaction = match &end {
            WatchEnd::Doubted(doubt) => self.relist(doubt.relist_reason(), end.sentence(), moment, deltas),
            WatchEnd::Undecodable(_) if self.undecodable_here >= UNDECODABLE_MAX => {
                self.relist(RelistReason::Undecodable, end.sentence(), moment, deltas)
            }
            WatchEnd::Eof
            | WatchEnd::Broken(_)
            | WatchEnd::Silent
            | WatchEnd::Overdue
            | WatchEnd::Undecodable(_) => self.resume(&end, verdict, moment, deltas),
        };
        Reaction { ended: Some(end.reason()), failed: failed.or(reaction.failed), ..reaction }
    }

    /// Resumes after an open watch: at once if it did well, else after a delay.
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
            // An event that cannot be decoded is requested once more before it counts as broken.
            Verdict::Short if matches!(end, WatchEnd::Undecodable(_)) => return self.open(moment),
            Verdict::Short => {
                // A broken connection is not the fault of the version.
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
                    // The delay is at most the watch's lifetime, so that a watch is open at least half of the time.
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
            // The version itself may be the cause.
            FailureKind::Refused | FailureKind::Internal | FailureKind::Behind if self.is_stuck() => {
                self.relist(RelistReason::Stuck, failure.sentence, moment, deltas)
            }
            // An outage, a missing permission or a missing kind is not the fault of the version: the cache is kept, and
            // the watch resumes from the same version (U27, U28, U32).
            FailureKind::Refused
            | FailureKind::Internal
            | FailureKind::Behind
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
                // A server that answered a probe may have been replaced since, as when its cluster is restored from a
                // backup: only a watch that opens at once is of the server that was asked.
                self.suspicious |= matches!(
                    kind,
                    FailureKind::Transport
                        | FailureKind::Idle
                        | FailureKind::Unavailable
                        | FailureKind::Internal
                );
                let delay = delay_after(&failure, &mut self.watch_backoff, moment);
                Reaction::step(self.sleep(delay, Then::Watch, failure.sentence, moment))
            }
        };
        Reaction { failed: Some(kind), ..reaction }
    }

    /// Counts a failure that the version may have caused, and returns whether the limit is reached.
    fn is_stuck(&mut self) -> bool {
        self.failures_here += 1;
        self.failures_here >= FAILURES_MAX
    }

    fn on_woke(&mut self, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let MachineState::BackingOff(then) = &mut self.state else { return Reaction::default() };
        let then = mem::replace(then, Then::Watch);
        self.retry_at = None;
        match then {
            Then::List => Reaction::step(self.begin_pass(moment, deltas)),
            Then::Watch => self.open(moment),
            Then::Page(pass) => {
                let request = self.page_request(&pass);
                self.state = MachineState::Listing(pass);
                Reaction::step(Step::List(request))
            }
        }
    }

    fn on_probed(&mut self, probed: &Probed, moment: Moment, deltas: &mut Vec<Delta>) -> Reaction {
        let MachineState::Probing(question) = self.state else { return Reaction::default() };
        let Probed { version, sample, is_cached } = probed;
        if question == Question::Now && *version < self.version {
            // Another informerd is between here and the API server, and is behind. When the watch asks it for the version held
            // here, it answers whether that version is of its history.
            if *is_cached {
                self.trust(moment);
                return self.open(moment);
            }
            self.doubted = true;
            let sentence = format!("the API server is at {version}, but {} was seen already", self.version);
            return self.relist(RelistReason::WentBack, sentence, moment, deltas);
        }
        let other = match (question, sample) {
            (_, None) => false,
            (Question::Now, Some(SampleObject { held, found: Some(found), .. })) if found <= held => {
                found != held
            }
            // The object changed or was deleted since, in this history or in another. Its state at the version held decides.
            (Question::Now, Some(_)) => return self.ask(Question::Then),
            (Question::Then, Some(SampleObject { held, found, .. })) if found.as_ref() == Some(held) => false,
            (Question::Then, Some(SampleObject { held, .. })) if version != held => {
                return self.ask(Question::Exactness);
            }
            (Question::Then, Some(_)) => true,
            // Servers before 1.19 ignore `resourceVersionMatch=Exact` and answer with the current state.
            (Question::Exactness, Some(SampleObject { held, .. })) => version == held,
        };
        if other && let Some(SampleObject { key, held, .. }) = sample {
            let sentence = format!(
                "the API server has another history: {key} at {held}, which was seen already, is not in it"
            );
            deltas.push(Delta::OtherHistory);
            return self.relist(RelistReason::WentBack, sentence, moment, deltas);
        }
        self.trust(moment);
        self.open(moment)
    }

    fn ask(&mut self, question: Question) -> Reaction {
        self.state = MachineState::Probing(question);
        Reaction::step(Step::Probe(question))
    }

    /// Accepts the API server's history as that of the cache: nothing contradicts it.
    fn trust(&mut self, moment: Moment) {
        (self.last_probe, self.suspicious, self.quiet) = (Some(moment.now), false, false);
    }

    /// Handles a probe without an answer. The watch is opened all the same, unless the API server cannot be reached.
    fn on_probe_failed(&mut self, failure: Failure, moment: Moment) -> Reaction {
        if !matches!(self.state, MachineState::Probing(_)) {
            return Reaction::default();
        }
        let reaction = match failure.kind {
            FailureKind::Transport
            | FailureKind::Idle
            | FailureKind::Unauthorized
            | FailureKind::Throttled
            | FailureKind::Unavailable => {
                let delay = delay_after(&failure, &mut self.watch_backoff, moment);
                Reaction::step(self.sleep(delay, Then::Watch, failure.sentence, moment))
            }
            FailureKind::Forbidden
            | FailureKind::NotFound
            | FailureKind::Expired
            | FailureKind::Behind
            | FailureKind::Refused
            | FailureKind::Internal
            | FailureKind::TooLarge
            | FailureKind::Garbage
            | FailureKind::Config => {
                self.trust(moment);
                self.open(moment)
            }
        };
        Reaction { failed: Some(failure.kind), ..reaction }
    }

    /// Lists again: at once if the last relist was long ago, else after a growing delay.
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
            self.begin_pass(moment, deltas)
        } else {
            self.sleep(delay, Then::List, sentence, moment)
        };
        Reaction { relist: Some(reason), ..Reaction::step(step) }
    }

    fn open(&mut self, moment: Moment) -> Reaction {
        let long_ago = |last: Instant| moment.now.saturating_duration_since(last) >= PROBE_INTERVAL;
        if self.suspicious || self.quiet && self.last_probe.is_none_or(long_ago) {
            return self.ask(Question::Now);
        }
        self.state = MachineState::Opening;
        Reaction::step(self.watch_step(WatchFrom::After(self.version.clone()), moment))
    }

    fn sleep(&mut self, delay: Duration, then: Then, sentence: String, moment: Moment) -> Step {
        self.state = MachineState::BackingOff(then);
        self.message = Some(sentence);
        self.retry_at = Some(moment.now + delay);
        Step::Sleep(delay)
    }

    /// Notes the version of an event or bookmark of the watch.
    fn advance(&mut self, version: ResourceVersion) {
        if version <= self.version || version == self.version || version.is_zero() {
            return;
        }
        self.version = version;
        (self.failures_here, self.undecodable_here) = (0, 0);
        self.watch_backoff.reset();
        if let MachineState::Watching(watching) = &mut self.state {
            watching.progressed = true;
        }
    }
}

/// The delay that the server asks for, or the next one of our backoff.
fn delay_after(failure: &Failure, backoff: &mut Backoff, moment: Moment) -> Duration {
    match failure.retry_after {
        Some(retry_after) => Backoff::obey(retry_after, moment.entropy),
        None => backoff.next(moment.entropy),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
