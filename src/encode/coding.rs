//! Content codings of streams and lists: gzip and zstd.
//!
//! A stream is compressed in blocks that refer to nothing before them. So a block is made once and sent to every stream of
//! a view, whenever each of them began. With gzip a block is a run of deflate blocks that ends at a byte's edge (a full flush),
//! and the checksum at the end of a stream is combined from those of its blocks. With zstd a block is a frame of its own
//! (RFC 8878 section 3: content is one or more frames).

use std::cell::RefCell;

use bytes::{Buf as _, Bytes};
use flate2::{Compress, Compression, FlushCompress};

use super::Frames;

/// How the bytes of a stream are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coding {
    /// Not at all.
    #[default]
    Identity,
    /// One gzip member (RFC 1952).
    Gzip,
    /// zstd frames, one after the other.
    Zstd,
}

/// CRC-32 and length of bytes before they are compressed, as the end of a gzip stream has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// The CRC-32 (RFC 1952 section 8); 0 for zstd, which needs none.
    pub crc: u32,
    /// The length, in bytes.
    pub len: u64,
}

/// Header of a gzip member: deflate, no name, no time, unknown system.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The last deflate block, an empty one.
const DEFLATE_END: [u8; 2] = [3, 0];
/// The level of zlib. Pods of 4.9 KB become 39 % of their bytes; those above gain nothing on so little, level 1 leaves 52 %.
const GZIP_LEVEL: u32 = 4;
/// The level of zstd: its default. Pods of 4.9 KB become 39 %, in a third of gzip's time.
const ZSTD_LEVEL: i32 = 3;
/// A zstd frame of nothing, as content is at least one frame.
const ZSTD_EMPTY: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];
/// Room for output that is added at once.
const ROOM_BYTES: usize = 1 << 10;

thread_local! {
    /// The compressors of this thread: a context is 100 to 300 KB, and no block needs the one before.
    static DEFLATE: RefCell<Compress> = RefCell::new(Compress::new(Compression::new(GZIP_LEVEL), false));
    static ZSTD: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

impl Coding {
    /// Its name in `Content-Encoding`; `None` for no coding.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }

    /// The bytes before the first block.
    pub fn head(self) -> &'static [u8] {
        match self {
            Self::Gzip => &GZIP_HEAD,
            Self::Identity | Self::Zstd => &[],
        }
    }

    /// The bytes after the last block, for a stream of which these are CRC and length.
    pub fn end(self, checksum: Checksum) -> Vec<u8> {
        match self {
            Self::Gzip => {
                let mut end = DEFLATE_END.to_vec();
                end.extend_from_slice(&checksum.crc.to_le_bytes());
                // The length is that of the content modulo 2^32 (RFC 1952 section 2.3.1).
                let len = u32::try_from(checksum.len & u64::from(u32::MAX)).unwrap_or_default();
                end.extend_from_slice(&len.to_le_bytes());
                end
            }
            Self::Zstd if checksum.len == 0 => ZSTD_EMPTY.to_vec(),
            Self::Identity | Self::Zstd => Vec::new(),
        }
    }

    /// Compresses frames into a block, and returns it with the checksum of the frames. No block for no frames.
    pub fn block(self, frames: Frames) -> (Frames, Checksum) {
        if self == Self::Identity || frames.remaining() == 0 {
            return (frames, Checksum::default());
        }
        let mut block = Frames::new();
        let mut checksum = Checksum::default();
        let parts: Vec<_> = frames.into_parts().collect();
        if self == Self::Gzip {
            parts.iter().for_each(|part| checksum.append(Checksum::of(part)));
            block.share(deflate(&parts).into());
        } else {
            let whole = parts.concat();
            checksum.len = whole.len() as u64;
            block.share(zstd_frame(&whole).into());
        }
        (block, checksum)
    }
}

impl Checksum {
    fn of(bytes: &[u8]) -> Self {
        Self { crc: crc32fast::hash(bytes), len: bytes.len() as u64 }
    }

    /// Makes it the checksum of its own bytes followed by others.
    pub fn append(&mut self, next: Self) {
        let mut hasher = crc32fast::Hasher::new_with_initial_len(self.crc, self.len);
        hasher.combine(&crc32fast::Hasher::new_with_initial_len(next.crc, next.len));
        *self = Self { crc: hasher.finalize(), len: self.len + next.len };
    }

    /// The checksum of the bytes that were appended since it was `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        // CRC(ab) = shift(CRC(a), len(b)) ^ CRC(b), and shift(CRC(a), len(b)) is what appending zeros to the CRC gives.
        let len = self.len - earlier.len;
        let mut shifted = earlier;
        shifted.append(Self { crc: 0, len });
        Self { crc: self.crc ^ shifted.crc, len }
    }
}

/// Deflate blocks of these bytes, from a clean state to a full flush.
fn deflate(parts: &[Bytes]) -> Vec<u8> {
    DEFLATE.with_borrow_mut(|deflate| {
        deflate.reset();
        let mut out = Vec::with_capacity(parts.iter().map(Bytes::len).sum::<usize>() / 2 + ROOM_BYTES);
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let taken = step(deflate, rest, &mut out, FlushCompress::None);
                rest = &rest[taken..];
            }
        }
        // A flush is complete when it leaves room.
        loop {
            step(deflate, &[], &mut out, FlushCompress::Full);
            if out.len() < out.capacity() {
                return out;
            }
        }
    })
}

/// Compresses into the room of `out`, of which there is some afterwards unless it was all used, and returns the bytes taken.
fn step(deflate: &mut Compress, input: &[u8], out: &mut Vec<u8>, flush: FlushCompress) -> usize {
    if out.capacity() - out.len() < 16 {
        out.reserve(ROOM_BYTES.max(out.len() / 2));
    }
    let before = deflate.total_in();
    // The only error is that there is nothing to do.
    let _ = deflate.compress_vec(input, out, flush);
    usize::try_from(deflate.total_in() - before).unwrap_or(input.len())
}

/// A zstd frame of these bytes, with its length, so that a client needs no larger window than that.
fn zstd_frame(bytes: &[u8]) -> Vec<u8> {
    ZSTD.with_borrow_mut(|compressor| {
        if compressor.is_none() {
            *compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
        }
        let made = compressor.as_mut().map(|compressor| compressor.compress(bytes));
        // Its only failure is a lack of memory, at which the process ends anyway.
        made.and_then(Result::ok)
            .expect("zstd has the memory for a context and an output of the bound that it asks for")
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    fn frames(parts: &[Vec<u8>]) -> Frames {
        let mut frames = Frames::new();
        parts.iter().for_each(|part| frames.share(part.clone().into()));
        frames
    }

    fn parts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let text = "[a-c{}\":,]{0,200}".prop_map(String::into_bytes);
        proptest::collection::vec(prop_oneof![text, proptest::collection::vec(any::<u8>(), 0..5000)], 0..4)
    }

    proptest! {
        #[test]
        fn a_stream_may_begin_at_any_compressed_block(
            blocks in proptest::collection::vec(parts(), 0..8),
            at in 0_usize..8,
            coding in prop_oneof![Just(Coding::Gzip), Just(Coding::Zstd)],
        ) {
            let at = at.min(blocks.len());
            let made: Vec<_> = blocks.iter().map(|parts| coding.block(frames(parts))).collect();
            // The blocks of the view when the stream joins, and all blocks at the end.
            let mut total = Checksum::default();
            let mut joined = total;
            for (index, (_, checksum)) in made.iter().enumerate() {
                if index == at {
                    joined = total;
                }
                total.append(*checksum);
            }
            if at == made.len() {
                joined = total;
            }
            let mut sent = coding.head().to_vec();
            let expected: Vec<u8> = blocks[at..].iter().flatten().flatten().copied().collect();
            for (block, _) in made.into_iter().skip(at) {
                sent.extend(block.to_vec());
            }
            sent.extend(coding.end(total.since(joined)));
            let mut read = Vec::new();
            match coding {
                Coding::Gzip => {
                    prop_assert_eq!(total.since(joined), Checksum::of(&expected));
                    // The decoder checks checksum and length at the end.
                    flate2::bufread::GzDecoder::new(&*sent).read_to_end(&mut read).unwrap();
                }
                Coding::Zstd => read = zstd::stream::decode_all(&*sent).unwrap(),
                Coding::Identity => unreachable!("not drawn"),
            }
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn each_block_can_be_decompressed_as_soon_as_it_arrives() {
        let mut decompress = flate2::Decompress::new(false);
        for number in 0..50 {
            let event = format!("data: {{\"number\":{number}}}\n\n").repeat(1 + number * 7).into_bytes();
            let (block, _) = Coding::Gzip.block(frames(std::slice::from_ref(&event)));
            let mut read = Vec::with_capacity(event.len() + 1);
            decompress.decompress_vec(&block.to_vec(), &mut read, flate2::FlushDecompress::None).unwrap();
            assert_eq!(read, event);
        }
    }

    #[test]
    fn empty_input_makes_no_block() {
        assert_eq!(Coding::Gzip.block(Frames::new()).0.remaining(), 0);
        assert_eq!(Coding::Zstd.block(Frames::new()).0.remaining(), 0);
    }
}
