//! The parameters of lists, watches and gets: their meaning in combination, and the API server's refusals.
//!
//! Source: apimachinery `apis/meta/v1/conversion.go`, `apis/meta/internalversion/validation/validation.go`.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::super::ApiError;
use super::error::invalid_options;
use super::labels;
use crate::k8s::{Cause, FieldSelector, LabelSelector, ResourceVersion};

/// A query, decoded as a form.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

/// The requested version of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestedVersion {
    /// Not given: the newest.
    Newest,
    /// `0`: any version.
    Any,
    /// This version, or a newer one.
    Version(ResourceVersion),
}

/// The parameters of a list or a watch.
#[derive(Debug)]
pub(super) struct ListOptions {
    pub(super) labels: LabelSelector,
    /// By field labels, which are not translated to paths yet.
    pub(super) fields: FieldSelector,
    pub(super) asked: RequestedVersion,
    pub(super) verb: ListOrWatch,
}

/// A list or a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ListOrWatch {
    /// The objects as they are now.
    List {
        /// Exactly the given version, not a newer one.
        exact: bool,
        limit: Option<usize>,
        token: Option<String>,
    },
    /// The changes of the objects.
    Watch {
        bookmarks: bool,
        /// Whether the current objects come first; `None` if the version decides.
        initial: Option<bool>,
        timeout: Option<Duration>,
    },
}

const MATCH: &str = "resourceVersionMatch";

impl Query {
    /// Reads a query. The first value of a name counts. Unknown names are ignored, as clients of other releases send some.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, ApiError> {
        let decode = |part: &str| {
            let spaced = part.replace('+', " ");
            let decoded = percent_decode_str(&spaced).decode_utf8().map(std::borrow::Cow::into_owned);
            decoded.map_err(|_| ApiError::invalid("query", part, "expected percent-encoded UTF-8"))
        };
        let mut pairs = Vec::new();
        // Some clients send an empty pair before the first parameter (`?&limit=5`).
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        Ok(Self(pairs))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// Whether the request is a watch.
    pub(super) fn is_watch(&self) -> bool {
        self.flag("watch").unwrap_or(false)
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Any value but `0` and `false` is true, even an empty one.
    fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    fn integer(&self, name: &str) -> Result<i64, ApiError> {
        let Some(text) = self.get(name) else { return Ok(0) };
        text.parse().map_err(|_| ApiError::bad_request(not_parsed("ParseInt", text)))
    }
}

/// Go's error text for an invalid number.
fn not_parsed(function: &str, text: &str) -> String {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let fits = number && (function == "ParseInt" || digits.len() == text.len());
    let why = if fits { "value out of range" } else { "invalid syntax" };
    let text: String = text.chars().take(200).collect();
    format!("strconv.{function}: parsing {text:?}: {why}")
}

impl RequestedVersion {
    fn parse(text: &str) -> Result<Self, ApiError> {
        if text.is_empty() {
            return Ok(Self::Newest);
        }
        // Go ignores leading zeros.
        let digits = text.trim_start_matches('0');
        let version = ResourceVersion::new(digits);
        match digits {
            "" => Ok(Self::Any),
            _ if version.is_number() => Ok(Self::Version(version)),
            _ => {
                let shown: String = text.chars().take(200).collect();
                let why = not_parsed("ParseUint", text);
                let why = format!("resourceVersion: Invalid value: {shown:?}: {why}");
                Err(ApiError::bad_request(format!("invalid resource version: {why}")))
            }
        }
    }
}

/// The requested version of a get.
pub(super) fn get_options(query: &Query) -> Result<RequestedVersion, ApiError> {
    RequestedVersion::parse(query.text("resourceVersion"))
}

impl ListOptions {
    /// Reads the parameters of a list or a watch.
    pub(super) fn parse(query: &Query) -> Result<Self, ApiError> {
        let timeout_seconds = query.integer("timeoutSeconds")?;
        let limit = query.integer("limit")?;
        let labels = query.text("labelSelector");
        let labels = LabelSelector::parse(labels)
            .map_err(|error| ApiError::bad_request(labels::refusal(labels, &error.to_string())))?;
        let fields = parse_fields(query.text("fieldSelector"))?;
        let watch = query.is_watch();
        let causes = if watch { causes_of_watch(query) } else { causes_of_list(query) };
        if !causes.is_empty() {
            return Err(invalid_options(causes));
        }
        let asked = RequestedVersion::parse(query.text("resourceVersion"))?;
        let token = Some(query.text("continue").to_owned()).filter(|token| !token.is_empty());
        if !watch && token.is_some() && matches!(asked, RequestedVersion::Version(_)) {
            let message = "specifying resource version is not allowed when using continue";
            return Err(ApiError::bad_request(message));
        }
        let verb = if watch {
            let bookmarks = query.flag("allowWatchBookmarks").unwrap_or(false);
            let timeout = match u64::try_from(timeout_seconds) {
                Ok(0) => None,
                Ok(seconds) => Some(Duration::from_secs(seconds)),
                // The API server ends a watch with a negative timeout at once.
                Err(_) => Some(Duration::ZERO),
            };
            ListOrWatch::Watch { bookmarks, initial: query.flag("sendInitialEvents"), timeout }
        } else {
            // As the API server's watch cache, a list of any version ignores the limit.
            let whole = asked == RequestedVersion::Any && token.is_none();
            let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0 && !whole);
            let named = matches!(asked, RequestedVersion::Version(_));
            let exact =
                query.text(MATCH) == "Exact" || (query.text(MATCH).is_empty() && limit.is_some() && named);
            ListOrWatch::List { exact, limit, token }
        };
        Ok(Self { labels, fields, asked, verb })
    }
}

fn forbidden(field: &str, text: &str) -> Cause {
    let message = format!("Forbidden: {text}");
    Cause { reason: "FieldValueForbidden".into(), message, field: field.into() }
}

fn unsupported(value: &str, supported: &str) -> Cause {
    let value: String = value.chars().take(200).collect();
    let message = format!("Unsupported value: {value:?}: supported values: {supported}");
    Cause { reason: "FieldValueNotSupported".into(), message, field: MATCH.into() }
}

fn causes_of_list(query: &Query) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (version, matching) = (query.text("resourceVersion"), query.text(MATCH));
    if !matching.is_empty() {
        if version.is_empty() {
            causes.push(forbidden(
                MATCH,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if !query.text("continue").is_empty() {
            causes.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            causes.push(unsupported(matching, r#""Exact", "NotOlderThan", """#));
        }
        if matching == "Exact" && version == "0" {
            let text = r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#;
            causes.push(forbidden(MATCH, text));
        }
    }
    if query.get("sendInitialEvents").is_some() {
        causes.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    causes
}

fn causes_of_watch(query: &Query) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (initial, matching) = (query.get("sendInitialEvents").is_some(), query.text(MATCH));
    if initial && matching != "NotOlderThan" {
        let text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        causes.push(forbidden(MATCH, text));
    }
    if !matching.is_empty() {
        if !initial {
            let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            causes.push(forbidden(MATCH, text));
        }
        if matching != "NotOlderThan" {
            causes.push(unsupported(matching, r#""NotOlderThan""#));
        }
    }
    // Without a version, API servers treat a watch as one with initial events, and add the match themselves.
    let starts = initial || matches!(query.text("resourceVersion"), "" | "0");
    if !query.text("continue").is_empty() && (starts || !matching.is_empty()) {
        causes.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
    }
    causes
}

/// Source: apimachinery `fields/selector.go`.
fn parse_fields(text: &str) -> Result<FieldSelector, ApiError> {
    FieldSelector::parse(text).map_err(|error| {
        let unclear = text.split(',').find(|term| !term.is_empty() && !term.contains('='));
        let message = match unclear {
            Some(term) => format!("invalid selector: '{text}'; can't understand '{term}'"),
            None => error.to_string(),
        };
        ApiError::bad_request(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<ListOptions, ApiError> {
        ListOptions::parse(&Query::parse(Some(query))?)
    }

    #[track_caller]
    fn refused(query: &str, code: u16, message: &str) {
        let error = parse(query).expect_err(query);
        assert_eq!((error.code().as_u16(), &*error.status().message), (code, message), "{query}");
    }

    #[track_caller]
    fn list(query: &str) -> (bool, Option<usize>) {
        match parse(query).unwrap().verb {
            ListOrWatch::List { exact, limit, .. } => (exact, limit),
            ListOrWatch::Watch { .. } => panic!("{query} is a watch"),
        }
    }

    #[test]
    fn exact_versions_are_recognized_as_by_the_api_server() {
        for (query, expected) in [
            ("", (false, None)),
            ("&limit=2&timeout=3s&unknown=1", (false, Some(2))),
            ("limit=-1", (false, None)),
            ("resourceVersion=0&limit=2", (false, None)),
            ("resourceVersion=5&limit=2", (true, Some(2))),
            ("resourceVersion=5", (false, None)),
            ("resourceVersion=5&limit=2&resourceVersionMatch=NotOlderThan", (false, Some(2))),
            ("resourceVersion=5&resourceVersionMatch=Exact", (true, None)),
        ] {
            assert_eq!(list(query), expected, "{query}");
        }
    }

    #[test]
    fn the_watch_parameter_is_parsed_as_by_go() {
        for (query, watch) in [
            ("watch=1", true),
            ("watch=True", true),
            ("&watch", true),
            ("watch=banana", true),
            ("watch=0", false),
            ("watch=False", false),
            ("", false),
        ] {
            assert_eq!(matches!(parse(query).unwrap().verb, ListOrWatch::Watch { .. }), watch, "{query}");
        }
        let ListOrWatch::Watch { bookmarks, initial, timeout } = parse(
            "watch=1&allowWatchBookmarks=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&timeoutSeconds=7",
        )
        .unwrap()
        .verb
        else {
            panic!("not a watch")
        };
        assert_eq!((bookmarks, initial, timeout), (true, Some(false), Some(Duration::from_secs(7))));
    }

    #[test]
    fn invalid_parameters_get_the_api_servers_messages() {
        refused("limit=abc", 400, r#"strconv.ParseInt: parsing "abc": invalid syntax"#);
        refused("limit=99999999999999999999", 400, {
            r#"strconv.ParseInt: parsing "99999999999999999999": value out of range"#
        });
        refused("resourceVersion=-1", 400, {
            r#"invalid resource version: resourceVersion: Invalid value: "-1": strconv.ParseUint: parsing "-1": invalid syntax"#
        });
        refused("fieldSelector=a", 400, "invalid selector: 'a'; can't understand 'a'");
        refused("continue=x&resourceVersion=5", 400, {
            "specifying resource version is not allowed when using continue"
        });
        for (query, why) in [
            (
                "resourceVersionMatch=Foo&resourceVersion=1",
                r#"resourceVersionMatch: Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", """#,
            ),
            (
                "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
                r#"[resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan, resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"]"#,
            ),
            (
                "sendInitialEvents=true",
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
            ),
        ] {
            refused(query, 422, &format!(r#"ListOptions.meta.k8s.io "" is invalid: {why}"#));
        }
        for query in ["watch=1&continue=x", "watch=1&continue=x&resourceVersion=0"] {
            refused(query, 422, {
                r#"ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"#
            });
        }
        assert!(parse("watch=1&continue=x&resourceVersion=5").is_ok());
        assert!(parse("watch=1&resourceVersionMatch=NotOlderThan").is_err());
        assert!(parse("resourceVersionMatch=Exact&resourceVersion=0").is_err());
        assert!(parse("resourceVersionMatch=Exact").is_err());
        assert!(parse("limit=%ff").is_err());
    }
}
