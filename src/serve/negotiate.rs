//! Content negotiation of `/v1`.

use axum::extract::Request;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};
use axum::http::{HeaderMap, HeaderValue};

use crate::encode::Coding;

/// The offered media type that an `Accept` header prefers; `None` if it accepts none of them.
///
/// Shape: `offered` is in our order of preference, which decides between equal weights. Without a header everything is
/// accepted (RFC 9110 section 12.5.1).
pub(super) fn accepted<T: Copy>(headers: &HeaderMap, offered: &[(&str, T)]) -> Option<T> {
    let ranges = ranges(headers, &ACCEPT);
    if ranges.is_empty() {
        return offered.first().map(|(_, value)| *value);
    }
    let mut best: Option<(f32, T)> = None;
    for (media_type, value) in offered {
        // The most specific range that covers a type decides its weight.
        let weight = ranges
            .iter()
            .filter_map(|(range, weight)| specificity(range, media_type).map(|specific| (specific, *weight)))
            .max_by_key(|(specific, _)| *specific)
            .map_or(0.0, |(_, weight)| weight);
        if weight > best.map_or(0.0, |(weight, _)| weight) {
            best = Some((weight, *value));
        }
    }
    best.map(|(_, value)| value)
}

/// Whether a client accepts a compressed answer.
pub(super) fn compresses(headers: &HeaderMap) -> bool {
    let codings = ranges(headers, &ACCEPT_ENCODING);
    codings.iter().any(|(coding, weight)| *weight > 0.0 && matches!(&**coding, "gzip" | "br" | "zstd" | "*"))
}

/// The coding of a stream. gzip unless zstd is wanted more: each batch is a zstd frame of its own (RFC 8878 section 3 has
/// clients expect that), which fewer clients were tried with.
pub(super) fn coding(headers: &HeaderMap) -> Coding {
    let codings = ranges(headers, &ACCEPT_ENCODING);
    let named = |name: &str| codings.iter().find(|(coding, _)| coding == name).map(|(_, weight)| *weight);
    let rest = named("*").unwrap_or(0.0);
    let gzip = named("gzip").or(named("x-gzip")).unwrap_or(rest);
    let zstd = named("zstd").unwrap_or(0.0);
    // A client that names no weight for identity takes it, and wants any coding that it names more.
    let identity = named("identity").unwrap_or(0.0);
    if zstd > gzip && zstd >= identity {
        Coding::Zstd
    } else if gzip > 0.0 && gzip >= identity {
        Coding::Gzip
    } else {
        Coding::Identity
    }
}

/// Removes from `Accept-Encoding` what refuses an answer as it is: `identity;q=0`, `*;q=0`. Such an answer is sent where informerd has no
/// coding that the client takes; tower-http would give it the code 406.
pub(super) async fn without_refusals(mut request: Request) -> Request {
    let refuses = |(coding, weight): &(String, f32)| *weight <= 0.0 && matches!(&**coding, "identity" | "*");
    if ranges(request.headers(), &ACCEPT_ENCODING).iter().any(refuses) {
        let values =
            request.headers().get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
        let kept = values
            .flat_map(|value| value.split(','))
            .filter(|part| !range(part).is_some_and(|one| refuses(&one)));
        let kept = kept.map(str::trim).collect::<Vec<_>>().join(",");
        request.headers_mut().remove(ACCEPT_ENCODING);
        if let Some(value) = HeaderValue::from_str(&kept).ok().filter(|value| !value.is_empty()) {
            request.headers_mut().insert(ACCEPT_ENCODING, value);
        }
    }
    request
}

fn ranges(headers: &HeaderMap, name: &HeaderName) -> Vec<(String, f32)> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(range).collect()
}

/// An entry of a header such as `Accept`, with its weight.
fn range(part: &str) -> Option<(String, f32)> {
    let mut pieces = part.split(';').map(str::trim);
    let range = pieces.next().filter(|range| !range.is_empty())?.to_ascii_lowercase();
    let weight = pieces.find_map(|piece| piece.strip_prefix(['q', 'Q'])?.strip_prefix('=')?.parse().ok());
    let weight = weight.unwrap_or(1.0);
    Some((range, weight))
}

fn specificity(range: &str, media_type: &str) -> Option<u8> {
    let kind = media_type.split('/').next().unwrap_or("");
    match range.split_once('/') {
        _ if range == media_type => Some(2),
        Some((range_kind, "*")) if range_kind == kind => Some(1),
        Some(("*", "*")) => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, expected: Option<u8>) {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        let offered = [("text/event-stream", 1), ("application/x-ndjson", 2), ("application/json", 2)];
        assert_eq!(accepted(&headers, &offered), expected, "{accept}");
    }

    #[test]
    fn the_offered_type_with_the_highest_weight_is_chosen() {
        check("", Some(1));
        check("*/*", Some(1));
        check("text/event-stream", Some(1));
        check("application/json", Some(2));
        check("application/*", Some(2));
        check("text/html,application/xhtml+xml,*/*;q=0.8", Some(1));
        check("text/event-stream;q=0.5, application/x-ndjson", Some(2));
        check("text/event-stream;q=0, */*", Some(2));
        check("application/vnd.kubernetes.protobuf", None);
        check("text/html", None);
    }

    #[test]
    fn the_coding_of_a_stream_follows_accept_encoding() {
        let of = |accept: &str| {
            let header = (axum::http::header::ACCEPT_ENCODING, accept.parse().unwrap());
            coding(&[header].into_iter().collect())
        };
        // The values that browsers, curl --compressed, Go and Python's requests send.
        assert_eq!(of("gzip, deflate, br, zstd"), Coding::Gzip);
        assert_eq!(of("deflate, gzip, br, zstd"), Coding::Gzip);
        assert_eq!(of("gzip"), Coding::Gzip);
        assert_eq!(of("gzip, deflate"), Coding::Gzip);
        assert_eq!(of("zstd"), Coding::Zstd);
        assert_eq!(of("zstd, gzip;q=0.5"), Coding::Zstd);
        assert_eq!(of("*"), Coding::Gzip);
        assert_eq!(of("*;q=0"), Coding::Identity);
        assert_eq!(of("gzip;q=0, identity"), Coding::Identity);
        assert_eq!(of("identity, gzip;q=0.5"), Coding::Identity);
        assert_eq!(of("br"), Coding::Identity);
        assert_eq!(coding(&HeaderMap::new()), Coding::Identity);
    }

    #[tokio::test]
    async fn an_answer_as_it_is_cannot_be_refused() {
        for (given, kept) in [
            ("identity;q=0", None),
            ("*;Q=0", None),
            ("gzip, *;q=0", Some("gzip")),
            ("deflate, identity;q=0.0, br;q=0.5", Some("deflate,br;q=0.5")),
            ("gzip;q=0, identity", Some("gzip;q=0, identity")),
        ] {
            let request = Request::builder().header(ACCEPT_ENCODING, given).body(axum::body::Body::empty());
            let request = without_refusals(request.unwrap()).await;
            let found = request.headers().get(ACCEPT_ENCODING).map(|value| value.to_str().unwrap());
            assert_eq!(found, kept, "{given}");
        }
    }
}
