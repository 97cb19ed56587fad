//! A watch: one resource, its namespaces, and which of its objects.

use std::fmt;
use std::str::FromStr;

use super::error::ConfigError;
use super::expand::{Environment, expand};
use super::setting::{Form, Value, Wrong};
use crate::k8s::{DropPaths, FieldMask, FieldSelector, LabelSelector};

/// The parameters of a watch, named as in the HTTP interface.
const ACCEPTED: &str =
    "namespace, labelSelector, fieldSelector, keepManagedFields, keepLastApplied, metadataOnly, drop, index";

/// Most indexes that one watch may pin. An informer has 16 at most, and requests need some of them.
const INDEXES_MAX: usize = 8;

/// One resource to watch, as it was typed or written in the file: nothing expanded, no defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchEntry {
    /// Name as typed: `pods`, `deploy`, `deployments.v1.apps`.
    pub resource: String,
    /// Namespaces; empty for the default of `--namespace`.
    pub namespaces: Vec<String>,
    /// Label selector.
    pub label_selector: Option<String>,
    /// Field selector.
    pub field_selector: Option<String>,
    /// Whether `metadata.managedFields` is kept; `None` for the default.
    pub keep_managed_fields: Option<bool>,
    /// Whether the last-applied annotation is kept; `None` for the default.
    pub keep_last_applied: Option<bool>,
    /// Whether only the objects' metadata is fetched and held; `None` for whole objects.
    pub metadata_only: Option<bool>,
    /// Paths of members that are dropped.
    pub drop: Vec<String>,
    /// Paths whose indexes are kept from the start.
    pub indexes: Vec<String>,
}

/// One resource to watch, with defaults applied. Makes one informer, or one for each namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSpec {
    /// Name as typed, to be resolved by discovery: `pods`, `deploy`, `deployments.v1.apps`.
    pub resource: String,
    /// Namespaces, sorted and without duplicates; empty for all.
    pub namespaces: Vec<String>,
    /// Whether `namespaces` comes from `--namespace`. A cluster-scoped resource ignores that default, but refuses namespaces
    /// given with the watch itself.
    pub namespaces_are_default: bool,
    /// Label selector for the API server; its syntax is checked.
    pub label_selector: Option<String>,
    /// Field selector for the API server; its syntax is checked. Only the API server knows which fields are allowed.
    pub field_selector: Option<String>,
    /// Whether `metadata.managedFields` is kept.
    pub keep_managed_fields: bool,
    /// Whether the annotation in which `kubectl apply` keeps the last manifest is kept.
    pub keep_last_applied: bool,
    /// Whether only the objects' metadata is fetched and held.
    pub metadata_only: bool,
    /// Members that are dropped.
    pub drop: DropPaths,
    /// Paths whose indexes are kept from the start, sorted and without duplicates.
    pub indexes: Vec<String>,
}

/// What to watch, as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watches(pub Vec<WatchEntry>);

/// One resource to watch, as the file has it.
#[derive(serde::Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileWatch {
    resource: String,
    #[serde(default)]
    namespaces: Vec<String>,
    label_selector: Option<String>,
    field_selector: Option<String>,
    keep_managed_fields: Option<bool>,
    keep_last_applied: Option<bool>,
    metadata_only: Option<bool>,
    #[serde(default)]
    drop: Vec<String>,
    #[serde(default)]
    indexes: Vec<String>,
}

/// Defaults for watches that do not say otherwise.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchDefaults {
    pub(super) namespaces: Vec<String>,
    pub(super) keep_managed_fields: bool,
    pub(super) keep_last_applied: bool,
}

// === impl WatchEntry ===

impl FromStr for WatchEntry {
    type Err = String;

    /// Reads `resource` or `resource?name=value&name=value`. A value begins after the first `=`. It is not percent-decoded, as
    /// it is typed in a shell and not in a URL.
    fn from_str(text: &str) -> Result<Self, String> {
        let (resource, query) = match text.trim().split_once('?') {
            Some((resource, query)) => (resource, Some(query)),
            None => (text.trim(), None),
        };
        check_resource(resource)?;
        let mut entry = Self { resource: resource.to_owned(), ..Self::default() };
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("expected name=value, found {pair:?}; accepted names: {ACCEPTED}"))?;
            entry.set(name, value)?;
        }
        Ok(entry)
    }
}

impl WatchEntry {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        fn once<T>(name: &str, slot: &mut Option<T>, value: T) -> Result<(), String> {
            match slot.replace(value) {
                Some(_) => {
                    Err(format!("{name} is given twice; only namespace, drop and index may be repeated"))
                }
                None => Ok(()),
            }
        }
        let truth = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("{name}={value}: expected true or false")),
        };
        match name {
            "namespace" => self.namespaces.push(value.to_owned()),
            "labelSelector" => once(name, &mut self.label_selector, value.to_owned())?,
            "fieldSelector" => once(name, &mut self.field_selector, value.to_owned())?,
            "keepManagedFields" => once(name, &mut self.keep_managed_fields, truth()?)?,
            "keepLastApplied" => once(name, &mut self.keep_last_applied, truth()?)?,
            "metadataOnly" => once(name, &mut self.metadata_only, truth()?)?,
            "drop" => self.drop.push(value.to_owned()),
            "index" => self.indexes.push(value.to_owned()),
            _ => return Err(format!("unknown parameter {name:?}; accepted: {ACCEPTED}")),
        }
        Ok(())
    }

    pub(super) fn resolve(
        self,
        defaults: &WatchDefaults,
        environment: Environment<'_>,
    ) -> Result<WatchSpec, ConfigError> {
        let Self {
            resource,
            namespaces,
            label_selector,
            field_selector,
            keep_managed_fields,
            keep_last_applied,
            metadata_only,
            drop,
            indexes,
        } = self;
        let key = |part: &str| format!("watch {resource}: {part}");
        let text = |part: &str, value: &str| expand(&key(part), value, environment);
        let namespaces_are_default = namespaces.is_empty() && !defaults.namespaces.is_empty();
        let namespaces = if namespaces_are_default { &defaults.namespaces } else { &namespaces };
        let mut namespaces =
            namespaces.iter().map(|namespace| text("namespace", namespace)).collect::<Result<Vec<_>, _>>()?;
        namespaces.sort_unstable();
        namespaces.dedup();
        for namespace in &namespaces {
            check_namespace(namespace).map_err(|problem| setting(key("namespace"), namespace, &problem))?;
        }
        let label_selector = label_selector.map(|value| text("labelSelector", &value)).transpose()?;
        if let Some(value) = &label_selector {
            LabelSelector::parse(value).map_err(|error| setting(key("labelSelector"), value, &error))?;
        }
        let field_selector = field_selector.map(|value| text("fieldSelector", &value)).transpose()?;
        if let Some(value) = &field_selector {
            FieldSelector::parse(value).map_err(|error| setting(key("fieldSelector"), value, &error))?;
        }
        let mut dropped = DropPaths::default();
        for value in drop {
            let value = text("drop", &value)?;
            dropped = dropped.and(&value).map_err(|error| setting(key("drop"), &value, &error))?;
        }
        let metadata_only = metadata_only.unwrap_or(false);
        let mut pinned = Vec::new();
        for value in indexes {
            let value = text("index", &value)?;
            check_index(&value, &dropped, metadata_only)
                .map_err(|problem| setting(key("index"), &value, &problem))?;
            pinned.push(value);
        }
        pinned.sort_unstable();
        pinned.dedup();
        if pinned.len() > INDEXES_MAX {
            let problem = format!("expected at most {INDEXES_MAX} indexes");
            return Err(setting(key("index"), &pinned.join(","), &problem));
        }
        Ok(WatchSpec {
            namespaces,
            namespaces_are_default,
            label_selector: label_selector.filter(|selector| !selector.is_empty()),
            field_selector: field_selector.filter(|selector| !selector.is_empty()),
            keep_managed_fields: keep_managed_fields.unwrap_or(defaults.keep_managed_fields),
            keep_last_applied: keep_last_applied.unwrap_or(defaults.keep_last_applied),
            metadata_only,
            drop: dropped,
            indexes: pinned,
            resource,
        })
    }
}

impl fmt::Display for WatchEntry {
    /// The form in which it can be typed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let truth = |name: &str, value: Option<bool>| value.map(|value| format!("{name}={value}"));
        let text = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name}={value}"));
        let namespaces = self.namespaces.iter().map(|namespace| format!("namespace={namespace}"));
        let single = [
            text("labelSelector", &self.label_selector),
            text("fieldSelector", &self.field_selector),
            truth("keepManagedFields", self.keep_managed_fields),
            truth("keepLastApplied", self.keep_last_applied),
            truth("metadataOnly", self.metadata_only),
        ];
        let dropped = self.drop.iter().map(|path| format!("drop={path}"));
        let indexes = self.indexes.iter().map(|path| format!("index={path}"));
        let parts: Vec<String> =
            namespaces.chain(single.into_iter().flatten()).chain(dropped).chain(indexes).collect();
        f.write_str(&self.resource)?;
        if parts.is_empty() { Ok(()) } else { write!(f, "?{}", parts.join("&")) }
    }
}

// === impl Watches ===

impl Value for Watches {
    type Plain = Vec<WatchEntry>;
    type Yaml = Vec<FileWatch>;
    const FORM: Form = Form::Watches;

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        let parse =
            |text: &String| text.parse().map_err(|problem| Wrong { value: text.trim().to_owned(), problem });
        texts.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    fn from_yaml(
        yaml: Vec<FileWatch>,
        _key: &str,
        environment: Environment<'_>,
    ) -> Result<Self, ConfigError> {
        yaml.into_iter().map(|watch| watch.entry(environment)).collect::<Result<_, _>>().map(Self)
    }

    fn plain(self) -> Vec<WatchEntry> {
        self.0
    }

    fn text(plain: &Vec<WatchEntry>) -> String {
        let watches: Vec<String> = plain.iter().map(WatchEntry::to_string).collect();
        watches.join("; ")
    }
}

// === impl FileWatch ===

impl FileWatch {
    /// Keys of one watch, for the schema.
    pub(super) const KEYS: [&str; 9] = [
        "resource",
        "namespaces",
        "labelSelector",
        "fieldSelector",
        "keepManagedFields",
        "keepLastApplied",
        "metadataOnly",
        "drop",
        "indexes",
    ];

    fn entry(self, environment: Environment<'_>) -> Result<WatchEntry, ConfigError> {
        let resource = expand("watch: resource", &self.resource, environment)?;
        check_resource(&resource).map_err(|problem| ConfigError::Setting {
            key: "watch: resource".to_owned(),
            value: resource.clone(),
            problem,
        })?;
        Ok(WatchEntry {
            resource,
            namespaces: self.namespaces,
            label_selector: self.label_selector,
            field_selector: self.field_selector,
            keep_managed_fields: self.keep_managed_fields,
            keep_last_applied: self.keep_last_applied,
            metadata_only: self.metadata_only,
            drop: self.drop,
            indexes: self.indexes,
        })
    }
}

// === impl WatchSpec ===

impl fmt::Display for WatchSpec {
    /// The form in which it can be typed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        let mut parts: Vec<String> =
            self.namespaces.iter().map(|namespace| format!("namespace={namespace}")).collect();
        parts.extend(self.label_selector.iter().map(|selector| format!("labelSelector={selector}")));
        parts.extend(self.field_selector.iter().map(|selector| format!("fieldSelector={selector}")));
        if self.keep_managed_fields {
            parts.push("keepManagedFields=true".to_owned());
        }
        if self.keep_last_applied {
            parts.push("keepLastApplied=true".to_owned());
        }
        if self.metadata_only {
            parts.push("metadataOnly=true".to_owned());
        }
        if !self.drop.is_empty() {
            parts.push(format!("drop={}", self.drop));
        }
        parts.extend(self.indexes.iter().map(|path| format!("index={path}")));
        if parts.is_empty() { Ok(()) } else { write!(f, "?{}", parts.join("&")) }
    }
}

/// Checks that a path can be indexed, and that what it leads to is held.
fn check_index(path: &str, dropped: &DropPaths, metadata_only: bool) -> Result<(), String> {
    FieldMask::parse(path).map_err(|error| error.to_string())?;
    if path.contains(',') {
        return Err("expected one path; repeat it for several".to_owned());
    }
    if dropped.drops(path) {
        return Err(format!("it is not held, as {dropped} is dropped"));
    }
    if metadata_only && !path.starts_with("metadata.") {
        return Err("only the objects' metadata is held".to_owned());
    }
    Ok(())
}

/// Checks that a resource's name is made of DNS labels. Discovery checks that it exists.
pub(super) fn check_resource(name: &str) -> Result<(), String> {
    let fits = !name.is_empty()
        && name.split('.').all(|label| {
            !label.is_empty()
                && label.chars().all(|character| character.is_ascii_alphanumeric() || character == '-')
        });
    if fits {
        return Ok(());
    }
    Err(format!("{name:?} is not a resource name; expected a name like pods, deploy or deployments.v1.apps"))
}

/// Source: RFC 1123 label, as `kubectl create namespace` wants it.
pub(super) fn check_namespace(name: &str) -> Result<(), String> {
    let inner = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let fits = name.len() <= 63
        && name.starts_with(inner)
        && name.ends_with(inner)
        && name.chars().all(|character| inner(character) || character == '-');
    if fits {
        Ok(())
    } else {
        Err("expected a namespace: lower-case letters, digits and '-', at most 63".to_owned())
    }
}

fn setting(key: String, value: &str, problem: &dyn fmt::Display) -> ConfigError {
    ConfigError::Setting { key, value: value.to_owned(), problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let environment = |name: &str| (name == "NODE_NAME").then(|| "node-1".to_owned());
        let defaults = WatchDefaults { namespaces: vec!["default".to_owned()], ..WatchDefaults::default() };
        let actual = text
            .parse::<WatchEntry>()
            .and_then(|entry| entry.resolve(&defaults, &environment).map_err(|error| error.to_string()))
            .map_or_else(|error| error, |spec| spec.to_string());
        assert_eq!(actual, expected, "{text}");
    }

    #[test]
    fn a_watch_is_read_as_in_the_http_interface() {
        check("pods", "pods?namespace=default");
        check(
            " deploy.v1.apps?namespace=b&namespace=a&namespace=b ",
            "deploy.v1.apps?namespace=a&namespace=b",
        );
        check(
            "pods?namespace=web&labelSelector=app=web,tier!=x&fieldSelector=spec.nodeName=$(NODE_NAME)",
            "pods?namespace=web&labelSelector=app=web,tier!=x&fieldSelector=spec.nodeName=node-1",
        );
        check(
            "pods?namespace=a&keepManagedFields=true&keepLastApplied=false&labelSelector=",
            "pods?namespace=a&keepManagedFields=true",
        );
        check(
            "secrets?namespace=a&drop=.stringData,.data&metadataOnly=true&drop=.metadata.annotations.a\\.b",
            "secrets?namespace=a&metadataOnly=true&drop=.data,.metadata.annotations.a\\.b,.stringData",
        );
    }

    #[test]
    fn an_index_needs_a_path_that_is_held() {
        check(
            "pods?namespace=a&index=spec.nodeName&index=metadata.labels.app&index=spec.nodeName",
            "pods?namespace=a&index=metadata.labels.app&index=spec.nodeName",
        );
        for (text, problem) in [
            ("pods?drop=.spec&index=spec.nodeName", "it is not held"),
            ("pods?metadataOnly=true&index=spec.nodeName", "only the objects' metadata is held"),
            ("pods?index=spec.nodeName,status.phase", "expected one path"),
            ("pods?index=spec..nodeName", "watch pods: index"),
            ("pods?index=a&index=b&index=c&index=d&index=e&index=f&index=g&index=h&index=i", "at most 8"),
        ] {
            let entry: WatchEntry = text.parse().unwrap();
            let error = entry.resolve(&WatchDefaults::default(), &|_: &str| None).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn unknown_parameters_of_a_watch_are_refused_by_name() {
        check(
            "pods?ns=web",
            "unknown parameter \"ns\"; accepted: namespace, labelSelector, fieldSelector, keepManagedFields, \
             keepLastApplied, metadataOnly, drop, index",
        );
        check(
            "pods?web",
            "expected name=value, found \"web\"; accepted names: namespace, labelSelector, fieldSelector, \
             keepManagedFields, keepLastApplied, metadataOnly, drop, index",
        );
        check("pods?keepLastApplied=yes", "keepLastApplied=yes: expected true or false");
        check(
            "pods?labelSelector=a&labelSelector=b",
            "labelSelector is given twice; only namespace, drop and index may be repeated",
        );
        for text in ["", "?namespace=a", "pods/web", "pods,services", "apps/v1"] {
            let message = text.parse::<WatchEntry>().unwrap_err();
            assert!(message.contains("is not a resource name"), "{text}: {message}");
        }
    }

    #[test]
    fn values_are_checked_after_expansion() {
        check(
            "pods?namespace=Web",
            "watch pods: namespace \"Web\": expected a namespace: lower-case letters, digits and '-', at most 63",
        );
        check(
            "pods?fieldSelector=spec.nodeName=$(NOPE)",
            "watch pods: fieldSelector \"spec.nodeName=$(NOPE)\": the environment has no NOPE; set it, or write \
             $$( for a literal $(",
        );
        check(
            "pods?drop=.spec,.metadata.uid",
            "watch pods: drop \".spec,.metadata.uid\": \".metadata.uid\" cannot be dropped: it tells which object it is",
        );
        let entry: WatchEntry = "pods?labelSelector=a in b".parse().unwrap();
        let error = entry.resolve(&WatchDefaults::default(), &|_| None).unwrap_err().to_string();
        assert!(error.starts_with("watch pods: labelSelector \"a in b\": unable to parse"), "{error}");
    }
}
