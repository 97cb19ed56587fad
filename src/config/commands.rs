//! The configurations of the commands: plain values that need no further checks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::ConfigError;
use super::links::LinkSpec;
use super::on_demand::OnDemand;
use super::queues::{QueueElection, QueueMode};
use super::setting::Reload;
use super::settings::{DemoArguments, ServeSettings};
use super::table::{self, Embedded, General, Limits};
use super::values::{
    CachePacking, HostName, InitialList, Listen, LogFilter, LogFormat, Origin, PassThrough, Proxied,
    ServerUrl,
};
use super::watch::WatchSpec;
use crate::k8s::DropPaths;
use crate::queue::Spec;
use crate::upstream::UpstreamSource;

/// Short, as in the demo a person waits for the prompt.
const DEMO_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The configuration of `serve`.
#[derive(Clone, Debug)]
pub struct Serve {
    /// What to watch; empty only if informers may start on demand.
    pub watches: Vec<WatchSpec>,
    /// The informers that clients may start.
    pub on_demand: OnDemand,
    /// Time between two requests for the API server's kinds.
    pub discovery_interval: Duration,
    /// Which API server.
    pub upstream: UpstreamSource,
    /// Whether watches go over HTTP/1.1 even where the API server knows HTTP/2.
    pub watch_http2: bool,
    /// Where clients connect.
    pub listen: Listen,
    /// Where probes and metrics are answered; `None` for no such listener.
    pub admin_listen: Option<SocketAddr>,
    /// Origins whose pages may read answers.
    pub allow_origins: Vec<Origin>,
    /// Host names to answer beside addresses, localhost, names without a dot and names within a cluster.
    pub allow_hosts: Vec<HostName>,
    /// Which requests that the caches cannot answer are passed through to the API server.
    pub pass_through: PassThrough,
    /// Resources whose subresource `proxy` is passed through, too.
    pub pass_through_proxy: Vec<Proxied>,
    /// Who may declare work queues.
    pub queue_mode: QueueMode,
    /// The work queues of the configuration.
    pub queues: BTreeMap<String, Spec>,
    /// Which replica gives out keys of queues; `None` for each of them.
    pub election: Option<QueueElection>,
    /// Links beside the built-in ones.
    pub links: Vec<LinkSpec>,
    /// How everything is listed.
    pub initial_list: InitialList,
    /// Whether objects are held packed.
    pub cache_packing: CachePacking,
    /// Time between comparisons of each cache with the API server; `None` for none.
    pub verify_interval: Option<Duration>,
    /// Limits.
    pub limits: Limits,
    /// Time after SIGTERM in which the process is unready but serves on.
    pub shutdown_delay: Duration,
    /// Time after that for streams to end.
    pub drain_timeout: Duration,
    /// The process is unready if the API server was last heard longer ago than this; `None` for always ready once synced.
    pub unready_after: Option<Duration>,
    /// What is logged.
    pub log: Log,
    /// The settings that this was made of, for the log and to find at a reload what has changed.
    pub settings: Box<General>,
    /// The layers that this was made of; `None` in the demo.
    pub source: Option<ConfigLayers>,
}

/// The configuration of `demo`.
#[derive(Clone, Debug)]
pub struct Demo {
    /// Where the embedded cluster's API server listens; port 0 for any.
    pub api_listen: SocketAddr,
    /// Where the kubeconfig for the embedded cluster is written; `None` for a file in the temporary folder.
    pub kubeconfig_out: Option<PathBuf>,
    /// Events a second.
    pub rate: f64,
    /// Seed of all that happens; `None` for another each time.
    pub seed: Option<u64>,
    /// Number of additional pods, to try it with many.
    pub pods: usize,
    /// Listeners and logs.
    pub settings: General,
    /// Limits.
    pub limits: Limits,
}

/// The configuration of `check`.
#[derive(Clone, Debug)]
pub struct Check {
    /// What would be watched.
    pub watches: Vec<WatchSpec>,
    /// What clients might start.
    pub on_demand: OnDemand,
    /// Which API server.
    pub upstream: UpstreamSource,
    /// Whether watches go over HTTP/1.1 even where the API server knows HTTP/2.
    pub watch_http2: bool,
    /// The election of the queues' leader, if there is one.
    pub election: Option<QueueElection>,
    /// A sentence that says what anyone who can connect may do, if not only local processes can connect.
    pub exposure: Option<String>,
    /// Form of the report.
    pub output: Output,
    /// What is compared with the API server's own list; `None` for nothing.
    pub verify: Option<CheckVerify>,
    /// How everything is listed.
    pub initial_list: InitialList,
    /// Limits.
    pub limits: Limits,
    /// What is logged.
    pub log: Log,
}

/// What `check --verify` compares with the API server's own list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckVerify {
    /// A new cache, made as `serve` would make it.
    Fresh,
    /// The caches of a running informerd.
    Running {
        /// Where it listens: `http://127.0.0.1:8090`.
        url: String,
    },
}

/// What is logged, and how.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Which lines.
    pub filter: LogFilter,
    /// In which form.
    pub format: LogFormat,
}

/// Form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// The layers of a configuration, kept so that it can be made again after the file has changed.
#[derive(Clone, Debug)]
pub struct ConfigLayers {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// The settings of flags and environment.
    pub settings: ServeSettings,
}

// === impl CheckVerify ===

impl CheckVerify {
    /// An informerd that listens at a URL.
    ///
    /// # Errors
    /// [`ConfigError::Setting`] if this is no such URL.
    pub fn running(url: String) -> Result<Self, ConfigError> {
        let checked = url.parse::<ServerUrl>();
        checked.map(|_| Self::Running { url: url.clone() }).map_err(|problem| ConfigError::Setting {
            key: "--against".to_owned(),
            value: url,
            problem,
        })
    }
}

// === impl Serve ===

impl Serve {
    /// Each setting and its value, for the log at start: limits only if they differ from the default, and the watches as
    /// resolved. Values that may hold a secret hide it when formatted ([`ServerUrl`]).
    pub fn loggable(&self) -> Vec<(&'static str, String)> {
        let watches: Vec<String> = self.watches.iter().map(WatchSpec::to_string).collect();
        let mut fields = self.settings.list();
        // The cluster is logged once, as the result of these four settings.
        fields.retain(|(name, _)| {
            !matches!(*name, "watch" | "kubeconfig" | "context" | "in_cluster" | "server")
        });
        fields.insert(0, ("upstream", self.upstream.to_string()));
        fields.insert(0, ("watch", watches.join("; ")));
        if let Some(file) = self.source.as_ref().and_then(|source| source.file.as_ref()) {
            fields.push(("config", file.display().to_string()));
        }
        let defaults = Limits::DEFAULT.list();
        fields.extend(self.limits.list().into_iter().filter(|limit| !defaults.contains(limit)));
        fields
    }

    /// The changed settings in another configuration that only a restart applies.
    pub fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        let mut names = self.settings.differences(&other.settings);
        names.extend(self.limits.differences(&other.limits));
        names.retain(|name| table::find(name).is_none_or(|setting| setting.reload == Reload::Restart));
        names.sort_unstable();
        names
    }
}

// === impl Demo ===

impl Demo {
    /// Applies the defaults and checks the limits.
    ///
    /// # Errors
    /// [`ConfigError`] from the limits.
    pub fn resolve(arguments: DemoArguments) -> Result<Self, ConfigError> {
        let DemoArguments { demo, general, limits } = arguments;
        let Embedded { rate, seed, pods, api_listen, kubeconfig_out } = demo.values();
        // Unlike in `serve`, both listeners are on the loopback: no kubelet probes a demo, and a laptop may be in a café.
        let admin_listen = match general.admin_listen {
            Some(_) => general.values().admin_listen,
            None => Some(table::loopback(table::ADMIN_PORT)),
        };
        // More log lines would scroll the demo's instructions away.
        let log = general.log.clone().map_or(LogFilter::WARN, |given| given.value);
        let settings = General { admin_listen, log, ..general.values() };
        Ok(Self { rate, seed, pods, api_listen, kubeconfig_out, settings, limits: limits.resolve()? })
    }

    /// What is logged.
    pub fn log(&self) -> Log {
        Log { filter: self.settings.log.clone(), format: self.settings.log_format }
    }

    /// The configuration with which `serve` runs against the embedded cluster at `url`.
    pub fn serve(&self, url: String, resources: &[&str]) -> Serve {
        let template = WatchSpec {
            resource: String::new(),
            namespaces: Vec::new(),
            namespaces_are_default: false,
            label_selector: None,
            field_selector: None,
            keep_managed_fields: false,
            keep_last_applied: false,
            metadata_only: false,
            drop: DropPaths::default(),
            indexes: Vec::new(),
        };
        let spec = |resource: &&str| WatchSpec { resource: (*resource).to_owned(), ..template.clone() };
        let settings = Box::new(General { drain_timeout: DEMO_DRAIN_TIMEOUT, ..self.settings.clone() });
        Serve {
            watches: resources.iter().map(spec).collect(),
            on_demand: OnDemand { patterns: Vec::new(), idle: settings.on_demand_idle, template },
            discovery_interval: settings.discovery_interval,
            upstream: UpstreamSource::Server { url },
            watch_http2: settings.watch_http2,
            listen: settings.listen.clone(),
            admin_listen: settings.admin_listen,
            allow_origins: Vec::new(),
            allow_hosts: Vec::new(),
            pass_through: settings.pass_through,
            pass_through_proxy: Vec::new(),
            queue_mode: settings.queues.unwrap_or_else(|| QueueMode::default_for(settings.listen.is_local())),
            queues: BTreeMap::new(),
            election: QueueElection::of(settings.queues_leader_election, settings.queues_lease.clone()),
            links: Vec::new(),
            initial_list: settings.initial_list,
            cache_packing: settings.cache_packing,
            verify_interval: settings.verify_interval,
            limits: self.limits.clone(),
            shutdown_delay: settings.shutdown_delay,
            drain_timeout: settings.drain_timeout,
            unready_after: settings.unready_after,
            log: self.log(),
            settings,
            source: None,
        }
    }
}
