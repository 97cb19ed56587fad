//! The functions that an expression may call. Each file has a table of its own.

use super::function::{Form, Function};

mod lists;
mod net;
mod optionals;
mod quantity;
mod semver;
mod standard;
mod strings;

/// The tables of all libraries.
const TABLES: [&[Function]; 7] = [
    &lists::FUNCTIONS,
    &net::FUNCTIONS,
    &optionals::FUNCTIONS,
    &quantity::FUNCTIONS,
    &semver::FUNCTIONS,
    &standard::FUNCTIONS,
    &strings::FUNCTIONS,
];

/// The functions that a call can mean: at least one.
///
/// # Errors
/// What is wrong with the call, with the name of the function.
pub(super) fn find(name: &str, form: Form, args: usize) -> Result<Vec<&'static Function>, String> {
    let named: Vec<_> = TABLES.into_iter().flatten().filter(|function| function.name == name).collect();
    if named.is_empty() {
        return Err(unknown(name));
    }
    let found: Vec<_> =
        named.iter().copied().filter(|function| (function.form, function.args) == (form, args)).collect();
    if found.is_empty() {
        let mut forms: Vec<_> = named.iter().map(|function| function.shape()).collect();
        forms.dedup();
        return Err(format!("wrong call of the function {name:?}; expected {}", forms.join(" or ")));
    }
    Ok(found)
}

/// Whether functions are called as `namespace.name()`.
pub(super) fn is_namespace(namespace: &str) -> bool {
    let is_in =
        |function: &Function| function.name.split_once('.').is_some_and(|(name, _)| name == namespace);
    TABLES.into_iter().flatten().any(is_in)
}

fn unknown(name: &str) -> String {
    let known = TABLES.into_iter().flatten().map(|function| function.name);
    let closest = known.min_by_key(|known| strsim::damerau_levenshtein(known, name));
    match closest {
        Some(known) if strsim::damerau_levenshtein(known, name) <= 2 => {
            format!("unknown function {name:?}; did you mean {known:?}?")
        }
        _ => format!("unknown function {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::compiled;
    use super::super::evaluate::Evaluation;
    use super::super::function::Arguments;
    use super::super::meter::{Meter, Stop};
    use super::super::pattern::Pattern;
    use super::*;

    #[test]
    fn no_function_panics_whatever_its_arguments_are() {
        let texts = [
            "null",
            "false",
            "0",
            "-1",
            "-9223372036854775807 - 1",
            "9223372036854775807",
            "3u",
            "0.0 / 0.0",
            "-1e300",
            "''",
            "'añb'",
            "b'añ'",
            "[]",
            "['a', 'ñ', 'a']",
            "[3, 1]",
            "{'a': 1}",
            "int",
            "quantity('-1.5Gi')",
            "quantity('9999999999999999999999999999999999999e2147483647')",
            "ip('::1')",
            "cidr('10.1.2.3/0')",
            "semver('18446744073709551615.0.0-a.1')",
            "optional.none()",
            "optional.of(1)",
        ];
        let json = serde_json::Value::Null;
        let programs: Vec<_> = texts.iter().map(|text| compiled(text).unwrap().root).collect();
        let values: Vec<_> =
            programs.iter().map(|program| Evaluation::new(&json).value(program).unwrap()).collect();
        let pattern = Pattern::parse("a|").unwrap();
        for function in TABLES.into_iter().flatten() {
            let count = u32::try_from(function.args).unwrap();
            let (mut fit, mut refused) = (0, 0);
            for round in 0..values.len().pow(count) {
                let at = |place| round / values.len().pow(place) % values.len();
                let values: Vec<_> = (0..count).map(|place| values[at(place)].clone()).collect();
                let mut args = Arguments {
                    name: function.name,
                    values: &values,
                    pattern: function.takes_pattern().then_some(&pattern),
                    meter: &mut Meter::new(),
                };
                match (function.run)(&mut args) {
                    Err(Stop::NoOverload) => refused += 1,
                    _ => fit += 1,
                }
            }
            assert!(fit > 0, "{} takes none of {refused}", function.name);
        }
    }

    #[test]
    fn no_two_functions_are_the_same() {
        let all: Vec<_> = TABLES.into_iter().flatten().collect();
        for (index, one) in all.iter().enumerate() {
            let overloads = ["indexOf", "lastIndexOf", "isLessThan", "isGreaterThan", "compareTo"];
            let same =
                |other: &&Function| (other.name, other.form, other.args) == (one.name, one.form, one.args);
            let again = all[index + 1..].iter().copied().find(same);
            assert!(again.is_none_or(|one| overloads.contains(&one.name)), "{} is there twice", one.name);
        }
    }
}
