//! Conditions on an object in CEL, the Common Expression Language of Kubernetes' admission policies and CRD rules.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use cel::common::ast::operators;
use cel::common::ast::{EntryExpr, Expr, LiteralValue};
use cel::extractors::This;
use cel::{Context, Env, ExecutionError, IdedExpr, Program, Value};
use regex::{Regex, RegexBuilder};

use super::{FieldMask, Object};

/// The one variable of an expression.
const OBJECT: &str = "object";
/// Longest expression, in bytes: more than people write into a URL by hand. The parser's work grows with it.
const BYTES_MAX: usize = 1024;
/// Nesting of brackets and conditionals. Each level takes stack of the parser.
const NESTING_MAX: usize = 16;
/// Nesting of expressions. Each level takes stack of the thread that evaluates.
const DEPTH_MAX: usize = 64;
/// Largest cost of one evaluation: the number of expressions times the rounds that loops can take on the object, and more for
/// large objects, as a comparison walks through its operands. A few milliseconds.
const COST_MAX: usize = 50_000;
/// Elements and members that a comparison walks through in the time of another expression.
const COMPARED_AT_ONCE: usize = 256;
/// Size of a compiled regular expression, in bytes.
const REGEX_BYTES_MAX: usize = 64 << 10;
/// Stack of the thread that parses, in bytes: the parser takes some 10 KB for each level.
const PARSER_STACK: usize = 16 << 20;

/// Functions that an expression may call, besides operators and macros.
const FUNCTIONS: [&str; 13] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "bytes",
    "type",
    "dyn",
];

/// A condition on an object: a CEL expression over `object` that gives a boolean. Two of the same text are equal.
#[derive(Debug)]
pub struct Condition {
    text: String,
    program: Program,
    /// The members that the expression reads; `None` for the whole object.
    mask: Option<FieldMask>,
    patterns: Arc<HashMap<String, Regex>>,
    /// Number of expressions in it.
    size: usize,
    /// Nesting of loops (`all`, `exists`, `map`, `filter`).
    loops: u32,
    /// Number of elements of the lists that are written out.
    literals: usize,
    /// Number of additions, which can join lists.
    additions: usize,
}

/// Why a text is not a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConditionError(String);

/// Why a condition could not be evaluated for an object. That the object lacks a member is not a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConditionFailure(String);

/// Findings of a walk through an expression.
#[derive(Default)]
struct Survey {
    paths: BTreeSet<Vec<String>>,
    patterns: Vec<String>,
    size: usize,
    loops: u32,
    literals: usize,
    additions: usize,
    /// Names of the loops' variables.
    declared: Vec<String>,
}

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
        let parsed = parser.spawn(move || {
            Program::compile(&owned).map_err(|errors| {
                let error = errors.errors.first();
                error.map_or_else(
                    || "it does not parse".to_owned(),
                    |error| format!("line {} column {}: {}", error.pos.0, error.pos.1, error.msg),
                )
            })
        });
        let parsed = parsed.ok().and_then(|thread| thread.join().ok());
        let program = match parsed {
            Some(Ok(program)) => program,
            Some(Err(message)) => return wrong(message),
            None => return wrong("it does not parse".into()),
        };
        let mut survey = Survey::default();
        survey.look(program.expression(), 0, 0).map_err(ConditionError)?;
        let mut patterns = HashMap::new();
        for pattern in survey.patterns {
            let regex = RegexBuilder::new(&pattern).size_limit(REGEX_BYTES_MAX).build();
            let regex = regex.map_err(|error| ConditionError(format!("matches({pattern:?}): {error}")))?;
            patterns.insert(pattern, regex);
        }
        let whole = survey.paths.iter().any(Vec::is_empty);
        let mask = (!whole).then(|| FieldMask::of_names(survey.paths.into_iter().collect()));
        Ok(Self {
            text: text.to_owned(),
            program,
            mask,
            patterns: Arc::new(patterns),
            size: survey.size,
            loops: survey.loops,
            literals: survey.literals,
            additions: survey.additions,
        })
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The members that the expression reads; none if it reads the object as a whole.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        self.mask.iter().flat_map(FieldMask::paths)
    }

    /// Whether it is true of an object. It is false if the object lacks a member that it reads.
    ///
    /// # Errors
    /// [`ConditionFailure`] for any other failure: a wrong type, a result that is not a boolean, too much work.
    pub fn holds(&self, object: &Object) -> Result<bool, ConditionFailure> {
        let failure = |message: String| Err(ConditionFailure(message));
        let json = object.json();
        let text = std::str::from_utf8(&json).unwrap_or_default();
        let json: Result<serde_json::Value, _> = match &self.mask {
            Some(mask) => serde_json::from_str(&mask.cut_json(text)),
            None => serde_json::from_str(text),
        };
        let json = json.map_err(|error| ConditionFailure(error.to_string()))?;
        if self.loops > 0 {
            let (all, widest) = extent(&json);
            // A loop may go over several of the object's lists, one after the other, and over lists that are written out.
            let longest = (widest + self.literals) * (self.additions + 1);
            let rounds = longest.saturating_pow(self.loops);
            if rounds.saturating_mul(self.size).saturating_mul(1 + all / COMPARED_AT_ONCE) > COST_MAX {
                return failure(format!("too much work: up to {rounds} rounds of {} expressions", self.size));
            }
        }
        let mut context = Context::with_env(ENV.clone());
        context.add_variable_from_value(OBJECT, value_of(json));
        if !self.patterns.is_empty() {
            let patterns = self.patterns.clone();
            let matches = move |This(text): This<Arc<String>>, pattern: Arc<String>| {
                patterns.get(&**pattern).is_some_and(|regex| regex.is_match(&text))
            };
            context.add_function("matches", matches).map_err(|error| ConditionFailure(error.to_string()))?;
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(other) => failure(format!("the result is {:?} and not a boolean", other.type_of())),
            Err(ExecutionError::NoSuchKey(_) | ExecutionError::IndexOutOfBounds(_)) => Ok(false),
            Err(error) => failure(error.to_string()),
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

/// The deepest nesting of brackets and conditionals. Those within strings count as well.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut conditionals) = (0usize, 0, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'?' => conditionals += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest + conditionals
}

/// JSON as CEL sees it. A number without a fraction is an `int`, as in Kubernetes.
fn value_of(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::UInt(value),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::String(text.into()),
        serde_json::Value::Array(all) => {
            Value::List(all.into_iter().map(value_of).collect::<Vec<_>>().into())
        }
        serde_json::Value::Object(all) => {
            let members: HashMap<String, Value> =
                all.into_iter().map(|(key, value)| (key, value_of(value))).collect();
            Value::Map(members.into())
        }
    }
}

/// Number of all array elements and object members, at every depth; and the most that one array or object has.
fn extent(json: &serde_json::Value) -> (usize, usize) {
    let (own, within): (usize, Vec<_>) = match json {
        serde_json::Value::Array(all) => (all.len(), all.iter().map(extent).collect()),
        serde_json::Value::Object(all) => (all.len(), all.values().map(extent).collect()),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => return (0, 0),
    };
    let widest = within.iter().map(|(_, widest)| *widest).max().unwrap_or(0);
    (own + within.iter().map(|(all, _)| all).sum::<usize>(), widest.max(own))
}

impl Survey {
    fn look(&mut self, expression: &IdedExpr, depth: usize, loops: u32) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("expressions are nested more than {DEPTH_MAX} deep"));
        }
        (self.size, self.loops) = (self.size + 1, self.loops.max(loops));
        if let Some(path) = path_of(expression) {
            self.paths.insert(path);
            return Ok(());
        }
        if let Expr::Ident(name) = &expression.expr {
            let known = self.declared.contains(name) || is_type(name);
            return if known { Ok(()) } else { Err(format!("unknown variable {name:?}; expected object")) };
        }
        let mut within = |one: &IdedExpr| self.look(one, depth + 1, loops);
        match &expression.expr {
            Expr::Literal(_) | Expr::Unspecified | Expr::Ident(_) => Ok(()),
            Expr::Select(select) => within(&select.operand),
            Expr::List(list) => {
                list.elements.iter().try_for_each(within)?;
                self.literals += list.elements.len();
                Ok(())
            }
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => within(&entry.key).and_then(|()| within(&entry.value)),
                EntryExpr::StructField(field) => within(&field.value),
            }),
            Expr::Struct(_) => Err("messages are not supported, only maps".to_owned()),
            Expr::Call(call) => {
                let name = &*call.func_name;
                self.additions += usize::from(name == operators::ADD);
                let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
                if is_word && !FUNCTIONS.contains(&name) {
                    return Err(format!("unknown function {name:?}; expected {}", FUNCTIONS.join(", ")));
                }
                if name == "matches" {
                    let literal = call.args.last().and_then(text_of);
                    let pattern = literal.ok_or("matches() takes a literal string only")?;
                    self.patterns.push(pattern.to_owned());
                }
                call.target
                    .as_deref()
                    .into_iter()
                    .chain(&call.args)
                    .try_for_each(|one| self.look(one, depth + 1, loops))
            }
            Expr::Comprehension(each) => {
                within(&each.iter_range)?;
                let names = [Some(&each.iter_var), each.iter_var2.as_ref(), Some(&each.accu_var)];
                let before = self.declared.len();
                self.declared.extend(names.into_iter().flatten().cloned());
                for one in [&each.accu_init, &each.loop_cond, &each.loop_step, &each.result] {
                    self.look(one, depth + 1, loops + 1)?;
                }
                self.declared.truncate(before);
                Ok(())
            }
        }
    }
}

/// The names of types, which expressions compare with `type()`.
fn is_type(name: &str) -> bool {
    ["int", "uint", "double", "string", "bool", "bytes", "list", "map", "null_type"].contains(&name)
}

/// The path of an expression that goes from `object` from member to member.
fn path_of(expression: &IdedExpr) -> Option<Vec<String>> {
    let (within, member) = match &expression.expr {
        Expr::Ident(name) if name == OBJECT => return Some(Vec::new()),
        Expr::Select(select) => (&*select.operand, select.field.clone()),
        Expr::Call(call) if call.func_name == operators::INDEX => {
            let [map, key] = &*call.args else { return None };
            (map, text_of(key)?.to_owned())
        }
        Expr::Unspecified
        | Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::List(_)
        | Expr::Literal(_)
        | Expr::Map(_)
        | Expr::Struct(_) => return None,
    };
    let mut path = path_of(within)?;
    path.push(member);
    Some(path)
}

fn text_of(expression: &IdedExpr) -> Option<&str> {
    if let Expr::Literal(LiteralValue::String(text)) = &expression.expr { Some(text.inner()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

    fn object() -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"7","labels":{"app":"web","example.com/a":"b"}},"spec":{"replicas":3,"on":true,"containers":[{"name":"a","image":"i:1","env":[{"name":"X"}]},{"name":"b","image":"i:2"}]},"status":{"phase":"Running"}}"#;
        Decoder::new(Resource::new(ResourceParts::default()), options).object(text).unwrap()
    }

    #[track_caller]
    fn check(text: &str, expected: Result<bool, &str>) {
        let found = Condition::parse(text).unwrap().holds(&object());
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
            (found, _) => panic!("{text}: {found:?}"),
        }
    }

    #[test]
    fn conditions_hold_or_not() {
        for (text, expected) in [
            ("object.status.phase == 'Running'", true),
            ("object.spec.replicas > 2 && object.spec.on", true),
            ("object.metadata.labels['example.com/a'] == 'b'", true),
            ("object['metadata'].name.startsWith('p')", true),
            ("object.spec.containers.all(c, c.image.startsWith('i:'))", true),
            ("object.spec.containers.exists(c, c.name == 'z')", false),
            ("object.spec.containers.exists(c, has(c.env) && c.env.exists(e, e.name == 'X'))", true),
            ("size(object.spec.containers) == 2", true),
            ("object.spec.containers[1].name == 'b'", true),
            ("object.metadata.name.matches('^p$')", true),
            ("object.status.phase in ['Running', 'Pending']", true),
            ("has(object.spec.nodeName)", false),
            ("!has(object.spec.nodeName)", true),
            ("!has(object.metadata.labels.none)", true),
            ("has(object.spec) && has(object.status.phase)", true),
            ("type(object.spec.replicas) == int", true),
            ("object.size() == 5", true),
            ("object.spec.replicas + 1 == 4", true),
        ] {
            check(text, Ok(expected));
        }
    }

    #[test]
    fn a_missing_member_does_not_match() {
        for text in [
            "object.spec.nodeName == 'n'",
            "object.none.of.these != 'x'",
            "object.spec.containers[7].name == 'x'",
        ] {
            check(text, Ok(false));
        }
    }

    #[test]
    fn other_evaluation_failures_are_reported() {
        check("object.spec.replicas + 'x' == 'y'", Err("Unsupported binary operator"));
        check("object.spec.replicas", Err("not a boolean"));
        let costly = "object.spec.containers.all(a, object.spec.containers.all(b, object.spec.containers.all(c, object.spec.containers.all(d, object.metadata.name != a.name + b.name + c.name + d.name))))";
        check(costly, Err("too much work"));
    }

    #[test]
    fn a_text_that_is_not_a_condition_is_refused_with_the_reason() {
        let deep = format!("{}true{}", "(".repeat(17), ")".repeat(17));
        let long = format!("object.a == '{}'", "x".repeat(BYTES_MAX));
        for (text, part) in [
            ("", "expected a CEL expression"),
            ("object.spec.replicas >", "line 1 column 2"),
            ("object.spec. == 1", "line 1 column 1"),
            ("pod.spec.on", r#"unknown variable "pod""#),
            ("object.spec.containers.all(c, d.name == 'x')", r#"unknown variable "d""#),
            ("delete(object)", r#"unknown function "delete""#),
            ("object.metadata.name.matches('(')", "unclosed group"),
            ("object.metadata.name.matches(object.metadata.uid)", "literal string"),
            ("object.metadata.name.matches('(a{1000}){1000}')", "size limit"),
            (&deep, "nested more than 16"),
            (&long, "more than 1024"),
        ] {
            let error = Condition::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_largest_allowed_conditions_neither_overflow_the_stack_nor_panic() {
        for text in [
            format!("object.{}", vec!["a"; 500].join(".")),
            vec!["object.a"; 100].join("+"),
            vec!["object.a"; 100].join("&&"),
            "!".repeat(1000),
            format!("{}true", "!".repeat(1000)),
            format!("{}1", "-".repeat(1000)),
            format!("{}true{}", "(".repeat(16), ")".repeat(16)),
            "a?".repeat(16),
            "[".repeat(16),
        ] {
            if let Ok(condition) = Condition::parse(&text) {
                let _ = condition.holds(&object());
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_condition_panic(text in "(object|\\.|a|'|\\[|\\(|\\)|\\]|==|&&|!|\\?|:|1|all|has| ){0,24}") {
            if let Ok(condition) = Condition::parse(&text) {
                let _ = condition.holds(&object());
            }
        }
    }
}
