use super::*;
use crate::k8s::{FieldPath, IndexPath, IndexPaths, ResourceParts, Values};

fn decoder() -> Decoder {
    let pods = Resource::new(ResourceParts {
        version: "v1".into(),
        plural: "pods".into(),
        kind: "Pod".into(),
        namespaced: true,
        ..Default::default()
    });
    let options =
        DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 8 << 20 };
    Decoder::new(pods, options)
}

#[track_caller]
fn check(input: &str, expected: &str) -> Object {
    let object = decoder().object(input).unwrap();
    assert_eq!(std::str::from_utf8(&object.json()).unwrap(), expected);
    serde_json::from_slice::<serde_json::Value>(&object.json()).unwrap();
    object
}

#[test]
fn everything_but_the_dropped_parts_is_kept_byte_for_byte() {
    let object = check(
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u-1","resourceVersion":"7","labels":{"x":"y","q":"\"e\u0041"},"managedFields":[{"a":{"}":1}}],"z":1.50},"spec":{"n":1e3,"b":123456789012345678901234567890,"s":"\u003c\/"}}"#,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u-1","resourceVersion":"7","labels":{"x":"y","q":"\"e\u0041"},"z":1.50},"spec":{"n":1e3,"b":123456789012345678901234567890,"s":"\u003c\/"}}"#,
    );
    assert_eq!((object.key().as_str(), &*object.uid()), ("n/a", "u-1"));
    assert_eq!(object.resource_version(), ResourceVersion::new("7"));
    assert_eq!(object.labels(), [("x".into(), "y".into()), ("q".into(), "\"eA".into())]);
    let field = |path: &str| IndexPath::Field(FieldPath::new(path));
    let paths = ["metadata.name", "spec.n", "spec.s", "spec", "spec.n.deeper"];
    let values = object.values(&IndexPaths::new(paths.map(field).to_vec()));
    let values: Vec<_> = (0..paths.len()).map(|slot| values.get(slot).clone()).collect();
    assert_eq!(values, ["a", "1e3", "</", "", ""].map(|value| Values::One(value.into())));
    let (before, after) = object.json_around_version();
    assert!(before.ends_with(br#""resourceVersion":""#) && after.starts_with(br#"","labels"#));
}

#[test]
fn a_version_of_any_form_is_that_of_the_object() {
    let large =
        ["18446744073709551614", "18446744073709551615", "18446744073709551616", "99999999999999999999999"];
    for text in ["0", "7"].into_iter().chain(large).chain(["007", "x", r#"a\"b"#, "\u{2028}é", r"\n"]) {
        let json = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"a","resourceVersion":"{text}"}}}}"#
        );
        let expected = serde_json::from_str::<String>(&format!("\"{text}\"")).unwrap();
        let object = check(&json, &json.replace('\u{2028}', "\\u2028"));
        assert_eq!(object.resource_version(), ResourceVersion::new(&expected), "{text}");
        assert_eq!(object.resource_version().to_string(), expected);
    }
}

#[test]
fn list_items_get_the_type_they_lack_and_the_same_bytes_as_watched_ones() {
    check(
        r#"{"metadata":{"managedFields":[],"name":"a","resourceVersion":"7"}}"#,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"}}"#,
    );
    check(
        r#"{"metadata":{"name":"a","resourceVersion":"7"},"kind":"Pod"}"#,
        r#"{"apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"},"kind":"Pod"}"#,
    );
}

#[test]
fn the_last_applied_annotation_goes_and_an_empty_map_with_it() {
    let head = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7""#;
    let last = r#""kubectl.kubernetes.io/last-applied-configuration":"{\"a\":1}""#;
    check(&format!(r#"{head},"annotations":{{{last}}}}}}}"#), &format!("{head}}}}}"));
    check(
        &format!(r#"{head},"annotations":{{"a":"1",{last},"b":"2"}}}}}}"#),
        &format!(r#"{head},"annotations":{{"a":"1","b":"2"}}}}}}"#),
    );
}

#[test]
fn pretty_printed_objects_become_one_line_with_escaped_line_separators() {
    check(
        "{\n  \"kind\": \"Pod\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\n    \"name\": \"a\",\n \"resourceVersion\": \"7\"\n  },\n  \"spec\": {\n \"a b\": [1, \"x\\\" y\"]\n }\n}",
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"},"spec":{"a b":[1,"x\" y"]}}"#,
    );
    check(
        "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"7\"},\"d\":\"a\u{2028}b é\"}",
        "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"7\"},\"d\":\"a\\u2028b é\"}",
    );
}

#[test]
fn an_object_without_identity_is_refused_by_name() {
    for (input, missing) in [
        ("{}", "metadata.name is missing"),
        (r#"{"metadata":{}}"#, "metadata.name is missing"),
        (r#"{"metadata":{"name":"a"}}"#, "metadata.resourceVersion is missing"),
        (r#"{"metadata":{"name":"a","resourceVersion":""}}"#, "metadata.resourceVersion is missing"),
    ] {
        assert_eq!(decoder().object(input).unwrap_err().to_string(), missing, "{input}");
    }
}

#[test]
fn an_undecodable_item_does_not_affect_the_others() {
    let good = r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#;
    for bad in [r#"{"metadata":{"name":"b"}}"#, r#"{"metadata":"text"}"#, "7"] {
        let body = format!(r#"{{"items":[{good},{bad},{good}],"metadata":{{"resourceVersion":"9"}}}}"#);
        let page = decoder().list(body.as_bytes()).unwrap();
        assert_eq!((page.objects.len(), page.skipped.len()), (2, 1), "{bad}");
        assert_eq!(page.resource_version, ResourceVersion::new("9"));
    }
}

#[test]
fn pages_carry_their_token_and_null_is_an_empty_list() {
    let page =
        decoder().list(br#"{"metadata":{"resourceVersion":"9","continue":"abc"},"items":null}"#).unwrap();
    assert_eq!((page.continue_token.as_deref(), page.objects.len()), (Some("abc"), 0));
    assert!(decoder().list(br#"{"items":[]}"#).is_err());
    assert!(decoder().list(b"<html>").is_err());
}

#[test]
fn watch_lines_are_taken_in_either_order_of_their_members() {
    let object = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"}}"#;
    for line in [
        format!(r#"{{"type":"ADDED","object":{object}}}"#),
        format!(r#"{{"object":{object},"type":"ADDED"}}"#),
        format!(r#"{{ "type": "ADDED", "object": {object} }}"#),
    ] {
        let event = decoder().watch_line(line.as_bytes()).unwrap();
        assert!(
            matches!(&event, WatchEvent::Added(added) if added.json().as_ref() == object.as_bytes()),
            "{line}"
        );
    }
    let typed = br#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"108","creationTimestamp":null},"spec":{"containers":null},"status":{}}}"#;
    assert!(matches!(
        decoder().watch_line(typed).unwrap(),
        WatchEvent::Bookmark { initial_events_end: false, .. }
    ));
    let gone = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (5)","reason":"Expired","code":410}}"#;
    assert!(matches!(decoder().watch_line(gone).unwrap(), WatchEvent::Error(status) if status.is_expired()));
    assert!(matches!(
        decoder().watch_line(br#"{"type":"NEW","object":{}}"#),
        Err(DecodeError::UnknownType(kind)) if kind == "NEW"
    ));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = decoder().watch_line(&bytes);
        let _ = decoder().list(&bytes);
    }

    #[test]
    fn any_json_member_survives_beside_the_metadata(text in "\\PC{0,40}", number in proptest::num::f64::NORMAL) {
        let value = serde_json::json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "a", "resourceVersion": "1", "annotations": {text.clone(): text.clone()}},
            "spec": {"text": text, "number": number, "list": [null, true, {"deep": [1]}]}});
        let object = decoder().object(&value.to_string()).unwrap();
        // serde_json does not read floats exactly, so the same text is read twice.
        let expected: serde_json::Value = serde_json::from_str(&value.to_string()).unwrap();
        proptest::prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&object.json()).unwrap(), expected);
    }
}
