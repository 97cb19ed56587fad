//! Content negotiation: the form in which a client gets objects, whole or in part.
//!
//! Clients list accepted forms by preference. Forms that are not served are skipped. Source: apiserver
//! `endpoints/handlers/negotiation/negotiate.go`.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

use super::super::ApiError;
use crate::encode::TableVersion;

/// How objects are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Whole objects.
    Whole,
    /// As `PartialObjectMetadata`.
    Metadata,
    /// As a `Table`, for people to read.
    Table,
}

/// The kind of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    List,
    Object,
    Watch,
}

/// One entry of an `Accept` header.
#[derive(Debug)]
pub(super) struct Clause {
    range: String,
    weight: f32,
    parameters: Vec<(String, String)>,
}

const JSON: &str = "application/json";
const PARTIAL: &str = "PartialObjectMetadata";
const PARTIAL_LIST: &str = "PartialObjectMetadataList";

/// The client's preferred form among the served ones. Tables only if their columns are known.
pub(super) fn shape(
    headers: &HeaderMap,
    answer: Answer,
    list_kind: &str,
    has_table: bool,
) -> Result<Shape, ApiError> {
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Ok(Shape::Whole);
    }
    for clause in clauses.iter().filter(|clause| clause.is_json()) {
        match (clause.converted(), answer) {
            (None, _) => return Ok(Shape::Whole),
            (Some(PARTIAL), Answer::Object | Answer::Watch) | (Some(PARTIAL_LIST), Answer::List) => {
                return Ok(Shape::Metadata);
            }
            (Some(PARTIAL), Answer::List) => {
                let message =
                    format!("you requested {PARTIAL}, but the requested object is a list (*v1.{list_kind})");
                return Err(not_acceptable(message));
            }
            (Some(PARTIAL_LIST), Answer::Object | Answer::Watch) => {
                let message = format!("you requested {PARTIAL_LIST}, but the requested object is not a list");
                return Err(not_acceptable(message));
            }
            (Some("Table"), _) if has_table => return Ok(Shape::Table),
            // The client accepts the form that it names next.
            (Some(_), _) => {}
        }
    }
    Err(ApiError::not_acceptable(JSON).uncached())
}

fn not_acceptable(message: String) -> ApiError {
    ApiError::new(axum::http::StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
}

/// The version of a table for a client: the one that it names first.
pub(super) fn table_version(headers: &HeaderMap) -> TableVersion {
    let clauses = clauses(headers);
    let first = clauses.iter().find(|clause| clause.is_json() && clause.converted() == Some("Table"));
    match first.and_then(|clause| clause.get("v")) {
        Some("v1beta1") => TableVersion::V1Beta1,
        Some(_) | None => TableVersion::V1,
    }
}

/// Whether a client prefers a table.
pub(super) fn wants_table(headers: &HeaderMap) -> bool {
    clauses(headers).first().is_some_and(|clause| clause.is_json() && clause.converted() == Some("Table"))
}

/// Whether a client accepts a table at all.
pub(super) fn takes_table(headers: &HeaderMap) -> bool {
    clauses(headers).iter().any(|clause| clause.is_json() && clause.converted() == Some("Table"))
}

/// The entries of `Accept`, the best first.
pub(super) fn clauses(headers: &HeaderMap) -> Vec<Clause> {
    let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let clause = |part: &str| {
        let mut pieces = part.split(';').map(str::trim);
        let range = pieces.next().filter(|range| !range.is_empty())?.to_ascii_lowercase();
        let (mut weight, mut parameters) = (1.0, Vec::new());
        for (name, value) in pieces.filter_map(|piece| piece.split_once('=')) {
            match name {
                "q" => weight = value.parse().unwrap_or(1.0),
                _ => parameters.push((name.to_owned(), value.to_owned())),
            }
        }
        Some(Clause { range, weight, parameters })
    };
    let mut clauses: Vec<Clause> = values.flat_map(|value| value.split(',')).filter_map(clause).collect();
    // A stable sort: of two with the same weight the first one wins, unless it is a wildcard.
    clauses.sort_by(|a, b| b.weight.total_cmp(&a.weight).then_with(|| a.wildness().cmp(&b.wildness())));
    clauses
}

impl Clause {
    fn wildness(&self) -> u8 {
        match &*self.range {
            "*/*" => 2,
            range if range.ends_with("/*") => 1,
            _ => 0,
        }
    }

    /// Whether it allows JSON, in any form.
    pub(super) fn is_json(&self) -> bool {
        self.weight > 0.0 && matches!(&*self.range, JSON | "application/*" | "*/*")
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// The kind to which objects are to be converted; empty for an unknown version.
    fn converted(&self) -> Option<&str> {
        let kind = self.get("as")?;
        let known = match self.get("v") {
            Some("v1") => true,
            Some("v1beta1") => kind == "Table",
            Some(_) | None => false,
        };
        Some(if known && self.get("g") == Some("meta.k8s.io") { kind } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, answer: Answer, expected: Result<Shape, &str>) {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        let found = shape(&headers, answer, "PodList", false).map_err(|error| error.status().message.clone());
        assert_eq!(found, expected.map_err(str::to_owned), "{accept}");
    }

    #[test]
    fn the_first_supported_media_type_is_chosen() {
        let whole = Ok(Shape::Whole);
        for accept in [
            "",
            "*/*",
            "application/json",
            "application/vnd.kubernetes.protobuf,application/json",
            "application/cbor,application/json;q=0.9",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            "application/json;stream=watch",
            "text/html, */*;q=0.1",
        ] {
            check(accept, Answer::List, whole);
            check(accept, Answer::Watch, whole);
        }
        let only = Err("only the following media types are accepted: application/json");
        for accept in
            ["application/vnd.kubernetes.protobuf", "application/cbor", "text/html", "application/json;q=0"]
        {
            check(accept, Answer::List, only);
        }
        check("application/json;as=Table;v=v1;g=meta.k8s.io", Answer::List, only);
    }

    #[test]
    fn tables_are_served_for_kinds_with_columns() {
        let mut headers = HeaderMap::new();
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        headers.insert(ACCEPT, accept.parse().unwrap());
        for answer in [Answer::List, Answer::Object, Answer::Watch] {
            for (has_table, expected) in [(true, Shape::Table), (false, Shape::Whole)] {
                assert_eq!(shape(&headers, answer, "Pod", has_table).ok(), Some(expected), "{answer:?}");
            }
        }
    }

    #[test]
    fn a_table_has_the_first_version_named_by_the_client() {
        let of = |version: &str| format!("application/json;as=Table;v={version};g=meta.k8s.io");
        for (accept, expected) in [
            (of("v1"), TableVersion::V1),
            (of("v1beta1"), TableVersion::V1Beta1),
            (format!("{},{}", of("v1"), of("v1beta1")), TableVersion::V1),
            (format!("{},{}", of("v2"), of("v1beta1")), TableVersion::V1Beta1),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(shape(&headers, Answer::List, "PodList", true).ok(), Some(Shape::Table), "{accept}");
            assert_eq!(table_version(&headers), expected, "{accept}");
        }
    }

    #[test]
    fn metadata_only_requests_must_match_object_or_list() {
        let both = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        check(both, Answer::List, Ok(Shape::Metadata));
        let one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        check(one, Answer::Watch, Ok(Shape::Metadata));
        check(one, Answer::Object, Ok(Shape::Metadata));
        check(one, Answer::List, {
            Err("you requested PartialObjectMetadata, but the requested object is a list (*v1.PodList)")
        });
        let old = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1,application/json";
        check(old, Answer::Object, Ok(Shape::Whole));
    }
}
