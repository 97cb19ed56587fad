//! The order in which keys are leased: priority, then fairness between namespaces, then age.

use std::collections::{BTreeMap, HashMap};

/// How urgent a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// The key is of a first state: nothing is known to have happened to its object.
    Low,
    /// The object changed.
    Normal,
}

/// Of so many leases in a row one takes a key of low priority, if there is one. So a first state never starves, however many
/// events there are, and events wait behind one key of the first state at most.
pub(super) const LOW_SHARE: u32 = 8;

/// A key's place in the order of its priority.
///
/// The order is start-time fair queuing: the keys of a namespace have successive turns, and the first key of a namespace
/// without queued keys has the turn that is next. So a namespace with many keys takes turns with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    turn: u64,
    /// Counts keys, so that of equal turns the older key comes first.
    serial: u64,
}

/// The keys that can be leased, by slot.
#[derive(Debug, Default)]
pub(super) struct Ready {
    low: Line,
    normal: Line,
    serial: u64,
    /// Leases of normal priority since the last one of low priority.
    normal_in_a_row: u32,
}

/// The keys of one priority.
#[derive(Debug, Default)]
struct Line {
    order: BTreeMap<Turn, u32>,
    /// The turn of the key that was leased last.
    reached: u64,
    namespaces: HashMap<Box<str>, Share>,
}

/// A namespace with keys in the line.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The turn of its last key.
    last: u64,
    keys: u32,
}

impl Ready {
    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.low.order.len() + self.normal.order.len()
    }

    /// Number of keys of low priority.
    pub(super) fn low(&self) -> usize {
        self.low.order.len()
    }

    /// Adds a key behind the others of its namespace.
    pub(super) fn push(&mut self, priority: Priority, namespace: &str, slot: u32) -> Turn {
        self.serial += 1;
        let serial = self.serial;
        let line = self.line(priority);
        let last = line.namespaces.get(namespace).map_or(0, |share| share.last);
        let turn = Turn { turn: last.max(line.reached) + 1, serial };
        line.insert(namespace, turn, slot);
        turn
    }

    /// Adds a key at the place that it had.
    pub(super) fn put_back(&mut self, priority: Priority, namespace: &str, turn: Turn, slot: u32) {
        self.line(priority).insert(namespace, turn, slot);
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, priority: Priority, namespace: &str, turn: Turn) {
        self.line(priority).remove(namespace, turn);
    }

    /// Takes the next key. `namespace_of` gives the namespace of a slot.
    pub(super) fn pop<'a>(&mut self, namespace_of: impl Fn(u32) -> &'a str) -> Option<u32> {
        let low_is_due = self.normal_in_a_row + 1 >= LOW_SHARE || self.normal.order.is_empty();
        let takes_low = low_is_due && !self.low.order.is_empty();
        self.normal_in_a_row =
            if takes_low || self.low.order.is_empty() { 0 } else { self.normal_in_a_row + 1 };
        let line = if takes_low { &mut self.low } else { &mut self.normal };
        let (turn, slot) = line.order.first_key_value().map(|(turn, slot)| (*turn, *slot))?;
        line.remove(namespace_of(slot), turn);
        line.reached = line.reached.max(turn.turn);
        Some(slot)
    }

    fn line(&mut self, priority: Priority) -> &mut Line {
        match priority {
            Priority::Low => &mut self.low,
            Priority::Normal => &mut self.normal,
        }
    }
}

impl Line {
    fn insert(&mut self, namespace: &str, turn: Turn, slot: u32) {
        self.order.insert(turn, slot);
        match self.namespaces.get_mut(namespace) {
            Some(share) => {
                share.last = share.last.max(turn.turn);
                share.keys += 1;
            }
            None => {
                self.namespaces.insert(namespace.into(), Share { last: turn.turn, keys: 1 });
            }
        }
    }

    fn remove(&mut self, namespace: &str, turn: Turn) {
        let removed = self.order.remove(&turn);
        debug_assert!(removed.is_some(), "a turn is that of a key in line");
        if let Some(share) = self.namespaces.get_mut(namespace) {
            share.keys -= 1;
            if share.keys == 0 {
                self.namespaces.remove(namespace);
            }
        }
    }
}
