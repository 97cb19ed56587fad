//! Finds the words of a text that may be identifiers, numbers, times or addresses.
//!
//! A word is a run of ASCII letters and digits. Few words of JSON are of interest: those of decimal digits and of `a` to `f` alone. A
//! search byte by byte would take longer than zstd does. So the text is read in blocks of [`BLOCK`] bytes, each of which becomes
//! a few masks with one bit a byte, as simdjson does in its first stage (Langdale and Lemire, "Parsing Gigabytes of JSON per Second").

use std::ops::Range;

use wide::u8x16;

/// Bytes of a block: as many as a mask has bits.
const BLOCK: usize = 64;

/// Length from which any word of digits is of interest.
pub(super) const LEN_MIN: usize = 6;

/// The words of a text that may be values.
pub(super) struct Words<'t> {
    text: &'t [u8],
    /// Where the current block begins.
    start: usize,
    current: Masks,
    next: Masks,
    /// The places in the current block where words begin that are still to be returned.
    begins: u64,
}

/// A word of decimal digits and of `a` to `f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) digits: Digits,
}

/// Which digits a word has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Digits {
    /// `0` to `9` alone.
    Decimal,
    /// `a` to `f` alone.
    Letters,
    /// Both.
    Both,
}

/// What the bytes of a block are: a bit for each, the lowest for the first.
#[derive(Clone, Copy, Default)]
struct Masks {
    /// `0` to `9`.
    decimals: u64,
    /// `0` to `9` and `a` to `f`.
    digits: u64,
    /// ASCII letters and digits.
    words: u64,
    dots: u64,
    dashes: u64,
}

/// A mask of the current block and of the next one.
#[derive(Clone, Copy)]
struct Mask {
    current: u64,
    next: u64,
}

// === impl Words ===

impl<'t> Words<'t> {
    pub(super) fn of(text: &'t [u8]) -> Self {
        let (current, next) = (Masks::at(text, 0), Masks::at(text, BLOCK));
        let mut words = Self { text, start: 0, current, next, begins: 0 };
        words.begins = words.find(false);
        words
    }

    /// The next word that begins and ends within this range. Those before it are passed over.
    ///
    /// Words of at least [`LEN_MIN`] digits are returned, those of four before a dash, and those of up to three before a dot.
    pub(super) fn next_within(&mut self, within: Range<usize>) -> Option<Word> {
        loop {
            while self.begins == 0 {
                if self.start + BLOCK >= self.text.len() {
                    return None;
                }
                self.advance();
            }
            let at = self.begins.trailing_zeros() as usize;
            if self.start + at >= within.end {
                return None;
            }
            self.begins &= self.begins - 1;
            if self.start + at < within.start {
                continue;
            }
            if let Some(word) = self.word(at).filter(|word| word.start + word.len <= within.end) {
                return Some(word);
            }
        }
    }

    fn advance(&mut self) {
        let ends_in_word = self.current.words >> (BLOCK - 1) != 0;
        self.start += BLOCK;
        (self.current, self.next) = (self.next, Masks::at(self.text, self.start + BLOCK));
        self.begins = self.find(ends_in_word);
    }

    /// Where words of interest may begin in the current block. A letter may still follow their digits.
    fn find(&self, is_in_word: bool) -> u64 {
        let Masks { digits, words, .. } = self.current;
        let begins = digits & !(words << 1 | u64::from(is_in_word));
        let digits = self.mask(|masks| masks.digits);
        let (dots, dashes) = (self.mask(|masks| masks.dots), self.mask(|masks| masks.dashes));
        let (second, third) = (digits.from(1), digits.from(2));
        let two = digits.from(0) & second;
        let three = two & third;
        let four = three & digits.from(3);
        let is_long = four & digits.from(4) & digits.from(5);
        let is_year = four & dashes.from(4);
        let is_part_of_address = dots.from(1) | second & dots.from(2) | second & third & dots.from(3);
        begins & (is_long | is_year | is_part_of_address)
    }

    /// The word that begins at a place in the current block; `None` if it has letters beyond `f`.
    fn word(&self, at: usize) -> Option<Word> {
        let start = self.start + at;
        let digits = self.mask(|masks| masks.digits).from(at);
        let decimals = self.mask(|masks| masks.decimals).from(at);
        let mut len = digits.trailing_ones() as usize;
        let within = u64::MAX.checked_shr(u64::BITS - len as u32).unwrap_or(0);
        let mut has_decimals = decimals & within != 0;
        let mut has_letters = !decimals & within != 0;
        if len == BLOCK {
            for byte in self.text.iter().skip(start + len).take_while(|byte| is_digit(**byte)) {
                len += 1;
                has_decimals |= byte.is_ascii_digit();
                has_letters |= !byte.is_ascii_digit();
            }
        }
        if self.text.get(start + len).is_some_and(u8::is_ascii_alphanumeric) {
            return None;
        }
        let digits = match (has_decimals, has_letters) {
            (true, false) => Digits::Decimal,
            (false, _) => Digits::Letters,
            (true, true) => Digits::Both,
        };
        Some(Word { start, len, digits })
    }

    fn mask(&self, mask: impl Fn(&Masks) -> u64) -> Mask {
        Mask { current: mask(&self.current), next: mask(&self.next) }
    }
}

// === impl Mask ===

impl Mask {
    /// That of the bytes from a place in the current block on, as many as a block has.
    fn from(self, at: usize) -> u64 {
        self.current >> at | self.next << 1 << (BLOCK - 1 - at)
    }
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

// === impl Masks ===

impl Masks {
    /// Those of the block that begins at a place of a text. Beyond its end there is nothing.
    #[inline(always)]
    fn at(text: &[u8], start: usize) -> Self {
        let rest = text.get(start..).unwrap_or_default();
        if let Some(block) = rest.first_chunk::<BLOCK>() {
            return Self::of(block);
        }
        let mut block = [0; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        Self::of(&block)
    }

    #[inline(always)]
    fn of(block: &[u8; BLOCK]) -> Self {
        let mut masks = Self::default();
        for (nth, bytes) in block.as_chunks::<16>().0.iter().enumerate() {
            let bytes = u8x16::new(*bytes);
            let mask = |lanes: u8x16| u64::from(lanes.to_bitmask()) << (16 * nth);
            let decimals = is_among(bytes, b'0', b'9');
            let digits = decimals | is_among(bytes, b'a', b'f');
            // The bit that makes a letter small.
            let words = decimals | is_among(bytes | u8x16::splat(0x20), b'a', b'z');
            masks.decimals |= mask(decimals);
            masks.digits |= mask(digits);
            masks.words |= mask(words);
            masks.dots |= mask(bytes.simd_eq(u8x16::splat(b'.')));
            masks.dashes |= mask(bytes.simd_eq(u8x16::splat(b'-')));
        }
        masks
    }
}

/// Which bytes are from `first` to `last`.
fn is_among(bytes: u8x16, first: u8, last: u8) -> u8x16 {
    let above = bytes - u8x16::splat(first);
    above.min(u8x16::splat(last - first)).simd_eq(above)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The words within a range of a text, found byte by byte.
    fn words_of(text: &[u8], within: Range<usize>) -> Vec<Word> {
        let mut words = Vec::new();
        let mut at = 0;
        for run in text.split_inclusive(|byte| !byte.is_ascii_alphanumeric()) {
            let start = at;
            at += run.len();
            let len = run.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
            let word = &run[..len];
            let next = run.get(len);
            let is_of_interest = len >= LEN_MIN
                || (len == 4 && next == Some(&b'-'))
                || ((1..=3).contains(&len) && next == Some(&b'.'));
            let is_within = start >= within.start && start + len <= within.end;
            if !is_of_interest || !is_within || !word.iter().all(|byte| is_digit(*byte)) {
                continue;
            }
            let decimals = word.iter().filter(|byte| byte.is_ascii_digit()).count();
            let digits = match decimals {
                0 => Digits::Letters,
                _ if decimals == len => Digits::Decimal,
                _ => Digits::Both,
            };
            words.push(Word { start, len, digits });
        }
        words
    }

    fn found(text: &[u8], within: Range<usize>) -> Vec<Word> {
        let mut words = Words::of(text);
        std::iter::from_fn(|| words.next_within(within.clone())).collect()
    }

    #[test]
    fn words_of_interest_are_found() {
        let text = b"2026-11 10.0. 123456 1234567g abcdef 12ab.x 1a2. 12345 00ff00x f00f-00";
        let of = |word: &Word| std::str::from_utf8(&text[word.start..][..word.len]).unwrap();
        let words = found(text, 0..text.len());
        assert_eq!(
            words.iter().map(of).collect::<Vec<_>>(),
            ["2026", "10", "0", "123456", "abcdef", "1a2", "f00f"]
        );
        let digits: Vec<_> = words.iter().map(|word| word.digits).collect();
        assert_eq!(digits[3..], [Digits::Decimal, Digits::Letters, Digits::Both, Digits::Both]);
    }

    #[test]
    fn a_word_may_be_longer_than_blocks() {
        for before in [0, 1, 40, 63, 64] {
            for len in [63, 64, 65, 127, 128, 129, 200, 300] {
                let mut text = vec![b' '; before];
                text.extend(std::iter::repeat_n(b'1', len - 1));
                text.push(b'a');
                let word = Word { start: before, len, digits: Digits::Both };
                assert_eq!(found(&text, 0..text.len()), [word], "{before} {len}");
                text.push(b'g');
                assert_eq!(found(&text, 0..text.len()), [], "{before} {len}");
            }
        }
    }

    #[test]
    fn words_are_returned_once_the_range_reaches_them() {
        let text = b"111111 222222 333333";
        let mut words = Words::of(text);
        assert_eq!(words.next_within(0..12), Some(Word { start: 0, len: 6, digits: Digits::Decimal }));
        // It begins within this range, but does not end there.
        assert_eq!(words.next_within(0..12), None);
        assert_eq!(words.next_within(0..13), None, "it was passed over");
        assert_eq!(words.next_within(14..20).map(|word| word.start), Some(14));
        assert_eq!(words.next_within(0..20), None);
    }

    proptest! {
        #[test]
        fn blocks_and_bytes_have_the_same_words(
            parts in prop::collection::vec(prop_oneof![
                "[0-9]{1,9}", "[0-9a-f]{1,90}", "[a-g]{1,8}", "[ .:\\-\"]{1,3}", "[A-Z@\\[`{/]{1,2}", "é", "\u{0}",
            ], 0..60),
            start in 0..80usize,
            len in 0..400usize,
        ) {
            let text = parts.concat();
            let within = start..(start + len).min(text.len());
            prop_assert_eq!(found(text.as_bytes(), within.clone()), words_of(text.as_bytes(), within));
        }
    }
}
