//! The parts of objects that a client asks for, cut from their JSON without parsing all of it.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Object;
use super::json::MemberKey;
use super::places::{Places, Span};

/// Largest number of paths in a mask. A client that needs more takes whole objects.
const MASK_PATHS_MAX: usize = 64;
/// Largest number of names along one path.
const NAMES_MAX: usize = 32;
/// Arrays directly within arrays, to this depth, are searched. No built-in kind of Kubernetes nests two.
const ARRAYS_MAX: u8 = 8;

/// Part of every mask: they say which object it is, and in which state.
const IDENTITY: [&str; 6] =
    ["apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion"];

/// Members of an object, as dotted paths: `metadata.name,spec.containers.image`.
///
/// A path goes from member to member, and through the elements of arrays; `\.` is a dot within a name. What
/// identifies an object belongs to every mask. Masks with the same meaning are equal, however they were written.
#[derive(Clone)]
pub struct FieldMask {
    /// Sorted, without duplicates; none is within another.
    paths: Vec<Vec<String>>,
    root: Node,
    /// Whether a value without any member of the mask is kept, unchanged or empty, and not left out.
    keeps_shape: bool,
}

/// Why a list of paths is not a mask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?}: {problem}; expected paths such as metadata.labels,spec.containers.image")]
pub struct FieldMaskError {
    path: String,
    problem: String,
}

/// A node of the tree of paths: the root, or a member name with the paths that go through it.
#[derive(Clone, Default)]
struct Node {
    /// Whether the mask wants the whole value.
    whole: bool,
    children: Vec<(String, Node)>,
}

impl FieldMask {
    /// Reads paths joined by commas.
    ///
    /// # Errors
    /// [`FieldMaskError`] with the path that is not valid.
    pub fn parse(text: &str) -> Result<Self, FieldMaskError> {
        let mut paths = Vec::new();
        for path in text.split(',') {
            paths.push(names(path.trim())?);
            if paths.len() > MASK_PATHS_MAX {
                let problem = format!("there are more than {MASK_PATHS_MAX} paths");
                return Err(FieldMaskError { path: path.to_owned(), problem });
            }
        }
        Ok(Self::new(paths, false))
    }

    /// A mask of these paths that keeps the shape of what it cuts: an expression that reads only these paths gives the
    /// same for the part as for the whole.
    pub(super) fn of_names(paths: Vec<Vec<String>>) -> Self {
        Self::new(paths, true)
    }

    fn new(mut paths: Vec<Vec<String>>, keeps_shape: bool) -> Self {
        paths.sort_unstable();
        paths.dedup_by(|later, earlier| later.starts_with(earlier));
        let mut root = Node::default();
        let identity = IDENTITY.map(|path| path.split('.').map(str::to_owned).collect::<Vec<_>>());
        paths.iter().chain(&identity).for_each(|path| root.add(path));
        Self { paths, root, keeps_shape }
    }

    /// The paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        let escaped = |name: &String| name.replace('\\', "\\\\").replace('.', "\\.");
        self.paths.iter().map(move |path| path.iter().map(escaped).collect::<Vec<_>>().join("."))
    }

    /// The object with these members alone, nested and in the order in which they were. A member that
    /// holds nothing of the mask is left out; an array keeps one element for each object in it.
    pub fn cut(&self, object: &Object) -> Object {
        let json = object.text();
        let text = std::str::from_utf8(&json).expect("the decoder only takes UTF-8");
        let mut out = String::with_capacity(256);
        self.root.cut(text, 0, self.keeps_shape, &mut out);
        object.with_json(out.as_bytes(), places(&out))
    }

    /// As [`FieldMask::cut`], for a JSON object: the members in the mask, with those that identify the object.
    pub fn cut_json(&self, json: &str) -> String {
        let mut out = String::new();
        self.root.cut(json, 0, self.keeps_shape, &mut out);
        out
    }

    /// Whether two states of an object are the same in these members, `metadata.resourceVersion` not counted.
    pub fn is_same(&self, before: &Object, after: &Object) -> bool {
        before.text() == after.text() || self.cut(before).is_same_but_version(&self.cut(after))
    }
}

impl PartialEq for FieldMask {
    fn eq(&self, other: &Self) -> bool {
        self.paths == other.paths
    }
}

impl Eq for FieldMask {}

impl Hash for FieldMask {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.paths.hash(state);
    }
}

impl fmt::Debug for FieldMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.paths().collect::<Vec<_>>().join(","))
    }
}

/// The names along a dotted path.
fn names(path: &str) -> Result<Vec<String>, FieldMaskError> {
    let wrong = |problem: &str| {
        let path = path.chars().take(80).collect();
        Err(FieldMaskError { path, problem: problem.to_owned() })
    };
    let mut names = vec![String::new()];
    let mut characters = path.chars().peekable();
    while let Some(character) = characters.next() {
        let last = names.len() - 1;
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('.' | '\\')) => names[last].push(escaped),
                _ => return wrong(r"\ stands before . or \ only"),
            },
            '.' => names.push(String::new()),
            '[' | ']' | '*' => {
                return wrong("write no brackets and no *: a path goes through arrays by itself");
            }
            other => names[last].push(other),
        }
    }
    if names.iter().any(String::is_empty) {
        return wrong("a name is empty");
    }
    if names.len() > NAMES_MAX {
        return wrong("the path is longer than 32 names");
    }
    Ok(names)
}

impl Node {
    fn add(&mut self, path: &[String]) {
        let Some((name, rest)) = path.split_first() else {
            self.whole = true;
            return;
        };
        let at = match self.children.iter().position(|(child, _)| child == name) {
            Some(at) => at,
            None => {
                self.children.push((name.clone(), Self::default()));
                self.children.len() - 1
            }
        };
        self.children[at].1.add(rest);
    }

    /// Appends the wanted part of some JSON. Appends nothing and returns `false` if no part of it is wanted.
    fn cut(&self, json: &str, within: u8, keeps_shape: bool, out: &mut String) -> bool {
        if self.whole {
            out.push_str(json);
            return true;
        }
        let mut reader = serde_json::Deserializer::from_str(json);
        match json.as_bytes().first() {
            Some(b'{') => {
                let mut members = Vec::with_capacity(self.children.len());
                let _ = Members { node: self, members: &mut members }.deserialize(&mut reader);
                self.put_members(&members, keeps_shape, out)
            }
            Some(b'[') if within < ARRAYS_MAX => {
                let mut elements = Vec::new();
                let _ = Elements(&mut elements).deserialize(&mut reader);
                out.push('[');
                for element in elements {
                    let start = out.len();
                    if !out.ends_with('[') {
                        out.push(',');
                    }
                    match element.as_bytes().first() {
                        Some(b'{') if !self.cut(element, 0, keeps_shape, out) => out.push_str("{}"),
                        Some(b'[') if !self.cut(element, within + 1, keeps_shape, out) => out.push_str("[]"),
                        Some(b'{' | b'[') => {}
                        Some(_) if keeps_shape => out.push_str(element),
                        // A scalar has no members.
                        Some(_) | None => out.truncate(start),
                    }
                }
                out.push(']');
                true
            }
            Some(_) if keeps_shape => {
                out.push_str(json);
                true
            }
            Some(_) | None => false,
        }
    }

    fn put_members(&self, members: &[(usize, &str, &str)], keeps_shape: bool, out: &mut String) -> bool {
        let start = out.len();
        for (child, key, value) in members {
            let before = out.len();
            out.push(if before == start { '{' } else { ',' });
            out.push_str(key);
            out.push(':');
            if !self.children[*child].1.cut(value, 0, keeps_shape, out) {
                out.truncate(before);
            }
        }
        if out.len() > start {
            out.push('}');
        } else if keeps_shape {
            out.push_str("{}");
        }
        out.len() > start
    }
}

/// Finds the members of an object that a node wants: child, key and value. Of a duplicate key the last one counts.
struct Members<'n, 'm, 'de> {
    node: &'n Node,
    members: &'m mut Vec<(usize, &'de str, &'de str)>,
}

impl<'de> DeserializeSeed<'de> for Members<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key()?.map(MemberKey::new) {
            let Some(child) = self.node.children.iter().position(|(name, _)| *name == key.text) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            self.members.retain(|(earlier, ..)| *earlier != child);
            self.members.push((child, key.raw, map.next_value::<&RawValue>()?.get()));
        }
        Ok(())
    }
}

/// The elements of an array, as raw JSON.
struct Elements<'m, 'de>(&'m mut Vec<&'de str>);

impl<'de> DeserializeSeed<'de> for Elements<'_, 'de> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(element) = seq.next_element::<&RawValue>()? {
            self.0.push(element.get());
        }
        Ok(())
    }
}

// === the object of a part ===

/// Where uid, version and labels stand in an object's JSON.
fn places(json: &str) -> Places {
    let start = json.as_ptr() as usize;
    let span = |text: &str, quotes: u32| {
        let at = (text.as_ptr() as usize - start) as u32;
        Span { start: at + quotes, end: at + text.len() as u32 - quotes }
    };
    let read = |json: &str, names: &[&str]| {
        let children = names.iter().map(|name| ((*name).to_owned(), Node::default())).collect();
        let node = Node { whole: false, children };
        let mut members = Vec::new();
        let mut reader = serde_json::Deserializer::from_str(json);
        let _ = Members { node: &node, members: &mut members }.deserialize(&mut reader);
        members.into_iter().map(|(child, _, value)| (child, span(value, 0))).collect::<Vec<_>>()
    };
    let mut found = Places::default();
    for (_, metadata) in read(json, &["metadata"]) {
        let metadata = &json[metadata.start as usize..metadata.end as usize];
        for (child, place) in read(metadata, &["uid", "resourceVersion", "labels"]) {
            let value = &json[place.start as usize..place.end as usize];
            let inner = if value.starts_with('"') { span(value, 1) } else { Span::default() };
            match child {
                0 => found.uid = inner,
                1 => found.version = inner,
                _ if value == "null" => {}
                _ => found.labels = place,
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

    fn object(text: &str) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        Decoder::new(Resource::new(ResourceParts::default()), options).object(text).unwrap()
    }

    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"n","uid":"u1","resourceVersion":"7","labels":{"app":"web"},"annotations":{"example.com/note":"x"}},"spec":{"nodeName":"n1","containers":[{"name":"a","image":"i1"},{"name":"b"}]},"status":{"phase":"Running","podIPs":[]}}"#;

    #[track_caller]
    fn check(mask: &str, rest_of_metadata: &str, rest: &str) {
        let cut = FieldMask::parse(mask).unwrap().cut(&object(POD));
        let expected = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","namespace":"n","uid":"u1","resourceVersion":"7"{rest_of_metadata}}}{rest}}}"#
        );
        assert_eq!(std::str::from_utf8(&cut.json()).unwrap(), expected, "{mask}");
        assert_eq!((&*cut.uid(), &*cut.resource_version().to_string()), ("u1", "7"));
        let (before, after) = cut.json_around_version();
        assert_eq!(cut.json()[before.len()..cut.json().len() - after.len()], *b"7");
    }

    #[test]
    fn a_masked_object_has_the_masked_members_and_its_identity() {
        check("metadata.name", "", "");
        check("spec.nodeName,status.phase", "", r#","spec":{"nodeName":"n1"},"status":{"phase":"Running"}"#);
        check("spec.containers.image", "", r#","spec":{"containers":[{"image":"i1"},{}]}"#);
        check("status.podIPs.ip", "", r#","status":{"podIPs":[]}"#);
        check("metadata.labels,spec.none,status.phase.none", r#","labels":{"app":"web"}"#, "");
        check(r"metadata.annotations.example\.com/note", r#","annotations":{"example.com/note":"x"}"#, "");
    }

    #[test]
    fn a_version_that_is_no_number_is_that_of_the_masked_object() {
        let metadata = r#""name":"p","resourceVersion":"8","resourceVersion":"x\"1""#;
        let pod = object(&format!(
            r#"{{"metadata":{{"resourceVersion":"9"}},"spec":{{"a":1}},"metadata":{{{metadata}}}}}"#
        ));
        let cut = FieldMask::parse("spec.a").unwrap().cut(&pod);
        assert_eq!([pod, cut].map(|object| object.resource_version().to_string()), ["x\"1"; 2]);
    }

    #[test]
    fn masks_that_mean_the_same_are_equal() {
        let parse = |text: &str| FieldMask::parse(text).unwrap();
        assert_eq!(parse("spec, status.phase"), parse("status.phase,spec.nodeName,spec"));
        assert_eq!(format!("{:?}", parse(r"status.phase,a\.b,spec")), r"a\.b,spec,status.phase");
        assert_ne!(parse("spec.a"), parse("spec.ab"));
    }

    #[test]
    fn a_path_that_is_not_valid_is_refused_by_name() {
        for (text, part) in [
            ("", "a name is empty"),
            ("spec..a", "a name is empty"),
            (".spec", "a name is empty"),
            ("spec.containers[0].image", "no brackets"),
            ("spec.*", "no brackets"),
            (r"a\b", r"\ stands before"),
            (r"a\", r"\ stands before"),
        ] {
            let error = FieldMask::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many = vec!["a"; MASK_PATHS_MAX + 1].join(",");
        assert!(FieldMask::parse(&many).unwrap_err().to_string().contains("more than 64"));
    }

    #[test]
    fn states_that_differ_outside_the_mask_are_equal() {
        let mask = FieldMask::parse("metadata,status.phase").unwrap();
        let other = POD.replace(r#":"7""#, r#":"8""#);
        assert!(mask.is_same(&object(POD), &object(&other.replace("n1", "n2"))));
        assert!(!mask.is_same(&object(POD), &object(&other.replace("Running", "Failed"))));
        assert!(!mask.is_same(&object(POD), &object(&other.replace("web", "api"))));
    }

    proptest::proptest! {
        /// A masked object is valid JSON with the members of the mask and no others, compared by means of serde_json.
        #[test]
        fn a_masked_object_equals_that_of_a_parser(
            depth in proptest::collection::vec("[a-c]", 1..4),
            json in proptest::sample::select(vec![
                r#"{"a":{"b":{"c":1}}}"#, r#"{"a":[{"b":[{"c":1},{"c":null}]},5,[{"b":2}]]}"#, r#"{"a":null,"b":{"a":[]}}"#,
                r#"{"a":{"a":1,"a":{"b":2}},"c":"x"}"#,
            ]),
        ) {
            let path = depth.join(".");
            let cut = FieldMask::parse(&path).unwrap().cut_json(json);
            let cut: serde_json::Value = if cut.is_empty() { serde_json::json!({}) } else { serde_json::from_str(&cut).unwrap() };
            let names: Vec<&str> = depth.iter().map(String::as_str).collect();
            let expected = model(&serde_json::from_str(json).unwrap(), &names).unwrap_or(serde_json::json!({}));
            proptest::prop_assert_eq!(cut, expected);
        }
    }

    fn model(json: &serde_json::Value, names: &[&str]) -> Option<serde_json::Value> {
        use serde_json::Value;
        let Some((name, rest)) = names.split_first() else { return Some(json.clone()) };
        match json {
            Value::Object(members) => {
                let inner = model(members.get(*name)?, rest)?;
                Some(serde_json::json!({ *name: inner }))
            }
            Value::Array(elements) => {
                let element = |element: &Value| match element {
                    Value::Object(_) => Some(model(element, names).unwrap_or(serde_json::json!({}))),
                    Value::Array(_) => Some(model(element, names).unwrap_or(serde_json::json!([]))),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
                };
                Some(elements.iter().filter_map(element).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
}
