//! The functions on lists of Kubernetes' CEL, and those that take lists for sets.

use std::cmp::Ordering;

use super::super::function::{Arguments, Function};
use super::super::meter::{Meter, Stop};
use super::super::operators;
use super::super::program::Arithmetic;
use super::super::value::{List, Val};

pub(super) const FUNCTIONS: [Function; 9] = [
    Function::member("isSorted", 1, is_sorted),
    Function::member("sum", 1, sum),
    Function::member("min", 1, min),
    Function::member("max", 1, max),
    Function::member("indexOf", 2, index_of),
    Function::member("lastIndexOf", 2, last_index_of),
    Function::global("sets.contains", 2, sets_contain),
    Function::global("sets.equivalent", 2, sets_are_equivalent),
    Function::global("sets.intersects", 2, sets_intersect),
];

fn is_sorted<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let list = args.list(0)?;
    let mut last: Option<Val<'a>> = None;
    for element in list.iter() {
        if let Some(last) = last
            && ordered(args, &last, &element)?.is_gt()
        {
            return Ok(Val::Bool(false));
        }
        last = Some(element);
    }
    Ok(Val::Bool(true))
}

/// The sum of numbers of one type; 0 if there are none.
fn sum<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let list = args.list(0)?;
    args.meter.spend(list.len())?;
    let mut all = list.iter();
    let Some(mut sum) = all.next() else { return Ok(Val::Int(0)) };
    if !matches!(sum, Val::Int(_) | Val::Uint(_) | Val::Double(_)) {
        return Err(args.failed(sum.type_name(), "expected numbers in the list"));
    }
    for element in all {
        sum = match operators::arithmetic(Arithmetic::Add, &sum, &element) {
            Err(Stop::NoOverload) => {
                let types = format!("{}, {}", sum.type_name(), element.type_name());
                return Err(args.failed(types, "expected numbers of one type in the list"));
            }
            sum => sum?,
        };
    }
    Ok(sum)
}

fn min<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    extreme(args, Ordering::Less)
}

fn max<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    extreme(args, Ordering::Greater)
}

/// The first element that no other one goes beyond.
fn extreme<'a>(args: &mut Arguments<'_, 'a>, beyond: Ordering) -> Result<Val<'a>, Stop> {
    let list = args.list(0)?;
    let mut all = list.iter();
    let Some(mut found) = all.next() else { return Err(args.failed("[]", "called on an empty list")) };
    // A single element has to have an order as well.
    ordered(args, &found, &found)?;
    for element in all {
        if ordered(args, &element, &found)? == beyond {
            found = element;
        }
    }
    Ok(found)
}

/// The order of two elements.
fn ordered(args: &mut Arguments<'_, '_>, one: &Val<'_>, other: &Val<'_>) -> Result<Ordering, Stop> {
    match one.compare(other, args.meter) {
        Err(Stop::NoOverload) => {
            let types = format!("{}, {}", one.type_name(), other.type_name());
            Err(args.failed(types, "the elements have no order"))
        }
        order => order,
    }
}

fn index_of<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (list, value) = (args.list(0)?, args.value(1)?);
    place(list.iter().enumerate(), value, args.meter)
}

fn last_index_of<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (list, value) = (args.list(0)?, args.value(1)?);
    let indexes = (0..list.len()).rev();
    place(indexes.filter_map(|index| Some((index, list.get(index)?))), value, args.meter)
}

/// The place of the first equal element; -1 if there is none.
fn place<'a>(
    elements: impl Iterator<Item = (usize, Val<'a>)>,
    value: &Val<'a>,
    meter: &mut Meter,
) -> Result<Val<'a>, Stop> {
    for (index, element) in elements {
        if element.equals(value, meter)? {
            return Ok(Val::Int(i64::try_from(index).unwrap_or(i64::MAX)));
        }
    }
    Ok(Val::Int(-1))
}

fn sets_contain<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (one, other) = (args.list(0)?, args.list(1)?);
    contains_all(one, other, args.meter).map(Val::Bool)
}

fn sets_are_equivalent<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (one, other) = (args.list(0)?, args.list(1)?);
    let both = contains_all(one, other, args.meter)? && contains_all(other, one, args.meter)?;
    Ok(Val::Bool(both))
}

fn sets_intersect<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (one, other) = (args.list(0)?, args.list(1)?);
    for element in one.iter() {
        if other.contains(&element, args.meter)? {
            return Ok(Val::Bool(true));
        }
    }
    Ok(Val::Bool(false))
}

/// Whether a list has all elements of another one.
fn contains_all(list: &List<'_>, others: &List<'_>, meter: &mut Meter) -> Result<bool, Stop> {
    for element in others.iter() {
        meter.spend(1)?;
        if !list.contains(&element, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{check_all, check_failures};

    #[test]
    fn lists_follow_the_library() {
        check_all(&[
            "[1, 2, 3].isSorted() && ['a', 'b', 'b', 'c'].isSorted() && ![2.0, 1.0].isSorted() && [].isSorted()",
            "[false, true].isSorted() && [b'a', b'b'].isSorted() && [1, 1.5, 2u].isSorted()",
            "[1, 3].sum() == 4 && type([1.0, 3.0].sum()) == double && [1u, 2u].sum() == 3u && [].sum() == 0",
            "[1, 3].min() == 1 && [1, 3].max() == 3 && [1].min() == 1 && ['b', 'a'].min() == 'a'",
            "[2, 3, 3].indexOf(3) == 1 && ['a', 'b', 'b', 'c'].lastIndexOf('b') == 2 && [1.0].indexOf(1.1) == -1",
            "[].indexOf('string') == -1 && [1, 2].indexOf(2.0) == 1 && [[1], [2]].lastIndexOf([2]) == 1",
            "object.spec.containers.map(c, c.name).isSorted()",
            "object.spec.containers.map(c, size(c.name)).sum() == 2",
        ]);
        check_failures(&[
            ("[].min() == 1", "min([]): called on an empty list"),
            ("[].max() == 1", "max([]): called on an empty list"),
            ("[1, 'a'].max() == 1", "max(string, int): the elements have no order"),
            ("[[]].max() == 1", "the elements have no order"),
            ("[null, null].isSorted()", "isSorted(null_type, null_type)"),
            ("[1, 2.0].sum() == 1", "sum(int, double): expected numbers of one type"),
            ("['a'].sum() == 'a'", "sum(string): expected numbers"),
            ("[9223372036854775807, 1].sum() == 1", "out of the range"),
            ("{'a': 1}.sum() == 1", "no such overload: sum(map)"),
        ]);
    }

    #[test]
    fn sets_follow_the_library() {
        check_all(&[
            "sets.contains([], []) && !sets.contains([], [1]) && sets.contains([1, 2, 3, 4], [2, 3])",
            "sets.contains([1, 2.0, 3u], [1.0, 2u, 3]) && sets.contains([1, 1], [1])",
            "sets.equivalent([], []) && sets.equivalent([1], [1, 1]) && sets.equivalent([1], [1u, 1.0])",
            "!sets.equivalent([1, 2, 3], [3u, 2.0]) && sets.equivalent([1, 2, 3], [3u, 2.0, 1])",
            "!sets.intersects([1], []) && sets.intersects([1], [1, 2]) && sets.intersects([[1], [2, 3]], [[2, 3.0]])",
            "sets.intersects(object.spec.containers.map(c, c.name), ['b', 'z'])",
            // A variable of this name hides the namespace.
            "['a'].all(sets, sets.contains('a'))",
        ]);
        check_failures(&[("sets.contains([1], 1)", "no such overload: sets.contains(list, int)")]);
    }

    #[test]
    fn comparing_lists_is_bounded() {
        let long = format!("[[1,2,3,4,5,6,7,8]]{}", ".map(a, a + a)".repeat(11));
        check_failures(&[(
            &format!("{long}.all(a, sets.contains(a, a.map(x, x + 8)) || true)"),
            "too much work",
        )]);
        check_failures(&[(&format!("{long}.all(a, a.all(x, a.indexOf(x + 100) < 0))"), "too much work")]);
    }
}
