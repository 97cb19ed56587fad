//! The functions that an expression may call. Each file of a library has a table of its own.

use regex::Regex;

use super::meter::{Meter, Stop};
use super::value::{List, Text, Val};
use super::{lists, net, optionals, quantity, semver, standard, strings};

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

/// A function. Several may have the same name; the number and the types of the arguments decide.
#[derive(Debug)]
pub(super) struct Function {
    /// With a namespace where it has one, as in `sets.contains`.
    pub(super) name: &'static str,
    form: Form,
    /// Number of arguments. What it is called on counts as the first.
    args: usize,
    /// Whether the second argument is a regular expression. It has to be a literal, so that it is compiled once, and a wrong
    /// one is refused.
    takes_pattern: bool,
    pub(super) run: Run,
}

/// What a function does.
type Run = for<'c, 'a> fn(&mut Arguments<'c, 'a>) -> Result<Val<'a>, Stop>;

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `name(value)`
    Global,
    /// `value.name()`
    Member,
}

/// The arguments of a call.
pub(super) struct Arguments<'c, 'a> {
    pub(super) name: &'static str,
    pub(super) values: &'c [Val<'a>],
    /// The compiled second argument, of a function that takes a pattern.
    pub(super) pattern: Option<&'c Regex>,
    pub(super) meter: &'c mut Meter,
}

// === impl Function ===

impl Function {
    /// A function that is called as `name(value)`.
    pub(super) const fn global(name: &'static str, args: usize, run: Run) -> Self {
        Self { name, form: Form::Global, args, takes_pattern: false, run }
    }

    /// A function that is called as `value.name()`.
    pub(super) const fn member(name: &'static str, args: usize, run: Run) -> Self {
        Self { name, form: Form::Member, args, takes_pattern: false, run }
    }

    /// The same with a regular expression as its second argument.
    pub(super) const fn with_pattern(self) -> Self {
        Self { takes_pattern: true, ..self }
    }
}

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

/// Whether a function is called as `namespace.name()`.
pub(super) fn is_namespaced(namespace: &str, name: &str) -> bool {
    let is = |function: &Function| function.name.split_once('.') == Some((namespace, name));
    TABLES.into_iter().flatten().any(is)
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

impl Function {
    /// Whether its second argument is a regular expression.
    pub(super) fn takes_pattern(&self) -> bool {
        self.takes_pattern
    }

    /// How it is called, for a message: `value.charAt(_)`.
    fn shape(&self) -> String {
        match self.form {
            Form::Global => format!("{}({})", self.name, vec!["_"; self.args].join(", ")),
            Form::Member => {
                format!("value.{}({})", self.name, vec!["_"; self.args.saturating_sub(1)].join(", "))
            }
        }
    }
}

// === impl Arguments ===

/// The arguments of a type.
///
/// # Errors
/// [`Stop::NoOverload`] if an argument is of another type.
impl<'c, 'a> Arguments<'c, 'a> {
    pub(super) fn value(&self, at: usize) -> Result<&'c Val<'a>, Stop> {
        self.values.get(at).ok_or(Stop::NoOverload)
    }

    pub(super) fn text(&self, at: usize) -> Result<&'c Text<'a>, Stop> {
        if let Val::Text(text) = self.value(at)? { Ok(text) } else { Err(Stop::NoOverload) }
    }

    pub(super) fn int(&self, at: usize) -> Result<i64, Stop> {
        if let Val::Int(value) = self.value(at)? { Ok(*value) } else { Err(Stop::NoOverload) }
    }

    pub(super) fn bool(&self, at: usize) -> Result<bool, Stop> {
        if let Val::Bool(value) = self.value(at)? { Ok(*value) } else { Err(Stop::NoOverload) }
    }

    /// An argument that may be left out.
    pub(super) fn optional_int(&self, at: usize) -> Result<Option<i64>, Stop> {
        if self.values.len() > at { self.int(at).map(Some) } else { Ok(None) }
    }

    pub(super) fn list(&self, at: usize) -> Result<&'c List<'a>, Stop> {
        if let Val::List(list) = self.value(at)? { Ok(list) } else { Err(Stop::NoOverload) }
    }

    /// The compiled regular expression.
    pub(super) fn pattern(&self) -> Result<&'c Regex, Stop> {
        self.pattern.ok_or(Stop::NoOverload)
    }

    /// A failure of the function on a value.
    pub(super) fn failed(&self, value: impl std::fmt::Display, why: impl std::fmt::Display) -> Stop {
        Stop::Failed(format!("{}({value}): {why}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::compiled;
    use super::super::evaluate::Evaluation;
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
        let pattern = Regex::new("a|").unwrap();
        for function in TABLES.into_iter().flatten() {
            let count = u32::try_from(function.args).unwrap();
            let (mut fit, mut refused) = (0, 0);
            for round in 0..values.len().pow(count) {
                let at = |place| round / values.len().pow(place) % values.len();
                let values: Vec<_> = (0..count).map(|place| values[at(place)].clone()).collect();
                let mut args = Arguments {
                    name: function.name,
                    values: &values,
                    pattern: function.takes_pattern.then_some(&pattern),
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
