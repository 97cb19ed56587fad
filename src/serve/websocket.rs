//! The handshake of a WebSocket (RFC 6455). After it, the connection is a stream like any other.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;

use super::ApiError;
use crate::encode::accept_key;

/// Bytes of a client's key (RFC 6455, section 4.1).
const KEY_BYTES: usize = 16;

/// A client's handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    key: String,
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
        Ok(Self { key: key.to_owned() })
    }

    /// The headers of the answer.
    pub(super) fn headers(&self) -> HeaderMap {
        let accept = HeaderValue::from_str(&accept_key(&self.key)).expect("base64 is a header value");
        HeaderMap::from_iter([
            (header::CONNECTION, HeaderValue::from_static("upgrade")),
            (header::UPGRADE, HeaderValue::from_static("websocket")),
            (header::SEC_WEBSOCKET_ACCEPT, accept),
        ])
    }
}
