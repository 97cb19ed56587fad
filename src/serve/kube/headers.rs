//! Headers of the answers from the caches.

use axum::http::{HeaderMap, HeaderValue, header};

/// The headers of every answer.
pub(super) fn answer_headers(age_seconds: u64) -> HeaderMap {
    HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private")),
        (header::AGE, age_seconds.into()),
    ])
}
