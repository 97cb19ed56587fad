//! Makes the JSON of objects again from its shorter forms ([`super::shorthand`]).
//!
//! A list expands each of its objects, and an object may have a hundred values of a few bytes. So literal text before a mark that is near,
//! and digits, are written in steps of 16 bytes. A step may write too much, and what follows overwrites the excess. Where there is room
//! for fewer than 16 bytes, only what is needed is written.

use std::fmt;
use std::io::Write as _;
use std::ops::Range;

use uuid::Uuid;
use wide::u8x16;

use super::name_parts::{PARTS_MAX, ends_of};
use super::places::{Places, Span};
use super::shorthand::{DIGITS_MIN, Held, MARK, NUMBERED_MAX, STEP, TIME_BITS, form};

/// Behind the last form of a part of the name.
const PARTS_END: u8 = form::PART + PARTS_MAX;

// The letters of other forms follow.
const _: () = assert!(MARK < form::PART && PARTS_END <= b'A');

/// Bytes of text that are searched for a mark step by step. Marks are often a few bytes apart. For texts that short, one call that
/// searches and another that copies would take longer.
const NEAR: usize = 2 * STEP;

/// Makes JSON again, and keeps its buffers for the next.
#[derive(Default)]
pub(super) struct Expander {
    /// Behind the JSON that was made last there are bytes of earlier ones.
    json: Vec<u8>,
    numbered: Vec<Range<usize>>,
    part_ends: Vec<usize>,
}

/// The JSON so far, and what is left to be read.
struct Expansion<'e> {
    text: &'e [u8],
    values: &'e [u8],
    json: &'e mut [u8],
    /// The JSON up to here is written. Never beyond the JSON's length.
    end: usize,
    /// Where the JSON has the texts of uid, version and labels that have a mark.
    places: Places,
    /// Where the JSON has the values that can be referred to.
    numbered: &'e mut Vec<Range<usize>>,
    /// Where the parts of the name end. Empty until one is needed.
    part_ends: &'e mut Vec<usize>,
}

// === impl Expander ===

impl Expander {
    /// Makes the JSON again from the text with marks, the values, and the texts that are held beside them. `len` is its length. The places
    /// are those of the marks of uid, version and labels.
    ///
    /// `None` if they do not make JSON of this length. The caller's checksum finds other damage.
    pub(super) fn expand(
        &mut self,
        text: &[u8],
        values: &[u8],
        held: Held<'_>,
        len: usize,
    ) -> Option<(&[u8], Places)> {
        if self.json.len() < len {
            // A new buffer: to grow the old one would copy it, and write zeros.
            self.json = vec![0; len];
        }
        self.numbered.clear();
        self.part_ends.clear();
        let json = &mut self.json[..len];
        let (places, numbered, part_ends) = (Places::default(), &mut self.numbered, &mut self.part_ends);
        let mut expansion = Expansion { text, values, json, end: 0, places, numbered, part_ends };
        while let Some(form) = expansion.put_text_and_digits()? {
            expansion.put_form(form, held)?;
        }
        let is_whole = expansion.text.is_empty() && expansion.values.is_empty() && expansion.end == len;
        let places = expansion.places;
        is_whole.then_some((&self.json[..len], places))
    }

    /// Gives the buffer for JSON back if it has more bytes.
    pub(super) fn shrink_to(&mut self, bytes_max: usize) {
        if self.json.len() > bytes_max {
            self.json = Vec::new();
        }
    }
}

// === impl Expansion ===

impl Expansion<'_> {
    /// Writes the text and the digits before the next mark of another form, and returns that form; `Some(None)` at the end of the text.
    /// `None` for damaged bytes.
    ///
    /// Most marks are of digits. Their loop has variables of its own, so that the compiler can keep them in registers.
    fn put_text_and_digits(&mut self) -> Option<Option<u8>> {
        let (mut text, mut values, mut end) = (self.text, self.values, self.end);
        let found = loop {
            (text, end) = put_until_mark(text, self.json, end)?;
            let Some((&[MARK, form], rest)) = text.split_first_chunk() else { break None };
            text = rest;
            let Some(more) = form.checked_sub(form::DIGITS) else { break Some(form) };
            let start = end;
            (values, end) = put_digits(DIGITS_MIN + usize::from(more), values, self.json, end)?;
            add_number(self.numbered, start..end);
        };
        (self.text, self.values, self.end) = (text, values, end);
        Some(found)
    }

    /// Writes what a mark of this form stands for.
    fn put_form(&mut self, form: u8, held: Held<'_>) -> Option<()> {
        match form {
            form::NAME => self.put_quoted(held.key.name()),
            form::NAMESPACE => self.put_quoted(held.key.namespace()),
            form::UID | form::VERSION | form::LABELS => self.put_identity(form, held),
            form::AGAIN => {
                let (number, rest) = self.text.split_first()?;
                self.text = rest;
                self.put_again(self.numbered.get(usize::from(*number))?.clone())
            }
            form::NAMESPACE_WORD => self.put_bytes(held.key.namespace().as_bytes()),
            form::PART..PARTS_END => self.put_part(held.key.name(), usize::from(form - form::PART)),
            form => {
                let start = self.end;
                self.put_value(form)?;
                add_number(self.numbered, start..self.end);
                Some(())
            }
        }
    }

    /// Writes uid, version or labels, and notes their place.
    fn put_identity(&mut self, form: u8, held: Held<'_>) -> Option<()> {
        let start = self.end as u32;
        let place = match form {
            form::UID => {
                self.put_bytes(held.uid.as_bytes())?;
                &mut self.places.uid
            }
            form::VERSION => {
                self.put_formatted(format_args!("{}", held.version))?;
                &mut self.places.version
            }
            _ => {
                held.labels.each_piece(|piece| self.put_bytes(piece.as_bytes()))?;
                &mut self.places.labels
            }
        };
        *place = Span { start, end: self.end as u32 };
        Some(())
    }

    /// Writes the part of a name with this number.
    fn put_part(&mut self, name: &str, number: usize) -> Option<()> {
        if self.part_ends.is_empty() {
            self.part_ends.extend(ends_of(name));
        }
        self.put_bytes(name.as_bytes().get(..*self.part_ends.get(number)?)?)
    }

    /// Writes the first of the values, of this form.
    fn put_value(&mut self, form: u8) -> Option<()> {
        match form {
            form::UUID => {
                let uuid = Uuid::from_bytes(*self.take_values()?).hyphenated();
                self.put_bytes(uuid.encode_lower(&mut Uuid::encode_buffer()).as_bytes())
            }
            form::TIME => {
                self.put_time()?;
                self.put_bytes(b"Z")
            }
            form::MICRO_TIME => {
                self.put_time()?;
                let &[low, middle, high] = self.take_values()?;
                self.put_formatted(format_args!(".{:06}Z", u32::from_le_bytes([low, middle, high, 0])))
            }
            form::ADDRESS => {
                let [first, others @ ..]: [u8; 4] = *self.take_values()?;
                self.put_decimal(first)?;
                for part in others {
                    self.put_bytes(b".")?;
                    self.put_decimal(part)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// The next bytes of the values, which are read now.
    fn take_values<const LEN: usize>(&mut self) -> Option<&[u8; LEN]> {
        let (bytes, rest) = self.values.split_first_chunk()?;
        self.values = rest;
        Some(bytes)
    }

    /// Writes a time without its end.
    fn put_time(&mut self) -> Option<()> {
        let mut time = u32::from_le_bytes(*self.take_values()?);
        // The years are counted from this one.
        let mut text = *b"2000-00-00T00:00:00";
        for (bits, at) in TIME_BITS.into_iter().zip([2, 5, 8, 11, 14, 17]).rev() {
            let part = time & ((1 << bits) - 1);
            time >>= bits;
            text[at] += (part / 10) as u8;
            text[at + 1] += (part % 10) as u8;
        }
        self.put_bytes(&text)
    }

    fn put_decimal(&mut self, number: u8) -> Option<()> {
        let digits = [number / 100, number / 10 % 10, number % 10].map(|digit| b'0' + digit);
        let zeros = usize::from(number < 100) + usize::from(number < 10);
        self.put_bytes(&digits[zeros..])
    }

    /// Writes what stands at an earlier place.
    fn put_again(&mut self, range: Range<usize>) -> Option<()> {
        let end = self.end.checked_add(range.len()).filter(|end| *end <= self.json.len())?;
        self.json.copy_within(range, self.end);
        self.end = end;
        Some(())
    }

    fn put_quoted(&mut self, text: &str) -> Option<()> {
        self.put_bytes(b"\"")?;
        self.put_bytes(text.as_bytes())?;
        self.put_bytes(b"\"")
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Option<()> {
        self.end = put(bytes, self.json, self.end)?;
        Some(())
    }

    fn put_formatted(&mut self, arguments: fmt::Arguments<'_>) -> Option<()> {
        let mut room = self.json.get_mut(self.end..)?;
        let before = room.len();
        room.write_fmt(arguments).ok()?;
        self.end += before - room.len();
        Some(())
    }
}

/// Gives a value the next number, if there is one.
#[inline(always)]
fn add_number(numbered: &mut Vec<Range<usize>>, value: Range<usize>) {
    if numbered.len() < NUMBERED_MAX {
        numbered.push(value);
    }
}

/// Writes bytes at this place, and returns the place behind them. `None` if there is no room for them: the JSON's length is known.
#[inline(always)]
fn put(bytes: &[u8], json: &mut [u8], at: usize) -> Option<usize> {
    let end = at.checked_add(bytes.len())?;
    json.get_mut(at..end)?.copy_from_slice(bytes);
    Some(end)
}

/// Writes a text up to its first mark. Returns the text from the mark on, and the place behind what is written.
#[inline(always)]
fn put_until_mark<'t>(mut text: &'t [u8], json: &mut [u8], mut at: usize) -> Option<(&'t [u8], usize)> {
    for _ in 0..NEAR / STEP {
        let (Some(next), Some(room)) = (text.first_chunk::<STEP>(), json[at..].first_chunk_mut()) else {
            break;
        };
        *room = *next;
        let marks = u8x16::new(*next).simd_eq(u8x16::splat(MARK)).to_bitmask();
        if marks != 0 {
            let len = marks.trailing_zeros() as usize;
            return Some((&text[len..], at + len));
        }
        text = &text[STEP..];
        at += STEP;
    }
    let len = memchr::memchr(MARK, text).unwrap_or(text.len());
    Some((&text[len..], put(&text[..len], json, at)?))
}

/// Writes this number of digits, two for each byte of the values. Returns the other values, and the place behind what is written.
#[inline(always)]
fn put_digits<'v>(
    len: usize,
    mut values: &'v [u8],
    json: &mut [u8],
    mut at: usize,
) -> Option<(&'v [u8], usize)> {
    let rest = values.get(len.div_ceil(2)..)?;
    let mut left = len;
    loop {
        let digits = hex_of(values.first_chunk().copied().unwrap_or_else(|| padded(values)));
        let count = left.min(STEP);
        at = match json[at..].first_chunk_mut() {
            Some(room) => {
                *room = digits;
                at + count
            }
            None => put(&digits[..count], json, at)?,
        };
        left -= count;
        if left == 0 {
            return Some((rest, at));
        }
        values = &values[STEP / 2..];
    }
}

/// These bytes and zeros behind them.
#[cold]
fn padded(bytes: &[u8]) -> [u8; STEP / 2] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or_default())
}

/// The hexadecimal digits of bytes.
#[inline(always)]
fn hex_of(bytes: [u8; STEP / 2]) -> [u8; STEP] {
    const LOW: u64 = u64::from_le_bytes([0x0f; 8]);
    let bytes = u64::from_le_bytes(bytes);
    let lanes = |bytes: u64| u8x16::new(u128::from(bytes).to_le_bytes());
    let digits = u8x16::unpack_low(lanes(bytes >> 4 & LOW), lanes(bytes & LOW));
    // At least 10.
    let is_letter = digits.max(u8x16::splat(10)).simd_eq(digits);
    (digits + u8x16::splat(b'0') + (is_letter & u8x16::splat(b'a' - 10 - b'0'))).to_array()
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
