//! Field selectors, compared with a reader that goes letter by letter.

use informerd::testing::k8s::{Decoder, FieldSelector, Object, SELECTOR_TERMS_MAX};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::decode::{options, resource};
use super::engine::Target;

/// A term: path, value, and whether they must be equal.
type Term = (String, String, bool);

/// Source: `k8s.io/apimachinery/pkg/fields/selector.go`, `ParseSelector`. Informerd's addition: blanks around a term,
/// its path and its value are ignored.
fn parse(text: &str) -> Option<Vec<Term>> {
    let (mut terms, mut term, mut letters) = (Vec::new(), String::new(), text.chars());
    loop {
        match letters.next() {
            Some('\\') => {
                term.push('\\');
                term.extend(letters.next());
            }
            Some(',') => terms.push(std::mem::take(&mut term)),
            Some(letter) => term.push(letter),
            None => break,
        }
    }
    terms.push(term);
    let terms = terms.iter().map(|term| term.trim()).filter(|term| !term.is_empty());
    let terms: Vec<Term> = terms.map(one).collect::<Option<_>>()?;
    let distinct: std::collections::BTreeSet<&Term> = terms.iter().collect();
    (distinct.len() <= SELECTOR_TERMS_MAX).then_some(terms)
}

fn one(term: &str) -> Option<Term> {
    let at = term.find('=')?;
    let (path, equal) = term[..at].strip_suffix('!').map_or((&term[..at], true), |path| (path, false));
    let mut value = &term[at + 1..];
    if equal && value.starts_with('=') {
        value = &value[1..];
    }
    let path = path.trim();
    let odd = |c: char| c.is_whitespace() || "[]{}()*!\"'\\".contains(c);
    // A path has at most 32 names.
    if names(path).len() > 32 || names(path).iter().any(|segment| segment.is_empty() || segment.contains(odd))
    {
        return None;
    }
    let (mut plain, mut letters) = (String::new(), value.trim().chars());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => plain.push(letters.next().filter(|next| "\\,=".contains(*next))?),
            '=' => return None,
            other => plain.push(other),
        }
    }
    Some((path.to_owned(), plain, equal))
}

/// The names of a path. A backslash before a dot makes the dot part of a name.
fn names(path: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut letters = path.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.next_if_eq(&'.').is_some() => names.last_mut().unwrap().push('.'),
            '.' => names.push(String::new()),
            other => names.last_mut().unwrap().push(other),
        }
    }
    names
}

fn objects() -> [Value; 4] {
    let meta =
        |name: &str, namespace: &str| json!({"name": name, "namespace": namespace, "resourceVersion": "1"});
    [
        json!({"metadata": meta("a", "n")}),
        json!({"metadata": meta("b", "web"), "spec": {"nodeName": "node,1", "n": 5, "on": true, "x": "a=b"}, "status": {"phase": "Running"}}),
        json!({"metadata": meta("c", ""), "spec": {"nodeName": "a\\b", "n": 1.5, "on": null, "x": ["a", {"b": "5"}, ["true", null]]}, "status": "odd"}),
        json!({"metadata": meta("d", "n"), "spec": {"nodeName": "", "n": "5", "on": {"a": "b"}, "x": "é\n"}, "status": {"phase": ""}}),
    ]
}

/// The values at a path, as text: one for each element if it goes through an array; empty if there is no scalar.
fn lookup(object: &Value, names: &[String]) -> Vec<String> {
    match (object, names) {
        (Value::Array(elements), _) => {
            let values = elements.iter().filter(|element| !(names.is_empty() && element.is_object()));
            values.flat_map(|element| lookup(element, names)).collect()
        }
        (Value::Object(members), [name, rest @ ..]) => {
            members.get(name).map_or_else(|| vec![String::new()], |value| lookup(value, rest))
        }
        (Value::String(text), []) => vec![text.clone()],
        (Value::Bool(on), []) => vec![on.to_string()],
        (Value::Number(number), []) => vec![number.to_string()],
        (_, _) => vec![String::new()],
    }
}

fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match (FieldSelector::parse(text), parse(text)) {
        (Ok(selector), Some(terms)) => {
            assert_eq!(selector.is_empty(), terms.is_empty());
            for mut value in objects() {
                let object: Object =
                    Decoder::new(resource(), options(true)).object(&value.to_string()).unwrap();
                value["kind"] = "Pod".into();
                value["apiVersion"] = "v1".into();
                let holds = terms
                    .iter()
                    .all(|(path, wanted, equal)| lookup(&value, &names(path)).contains(wanted) == *equal);
                assert_eq!(selector.matches(&object), holds, "{value}");
            }
            let printed = selector.to_string();
            assert_eq!(FieldSelector::parse(&printed).as_ref(), Ok(&selector), "printed as {printed:?}");
        }
        (Err(error), None) => {
            assert!(error.to_string().contains(&format!("{text:?}")), "{error} does not name its input");
        }
        (found, expected) => panic!("{found:?}, expected {expected:?}"),
    }
}

#[test]
fn field_selectors_compare_the_values_at_their_paths() {
    let tokens = &[
        "=",
        "==",
        "!=",
        "!",
        ",",
        "\\",
        "\\,",
        "\\=",
        "\\\\",
        ".",
        " ",
        "\t",
        "\n",
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.n",
        "spec.on",
        "spec.on.a",
        "spec.x",
        "spec.x.b",
        "spec.no\\.de",
        "status.phase",
        "kind",
        "status",
        "5",
        "1.5",
        "true",
        "a",
        "node\\,1",
        "a\\\\b",
        "a\\=b",
        "Running",
        "[",
        "*",
        "\"",
        "é",
        "\u{a0}",
        "\u{3000}",
        "\0",
    ];
    let target = Target { name: "fields", tokens, check: &check };
    target.run(2);
    let path = prop::sample::select(&tokens[13..25]);
    let value = prop::sample::select(&tokens[25..33]);
    let sign = prop::sample::select(&["=", "==", "!=", " = ", "==="][..]);
    let term = (path, sign, value).prop_map(|(path, sign, value)| format!("{path}{sign}{value}"));
    let strict = prop::collection::vec(term, 0..4).prop_map(|terms| terms.join(","));
    let loose =
        prop::collection::vec(prop::sample::select(&tokens[..]), 0..10).prop_map(|pieces| pieces.concat());
    target.generate(prop_oneof![strict, loose], 2);
}
