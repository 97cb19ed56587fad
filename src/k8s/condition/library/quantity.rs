//! The functions on quantities.
//!
//! Source: `k8s.io/apiserver/pkg/cel/library/quantity.go`.

use std::sync::Arc;

use super::super::function::{Arguments, Function};
use super::super::meter::Stop;
use super::super::quantity::{Quantity, QuantityError};
use super::super::value::Val;

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
    Ok(Val::Int(quantity_of(args, 0)?.sign()))
}

fn is_integer<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(quantity_of(args, 0)?.integer().is_some()))
}

fn as_integer<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let quantity = quantity_of(args, 0)?;
    let integer = quantity.integer().map(Val::Int);
    integer.ok_or_else(|| args.failed(quantity, "cannot convert value to integer"))
}

fn as_approximate_float<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Double(quantity_of(args, 0)?.approximate()))
}

fn add<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (one, other) = (quantity_of(args, 0)?, quantity_or_int(args)?);
    one.plus(other).map(made).map_err(|error| args.failed(one, error))
}

fn sub<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (one, other) = (quantity_of(args, 0)?, quantity_or_int(args)?);
    one.plus(other.negated()).map(made).map_err(|error| args.failed(one, error))
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

#[cfg(test)]
mod tests {
    use super::super::super::tests::{check_all, check_failures};
    use super::*;

    #[test]
    fn quantities_follow_the_library() {
        check_all(&[
            "isQuantity('20') && isQuantity('20M') && isQuantity('20Mi') && isQuantity('1.3Gi') && isQuantity('-.5e-3')",
            "!isQuantity('20Mo') && !isQuantity('10Mm') && !isQuantity('200K') && !isQuantity('1,3G') && !isQuantity('')",
            "!isQuantity('Three') && !isQuantity('Mi') && !isQuantity('1.1.M') && !isQuantity(' 1') && !isQuantity('1e')",
            "quantity('200M') == quantity('0.2G') && quantity('1Ki') == quantity('1024') && quantity('1E') == quantity('1e18')",
            "quantity('200M') != quantity('0.3G') && quantity('1') != null && quantity('1500m') == quantity('1.5')",
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
