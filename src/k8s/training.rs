//! Makes dictionaries from objects of a kind.
//!
//! zstd chooses the text of a dictionary from segments that occur in many objects (`ZDICT_trainFromBuffer`). Where objects are nearly the
//! same text, whole objects are a better dictionary: an object is a few long matches with one of them, instead of many short ones. It gets
//! smaller, and is unpacked faster. Which is better depends on the kind. So several dictionaries are made, and the one that makes other
//! objects smallest is taken.

use zstd::dict::{EncoderDictionary, from_samples};

use super::Object;
use super::packed::Dictionary;
use super::press::{LEVEL, compressor, shortened, write_frame};
use super::shorthand::{CommonValues, Numbers};

/// Bytes of objects for each byte of text that zstd chooses from them, at least. zstd's manual recommends 100. With 20, some kinds took half
/// as much again.
const BYTES_PER_CHOSEN_BYTE: usize = 64;

/// Objects by which dictionaries are compared, at most.
const COMPARED_MAX: usize = 64;

/// Of about this number of objects, one is held out: dictionaries are made of the others, and compared by it.
const HELD_OUT_SHARE: u32 = 4;

/// The end of a dictionary's tables: three offsets, which zstd always writes as these numbers. The text follows.
const OFFSETS: [u8; 12] = [1, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0];

/// More bytes than a dictionary has before its text.
const TABLES_MAX: usize = 1024;

impl Dictionary {
    /// Makes a dictionary of at most `bytes_max` bytes from objects of one kind. `None` if all of them are packed.
    pub fn train(objects: &[Object], bytes_max: usize) -> Option<Self> {
        let plain: Vec<_> = objects.iter().filter_map(Object::plain_json).collect();
        let common_values = CommonValues::of(plain.into_iter());
        let mut numbers = Numbers::default();
        let mut shortened = |object| shortened(object, &common_values, &mut numbers);
        let samples: Vec<_> = objects.iter().filter_map(&mut shortened).collect();
        let texts: Vec<_> = samples.iter().map(|sample| &sample.text[..]).collect();
        (!texts.is_empty()).then(|| Self::new(&best_for(&texts, bytes_max), common_values))
    }
}

/// The dictionary of at most `bytes_max` bytes that packs texts like these best. There is at least one.
fn best_for(texts: &[&[u8]], bytes_max: usize) -> Vec<u8> {
    // Texts that a dictionary holds are packed best by it, so it is judged by others.
    let (mut held_out, mut made_of) = (Vec::new(), Vec::new());
    for (at, text) in texts.iter().enumerate() {
        if is_held_out(at) { held_out.push(*text) } else { made_of.push(*text) }
    }
    // Of a few texts, all may be on one side.
    if held_out.is_empty() || made_of.is_empty() {
        (held_out, made_of) = (texts.to_vec(), texts.to_vec());
    }
    let step = held_out.len().div_ceil(COMPARED_MAX).max(1);
    let compared: Vec<_> = held_out.into_iter().step_by(step).collect();
    let candidates = candidates(&made_of, bytes_max).into_iter().filter(|candidate| !candidate.is_empty());
    candidates.min_by_key(|candidate| packed_len(&compared, candidate)).unwrap_or_default()
}

/// Whether the text at this place is held out. Texts of several kinds may follow each other in turns, so it is a hash of the place.
fn is_held_out(at: usize) -> bool {
    crc32fast::hash(&at.to_le_bytes()).is_multiple_of(HELD_OUT_SHARE)
}

/// Dictionaries of these texts: one of them, as many as fit, and what zstd chooses.
fn candidates(texts: &[&[u8]], bytes_max: usize) -> [Vec<u8>; 3] {
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    let chosen = from_samples(texts, bytes_max.min(bytes / BYTES_PER_CHOSEN_BYTE)).unwrap_or_default();
    let tables = tables_of(&chosen);
    let room = bytes_max - tables.len();
    // Objects from amid the list are more like the others than its first ones.
    let one = joined(texts.iter().skip(texts.len() / 2).take(1), room);
    let every = bytes.div_ceil(room.max(1)).clamp(1, texts.len().max(1));
    let many = joined(texts.iter().skip(every / 2).step_by(every), room);
    [[tables, &one].concat(), [tables, &many].concat(), chosen]
}

/// What stands before the text of a dictionary that zstd made: tables by which it writes literals and matches in fewer bits. A dictionary
/// may have the tables of another one. Empty if there are none.
fn tables_of(dictionary: &[u8]) -> &[u8] {
    let start = &dictionary[..dictionary.len().min(TABLES_MAX)];
    memchr::memmem::find(start, &OFFSETS).map_or(&[], |at| &dictionary[..at + OFFSETS.len()])
}

/// Those of these texts that fit, one after the other. If none does, the start of the first.
fn joined<'t>(texts: impl Iterator<Item = &'t &'t [u8]> + Clone, bytes_max: usize) -> Vec<u8> {
    let mut joined = Vec::with_capacity(bytes_max);
    for text in texts.clone() {
        if text.len() <= bytes_max - joined.len() {
            joined.extend_from_slice(text);
        }
    }
    if joined.is_empty() {
        joined.extend(texts.take(1).flat_map(|text| text.iter().take(bytes_max)));
    }
    joined
}

/// Bytes of these texts, packed by a dictionary.
fn packed_len(texts: &[&[u8]], dictionary: &[u8]) -> usize {
    let encoder = EncoderDictionary::copy(dictionary, LEVEL);
    let Ok(mut compressor) = compressor(&encoder) else { return usize::MAX };
    let mut frame = Vec::new();
    let mut packed_len =
        |text: &&[u8]| write_frame(&mut compressor, text, &mut frame).map_or(text.len(), |()| frame.len());
    texts.iter().map(&mut packed_len).sum()
}

#[cfg(test)]
#[path = "training_tests.rs"]
mod tests;
