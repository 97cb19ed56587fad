//! Parameters of lists and watches, and the refusals of a real server for bad ones.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::fault::StreamingLists;
use super::status::{Cause, Status, quoted};

/// The query of a request, decoded, in order.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let decode =
            |part: &str| percent_decode_str(&part.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(k, v)| (decode(k), decode(v)))
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    /// The value; empty if the parameter is missing.
    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Reads a boolean as Go's conversion does: missing, `0` and `false` are false; any other value is true.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F"))
    }

    fn integer(&self, name: &str) -> Result<i64, Status> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(0);
        }
        text.parse().map_err(|_| {
            Status::bad_request(format!("strconv.ParseInt: parsing {}: invalid syntax", quoted(text)))
        })
    }
}

/// The meaning of a `resourceVersion` parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Unset: most recent.
    Recent,
    /// `0`: any.
    Any,
    /// This revision, or one that is not older.
    Revision(u64),
}

/// The parameters of a list.
#[derive(Debug)]
pub(super) struct ListParams {
    pub(super) asked: Asked,
    /// Whether exactly that revision is wanted, not one that is not older.
    pub(super) exact: bool,
    /// 0 means all.
    pub(super) limit: usize,
    pub(super) token: Option<Token>,
}

/// The parameters of a watch.
#[derive(Debug)]
pub(super) struct WatchParams {
    pub(super) asked: Asked,
    pub(super) bookmarks: bool,
    pub(super) send_initial_events: Option<bool>,
    /// Seconds; 0 leaves it to the server, a negative number ends the watch at once.
    pub(super) timeout_seconds: i64,
}

/// A continue token: where the next page starts, and at which revision (-1: the newest).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) revision: i64,
    /// The key after which the page begins.
    pub(super) after: String,
}

impl Token {
    pub(super) fn encode(&self) -> String {
        let start = Value::from(format!("{}\0", self.after));
        let json = format!(r#"{{"v":"meta.k8s.io/v1","rv":{},"start":{start}}}"#, self.revision);
        URL_SAFE_NO_PAD.encode(json)
    }

    fn decode(text: &str) -> Result<Self, Status> {
        let bad = |why: &str| {
            Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes =
            URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| bad("illegal base64 data"))?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|_| bad("invalid character looking for beginning of value"))?;
        match (value["rv"].as_i64(), value["start"].as_str()) {
            (Some(revision), Some(start)) if revision != 0 => {
                Ok(Self { revision, after: start.trim_end_matches('\0').to_owned() })
            }
            _ => Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")),
        }
    }
}

fn forbidden(field: &'static str, text: &str) -> Cause {
    Cause { reason: "FieldValueForbidden", message: format!("Forbidden: {text}"), field }
}

fn unsupported(value: &str, supported: &str) -> Cause {
    let message = format!("Unsupported value: {}: supported values: {supported}", quoted(value));
    Cause { reason: "FieldValueNotSupported", message, field: "resourceVersionMatch" }
}

fn refuse(causes: &[Cause]) -> Result<(), Status> {
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid_list_options(causes)) }
}

/// Reads a resourceVersion; the error is the text after `invalid resource version: `.
pub(super) fn parse_revision(text: &str) -> Result<Asked, String> {
    match text {
        "" => Ok(Asked::Recent),
        "0" => Ok(Asked::Any),
        _ => text.parse().map(Asked::Revision).map_err(|_| {
            let text = quoted(text);
            format!(
                "resourceVersion: Invalid value: {text}: strconv.ParseUint: parsing {text}: invalid syntax"
            )
        }),
    }
}

/// The resourceVersion of a list or get; 400 if it is invalid.
pub(super) fn list_revision(text: &str) -> Result<Asked, Status> {
    parse_revision(text).map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))
}

impl ListParams {
    /// Source: `ValidateListOptions` of apimachinery, and the storage layer's checks behind it.
    pub(super) fn parse(query: &Query) -> Result<Self, Status> {
        let (revision, version_match) = (query.text("resourceVersion"), query.text("resourceVersionMatch"));
        let (limit, token) = (query.integer("limit")?, query.text("continue"));
        let field = "resourceVersionMatch";
        let mut causes = Vec::new();
        if query.get("sendInitialEvents").is_some() {
            causes.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        if !version_match.is_empty() {
            if revision.is_empty() {
                causes.push(forbidden(
                    field,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !token.is_empty() {
                causes.push(forbidden(field, "resourceVersionMatch is forbidden when continue is provided"));
            }
            if !matches!(version_match, "Exact" | "NotOlderThan") {
                causes.push(unsupported(version_match, r#""Exact", "NotOlderThan", """#));
            }
            if version_match == "Exact" && revision == "0" {
                causes.push(forbidden(
                    field,
                    r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#,
                ));
            }
        }
        refuse(&causes)?;
        let asked = list_revision(revision)?;
        let token = if token.is_empty() { None } else { Some(Token::decode(token)?) };
        if token.is_some() && matches!(asked, Asked::Revision(_)) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let mut limit = usize::try_from(limit).unwrap_or(0);
        // The watch cache ignores the limit for lists of any version.
        if asked == Asked::Any && token.is_none() {
            limit = 0;
        }
        let legacy_exact = version_match.is_empty() && limit > 0;
        Ok(Self { exact: version_match == "Exact" || legacy_exact, asked, limit, token })
    }
}

impl WatchParams {
    /// Source: `ValidateListOptions` of apimachinery for watches, as the server's version has it.
    pub(super) fn parse(query: &Query, streaming: StreamingLists) -> Result<Self, Status> {
        let timeout_seconds = query.integer("timeoutSeconds")?;
        let version_match = query.text("resourceVersionMatch");
        let mut send_initial_events = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
        let causes = match streaming {
            StreamingLists::Ignored => Vec::new(),
            StreamingLists::Unknown => {
                causes_without_the_parameter(version_match, query.text("resourceVersion"))
            }
            StreamingLists::On | StreamingLists::NoProgress => causes_of_watch(query, send_initial_events),
            StreamingLists::Disabled => {
                let mut causes = causes_of_watch(query, send_initial_events);
                if send_initial_events.is_some() {
                    let text = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                    causes.push(forbidden("sendInitialEvents", text));
                }
                causes
            }
        };
        refuse(&causes)?;
        if matches!(streaming, StreamingLists::Ignored | StreamingLists::Unknown) {
            send_initial_events = None;
        }
        // Real servers answer 500 without a reason here.
        let asked = parse_revision(query.text("resourceVersion")).map_err(|why| Status::new(500, "", why))?;
        Ok(Self { asked, bookmarks: query.flag("allowWatchBookmarks"), send_initial_events, timeout_seconds })
    }
}

fn causes_without_the_parameter(version_match: &str, revision: &str) -> Vec<Cause> {
    let field = "resourceVersionMatch";
    let mut causes = Vec::new();
    if !version_match.is_empty() {
        causes.push(forbidden(field, "resourceVersionMatch is forbidden for watch"));
        if revision.is_empty() {
            causes.push(forbidden(
                field,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
    }
    causes
}

fn causes_of_watch(query: &Query, send_initial_events: Option<bool>) -> Vec<Cause> {
    let field = "resourceVersionMatch";
    let version_match = query.text(field);
    let mut causes = Vec::new();
    if send_initial_events.is_some() && version_match != "NotOlderThan" {
        causes.push(forbidden(
            field,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if !version_match.is_empty() {
        if send_initial_events.is_none() {
            let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            causes.push(forbidden(field, text));
        }
        if version_match != "NotOlderThan" {
            causes.push(unsupported(version_match, r#""NotOlderThan""#));
        }
        if !query.text("continue").is_empty() {
            causes.push(forbidden(field, "resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(query: &str) -> (u16, String) {
        ListParams::parse(&Query::parse(query)).map_or_else(|s| (s.code, s.message), |_| (200, String::new()))
    }

    #[test]
    fn invalid_lists_get_the_messages_of_the_real_server() {
        let token = Token { revision: 14, after: "default/cm1".into() }.encode();
        assert_eq!(list("&limit=1&unknown=1&resourceVersion="), (200, String::new()));
        assert_eq!(list(&format!("continue={token}&resourceVersion=0")).0, 200);
        assert_eq!(list(&format!("continue={token}&resourceVersion=5")).0, 400);
        assert_eq!(list(&format!("continue={token}&resourceVersion=5&resourceVersionMatch=Exact")).0, 422);
        assert_eq!(list("continue=garbage").0, 400);
        assert_eq!(list("resourceVersionMatch=Foo&resourceVersion=1").0, 422);
        assert_eq!(list("resourceVersionMatch=Exact&resourceVersion=0").0, 422);
        assert_eq!(
            list("resourceVersion=-1").1,
            r#"invalid resource version: resourceVersion: Invalid value: "-1": strconv.ParseUint: parsing "-1": invalid syntax"#
        );
        assert_eq!(list("limit=abc").1, r#"strconv.ParseInt: parsing "abc": invalid syntax"#);
    }

    #[test]
    fn a_number_with_a_limit_means_exactly_that_revision() {
        let parse = |query: &str| ListParams::parse(&Query::parse(query)).unwrap();
        assert!(parse("resourceVersion=5&limit=1").exact);
        assert!(!parse("resourceVersion=5").exact);
        assert!(!parse("resourceVersion=5&limit=1&resourceVersionMatch=NotOlderThan").exact);
        assert_eq!(parse("resourceVersion=0&limit=1").limit, 0);
    }
}
