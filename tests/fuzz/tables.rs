//! Tables: for any definition and any object, a row has a cell for each column.

use informerd::testing::k8s::table::{PrinterColumn, Table, Timestamp};
use informerd::testing::k8s::{Resource, ResourceParts};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::engine::Target;

/// Objects of all kinds, as real API servers accepted them.
const OBJECTS: &str = include_str!("../it/real/tables.json");

/// The pieces of paths.
const TOKENS: &[&str] = &[
    ".",
    "..",
    "[",
    "]",
    "*",
    "?(",
    "@.",
    ")",
    "==",
    "!=",
    "<=",
    ">",
    ":",
    ",",
    "'",
    "\"",
    "\\.",
    "{",
    "}",
    "-1",
    "9223372036854775808",
    "spec",
    "list",
    "metadata",
    "labels",
    "status",
    "conditions",
    "type",
    "range",
    "end",
    " ",
];

/// Values of unexpected types, times that are not times, and numbers out of range.
fn odd_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("x"),
        json!("9999-99-99T99:99:99Z"),
        json!("2026-01-01T00:00:00Z"),
        json!([]),
        json!([null, {"name": 1, "type": [], "ports": {}}]),
        json!({}),
        json!({"a": {"b": null}}),
    ]
}

fn now() -> Timestamp {
    Timestamp::since_epoch(std::time::Duration::from_secs(1_800_000_000))
}

/// Checks that the row of an object has a cell for each column.
fn check_row(table: &Table, object: &Value) {
    let row = table.row(object.to_string().as_bytes(), now());
    assert_eq!(row.cells.len(), table.columns().len(), "{object}");
    for cell in &row.cells {
        assert!(!cell.is_object(), "{cell} in {object}");
    }
}

fn check_path(input: &[u8]) {
    let path = String::from_utf8_lossy(input);
    let object = json!({
        "metadata": {"name": "a", "labels": {"example.com/x": "y"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"text": "t", "list": [1, "two", {"a": 3, "c": [4.5]}, null, true], "deep": {"deep": [[], {}]}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "weight": 3}, {"type": "Old"}]},
    });
    for kind in ["string", "integer", "number", "boolean", "date", "other"] {
        let column = json!({"name": "c", "type": kind, "jsonPath": path});
        let definition =
            json!({"spec": {"versions": [{"name": "v1", "additionalPrinterColumns": [column]}]}});
        let columns = PrinterColumn::of_definition(definition.to_string().as_bytes(), "v1").unwrap().unwrap();
        let resource = Resource::new(ResourceParts {
            group: "example.com".into(),
            version: "v1".into(),
            plural: "things".into(),
            ..Default::default()
        });
        check_row(&Table::of(&resource, Some(&columns), None).unwrap(), &object);
    }
}

#[test]
fn any_column_path_gives_a_row_with_every_cell() {
    let target = Target { name: "path", tokens: TOKENS, check: &check_path };
    target.run(1);
    let pieces = prop::collection::vec(prop::sample::select(TOKENS), 0..12);
    target.generate(pieces.prop_map(|pieces| pieces.concat()), 1);
}

/// The objects, each with the resource of its collection's path.
fn shown() -> Vec<(Resource, Value)> {
    let all: Vec<Value> = serde_json::from_str(OBJECTS).unwrap();
    let one = |one: &Value| {
        let path: Vec<&str> = one["at"].as_str().unwrap().split('/').skip(1).collect();
        let (group, version, rest) = match path[..] {
            ["api", version, ref rest @ ..] => ("", version, rest),
            ["apis", group, version, ref rest @ ..] => (group, version, rest),
            _ => panic!("{path:?}"),
        };
        let mut object = one["object"].clone();
        if !one["status"].is_null() {
            object["status"] = one["status"].clone();
        }
        let resource = Resource::new(ResourceParts {
            group: group.into(),
            version: version.into(),
            plural: (*rest.last().unwrap()).into(),
            ..Default::default()
        });
        (resource, object)
    };
    all.iter().map(one).filter(|(resource, _)| resource.is_built_in()).collect()
}

/// JSON pointers to all parts of an object, the object itself first.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                places(member, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                places(element, &format!("{at}/{index}"), all);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn any_object_of_a_kind_has_a_cell_for_each_column() {
    let shown = shown();
    assert!(shown.len() > 50, "{}", shown.len());
    let odd = odd_values();
    let changes = prop::collection::vec((any::<u32>(), 0..odd.len()), 0..4);
    let runner = |cases: u32| {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        proptest::test_runner::TestRunner::new_with_rng(
            config,
            proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &[7; 32]),
        )
    };
    let cases = std::env::var("INFORMERD_FUZZ_CASES").map_or(5000, |cases| cases.parse().unwrap());
    let inputs =
        (0..shown.len(), changes, prop::sample::select(vec![None, Some(16), Some(20), Some(29), Some(36)]));
    let ran = runner(cases).run(&inputs, |(at, changes, minor)| {
        let (resource, object) = &shown[at];
        let mut object = object.clone();
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&object, "", &mut all);
            // Not the whole object: a cache holds objects only.
            let place = all[1..].get(place as usize % all.len().max(1)).cloned();
            if let Some(part) = place.and_then(|place| object.pointer_mut(&place)) {
                *part = odd[value].clone();
            }
        }
        if let Some(table) = Table::of(resource, None, minor) {
            check_row(&table, &object);
        }
        Ok(())
    });
    ran.unwrap();
    println!("cells: {cases} cases");
}
