//! The operators whose operands are always evaluated.

use std::cmp::Ordering;

use super::meter::{Meter, Stop};
use super::program::{Arithmetic, Operator};
use super::value::{List, Val};

/// The value of an operator.
///
/// # Errors
/// [`Stop`], but not [`Stop::NoOverload`].
pub(super) fn binary<'a>(
    operator: Operator,
    one: &Val<'a>,
    other: &Val<'a>,
    meter: &mut Meter,
) -> Result<Val<'a>, Stop> {
    let compared = |meter: &mut Meter, expected: fn(Ordering) -> bool| {
        one.compare(other, meter).map(|order| Val::Bool(expected(order)))
    };
    let result = match operator {
        Operator::Equal | Operator::NotEqual if is_never_equal(one, other) => Err(Stop::NoOverload),
        Operator::Equal => one.equals(other, meter).map(Val::Bool),
        Operator::NotEqual => one.equals(other, meter).map(|equal| Val::Bool(!equal)),
        Operator::Less => compared(meter, Ordering::is_lt),
        Operator::LessOrEqual => compared(meter, Ordering::is_le),
        Operator::Greater => compared(meter, Ordering::is_gt),
        Operator::GreaterOrEqual => compared(meter, Ordering::is_ge),
        Operator::In => contains(one, other, meter).map(Val::Bool),
        Operator::Index if matches!(one, Val::Optional(_)) => optional_index(one, other, meter),
        Operator::Index => index(one, other, meter)?.ok_or(Stop::Missing),
        Operator::Arithmetic(Arithmetic::Add) => add(one, other, meter),
        Operator::Arithmetic(operator) => arithmetic(operator, one, other),
    };
    match result {
        Err(Stop::NoOverload) => {
            let (one, other) = (one.type_name(), other.type_name());
            Err(Stop::Failed(format!("no such overload: {one} {operator} {other}")))
        }
        result => result,
    }
}

/// Whether a comparison of two values for equality is a mistake, as that of an address with a text. Kubernetes refuses it where it knows
/// the types.
fn is_never_equal(one: &Val<'_>, other: &Val<'_>) -> bool {
    let is_opaque =
        |value: &Val<'_>| matches!(value, Val::Quantity(_) | Val::Ip(_) | Val::Cidr(_) | Val::Semver(_));
    let is_null = |value: &Val<'_>| matches!(value, Val::Null);
    (is_opaque(one) || is_opaque(other))
        && !(is_null(one) || is_null(other))
        && one.type_name() != other.type_name()
}

/// `-value`
///
/// # Errors
/// [`Stop::Failed`].
pub(super) fn negate<'a>(value: &Val<'a>) -> Result<Val<'a>, Stop> {
    if let Val::Int(value) = value {
        value.checked_neg().map(Val::Int).ok_or_else(overflow)
    } else if let Val::Double(value) = value {
        Ok(Val::Double(-value))
    } else {
        Err(Stop::Failed(format!("no such overload: -{}", value.type_name())))
    }
}

/// The element at an index or a key; `None` if there is none.
///
/// # Errors
/// [`Stop::Failed`] if the value has no elements, or none of such an index.
fn index<'a>(value: &Val<'a>, index: &Val<'_>, meter: &mut Meter) -> Result<Option<Val<'a>>, Stop> {
    match (value, index) {
        (Val::Map(map), key) => map.get(key, meter),
        (Val::List(list), Val::Int(index)) => Ok(usize::try_from(*index).ok().and_then(|at| list.get(at))),
        (Val::List(list), Val::Uint(index)) => Ok(usize::try_from(*index).ok().and_then(|at| list.get(at))),
        (Val::List(list), Val::Double(index)) if index.fract() == 0.0 => {
            Ok((*index >= 0.0 && *index < list.len() as f64).then(|| list.get(*index as usize)).flatten())
        }
        (Val::List(_), Val::Double(_)) => Err(Stop::Failed("an index must be a whole number".into())),
        _ => Err(Stop::Failed(format!("no such overload: {}[{}]", value.type_name(), index.type_name()))),
    }
}

/// The element at an index or a key as an optional value. A value that has no elements lacks it.
///
/// # Errors
/// [`Stop::Failed`] if a list has no such indexes.
pub(super) fn optional_index<'a>(value: &Val<'a>, at: &Val<'_>, meter: &mut Meter) -> Result<Val<'a>, Stop> {
    match value.present() {
        Some(value @ (Val::List(_) | Val::Map(_))) => index(value, at, meter).map(Val::optional),
        Some(_) | None => Ok(Val::Optional(None)),
    }
}

fn contains(value: &Val<'_>, within: &Val<'_>, meter: &mut Meter) -> Result<bool, Stop> {
    if let Val::List(list) = within {
        list.contains(value, meter)
    } else if let Val::Map(map) = within {
        Ok(map.get(value, meter)?.is_some())
    } else {
        Err(Stop::NoOverload)
    }
}

fn add<'a>(one: &Val<'a>, other: &Val<'a>, meter: &mut Meter) -> Result<Val<'a>, Stop> {
    match (one, other) {
        (Val::Text(one), Val::Text(other)) => {
            meter.make_text(one.len() + other.len())?;
            Ok(Val::text([&**one, &**other].concat()))
        }
        (Val::Bytes(one), Val::Bytes(other)) => {
            meter.make_text(one.len() + other.len())?;
            Ok(Val::Bytes([&**one, &**other].concat().into()))
        }
        (Val::List(one), Val::List(other)) => {
            meter.make_elements(one.len() + other.len())?;
            Ok(Val::List(List::Made(one.iter().chain(other.iter()).collect())))
        }
        _ => arithmetic(Arithmetic::Add, one, other),
    }
}

/// Also used by functions that add.
///
/// # Errors
/// [`Stop::NoOverload`] if the two are not numbers of one type; [`Stop::Failed`].
pub(super) fn arithmetic<'a>(operator: Arithmetic, one: &Val<'a>, other: &Val<'a>) -> Result<Val<'a>, Stop> {
    match (one, other) {
        (Val::Int(_), Val::Int(0)) | (Val::Uint(_), Val::Uint(0)) if operator == Arithmetic::Divide => {
            Err(Stop::Failed("division by zero".into()))
        }
        (Val::Int(_), Val::Int(0)) | (Val::Uint(_), Val::Uint(0)) if operator == Arithmetic::Modulo => {
            Err(Stop::Failed("modulus by zero".into()))
        }
        (Val::Int(one), Val::Int(other)) => {
            let result = match operator {
                Arithmetic::Add => one.checked_add(*other),
                Arithmetic::Subtract => one.checked_sub(*other),
                Arithmetic::Multiply => one.checked_mul(*other),
                Arithmetic::Divide => one.checked_div(*other),
                Arithmetic::Modulo => one.checked_rem(*other),
            };
            result.map(Val::Int).ok_or_else(overflow)
        }
        (Val::Uint(one), Val::Uint(other)) => {
            let result = match operator {
                Arithmetic::Add => one.checked_add(*other),
                Arithmetic::Subtract => one.checked_sub(*other),
                Arithmetic::Multiply => one.checked_mul(*other),
                Arithmetic::Divide => one.checked_div(*other),
                Arithmetic::Modulo => one.checked_rem(*other),
            };
            result.map(Val::Uint).ok_or_else(overflow)
        }
        (Val::Double(one), Val::Double(other)) => match operator {
            Arithmetic::Add => Ok(Val::Double(one + other)),
            Arithmetic::Subtract => Ok(Val::Double(one - other)),
            Arithmetic::Multiply => Ok(Val::Double(one * other)),
            Arithmetic::Divide => Ok(Val::Double(one / other)),
            Arithmetic::Modulo => Err(Stop::NoOverload),
        },
        _ => Err(Stop::NoOverload),
    }
}

fn overflow() -> Stop {
    Stop::Failed("the result is out of the range of an integer".into())
}
