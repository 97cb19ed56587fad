//! Compiles an expression from the parser's tree: resolves its names, refuses what is not known, and notes what it reads.

use std::collections::BTreeSet;

use cel::IdedExpr;
use cel::common::ast::operators;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, SelectExpr};

use super::function::{Form, Function};
use super::library;
use super::pattern::Pattern;
use super::program::{Arithmetic, Call, Element, Fold, Loop, Node, Operator};
use super::value::{Text, Val};

/// The one variable of an expression.
const OBJECT: &str = "object";
/// Nesting of expressions. Each level takes stack of the thread that evaluates.
const DEPTH_MAX: usize = 64;
/// Number of regular expressions. The memory of each is bounded.
const PATTERNS_MAX: usize = 8;
/// The parser replaces these where they are called as they should be.
const MACROS: [(&str, &str); 8] = [
    ("has", "has(value.member)"),
    ("all", "list.all(name, condition)"),
    ("exists", "list.exists(name, condition)"),
    ("exists_one", "list.exists_one(name, condition)"),
    ("map", "list.map(name, value) or list.map(name, condition, value)"),
    ("filter", "list.filter(name, condition)"),
    ("optMap", "optional.optMap(name, value)"),
    ("optFlatMap", "optional.optFlatMap(name, optional)"),
];
/// The types that an expression can name, to compare them with `type()`.
const TYPES: [&str; 15] = [
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "bytes",
    "list",
    "map",
    "null_type",
    "optional_type",
    "type",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "net.IP",
    "net.CIDR",
];

/// How a macro is called that a message of the parser names.
pub(super) fn usage_of(message: &str) -> Option<&'static str> {
    let usage = |name: &str| message.contains(&format!("{name}() macro"));
    MACROS.into_iter().find(|(name, _)| usage(name)).map(|(_, usage)| usage)
}

/// A compiled expression.
pub(super) struct Compiled {
    pub(super) root: Node,
    /// The paths that it reads; an empty one is the whole object.
    pub(super) paths: BTreeSet<Vec<String>>,
}

#[derive(Default)]
struct Compiler {
    paths: BTreeSet<Vec<String>>,
    /// Names of the loops' variables, the outermost first.
    locals: Vec<String>,
    /// Number of regular expressions so far.
    patterns: usize,
}

/// Compiles what the parser has read.
///
/// # Errors
/// What is wrong with it.
pub(super) fn compile(expression: &IdedExpr) -> Result<Compiled, String> {
    let mut compiler = Compiler::default();
    let root = compiler.node(expression, 0)?;
    Ok(Compiled { root, paths: compiler.paths })
}

impl Compiler {
    fn node(&mut self, expression: &IdedExpr, depth: usize) -> Result<Node, String> {
        if depth > DEPTH_MAX {
            return Err(format!("expressions are nested more than {DEPTH_MAX} deep"));
        }
        if let Some((names, node)) = self.chain(expression, depth) {
            self.paths.insert(names);
            return Ok(node);
        }
        match &expression.expr {
            Expr::Literal(literal) => Ok(Node::Constant(constant(literal))),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) if select.test => {
                let operand = match self.chain(&select.operand, depth) {
                    Some((mut names, node)) => {
                        names.push(select.field.clone());
                        self.paths.insert(names);
                        node
                    }
                    None => self.node(&select.operand, depth + 1)?,
                };
                Ok(Node::Has(Box::new(operand), select.field.clone()))
            }
            Expr::Select(select) => match self.qualified_type(select) {
                Some(known) => Ok(Node::Constant(Val::Type(known))),
                None => {
                    let operand = Box::new(self.node(&select.operand, depth + 1)?);
                    Ok(Node::Select(operand, select.field.clone()))
                }
            },
            Expr::List(list) => {
                let mut elements = Vec::new();
                for (index, element) in list.elements.iter().enumerate() {
                    let optional = list.optional_indices.contains(&index);
                    elements.push(Element { value: self.node(element, depth + 1)?, optional });
                }
                Ok(Node::List(elements))
            }
            Expr::Map(map) => {
                let mut pairs = Vec::new();
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { return Err(no_messages()) };
                    let key = self.node(&entry.key, depth + 1)?;
                    let value = self.node(&entry.value, depth + 1)?;
                    pairs.push((key, Element { value, optional: entry.optional }));
                }
                Ok(Node::Map(pairs))
            }
            Expr::Call(call) => self.call(call, depth),
            Expr::Comprehension(each) => self.each(each, depth),
            Expr::Struct(_) | Expr::Unspecified => Err(no_messages()),
        }
    }

    fn nodes<'e>(
        &mut self,
        all: impl Iterator<Item = &'e IdedExpr>,
        depth: usize,
    ) -> Result<Vec<Node>, String> {
        all.map(|one| self.node(one, depth + 1)).collect()
    }

    /// The path of an expression that goes from `object` from member to member.
    fn path(&self, expression: &IdedExpr) -> Option<Vec<String>> {
        let (mut at, mut names) = (expression, Vec::new());
        while let Some((operand, name, false)) = member(at) {
            names.push(name.to_owned());
            at = operand;
        }
        let is_object = matches!(&at.expr, Expr::Ident(name) if name == OBJECT);
        names.reverse();
        (is_object && !self.is_local(OBJECT)).then_some(names)
    }

    /// The path of an expression from `object` with optional members on the way, and the node that follows it.
    fn chain(&self, expression: &IdedExpr, depth: usize) -> Option<(Vec<String>, Node)> {
        if let Some(names) = self.path(expression) {
            return Some((names.clone(), Node::Path(names)));
        }
        // What is nested too deep here is refused where it is compiled step by step.
        let depth = Some(depth + 1).filter(|depth| *depth <= DEPTH_MAX)?;
        let (operand, name, optional) = member(expression)?;
        let (mut names, node) = self.chain(operand, depth)?;
        names.push(name.to_owned());
        let node = Box::new(node);
        let name = name.to_owned();
        Some((names, if optional { Node::OptionalSelect(node, name) } else { Node::Select(node, name) }))
    }

    fn is_local(&self, name: &str) -> bool {
        self.locals.iter().any(|local| local == name)
    }

    fn name(&self, name: &str) -> Result<Node, String> {
        if let Some(slot) = self.locals.iter().rposition(|local| local == name) {
            return Ok(Node::Local(slot));
        }
        match TYPES.into_iter().find(|known| *known == name) {
            Some(known) => Ok(Node::Constant(Val::Type(known))),
            None => Err(format!("unknown variable {name:?}; expected object")),
        }
    }

    /// The type that a name with a namespace is.
    fn qualified_type(&self, select: &SelectExpr) -> Option<&'static str> {
        let Expr::Ident(namespace) = &select.operand.expr else { return None };
        let is = |known: &&str| known.split_once('.') == Some((namespace, &select.field));
        if self.is_local(namespace) { None } else { TYPES.into_iter().find(is) }
    }

    fn call(&mut self, call: &CallExpr, depth: usize) -> Result<Node, String> {
        let (name, args) = (&*call.func_name, &*call.args);
        // The names of operators are no names of functions, so an expression cannot call one as a function.
        if call.target.is_none() {
            if let (operators::CONDITIONAL, [condition, one, other]) = (name, args) {
                let parts = [condition, one, other].map(|part| self.node(part, depth + 1));
                let [condition, one, other] = parts;
                return Ok(Node::If(Box::new([condition?, one?, other?])));
            }
            if let [operand] = args {
                match name {
                    operators::LOGICAL_NOT => {
                        return Ok(Node::Not(Box::new(self.node(operand, depth + 1)?)));
                    }
                    operators::NEGATE => return Ok(Node::Negate(Box::new(self.node(operand, depth + 1)?))),
                    _ => {}
                }
            }
            if let [one, other] = args {
                if let operators::LOGICAL_AND | operators::LOGICAL_OR = name {
                    let sides = Box::new([self.node(one, depth + 1)?, self.node(other, depth + 1)?]);
                    return Ok(Node::Logic { sides, decided_by: name == operators::LOGICAL_OR });
                }
                if let operators::OPT_SELECT | operators::OPT_INDEX = name {
                    if let Some((_, name, _)) = member_of_call(call) {
                        return Ok(Node::OptionalSelect(
                            Box::new(self.node(one, depth + 1)?),
                            name.to_owned(),
                        ));
                    }
                    let sides = Box::new([self.node(one, depth + 1)?, self.node(other, depth + 1)?]);
                    return Ok(Node::OptionalIndex(sides));
                }
                if let Some(operator) = operator(name) {
                    let sides = Box::new([self.node(one, depth + 1)?, self.node(other, depth + 1)?]);
                    return Ok(Node::Binary(operator, sides));
                }
            }
        }
        if let Some((_, usage)) = MACROS.into_iter().find(|(known, _)| *known == name) {
            return Err(format!("wrong call of the macro {name:?}; expected {usage}"));
        }
        self.function(call, depth)
    }

    fn function(&mut self, call: &CallExpr, depth: usize) -> Result<Node, String> {
        let name = &*call.func_name;
        let count = call.args.len();
        let functions = match call.target.as_deref() {
            None => library::find(name, Form::Global, count)?,
            Some(target) => {
                if let Some(namespace) = self.namespace(target) {
                    let functions = library::find(&format!("{namespace}.{name}"), Form::Global, count)?;
                    let args = self.nodes(call.args.iter(), depth)?;
                    return Ok(Node::Call(Call { functions, args, pattern: None }));
                }
                // An unknown variable is a better reason than a wrong function of it.
                if let Expr::Ident(variable) = &target.expr
                    && variable != OBJECT
                {
                    self.name(variable)?;
                }
                library::find(name, Form::Member, count + 1)?
            }
        };
        let args: Vec<_> = call.target.as_deref().into_iter().chain(&call.args).collect();
        let pattern = match args.get(1) {
            Some(pattern) if functions.iter().copied().any(Function::takes_pattern) => {
                self.patterns += 1;
                if self.patterns > PATTERNS_MAX {
                    return Err(format!("it has more than {PATTERNS_MAX} regular expressions"));
                }
                Some(compiled_pattern(name, pattern)?)
            }
            _ => None,
        };
        let args = self.nodes(args.into_iter(), depth)?;
        Ok(Node::Call(Call { functions, args, pattern }))
    }

    /// The namespace of a function, if what it is called on is one.
    fn namespace<'e>(&self, target: &'e IdedExpr) -> Option<&'e str> {
        let Expr::Ident(namespace) = &target.expr else { return None };
        (!self.is_local(namespace) && library::is_namespace(namespace)).then_some(namespace)
    }

    /// A macro for optional values, which the parser has replaced by a loop without rounds.
    fn binding(&mut self, each: &ComprehensionExpr, depth: usize) -> Result<Node, String> {
        let value = Box::new(self.node(&each.accu_init, depth)?);
        let slot = self.locals.len();
        self.locals.push(each.accu_var.clone());
        let result = Box::new(self.node(&each.result, depth)?);
        self.locals.pop();
        Ok(Node::Let { value, slot, result })
    }

    /// A macro, which the parser has replaced by a loop over elements that changes a result.
    fn each(&mut self, each: &ComprehensionExpr, depth: usize) -> Result<Node, String> {
        let is_result = |one: &IdedExpr| matches!(&one.expr, Expr::Ident(name) if *name == each.accu_var);
        let unknown = || Err("unknown macro".to_owned());
        let range = self.node(&each.iter_range, depth + 1)?;
        let (slot, depth) = (self.locals.len(), depth + 1);
        let Expr::Call(step) = &each.loop_step.expr else {
            return if is_result(&each.loop_step) { self.binding(each, depth) } else { unknown() };
        };
        self.locals.push(each.iter_var.clone());
        let fold = match (&*step.func_name, &*step.args) {
            (name @ (operators::LOGICAL_AND | operators::LOGICAL_OR), [result, test])
                if is_result(result) =>
            {
                let decided_by = name == operators::LOGICAL_OR;
                Fold::Logic { test: self.node(test, depth)?, decided_by }
            }
            (operators::ADD, [result, made]) if is_result(result) => {
                let Expr::List(made) = &made.expr else { return unknown() };
                let [element] = &*made.elements else { return unknown() };
                Fold::List { test: None, element: self.node(element, depth)? }
            }
            (operators::CONDITIONAL, [test, made, otherwise]) if is_result(otherwise) => {
                let test = self.node(test, depth)?;
                let Expr::Call(made) = &made.expr else { return unknown() };
                let [_, made] = &*made.args else { return unknown() };
                match &made.expr {
                    Expr::List(made) => {
                        let [element] = &*made.elements else { return unknown() };
                        Fold::List { test: Some(test), element: self.node(element, depth)? }
                    }
                    Expr::Literal(_) => Fold::One { test },
                    Expr::Call(_)
                    | Expr::Comprehension(_)
                    | Expr::Ident(_)
                    | Expr::Map(_)
                    | Expr::Select(_)
                    | Expr::Struct(_)
                    | Expr::Unspecified => return unknown(),
                }
            }
            _ => return unknown(),
        };
        self.locals.pop();
        Ok(Node::Loop(Box::new(Loop { range, slot, fold })))
    }
}

/// The value and the name of an expression that goes to a member, and whether it does so optionally.
fn member(expression: &IdedExpr) -> Option<(&IdedExpr, &str, bool)> {
    if let Expr::Call(call) = &expression.expr {
        return member_of_call(call);
    }
    let Expr::Select(select) = &expression.expr else { return None };
    (!select.test).then_some((&*select.operand, &*select.field, false))
}

/// As [`member`]: `value['name']`, `value.?name` or `value[?'name']`.
fn member_of_call(call: &CallExpr) -> Option<(&IdedExpr, &str, bool)> {
    let optional = match &*call.func_name {
        operators::INDEX => false,
        operators::OPT_SELECT | operators::OPT_INDEX => true,
        _ => return None,
    };
    let [operand, name] = &*call.args else { return None };
    Some((operand, text_of(name)?, optional))
}

fn no_messages() -> String {
    "messages are not supported, only maps".to_owned()
}

fn operator(name: &str) -> Option<Operator> {
    Some(match name {
        operators::ADD => Operator::Arithmetic(Arithmetic::Add),
        operators::SUBSTRACT => Operator::Arithmetic(Arithmetic::Subtract),
        operators::MULTIPLY => Operator::Arithmetic(Arithmetic::Multiply),
        operators::DIVIDE => Operator::Arithmetic(Arithmetic::Divide),
        operators::MODULO => Operator::Arithmetic(Arithmetic::Modulo),
        operators::EQUALS => Operator::Equal,
        operators::NOT_EQUALS => Operator::NotEqual,
        operators::LESS => Operator::Less,
        operators::LESS_EQUALS => Operator::LessOrEqual,
        operators::GREATER => Operator::Greater,
        operators::GREATER_EQUALS => Operator::GreaterOrEqual,
        operators::IN => Operator::In,
        operators::INDEX => Operator::Index,
        _ => return None,
    })
}

fn constant(literal: &LiteralValue) -> Val<'static> {
    match literal {
        LiteralValue::Boolean(value) => Val::Bool(*value.inner()),
        LiteralValue::Bytes(value) => Val::Bytes(value.inner().into()),
        LiteralValue::Double(value) => Val::Double(*value.inner()),
        LiteralValue::Int(value) => Val::Int(*value.inner()),
        LiteralValue::Null => Val::Null,
        LiteralValue::String(value) => Val::Text(Text::Shared(value.inner().into())),
        LiteralValue::UInt(value) => Val::Uint(*value.inner()),
    }
}

fn compiled_pattern(name: &str, pattern: &IdedExpr) -> Result<Pattern, String> {
    let Some(pattern) = text_of(pattern) else { return Err(format!("{name}() takes a literal string only")) };
    Pattern::parse(pattern).map_err(|error| format!("{name}({pattern:?}): {error}"))
}

fn text_of(expression: &IdedExpr) -> Option<&str> {
    if let Expr::Literal(LiteralValue::String(text)) = &expression.expr { Some(text.inner()) } else { None }
}
