//! The labels of objects, as their JSON and as packed objects hold them.
//!
//! Objects of a kind mostly have the same keys in the same order, and values of their own. So packed objects share the JSON around the
//! values as a template, and hold only the values of each set of labels.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};

use super::json::Text;

/// Stands in the place of each value in a template, and behind each value where they are held. JSON never has it: control characters in
/// strings are escaped. What has it all the same is not packed ([`super::shorthand::shorten`]).
const SEPARATOR: char = '\u{1}';

/// The JSON of labels with a separator in the place of each value. JSON that is no object of strings is in it as it is.
pub(super) struct LabelTemplate(Box<str>);

/// The JSON object `metadata.labels`; no text where there is none.
#[derive(Clone, Copy)]
pub(super) enum Labels<'a> {
    /// As one text.
    Json(&'a str),
    /// As the template that others have, too, and the values, as [`SplitLabels`] has them.
    Parts(&'a LabelTemplate, &'a str),
}

/// The parts of some labels.
pub(super) struct SplitLabels {
    /// The text of the template.
    pub(super) template: String,
    /// The values as the JSON has them, with a separator behind each.
    pub(super) values: String,
}

// === impl SplitLabels ===

impl SplitLabels {
    /// Splits the JSON of labels.
    pub(super) fn of(json: &str) -> Self {
        let mut split = Self { template: String::with_capacity(json.len()), values: String::new() };
        if split.take(json).is_none() {
            (split.template, split.values) = (json.to_owned(), String::new());
        }
        split
    }

    /// `None` for JSON that is no object of strings.
    fn take(&mut self, json: &str) -> Option<()> {
        let mut rest = json.strip_prefix('{')?;
        let mut before = '{';
        while before != '}' {
            let (key, after) = string(rest)?;
            let (value, after) = string(after.strip_prefix(':')?)?;
            let next = after.chars().next().filter(|next| matches!(next, ',' | '}'))?;
            self.template.push(before);
            self.template.push_str(key);
            self.template.extend([':', '"', SEPARATOR, '"']);
            self.values.push_str(&value[1..value.len() - 1]);
            self.values.push(SEPARATOR);
            (before, rest) = (next, &after[1..]);
        }
        self.template.push('}');
        rest.is_empty().then_some(())
    }
}

/// The JSON string at the start of a text, with its quotes, and what follows.
fn string(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?.as_bytes();
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', inner.get(at..)?)?;
        if inner[at] == b'"' {
            return text.split_at_checked(at + 2);
        }
        at += 2;
    }
}

// === impl LabelTemplate ===

impl LabelTemplate {
    /// The template that [`SplitLabels`] has as text.
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// What stands before the first value, between the values, and behind the last one.
    fn pieces(&self) -> impl Iterator<Item = &str> {
        self.0.split(SEPARATOR)
    }

    /// The keys. `None` for those that are no text.
    fn keys(&self) -> impl Iterator<Item = Option<Cow<'_, str>>> {
        // Behind a value there are its quote and a comma, or the end.
        let keys = self.pieces().filter_map(|piece| {
            piece.strip_prefix("{\"").or(piece.strip_prefix("\",\""))?.strip_suffix("\":\"")
        });
        keys.map(unescaped)
    }

    fn has_values(&self) -> bool {
        self.0.contains(SEPARATOR)
    }
}

// === impl Labels ===

impl<'a> Labels<'a> {
    /// Lends the JSON, piece after piece. `None` once one is refused, and where template and values do not fit.
    pub(super) fn each_piece(self, mut read: impl FnMut(&str) -> Option<()>) -> Option<()> {
        match self {
            Self::Json(json) => read(json),
            Self::Parts(template, values) => {
                let (mut pieces, mut values) = (template.pieces(), values.split_terminator(SEPARATOR));
                read(pieces.next()?)?;
                for piece in pieces {
                    read(values.next()?)?;
                    read(piece)?;
                }
                values.next().is_none().then_some(())
            }
        }
    }

    /// Bytes of the JSON.
    pub(super) fn len(self) -> usize {
        let mut len = 0;
        let all = self.each_piece(|piece| {
            len += piece.len();
            Some(())
        });
        all.map_or(0, |()| len)
    }

    /// The JSON. Empty where damaged bytes do not fit.
    pub(super) fn json(self) -> Cow<'a, str> {
        if let Self::Json(json) = self {
            return json.into();
        }
        let mut json = String::with_capacity(self.len());
        let all = self.each_piece(|piece| {
            json.push_str(piece);
            Some(())
        });
        all.map(|()| json).unwrap_or_default().into()
    }

    /// Keys and values, in the order of the JSON. None where damaged bytes do not fit.
    pub(super) fn pairs(self) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
        match self {
            Self::Json(json) => read_labels(json),
            Self::Parts(template, _) if !template.has_values() => read_labels(&template.0),
            Self::Parts(template, values) => {
                let values = values.split_terminator(SEPARATOR).map(unescaped);
                let is_whole = template.keys().count() == values.clone().count();
                let pairs = template.keys().zip(values).map(|(key, value)| key.zip(value));
                // As in JSON, nothing can be read of labels of which a part is no text.
                pairs.collect::<Option<_>>().filter(|_| is_whole).unwrap_or_default()
            }
        }
    }
}

/// The text that stands in a JSON string like this. `None` for an escaped half of a surrogate pair.
fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('\\') {
        return Some(text.into());
    }
    serde_json::from_str::<String>(&format!("\"{text}\"")).ok().map(Cow::Owned)
}

/// The pairs of a `metadata.labels` in JSON, in its order; none where the text is empty.
pub(crate) fn read_labels(text: &str) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    // No API server accepts labels of another shape. If it did, no selector would match them.
    reader.deserialize_map(StringMap).unwrap_or_default()
}

/// Reads a JSON object of strings, borrowing where nothing is escaped.
struct StringMap;

impl<'de> Visitor<'de> for StringMap {
    type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::with_capacity(8);
        while let Some(Text(key)) = map.next_key()? {
            let Text(value) = map.next_value()?;
            pairs.push((key, value));
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Splits labels, and checks that the parts are the same labels. Returns the number of keys of the template.
    fn check(json: &str) -> usize {
        let split = SplitLabels::of(json);
        let template = LabelTemplate::new(&split.template);
        let labels = Labels::Parts(&template, &split.values);
        assert_eq!((&*labels.json(), labels.len()), (json, json.len()));
        assert_eq!(labels.pairs(), read_labels(json));
        template.keys().count()
    }

    #[test]
    fn labels_of_any_shape_are_the_same_again() {
        let cases = [
            ("", 0),
            ("{}", 0),
            (r#"{"app":"web"}"#, 1),
            (r#"{"app":"","":"x","q\"\\":"\u0041\"\\"}"#, 3),
            // Halves of a surrogate pair are no text.
            (r#"{"\ud800":"x","b":"y"}"#, 2),
            (r#"{"a":"\ud800","b":"y"}"#, 2),
            // No API server has labels like these.
            ("null", 0),
            (r#"{"a":1,"b":"c"}"#, 0),
            (r#"{"a":"b","c":{"d":"e"}}"#, 0),
            (r#"{"a":"b"}x"#, 0),
            (r#"{"a":"b",}"#, 0),
            (r#"{"a":"b\"#, 0),
            (r#"{"a""#, 0),
        ];
        for (json, keys) in cases {
            assert_eq!(check(json), keys, "{json}");
        }
    }

    #[test]
    fn sets_with_the_same_keys_have_one_template() {
        let [one, other, third] =
            [r#"{"a":"1","b":"2"}"#, r#"{"a":"","b":"\"3"}"#, r#"{"b":"1","a":"2"}"#].map(SplitLabels::of);
        assert_eq!(one.template, other.template);
        assert_ne!(one.template, third.template);
        assert_eq!((&*one.values, &*other.values), ("1\u{1}2\u{1}", "\u{1}\\\"3\u{1}"));
    }

    #[test]
    fn values_that_do_not_fit_the_template_are_no_labels() {
        let template = LabelTemplate::new(&SplitLabels::of(r#"{"a":"1","b":"2"}"#).template);
        for values in ["", "1\u{1}", "1\u{1}2\u{1}3\u{1}", "1"] {
            let labels = Labels::Parts(&template, values);
            assert_eq!((&*labels.json(), labels.len(), labels.pairs()), ("", 0, vec![]), "{values:?}");
        }
        let no_values = LabelTemplate::new("{}");
        assert_eq!(Labels::Parts(&no_values, "1\u{1}").json(), "");
    }

    proptest! {
        #[test]
        fn labels_of_any_text_are_the_same_again(labels in prop::collection::btree_map(".{0,9}", ".{0,9}", 0..5)) {
            let json = serde_json::to_string(&labels).unwrap();
            prop_assert_eq!(check(&json), labels.len());
        }

        #[test]
        fn any_parts_can_be_read(template in "[a\"{},:\u{1}]{0,20}", values in "[a\\\\\u{1}]{0,9}") {
            let template = LabelTemplate::new(&template);
            let labels = Labels::Parts(&template, &values);
            prop_assert_eq!(labels.json().len(), labels.len());
            labels.pairs();
        }
    }
}
