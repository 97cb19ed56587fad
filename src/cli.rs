//! The command line: what was typed. [`config`] says what it means.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::{
    self, AdminListen, Check, CheckVerify, ConfigError, Count, Demo, LimitSettings, ListenSettings, Log,
    LogSettings, Output, PassSettings, Quantity, ServeSettings, Source, UpstreamSettings, WatchSettings,
    WatchSpec,
};

const SERVE_EXAMPLES: &str = "\
A watch is a resource as kubectl takes it (pods, deploy, deployments.v1.apps); where only some of it
is wanted, followed by ? and name=value pairs joined by &:
  namespace=web           only there; repeat for several
  labelSelector=app=web   only what the API server selects by it; a value begins after the first =
  fieldSelector=...       likewise; which fields there are is up to the API server
  keepManagedFields=true, keepLastApplied=true   for this watch alone
  metadataOnly=true       only the objects' metadata is fetched and held, as PartialObjectMetadata
  drop=.data,.status.x    is not held: paths of members, in each element of arrays; a dot in a name is \\.
$(NAME) is taken from the environment; $$( is a literal $(.

Examples:
  informerd serve --watch pods --watch deployments.apps
      Everything of two resources, from the cluster that kubectl talks to.
  informerd serve --watch 'pods?namespace=web&labelSelector=app=web,tier!=cache'
      Some of one. Selectors are applied by the API server: the rest is never fetched.
  informerd serve --in-cluster --watch 'pods?fieldSelector=spec.nodeName=$(NODE_NAME)'
      The pods of one node, for a DaemonSet; NODE_NAME comes from the downward API.
  informerd serve --watch 'secrets?metadataOnly=true' --watch 'configmaps?drop=.data,.binaryData'
      Which secrets there are, without what is in them.
  informerd serve --config informerd.yaml --log debug
      From a file. A flag wins over its INFORMERD_* variable, the variable over the file.

Then:
  curl -s localhost:8090/v1/snapshot/pods
  curl -N localhost:8090/v1/watch/pods";

const EXAMPLES: &str = "\
Examples:
  informerd demo
      No cluster needed: one lives in the process. Prints what to try.
  informerd serve --watch pods --watch deployments.apps
      The cluster that kubectl talks to, on http://127.0.0.1:8090.
  informerd check --watch pods
      Configuration, connection and permissions, told plainly.
  informerd rbac --watch pods --service-account web:informerd | kubectl apply -f -
      The least permissions for it.

Each setting has an environment variable, INFORMERD_ and its name: --log-format is INFORMERD_LOG_FORMAT.
Exit codes: 0 fine, 1 failed while running (or a check that failed), 2 wrong usage or configuration.";

const CHECK_EXAMPLES: &str = "\
Examples:
  informerd check --config informerd.yaml
      Whether serve would work with it.
  informerd check --config informerd.yaml --verify
      And whether what it would hold is what the API server has.
  informerd check --config informerd.yaml --verify --against http://127.0.0.1:8090
      Whether what a running informerd holds is. Only what stays different is told, as both move on.

Exit codes: 0 fine, 1 something is wrong or differs, 2 wrong usage or configuration.";

const RBAC_EXAMPLES: &str = "\
Examples:
  informerd rbac --watch pods --watch deployments.apps
      A ClusterRole and its binding to the service account default:informerd.
  informerd rbac --watch 'pods?namespace=web' --service-account web:api
      A Role and its binding in the namespace web.

Nothing is asked of a cluster, so names that are not built in need their group: certificates.cert-manager.io.";

/// The Kubernetes informer as a daemon: lists and watches the API server once, and serves snapshots and
/// streams of every change to any number of clients over plain HTTP.
#[derive(Parser, Debug)]
#[command(name = "informerd", version, after_help = EXAMPLES, max_term_width = 120)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Watch a cluster and serve what it holds
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Serve an embedded cluster with life in it: no Kubernetes needed
    Demo(Box<DemoArgs>),
    /// Tell whether configuration, connection and permissions are right
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<CheckArgs>),
    /// Print the least Role or ClusterRole for what is watched
    #[command(after_help = RBAC_EXAMPLES)]
    Rbac(RbacArgs),
    /// Print a completion script: informerd completions bash > /etc/bash_completion.d/informerd
    Completions {
        /// Shell to print it for
        shell: clap_complete::Shell,
    },
    /// Print a manual page: informerd man serve | man -l -
    Man {
        /// Command whose page to print [default: informerd itself]
        command: Option<String>,
    },
}

/// What was typed to `serve`.
#[derive(clap::Args, Clone, Debug)]
pub struct ServeArgs {
    /// YAML file with the same settings [default: none]
    #[arg(long, env = "INFORMERD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The settings.
    #[command(flatten)]
    pub settings: ServeSettings,
}

/// What was typed to `demo`.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// Events a second in the embedded cluster [default 2: a person can follow]
    #[arg(long, env = "INFORMERD_RATE", value_name = "N", value_parser = rate, allow_hyphen_values = true, help_heading = "Embedded cluster")]
    pub rate: Option<f64>,
    /// Seed of all that happens [default: another each time, told at start]
    #[arg(long, env = "INFORMERD_SEED", value_name = "N", help_heading = "Embedded cluster")]
    pub seed: Option<u64>,
    /// Pods to add to those that live, to see it with many [default 0]
    #[arg(long, env = "INFORMERD_PODS", value_name = "N", help_heading = "Embedded cluster")]
    pub pods: Option<Count>,
    /// Where the embedded API server listens [default 127.0.0.1:0: any free port]
    #[arg(long, env = "INFORMERD_API_LISTEN", value_name = "ADDR", help_heading = "Embedded cluster")]
    pub api_listen: Option<SocketAddr>,
    /// Where to write the kubeconfig for it [default: a file in the temporary folder, told at start]
    #[arg(long, env = "INFORMERD_KUBECONFIG_OUT", value_name = "FILE", help_heading = "Embedded cluster")]
    pub kubeconfig_out: Option<PathBuf>,
    /// Where to listen.
    #[command(flatten)]
    pub listen: ListenSettings,
    /// What is logged.
    #[command(flatten)]
    pub log: LogSettings,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitSettings,
}

/// What was typed to `check`.
#[derive(clap::Args, Clone, Debug)]
pub struct CheckArgs {
    /// YAML file as for serve [default: none]
    #[arg(long, env = "INFORMERD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Form of the report: text or json [default text]
    #[arg(long, short, value_name = "FORM", value_enum, hide_possible_values = true)]
    pub output: Option<Output>,
    /// Also list each resource as serve does, and compare that with an independent list of names and versions
    /// [default false]
    #[arg(long)]
    pub verify: bool,
    /// Compare what a running informerd holds instead: http://127.0.0.1:8090 [default: none]
    #[arg(long, value_name = "URL", requires = "verify")]
    pub against: Option<String>,
    /// What to watch.
    #[command(flatten)]
    pub watch: WatchSettings,
    /// Which cluster.
    #[command(flatten)]
    pub upstream: UpstreamSettings,
    /// Where serve would listen.
    #[command(flatten)]
    pub listen: ListenSettings,
    /// What serve would hand on.
    #[command(flatten)]
    pub pass: PassSettings,
    /// What is logged.
    #[command(flatten)]
    pub log: LogSettings,
}

/// What was typed to `rbac`.
#[derive(clap::Args, Clone, Debug)]
pub struct RbacArgs {
    /// YAML file as for serve [default: none]
    #[arg(long, env = "INFORMERD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the roles and bindings [default informerd]
    #[arg(long, value_name = "NAME", default_value = "informerd", hide_default_value = true)]
    pub name: String,
    /// Service account to bind to, NAMESPACE:NAME [default default:informerd]
    #[arg(long, value_name = "ACCOUNT", default_value = "default:informerd", hide_default_value = true)]
    pub service_account: crate::rbac::ServiceAccount,
    /// What to watch.
    #[command(flatten)]
    pub watch: WatchSettings,
}

// === impl ServeArgs ===

impl ServeArgs {
    /// The layers of the configuration, which [`Source::load`] makes one of.
    pub fn source(self) -> Source {
        Source { file: self.config, settings: self.settings }
    }
}

// === impl DemoArgs ===

impl DemoArgs {
    /// Applies the defaults and checks the limits.
    ///
    /// # Errors
    /// [`ConfigError`] from the limits.
    pub fn resolve(self) -> Result<Demo, ConfigError> {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let ListenSettings { listen, admin_listen } = self.listen;
        // On loopback both, unlike serve: no kubelet probes a demo, and a laptop may be in a café.
        let AdminListen(admin_listen) =
            admin_listen.unwrap_or(AdminListen(Some(loopback(config::ADMIN_PORT))));
        Ok(Demo {
            listen: listen.unwrap_or(config::Listen::Tcp(loopback(config::DATA_PORT))),
            admin_listen,
            api_listen: self.api_listen.unwrap_or(loopback(0)),
            kubeconfig_out: self.kubeconfig_out,
            rate: self.rate.unwrap_or(2.0),
            seed: self.seed,
            pods: self.pods.map_or(0, Quantity::plain),
            limits: self.limits.resolve()?,
            log: Log::resolve(self.log),
        })
    }
}

// === impl CheckArgs ===

impl CheckArgs {
    /// Reads the file, if any, and applies the defaults.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(self) -> Result<Check, ConfigError> {
        let Self { config, output, verify, against, watch, upstream, listen, pass, log } = self;
        let settings = ServeSettings { watch, upstream, listen, pass, log, ..ServeSettings::default() };
        let serve = Source { file: config, settings }.load()?;
        let exposure = serve.exposure();
        let on_demand = serve.on_demand;
        let (wildcards, named): (Vec<_>, Vec<_>) =
            on_demand.patterns.iter().cloned().partition(config::Pattern::is_wildcard);
        let named = named.iter().map(|pattern| on_demand.spec(pattern.as_str()));
        Ok(Check {
            watches: serve.watches.into_iter().chain(named).collect(),
            wildcards,
            upstream: serve.upstream,
            exposure,
            output: output.unwrap_or_default(),
            verify: match against {
                Some(url) => Some(CheckVerify::running(url)?),
                None => verify.then_some(CheckVerify::Fresh),
            },
            initial_list: serve.initial_list,
            limits: serve.limits,
            log: serve.log,
        })
    }
}

// === impl RbacArgs ===

impl RbacArgs {
    /// Reads the file, if any, and returns what would be watched.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn watches(&self) -> Result<Vec<WatchSpec>, ConfigError> {
        let settings = ServeSettings { watch: self.watch.clone(), ..ServeSettings::default() };
        Source { file: self.config.clone(), settings }.watches(&|name| std::env::var(name).ok())
    }
}

/// The completion script for a shell.
pub fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "informerd", &mut script);
    script
}

/// The manual page of a command, or of informerd itself.
///
/// # Errors
/// The command's name and those there are, if there is none of that name.
pub fn man(name: Option<&str>) -> Result<Vec<u8>, clap::Error> {
    let mut command = Args::command();
    command.build();
    let page = match name {
        None => command,
        Some(name) => match command.find_subcommand(name) {
            Some(found) => found.clone(),
            None => {
                let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
                let message = format!("no command {name:?}; expected one of {}\n", known.join(", "));
                return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, message));
            }
        },
    };
    let mut roff = Vec::new();
    clap_mangen::Man::new(page).render(&mut roff)?;
    Ok(roff)
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|rate| (0.0..=100_000.0).contains(rate))
        .ok_or_else(|| "expected a number from 0 (nothing happens by itself) to 100000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;

    fn subcommand(name: &str) -> clap::Command {
        let mut command = Args::command();
        command.build();
        command.find_subcommand(name).unwrap().clone()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_option_has_a_variable_of_its_name() {
        for name in ["serve", "demo"] {
            for option in subcommand(name).get_opts() {
                let long = option.get_long().unwrap();
                let variable = format!("INFORMERD_{}", long.replace('-', "_").to_uppercase());
                assert_eq!(option.get_env().unwrap().to_str(), Some(&*variable), "{name} --{long}");
            }
        }
    }

    #[test]
    fn a_service_named_informerd_configures_nothing() {
        // The kubelet sets INFORMERD_SERVICE_HOST, INFORMERD_PORT and more in every pod beside such a Service.
        for name in ["serve", "demo", "check", "rbac"] {
            for option in subcommand(name).get_opts() {
                let variable = option.get_env().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
                let taken = ["INFORMERD_SERVICE", "INFORMERD_PORT"];
                assert!(!taken.iter().any(|prefix| variable.starts_with(prefix)), "{variable}");
            }
        }
    }

    #[test]
    fn every_setting_has_a_key_of_its_name() {
        let limits: Vec<String> = Limits::DEFAULT.list().iter().map(config::Limit::key).collect();
        for option in subcommand("serve").get_opts().filter(|option| option.get_id() != "config") {
            let mut words = option.get_long().unwrap().split('-');
            let mut key = words.next().unwrap().to_owned();
            for word in words {
                key.push_str(&word[..1].to_uppercase());
                key.push_str(&word[1..]);
            }
            let lists = ["namespace", "allowOrigin", "allowHost"];
            let yaml = if limits.contains(&format!("limits.{key}")) {
                format!("limits: {{{key}: }}")
            } else if lists.contains(&&*key) {
                format!("{key}s: ")
            } else {
                format!("{key}: ")
            };
            ServeSettings::from_yaml(&yaml, &|_| None).unwrap();
        }
    }

    #[test]
    fn help_tells_every_option_its_default_and_every_limit() {
        let mut serve = subcommand("serve");
        let help = serve.render_help().to_string();
        for limit in Limits::DEFAULT.list() {
            assert!(help.contains(&limit.flag()), "{}", limit.name);
        }
        for name in ["serve", "demo", "check"] {
            for option in subcommand(name).get_opts() {
                let help = option.get_help().unwrap().to_string();
                let told = help.contains("default") || option.get_id() == "watch";
                assert!(told, "{name} --{}: {help}", option.get_id());
            }
        }
        for heading in ["What to watch:", "Which cluster:", "Listeners:", "Limits:", "Logs:", "Examples:"] {
            assert!(help.contains(heading), "{heading}");
        }
    }

    #[test]
    fn a_flag_may_be_repeated_or_take_a_list() {
        let args = ["informerd", "serve", "--watch", "pods;services", "--watch", "nodes", "--namespace=a,b"];
        let Command::Serve(serve) = Args::try_parse_from(args).unwrap().command else { panic!() };
        let watch = serve.settings.watch.watch.unwrap();
        assert_eq!(
            watch.iter().map(|entry| &*entry.resource).collect::<Vec<_>>(),
            ["pods", "services", "nodes"]
        );
        assert_eq!(serve.settings.watch.namespace.unwrap(), ["a", "b"]);
    }
}
