//! Kubernetes' quantities (`100m`, `1.5Gi`), exactly.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource`.

use std::cmp::Ordering;
use std::fmt;

/// The finest scale: what is finer is rounded away from zero.
const NANO: i32 = -9;
/// Digits of an amount with which upstream calculates in 64 bits.
const FAST_DIGITS_MAX: usize = 18;
/// Largest amount with a binary suffix: more is capped.
const BINARY_MAX: i128 = i64::MAX as i128;

/// An amount: `value * 10^scale`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantity {
    value: i128,
    scale: i32,
    /// Whether upstream has it in 64 bits. One that it has otherwise is never an integer to it, whatever the value.
    fast: bool,
}

/// Why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
    #[error("it has more digits than the 38 that are supported")]
    Large,
}

impl Quantity {
    /// Reads a quantity.
    ///
    /// # Errors
    /// [`QuantityError`].
    pub(super) fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start_matches('0');
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = unsigned.split_at(digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        let exponent = suffix.trim_start_matches(|letter| "eEinumkKMGTP".contains(letter));
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        let has_number = text[..text.len() - suffix.len()].bytes().any(|byte| byte.is_ascii_digit());
        if !has_number || !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        let unit = Unit::of(suffix).ok_or(QuantityError::Suffix)?;
        let length = whole.len().max(1) + fraction.len();
        let value = number(whole, fraction)?;
        let value = if negative { -value } else { value };
        unit.amount(value, fraction.len(), length)
    }

    /// The amount of an integer.
    pub(super) fn of(value: i64) -> Self {
        Self { value: value.into(), scale: 0, fast: true }
    }

    /// -1, 0 or 1.
    pub(super) fn sign(self) -> i64 {
        self.value.signum() as i64
    }

    /// Its sum with another amount.
    ///
    /// # Errors
    /// [`QuantityError::Large`].
    pub(super) fn plus(self, other: Self) -> Result<Self, QuantityError> {
        // As upstream does, so that it is known which amounts are integers.
        if self.fast && other.fast {
            if other.value == 0 {
                return Ok(self);
            }
            if self.value == 0 {
                return Ok(other);
            }
        }
        let scale = self.scale.min(other.scale);
        let sum = self.at(scale).zip(other.at(scale)).and_then(|(one, other)| one.checked_add(other));
        // The least number has no negative.
        let value = sum.filter(|sum| *sum != i128::MIN).ok_or(QuantityError::Large)?;
        let fits = |value: Option<i128>| value.is_some_and(|value| i64::try_from(value).is_ok());
        let fast = self.fast && other.fast && fits(sum) && fits(self.at(scale)) && fits(other.at(scale));
        Ok(Self { value, scale, fast })
    }

    /// With the other sign.
    pub(super) fn negated(self) -> Self {
        Self { value: -self.value, ..self }
    }

    /// The value at a scale that is not above its own; `None` if it has too many digits.
    fn at(self, scale: i32) -> Option<i128> {
        if self.value == 0 {
            return Some(0);
        }
        let digits = u32::try_from(i64::from(self.scale) - i64::from(scale)).ok()?;
        10i128.checked_pow(digits).and_then(|factor| self.value.checked_mul(factor))
    }

    /// Which of two amounts is larger.
    pub(super) fn compare(self, other: Self) -> Ordering {
        let scale = self.scale.min(other.scale);
        let signs = self.value.signum().cmp(&other.value.signum());
        let negative = self.value < 0;
        let magnitude = match (self.at(scale), other.at(scale)) {
            (Some(one), Some(other)) => return signs.then(one.cmp(&other)),
            // The one that has too many digits at this scale is farther from zero.
            (None, _) => Ordering::Greater,
            (_, None) => Ordering::Less,
        };
        signs.then(if negative { magnitude.reverse() } else { magnitude })
    }

    /// The amount as an integer, if it is one to upstream.
    pub(super) fn integer(self) -> Option<i64> {
        let value = (self.fast && self.scale >= 0).then(|| self.at(0)).flatten()?;
        i64::try_from(value).ok()
    }

    /// About the amount.
    pub(super) fn approximate(self) -> f64 {
        let base = self.value as f64;
        // The text is read to the nearest double, which repeated multiplication does not give.
        let power: f64 = format!("1e{}", self.scale).parse().unwrap_or(f64::NAN);
        base * power
    }
}

/// An exact form for messages, which is not the canonical one of Kubernetes: `1500e-3`.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}e{}", self.value, self.scale)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.compare(*other).is_eq()
    }
}

/// What a suffix multiplies with.
#[derive(Clone, Copy)]
enum Unit {
    Decimal(i32),
    Binary(u32),
}

impl Unit {
    fn of(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            _ => Self::Decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }

    /// A number with so many decimal places, as written with so many digits, in this unit.
    fn amount(self, value: i128, places: usize, length: usize) -> Result<Quantity, QuantityError> {
        let places = i32::try_from(places).map_err(|_| QuantityError::Large)?;
        match self {
            Self::Decimal(exponent) => {
                let scale = exponent.checked_sub(places).ok_or(QuantityError::Large)?;
                let fast = length <= FAST_DIGITS_MAX && scale >= NANO;
                Ok(Quantity { value, scale, fast }.rounded())
            }
            Self::Binary(exponent) => {
                // Upstream's estimate of the digits that 64 bits have left.
                let fast = places == 0 && length + (exponent * 3 / 10) as usize <= 14;
                let value = match value.checked_mul(1 << exponent) {
                    None if places > 0 => return Err(QuantityError::Large),
                    None => BINARY_MAX * value.signum(),
                    Some(value) => value,
                };
                let amount = Quantity { value, scale: -places, fast }.rounded();
                let most = Quantity { value: BINARY_MAX, scale: 0, fast: false };
                if amount.compare(most).is_gt() {
                    return Ok(most);
                }
                Ok(if amount.compare(most.negated()).is_lt() { most.negated() } else { amount })
            }
        }
    }
}

impl Quantity {
    /// The amount without what is finer than a billionth: that is rounded away from zero.
    fn rounded(self) -> Self {
        let excess = i64::from(NANO) - i64::from(self.scale);
        if excess <= 0 || self.value == 0 {
            return self;
        }
        let factor = u32::try_from(excess).ok().and_then(|excess| 10i128.checked_pow(excess));
        let value = match factor {
            Some(factor) => {
                self.value / factor + if self.value % factor == 0 { 0 } else { self.value.signum() }
            }
            None => self.value.signum(),
        };
        Self { value, scale: NANO, ..self }
    }
}

/// The number of the digits before and after the dot, without the dot.
fn number(whole: &str, fraction: &str) -> Result<i128, QuantityError> {
    let mut value = 0i128;
    for digit in whole.bytes().chain(fraction.bytes()) {
        let next = value.checked_mul(10).and_then(|value| value.checked_add(i128::from(digit - b'0')));
        value = next.ok_or(QuantityError::Large)?;
    }
    Ok(value)
}
