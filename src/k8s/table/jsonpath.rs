//! JSONPath as kubectl's templates and the API server's printer columns have it.
//!
//! Source: `k8s.io/client-go/util/jsonpath`, whose evaluation this follows, its limits and surprises included: a dot
//! in a quoted key separates, a filter over anything but a list is an error, and so is a comparison of unlike values.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt::Write as _;

use super::tree::Tree;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Path(Vec<Node>);

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Field(String),
    Wildcard,
    Recursive,
    /// Start, end and step; an end that was derived is that of the single element `[n]`.
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        is_single: bool,
        step: Option<i64>,
    },
    Union(Vec<Vec<Self>>),
    Filter {
        left: Vec<Self>,
        operator: String,
        right: Vec<Self>,
    },
    /// A text, number or boolean, as compared with in filters.
    Literal(Tree<'static>),
    /// A word where none is allowed: an error when it is evaluated.
    Identifier,
}

/// The path does not fit the value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch;

type Found<'t, 'a> = Result<Vec<&'t Tree<'a>>, Mismatch>;

/// Nested filters that are followed.
const DEPTH_MAX: usize = 16;

impl Path {
    /// Parses the text between the braces of a template; `None` if it is no path.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // A brace would end the template's action.
        if text.contains(['{', '}', '\n', '\r']) {
            return None;
        }
        nodes(text, 0).map(Self)
    }

    /// All values at the path, in order.
    pub(super) fn find<'t, 'a>(&'t self, object: &'t Tree<'a>) -> Found<'t, 'a> {
        walk(&self.0, vec![object], &Looks(Cell::new(LOOKS_MAX)))
    }
}

// === parsing ===

fn nodes(text: &str, depth: usize) -> Option<Vec<Node>> {
    if depth > DEPTH_MAX {
        return None;
    }
    let mut nodes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(filter) = rest.strip_prefix("[?(") {
            let (node, after) = filter_node(filter, depth)?;
            nodes.push(node);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("..") {
            if nodes.last() == Some(&Node::Recursive) {
                return None;
            }
            nodes.push(Node::Recursive);
            rest = after;
            if rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()) {
                let (node, after) = field(rest);
                nodes.push(node);
                rest = after;
            }
        } else if let Some(after) = rest.strip_prefix('[') {
            let end = after.find(']')?;
            nodes.extend(brackets(&after[..end], depth)?);
            rest = &after[end + 1..];
        } else if let Some(after) = rest.strip_prefix('.') {
            let (node, after) = field(after);
            nodes.push(node);
            rest = after;
        } else if matches!(first, ' ' | '@' | '$') {
            rest = &rest[1..];
        } else if matches!(first, '"' | '\'') {
            let (text, after) = quoted(&rest[1..], first)?;
            nodes.push(Node::Literal(Tree::Text(text.into())));
            rest = after;
        } else if matches!(first, '+' | '-') || first.is_numeric() {
            let digits = rest[first.len_utf8()..].find(|c: char| c != '.' && !c.is_numeric());
            let (number, after) = rest.split_at(digits.map_or(rest.len(), |at| at + first.len_utf8()));
            let number = number.strip_prefix('+').unwrap_or(number);
            let whole = number.parse().map(Tree::Int).ok();
            nodes.push(Node::Literal(whole.or_else(|| number.parse().map(Tree::Float).ok())?));
            rest = after;
        } else if first == '_' || first.is_alphanumeric() {
            let (word, after) = rest.split_at(rest.find(is_terminator).unwrap_or(rest.len()));
            nodes.push(match word {
                "true" | "false" => Node::Literal(Tree::Bool(word == "true")),
                _ => Node::Identifier,
            });
            rest = after;
        } else {
            return None;
        }
    }
    Some(nodes)
}

fn is_terminator(character: char) -> bool {
    matches!(character, ' ' | '\t' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

/// A field's name up to a terminator that no backslash escapes.
fn field(text: &str) -> (Node, &str) {
    let (mut end, mut is_escaped) = (text.len(), false);
    for (at, character) in text.char_indices() {
        if !is_escaped && is_terminator(character) {
            end = at;
            break;
        }
        is_escaped = !is_escaped && character == '\\';
    }
    let (name, rest) = text.split_at(end);
    (if name == "*" { Node::Wildcard } else { Node::Field(name.replace('\\', "")) }, rest)
}

/// Parses the text within square brackets.
fn brackets(text: &str, depth: usize) -> Option<Vec<Node>> {
    let text = if text == "*" { ":" } else { text };
    if text.contains(',') {
        let parts = text.split(',').map(|part| brackets(part.trim_matches(' '), depth + 1));
        return Some(vec![Node::Union(parts.collect::<Option<_>>()?)]);
    }
    if let Some(key) = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        return (!key.contains('\'')).then(|| nodes(&format!(".{key}"), depth + 1)).flatten();
    }
    let mut parts = text.split(':');
    let mut bound = || -> Option<Option<i64>> {
        match parts.next() {
            None | Some("") => Some(None),
            Some(number) if number.starts_with('+') => None,
            Some(number) => number.parse().ok().map(Some),
        }
    };
    let (start, end, step) = (bound()?, bound()?, bound()?);
    let count = text.split(':').count();
    (count <= 3).then(|| vec![Node::Slice { start, end, is_single: count == 1, step }])
}

/// `@.type=="Ready")]` and what follows it.
fn filter_node(text: &str, depth: usize) -> Option<(Node, &str)> {
    let (mut pair, mut has_ended, mut previous) = (None, false, ' ');
    let mut end = None;
    for (at, character) in text.char_indices() {
        match character {
            '"' | '\'' if pair.is_none() => pair = Some(character),
            '"' | '\'' if pair == Some(character) && previous != '\\' => has_ended = true,
            ')' if pair.is_some() == has_ended => {
                end = Some(at);
                break;
            }
            _ => {}
        }
        previous = character;
    }
    let (inside, rest) = (&text[..end?], text[end? + 1..].strip_prefix(']')?);
    let is_sign = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let signs = inside.find(is_sign).filter(|at| *at > 0);
    let parts = signs.and_then(|at| {
        let length = inside[at..].find(|c| !is_sign(c))?;
        Some((&inside[..at], &inside[at..at + length], &inside[at + length..]))
    });
    let (left, operator, right) = parts.unwrap_or((inside, "exists", ""));
    let (left, right) = (nodes(left, depth + 1)?, nodes(right, depth + 1)?);
    Some((Node::Filter { left, operator: operator.to_owned(), right }, rest))
}

/// A quoted text with Go's escapes, and what follows it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => out.push(match characters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '\\' => '\\',
                escaped if escaped == quote => quote,
                _ => return None,
            }),
            _ if character == quote => return Some((out, &text[at + quote.len_utf8()..])),
            _ => out.push(character),
        }
    }
    None
}

// === evaluation ===

/// Values that the evaluation of a path may look at: a column shows a few. Some steps find a value several times (`..`, unions), several such
/// steps multiply, and a filter evaluates its paths for each element.
const LOOKS_MAX: usize = 20_000;

/// Entries of a map that are searched for the price of one look.
const ENTRIES_A_LOOK: usize = 16;

/// The looks that the evaluation of a path has left.
struct Looks(Cell<usize>);

impl Looks {
    fn take(&self, looks: usize) -> Result<(), Mismatch> {
        let left = self.0.get().checked_sub(looks);
        self.0.set(left.unwrap_or(0));
        left.map(drop).ok_or(Mismatch)
    }

    fn are_over(&self) -> bool {
        self.0.get() == 0
    }
}

fn walk<'t, 'a>(nodes: &'t [Node], mut values: Vec<&'t Tree<'a>>, looks: &Looks) -> Found<'t, 'a> {
    for node in nodes {
        values = step(node, &values, looks)?;
    }
    Ok(values)
}

fn step<'t, 'a>(node: &'t Node, values: &[&'t Tree<'a>], looks: &Looks) -> Found<'t, 'a> {
    let there = values.iter().copied().filter(|value| value.is_there());
    match node {
        Node::Field(name) => {
            let mut found = Vec::new();
            for value in there {
                let entries = value.entries();
                looks.take(1 + entries.len() / ENTRIES_A_LOOK)?;
                found.extend(entries.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value));
            }
            Ok(found)
        }
        Node::Wildcard => {
            let mut found = Vec::new();
            for child in there.flat_map(children) {
                looks.take(1)?;
                found.push(child);
            }
            Ok(found)
        }
        Node::Recursive => {
            let mut found = Vec::new();
            for value in there {
                descend(value, &mut found, looks)?;
            }
            Ok(found)
        }
        Node::Slice { start, end, is_single, step } => {
            let mut found = Vec::new();
            for value in there {
                let Tree::List(items) = value else { return Err(Mismatch) };
                let items = slice(items, *start, end.filter(|_| !is_single), *is_single, *step)?;
                looks.take(1 + items.len())?;
                found.extend(items);
            }
            Ok(found)
        }
        Node::Union(paths) => {
            let mut found = Vec::new();
            for path in paths {
                looks.take(values.len())?;
                found.extend(walk(path, values.to_vec(), looks)?);
            }
            Ok(found)
        }
        Node::Filter { left, operator, right } => {
            let mut found = Vec::new();
            for value in values {
                let Tree::List(items) = value else { return Err(Mismatch) };
                for item in items {
                    looks.take(1)?;
                    if passes(item, left, operator, right, looks)? {
                        found.push(item);
                    }
                }
            }
            Ok(found)
        }
        Node::Literal(literal) => Ok(values.iter().map(|_| literal).collect()),
        Node::Identifier => Err(Mismatch),
    }
}

fn children<'t, 'a>(value: &'t Tree<'a>) -> Box<dyn Iterator<Item = &'t Tree<'a>> + 't> {
    match value {
        Tree::Map(entries) => Box::new(entries.iter().map(|(_, value)| value)),
        Tree::List(items) => Box::new(items.iter()),
        Tree::Null | Tree::Bool(_) | Tree::Int(_) | Tree::Float(_) | Tree::Text(_) => {
            Box::new(std::iter::empty())
        }
    }
}

/// The value and all below it that have something below them.
fn descend<'t, 'a>(
    value: &'t Tree<'a>,
    found: &mut Vec<&'t Tree<'a>>,
    looks: &Looks,
) -> Result<(), Mismatch> {
    looks.take(1)?;
    if children(value).next().is_some() {
        found.push(value);
        children(value).try_for_each(|child| descend(child, found, looks))?;
    }
    Ok(())
}

fn slice<'t, 'a>(
    items: &'t [Tree<'a>],
    start: Option<i64>,
    end: Option<i64>,
    is_single: bool,
    step: Option<i64>,
) -> Found<'t, 'a> {
    let length = i64::try_from(items.len()).map_err(|_| Mismatch)?;
    // An index that Go's `int` holds and which stays one when 1 is added.
    let given = start.unwrap_or(0).clamp(-i64::from(u32::MAX), i64::from(u32::MAX));
    let start = if given < 0 { given + length } else { given };
    let end = match end {
        _ if is_single && given < 0 => given + 1 + length,
        _ if is_single => given + 1,
        None => length,
        Some(end) if end < 0 => end.saturating_add(length),
        Some(end) => end,
    };
    if start == end {
        return Ok(Vec::new());
    }
    if !(0..length).contains(&start) || !(0..=length).contains(&end) || start > end {
        return Err(Mismatch);
    }
    let step = usize::try_from(step.unwrap_or(1)).ok().filter(|step| *step > 0).ok_or(Mismatch)?;
    Ok(items[start as usize..end as usize].iter().step_by(step).collect())
}

fn passes(
    item: &Tree<'_>,
    left: &[Node],
    operator: &str,
    right: &[Node],
    looks: &Looks,
) -> Result<bool, Mismatch> {
    let lefts = walk(left, vec![item], looks);
    if looks.are_over() {
        return Err(Mismatch);
    }
    if operator == "exists" {
        return Ok(lefts.is_ok_and(|found| !found.is_empty()));
    }
    let lefts = lefts?;
    let left = match lefts[..] {
        [] => return Ok(false),
        [left] => left,
        [..] => return Err(Mismatch),
    };
    let rights = walk(right, vec![item], looks)?;
    let right = match rights[..] {
        [] => return Ok(false),
        [right] => right,
        [..] => return Err(Mismatch),
    };
    let (order, is_ordered) = compare(left, right)?;
    match operator {
        "==" => Ok(order == Some(Ordering::Equal)),
        "!=" => Ok(order != Some(Ordering::Equal)),
        _ if !is_ordered => Err(Mismatch),
        "<" => Ok(order == Some(Ordering::Less)),
        ">" => Ok(order == Some(Ordering::Greater)),
        "<=" => Ok(matches!(order, Some(Ordering::Less | Ordering::Equal))),
        ">=" => Ok(matches!(order, Some(Ordering::Greater | Ordering::Equal))),
        _ => Err(Mismatch),
    }
}

/// How two scalars of one kind compare, and whether that kind has an order.
fn compare(left: &Tree<'_>, right: &Tree<'_>) -> Result<(Option<Ordering>, bool), Mismatch> {
    match (left, right) {
        (Tree::Text(left), Tree::Text(right)) => Ok((Some(left.cmp(right)), true)),
        (Tree::Int(left), Tree::Int(right)) => Ok((Some(left.cmp(right)), true)),
        (Tree::Float(left), Tree::Float(right)) => Ok((left.partial_cmp(right), true)),
        (Tree::Bool(left), Tree::Bool(right)) => Ok((Some(left.cmp(right)), false)),
        _ => Err(Mismatch),
    }
}

// === printing ===

/// A value as a template prints it: scalars as Go's `fmt` does, lists and objects as JSON.
pub(super) fn print(value: &Tree<'_>) -> String {
    match value {
        Tree::Null => "<no value>".to_owned(),
        Tree::Bool(is_so) => is_so.to_string(),
        Tree::Int(number) => number.to_string(),
        Tree::Float(number) => go_float(*number),
        Tree::Text(text) => text.clone().into_owned(),
        Tree::List(_) | Tree::Map(_) => {
            let mut out = String::new();
            write_json(value, &mut out);
            out
        }
    }
}

/// Go's `%v`: an exponent of two digits beyond six digits.
fn go_float(number: f64) -> String {
    match exponential(number, -4..6) {
        Some((digits, exponent)) => format!("{digits}e{}{:02}", sign(exponent), exponent.unsigned_abs()),
        None => number.to_string(),
    }
}

/// The digits and the exponent of a number whose exponent is not plain.
fn exponential(number: f64, plain: std::ops::Range<i32>) -> Option<(String, i32)> {
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e')?;
    let exponent = exponent.parse().ok()?;
    (!plain.contains(&exponent)).then(|| (digits.to_owned(), exponent))
}

fn sign(exponent: i32) -> char {
    if exponent < 0 { '-' } else { '+' }
}

/// Writes as Go's `json.Marshal`: keys in order, with HTML characters escaped.
fn write_json(value: &Tree<'_>, out: &mut String) {
    match value {
        Tree::Null => out.push_str("null"),
        Tree::Bool(_) | Tree::Int(_) => out.push_str(&print(value)),
        Tree::Float(number) => out.push_str(&match exponential(*number, -6..21) {
            Some((digits, exponent)) => format!("{digits}e{}{}", sign(exponent), exponent.unsigned_abs()),
            None => number.to_string(),
        }),
        Tree::Text(text) => write_text(text, out),
        Tree::List(items) => {
            for (at, item) in items.iter().enumerate() {
                out.push(if at == 0 { '[' } else { ',' });
                write_json(item, out);
            }
            out.push_str(if items.is_empty() { "[]" } else { "]" });
        }
        Tree::Map(entries) => {
            let entries: std::collections::BTreeMap<_, _> =
                entries.iter().map(|(key, value)| (key, value)).collect();
            for (at, (key, value)) in entries.iter().enumerate() {
                out.push(if at == 0 { '{' } else { ',' });
                write_text(key, out);
                out.push(':');
                write_json(value, out);
            }
            out.push_str(if entries.is_empty() { "{}" } else { "}" });
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}
