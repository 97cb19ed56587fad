//! JSON merge patches (RFC 7386) between two states of an object.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Object;
use super::json::MemberKey;

/// Members in every patch, so that a client knows the object and its state.
const IN_ROOT: [&str; 2] = ["apiVersion", "kind"];
const IN_METADATA: [&str; 4] = ["name", "namespace", "uid", "resourceVersion"];

/// Where in an object a comparison is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Metadata,
    Within,
}

/// Depth to which objects are compared. Each level reads what is below it again, on a thread with a bounded stack, and tenants write
/// objects of ten thousand levels where a definition has a free-form field.
const DEPTH_MAX: usize = 32;

/// Members of an object from which on they are looked up by a hash.
const HASHED_FROM: usize = 16;

/// No patch is made: it would have to set a member to `null`, which removes it, or to go deeper than [`DEPTH_MAX`].
struct NoPatch;

/// The patch that turns `before` into `after`, with the members that identify the object. `None` if no patch can, or if it
/// would not be shorter than the object.
pub fn merge_patch(before: &Object, after: &Object) -> Option<String> {
    // There is none from a state that cannot be read.
    let (before, after) = (before.try_text().ok()?, after.try_text().ok()?);
    let (before, after) = (std::str::from_utf8(&before).ok()?, std::str::from_utf8(&after).ok()?);
    let mut out = String::with_capacity(512);
    put(&members(before), &members(after), (Level::Root, DEPTH_MAX), &mut out).ok()?;
    (out.len() < after.len()).then_some(out)
}

/// Writes the patch between the members of two objects, which may go so many levels deeper.
fn put(
    before: &[Member<'_>],
    after: &[Member<'_>],
    (level, depth): (Level, usize),
    out: &mut String,
) -> Result<(), NoPatch> {
    let (old_values, new_values) = (Lookup::new(before), Lookup::new(after));
    out.push('{');
    let start = out.len();
    let begin = |raw: &str, out: &mut String| {
        if out.len() > start {
            out.push(',');
        }
        out.push_str(raw);
        out.push(':');
    };
    for Member { key, value } in after {
        let old = old_values.get(&key.text);
        let forced = match level {
            Level::Root => IN_ROOT.contains(&&*key.text),
            Level::Metadata => IN_METADATA.contains(&&*key.text),
            Level::Within => false,
        };
        let is_metadata = level == Level::Root && key.text == "metadata";
        if old == Some(*value) && !forced && !is_metadata {
            continue;
        }
        begin(key.raw, out);
        match old {
            Some(old) if is_object(old) && is_object(value) => {
                let level = if is_metadata { Level::Metadata } else { Level::Within };
                let depth = depth.checked_sub(1).ok_or(NoPatch)?;
                put(&members(old), &members(value), (level, depth), out)?;
            }
            _ if sets_null(value, depth) => return Err(NoPatch),
            _ => out.push_str(value),
        }
    }
    for Member { key, .. } in before.iter().filter(|old| new_values.get(&old.key.text).is_none()) {
        begin(key.raw, out);
        out.push_str("null");
    }
    out.push('}');
    Ok(())
}

fn is_object(json: &str) -> bool {
    json.starts_with('{')
}

/// Whether a value cannot be set by a patch: `null`, or an object with such a member, or one that may have such a member deeper than
/// this. Arrays are set as they are.
fn sets_null(json: &str, depth: usize) -> bool {
    json == "null"
        || is_object(json)
            && json.contains("null")
            && match depth.checked_sub(1) {
                Some(depth) => members(json).iter().any(|member| sets_null(member.value, depth)),
                None => true,
            }
}

/// The values of an object's members by key. Of the first few each is compared.
enum Lookup<'m, 'a> {
    Few(&'m [Member<'a>]),
    Many(HashMap<&'m str, &'a str>),
}

impl<'m, 'a> Lookup<'m, 'a> {
    fn new(members: &'m [Member<'a>]) -> Self {
        if members.len() < HASHED_FROM {
            return Self::Few(members);
        }
        Self::Many(members.iter().map(|member| (&*member.key.text, member.value)).collect())
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        match self {
            Self::Few(members) => {
                members.iter().find(|member| member.key.text == key).map(|member| member.value)
            }
            Self::Many(values) => values.get(key).copied(),
        }
    }
}

/// A member of an object: key and raw JSON.
struct Member<'a> {
    key: MemberKey<'a>,
    value: &'a str,
}

/// The members of an object in their order. Of a duplicate key the last one counts.
fn members(json: &str) -> Vec<Member<'_>> {
    let mut members = Vec::new();
    let mut reader = serde_json::Deserializer::from_str(json);
    // The decoder has read the object before, so this cannot fail.
    let _ = Members(&mut members).deserialize(&mut reader);
    let last: HashMap<&str, usize> = match members.len() {
        0..HASHED_FROM => HashMap::new(),
        _ => {
            members.iter().enumerate().map(|(at, member): (_, &Member<'_>)| (&*member.key.text, at)).collect()
        }
    };
    let is_last = |at: usize| match members.len() {
        0..HASHED_FROM => members[at + 1..].iter().all(|later| later.key.text != members[at].key.text),
        _ => last.get(&*members[at].key.text) == Some(&at),
    };
    let mut kept: Vec<bool> = (0..members.len()).map(is_last).collect();
    drop(last);
    kept.reverse();
    members.retain(|_| kept.pop().unwrap_or(true));
    members
}

struct Members<'m, 'de>(&'m mut Vec<Member<'de>>);

impl<'de> DeserializeSeed<'de> for Members<'_, 'de> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key()?.map(MemberKey::new) {
            let value = map.next_value::<&RawValue>()?.get();
            self.0.push(Member { key, value });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

    fn object(version: u64, rest: &Value) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let mut object = json!({ "kind": "Pod", "apiVersion": "v1",
            "metadata": { "name": "p", "uid": "u", "resourceVersion": version.to_string() },
            "padding": "x".repeat(200) });
        object["spec"] = rest.clone();
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&object.to_string()).unwrap()
    }

    /// RFC 7386, section 2.
    fn apply(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (key, value) in patch {
            if value.is_null() {
                target.as_object_mut().unwrap().remove(key);
            } else {
                apply(&mut target[key], value);
            }
        }
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3u8).prop_map(Value::from),
            "[a-b]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_patch_turns_the_earlier_state_into_the_later(before in json_value(), after in json_value()) {
            let (before, after) = (object(1, &before), object(2, &after));
            let read = |object: &Object| serde_json::from_slice::<Value>(&object.json()).unwrap();
            if let Some(patch) = merge_patch(&before, &after) {
                prop_assert!(patch.len() < after.json().len());
                let patch: Value = serde_json::from_str(&patch).unwrap();
                prop_assert_eq!(&patch["metadata"]["uid"], "u");
                prop_assert_eq!(&patch["kind"], "Pod");
                let mut target = read(&before);
                apply(&mut target, &patch);
                prop_assert_eq!(target, read(&after));
            }
        }
    }

    #[test]
    fn a_patch_has_the_differences_and_the_identity() {
        let patch =
            merge_patch(&object(1, &json!({"a": {"b": 1, "c": 2}})), &object(2, &json!({"a": {"b": 3}})));
        let expected = json!({ "kind": "Pod", "apiVersion": "v1",
            "metadata": { "name": "p", "uid": "u", "resourceVersion": "2" }, "spec": {"a": {"b": 3, "c": null}} });
        assert_eq!(serde_json::from_str::<Value>(&patch.unwrap()).unwrap(), expected);
        // A patch cannot set a null, except within an array.
        assert_eq!(merge_patch(&object(1, &json!({})), &object(2, &json!({"a": {"b": null}}))), None);
        assert!(merge_patch(&object(1, &json!({})), &object(2, &json!({"a": [null]}))).is_some());
    }

    fn of_spec(version: u64, spec: &str) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 8 << 20 };
        let metadata = format!(r#"{{"name":"p","uid":"u","resourceVersion":"{version}"}}"#);
        let padding = "x".repeat(500);
        let text = format!(r#"{{"kind":"Pod","metadata":{metadata},"padding":"{padding}","spec":{spec}}}"#);
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    #[test]
    fn objects_deeper_than_the_stack_have_no_patch() {
        let deep = |inner: &str| format!("{}{inner}{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        assert_eq!(merge_patch(&of_spec(1, &deep("1")), &of_spec(2, &deep("2"))), None);
        assert_eq!(merge_patch(&of_spec(1, "{}"), &of_spec(2, &deep("null"))), None);
        // Within the bound, and beside what changes.
        let shallow = |inner: &str| format!("{}{inner}{}", r#"{"a":"#.repeat(20), "}".repeat(20));
        assert!(merge_patch(&of_spec(1, &shallow("1")), &of_spec(2, &shallow("2"))).is_some());
        let beside = |value: u8| format!(r#"{{"b":{value},"a":{}}}"#, deep("null"));
        assert!(merge_patch(&of_spec(1, &beside(1)), &of_spec(2, &beside(2))).is_some());
    }

    #[test]
    fn objects_of_many_members_are_compared_by_key_and_the_last_duplicate_counts() {
        let members = |changed: &str| {
            let all: Vec<_> = (0..60_000).map(|at| format!(r#""k{at}":0"#)).collect();
            format!(r#"{{"k7":5,{},{changed}}}"#, all.join(","))
        };
        let patch = merge_patch(&of_spec(1, &members(r#""gone":1"#)), &of_spec(2, &members(r#""k8":9"#)));
        let patch: Value = serde_json::from_str(&patch.unwrap()).unwrap();
        assert_eq!(patch["spec"], json!({"k8": 9, "gone": null}));
    }
}
