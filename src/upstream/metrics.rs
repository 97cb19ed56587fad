//! Metrics of requests to the API server.

use metrics::{Unit, counter, describe_counter};

const REQUESTS: &str = "informerd_upstream_requests_total";
const BYTES: &str = "informerd_upstream_bytes_total";
const RENEWALS: &str = "informerd_upstream_renewals_total";

/// Why a request is made: the label of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    List,
    Watch,
    Get,
    Create,
    Update,
    /// A client's request that is passed through.
    Forward,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Get => "get",
            Self::Create => "create",
            Self::Update => "update",
            Self::Forward => "forward",
        }
    }
}

/// Why address and credentials are read again: the label of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// 401.
    Unauthorized,
    /// A client certificate is about to expire.
    Expiring,
    /// A TLS handshake failed: a certificate is not trusted, or not accepted.
    Tls,
    /// The API server was not reached, several times in a row.
    Unreached,
}

impl Renewal {
    const ALL: [Self; 4] = [Self::Unauthorized, Self::Expiring, Self::Tls, Self::Unreached];

    /// The label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Expiring => "expiring",
            Self::Tls => "tls",
            Self::Unreached => "unreached",
        }
    }
}

/// Describes this room's metrics. Call it once the recorder is installed.
pub fn describe() {
    describe_counter!(REQUESTS, Unit::Count, "Requests to the API server, by HTTP code of the answer");
    describe_counter!(BYTES, Unit::Bytes, "Bytes of bodies from the API server, after decompression");
    let renewals = "Times the API server's address and the credentials were read again, by reason";
    describe_counter!(RENEWALS, Unit::Count, renewals);
    for reason in Renewal::ALL {
        counter!(RENEWALS, "reason" => reason.as_str()).increment(0);
    }
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
        409 => "409",
        410 => "410",
        422 => "422",
        429 => "429",
        500 => "500",
        502 => "502",
        503 => "503",
        504 => "504",
        // Codes that a proxy invents must not add labels.
        _ => "other",
    };
    counter!(REQUESTS, "verb" => verb.as_str(), "code" => code).increment(1);
}

/// Counts a request without an answer.
pub(super) fn unanswered(verb: Verb) {
    counter!(REQUESTS, "verb" => verb.as_str(), "code" => "none").increment(1);
}

/// Counts a client that was built again.
pub(super) fn renewed(reason: Renewal) {
    counter!(RENEWALS, "reason" => reason.as_str()).increment(1);
}

/// The counter of bytes.
pub(super) fn bytes() -> metrics::Counter {
    counter!(BYTES)
}
