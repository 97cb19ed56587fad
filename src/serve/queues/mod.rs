//! Work queues over HTTP: declares them, feeds them from the hub, and lets workers wait for keys.
//!
//! The rules are those of [`crate::queue`]. A queue follows its informers as any subscriber does, one subscription for each of its
//! resources, and takes no more than keys from them. A lease reads its object from the cache at the moment it is given, so
//! the object is never older than the event that queued the key.

mod answers;
mod config;
mod dependents;
mod error;
mod feed;
mod handlers;
mod leading;
mod metrics;
mod objects;
mod registry;
mod shared;
mod workers;

pub use config::{DeclaredBy, ElectionConfig, QueueAccess, QueueConfig};
pub use error::QueueError;
pub(super) use handlers::{answer, list};
pub(super) use metrics::describe;
pub use registry::{Declared, Queues};
pub use workers::{Ask, Given, Workers};
