//! The JSON Schema of the configuration file, for editors that complete and check YAML.

use serde_json::{Map, Value as Json, json};

use super::setting::{Form, Setting};
use super::table::settings;
use super::watch::FileWatch;
use crate::queue::{ATTEMPTS_MAX, LEASE_SECONDS_MAX, WATCHES_MAX};

/// `$(NAME)` may occur anywhere in a value, so each pattern allows it.
const REFERENCE: &str = r"\$\(";

/// The schema: every key, its type, what it does, and its default.
///
/// Source: JSON Schema draft 7, which the YAML extensions of editors read.
pub fn schema() -> Json {
    let mut properties = Map::new();
    let mut limits = Map::new();
    for setting in settings() {
        let Some(key) = &setting.key else { continue };
        let described = described(setting);
        match key.strip_prefix("limits.") {
            Some(key) => limits.insert(key.to_owned(), described),
            None => properties.insert(key.clone(), described),
        };
    }
    let limits = json!({
        "type": "object",
        "description": "Everything that could grow has a bound.",
        "additionalProperties": false,
        "properties": limits,
    });
    properties.insert("limits".to_owned(), limits);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "informerd",
        "description": "Configuration of informerd serve --config",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn described(setting: &Setting) -> Json {
    let mut schema = of(setting.form);
    if let Some(object) = schema.as_object_mut() {
        object.insert("description".to_owned(), json!(setting.help));
        if !setting.default.is_empty() {
            object.insert("default".to_owned(), default(setting));
        }
    }
    schema
}

/// The default with the type that the key has.
fn default(setting: &Setting) -> Json {
    match setting.form {
        Form::Switch => json!(setting.default == "true"),
        Form::Count => setting.default.parse::<u64>().map_or_else(|_| json!(setting.default), |n| json!(n)),
        Form::Number
        | Form::Size
        | Form::Span
        | Form::SpanOrOff
        | Form::OneOf(_)
        | Form::Text(_)
        | Form::List(_)
        | Form::Watches
        | Form::Queues
        | Form::Links => json!(setting.default),
    }
}

fn of(form: Form) -> Json {
    let text = |pattern: &str| json!({"type": "string", "pattern": format!("^{pattern}$|{REFERENCE}")});
    let span = "([0-9]+(ms|s|m|h))+";
    match form {
        Form::Count => {
            json!({"type": ["integer", "string"], "minimum": 0, "pattern": format!("^[0-9_]+$|{REFERENCE}")})
        }
        Form::Number => json!({"type": ["number", "string"]}),
        Form::Size => json!({
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": format!("^[0-9]+ *([KMG]iB?|B)?$|{REFERENCE}"),
        }),
        Form::Span => text(span),
        Form::SpanOrOff => text(&format!("(off|{span})")),
        Form::Switch => json!({"type": "boolean"}),
        Form::OneOf(words) => {
            json!({"anyOf": [{"enum": words}, {"type": "string", "pattern": REFERENCE}]})
        }
        Form::Text(_) => json!({"type": "string"}),
        Form::List(_) => json!({"type": "array", "items": {"type": "string"}}),
        Form::Watches => json!({"type": "array", "items": watch()}),
        Form::Queues => json!({"type": "object", "additionalProperties": queue()}),
        Form::Links => json!({"type": "array", "items": link()}),
    }
}

/// One watch of the file.
fn watch() -> Json {
    let property = |key: &&str| {
        let schema = match *key {
            "resource" => {
                json!({"type": "string", "description": "As kubectl takes it: pods, deploy, deployments.v1.apps"})
            }
            "namespaces" => texts("Only these namespaces; all of them if empty"),
            "labelSelector" => described_text(
                "Only objects that the API server selects by this label selector, in kubectl's grammar",
            ),
            "fieldSelector" => described_text(
                "As labelSelector, by fields; the API server decides which fields a kind can be selected by",
            ),
            "keepManagedFields" => truth("Keep metadata.managedFields"),
            "keepLastApplied" => truth("Keep the last-applied annotation"),
            "metadataOnly" => truth("Fetch and hold the objects' metadata alone"),
            "indexes" => texts("Paths whose indexes are kept from the start, such as spec.nodeName"),
            _ => texts("Paths of members that are not held, such as .data"),
        };
        ((*key).to_owned(), schema)
    };
    let properties: Map<String, Json> = FileWatch::KEYS.iter().map(property).collect();
    json!({
        "type": "object",
        "required": ["resource"],
        "additionalProperties": false,
        "properties": properties,
    })
}

/// One work queue of the file.
fn queue() -> Json {
    let whole = |description: &str, default: Option<u32>, max: u32| {
        let mut schema = json!({"type": "integer", "minimum": 1, "maximum": max, "description": description});
        if let (Some(default), Some(object)) = (default, schema.as_object_mut()) {
            object.insert("default".to_owned(), json!(default));
        }
        schema
    };
    let enqueue = json!({
        "type": "object",
        "required": ["resource"],
        "additionalProperties": false,
        "properties": {
            "resource": described_text("Another resource of the queue, as its watch has it"),
            "path": described_text("Where its objects have the name of the changed one; the built-in links if absent"),
            "by": {"enum": ["owner"], "description": "Owner references, in either direction"},
        },
    });
    let watched = json!({
        "type": "object",
        "required": ["resource"],
        "additionalProperties": false,
        "properties": {
            "resource": described_text("As kubectl takes it: pods, deploy, deployments.v1.apps"),
            "namespaces": texts("Only these namespaces; all of them if empty"),
            "labelSelector": described_text("Only objects with these labels, in kubectl's grammar"),
            "fieldSelector": described_text("As labelSelector, by fields; every path can be selected by"),
            "where": described_text("Only objects for which this CEL expression over object is true"),
            "changed": described_text("Only changes of a value at one of these paths, separated by commas"),
            "enqueue": {
                "type": "array", "maxItems": 8, "items": enqueue,
                "description": "Queue the keys of linked objects of these resources, and not the changed object's own",
            },
        },
    });
    json!({
        "type": "object",
        "required": ["watch"],
        "additionalProperties": false,
        "properties": {
            "watch": {
                "type": "array", "minItems": 1, "maxItems": WATCHES_MAX, "items": watched,
                "description": "The objects whose keys are queued",
            },
            "leaseSeconds": whole("How long a lease lasts that does not say it itself", Some(60), LEASE_SECONDS_MAX),
            "maxAttempts": whole(
                "Failed attempts after which a key is set aside; no end if absent", None, ATTEMPTS_MAX,
            ),
            "retryBaseMilliseconds": whole(
                "Delay after the first failed attempt; it doubles with each further one", Some(5), 3_600_000,
            ),
            "retryMaxSeconds": whole("Longest delay after a failed attempt", Some(1000), 86_400),
        },
    })
}

/// One link of the file.
fn link() -> Json {
    json!({
        "type": "object",
        "required": ["from", "to"],
        "additionalProperties": false,
        "properties": {
            "from": described_text("The resource of the objects that refer, PLURAL[.GROUP]"),
            "path": described_text("Where they have the name of what they refer to"),
            "selector": described_text("Where they have a label selector, in place of path"),
            "to": described_text("The resource that they refer to, in the same namespace or of the cluster"),
        },
    })
}

fn described_text(description: &str) -> Json {
    json!({"type": "string", "description": description})
}

fn texts(description: &str) -> Json {
    json!({"type": "array", "items": {"type": "string"}, "description": description})
}

fn truth(description: &str) -> Json {
    json!({"type": "boolean", "description": description})
}
