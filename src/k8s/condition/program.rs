//! A compiled expression: its names are resolved and its patterns prepared, so that the evaluation cannot fail for those.

use std::fmt;

use super::function::Function;
use super::pattern::Pattern;
use super::value::Val;

/// An expression.
#[derive(Debug)]
pub(super) enum Node {
    /// A value that the text has.
    Constant(Val<'static>),
    /// A member of the object, by the names on the way to it; the object itself without names.
    Path(Vec<String>),
    /// The variable of a loop, by the number of variables around it.
    Local(usize),
    /// `operand.name`
    Select(Box<Node>, String),
    /// `operand.?name`
    OptionalSelect(Box<Node>, String),
    /// `operand[?index]`
    OptionalIndex(Box<[Node; 2]>),
    /// `has(operand.name)`
    Has(Box<Node>, String),
    /// `!operand`
    Not(Box<Node>),
    /// `-operand`
    Negate(Box<Node>),
    /// `one && other`, which `false` decides, or `one || other`, which `true` decides.
    Logic {
        sides: Box<[Node; 2]>,
        decided_by: bool,
    },
    /// `condition ? one : other`
    If(Box<[Node; 3]>),
    /// `one + other` and the like.
    Binary(Operator, Box<[Node; 2]>),
    Call(Call),
    List(Vec<Element>),
    Map(Vec<(Node, Element)>),
    Loop(Box<Loop>),
    /// `value.optMap(name, result)` and the like: a variable, where it is, and what is made of it.
    Let {
        value: Box<Node>,
        slot: usize,
        result: Box<Node>,
    },
}

/// An element of a list or a map that is written out.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) value: Node,
    /// Whether it is left out if the value is missing (`?value`).
    pub(super) optional: bool,
}

/// A call of a function.
#[derive(Debug)]
pub(super) struct Call {
    /// Those of the name that take this number of arguments. The types of the arguments decide among them.
    pub(super) functions: Vec<&'static Function>,
    /// What it is called on is the first argument.
    pub(super) args: Vec<Node>,
    /// The regular expression that the second argument is.
    pub(super) pattern: Option<Pattern>,
}

/// A macro that goes through the elements of a list, or the keys of a map.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) range: Node,
    /// Where the variable is, as in [`Node::Local`].
    pub(super) slot: usize,
    pub(super) fold: Fold,
}

/// What a loop makes of the elements.
#[derive(Debug)]
pub(super) enum Fold {
    /// `all`, which `false` decides, or `exists`, which `true` decides.
    Logic { test: Node, decided_by: bool },
    /// `exists_one`
    One { test: Node },
    /// `map` and `filter`
    List { test: Option<Node>, element: Node },
}

/// An operator with two operands that are always evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Arithmetic(Arithmetic),
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Index,
}

/// An operator on numbers. `+` also joins texts and lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arithmetic(Arithmetic::Add) => "+",
            Self::Arithmetic(Arithmetic::Subtract) => "-",
            Self::Arithmetic(Arithmetic::Multiply) => "*",
            Self::Arithmetic(Arithmetic::Divide) => "/",
            Self::Arithmetic(Arithmetic::Modulo) => "%",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::In => "in",
            Self::Index => "[]",
        })
    }
}
