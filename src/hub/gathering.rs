//! The changes that a live view gathers (`coalesceMs`) until it tells them. No async, no clock.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::event::Event;
use super::project::project_gathered;
use super::token::TokenKind;
use super::{Matcher, Resumable};
use crate::cache::{Change, Cursor};
use crate::k8s::Key;

/// Largest number of changes that are held. With more, the members of the view take them by themselves.
const HELD_MAX: usize = 1024;

/// Changes that the members of a view have not been sent yet.
pub(super) struct Gathering {
    /// Least time between two sends.
    interval: Duration,
    /// Nothing is sent before this moment.
    until: Instant,
    /// By source; `None` if the members have all of its changes.
    held: Vec<Option<Held>>,
    /// How many changes are held.
    len: usize,
}

/// The changes of a source that the members of a view have not been sent.
struct Held {
    /// Where the members are in the journal.
    cursor: Cursor,
    position: Resumable,
    /// Those that concern the view.
    changes: Vec<Arc<Change>>,
    /// Their objects.
    keys: HashSet<Key>,
}

impl Gathering {
    /// Holds nothing yet.
    pub(super) fn new(interval: Duration, until: Instant, sources: usize) -> Self {
        Self { interval, until, held: (0..sources).map(|_| None).collect(), len: 0 }
    }

    /// No changes are sent before this moment.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Admits a member that was sent changes just now, and may be sent the next ones only after this moment. No changes are held at
    /// that time, so no other member waits for longer than its interval.
    pub(super) fn admit(&mut self, until: Instant) {
        self.until = self.until.max(until);
    }

    /// When the held changes are sent, if there are any.
    pub(super) fn tells_at(&self) -> Option<Instant> {
        (self.len > 0).then_some(self.until)
    }

    /// Whether too much is held.
    pub(super) fn is_full(&self) -> bool {
        self.len > HELD_MAX
    }

    /// Whether a change of an object is held.
    pub(super) fn has(&self, source: usize, key: &Key) -> bool {
        self.held[source].as_ref().is_some_and(|held| held.keys.contains(key))
    }

    /// Keeps a change. `before` is where the members are, if they have everything.
    pub(super) fn hold(&mut self, source: usize, change: &Arc<Change>, before: &(Cursor, Resumable)) {
        let held = self.held[source].get_or_insert_with(|| {
            let (cursor, position) = before.clone();
            Held { cursor, position, changes: Vec::new(), keys: HashSet::new() }
        });
        held.keys.insert(change.object.key().clone());
        held.changes.push(change.clone());
        self.len += 1;
    }

    /// Where the members are in a source of which changes are held.
    pub(super) fn place(&self, source: usize) -> Option<(Cursor, Resumable)> {
        self.held[source].as_ref().map(|held| (held.cursor, held.position.clone()))
    }

    /// The events of all that is held: each object's first state before and its last one after decide, so there may be none.
    /// `source` tells the matcher of a source, and the position that the members reach.
    pub(super) fn tell<'a>(
        &mut self,
        now: Instant,
        source: impl Fn(usize) -> (&'a Matcher, &'a Resumable),
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (index, held) in self.held.iter_mut().enumerate() {
            let Some(Held { position: before, changes, .. }) = held.take() else { continue };
            let (matcher, position) = source(index);
            let begin = events.len();
            // No member of such a view holds anything beyond its token.
            let gathered = project_gathered(matcher, TokenKind::PerEvent, &changes).into_iter();
            events.extend(gathered.map(|(kind, payload)| {
                let position = before.clone();
                Event { source: index, kind, payload, position, is_amid: true }
            }));
            // They have no order among each other: until the last, the token is that of the state before.
            if let Some(last) = events[begin..].last_mut() {
                (last.position, last.is_amid) = (position.clone(), false);
            }
        }
        self.len = 0;
        if !events.is_empty() {
            self.until = now + self.interval;
        }
        events
    }
}
