//! What a request must keep to before anything looks at it: sizes, and who may ask.
//!
//! Listeners have no authentication but who can connect, and a browser can connect wherever its user can. A web page
//! must not read through it, neither by its own name resolving to the listener's address (the `Host` header then is
//! the page's, see [`host`]) nor by a cross-site request (the `Origin` header then is the page's).

use axum::http::{HeaderValue, Method, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};

use super::metrics::limit_hit;
use super::{ApiError, Config, host};

/// Which listener a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Data,
    Admin,
}

/// Probes of the admin listener. They answer under every name, since a kubelet sends whatever `Host` the pod's manifest
/// says, and a refused probe would restart the pod.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// Checks a request. Gives the origin that is to be allowed by CORS, where there is one.
pub(super) fn check(parts: &Parts, config: &Config, door: Door) -> Result<Option<HeaderValue>, ApiError> {
    sizes(parts, config)?;
    let host = if door == Door::Admin && PROBES.contains(&parts.uri.path()) {
        None
    } else {
        let host = host::requested(parts)?;
        host.map(|host| host::check(host, &config.allow_hosts)).transpose()?;
        host
    };
    let Some(origin) = parts.headers.get(header::ORIGIN) else { return Ok(None) };
    let text = origin.to_str().unwrap_or("");
    let authority = text.split_once("://").map(|(_, authority)| authority);
    let own = host.zip(authority).is_some_and(|(host, authority)| authority.eq_ignore_ascii_case(host));
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
