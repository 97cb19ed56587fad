//! Runs of changes that many subscribers take alike, made once for all of them.
//!
//! Whoever keeps up and wants everything is told the same as everyone else who does. The first to come makes the run, and
//! what a transport makes of it stays with it, so that a thousand streams cost one rendering and a thousand writes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use super::event::{Event, EventKind, Payload};
use super::told::{position_after, told_to_all};
use super::{Config, Informer};
use crate::cache::{Batch, Cursor, Reader};
use crate::k8s::ResourceVersion;

/// Transports that render a run.
pub const FORMS: usize = 7;

/// Runs of one informer that are kept for those who have not taken them: about what a reader that is a little late needs.
const RUNS_MAX: usize = 64;
/// What they may hold together, in bytes of objects.
const BYTES_MAX: usize = 1 << 20;

/// A run of changes, from one place in an informer's journal to another.
#[derive(Debug)]
pub struct Run {
    from: Cursor,
    batch: Batch,
    bytes: usize,
    /// What transports made of it, by their own numbers; this room does not look.
    forms: [OnceLock<Form>; FORMS],
}

/// A run as a transport sends it.
#[derive(Clone, Debug)]
pub struct Form {
    /// All of it, in one piece.
    pub bytes: Bytes,
    /// How many bytes at its beginning are the transport's own frame.
    pub framing: usize,
}

/// Where a reader is that has all there is, and is told next what everyone is who wants everything of the informer.
#[derive(Clone, Debug)]
pub struct Abreast {
    /// The informer.
    pub informer: Arc<Informer>,
    /// The place in its journal.
    pub cursor: Cursor,
    position: ResourceVersion,
}

/// The latest runs of an informer.
#[derive(Debug, Default)]
pub(super) struct Runs(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    runs: VecDeque<Arc<Run>>,
    bytes: usize,
}

impl Run {
    /// What it tells, in order.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.batch.changes.iter().filter_map(|change| told_to_all(change))
    }

    /// How many events it tells.
    pub fn len(&self) -> usize {
        self.batch.changes.len()
    }

    /// Whether it tells nothing; never so.
    pub fn is_empty(&self) -> bool {
        self.batch.changes.is_empty()
    }

    /// The version up to which a client has everything once it took the last event.
    pub fn position(&self) -> ResourceVersion {
        position_after(&self.batch.changes[self.batch.changes.len() - 1])
    }

    /// What a transport made of it, or makes now.
    pub fn form(&self, transport: usize, make: impl FnOnce() -> Form) -> &Form {
        self.forms[transport].get_or_init(make)
    }

    /// Bytes of its objects.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where a reader is that has taken it.
    pub(super) fn end(&self) -> (Cursor, &ResourceVersion) {
        (self.batch.cursor, &self.batch.position)
    }
}

impl Abreast {
    pub(super) fn new(informer: Arc<Informer>, cursor: Cursor, position: ResourceVersion) -> Self {
        Self { informer, cursor, position }
    }

    /// The version up to which the reader has everything.
    pub fn position(&self) -> &ResourceVersion {
        &self.position
    }

    /// Goes on after a run.
    pub fn take(&mut self, run: &Run) {
        self.cursor = run.batch.cursor;
        self.position.clone_from(&run.batch.position);
    }

    /// Takes the informer's position where nothing has changed but that.
    pub fn refresh(&mut self) {
        let snapshot = self.informer.reader.snapshot();
        if snapshot.cursor == self.cursor {
            self.position = snapshot.position;
        }
    }

    /// A bookmark for whoever is here.
    pub fn bookmark(&self) -> Event {
        let (position, positions) = (self.position.clone(), vec![self.position.clone()]);
        Event {
            source: 0,
            kind: EventKind::Bookmark,
            payload: Payload::Mark { positions, reason: None },
            position,
        }
    }
}

impl Runs {
    /// What follows a place, if it is in the journal and there is anything.
    pub(super) fn after(&self, cursor: Cursor, reader: &Reader, config: &Config) -> Option<Arc<Run>> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest is what most ask for.
        if let Some(run) = recent.runs.iter().rev().find(|run| run.from == cursor) {
            return Some(run.clone());
        }
        let mut batch = reader.changes_after(cursor, config.batch_len_max)?;
        let bytes = bounded(&mut batch, config.batch_bytes_max)?;
        let run = Arc::new(Run { from: cursor, batch, bytes, forms: Default::default() });
        recent.push(run.clone());
        Some(run)
    }

    /// Forgets them: nobody is there who would take them.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Recent::default();
    }
}

impl Recent {
    fn push(&mut self, run: Arc<Run>) {
        self.bytes += run.bytes;
        self.runs.push_back(run);
        while self.runs.len() > RUNS_MAX || (self.bytes > BYTES_MAX && self.runs.len() > 1) {
            let Some(oldest) = self.runs.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }
}

/// Leaves of a batch what fits into these bytes, and at least one change; how many bytes those are. `None` without any.
fn bounded(batch: &mut Batch, bytes_max: usize) -> Option<usize> {
    let mut bytes = 0;
    let fitting = batch.changes.iter().take_while(|change| {
        let fits = bytes < bytes_max;
        if fits {
            bytes += change.object.json().len();
        }
        fits
    });
    let count = fitting.count();
    if count < batch.changes.len() {
        batch.changes.truncate(count);
        batch.caught_up = false;
        let last = batch.changes.last()?;
        batch.cursor.revision = last.revision;
        batch.position = position_after(last);
    }
    (count > 0).then_some(bytes)
}
