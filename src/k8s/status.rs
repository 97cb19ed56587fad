//! The Kubernetes `Status`, the form of every error.

use serde::{Deserialize, Deserializer, Serialize};

use super::ResourceVersion;

/// A `v1 Status` of a failure: informerd's own errors and the API server's.
///
/// Source: `k8s.io/apimachinery/pkg/apis/meta/v1.Status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Always `Status`.
    #[serde(deserialize_with = "null_is_default")]
    pub kind: String,
    /// Always `v1`.
    #[serde(rename = "apiVersion")]
    #[serde(deserialize_with = "null_is_default")]
    pub api_version: String,
    /// Always empty for us; `continue` after an expired list.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// `Failure`.
    #[serde(deserialize_with = "null_is_default")]
    pub status: String,
    /// The sentence for people.
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
    /// The reason in one word, for programs: `NotFound`, `Expired`, `BadRequest`, ….
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    /// The HTTP status code.
    #[serde(deserialize_with = "null_is_default")]
    pub code: u16,
}

/// What a [`Status`] is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details {
    /// The object's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// The API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "null_is_default")]
    pub group: String,
    /// The resource (plural), in spite of the name.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "null_is_default")]
    pub kind: String,
    /// Each thing that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "null_is_default")]
    pub causes: Vec<Cause>,
    /// Seconds to wait before the next try.
    #[serde(rename = "retryAfterSeconds", skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// The reason in one word, for programs: `FieldValueInvalid`, `FieldValueNotSupported`, ….
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    /// The sentence for people.
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
    /// The parameter or field.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "null_is_default")]
    pub field: String,
}

/// Reads `null` as a missing value, so that errors of sloppy servers are understood, too.
fn null_is_default<'de, D, T>(reader: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(reader).map(Option::unwrap_or_default)
}

impl Status {
    /// A failure with an HTTP code, a reason in one word and a sentence.
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind: "Status".into(),
            api_version: "v1".into(),
            metadata: serde_json::Map::new(),
            status: "Failure".into(),
            message: message.into(),
            reason: reason.into(),
            details: None,
            code,
        }
    }

    /// 410: a watch from a version that is older than the oldest in the journal.
    pub fn watch_too_old(asked: &ResourceVersion, oldest: &ResourceVersion) -> Self {
        Self::failure(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    /// 410: a watch that has fallen behind the journal.
    pub fn watch_expired() -> Self {
        Self::failure(410, "Expired", "The resourceVersion for the provided watch is too old.")
    }

    /// 504: the cache did not reach the version in time (U9).
    pub fn too_large_version(asked: &str, reached: &str) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {reached}");
        let mut status = Self::failure(504, "Timeout", message);
        let (reason, field) = ("ResourceVersionTooLarge".to_owned(), String::new());
        let causes = vec![Cause { reason, message: "Too large resource version".to_owned(), field }];
        status.details = Some(Details { causes, retry_after_seconds: Some(1), ..Details::default() });
        status
    }

    /// Whether the history asked for is gone (410): a relist is needed.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// The JSON on one line, with a line feed at its end, escaped as the API server does (U36).
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = escaped(serde_json::to_string(self).expect("a Status has string keys only"));
        line.push('\n');
        line.into_bytes()
    }
}

/// JSON with the escapes of the API server, which Go's encoder writes, and one more, so that each line is one for every client.
pub fn escaped(mut json: String) -> String {
    // These characters occur within strings only.
    for plain in ['<', '>', '&', '\u{2028}', '\u{2029}', '\u{85}'] {
        if json.contains(plain) {
            json = json.replace(plain, &format!("\\u{:04x}", u32::from(plain)));
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_escaped_as_the_api_server_escapes_it() {
        let line = Status::failure(400, "BadRequest", "a<b & c>d\u{2028}").to_line();
        let text = String::from_utf8(line).unwrap();
        assert!(text.contains(r"a\u003cb \u0026 c\u003ed\u2028"), "{text}");
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap().message, "a<b & c>d\u{2028}");
    }
}
