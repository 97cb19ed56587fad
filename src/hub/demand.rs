//! Demands for informers that do not run: a message to the code that starts informers, and its answer.

use tokio::sync::{mpsc, oneshot};

/// The canonical name of the resource that a name stands for in the cluster; `None` for an unknown name.
pub type Names = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A client asks for an informer that does not run.
#[derive(Debug)]
pub struct Demand {
    /// The name as the client wrote it.
    pub name: String,
    /// Answered once the hub has the informer, complete or not, or with the reason why it will not.
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
    /// A watch of this name is configured but its kind is unknown yet, or discovery has not answered yet.
    #[error("{name:?} is not known to the API server yet: {why}")]
    Pending {
        /// The name as configured.
        name: String,
        /// Why it is unknown.
        why: String,
    },
    /// The name is longer than that of any resource.
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
    /// No resource that may start on demand has this name.
    #[error("{why}; informers start on demand for {patterns}")]
    NoKind {
        /// The reason, in a sentence.
        why: String,
        /// What can be started.
        patterns: String,
    },
    /// The resource is known, but may not start on demand.
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
    /// Asks and waits for the answer. The caller bounds the time.
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
        let why = "discovery of the API server's kinds did not end in time".to_owned();
        Self::Pending { name: name.to_owned(), why }
    }
}
