//! Encodes tables of `meta.k8s.io/v1`, the answer to `kubectl get`.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Frames;
use super::list::PARTIAL_HEAD;
use crate::k8s::table::{Completed, Row, Table, Timestamp};
use crate::k8s::{ResourceVersion, escaped};

/// How much of its object a row contains: the parameter `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Its metadata, as `PartialObjectMetadata`.
    #[default]
    Metadata,
    /// All of it.
    Object,
    /// Nothing.
    None,
}

/// The version of `meta.k8s.io` in which a table is written. Both look the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableVersion {
    /// `v1`.
    #[default]
    V1,
    /// `v1beta1`, for clients from before Kubernetes 1.15.
    V1Beta1,
}

/// Writes tables of one resource: a list or single object piece by piece, or one table for each watch event.
#[derive(Debug)]
pub struct TableEncoder {
    table: Arc<Table>,
    include: IncludeObject,
    version: TableVersion,
    /// Whether the columns were sent already.
    has_told_columns: bool,
    /// Whether the table has rows already.
    has_rows: bool,
    /// Reused for each row.
    text: String,
}

/// The metadata within an object's JSON.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

impl IncludeObject {
    /// Parses the parameter. Empty means the default; `None` for a value that API servers refuse.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "Object" => Some(Self::Object),
            "None" => Some(Self::None),
            _ => None,
        }
    }
}

impl TableVersion {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }

    /// The beginning of a row's object, up to its metadata.
    fn partial_head(self) -> &'static str {
        match self {
            Self::V1 => PARTIAL_HEAD,
            Self::V1Beta1 => {
                r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","metadata":"#
            }
        }
    }
}

impl TableEncoder {
    /// An encoder that has written nothing.
    pub fn new(table: Arc<Table>, include: IncludeObject, version: TableVersion) -> Self {
        Self { table, include, version, has_told_columns: false, has_rows: false, text: String::new() }
    }

    /// Appends the beginning of a table, before its rows, with the version of the list or the single object. `next` is given if
    /// more pages follow: their token and, if known, how many objects they have.
    pub fn head(
        &mut self,
        version: Option<&ResourceVersion>,
        next: Option<(&str, Option<usize>)>,
        out: &mut Frames,
    ) {
        self.text.clear();
        let api_version = self.version.api_version();
        self.add(format_args!(r#"{{"kind":"Table","apiVersion":"{api_version}","metadata":{{"#));
        if let Some(version) = version {
            self.add(format_args!(r#""resourceVersion":"{}""#, version.json()));
        }
        if let Some((token, remaining)) = next {
            let comma = if version.is_some() { "," } else { "" };
            self.add(format_args!(r#"{comma}"continue":"{token}""#));
            if let Some(remaining) = remaining {
                self.add(format_args!(r#","remainingItemCount":{remaining}"#));
            }
        }
        self.text.push_str(r#"},"columnDefinitions":"#);
        if self.has_told_columns {
            self.text.push_str("null");
        } else {
            // Strings and numbers can always be written as JSON.
            self.text.push_str(&escaped(serde_json::to_string(self.table.columns()).unwrap_or_default()));
        }
        self.has_told_columns = true;
        self.has_rows = false;
        self.text.push_str(r#","rows":["#);
        out.put(&self.text);
    }

    /// Appends the row of an object. The part of the object that the row contains is written by reference.
    pub fn row(&mut self, json: &Bytes, now: Timestamp, out: &mut Frames) {
        let Row { cells, completed } = self.table.row(json, now);
        self.begin_row(&serde_json::Value::Array(cells), out);
        if let Some(completed) = completed {
            out.put(conditions(completed));
        }
        out.put(r#","object":"#);
        let metadata = || serde_json::from_slice::<Object<'_>>(json).ok();
        match self.include {
            IncludeObject::Object => out.share(json.clone()),
            IncludeObject::None => out.put("null"),
            IncludeObject::Metadata => match metadata() {
                Some(object) => {
                    out.put(self.version.partial_head());
                    out.share(json.slice_ref(object.metadata.get().as_bytes()));
                    out.put("}");
                }
                None => out.put("null"),
            },
        }
        out.put("}");
    }

    /// Appends the end of a table.
    pub fn end(&mut self, out: &mut Frames) {
        out.put("]}");
        out.cut();
    }

    /// Appends the table of one object, for a watch event. Only the first one has the columns.
    pub fn single(&mut self, version: &ResourceVersion, json: &Bytes, now: Timestamp, out: &mut Frames) {
        self.head(Some(version), None, out);
        self.row(json, now, out);
        self.end(out);
    }

    /// Appends the table of a BOOKMARK, which has an empty row; `is_initial_events_end` marks the one after the
    /// initial events.
    pub fn bookmark(&mut self, version: &ResourceVersion, is_initial_events_end: bool, out: &mut Frames) {
        self.head(Some(version), None, out);
        let cell = |column: &crate::k8s::table::Column| match column.name == "Name" {
            true => serde_json::Value::from(""),
            false => serde_json::Value::Null,
        };
        self.begin_row(&self.table.columns().iter().map(cell).collect(), out);
        self.text.clear();
        let end = crate::k8s::INITIAL_EVENTS_END;
        let mark = if is_initial_events_end {
            format!(r#","annotations":{{"{end}":"true"}}"#)
        } else {
            String::new()
        };
        let (version, head) = (version.json(), self.version.partial_head());
        self.add(format_args!(r#","object":{head}{{"resourceVersion":"{version}"{mark}}}}}}}"#));
        out.put(&self.text);
        self.end(out);
    }

    fn begin_row(&mut self, cells: &serde_json::Value, out: &mut Frames) {
        self.text.clear();
        let comma = if self.has_rows { "," } else { "" };
        self.add(format_args!(r#"{comma}{{"cells":{}"#, escaped(cells.to_string())));
        self.has_rows = true;
        out.put(&self.text);
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

/// Source: `podSuccessConditions` and `podFailedConditions` of `k8s.io/kubernetes/pkg/printers/internalversion`.
fn conditions(completed: Completed) -> &'static str {
    match completed {
        Completed::Succeeded => {
            r#","conditions":[{"type":"Completed","status":"True","reason":"Succeeded","message":"The pod has completed successfully."}]"#
        }
        Completed::Failed => {
            r#","conditions":[{"type":"Completed","status":"True","reason":"Failed","message":"The pod failed."}]"#
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::k8s::{Resource, ResourceParts};

    const NOW: Timestamp = Timestamp::since_epoch(Duration::from_secs(1_795_240_135));

    fn table(plural: &str) -> Arc<Table> {
        let parts =
            ResourceParts { plural: plural.to_owned(), version: "v1".to_owned(), ..Default::default() };
        Table::of(&Resource::new(parts), None, None).unwrap().into()
    }

    /// A whole table without its column definitions.
    #[track_caller]
    fn check(write: impl FnOnce(&mut Frames), expected: &str) {
        let mut out = Frames::new();
        write(&mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let columns = text.find(r#"[{"name""#).zip(text.find(r#","rows""#));
        let short = columns.map(|(start, end)| format!("{}…{}", &text[..start], &text[end..]));
        assert_eq!(short.unwrap_or(text), expected);
    }

    #[test]
    fn the_text_of_cells_is_escaped_as_the_api_server_escapes_it() {
        let mut out = Frames::new();
        let secret = Bytes::from("{\"metadata\":{\"name\":\"a\"},\"type\":\"a\u{2028}<b>\"}");
        TableEncoder::new(table("secrets"), IncludeObject::None, TableVersion::V1).single(
            &ResourceVersion::from(7),
            &secret,
            NOW,
            &mut out,
        );
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.contains(r#"["a","a\u2028\u003cb\u003e",0,"\u003cunknown\u003e"]"#), "{text}");
    }

    #[test]
    fn the_bytes_of_a_table() {
        let (table, version) = (table("configmaps"), ResourceVersion::from(7));
        let made = "2026-11-21T05:48:50Z";
        let map = format!(r#"{{"metadata":{{"name":"a","creationTimestamp":"{made}"}},"data":{{"k":"v"}}}}"#);
        let map = Bytes::from(map);
        let list = |include: IncludeObject, rows: usize, next| {
            let (table, version, map) = (&table, &version, map.clone());
            move |out: &mut Frames| {
                let mut encoder = TableEncoder::new(table.clone(), include, TableVersion::V1);
                encoder.head(Some(version), next, out);
                (0..rows).for_each(|_| encoder.row(&map, NOW, out));
                encoder.end(out);
            }
        };
        let head = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7""#;
        let row = |object: &str| format!(r#"{{"cells":["a",1,"5s"],"object":{object}}}"#);
        let partial = format!(
            r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"name":"a","creationTimestamp":"{made}"}}}}"#
        );
        let whole = std::str::from_utf8(&map).unwrap();
        check(list(IncludeObject::None, 0, None), &format!(r#"{head}}},"columnDefinitions":…,"rows":[]}}"#));
        check(
            list(IncludeObject::None, 2, Some(("t", Some(3)))),
            &format!(
                r#"{head},"continue":"t","remainingItemCount":3}},"columnDefinitions":…,"rows":[{},{}]}}"#,
                row("null"),
                row("null")
            ),
        );
        check(
            list(IncludeObject::Metadata, 1, Some(("t", None))),
            &format!(r#"{head},"continue":"t"}},"columnDefinitions":…,"rows":[{}]}}"#, row(&partial)),
        );
        check(
            list(IncludeObject::Object, 1, None),
            &format!(r#"{head}}},"columnDefinitions":…,"rows":[{}]}}"#, row(whole)),
        );
    }

    #[test]
    fn columns_are_sent_once_in_a_watch() {
        let (table, version) = (table("pods"), ResourceVersion::from(9));
        let mut encoder = TableEncoder::new(table, IncludeObject::None, TableVersion::V1);
        let pod = Bytes::from_static(br#"{"metadata":{"name":"p"},"status":{"phase":"Failed"}}"#);
        let head = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"columnDefinitions":"#;
        let row = r#"{"cells":["p","0/0","Failed","0","\u003cunknown\u003e","\u003cnone\u003e","\u003cnone\u003e","\u003cnone\u003e","\u003cnone\u003e"],"conditions":[{"type":"Completed","status":"True","reason":"Failed","message":"The pod failed."}],"object":null}"#;
        check(|out| encoder.single(&version, &pod, NOW, out), &format!(r#"{head}…,"rows":[{row}]}}"#));
        check(|out| encoder.single(&version, &pod, NOW, out), &format!(r#"{head}null,"rows":[{row}]}}"#));
        check(
            |out| encoder.bookmark(&version, true, out),
            &format!(
                r#"{head}null,"rows":[{{"cells":["",null,null,null,null,null,null,null,null],"object":{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"9","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}]}}"#
            ),
        );
    }

    #[test]
    fn the_older_version_is_named_in_the_table_and_its_rows() {
        let mut encoder =
            TableEncoder::new(table("configmaps"), IncludeObject::Metadata, TableVersion::V1Beta1);
        let version = ResourceVersion::from(7);
        let map = Bytes::from_static(br#"{"metadata":{"name":"a"}}"#);
        let head = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1","metadata":{"resourceVersion":"7"},"columnDefinitions":"#;
        let partial = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","metadata":"#;
        check(
            |out| encoder.single(&version, &map, NOW, out),
            &format!(
                r#"{head}…,"rows":[{{"cells":["a",0,"\u003cunknown\u003e"],"object":{partial}{{"name":"a"}}}}}}]}}"#
            ),
        );
        check(
            |out| encoder.bookmark(&version, false, out),
            &format!(
                r#"{head}null,"rows":[{{"cells":["",null,null],"object":{partial}{{"resourceVersion":"7"}}}}}}]}}"#
            ),
        );
    }

    #[test]
    fn other_values_of_include_object_are_refused() {
        assert_eq!(IncludeObject::parse(""), Some(IncludeObject::Metadata));
        assert_eq!(IncludeObject::parse("None"), Some(IncludeObject::None));
        assert_eq!(IncludeObject::parse("metadata"), None);
    }
}
