//! Each object has texts of its own, such as identifiers. Here they get shorter forms, and zstd packs the rest. [`super::expand`]
//! makes the JSON of them again.
//!
//! zstd needs a byte for one or two characters of an identifier, and a reference to an earlier text on each side of it. Here
//! identifiers become their bytes: 16 for a UUID, one for two digits of a hexadecimal number, four for a time in seconds or an address.
//! They stand one after the other beside the text. A mark of two bytes replaces each of them, the same in every object. If an object has
//! a value twice, the second mark has the number of the first. Texts that are held beside the packed JSON anyway, as the name, are left
//! out, and so are parts of the name ([`parts_in`]).
//!
//! A value that many objects have is better left in the text: the dictionary holds it once.

use std::cmp::Reverse;
use std::hash::BuildHasher as _;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};
use memchr::memmem;
use uuid::Uuid;

use super::labels::Labels;
use super::name_parts::{parts_in, words_in};
use super::words::{self, Digits, Word, Words};
use super::{Key, ResourceVersion};

/// Begins each mark. JSON never has this byte: control characters in strings are escaped.
pub(super) const MARK: u8 = 1;

/// The second byte of a mark: which text is left out, or which form a value has.
pub(super) mod form {
    /// The name, as a JSON string.
    pub(in crate::k8s) const NAME: u8 = b'N';
    /// The namespace, as a JSON string.
    pub(in crate::k8s) const NAMESPACE: u8 = b'S';
    /// The namespace, as a word of its own.
    pub(in crate::k8s) const NAMESPACE_WORD: u8 = b's';
    /// A part of the name, as a word of its own: this and the number of the part. The whole name has 0, and the last one is below
    /// [`PARTS_MAX`](super::super::name_parts::PARTS_MAX).
    pub(in crate::k8s) const PART: u8 = 0x10;
    pub(in crate::k8s) const UID: u8 = b'U';
    pub(in crate::k8s) const VERSION: u8 = b'V';
    pub(in crate::k8s) const LABELS: u8 = b'L';
    /// A value that came before. Its number follows as a byte.
    pub(in crate::k8s) const AGAIN: u8 = b'A';
    pub(in crate::k8s) const UUID: u8 = b'u';
    /// `2026-11-27T10:57:30Z`, in 32 bits: see [`super::TIME_BITS`].
    pub(in crate::k8s) const TIME: u8 = b't';
    /// The same with microseconds, in 24 bits more: `2026-11-27T10:57:30.000001Z`.
    pub(in crate::k8s) const MICRO_TIME: u8 = b'm';
    /// An IPv4 address, in four bytes.
    pub(in crate::k8s) const ADDRESS: u8 = b'i';
    /// Hexadecimal digits, two a byte: this and the number of digits above [`super::DIGITS_MIN`].
    pub(in crate::k8s) const DIGITS: u8 = 0x80;
}

/// Fewest digits that are worth a mark.
pub(super) const DIGITS_MIN: usize = words::LEN_MIN;

/// Most digits of which a mark can say the number.
const DIGITS_MAX: usize = DIGITS_MIN + (u8::MAX - form::DIGITS) as usize;

/// Fewest digits of a number that is hexadecimal: shorter ones are parts of words.
const HEX_MIN: usize = 8;

/// Most digits of a number that is decimal. Longer ones are patterns, which zstd packs well.
const DECIMAL_MAX: usize = 19;

/// Number of values that can be referred to.
pub(super) const NUMBERED_MAX: usize = u8::MAX as usize;

/// Bytes that are copied at once where marks are near to each other.
pub(super) const STEP: usize = 16;

/// Slots for the numbers of values.
const SLOTS: usize = 512;

// A search for a value ends at a free slot.
const _: () = assert!(SLOTS > NUMBERED_MAX);

/// A value is common if one of this number of objects has it, and at least three have it.
const COMMON_SHARE: usize = 64;

/// Most common values of a dictionary. There are rarely more than a hundred.
const COMMON_MAX: usize = 1024;

/// Texts of an object that are held beside its packed JSON.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pub(super) key: &'a Key,
    pub(super) uid: &'a str,
    pub(super) version: &'a ResourceVersion,
    pub(super) labels: Labels<'a>,
}

/// Where uid, version and labels are in the JSON.
pub(super) struct HeldAt {
    pub(super) uid: Range<usize>,
    pub(super) version: Range<usize>,
    pub(super) labels: Range<usize>,
}

/// Values that many objects have, by their hashes. Should two values have one hash, a value is packed less well.
#[derive(Default)]
pub(super) struct CommonValues {
    hashes: HashTable<u64>,
    hasher: DefaultHashBuilder,
}

/// An object's JSON in shorter forms.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortened {
    /// The JSON with marks.
    pub(super) text: Vec<u8>,
    /// The values, in their order.
    pub(super) values: Vec<u8>,
    /// Whether marks replace uid, version and, if there are any, labels.
    pub(super) marks_tell_places: bool,
}

/// A value of the JSON and its form.
enum Value {
    Uuid(Uuid),
    Time(u32),
    MicroTime(u32, u32),
    Address([u8; 4]),
    Digits,
}

/// Writes a [`Shortened`].
struct Shortener<'a> {
    json: &'a [u8],
    words: Words<'a>,
    common: &'a CommonValues,
    shortened: Shortened,
    /// The JSON up to here is written.
    written: usize,
    numbers: &'a mut Numbers,
}

/// The values of a JSON text that can be referred to. For reuse.
pub(super) struct Numbers {
    /// Where each of them first stands in the JSON, and its hash.
    values: Vec<(Range<usize>, u64)>,
    /// Numbers plus one, each in the first free slot from the one on that its hash names. An object may have a hundred values or more, and
    /// this takes less time for each than a table that can grow.
    slots: [u8; SLOTS],
}

/// Shortens the JSON of an object. `None` for a text that has the byte of marks, which is no JSON.
pub(super) fn shorten(
    json: &[u8],
    held: Held<'_>,
    at: HeldAt,
    common: &CommonValues,
    numbers: &mut Numbers,
) -> Option<Shortened> {
    if memchr::memchr(MARK, json).is_some() {
        return None;
    }
    numbers.clear();
    let mut shortener = Shortener {
        json,
        words: Words::of(json),
        common,
        shortened: Shortened {
            text: Vec::with_capacity(json.len() + STEP),
            values: Vec::new(),
            marks_tell_places: false,
        },
        written: 0,
        numbers,
    };
    let mut unmarked = 2 + usize::from(!at.labels.is_empty());
    for (text, form) in held.places(json, at) {
        // A label's value may be the name.
        if text.start >= shortener.written {
            shortener.values_until(text.start);
            shortener.mark(text, form);
            unmarked -= usize::from(matches!(form, form::UID | form::VERSION | form::LABELS));
        }
    }
    shortener.shortened.marks_tell_places = unmarked == 0;
    shortener.values_until(json.len());
    shortener.write_until(json.len());
    Some(shortener.shortened)
}

// === impl Held ===

impl Held<'_> {
    /// Where the JSON has these texts, in order. Some may overlap.
    fn places(&self, json: &[u8], at: HeldAt) -> Vec<(Range<usize>, u8)> {
        let mut places = Vec::with_capacity(32);
        let mut put = |text: &str, at: Range<usize>, form| {
            // A mark has two bytes, and saves nothing of a text that short.
            if text.len() > 2 && json.get(at.clone()) == Some(text.as_bytes()) {
                places.push((at, form));
            }
        };
        put(self.uid, at.uid, form::UID);
        put(&self.version.to_string(), at.version, form::VERSION);
        put(&self.labels.json(), at.labels, form::LABELS);
        for (text, form) in [(self.key.name(), form::NAME), (self.key.namespace(), form::NAMESPACE)] {
            if text.is_empty() {
                continue;
            }
            let string = format!("\"{text}\"");
            let found = memmem::find_iter(json, string.as_bytes());
            places.extend(found.map(|start| (start..start + string.len(), form)));
        }
        places.extend(words_in(self.key.namespace(), json).map(|at| (at, form::NAMESPACE_WORD)));
        let parts = parts_in(self.key.name(), json);
        places.extend(parts.map(|(at, number)| (at, form::PART + number)));
        // Of several texts at one place, the longest is taken. Of two that are equally long, it is the namespace, which all its objects have.
        places.sort_unstable_by_key(|(at, form)| (at.start, Reverse(at.end), Reverse(*form)));
        places
    }
}

// === impl CommonValues ===

impl CommonValues {
    /// The values that many of these texts have.
    pub(super) fn of<'a>(texts: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let mut common = Self::default();
        let enough = (texts.len() / COMMON_SHARE).max(3);
        let mut counts: HashMap<u64, usize> = HashMap::new();
        let mut once = HashSet::new();
        for text in texts {
            once.clear();
            let (mut words, mut at) = (Words::of(text), 0);
            while let Some((found, _)) = next_value(text, &mut words, at..text.len()) {
                at = found.end;
                once.insert(common.hasher.hash_one(&text[found]));
            }
            for hash in &once {
                *counts.entry(*hash).or_default() += 1;
            }
        }
        let mut often: Vec<_> = counts.into_iter().filter(|(_, count)| *count >= enough).collect();
        often.sort_unstable_by_key(|(_, count)| Reverse(*count));
        for (hash, _) in often.into_iter().take(COMMON_MAX) {
            common.hashes.insert_unique(hash, hash, |hash| *hash);
        }
        common
    }

    /// Whether many objects have the value with this hash.
    fn has(&self, hash: u64) -> bool {
        self.hashes.find(hash, |common| *common == hash).is_some()
    }

    /// What they cost, about, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.hashes.allocation_size()
    }
}

// === impl Numbers ===

impl Default for Numbers {
    fn default() -> Self {
        Self { values: Vec::new(), slots: [0; SLOTS] }
    }
}

impl Numbers {
    fn clear(&mut self) {
        self.values.clear();
        self.slots.fill(0);
    }

    /// The number of this value of the JSON. A value that has none gets the next one, if there is one left.
    fn find_or_add(&mut self, json: &[u8], value: &Range<usize>, hash: u64) -> Option<u8> {
        let mut slot = hash as usize % SLOTS;
        while let Some(number) = self.slots[slot].checked_sub(1) {
            let (place, its_hash) = &self.values[usize::from(number)];
            if *its_hash == hash && json[place.clone()] == json[value.clone()] {
                return Some(number);
            }
            slot = (slot + 1) % SLOTS;
        }
        if self.values.len() < NUMBERED_MAX {
            self.values.push((value.clone(), hash));
            self.slots[slot] = self.values.len() as u8;
        }
        None
    }
}

// === impl Shortener ===

impl Shortener<'_> {
    /// Shortens the values up to a place of the JSON.
    fn values_until(&mut self, end: usize) {
        let mut at = self.written;
        while let Some((found, value)) = next_value(self.json, &mut self.words, at..end) {
            at = found.end;
            let hash = self.common.hasher.hash_one(&self.json[found.clone()]);
            if !self.common.has(hash) {
                self.shorten_value(found, &value, hash);
            }
        }
    }

    fn shorten_value(&mut self, found: Range<usize>, value: &Value, hash: u64) {
        let json = self.json;
        if let Some(number) = self.numbers.find_or_add(json, &found, hash) {
            self.mark(found, form::AGAIN);
            self.shortened.text.push(number);
            return;
        }
        let values = &mut self.shortened.values;
        let form = match value {
            Value::Uuid(uuid) => {
                values.extend_from_slice(uuid.as_bytes());
                form::UUID
            }
            Value::Time(time) => {
                values.extend_from_slice(&time.to_le_bytes());
                form::TIME
            }
            Value::MicroTime(time, micros) => {
                values.extend_from_slice(&time.to_le_bytes());
                values.extend_from_slice(&micros.to_le_bytes()[..3]);
                form::MICRO_TIME
            }
            Value::Address(address) => {
                values.extend_from_slice(address);
                form::ADDRESS
            }
            Value::Digits => {
                let (eights, rest) = json[found.clone()].as_chunks();
                eights.iter().for_each(|eight| values.extend_from_slice(&bytes_of(*eight)));
                let pair =
                    |digits: &[u8]| nibble(digits[0]) << 4 | digits.get(1).map_or(0, |digit| nibble(*digit));
                values.extend(rest.chunks(2).map(pair));
                form::DIGITS + (found.len() - DIGITS_MIN) as u8
            }
        };
        self.mark(found, form);
    }

    /// Writes a mark in the place of a text.
    fn mark(&mut self, text: Range<usize>, form: u8) {
        self.write_until(text.start);
        self.shortened.text.extend_from_slice(&[MARK, form]);
        self.written = text.end;
    }

    fn write_until(&mut self, end: usize) {
        let text = &mut self.shortened.text;
        match self.json[self.written..].first_chunk::<STEP>() {
            // To copy a number of bytes that the compiler knows takes less time than a call for a few.
            Some(step) if end - self.written <= STEP => {
                let len = text.len() + end - self.written;
                text.extend_from_slice(step);
                text.truncate(len);
            }
            _ => text.extend_from_slice(&self.json[self.written..end]),
        }
        self.written = end;
    }
}

/// The first value of a text within a range, and where it stands. `words` are those of the text.
#[inline(always)]
fn next_value(text: &[u8], words: &mut Words<'_>, mut within: Range<usize>) -> Option<(Range<usize>, Value)> {
    let text = &text[..within.end];
    while let Some(word) = words.next_within(within.clone()) {
        if let Some((len, value)) = value_of(&text[word.start..], word) {
            return Some((word.start..word.start + len, value));
        }
        within.start = word.start + word.len;
    }
    None
}

/// The value at the start of a text that begins with this word, and its length.
#[inline(always)]
fn value_of(text: &[u8], Word { len, digits, .. }: Word) -> Option<(usize, Value)> {
    let value = match (len, text.get(len), digits) {
        (8, Some(b'-'), _) => uuid_in(text).map(|uuid| (36, Value::Uuid(uuid))),
        (4, Some(b'-'), Digits::Decimal) => time_in(text),
        (1..=3, Some(b'.'), Digits::Decimal) => address_in(text),
        _ => None,
    };
    let is_number = match digits {
        Digits::Decimal => (DIGITS_MIN..=DECIMAL_MAX).contains(&len) && text[0] != b'0',
        Digits::Letters => false,
        Digits::Both => (HEX_MIN..=DIGITS_MAX).contains(&len),
    };
    value.or_else(|| is_number.then_some((len, Value::Digits)))
}

/// A UUID in its canonical form at the start of a text.
fn uuid_in(text: &[u8]) -> Option<Uuid> {
    let text = text.get(..36)?;
    let uuid = Uuid::try_parse_ascii(text).ok()?;
    let is_canonical = uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()).as_bytes() == text;
    is_canonical.then_some(uuid)
}

/// A time at the start of a text, as Kubernetes writes `Time` and `MicroTime`.
fn time_in(text: &[u8]) -> Option<(usize, Value)> {
    let number = |at: usize, len: usize| {
        let digits = text.get(at..at + len)?;
        let is_number = digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')))
    };
    let is = |at: usize, byte: u8| text.get(at) == Some(&byte);
    if !(is(4, b'-') && is(7, b'-') && is(10, b'T') && is(13, b':') && is(16, b':')) {
        return None;
    }
    let parts = [number(0, 4)?, number(5, 2)?, number(8, 2)?, number(11, 2)?, number(14, 2)?, number(17, 2)?];
    let time = time_bits(parts)?;
    if is(19, b'Z') {
        return Some((20, Value::Time(time)));
    }
    let micros = number(20, 6).filter(|_| is(19, b'.') && is(26, b'Z'))?;
    Some((27, Value::MicroTime(time, micros)))
}

/// The bits of each part of a time: years since 2000, month, day, hour, minute, second. A calendar is not needed.
pub(super) const TIME_BITS: [u32; 6] = [6, 4, 5, 5, 6, 6];
const YEAR_MIN: u32 = 2000;

fn time_bits([year, rest @ ..]: [u32; 6]) -> Option<u32> {
    let mut time = year.checked_sub(YEAR_MIN).filter(|year| year >> TIME_BITS[0] == 0)?;
    for (part, bits) in rest.into_iter().zip(&TIME_BITS[1..]) {
        time = time << bits | Some(part).filter(|part| part >> bits == 0)?;
    }
    Some(time)
}

/// An IPv4 address in its canonical form at the start of a text.
fn address_in(text: &[u8]) -> Option<(usize, Value)> {
    let (mut address, mut at) = ([0; 4], 0);
    for (nth, part) in address.iter_mut().enumerate() {
        if nth > 0 {
            if text.get(at) != Some(&b'.') {
                return None;
            }
            at += 1;
        }
        let digits = text[at..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        let number =
            text[at..at + digits].iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        let is_canonical = digits > 0 && (digits == 1 || text[at] != b'0');
        *part = u8::try_from(number).ok().filter(|_| is_canonical)?;
        at += digits;
    }
    Some((at, Value::Address(address)))
}

/// What eight hexadecimal digits stand for, all computed at once.
fn bytes_of(digits: [u8; 8]) -> [u8; 4] {
    let digits = u64::from_le_bytes(digits);
    // As `nibble` does, in each byte.
    let nibbles = (digits & 0x0f0f_0f0f_0f0f_0f0f) + 9 * (digits >> 6 & 0x0101_0101_0101_0101);
    // The first digit of each two is the upper half of a byte, and stands below the second one.
    let bytes = (nibbles << 4 | nibbles >> 8) & 0x00ff_00ff_00ff_00ff;
    let twos = (bytes | bytes >> 8) & 0x0000_ffff_0000_ffff;
    ((twos | twos >> 16) as u32).to_le_bytes()
}

/// What a hexadecimal digit stands for. The letters' codes end in 1 to 6.
fn nibble(digit: u8) -> u8 {
    (digit & 0x0f) + 9 * (digit >> 6)
}

#[cfg(test)]
#[path = "shorthand_tests.rs"]
mod tests;
