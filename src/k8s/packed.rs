//! The JSON of objects packed with zstd and a dictionary, which makes a tenth of their JSON or less where objects of a kind are alike.
//!
//! Why zstd: it is the codec of that ratio which unpacks a few kilobytes in microseconds, it takes a dictionary, and it is
//! compiled into informerd already for the compression of answers. The frames hold no checksum, length or number of a dictionary: what
//! stands before a frame has the checksum, and the object knows the others. What is packed is not the JSON but its text in shorter
//! forms ([`super::shorthand`]). The object's uid stands before it as 16 bytes, where it is read without unpacking.

use std::borrow::{Borrow, Cow};
use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use triomphe::ThinArc;
use uuid::Uuid;
use zstd::dict::{DecoderDictionary, from_samples};
use zstd::zstd_safe::DCtx;

use super::object::{Body, Object};
use super::shorthand::{CommonValues, Held, expand};
use super::{Key, ResourceVersion};

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
    /// Values of objects that are in its text, or that are frequent enough to be.
    common_values: CommonValues,
    /// Whether bytes that were packed by it could not be unpacked.
    damaged: AtomicBool,
    decoder: DecoderDictionary<'static>,
}

/// The JSON of an object, packed.
#[derive(Clone)]
pub(super) struct Packed {
    /// The length of the uid's text, or [`UUID`]; the uid; the number of bytes of the values; the values; then a zstd frame of the text
    /// with marks.
    data: ThinArc<Head, u8>,
    common: Common,
}

/// What is known of the JSON of a packed object.
struct Head {
    /// Its bytes.
    len: u32,
    /// Its CRC-32, which finds what was damaged.
    checksum: u32,
}

/// What packed objects have in common, as those of one owner do: the dictionary, and the JSON object `metadata.labels`. Two are the same
/// when their labels are: it is for a set of those with one dictionary.
#[derive(Clone)]
pub(super) struct Common(ThinArc<Arc<Dictionary>, u8>);

/// In the place of the length of a uid: it is held as the 16 bytes of a UUID, as API servers give them.
const UUID: u8 = u8::MAX;

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
    /// Texts with marks, and what [`expand`] uses.
    text: Vec<u8>,
    numbered: Vec<Range<usize>>,
    /// What was unpacked last, as an object is matched, hashed and written one after the other. The data is held, so that
    /// its address stays its own.
    last: Option<(ThinArc<Head, u8>, Bytes)>,
}

thread_local! {
    static UNPACKER: RefCell<Unpacker> = RefCell::new(Unpacker::new());
}

// === impl Dictionary ===

impl Dictionary {
    /// Makes a dictionary of at most `bytes_max` bytes from objects of one kind that are not packed. If they hold too little text for
    /// zstd to choose from ([`CHOICE_MIN`]), the text of the first ones is the dictionary. `None` if all are packed.
    pub fn train(objects: &[Arc<Object>], bytes_max: usize) -> Option<Self> {
        let plain = |object: &Arc<Object>| match &object.body {
            Body::Plain(json) => Some(json.clone()),
            Body::Packed(_) => None,
        };
        let texts: Vec<_> = objects.iter().filter_map(plain).collect();
        let common_values = CommonValues::of(texts.iter().map(|json| &json[..]));
        drop(texts);
        let shortened = objects.iter().filter_map(|object| object.shortened(&common_values));
        let samples: Vec<_> = shortened.map(|shortened| shortened.text).collect();
        if samples.is_empty() {
            return None;
        }
        let has_choice = samples.iter().map(|sample| sample.len()).sum::<usize>() >= CHOICE_MIN * bytes_max;
        let chosen = has_choice.then(|| from_samples(&samples, bytes_max).ok()).flatten();
        let bytes = chosen.unwrap_or_else(|| {
            let mut text = Vec::with_capacity(bytes_max);
            for sample in samples {
                let room = bytes_max - text.len();
                text.extend_from_slice(&sample[..sample.len().min(room)]);
            }
            text
        });
        Some(Self {
            decoder: DecoderDictionary::copy(&bytes),
            bytes: bytes.into(),
            common_values,
            damaged: AtomicBool::new(false),
        })
    }

    /// Whether objects that were packed by it were found damaged since this was last asked.
    pub fn take_damaged(&self) -> bool {
        self.damaged.swap(false, Ordering::AcqRel)
    }

    /// The text by which objects are packed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The values that are left in the text.
    pub(super) fn common_values(&self) -> &CommonValues {
        &self.common_values
    }

    /// What it costs, about, in bytes: its text twice, zstd's tables, and common values.
    pub fn held_bytes(&self) -> usize {
        2 * self.bytes.len() + (27 << 10) + self.common_values.held_bytes()
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.bytes.len())
    }
}

// === impl Common ===

impl Common {
    pub(super) fn new(dictionary: Arc<Dictionary>, labels: &str) -> Self {
        Self(ThinArc::from_header_and_slice(dictionary, labels.as_bytes()))
    }

    pub(super) fn dictionary(&self) -> &Arc<Dictionary> {
        &self.0.header.header
    }

    fn labels(&self) -> &str {
        std::str::from_utf8(&self.0.slice).unwrap_or_default()
    }
}

impl Borrow<str> for Common {
    fn borrow(&self) -> &str {
        self.labels()
    }
}

impl PartialEq for Common {
    fn eq(&self, other: &Self) -> bool {
        self.labels() == other.labels()
    }
}

impl Eq for Common {}

impl Hash for Common {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.labels().hash(state);
    }
}

// === impl Packed ===

impl Packed {
    /// The JSON of an object: its values in shorter forms, and the zstd frame of the rest, made with the dictionary in `common`. `None`
    /// if a length is beyond what is held of it.
    pub(super) fn new(common: Common, uid: &str, values: &[u8], frame: &[u8], json: &[u8]) -> Option<Self> {
        let head = Head { len: u32::try_from(json.len()).ok()?, checksum: crc32fast::hash(json) };
        let is_canonical = |uuid: &Uuid| *uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *uid;
        let uuid = Uuid::try_parse(uid).ok().filter(is_canonical);
        let (uid_form, uid) = match &uuid {
            Some(uuid) => (UUID, &uuid.as_bytes()[..]),
            None => (u8::try_from(uid.len()).ok().filter(|len| *len != UUID)?, uid.as_bytes()),
        };
        let mut data = [&[uid_form], uid].concat();
        write_len(values.len(), &mut data);
        data.extend_from_slice(values);
        data.extend_from_slice(frame);
        Some(Self { data: ThinArc::from_header_and_slice(head, &data), common })
    }

    pub(super) fn len(&self) -> usize {
        self.head().len as usize
    }

    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Head>() + self.data.slice.len()
    }

    pub(super) fn uid(&self) -> Cow<'_, str> {
        self.uid_and_rest().map(|(uid, _)| uid).unwrap_or_default()
    }

    /// The uid, and what stands after it; `None` where damaged bytes have neither.
    fn uid_and_rest(&self) -> Option<(Cow<'_, str>, &[u8])> {
        let (form, rest) = self.data.slice.split_first()?;
        if *form == UUID {
            let (uuid, rest) = rest.split_first_chunk()?;
            return Some((Uuid::from_bytes(*uuid).hyphenated().to_string().into(), rest));
        }
        let (uid, rest) = rest.split_at_checked(usize::from(*form))?;
        Some((std::str::from_utf8(uid).ok()?.into(), rest))
    }

    fn head(&self) -> &Head {
        &self.data.header.header
    }

    pub(super) fn labels(&self) -> &str {
        self.common.labels()
    }

    pub(super) fn dictionary(&self) -> &Arc<Dictionary> {
        self.common.dictionary()
    }

    /// The JSON of the object with this key and version. One that is asked for again by the same thread is not unpacked twice.
    pub(super) fn unpack(&self, key: &Key, version: &ResourceVersion) -> Result<Bytes, Damaged> {
        UNPACKER.with_borrow_mut(|unpacker| {
            if let Some((data, json)) = &unpacker.last
                && std::ptr::eq(data.as_ptr(), self.data.as_ptr())
            {
                return Ok(json.clone());
            }
            let json = Bytes::from(unpacker.unpack(self, key, version)?);
            if json.len() <= REMEMBERED_BYTES_MAX {
                unpacker.last = Some((self.data.clone(), json.clone()));
            }
            Ok(json)
        })
    }

    /// The JSON, unpacked even if this thread has just done so.
    pub(super) fn unpack_anew(&self, key: &Key, version: &ResourceVersion) -> Result<Vec<u8>, Damaged> {
        UNPACKER.with_borrow_mut(|unpacker| unpacker.unpack(self, key, version))
    }

    /// The same with another byte at a place.
    #[cfg(test)]
    pub(super) fn damaged(&self, at: usize, mask: u8) -> Self {
        let mut data = self.data.slice.to_vec();
        let at = at % data.len();
        data[at] ^= mask;
        let &Head { len, checksum } = self.head();
        Self { data: ThinArc::from_header_and_slice(Head { len, checksum }, &data), ..self.clone() }
    }
}

// === impl Unpacker ===

impl Unpacker {
    fn new() -> Self {
        Self { context: DCtx::create(), text: Vec::new(), numbered: Vec::new(), last: None }
    }

    fn unpack(&mut self, packed: &Packed, key: &Key, version: &ResourceVersion) -> Result<Vec<u8>, Damaged> {
        let json = self.try_unpack(packed, key, version);
        if self.text.capacity() > REMEMBERED_BYTES_MAX {
            self.text = Vec::new();
        }
        json.ok_or_else(|| {
            packed.dictionary().damaged.store(true, Ordering::Release);
            DAMAGES.fetch_add(1, Ordering::AcqRel);
            Damaged
        })
    }

    /// The JSON; `None` if the packed bytes are damaged.
    fn try_unpack(&mut self, packed: &Packed, key: &Key, version: &ResourceVersion) -> Option<Vec<u8>> {
        let (uid, rest) = packed.uid_and_rest()?;
        let (values_len, rest) = read_len(rest)?;
        let (values, frame) = rest.split_at_checked(values_len)?;
        // A mark is never longer than the text in the place of which it stands.
        self.text.clear();
        self.text.reserve(packed.len());
        let dictionary = packed.dictionary().decoder.as_ddict();
        self.context.decompress_using_ddict(&mut self.text, frame, dictionary).ok()?;
        let held = Held { key, uid: &uid, version, labels: packed.labels() };
        let json = expand(&self.text, values, held, packed.len(), &mut self.numbered)?;
        // Beside the checksum, what the rest of the program relies on.
        let is_whole = crc32fast::hash(&json) == packed.head().checksum;
        (is_whole && std::str::from_utf8(&json).is_ok()).then_some(json)
    }
}

/// Writes a length in as few bytes as it needs, seven bits each, the lowest first. Each but the last has the highest bit set.
fn write_len(mut len: usize, data: &mut Vec<u8>) {
    while len >= 0x80 {
        data.push(len as u8 | 0x80);
        len >>= 7;
    }
    data.push(len as u8);
}

/// The length at the start of the data, and what stands after it.
fn read_len(data: &[u8]) -> Option<(usize, &[u8])> {
    let mut len = 0;
    for (at, byte) in data.iter().enumerate().take(5) {
        len |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((len, &data[at + 1..]));
        }
    }
    None
}
