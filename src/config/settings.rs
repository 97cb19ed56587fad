//! Settings as they were given: one layer from the flags and the environment, one from the file.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use super::limits::{LimitFile, LimitSettings};
use super::on_demand::Pattern;
use super::quantity::Span;
use super::values::{
    AdminListen, HostName, InitialList, Listen, LogFilter, LogFormat, Origin, PassThrough, Proxied, Unready,
    VerifyInterval,
};
use super::watch::{WatchEntry, check_resource};
use super::{ConfigError, Environment, expand, text_of};

/// What to watch.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "What to watch")]
pub struct WatchSettings {
    /// Resource, or RESOURCE?QUERY as shown below [repeatable; in the variable separated by ;]
    #[arg(long, env = "INFORMERD_WATCH", value_name = "SPEC", value_delimiter = ';')]
    pub watch: Option<Vec<WatchEntry>>,
    /// Namespace for watches that name none [repeatable or comma-separated; default: all namespaces]
    #[arg(long, env = "INFORMERD_NAMESPACE", value_name = "NS", value_delimiter = ',')]
    pub namespace: Option<Vec<String>>,
    /// Keep metadata.managedFields [default false: bulky, and almost no client reads it]
    #[arg(long, env = "INFORMERD_KEEP_MANAGED_FIELDS", value_name = "BOOL", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub keep_managed_fields: Option<bool>,
    /// Keep the last-applied annotation [default false: a second copy of the object]
    #[arg(long, env = "INFORMERD_KEEP_LAST_APPLIED", value_name = "BOOL", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub keep_last_applied: Option<bool>,
    /// Resource whose informer starts when a client asks for it: PLURAL[.GROUP], *.GROUP, or * for all but secrets
    /// [repeatable or comma-separated; default: none]
    #[arg(long, env = "INFORMERD_ON_DEMAND", value_name = "PATTERN", value_delimiter = ',')]
    pub on_demand: Option<Vec<Pattern>>,
}

/// How kinds come and go at run time.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Kinds at run time")]
pub struct KindSettings {
    /// Time after which an informer that started on demand and that nobody uses stops [default 5m: a client that
    /// polls each minute keeps it]
    #[arg(long, env = "INFORMERD_ON_DEMAND_IDLE", value_name = "TIME")]
    pub on_demand_idle: Option<Span>,
    /// Time between two looks at which kinds there are [default 10m: what breaks is noticed sooner, by itself]
    #[arg(long, env = "INFORMERD_DISCOVERY_INTERVAL", value_name = "TIME")]
    pub discovery_interval: Option<Span>,
}

/// Which API server, and with whose credentials.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which cluster")]
pub struct UpstreamSettings {
    /// Kubeconfig to use [default: as kubectl does, $KUBECONFIG or ~/.kube/config; without one, in-cluster]
    #[arg(long, env = "INFORMERD_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, env = "INFORMERD_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// Use the pod's service account even where a kubeconfig is found [default false]
    #[arg(long, env = "INFORMERD_IN_CLUSTER", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", hide_possible_values = true)]
    pub in_cluster: Option<bool>,
    /// API server without credentials, such as kubectl proxy.
    #[arg(
        long,
        env = "INFORMERD_SERVER",
        value_name = "URL",
        help = "API server without credentials, such as kubectl proxy: http://127.0.0.1:8001 [default: none]"
    )]
    pub server: Option<String>,
}

/// Where to listen, and to whom to answer.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Listeners")]
pub struct ListenSettings {
    /// Where clients connect: ADDRESS:PORT or unix:/path [default 127.0.0.1:8090: a sidecar's data stays in the pod]
    #[arg(long, env = "INFORMERD_LISTEN", value_name = "ADDR")]
    pub listen: Option<Listen>,
    /// Probes and metrics: ADDRESS:PORT or off [default 0.0.0.0:8091, since a kubelet probes the pod's address;
    /// 127.0.0.1:8091 in demo]
    #[arg(long, env = "INFORMERD_ADMIN_LISTEN", value_name = "ADDR")]
    pub admin_listen: Option<AdminListen>,
}

/// Which web pages and host names are let in.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Browsers")]
pub struct BrowserSettings {
    /// Origin whose pages may read answers.
    #[arg(
        help = "Origin whose pages may read answers, https://app.example, or * [repeatable; default: informerd's own page]",
        long,
        env = "INFORMERD_ALLOW_ORIGIN",
        value_name = "ORIGIN",
        value_delimiter = ','
    )]
    pub allow_origin: Option<Vec<Origin>>,
    /// Host name to answer, or *.NAME for all below it [repeatable; default: addresses, localhost, names without a dot,
    /// *.svc and *.cluster.local, so that no web page reads the cluster through DNS rebinding]
    #[arg(long, env = "INFORMERD_ALLOW_HOST", value_name = "HOST", value_delimiter = ',')]
    pub allow_host: Option<Vec<HostName>>,
}

/// What becomes of requests that the caches cannot answer.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Pass-through")]
pub struct PassSettings {
    /// Hand on to the API server what the caches cannot answer below /api, /apis and /openapi: off, reads or all [default
    /// off: whoever reaches the listener would act with informerd's own permissions]
    #[arg(
        long,
        env = "INFORMERD_PASS_THROUGH",
        value_name = "WHAT",
        value_enum,
        hide_possible_values = true
    )]
    pub pass_through: Option<PassThrough>,
    /// Resource whose subresource proxy is handed on, too: nodes, pods or services [repeatable or comma-separated; default
    /// none: even a GET may change something behind it]
    #[arg(
        long,
        env = "INFORMERD_PASS_THROUGH_PROXY",
        value_name = "RESOURCE",
        value_enum,
        hide_possible_values = true,
        value_delimiter = ','
    )]
    pub pass_through_proxy: Option<Vec<Proxied>>,
}

/// How the caches are kept true.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Staying true")]
pub struct SyncSettings {
    /// How to list: auto, stream or page [default auto: as a stream, which costs the API server least; in pages where it
    /// takes none]
    #[arg(long, env = "INFORMERD_INITIAL_LIST", value_name = "HOW", value_enum, hide_possible_values = true)]
    pub initial_list: Option<InitialList>,
    /// Time between comparisons of each cache with the API server, or off [default 1h: what no event tells is found the
    /// same day, for a list of names and versions each time]
    #[arg(long, env = "INFORMERD_VERIFY_INTERVAL", value_name = "TIME")]
    pub verify_interval: Option<VerifyInterval>,
}

/// How the process ends, and when it is not ready.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Life")]
pub struct LifeSettings {
    /// Time after SIGTERM to be unready and serve all the same, before streams end [default 0s; behind a Service 5s, in which
    /// it stops to send clients]
    #[arg(long, env = "INFORMERD_SHUTDOWN_DELAY", value_name = "TIME")]
    pub shutdown_delay: Option<Span>,
    /// Time for streams to end after SIGTERM [default 25s: below the 30s after which a kubelet kills]
    #[arg(long, env = "INFORMERD_DRAIN_TIMEOUT", value_name = "TIME")]
    pub drain_timeout: Option<Span>,
    /// Not ready when the API server was last heard longer ago, or off [default off: stale answers, which tell their
    /// age, beat none]
    #[arg(long, env = "INFORMERD_UNREADY_AFTER", value_name = "TIME")]
    pub unready_after: Option<Unready>,
}

/// What is logged, and how.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Logs")]
pub struct LogSettings {
    /// Level or filter, as in info,informerd::upstream=debug [default info: lifecycle; nothing for each change]
    #[arg(long, env = "INFORMERD_LOG", value_name = "FILTER")]
    pub log: Option<LogFilter>,
    /// Form of the log on stderr: text, json or auto [default auto: text on a terminal, json elsewhere]
    #[arg(long, env = "INFORMERD_LOG_FORMAT", value_name = "FORM", value_enum, hide_possible_values = true)]
    pub log_format: Option<LogFormat>,
}

/// Everything `serve` can be told, from one source; `None` where that source is silent.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ServeSettings {
    /// What to watch.
    #[command(flatten)]
    pub watch: WatchSettings,
    /// How kinds come and go.
    #[command(flatten)]
    pub kinds: KindSettings,
    /// Which cluster.
    #[command(flatten)]
    pub upstream: UpstreamSettings,
    /// Where to listen.
    #[command(flatten)]
    pub listen: ListenSettings,
    /// Which pages and hosts are let in.
    #[command(flatten)]
    pub browser: BrowserSettings,
    /// What is handed on.
    #[command(flatten)]
    pub pass: PassSettings,
    /// How the caches are kept true.
    #[command(flatten)]
    pub sync: SyncSettings,
    /// How the process ends.
    #[command(flatten)]
    pub life: LifeSettings,
    /// What is logged.
    #[command(flatten)]
    pub log: LogSettings,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitSettings,
}

/// The file's keys. Values are kept as text until `$(NAME)` is expanded, then read as flags are.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    watch: Option<Vec<FileWatch>>,
    namespaces: Option<Vec<String>>,
    keep_managed_fields: Option<bool>,
    keep_last_applied: Option<bool>,
    on_demand: Option<Vec<String>>,
    on_demand_idle: Option<String>,
    discovery_interval: Option<String>,
    kubeconfig: Option<String>,
    context: Option<String>,
    in_cluster: Option<bool>,
    server: Option<String>,
    listen: Option<String>,
    admin_listen: Option<String>,
    allow_origins: Option<Vec<String>>,
    allow_hosts: Option<Vec<String>>,
    pass_through: Option<String>,
    pass_through_proxy: Option<Vec<String>>,
    initial_list: Option<String>,
    verify_interval: Option<String>,
    shutdown_delay: Option<String>,
    drain_timeout: Option<String>,
    unready_after: Option<String>,
    log: Option<String>,
    log_format: Option<String>,
    limits: LimitFile,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileWatch {
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
}

// === impl ServeSettings ===

impl ServeSettings {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with the YAML or with a value, named by line or key.
    pub fn from_yaml(text: &str, environment: Environment<'_>) -> Result<Self, ConfigError> {
        // An empty file, or one of comments only, says nothing, which is not an error.
        let file: Option<File> =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        file.unwrap_or_default().settings(environment)
    }

    /// These settings, and where they are silent the lower layer's. A list replaces the lower layer's list.
    #[must_use]
    pub fn or(self, lower: Self) -> Self {
        Self {
            watch: self.watch.or(lower.watch),
            kinds: KindSettings {
                on_demand_idle: self.kinds.on_demand_idle.or(lower.kinds.on_demand_idle),
                discovery_interval: self.kinds.discovery_interval.or(lower.kinds.discovery_interval),
            },
            upstream: self.upstream.or(lower.upstream),
            listen: ListenSettings {
                listen: self.listen.listen.or(lower.listen.listen),
                admin_listen: self.listen.admin_listen.or(lower.listen.admin_listen),
            },
            browser: BrowserSettings {
                allow_origin: self.browser.allow_origin.or(lower.browser.allow_origin),
                allow_host: self.browser.allow_host.or(lower.browser.allow_host),
            },
            pass: PassSettings {
                pass_through: self.pass.pass_through.or(lower.pass.pass_through),
                pass_through_proxy: self.pass.pass_through_proxy.or(lower.pass.pass_through_proxy),
            },
            sync: SyncSettings {
                initial_list: self.sync.initial_list.or(lower.sync.initial_list),
                verify_interval: self.sync.verify_interval.or(lower.sync.verify_interval),
            },
            life: LifeSettings {
                shutdown_delay: self.life.shutdown_delay.or(lower.life.shutdown_delay),
                drain_timeout: self.life.drain_timeout.or(lower.life.drain_timeout),
                unready_after: self.life.unready_after.or(lower.life.unready_after),
            },
            log: LogSettings {
                log: self.log.log.or(lower.log.log),
                log_format: self.log.log_format.or(lower.log.log_format),
            },
            limits: self.limits.or(lower.limits),
        }
    }
}

impl WatchSettings {
    fn or(self, lower: Self) -> Self {
        Self {
            watch: self.watch.or(lower.watch),
            namespace: self.namespace.or(lower.namespace),
            keep_managed_fields: self.keep_managed_fields.or(lower.keep_managed_fields),
            keep_last_applied: self.keep_last_applied.or(lower.keep_last_applied),
            on_demand: self.on_demand.or(lower.on_demand),
        }
    }
}

impl UpstreamSettings {
    /// One choice, so it is taken whole: `--server` on the command line is not at odds with a file's kubeconfig.
    fn or(self, lower: Self) -> Self {
        let Self { kubeconfig, context, in_cluster, server } = &self;
        let chosen = kubeconfig.is_some() || in_cluster.is_some() || server.is_some();
        match (chosen, context) {
            (true, _) => self,
            (false, None) => lower,
            // A context alone picks within the file's kubeconfig.
            (false, Some(_)) => Self { context: self.context, ..lower },
        }
    }
}

// === impl File ===

impl File {
    fn settings(self, environment: Environment<'_>) -> Result<ServeSettings, ConfigError> {
        let list = |key: &str, values: Option<Vec<String>>| {
            values
                .map(|values| values.iter().map(|value| expand(key, value, environment)).collect())
                .transpose()
        };
        Ok(ServeSettings {
            watch: WatchSettings {
                watch: self
                    .watch
                    .map(|watches| watches.into_iter().map(|watch| watch.entry(environment)).collect())
                    .transpose()?,
                // Expanded together with those of the watches, and only once.
                namespace: self.namespaces,
                keep_managed_fields: self.keep_managed_fields,
                keep_last_applied: self.keep_last_applied,
                on_demand: parse_list("onDemand", list("onDemand", self.on_demand)?)?,
            },
            kinds: KindSettings {
                on_demand_idle: text_of("onDemandIdle", self.on_demand_idle, environment)?,
                discovery_interval: text_of("discoveryInterval", self.discovery_interval, environment)?,
            },
            upstream: UpstreamSettings {
                kubeconfig: text_of("kubeconfig", self.kubeconfig, environment)?,
                context: text_of("context", self.context, environment)?,
                in_cluster: self.in_cluster,
                server: text_of("server", self.server, environment)?,
            },
            listen: ListenSettings {
                listen: text_of("listen", self.listen, environment)?,
                admin_listen: text_of("adminListen", self.admin_listen, environment)?,
            },
            browser: BrowserSettings {
                allow_origin: parse_list("allowOrigins", list("allowOrigins", self.allow_origins)?)?,
                allow_host: parse_list("allowHosts", list("allowHosts", self.allow_hosts)?)?,
            },
            pass: PassSettings {
                pass_through: text_of("passThrough", self.pass_through, environment)?,
                pass_through_proxy: parse_list(
                    "passThroughProxy",
                    list("passThroughProxy", self.pass_through_proxy)?,
                )?,
            },
            sync: SyncSettings {
                initial_list: text_of("initialList", self.initial_list, environment)?,
                verify_interval: text_of("verifyInterval", self.verify_interval, environment)?,
            },
            life: LifeSettings {
                shutdown_delay: text_of("shutdownDelay", self.shutdown_delay, environment)?,
                drain_timeout: text_of("drainTimeout", self.drain_timeout, environment)?,
                unready_after: text_of("unreadyAfter", self.unready_after, environment)?,
            },
            log: LogSettings {
                log: text_of("log", self.log, environment)?,
                log_format: text_of("logFormat", self.log_format, environment)?,
            },
            limits: self.limits.settings(environment)?,
        })
    }
}

impl FileWatch {
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
        })
    }
}

fn parse_list<T: FromStr<Err: Display>>(
    key: &str,
    texts: Option<Vec<String>>,
) -> Result<Option<Vec<T>>, ConfigError> {
    let Some(texts) = texts else { return Ok(None) };
    let parsed = texts.into_iter().map(|text| super::parse(key, text)).collect::<Result<_, _>>()?;
    Ok(Some(parsed))
}
