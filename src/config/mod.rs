//! What was meant: the layers of settings merged, defaults applied, limits checked.
//!
//! In come the flags and the environment (as [`ServeSettings`], read by the command line) and the text of a
//! YAML file; out go plain structs, [`Serve`], [`Demo`] and [`Check`], that the rest of the program obeys
//! without asking again. Each setting has a flag, an `INFORMERD_*` variable and a key of the file under one
//! name; the flag wins over the variable, the variable over the file.

mod expand;
mod exposure;
mod limits;
mod on_demand;
mod quantity;
mod settings;
mod values;
mod watch;

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::k8s::DropPaths;

pub use expand::Environment;
pub use limits::{Limit, LimitSettings, Limits};
pub use on_demand::{OnDemand, Pattern};
pub use quantity::{Count, Quantity, QuantityError, Size, Span};
pub use settings::{
    BrowserSettings, KindSettings, LifeSettings, ListenSettings, LogSettings, PassSettings, ServeSettings,
    SyncSettings, UpstreamSettings, WatchSettings,
};
pub use values::{
    AdminListen, HostName, InitialList, Listen, LogFilter, LogFormat, Origin, PassThrough, Proxied, Unready,
    VerifyInterval,
};
pub use watch::{WatchEntry, WatchSpec};

/// Which API server, and with whose credentials.
pub use crate::upstream::Source as UpstreamSource;

/// Port of the data listener.
pub const DATA_PORT: u16 = 8090;

/// Port of the admin listener.
pub const ADMIN_PORT: u16 = 8091;

/// Time for streams to end after SIGTERM.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// Time an informer that started on demand runs though nobody uses it.
const ON_DEMAND_IDLE: Duration = Duration::from_secs(300);

/// Time between two looks at which kinds there are.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(600);

/// In the demo a person waits for the prompt.
const DEMO_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What `serve` does.
#[derive(Clone, Debug)]
pub struct Serve {
    /// What to watch; empty only where informers start on demand.
    pub watches: Vec<WatchSpec>,
    /// What clients may start.
    pub on_demand: OnDemand,
    /// Time between two looks at which kinds there are.
    pub discovery_interval: Duration,
    /// Which API server.
    pub upstream: UpstreamSource,
    /// Where clients connect.
    pub listen: Listen,
    /// Where probes and metrics are answered; `None` for nowhere.
    pub admin_listen: Option<SocketAddr>,
    /// Origins whose pages may read answers.
    pub allow_origins: Vec<Origin>,
    /// Host names to answer beside addresses, localhost, names without a dot and names within a cluster.
    pub allow_hosts: Vec<HostName>,
    /// Which requests that the caches cannot answer are handed on to the API server.
    pub pass_through: PassThrough,
    /// Resources whose subresource `proxy` is handed on, too.
    pub pass_through_proxy: Vec<Proxied>,
    /// How everything is listed.
    pub initial_list: InitialList,
    /// Time between comparisons of each cache with the API server; `None` for none.
    pub verify_interval: Option<Duration>,
    /// Limits.
    pub limits: Limits,
    /// Time after SIGTERM to be unready and serve all the same.
    pub shutdown_delay: Duration,
    /// Time for streams to end after that.
    pub drain_timeout: Duration,
    /// Not ready when the API server was last heard longer ago; `None` for always ready once synced.
    pub unready_after: Option<Duration>,
    /// What is logged.
    pub log: Log,
    /// Where this came from; `None` in the demo.
    pub source: Option<Source>,
}

/// What `demo` does.
#[derive(Clone, Debug)]
pub struct Demo {
    /// Where clients connect.
    pub listen: Listen,
    /// Where probes and metrics are answered; `None` for nowhere.
    pub admin_listen: Option<SocketAddr>,
    /// Where the embedded cluster's API server listens; port 0 for any.
    pub api_listen: SocketAddr,
    /// Where the kubeconfig for the embedded cluster is written; `None` for a file in the temporary folder.
    pub kubeconfig_out: Option<PathBuf>,
    /// Events a second.
    pub rate: f64,
    /// Seed of all that happens; `None` for another each time.
    pub seed: Option<u64>,
    /// Pods beyond those that live, to see how it feels with many.
    pub pods: usize,
    /// Limits.
    pub limits: Limits,
    /// What is logged.
    pub log: Log,
}

/// What `check` looks at.
#[derive(Clone, Debug)]
pub struct Check {
    /// What would be watched, or might be on demand.
    pub watches: Vec<WatchSpec>,
    /// Patterns that stand for more than one resource.
    pub wildcards: Vec<Pattern>,
    /// Which API server.
    pub upstream: UpstreamSource,
    /// What everyone who can connect could do, where others than local processes can.
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
    /// A cache made for it, as `serve` would make it.
    Fresh,
    /// What a running informerd holds.
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

/// The layers a configuration is made of, kept so that it can be made again when the file has changed.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// What flags and environment said.
    pub settings: ServeSettings,
}

/// Why a configuration cannot be used. The text names what is wrong and what would be accepted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file's text is not what it should be.
    #[error("configuration {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<ConfigError>,
    },
    /// YAML that does not parse, or has a key that does not exist.
    #[error("{0}")]
    Yaml(String),
    /// A setting with a value that is not accepted.
    #[error("{key} {value:?}: {problem}")]
    Setting {
        /// The file's key, and the flag where it differs.
        key: String,
        /// The value.
        value: String,
        /// What is wrong with it, or what would be accepted.
        problem: String,
    },
    /// `$(NAME)` with a name that is not set.
    #[error("{key} {value:?}: the environment has no {name}; set it, or write $$( for a literal $(")]
    Unset {
        /// The file's key.
        key: String,
        /// The value with the reference in it.
        value: String,
        /// The name.
        name: String,
    },
    /// Settings of which only one may be given.
    #[error("{0} and {1} cannot both be given; choose one of kubeconfig (with context), in-cluster, server")]
    Conflict(&'static str, &'static str),
    /// Nothing to watch.
    #[error(
        "nothing to watch; name a resource, as in --watch pods, INFORMERD_WATCH=pods, or watch: in the file, or let \
         clients start informers, as in --on-demand pods"
    )]
    NothingToWatch,
}

// === impl Source ===

impl Source {
    /// Reads the file anew and makes a configuration of all layers.
    ///
    /// # Errors
    /// [`ConfigError`]; the program's exit code is then 2.
    pub fn load(&self) -> Result<Serve, ConfigError> {
        self.resolve(&|name| std::env::var(name).ok())
    }

    /// As [`Source::load`], with an environment of the caller's for `$(NAME)`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn resolve(&self, environment: Environment<'_>) -> Result<Serve, ConfigError> {
        let ServeSettings { watch, kinds, upstream, listen, browser, pass, sync, life, log, limits } =
            self.merged(environment)?;
        let (watches, patterns, template) = resolve_watches(watch, environment)?;
        let idle = span("onDemandIdle (--on-demand-idle)", kinds.on_demand_idle, ON_DEMAND_IDLE)?;
        let interval =
            span("discoveryInterval (--discovery-interval)", kinds.discovery_interval, DISCOVERY_INTERVAL)?;
        let limits = limits.resolve()?;
        let unready_after = unready_after(life.unready_after, &limits)?;
        Ok(Serve {
            watches,
            on_demand: OnDemand { patterns, idle, template },
            discovery_interval: interval,
            upstream: resolve_upstream(upstream)?,
            listen: listen.listen.unwrap_or(Listen::Tcp((Ipv4Addr::LOCALHOST, DATA_PORT).into())),
            admin_listen: listen
                .admin_listen
                .map_or(Some((Ipv4Addr::UNSPECIFIED, ADMIN_PORT).into()), |admin| admin.0),
            allow_origins: browser.allow_origin.unwrap_or_default(),
            allow_hosts: browser.allow_host.unwrap_or_default(),
            pass_through: pass.pass_through.unwrap_or_default(),
            pass_through_proxy: pass.pass_through_proxy.unwrap_or_default(),
            initial_list: sync.initial_list.unwrap_or_default(),
            verify_interval: sync.verify_interval.unwrap_or_default().0,
            limits,
            shutdown_delay: life.shutdown_delay.map_or(Duration::ZERO, Quantity::plain),
            drain_timeout: life.drain_timeout.map_or(DRAIN_TIMEOUT, Quantity::plain),
            unready_after,
            log: Log::resolve(log),
            source: Some(self.clone()),
        })
    }

    /// What would be watched, and what might be on demand (patterns for resources), whether or not the rest makes
    /// sense.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn watches(&self, environment: Environment<'_>) -> Result<Vec<WatchSpec>, ConfigError> {
        let (mut watches, patterns, template) =
            resolve_watches(self.merged(environment)?.watch, environment)?;
        let of = |pattern: &Pattern| WatchSpec { resource: pattern.to_string(), ..template.clone() };
        watches.extend(patterns.iter().map(of));
        Ok(watches)
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

// === impl CheckVerify ===

impl CheckVerify {
    /// What is running at a URL.
    ///
    /// # Errors
    /// [`ConfigError::Setting`] for what is no such URL.
    pub fn running(url: String) -> Result<Self, ConfigError> {
        Ok(Self::Running { url: check_url("against (--against)", url)? })
    }
}

// === impl Serve ===

impl Serve {
    /// The fields worth a line in the log at start. A list by hand, so that what is secret has to be added
    /// here to leak. Limits are told only where they are not the default.
    pub fn loggable(&self) -> Vec<(&'static str, String)> {
        let Self { watches, upstream, listen, admin_listen, allow_origins, allow_hosts, limits, .. } = self;
        let OnDemand { patterns, idle, .. } = &self.on_demand;
        let patterns: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
        let watches: Vec<String> = watches.iter().map(WatchSpec::to_string).collect();
        let origins: Vec<&str> = allow_origins.iter().map(Origin::as_str).collect();
        let hosts: Vec<&str> = allow_hosts.iter().map(HostName::as_str).collect();
        let proxies: Vec<String> = self.pass_through_proxy.iter().map(Proxied::to_string).collect();
        let mut fields = vec![
            ("watch", watches.join("; ")),
            ("on_demand", patterns.join(",")),
            ("on_demand_idle", Span::of(*idle).to_string()),
            ("discovery_interval", Span::of(self.discovery_interval).to_string()),
            ("upstream", upstream.to_string()),
            ("listen", listen.to_string()),
            ("admin_listen", AdminListen(*admin_listen).to_string()),
            ("allow_origins", origins.join(",")),
            ("allow_hosts", hosts.join(",")),
            ("pass_through", self.pass_through.to_string()),
            ("pass_through_proxy", proxies.join(",")),
            ("initial_list", self.initial_list.to_string()),
            ("verify_interval", VerifyInterval(self.verify_interval).to_string()),
            ("shutdown_delay", Span::of(self.shutdown_delay).to_string()),
            ("drain_timeout", Span::of(self.drain_timeout).to_string()),
            ("unready_after", Unready(self.unready_after).to_string()),
            ("log", self.log.filter.to_string()),
        ];
        if let Some(file) = self.source.as_ref().and_then(|source| source.file.as_ref()) {
            fields.push(("config", file.display().to_string()));
        }
        let changed = limits.list().into_iter().filter(|limit| limit.value != limit.default);
        fields.extend(changed.map(|limit| (limit.name, limit.value)));
        fields
    }
}

impl Serve {
    /// The settings in which another configuration differs and that hold until the process ends.
    pub fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        const CHANGEABLE: [&str; 3] = ["watch", "on_demand", "on_demand_idle"];
        let (ours, theirs) = (self.loggable(), other.loggable());
        let differs = |list: &[(&'static str, String)], other: &[(&'static str, String)]| -> Vec<_> {
            list.iter().filter(|setting| !other.contains(setting)).map(|(name, _)| *name).collect()
        };
        let mut names = differs(&ours, &theirs);
        names.extend(differs(&theirs, &ours));
        names.retain(|name| !CHANGEABLE.contains(name));
        names.sort_unstable();
        names.dedup();
        names
    }
}

// === impl Demo ===

impl Demo {
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
        };
        let spec = |resource: &&str| WatchSpec { resource: (*resource).to_owned(), ..template.clone() };
        Serve {
            watches: resources.iter().map(spec).collect(),
            on_demand: OnDemand { patterns: Vec::new(), idle: ON_DEMAND_IDLE, template },
            discovery_interval: DISCOVERY_INTERVAL,
            upstream: UpstreamSource::Server { url },
            listen: self.listen.clone(),
            admin_listen: self.admin_listen,
            allow_origins: Vec::new(),
            allow_hosts: Vec::new(),
            pass_through: PassThrough::Off,
            pass_through_proxy: Vec::new(),
            initial_list: InitialList::default(),
            verify_interval: VerifyInterval::default().0,
            limits: self.limits.clone(),
            shutdown_delay: Duration::ZERO,
            drain_timeout: DEMO_DRAIN_TIMEOUT,
            unready_after: None,
            log: self.log.clone(),
            source: None,
        }
    }
}

// === impl Log ===

impl Log {
    /// Applies the defaults.
    pub fn resolve(settings: LogSettings) -> Self {
        Self { filter: settings.log.unwrap_or_default(), format: settings.log_format.unwrap_or_default() }
    }
}

/// The watches, the patterns of what may start on demand, and what each of those is like.
fn resolve_watches(
    settings: WatchSettings,
    environment: Environment<'_>,
) -> Result<(Vec<WatchSpec>, Vec<Pattern>, WatchSpec), ConfigError> {
    let WatchSettings { watch, namespace, keep_managed_fields, keep_last_applied, on_demand } = settings;
    let patterns = on_demand.unwrap_or_default();
    let defaults = watch::WatchDefaults {
        namespaces: namespace.unwrap_or_default(),
        keep_managed_fields: keep_managed_fields.unwrap_or(false),
        keep_last_applied: keep_last_applied.unwrap_or(false),
    };
    let mut watches: Vec<WatchSpec> = Vec::new();
    for entry in watch.unwrap_or_default() {
        let spec = entry.resolve(&defaults, environment)?;
        // Aliases (`po`, `pods`) come out after discovery; here only what is plainly the same.
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
    let template = WatchEntry::default().resolve(&defaults, environment)?;
    Ok((watches, patterns, template))
}

/// A time that is no less than a second.
fn span(key: &str, given: Option<Span>, default: Duration) -> Result<Duration, ConfigError> {
    let span = given.map_or(default, Quantity::plain);
    if span < Duration::from_secs(1) {
        let (value, problem) = (Span::of(span).to_string(), "expected at least 1s".to_owned());
        return Err(ConfigError::Setting { key: key.to_owned(), value, problem });
    }
    Ok(span)
}

/// When a cache is too old to be ready. On a resource where nothing happens, nothing is heard for as long as a watch may
/// be silent: a shorter time would make informerd unready and ready again for ever.
fn unready_after(given: Option<Unready>, limits: &Limits) -> Result<Option<Duration>, ConfigError> {
    let Some(after) = given.and_then(|unready| unready.0) else { return Ok(None) };
    let silence = limits.watch_silence_max;
    if after <= silence {
        return Err(ConfigError::Setting {
            key: "unreadyAfter (--unready-after)".to_owned(),
            value: Span::of(after).to_string(),
            problem: format!(
                "expected more than watchSilenceMax (--watch-silence-max), which is {}: for that long nothing is heard where \
                 nothing happens",
                Span::of(silence)
            ),
        });
    }
    Ok(Some(after))
}

fn resolve_upstream(settings: UpstreamSettings) -> Result<UpstreamSource, ConfigError> {
    let UpstreamSettings { kubeconfig, context, in_cluster, server } = settings;
    let in_cluster = in_cluster.unwrap_or(false);
    let named = kubeconfig.is_some() || context.is_some();
    match (server, in_cluster, named) {
        (None, false, false) => Ok(UpstreamSource::Infer),
        (None, true, false) => Ok(UpstreamSource::InCluster),
        (None, false, true) => Ok(UpstreamSource::Kubeconfig { path: kubeconfig, context }),
        (Some(url), false, false) => Ok(UpstreamSource::Server { url: check_url("server (--server)", url)? }),
        (Some(_), true, _) => Err(ConfigError::Conflict("--server", "--in-cluster")),
        (Some(_), false, true) => Err(ConfigError::Conflict("--server", "--kubeconfig or --context")),
        (None, true, true) => Err(ConfigError::Conflict("--in-cluster", "--kubeconfig or --context")),
    }
}

fn check_url(key: &str, url: String) -> Result<String, ConfigError> {
    let uri = url.parse::<http::Uri>().ok();
    if uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https"))) {
        return Ok(url);
    }
    let problem = "expected http://HOST[:PORT] or https://HOST[:PORT]".to_owned();
    Err(ConfigError::Setting { key: key.to_owned(), value: url, problem })
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// Expands `$(NAME)` in the value of a key.
fn expand(key: &str, value: &str, environment: Environment<'_>) -> Result<String, ConfigError> {
    expand::expand(value, environment).map_err(|name| ConfigError::Unset {
        key: key.to_owned(),
        value: value.to_owned(),
        name,
    })
}

/// Reads the value of a key as the flag of the same name would.
fn parse<T: FromStr<Err: Display>>(key: &str, value: String) -> Result<T, ConfigError> {
    value.parse().map_err(|problem: T::Err| ConfigError::Setting {
        key: key.to_owned(),
        problem: problem.to_string(),
        value,
    })
}

/// Expands and reads the value of a key that may be missing.
fn text_of<T: FromStr<Err: Display>>(
    key: &str,
    value: Option<String>,
    environment: Environment<'_>,
) -> Result<Option<T>, ConfigError> {
    value.map(|value| parse(key, expand(key, &value, environment)?)).transpose()
}

/// `journal_len_max` as the file writes it: `journalLenMax`.
fn camel_case(name: &str) -> String {
    let mut words = name.split(['_', '-']);
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1.min(word.len()));
        camel.push_str(&first.to_ascii_uppercase());
        camel.push_str(rest);
    }
    camel
}

#[cfg(test)]
mod tests;
