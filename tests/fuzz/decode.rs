//! Objects and watch lines, compared with a reader that parses everything into a tree.

use informerd::testing::k8s::{
    DecodeError, DecodeOptions, Decoder, FieldPath, INITIAL_EVENTS_END, IndexPath, IndexPaths, LAST_APPLIED,
    Object, Resource, ResourceParts, Values, WatchEvent,
};
use proptest::prelude::*;

use super::engine::{Target, corpus};
use super::json::{self, Node};

/// Small enough for inputs to reach it.
const OBJECT_BYTES_MAX: usize = 8 << 10;

/// Texts with a meaning for the decoder.
pub(crate) const TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "1e400",
    "-0",
    "123456789012345678901234567890",
    "\"metadata\":",
    "\"metadata\":{}",
    "\"name\":\"a\"",
    "\"name\":\"\"",
    "\"name\":null",
    "\"na\\u006de\":\"b\"",
    "\"namespace\":\"n\"",
    "\"namespace\":null",
    "/",
    "\"uid\":7",
    "\"uid\":null",
    "\"resourceVersion\":\"9\"",
    "\"resourceVersion\":\"\"",
    "\"resourceVersion\":9",
    "\"labels\":{\"a\":\"b\"}",
    "\"labels\":null",
    "\"labels\":[]",
    "\"annotations\":{}",
    "\"managedFields\":[{}]",
    "\"kubectl.kubernetes.io/last-applied-configuration\":\"{}\"",
    "\"kubectl.kubernetes.io\\/last-applied-configuration\":\"{}\"",
    "\"kind\":\"Pod\"",
    "\"apiVersion\":\"v1\"",
    "\"type\":\"ADDED\"",
    "\"type\":\"ERROR\"",
    "\"type\":\"BOOKMARK\"",
    "\"object\":",
    "\"items\":",
    "\"continue\":\"x\"",
    "\\u0000",
    "\\ud800",
    "\\ud83d\\ude00",
    "\u{2028}",
    "\u{2029}",
    "\u{85}",
    "\u{feff}",
    "\u{a0}",
    "é",
    "\0",
    "\n",
    "\r\n",
    "\t",
    " ",
    "//",
    "NaN",
    "\"k8s.io/initial-events-end\":\"true\"",
];

/// The expected object.
struct Expected {
    /// The compact JSON.
    json: String,
    namespace: String,
    name: String,
    version: String,
    /// The text between its quotes.
    uid: String,
    labels: Vec<(String, String)>,
}

pub(crate) fn resource() -> Resource {
    let (version, plural, kind) = ("v1".into(), "pods".into(), "Pod".into());
    Resource::new(ResourceParts { version, plural, kind, namespaced: true, ..ResourceParts::default() })
}

pub(crate) fn options(drop: bool) -> DecodeOptions {
    DecodeOptions { drop_managed_fields: drop, drop_last_applied: drop, object_bytes_max: OBJECT_BYTES_MAX }
}

/// The object that must be kept; `None` if it must be refused.
fn expected(node: &Node<'_>, drop: bool) -> Option<Expected> {
    let mut members = Vec::new();
    for (key, value) in node.members()? {
        let is_metadata = json::string(key).as_deref() == Some("metadata");
        members.push((*key, if is_metadata { metadata(value, drop)? } else { value.compact() }));
    }
    if node.count("kind") == 0 && node.count("apiVersion") == 0 {
        members.insert(0, ("\"apiVersion\"", "\"v1\"".to_owned()));
        members.insert(0, ("\"kind\"", "\"Pod\"".to_owned()));
    } else if node.count("apiVersion") == 0 {
        members.insert(0, ("\"apiVersion\"", "\"v1\"".to_owned()));
    } else if node.count("kind") == 0 {
        members.insert(0, ("\"kind\"", "\"Pod\"".to_owned()));
    }
    let meta = node.get("metadata")?;
    let uid = meta.get("uid").filter(|uid| uid.text.starts_with('"')).map(Node::compact).unwrap_or_default();
    let uid = uid.strip_prefix('"').and_then(|uid| uid.strip_suffix('"')).unwrap_or_default();
    let labels = meta.get("labels").and_then(Node::members).unwrap_or_default().iter();
    let labels = labels.map(|(key, value)| Some((json::string(key)?, value.string()?)));
    Some(Expected {
        json: json::object(members),
        // A name with a slash would make another key.
        namespace: text(meta, "namespace").filter(|namespace| !namespace.contains('/'))?,
        name: text(meta, "name").filter(|name| !name.is_empty() && !name.contains('/'))?,
        version: text(meta, "resourceVersion").filter(|version| !version.is_empty())?,
        uid: uid.to_owned(),
        labels: labels.collect::<Option<_>>().unwrap_or_default(),
    })
}

/// A string that may be missing or null; `None` if it is something else.
fn text(meta: &Node<'_>, key: &str) -> Option<String> {
    match meta.get(key) {
        None => Some(String::new()),
        Some(node) if node.is_null() => Some(String::new()),
        Some(node) => node.string(),
    }
}

fn metadata(node: &Node<'_>, drop: bool) -> Option<String> {
    let mut members = Vec::new();
    for (key, value) in node.members()? {
        let name = json::string(key);
        if drop && name.as_deref() == Some("managedFields") {
            continue;
        }
        // Each of them must be readable, even if a later duplicate replaces it.
        if matches!(name.as_deref(), Some("name" | "namespace" | "resourceVersion")) {
            (value.is_null() || value.string().is_some()).then_some(())?;
        }
        if drop
            && name.as_deref() == Some("annotations")
            && value.members().is_some()
            && value.count(LAST_APPLIED) > 0
        {
            let others = value.members()?.iter();
            let others = others.filter(|(key, _)| json::string(key).as_deref() != Some(LAST_APPLIED));
            let others: Vec<_> = others.map(|(key, value)| (*key, value.compact())).collect();
            if !others.is_empty() {
                members.push((*key, json::object(others)));
            }
            continue;
        }
        members.push((*key, value.compact()));
    }
    Some(json::object(members))
}

/// Compares a decoded object with the tree of its input.
fn compare(input: &str, node: &Node<'_>, drop: bool, found: Result<Object, DecodeError>) {
    let Some(expected) = expected(node, drop) else {
        assert!(found.is_err(), "accepted, but invalid");
        return;
    };
    let object = match found {
        Ok(object) => object,
        Err(DecodeError::TooLarge { bytes, .. }) => {
            // Blanks may be kept, and count as bytes. An object that is too large without any must be refused.
            assert!(bytes > OBJECT_BYTES_MAX && input.len() + 40 > OBJECT_BYTES_MAX, "{bytes} bytes");
            return;
        }
        Err(error) => panic!("refused: {error}"),
    };
    let kept = object.json();
    let kept = std::str::from_utf8(&kept).unwrap();
    let kept_node = json::parse(kept).expect("the kept text is JSON");
    assert_eq!(kept_node.compact(), expected.json);
    if node.compact() == node.text {
        assert_eq!(kept, expected.json, "compact input is kept byte for byte");
    }
    assert!(kept.len() <= OBJECT_BYTES_MAX);
    for end in ["\n", "\r", "\u{2028}", "\u{2029}", "\u{85}"] {
        assert!(!kept.contains(end), "{end:?} ends a line");
    }
    assert_eq!((object.key().namespace(), object.key().name()), (&*expected.namespace, &*expected.name));
    assert_eq!(object.resource_version().to_string(), expected.version);
    assert_eq!(object.uid(), expected.uid);
    let labels: Vec<_> = object.labels().into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    assert_eq!(labels, expected.labels);
    let (before, after) = object.json_around_version();
    let moved = [&before[..], b"777", &after[..]].concat();
    let moved =
        json::parse(std::str::from_utf8(&moved).unwrap()).expect("the text with another version is JSON");
    assert_eq!(moved.get("metadata").unwrap().get("resourceVersion").unwrap().text, "\"777\"");
    let meta = kept_node.get("metadata").unwrap();
    let (metadata, version_at) = object.metadata();
    assert_eq!(&*metadata, meta.text.as_bytes(), "the effective metadata");
    assert_eq!(metadata[version_at], object.json()[before.len()..object.json_len() - after.len()]);
    super::encode::check(&object);
    fields(&object, &kept_node, "");
    let again = Decoder::new(resource(), options(drop)).object(kept).expect("the kept text can be read");
    assert_eq!(again.json(), object.json(), "reading the kept text changes it");
}

/// Checks that every scalar on a path is that of the tree.
fn fields(object: &Object, node: &Node<'_>, prefix: &str) {
    let members = node.members().unwrap_or_default();
    for (key, value) in members {
        let is_plain = |key: &String| !key.contains(['.', '\\']) && !key.is_empty();
        let Some(key) = json::string(key).filter(is_plain) else { continue };
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if node.count(&key) > 1 || path.split('.').count() > 6 {
            continue;
        }
        let expected = match value.text.as_bytes()[0] {
            b'"' => value.string(),
            b'{' | b'[' | b'n' => None,
            _ => Some(value.text.to_owned()),
        };
        let field = FieldPath { path: path.clone().into(), missing: "", arrays: false };
        let values = object.values(&IndexPaths::new(vec![IndexPath::Field(field)]));
        assert_eq!(*values.get(0), Values::One(expected.unwrap_or_default().into()), "{path}");
        if value.members().is_some() {
            fields(object, value, &path);
        }
    }
}

fn check_object(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for drop in [true, false] {
        let found = Decoder::new(resource(), options(drop)).object(text);
        if json::is_too_deep(text) {
            continue;
        }
        match json::parse(text) {
            Some(node) => compare(text, &node, drop, found),
            None => assert!(found.is_err(), "accepted, but not JSON"),
        }
    }
}

fn check_watch_line(input: &[u8]) {
    let mut decoder = Decoder::new(resource(), options(true));
    let found = decoder.watch_line(input);
    let Ok(text) = std::str::from_utf8(input) else {
        assert!(found.is_err(), "accepted, but not UTF-8");
        return;
    };
    if json::is_too_deep(text) {
        return;
    }
    let Some(node) = json::parse(text) else {
        assert!(found.is_err(), "accepted, but not JSON");
        return;
    };
    // A key that cannot be read is a valid reason to refuse the line.
    if node.members().is_some_and(|members| members.iter().any(|(key, _)| json::string(key).is_none())) {
        return;
    }
    let kind = node.get("type").and_then(Node::string);
    let (Some(kind), Some(object), 1, 1) =
        (kind, node.get("object"), node.count("type"), node.count("object"))
    else {
        assert!(found.is_err(), "accepted, but not an event");
        return;
    };
    match (&*kind, found) {
        ("ADDED", Ok(WatchEvent::Added(found)))
        | ("MODIFIED", Ok(WatchEvent::Modified(found)))
        | ("DELETED", Ok(WatchEvent::Deleted(found))) => compare(text, object, true, Ok(found)),
        ("ADDED" | "MODIFIED" | "DELETED", Err(error)) => compare(text, object, true, Err(error)),
        ("BOOKMARK", found) => compare_bookmark(object, found),
        ("ERROR", found) => super::status::compare(
            object,
            found.ok().map(|event| {
                let WatchEvent::Error(status) = event else { panic!("{event:?} of an ERROR") };
                *status
            }),
        ),
        (_, Err(DecodeError::UnknownType(named))) => assert_eq!(named, kind),
        (kind, found) => panic!("{found:?} of {kind}"),
    }
}

fn compare_bookmark(object: &Node<'_>, found: Result<WatchEvent, DecodeError>) {
    let meta = object.get("metadata");
    let version = meta.and_then(|meta| meta.get("resourceVersion")).and_then(Node::string);
    match (version.filter(|version| !version.is_empty()), found) {
        (Some(version), Ok(WatchEvent::Bookmark { resource_version, initial_events_end })) => {
            assert_eq!(resource_version.to_string(), version);
            let annotations = meta.and_then(|meta| meta.get("annotations"));
            let end = annotations.and_then(|annotations| annotations.get(INITIAL_EVENTS_END));
            assert_eq!(initial_events_end, end.and_then(Node::string).as_deref() == Some("true"));
        }
        (None, Err(_)) => {}
        // A bookmark must have more than a version: no member twice, and annotations that are strings.
        (Some(_), Err(_)) => {
            let meta = meta.unwrap();
            let annotations = meta.get("annotations").filter(|node| !node.is_null());
            let odd = annotations.is_some_and(|node| {
                let members = node.members();
                members.is_none_or(|members| {
                    members.iter().any(|(key, value)| json::string(key).is_none() || value.string().is_none())
                })
            });
            let twice = object.count("metadata") > 1
                || meta.count("resourceVersion") > 1
                || meta.count("annotations") > 1;
            let unreadable = |node: &Node<'_>| {
                node.members()
                    .is_some_and(|members| members.iter().any(|(key, _)| json::string(key).is_none()))
            };
            assert!(odd || twice || unreadable(object) || unreadable(meta), "a bookmark was refused");
        }
        (version, found) => panic!("{found:?} of a bookmark at {version:?}"),
    }
}

/// Valid objects in difficult JSON.
fn objects() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?",
        strings(),
    ];
    let value = scalar.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|values| format!("[{}]", values.join(","))),
            members(strings(), inner),
        ]
    });
    let identity = prop_oneof![
        4 => Just(r#""name":"a","namespace":"n","uid":"u-1","resourceVersion":"7""#.to_owned()),
        1 => Just(r#""resourceVersion":"123456789012345678901234567890","name":"node""#.to_owned()),
        1 => Just(r#""name":"a""#.to_owned()),
    ];
    let known = || {
        prop::sample::select(
            &["name", "uid", "labels", "annotations", "managedFields", "ownerReferences", "namespace", "x"][..],
        )
    };
    let known = known().prop_map(|key| format!("\"{key}\""));
    let label = members(strings(), strings());
    let meta = prop_oneof![4 => members(known.clone(), label), 1 => members(known, value.clone())];
    let meta = (identity, meta, any::<bool>()).prop_map(|(identity, others, before)| {
        let others = others[1..others.len() - 1].to_owned();
        match (others.is_empty(), before) {
            (true, _) => format!("{{{identity}}}"),
            (false, true) => format!("{{{identity},{others}}}"),
            (false, false) => format!("{{{others},{identity}}}"),
        }
    });
    let types = prop::sample::select(
        &["", r#""kind":"Pod","apiVersion":"v1","#, r#""apiVersion":"v1","kind":"Pod","#, r#""kind":"Pod","#]
            [..],
    );
    (types, meta, members(strings(), value), prop::sample::select(&["", " ", "\n  ", "\t"][..])).prop_map(
        |(types, meta, others, blank)| {
            let others = others[1..others.len() - 1].to_owned();
            let comma = if others.is_empty() { "" } else { "," };
            format!("{{{blank}{types}{blank}\"metadata\":{blank}{meta}{blank}{comma}{others}{blank}}}")
        },
    )
}

/// Strings, escaped as in JSON.
fn strings() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[a-z]{1,6}",
        1 => "\\PC{0,3}".prop_map(|text| text.replace(['"', '\\'], "'")),
        1 => prop::sample::select(
            &["\\\"", "\\\\", "\\/", "\\n", "\\u0041", "\\u2028", "\\ud83d\\ude00", "\\udead", "\u{2028}", "\u{85}", "}", ", "][..]
        ).prop_map(str::to_owned),
        1 => prop::sample::select(&["kind", "spec", "metadata", LAST_APPLIED][..]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn members(
    keys: impl Strategy<Value = String>,
    values: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    let blank = prop::sample::select(&["", "", "", " "][..]);
    prop::collection::vec((keys, values, blank), 0..5).prop_map(|members| {
        let members: Vec<_> =
            members.iter().map(|(key, value, blank)| format!("{key}:{blank}{value}")).collect();
        format!("{{{}}}", members.join(","))
    })
}

#[test]
fn any_object_is_kept_unchanged_or_refused() {
    let target = Target { name: "object", tokens: TOKENS, check: &check_object };
    target.run(1);
    target.generate(objects(), 1);
}

#[test]
fn any_watch_line_is_an_event_or_refused() {
    let target = Target { name: "watch_line", tokens: TOKENS, check: &check_watch_line };
    target.run(1);
    let kinds = prop::sample::select(
        &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "NEW", "\\u0041DDED"][..],
    );
    let lines = (kinds, objects(), 0..4_u8).prop_map(|(kind, object, form)| match form {
        0 => format!(r#"{{"object":{object},"type":"{kind}"}}"#),
        1 => format!(r#"{{ "type" : "{kind}", "object" : {object} }}"#),
        2 => format!(r#"{{"type":"{kind}","object":{object},"more":[]}}"#),
        _ => format!(r#"{{"type":"{kind}","object":{object}}}"#),
    });
    target.generate(lines, 1);
}

#[test]
fn a_line_cut_anywhere_is_refused() {
    for (file, line) in corpus("watch_line") {
        let whole = line.trim_ascii_end().len();
        if Decoder::new(resource(), options(true)).watch_line(&line).is_err() {
            continue;
        }
        for end in 0..whole {
            let found = Decoder::new(resource(), options(true)).watch_line(&line[..end]);
            assert!(found.is_err(), "{file} cut at {end}");
        }
    }
}

#[test]
fn nesting_deeper_than_the_stack_is_decoded() {
    for depth in [100, 200, 100_000] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let inner = if open == "[" { "" } else { "1" };
            let deep = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
            let object =
                format!(r#"{{"metadata":{{"name":"a","resourceVersion":"1","x":{deep}}},"spec":{deep}}}"#);
            let options = DecodeOptions { object_bytes_max: 8 << 20, ..options(true) };
            let mut decoder = Decoder::new(resource(), options);
            let line = format!(r#"{{"type":"ADDED","object":{object}}}"#);
            let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{object}]}}"#);
            let taken = decoder.object(&object).unwrap();
            let values = taken.values(&IndexPaths::new(vec![IndexPath::Field(FieldPath::new("spec.a.a.a"))]));
            assert!(values.get(0).iter().all(|value| value.is_empty()), "{open}");
            assert!(decoder.watch_line(line.as_bytes()).is_ok());
            assert_eq!(decoder.list(list.as_bytes()).unwrap().objects.len(), 1);
        }
    }
}
