//! The functions on semantic versions.
//!
//! Source: `k8s.io/apiserver/pkg/cel/library/semverlib.go`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::super::function::{Arguments, Function};
use super::super::meter::Stop;
use super::super::semver::Semver;
use super::super::value::Val;

pub(super) const FUNCTIONS: [Function; 10] = [
    Function::global("semver", 1, semver),
    Function::global("semver", 2, semver),
    Function::global("isSemver", 1, is_semver),
    Function::global("isSemver", 2, is_semver),
    Function::member("major", 1, major),
    Function::member("minor", 1, minor),
    Function::member("patch", 1, patch),
    Function::member("isLessThan", 2, is_less_than),
    Function::member("isGreaterThan", 2, is_greater_than),
    Function::member("compareTo", 2, compare_to),
];

/// What the arguments say: a text, and whether it is read tolerantly.
fn version(args: &mut Arguments<'_, '_>) -> Result<Result<Semver, &'static str>, Stop> {
    let text = args.text(0)?;
    args.meter.make_text(text.len())?;
    // Each may become an identifier of its own.
    args.meter.make_elements(text.matches('.').count())?;
    let tolerant = args.values.len() > 1 && args.bool(1)?;
    Ok(if tolerant { Semver::parse_tolerantly(text) } else { Semver::parse(text) })
}

fn semver<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    match version(args)? {
        Ok(version) => Ok(Val::Semver(Arc::new(version))),
        Err(why) => Err(args.failed(args.text(0)?, why)),
    }
}

fn is_semver<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(version(args)?.is_ok()))
}

fn semver_at<'c>(args: &Arguments<'c, '_>, at: usize) -> Result<&'c Semver, Stop> {
    if let Val::Semver(version) = args.value(at)? { Ok(version) } else { Err(Stop::NoOverload) }
}

fn major<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    number_at(args, 0)
}

fn minor<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    number_at(args, 1)
}

fn patch<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    number_at(args, 2)
}

/// A number of the version. One above those of an `int` wraps, as upstream's conversion does.
fn number_at<'a>(args: &Arguments<'_, 'a>, at: usize) -> Result<Val<'a>, Stop> {
    Ok(Val::Int(semver_at(args, 0)?.numbers[at].cast_signed()))
}

fn order(args: &mut Arguments<'_, '_>) -> Result<Ordering, Stop> {
    let (one, other) = (semver_at(args, 0)?, semver_at(args, 1)?);
    args.meter.spend(one.comparison_work(other))?;
    Ok(one.cmp(other))
}

fn is_less_than<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(order(args)?.is_lt()))
}

fn is_greater_than<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(order(args)?.is_gt()))
}

fn compare_to<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Int(order(args)? as i64))
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{check_all, check_failures};

    #[test]
    fn versions_follow_the_library() {
        check_all(&[
            "isSemver('1.2.3-beta.1+build.1') && isSemver('0.1.0-alpha.1') && isSemver('1.0.0+a-b')",
            "!isSemver('') && !isSemver('v1.0.0') && !isSemver(' 1.0.0') && !isSemver('1. 0.0') && !isSemver('1.0.0 ')",
            "!isSemver('01.01.01') && !isSemver('1') && !isSemver('1.1') && !isSemver('1.0.0-') && !isSemver('1.0.0-01')",
            "!isSemver('1.0.0+') && !isSemver('1.0.0-a..b') && !isSemver('1.0.18446744073709551616') && !isSemver('hello')",
            "!isSemver('', true) && !isSemver(' 1.0.0', true) && !isSemver('1. 0.0', true) && !isSemver('1.0.0 ', true)",
            "isSemver('v1.0.0', true) && isSemver('01.01.01', true) && isSemver('1', true) && isSemver('1.1', true)",
            "!isSemver('1.1-a', true) && isSemver('1.0.00-a', true) && !isSemver('v1.0', false)",
            "semver('v01.01', true) == semver('1.1.0') && semver('1.2.3') != semver('1.0.0')",
            "semver('1.0.0+a') == semver('1.0.0+b') && semver('1.0.0') != null",
            "semver('1.0.0').isLessThan(semver('1.2.3')) && !semver('1.0.0').isLessThan(semver('1.0.0'))",
            "semver('1.2.3').isGreaterThan(semver('1.0.0')) && !semver('1.0.0').isGreaterThan(semver('1.0.0'))",
            "semver('1.2.3').compareTo(semver('1.2.3')) == 0 && semver('1.0.0').compareTo(semver('1.2.3')) == -1",
            "semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3",
            "type(semver('1.2.3')) == kubernetes.Semver",
            "object.metadata.name.find('x') == '' && semver('1.31.0').compareTo(semver('1.9.0')) == 1",
        ]);
        // The order of the standard (semver.org, item 11).
        let ordered = [
            "1.0.0-1",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0",
        ];
        for pair in ordered.windows(2) {
            check_all(&[&format!("semver('{}').isLessThan(semver('{}'))", pair[0], pair[1])]);
        }
        check_failures(&[
            ("semver('v1.0').major() == 1", "semver(\"v1.0\"): no Major.Minor.Patch elements found"),
            ("semver('1.0.x').major() == 1", "semver(\"1.0.x\"): expected digits"),
            ("isSemver([1, 2, 3])", "no such overload: isSemver(list)"),
            (
                "semver('1.0.0').isLessThan(quantity('1'))",
                "isLessThan(kubernetes.Semver, kubernetes.Quantity)",
            ),
        ]);
    }
}
