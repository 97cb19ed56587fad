//! Optional values (`object.?spec.?replicas`), and the functions on them.

use std::sync::Arc;

use super::super::function::{Arguments, Function};
use super::super::meter::Stop;
use super::super::value::Val;

pub(super) const FUNCTIONS: [Function; 7] = [
    Function::global("optional.none", 0, none),
    Function::global("optional.of", 1, of),
    Function::global("optional.ofNonZeroValue", 1, of_non_zero_value),
    Function::member("hasValue", 1, has_value),
    Function::member("value", 1, value),
    Function::member("or", 2, or).lazy(),
    Function::member("orValue", 2, or_value).lazy(),
];

fn none<'a>(_: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Optional(None))
}

fn of<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::optional(Some(args.value(0)?.clone())))
}

fn of_non_zero_value<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let value = args.value(0)?;
    Ok(Val::optional(Some(value.clone()).filter(|value| !is_zero(value))))
}

/// Whether a value is the one that a variable of its type has at first.
fn is_zero(value: &Val<'_>) -> bool {
    match value {
        Val::Null | Val::Bool(false) | Val::Int(0) | Val::Uint(0) | Val::Optional(None) => true,
        Val::Double(value) => *value == 0.0,
        Val::Text(text) => text.is_empty(),
        Val::Bytes(bytes) => bytes.is_empty(),
        Val::List(list) => list.len() == 0,
        Val::Map(map) => map.len() == 0,
        Val::Bool(true)
        | Val::Int(_)
        | Val::Uint(_)
        | Val::Optional(Some(_))
        | Val::Quantity(_)
        | Val::Ip(_)
        | Val::Cidr(_)
        | Val::Semver(_)
        | Val::Type(_) => false,
    }
}

/// The value that an argument may have.
fn optional_at<'c, 'a>(args: &Arguments<'c, 'a>, at: usize) -> Result<Option<&'c Arc<Val<'a>>>, Stop> {
    if let Val::Optional(value) = args.value(at)? { Ok(value.as_ref()) } else { Err(Stop::NoOverload) }
}

fn has_value<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(optional_at(args, 0)?.is_some()))
}

/// The value. Without one the object lacks what the expression reads: so a condition does not hold, as without `?`.
fn value<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    optional_at(args, 0)?.map(|value| (**value).clone()).ok_or(Stop::Missing)
}

fn or<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let value = optional_at(args, 0)?;
    let value = if value.is_some() { value } else { optional_at(args, 1)? };
    Ok(Val::Optional(value.cloned()))
}

fn or_value<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    match optional_at(args, 0)? {
        Some(value) => Ok((**value).clone()),
        None => args.value(1).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Condition;
    use super::super::super::tests::{check, check_all, check_failures};

    #[test]
    fn optionals_follow_the_standard() {
        check_all(&[
            "object.?spec.?replicas.orValue(1) == 3 && object.?spec.?none.orValue(1) == 1",
            "object.?none.none.?none.orValue('x') == 'x' && object.?spec.replicas.value() == 3",
            "object.spec.?replicas.hasValue() && !object.spec.?none.hasValue() && !object.?spec.?replicas.?x.hasValue()",
            "object.?metadata.?labels[?'app'].orValue('') == 'web' && object.metadata.labels[?'none'].orValue('-') == '-'",
            "object.spec.containers[?1].?name.orValue('') == 'b' && object.spec.containers[?7].name.orValue('') == ''",
            "object.?spec.?containers[0].?name == optional.of('a')",
            "object.spec.containers.map(c, c.?env.orValue([]).size()) == [1, 0]",
            "optional.none() == optional.none() && optional.of(1) != optional.of(2) && optional.of(1) != optional.none()",
            "optional.of(1) == optional.of(1.0) && optional.none().or(optional.of(2)).value() == 2",
            "optional.of(1).or(optional.of(2)).value() == 1 && !optional.ofNonZeroValue('').hasValue()",
            "optional.ofNonZeroValue(3).value() == 3 && type(optional.none()) == optional_type",
            "has(object.?spec.replicas) && !has(object.?none.replicas) && !has(object.?spec.none)",
            "[1, ?object.?none, ?optional.of(2)] == [1, 2] && {?'a': object.?none, ?'b': optional.of(1)} == {'b': 1}",
            "object.?spec.?replicas.optMap(r, r + 1).orValue(0) == 4 && !object.?none.optMap(r, r + 1).hasValue()",
            "object.?spec.optFlatMap(s, s.?replicas).value() == 3 && optional.of(1).optMap(x, [x].map(y, x + y)[0]).value() == 2",
        ]);
        // The alternative is evaluated where it is needed only.
        check_all(&[
            "object.?metadata.?name.orValue(object.none) == 'p' && optional.of(1).orValue(1 / 0) == 1",
            "optional.of(1).or(optional.of(1 / 0)).value() == 1 && !has(object.spec.replicas.none)",
        ]);
        check("object.?none.orValue(object.none) == 'p'", Ok(false));
        // As without the question mark: the object lacks it.
        check("object.?none.value() == 1", Ok(false));
        check("object.?spec.none.value() == 1", Ok(false));
        check_failures(&[
            ("(1).hasValue()", "no such overload: hasValue(int)"),
            ("optional.none().or(2) == 2", "no such overload: or(optional_type, int)"),
            ("(1).orValue(2) == 2", "no such overload: orValue(int, int)"),
            ("object.spec.containers.?name.orValue('x') == 'x'", "no such overload: list.name"),
            ("object.spec.containers[?1.5].hasValue()", "an index must be a whole number"),
            ("object.spec.containers[?'a'].hasValue()", "no such overload: list.a"),
            ("has(object.spec.containers.name)", "no such overload: list.name"),
            ("[?1] == [1]", "expected an optional value after ?, found int"),
            ("optional.of(1)", "of type optional_type and not a boolean"),
        ]);
    }

    #[test]
    fn an_optional_path_reads_its_members_only() {
        let paths = |text: &str| Condition::parse(text).unwrap().paths().collect::<Vec<_>>();
        let plain = paths("object.spec.replicas == 1 && object.status.phase == ''");
        let optional = "object.?spec.?replicas.orValue(1) == 1 && has(object.?status.phase)";
        assert_eq!(paths(optional), plain);
        assert_eq!(
            paths("object.?spec[?'replicas'].hasValue() && object[?'status'].phase.hasValue()"),
            plain
        );
    }
}
