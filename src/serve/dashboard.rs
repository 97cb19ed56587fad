//! The dashboard, its files, and the description of the interface, all compiled into the binary.

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::ApiError;

const INDEX: &str = include_str!("../../static/index.html");
const SCRIPT: &str = include_str!("../../static/app.js");
const STYLE: &str = include_str!("../../static/style.css");
const ICON: &str = include_str!("../../static/favicon.svg");
const OPENAPI: &str = include_str!("../../static/openapi.json");

/// The dashboard's policy: it may load its own files and read from its own server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) async fn index(headers: HeaderMap) -> Response {
    answer(&headers, "text/html; charset=utf-8", INDEX)
}

pub(super) async fn openapi(headers: HeaderMap) -> Response {
    answer(&headers, "application/json", OPENAPI)
}

pub(super) async fn file(uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    let file = uri.path().trim_start_matches("/static/");
    match file {
        "app.js" => Ok(answer(&headers, "text/javascript; charset=utf-8", SCRIPT)),
        "style.css" => Ok(answer(&headers, "text/css; charset=utf-8", STYLE)),
        "favicon.svg" => Ok(answer(&headers, "image/svg+xml", ICON)),
        _ => Err(ApiError::not_found(format!("no such file {file:?}"))),
    }
}

fn answer(headers: &HeaderMap, content_type: &'static str, body: &'static str) -> Response {
    // The files change only with the binary.
    let tag = concat!("\"", env!("CARGO_PKG_VERSION"), "-");
    let tag = format!("{tag}{:x}\"", checksum(body));
    let common = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, HeaderValue::from_str(&tag).expect("a tag is visible ASCII")),
    ];
    let same = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    if same {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// FNV-1a hash, which differs between the files of two builds.
fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
