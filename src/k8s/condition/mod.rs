//! Conditions on an object in CEL, the Common Expression Language of Kubernetes' admission policies and CRD rules.
//!
//! The crate `cel` parses an expression and replaces its macros. The rest is here, for two reasons: its evaluator has no limit on
//! work and memory, and it copies values, so that a short expression can double a list until memory is full.
//!
//! In come the text of an expression ([`Condition::parse`]) and objects ([`Condition::holds`]). `compile` resolves names and
//! prepares patterns, so that a wrong expression is refused before it is used. `evaluate` goes through the result, and spends
//! from a `Meter` for each step. The functions are in `library`.

mod compile;
mod evaluate;
mod function;
mod library;
mod meter;
mod net;
mod operators;
mod pattern;
mod program;
mod quantity;
mod semver;
mod value;

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cel::Env;

use self::compile::Compiled;
use self::evaluate::Evaluation;
use self::meter::Stop;
use self::program::Node;
use self::value::Val;
use super::{FieldMask, Object};

/// Longest expression, in bytes: more than people write into a URL by hand. The parser's work grows with it.
const BYTES_MAX: usize = 1024;
/// Nesting of brackets and conditionals. Each level takes stack of the parser.
const NESTING_MAX: usize = 16;
/// Stack of the thread that parses, in bytes: the parser takes some 10 KB for each level.
const PARSER_STACK: usize = 16 << 20;

/// A condition on an object: a CEL expression over `object` that gives a boolean. Two of the same text are equal.
#[derive(Debug)]
pub struct Condition {
    text: String,
    root: Node,
    /// The members that the expression reads; `None` for the whole object.
    mask: Option<FieldMask>,
    /// About the largest work of its last evaluations.
    work: AtomicUsize,
}

/// Why a text is not a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConditionError(String);

/// Why a condition could not be evaluated for an object. That the object lacks a member is not a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConditionFailure(String);

/// Has the macros. The functions are ours.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

impl Condition {
    /// Compiles an expression. Takes a thread of its own for some 100 us.
    ///
    /// # Errors
    /// [`ConditionError`] if the text does not compile (with line and column), names an unknown variable or function, or is
    /// too long or too deeply nested.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        let wrong = |message: String| Err(ConditionError(message));
        if text.trim().is_empty() {
            return wrong("expected a CEL expression over object, such as object.spec.replicas > 1".into());
        }
        if text.len() > BYTES_MAX {
            return wrong(format!("it has {} bytes, more than {BYTES_MAX}", text.len()));
        }
        if nesting(text) > NESTING_MAX {
            return wrong(format!("brackets and conditionals are nested more than {NESTING_MAX} deep"));
        }
        let owned = text.to_owned();
        let parser = std::thread::Builder::new().stack_size(PARSER_STACK);
        let compiled = parser.spawn(move || compiled(&owned));
        let Some(compiled) = compiled.ok().and_then(|thread| thread.join().ok()) else {
            return wrong("it does not parse".into());
        };
        let Compiled { root, paths } = compiled.map_err(ConditionError)?;
        let whole = paths.iter().any(Vec::is_empty);
        let mask = (!whole).then(|| FieldMask::of_names(paths.into_iter().collect()));
        Ok(Self { text: text.to_owned(), root, mask, work: AtomicUsize::new(0) })
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The members that the expression reads; none if it reads the object as a whole.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        self.mask.iter().flat_map(FieldMask::paths)
    }

    /// How long one of its evaluations takes by its last ones, as far as it is the expression that takes the time.
    pub fn cost(&self) -> Duration {
        meter::time_of(self.work.load(Ordering::Relaxed))
    }

    /// Whether it is true of an object. It is false if the object lacks a member that it reads.
    ///
    /// # Errors
    /// [`ConditionFailure`] for any other failure: a wrong type, a result that is not a boolean, too much work.
    pub fn holds(&self, object: &Object) -> Result<bool, ConditionFailure> {
        let json = object.text();
        let text = std::str::from_utf8(&json).unwrap_or_default();
        let json: Result<serde_json::Value, _> = match &self.mask {
            Some(mask) => serde_json::from_str(&mask.cut_json(text)),
            None => serde_json::from_str(text),
        };
        let json = json.map_err(|error| ConditionFailure(error.to_string()))?;
        let mut evaluation = Evaluation::new(&json);
        let result = evaluation.value(&self.root);
        // One that costs less lowers it by a part, as objects differ.
        let before = self.work.load(Ordering::Relaxed);
        self.work.store(evaluation.work().max(before - before / 8), Ordering::Relaxed);
        match result {
            Ok(Val::Bool(holds)) => Ok(holds),
            Ok(other) => Err(ConditionFailure(format!(
                "the result is of type {} and not a boolean",
                other.type_name()
            ))),
            Err(Stop::Missing) => Ok(false),
            Err(Stop::Failed(message)) => Err(ConditionFailure(message)),
            Err(Stop::NoOverload) => Err(ConditionFailure("no such overload".into())),
            Err(Stop::Spent) => Err(ConditionFailure("too much work for this object".into())),
        }
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Condition {}

impl Hash for Condition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

fn compiled(text: &str) -> Result<Compiled, String> {
    let program = ENV.compile(text).map_err(|errors| match errors.errors.first() {
        Some(error) => {
            let usage =
                compile::usage_of(&error.msg).map_or(String::new(), |usage| format!("; expected {usage}"));
            format!("line {} column {}: {}{usage}", error.pos.0, error.pos.1, error.msg)
        }
        None => "it does not parse".to_owned(),
    })?;
    compile::compile(program.expression())
}

/// The deepest nesting of brackets and conditionals. Not of those within strings and comments.
fn nesting(text: &str) -> usize {
    let bytes = text.as_bytes();
    // The number of conditionals at each level of brackets.
    let (mut levels, mut deepest) = (vec![0], 0);
    let (mut at, mut previous) = (0, b' ');
    while at < bytes.len() {
        let byte = bytes[at];
        let next = match byte {
            b'\'' | b'"' => string_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"//") => {
                bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |len| at + len)
            }
            _ => at + 1,
        };
        match byte {
            b'(' | b'[' | b'{' => levels.push(0),
            b')' | b']' | b'}' if levels.len() > 1 => drop(levels.pop()),
            b',' => levels.last_mut().into_iter().for_each(|conditionals| *conditionals = 0),
            // An optional member, index, element or value.
            b'?' if matches!(previous, b'.' | b'[' | b'{' | b',') => {}
            b'?' => levels.last_mut().into_iter().for_each(|conditionals| *conditionals += 1),
            _ => {}
        }
        deepest = deepest.max(levels.len() - 1 + levels.iter().sum::<usize>());
        previous = if byte.is_ascii_whitespace() { previous } else { byte };
        at = next;
    }
    deepest
}

/// Where the string ends that begins with a quote.
fn string_end(bytes: &[u8], begin: usize) -> usize {
    let quote = &bytes[begin..=begin];
    let quotes = quote.repeat(3);
    let end = if bytes[begin..].starts_with(&quotes) { &*quotes } else { quote };
    let is_raw = begin > 0 && bytes[begin - 1].eq_ignore_ascii_case(&b'r');
    let mut at = begin + end.len();
    while at < bytes.len() && !bytes[at..].starts_with(end) {
        at += if bytes[at] == b'\\' && !is_raw { 2 } else { 1 };
    }
    bytes.len().min(at + end.len())
}

#[cfg(test)]
mod tests;
