//! Tests of conditions as a whole. What a function does is tested beside it.

use super::*;
use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

fn object() -> Object {
    object_with_replicas(3)
}

fn object_with_replicas(replicas: usize) -> Object {
    let options =
        DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
    let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"7","labels":{"app":"web","example.com/a":"b"}},"spec":{"replicas":3,"podIPs":[{"ip":"10.1.2.3"},{"ip":"fd00::1"}],"on":true,"containers":[{"name":"a","image":"i:1","env":[{"name":"X"}]},{"name":"b","image":"i:2"}]},"status":{"phase":"Running"}}"#;
    let text = text.replace(r#""replicas":3"#, &format!(r#""replicas":{replicas}"#));
    Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
}

#[track_caller]
pub(super) fn check(text: &str, expected: Result<bool, &str>) {
    let found = Condition::parse(text).unwrap().holds(&object());
    match (found, expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
        (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
        (found, _) => panic!("{text}: {found:?}"),
    }
}

/// Checks that all of these hold.
#[track_caller]
pub(super) fn check_all(texts: &[&str]) {
    for text in texts {
        check(text, Ok(true));
    }
}

/// Checks the messages with which these fail.
#[track_caller]
pub(super) fn check_failures(texts: &[(&str, &str)]) {
    for (text, message) in texts {
        check(text, Err(message));
    }
}

#[test]
fn conditions_hold_or_not() {
    for (text, expected) in [
        ("object.status.phase == 'Running'", true),
        ("object.spec.replicas > 2 && object.spec.on", true),
        ("object.metadata.labels['example.com/a'] == 'b'", true),
        ("object['metadata'].name.startsWith('p')", true),
        ("object.spec.containers.all(c, c.image.startsWith('i:'))", true),
        ("object.spec.containers.exists(c, c.name == 'z')", false),
        ("object.spec.containers.exists(c, has(c.env) && c.env.exists(e, e.name == 'X'))", true),
        ("size(object.spec.containers) == 2", true),
        ("object.spec.containers[1].name == 'b'", true),
        ("object.metadata.name.matches('^p$')", true),
        ("object.status.phase in ['Running', 'Pending']", true),
        ("has(object.spec.nodeName)", false),
        ("!has(object.spec.nodeName)", true),
        ("!has(object.metadata.labels.none)", true),
        ("has(object.spec) && has(object.status.phase)", true),
        ("type(object.spec.replicas) == int", true),
        ("object.size() == 5", true),
        ("object.spec.replicas + 1 == 4", true),
    ] {
        check(text, Ok(expected));
    }
}

#[test]
fn a_missing_member_does_not_match() {
    for text in [
        "object.spec.nodeName == 'n'",
        "object.none.of.these != 'x'",
        "object.spec.containers[7].name == 'x'",
    ] {
        check(text, Ok(false));
    }
}

#[test]
fn other_evaluation_failures_are_reported() {
    check("object.spec.replicas + 'x' == 'y'", Err("no such overload: int + string"));
    check("object.spec.replicas", Err("the result is of type int and not a boolean"));
    check("object.spec.replicas.x", Err("no such overload: int.x"));
    check("size(object.spec.replicas) == 1", Err("no such overload: size(int)"));
    check("int(object.metadata.name) == 1", Err(r#"int("p"): not a number"#));
    check("9223372036854775807 + object.spec.replicas > 0", Err("out of the range"));
    check("1 / (object.spec.replicas - 3) == 0", Err("division by zero"));
    check("double('1e400') > 0.0", Err(r#"double("1e400"): out of range"#));
    check("[1][1.5] == 1", Err("an index must be a whole number"));
    // The first failure counts, and a missing member is none.
    check("[{}, 1].all(x, x.a == 1)", Ok(false));
    check("{'a': 1, 'a': 2}.size() == 2", Err("a key twice"));
}

/// An expression of loops within loops, each over ten elements.
fn loops(depth: usize, innermost: &str) -> String {
    let ten = "[0,1,2,3,4,5,6,7,8,9]";
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    names[..depth]
        .iter()
        .rev()
        .fold(innermost.to_owned(), |inner, name| format!("{ten}.all({name}, {inner})"))
}

#[test]
fn the_work_of_an_evaluation_is_bounded() {
    check(&loops(3, "object.metadata.name == 'p'"), Ok(true));
    check(&loops(6, "object.metadata.name == 'p'"), Err("too much work"));
    // Neither `||` nor a loop goes on once the limit is reached.
    check(&format!("{} || true", loops(6, "object.spec.on")), Err("too much work"));
    check(&format!("[1].exists(x, {} || true)", loops(6, "object.spec.on")), Err("too much work"));
    // A loop that decides early has done less than its text allows.
    check(&loops(6, "a + b + c + d + e + f < 0"), Ok(false));
}

#[test]
fn values_cannot_grow_without_bound() {
    let doubled = |start: &str| format!("{start}{}", ".map(a, a + a)".repeat(40));
    for start in ["['xy']", "[[1, 2]]", "[b'xy']", "[object.spec.containers]", "[object.metadata.name]"] {
        check(&format!("{}.size() == 1", doubled(start)), Err("too much work"));
    }
    // Eight copies of eight copies, and so on.
    let copies = format!("['xy']{}", ".map(a, a+a+a+a+a+a+a+a)".repeat(30));
    check(&format!("size({copies}[0]) > 0"), Err("too much work"));
    let nested = format!("[1]{}", ".map(a, [a, a, a, a, a, a, a, a])".repeat(12));
    check(&format!("{nested} == {nested}"), Err("too much work"));
    // Those that fit are made.
    let few = format!("['xy']{}", ".map(a, a + a)".repeat(8));
    check(&format!("size({few}[0]) == 512"), Ok(true));
}

#[test]
fn comparisons_and_searches_are_counted() {
    let numbers = format!("{:?}", (0..64).collect::<Vec<_>>());
    let versions = format!(
        "['.a.a.a.a.a.a.a.a']{}.map(a, semver('1.0.0-a' + a)).all(s, {numbers}.all(i, {numbers}.all(j, s.compareTo(s) == 0)))",
        ".map(a, a + a)".repeat(9)
    );
    check(&versions, Err("too much work"));
    let long = format!("['x']{}", ".map(a, a + a)".repeat(17));
    let keys = format!("{long}.all(k, {numbers}.all(i, {numbers}.all(j, k in {{k: 1}})))");
    check(&keys, Err("too much work"));
    let searched = |pattern: &str| format!("{long}.exists(x, x.matches('{pattern}'))");
    check(&searched("^x+$"), Ok(true));
    check(&searched("[a-z][ -~]{500}[^ -~]"), Err("too much work"));
    check("'abc'.matches('[a-z][ -~]{500}[^ -~]')", Ok(false));
}

#[test]
fn only_what_is_nested_counts_as_nested() {
    let optional = ["object.?metadata.?labels.?app.orValue('') == 'web'"; 8].join(" && ");
    let in_strings = format!(
        "object.metadata.name != '{}' && object.metadata.name != r\"\\{}\"",
        "(?".repeat(20),
        "([".repeat(20)
    );
    let in_turn = ["(object.spec.on ? 1 : 2) == 1"; 20].join(" && ");
    let in_a_list = format!("[{}].size() == 20", ["object.spec.on ? 1 : 2"; 20].join(", "));
    for text in [optional, in_strings, in_turn, in_a_list] {
        check(&text, Ok(true));
    }
    let hidden = format!("{}true", "[')', ".repeat(17));
    let error = Condition::parse(&hidden).unwrap_err().to_string();
    assert!(error.contains("nested more than 16"), "{error}");
}

#[test]
fn only_known_functions_are_called_in_their_own_form() {
    for (text, part) in [
        ("_size_(object)", r#"unknown function "_size_""#),
        (".size(object) == 1", r#"unknown function ".size""#),
        ("a_b(object)", r#"unknown function "a_b""#),
        ("object.x_y()", r#"unknown function "x_y""#),
        (
            "object.metadata.name.startWith('p')",
            r#"unknown function "startWith"; did you mean "startsWith"?"#,
        ),
        ("sets.merge([1], [2])", r#"unknown function "sets.merge""#),
        ("set.contains([1], [2])", r#"unknown variable "set""#),
        ("has(object.metadata.labels['app'])", "has() macro; expected has(value.member)"),
        ("size()", r#"wrong call of the function "size"; expected size(_) or value.size()"#),
        ("size(object, 1)", r#"wrong call of the function "size""#),
        ("contains(object.metadata.name, 'p')", r#"wrong call of the function "contains""#),
        ("all(object)", r#"wrong call of the macro "all""#),
        ("object.exists(object.a)", r#"wrong call of the macro "exists""#),
        ("object.map(a, b, c, d)", r#"wrong call of the macro "map""#),
        ("duration('1h') == duration('60m')", r#"unknown function "duration""#),
    ] {
        let error = Condition::parse(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn values_follow_the_standard() {
    for text in [
        "1 == 1.0 && 1u == 1 && 2 > 1.5 && 1u < 2.5 && 'a' != 1",
        "[1, 2u, 3.0] == [1.0, 2, 3u] && {'a': [1]} == {'a': [1.0]} && null == null",
        "{1: 'a', true: 'b', 'c': 'd'}[1] == 'a' && 'c' in {'c': null} && !(2 in [1, 3])",
        "[1, 2, 3][1.0] == 2 && [1, 2][1u] == 2 && 7 / 2 == 3 && -7 % 4 == -3",
        "string(1) + string(2u) + string(true) == '12true' && string(b'ab') == 'ab'",
        "string(1.5) == '1.5' && string(1234567.0) == '1.234567e+06' && string(0.00001) == '1e-05'",
        "int('-7') == -7 && int(2.9) == 2 && uint('7') == 7u && double('2.5') == 2.5 && bool('true')",
        "size('añb') == 3 && size(b'añb') == 4 && {'a': 1}.size() == 1",
        "double('inf') > 1e300 && ['b'].all(x, 'b' in {'b': 1})",
        "type(1) == int && type('a') == string && type([]) == list && type(null) == null_type && type(int) == type",
        "[1, 2, 3].filter(x, x > 1).map(x, x * 2) == [4, 6] && [1, 2].map(x, x > 1, x) == [2]",
        "[1, 2, 3].exists_one(x, x == 2) && !{'a': 1}.exists(k, k == 'b') && 'b' < 'c' && false < true",
        // A side that fails does not matter if the other one decides, whether it is left or right.
        "(1 / 0 == 1 || true) && (true || 1 / 0 == 1) && !(1 / 0 == 1 && false)",
        "object.none == 1 || object.spec.on",
        "[0, 1].exists(x, 1 / x == 1) && ![0, 1].all(x, 1 / x == 2)",
        "dyn(1) == 1 && matches('abc', 'b') && 'abc'.matches('^a.c$')",
        // The variable of a loop hides others of its name.
        "[{'spec': 1}].all(object, object.spec == 1)",
    ] {
        check(text, Ok(true));
    }
}

#[test]
fn a_text_that_is_not_a_condition_is_refused_with_the_reason() {
    let deep = format!("{}true{}", "(".repeat(17), ")".repeat(17));
    let long = format!("object.a == '{}'", "x".repeat(BYTES_MAX));
    let conditionals = format!("{}true", "object.a ? true : ".repeat(17));
    let patterns = ["object.a.matches('a')"; 9].join(" && ");
    for (text, part) in [
        ("", "expected a CEL expression"),
        ("object.spec.replicas >", "line 1 column 2"),
        ("object.spec. == 1", "line 1 column 1"),
        ("pod.spec.on", r#"unknown variable "pod""#),
        ("object.spec.containers.all(c, d.name == 'x')", r#"unknown variable "d""#),
        ("delete(object)", r#"unknown function "delete""#),
        ("object.metadata.name.matches('(')", "unclosed group"),
        ("object.metadata.name.matches(object.metadata.uid)", "literal string"),
        ("object.metadata.name.matches('(a{1000}){1000}')", "size limit"),
        (&deep, "nested more than 16"),
        (&conditionals, "nested more than 16"),
        (&patterns, "more than 8 regular expressions"),
        (&long, "more than 1024"),
    ] {
        let error = Condition::parse(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn the_largest_allowed_conditions_neither_overflow_the_stack_nor_panic() {
    for text in [
        format!("object.{}", vec!["a"; 500].join(".")),
        vec!["object.a"; 100].join("+"),
        vec!["object.a"; 100].join("&&"),
        "!".repeat(1000),
        format!("{}true", "!".repeat(1000)),
        format!("{}1", "-".repeat(1000)),
        format!("{}true{}", "(".repeat(16), ")".repeat(16)),
        "a?".repeat(16),
        "[".repeat(16),
    ] {
        if let Ok(condition) = Condition::parse(&text) {
            let _ = condition.holds(&object());
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_a_condition_panic(text in "(object|\\.|a|'|\\[|\\(|\\)|\\]|==|&&|!|\\?|:|1|all|has| ){0,24}") {
        if let Ok(condition) = Condition::parse(&text) {
            let _ = condition.holds(&object());
        }
    }
}

#[test]
fn a_condition_knows_what_it_costs() {
    let cheap = Condition::parse("object.spec.replicas > 2").unwrap();
    cheap.holds(&object()).unwrap();
    assert!(cheap.cost() < Duration::from_micros(1), "{:?}", cheap.cost());
    let list = format!("{:?}", vec![1; 64]);
    let nested = format!("{list}.all(a, {list}.all(b, {list}.all(c, a < 2)))");
    let costly = Condition::parse(&format!("object.spec.replicas > 3 || {nested}")).unwrap();
    costly.holds(&object()).unwrap_err();
    assert!(costly.cost() > Duration::from_millis(1), "{:?}", costly.cost());
    // Objects differ: one that costs little lowers it by a part only.
    let short = object_with_replicas(4);
    let before = costly.cost();
    costly.holds(&short).unwrap();
    assert!(costly.cost() > before / 2 && costly.cost() < before, "{:?}", costly.cost());
    (0..100).for_each(|_| assert!(costly.holds(&short).unwrap()));
    assert!(costly.cost() < Duration::from_micros(1), "{:?}", costly.cost());
}
