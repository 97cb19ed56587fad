//! The settings of work queues.

use std::collections::BTreeMap;

use crate::k8s::Links;
use crate::queue::Spec;

/// Who may declare queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAccess {
    /// There are no queues.
    Off,
    /// The configuration.
    Configuration,
    /// The configuration, and every client.
    Clients,
}

/// Limits of queues, and the declared ones.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Who may declare queues.
    pub access: QueueAccess,
    /// The queues of the configuration.
    pub declared: BTreeMap<String, Spec>,
    /// Names this process in lease tokens. Another process has another one.
    pub process: u64,
    /// Number of queues.
    pub queues_max: usize,
    /// Number of keys in each queue.
    pub keys_max: usize,
    /// Number of leases of each queue at once.
    pub leases_max: usize,
    /// Number of workers that wait for a key at once, over all queues.
    pub workers_max: usize,
    /// Informers that one resource of a queue may join.
    pub informers_max: usize,
    /// The election of the replica that gives out keys; `None` if each one does.
    pub election: Option<ElectionConfig>,
    /// The links by which dependents are found.
    pub links: Links,
}

/// The election among the replicas, as far as it is fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// The Lease, `NAMESPACE/NAME`.
    pub lease: String,
    /// This replica's name in it.
    pub identity: String,
}

/// Who declared a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclaredBy {
    /// The configuration. It lasts as long as the process.
    Configuration,
    /// A client. It lasts until it is deleted, at most as long as the process.
    Client,
}

impl DeclaredBy {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Client => "client",
        }
    }
}
