//! Status bodies: errors are parsed from every form that a server may write.

use informerd::testing::k8s::Status;
use proptest::prelude::*;

use super::decode::TOKENS;
use super::engine::Target;
use super::json::{self, Node};

/// Compares a Status with the tree that it was read from. Go writes `null` for missing members.
pub(crate) fn compare(node: &Node<'_>, found: Option<Status>) {
    if node.members().is_none() {
        // An array of the members in order is accepted, too, which does no harm.
        assert!(found.is_none() || node.elements().is_some(), "accepted, but not an object");
        return;
    }
    let text = |key: &str| match node.get(key) {
        None => Some(String::new()),
        Some(value) if value.is_null() => Some(String::new()),
        Some(value) => value.string(),
    };
    let code = match node.get("code") {
        None => Some(0),
        Some(value) if value.is_null() => Some(0),
        Some(value) => value.text.parse::<u16>().ok(),
    };
    let (reason, message) = (text("reason"), text("message"));
    match found {
        Some(status) => {
            assert_eq!(Some(status.code), code);
            assert_eq!((Some(&status.reason), Some(&status.message)), (reason.as_ref(), message.as_ref()));
            let gone = status.code == 410 || matches!(&*status.reason, "Expired" | "Gone");
            assert_eq!(status.is_expired(), gone);
            let again: Status = serde_json::from_slice(&status.to_line()).unwrap();
            // Long numbers in members that informerd does not use may change in their last digit.
            let ours = |status: &Status| Status { metadata: serde_json::Map::default(), ..status.clone() };
            assert_eq!(ours(&again), ours(&status), "written and read");
            assert!(!status.to_line().trim_ascii_end().contains(&b'\n'), "one line");
        }
        // A Status must be accepted if it has the needed members, and each member has its own type.
        None => assert!(!is_plain(node), "a Status was refused"),
    }
}

/// Whether every member has the type that Kubernetes gives it, or is null.
fn is_plain(node: &Node<'_>) -> bool {
    let is = |node: &Node<'_>, key: &str, fits: &dyn Fn(&Node<'_>) -> bool| {
        node.count(key) <= 1 && node.get(key).is_none_or(|value| value.is_null() || fits(value))
    };
    let readable = |node: &Node<'_>| {
        node.members().is_some_and(|members| members.iter().all(|(key, _)| json::string(key).is_some()))
    };
    let string = |value: &Node<'_>| value.string().is_some();
    let strings = |node: &Node<'_>, keys: &[&str]| keys.iter().all(|key| is(node, key, &string));
    let cause = |cause: &Node<'_>| readable(cause) && strings(cause, &["reason", "message", "field"]);
    let details = |details: &Node<'_>| {
        readable(details)
            && strings(details, &["name", "group", "kind"])
            && is(details, "causes", &|causes| {
                causes.elements().is_some_and(|causes| causes.iter().all(cause))
            })
            && is(details, "retryAfterSeconds", &|value| value.text.parse::<u32>().is_ok())
    };
    readable(node)
        && strings(node, &["kind", "apiVersion", "status", "message", "reason"])
        && is(node, "code", &|value| value.text.parse::<u16>().is_ok())
        && is(node, "details", &details)
        && node.get("metadata").is_none_or(|meta| {
            // Its content is not restricted, but its reader limits the depth and the size of numbers.
            node.count("metadata") == 1
                && (meta.is_null() || serde_json::from_str::<serde_json::Map<_, _>>(meta.text).is_ok())
        })
}

fn check(input: &[u8]) {
    let found = serde_json::from_slice::<Status>(input).ok();
    let Some(text) = std::str::from_utf8(input).ok().filter(|text| !json::is_too_deep(text)) else { return };
    match json::parse(text) {
        Some(node) => compare(&node, found),
        None => assert!(found.is_none(), "accepted, but not JSON"),
    }
}

const STATUS_TOKENS: &[&str] = &[
    "null",
    "410",
    "500",
    "-1",
    "70000",
    "1.5",
    "\"code\":410",
    "\"code\":null",
    "\"reason\":\"Expired\"",
    "\"reason\":null",
    "\"details\":null",
    "\"causes\":null",
    "\"causes\":[]",
    "\"causes\":[null]",
    "\"metadata\":null",
    "\"metadata\":{}",
    "\"message\":null",
    "\"retryAfterSeconds\":1",
    "\"retryAfterSeconds\":null",
    ",",
    "{}",
    "[]",
    "{",
    "}",
    "\"",
];

#[test]
fn a_status_is_parsed_in_any_spelling() {
    Target { name: "status", tokens: STATUS_TOKENS, check: &check }.run(1);
    let value = prop::sample::select(
        &[
            "null",
            "410",
            "\"Expired\"",
            "\"\"",
            "{}",
            "[]",
            "true",
            r#"{"causes":null}"#,
            r#"{"retryAfterSeconds":null}"#,
            r#"{"continue":"x"}"#,
        ][..],
    );
    let key = prop::sample::select(
        &["code", "reason", "message", "details", "metadata", "status", "kind", "x"][..],
    );
    let bodies = prop::collection::vec((key, value), 0..6).prop_map(|members| {
        let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    });
    Target { name: "status", tokens: TOKENS, check: &check }.generate(bodies, 1);
}
