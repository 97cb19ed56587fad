//! An object's JSON as a tree that borrows its text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// JSON as Go's unstructured objects hold it: whole numbers that fit are `int64`, all others `float64`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    /// In the order of the JSON.
    Map(Vec<(Cow<'a, str>, Self)>),
}

/// A missing value. Go's decoders take `null` for one, too.
static ABSENT: Tree<'static> = Tree::Null;

impl<'a> Tree<'a> {
    /// A field of this object.
    pub(super) fn get(&self, key: &str) -> &Self {
        // Go takes the last of repeated keys.
        let found = self.entries().iter().rev().find(|(name, _)| name == key);
        found.map_or(&ABSENT, |(_, value)| value)
    }

    /// The value at a dotted path; null where there is none.
    pub(super) fn at(&self, path: &str) -> &Self {
        path.split('.').fold(self, |tree, key| tree.get(key))
    }

    /// The value at the first of several paths that leads to one.
    pub(super) fn first(&self, paths: &[&str]) -> &Self {
        paths.iter().map(|path| self.at(path)).find(|found| found.is_there()).unwrap_or(&ABSENT)
    }

    pub(super) fn is_there(&self) -> bool {
        *self != Self::Null
    }

    /// The text at a path; empty where there is none.
    pub(super) fn text(&self, path: &str) -> &str {
        self.at(path).as_text().unwrap_or_default()
    }

    pub(super) fn text_or<'s>(&'s self, path: &str, otherwise: &'s str) -> &'s str {
        match self.text(path) {
            "" => otherwise,
            text => text,
        }
    }

    /// The whole number at a path; 0 where there is none.
    pub(super) fn int(&self, path: &str) -> i64 {
        self.at(path).as_int().unwrap_or_default()
    }

    /// Whether `true` is at a path.
    pub(super) fn is_true(&self, path: &str) -> bool {
        *self.at(path) == Self::Bool(true)
    }

    /// The elements of the list at a path; none where there is no list.
    pub(super) fn list(&self, path: &str) -> &[Self] {
        match self.at(path) {
            Self::List(items) => items,
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Text(_) | Self::Map(_) => &[],
        }
    }

    /// The fields of this object; none where it is none.
    pub(super) fn entries(&self) -> &[(Cow<'a, str>, Self)] {
        match self {
            Self::Map(entries) => entries,
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Text(_) | Self::List(_) => &[],
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_int(&self) -> Option<i64> {
        if let Self::Int(number) = self { Some(*number) } else { None }
    }

    /// A scalar as people read it: quantities and int-or-strings.
    pub(super) fn plain(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Int(number) => Cow::Owned(number.to_string()),
            Self::Float(number) => Cow::Owned(number.to_string()),
            Self::Bool(_) | Self::Null | Self::List(_) | Self::Map(_) => Cow::Borrowed(""),
        }
    }
}

impl<'de> Deserialize<'de> for Tree<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Tree::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(value).map_or(Tree::Float(value as f64), Tree::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Tree::Float(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Tree::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Tree::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Text<'de>, _>()? {
            entries.push((key.0, value));
        }
        Ok(Tree::Map(entries))
    }
}

/// A key, borrowed where it has no escapes. (`Cow` alone never borrows.)
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_borrowed_and_missing_members_are_empty() {
        let json = r#"{"a":{"b":"x","n":3,"big":18446744073709551615,"t":true,"z":null},"e\u0041":"\n","a":{"b":"y"}}"#;
        let tree: Tree<'_> = serde_json::from_str(json).unwrap();
        assert_eq!(tree.text("a.b"), "y", "the last of two");
        assert_eq!(tree.text("eA"), "\n");
        let first = &tree.entries()[0].1;
        assert!(matches!(first.get("b"), Tree::Text(Cow::Borrowed(_))));
        assert_eq!((first.int("n"), first.is_true("t"), first.get("z").is_there()), (3, true, false));
        assert_eq!(*first.get("big"), Tree::Float(18_446_744_073_709_551_615.0));
        assert_eq!((tree.text("no.such.path"), tree.int("a.b"), tree.list("a").len()), ("", 0, 0));
    }
}
