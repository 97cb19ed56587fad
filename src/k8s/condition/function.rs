//! A function that an expression may call, and the arguments of a call.

use super::meter::{Meter, Stop};
use super::pattern::Pattern;
use super::value::{List, Text, Val};

/// A function. Several may have the same name; the number and the types of the arguments decide.
#[derive(Debug)]
pub(super) struct Function {
    /// With a namespace where it has one, as in `sets.contains`.
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// Number of arguments. What it is called on counts as the first.
    pub(super) args: usize,
    /// Whether the second argument is a regular expression. It has to be a literal, so that it is compiled once, and a wrong
    /// one is refused.
    takes_pattern: bool,
    /// Whether it takes the value of its first argument where that has one, and the second is not evaluated then.
    is_lazy: bool,
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
    pub(super) pattern: Option<&'c Pattern>,
    pub(super) meter: &'c mut Meter,
}

// === impl Function ===

impl Function {
    /// A function that is called as `name(value)`.
    pub(super) const fn global(name: &'static str, args: usize, run: Run) -> Self {
        Self { name, form: Form::Global, args, takes_pattern: false, is_lazy: false, run }
    }

    /// A function that is called as `value.name()`.
    pub(super) const fn member(name: &'static str, args: usize, run: Run) -> Self {
        Self { name, form: Form::Member, args, takes_pattern: false, is_lazy: false, run }
    }

    /// The same with a regular expression as its second argument.
    pub(super) const fn with_pattern(self) -> Self {
        Self { takes_pattern: true, ..self }
    }

    /// The same, but its second argument is evaluated only where the first, an optional value, has none.
    pub(super) const fn lazy(self) -> Self {
        Self { is_lazy: true, ..self }
    }

    /// Whether its second argument is evaluated only where the first, an optional value, has none.
    pub(super) fn is_lazy(&self) -> bool {
        self.is_lazy
    }

    /// Whether its second argument is a regular expression.
    pub(super) fn takes_pattern(&self) -> bool {
        self.takes_pattern
    }

    /// How it is called, for a message: `value.charAt(_)`.
    pub(super) fn shape(&self) -> String {
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
    pub(super) fn pattern(&self) -> Result<&'c Pattern, Stop> {
        self.pattern.ok_or(Stop::NoOverload)
    }

    /// A failure of the function on a value.
    pub(super) fn failed(&self, value: impl std::fmt::Display, why: impl std::fmt::Display) -> Stop {
        Stop::Failed(format!("{}({value}): {why}", self.name))
    }
}
