//! Values at paths of an object: what selectors compare and indexes hold.
//!
//! All paths in use for a resource are one [`IndexPaths`]. The values of an object at all of them are read in one pass
//! over its JSON, once, and stay with the object as [`IndexValues`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Key;
use super::json::{MemberKey, Text};

/// The path to the values that a selector compares or an index holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IndexPath {
    /// The label with this key. An object without the label has no value.
    Label(Arc<str>),
    /// The scalar at a path. For an object without it the path has a default.
    Field(FieldPath),
}

/// Where the value of a field label is in an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath {
    /// A dotted path; `\.` is a dot within a name.
    pub path: Arc<str>,
    /// The value if the member is missing, `null` or an object.
    pub missing: &'static str,
    /// Whether the path continues in the elements of an array, so that an object has a value for each. If not, an array
    /// counts as missing.
    pub arrays: bool,
}

/// The paths in use for one resource, prepared for reading all of them at once.
#[derive(Debug)]
pub struct IndexPaths {
    /// Unique in the process, so that values read for another set are recognized.
    generation: u64,
    paths: Vec<IndexPath>,
    /// Slots of labels by key.
    labels: Vec<(Arc<str>, usize)>,
    /// Paths through arrays, and others.
    fields: [Node; 2],
    has_fields: [bool; 2],
    /// Slots of `metadata.name` and `metadata.namespace`, whose values are in the object's key.
    name: Vec<usize>,
    namespace: Vec<usize>,
    /// Values that objects hold, up to a bound.
    shared: Mutex<HashSet<Arc<IndexValues>>>,
}

/// The values of one object at the paths of one [`IndexPaths`], by slot.
#[derive(Debug)]
pub struct IndexValues {
    generation: u64,
    values: Box<[Values]>,
}

/// The values of one object at one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Values {
    /// No value: the label is missing, or the array is empty.
    #[default]
    None,
    /// One value.
    One(Arc<str>),
    /// Several, from the elements of an array; at least two, in the array's order.
    Many(Box<[Arc<str>]>),
}

/// How many objects' values are remembered to be shared, at most. Kubernetes supports clusters of 5,000 nodes.
const SHARED_LEN_MAX: usize = 8192;
/// Number of values of an object up to which they are shared.
const SHARED_VALUES_MAX: usize = 16;
/// Bytes of an object's values up to which they are shared.
const SHARED_BYTES_MAX: usize = 256;

/// Depth to which arrays directly within arrays are read. No built-in kind nests two.
const ARRAYS_MAX: u8 = 8;

/// A node in the tree of all paths: the root or one member name.
#[derive(Debug, Default)]
struct Node {
    children: Vec<(String, Node)>,
    /// Slots of the paths that end here, each with its default.
    ends: Vec<(usize, &'static str)>,
}

// === impl FieldPath ===

impl FieldPath {
    /// A path as clients of `/v1` write it: it continues through arrays, and a missing value is the empty text.
    pub fn new(path: impl Into<Arc<str>>) -> Self {
        Self { path: path.into(), missing: "", arrays: true }
    }

    /// The member names along the path, unescaped.
    pub fn segments(&self) -> Vec<String> {
        segments(&self.path)
    }
}

/// The member names along a dotted path. Shape: at least one.
fn segments(path: &str) -> Vec<String> {
    let mut segments = vec![String::new()];
    let mut characters = path.chars().peekable();
    while let Some(character) = characters.next() {
        let last = segments.len() - 1;
        match character {
            '\\' if characters.peek() == Some(&'.') => segments[last].extend(characters.next()),
            '.' => segments.push(String::new()),
            other => segments[last].push(other),
        }
    }
    segments
}

impl fmt::Display for IndexPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "metadata.labels.{}", key.replace('.', "\\.")),
            Self::Field(field) => f.write_str(&field.path),
        }
    }
}

// === impl IndexPaths ===

impl IndexPaths {
    /// Prepares these paths. A path's slot is its place in the list.
    pub fn new(paths: Vec<IndexPath>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let generation = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut prepared = Self {
            generation,
            labels: Vec::new(),
            fields: Default::default(),
            has_fields: [false; 2],
            name: Vec::new(),
            namespace: Vec::new(),
            paths: Vec::new(),
            shared: Mutex::default(),
        };
        for (slot, path) in paths.iter().enumerate() {
            match path {
                IndexPath::Label(key) => prepared.labels.push((key.clone(), slot)),
                IndexPath::Field(field) if &*field.path == "metadata.name" => prepared.name.push(slot),
                IndexPath::Field(field) if &*field.path == "metadata.namespace" => {
                    prepared.namespace.push(slot)
                }
                IndexPath::Field(field) => {
                    let at = usize::from(!field.arrays);
                    prepared.has_fields[at] = true;
                    let mut node = &mut prepared.fields[at];
                    for segment in field.segments() {
                        node = node.child_mut(segment);
                    }
                    node.ends.reserve_exact(1);
                    node.ends.push((slot, field.missing));
                }
            }
        }
        prepared.paths = paths;
        prepared
    }

    /// The number of this set of paths, unique in the process.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The paths, by slot.
    pub fn paths(&self) -> &[IndexPath] {
        &self.paths
    }

    /// The slot of a path.
    pub fn slot(&self, path: &IndexPath) -> Option<usize> {
        self.paths.iter().position(|one| one == path)
    }

    /// Reads the values at all paths of an object with this key. Costs one pass over its labels, and one over its JSON if
    /// there is a path other than labels, name and namespace; what it does not need it does not ask for.
    pub(super) fn read<'l, J: AsRef<[u8]>>(
        &self,
        key: &Key,
        labels: impl FnOnce() -> Vec<(Cow<'l, str>, Cow<'l, str>)>,
        json: impl Fn() -> J,
    ) -> IndexValues {
        let mut found = vec![Found::default(); self.paths.len()];
        if !self.labels.is_empty() {
            let labels = labels();
            for (key, slot) in &self.labels {
                // A key twice in the JSON means the last one.
                if let Some((_, value)) = labels.iter().rev().find(|(found, _)| **found == **key) {
                    found[*slot].values.push(value.as_ref().into());
                }
            }
        }
        for (at, root) in self.fields.iter().enumerate().filter(|(at, _)| self.has_fields[*at]) {
            // A packed object is unpacked once for both.
            let json = json();
            let text = std::str::from_utf8(json.as_ref()).expect("the decoder only takes UTF-8");
            let mut reader = serde_json::Deserializer::from_str(text);
            let walk = Walk { node: root, arrays: at == 0, within: 0, found: &mut found };
            // The decoder has read the object before, so this cannot fail.
            let _ = walk.deserialize(&mut reader);
        }
        self.name.iter().for_each(|slot| found[*slot].values = vec![key.name().into()]);
        self.namespace.iter().for_each(|slot| found[*slot].values = vec![key.namespace().into()]);
        let values = found.into_iter().map(Found::into_values).collect();
        IndexValues { generation: self.generation, values }
    }

    /// The same values, to be held by an object. Objects that have the same values, as the pods of one node do, hold them once.
    pub(super) fn share(&self, values: IndexValues) -> Arc<IndexValues> {
        if !values.is_short() {
            return Arc::new(values);
        }
        // If another thread shares values just now, these are held once more. Nobody waits.
        let Ok(mut shared) = self.shared.try_lock() else { return Arc::new(values) };
        if let Some(values) = shared.get(&values) {
            return values.clone();
        }
        if shared.len() >= SHARED_LEN_MAX {
            shared.clear();
        }
        let values = Arc::new(values);
        shared.insert(values.clone());
        values
    }
}

// === impl IndexValues ===

impl IndexValues {
    /// The number of the set of paths that these values were read for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The values at the path in a slot.
    pub fn get(&self, slot: usize) -> &Values {
        &self.values[slot]
    }

    /// Whether they are so short that the memory for those that are shared has a bound.
    fn is_short(&self) -> bool {
        let all = || self.values.iter().flat_map(Values::iter);
        all().take(SHARED_VALUES_MAX + 1).count() <= SHARED_VALUES_MAX
            && all().map(|value| value.len()).sum::<usize>() <= SHARED_BYTES_MAX
    }
}

/// Two are the same when their values are: it is for a set of those of one [`IndexPaths`].
impl PartialEq for IndexValues {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Eq for IndexValues {}

impl Hash for IndexValues {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.values.hash(state);
    }
}

impl Values {
    /// All values, in order. A value may come twice.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        let slice = match self {
            Self::None => &[],
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => &**values,
        };
        slice.iter()
    }

    /// Whether a value is among them.
    pub fn contains(&self, value: &str) -> bool {
        self.iter().any(|one| &**one == value)
    }
}

// === reading ===

#[derive(Clone, Default)]
struct Found {
    values: Vec<Arc<str>>,
}

impl Found {
    fn into_values(mut self) -> Values {
        match self.values.len() {
            0 => Values::None,
            1 => Values::One(self.values.remove(0)),
            _ => Values::Many(self.values.into()),
        }
    }
}

impl Node {
    fn child_mut(&mut self, name: String) -> &mut Self {
        let at = match self.children.iter().position(|(child, _)| *child == name) {
            Some(at) => at,
            None => {
                // Mostly there is one, in as many sets of paths as there are selections.
                self.children.reserve_exact(1);
                self.children.push((name, Self::default()));
                self.children.len() - 1
            }
        };
        &mut self.children[at].1
    }

    /// Gives every path through here its default, as the member is missing.
    fn miss(&self, found: &mut [Found]) {
        self.ends.iter().for_each(|(slot, missing)| found[*slot].values.push((*missing).into()));
        self.children.iter().for_each(|(_, child)| child.miss(found));
    }

    /// Cuts the values of every path through here to these lengths.
    fn truncate(&self, lengths: &BTreeMap<usize, usize>, found: &mut [Found]) {
        for (slot, _) in &self.ends {
            found[*slot].values.truncate(lengths.get(slot).copied().unwrap_or(0));
        }
        self.children.iter().for_each(|(_, child)| child.truncate(lengths, found));
    }

    /// Notes how many values each path through here has.
    fn lengths(&self, found: &[Found], lengths: &mut BTreeMap<usize, usize>) {
        lengths.extend(self.ends.iter().map(|(slot, _)| (*slot, found[*slot].values.len())));
        self.children.iter().for_each(|(_, child)| child.lengths(found, lengths));
    }
}

/// Reads the values of all paths through a node from the JSON at that node.
struct Walk<'n, 'f> {
    node: &'n Node,
    arrays: bool,
    /// How many arrays this JSON is directly within.
    within: u8,
    found: &'f mut [Found],
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        if self.node.ends.is_empty() {
            return reader.deserialize_any(self);
        }
        let raw = <&RawValue as serde::Deserialize>::deserialize(reader)?.get();
        let first = raw.as_bytes().first();
        if first == Some(&b'[') && self.arrays {
            // Elements of an array within an array belong to this node, too.
            let _ = serde_json::Deserializer::from_str(raw).deserialize_any(self);
            return Ok(());
        }
        let text: Option<Cow<'_, str>> = match first {
            Some(b'"') => serde_json::from_str::<Text<'_>>(raw).ok().map(|text| text.0),
            Some(b'{' | b'[' | b'n') | None => None,
            Some(_) => Some(Cow::Borrowed(raw)),
        };
        for (slot, missing) in &self.node.ends {
            match &text {
                Some(text) => self.found[*slot].values.push(text.as_ref().into()),
                // An object among the elements of an array is neither a scalar nor a missing member: it gives no value.
                None if self.within > 0 && first == Some(&b'{') => {}
                None => self.found[*slot].values.push((*missing).into()),
            }
        }
        if first == Some(&b'{') {
            let visitor = Children { node: self.node, arrays: self.arrays, found: self.found };
            let _ = serde_json::Deserializer::from_str(raw).deserialize_map(visitor);
        } else {
            self.node.children.iter().for_each(|(_, child)| child.miss(self.found));
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Children { node: self.node, arrays: self.arrays, found: self.found }.visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if !self.arrays || self.within == ARRAYS_MAX {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            if !self.arrays {
                self.node.miss(self.found);
            }
            return Ok(());
        }
        loop {
            let within = self.within + 1;
            let element = Walk { node: self.node, arrays: true, within, found: &mut *self.found };
            if seq.next_element_seed(element)?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.node.miss(self.found);
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.node.miss(self.found);
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.node.miss(self.found);
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.node.miss(self.found);
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.node.miss(self.found);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.node.miss(self.found);
        Ok(())
    }
}

/// Reads the members of an object, for the paths that go through them.
struct Children<'n, 'f> {
    node: &'n Node,
    arrays: bool,
    found: &'f mut [Found],
}

impl<'de> Visitor<'de> for Children<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { node, arrays, found } = self;
        let mut read = vec![false; node.children.len()];
        let mut before = BTreeMap::new();
        node.children.iter().for_each(|(_, child)| child.lengths(found, &mut before));
        while let Some(key) = map.next_key()?.map(MemberKey::new) {
            let Some(at) = node.children.iter().position(|(name, _)| *name == key.text) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let child = &node.children[at].1;
            // A key twice in the JSON means the last one.
            if std::mem::replace(&mut read[at], true) {
                child.truncate(&before, found);
            }
            map.next_value_seed(Walk { node: child, arrays, within: 0, found: &mut *found })?;
        }
        let missing = node.children.iter().zip(read).filter(|(_, read)| !read);
        missing.for_each(|((_, child), _)| child.miss(found));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{DecodeOptions, Decoder, Object, Resource, ResourceParts};

    fn object(rest: &str) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let text = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","namespace":"n","resourceVersion":"1","labels":{{"app":"web"}},"annotations":{{"example.com/note":"x"}}}},{rest}}}"#
        );
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    #[track_caller]
    fn check(path: &str, arrays: bool, rest: &str, expected: &[&str]) {
        let field = FieldPath { path: path.into(), missing: "", arrays };
        let paths = IndexPaths::new(vec![IndexPath::Label("app".into()), IndexPath::Field(field)]);
        let values = object(rest).read_values(&paths);
        assert!(values.get(0).contains("web"));
        assert_eq!(
            values.get(1).iter().map(|value| &**value).collect::<Vec<_>>(),
            expected,
            "{path} of {rest}"
        );
    }

    #[test]
    fn a_path_leads_to_scalars_as_text() {
        let rest = r#""spec":{"nodeName":"n1","n":1.50,"on":true,"no":null,"o":{"a":"b"}}"#;
        for (path, expected) in [
            ("spec.nodeName", "n1"),
            ("spec.n", "1.50"),
            ("spec.on", "true"),
            ("spec.no", ""),
            ("spec.o", ""),
            ("spec.o.a", "b"),
            ("spec.nodeName.a", ""),
            ("nothing.at.all", ""),
            ("metadata.name", "p"),
            ("metadata.namespace", "n"),
            (r"metadata.annotations.example\.com/note", "x"),
        ] {
            check(path, true, rest, &[expected]);
            check(path, false, rest, &[expected]);
        }
    }

    #[test]
    fn a_path_through_an_array_has_a_value_for_each_element() {
        let rest = r#""a":[{"b":"1"},{},{"b":null},{"b":["2","3"]},[{"b":"4"}],5]"#;
        check("a.b", true, rest, &["1", "", "", "2", "3", "4", ""]);
        check("a.b", false, rest, &[""]);
        check("a", true, rest, &["5"]);
        check("a", true, r#""a":[]"#, &[]);
        check("a.b", true, r#""a":[]"#, &[]);
        check("a", false, r#""a":["x"]"#, &[""]);
        check("a", true, r#""a":["x",null,["y"]]"#, &["x", "", "y"]);
    }

    #[test]
    fn of_duplicate_keys_the_last_one_counts() {
        check("a.b", true, r#""a":{"b":"1"},"a":{"c":"2"}"#, &[""]);
        check("a.b", true, r#""a":[{"b":"1","b":"2"},{"b":"3"}]"#, &["2", "3"]);
    }

    #[test]
    fn a_path_may_be_the_prefix_of_another() {
        let field = |path: &str| IndexPath::Field(FieldPath::new(path));
        let paths = IndexPaths::new(vec![field("a"), field("a.b")]);
        let read = |rest: &str| {
            let values = object(rest).read_values(&paths);
            [0, 1].map(|slot| values.get(slot).iter().map(|value| value.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(read(r#""a":{"b":"1"}"#), [vec![String::new()], vec!["1".into()]]);
        assert_eq!(read(r#""a":"x""#), [vec!["x".to_owned()], vec![String::new()]]);
        assert_eq!(read(r#""a":[{"b":"1"},"x"]"#), [vec!["x".to_owned()], vec!["1".into(), String::new()]]);
    }
    #[test]
    fn objects_with_the_same_values_hold_them_once() {
        let paths = IndexPaths::new(vec![IndexPath::Field(FieldPath::new("spec.a"))]);
        let read = |value: &str| object(&format!(r#""spec":{{"a":{value}}}"#)).values(&paths);
        let one = read(r#""1""#);
        assert!(Arc::ptr_eq(&one, &read("1")));
        assert!(!Arc::ptr_eq(&one, &read("2")));
        let many = format!("[{}]", vec!["1"; SHARED_VALUES_MAX + 1].join(","));
        let long = format!(r#""{}""#, "1".repeat(SHARED_BYTES_MAX + 1));
        for too_much in [many, long] {
            assert!(!Arc::ptr_eq(&read(&too_much), &read(&too_much)), "{too_much}");
        }
        for value in 0..2 * SHARED_LEN_MAX {
            assert!(read(&value.to_string()).get(0).contains(&value.to_string()));
            assert!(paths.shared.lock().unwrap().len() <= SHARED_LEN_MAX);
        }
        assert!(Arc::ptr_eq(&read("1"), &read("1")), "values are shared after the bound was reached");
    }
}
