//! Kubernetes `Status` bodies with the exact texts of a real API server.

use super::object::go_escape;

/// An error answer: the HTTP status and the fields of its `Status` body.
///
/// Source: the texts are those recorded from kube-apiserver 1.20 and the 1.36 API server libraries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// HTTP status code, also the body's `code`.
    pub code: u16,
    /// CamelCase word that clients switch on (`NotFound`, `Expired`, …); empty where the real server sends none.
    pub reason: &'static str,
    /// English text for people.
    pub message: String,
    /// The body's `details` as JSON text, or `None` to leave it out.
    pub details: Option<String>,
    /// Seconds for the `Retry-After` header.
    pub retry_after: Option<u32>,
    /// Fresh token in `metadata.continue`, for expired lists.
    pub continue_token: Option<String>,
}

/// One entry of `details.causes`.
pub(super) struct Cause {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) field: &'static str,
}

impl Status {
    /// A plain error without details.
    #[must_use]
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, retry_after: None, continue_token: None }
    }

    /// 404 for a path or resource that is not served.
    pub(super) fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: Some("{}".into()), ..Self::new(404, "NotFound", message) }
    }

    /// 403 as RBAC words it; `resource` is `plural` or `plural.group`.
    pub(super) fn forbidden(verb: &str, resource: &str) -> Self {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let message = format!(
            "{resource} is forbidden: User \"system:anonymous\" cannot {verb} resource {} in API group {} at the \
             cluster scope",
            quoted(plural),
            quoted(group)
        );
        let details = format!(r#"{{"group":{},"kind":{}}}"#, quoted(group), quoted(plural));
        Self { details: Some(details), ..Self::new(403, "Forbidden", message) }
    }

    /// 405 for a method that the path does not support.
    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: Some("{}".into()), ..Self::new(405, "MethodNotAllowed", message) }
    }

    /// 404 for a missing object; `qualified` is `plural` or `plural.group`.
    pub(super) fn not_found(plural: &str, group: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(plural, group), quoted(name));
        Self { details: Some(object_details(plural, group, name)), ..Self::new(404, "NotFound", message) }
    }

    /// 409 for a name that is taken.
    pub(super) fn already_exists(plural: &str, group: &str, name: &str) -> Self {
        let message = format!("{} {} already exists", qualified(plural, group), quoted(name));
        Self {
            details: Some(object_details(plural, group, name)),
            ..Self::new(409, "AlreadyExists", message)
        }
    }

    /// 409 for a resourceVersion that is not the current one.
    pub(super) fn conflict(plural: &str, group: &str, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: the object has been modified; please apply your changes to \
             the latest version and try again",
            qualified(plural, group),
            quoted(name)
        );
        Self { details: Some(object_details(plural, group, name)), ..Self::new(409, "Conflict", message) }
    }

    /// 400 with a free text.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 422 as the validation of list options words it.
    pub(super) fn invalid_list_options(causes: &[Cause]) -> Self {
        Self::invalid("ListOptions", "meta.k8s.io", "", causes)
    }

    /// 422 as the validation of objects words it: one cause alone, several in brackets.
    pub(super) fn invalid(kind: &str, group: &str, name: &str, causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let text = if texts.len() == 1 { texts[0].clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} {} is invalid: {text}", qualified(kind, group), quoted(name));
        let causes: Vec<String> = causes
            .iter()
            .map(|c| {
                let (reason, message, field) = (quoted(c.reason), quoted(&c.message), quoted(c.field));
                format!(r#"{{"reason":{reason},"message":{message},"field":{field}}}"#)
            })
            .collect();
        let mut details = String::from("{");
        if !name.is_empty() {
            details.push_str(&format!(r#""name":{},"#, quoted(name)));
        }
        if !group.is_empty() {
            details.push_str(&format!(r#""group":{},"#, quoted(group)));
        }
        details.push_str(&format!(r#""kind":{},"causes":[{}]}}"#, quoted(kind), causes.join(",")));
        Self { details: Some(details), ..Self::new(422, "Invalid", message) }
    }

    /// 410 for a list at a revision that was compacted.
    pub(super) fn list_too_old() -> Self {
        Self::new(410, "Expired", "The resourceVersion for the provided list is too old.")
    }

    /// 410 for a continue token whose revision was compacted. The token `fresh` continues at the newest revision,
    /// inconsistently (U5).
    pub(super) fn continue_expired(fresh: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can \
                       start a new list without the continue parameter, or use the continue token in this response \
                       to retrieve the remainder of the results. Continuing with the provided token results in an \
                       inconsistent list - objects that were created, modified, or deleted between the time the \
                       first chunk was returned and now may show up in the list.";
        Self { continue_token: Some(fresh), ..Self::new(410, "Expired", message) }
    }

    /// 410 for a watch from before the window.
    pub(super) fn watch_too_old(asked: u64, floor: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({floor})"))
    }

    /// 504 for a revision the server has not reached.
    pub(super) fn too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let details = r#"{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1}"#;
        Self { details: Some(details.into()), retry_after: Some(1), ..Self::new(504, "Timeout", message) }
    }

    /// The body, compact, without a final newline; fields in the real server's order.
    #[must_use]
    pub fn to_json(&self) -> String {
        let metadata = match &self.continue_token {
            Some(token) => format!(r#"{{"continue":{}}}"#, quoted(token)),
            None => "{}".into(),
        };
        let mut text = format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{metadata},"status":"Failure","message":{},"#,
            quoted(&self.message)
        );
        if !self.reason.is_empty() {
            text.push_str(&format!(r#""reason":{},"#, quoted(self.reason)));
        }
        if let Some(details) = &self.details {
            text.push_str(&format!(r#""details":{details},"#));
        }
        text.push_str(&format!(r#""code":{}}}"#, self.code));
        text
    }
}

/// `text` as a JSON string, escaped as Go's encoder does.
pub(super) fn quoted(text: &str) -> String {
    go_escape(serde_json::Value::from(text).to_string())
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.into() } else { format!("{name}.{group}") }
}

fn object_details(plural: &str, group: &str, name: &str) -> String {
    let group = if group.is_empty() { String::new() } else { format!(r#""group":{},"#, quoted(group)) };
    format!(r#"{{"name":{},{group}"kind":{}}}"#, quoted(name), quoted(plural))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_equal_those_of_the_real_server() {
        assert_eq!(
            Status::not_found("widgets", "demo.example.com", "none").to_json(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"widgets.demo.example.com \"none\" not found","reason":"NotFound","details":{"name":"none","group":"demo.example.com","kind":"widgets"},"code":404}"#
        );
        assert_eq!(
            Status::too_large(99_999_999, 14).to_json(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: Too large resource version: 99999999, current: 14","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}"#
        );
        let cause = Cause {
            reason: "FieldValueForbidden",
            message: "Forbidden: sendInitialEvents is forbidden for list".into(),
            field: "sendInitialEvents",
        };
        assert_eq!(
            Status::invalid_list_options(&[cause]).to_json(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list","reason":"Invalid","details":{"group":"meta.k8s.io","kind":"ListOptions","causes":[{"reason":"FieldValueForbidden","message":"Forbidden: sendInitialEvents is forbidden for list","field":"sendInitialEvents"}]},"code":422}"#
        );
    }
}
