//! Asking for an informer that does not run. Whoever starts informers is not known here: a message leaves, an
//! answer comes.

use tokio::sync::{mpsc, oneshot};

/// The canonical name of what a name stands for in the cluster; `None` if it stands for nothing known.
pub type Names = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A client asks for an informer that does not run.
#[derive(Debug)]
pub struct Demand {
    /// The name as asked for.
    pub name: String,
    /// To be answered once the informer is the hub's, complete or not, or with why it will not be.
    pub answer: oneshot::Sender<Result<(), SubscribeError>>,
}

/// Why a subscription was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// `subscribers_max` is reached.
    #[error("all {max} subscriptions are taken")]
    Full {
        /// The limit.
        max: usize,
    },
    /// A watch of this name is configured, but its kind is not known yet; or it cannot be told whether there is one.
    #[error("{name:?} is not known to the API server yet: {why}")]
    Pending {
        /// The name as configured.
        name: String,
        /// Why it is not known.
        why: String,
    },
    /// No resource has so long a name.
    #[error("no resource has a name of {len} bytes, as {name:?}... has")]
    TooLong {
        /// How the name begins.
        name: String,
        /// Its length, in bytes.
        len: usize,
    },
    /// No informer for a name.
    #[error("no informer for {name:?}; there are informers for {known}")]
    Unknown {
        /// The name as asked for.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// Nothing that could be started on demand has this name.
    #[error("{why}; informers start on demand for {patterns}")]
    NoKind {
        /// Why not, in words.
        why: String,
        /// What can be started.
        patterns: String,
    },
    /// The resource is known, but is not to be started on demand.
    #[error("{resource} is not followed, and informers start on demand only for {patterns}")]
    NotOnDemand {
        /// Its canonical name.
        resource: String,
        /// What can be started.
        patterns: String,
    },
    /// `on_demand_max` is reached.
    #[error("{resource} is not followed, and all {max} informers that may start on demand are in use")]
    Exhausted {
        /// Its canonical name.
        resource: String,
        /// The limit.
        max: usize,
    },
}

impl Demand {
    /// Asks and waits for the answer. To be bounded by the caller.
    pub(super) async fn ask(door: &mpsc::Sender<Self>, name: &str) -> Result<(), SubscribeError> {
        let (answer, answered) = oneshot::channel();
        let gone =
            || SubscribeError::Pending { name: name.to_owned(), why: "informerd is stopping".to_owned() };
        door.send(Self { name: name.to_owned(), answer }).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl SubscribeError {
    pub(super) fn late(name: &str) -> Self {
        let why = "the API server did not tell in time what kinds it has".to_owned();
        Self::Pending { name: name.to_owned(), why }
    }
}
