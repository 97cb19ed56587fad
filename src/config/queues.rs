//! Work queues of the configuration, who may declare others, and which replica gives out keys.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::error::ConfigError;
use super::expand::{Environment, expand};
use super::setting::{Form, Value, Wrong};
use crate::queue::{Spec, SpecError, Timing, check_name};

/// Who may declare queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum QueueMode {
    /// There are no queues.
    Off,
    /// The configuration.
    Config,
    /// The configuration, and every client.
    Api,
}

/// The queues of the configuration, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredQueues(BTreeMap<String, Spec>);

/// The name of a Lease, and its namespace if it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// Its namespace; `None` for that of the credentials.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// Leader election among replicas for the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueElection {
    /// The Lease that the leader holds.
    pub lease: LeaseName,
    /// The times of the election.
    pub timing: Timing,
}

/// Longest name of an object. Source: RFC 1123, as `k8s.io/apimachinery/pkg/util/validation` applies it.
const NAME_LEN_MAX: usize = 253;

/// Longest name of a namespace. Source: as [`NAME_LEN_MAX`].
const NAMESPACE_LEN_MAX: usize = 63;

impl QueueElection {
    /// The election with the usual times, where it is switched on.
    pub(super) fn of(is_on: bool, lease: Option<LeaseName>) -> Option<Self> {
        is_on.then(|| Self { lease: lease.unwrap_or_default(), timing: Timing::DEFAULT })
    }
}

impl Default for LeaseName {
    fn default() -> Self {
        Self { namespace: None, name: "informerd-queues".to_owned() }
    }
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_name = |part: &str, len_max: usize, inner: &[char]| {
            part.len() <= len_max
                && part.starts_with(outer)
                && part.ends_with(outer)
                && part.chars().all(|c| outer(c) || inner.contains(&c))
        };
        let (namespace, name) = match text.trim().split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text.trim()),
        };
        let fits = is_name(name, NAME_LEN_MAX, &['-', '.'])
            && namespace.is_none_or(|namespace| is_name(namespace, NAMESPACE_LEN_MAX, &['-']));
        if !fits {
            return Err(
                "expected NAME or NAMESPACE/NAME, as in informerd-queues or web/informerd-queues".to_owned()
            );
        }
        Ok(Self { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl QueueMode {
    /// The mode where none is given: clients may declare queues if only local processes can connect.
    pub(super) fn default_for(is_local: bool) -> Self {
        if is_local { Self::Api } else { Self::Config }
    }
}

impl FromStr for QueueMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as clap::ValueEnum>::from_str(text, false).map_err(|_| "expected off, config or api".to_owned())
    }
}

impl fmt::Display for QueueMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Config => "config",
            Self::Api => "api",
        })
    }
}

impl Value for DeclaredQueues {
    type Plain = BTreeMap<String, Spec>;
    type Yaml = BTreeMap<String, Spec>;
    const FORM: Form = Form::Queues;

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        let mut queues = BTreeMap::new();
        for text in texts {
            let (name, spec) = parse(text).map_err(|problem| Wrong { value: text.clone(), problem })?;
            if queues.insert(name, spec).is_some() {
                let problem = "a queue of this name is given twice".to_owned();
                return Err(Wrong { value: text.clone(), problem });
            }
        }
        Ok(Self(queues))
    }

    fn from_yaml(
        yaml: BTreeMap<String, Spec>,
        key: &str,
        environment: Environment<'_>,
    ) -> Result<Self, ConfigError> {
        let mut queues = BTreeMap::new();
        for (name, mut spec) in yaml {
            let place = format!("{key} {name}");
            for watch in &mut spec.watch {
                for (field, text) in watch.texts() {
                    *text = expand(&format!("{place}: {field}"), text, environment)?;
                }
            }
            let wrong = |value: &str, problem| ConfigError::Setting {
                key: place.clone(),
                value: value.to_owned(),
                problem,
            };
            check_name(&name).map_err(|problem| wrong(&name, problem))?;
            let checked = spec.checked().map_err(|error: SpecError| ConfigError::Setting {
                key: format!("{place}: {}", error.field),
                value: error.value,
                problem: error.problem,
            })?;
            queues.insert(name, checked);
        }
        Ok(Self(queues))
    }

    fn plain(self) -> BTreeMap<String, Spec> {
        self.0
    }

    fn text(plain: &BTreeMap<String, Spec>) -> String {
        let texts: Vec<String> = plain
            .iter()
            .map(|(name, spec)| format!("{name}={}", serde_json::to_string(spec).unwrap_or_default()))
            .collect();
        texts.join(" ")
    }
}

/// Reads `NAME=JSON`.
fn parse(text: &str) -> Result<(String, Spec), String> {
    let accepted = r#"expected NAME={"watch":[{"resource":"pods"}]}"#;
    let (name, json) = text.trim().split_once('=').ok_or(accepted)?;
    check_name(name)?;
    let spec: Spec = serde_json::from_str(json).map_err(|error| format!("{accepted}: {error}"))?;
    let checked = spec.checked();
    let checked = checked.map_err(|error| format!("{} {:?}: {}", error.field, error.value, error.problem))?;
    Ok((name.to_owned(), checked))
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigLayers, Serve, ServeSettings};
    use super::*;

    fn resolve(yaml: &str) -> Result<Serve, String> {
        let environment = |name: &str| (name == "NS").then(|| "web".to_owned());
        let settings =
            ServeSettings::from_yaml(&format!("watch: [{{resource: pods}}]\n{yaml}"), &environment)
                .map_err(|error| error.to_string())?;
        ConfigLayers { file: None, settings }.resolve(&environment).map_err(|error| error.to_string())
    }

    #[test]
    fn queues_are_read_checked_and_expanded() {
        let config = resolve(
            "queues: {web: {watch: [{resource: ingresses, namespaces: [$(NS)]}, {resource: pods, where: 'true'}], maxAttempts: 5}}",
        );
        let config = config.unwrap();
        let spec = &config.queues["web"];
        assert_eq!(spec.watch[0].namespaces, ["web"]);
        assert_eq!((spec.lease_seconds, spec.max_attempts, spec.retry_max_seconds), (60, Some(5), 1000));
        let text = DeclaredQueues::text(&config.queues);
        assert_eq!(DeclaredQueues::from_texts(&[text]).unwrap().0, config.queues, "it can be typed again");
    }

    #[test]
    fn an_invalid_queue_is_refused_by_name() {
        for (yaml, told) in [
            ("queues: {Web: {watch: [{resource: pods}]}}", "queues Web \"Web\": expected a queue's name"),
            ("queues: {web: {watch: []}}", "queues web: watch \"0\": expected 1 to 32"),
            ("queues: {web: {watch: [{resource: a/b}]}}", "queues web: watch[0].resource \"a/b\""),
            ("queues: {web: {watch: [{resource: pods, labelSelector: '='}]}}", "watch[0].labelSelector"),
            ("queues: {web: {watch: [{resource: pods, where: '('}]}}", "watch[0].where"),
            ("queues: {web: {watch: [{resource: pods}], leaseSeconds: 0}}", "leaseSeconds \"0\""),
            ("queues: {web: {watch: [{resource: pods}], maxAttempt: 1}}", "maxAttempt"),
            ("queues: {web: {watch: [{resource: pods}]}}\nqueuesFrom: off", "--queues=off"),
            ("queuesLeaderElection: true\nqueuesFrom: off", "--queues=off"),
            ("queuesLease: Web/lease", "NAMESPACE/NAME"),
            ("queuesLease: a/b/c", "NAMESPACE/NAME"),
            ("queuesLease: ''", "NAMESPACE/NAME"),
            ("queuesFrom: all", "expected off, config or api"),
        ] {
            let error = resolve(yaml).unwrap_err();
            assert!(error.contains(told), "{yaml}: {error}");
        }
    }

    #[test]
    fn leader_election_is_off_unless_configured() {
        assert_eq!(resolve("").unwrap().election, None);
        assert_eq!(resolve("queuesLease: web/lease").unwrap().election, None);
        let election = resolve("queuesLeaderElection: true").unwrap().election.unwrap();
        assert_eq!((&*election.lease.to_string(), election.timing), ("informerd-queues", Timing::DEFAULT));
        let election = resolve("queuesLeaderElection: true\nqueuesLease: $(NS)/a.b-1");
        let lease = election.unwrap().election.unwrap().lease;
        assert_eq!((lease.namespace.as_deref(), &*lease.name), (Some("web"), "a.b-1"));
        assert_eq!(lease.to_string().parse(), Ok(lease));
    }

    #[test]
    fn queues_may_be_declared_by_clients_only_on_local_listeners_by_default() {
        for (yaml, mode) in [
            ("", QueueMode::Api),
            ("listen: unix:/run/i.sock", QueueMode::Api),
            ("listen: 0.0.0.0:8090", QueueMode::Config),
            ("listen: 0.0.0.0:8090\nqueuesFrom: api", QueueMode::Api),
            ("queuesFrom: off", QueueMode::Off),
        ] {
            assert_eq!(resolve(yaml).unwrap().queue_mode, mode, "{yaml}");
        }
    }
}
