//! Byte slices that are written together.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Byte slices to be written one after the other, shared by reference.
///
/// A [`Buf`] that offers all its slices to a vectored write, so that a batch of events is sent by one system call and
/// not copied.
#[derive(Debug, Default)]
pub struct Frames {
    parts: VecDeque<Bytes>,
    remaining: usize,
    /// Text written since the last shared slice.
    text: BytesMut,
}

/// Bytes of an allocation for text, at least. A prefix is about 100 bytes.
const TEXT_BYTES: usize = 512;

/// Room that an allocation has for text after the bytes for which it was made.
const SPARE_BYTES: usize = 128;

/// Bytes of an allocation for several pieces of text, at most.
const TEXT_BYTES_MAX: usize = 64 << 10;

impl Frames {
    /// No frames.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends text, copied.
    pub fn put(&mut self, text: &str) {
        self.put_bytes(text.as_bytes());
    }

    /// Appends bytes, copied.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        if self.text.capacity() - self.text.len() < bytes.len() {
            // A new allocation, as to grow the old one would copy its text. It is twice as large, so that there are few. Bytes that would
            // fill much of it get one of their own size.
            let room = (2 * self.text.len()).clamp(TEXT_BYTES, TEXT_BYTES_MAX);
            self.cut();
            let own = bytes.len() + SPARE_BYTES;
            self.text = BytesMut::with_capacity(if own > TEXT_BYTES_MAX / 4 { own } else { room.max(own) });
        }
        self.text.put_slice(bytes);
        self.remaining += bytes.len();
    }

    /// Appends bytes by reference.
    pub fn share(&mut self, bytes: Bytes) {
        self.cut();
        self.remaining += bytes.len();
        if !bytes.is_empty() {
            self.parts.push_back(bytes);
        }
    }

    /// Appends other frames, by reference.
    pub fn append(&mut self, mut other: Self) {
        self.cut();
        other.cut();
        self.remaining += other.remaining;
        self.parts.append(&mut other.parts);
    }

    /// All slices, in order.
    pub fn into_parts(mut self) -> impl Iterator<Item = Bytes> {
        self.cut();
        self.parts.into_iter()
    }

    /// All slices copied into one piece, for bytes that are written to many, and for small answers.
    pub fn to_vec(mut self) -> Vec<u8> {
        self.cut();
        let mut whole = Vec::with_capacity(self.remaining);
        self.parts.iter().for_each(|part| whole.extend_from_slice(part));
        whole
    }

    /// Makes the text so far a slice of its own. Call it once a batch is complete.
    pub fn cut(&mut self) {
        if !self.text.is_empty() {
            self.parts.push_back(self.text.split().freeze());
        }
    }
}

impl Buf for Frames {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        match self.parts.front() {
            Some(part) => part,
            None => &self.text,
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let text = (!self.text.is_empty()).then_some(&*self.text);
        let parts = self.parts.iter().map(|part| &**part).chain(text);
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "cannot advance past the end of frames");
        self.remaining -= count;
        while count > 0 {
            let Some(part) = self.parts.front_mut() else {
                self.text.advance(count);
                return;
            };
            if count < part.len() {
                part.advance(count);
                return;
            }
            count -= part.len();
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Frames {
        let mut frames = Frames::new();
        frames.put("ab");
        frames.put("c");
        frames.share(Bytes::from_static(b"defg"));
        frames.put("h");
        frames
    }

    #[test]
    fn slices_stay_shared_and_in_order() {
        let json = Bytes::from_static(b"{}");
        let mut frames = Frames::new();
        frames.put("a");
        frames.share(json.clone());
        let parts: Vec<_> = frames.into_parts().collect();
        assert_eq!(parts[1].as_ptr(), json.as_ptr());
        assert_eq!(sample().to_vec(), b"abcdefgh");
    }

    /// Writes texts of these lengths. There are few allocations, and they have little room that is not used.
    #[track_caller]
    fn check_texts(lens: impl Iterator<Item = usize>, parts_max: usize) {
        let (mut frames, mut written, mut room) = (Frames::new(), Vec::new(), 0);
        for len in lens {
            let text: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let parts = frames.parts.len();
            frames.put_bytes(&text);
            written.extend_from_slice(&text);
            if frames.parts.len() > parts || room == 0 {
                room += frames.text.capacity();
            }
        }
        assert_eq!(frames.remaining(), written.len());
        assert!(room < written.len() * 5 / 4 + TEXT_BYTES_MAX, "{room} for {} bytes", written.len());
        let parts: Vec<_> = frames.into_parts().collect();
        assert!(parts.len() <= parts_max, "{} parts", parts.len());
        assert_eq!(parts.concat(), written);
    }

    #[test]
    fn text_of_any_lengths_is_written_in_few_allocations() {
        check_texts((0..40).chain([5_000, 1, 70_000, 5_000]).chain((0..100).map(|at| at * 50)), 20);
        // Objects and commas.
        check_texts([5_000, 1].into_iter().cycle().take(200), 14);
        check_texts([40_000, 1].into_iter().cycle().take(20), 10);
    }

    #[test]
    fn a_text_has_little_room_that_is_not_used() {
        let mut frames = Frames::new();
        frames.put(r#"{"type":"ADDED","object":"#);
        frames.put_bytes(&[b'a'; 5_000]);
        frames.put("}\n");
        assert!(frames.text.capacity() <= 5_000 + SPARE_BYTES, "{}", frames.text.capacity());
        assert_eq!(frames.into_parts().count(), 2);
    }

    #[test]
    fn frames_advanced_in_any_steps_give_the_same_bytes() {
        for step in 1..=9 {
            let mut frames = sample();
            let mut out = Vec::new();
            while frames.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 4];
                let count = frames.chunks_vectored(&mut slices);
                let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                assert_eq!(all.len(), frames.remaining());
                assert!(all.starts_with(frames.chunk()));
                let step = step.min(all.len());
                out.extend_from_slice(&all[..step]);
                frames.advance(step);
            }
            assert_eq!(out, b"abcdefgh", "{step}");
        }
    }
}
