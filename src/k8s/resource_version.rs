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
    Number(u128),
    Opaque(Arc<str>),
}

impl ResourceVersion {
    /// The version before every other: no object has it.
    pub const ZERO: Self = Self(Repr::Number(0));

    /// Takes the text of a version. Never fails: what is not a number is opaque.
    pub fn new(text: &str) -> Self {
        let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
        match text.parse::<u128>() {
            Ok(number) if canonical => Self(Repr::Number(number)),
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
        Self(Repr::Number(number.into()))
    }
}

impl PartialOrd for ResourceVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (&self.0, &other.0) {
            (Repr::Number(a), Repr::Number(b)) => a.partial_cmp(b),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_as_numbers_up_to_128_bits() {
        let small = ResourceVersion::new("99");
        let large = ResourceVersion::new("123456789012345678901234567890");
        assert!(small < large);
        assert_eq!(large.to_string(), "123456789012345678901234567890");
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
