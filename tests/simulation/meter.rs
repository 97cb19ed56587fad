//! Counts the requests of an informer and the faults that it met, and notes when it received something.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::fault::Fault;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ask {
    /// The first page of a list.
    List,
    /// Another page.
    Page,
    /// A list that is streamed.
    Stream,
    Watch,
    /// The object that changed last, to see the version and the history.
    Probe,
    /// Any one object, to see the version.
    Head,
    /// A list at an earlier version.
    Backfill,
}

/// Largest number of requests of one informer in a minute, without pages. Backoff begins at 0.8 s, and at most every
/// other request is sent at once.
const PER_MINUTE_MAX: usize = 60;

/// Largest number of requests of one informer in a second. With more, the history would not end.
const PER_SECOND_MAX: usize = 30;

/// The counts of one informer in one life of a replica.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) asked: BTreeMap<Ask, u64>,
    /// The times of the requests of the last minute, without pages.
    lately: VecDeque<Instant>,
    pub(crate) storm: Option<usize>,
    /// Number of faults, by kind.
    pub(crate) troubles: BTreeMap<&'static str, u64>,
    /// Error answers of the API server itself, by code.
    pub(crate) refusals: BTreeMap<u16, u64>,
    /// Watches that the API server ended, or that broke.
    pub(crate) watches_ended: u64,
    /// Watches that the informer abandoned after a silence.
    pub(crate) quiet_watches: u64,
    /// Streaming lists that ended before their mark.
    pub(crate) unmarked_streams: u64,
    /// How often the informer was replaced by another one, which lists.
    pub(crate) reloads: u64,
    /// When a part of an answer arrived.
    pub(crate) heard_part: Option<Instant>,
    /// When a complete event or answer arrived.
    pub(crate) heard: Option<Instant>,
    /// The lowest version of a complete list since the cluster was restored.
    pub(crate) listed_since_restore: Option<u64>,
}

impl Ask {
    pub(crate) fn of(path: &str) -> Self {
        let has = |what: &str| path.contains(what);
        match () {
            () if has("sendInitialEvents=true") => Self::Stream,
            () if has("watch=true") => Self::Watch,
            () if has("resourceVersionMatch=Exact") => Self::Backfill,
            () if has("continue=") => Self::Page,
            () if path.ends_with("limit=1") && !has("fieldSelector=") => Self::Head,
            () if has("limit=1&") || path.ends_with("limit=1") => Self::Probe,
            () => Self::List,
        }
    }
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            asked: BTreeMap::new(),
            lately: VecDeque::new(),
            storm: None,
            troubles: BTreeMap::new(),
            refusals: BTreeMap::new(),
            watches_ended: 0,
            quiet_watches: 0,
            unmarked_streams: 0,
            reloads: 0,
            heard_part: None,
            heard: None,
            listed_since_restore: None,
        }
    }

    /// Counts a request, and returns whether there are too many.
    pub(crate) fn asked(&mut self, ask: Ask, now: Instant) -> bool {
        *self.asked.entry(ask).or_default() += 1;
        if matches!(ask, Ask::Page | Ask::Backfill) {
            return self.storm.is_some();
        }
        self.lately.push_back(now);
        while self.lately.front().is_some_and(|at| now - *at > Duration::from_secs(60)) {
            self.lately.pop_front();
        }
        let second = self.lately.iter().rev().take_while(|at| now - **at < Duration::from_secs(1)).count();
        if self.lately.len() > PER_MINUTE_MAX || second > PER_SECOND_MAX {
            self.storm = Some(self.lately.len());
        }
        self.storm.is_some()
    }

    pub(crate) fn count(&self, ask: Ask) -> u64 {
        self.asked.get(&ask).copied().unwrap_or(0)
    }

    /// Lists begun, streamed ones included.
    pub(crate) fn lists(&self) -> u64 {
        self.count(Ask::List) + self.count(Ask::Stream)
    }

    pub(crate) fn trouble(&mut self, fault: Fault) {
        *self.troubles.entry(fault.text()).or_default() += 1;
    }

    pub(crate) fn refused(&mut self, code: u16) {
        *self.refusals.entry(code).or_default() += 1;
    }

    pub(crate) fn heard_part(&mut self, now: Instant) {
        self.heard_part = Some(now);
    }

    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard_part = Some(now);
        self.heard = Some(now);
    }

    /// Notes the version of a list or probe that arrived completely.
    pub(crate) fn listed_at(&mut self, version: u64) {
        let lowest = self.listed_since_restore.map_or(version, |lowest| lowest.min(version));
        self.listed_since_restore = Some(lowest);
    }

    /// The number of events that may each justify a request.
    pub(crate) fn reasons(&self) -> u64 {
        self.troubles.values().sum::<u64>() + self.refusals.values().sum::<u64>() + self.reloads
    }
}
