//! The API server's version of a resource's state.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A `metadata.resourceVersion`, comparable only within one resource of one API server.
///
/// Decimal numbers of up to 128 bits without leading zeros compare as numbers (U1); anything else is
/// opaque and only equal to itself, so `partial_cmp` is `None` where Kubernetes promises no order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ResourceVersion(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Number(Number),
    Opaque(Arc<str>),
}

/// A number of 128 bits. Unlike a `u128` it takes no place of 16 bytes' alignment: each object and each stream has several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Number {
    high: u64,
    low: u64,
}

impl ResourceVersion {
    /// The version before every other: no object has it.
    pub const ZERO: Self = Self(Repr::Number(Number { high: 0, low: 0 }));

    /// Takes the text of a version. Never fails: what is not a number is opaque.
    pub fn new(text: &str) -> Self {
        let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
        match text.parse::<u128>() {
            Ok(number) if canonical => Self(Repr::Number(number.into())),
            Ok(_) | Err(_) => Self(Repr::Opaque(text.into())),
        }
    }

    /// The text between the quotes of a JSON string, escaped, on one line.
    pub fn json(&self) -> String {
        match &self.0 {
            Repr::Number(number) => number.to_string(),
            Repr::Opaque(text) => {
                let quoted = serde_json::Value::from(&**text).to_string();
                let mut plain = quoted[1..quoted.len() - 1].to_owned();
                // Some clients split lines at these (D22).
                for separator in ['\u{2028}', '\u{2029}', '\u{85}'] {
                    plain = plain.replace(separator, &format!("\\u{:04x}", u32::from(separator)));
                }
                plain
            }
        }
    }

    /// Whether versions like this one have an order.
    pub fn is_number(&self) -> bool {
        matches!(self.0, Repr::Number(_))
    }

    /// Whether this is [`ResourceVersion::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl From<u64> for ResourceVersion {
    fn from(number: u64) -> Self {
        Self(Repr::Number(Number { high: 0, low: number }))
    }
}

impl PartialOrd for ResourceVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (&self.0, &other.0) {
            (Repr::Number(a), Repr::Number(b)) => Some(a.cmp(b)),
            (a, b) => (a == b).then_some(Ordering::Equal),
        }
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Number(number) => write!(f, "{number}"),
            Repr::Opaque(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rv{self}")
    }
}

impl From<u128> for Number {
    fn from(number: u128) -> Self {
        let half = |shift: u32| u64::try_from((number >> shift) & u128::from(u64::MAX)).unwrap_or(u64::MAX);
        Self { high: half(64), low: half(0) }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.high {
            // Almost all are this short, and are written for each event.
            0 => self.low.fmt(f),
            high => (u128::from(high) << 64 | u128::from(self.low)).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_as_numbers_up_to_128_bits() {
        let small = ResourceVersion::new("99");
        let large = ResourceVersion::new("123456789012345678901234567890");
        assert!(small < large);
        assert_eq!(large.to_string(), "123456789012345678901234567890");
        for bit in 0..128 {
            for number in [1_u128 << bit, (1 << bit) - 1, u128::MAX << bit] {
                let version = ResourceVersion::new(&number.to_string());
                assert!(version.is_number());
                assert_eq!(version.to_string(), number.to_string());
                let two = ResourceVersion::new("18446744073709551616");
                assert_eq!(version.partial_cmp(&two), Some(number.cmp(&(1 << 64))), "{number}");
            }
        }
    }

    #[test]
    fn versions_that_are_not_numbers_have_no_order() {
        for text in ["", "abc", "-1", "+1", "007", "1.5", "999999999999999999999999999999999999999999"] {
            let version = ResourceVersion::new(text);
            assert!(!version.is_number(), "{text}");
            assert_eq!(version.partial_cmp(&ResourceVersion::new("5")), None, "{text}");
            assert_eq!(version.to_string(), text);
        }
    }
}
