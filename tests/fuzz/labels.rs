//! Label selectors, compared with a reader that follows Kubernetes' own: tokens first, then a parser.

use informerd::testing::k8s::{Decoder, LabelSelector, Object};
use proptest::prelude::*;

use super::decode::{options, resource};
use super::engine::Target;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Sign(&'static str),
}

/// A requirement: key, operator, values.
type Requirement = (String, &'static str, Vec<String>);

fn tokens(text: &str) -> Vec<Token> {
    let is_sign = |c: char| "=!(),><".contains(c);
    let is_blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        if is_blank(first) {
            rest = &rest[1..];
        } else if is_sign(first) {
            let sign = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"]
                .into_iter()
                .find(|sign| rest.starts_with(sign));
            tokens.push(Token::Sign(sign.unwrap()));
            rest = &rest[sign.unwrap().len()..];
        } else {
            let end = rest.find(|c| is_sign(c) || is_blank(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    tokens
}

/// Source: `k8s.io/apimachinery/pkg/labels/selector.go`, `Parser.parse`.
fn parse(text: &str) -> Option<Vec<Requirement>> {
    let tokens = tokens(text);
    let mut rest = &tokens[..];
    let mut requirements = Vec::new();
    if rest.is_empty() {
        return Some(requirements);
    }
    loop {
        requirements.push(requirement(&mut rest)?);
        match rest {
            [] => return Some(requirements),
            [Token::Sign(","), after @ ..] => rest = after,
            _ => return None,
        }
    }
}

fn requirement(rest: &mut &[Token]) -> Option<Requirement> {
    let missing = matches!(rest, [Token::Sign("!"), ..]);
    *rest = &rest[usize::from(missing)..];
    let [Token::Word(key), after @ ..] = *rest else { return None };
    is_key(key).then_some(())?;
    *rest = after;
    if missing {
        return Some((key.clone(), "!", Vec::new()));
    }
    match after {
        [Token::Sign(sign @ ("=" | "==" | "!=" | ">" | "<")), after @ ..] => {
            let value = match after {
                [Token::Word(value), after @ ..] => {
                    *rest = after;
                    value.clone()
                }
                _ => {
                    *rest = after;
                    String::new()
                }
            };
            is_value(&value).then_some(())?;
            if matches!(*sign, ">" | "<") {
                value.parse::<i64>().ok()?;
            }
            Some((key.clone(), sign, vec![value]))
        }
        [Token::Word(word), Token::Sign("("), after @ ..] if word == "in" || word == "notin" => {
            let end = after.iter().position(|token| *token == Token::Sign(")"))?;
            *rest = &after[end + 1..];
            let values = values(&after[..end])?;
            Some((key.clone(), if word == "in" { "in" } else { "notin" }, values))
        }
        [] | [Token::Sign(","), ..] => Some((key.clone(), "exists", Vec::new())),
        _ => None,
    }
}

/// The texts between commas, each a word or empty. An empty set has the empty value.
fn values(tokens: &[Token]) -> Option<Vec<String>> {
    let values = tokens.split(|token| *token == Token::Sign(",")).map(|piece| match piece {
        [] => Some(String::new()),
        [Token::Word(value)] => is_value(value).then(|| value.clone()),
        _ => None,
    });
    values.collect()
}

fn is_name(text: &str, more: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(plain) && text.ends_with(plain) && text.chars().all(|c| plain(c) || more.contains(c))
}

fn is_key(text: &str) -> bool {
    let name = |name: &str| name.len() <= 63 && is_name(name, "-_.");
    match text.split('/').collect::<Vec<_>>()[..] {
        [only] => name(only),
        // The prefix is a DNS subdomain.
        [prefix, only] => {
            let lower = !prefix.contains(|c: char| c.is_ascii_uppercase());
            name(only) && lower && prefix.len() <= 253 && prefix.split('.').all(|label| is_name(label, "-"))
        }
        _ => false,
    }
}

fn is_value(text: &str) -> bool {
    text.is_empty() || (text.len() <= 63 && is_name(text, "-_."))
}

fn holds((key, operator, values): &Requirement, labels: &[(&str, &str)]) -> bool {
    let value = labels.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
    let number = |text: &str| text.parse::<i64>().ok();
    match (*operator, value) {
        ("exists", value) => value.is_some(),
        ("!", value) => value.is_none(),
        ("=" | "==" | "in", value) => value.is_some_and(|value| values.contains(&value.to_owned())),
        ("!=" | "notin", value) => value.is_none_or(|value| !values.contains(&value.to_owned())),
        (">", value) => value.and_then(number) > number(&values[0]),
        ("<", value) => value.and_then(number).is_some_and(|value| Some(value) < number(&values[0])),
        (operator, _) => panic!("{operator}"),
    }
}

const LABELS: [&[(&str, &str)]; 6] = [
    &[],
    &[("a", "b"), ("app", "web"), ("n", "5")],
    &[("a", ""), ("in", "x"), ("n", "-5")],
    &[("a", "c"), ("example.com/a", "b"), ("notin", ""), ("n", "007")],
    &[("app", "a.b-c_d"), ("n", "9223372036854775807"), ("exists", "true")],
    &[("b", "a"), ("n", "9223372036854775808"), ("x", "+5")],
];

fn pod(labels: &[(&str, &str)]) -> Object {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let pod = serde_json::json!({"metadata": {"name": "p", "resourceVersion": "1", "labels": labels}});
    Decoder::new(resource(), options(true)).object(&pod.to_string()).unwrap()
}

fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let expected = parse(text);
    match (LabelSelector::parse(text), expected) {
        (Ok(selector), Some(expected)) => {
            assert_eq!(selector.is_empty(), expected.is_empty());
            for labels in LABELS {
                let holds = expected.iter().all(|requirement| holds(requirement, labels));
                assert_eq!(selector.matches(&pod(labels)), holds, "of {labels:?}");
            }
            let printed = selector.to_string();
            assert_eq!(LabelSelector::parse(&printed).as_ref(), Ok(&selector), "printed as {printed:?}");
        }
        (Err(error), None) => {
            assert!(error.to_string().contains(&format!("{text:?}")), "{error} does not name its input");
        }
        (found, expected) => panic!("{found:?}, expected {expected:?}"),
    }
}

#[test]
fn label_selectors_mean_the_same_as_in_kubernetes() {
    let tokens = &[
        "=",
        "==",
        "!=",
        "!",
        "(",
        ")",
        ",",
        ">",
        "<",
        " in ",
        " notin ",
        "in",
        "notin",
        " ",
        "\t",
        "a",
        "b",
        "app",
        "n",
        "5",
        "-5",
        "007",
        "+5",
        "9223372036854775808",
        "example.com/",
        "Example.com/a",
        "_",
        "-",
        ".",
        "/",
        "é",
        "\u{a0}",
        "\u{3000}",
        "0123456789012345678901234567890123456789012345678901234567890123",
        "in (a,b)",
        "notin (,)",
        "()",
    ];
    let target = Target { name: "labels", tokens, check: &check };
    target.run(2);
    let piece = prop::sample::select(&tokens[..]);
    let loose = prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat());
    let key = prop::sample::select(&["a", "app", "n", "in", "notin", "example.com/a", "x"][..]);
    let value = || prop::sample::select(&["", "b", "web", "5", "a.b-c_d", "-5"][..]);
    let set = prop::collection::vec(value(), 1..4).prop_map(|values| values.join(", "));
    let requirement = (key, value(), set, 0..9_u8).prop_map(|(key, value, set, form)| match form {
        0 => key.to_owned(),
        1 => format!("!{key}"),
        2 => format!("{key}={value}"),
        3 => format!("{key} == {value}"),
        4 => format!("{key}!={value}"),
        5 => format!("{key} in ({set})"),
        6 => format!("{key}\tnotin({set} )"),
        7 => format!("{key}>{value}"),
        _ => format!("{key} < {value}"),
    });
    let strict = prop::collection::vec(requirement, 0..4).prop_map(|all| all.join(" , "));
    target.generate(prop_oneof![loose, strict], 2);
}
