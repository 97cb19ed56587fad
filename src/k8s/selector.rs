//! Label and field selectors in kubectl's grammar.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use super::{FieldPath, IndexPath, IndexPaths, IndexValues, Object, Values};

/// A label selector: every requirement must hold. The empty one matches everything.
///
/// Shape: requirements are sorted and without duplicates, so that selectors that mean the same are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    terms: Vec<Term>,
}

/// A field selector: every term must hold. The empty one matches everything. Sorted as a [`LabelSelector`] is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

/// A condition on the values at one path of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term {
    /// Where the values are.
    pub path: IndexPath,
    /// What they must be.
    pub test: Test,
}

/// What the values at a path must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Test {
    /// At least one of the values is in this set. Sorted, without duplicates.
    In(Arc<[String]>),
    /// None of the values is in this set; holds where there is no value. Sorted, without duplicates.
    NotIn(Arc<[String]>),
    /// There is at least one value.
    Exists,
    /// There is no value.
    Missing,
    /// At least one of the values is an integer above this.
    Greater(i64),
    /// At least one of the values is an integer below this.
    Less(i64),
}

/// Terms that must all hold, prepared for looking at many objects.
#[derive(Debug)]
pub struct Terms {
    terms: Vec<Term>,
    /// Made at first use: where the values at the paths in use are read once for all selections, it is never needed.
    alone: OnceLock<Box<ReadAlone>>,
}

/// What it takes to read an object for some terms alone.
#[derive(Debug)]
struct ReadAlone {
    /// The paths of all terms, read in one pass.
    paths: IndexPaths,
    /// The slot of each term's path.
    slots: Vec<usize>,
}

/// Largest number of terms in one selector. A person writes a handful and a controller a few dozen. Each is evaluated for
/// every object that the selector is applied to.
pub const SELECTOR_TERMS_MAX: usize = 64;

/// Largest number of names in a field path. The deepest paths of built-in kinds, in pod templates, have about a dozen.
const FIELD_PATH_NAMES_MAX: usize = 32;

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
    /// [`SelectorError`] that says what was found at which place, and what was expected.
    ///
    /// Source: `k8s.io/apimachinery/pkg/labels/selector.go`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { text, rest: skip_blanks(text) };
        let mut terms = Vec::new();
        if parser.rest.is_empty() {
            return Ok(Self::default());
        }
        loop {
            terms.push(parser.requirement()?);
            parser.rest = skip_blanks(parser.rest);
            match parser.rest.strip_prefix(',') {
                Some(rest) => parser.rest = skip_blanks(rest),
                None if parser.rest.is_empty() => return Ok(Self { terms: canonical(terms, text)? }),
                None => return Err(parser.expected("',' or the end")),
            }
        }
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Its requirements, sorted.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether an object's labels match. For many objects, prepare [`Terms`].
    pub fn matches(&self, object: &Object) -> bool {
        Terms::new(self.terms.clone()).matches(object)
    }
}

/// Sorts terms and removes duplicates.
fn canonical(mut terms: Vec<Term>, text: &str) -> Result<Vec<Term>, SelectorError> {
    for term in &mut terms {
        if let Test::In(values) | Test::NotIn(values) = &mut term.test {
            let mut sorted = values.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            *values = sorted.into();
        }
    }
    terms.sort_unstable();
    terms.dedup();
    if terms.len() > SELECTOR_TERMS_MAX {
        let message = format!("{} terms in {text:?}, expected at most {SELECTOR_TERMS_MAX}", terms.len());
        return Err(SelectorError(message));
    }
    Ok(terms)
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Term { path, test }) in self.terms.iter().enumerate() {
            let IndexPath::Label(key) = path else { continue };
            if index > 0 {
                f.write_str(",")?;
            }
            match test {
                Test::Exists => write!(f, "{key}"),
                Test::Missing => write!(f, "!{key}"),
                Test::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0]),
                Test::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", values[0]),
                Test::In(values) => write!(f, "{key} in ({})", values.join(",")),
                Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
                Test::Greater(bound) => write!(f, "{key}>{bound}"),
                Test::Less(bound) => write!(f, "{key}<{bound}"),
            }?;
        }
        Ok(())
    }
}

impl Test {
    /// Whether the values at the path pass the test.
    pub fn holds(&self, values: &Values) -> bool {
        let is_in = |wanted: &[String], value: &str| match wanted {
            [one] => one == value,
            many => many.binary_search_by(|one| (**one).cmp(value)).is_ok(),
        };
        let any_number =
            |holds: &dyn Fn(i64) -> bool| values.iter().any(|value| value.parse::<i64>().is_ok_and(holds));
        match self {
            Self::Exists => *values != Values::None,
            Self::Missing => *values == Values::None,
            Self::In(wanted) => values.iter().any(|value| is_in(wanted, value)),
            // An object without the label matches. Source: Kubernetes "Labels and Selectors", `!=` and `notin`.
            Self::NotIn(wanted) => !values.iter().any(|value| is_in(wanted, value)),
            Self::Greater(bound) => any_number(&|number| number > *bound),
            Self::Less(bound) => any_number(&|number| number < *bound),
        }
    }
}

// === impl Terms ===

impl Terms {
    /// Prepares terms, in any order.
    pub fn new(mut terms: Vec<Term>) -> Self {
        terms.sort_unstable();
        terms.dedup();
        Self { terms, alone: OnceLock::new() }
    }

    /// The terms, sorted.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The paths of the terms, without duplicates.
    pub fn paths(&self) -> Vec<IndexPath> {
        let mut paths: Vec<IndexPath> = self.terms.iter().map(|term| term.path.clone()).collect();
        // Terms are sorted by path.
        paths.dedup();
        paths
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The slot of each term's path in another set of paths; `None` where one is not in it.
    pub fn slots_in(&self, paths: &IndexPaths) -> Option<Vec<usize>> {
        self.terms.iter().map(|term| paths.slot(&term.path)).collect()
    }

    /// Whether all terms hold. Reads the object's JSON once.
    pub fn matches(&self, object: &Object) -> bool {
        if self.terms.is_empty() {
            return true;
        }
        let alone = self.alone.get_or_init(|| {
            let paths = IndexPaths::new(self.paths());
            let slots = self.terms.iter().filter_map(|term| paths.slot(&term.path)).collect();
            Box::new(ReadAlone { paths, slots })
        });
        self.hold(&object.read_values(&alone.paths), &alone.slots)
    }

    /// Whether all terms hold for an object with these labels. A term on a field holds as it does where the field is missing.
    pub fn match_labels(&self, labels: &[(Cow<'_, str>, Cow<'_, str>)]) -> bool {
        self.terms.iter().all(|Term { path, test }| {
            let label =
                labels.iter().find(|(name, _)| matches!(path, IndexPath::Label(key) if **key == **name));
            test.holds(&label.map_or(Values::None, |(_, value)| Values::One((**value).into())))
        })
    }

    /// Whether all terms hold for values that were read already. `slots` are those that [`Terms::slots_in`] gave.
    pub fn hold(&self, values: &IndexValues, slots: &[usize]) -> bool {
        self.terms.iter().zip(slots).all(|(term, slot)| term.test.holds(values.get(*slot)))
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn requirement(&mut self) -> Result<Term, SelectorError> {
        if let Some(rest) = self.rest.strip_prefix('!') {
            self.rest = skip_blanks(rest);
            return Ok(term(self.key()?, Test::Missing));
        }
        let key = self.key()?;
        self.rest = skip_blanks(self.rest);
        for (sign, equal) in [("==", true), ("!=", false), ("=", true)] {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = skip_blanks(rest);
                let values = vec![self.value()?];
                let test = if equal { Test::In(values.into()) } else { Test::NotIn(values.into()) };
                return Ok(term(key, test));
            }
        }
        for (sign, make) in [(">", Test::Greater as fn(i64) -> Test), ("<", Test::Less)] {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = skip_blanks(rest);
                let value = self.value()?;
                let bound = value.parse().map_err(|_| self.expected("an integer after '>' or '<'"))?;
                return Ok(term(key, make(bound)));
            }
        }
        for (word, make) in [("in", Test::In as fn(Arc<[String]>) -> Test), ("notin", Test::NotIn)] {
            if let Some(rest) = self.rest.strip_prefix(word)
                && skip_blanks(rest).starts_with('(')
            {
                self.rest = skip_blanks(rest);
                return Ok(term(key, make(self.set()?)));
            }
        }
        Ok(term(key, Test::Exists))
    }

    fn set(&mut self) -> Result<Arc<[String]>, SelectorError> {
        self.rest = &self.rest[1..];
        let mut values = Vec::new();
        loop {
            self.rest = skip_blanks(self.rest);
            values.push(self.value()?);
            self.rest = skip_blanks(self.rest);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest;
            } else if let Some(rest) = self.rest.strip_prefix(')') {
                self.rest = rest;
                return Ok(values.into());
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

fn term(key: String, test: Test) -> Term {
    Term { path: IndexPath::Label(key.into()), test }
}

/// Skips what Kubernetes takes for blanks. Other white space belongs to the word, and makes it invalid.
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
    /// A path is any dotted path to a scalar, through arrays too; `\.` is a dot within a name; a missing field is the
    /// empty text.
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
            let plain = path.replace("\\.", "_");
            let well_formed = !path.is_empty() && plain.split('.').all(|segment| !segment.is_empty());
            if !well_formed || plain.contains(|c: char| c.is_whitespace() || "[]{}()*!\"'\\".contains(c)) {
                return Err(wrong("expected a dotted path such as status.phase before the sign"));
            }
            if plain.split('.').count() > FIELD_PATH_NAMES_MAX {
                return Err(wrong("expected a path of at most 32 names"));
            }
            let values = vec![unescape(value).map_err(wrong)?];
            let path = IndexPath::Field(FieldPath::new(path));
            terms.push(Term {
                path,
                test: if equal { Test::In(values.into()) } else { Test::NotIn(values.into()) },
            });
        }
        Ok(Self { terms: canonical(terms, text)? })
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Its terms, sorted.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The paths it looks at, as they were written.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().filter_map(|term| match &term.path {
            IndexPath::Field(field) => Some(&*field.path),
            IndexPath::Label(_) => None,
        })
    }

    /// The same selector with each field label replaced by its path, as `place` gives it.
    ///
    /// # Errors
    /// The first error of `place`.
    pub fn placed<E>(mut self, place: impl Fn(&str) -> Result<FieldPath, E>) -> Result<Self, E> {
        for term in &mut self.terms {
            if let IndexPath::Field(field) = &mut term.path {
                *field = place(&field.path)?;
            }
        }
        self.terms.sort_unstable();
        self.terms.dedup();
        Ok(self)
    }

    /// The value that the selector requires at a path; `None` if it requires no single one.
    pub fn required(&self, path: &str) -> Option<&str> {
        self.terms.iter().find_map(|term| match (&term.path, &term.test) {
            (IndexPath::Field(field), Test::In(values)) if *field.path == *path => {
                values.first().map(String::as_str)
            }
            _ => None,
        })
    }

    /// Whether an object's fields match. For many objects, prepare [`Terms`].
    pub fn matches(&self, object: &Object) -> bool {
        Terms::new(self.terms.clone()).matches(object)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Term { path, test }) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let (sign, values) = match test {
                Test::In(values) => ("=", values),
                Test::NotIn(values) => ("!=", values),
                // The grammar of field selectors has no such terms.
                Test::Exists | Test::Missing | Test::Greater(_) | Test::Less(_) => continue,
            };
            let value = values.first().map_or("", String::as_str);
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
            ("empty in ()", true),
            ("empty notin ( )", false),
            ("app in ()", false),
            ("missing in ()", false),
            ("missing notin ()", true),
            ("in in (x)", false),
        ] {
            let parsed = LabelSelector::parse(selector).unwrap();
            assert_eq!(parsed.matches(&object), expected, "{selector}");
            assert_eq!(LabelSelector::parse(&parsed.to_string()).unwrap(), parsed, "{selector}");
        }
    }

    #[test]
    fn an_invalid_label_selector_is_refused_with_the_offset() {
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
