//! Members that are removed from each object before it is stored.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::k8s::FieldPath;

/// Members that are removed from an object before it is stored, as dotted paths: `.data`, `.status.conditions`.
///
/// A path begins with a dot and names one member after the other. At an array it continues in each element
/// (`.spec.containers.env`). A dot within a name is written `\.`, or the name stands in quotes:
/// `.metadata.annotations["example.com/note"]`. The member itself is removed; an object that loses its last member
/// stays as `{}`. A path that an object lacks removes nothing. Members that identify an object, and its labels, cannot
/// be dropped. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DropPaths(Option<Arc<Branch>>);

/// A path that cannot be dropped, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} cannot be dropped: {problem}")]
pub struct DropError {
    path: String,
    problem: &'static str,
}

/// The members to drop below one member, by name.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Branch(BTreeMap<String, Cut>);

/// How much of one member is dropped.
#[derive(PartialEq, Eq)]
pub(super) enum Cut {
    /// All of it.
    Whole,
    /// Something within.
    Within(Branch),
}

// === impl DropPaths ===

impl DropPaths {
    /// Whether nothing is dropped.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the path of a field selector names a dropped member, or one within it. A dot within a name is written `\.`.
    pub fn drops(&self, field: &str) -> bool {
        let mut branch = self.root();
        for name in FieldPath::new(field).segments() {
            match branch.and_then(|branch| branch.get(&name)) {
                Some(Cut::Whole) => return true,
                Some(Cut::Within(inner)) => branch = Some(inner),
                None => return false,
            }
        }
        false
    }

    /// The paths, sorted, each in its shortest form.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        if let Some(root) = self.root() {
            root.list(&mut String::new(), &mut paths);
        }
        paths
    }

    /// These paths together with those that `other` lists, joined by commas.
    ///
    /// # Errors
    /// [`DropError`] if `other` has a path that cannot be dropped.
    pub fn and(&self, other: &str) -> Result<Self, DropError> {
        let mut all = self.paths().join(",");
        all.push(',');
        all.push_str(other);
        all.trim_start_matches(',').parse()
    }

    pub(super) fn root(&self) -> Option<&Branch> {
        self.0.as_deref()
    }

    pub(super) fn share(&self) -> Option<Arc<Branch>> {
        self.0.clone()
    }
}

impl FromStr for DropPaths {
    type Err = DropError;

    /// Reads paths joined by commas.
    fn from_str(text: &str) -> Result<Self, DropError> {
        let mut root = Branch::default();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (names, after) = path(rest)?;
            let read = &rest[..rest.len() - after.len()];
            if let Err(problem) = droppable(&names) {
                return Err(DropError { path: read.to_owned(), problem });
            }
            root.add(&names);
            rest = match after.trim_start() {
                "" => "",
                after => after.strip_prefix(',').ok_or_else(|| DropError::between(after))?.trim_start(),
            };
        }
        Ok(Self((!root.0.is_empty()).then(|| Arc::new(root))))
    }
}

impl fmt::Display for DropPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.paths().join(","))
    }
}

impl fmt::Debug for DropPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl DropError ===

impl DropError {
    fn between(text: &str) -> Self {
        Self { path: text.to_owned(), problem: "expected a comma between paths" }
    }
}

/// Refuses members that identify an object, and its labels.
fn droppable(names: &[String]) -> Result<(), &'static str> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match &*names {
        ["apiVersion" | "kind", ..] => Err("it tells what the object is"),
        ["metadata"] => Err("it tells which object it is; drop a member of it"),
        ["metadata", "name" | "namespace" | "uid" | "resourceVersion", ..] => {
            Err("it tells which object it is")
        }
        ["metadata", "labels", ..] => Err("label selectors need the labels"),
        _ => Ok(()),
    }
}

/// The names of the path at the beginning of a text, and what follows it.
fn path(text: &str) -> Result<(Vec<String>, &str), DropError> {
    let wrong = |problem| DropError { path: text.to_owned(), problem };
    let mut names = Vec::new();
    let mut rest = text;
    while !rest.is_empty() && !rest.starts_with(is_between) {
        let (name, after) = if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, after) = until(quoted, |character| character == '"');
            let after = after.strip_prefix("\"]");
            (name, after.ok_or_else(|| wrong("expected \"] at the end of a name in quotes"))?)
        } else if let Some(plain) = rest.strip_prefix('.') {
            until(plain, |character| matches!(character, '.' | '[') || is_between(character))
        } else {
            return Err(wrong("expected a path that begins with a dot, such as .status.conditions"));
        };
        if name.is_empty() {
            return Err(wrong("expected a name after each dot"));
        }
        if rest.len() - after.len() == 2 && name == "*" {
            return Err(wrong("an array needs no sign: a path goes on in each of its elements"));
        }
        names.push(name);
        rest = after;
    }
    if names.is_empty() { Err(wrong("expected a path before the comma")) } else { Ok((names, rest)) }
}

/// Whether a character ends the path before it: a comma or a blank.
fn is_between(character: char) -> bool {
    character == ',' || character.is_whitespace()
}

/// The text before the first character for which `ends` holds, and the rest. A character after a backslash is taken
/// literally.
fn until(text: &str, ends: impl Fn(char) -> bool) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            character if ends(character) => return (name, &text[at..]),
            character => name.push(character),
        }
    }
    (name, "")
}

// === impl Branch ===

impl Branch {
    pub(super) fn get(&self, name: &str) -> Option<&Cut> {
        self.0.get(name)
    }

    fn add(&mut self, names: &[String]) {
        let Some((name, rest)) = names.split_first() else { return };
        if rest.is_empty() {
            self.0.insert(name.clone(), Cut::Whole);
            return;
        }
        match self.0.entry(name.clone()).or_insert_with(|| Cut::Within(Self::default())) {
            Cut::Within(inner) => inner.add(rest),
            Cut::Whole => {}
        }
    }

    fn list(&self, before: &mut String, paths: &mut Vec<String>) {
        for (name, cut) in &self.0 {
            let length = before.len();
            before.push('.');
            for character in name.chars() {
                if matches!(character, '.' | '[' | '*' | '\\') || is_between(character) {
                    before.push('\\');
                }
                before.push(character);
            }
            match cut {
                Cut::Whole => paths.push(before.clone()),
                Cut::Within(inner) => inner.list(before, paths),
            }
            before.truncate(length);
        }
    }
}

// === impl Cut ===

impl Cut {
    /// The members to drop within; `None` if the whole member is dropped.
    pub(super) fn within(&self) -> Option<&Branch> {
        match self {
            Self::Whole => None,
            Self::Within(branch) => Some(branch),
        }
    }
}

#[cfg(test)]
#[path = "drop_tests.rs"]
mod tests;
