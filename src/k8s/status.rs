//! The Kubernetes `Status`: how a server says what went wrong.

use serde::{Deserialize, Deserializer, Serialize};

/// A `v1 Status` of a failure. The wire form of every error, ours and the API server's.
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
    /// What a person should read.
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
    /// The machine's word: `NotFound`, `Expired`, `BadRequest`, ….
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
    /// The machine's word: `FieldValueInvalid`, `FieldValueNotSupported`, ….
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    /// What a person should read.
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
    /// The parameter or field.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "null_is_default")]
    pub field: String,
}

/// `null` is a value that is not there: an error that is written oddly must still be understood.
fn null_is_default<'de, D, T>(reader: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(reader).map(Option::unwrap_or_default)
}

impl Status {
    /// A failure with an HTTP code, the machine's word and a sentence.
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

    /// Whether the history asked for is gone (410): a relist is needed.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// The JSON, one line, with a line feed at its end.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("a Status has string keys only");
        line.push(b'\n');
        line
    }
}
