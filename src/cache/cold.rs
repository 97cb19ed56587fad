//! Cold objects: those that may be packed, as they are not among the newest changes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Backlog, Change, Revision, Snapshot};
use crate::k8s::{Dictionary, Key};

/// Keys of objects that may be cold, with the bytes of their JSON.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) keys: VecDeque<(Key, usize)>,
    pub(super) bytes: usize,
    /// Bytes from which a dictionary is trained. With fewer, these objects may stay unpacked.
    packed_from: usize,
    /// Number of newest changes in the journal whose objects are not cold.
    hot_len: u64,
    /// Where these bytes wait, with those of other caches.
    backlog: Arc<Backlog>,
}

impl Drop for Cold {
    fn drop(&mut self) {
        self.backlog.remove(self.bytes);
    }
}

impl Cold {
    pub(super) fn new(packed_from: usize, hot_len: u64, backlog: Arc<Backlog>) -> Self {
        Self { keys: VecDeque::new(), bytes: 0, packed_from, hot_len, backlog }
    }

    /// Whether the packer will pack some of these objects.
    pub(super) fn is_to_pack(&self) -> bool {
        self.bytes >= self.packed_from
    }

    /// The last revision whose object is cold, where `newest` is that of the last change.
    pub(super) fn cold_to(&self, newest: Revision) -> Revision {
        Revision(newest.0.saturating_sub(self.hot_len))
    }

    pub(super) fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    pub(super) fn push(&mut self, key: &Key, bytes: usize) {
        self.keys.push_back((key.clone(), bytes));
        self.bytes += bytes;
        self.backlog.add(bytes);
    }

    /// Notes the object of a change that is no longer among the newest, unless a later change replaced the object.
    pub(super) fn note(&mut self, change: &Change, store: &Snapshot) {
        let held = store.objects.get(change.object.key());
        if let Some(held) = held.filter(|held| held.revision == change.revision) {
            self.push(change.object.key(), held.object.json_len());
        }
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
        *self = Self::new(self.packed_from, self.hot_len, self.backlog.clone());
    }

    /// Notes all objects of a store that could be packed: those that are not packed, or by a dictionary that is retired.
    /// Those that changed after `cold_to` are noted when they get cold.
    pub(super) fn note_all(
        &mut self,
        store: &Snapshot,
        cold_to: Revision,
        retired: Option<&Arc<Dictionary>>,
    ) {
        for stored in store.stored_after(None).filter(|stored| stored.revision <= cold_to) {
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
