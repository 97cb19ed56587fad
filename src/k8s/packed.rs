//! The JSON of objects packed with zstd and a dictionary, which makes a tenth of their JSON or less where objects of a kind are alike.
//!
//! Why zstd: it is the codec of that ratio which unpacks a few kilobytes in microseconds, it takes a dictionary, and it is
//! compiled into informerd already for the compression of answers. The frames hold no checksum, length or number of a dictionary, as
//! the object's head has them. What is packed is not the JSON but its text in shorter forms ([`super::shorthand`]). The object's uid
//! stands before it as 16 bytes, where it is read without unpacking.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use triomphe::ThinArc;
use uuid::Uuid;
use zstd::dict::DecoderDictionary;
use zstd::zstd_safe::DCtx;

use super::expand::Expander;
use super::labels::{LabelTemplate, Labels};
use super::places::{Places, Span};
use super::shorthand::{CommonValues, Held, Shortened};
use super::{Key, ResourceVersion};

/// A thread keeps room for frames, texts with marks and JSON, up to this size each.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

/// Number of times that packed bytes could not be unpacked, in this process.
static DAMAGES: AtomicU64 = AtomicU64::new(0);

/// What the objects of a kind have in common, by which they are packed and unpacked.
pub struct Dictionary {
    /// What zstd packs by, packed itself. Only a press needs it. The decoder has a copy of its own.
    bytes: Box<[u8]>,
    /// Its length unpacked.
    len: usize,
    /// Its CRC-32 unpacked.
    checksum: u32,
    /// Values that many objects have. They stay in the text.
    common_values: CommonValues,
    /// Whether bytes that were packed by it could not be unpacked.
    damaged: AtomicBool,
    decoder: DecoderDictionary<'static>,
}

/// The JSON of an object, packed, as its allocation holds it.
#[derive(Clone, Copy)]
pub(super) struct PackedRef<'d> {
    /// Mostly: [`USUAL`]; the 16 bytes of the uid; the number of bytes of the values; the values; then the content of the block of a zstd
    /// frame of the text with marks.
    ///
    /// Otherwise: the length of the uid's text, or [`UUID`]; the uid; where the version, the uid and the labels stand in the JSON; the
    /// number of bytes of the values; the values; then the zstd frame, without its first four bytes.
    pub(super) data: &'d [u8],
    pub(super) common: &'d Common,
    /// Bytes of the JSON.
    pub(super) len: u32,
    /// The CRC-32 of the JSON and of the places, which finds what was damaged.
    pub(super) checksum: u32,
}

/// What stands in packed data.
struct Parts<'d> {
    uid: Uid<'d>,
    /// Where the version starts, how many bytes it has, where the uid starts, and where the labels start. How many bytes uid and labels
    /// have is known. `None`: all of them have marks.
    places: Option<[usize; 4]>,
    values: &'d [u8],
    frame: Frame<'d>,
}

/// A zstd frame as it is held.
enum Frame<'d> {
    /// Without its first four bytes.
    Whole(&'d [u8]),
    /// The content of its only block.
    Block(&'d [u8]),
}

/// A uid as it is held.
enum Uid<'d> {
    Uuid(Uuid),
    Text(&'d str),
}

/// What packed objects with the same keys of labels have in common.
pub(super) struct Template {
    pub(super) dictionary: Arc<Dictionary>,
    labels: LabelTemplate,
}

/// What packed objects with the same labels have in common, as those of one owner: their template, and the values of the labels.
#[derive(Clone)]
pub(super) struct Common(ThinArc<Arc<Template>, u8>);

/// The four bytes with which every zstd frame begins. They are not held.
const MAGIC: [u8; 4] = zstd::zstd_safe::MAGICNUMBER.to_le_bytes();

/// In the place of the length of a uid: it is held as the 16 bytes of a UUID, as API servers give them.
const UUID: u8 = u8::MAX;

/// In the place of the length of a uid: the 16 bytes of a UUID follow. No places are held, as the text has marks for uid, version and
/// labels. Of the zstd frame, only the content of its one block is held.
const USUAL: u8 = UUID - 1;

/// The head of a frame of one block as it is unpacked: none of the optional fields, and a window of 128 KiB, the most that a block may have.
const ONE_BLOCK: [u8; 2] = [0, (17 - 10) << 3];

/// The lowest bits of the head of a block: it is the last one, and it is compressed.
const LAST_COMPRESSED: u32 = 0b101;

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

/// As [`damages`], but of this thread alone. Code without an `await` compares it before and after, to learn whether it has read a damaged
/// object.
pub fn damages_of_thread() -> u64 {
    DAMAGES_OF_THREAD.get()
}

/// Raises both, for a reader of something that was made of an object which could not be unpacked.
pub fn note_damage() {
    DAMAGES.fetch_add(1, Ordering::AcqRel);
    DAMAGES_OF_THREAD.set(damages_of_thread() + 1);
}

/// A thread's means to unpack.
struct Unpacker {
    context: DCtx<'static>,
    frame: Vec<u8>,
    /// The text with marks.
    text: Vec<u8>,
    expander: Expander,
}

thread_local! {
    static UNPACKER: RefCell<Unpacker> = RefCell::new(Unpacker::new());
    static DAMAGES_OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

// === impl Dictionary ===

impl Dictionary {
    /// A dictionary of this text, or of zstd's tables and a text.
    pub(super) fn new(bytes: &[u8], common_values: CommonValues) -> Self {
        Self {
            decoder: DecoderDictionary::copy(bytes),
            bytes: zstd::bulk::compress(bytes, zstd::DEFAULT_COMPRESSION_LEVEL).unwrap_or_default().into(),
            len: bytes.len(),
            checksum: crc32fast::hash(bytes),
            common_values,
            damaged: AtomicBool::new(false),
        }
    }

    /// Whether objects that were packed by it were found damaged since this was last asked.
    pub fn take_damaged(&self) -> bool {
        self.damaged.swap(false, Ordering::AcqRel)
    }

    /// What zstd gets to pack by. Empty if it is damaged: objects are packed without it then, and get larger.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let bytes = zstd::bulk::decompress(&self.bytes, self.len);
        bytes.ok().filter(|bytes| crc32fast::hash(bytes) == self.checksum).unwrap_or_default()
    }

    /// The same with another byte at a place of what zstd packs by.
    #[cfg(test)]
    pub(super) fn damaged_at(mut self, at: usize, mask: u8) -> Self {
        let at = at % self.bytes.len();
        self.bytes[at] ^= mask;
        self
    }

    /// The values that are left in the text.
    pub(super) fn common_values(&self) -> &CommonValues {
        &self.common_values
    }

    /// What it costs, about, in bytes: its text, the same packed, zstd's tables, and common values.
    pub fn held_bytes(&self) -> usize {
        self.len + self.bytes.len() + (27 << 10) + self.common_values.held_bytes()
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.len)
    }
}

// === impl Template ===

impl Template {
    /// `labels` is as [`SplitLabels`](super::labels::SplitLabels) has it.
    pub(super) fn new(dictionary: Arc<Dictionary>, labels: &str) -> Self {
        Self { dictionary, labels: LabelTemplate::new(labels) }
    }
}

// === impl Common ===

impl Common {
    /// `values` are as [`SplitLabels`](super::labels::SplitLabels) has them.
    pub(super) fn new(template: Arc<Template>, values: &str) -> Self {
        Self(ThinArc::from_header_and_slice(template, values.as_bytes()))
    }

    pub(super) fn template(&self) -> &Arc<Template> {
        &self.0.header.header
    }

    pub(super) fn dictionary(&self) -> &Arc<Dictionary> {
        &self.template().dictionary
    }

    /// The values of the labels.
    pub(super) fn values(&self) -> &str {
        std::str::from_utf8(&self.0.slice).unwrap_or_default()
    }

    pub(super) fn labels(&self) -> Labels<'_> {
        Labels::Parts(&self.template().labels, self.values())
    }
}

// === impl PackedRef ===

/// The packed data of an object: its uid, its places unless marks tell them, its values in shorter forms, and the zstd frame of the rest.
/// `None` if it is no frame, if the uid is longer than what is held of its length, or if the version ends before it starts.
pub(super) fn data_of(uid: &str, places: Places, shortened: &Shortened, frame: &[u8]) -> Option<Vec<u8>> {
    let is_canonical = |uuid: &Uuid| *uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *uid;
    let uuid = Uuid::try_parse(uid).ok().filter(is_canonical);
    let frame = frame.strip_prefix(&MAGIC)?;
    let block = block_of(frame).filter(|_| shortened.marks_tell_places);
    let values = &shortened.values;
    if let (Some(uuid), Some(block)) = (&uuid, block) {
        let mut data = [&[USUAL], &uuid.as_bytes()[..]].concat();
        write_len(values.len(), &mut data);
        return Some([&data, &values[..], block].concat());
    }
    let (form, uid) = match &uuid {
        Some(uuid) => (UUID, &uuid.as_bytes()[..]),
        None => (u8::try_from(uid.len()).ok().filter(|len| *len < USUAL)?, uid.as_bytes()),
    };
    let mut data = [&[form], uid].concat();
    let Places { uid, version, labels } = places;
    for number in [version.start, version.end.checked_sub(version.start)?, uid.start, labels.start] {
        write_len(number as usize, &mut data);
    }
    write_len(values.len(), &mut data);
    Some([&data, &values[..], frame].concat())
}

/// The content of the only block of a frame without its first four bytes; `None` if it has several, or one that is not compressed.
fn block_of(frame: &[u8]) -> Option<&[u8]> {
    let ([fields, _window, head @ ..], block) = frame.split_first_chunk::<5>()?;
    (*fields == ONE_BLOCK[0] && *head == block_head(block.len())?).then_some(block)
}

/// The three bytes before a frame's last block, which is compressed and has this length. `None` for one too long.
fn block_head(len: usize) -> Option<[u8; 3]> {
    let [low, middle, high, over] =
        (u32::try_from(len).ok()?.checked_mul(8)? | LAST_COMPRESSED).to_le_bytes();
    (over == 0).then_some([low, middle, high])
}

impl<'d> PackedRef<'d> {
    /// What is packed of some JSON, by the dictionary in `common`. `None` if the JSON is longer than what is held of its length.
    pub(super) fn new(data: &'d [u8], common: &'d Common, json: &[u8], places: Places) -> Option<Self> {
        let (len, checksum) = (u32::try_from(json.len()).ok()?, checksum(json, places));
        Some(Self { data, common, len, checksum })
    }

    pub(super) fn uid(&self) -> Cow<'d, str> {
        match self.uid_and_rest() {
            Some((Uid::Uuid(uuid), _)) => uuid.hyphenated().to_string().into(),
            Some((Uid::Text(uid), _)) => uid.into(),
            None => Cow::default(),
        }
    }

    /// The uid, and what stands after it; `None` where damaged bytes have neither.
    fn uid_and_rest(&self) -> Option<(Uid<'d>, &'d [u8])> {
        let (form, rest) = self.data.split_first()?;
        if matches!(*form, UUID | USUAL) {
            let (uuid, rest) = rest.split_first_chunk()?;
            return Some((Uid::Uuid(Uuid::from_bytes(*uuid)), rest));
        }
        let (uid, rest) = rest.split_at_checked(usize::from(*form))?;
        Some((Uid::Text(std::str::from_utf8(uid).ok()?), rest))
    }

    /// `None` where the bytes are damaged.
    fn parts(&self) -> Option<Parts<'d>> {
        let (uid, mut rest) = self.uid_and_rest()?;
        let is_usual = self.data.first() == Some(&USUAL);
        let mut places = None;
        if !is_usual {
            for number in places.insert([0; 4]) {
                (*number, rest) = read_len(rest)?;
            }
        }
        let (values_len, rest) = read_len(rest)?;
        let (values, frame) = rest.split_at_checked(values_len)?;
        let frame = if is_usual { Frame::Block(frame) } else { Frame::Whole(frame) };
        Some(Parts { uid, places, values, frame })
    }

    /// Where in the JSON the identity stands. `marked` are the places of its marks. `None` where the bytes are damaged.
    fn places(&self, parts: &Parts<'_>, marked: Places) -> Option<Places> {
        let Some([version, version_len, uid, labels]) = parts.places else { return Some(marked) };
        let uid_len = match parts.uid {
            Uid::Uuid(_) => uuid::fmt::Hyphenated::LENGTH,
            Uid::Text(uid) => uid.len(),
        };
        let span = |start: usize, len: usize| {
            let end = start.checked_add(len).filter(|end| *end <= self.len as usize)?;
            Some(Span { start: start as u32, end: end as u32 })
        };
        Some(Places {
            uid: span(uid, uid_len)?,
            version: span(version, version_len)?,
            labels: span(labels, self.common.labels().len())?,
        })
    }

    fn dictionary(&self) -> &'d Arc<Dictionary> {
        self.common.dictionary()
    }

    /// Lends the JSON of the object with this key and version to `read`, with the places of its identity, and returns what that returns. A
    /// thread has one buffer, so `read` must not unpack an object: that would panic.
    pub(super) fn unpack<T>(
        &self,
        key: &Key,
        version: &ResourceVersion,
        read: impl FnOnce(&[u8], Places) -> T,
    ) -> Result<T, Damaged> {
        let unpacked = UNPACKER.with_borrow_mut(|unpacker| {
            let made = unpacker.unpack(self, key, version).map(|(json, places)| read(json, places));
            unpacker.shrink();
            made
        });
        unpacked.ok_or_else(|| {
            self.dictionary().damaged.store(true, Ordering::Release);
            note_damage();
            Damaged
        })
    }

    /// The data with another byte at a place.
    #[cfg(test)]
    pub(super) fn damaged(&self, at: usize, mask: u8) -> Vec<u8> {
        let mut data = self.data.to_vec();
        let at = at % data.len();
        data[at] ^= mask;
        data
    }
}

// === impl Unpacker ===

impl Unpacker {
    fn new() -> Self {
        Self { context: DCtx::create(), frame: Vec::new(), text: Vec::new(), expander: Expander::default() }
    }

    /// The JSON and the places in it; `None` if the packed bytes are damaged.
    fn unpack(
        &mut self,
        packed: &PackedRef<'_>,
        key: &Key,
        version: &ResourceVersion,
    ) -> Option<(&[u8], Places)> {
        let parts = packed.parts()?;
        let len = packed.len as usize;
        self.frame.clear();
        self.frame.extend_from_slice(&MAGIC);
        match parts.frame {
            Frame::Whole(frame) => self.frame.extend_from_slice(frame),
            Frame::Block(block) => {
                self.frame.extend_from_slice(&ONE_BLOCK);
                self.frame.extend_from_slice(&block_head(block.len())?);
                self.frame.extend_from_slice(block);
            }
        }
        self.text.clear();
        // A mark is never longer than the text that it replaces.
        self.text.reserve(len);
        let dictionary = packed.dictionary().decoder.as_ddict();
        self.context.decompress_using_ddict(&mut self.text, &self.frame, dictionary).ok()?;
        let mut uuid_text = Uuid::encode_buffer();
        let uid = match parts.uid {
            Uid::Uuid(uuid) => uuid.hyphenated().encode_lower(&mut uuid_text),
            Uid::Text(uid) => uid,
        };
        let held = Held { key, uid, version, labels: packed.common.labels() };
        let (json, marked) = self.expander.expand(&self.text, parts.values, held, len)?;
        let places = packed.places(&parts, marked)?;
        let is_whole = checksum(json, places) == packed.checksum;
        // Beside the checksum, what the rest of the program relies on. Nearly all JSON is ASCII, which is quicker to see.
        let is_text = || json.is_ascii() || std::str::from_utf8(json).is_ok();
        (is_whole && is_text()).then_some((json, places))
    }

    /// Gives back the room of large objects.
    fn shrink(&mut self) {
        for scratch in [&mut self.frame, &mut self.text] {
            if scratch.capacity() > SCRATCH_BYTES_MAX {
                *scratch = Vec::new();
            }
        }
        self.expander.shrink_to(SCRATCH_BYTES_MAX);
    }
}

/// The CRC-32 of an object's JSON, and of the places in it.
fn checksum(json: &[u8], places: Places) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(json);
    hasher.update(&places.to_bytes());
    hasher.finalize()
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
