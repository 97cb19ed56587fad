use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

fn decoder() -> Decoder {
    let secrets = ResourceParts {
        version: "v1".into(),
        plural: "secrets".into(),
        kind: "Secret".into(),
        namespaced: true,
        ..Default::default()
    };
    let options =
        DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 8 << 20 };
    Decoder::new(Resource::new(secrets), options)
}

#[track_caller]
fn check(paths: &str, input: &str, expected: &str) {
    let object = decoder().dropping(paths.parse().unwrap()).object(input).unwrap();
    assert_eq!(std::str::from_utf8(&object.json()).unwrap(), expected, "{paths}");
    serde_json::from_slice::<Value>(&object.json()).unwrap();
    assert_eq!((object.key().as_str(), object.resource_version().to_string()), ("a", "7".to_owned()));
}

const HEAD: &str = r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7""#;

#[test]
fn dropped_parts_are_removed_and_the_rest_is_kept_byte_for_byte() {
    let object = |rest: &str| format!("{HEAD}}}{rest}}}");
    check(
        ".data",
        &object(r#","data":{"x":"y"},"type":"t\u003c","n":1.50"#),
        &object(r#","type":"t\u003c","n":1.50"#),
    );
    check(
        ".status.conditions",
        &object(r#","status":{"a":1e3,"conditions":[{"x":{}}],"\u003ck":"\u0041"}"#),
        &object(r#","status":{"a":1e3,"\u003ck":"\u0041"}"#),
    );
    check(".data,.status", &object(r#","data":{},"status":null"#), &object(""));
    check(".a.b", &object(r#","a":{"b":1}"#), &object(r#","a":{}"#));
    check(".a.b.c", &object(r#","a":{"b":1.50}"#), &object(r#","a":{"b":1.50}"#));
    check(".a.b", &object(r#","a":"text","b":{"b":1}"#), &object(r#","a":"text","b":{"b":1}"#));
    // Names may be escaped.
    check(".data", &object(r#","d\u0061ta":1,"x":2"#), &object(r#","x":2"#));
}

#[test]
fn a_dropped_path_applies_to_each_element_of_an_array() {
    let input = format!(
        r#"{HEAD}}},"spec":{{"containers":[{{"name":"x","env":[1]}},{{"env":[]}},7,[{{"env":1,"z":2}}]]}}}}"#
    );
    check(
        ".spec.containers.env",
        &input,
        &format!(r#"{HEAD}}},"spec":{{"containers":[{{"name":"x"}},{{}},7,[{{"z":2}}]]}}}}"#),
    );
}

#[test]
fn metadata_members_can_be_dropped_with_the_last_applied_annotation() {
    let last = r#""kubectl.kubernetes.io/last-applied-configuration":"{}""#;
    let input = format!(
        r#"{HEAD},"labels":{{"l":"1"}},"annotations":{{{last},"a.b/c":"1","d":"2"}},"ownerReferences":[{{"uid":"u","name":"n"}}],"generation":3}}}}"#
    );
    let paths = r#".metadata.annotations["a.b/c"],.metadata.generation,.metadata.ownerReferences.name"#;
    check(
        paths,
        &input,
        &format!(
            r#"{HEAD},"labels":{{"l":"1"}},"annotations":{{"d":"2"}},"ownerReferences":[{{"uid":"u"}}]}}}}"#
        ),
    );
    let object = decoder().dropping(paths.parse().unwrap()).object(&input).unwrap();
    assert_eq!(object.labels(), [("l".into(), "1".into())]);
}

#[test]
fn metadata_only_decoding_keeps_nothing_else() {
    let expected = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","resourceVersion":"7","labels":{"l":"1"}}}"#;
    let metadata = r#""metadata":{"name":"a","managedFields":[],"resourceVersion":"7","labels":{"l":"1"}}"#;
    for input in [
        format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",{metadata}}}"#),
        format!(
            r#"{{"apiVersion":"v1","kind":"Secret",{metadata},"data":{{"p":"c2VjcmV0"}},"type":"Opaque"}}"#
        ),
        format!(r#"{{"data":{{"p":"c2VjcmV0"}},{metadata}}}"#),
    ] {
        let object = decoder().metadata_only().object(&input).unwrap();
        assert_eq!(std::str::from_utf8(&object.json()).unwrap(), expected, "{input}");
        assert_eq!(object.resource_version().to_string(), "7");
        assert_eq!(object.labels(), [("l".into(), "1".into())]);
    }
}

#[test]
fn paths_read_as_they_are_written() {
    for (text, expected) in [
        ("", ""),
        (".data", ".data"),
        (" .b , .a ", ".a,.b"),
        (".status.conditions,.status", ".status"),
        (".status,.status.conditions", ".status"),
        (r".metadata.annotations.example\.com/note", r".metadata.annotations.example\.com/note"),
        (r#".metadata.annotations["example.com/note"].x"#, r".metadata.annotations.example\.com/note.x"),
        (r#"["a,b"].c"#, r".a\,b.c"),
    ] {
        let paths: DropPaths = text.parse().unwrap();
        assert_eq!(paths.to_string(), expected, "{text}");
        assert_eq!(paths.to_string().parse::<DropPaths>().unwrap(), paths, "{text}");
    }
    for (text, problem) in [
        ("data", "\"data\" cannot be dropped: expected a path that begins with a dot"),
        (".", "expected a name after each dot"),
        (".a..b", "expected a name after each dot"),
        (".a[*].b", "expected a path that begins with a dot"),
        (".a.*", "an array needs no sign"),
        (".a,data", "\"data\" cannot be dropped"),
        (r#".a["b"#, "at the end of a name in quotes"),
        (",.a", "expected a path before the comma"),
        (".a .b", "expected a comma between paths"),
    ] {
        let error = text.parse::<DropPaths>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn identity_and_labels_cannot_be_dropped() {
    for (path, why) in [
        (".apiVersion", "what the object is"),
        (".kind", "what the object is"),
        (".metadata", "which object it is; drop a member of it"),
        (".metadata.name", "which object it is"),
        (".metadata.namespace", "which object it is"),
        (".metadata.uid", "which object it is"),
        (".metadata.uid.x", "which object it is"),
        (r#".metadata["resourceVersion"]"#, "which object it is"),
        (".metadata.labels", "label selectors need the labels"),
        (".metadata.labels.app", "label selectors need the labels"),
    ] {
        let error = format!(".data,{path}").parse::<DropPaths>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{path:?} cannot be dropped")), "{error}");
        assert!(error.contains(why), "{path}: {error}");
    }
}

#[test]
fn a_dropped_field_is_recognized() {
    let paths: DropPaths =
        r#".data,.status.conditions,.metadata.annotations["example.com/note"]"#.parse().unwrap();
    for (field, dropped) in [
        (r"metadata.annotations.example\.com/note", true),
        ("metadata.annotations.example.com/note", false),
        ("data", true),
        ("data.x.y", true),
        ("status.conditions.x", true),
        ("status", false),
        ("status.phase", false),
        ("metadata.name", false),
    ] {
        assert_eq!(paths.drops(field), dropped, "{field}");
    }
}

#[test]
fn nested_arrays_are_searched_for_what_is_dropped_to_a_bounded_depth() {
    let dropped: DropPaths = ".spec.values.secret".parse().unwrap();
    let read = |depth: usize| {
        let values = format!("{}{{\"secret\":1,\"b\":2}}{}", "[".repeat(depth), "]".repeat(depth));
        let text =
            format!(r#"{{"metadata":{{"name":"a","resourceVersion":"7"}},"spec":{{"values":{values}}}}}"#);
        String::from_utf8(decoder().dropping(dropped.clone()).object(&text).unwrap().json().to_vec()).unwrap()
    };
    assert!(!read(8).contains("secret") && read(8).contains(r#""b":2"#));
    assert!(read(100_000).contains("secret"));
}

#[test]
fn annotations_dropped_one_by_one_leave_an_empty_object() {
    let text = r#"{"metadata":{"name":"a","resourceVersion":"7","annotations":{"\"":""}}}"#;
    let dropped: DropPaths = r#".metadata.annotations["\""]"#.parse().unwrap();
    let object = decoder().dropping(dropped).object(text).unwrap();
    let value: Value = serde_json::from_slice(&object.json()).unwrap();
    assert_eq!(value["metadata"]["annotations"], json!({}));
}

/// Removes a path from a parsed tree.
fn prune(value: &mut Value, names: &[String]) {
    let Some((name, rest)) = names.split_first() else { return };
    match value {
        Value::Object(members) if rest.is_empty() => drop(members.remove(name)),
        Value::Object(members) => {
            if let Some(member) = members.get_mut(name) {
                prune(member, rest);
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| prune(element, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[abc]", 1 => "[a-c.,\\\\\"<\\[\\] *é\u{2028}\n]{1,3}"]
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A path as it is typed, with all names in quotes.
fn typed(names: &[String]) -> String {
    let quoted = |name: &String| format!("[\"{}\"]", name.replace('\\', "\\\\").replace('"', "\\\""));
    names.iter().map(quoted).collect()
}

proptest! {
    #[test]
    fn dropping_a_path_equals_pruning_the_parsed_tree(
        spec in tree(),
        annotations in prop::collection::btree_map(name(), "[x-z]{0,2}", 0..3),
        paths in prop::collection::vec(prop::collection::vec(name(), 1..4), 0..4),
        pretty: bool,
    ) {
        let mut value = json!({"kind": "Secret", "apiVersion": "v1",
            "metadata": {"name": "a", "resourceVersion": "7", "annotations": annotations}, "spec": spec});
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let mut all = Vec::new();
        for path in &paths {
            for place in [vec!["spec".to_owned()], vec!["metadata".to_owned(), "annotations".to_owned()]] {
                let names: Vec<String> = place.into_iter().chain(path.iter().cloned()).collect();
                prune(&mut value, &names);
                all.push(typed(&names));
            }
        }
        let dropped: DropPaths = all.join(",").parse().unwrap();
        prop_assert_eq!(&dropped.to_string().parse::<DropPaths>().unwrap(), &dropped);
        let object = decoder().dropping(dropped).object(&text).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Value>(&object.json()).unwrap(), value);
        prop_assert!(!object.json().contains(&b'\n'));
    }
}
