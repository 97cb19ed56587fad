//! Strings of JSON: the keys of members and the texts of values, borrowed where nothing is escaped.

use std::borrow::Cow;
use std::fmt;

use serde::de::Visitor;
use serde_json::value::RawValue;

/// A string that borrows from the input when it can; serde's own `Cow<str>` always copies.
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Text<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Cow<'de, str>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        reader.deserialize_str(TextVisitor).map(Text)
    }
}

/// The key of a member: as it is written, with the server's escapes (U36), and unescaped.
pub(super) struct MemberKey<'a> {
    pub(super) raw: &'a str,
    pub(super) text: Cow<'a, str>,
}

impl<'a> MemberKey<'a> {
    pub(super) fn new(raw: &'a RawValue) -> Self {
        let raw = raw.get();
        let text = if memchr::memchr(b'\\', raw.as_bytes()).is_none() {
            Cow::Borrowed(&raw[1..raw.len() - 1])
        } else {
            // A key that cannot be unescaped (half a surrogate pair) is none of those that informerd reads.
            string(raw).unwrap_or_default().into()
        };
        Self { raw, text }
    }
}

/// The text of a JSON string.
pub(super) fn string(raw: &str) -> Result<String, serde_json::Error> {
    serde_json::from_str::<Text<'_>>(raw).map(|text| text.0.into_owned())
}
