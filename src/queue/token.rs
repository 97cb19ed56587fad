//! Lease tokens: what a worker shows when it answers for a key.

use std::fmt;

/// Names one lease of one queue of one process, for good: no other lease ever has the same token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken {
    /// The process and the queue that gave the lease.
    pub issuer: String,
    /// The slot of the key.
    pub slot: u32,
    /// Counts the leases of the queue.
    pub serial: u64,
}

/// The text is no lease token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a lease as an item of a lease answer has it")]
pub struct TokenError;

/// Longest token, in bytes.
const TOKEN_LEN_MAX: usize = 128;

impl LeaseToken {
    /// Reads a token.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let mut parts = text.rsplitn(3, '.');
        let (serial, slot, issuer) = (parts.next(), parts.next(), parts.next());
        let (Some(serial), Some(slot), Some(issuer)) = (serial, slot, issuer) else {
            return Err(TokenError);
        };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if issuer.is_empty() || text.len() > TOKEN_LEN_MAX || !digits(serial) || !digits(slot) {
            return Err(TokenError);
        }
        let slot = slot.parse().map_err(|_| TokenError)?;
        let serial = serial.parse().map_err(|_| TokenError)?;
        Ok(Self { issuer: issuer.to_owned(), slot, serial })
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.issuer, self.slot, self.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_other_texts_are_refused() {
        let token = LeaseToken { issuer: "a1-2".to_owned(), slot: 3, serial: 4 };
        assert_eq!(LeaseToken::parse(&token.to_string()), Ok(token));
        for text in ["", "a", "a.1", "a.1.", "a..1", ".1.2", "a.+1.2", "a.1.-2", "a.1.x", "a.4294967296.1"] {
            assert_eq!(LeaseToken::parse(text), Err(TokenError), "{text:?}");
        }
    }
}
