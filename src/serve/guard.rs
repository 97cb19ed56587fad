//! What a request must keep to before anything looks at it: sizes, and who may ask.
//!
//! A listener on the loopback has no password but that only local programs reach it. A web page in the user's
//! browser must not, neither by its own name resolving to 127.0.0.1 (DNS rebinding: the `Host` header then
//! is the page's) nor by a cross-site request (the `Origin` header then is the page's).

use std::net::IpAddr;

use axum::http::{HeaderValue, Method, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};

use super::metrics::limit_hit;
use super::{ApiError, Config};

/// Checks a request. Gives the origin that is to be allowed by CORS, where there is one.
pub(super) fn check(parts: &Parts, config: &Config, loopback: bool) -> Result<Option<HeaderValue>, ApiError> {
    sizes(parts, config)?;
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or(parts.uri.authority().map(|authority| authority.as_str())).unwrap_or("");
    if loopback
        && !host.is_empty()
        && !is_local(host)
        && !config.allow_hosts.iter().any(|name| name == name_of(host))
    {
        limit_hit("host");
        let message = format!(
            "Host {host:?} is not served on a loopback listener, so that a web page cannot reach it through \
             DNS; use localhost or 127.0.0.1, or allow the name with --allow-host"
        );
        return Err(ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message));
    }
    let Some(origin) = parts.headers.get(header::ORIGIN) else { return Ok(None) };
    let text = origin.to_str().unwrap_or("");
    let own = text.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    if own {
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

fn sizes(parts: &Parts, config: &Config) -> Result<(), ApiError> {
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

/// The answer to a browser's question whether it may ask from an allowed origin.
pub(super) fn preflight(parts: &Parts) -> Option<Response> {
    let asked =
        parts.method == Method::OPTIONS && parts.headers.contains_key("access-control-request-method");
    asked.then(|| {
        let headers = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD")),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                HeaderValue::from_static("accept, if-none-match, last-event-id"),
            ),
            (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
        ];
        (StatusCode::NO_CONTENT, headers).into_response()
    })
}

/// Lets a page of an allowed origin read an answer.
pub(super) fn allow(headers: &mut axum::http::HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    let exposed = HeaderValue::from_static("age, etag, informerd-resume, informerd-continue");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
}

/// The host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Names that DNS does not decide: localhost, and addresses, which no rebinding can point elsewhere.
fn is_local(host: &str) -> bool {
    let name = name_of(host).trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_dns_does_not_decide_are_local() {
        for host in [
            "localhost",
            "localhost:8090",
            "LOCALHOST.",
            "127.0.0.1:1",
            "10.0.0.1:80",
            "[::1]:80",
            "a.localhost",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "127.0.0.1.nip.io", "xlocalhost", "[::1", ""] {
            assert!(!is_local(host), "{host}");
        }
    }
}
