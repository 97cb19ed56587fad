//! One kind's objects and its window of events, with etcd's rules for old revisions.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::kinds::Kind;
use super::object::Stored;
use super::selector::Filter;

/// The kind of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One write in the window.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) event_type: EventType,
    pub(super) revision: u64,
    /// The new state; for a deletion the last state under the revision of the deletion.
    pub(super) object: Arc<Stored>,
    /// The state before, to undo the write and to decide on selector transitions.
    pub(super) previous: Option<Arc<Stored>>,
}

/// Requests and sent events of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lists begun: requests without a continue token.
    pub lists: u64,
    /// List requests answered, pages included.
    pub list_pages: u64,
    /// Watches answered with 200, streaming lists included.
    pub watches_started: u64,
    /// Watches open now.
    pub watches_open: u64,
    /// ADDED, MODIFIED and DELETED sent on watches, synthetic ones included.
    pub events_sent: u64,
    /// BOOKMARKs sent, end marks included.
    pub bookmarks: u64,
}

/// One page of a list.
pub(super) struct Page {
    pub(super) objects: Vec<Arc<Stored>>,
    /// Key of the last object, if more follow.
    pub(super) more_after: Option<String>,
    /// How many more follow, if the filter allows to know.
    pub(super) remaining: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) kind: Kind,
    pub(super) objects: BTreeMap<String, Arc<Stored>>,
    history: VecDeque<Event>,
    /// Watches and lists from before this revision are too old.
    pub(super) floor: u64,
    /// The newest event that is no longer in `history`. An open watch that has seen it continues.
    lost: u64,
    /// Carries the revision of each write, and wakes the watches.
    pub(super) changed: watch::Sender<u64>,
    /// Cancelled when the kind goes away or its definition changes: every watch then ends.
    pub(super) ended: CancellationToken,
    pub(super) counters: Counters,
}

impl Table {
    pub(super) fn new(kind: Kind, revision: u64) -> Self {
        Self {
            kind,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            floor: revision,
            lost: revision,
            changed: watch::Sender::new(revision),
            ended: CancellationToken::new(),
            counters: Counters::default(),
        }
    }

    /// A copy without watches, its counters at zero.
    pub(super) fn fork(&self) -> Self {
        let ended = CancellationToken::new();
        if self.ended.is_cancelled() {
            ended.cancel();
        }
        Self {
            kind: self.kind.clone(),
            objects: self.objects.clone(),
            history: self.history.clone(),
            floor: self.floor,
            lost: self.lost,
            changed: watch::Sender::new(*self.changed.borrow()),
            ended,
            counters: Counters::default(),
        }
    }

    /// Records a write that has been validated.
    pub(super) fn commit(&mut self, event: Event, window_events_max: usize) {
        match event.event_type {
            EventType::Deleted => self.objects.remove(&event.object.key),
            EventType::Added | EventType::Modified => {
                self.objects.insert(event.object.key.clone(), Arc::clone(&event.object))
            }
        };
        let revision = event.revision;
        self.history.push_back(event);
        while self.history.len() > window_events_max {
            let evicted = self.history.pop_front().expect("longer than the limit, so not empty");
            self.floor = self.floor.max(evicted.revision);
            self.lost = evicted.revision;
        }
        self.changed.send_replace(revision);
    }

    /// Forgets all history up to `revision`.
    pub(super) fn forget(&mut self, revision: u64) {
        self.lost = self.history.back().map_or(self.lost, |newest| newest.revision);
        self.history.clear();
        self.floor = revision;
    }

    /// Up to `events_max` events after `revision`, oldest first; `None` if some of them are forgotten.
    pub(super) fn events_after(&self, revision: u64, events_max: usize) -> Option<Vec<Event>> {
        if revision < self.lost {
            return None;
        }
        let start = self.history.partition_point(|e| e.revision <= revision);
        Some(self.history.range(start..).take(events_max).cloned().collect())
    }

    /// The matching objects after the key `after`, as they were at revision `at`, at most `limit` of them (0: all).
    ///
    /// Shape: in key order. `at` must not be below the floor.
    pub(super) fn page(&self, filter: &Filter, at: u64, after: Option<&str>, limit: usize) -> Page {
        let start = match after {
            Some(key) => Bound::Excluded(key.to_owned()),
            None if filter.namespace.is_empty() => Bound::Unbounded,
            None => Bound::Included(format!("{}/", filter.namespace)),
        };
        let mut objects = Vec::new();
        let mut more_after = None;
        let mut remaining = 0;
        let in_namespace =
            |object: &Arc<Stored>| filter.namespace.is_empty() || object.namespace == filter.namespace;
        let mut states = self.states_at(at, start);
        while let Some(object) = states.next() {
            // Keys of one namespace lie together, so the first other one ends the scan.
            if !in_namespace(object) {
                break;
            }
            if !filter.matches(object) {
                continue;
            }
            if limit > 0 && objects.len() == limit {
                more_after = objects.last().map(|o: &Arc<Stored>| o.key.clone());
                if filter.has_no_selectors() {
                    // Counted without reading each object: they are far apart in memory, and a client that reads pages of 500 would wait
                    // longer for the count than for its page.
                    remaining = 1 + states.take_while(|object| in_namespace(object)).count();
                }
                break;
            }
            objects.push(Arc::clone(object));
        }
        let remaining = (more_after.is_some() && filter.has_no_selectors()).then_some(remaining);
        Page { objects, more_after, remaining }
    }

    /// Objects from `start` on as of revision `at`, in key order: today's with everything since undone.
    fn states_at(&self, at: u64, start: Bound<String>) -> impl Iterator<Item = &Arc<Stored>> {
        let mut undone: BTreeMap<&str, Option<&Arc<Stored>>> = BTreeMap::new();
        for event in self.history.iter().rev().take_while(|e| e.revision > at) {
            undone.insert(&event.object.key, event.previous.as_ref());
        }
        let bound = match &start {
            Bound::Included(key) => Bound::Included(key.as_str()),
            Bound::Excluded(key) => Bound::Excluded(key.as_str()),
            Bound::Unbounded => Bound::Unbounded,
        };
        let before: Vec<_> =
            undone.range::<str, _>((bound, Bound::Unbounded)).map(|(k, v)| (*k, *v)).collect();
        let today = self.objects.range((start, Bound::Unbounded));
        let today =
            today.filter(move |(key, _)| !undone.contains_key(key.as_str())).map(|(_, object)| object);
        merge(today, before.into_iter().filter_map(|(_, object)| object))
    }
}

/// Merges two iterators that are each in key order.
fn merge<'a>(
    left: impl Iterator<Item = &'a Arc<Stored>>,
    right: impl Iterator<Item = &'a Arc<Stored>>,
) -> impl Iterator<Item = &'a Arc<Stored>> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some(l), Some(r)) if l.key < r.key => left.next(),
        (_, Some(_)) => right.next(),
        (_, None) => left.next(),
    })
}
