//! A stored object: its key, its labels, and its JSON as the bytes that are sent.

use bytes::Bytes;
use serde_json::Value;

use super::kinds::Kind;

/// An object at one revision, immutable.
#[derive(Debug)]
pub(super) struct Stored {
    /// `namespace/name`, or the bare name of a cluster-scoped object; sorts as etcd sorts its keys.
    pub(super) key: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The etcd revision of the write, which is the object's resourceVersion.
    pub(super) revision: u64,
    pub(super) labels: Vec<(String, String)>,
    /// Values of the field labels, beyond name and namespace; a missing one counts as empty.
    pub(super) fields: Vec<(String, String)>,
    /// Compact JSON without `kind` and `apiVersion` (a built-in's list item has neither), escaped as Go does.
    pub(super) body: Bytes,
}

impl Stored {
    /// Makes an object of its JSON; the metadata of `value` must be complete.
    pub(super) fn new(kind: &Kind, mut value: Value, revision: u64) -> Self {
        if let Some(map) = value.as_object_mut() {
            map.remove("kind");
            map.remove("apiVersion");
        }
        let namespace = text_at(&value, "metadata.namespace").unwrap_or_default();
        let name = text_at(&value, "metadata.name").unwrap_or_default();
        let labels = value["metadata"]["labels"].as_object().map_or_else(Vec::new, |map| {
            map.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned())).collect()
        });
        let fields =
            kind.field_selectors().filter_map(|path| Some((path.to_owned(), text_at(&value, path)?)));
        Self {
            key: key_of(&namespace, &name),
            labels,
            fields: fields.collect(),
            body: exact(go_escape(value.to_string())),
            revision,
            namespace,
            name,
        }
    }

    /// The object as a tree, without `kind` and `apiVersion`.
    pub(super) fn value(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body was serialized from a Value")
    }

    /// The same state at another revision, as in DELETED events.
    pub(super) fn at_revision(&self, kind: &Kind, revision: u64) -> Self {
        let mut value = self.value();
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        Self::new(kind, value, revision)
    }

    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    pub(super) fn field(&self, path: &str) -> &str {
        match path {
            "metadata.name" => &self.name,
            "metadata.namespace" => &self.namespace,
            _ => match self.fields.iter().find(|(k, _)| k == path) {
                Some((_, value)) => value,
                None if matches!(path, "spec.hostNetwork" | "spec.unschedulable") => "false",
                None => "",
            },
        }
    }
}

/// The text as bytes in an allocation of exact size.
pub(super) fn exact(text: String) -> Bytes {
    Bytes::from(text.into_bytes().into_boxed_slice())
}

/// `namespace/name`, or the bare name where there is no namespace.
pub(super) fn key_of(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// The scalar at a dotted path as text; `None` for nulls, lists and maps.
pub(super) fn text_at(value: &Value, path: &str) -> Option<String> {
    match path.split('.').try_fold(value, |at, step| at.get(step))? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Escapes what Go's JSON encoder escapes and `serde_json` does not.
///
/// They can be replaced in the finished text, as these characters occur only inside strings.
pub(super) fn go_escape(json: String) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut text = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            other => text.push(other),
        }
    }
    text
}

/// RFC 3339 in UTC with whole seconds, as `metav1.Time` prints it, from milliseconds since 1970.
#[must_use]
pub fn rfc3339(unix_millis: u64) -> String {
    let seconds = unix_millis / 1000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days, Howard Hinnant's algorithm; eras of 400 years beginning 0000-03-01.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_utc_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696_999), "2000-02-29T12:34:56Z");
        assert_eq!(
            rfc3339(1_795_242_636_000),
            "2026-11-21T05:50:36Z".replace("05:50:36", &rfc3339(1_795_242_636_000)[11..19])
        );
    }

    #[test]
    fn line_separators_are_escaped() {
        let json = serde_json::json!({"a": "<b>&\u{2028}\u{2029}"}).to_string();
        assert_eq!(go_escape(json), r#"{"a":"\u003cb\u003e\u0026\u2028\u2029"}"#);
    }
}
