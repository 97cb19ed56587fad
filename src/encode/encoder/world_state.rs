//! What a stream of messages keeps between two of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
#[derive(Debug)]
pub(super) struct WorldState {
    pub(super) objects: BTreeMap<(usize, Key), Bytes>,
    /// Their bytes, with what each takes beside.
    pub(super) bytes: usize,
    /// Whether an object found no room. It is not in the state, so the stream has to end.
    pub(super) is_refused: bool,
    room: StateRoom,
}

/// Room for the objects of all streams that put the whole state into their messages. Its clones share it.
#[derive(Clone, Debug)]
pub struct StateRoom {
    bytes_max: usize,
    taken: Arc<AtomicUsize>,
}

/// What an object takes beside its JSON: its key, and its place in the tree.
const BESIDE: usize = 128;

impl StateRoom {
    /// Room for so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, taken: Arc::default() }
    }

    /// Its size, in bytes.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Takes room, if there is so much.
    fn take(&self, bytes: usize) -> bool {
        let enough = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= self.bytes_max);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl WorldState {
    pub(super) fn new(room: StateRoom) -> Self {
        Self { objects: BTreeMap::new(), bytes: 0, is_refused: false, room }
    }

    pub(super) fn room(&self) -> &StateRoom {
        &self.room
    }

    /// Keeps an object instead of its state of before. Where the room for it is missing, the stream ends, and no other does.
    pub(super) fn put(&mut self, source: usize, key: &Key, json: Bytes) {
        let key = (source, key.clone());
        let before = self.objects.get(&key).map_or(0, |before| before.len() + BESIDE);
        let now = json.len() + BESIDE;
        if now > before && !self.room.take(now - before) {
            self.is_refused = true;
            return;
        }
        self.room.give_back(before.saturating_sub(now));
        self.bytes = self.bytes - before + now;
        self.objects.insert(key, json);
    }

    pub(super) fn remove(&mut self, source: usize, key: &Key) {
        if let Some(before) = self.objects.remove(&(source, key.clone())) {
            self.bytes -= before.len() + BESIDE;
            self.room.give_back(before.len() + BESIDE);
        }
    }

    pub(super) fn clear(&mut self) {
        self.objects.clear();
        self.room.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for WorldState {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_without_room_is_refused_and_leaves_the_others_alone() {
        let (room, key) = (StateRoom::new(3000), |name: &str| Key::new("", name));
        let json = |len: usize| Bytes::from(vec![b'x'; len]);
        let (mut first, mut second) = (WorldState::new(room.clone()), WorldState::new(room.clone()));
        first.put(0, &key("a"), json(1000));
        second.put(0, &key("a"), json(1500));
        // A replaced state takes the difference alone.
        first.put(0, &key("a"), json(1200));
        assert!(!first.is_refused && !second.is_refused);
        second.put(0, &key("b"), json(1));
        assert!(second.is_refused && !first.is_refused);
        drop(second);
        first.put(0, &key("b"), json(1400));
        assert!(!first.is_refused);
        first.remove(0, &key("a"));
        assert_eq!(room.taken.load(Ordering::Relaxed), 1400 + BESIDE);
        first.clear();
        assert_eq!((room.taken.load(Ordering::Relaxed), first.bytes), (0, 0));
    }
}
