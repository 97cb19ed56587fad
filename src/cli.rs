//! The command line: its commands and flags. The room [`config`] gives them their meaning.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{
    self, Check, CheckVerify, ConfigError, ConfigLayers, DemoArguments, LeaseName, Output, ServeSettings,
    Setting, WatchSpec,
};
use crate::k8s;

const SERVE_EXAMPLES: &str = "\
A watch is a resource as kubectl takes it (pods, deploy, deployments.v1.apps); where only some of it
is wanted, followed by ? and name=value pairs joined by &:
  namespace=web           only there; repeat for several
  labelSelector=app=web   only what the API server selects by it; a value begins after the first =
  fieldSelector=...       likewise; which fields there are is up to the API server
  keepManagedFields=true, keepLastApplied=true   for this watch alone
  metadataOnly=true       only the objects' metadata is fetched and held, as PartialObjectMetadata
  drop=.data,.status.x    is not held: paths of members, in each element of arrays; a dot in a name is \\.
  index=spec.nodeName     keeps the index of this path from the start; repeat for several
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
      Whether serve would start and work with this file.
  informerd check --config informerd.yaml --verify
      And whether its caches would equal the API server's objects.
  informerd check --config informerd.yaml --verify --against http://127.0.0.1:8090
      Whether the caches of a running informerd equal them. Only lasting differences are reported, as both sides change.

The other settings of serve are taken, too, so that its arguments can be given as they are, and are checked.
Exit codes: 0 fine, 1 something is wrong or differs, 2 wrong usage or configuration.";

const RBAC_EXAMPLES: &str = "\
Examples:
  informerd rbac --watch pods --watch deployments.apps
      A ClusterRole and its binding to the service account default:informerd.
  informerd rbac --watch 'pods?namespace=web' --service-account web:api
      A Role and its binding in the namespace web.

The other settings of serve are taken, too, so that its arguments can be given as they are.
Nothing is asked of a cluster, so names that are not built in need their group: certificates.cert-manager.io.";

const LINKS_EXAMPLES: &str = "\
Examples:
  informerd links
      The built-in links.
  informerd links --config informerd.yaml
      And those that the file declares.

The other settings of serve are taken, too, so that its arguments can be given as they are.";

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
    /// Serve an embedded cluster in which things happen: no Kubernetes needed
    Demo(Box<DemoArguments>),
    /// Check configuration, connection and permissions
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<CheckArgs>),
    /// Print the least Role or ClusterRole for what is watched
    #[command(after_help = RBAC_EXAMPLES)]
    Rbac(Box<RbacArgs>),
    /// Print the links, built-in and declared: which kinds name objects of which others, and where
    #[command(after_help = LINKS_EXAMPLES)]
    Links(Box<LinksArgs>),
    /// Print the JSON Schema of the configuration file, for an editor
    ConfigSchema,
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

/// The arguments of `serve`.
#[derive(clap::Args, Clone, Debug)]
pub struct ServeArgs {
    /// YAML file with the same settings [default: none]
    #[arg(long, env = "INFORMERD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The settings.
    #[command(flatten)]
    pub settings: ServeSettings,
}

/// The arguments of `check`.
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
    /// Compare what a running informerd holds instead, and the content of some objects: http://127.0.0.1:8090
    /// [default: none]
    #[arg(long, value_name = "URL", requires = "verify")]
    pub against: Option<String>,
    /// All settings of `serve`, so that whatever it would refuse is refused here.
    #[command(flatten)]
    pub settings: ServeSettings,
}

/// The arguments of `rbac`.
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
    /// All settings of `serve`, so that its arguments can be given unchanged.
    #[command(flatten)]
    pub settings: ServeSettings,
}

/// The arguments of `links`.
#[derive(clap::Args, Clone, Debug)]
pub struct LinksArgs {
    /// YAML file as for serve [default: none]
    #[arg(long, env = "INFORMERD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// All settings of `serve`, so that its arguments can be given unchanged.
    #[command(flatten)]
    pub settings: ServeSettings,
}

// === impl ServeArgs ===

impl ServeArgs {
    /// The layers of the configuration, which [`ConfigLayers::load`] merges.
    pub fn source(self) -> ConfigLayers {
        ConfigLayers { file: self.config, settings: self.settings }
    }
}

// === impl CheckArgs ===

impl CheckArgs {
    /// Reads the file, if any, and applies the defaults.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(self) -> Result<Check, ConfigError> {
        let Self { config, output, verify, against, settings } = self;
        let serve = ConfigLayers { file: config, settings }.load()?;
        let exposure = serve.exposure();
        Ok(Check {
            watches: serve.watches,
            on_demand: serve.on_demand,
            upstream: serve.upstream,
            election: serve.election,
            exposure,
            output: output.unwrap_or_default(),
            verify: match against {
                Some(url) => Some(CheckVerify::running(url)?),
                None => verify.then_some(CheckVerify::Fresh),
            },
            watch_http2: serve.watch_http2,
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
        self.source().watches(&|name| std::env::var(name).ok())
    }

    /// The Lease of the queues' leader, if one is elected.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn election(&self) -> Result<Option<LeaseName>, ConfigError> {
        self.source().election(&|name| std::env::var(name).ok())
    }

    fn source(&self) -> ConfigLayers {
        ConfigLayers { file: self.config.clone(), settings: self.settings.clone() }
    }
}

// === impl LinksArgs ===

impl LinksArgs {
    /// Reads the file, if any, and returns the links that it declares.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn declared(self) -> Result<Vec<k8s::Link>, ConfigError> {
        let source = ConfigLayers { file: self.config, settings: self.settings };
        let declared = source.links(&|name| std::env::var(name).ok())?;
        Ok(declared.iter().map(config::LinkSpec::link).collect())
    }
}

/// Headings of the help that `check` shows; it takes the other settings of `serve`, too.
const CHECK_HEADINGS: &[&str] = &["What to watch", "Which cluster", "Work queues", "Staying true", "Logs"];

/// Headings of the help that `rbac` shows.
const RBAC_HEADINGS: &[&str] = &["What to watch", "Work queues"];

/// Headings of the help that `links` shows.
const LINKS_HEADINGS: &[&str] = &["Links"];

/// Reads the arguments and the environment. If help is wanted, or something is wrong, prints that and ends the process.
pub fn parse() -> Args {
    let unknown = unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()));
    let read = unknown.and_then(|()| Args::from_arg_matches(&command().try_get_matches()?));
    read.unwrap_or_else(|error| error.exit())
}

/// The commands with their flags.
pub fn command() -> clap::Command {
    let quiet = |command: clap::Command, headings: &'static [&'static str]| {
        command.mut_args(move |arg| {
            let heading = arg.get_help_heading().map(str::to_owned);
            arg.hide(heading.is_some_and(|heading| !headings.contains(&&*heading)))
        })
    };
    Args::command().mut_subcommands(|command| match command.get_name() {
        "check" => quiet(command, CHECK_HEADINGS),
        "rbac" => quiet(command, RBAC_HEADINGS),
        "links" => quiet(command, LINKS_HEADINGS),
        _ => command,
    })
}

/// Refuses `INFORMERD_*` variables of no setting, as unknown flags and keys are refused.
///
/// # Errors
/// The first such variable, with the one that was probably meant.
fn unknown_variables(names: impl Iterator<Item = String>) -> Result<(), clap::Error> {
    let known: BTreeSet<String> =
        config::settings().iter().map(Setting::variable).chain(["INFORMERD_CONFIG".to_owned()]).collect();
    let is_unknown =
        |name: &String| name.starts_with("INFORMERD_") && !known.contains(name) && !is_of_a_service(name);
    let mut unknown: Vec<String> = names.filter(is_unknown).collect();
    unknown.sort_unstable();
    let Some(name) = unknown.first() else { return Ok(()) };
    let near = known.iter().map(|other| (strsim::jaro(name, other), other));
    let near = near.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let hint = match near {
        Some((likeness, other)) if likeness > LIKENESS_MIN => format!("; {other} is one"),
        _ => String::new(),
    };
    let message = format!(
        "{name}: no setting has this variable{hint}\n\nFor more information, try 'informerd serve --help'.\n"
    );
    Err(clap::Error::raw(clap::error::ErrorKind::UnknownArgument, message))
}

/// Similarity, from 0 to 1, above which one name is suggested for another. Source: clap's own suggestions.
const LIKENESS_MIN: f64 = 0.7;

/// Whether the kubelet sets this variable in pods of a namespace with a Service called `informerd` or `informerd-…`.
///
/// Source: `k8s.io/kubernetes/pkg/kubelet/envvars`.
fn is_of_a_service(name: &str) -> bool {
    let ends = |rest: &str| rest.is_empty() || rest.starts_with('_');
    let has = |word: &str| name.match_indices(word).any(|(at, _)| ends(&name[at + word.len()..]));
    name.ends_with("_SERVICE_HOST") || has("_SERVICE_PORT") || has("_PORT")
}

/// The built-in links and declared ones, one a line: from, path, to.
pub fn links(declared: &[k8s::Link]) -> Vec<u8> {
    let mut lines = format!("{:<48} {:<86} TO\n", "FROM", "PATH");
    for link in k8s::links().iter().chain(declared) {
        let when = link
            .when
            .map(|when| format!(" ({} {} {})", when.path, if when.is { "=" } else { "!=" }, when.value));
        let path = match &link.by {
            k8s::LinkBy::Name(path) => path.to_string(),
            k8s::LinkBy::Selector(path, _) => format!("{path} (labels)"),
        };
        let when = when.unwrap_or_default();
        lines.push_str(&format!("{:<48} {path:<86} {}{when}\n", link.from, link.to));
    }
    lines.push_str(&format!("{:<48} {:<86} its owner, of any kind\n", "*", k8s::owner_uids().to_string()));
    lines.into_bytes()
}

/// The JSON Schema of the configuration file.
pub fn config_schema() -> Vec<u8> {
    format!("{:#}\n", config::schema()).into_bytes()
}

/// The completion script for a shell.
pub fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "informerd", &mut script);
    script
}

/// The manual page of a command, or of informerd itself.
///
/// # Errors
/// If there is no such command; names the existing ones.
pub fn man(name: Option<&str>) -> Result<Vec<u8>, clap::Error> {
    let mut command = command();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;

    fn subcommand(name: &str) -> clap::Command {
        let mut command = command();
        command.build();
        command.find_subcommand(name).unwrap().clone()
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
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
    fn variables_of_a_service_named_informerd_are_ignored() {
        // The kubelet sets INFORMERD_SERVICE_HOST, INFORMERD_PORT and others in every pod of the Service's namespace.
        for name in ["serve", "demo", "check", "rbac"] {
            for option in subcommand(name).get_opts() {
                let variable = option.get_env().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
                let taken = ["INFORMERD_SERVICE", "INFORMERD_PORT"];
                assert!(!taken.iter().any(|prefix| variable.starts_with(prefix)), "{variable}");
                assert!(!is_of_a_service(variable), "{variable}");
            }
        }
        let service = [
            "INFORMERD_SERVICE_HOST",
            "INFORMERD_SERVICE_PORT",
            "INFORMERD_SERVICE_PORT_HTTP",
            "INFORMERD_PORT",
            "INFORMERD_PORT_8090_TCP",
            "INFORMERD_PORT_8090_TCP_ADDR",
            "INFORMERD_SHARED_SERVICE_HOST",
            "INFORMERD_SHARED_PORT_80_TCP_PROTO",
        ];
        assert!(unknown_variables(service.into_iter().map(str::to_owned)).is_ok());
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_nearest_setting() {
        let refused = |name: &str| unknown_variables([name.to_owned()].into_iter()).unwrap_err().to_string();
        assert!(refused("INFORMERD_LOGFORMAT").contains("; INFORMERD_LOG_FORMAT is one"));
        assert!(refused("INFORMERD_WACTH").contains("INFORMERD_WATCH is one"));
        assert!(refused("INFORMERD_XYZZY").contains("INFORMERD_XYZZY: no setting has this variable"));
        for known in ["INFORMERD_CONFIG", "INFORMERD_WATCH", "INFORMERD_RATE", "INFORMER_LOG", "PATH"] {
            assert!(unknown_variables([known.to_owned()].into_iter()).is_ok(), "{known}");
        }
    }

    #[test]
    fn every_setting_has_a_flag_a_variable_and_a_key() {
        let (serve, demo) = (subcommand("serve"), subcommand("demo"));
        for setting in config::settings() {
            let command = if setting.key.is_some() { &serve } else { &demo };
            let option = command.get_opts().find(|option| option.get_id() == setting.name);
            let option = option.unwrap_or_else(|| panic!("no flag for {}", setting.name));
            assert_eq!(format!("--{}", option.get_long().unwrap()), setting.flag());
            assert_eq!(option.get_env().unwrap().to_str(), Some(&*setting.variable()));
            let Some(key) = &setting.key else { continue };
            let yaml = match key.split_once('.') {
                Some((group, key)) => format!("{group}: {{{key}: }}"),
                None => format!("{key}: "),
            };
            ServeSettings::from_yaml(&yaml, &|_| None).unwrap();
        }
        // The table has a row for every flag.
        for option in serve.get_opts().filter(|option| option.get_id() != "config") {
            assert!(config::settings().iter().any(|setting| setting.name == option.get_id()), "{option}");
        }
    }

    #[test]
    fn check_and_rbac_take_every_flag_of_serve() {
        for name in ["check", "rbac"] {
            let command = subcommand(name);
            for option in subcommand("serve").get_opts() {
                let found = command.get_opts().any(|other| other.get_long() == option.get_long());
                assert!(found, "{name} {option}");
            }
        }
        let help = subcommand("rbac").render_long_help().to_string();
        assert!(help.contains("--watch") && !help.contains("--journal-len-max"), "{help}");
    }

    #[test]
    fn help_shows_every_option_its_default_and_every_limit() {
        let mut serve = subcommand("serve");
        let help = serve.render_help().to_string();
        for (limit, _) in Limits::DEFAULT.list() {
            assert!(help.contains(&format!("--{}", limit.replace('_', "-"))), "{limit}");
        }
        for name in ["serve", "demo", "check"] {
            for option in subcommand(name).get_opts() {
                let help = option.get_help().unwrap().to_string();
                let told = help.contains("default") || option.get_id() == "watch";
                assert!(told, "{name} --{}: {help}", option.get_id());
                assert!(!help.contains('{'), "{name} --{}: {help}", option.get_id());
            }
        }
        for heading in ["What to watch:", "Which cluster:", "Listeners:", "Limits:", "Logs:", "Examples:"] {
            assert!(help.contains(heading), "{heading}");
        }
    }

    #[test]
    fn a_flag_may_be_repeated_or_take_a_list() {
        let args = ["informerd", "serve", "--watch", "pods;services", "--watch", "nodes", "--namespace=a,b"];
        let matches = command().try_get_matches_from(args).unwrap();
        let Command::Serve(serve) = Args::from_arg_matches(&matches).unwrap().command else { panic!() };
        let general = serve.settings.general;
        let watch = config::Value::plain(general.watch.unwrap().value);
        assert_eq!(
            watch.iter().map(|entry| &*entry.resource).collect::<Vec<_>>(),
            ["pods", "services", "nodes"]
        );
        assert_eq!(config::Value::plain(general.namespace.unwrap().value), ["a", "b"]);
    }
}
