//! Pages of lists: every valid item is decoded, in order, and an invalid item does not hide others.

use informerd::testing::k8s::{Decoder, identities};
use proptest::prelude::*;

use super::decode::{TOKENS, options, resource};
use super::engine::Target;
use super::json::{self, Node};

fn check(input: &[u8]) {
    let mut decoder = Decoder::new(resource(), options(true));
    let found = decoder.list(input);
    let named = identities(input);
    let Some(text) = std::str::from_utf8(input).ok().filter(|text| !json::is_too_deep(text)) else { return };
    let node = json::parse(text);
    // serde also accepts an array of the members in order, which no server writes.
    let listed = |node: &Node<'_>| {
        node.elements().is_some() || node.get("metadata").is_some_and(|meta| meta.elements().is_some())
    };
    if node.as_ref().is_some_and(listed) {
        return;
    }
    let Some((version, token, items)) = node.as_ref().and_then(parts) else {
        assert!(found.is_err(), "accepted, but not a list");
        assert!(named.is_err(), "identities of something that is not a list");
        return;
    };
    let page = found.expect("a list is accepted");
    assert_eq!(page.resource_version.to_string(), version);
    assert_eq!(page.continue_token, token);
    let (mut objects, mut skipped) = (page.objects.iter(), 0);
    for item in items {
        match Decoder::new(resource(), options(true)).object(item.text) {
            Ok(object) => {
                assert_eq!(objects.next().expect("an object of each valid item").json(), object.json())
            }
            Err(_) => skipped += 1,
        }
    }
    assert!(objects.next().is_none(), "too many objects");
    assert_eq!(page.skipped.len(), skipped);
    if let Ok(named) = named {
        assert_eq!(named.continue_token, page.continue_token);
        assert_eq!(named.identities.len(), items.len(), "an identity is missing");
        let keys = named.identities.iter().map(|identity| &identity.key).collect::<Vec<_>>();
        assert!(
            page.objects.iter().all(|object| keys.contains(&object.key())),
            "an object without an identity"
        );
    }
}

/// The version, token and items of a list; `None` if it is not a list.
fn parts<'n, 'a>(node: &'n Node<'a>) -> Option<(String, Option<String>, &'n [Node<'a>])> {
    let readable = |node: &Node<'_>| {
        node.members().map(|members| members.iter().all(|(key, _)| json::string(key).is_some()))
    };
    let meta = node.get("metadata")?;
    // Of duplicate members, nothing says which one is meant.
    let once = ["metadata", "items"].iter().all(|key| node.count(key) <= 1)
        && ["resourceVersion", "continue"].iter().all(|key| meta.count(key) <= 1);
    if !once || !readable(node)? || !readable(meta)? {
        return None;
    }
    let version = meta.get("resourceVersion")?.string().filter(|version| !version.is_empty())?;
    let token = match meta.get("continue") {
        None => None,
        Some(node) if node.is_null() => None,
        Some(node) => Some(node.string()?).filter(|token| !token.is_empty()),
    };
    let items: &[_] = match node.get("items") {
        None => &[],
        Some(node) if node.is_null() => &[],
        Some(node) => node.elements()?,
    };
    Some((version, token, items))
}

#[test]
fn lists_give_every_decodable_item() {
    let target = Target { name: "list", tokens: TOKENS, check: &check };
    target.run(1);
    let item = prop::sample::select(
        &[
            r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"1"}}"#,
            r#"{"kind":"Pod","metadata":{"name":"b","uid":"u","resourceVersion":"2","labels":{"a":"b"}},"spec":{"n":1.50}}"#,
            r#"{"metadata":{"name":"c"}}"#,
            r#"{"metadata":{"resourceVersion":"1"}}"#,
            r#"{"metadata":null}"#,
            r#"{"metadata":{"name":7,"resourceVersion":"1"}}"#,
            "{}",
            "null",
            "7",
            "[]",
        ][..],
    );
    let items = prop::collection::vec(item, 0..6).prop_map(|items| format!("[{}]", items.join(",")));
    let items = prop_oneof![6 => items, 1 => Just("null".to_owned()), 1 => Just("{}".to_owned())];
    let version = prop::sample::select(&["7", "", "123456789012345678901234567890", "a\\\"b"][..]);
    let token =
        prop::sample::select(&["", r#","continue":"x""#, r#","continue":null"#, r#","continue":7"#][..]);
    let bodies = (items, version, token, any::<bool>()).prop_map(|(items, version, token, items_first)| {
        let metadata = format!(r#""metadata":{{"resourceVersion":"{version}"{token}}}"#);
        match items_first {
            true => format!(r#"{{"items":{items},"kind":"PodList",{metadata}}}"#),
            false => format!(r#"{{"kind":"PodList","apiVersion":"v1",{metadata},"items":{items}}}"#),
        }
    });
    target.generate(bodies, 1);
}
