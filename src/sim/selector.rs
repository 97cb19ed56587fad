//! Label and field selectors, evaluated in the simplest way for one object at a time.

use super::kinds::Kind;
use super::object::Stored;
use super::status::{Status, quoted};

/// The filter of a list or watch: one namespace or all, and both selectors.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    /// Empty means every namespace.
    pub(super) namespace: String,
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    NotExists,
    Greater(i64),
    Less(i64),
}

impl Filter {
    /// Parses both selectors; 400 with the real server's text if one is invalid.
    pub(super) fn parse(kind: &Kind, namespace: &str, labels: &str, fields: &str) -> Result<Self, Status> {
        let labels = parse_labels(labels)
            .map_err(|why| Status::bad_request(format!("unable to parse requirement: {why}")))?;
        Ok(Self { namespace: namespace.into(), labels, fields: parse_fields(kind, fields)? })
    }

    /// Everything in one namespace.
    pub(super) fn in_namespace(namespace: &str) -> Self {
        Self { namespace: namespace.into(), ..Self::default() }
    }

    /// Whether neither selector narrows the namespace.
    pub(super) fn has_no_selectors(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Stored) -> bool {
        (self.namespace.is_empty() || self.namespace == object.namespace)
            && self.labels.iter().all(|r| r.operator.holds(object.label(&r.key)))
            && self.fields.iter().all(|r| r.operator.holds(Some(object.field(&r.key))))
    }
}

impl Operator {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
            Self::NotIn(values) => !value.is_some_and(|v| values.iter().any(|x| x == v)),
            Self::Exists => value.is_some(),
            Self::NotExists => value.is_none(),
            Self::Greater(than) => number().is_some_and(|n| n > *than),
            Self::Less(than) => number().is_some_and(|n| n < *than),
        }
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    split_outside_parentheses(text).into_iter().map(parse_label).collect()
}

/// Commas separate requirements, except inside the parentheses of a set.
fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if parts.iter().all(|p| p.trim().is_empty()) { Vec::new() } else { parts }
}

fn parse_label(text: &str) -> Result<Requirement, String> {
    let text = text.trim();
    if let Some(key) = text.strip_prefix('!') {
        return requirement(key, Operator::NotExists);
    }
    if let Some(at) = text.find(['=', '!', '>', '<']) {
        let (key, rest) = text.split_at(at);
        let (operator, value) = ["==", "!=", "=", ">", "<"]
            .iter()
            .find_map(|op| Some((*op, rest.strip_prefix(op)?.trim())))
            .ok_or_else(|| format!("found '{rest}', expected: '='"))?;
        if let Some(bad) = value.chars().find(|c| !is_label_char(*c)) {
            return Err(format!("found '{bad}', expected: identifier"));
        }
        let number = || {
            value.parse::<i64>().map_err(|_| {
                format!("values[0][{key}]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer", quoted(value))
            })
        };
        let operator = match operator {
            "!=" => Operator::NotIn(vec![value.into()]),
            ">" => Operator::Greater(number()?),
            "<" => Operator::Less(number()?),
            _ => Operator::In(vec![value.into()]),
        };
        return requirement(key, operator);
    }
    let Some((key, rest)) = text.split_once(char::is_whitespace) else {
        return requirement(text, Operator::Exists);
    };
    let rest = rest.trim();
    let (word, set) = rest.split_at(rest.find(['(', ' ']).unwrap_or(rest.len()));
    let values = set.trim().strip_prefix('(').and_then(|s| s.strip_suffix(')'));
    let values = values.ok_or_else(|| format!("found '{set}', expected: '('"))?;
    let values = values.split(',').map(|v| v.trim().to_owned()).collect();
    match word {
        "in" => requirement(key, Operator::In(values)),
        "notin" => requirement(key, Operator::NotIn(values)),
        _ => Err(format!("found '{word}', expected: in, notin, '=', '==', '!=', gt, lt")),
    }
}

fn requirement(key: &str, operator: Operator) -> Result<Requirement, String> {
    let key = key.trim();
    match key.chars().find(|c| !is_label_char(*c)) {
        Some(bad) => Err(format!("found '{bad}', expected: identifier")),
        None if key.is_empty() => Err("found '', expected: !, identifier, or 'end of string'".into()),
        None => Ok(Requirement { key: key.into(), operator }),
    }
}

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/')
}

fn parse_fields(kind: &Kind, text: &str) -> Result<Vec<Requirement>, Status> {
    let mut requirements = Vec::new();
    for term in text.split(',').filter(|t| !t.trim().is_empty()) {
        let (key, operator) = if let Some((key, value)) = term.split_once("!=") {
            (key, Operator::NotIn(vec![value.into()]))
        } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (key, Operator::In(vec![value.into()]))
        } else {
            return Err(Status::bad_request(format!(
                "invalid selector: {}; can't understand {}",
                quoted(text).replace('"', "'"),
                quoted(term).replace('"', "'")
            )));
        };
        let key = key.trim();
        let known =
            matches!(key, "metadata.name" | "metadata.namespace") || kind.field_selectors().any(|f| f == key);
        if !known {
            return Err(Status::bad_request(unknown_field(kind, key)));
        }
        requirements.push(Requirement { key: key.into(), operator });
    }
    Ok(requirements)
}

fn unknown_field(kind: &Kind, key: &str) -> String {
    if kind.is_custom() || kind.field_selectors().next().is_some() {
        return format!("field label not supported: {key}");
    }
    format!(r#"{} is not a known field selector: only "metadata.name", "metadata.namespace""#, quoted(key))
}

#[cfg(test)]
mod tests {
    use super::super::kinds::built_in;
    use super::*;

    fn pod(labels: &serde_json::Value) -> Stored {
        let kind = built_in().into_iter().find(|k| k.plural == "pods").unwrap();
        let value = serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "labels": labels}, "spec": {"nodeName": "n1"},
        });
        Stored::new(&kind, value, 1)
    }

    fn check(labels: &str, fields: &str) -> Result<bool, String> {
        let kind = built_in().into_iter().find(|k| k.plural == "pods").unwrap();
        let object = pod(&serde_json::json!({"app": "web", "num": "2"}));
        Filter::parse(&kind, "", labels, fields).map(|f| f.matches(&object)).map_err(|s| s.message)
    }

    #[test]
    fn label_selectors_select_as_kubectl_does() {
        for yes in [
            "",
            "app=web",
            "app==web",
            "app!=x",
            "none!=x",
            "app in (a, web)",
            "x notin (a)",
            "app",
            "!x",
            "num>1",
            "num<3,app",
            "app in (web),num=2",
            "app notin (a,b),num in (2)",
        ] {
            assert_eq!(check(yes, ""), Ok(true), "{yes}");
        }
        for no in
            ["app=x", "app!=web", "app in (a)", "app notin (web)", "!app", "x", "num>2", "num<2", "app>1"]
        {
            assert_eq!(check(no, ""), Ok(false), "{no}");
        }
        assert_eq!(
            check("a===b", ""),
            Err("unable to parse requirement: found '=', expected: identifier".into())
        );
        assert!(check("a foo (x)", "").is_err());
        assert!(check("num>x", "").is_err());
    }

    #[test]
    fn field_selectors_take_the_labels_of_the_kind() {
        assert_eq!(check("", "metadata.name=p,metadata.name=p,spec.nodeName=n1"), Ok(true));
        assert_eq!(check("", "metadata.namespace!=ns"), Ok(false));
        assert_eq!(check("", "status.phase="), Ok(true));
        assert_eq!(check("", "spec.x=1"), Err("field label not supported: spec.x".into()));
    }
}
