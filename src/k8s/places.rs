//! Where in an object's JSON its identity stands.

use std::ops::Range;

/// A place in an object's JSON, in bytes. `u32` because objects are limited to megabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// Where in an object's JSON its identity stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// The text of `metadata.uid`, without its quotes.
    pub(super) uid: Span,
    /// The text of `metadata.resourceVersion`, without its quotes.
    pub(super) version: Span,
    /// The JSON object `metadata.labels`; empty where there is none.
    pub(super) labels: Span,
}

// === impl Span ===

impl Span {
    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

// === impl Places ===

impl Places {
    /// Bytes of the places as they stand after an object's JSON.
    pub(super) const BYTES: usize = 24;

    /// The places as they stand after an object's JSON.
    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let Self { uid, version, labels } = self;
        let numbers = [uid.start, uid.end, version.start, version.end, labels.start, labels.end];
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (numbers, _) = bytes.as_chunks::<4>();
        let span = |at: usize| Span {
            start: u32::from_le_bytes(numbers[at]),
            end: u32::from_le_bytes(numbers[at + 1]),
        };
        Self { uid: span(0), version: span(2), labels: span(4) }
    }
}
