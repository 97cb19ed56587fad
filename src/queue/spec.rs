//! What a client or the configuration says about a queue.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Rates;
use crate::k8s::{Condition, FieldMask, FieldSelector, LabelSelector};

/// A queue as it is declared, in JSON or YAML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The objects whose keys are queued: at least one resource, each once.
    pub watch: Vec<Watch>,
    /// How long a lease lasts that does not say it itself.
    #[serde(default = "default_lease_seconds")]
    pub lease_seconds: u32,
    /// Number of failed attempts after which a key is set aside; absent for no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Delay after the first failed attempt. It doubles with each further one.
    #[serde(default = "default_retry_base")]
    pub retry_base_milliseconds: u32,
    /// Longest delay after a failed attempt.
    #[serde(default = "default_retry_max")]
    pub retry_max_seconds: u32,
}

/// One resource of a queue, and which of its objects and changes count. The parameters are those of `/v1/watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watch {
    /// Name as typed: `pods`, `deploy`, `deployments.v1.apps`.
    pub resource: String,
    /// Namespaces; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Label selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// Field selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_selector: Option<String>,
    /// Condition in CEL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#where: Option<String>,
    /// Paths: a change of an object counts only if it changes a value at one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
    /// Queues the keys of objects that are linked with the changed one, and not its own key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enqueue: Vec<Enqueue>,
}

/// Which keys of another resource of the queue a change leads to. Without `path` and `by`: the built-in links between both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Enqueue {
    /// The other resource, as the queue's watch of it has it.
    pub resource: String,
    /// Where objects of that resource have the name of the changed object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Another relation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<EnqueueBy>,
}

/// A relation that is no link of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EnqueueBy {
    /// Owner references, in either direction.
    Owner,
}

/// A value of a declaration that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The field: `watch[0].labelSelector`.
    pub field: String,
    /// Its value.
    pub value: String,
    /// What is wrong with it, or what is accepted.
    pub problem: String,
}

/// Largest number of resources of a queue.
pub const WATCHES_MAX: usize = 32;

/// Longest lease, in seconds: half a day. A worker that needs longer extends it.
pub const LEASE_SECONDS_MAX: u32 = 12 * 3600;

/// Largest number of attempts that can be asked for: with the default delays a year.
pub const ATTEMPTS_MAX: u32 = 30_000;

/// Largest number of resources to whose keys the changes of one resource lead.
const ENQUEUED_MAX: usize = 8;

/// Largest number of namespaces of one watch.
const NAMESPACES_MAX: usize = 256;

/// Longest delay after a failed attempt, in seconds: a day.
const RETRY_SECONDS_MAX: u32 = 24 * 3600;

/// Longest first delay after a failed attempt, in milliseconds: an hour.
const RETRY_BASE_MAX: u32 = 3_600_000;

/// Longest name of a queue, as that of a Kubernetes label's value.
const NAME_LEN_MAX: usize = 63;

fn default_lease_seconds() -> u32 {
    60
}

/// Source: client-go `util/workqueue/default_rate_limiters.go`, `DefaultControllerRateLimiter`: 5 ms to 1,000 s.
fn default_retry_base() -> u32 {
    5
}

fn default_retry_max() -> u32 {
    1000
}

/// Checks the name of a queue: it is a segment of a path and a metric's label.
///
/// # Errors
/// A sentence with what is accepted.
pub fn check_name(name: &str) -> Result<(), String> {
    let inner = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let fits = name.len() <= NAME_LEN_MAX
        && name.starts_with(inner)
        && name.ends_with(inner)
        && name.chars().all(|character| inner(character) || matches!(character, '-' | '.'));
    if fits {
        return Ok(());
    }
    Err(format!("expected a queue's name: lower-case letters, digits, '-' and '.', at most {NAME_LEN_MAX}"))
}

impl Spec {
    /// Checks all values, and brings them into one order, so that declarations that mean the same are equal.
    ///
    /// # Errors
    /// [`SpecError`] with the first value that is refused.
    pub fn checked(mut self) -> Result<Self, SpecError> {
        if self.watch.is_empty() || self.watch.len() > WATCHES_MAX {
            let problem = format!("expected 1 to {WATCHES_MAX} resources to watch");
            return Err(SpecError::new("watch", &self.watch.len(), problem));
        }
        self.check_enqueued()?;
        for (index, watch) in self.watch.iter_mut().enumerate() {
            watch.check().map_err(|error| error.within(&format!("watch[{index}]")))?;
            watch.namespaces.sort_unstable();
            watch.namespaces.dedup();
        }
        in_range("leaseSeconds", self.lease_seconds, 1, LEASE_SECONDS_MAX)?;
        in_range("retryBaseMilliseconds", self.retry_base_milliseconds, 1, RETRY_BASE_MAX)?;
        in_range("retryMaxSeconds", self.retry_max_seconds, 1, RETRY_SECONDS_MAX)?;
        if let Some(attempts) = self.max_attempts {
            in_range("maxAttempts", attempts, 1, ATTEMPTS_MAX)?;
        }
        Ok(self)
    }

    /// The place of the watch whose keys are queued under the name of a resource.
    pub fn target(&self, resource: &str) -> Option<usize> {
        self.watch.iter().position(|watch| watch.enqueue.is_empty() && watch.resource == resource)
    }

    fn check_enqueued(&self) -> Result<(), SpecError> {
        for (index, watch) in self.watch.iter().enumerate() {
            let wrong = |field: &str, value: &dyn fmt::Display, problem: &str| {
                Err(SpecError::new(&format!("watch[{index}].{field}"), value, problem))
            };
            if watch.enqueue.len() > ENQUEUED_MAX {
                let problem = format!("expected at most {ENQUEUED_MAX} resources");
                return wrong("enqueue", &watch.enqueue.len(), &problem);
            }
            for (number, enqueue) in watch.enqueue.iter().enumerate() {
                let field = |name: &str| format!("enqueue[{number}].{name}");
                if self.target(&enqueue.resource).is_none() {
                    let problem =
                        "expected a resource that the queue watches without enqueue, as it is written there";
                    return wrong(&field("resource"), &enqueue.resource, problem);
                }
                let Some(path) = &enqueue.path else { continue };
                if enqueue.by.is_some() {
                    return wrong(&field("path"), path, "expected one of path and by");
                }
                if path.contains(',') {
                    return wrong(&field("path"), path, "expected one path");
                }
                parsed(&field("path"), Some(path), FieldMask::parse)
                    .map_err(|error| error.within(&format!("watch[{index}]")))?;
            }
        }
        Ok(())
    }

    /// The bounds and delays of the queue.
    pub fn rates(&self, keys_max: usize, leases_max: usize) -> Rates {
        Rates {
            keys_max,
            leases_max,
            attempts_max: self.max_attempts,
            retry_base: Duration::from_millis(self.retry_base_milliseconds.into()),
            retry_max: Duration::from_secs(self.retry_max_seconds.into()),
        }
    }
}

impl Watch {
    fn check(&self) -> Result<(), SpecError> {
        let label = |label: &str| {
            !label.is_empty()
                && label.chars().all(|character| character.is_ascii_alphanumeric() || character == '-')
        };
        if !self.resource.split('.').all(label) {
            let accepted = "expected a name like pods, deploy or deployments.v1.apps";
            return Err(SpecError::new("resource", &self.resource, accepted));
        }
        if self.namespaces.len() > NAMESPACES_MAX {
            let accepted = format!("expected at most {NAMESPACES_MAX} namespaces");
            return Err(SpecError::new("namespaces", &self.namespaces.len(), accepted));
        }
        if let Some(namespace) = self.namespaces.iter().find(|namespace| namespace.is_empty()) {
            return Err(SpecError::new("namespaces", namespace, "expected a namespace's name"));
        }
        parsed("labelSelector", self.label_selector.as_ref(), LabelSelector::parse)?;
        parsed("fieldSelector", self.field_selector.as_ref(), FieldSelector::parse)?;
        parsed("where", self.r#where.as_ref(), Condition::parse)?;
        parsed("changed", self.changed.as_ref(), FieldMask::parse)
    }

    /// The parameters with which `/v1/watch` selects the same objects.
    pub fn parameters(&self) -> Vec<(&'static str, &str)> {
        let single = [
            ("labelSelector", &self.label_selector),
            ("fieldSelector", &self.field_selector),
            ("where", &self.r#where),
            ("changed", &self.changed),
        ];
        let namespaces = self.namespaces.iter().map(|namespace| ("namespace", &**namespace));
        let single = single.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        namespaces.chain(single).collect()
    }

    /// The texts in which the configuration may refer to the environment, with their names.
    pub fn texts(&mut self) -> impl Iterator<Item = (&'static str, &mut String)> {
        let single = [
            ("labelSelector", &mut self.label_selector),
            ("fieldSelector", &mut self.field_selector),
            ("where", &mut self.r#where),
            ("changed", &mut self.changed),
        ];
        let single = single.into_iter().filter_map(|(name, value)| Some((name, value.as_mut()?)));
        let namespaces = self.namespaces.iter_mut().map(|namespace| ("namespaces", namespace));
        [("resource", &mut self.resource)].into_iter().chain(namespaces).chain(single)
    }
}

impl SpecError {
    fn new(field: &str, value: &dyn fmt::Display, problem: impl Into<String>) -> Self {
        Self { field: field.to_owned(), value: value.to_string(), problem: problem.into() }
    }

    /// The same error in a field that contains it.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), ..self }
    }
}

fn in_range(field: &str, value: u32, min: u32, max: u32) -> Result<(), SpecError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(SpecError::new(field, &value, format!("expected a whole number from {min} to {max}")))
}

fn parsed<T, E: fmt::Display>(
    field: &str,
    value: Option<&String>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<(), SpecError> {
    let Some(value) = value else { return Ok(()) };
    parse(value).map(drop).map_err(|error| SpecError::new(field, value, error.to_string()))
}
