//! Merges the layers of a configuration, applies defaults, and checks how settings relate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::commands::{ConfigLayers, Log, Serve};
use super::error::ConfigError;
use super::expand::Environment;
use super::links::LinkSpec;
use super::on_demand::{OnDemand, Pattern};
use super::quantity::{Quantity as _, Span};
use super::queues::{DeclaredQueues, LeaseName, QueueElection, QueueMode};
use super::setting::Value as _;
use super::settings::ServeSettings;
use super::table::{self, General, GeneralSettings, Limits};
use super::watch::{WatchDefaults, WatchEntry, WatchSpec};
use crate::queue::Spec;
use crate::upstream::UpstreamSource;

// === impl ConfigLayers ===

impl ConfigLayers {
    /// Reads the file anew and makes a configuration of all layers.
    ///
    /// # Errors
    /// [`ConfigError`]; the program's exit code is then 2.
    pub fn load(&self) -> Result<Serve, ConfigError> {
        self.resolve(&|name| std::env::var(name).ok())
    }

    /// As [`ConfigLayers::load`], with the caller's environment for `$(NAME)`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn resolve(&self, environment: Environment<'_>) -> Result<Serve, ConfigError> {
        let ServeSettings { general, limits } = self.merged(environment)?;
        let limits = limits.resolve()?;
        let values = general.values();
        let settings = Box::new(values.clone());
        let General {
            watch,
            namespace,
            keep_managed_fields,
            keep_last_applied,
            on_demand: patterns,
            on_demand_idle: idle,
            discovery_interval,
            kubeconfig,
            context,
            in_cluster,
            server,
            watch_http2,
            listen,
            admin_listen,
            allow_origin,
            allow_host,
            pass_through,
            pass_through_proxy,
            queues: queue_mode,
            queue: queues,
            queues_leader_election,
            queues_lease,
            link: links,
            initial_list,
            cache_packing,
            verify_interval,
            shutdown_delay,
            drain_timeout,
            unready_after,
            log,
            log_format,
        } = values;
        let defaults = WatchDefaults { namespaces: namespace, keep_managed_fields, keep_last_applied };
        let (watches, template) = resolve_watches(watch, &patterns, &defaults, environment)?;
        check_unready_after(unready_after, &general, &limits)?;
        let queue_mode = queue_mode.unwrap_or_else(|| QueueMode::default_for(listen.is_local()));
        check_queues(&queues, queue_mode, queues_leader_election, &limits)?;
        let upstream = UpstreamChoice { kubeconfig, context, in_cluster, server }.resolve(&general)?;
        Ok(Serve {
            watches,
            on_demand: OnDemand { patterns, idle, template },
            discovery_interval,
            upstream,
            watch_http2,
            listen,
            admin_listen,
            allow_origins: allow_origin,
            allow_hosts: allow_host,
            pass_through,
            pass_through_proxy,
            queue_mode,
            queues,
            election: QueueElection::of(queues_leader_election, queues_lease),
            links,
            initial_list,
            cache_packing,
            verify_interval,
            limits,
            shutdown_delay,
            drain_timeout,
            unready_after,
            log: Log { filter: log, format: log_format },
            settings,
            source: Some(self.clone()),
        })
    }

    /// The watches, and one for each on-demand pattern, without checking the other settings.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn watches(&self, environment: Environment<'_>) -> Result<Vec<WatchSpec>, ConfigError> {
        let General { watch, namespace, keep_managed_fields, keep_last_applied, on_demand, .. } =
            self.merged(environment)?.general.values();
        let defaults = WatchDefaults { namespaces: namespace, keep_managed_fields, keep_last_applied };
        let (mut watches, template) = resolve_watches(watch, &on_demand, &defaults, environment)?;
        let of = |pattern: &Pattern| WatchSpec { resource: pattern.to_string(), ..template.clone() };
        watches.extend(on_demand.iter().map(of));
        Ok(watches)
    }

    /// The Lease of the queues' leader, if one is elected, without checking the other settings.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn election(&self, environment: Environment<'_>) -> Result<Option<LeaseName>, ConfigError> {
        let General { queues_leader_election, queues_lease, .. } = self.merged(environment)?.general.values();
        Ok(QueueElection::of(queues_leader_election, queues_lease).map(|election| election.lease))
    }

    /// The declared links, without checking the other settings.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn links(&self, environment: Environment<'_>) -> Result<Vec<LinkSpec>, ConfigError> {
        Ok(self.merged(environment)?.general.values().link)
    }

    fn merged(&self, environment: Environment<'_>) -> Result<ServeSettings, ConfigError> {
        let flags = self.settings.clone();
        let Some(path) = &self.file else { return Ok(flags) };
        let file = read(path).and_then(|text| {
            ServeSettings::from_yaml(&text, environment)
                .map_err(|source| ConfigError::File { path: path.clone(), source: Box::new(source) })
        })?;
        Ok(flags.or(file))
    }
}

/// The watches, and the template for informers on demand.
fn resolve_watches(
    watch: Vec<WatchEntry>,
    patterns: &[Pattern],
    defaults: &WatchDefaults,
    environment: Environment<'_>,
) -> Result<(Vec<WatchSpec>, WatchSpec), ConfigError> {
    let mut watches: Vec<WatchSpec> = Vec::new();
    for entry in watch {
        let spec = entry.resolve(defaults, environment)?;
        // Aliases (`po`, `pods`) are compared after discovery; here only equal names.
        if watches.iter().any(|other| other.resource.eq_ignore_ascii_case(&spec.resource)) {
            return Err(ConfigError::Setting {
                key: "watch".to_owned(),
                value: spec.resource,
                problem: "is watched twice; one watch takes several namespaces and one selector".to_owned(),
            });
        }
        watches.push(spec);
    }
    if watches.is_empty() && patterns.is_empty() {
        return Err(ConfigError::NothingToWatch);
    }
    let template = WatchEntry::default().resolve(defaults, environment)?;
    Ok((watches, template))
}

/// Checks the queues of the configuration against the settings that they depend on.
fn check_queues(
    queues: &BTreeMap<String, Spec>,
    mode: QueueMode,
    has_election: bool,
    limits: &Limits,
) -> Result<(), ConfigError> {
    if mode == QueueMode::Off && has_election {
        let problem = "there are no queues with --queues=off; expected config or api".to_owned();
        return Err(table::wrong("queues_leader_election", None, &true, problem));
    }
    let wrong = |problem: String| Err(table::wrong("queue", None, &DeclaredQueues::text(queues), problem));
    if mode == QueueMode::Off && !queues.is_empty() {
        return wrong("there are no queues with --queues=off; expected config or api".to_owned());
    }
    if queues.len() > limits.queues_max {
        return wrong(format!(
            "expected at most queuesMax (--queues-max) queues, which is {}",
            limits.queues_max
        ));
    }
    Ok(())
}

/// Checks `unready_after` against the silence of a watch over HTTP/1.1. On an idle resource nothing is heard for that long, so a
/// shorter time would make informerd unready and ready in turns. A watch over HTTP/2 may be silent for longer, which readiness
/// takes into account.
fn check_unready_after(
    unready_after: Option<Duration>,
    given: &GeneralSettings,
    limits: &Limits,
) -> Result<(), ConfigError> {
    let silence = limits.watch_silence_max;
    let Some(after) = unready_after.filter(|after| *after <= silence) else { return Ok(()) };
    let problem = format!(
        "expected more than watchSilenceMax (--watch-silence-max), which is {}: for that long nothing is heard where nothing \
         happens",
        Span::of(silence)
    );
    Err(table::wrong("unready_after", given.origin("unready_after"), &Span::of(after), problem))
}

/// The settings that together choose the cluster.
struct UpstreamChoice {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    in_cluster: bool,
    server: Option<String>,
}

impl UpstreamChoice {
    fn resolve(self, given: &GeneralSettings) -> Result<UpstreamSource, ConfigError> {
        let Self { kubeconfig, context, in_cluster, server } = self;
        let named = match (&kubeconfig, &context) {
            (None, None) => None,
            (Some(_), _) => Some("kubeconfig"),
            (None, Some(_)) => Some("context"),
        };
        let conflict = |one: &str, other: &str| {
            let name = |name: &str| {
                table::find(name).map_or_else(String::new, |setting| setting.named(given.origin(name)))
            };
            Err(ConfigError::Conflict(name(one), name(other)))
        };
        match (server, in_cluster, named) {
            (None, false, None) => Ok(UpstreamSource::Infer),
            (None, true, None) => Ok(UpstreamSource::InCluster),
            (None, false, Some(_)) => Ok(UpstreamSource::Kubeconfig { path: kubeconfig, context }),
            (Some(url), false, None) => Ok(UpstreamSource::Server { url }),
            (Some(_), true, _) => conflict("server", "in_cluster"),
            (Some(_), false, Some(other)) => conflict("server", other),
            (None, true, Some(other)) => conflict("in_cluster", other),
        }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}
