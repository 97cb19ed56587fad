//! Shared batches: changes that many subscribers send, made once for all of them.
//!
//! All subscribers that keep up and select everything of an informer have the same next events. The first of them makes
//! the batch. Its renderings are kept with it, so that a thousand streams cost one rendering and a thousand writes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use super::event::Event;
use super::project::{position_after, project_unfiltered};
use super::{Config, Resumable};
use crate::cache::{Batch, Change, Cursor, Reader};
use crate::k8s::{damages_of_thread, note_damage};

/// Number of formats, codings and kinds of tokens in which a batch is rendered.
pub const RENDERINGS: usize = 14;

/// Number of batches of an informer that are kept for subscribers that are a little late.
const BATCHES_MAX: usize = 64;
/// Their total size, in bytes of objects.
const BYTES_MAX: usize = 1 << 20;

/// The changes from one cursor of an informer's cache to another.
#[derive(Debug)]
pub struct SharedBatch {
    from: Cursor,
    batch: Batch,
    /// Where a client that has taken it resumes.
    position: Resumable,
    bytes: usize,
    /// Its renderings, by format. This room does not look at them.
    rendered: [OnceLock<Kept>; RENDERINGS],
}

/// A rendering that is kept.
#[derive(Debug)]
struct Kept {
    rendered: Rendered,
    /// Whether an object could not be unpacked for it.
    is_damaged: bool,
}

/// A batch in one format.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// Its bytes, in one piece.
    pub bytes: Bytes,
    /// Number of bytes at its beginning that are framing.
    pub framing: usize,
    /// CRC-32 of the content before compression; 0 where it is not compressed.
    pub crc: u32,
    /// Length of the content before compression, in bytes; 0 where it is not compressed.
    pub len: u64,
}

/// The latest batches of an informer.
#[derive(Debug, Default)]
pub(super) struct SharedBatches(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    batches: VecDeque<Arc<SharedBatch>>,
    bytes: usize,
}

impl SharedBatch {
    /// Its events, in order.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.batch.changes.iter().map(|change| project_unfiltered(change))
    }

    /// Its changes, in order.
    pub(super) fn changes(&self) -> &[Arc<Change>] {
        &self.batch.changes
    }

    /// How many events it has.
    pub fn len(&self) -> usize {
        self.batch.changes.len()
    }

    /// Whether it has no events; never true.
    pub fn is_empty(&self) -> bool {
        self.batch.changes.is_empty()
    }

    /// Where a client that is cut off after the last event resumes.
    pub fn position(&self) -> Resumable {
        position_after(&self.batch.changes[self.batch.changes.len() - 1])
    }

    /// Its rendering in a format, made now if there is none. If an object could not be unpacked for it,
    /// [`damages`](crate::k8s::damages) rises for each reader.
    pub fn rendered(&self, transport: usize, make: impl FnOnce() -> Rendered) -> &Rendered {
        let kept = self.rendered[transport].get_or_init(|| {
            let before = damages_of_thread();
            let rendered = make();
            Kept { rendered, is_damaged: damages_of_thread() != before }
        });
        if kept.is_damaged {
            note_damage();
        }
        &kept.rendered
    }

    /// Bytes of its objects.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Cursor and position of a reader that has taken it.
    pub(super) fn end(&self) -> (Cursor, &Resumable) {
        (self.batch.cursor, &self.position)
    }
}

impl SharedBatches {
    /// The changes after a cursor, if it is in the journal and there are any.
    pub(super) fn after(&self, cursor: Cursor, reader: &Reader, config: &Config) -> Option<Arc<SharedBatch>> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Most subscribers need the newest one.
        if let Some(batch) = recent.batches.iter().rev().find(|batch| batch.from == cursor) {
            return Some(batch.clone());
        }
        let mut batch = reader.changes_after(cursor, config.batch_len_max)?;
        let bytes = bounded(&mut batch, config.batch_bytes_max)?;
        let position = match batch.changes.last() {
            Some(last) if !batch.caught_up => position_after(last),
            Some(_) | None => batch.position.clone().into(),
        };
        let rendered = Default::default();
        let batch = Arc::new(SharedBatch { from: cursor, batch, position, bytes, rendered });
        recent.push(batch.clone());
        Some(batch)
    }

    /// Whether the next batch after a cursor was made already.
    pub(super) fn has_after(&self, cursor: Cursor) -> bool {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.batches.iter().rev().any(|batch| batch.from == cursor)
    }

    /// Forgets all batches, as no subscriber is left.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Recent::default();
    }
}

impl Recent {
    fn push(&mut self, batch: Arc<SharedBatch>) {
        self.bytes += batch.bytes;
        self.batches.push_back(batch);
        while self.batches.len() > BATCHES_MAX || (self.bytes > BYTES_MAX && self.batches.len() > 1) {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }
}

/// Cuts a batch to the changes that fit into these bytes, at least one, and returns their size. `None` for an empty batch.
fn bounded(batch: &mut Batch, bytes_max: usize) -> Option<usize> {
    let mut bytes = 0;
    let fitting = batch.changes.iter().take_while(|change| {
        let fits = bytes < bytes_max;
        if fits {
            bytes += change.object.json_len();
        }
        fits
    });
    let count = fitting.count();
    if count < batch.changes.len() {
        batch.changes.truncate(count);
        batch.caught_up = false;
    }
    if !batch.caught_up {
        batch.cursor.revision = batch.changes.last()?.revision;
    }
    (count > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::cache::{self, Delta};
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts, damages};

    #[test]
    fn each_reader_learns_that_a_rendering_has_an_object_that_could_not_be_unpacked() {
        let limits =
            cache::Config { journal_len_max: 16, journal_bytes_max: 1 << 20, tombstones_len_max: 16 };
        let (mut writer, reader) = cache::cache(limits, Instant::now());
        writer.commit(vec![Delta::PassBegin, Delta::PassEnd(1.into())]);
        let from = reader.head().0;
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let mut decoder = Decoder::new(Resource::new(ResourceParts::default()), options);
        let object = decoder.object(r#"{"metadata":{"name":"x","resourceVersion":"2"}}"#).unwrap();
        writer.commit(vec![Delta::Apply(object)]);
        let batch = reader.changes_after(from, 1).unwrap();
        let rendered = Default::default();
        let batch = SharedBatch { from, batch, position: Resumable::No, bytes: 0, rendered };
        let make = || {
            // As an object does that is unpacked for the rendering.
            note_damage();
            Rendered { bytes: Bytes::from_static(b"wrong"), framing: 0, crc: 0, len: 0 }
        };
        for _ in 0..2 {
            let before = damages();
            batch.rendered(0, make);
            assert!(damages() > before);
        }
    }
}
