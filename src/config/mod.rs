//! Configuration: merges the layers of settings, applies defaults, checks limits.
//!
//! In come the flags and the environment (as [`ServeSettings`], read by the command line) and the text of a
//! YAML file; out go plain structs, [`Serve`], [`Demo`] and [`Check`], which the rest of the program uses
//! without further checks. Each setting has a flag, an `INFORMERD_*` variable and a key of the file under one
//! name. The flag wins over the variable, the variable over the file.

mod commands;
mod error;
mod expand;
mod exposure;
mod layer;
mod limits;
mod links;
mod on_demand;
mod quantity;
mod queues;
mod resolve;
mod schema;
mod setting;
mod settings;
mod table;
mod values;
mod watch;

pub use commands::{Check, CheckVerify, ConfigLayers, Demo, Log, Output, Serve};
pub use error::ConfigError;
pub use links::LinkSpec;
pub use on_demand::{OnDemand, Pattern};
pub use quantity::{Count, Size, Span};
pub use queues::{DeclaredQueues, LeaseName, QueueElection, QueueMode};
pub use schema::schema;
pub use setting::Origin as GivenBy;
pub use setting::{Given, Setting, Value};
pub use settings::{DemoArguments, ServeSettings};
pub use table::{General, GeneralSettings, Limits, settings};
pub use values::{CachePacking, HostName, InitialList, Listen, LogFormat, Origin, PassThrough, Proxied};
pub use watch::{WatchEntry, WatchSpec, Watches};

/// The times of a leader election.
pub use crate::queue::Timing as ElectionTiming;

/// Which API server, and with whose credentials.
pub use crate::upstream::UpstreamSource;

#[cfg(test)]
mod tests;
