//! Why a request for a queue is refused.

use crate::queue::NotHeld;

/// Why a request for a queue is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// No queue of this name.
    #[error("there is no queue {name:?}; a client declares one with PUT /v1/queues/{name}")]
    Unknown {
        /// The name.
        name: String,
    },
    /// It was declared otherwise.
    #[error(
        "queue {name:?} is declared otherwise; GET /v1/queues/{name} shows how. DELETE removes a queue that a client has declared"
    )]
    Differs {
        /// The name.
        name: String,
    },
    /// It belongs to the configuration.
    #[error("queue {name:?} is declared in the configuration, and cannot be deleted")]
    Configured {
        /// The name.
        name: String,
    },
    /// There are as many queues as there may be.
    #[error("there are {max} queues already")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// There are as many leases as there may be.
    #[error("workers hold {max} leases of this queue already")]
    TooManyLeases {
        /// The limit.
        max: usize,
    },
    /// As many workers wait as may wait.
    #[error("{max} workers wait for a key already")]
    TooManyWorkers {
        /// The limit.
        max: usize,
    },
    /// Another replica leads.
    #[error("{}", followed(identity, lease, leader.as_deref(), trouble.as_deref()))]
    Follows {
        /// This replica.
        identity: String,
        /// The Lease.
        lease: String,
        /// The replica that leads.
        leader: Option<String>,
        /// Why the Lease cannot be read or written.
        trouble: Option<String>,
    },
    /// The process ends.
    #[error("informerd is stopping")]
    Stopping,
    /// The lease is not held.
    #[error(transparent)]
    NotHeld(#[from] NotHeld),
}

/// The sentence of [`QueueError::Follows`].
fn followed(identity: &str, lease: &str, leader: Option<&str>, trouble: Option<&str>) -> String {
    let mut text = match leader {
        Some(leader) => format!("{leader:?} gives out the keys of queues, as it holds the Lease {lease}"),
        None => format!(
            "no replica is known to hold the Lease {lease}, whose holder gives out the keys of queues"
        ),
    };
    text.push_str(&format!("; this is {identity:?}"));
    if let Some(trouble) = trouble {
        text.push_str(&format!(", which cannot read or write the Lease: {trouble}"));
    }
    text
}
