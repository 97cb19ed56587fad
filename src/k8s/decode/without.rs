//! Copies values without the members that are dropped.

use std::fmt;

use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Decoder;
use super::drop::{Branch, Cut};
use crate::k8s::json::MemberKey;
use crate::k8s::places::Span;

/// Depth to which arrays directly within arrays are read, as for index paths. No built-in kind nests two, and each level takes stack.
const ARRAYS_MAX: usize = 8;

/// Appends an object or an array without its dropped members.
struct Without<'d> {
    decoder: &'d mut Decoder,
    branch: &'d Branch,
    /// How many arrays are directly around.
    arrays: usize,
}

// === impl Decoder ===

impl Decoder {
    /// Appends a value without its dropped members, and returns where it stands. The value is scanned once for each level
    /// of the paths; members beside them are copied unread.
    pub(super) fn append_without(&mut self, value: &str, branch: &Branch) -> Result<Span, serde_json::Error> {
        self.append_element_without(value, branch, 0)
    }

    /// The same for a value directly within so many arrays.
    fn append_element_without(
        &mut self,
        value: &str,
        branch: &Branch,
        arrays: usize,
    ) -> Result<Span, serde_json::Error> {
        let start = self.scratch.len() as u32;
        let mut reader = serde_json::Deserializer::from_str(value);
        match value.as_bytes().first() {
            Some(b'{') => reader.deserialize_map(Without { decoder: self, branch, arrays: 0 })?,
            Some(b'[') if arrays < ARRAYS_MAX => {
                reader.deserialize_seq(Without { decoder: self, branch, arrays: arrays + 1 })?;
            }
            // The path continues, but the value is a scalar, or an array too deep to be looked into.
            Some(_) | None => return Ok(self.append_value(value)),
        }
        Ok(Span { start, end: self.scratch.len() as u32 })
    }
}

// === impl Without ===

impl<'de> Visitor<'de> for Without<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { decoder, branch, .. } = self;
        let start = decoder.scratch.len();
        while let Some(key) = map.next_key()?.map(MemberKey::new) {
            let within = match branch.get(&key.text) {
                Some(Cut::Whole) => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                Some(Cut::Within(inner)) => Some(inner),
                None => None,
            };
            decoder.append_key(&key);
            let value = map.next_value::<&RawValue>()?.get();
            match within {
                Some(inner) => decoder.append_without(value, inner).map_err(A::Error::custom)?,
                None => decoder.append_value(value),
            };
        }
        decoder.close(start, *b"{}");
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { decoder, branch, arrays } = self;
        let start = decoder.scratch.len();
        while let Some(element) = seq.next_element::<&RawValue>()? {
            decoder.scratch.push(b',');
            decoder.append_element_without(element.get(), branch, arrays).map_err(A::Error::custom)?;
        }
        decoder.close(start, *b"[]");
        Ok(())
    }
}
