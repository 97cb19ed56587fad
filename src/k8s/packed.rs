//! Objects packed with zstd and a dictionary, which make a tenth of their JSON or less where objects of a kind are alike.
//!
//! Why zstd: it is the codec of that ratio which unpacks a few kilobytes in microseconds, it takes a dictionary, and it is
//! compiled into informerd already for the compression of answers. Frames carry a checksum of the JSON (XXH64), so that damaged
//! bytes are noticed; the dictionary's number and the length are left out, as the object knows both.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use zstd::bulk::Compressor;
use zstd::dict::{DecoderDictionary, EncoderDictionary, from_samples};
use zstd::zstd_safe::{CParameter, DCtx};

use super::Object;
use super::object::Body;

/// zstd's level: its default, a balance of time and bytes.
const LEVEL: i32 = 3;

/// Unpacked objects up to this size are remembered by the thread that unpacked them.
const REMEMBERED_BYTES_MAX: usize = 64 << 10;

/// Bytes of objects for each byte of a dictionary that zstd chooses from them. Its search takes milliseconds, and with less text
/// there is little to choose; zstd's manual recommends 100.
const CHOICE_MIN: usize = 8;

/// What a packed object costs beside its data and what it shares, in bytes: it has to save at least that.
const OVERHEAD_BYTES: usize = 64;

/// Number of times that packed bytes could not be unpacked, in this process.
static DAMAGES: AtomicU64 = AtomicU64::new(0);

/// What the objects of a kind have in common, by which they are packed and unpacked.
pub struct Dictionary {
    bytes: Box<[u8]>,
    /// Whether bytes that were packed by it could not be unpacked.
    damaged: AtomicBool,
    decoder: DecoderDictionary<'static>,
}

/// Packs objects by a dictionary.
pub struct Press {
    dictionary: Arc<Dictionary>,
    encoder: EncoderDictionary<'static>,
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
    /// Makes a dictionary of at most `bytes_max` bytes from objects of one kind. If they hold too little text for zstd to choose
    /// from ([`CHOICE_MIN`]), the text of the first ones is the dictionary.
    pub fn train(objects: &[Arc<Object>], bytes_max: usize) -> Self {
        let samples: Vec<Bytes> = objects.iter().map(|object| object.json()).collect();
        let has_choice = samples.iter().map(Bytes::len).sum::<usize>() >= CHOICE_MIN * bytes_max;
        let chosen = has_choice.then(|| from_samples(&samples, bytes_max).ok()).flatten();
        let bytes = chosen.unwrap_or_else(|| {
            let mut text = Vec::with_capacity(bytes_max);
            for sample in &samples {
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

// === impl Press ===

impl Press {
    /// Makes what packs by this dictionary. It holds tables of zstd's, so it is not to be kept for long.
    pub fn new(dictionary: Arc<Dictionary>) -> Self {
        Self { encoder: EncoderDictionary::copy(&dictionary.bytes, LEVEL), dictionary }
    }

    /// The same objects, packed; `None` for those that are packed already or do not get small enough. `share` gives the
    /// shared text of an object's labels. What is packed is unpacked and compared.
    pub fn pack(
        &self,
        objects: &[Arc<Object>],
        mut share: impl FnMut(&str) -> Arc<str>,
    ) -> Vec<Option<Arc<Object>>> {
        let compressor = Compressor::with_prepared_dictionary(&self.encoder).and_then(|mut compressor| {
            compressor.set_parameter(CParameter::ChecksumFlag(true))?;
            compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
            compressor.set_parameter(CParameter::DictIdFlag(false))?;
            Ok(compressor)
        });
        let Ok(mut compressor) = compressor else { return objects.iter().map(|_| None).collect() };
        let mut frame = Vec::new();
        let mut pack = |object: &Arc<Object>| {
            let Body::Plain(json) = &object.body else { return None };
            frame.clear();
            frame.reserve(zstd::zstd_safe::compress_bound(json.len()));
            compressor.compress_to_buffer(json, &mut frame).ok()?;
            let uid = object.uid();
            let held = uid.len() + frame.len() + OVERHEAD_BYTES;
            // Below a fifth, the time to unpack is not worth it.
            if held * 5 > json.len() * 4 {
                return None;
            }
            let packed = Packed {
                dictionary: self.dictionary.clone(),
                data: [uid.as_bytes(), &frame].concat().into(),
                labels: share(object.labels_json()),
                len: u32::try_from(json.len()).ok()?,
                uid_len: u32::try_from(uid.len()).ok()?,
            };
            let same = packed.unpack_anew().is_ok_and(|unpacked| unpacked == **json);
            same.then(|| Arc::new(object.with_body(Body::Packed(packed))))
        };
        objects.iter().map(&mut pack).collect()
    }
}

impl fmt::Debug for Press {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Press({:?})", self.dictionary)
    }
}

// === impl Packed ===

impl Packed {
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

    fn unpack_anew(&self) -> Result<Vec<u8>, Damaged> {
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

#[cfg(test)]
#[path = "packed_tests.rs"]
mod tests;
