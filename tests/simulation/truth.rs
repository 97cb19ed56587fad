//! The oracle: the true state of the cluster at each version. It records the simulation's writes, and knows nothing
//! of caches, journals or tokens.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

/// The resources of a history: a built-in one and a custom one.
pub(crate) const RESOURCES: [&str; 2] = ["configmaps", "widgets.demo.informerd.dev"];

/// `namespace/name`.
pub(crate) type Key = String;

/// An object as it was after one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) uid: String,
    pub(crate) version: u64,
    /// The number of the write, which is unique and serves as the object's content.
    pub(crate) content: String,
    pub(crate) app: Option<String>,
    pub(crate) color: Option<String>,
    pub(crate) refers: References,
}

/// How an object refers to objects of the other resource in its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct References {
    /// The name at [`PEER`].
    peer: Option<String>,
    /// The value of the label `app` at [`SELECTS`].
    selects: Option<String>,
    /// The uid of its owner.
    owner: Option<String>,
}

/// Where an object of the first resource has the name of one of the second.
pub(crate) const PEER: &str = "peer";
/// Where an object of the second resource has the labels of those of the first that it selects.
pub(crate) const SELECTS: &str = "selects";

/// A relation between objects of the first resource and of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// By name or by selector.
    Links,
    /// By name.
    Name,
    /// By selector.
    Selector,
    /// By owner reference.
    Owner,
}

impl Relation {
    /// Whether an object of the first resource and one of the second are related.
    pub(crate) fn holds(self, first: (&str, &Seen), second: (&str, &Seen)) -> bool {
        let parts = (first.0.split_once('/'), second.0.split_once('/'));
        let (Some((near, _)), Some((there, name))) = parts else { return false };
        let (first, second) = (first.1, second.1);
        let names = first.refers.peer.as_deref() == Some(name);
        let selects = second.refers.selects.is_some() && second.refers.selects == first.app;
        near == there
            && match self {
                Self::Links => names || selects,
                Self::Name => names,
                Self::Selector => selects,
                Self::Owner => first.refers.owner.as_ref() == Some(&second.uid),
            }
    }
}

/// The objects of a resource by key.
pub(crate) type State = BTreeMap<Key, Rc<Seen>>;

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) version: u64,
    pub(crate) key: Key,
    /// The state before and after; `None` if the object did not exist.
    pub(crate) before: Option<Rc<Seen>>,
    pub(crate) after: Option<Rc<Seen>>,
}

/// The writes to one resource, from the cluster's beginning on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) writes: Vec<Write>,
    /// The state after each write.
    states: BTreeMap<u64, Rc<State>>,
}

/// Everything that was written. A restore from a backup begins a new era, whose logs begin with the writes before the
/// backup.
#[derive(Debug)]
pub(crate) struct Truth {
    pub(crate) eras: Vec<[Log; 2]>,
}

impl Default for Truth {
    fn default() -> Self {
        Self { eras: vec![Default::default()] }
    }
}

impl Truth {
    /// The current era.
    pub(crate) fn era(&self) -> usize {
        self.eras.len() - 1
    }

    /// The log of a resource in the current era.
    pub(crate) fn log(&self, resource: usize) -> &Log {
        &self.eras[self.era()][resource]
    }

    /// Records a write.
    pub(crate) fn note(&mut self, resource: usize, version: u64, key: &str, after: Option<Seen>) {
        let era = self.era();
        self.eras[era][resource].note(version, key, after);
    }

    /// Records that the cluster was restored to its state at `version`.
    pub(crate) fn put_back(&mut self, version: u64) {
        let logs = self.eras[self.era()].each_ref().map(|log| log.up_to(version));
        self.eras.push(logs);
    }
}

impl Log {
    fn note(&mut self, version: u64, key: &str, after: Option<Seen>) {
        let mut state = State::clone(&self.now());
        let after = after.map(Rc::new);
        let before = match &after {
            Some(after) => state.insert(key.to_owned(), after.clone()),
            None => state.remove(key),
        };
        assert!(
            self.writes.last().is_none_or(|last| last.version < version),
            "the simulation notes in order"
        );
        self.writes.push(Write { version, key: key.to_owned(), before, after });
        self.states.insert(version, Rc::new(state));
    }

    fn up_to(&self, version: u64) -> Self {
        Self {
            writes: self.writes.iter().filter(|write| write.version <= version).cloned().collect(),
            states: self.states.range(..=version).map(|(version, state)| (*version, state.clone())).collect(),
        }
    }

    /// The state now.
    pub(crate) fn now(&self) -> Rc<State> {
        self.at(u64::MAX)
    }

    /// The state at a version.
    pub(crate) fn at(&self, version: u64) -> Rc<State> {
        self.states.range(..=version).next_back().map(|(_, state)| state.clone()).unwrap_or_default()
    }

    /// The writes after a version, oldest first.
    pub(crate) fn after(&self, version: u64) -> &[Write] {
        &self.writes[self.writes.partition_point(|write| write.version <= version)..]
    }

    /// The last write to an object up to a version.
    pub(crate) fn last(&self, key: &str, version: u64) -> Option<&Write> {
        let until = self.writes.partition_point(|write| write.version <= version);
        self.writes[..until].iter().rev().find(|write| write.key == key)
    }
}

impl Seen {
    /// Reads an object as the cluster has stored it.
    pub(crate) fn of(stored: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &stored["metadata"];
        Self {
            uid: text(&metadata["uid"]).unwrap_or_default(),
            version: metadata["resourceVersion"]
                .as_str()
                .and_then(|version| version.parse().ok())
                .unwrap_or(0),
            content: text(&stored["data"]["write"]).unwrap_or_default(),
            app: text(&metadata["labels"]["app"]),
            color: text(&stored["data"]["color"]),
            refers: References {
                peer: text(&stored["data"][PEER]),
                selects: text(&stored["data"][SELECTS]["app"]),
                owner: text(&metadata["ownerReferences"][0]["uid"]),
            },
        }
    }
}

/// The selection of a client, expressed without the code of selectors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The namespaces; empty for all.
    pub(crate) namespaces: Vec<&'static str>,
    pub(crate) name: Option<&'static str>,
    pub(crate) app: Option<Test>,
    pub(crate) color: Option<Test>,
    pub(crate) shows: Shows,
    /// Whether `app` is selected by a CEL expression, not by a label selector.
    pub(crate) by_expression: bool,
    /// The interval of gathering, in milliseconds.
    pub(crate) coalesce_ms: Option<u64>,
}

/// How objects are shown, and which changes are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shows {
    #[default]
    Whole,
    /// Whole objects, changes as merge patches.
    Patches,
    /// Labels and color only.
    Fields,
    /// Whole objects, sent when labels or color change.
    Changed,
    /// Labels and color only, changes as merge patches.
    FieldPatches,
}

impl Shows {
    /// Whether changes of other content are not sent.
    pub(crate) fn is_part(self) -> bool {
        matches!(self, Self::Fields | Self::Changed | Self::FieldPatches)
    }

    /// Whether other content is not shown.
    pub(crate) fn hides_content(self) -> bool {
        matches!(self, Self::Fields | Self::FieldPatches)
    }
}

/// The required values of a label or field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Test {
    Is(&'static str),
    IsNot(&'static str),
    OneOf(&'static str, &'static str),
    Exists,
}

impl Wanted {
    /// Whether objects with this key can be wanted.
    pub(crate) fn in_scope(&self, key: &str) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        (self.namespaces.is_empty() || self.namespaces.contains(&namespace))
            && self.name.is_none_or(|wanted| wanted == name)
    }

    /// Whether an object is wanted.
    pub(crate) fn wants(&self, key: &str, seen: &Seen) -> bool {
        let passes = |test: Option<Test>, value: &Option<String>| match (test, value.as_deref()) {
            (None, _) => true,
            (Some(Test::Is(wanted)), value) => value == Some(wanted),
            (Some(Test::IsNot(other)), value) => value != Some(other),
            (Some(Test::OneOf(a, b)), value) => value == Some(a) || value == Some(b),
            (Some(Test::Exists), value) => value.is_some(),
        };
        self.in_scope(key) && passes(self.app, &seen.app) && passes(self.color, &seen.color)
    }

    /// Whether a change between two selected states is not sent to a client of this selection.
    pub(crate) fn shows_same(&self, before: &Seen, after: &Seen) -> bool {
        self.shows.is_part()
            && before.uid == after.uid
            && before.app == after.app
            && before.color == after.color
    }

    /// The label selector in Kubernetes' grammar.
    pub(crate) fn label_selector(&self) -> String {
        match self.app.filter(|_| !self.by_expression) {
            None => String::new(),
            Some(Test::Is(wanted)) => format!("app={wanted}"),
            Some(Test::IsNot(other)) => format!("app!={other}"),
            Some(Test::OneOf(a, b)) => format!("app in ({a}, {b})"),
            Some(Test::Exists) => "app".into(),
        }
    }

    /// The same condition in CEL.
    pub(crate) fn expression(&self) -> Option<String> {
        let app = "object.metadata.labels.app";
        Some(match self.app.filter(|_| self.by_expression)? {
            Test::Is(wanted) => format!("{app} == '{wanted}'"),
            Test::IsNot(other) => {
                format!("!has(object.metadata.labels) || !has({app}) || {app} != '{other}'")
            }
            Test::OneOf(a, b) => format!("{app} in ['{a}', '{b}']"),
            Test::Exists => format!("has({app})"),
        })
    }

    /// The field selector in Kubernetes' grammar, which knows equality only.
    pub(crate) fn field_selector(&self) -> String {
        match self.color {
            Some(Test::Is(wanted)) => format!("data.color={wanted}"),
            Some(Test::IsNot(other)) => format!("data.color!={other}"),
            None | Some(Test::OneOf(..) | Test::Exists) => String::new(),
        }
    }
}
