//! Label and field selectors in kubectl's grammar.

use std::borrow::Cow;
use std::fmt;

use super::Object;

/// A label selector: every requirement must hold. The empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

/// A field selector: every term must hold. The empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    path: String,
    value: String,
    equal: bool,
    /// What a field that is not there is taken for.
    missing: &'static str,
}

/// Where the value of a field label is in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath {
    /// A dotted path.
    pub path: String,
    /// What it is taken for where it is not there.
    pub missing: &'static str,
}

/// Why a selector could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0}")]
pub struct SelectorError(String);

// === impl LabelSelector ===

impl LabelSelector {
    /// Reads kubectl's grammar: `a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x)`, `a`, `!a`, `a>1`, `a<1`,
    /// joined by commas.
    ///
    /// # Errors
    /// [`SelectorError`] with what was found where.
    ///
    /// Source: `k8s.io/apimachinery/pkg/labels/selector.go`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { text, rest: skip_blanks(text) };
        let mut requirements = Vec::new();
        if parser.rest.is_empty() {
            return Ok(Self::default());
        }
        loop {
            requirements.push(parser.requirement()?);
            parser.rest = skip_blanks(parser.rest);
            match parser.rest.strip_prefix(',') {
                Some(rest) => parser.rest = skip_blanks(rest),
                None if parser.rest.is_empty() => return Ok(Self { requirements }),
                None => return Err(parser.expected("',' or the end")),
            }
        }
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object's labels match.
    pub fn matches(&self, object: &Object) -> bool {
        if self.requirements.is_empty() {
            return true;
        }
        let labels = object.labels();
        self.requirements.iter().all(|requirement| {
            // A key twice in the JSON means the last one.
            let value =
                labels.iter().rev().find(|(key, _)| *key == requirement.key).map(|(_, value)| &**value);
            requirement.operator.holds(value)
        })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, operator }) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match operator {
                Operator::Exists => write!(f, "{key}"),
                Operator::Missing => write!(f, "!{key}"),
                Operator::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0]),
                Operator::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", values[0]),
                Operator::In(values) => write!(f, "{key} in ({})", values.join(",")),
                Operator::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
                Operator::Greater(bound) => write!(f, "{key}>{bound}"),
                Operator::Less(bound) => write!(f, "{key}<{bound}"),
            }?;
        }
        Ok(())
    }
}

impl Operator {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            // An object without the key matches (D: list semantics, `!=` and `notin`).
            Self::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Self::Greater(bound) => number().is_some_and(|number| number > *bound),
            Self::Less(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        if let Some(rest) = self.rest.strip_prefix('!') {
            self.rest = skip_blanks(rest);
            return Ok(Requirement { key: self.key()?, operator: Operator::Missing });
        }
        let key = self.key()?;
        self.rest = skip_blanks(self.rest);
        for (sign, equal) in [("==", true), ("!=", false), ("=", true)] {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = skip_blanks(rest);
                let values = vec![self.value()?];
                let operator = if equal { Operator::In(values) } else { Operator::NotIn(values) };
                return Ok(Requirement { key, operator });
            }
        }
        for (sign, make) in [(">", Operator::Greater as fn(i64) -> Operator), ("<", Operator::Less)] {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = skip_blanks(rest);
                let value = self.value()?;
                let bound = value.parse().map_err(|_| self.expected("an integer after '>' or '<'"))?;
                return Ok(Requirement { key, operator: make(bound) });
            }
        }
        for (word, make) in [("in", Operator::In as fn(Vec<String>) -> Operator), ("notin", Operator::NotIn)]
        {
            if let Some(rest) = self.rest.strip_prefix(word)
                && skip_blanks(rest).starts_with('(')
            {
                self.rest = skip_blanks(rest);
                return Ok(Requirement { key, operator: make(self.set()?) });
            }
        }
        Ok(Requirement { key, operator: Operator::Exists })
    }

    fn set(&mut self) -> Result<Vec<String>, SelectorError> {
        self.rest = &self.rest[1..];
        if skip_blanks(self.rest).starts_with(')') {
            return Err(self.expected("a label value"));
        }
        let mut values = Vec::new();
        loop {
            self.rest = skip_blanks(self.rest);
            values.push(self.value()?);
            self.rest = skip_blanks(self.rest);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest;
            } else if let Some(rest) = self.rest.strip_prefix(')') {
                self.rest = rest;
                return Ok(values);
            } else {
                return Err(self.expected("',' or ')'"));
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/')))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// A label key: an optional DNS prefix and a name of at most 63 characters.
    fn key(&mut self) -> Result<String, SelectorError> {
        let word = self.word();
        let (prefix, name) = word.rsplit_once('/').unwrap_or(("x", word));
        if !is_qualified(name) || !is_subdomain(prefix) {
            return Err(self.expected("a label key"));
        }
        Ok(word.to_owned())
    }

    /// A label value: empty, or at most 63 characters.
    fn value(&mut self) -> Result<String, SelectorError> {
        let word = self.word();
        if !word.is_empty() && (word.contains('/') || !is_qualified(word)) {
            return Err(self.expected("a label value"));
        }
        Ok(word.to_owned())
    }

    fn expected(&self, what: &str) -> SelectorError {
        let at = self.text.len() - self.rest.len();
        let found: String = self.rest.chars().take(20).collect();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("{found:?}") };
        SelectorError(format!("found {found} at {at} in {:?}, expected {what}", self.text))
    }
}

/// Blanks to Kubernetes; other white space is part of words, in which it is wrong.
fn skip_blanks(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\r', '\n'])
}

/// Source: `k8s.io/apimachinery/pkg/util/validation`, `IsDNS1123Subdomain`.
fn is_subdomain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        label.starts_with(plain) && label.ends_with(plain) && label.chars().all(|c| plain(c) || c == '-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// At most 63 characters that begin and end with a letter or digit.
fn is_qualified(word: &str) -> bool {
    let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    word.len() <= 63 && ends_well(word.chars().next()) && ends_well(word.chars().next_back())
}

// === impl FieldSelector ===

impl FieldSelector {
    /// Reads `path=value`, `path==value`, `path!=value`, joined by commas; `\,`, `\=` and `\\` in values.
    /// A path is any dotted path to a scalar; a missing field is the empty string.
    ///
    /// # Errors
    /// [`SelectorError`] with the term that is wrong.
    ///
    /// Source: `k8s.io/apimachinery/pkg/fields/selector.go`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split_unescaped(text) {
            let term = term.trim();
            if term.is_empty() {
                continue;
            }
            let wrong = |what: &str| SelectorError(format!("{term:?} in {text:?}: {what}"));
            let at = term.find('=').ok_or_else(|| wrong("expected path=value or path!=value"))?;
            let (path, equal) = match term[..at].strip_suffix('!') {
                Some(path) => (path.trim(), false),
                None => (term[..at].trim(), true),
            };
            let value = term[at + 1..].strip_prefix('=').filter(|_| equal).unwrap_or(&term[at + 1..]).trim();
            let well_formed = !path.is_empty() && path.split('.').all(|segment| !segment.is_empty());
            if !well_formed || path.contains(|c: char| c.is_whitespace() || "[]{}()*!\"'\\".contains(c)) {
                return Err(wrong("expected a dotted path such as status.phase before the sign"));
            }
            let value = unescape(value).map_err(wrong)?;
            terms.push(Term { path: path.to_owned(), value, equal, missing: "" });
        }
        Ok(Self { terms })
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The paths it looks at.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| &*term.path)
    }

    /// The same with each path as `place` says: a field label is not always a path.
    ///
    /// # Errors
    /// The first of `place`.
    pub fn placed<E>(mut self, place: impl Fn(&str) -> Result<FieldPath, E>) -> Result<Self, E> {
        for term in &mut self.terms {
            let FieldPath { path, missing } = place(&term.path)?;
            (term.path, term.missing) = (path, missing);
        }
        Ok(self)
    }

    /// The value that a path must have, where one is required.
    pub fn required(&self, path: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.path == path).map(|term| &*term.value)
    }

    /// Whether an object's fields match.
    pub fn matches(&self, object: &Object) -> bool {
        self.terms.iter().all(|term| {
            let value = match &*term.path {
                "metadata.name" => Cow::Borrowed(object.key().name()),
                "metadata.namespace" => Cow::Borrowed(object.key().namespace()),
                path => object.field(path).unwrap_or(Cow::Borrowed(term.missing)),
            };
            (value == term.value) == term.equal
        })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Term { path, value, equal, .. }) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let sign = if *equal { "=" } else { "!=" };
            let value = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(f, "{comma}{path}{sign}{value}")?;
        }
        Ok(())
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        if byte == b',' && !escaped {
            parts.push(&text[start..at]);
            start = at + 1;
        }
        escaped = byte == b'\\' && !escaped;
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(value: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                Some(_) | None => return Err("only \\, \\= and \\\\ can be escaped"),
            },
            '=' => return Err("an equals sign in a value must be escaped as \\="),
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

    fn pod(labels: &str) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let text = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","namespace":"n","resourceVersion":"1","labels":{labels}}},"spec":{{"nodeName":"node,1","hostNetwork":true}},"status":{{"phase":"Running"}}}}"#
        );
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    #[test]
    fn label_selectors_follow_the_grammar_of_kubectl() {
        let object = pod(r#"{"app":"web","tier":"front","n":"5","empty":""}"#);
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app = web , tier in (front, back)", true),
            ("app in (a,b)", false),
            ("app notin (a,b),other notin (x)", true),
            ("app", true),
            ("!app", false),
            ("! missing", true),
            ("missing!=x", true),
            ("missing=x", false),
            ("n>4,n<6", true),
            ("n>5", false),
            ("app>5", false),
            ("empty=", true),
            ("empty in (,x)", true),
            ("in in (x)", false),
        ] {
            let parsed = LabelSelector::parse(selector).unwrap();
            assert_eq!(parsed.matches(&object), expected, "{selector}");
            assert_eq!(LabelSelector::parse(&parsed.to_string()).unwrap(), parsed, "{selector}");
        }
    }

    #[test]
    fn a_bad_label_selector_is_refused_with_its_place() {
        for selector in
            ["a=b=c", "a in x", "a in (x", "=b", "!", "a,", "a>b", "-a=b", "a=b c", "a/b/c", "ä=1", "/a"]
        {
            assert!(LabelSelector::parse(selector).is_err(), "{selector}");
        }
        assert_eq!(
            LabelSelector::parse("a in (x").unwrap_err().to_string(),
            r#"unable to parse requirement: found the end at 7 in "a in (x", expected ',' or ')'"#
        );
    }

    #[test]
    fn field_selectors_take_any_path_to_a_scalar() {
        let object = pod("{}");
        for (selector, expected) in [
            ("", true),
            ("metadata.name=p,metadata.namespace==n", true),
            ("status.phase!=Running", false),
            ("spec.nodeName=node\\,1", true),
            ("spec.hostNetwork=true", true),
            ("spec.missing=", true),
            ("spec.missing!=x", true),
            ("metadata.name=p,metadata.name=p", true),
        ] {
            let parsed = FieldSelector::parse(selector).unwrap();
            assert_eq!(parsed.matches(&object), expected, "{selector}");
            assert_eq!(FieldSelector::parse(&parsed.to_string()).unwrap(), parsed, "{selector}");
        }
        for selector in ["a", "=b", "a..b=c", "a=b=c", "a=\\x", "a[0]=b", ".a=b"] {
            assert!(FieldSelector::parse(selector).is_err(), "{selector}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_selector_panic(text in "\\PC{0,60}") {
            if let Ok(parsed) = LabelSelector::parse(&text) {
                proptest::prop_assert_eq!(LabelSelector::parse(&parsed.to_string()).unwrap(), parsed);
            }
            if let Ok(parsed) = FieldSelector::parse(&text) {
                proptest::prop_assert_eq!(FieldSelector::parse(&parsed.to_string()).unwrap(), parsed);
            }
        }
    }
}
