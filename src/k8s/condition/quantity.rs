//! Kubernetes' quantities (`100m`, `1.5Gi`), exactly, and the functions on them.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource` and `k8s.io/apiserver/pkg/cel/library/quantity.go`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::functions::{Arguments, Function};
use super::meter::Stop;
use super::value::Val;

pub(super) const FUNCTIONS: [Function; 12] = [
    Function::global("quantity", 1, quantity),
    Function::global("isQuantity", 1, is_quantity),
    Function::global("sign", 1, sign),
    Function::member("sign", 1, sign),
    Function::member("isInteger", 1, is_integer),
    Function::member("asInteger", 1, as_integer),
    Function::member("asApproximateFloat", 1, as_approximate_float),
    Function::member("add", 2, add),
    Function::member("sub", 2, sub),
    Function::member("isLessThan", 2, is_less_than),
    Function::member("isGreaterThan", 2, is_greater_than),
    Function::member("compareTo", 2, compare_to),
];

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

    fn of(value: i64) -> Self {
        Self { value: value.into(), scale: 0, fast: true }
    }

    /// Its sum with another amount.
    ///
    /// # Errors
    /// [`QuantityError::Large`].
    fn plus(self, other: Self) -> Result<Self, QuantityError> {
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

    fn negated(self) -> Self {
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

    fn compare(self, other: Self) -> Ordering {
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

    fn integer(self) -> Option<i64> {
        let value = (self.fast && self.scale >= 0).then(|| self.at(0)).flatten()?;
        i64::try_from(value).ok()
    }

    fn approximate(self) -> f64 {
        let base = self.value as f64;
        // The text is read to the nearest double, which repeated multiplication does not give.
        let power: f64 = format!("1e{}", self.scale).parse().unwrap_or(f64::NAN);
        base * power
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

/// The quantity that an argument is.
fn quantity_of(args: &Arguments<'_, '_>, at: usize) -> Result<Quantity, Stop> {
    if let Val::Quantity(quantity) = args.value(at)? { Ok(**quantity) } else { Err(Stop::NoOverload) }
}

fn made<'a>(quantity: Quantity) -> Val<'a> {
    Val::Quantity(Arc::new(quantity))
}

fn quantity<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.read(text.len())?;
    Quantity::parse(text).map(made).map_err(|error| args.failed(text, error))
}

fn is_quantity<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.read(text.len())?;
    match Quantity::parse(text) {
        // It is a quantity, though not one that is supported.
        Err(error @ QuantityError::Large) => Err(args.failed(text, error)),
        found => Ok(Val::Bool(found.is_ok())),
    }
}

fn sign<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Int(quantity_of(args, 0)?.value.signum() as i64))
}

fn is_integer<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(quantity_of(args, 0)?.integer().is_some()))
}

fn as_integer<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let quantity = quantity_of(args, 0)?;
    let integer = quantity.integer().map(Val::Int);
    integer.ok_or_else(|| args.failed(shown(quantity), "cannot convert value to integer"))
}

fn as_approximate_float<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Double(quantity_of(args, 0)?.approximate()))
}

fn add<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (one, other) = (quantity_of(args, 0)?, quantity_or_int(args)?);
    one.plus(other).map(made).map_err(|error| args.failed(shown(one), error))
}

fn sub<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (one, other) = (quantity_of(args, 0)?, quantity_or_int(args)?);
    one.plus(other.negated()).map(made).map_err(|error| args.failed(shown(one), error))
}

/// The second argument, which may be an integer.
fn quantity_or_int(args: &Arguments<'_, '_>) -> Result<Quantity, Stop> {
    args.int(1).map(Quantity::of).or_else(|_| quantity_of(args, 1))
}

fn is_less_than<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(quantity_of(args, 0)?.compare(quantity_of(args, 1)?).is_lt()))
}

fn is_greater_than<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(quantity_of(args, 0)?.compare(quantity_of(args, 1)?).is_gt()))
}

fn compare_to<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Int(quantity_of(args, 0)?.compare(quantity_of(args, 1)?) as i64))
}

/// As a message shows it.
fn shown(quantity: Quantity) -> String {
    format!("{}e{}", quantity.value, quantity.scale)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_all, check_failures};
    use super::*;

    #[test]
    fn quantities_follow_the_library() {
        check_all(&[
            "isQuantity('20') && isQuantity('20M') && isQuantity('20Mi') && isQuantity('1.3Gi') && isQuantity('-.5e-3')",
            "!isQuantity('20Mo') && !isQuantity('10Mm') && !isQuantity('200K') && !isQuantity('1,3G') && !isQuantity('')",
            "!isQuantity('Three') && !isQuantity('Mi') && !isQuantity('1.1.M') && !isQuantity(' 1') && !isQuantity('1e')",
            "quantity('200M') == quantity('0.2G') && quantity('1Ki') == quantity('1024') && quantity('1E') == quantity('1e18')",
            "quantity('200M') != quantity('0.3G') && quantity('1') != 1 && quantity('1500m') == quantity('1.5')",
            "quantity('50M').isLessThan(quantity('50Mi')) && !quantity('100M').isLessThan(quantity('50M'))",
            "quantity('50Mi').isGreaterThan(quantity('50M')) && !quantity('50M').isGreaterThan(quantity('100M'))",
            "quantity('200M').compareTo(quantity('0.2G')) == 0 && quantity('50M').compareTo(quantity('50Mi')) == -1",
            "quantity('50Mi').compareTo(quantity('50M')) == 1 && quantity('-1Gi').compareTo(quantity('-1G')) == -1",
            "quantity('50k').add(quantity('20')) == quantity('50.02k') && quantity('50k').sub(20) == quantity('49980')",
            "quantity('50k').add(20).sub(quantity('100k')).sub(-50000).asInteger() == 20",
            "quantity('100m').add(quantity('200m')) == quantity('0.3') && quantity('1').sub(quantity('1n')) == quantity('999999999n')",
            "quantity('50k').asInteger() == 50000 && quantity('50').isInteger() && quantity('1Gi').asInteger() == 1073741824",
            "quantity('50.703k').asApproximateFloat() == 50703.0 && quantity('100m').asApproximateFloat() == 0.1",
            "quantity('-1').sign() == -1 && sign(quantity('0')) == 0 && quantity('0.1m').sign() == 1",
            "!quantity('1500m').isInteger() && !quantity('9999999999999999999999999999999999999G').isInteger()",
            // Finer than a billionth is rounded away from zero, and a binary unit is capped.
            "quantity('0.1n') == quantity('1n') && quantity('-1.1n') == quantity('-2n') && quantity('1e-99') == quantity('1n')",
            "quantity('8Ei') == quantity('9223372036854775807') && quantity('-99999Ei') == quantity('-9223372036854775807')",
            "quantity('9999999999999999999999999999999999999G').isGreaterThan(quantity('1n'))",
            "quantity('-9999999999999999999999999999999999999G').isLessThan(quantity('-1n'))",
        ]);
        check_failures(&[
            (
                "quantity('10Mo') == quantity('1')",
                "quantity(\"10Mo\"): quantities must match the regular expression",
            ),
            ("quantity('10Mm') == quantity('1')", "quantity(\"10Mm\"): unable to parse quantity's suffix"),
            (
                "quantity('9999999999999999999999999999999999999G').asInteger() == 1",
                "cannot convert value to integer",
            ),
            ("quantity('1500m').asInteger() == 1", "asInteger(1500e-3): cannot convert value to integer"),
            ("isQuantity('1000000000000000000000000000000000000000000')", "more digits than the 38"),
            (
                "quantity('99999999999999999999999999999999999999G').add(quantity('1n')).sign() == 1",
                "more digits than the 38",
            ),
            // The sum is the one number whose negative is none.
            (
                "[quantity('-85070591730234615865843651857942052864')].map(a, a.add(a)).map(a, a.sub(a))[0].sign() == 0",
                "more digits than the 38",
            ),
            ("quantity('1').isLessThan('2')", "no such overload: isLessThan(kubernetes.Quantity, string)"),
            ("quantity(1).sign() == 1", "no such overload: quantity(int)"),
            ("quantity('1') < quantity('2')", "no such overload: kubernetes.Quantity < kubernetes.Quantity"),
        ]);
    }

    /// `integer()` is what upstream's 64-bit form gives; some whole numbers have another form there.
    #[test]
    fn integers_are_those_of_upstream() {
        for (text, integer) in [
            ("0", Some(0)),
            ("-3", Some(-3)),
            ("1.5k", Some(1500)),
            ("1e18", Some(1_000_000_000_000_000_000)),
            ("1e19", None),
            ("1000m", None),
            ("2.0", None),
            ("99Ti", Some(99 << 40)),
            ("100Ti", None),
            ("1Pi", None),
            ("1.5Gi", None),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().integer(), integer, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_quantity_panic(text in "[-+]?[0-9.]{0,45}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,11}", other in "-?[0-9]{1,5}[numkMG]?") {
            if let (Ok(one), Ok(other)) = (Quantity::parse(&text), Quantity::parse(&other)) {
                let _ = (one.plus(other), other.plus(one), one.integer(), one.approximate());
                proptest::prop_assert_eq!(one.compare(other), other.compare(one).reverse());
            }
        }
    }
}
