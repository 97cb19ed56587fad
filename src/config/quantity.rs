//! Counts, sizes and times as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number with a unit: its text form, and the plain type that the program uses.
pub trait Quantity: FromStr<Err = QuantityError> + fmt::Display + Copy {
    /// The placeholder for the value in the help: `N`, `SIZE`, `TIME`.
    const VALUE_NAME: &'static str;
    /// The plain type that the program uses.
    type Plain: Copy + PartialOrd;

    /// Wraps a plain value, so that it can be formatted.
    fn of(plain: Self::Plain) -> Self;

    /// The plain value.
    fn plain(self) -> Self::Plain;
}

/// A number of things: `10000`, `10_000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(usize);

/// A number of bytes: `65536`, `64KiB`, `64Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(usize);

/// A span of time: `250ms`, `30s`, `1m30s`, `2h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(Duration);

/// A text that is not such a quantity. Says what is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a [`Count`].
    #[error("expected a whole number like 10000")]
    Count,
    /// A [`Count`] that is too large.
    #[error("expected at most {COUNT_MAX}")]
    CountMax,
    /// Not a [`Size`].
    #[error("expected a size like 65536, 64KiB, 16MiB or 1GiB")]
    Size,
    /// Not a [`Span`].
    #[error("expected a time with its unit like 250ms, 30s, 5m, 1h or 1m30s")]
    Span,
}

/// The largest [`Count`]. No limit needs to be larger, and tokio's semaphores panic at 2^61.
const COUNT_MAX: usize = 1_000_000_000_000;

/// Units of size, largest first, so that the largest exact one is shown.
const SIZES: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Units of time in milliseconds. `ms` comes before `m` and `s`, with which it would be confused.
const SPANS: [(&str, u64); 4] = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];

// === impl Count ===

impl Quantity for Count {
    const VALUE_NAME: &'static str = "N";
    type Plain = usize;

    fn of(plain: usize) -> Self {
        Self(plain)
    }

    fn plain(self) -> usize {
        self.0
    }
}

impl FromStr for Count {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let digits: String = text.trim().chars().filter(|character| *character != '_').collect();
        match digits.parse::<u128>() {
            Ok(count) if count > COUNT_MAX as u128 => Err(QuantityError::CountMax),
            Ok(count) => Ok(Self(count as usize)),
            Err(_) => Err(QuantityError::Count),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

// === impl Size ===

impl Quantity for Size {
    const VALUE_NAME: &'static str = "SIZE";
    type Plain = usize;

    fn of(plain: usize) -> Self {
        Self(plain)
    }

    fn plain(self) -> usize {
        self.0
    }
}

impl FromStr for Size {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let text = text.trim();
        let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let factor = match unit.trim_start() {
            "" | "B" => 1,
            // `Ki` is the form of Kubernetes manifests. `K` and `MB` are refused, as they may mean 1000 or 1024.
            unit => SIZES
                .iter()
                .find(|(name, _)| unit == *name || unit == name.trim_end_matches('B'))
                .map(|(_, factor)| *factor)
                .ok_or(QuantityError::Size)?,
        };
        let number: usize = digits.parse().map_err(|_| QuantityError::Size)?;
        number.checked_mul(factor).map(Self).ok_or(QuantityError::Size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIZES.iter().find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor)) {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

// === impl Span ===

impl Quantity for Span {
    const VALUE_NAME: &'static str = "TIME";
    type Plain = Duration;

    fn of(plain: Duration) -> Self {
        Self(plain)
    }

    fn plain(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let mut rest = text.trim();
        let mut millis: u64 = 0;
        if rest.is_empty() {
            return Err(QuantityError::Span);
        }
        while !rest.is_empty() {
            let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
            let number: u64 = rest[..end].parse().map_err(|_| QuantityError::Span)?;
            let (unit, factor) =
                SPANS.iter().find(|(unit, _)| rest[end..].starts_with(unit)).ok_or(QuantityError::Span)?;
            let more = number.checked_mul(*factor).ok_or(QuantityError::Span)?;
            millis = millis.checked_add(more).ok_or(QuantityError::Span)?;
            rest = &rest[end + unit.len()..];
        }
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            if millis >= factor {
                write!(f, "{}{unit}", millis / factor)?;
                millis %= factor;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<Q: Quantity>(text: &str) -> String {
        text.parse::<Q>().map_or_else(|error| error.to_string(), |quantity| quantity.to_string())
    }

    #[test]
    fn counts_take_underscores() {
        assert_eq!(shown::<Count>("10_000"), "10000");
        for text in ["", "-1", "1.5", "many"] {
            assert_eq!(shown::<Count>(text), "expected a whole number like 10000", "{text}");
        }
        // A semaphore of tokio would panic.
        for text in ["1000000000001", "18446744073709551616"] {
            assert_eq!(shown::<Count>(text), "expected at most 1000000000000", "{text}");
        }
    }

    #[test]
    fn sizes_are_binary_and_anything_ambiguous_is_refused() {
        for (text, expected) in [
            ("65536", "64KiB"),
            ("64KiB", "64KiB"),
            ("64 MiB", "64MiB"),
            ("1Gi", "1GiB"),
            ("1000", "1000"),
            ("7B", "7"),
            ("0", "0"),
        ] {
            assert_eq!(shown::<Size>(text), expected, "{text}");
        }
        for text in ["", "MiB", "64MB", "64k", "1.5MiB", "-1", "99999999999999999999", "18014398509481984KiB"]
        {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn spans_need_a_unit() {
        for (text, expected) in [
            ("30s", "30s"),
            ("90s", "1m30s"),
            ("1m30s", "1m30s"),
            ("250ms", "250ms"),
            ("0s", "0s"),
            ("2h", "2h"),
        ] {
            assert_eq!(shown::<Span>(text), expected, "{text}");
        }
        for text in ["", "30", "s", "5 minutes", "-1s", "1.5s", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
