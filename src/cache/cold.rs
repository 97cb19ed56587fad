//! Cold objects: those that may be packed, as no change in the journal shows them any more.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Backlog, Revision, Snapshot};
use crate::k8s::{Dictionary, Key};

/// Keys of objects that may be cold, with the bytes of their JSON.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) keys: VecDeque<(Key, usize)>,
    pub(super) bytes: usize,
    /// Bytes from which a dictionary is trained. With fewer, these objects may stay unpacked.
    packed_from: usize,
    /// Where these bytes wait, with those of other caches.
    backlog: Arc<Backlog>,
}

impl Drop for Cold {
    fn drop(&mut self) {
        self.backlog.remove(self.bytes);
    }
}

impl Cold {
    pub(super) fn new(packed_from: usize, backlog: Arc<Backlog>) -> Self {
        Self { keys: VecDeque::new(), bytes: 0, packed_from, backlog }
    }

    /// Whether the packer will pack some of these objects.
    pub(super) fn is_to_pack(&self) -> bool {
        self.bytes >= self.packed_from
    }

    pub(super) fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    pub(super) fn push(&mut self, key: &Key, bytes: usize) {
        self.keys.push_back((key.clone(), bytes));
        self.bytes += bytes;
        self.backlog.add(bytes);
    }

    pub(super) fn pop(&mut self) -> Option<Key> {
        let (key, bytes) = self.keys.pop_front()?;
        self.bytes -= bytes;
        self.backlog.remove(bytes);
        // The memory of a first list's keys.
        if self.keys.is_empty() {
            self.keys = VecDeque::new();
        }
        Some(key)
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.packed_from, self.backlog.clone());
    }

    /// Notes all objects of a store that could be packed: those that are not packed, or by a dictionary that is retired.
    /// Those that changed after `base` are in the journal.
    pub(super) fn note_all(&mut self, store: &Snapshot, base: Revision, retired: Option<&Arc<Dictionary>>) {
        for stored in store.stored_after(None).filter(|stored| stored.revision <= base) {
            let object = &stored.object;
            let wanted = match object.dictionary() {
                None => true,
                Some(dictionary) => retired.is_some_and(|retired| Arc::ptr_eq(retired, dictionary)),
            };
            if wanted {
                self.push(object.key(), object.json_len());
            }
        }
    }
}
