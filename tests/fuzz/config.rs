//! The input of operators: configuration files, watches, amounts.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use informerd::testing::config::{
    ConfigLayers, Count, GeneralSettings, Given, GivenBy, ServeSettings, Size, Span, WatchEntry, WatchSpec,
    Watches,
};
use proptest::prelude::*;

use super::engine::Target;

fn environment(name: &str) -> Option<String> {
    (name == "NODE_NAME").then(|| "node-1".to_owned())
}

fn resolve(settings: ServeSettings) -> Result<Vec<WatchSpec>, String> {
    let source = ConfigLayers { file: None, settings };
    source.resolve(&environment).map(|config| config.watches).map_err(|error| error.to_string())
}

fn check_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match ServeSettings::from_yaml(text, &environment) {
        Ok(settings) => match resolve(settings) {
            Ok(watches) => {
                assert!(!watches.is_empty(), "a configuration without a watch");
                watches.iter().for_each(check_round_trip);
            }
            Err(error) => assert!(!error.trim().is_empty()),
        },
        Err(error) => assert!(!error.to_string().trim().is_empty()),
    }
}

/// The printed form of a watch can be typed, and means the same.
fn check_round_trip(spec: &WatchSpec) {
    let shown = spec.to_string();
    // A parameter's separator and a variable cannot be escaped in typed watches.
    let values = [&spec.label_selector, &spec.field_selector];
    let drop = spec.drop.to_string();
    if values.into_iter().flatten().chain([&drop]).any(|value| value.contains(['&', '$'])) {
        return;
    }
    let entry: WatchEntry = shown.parse().unwrap_or_else(|error| panic!("{shown:?}: {error}"));
    let again = resolve(watch(entry)).unwrap_or_else(|error| panic!("{shown:?}: {error}")).swap_remove(0);
    let trimmed = |value: &Option<String>| value.as_ref().map(|value| value.trim().to_owned());
    assert_eq!((&again.resource, &again.namespaces), (&spec.resource, &spec.namespaces), "{shown}");
    assert_eq!(trimmed(&again.label_selector), trimmed(&spec.label_selector), "{shown}");
    assert_eq!(trimmed(&again.field_selector), trimmed(&spec.field_selector), "{shown}");
    let kept = |spec: &WatchSpec| {
        (spec.keep_managed_fields, spec.keep_last_applied, spec.metadata_only, spec.drop.clone())
    };
    assert_eq!(kept(&again), kept(spec), "{shown}");
}

fn watch(entry: WatchEntry) -> ServeSettings {
    let given = Given { value: Watches(vec![entry]), origin: GivenBy::Flag };
    let general = GeneralSettings { watch: Some(given), ..Default::default() };
    ServeSettings { general, ..Default::default() }
}

const PARAMETERS: [&str; 7] = [
    "namespace",
    "labelSelector",
    "fieldSelector",
    "keepManagedFields",
    "keepLastApplied",
    "metadataOnly",
    "drop",
];

fn check_watch(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (resource, query) = text.trim().split_once('?').map_or((text.trim(), None), |(a, b)| (a, Some(b)));
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let mut fits = resource.split('.').all(label);
    let mut seen: Vec<&str> = Vec::new();
    for pair in query.into_iter().flat_map(|query| query.split('&')) {
        let Some((name, value)) = pair.split_once('=') else {
            fits = false;
            continue;
        };
        fits &= PARAMETERS.contains(&name) && (matches!(name, "namespace" | "drop") || !seen.contains(&name));
        let truth = name.starts_with("keep") || name == "metadataOnly";
        fits &= !truth || matches!(value, "true" | "false");
        seen.push(name);
    }
    match text.parse::<WatchEntry>() {
        Ok(entry) => {
            assert!(fits, "accepted, but invalid");
            assert_eq!(entry.resource, resource);
            if let Ok(specs) = resolve(watch(entry)) {
                specs.iter().for_each(check_round_trip);
            }
        }
        Err(error) => assert!(!fits, "refused: {error}"),
    }
}

fn check_amount(input: &[u8]) {
    fn same<T: FromStr + Display + PartialEq + Debug>(text: &str) {
        if let Ok(amount) = text.parse::<T>() {
            let shown = amount.to_string();
            let again = shown.parse::<T>().unwrap_or_else(|_| panic!("{text:?} is shown as {shown:?}"));
            assert_eq!(again, amount, "{text:?} is shown as {shown:?}");
        }
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    same::<Count>(text);
    same::<Size>(text);
    same::<Span>(text);
}

#[test]
fn any_file_is_a_configuration_or_is_refused_with_the_reason() {
    let tokens = &[
        "watch:",
        "- resource: pods\n",
        "- {resource: pods}\n",
        "namespaces: [a]\n",
        "  labelSelector: a in (b)\n",
        "  fieldSelector: spec.nodeName=$(NODE_NAME)\n",
        "$(NOPE)",
        "$$(",
        "listen: unix:/a\n",
        "listen: ':0'\n",
        "limits:\n",
        "  pageSize: 7\n",
        "  lineBytesMax: 1Mi\n",
        "drainTimeout: 5s\n",
        "unknown: 1\n",
        "---\n",
        "...\n",
        "&a",
        "*a",
        "<<: *a",
        "!!str",
        "|\n",
        ">\n",
        "{",
        "}",
        "[",
        "]",
        ": ",
        "- ",
        "#",
        "\t",
        "'",
        "\"",
        "\\",
        "~",
        "null",
        "0x10",
        "1e999",
        ".inf",
        "\u{feff}",
        "\u{85}",
        "é",
        "%",
    ];
    Target { name: "config", tokens, check: &check_file }.run(2);
}

#[test]
fn any_watch_is_read_or_refused() {
    let tokens = &[
        "pods",
        "?",
        "&",
        "=",
        "namespace=web",
        "labelSelector=a in (b,c)",
        "fieldSelector=spec.x=$(NODE_NAME)",
        "$(",
        "$$(",
        "keepManagedFields=true",
        "keepLastApplied=false",
        ".v1",
        ".apps",
        "-",
        "/",
        " ",
        "é",
        "\n",
        "A",
        "_",
        ",",
        "%20",
    ];
    let target = Target { name: "watch_entry", tokens, check: &check_watch };
    target.run(1);
    let piece = prop::sample::select(&tokens[..]);
    target.generate(prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat()), 1);
}

#[test]
fn an_amount_is_shown_as_it_can_be_written() {
    let tokens = &[
        "0",
        "1",
        "5",
        "1024",
        "18446744073709551615",
        "18446744073709551616",
        "Ki",
        "KiB",
        "Mi",
        "MiB",
        "G",
        "k",
        "B",
        "ms",
        "s",
        "m",
        "h",
        "d",
        ".",
        "-",
        "+",
        "e3",
        "_",
        " ",
        "é",
        "1h30m",
    ];
    let target = Target { name: "amount", tokens, check: &check_amount };
    target.run(1);
    let piece = prop::sample::select(&tokens[..]);
    target.generate(prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat()), 1);
}
