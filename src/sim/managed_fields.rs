//! `metadata.managedFields` as a server writes them: which manager set which fields, and when.

use serde_json::{Map, Value, json};

/// The writer of a change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manager<'a> {
    /// The field manager: `kubectl-create`, `kube-controller-manager`, …
    pub(super) name: &'a str,
    /// `Update` or `Apply`.
    pub(super) operation: &'static str,
    /// Empty, or `status`, `scale`.
    pub(super) subresource: &'static str,
}

/// Metadata that the server sets itself, without a manager.
const SERVER_SET: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Rewrites this manager's entry from what differs between `before` and `after`, leaving the other managers' alone.
///
/// Simpler than the real bookkeeping: an entry never loses fields to another manager. Only their presence and size matter
/// here.
pub(super) fn record(
    before: Option<&Value>,
    after: &mut Value,
    manager: Manager<'_>,
    api_version: &str,
    time: &str,
) {
    let Some(fields) = changed_fields(before, after, manager.subresource) else { return };
    let mut entries = match after["metadata"].get_mut("managedFields").map(Value::take) {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    };
    let subresource = Value::from(manager.subresource);
    let same = |entry: &Value| {
        entry["manager"] == manager.name
            && entry["operation"] == manager.operation
            && entry.get("subresource").unwrap_or(&Value::from("")) == &subresource
    };
    match entries.iter_mut().find(|e| same(e)) {
        Some(entry) => {
            super::patch::merge(&mut entry["fieldsV1"], &fields);
            entry["time"] = time.into();
        }
        None => {
            let mut entry = json!({
                "manager": manager.name, "operation": manager.operation, "apiVersion": api_version,
                "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields,
            });
            if !manager.subresource.is_empty() {
                entry["subresource"] = subresource;
            }
            entries.push(entry);
        }
    }
    after["metadata"]["managedFields"] = entries.into();
}

fn changed_fields(before: Option<&Value>, after: &Value, subresource: &str) -> Option<Value> {
    let mut fields = Map::new();
    for (name, value) in after.as_object()? {
        let old = before.and_then(|b| b.get(name));
        if matches!(name.as_str(), "kind" | "apiVersion") || old == Some(value) {
            continue;
        }
        if (name == "status") != (subresource == "status") && before.is_some() {
            continue;
        }
        let set = if name == "metadata" { metadata_fields(old, value) } else { Some(field_set(value)) };
        if let Some(set) = set {
            fields.insert(format!("f:{name}"), set);
        }
    }
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn metadata_fields(old: Option<&Value>, metadata: &Value) -> Option<Value> {
    let mut fields = Map::new();
    for (name, value) in metadata.as_object()? {
        if SERVER_SET.contains(&name.as_str()) || old.and_then(|o| o.get(name)) == Some(value) {
            continue;
        }
        fields.insert(format!("f:{name}"), field_set(value));
    }
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn field_set(value: &Value) -> Value {
    let mut set = Map::new();
    match value {
        Value::Object(map) => {
            set.insert(".".into(), json!({}));
            set.extend(map.iter().map(|(k, v)| (format!("f:{k}"), field_set(v))));
        }
        Value::Array(items) if !items.is_empty() => {
            for key in ["name", "type", "uid"] {
                if items.iter().all(|i| i.get(key).is_some()) {
                    set.insert(".".into(), json!({}));
                    set.extend(items.iter().map(|i| (format!("k:{}", json!({key: i[key]})), field_set(i))));
                    break;
                }
            }
        }
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Value::Object(set)
}
