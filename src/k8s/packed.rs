//! The JSON of objects packed with zstd and a dictionary, which makes a tenth of their JSON or less where objects of a kind are alike.
//!
//! Why zstd: it is the codec of that ratio which unpacks a few kilobytes in microseconds, it takes a dictionary, and it is
//! compiled into informerd already for the compression of answers. Frames carry a checksum of the JSON (XXH64), so that damaged
//! bytes are noticed; the dictionary's number and the length are left out, as the object knows both.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use zstd::dict::{DecoderDictionary, from_samples};
use zstd::zstd_safe::DCtx;

/// Unpacked objects up to this size are remembered by the thread that unpacked them.
const REMEMBERED_BYTES_MAX: usize = 64 << 10;

/// Bytes of objects for each byte of a dictionary that zstd chooses from them. Its search takes milliseconds, and with less text
/// there is little to choose; zstd's manual recommends 100.
const CHOICE_MIN: usize = 8;

/// Number of times that packed bytes could not be unpacked, in this process.
static DAMAGES: AtomicU64 = AtomicU64::new(0);

/// What the objects of a kind have in common, by which they are packed and unpacked.
pub struct Dictionary {
    bytes: Box<[u8]>,
    /// Whether bytes that were packed by it could not be unpacked.
    damaged: AtomicBool,
    decoder: DecoderDictionary<'static>,
}

/// The JSON of an object, packed.
#[derive(Clone)]
pub(super) struct Packed {
    dictionary: Arc<Dictionary>,
    /// The text of the uid, then a zstd frame.
    data: Arc<[u8]>,
    /// The JSON object `metadata.labels`: objects of one owner share it.
    labels: Arc<str>,
    /// Bytes of the JSON.
    len: u32,
    uid_len: u32,
}

/// Packed bytes that do not unpack to what was packed. They were read back once when they were packed, so the process'
/// memory has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an object's packed bytes are damaged")]
pub struct Damaged;

/// How often an object could not be unpacked in this process. Such an object shows nothing but what identifies it. Who writes
/// objects to a client compares this number before and after, and writes nothing if it has risen.
pub fn damages() -> u64 {
    DAMAGES.load(Ordering::Acquire)
}

/// A thread's means to unpack.
struct Unpacker {
    context: DCtx<'static>,
    /// What was unpacked last, as an object is matched, hashed and written one after the other. The data is held, so that
    /// its address stays its own.
    last: Option<(Arc<[u8]>, Bytes)>,
}

thread_local! {
    static UNPACKER: RefCell<Unpacker> = RefCell::new(Unpacker { context: DCtx::create(), last: None });
}

// === impl Dictionary ===

impl Dictionary {
    /// Makes a dictionary of at most `bytes_max` bytes from the JSON of objects of one kind. If they hold too little text for zstd
    /// to choose from ([`CHOICE_MIN`]), the text of the first ones is the dictionary.
    pub fn train(samples: &[Bytes], bytes_max: usize) -> Self {
        let has_choice = samples.iter().map(Bytes::len).sum::<usize>() >= CHOICE_MIN * bytes_max;
        let chosen = has_choice.then(|| from_samples(samples, bytes_max).ok()).flatten();
        let bytes = chosen.unwrap_or_else(|| {
            let mut text = Vec::with_capacity(bytes_max);
            for sample in samples {
                let room = bytes_max - text.len();
                text.extend_from_slice(&sample[..sample.len().min(room)]);
            }
            text
        });
        Self {
            decoder: DecoderDictionary::copy(&bytes),
            bytes: bytes.into(),
            damaged: AtomicBool::new(false),
        }
    }

    /// Whether objects that were packed by it were found damaged since this was last asked.
    pub fn take_damaged(&self) -> bool {
        self.damaged.swap(false, Ordering::AcqRel)
    }

    /// The text by which objects are packed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it costs, about, in bytes: its text twice, and zstd's tables.
    pub fn held_bytes(&self) -> usize {
        2 * self.bytes.len() + (27 << 10)
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.bytes.len())
    }
}

// === impl Packed ===

impl Packed {
    /// The JSON of an object in a zstd frame, made with this dictionary; `None` if a length is beyond what a `u32` holds.
    pub(super) fn new(
        dictionary: Arc<Dictionary>,
        uid: &str,
        frame: &[u8],
        labels: Arc<str>,
        len: usize,
    ) -> Option<Self> {
        Some(Self {
            dictionary,
            data: [uid.as_bytes(), frame].concat().into(),
            labels,
            len: u32::try_from(len).ok()?,
            uid_len: u32::try_from(uid.len()).ok()?,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.data.len()
    }

    pub(super) fn uid(&self) -> &str {
        std::str::from_utf8(&self.data[..self.uid_len as usize]).unwrap_or_default()
    }

    pub(super) fn labels(&self) -> &str {
        &self.labels
    }

    pub(super) fn dictionary(&self) -> &Arc<Dictionary> {
        &self.dictionary
    }

    /// The JSON. An object that is asked for again by the same thread is not unpacked twice.
    pub(super) fn unpack(&self) -> Result<Bytes, Damaged> {
        UNPACKER.with_borrow_mut(|unpacker| {
            if let Some((data, json)) = &unpacker.last
                && Arc::ptr_eq(data, &self.data)
            {
                return Ok(json.clone());
            }
            let json = Bytes::from(self.unpack_with(&mut unpacker.context)?);
            if json.len() <= REMEMBERED_BYTES_MAX {
                unpacker.last = Some((self.data.clone(), json.clone()));
            }
            Ok(json)
        })
    }

    /// The JSON, unpacked even if this thread has just done so.
    pub(super) fn unpack_anew(&self) -> Result<Vec<u8>, Damaged> {
        UNPACKER.with_borrow_mut(|unpacker| self.unpack_with(&mut unpacker.context))
    }

    fn unpack_with(&self, context: &mut DCtx<'static>) -> Result<Vec<u8>, Damaged> {
        let frame = &self.data[self.uid_len as usize..];
        let mut json = Vec::with_capacity(self.len());
        let unpacked = context.decompress_using_ddict(&mut json, frame, self.dictionary.decoder.as_ddict());
        // The checksum finds what was damaged. The other two are what the rest of the program relies on.
        let whole = unpacked.is_ok_and(|len| len == self.len());
        if whole && std::str::from_utf8(&json).is_ok() {
            return Ok(json);
        }
        self.dictionary.damaged.store(true, Ordering::Release);
        DAMAGES.fetch_add(1, Ordering::AcqRel);
        Err(Damaged)
    }

    /// The same with another byte at a place in its frame.
    #[cfg(test)]
    pub(super) fn damaged(&self, at: usize, mask: u8) -> Self {
        let mut data = self.data.to_vec();
        let frame = &mut data[self.uid_len as usize..];
        let at = at % frame.len();
        frame[at] ^= mask;
        Self { data: data.into(), ..self.clone() }
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} of {} bytes)", self.data.len(), self.len)
    }
}
