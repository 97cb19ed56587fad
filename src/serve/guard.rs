//! Checks every request first: sizes, host and origin.
//!
//! Listeners have no authentication, and a browser can connect wherever its user can. A web page must not read through the
//! browser: neither by a name of its own that resolves to the listener's address (then the `Host` header has that name,
//! see [`host`]), nor by a cross-site request (then the `Origin` header has the page's origin).

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header, request::Parts};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;

use super::metrics::limit_hit;
use super::{ApiError, Config, host, websocket};

/// The listener that received a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Data,
    Admin,
}

/// Paths of probes on the admin listener. They are answered under every name, as a kubelet sends the `Host` of the pod's
/// manifest, and a refused probe would restart the pod.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// Checks a request. Returns the origin to allow by CORS, if any.
pub(super) fn check(parts: &Parts, config: &Config, door: Door) -> Result<Option<HeaderValue>, ApiError> {
    sizes(parts, config)?;
    whole_path(parts.uri.path())?;
    let host = if door == Door::Admin && PROBES.contains(&parts.uri.path()) {
        None
    } else {
        let host = host::requested(parts)?;
        host.map(|host| host::check(host, &config.allow_hosts)).transpose()?;
        host
    };
    if websocket::is_upgrade(&parts.headers) && parts.version < Version::HTTP_11 {
        // RFC 6455, section 4.2.1.
        return Err(ApiError::bad_request("a WebSocket begins with a request of HTTP/1.1 or later"));
    }
    let Some(origin) = parts.headers.get(header::ORIGIN) else {
        same_site(parts, door)?;
        return Ok(None);
    };
    let text = origin.to_str().unwrap_or("");
    let authority = text.split_once("://").map(|(_, authority)| authority);
    let own = host.zip(authority).is_some_and(|(host, authority)| authority.eq_ignore_ascii_case(host));
    if own {
        same_site(parts, door)?;
        return Ok(None);
    }
    if config.allow_origins.iter().any(|allowed| allowed == text || allowed == "*") {
        return Ok(Some(origin.clone()));
    }
    limit_hit("origin");
    let message =
        format!("Origin {text:?} may not read this server; allow it with --allow-origin {text:?} if it may");
    Err(ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message))
}

/// Refuses requests that a page of another origin causes without CORS: images, scripts, forms, links. The page cannot read the
/// answers, but a request that is passed through may have an effect. Only links to the dashboard are allowed; on the admin
/// listener, where no request has an effect, all links are.
///
/// Source: W3C Fetch Metadata Request Headers, section 2.3. Browsers send them to `https://` and to the loopback.
fn same_site(parts: &Parts, door: Door) -> Result<(), ApiError> {
    let field = |name: &str| parts.headers.get(name).map(HeaderValue::as_bytes);
    let linked = match door {
        Door::Data => parts.uri.path() == "/",
        Door::Admin => field("sec-fetch-mode") == Some(b"navigate"),
    };
    if linked || matches!(field("sec-fetch-site"), None | Some(b"same-origin" | b"none")) {
        return Ok(());
    }
    limit_hit("fetch_site");
    let message = "a page of another origin asked for this (Sec-Fetch-Site); it may with CORS, if its origin is allowed with \
                   --allow-origin";
    Err(ApiError::forbidden(message))
}

/// How many times a path is decoded in the search for `..`: once as by the API server, and once more as by the server
/// behind its proxy.
const PATH_DECODINGS: usize = 2;

/// Refuses a path with a segment `.` or `..`, also an encoded one: a request that is passed through could leave the path that
/// was checked here. No object has such a name.
fn whole_path(path: &str) -> Result<(), ApiError> {
    let mut path = Cow::Borrowed(path);
    for _ in 0..=PATH_DECODINGS {
        if path.split(['/', '\\']).any(|segment| matches!(segment, "." | "..")) {
            limit_hit("path");
            return Err(ApiError::bad_request(
                "the path has a segment \".\" or \"..\", which is not followed",
            ));
        }
        // Other bytes than UTF-8 must not end the search.
        path = Cow::Owned(percent_decode_str(&path).decode_utf8_lossy().into_owned());
    }
    Ok(())
}

/// Forbids browsers to guess the type of an answer, or to run it with this server's origin, as objects and logs may contain
/// anything. The dashboard has a policy of its own.
pub(super) fn seal(headers: &mut HeaderMap) {
    headers.entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static("sandbox"));
}

/// Largest number of header fields of a request, as on most servers.
const HEADER_FIELDS_MAX: usize = 100;

/// Largest number of header fields that are read. A request with more is ended without a `Status`. Each costs memory for every
/// request.
pub(super) const HEADER_FIELDS_READ_MAX: usize = 1000;

fn sizes(parts: &Parts, config: &Config) -> Result<(), ApiError> {
    let fields = parts.headers.len();
    if fields > HEADER_FIELDS_MAX {
        limit_hit("header_fields_max");
        let message = format!("{fields} header fields exceed the limit of {HEADER_FIELDS_MAX}");
        let code = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(ApiError::new(code, "RequestHeaderFieldsTooLarge", message));
    }
    let url = parts.uri.path_and_query().map_or(0, |both| both.as_str().len());
    if url > config.url_bytes_max {
        limit_hit("url_bytes_max");
        let message = format!("the URL of {url} bytes exceeds the limit of {}", config.url_bytes_max);
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, "RequestURITooLong", message));
    }
    let headers: usize =
        parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if headers > config.header_bytes_max {
        limit_hit("header_bytes_max");
        let message = format!("headers of {headers} bytes exceed the limit of {}", config.header_bytes_max);
        let code = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(ApiError::new(code, "RequestHeaderFieldsTooLarge", message));
    }
    Ok(())
}

/// The answer to a CORS preflight request.
pub(super) fn preflight(parts: &Parts) -> Option<Response> {
    let asked =
        parts.method == Method::OPTIONS && parts.headers.contains_key("access-control-request-method");
    asked.then(|| {
        let headers = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD")),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                HeaderValue::from_static("accept, if-none-match, last-event-id, prefer"),
            ),
            (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
        ];
        (StatusCode::NO_CONTENT, headers).into_response()
    })
}

/// Allows pages of an origin to read an answer.
pub(super) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    let exposed =
        HeaderValue::from_static("age, etag, informerd-resume, informerd-continue, preference-applied");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_segments_are_refused_however_they_are_encoded() {
        for path in [
            "/api/v1/../v1",
            "/..",
            "/.",
            "/a/./b",
            "/%2e%2e/x",
            "/a/%2E./b",
            "/a%2f..%2fb",
            "/a/..%2fb",
            "/%252e%252e/x",
            "/a/..\\b",
            "/a/%2e%2e%5cb",
            "/a/%ff/%2e%2e/b",
        ] {
            assert!(whole_path(path).is_err(), "{path}");
        }
        for path in
            ["/", "/api/v1/pods", "/a/...", "/a..b", "/a/%ff", "/a/.b", "/apis/example.com/v1", "/%2e%2eb"]
        {
            assert!(whole_path(path).is_ok(), "{path}");
        }
    }
}
