//! The handshake of a WebSocket (RFC 6455). After it, the connection is a stream like any other.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;

use super::ApiError;
use crate::encode::accept_key;

/// Bytes of a client's key (RFC 6455, section 4.1).
const KEY_BYTES: usize = 16;

/// Beginning of a subprotocol by which a browser sends a bearer token, as it cannot set headers. It is never an answer.
///
/// Source: apiserver `pkg/authentication/request/websocket/protocol.go`.
const BEARER_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// A client's handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    key: String,
    /// The first subprotocol that the client offers. A browser gives up a connection on which none of those that it offers is chosen.
    /// Web consoles offer `base64.binary.k8s.io`, and an API server takes any single name. It changes nothing in a watch's messages.
    protocol: Option<HeaderValue>,
}

/// Whether a request asks for an upgrade to a WebSocket.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let names = |name: header::HeaderName, wanted: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(wanted))
    };
    names(header::CONNECTION, "upgrade") && names(header::UPGRADE, "websocket")
}

impl Handshake {
    /// Reads the handshake of RFC 6455 section 4.2.1.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or("");
        let version = text(header::SEC_WEBSOCKET_VERSION);
        if version != "13" {
            return Err(ApiError::invalid("Sec-WebSocket-Version", version, "expected 13"));
        }
        let key = text(header::SEC_WEBSOCKET_KEY);
        let decoded = base64::engine::general_purpose::STANDARD.decode(key);
        if !decoded.is_ok_and(|nonce| nonce.len() == KEY_BYTES) {
            return Err(ApiError::invalid("Sec-WebSocket-Key", key, "expected 16 bytes in base64"));
        }
        let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
        let offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let mut offered =
            offered.map(str::trim).filter(|name| !name.is_empty() && !name.starts_with(BEARER_TOKEN));
        let protocol = offered.next().and_then(|name| HeaderValue::from_str(name).ok());
        Ok(Self { key: key.to_owned(), protocol })
    }

    /// The headers of the answer.
    pub(super) fn headers(&self) -> HeaderMap {
        let accept = HeaderValue::from_str(&accept_key(&self.key)).expect("base64 is a header value");
        let protocol = self.protocol.clone().map(|name| (header::SEC_WEBSOCKET_PROTOCOL, name));
        let always = [
            (header::CONNECTION, HeaderValue::from_static("upgrade")),
            (header::UPGRADE, HeaderValue::from_static("websocket")),
            (header::SEC_WEBSOCKET_ACCEPT, accept),
        ];
        always.into_iter().chain(protocol).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_subprotocol_is_chosen_unless_it_is_a_token() {
        for (offered, chosen) in [
            (&[][..], None),
            (&["base64.binary.k8s.io"], Some("base64.binary.k8s.io")),
            (
                &["base64url.bearer.authorization.k8s.io.dG9rZW4, base64.binary.k8s.io", "other"],
                Some("base64.binary.k8s.io"),
            ),
            (&["base64url.bearer.authorization.k8s.io.dG9rZW4"], None),
            (&["", " , v2,v1"], Some("v2")),
        ] {
            let mut headers = HeaderMap::from_iter([
                (header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
                (header::SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==")),
            ]);
            for value in offered {
                headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(value));
            }
            let answer = Handshake::read(&headers).unwrap().headers();
            let found = answer.get(header::SEC_WEBSOCKET_PROTOCOL).map(|value| value.to_str().unwrap());
            assert_eq!(found, chosen, "{offered:?}");
        }
    }
}
