//! Cold objects: those that may be packed, as no change in the journal shows them any more.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Revision, Snapshot};
use crate::k8s::{Dictionary, Key};

/// Keys of objects that may be cold, with the bytes of their JSON.
#[derive(Debug, Default)]
pub(super) struct Cold {
    pub(super) keys: VecDeque<(Key, usize)>,
    pub(super) bytes: usize,
}

impl Cold {
    pub(super) fn push(&mut self, key: &Key, bytes: usize) {
        self.keys.push_back((key.clone(), bytes));
        self.bytes += bytes;
    }

    pub(super) fn pop(&mut self) -> Option<Key> {
        let (key, bytes) = self.keys.pop_front()?;
        self.bytes -= bytes;
        Some(key)
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
