//! Counters of the requests to the API server.

use metrics::{Unit, counter, describe_counter};

const REQUESTS: &str = "informerd_upstream_requests_total";
const BYTES: &str = "informerd_upstream_bytes_total";

/// Why a request is made: the label of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    List,
    Watch,
    Get,
    Create,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Get => "get",
            Self::Create => "create",
        }
    }
}

/// Describes this room's metrics. To be called once the recorder stands.
pub fn describe() {
    describe_counter!(REQUESTS, Unit::Count, "Requests to the API server, by HTTP code of the answer");
    describe_counter!(BYTES, Unit::Bytes, "Bytes of bodies from the API server, after decompression");
}

/// Counts an answered request.
pub(super) fn answered(verb: Verb, code: u16) {
    let code = match code {
        200 => "200",
        201 => "201",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        406 => "406",
        410 => "410",
        422 => "422",
        429 => "429",
        500 => "500",
        502 => "502",
        503 => "503",
        504 => "504",
        // The label set stays closed whatever a proxy makes up.
        _ => "other",
    };
    counter!(REQUESTS, "verb" => verb.as_str(), "code" => code).increment(1);
}

/// Counts a request without an answer.
pub(super) fn unanswered(verb: Verb) {
    counter!(REQUESTS, "verb" => verb.as_str(), "code" => "none").increment(1);
}

/// The counter of bytes.
pub(super) fn bytes() -> metrics::Counter {
    counter!(BYTES)
}
