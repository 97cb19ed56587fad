//! What first lists have brought that is yet to be packed, in all caches of a process.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bounds the JSON that waits to be packed. Lists bring objects faster than they are packed, and the memory that they take meanwhile
/// would be several times what the caches take in the end.
#[derive(Debug)]
pub struct Backlog {
    bytes_max: usize,
    bytes: AtomicUsize,
    packed: Notify,
}

impl Backlog {
    /// First syncs are to take at most 64 MB beyond what the caches take in the end. This is a fraction of that, as freed memory is not given
    /// back at once. With 24 MiB the peak of a first sync was some 25 MB higher. It took as long, as it waits for the packer in either case.
    pub const BYTES_MAX: usize = 12 << 20;

    /// A backlog in which so many bytes of JSON may wait, and those of one object more.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: AtomicUsize::new(0), packed: Notify::new() }
    }

    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes out what was packed, or is not to be packed any more.
    pub(super) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.packed.notify_waiters();
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bytes_max
    }

    /// Notifies its waiters each time objects leave the backlog.
    pub fn packed(&self) -> &Notify {
        &self.packed
    }
}
