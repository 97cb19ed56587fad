//! Custom resources: the columns that their definition asks for.
//!
//! Source: `k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor`.

use serde::Deserialize;
use serde_json::Value;

use super::columns::{self, Column};
use super::jsonpath::Path;
use super::time::{Timestamp, ago};
use super::tree::Tree;

/// A column that a CustomResourceDefinition asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PrinterColumn {
    /// Its heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `date`.
    #[serde(rename = "type")]
    pub kind: String,
    /// OpenAPI format.
    pub format: String,
    /// For people.
    pub description: String,
    /// 0 is always shown, more only in wide output.
    pub priority: i32,
    /// The path to the value. Definitions of `v1beta1` write `JSONPath`.
    #[serde(alias = "JSONPath")]
    pub json_path: String,
}

/// The part of a CustomResourceDefinition that is read.
#[derive(Deserialize)]
struct Definition {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    versions: Vec<Version>,
    /// Of all versions: `v1beta1`.
    additional_printer_columns: Option<Vec<PrinterColumn>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    name: String,
    additional_printer_columns: Option<Vec<PrinterColumn>>,
}

impl PrinterColumn {
    /// The columns of one version of a custom resource, from the JSON of its CustomResourceDefinition (`v1` or
    /// `v1beta1`). `None` if the definition has no such version; the age alone if it names no columns.
    ///
    /// # Errors
    /// If the JSON is no CustomResourceDefinition.
    pub fn of_definition(json: &[u8], version: &str) -> Result<Option<Vec<Self>>, serde_json::Error> {
        let spec = serde_json::from_slice::<Definition>(json)?.spec;
        let Some(version) = spec.versions.into_iter().find(|known| known.name == version) else {
            return Ok(None);
        };
        let columns = version.additional_printer_columns.or(spec.additional_printer_columns);
        Ok(Some(columns.filter(|columns| !columns.is_empty()).unwrap_or_else(|| vec![Self::age()])))
    }

    /// The column of definitions that name none.
    fn age() -> Self {
        Self {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            description: columns::age_description().to_owned(),
            json_path: ".metadata.creationTimestamp".to_owned(),
            ..Self::default()
        }
    }
}

/// The columns of a custom resource with their paths parsed.
#[derive(Debug)]
pub(super) struct Custom(Vec<(Path, String)>);

impl Custom {
    /// The columns before the first one with an invalid path, as on the API server.
    pub(super) fn new(given: &[PrinterColumn], minor: u32) -> (Self, Vec<Column>) {
        let name = columns::of("customresources", minor).into_iter().flatten();
        let mut columns: Vec<Column> = name.map(|gated| gated.column).collect();
        let mut paths = Vec::new();
        for column in given {
            let Some(path) = Path::parse(&column.json_path) else { break };
            paths.push((path, column.kind.clone()));
            let mut description = column.description.clone();
            if description.is_empty() {
                description =
                    format!("Custom resource definition column (in JSONPath format): {}", column.json_path);
            }
            columns.push(Column {
                name: column.name.clone(),
                kind: column.kind.clone(),
                format: column.format.clone(),
                description,
                priority: column.priority,
            });
        }
        (Self(paths), columns)
    }

    pub(super) fn cells(&self, object: &Tree<'_>, now: Timestamp) -> Vec<Value> {
        let name = object.text("metadata.name").into();
        let cells = self.0.iter().map(|(path, kind)| {
            // The first of several values is shown. No value, or a path that does not fit the object, gives an empty cell.
            let found = path.find(object).unwrap_or_default();
            found.first().map_or(Value::Null, |value| cell(kind, value, now))
        });
        std::iter::once(name).chain(cells).collect()
    }
}

/// `cellForJSONValue`.
fn cell(kind: &str, value: &Tree<'_>, now: Timestamp) -> Value {
    match (kind, value) {
        ("string", value) => super::jsonpath::print(value).into(),
        ("integer", Tree::Int(number)) => (*number).into(),
        ("integer", Tree::Float(number)) => whole(*number).into(),
        ("number", Tree::Int(number)) => (*number).into(),
        ("number", Tree::Float(number)) => (*number).into(),
        ("boolean", Tree::Bool(is_so)) => (*is_so).into(),
        ("date", Tree::Text(text)) => date(text, now).into(),
        _ => Value::Null,
    }
}

/// Converts as Go does: the fraction is cut off, and a number that does not fit becomes the least `int64`.
fn whole(number: f64) -> i64 {
    let fits = (i64::MIN as f64..-(i64::MIN as f64)).contains(&number);
    if fits { number as i64 } else { i64::MIN }
}

fn date(text: &str, now: Timestamp) -> String {
    if matches!(text, "" | "null") {
        return ago(None, now);
    }
    let time = Timestamp::parse(text).map(|time| ago(Some(time).filter(|time| !time.is_zero()), now));
    time.unwrap_or_else(|| "<invalid>".to_owned())
}
