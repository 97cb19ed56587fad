use proptest::prelude::*;

use super::super::labels::{LabelTemplate, Labels, SplitLabels};
use super::*;
use crate::k8s::{Key, ResourceVersion};

const UID: &str = "6e1f2a00-1c4e-4f0a-9a51-00000000000a";
const LABELS: &str = r#"{"app":"web"}"#;

/// What the module does, byte by byte: the JSON. If text and values are not whole, it is an error with the length of the JSON so far.
fn expanded(text: &[u8], values: &[u8], key: &Key, version: &ResourceVersion) -> Result<Vec<u8>, usize> {
    let mut json = Vec::new();
    match expand_into(&mut json, text, values, key, version) {
        Some(()) => Ok(json),
        None => Err(json.len()),
    }
}

fn expand_into(
    json: &mut Vec<u8>,
    mut text: &[u8],
    mut values: &[u8],
    key: &Key,
    version: &ResourceVersion,
) -> Option<()> {
    let mut numbered = Vec::<Vec<u8>>::new();
    while let Some((byte, rest)) = text.split_first() {
        text = rest;
        if *byte != MARK {
            json.push(*byte);
            continue;
        }
        let (form, rest) = text.split_first()?;
        text = rest;
        let mut take = |len: usize| {
            let (taken, rest) = values.split_at_checked(len)?;
            values = rest;
            Some(taken)
        };
        let value = match *form {
            form::NAME => format!("\"{}\"", key.name()),
            form::NAMESPACE => format!("\"{}\"", key.namespace()),
            form::NAMESPACE_WORD => key.namespace().to_owned(),
            form @ 0x10..0x20 => {
                let pieces: Vec<_> = key.name().split_inclusive(['-', '.']).collect();
                let left = pieces.len().checked_sub(usize::from(form - 0x10)).filter(|left| *left > 0)?;
                pieces[..left].concat().trim_end_matches(['-', '.']).to_owned()
            }
            form::UID => UID.to_owned(),
            form::VERSION => version.to_string(),
            form::LABELS => LABELS.to_owned(),
            form::AGAIN => {
                let (number, rest) = text.split_first()?;
                text = rest;
                json.extend_from_slice(numbered.get(usize::from(*number))?);
                continue;
            }
            form::UUID => Uuid::from_slice(take(16)?).ok()?.to_string(),
            form::TIME => format!("{}Z", time_of(take(4)?)),
            form::MICRO_TIME => {
                let (time, micros) = take(7)?.split_at(4);
                let micros = micros.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
                format!("{}.{micros:06}Z", time_of(time))
            }
            form::ADDRESS => take(4)?.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
            form @ form::DIGITS.. => {
                let len = DIGITS_MIN + usize::from(form - form::DIGITS);
                let digits: String =
                    take(len.div_ceil(2))?.iter().map(|byte| format!("{byte:02x}")).collect();
                digits[..len].to_owned()
            }
            _ => return None,
        };
        json.extend_from_slice(value.as_bytes());
        let is_value =
            matches!(*form, form::UUID | form::TIME | form::MICRO_TIME | form::ADDRESS | form::DIGITS..);
        if is_value && numbered.len() < NUMBERED_MAX {
            numbered.push(value.into_bytes());
        }
    }
    values.is_empty().then_some(())
}

/// The text of a time, without its end.
fn time_of(bytes: &[u8]) -> String {
    let mut time = u32::from_le_bytes(bytes.try_into().unwrap());
    let mut parts = TIME_BITS.map(|_| 0);
    for (part, bits) in parts.iter_mut().zip(TIME_BITS).rev() {
        *part = time & ((1 << bits) - 1);
        time >>= bits;
    }
    let [year, month, day, hour, minute, second] = parts;
    format!("20{year:02}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Expands to these lengths, and compares with [`expanded`]. The buffer holds other bytes from before.
#[track_caller]
fn check_lens(text: &[u8], values: &[u8], lens_of: impl FnOnce(&Result<Vec<u8>, usize>) -> Vec<usize>) {
    let (key, version) =
        (Key::new("shop", "a-name.of-more-than-16-pieces-1-2-3-4-5-6-7-8-9-10"), ResourceVersion::from(17));
    let SplitLabels { template, values: label_values } = SplitLabels::of(LABELS);
    let template = LabelTemplate::new(&template);
    let labels = Labels::Parts(&template, &label_values);
    let held = Held { key: &key, uid: UID, version: &version, labels };
    let expected = expanded(text, values, &key, &version);
    for len in lens_of(&expected) {
        for room in [0, len, len + 1, len + 40] {
            let mut expander = Expander { json: vec![0xff; room], ..Expander::default() };
            let json = expander.expand(text, values, held, len).map(|(json, _)| json);
            let expected = expected.as_deref().ok().filter(|json| json.len() == len);
            assert_eq!(json, expected, "{text:?} {values:?} {len}");
        }
    }
}

/// Expands to the length of the JSON and `off` more bytes. What is not whole is refused at any length: also at those which the JSON would
/// have with one value more.
#[track_caller]
fn check(text: &[u8], values: &[u8], off: isize) {
    check_lens(text, values, |expected| match expected {
        Ok(json) => vec![json.len().saturating_add_signed(off)],
        Err(so_far) => (*so_far..so_far + 2 * (DIGITS_MIN + 128)).chain([0, 10_000]).collect(),
    });
}

#[test]
fn text_of_any_length_before_a_mark_and_behind_it() {
    for before in [0, 1, 15, 16, 17, 31, 32, 33, 48, 100] {
        for behind in [0, 1, 7, 15, 16, 17, 40] {
            let text = [vec![b'a'; before], b"\x01i".to_vec(), vec![b'b'; behind]].concat();
            for off in [0, -1, 1] {
                check(&text, &[10, 0, 200, 9], off);
            }
            check(&text[..before], &[], 0);
        }
    }
}

#[test]
fn digits_of_any_number() {
    let values: Vec<u8> = (0..80).map(|at| 0x1f_u8.wrapping_mul(at)).collect();
    for form in form::DIGITS..=u8::MAX {
        let len = (DIGITS_MIN + usize::from(form - form::DIGITS)).div_ceil(2);
        for behind in [0, 1, 15, 16, 17] {
            let text = [vec![MARK, form], vec![b'b'; behind]].concat();
            for off in [0, -1, 1] {
                check(&text, &values[..len], off);
            }
            check(&text, &values[..len - 1], 0);
            check(&text, &values[..len + 1], 0);
            let twice = [&text[..], &text].concat();
            check(&twice, &values.repeat(2)[..2 * len], 0);
        }
    }
}

#[test]
fn every_byte_in_hexadecimal_and_as_a_part_of_an_address() {
    for byte in 0..=u8::MAX {
        check(b"\x01\x80", &[byte; 3], 0);
        check(b"\x01i", &[byte, 0, 1, byte], 0);
    }
}

#[test]
fn what_is_not_whole_is_refused() {
    for text in ["ab\x01", "\x01A", "\x01A\0", "\x01i\x01A\x01", "\x01?", "\x01", "\x01\x01"] {
        check(text.as_bytes(), &[1, 2, 3, 4], 0);
        check(text.as_bytes(), &[], 0);
    }
    let of_the_name = (0..PARTS_MAX + 1).map(|number| form::PART + number);
    let others = [form::NAME, form::NAMESPACE, form::NAMESPACE_WORD, form::UID, form::VERSION, form::LABELS];
    for form in others.into_iter().chain(of_the_name) {
        [-1, 0, 1].iter().for_each(|off| check(&[MARK, form], &[], *off));
    }
    for (form, len) in [(form::UUID, 16), (form::TIME, 4), (form::MICRO_TIME, 7), (form::ADDRESS, 4)] {
        for values in [len - 1, len, len + 1] {
            [-1, 0, 1].iter().for_each(|off| check(&[MARK, form], &vec![1; values], *off));
        }
        check(&[MARK, form, MARK, form::AGAIN, 0], &vec![1; len], -1);
    }
}

#[test]
fn values_beyond_the_last_number_have_none() {
    let text = [&b"\x01\x80"[..]; NUMBERED_MAX + 2].concat();
    let values: Vec<u8> = (0..(NUMBERED_MAX + 2) * 3).map(|at| at as u8).collect();
    for number in [0, 1, 254, 255] {
        check(&[&text[..], &[MARK, form::AGAIN, number]].concat(), &values, 0);
    }
}

#[test]
fn a_large_buffer_is_given_back() {
    let (key, version) = (Key::new("shop", "web-1"), ResourceVersion::from(17));
    let held = Held { key: &key, uid: UID, version: &version, labels: Labels::Json(LABELS) };
    let mut expander = Expander::default();
    for len in [200_000, 10, 200_000] {
        let text = vec![b'a'; len];
        assert_eq!(expander.expand(&text, &[], held, len), Some((&text[..], Places::default())));
        expander.shrink_to(1000);
        assert!(expander.json.capacity() <= 1000);
    }
}

proptest! {
    /// Damaged bytes may come with any length.
    #[test]
    fn bytes_of_any_kind_and_length_are_safe(
        text in prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(MARK)], 0..200),
        values in prop::collection::vec(any::<u8>(), 0..200),
        len in 0..2000_usize,
    ) {
        check_lens(&text, &values, |_| vec![len]);
    }

    /// Texts and values of all forms, and damaged ones, become what they become byte by byte.
    #[test]
    fn steps_and_bytes_make_the_same_json(
        parts in prop::collection::vec(prop_oneof![
            "[a-z]{0,40}".prop_map(String::into_bytes),
            prop::sample::select(b"NSsUVLutmi?\x10\x11".to_vec()).prop_map(|form| vec![MARK, form]),
            (0x80..=u8::MAX).prop_map(|form| vec![MARK, form]),
            (0..4_u8).prop_map(|number| vec![MARK, form::AGAIN, number]),
            prop::collection::vec(any::<u8>(), 0..4),
        ], 0..30),
        bytes in prop::collection::vec(any::<u8>(), 2000),
        off in -1..=1_isize,
        more in -1..=1_isize,
    ) {
        let text = parts.concat();
        let len_of = |part: &Vec<u8>| match part[..] {
            [MARK, form::UUID] => 16,
            [MARK, form::TIME | form::ADDRESS] => 4,
            [MARK, form::MICRO_TIME] => 7,
            [MARK, form] if form >= form::DIGITS => (DIGITS_MIN + usize::from(form - form::DIGITS)).div_ceil(2),
            _ => 0,
        };
        let len: usize = parts.iter().map(len_of).sum();
        check(&text, &bytes[..len], off);
        check(&text, &bytes[..len.saturating_add_signed(more).min(bytes.len())], 0);
    }
}
