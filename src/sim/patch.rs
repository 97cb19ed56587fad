//! The patch formats that kubectl sends: JSON merge, strategic merge, JSON patch.

use serde_json::{Map, Value};

use super::status::Status;

/// RFC 7386: maps are merged, `null` removes, everything else replaces.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    merge_with(target, patch, |target, patch| *target = patch.clone());
}

/// Strategic merge as far as a server without schemas can do it: as [`merge`], but lists of maps are merged by their `name`
/// (or the key that Kubernetes uses there), with `$patch: delete` and `$deleteFromPrimitiveList`. `$setElementOrder` and
/// `$retainKeys` are removed and ignored.
pub(super) fn strategic(target: &mut Value, patch: &Value) {
    merge_with(target, patch, merge_lists);
}

fn merge_with(target: &mut Value, patch: &Value, lists: fn(&mut Value, &Value)) {
    let Value::Object(patch) = patch else {
        if patch.is_array() {
            lists(target, patch);
        } else {
            *target = patch.clone();
        }
        return;
    };
    if !target.is_object() || patch.get("$patch") == Some(&"replace".into()) {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(old)), Value::Array(gone)) = (map.get_mut(list), value) {
                old.retain(|v| !gone.contains(v));
            }
        } else if name.starts_with('$') {
            // Directives for order and keys are ignored.
        } else if value.is_null() {
            map.remove(name);
        } else {
            merge_with(map.entry(name.clone()).or_insert(Value::Null), value, lists);
        }
    }
}

/// The merge keys of the core types, the more specific first.
const MERGE_KEYS: &[&str] = &["mountPath", "containerPort", "uid", "ip", "type", "name", "port", "key"];

fn merge_lists(target: &mut Value, patch: &Value) {
    let (Some(patch_items), true) = (patch.as_array(), target.is_array()) else {
        *target = without_directives(patch);
        return;
    };
    let items = target.as_array_mut().expect("checked to be a list");
    let all = || patch_items.iter().chain(items.iter());
    let key = MERGE_KEYS.iter().find(|k| all().next().is_some() && all().all(|item| item.get(**k).is_some()));
    let Some(key) = key.filter(|_| !patch_items.iter().any(|i| i["$patch"] == "replace")) else {
        *target = without_directives(patch);
        return;
    };
    for item in patch_items {
        let place = items.iter().position(|old| old[*key] == item[*key]);
        match place {
            Some(at) if item["$patch"] == "delete" => drop(items.remove(at)),
            Some(at) => merge_with(&mut items[at], item, merge_lists),
            None if item["$patch"] == "delete" => {}
            None => items.push(without_directives(item)),
        }
    }
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            items.iter().filter(|i| i.get("$patch").is_none()).map(without_directives).collect()
        }
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(k, v)| !k.starts_with('$') && !v.is_null())
                .map(|(k, v)| (k.clone(), without_directives(v)))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// RFC 6902, the operations `add`, `remove`, `replace` and `test`.
pub(super) fn json_patch(target: &mut Value, patch: &Value) -> Result<(), Status> {
    let refuse = |why: String| {
        Status::new(
            422,
            "Invalid",
            format!("the server rejected our request due to an error in our request: {why}"),
        )
    };
    let Some(steps) = patch.as_array() else {
        return Err(Status::bad_request(
            "json: cannot unmarshal object into Go value of type jsonpatch.Patch",
        ));
    };
    for step in steps {
        let path = step["path"].as_str().unwrap_or_default();
        let operation = step["op"].as_str().unwrap_or_default();
        let Some((parent, last)) = path.rsplit_once('/') else {
            return Err(refuse(format!("bad path {path}")));
        };
        let last = last.replace("~1", "/").replace("~0", "~");
        let parent = target.pointer_mut(parent).ok_or_else(|| refuse(format!("no such path {path}")))?;
        apply_step(parent, &last, operation, &step["value"])
            .ok_or_else(|| refuse(format!("{operation} {path} failed")))?;
    }
    Ok(())
}

fn apply_step(parent: &mut Value, last: &str, operation: &str, value: &Value) -> Option<()> {
    match (parent, operation) {
        (Value::Object(map), "add") => drop(map.insert(last.into(), value.clone())),
        (Value::Object(map), "replace") => *map.get_mut(last)? = value.clone(),
        (Value::Object(map), "remove") => drop(map.remove(last)?),
        (Value::Object(map), "test") => return (map.get(last)? == value).then_some(()),
        (Value::Array(list), "add") if last == "-" => list.push(value.clone()),
        (Value::Array(list), _) => {
            let at: usize = last
                .parse()
                .ok()
                .filter(|at| *at < list.len() || (operation == "add" && *at == list.len()))?;
            match operation {
                "add" => list.insert(at, value.clone()),
                "replace" => list[at] = value.clone(),
                "remove" => drop(list.remove(at)),
                "test" => return (list[at] == *value).then_some(()),
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_follows_rfc_7386() {
        let mut value = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        merge(&mut value, &json!({"a": {"b": null, "d": {"e": null, "f": 1}}, "l": [3]}));
        assert_eq!(value, json!({"a": {"c": 2, "d": {"f": 1}}, "l": [3]}));
    }

    #[test]
    fn strategic_merge_joins_lists_by_name() {
        let mut value =
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "args": ["x"]});
        let patch = json!({
            "$setElementOrder/containers": [{"name": "b"}],
            "containers": [{"name": "b", "image": "2"}, {"name": "a", "$patch": "delete"}],
            "args": ["y"],
        });
        strategic(&mut value, &patch);
        assert_eq!(value, json!({"containers": [{"name": "b", "image": "2"}], "args": ["y"]}));
    }

    #[test]
    fn json_patch_applies_its_steps_or_refuses() {
        let mut value = json!({"a": {"x/y": 1}, "l": [1]});
        let steps = json!([
            {"op": "test", "path": "/a/x~1y", "value": 1}, {"op": "replace", "path": "/a/x~1y", "value": 2},
            {"op": "add", "path": "/l/-", "value": 2}, {"op": "remove", "path": "/l/0"},
        ]);
        json_patch(&mut value, &steps).unwrap();
        assert_eq!(value, json!({"a": {"x/y": 2}, "l": [2]}));
        assert!(json_patch(&mut value, &json!([{"op": "remove", "path": "/nope/x"}])).is_err());
    }
}
