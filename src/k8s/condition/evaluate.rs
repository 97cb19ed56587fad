//! Evaluates an expression for an object.

use serde_json::Value as Json;

use super::function::Arguments;
use super::meter::{EXPRESSION, Meter, Stop};
use super::operators;
use super::program::{Call, Element, Fold, Loop, Node};
use super::value::{List, Map, Val};

/// One evaluation: of a program, for an object.
pub(super) struct Evaluation<'a> {
    object: &'a Json,
    /// The variables of the loops that are under way, the outermost first.
    locals: Vec<Val<'a>>,
    meter: Meter,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(object: &'a Json) -> Self {
        Self { object, locals: Vec::new(), meter: Meter::new() }
    }

    /// The work so far, in units of [`Meter`].
    pub(super) fn work(&self) -> usize {
        self.meter.spent()
    }

    /// The value of an expression.
    ///
    /// # Errors
    /// [`Stop`], but not [`Stop::NoOverload`].
    pub(super) fn value(&mut self, node: &'a Node) -> Result<Val<'a>, Stop> {
        self.meter.spend(EXPRESSION)?;
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Path(names) => self.path(names),
            Node::Local(slot) => self.locals.get(*slot).cloned().ok_or(Stop::Missing),
            Node::Select(operand, name) => {
                let operand = self.value(operand)?;
                select(&operand, name, &mut self.meter)?.ok_or(Stop::Missing)
            }
            Node::OptionalSelect(operand, name) => {
                let operand = self.value(operand)?;
                optional_member(&operand, name, &mut self.meter)
            }
            Node::OptionalIndex(sides) => {
                let [operand, index] = &**sides;
                let (operand, index) = (self.value(operand)?, self.value(index)?);
                operators::optional_index(&operand, &index, &mut self.meter)
            }
            Node::Has(operand, name) => {
                let operand = self.value(operand)?;
                match operand.present() {
                    Some(Val::Map(map)) => Ok(Val::Bool(map.member(name, &mut self.meter)?.is_some())),
                    Some(list @ Val::List(_)) => Err(no_member(list, name)),
                    Some(_) | None => Ok(Val::Bool(false)),
                }
            }
            Node::Not(operand) => Ok(Val::Bool(!self.boolean("!", operand)?)),
            Node::Negate(operand) => operators::negate(&self.value(operand)?),
            Node::Logic { sides, decided_by } => self.logic(sides, *decided_by),
            Node::If(parts) => {
                let [condition, one, other] = &**parts;
                let chosen = if self.boolean("?:", condition)? { one } else { other };
                self.value(chosen)
            }
            Node::Binary(operator, sides) => {
                let [one, other] = &**sides;
                let (one, other) = (self.value(one)?, self.value(other)?);
                operators::binary(*operator, &one, &other, &mut self.meter)
            }
            Node::Call(call) => self.call(call),
            Node::List(elements) => self.list(elements),
            Node::Map(pairs) => self.map(pairs),
            Node::Loop(each) => self.each(each),
            Node::Let { value, slot, result } => {
                let value = self.value(value)?;
                self.locals.truncate(*slot);
                self.locals.push(value);
                self.value(result)
            }
        }
    }

    fn path(&mut self, names: &'a [String]) -> Result<Val<'a>, Stop> {
        self.meter.spend(names.len())?;
        let mut at = self.object;
        for name in names {
            let Json::Object(members) = at else { return Err(no_member(&Val::of(at), name)) };
            at = members.get(name).ok_or(Stop::Missing)?;
        }
        Ok(Val::of(at))
    }

    /// The value of an operand that has to be a boolean.
    fn boolean(&mut self, operator: &str, node: &'a Node) -> Result<bool, Stop> {
        let value = self.value(node)?;
        let Val::Bool(value) = value else {
            return Err(Stop::Failed(format!("no such overload: {operator} of {}", value.type_name())));
        };
        Ok(value)
    }

    /// `&&` and `||`: a side that fails does not matter if the other one decides.
    fn logic(&mut self, sides: &'a [Node; 2], decided_by: bool) -> Result<Val<'a>, Stop> {
        let operator = if decided_by { "||" } else { "&&" };
        let [one, other] = sides;
        let one = self.boolean(operator, one);
        if one == Ok(decided_by) || one == Err(Stop::Spent) {
            return one.map(Val::Bool);
        }
        let other = self.boolean(operator, other);
        if other == Ok(decided_by) || other == Err(Stop::Spent) {
            return other.map(Val::Bool);
        }
        one.and(other).map(Val::Bool)
    }

    fn call(&mut self, call: &'a Call) -> Result<Val<'a>, Stop> {
        let is_lazy = call.functions.first().is_some_and(|function| function.is_lazy());
        let mut values = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            if is_lazy && matches!(values[..], [Val::Optional(Some(_))]) {
                break;
            }
            values.push(self.value(arg)?);
        }
        for function in &call.functions {
            let pattern = call.pattern.as_ref();
            let mut args =
                Arguments { name: function.name, values: &values, pattern, meter: &mut self.meter };
            match (function.run)(&mut args) {
                Err(Stop::NoOverload) => {}
                done => return done,
            }
        }
        let types: Vec<_> = values.iter().map(Val::type_name).collect();
        let name = call.functions.first().map_or("", |function| function.name);
        Err(Stop::Failed(format!("no such overload: {name}({})", types.join(", "))))
    }

    fn list(&mut self, elements: &'a [Element]) -> Result<Val<'a>, Stop> {
        self.meter.make_elements(elements.len())?;
        let mut values = Vec::with_capacity(elements.len());
        for element in elements {
            values.extend(self.element(element)?);
        }
        Ok(Val::list(values))
    }

    /// The value of an element; `None` if it is left out.
    fn element(&mut self, element: &'a Element) -> Result<Option<Val<'a>>, Stop> {
        let value = self.value(&element.value)?;
        if !element.optional {
            return Ok(Some(value));
        }
        let Val::Optional(value) = value else {
            let message = format!("expected an optional value after ?, found {}", value.type_name());
            return Err(Stop::Failed(message));
        };
        Ok(value.map(|value| (*value).clone()))
    }

    fn map(&mut self, pairs: &'a [(Node, Element)]) -> Result<Val<'a>, Stop> {
        self.meter.make_elements(pairs.len())?;
        let mut all: Vec<(Val<'a>, Val<'a>)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let key = self.value(key)?;
            let Some(value) = self.element(value)? else { continue };
            if !matches!(key, Val::Bool(_) | Val::Int(_) | Val::Uint(_) | Val::Text(_)) {
                return Err(Stop::Failed(format!("unsupported type of a key: {}", key.type_name())));
            }
            for (other, _) in &all {
                if other.equals(&key, &mut self.meter)? {
                    return Err(Stop::Failed("a map has a key twice".into()));
                }
            }
            all.push((key, value));
        }
        Ok(Val::Map(Map::Made(all.into())))
    }

    fn each(&mut self, each: &'a Loop) -> Result<Val<'a>, Stop> {
        let range = self.value(&each.range)?;
        let elements = if let Val::List(list) = range {
            list
        } else if let Val::Map(map) = range {
            self.meter.make_elements(map.len())?;
            List::Made(map.keys().into())
        } else {
            return Err(Stop::Failed(format!("no such overload: a loop over {}", range.type_name())));
        };
        let (mut held, mut failed, mut made) = (0usize, None, Vec::new());
        for element in elements.iter() {
            self.meter.spend(EXPRESSION)?;
            self.locals.truncate(each.slot);
            self.locals.push(element);
            match &each.fold {
                Fold::Logic { test, decided_by } => {
                    let name = if *decided_by { "exists" } else { "all" };
                    match self.boolean(name, test) {
                        Ok(found) if found == *decided_by => return Ok(Val::Bool(found)),
                        Ok(_) => {}
                        Err(Stop::Spent) => return Err(Stop::Spent),
                        Err(stop) => failed = failed.or(Some(stop)),
                    }
                }
                Fold::One { test } => held += usize::from(self.boolean("exists_one", test)?),
                Fold::List { test, element } => {
                    if test.as_ref().map_or(Ok(true), |test| self.boolean("filter", test))? {
                        self.meter.make_elements(1)?;
                        made.push(self.value(element)?);
                    }
                }
            }
        }
        match &each.fold {
            Fold::Logic { decided_by, .. } => failed.map_or(Ok(Val::Bool(!decided_by)), Err),
            Fold::One { .. } => Ok(Val::Bool(held == 1)),
            Fold::List { .. } => Ok(Val::list(made)),
        }
    }
}

/// The member of a value; `None` if it lacks it. That of an optional value is optional, too.
///
/// # Errors
/// [`Stop::Failed`] if a value of this type has no members.
fn select<'a>(operand: &Val<'a>, name: &str, meter: &mut Meter) -> Result<Option<Val<'a>>, Stop> {
    if let Val::Optional(_) = operand {
        return optional_member(operand, name, meter).map(Some);
    }
    let Val::Map(map) = operand else { return Err(no_member(operand, name)) };
    map.member(name, meter)
}

/// The member of a value as an optional value. A value that is no list and has no members lacks it.
///
/// # Errors
/// [`Stop::Failed`] for a list.
fn optional_member<'a>(operand: &Val<'a>, name: &str, meter: &mut Meter) -> Result<Val<'a>, Stop> {
    match operand.present() {
        Some(Val::Map(map)) => map.member(name, meter).map(Val::optional),
        Some(list @ Val::List(_)) => Err(no_member(list, name)),
        Some(_) | None => Ok(Val::Optional(None)),
    }
}

fn no_member(value: &Val<'_>, name: &str) -> Stop {
    Stop::Failed(format!("no such overload: {}.{name}", value.type_name()))
}
