//! What a stream of messages keeps between two of them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::k8s::Key;

/// What a stream of messages keeps between two of them.
#[derive(Debug)]
pub(super) struct World {
    /// The token of the last complete message; empty before, and after a RESET.
    pub(super) complete: String,
    /// Whether the client has to forget what it holds, with the next message.
    pub(super) resets: bool,
    /// The objects that the client holds, if each complete message has them.
    pub(super) state: Option<WorldState>,
}

/// The objects that the client of a stream holds.
#[derive(Debug, Default)]
pub(super) struct WorldState {
    pub(super) objects: BTreeMap<(usize, Key), Bytes>,
    pub(super) bytes: usize,
}

impl WorldState {
    pub(super) fn put(&mut self, source: usize, key: &Key, json: Bytes) {
        self.bytes += json.len();
        if let Some(before) = self.objects.insert((source, key.clone()), json) {
            self.bytes -= before.len();
        }
    }

    pub(super) fn remove(&mut self, source: usize, key: &Key) {
        if let Some(before) = self.objects.remove(&(source, key.clone())) {
            self.bytes -= before.len();
        }
    }
}
