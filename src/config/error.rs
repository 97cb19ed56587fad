//! Why a configuration cannot be used.

use std::path::PathBuf;

/// A configuration that cannot be used. The text names what is wrong and what would be accepted.
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
    /// The file's text is wrong.
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
        /// The place where the value was given: a key, a flag or a variable.
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
    Conflict(String, String),
    /// The configuration does not fit the cluster, or no cluster was found.
    #[error("{0}")]
    Cluster(String),
    /// Nothing to watch.
    #[error(
        "nothing to watch; name a resource, as in --watch pods, INFORMERD_WATCH=pods, or watch: in the file, or let \
         clients start informers, as in --on-demand pods"
    )]
    NothingToWatch,
}
