//! Errors of requests to the API server.

use std::error::Error;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;

use crate::k8s::Status;

/// A failed request or a broken body.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// There is no usable address or credential.
    #[error("no usable configuration for the API server")]
    Config(#[source] Box<dyn Error + Send + Sync>),
    /// No answer, or a body that broke off: connection, TLS, proxy, credential plugin.
    #[error("the API server was not reached")]
    Transport(#[source] Box<dyn Error + Send + Sync>),
    /// The API server answered with an error.
    #[error("the API server answered {} {}", .0.code, .0.reason)]
    Refused(Box<Refusal>),
    /// A body longer than its limit.
    #[error("the response exceeds {limit} bytes")]
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// No byte came for too long.
    #[error("the API server sent nothing for {0:?}")]
    Idle(Duration),
    /// The answer is not what the API promises.
    #[error("the answer cannot be understood")]
    Garbage(#[source] serde_json::Error),
}

/// An error answer: its HTTP code, and the fields of its `Status` if the body was one (U26).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status code.
    pub code: u16,
    /// The reason in one word; derived from the code if the body was no `Status`.
    pub reason: String,
    /// The server's sentence.
    pub message: String,
    /// The resource that it names: `pods`, `deployments.apps`; may be empty.
    pub resource: String,
    /// How long the server asks to wait: the header, else `details.retryAfterSeconds`.
    pub retry_after: Option<Duration>,
    /// The reason of the first cause: `ResourceVersionTooLarge` if the server is behind the requested version (U9).
    pub cause: String,
}

/// The kind of a failure, from a closed set, for metrics and decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Connection, TLS, proxy, credential plugin, a body that broke off.
    Transport,
    /// No byte for too long.
    Idle,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404: the resource is not there (a custom resource whose definition is gone).
    NotFound,
    /// 410: the version or the continue token is too old.
    Expired,
    /// 429.
    Throttled,
    /// 503, or 502 and 504 of a gateway that does not reach the API server.
    Unavailable,
    /// 504 from the API server itself: it has not reached the requested version (U9).
    Behind,
    /// Any other 5xx.
    Internal,
    /// Any other answer.
    Refused,
    /// A body longer than its limit.
    TooLarge,
    /// A body that cannot be understood.
    Garbage,
    /// No usable configuration.
    Config,
}

// === impl UpstreamError ===

impl UpstreamError {
    /// The error of a request without an answer, with the server's address.
    pub(super) fn unreached(server: &str, source: kube::Error) -> Self {
        Self::Transport(Box::new(Unreached { server: server.into(), source }))
    }

    /// Its kind.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Config(_) => FailureKind::Config,
            Self::Transport(_) => FailureKind::Transport,
            Self::Refused(refusal) => refusal.kind(),
            Self::BodyTooLarge { .. } => FailureKind::TooLarge,
            Self::Idle(_) => FailureKind::Idle,
            Self::Garbage(_) => FailureKind::Garbage,
        }
    }

    /// How long the server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after,
            Self::Config(_)
            | Self::Transport(_)
            | Self::BodyTooLarge { .. }
            | Self::Idle(_)
            | Self::Garbage(_) => None,
        }
    }

    /// Whether the TLS handshake failed: one side does not accept the certificate of the other.
    pub(super) fn is_tls(&self) -> bool {
        match self {
            Self::Transport(source) => {
                std::iter::successors(Some(source.as_ref() as &(dyn Error + 'static)), |error| cause(*error))
                    .any(|error| error.is::<rustls::Error>())
            }
            Self::Config(_)
            | Self::Refused(_)
            | Self::BodyTooLarge { .. }
            | Self::Idle(_)
            | Self::Garbage(_) => false,
        }
    }

    /// The sentence for people: what went wrong and, if known, what to do.
    pub fn sentence(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.sentence(),
            Self::Config(source) => chain(source.as_ref()),
            Self::Transport(source) if self.is_tls() => {
                format!(
                    "{self}{}: {}: compare the certificates of the API server and of the client with the authority that \
                     each is checked against",
                    at(source.as_ref()),
                    innermost(source.as_ref())
                )
            }
            Self::Transport(source) => {
                format!("{self}{}: {}", at(source.as_ref()), innermost(source.as_ref()))
            }
            Self::Garbage(source) => format!("{self}: {source}"),
            Self::BodyTooLarge { .. } | Self::Idle(_) => self.to_string(),
        }
    }
}

impl From<kube::Error> for UpstreamError {
    fn from(error: kube::Error) -> Self {
        Self::Transport(Box::new(error))
    }
}

/// The request that had no answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {server}")]
struct Unreached {
    server: Box<str>,
    #[source]
    source: kube::Error,
}

/// The server that did not answer, if known.
fn at(error: &(dyn Error + Send + Sync + 'static)) -> String {
    match error.downcast_ref::<Unreached>() {
        Some(Unreached { server, .. }) if !server.is_empty() => format!(" at {server}"),
        _ => String::new(),
    }
}

/// The innermost cause, which says what happened: `connection refused`, `certificate has expired`.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// The cause of an error. An I/O error's `source` skips the error that it wraps.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| error.source())
}

/// All causes, without those whose text the error repeats, as most of kube's errors do.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = source.source();
    }
    text
}

// === impl Refusal ===

impl Refusal {
    /// From an error answer. The body may be a `Status`, plain text, or a proxy's page.
    pub(super) fn from_answer(code: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        let mut status = serde_json::from_slice::<Status>(body).unwrap_or_default();
        if status.kind != "Status" {
            let text = String::from_utf8_lossy(body);
            let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
            // A line of HTML, or of a list of paths, says nothing to people.
            let readable = !line.starts_with(['<', '{', '[']);
            status = Status::failure(code, "", if readable { line } else { "" });
        }
        let mut refusal = Self { code, ..Self::from(status) };
        let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        refusal.retry_after = header.map(Duration::from_secs).or(refusal.retry_after);
        refusal
    }

    /// The kind of failure: decided by the code first, as the body may be a proxy's (U26).
    pub fn kind(&self) -> FailureKind {
        match (self.code, self.reason.as_str()) {
            (401, _) => FailureKind::Unauthorized,
            (403, _) => FailureKind::Forbidden,
            (404, _) => FailureKind::NotFound,
            (410, _) | (400..=499, "Expired" | "Gone") => FailureKind::Expired,
            (429, _) => FailureKind::Throttled,
            (502 | 503, _) => FailureKind::Unavailable,
            // The API server's own 504 has the reason `Timeout`; any other comes from a gateway that does not reach it.
            (504, reason) if reason != "Timeout" => FailureKind::Unavailable,
            // Servers before 1.17 say so only in the message.
            (504, _)
                if self.cause == "ResourceVersionTooLarge"
                    || self.message.contains("Too large resource version") =>
            {
                FailureKind::Behind
            }
            (500.., _) => FailureKind::Internal,
            _ => FailureKind::Refused,
        }
    }

    fn sentence(&self) -> String {
        let said = if self.message.is_empty() { self.reason.as_str() } else { self.message.as_str() };
        let resource = if self.resource.is_empty() { "it" } else { self.resource.as_str() };
        match self.kind() {
            FailureKind::Forbidden => {
                // The message begins "pods is forbidden: User …"; the resource is named in the hint already.
                let said = said.split_once("forbidden: ").map_or(said, |(_, user)| user);
                format!("forbidden: {said}: grant list and watch on {resource}")
            }
            FailureKind::Unauthorized => {
                format!("unauthorized: the API server does not accept the credentials ({said})")
            }
            FailureKind::NotFound => format!("not found: the API server does not serve {resource} ({said})"),
            FailureKind::Throttled => format!("too many requests: {said}"),
            FailureKind::Expired => format!("too old: {said}"),
            FailureKind::Transport
            | FailureKind::Idle
            | FailureKind::Unavailable
            | FailureKind::Behind
            | FailureKind::Internal
            | FailureKind::Refused
            | FailureKind::TooLarge
            | FailureKind::Garbage
            | FailureKind::Config => format!("the API server answered {}: {said}", self.code),
        }
    }
}

impl From<Status> for Refusal {
    /// From an ERROR event of a watch, or the body of an error answer.
    fn from(status: Status) -> Self {
        let known = || http::StatusCode::from_u16(status.code).ok().and_then(|code| code.canonical_reason());
        let reason = match status.reason.as_str() {
            "" => known().unwrap_or("Unknown").to_owned(),
            reason => reason.to_owned(),
        };
        let details = status.details.unwrap_or_default();
        let resource = match details.group.as_str() {
            "" => details.kind,
            group => format!("{}.{group}", details.kind),
        };
        Self {
            code: status.code,
            reason,
            message: status.message,
            resource,
            retry_after: details.retry_after_seconds.map(|seconds| Duration::from_secs(seconds.into())),
            cause: details.causes.into_iter().next().map(|cause| cause.reason).unwrap_or_default(),
        }
    }
}

// === impl FailureKind ===

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Transport,
        Self::Idle,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::Expired,
        Self::Throttled,
        Self::Unavailable,
        Self::Behind,
        Self::Internal,
        Self::Refused,
        Self::TooLarge,
        Self::Garbage,
        Self::Config,
    ];

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::Idle => "idle",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Expired => "expired",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Behind => "behind",
            Self::Internal => "internal",
            Self::Refused => "refused",
            Self::TooLarge => "too_large",
            Self::Garbage => "garbage",
            Self::Config => "config",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: u16, retry_after: &str, body: &str, expected: &str) -> Refusal {
        let mut headers = HeaderMap::new();
        if !retry_after.is_empty() {
            headers.insert(RETRY_AFTER, retry_after.parse().unwrap());
        }
        let refusal = Refusal::from_answer(code, &headers, body.as_bytes());
        assert_eq!(UpstreamError::Refused(Box::new(refusal.clone())).sentence(), expected);
        refusal
    }

    #[test]
    fn a_refusal_names_the_missing_permission() {
        check(
            403,
            "",
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"widgets.demo.example.com is forbidden: User \"nobody\" cannot list resource \"widgets\" in API group \"demo.example.com\" in the namespace \"default\"","reason":"Forbidden","details":{"group":"demo.example.com","kind":"widgets"},"code":403}"#,
            r#"forbidden: User "nobody" cannot list resource "widgets" in API group "demo.example.com" in the namespace "default": grant list and watch on widgets.demo.example.com"#,
        );
        check(
            401,
            "",
            r#"{"kind":"Status","message":"Unauthorized","reason":"Unauthorized","code":401}"#,
            "unauthorized: the API server does not accept the credentials (Unauthorized)",
        );
    }

    #[test]
    fn the_http_code_decides_and_a_proxys_page_is_not_shown() {
        let page = check(503, "7", "<html>…", "the API server answered 503: Service Unavailable");
        assert_eq!((page.kind(), page.retry_after), (FailureKind::Unavailable, Some(Duration::from_secs(7))));
        check(
            404,
            "",
            "404 page not found\n",
            "not found: the API server does not serve it (404 page not found)",
        );
        check(404, "", r#"{"paths":["/api"]}"#, "not found: the API server does not serve it (Not Found)");
        let mixed =
            check(410, "", r#"{"kind":"Status","code":500,"message":"old","reason":"x"}"#, "too old: old");
        assert_eq!((mixed.code, mixed.kind()), (410, FailureKind::Expired));
    }

    #[test]
    fn a_gateway_without_an_api_server_is_an_outage_and_a_server_that_is_behind_is_not() {
        let kind = |code, reason: &str| Refusal { code, reason: reason.into(), ..Refusal::default() }.kind();
        assert_eq!(kind(502, "Bad Gateway"), FailureKind::Unavailable);
        assert_eq!(kind(504, "Gateway Timeout"), FailureKind::Unavailable);
        assert_eq!(kind(504, "Timeout"), FailureKind::Internal);
        assert_eq!(kind(500, "InternalError"), FailureKind::Internal);
        assert_eq!(kind(422, "Invalid"), FailureKind::Refused);
    }

    #[test]
    fn retry_after_is_read_from_header_or_details() {
        let body = r#"{"kind":"Status","message":"Too large resource version: 9, current: 5","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"m"}],"retryAfterSeconds":1},"code":504}"#;
        let sentence = "the API server answered 504: Too large resource version: 9, current: 5";
        let refusal = check(504, "", body, sentence);
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
        assert_eq!(refusal.cause, "ResourceVersionTooLarge");
        assert_eq!(refusal.kind(), FailureKind::Behind);
        assert_eq!(check(504, "3", body, sentence).retry_after, Some(Duration::from_secs(3)));
        assert_eq!(
            check(504, "Fri, 31 Dec 1999 23:59:59 GMT", body, sentence).retry_after,
            Some(Duration::from_secs(1))
        );
    }
}
