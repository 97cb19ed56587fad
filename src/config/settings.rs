//! Layers of settings: one from flags and environment, one from the file.

use super::ConfigError;
use super::expand::Environment;
use super::setting::{Given, Origin, Setting, Value as _};
use super::table::{DemoSettings, GeneralFile, GeneralSettings, LimitSettings, augment, is_of_demo};

/// All settings of `serve`, as one source gives them.
#[derive(Clone, Debug, Default)]
pub struct ServeSettings {
    /// All but the limits.
    pub general: GeneralSettings,
    /// Limits.
    pub limits: Box<LimitSettings>,
}

/// All settings of `demo`.
#[derive(Clone, Debug, Default)]
pub struct DemoArguments {
    /// The embedded cluster.
    pub demo: DemoSettings,
    /// Listeners and logs; the other settings of `serve` have no flag in `demo`.
    pub general: GeneralSettings,
    /// Limits.
    pub limits: LimitSettings,
}

/// Headings of the help whose flags `demo` shares with `serve`.
const DEMO_HEADINGS: [&str; 3] = ["Listeners", "Logs", "Limits"];

// === impl ServeSettings ===

impl ServeSettings {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with the YAML or a value, with its line or key.
    pub fn from_yaml(text: &str, environment: Environment<'_>) -> Result<Self, ConfigError> {
        // An empty file, or one with comments only, is no error.
        let file: Option<GeneralFile> =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        let mut file = file.unwrap_or_default();
        let limits = Box::new(std::mem::take(&mut file.limits).given(environment)?);
        Ok(Self { general: file.given(environment)?, limits })
    }

    /// These settings, completed by those of the lower layer. A list replaces the lower layer's list.
    #[must_use]
    pub fn or(self, mut lower: Self) -> Self {
        // The cluster is one choice: `--server` replaces a file's kubeconfig and does not conflict with it. A context alone
        // selects within the file's kubeconfig.
        if chooses_cluster(&self.general, |_| true) {
            lower.general.forget_cluster(|_| true);
        }
        Self { general: self.general.or(lower.general), limits: Box::new(self.limits.or(*lower.limits)) }
    }
}

/// Whether a layer chooses a cluster at one of these places.
fn chooses_cluster(given: &GeneralSettings, counts: impl Fn(Origin) -> bool) -> bool {
    let GeneralSettings { kubeconfig, in_cluster, server, .. } = given;
    // `--in-cluster=false` leaves the choice to the others.
    let in_cluster = in_cluster.as_ref().filter(|given| given.value.plain()).map(|given| given.origin);
    let origins = [origin(kubeconfig), in_cluster, origin(server)];
    origins.into_iter().flatten().any(counts)
}

fn origin<T>(given: &Option<Given<T>>) -> Option<Origin> {
    given.as_ref().map(|given| given.origin)
}

impl GeneralSettings {
    fn forget_cluster(&mut self, forgotten: impl Fn(Origin) -> bool) {
        fn forget<T>(given: &mut Option<Given<T>>, forgotten: impl Fn(Origin) -> bool) {
            if given.as_ref().is_some_and(|given| forgotten(given.origin)) {
                *given = None;
            }
        }
        forget(&mut self.kubeconfig, &forgotten);
        forget(&mut self.context, &forgotten);
        forget(&mut self.in_cluster, &forgotten);
        forget(&mut self.server, &forgotten);
    }
}

// === impl clap::Args ===

/// The error of a value as an error of clap, which prints it and exits.
fn refused(error: &ConfigError) -> clap::Error {
    let message = format!("{error}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, message)
}

impl clap::FromArgMatches for ServeSettings {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let read = || -> Result<Self, ConfigError> {
            let mut general = GeneralSettings::from_matches(matches)?;
            // For the choice of the cluster, too, a flag wins over all its variables.
            if chooses_cluster(&general, |origin| origin == Origin::Flag) {
                general.forget_cluster(|origin| origin == Origin::Variable);
            }
            Ok(Self { general, limits: Box::new(LimitSettings::from_matches(matches)?) })
        };
        read().map_err(|error| refused(&error))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for ServeSettings {
    fn augment_args(command: clap::Command) -> clap::Command {
        augment(command, |setting| !is_of_demo(setting))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for DemoArguments {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let read = || -> Result<Self, ConfigError> {
            Ok(Self {
                demo: DemoSettings::from_matches(matches)?,
                general: GeneralSettings::from_matches(matches)?,
                limits: LimitSettings::from_matches(matches)?,
            })
        };
        read().map_err(|error| refused(&error))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for DemoArguments {
    fn augment_args(command: clap::Command) -> clap::Command {
        let chosen = |setting: &Setting| is_of_demo(setting) || DEMO_HEADINGS.contains(&setting.heading);
        // Its own settings first, as they matter most here.
        let command = augment(command, is_of_demo);
        augment(command, |setting| chosen(setting) && !is_of_demo(setting))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}
