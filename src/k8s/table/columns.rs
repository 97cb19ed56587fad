//! The columns of each built-in kind, as the API server prints it.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// A column of a table, as the API server describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its heading, which `kubectl` writes in capitals.
    pub name: String,
    /// OpenAPI type: `string`, `integer`, `number`, `boolean`, `date`.
    #[serde(rename = "type")]
    pub kind: String,
    /// OpenAPI format; `name` marks the object's name.
    #[serde(default)]
    pub format: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// 0 is always shown, more only in wide output.
    #[serde(default)]
    pub priority: i32,
}

/// A column that some versions have.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Gated {
    #[serde(flatten)]
    pub(super) column: Column,
    /// The first minor version that has it.
    #[serde(default)]
    since: u32,
    /// The last one.
    #[serde(default = "always")]
    until: u32,
}

const fn always() -> u32 {
    u32::MAX
}

/// What an entry of `columns.json` may be.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Entry {
    /// `Name` or `Age`, which are alike in all kinds.
    Common(String),
    Own(Gated),
}

/// `columns.json`: what kube-apiserver 1.20 answers, and what newer ones have added.
#[derive(Debug, Deserialize)]
struct File {
    #[serde(rename = "Name")]
    name: Column,
    /// With another link in its description.
    #[serde(rename = "Name before 1.27")]
    name_before: Column,
    #[serde(rename = "Age")]
    age: Column,
    kinds: HashMap<String, Vec<Entry>>,
}

static FILE: LazyLock<File> = LazyLock::new(|| {
    serde_json::from_str(include_str!("columns.json")).expect("it is part of the program, and tested")
});

impl Gated {
    pub(super) fn is_in(&self, minor: u32) -> bool {
        (self.since..=self.until).contains(&minor)
    }
}

/// All columns of a kind (`deployments.apps`), worded as in a minor version; also those that this version lacks.
pub(super) fn of(kind: &str, minor: u32) -> Option<Vec<Gated>> {
    let name_column = if minor < 27 { &FILE.name_before } else { &FILE.name };
    let common = |column: &Column| Gated { column: column.clone(), since: 0, until: always() };
    let column = |entry: &Entry| match entry {
        Entry::Common(name) if name == "Name" => common(name_column),
        Entry::Common(_) => common(&FILE.age),
        Entry::Own(column) => column.clone(),
    };
    FILE.kinds.get(kind).map(|entries| entries.iter().map(column).collect())
}

/// The description of the column with the age.
pub(super) fn age_description() -> &'static str {
    &FILE.age.description
}

/// All kinds of which there are columns.
#[cfg(test)]
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    FILE.kinds.keys().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_their_own_columns() {
        let names = |kind: &str, minor: u32| -> Vec<String> {
            let columns = of(kind, minor).unwrap().into_iter().filter(|gated| gated.is_in(minor));
            columns.map(|gated| format!("{}:{}", gated.column.name, gated.column.kind)).collect()
        };
        assert_eq!(
            names("pods", 20)[..5],
            ["Name:string", "Ready:string", "Status:string", "Restarts:integer", "Age:string"]
        );
        assert_eq!(names("pods", 36)[3], "Restarts:string");
        assert_eq!(names("resourcequotas", 20)[1], "Age:string");
        assert_eq!(names("resourcequotas", 36)[3], "Age:string");
        assert_eq!(names("configmaps", 20), names("configmaps", 36));
    }

    #[test]
    fn common_columns_are_only_those_two() {
        for (kind, entries) in &FILE.kinds {
            for entry in entries {
                if let Entry::Common(name) = entry {
                    assert!(matches!(&**name, "Name" | "Age"), "{kind}: {name}");
                }
            }
        }
    }
}
