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

/// 16 bytes: each change and each stream has several.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Number(u64),
    Rare(Arc<Rare>),
}

/// What no API server with etcd gives.
#[derive(PartialEq, Eq, Hash)]
enum Rare {
    /// A number above those of [`Repr::Number`].
    Large(u128),
    Opaque(Box<str>),
}

impl ResourceVersion {
    /// The version before every other: no object has it.
    pub const ZERO: Self = Self(Repr::Number(0));

    /// Takes the text of a version. Never fails: what is not a number is opaque.
    pub fn new(text: &str) -> Self {
        let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
        match text.parse::<u128>() {
            Ok(number) if canonical => match u64::try_from(number) {
                Ok(number) => number.into(),
                Err(_) => Rare::Large(number).into(),
            },
            Ok(_) | Err(_) => Rare::Opaque(text.into()).into(),
        }
    }

    /// The text between the quotes of a JSON string, escaped, on one line.
    pub fn json(&self) -> String {
        let Some(text) = self.opaque() else { return self.to_string() };
        let quoted = serde_json::Value::from(text).to_string();
        let mut plain = quoted[1..quoted.len() - 1].to_owned();
        // Some clients split lines at these (D22).
        for separator in ['\u{2028}', '\u{2029}', '\u{85}'] {
            plain = plain.replace(separator, &format!("\\u{:04x}", u32::from(separator)));
        }
        plain
    }

    /// Whether versions like this one have an order.
    pub fn is_number(&self) -> bool {
        self.opaque().is_none()
    }

    /// Whether this is [`ResourceVersion::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// The number, if it is one of 64 bits.
    pub(super) fn to_u64(&self) -> Option<u64> {
        match self.0 {
            Repr::Number(number) => Some(number),
            Repr::Rare(_) => None,
        }
    }

    /// The text, if it is not a number.
    fn opaque(&self) -> Option<&str> {
        match &self.0 {
            Repr::Rare(rare) => rare.opaque(),
            Repr::Number(_) => None,
        }
    }
}

impl Rare {
    fn opaque(&self) -> Option<&str> {
        match self {
            Self::Opaque(text) => Some(text),
            Self::Large(_) => None,
        }
    }
}

impl From<Rare> for ResourceVersion {
    fn from(rare: Rare) -> Self {
        Self(Repr::Rare(Arc::new(rare)))
    }
}

impl From<u64> for ResourceVersion {
    fn from(number: u64) -> Self {
        Self(Repr::Number(number))
    }
}

impl PartialOrd for ResourceVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (&self.0, &other.0) {
            (Repr::Number(a), Repr::Number(b)) => Some(a.cmp(b)),
            (Repr::Number(_), Repr::Rare(b)) => b.opaque().is_none().then_some(Ordering::Less),
            (Repr::Rare(a), Repr::Number(_)) => a.opaque().is_none().then_some(Ordering::Greater),
            (Repr::Rare(a), Repr::Rare(b)) => match (&**a, &**b) {
                (Rare::Large(a), Rare::Large(b)) => Some(a.cmp(b)),
                (a, b) => (a == b).then_some(Ordering::Equal),
            },
        }
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Number(number) => number.fmt(f),
            Repr::Rare(rare) => match &**rare {
                Rare::Large(number) => number.fmt(f),
                Rare::Opaque(text) => f.write_str(text),
            },
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
