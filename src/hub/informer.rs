//! An informer as its readers see it.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sha1::{Digest as _, Sha1};
use tokio::time::Instant;

use super::shared_batch::{SharedBatch, SharedBatches};
use super::{CloseReason, Config};
use crate::cache::{self, Cursor};
use crate::k8s::{DropPaths, Resource, ResourceVersion};

/// Which part of a resource an informer follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole cluster.
    All,
    /// One namespace.
    Namespace(String),
}

/// Counters of an informer since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Lists begun at the API server.
    pub lists: u64,
    /// Watches opened at the API server.
    pub watches: u64,
    /// Watch events received.
    pub events: u64,
    /// Lists after the first.
    pub relists: u64,
    /// The last comparison with the API server.
    pub verified: Option<Verified>,
}

/// The last comparison of a cache with the API server.
#[derive(Clone, Copy, Debug)]
pub struct Verified {
    /// When it ended.
    pub at: Instant,
    /// Its outcome: `equal`, `different`, `abandoned`, `failed`.
    pub outcome: &'static str,
    /// Objects that the cache lacked.
    pub missing: u64,
    /// Objects that only the cache had.
    pub extra: u64,
    /// Objects that the cache had in another state.
    pub stale: u64,
}

/// Why an informer was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The configuration names its resource.
    Configuration,
    /// A client asked for its resource.
    Demand,
}

/// Identifies an informer across its descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InformerId(u64);

/// A resource in one scope, which a reflector keeps true and any number of subscribers read.
///
/// A clone is another description of the same informer: it has the same subscribers, and ends together with it.
#[derive(Clone)]
pub struct Informer {
    /// Its name: `pods`, or `pods/ns1` if the resource is followed in separate namespaces.
    pub name: String,
    /// The resource that it follows.
    pub resource: Resource,
    /// The part of it that it follows.
    pub scope: Scope,
    /// Selectors that the API server applies, as configured, for people to read.
    pub selectors: String,
    /// Whether it holds only the objects' metadata.
    pub metadata_only: bool,
    /// Members that are dropped from its objects.
    pub dropped: DropPaths,
    /// The cache.
    pub reader: cache::Reader,
    /// Reads the counters of the reflector, which this room does not know.
    pub figures: Arc<dyn Fn() -> Figures + Send + Sync>,
    /// Why it runs.
    pub started: Started,
    /// Whether the process is ready only once this informer is.
    pub awaited: bool,
    /// Digest of all that decides which objects the cache holds, and with which content. A position in one cache means nothing
    /// in another with a different digest.
    pub selection: u64,
    /// Indexes that are kept as long as the informer.
    pub pinned: Vec<Arc<cache::UsedIndex>>,
    /// Age above which the cache counts as stale, unless the open watch may be silent for longer.
    pub stale_after: Duration,
    /// Versions up to this one were given out by another cache of this name, with another selection.
    pub(super) tokens_valid_after: Option<ResourceVersion>,
    pub(super) shared: Arc<Shared>,
}

/// Counts a request that reads an informer and is not a subscriber, until it is dropped. See [`Informer::in_use`].
pub struct InUse(Arc<Informer>);

/// What all descriptions of an informer share.
pub(super) struct Shared {
    id: InformerId,
    /// Subscribers that read it.
    subscribers: AtomicUsize,
    /// When it was last requested, or its last subscriber left.
    used: Mutex<Instant>,
    /// Set once it is removed from the hub.
    retirement: OnceLock<Retirement>,
    /// Held by the request that builds an index.
    building: tokio::sync::Mutex<()>,
    /// Batches for its subscribers that select everything.
    batches: SharedBatches,
}

/// What its subscribers do after an informer was removed from the hub.
pub(super) enum Retirement {
    /// They continue with this one, which is complete.
    ReplacedBy(Arc<Informer>),
    /// They end.
    Ended(CloseReason),
}

impl Informer {
    /// An informer without subscribers, started by the configuration.
    pub fn new(
        resource: Resource,
        scope: Scope,
        reader: cache::Reader,
        figures: Arc<dyn Fn() -> Figures + Send + Sync>,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let name = resource.canonical();
        let shared = Shared {
            id: InformerId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            subscribers: AtomicUsize::new(0),
            used: Mutex::new(Instant::now()),
            retirement: OnceLock::new(),
            building: tokio::sync::Mutex::default(),
            batches: SharedBatches::default(),
        };
        Self {
            name,
            resource,
            scope,
            selectors: String::new(),
            metadata_only: false,
            dropped: DropPaths::default(),
            reader,
            figures,
            started: Started::Configuration,
            awaited: true,
            selection: 0,
            pinned: Vec::new(),
            stale_after: Duration::MAX,
            tokens_valid_after: None,
            shared: Arc::new(shared),
        }
    }

    /// Whether the API server was not heard of for longer than the watch may be silent.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.is_older(self.stale_after, now)
    }

    /// Whether the API server was last heard longer ago than a limit, and than the open watch may be silent.
    pub fn is_older(&self, limit: Duration, now: Instant) -> bool {
        let age = self.reader.age(now);
        age > limit && self.reader.condition().quiet_max.is_none_or(|quiet_max| age > quiet_max)
    }

    /// The identity of the informer.
    pub fn id(&self) -> InformerId {
        self.shared.id
    }

    /// The resource with the kind of its objects, bookmarks and lists: the resource's own kind, or `PartialObjectMetadata`.
    pub fn shown(&self) -> Resource {
        if self.metadata_only { self.resource.metadata_only() } else { self.resource.clone() }
    }

    /// Its name in resume tokens: `pods`, or `pods/ns1` if one namespace is followed. If the cache does not hold every object
    /// whole, it contains a digest of what it holds (`pods_1f0a44c2`). An informerd with another selection then refuses the
    /// token, as it would never send deletions of objects that it does not follow.
    pub fn token_name(&self) -> String {
        let mut name = match &self.scope {
            Scope::All => self.name.clone(),
            Scope::Namespace(namespace) => format!("{}/{namespace}", self.resource),
        };
        if !self.selectors.is_empty() || self.metadata_only || !self.dropped.is_empty() {
            let content = format!("{}\n{}\n{}", self.selectors, self.metadata_only, self.dropped);
            let digest = Sha1::digest(content.as_bytes());
            name.push('_');
            digest[..4].iter().for_each(|byte| name.push_str(&format!("{byte:02x}")));
        }
        name
    }

    /// Whether the field at a dotted path is kept in its objects.
    pub fn holds(&self, field: &str) -> bool {
        let metadata = matches!(field.split('.').next(), Some("metadata" | "kind" | "apiVersion"));
        (metadata || !self.metadata_only) && !self.dropped.drops(field)
    }

    /// The next changes after a cursor, if it is in the journal and there are any. Made once for all subscribers.
    pub fn batch_after(&self, cursor: Cursor, config: &Config) -> Option<Arc<SharedBatch>> {
        self.shared.batches.after(cursor, &self.reader, config)
    }

    /// A lock that is held while an index is built, so that one request builds it and the others wait.
    pub fn building(&self) -> &tokio::sync::Mutex<()> {
        &self.shared.building
    }

    /// Whether it was removed from the hub. Its readers are woken then.
    pub fn is_over(&self) -> bool {
        self.shared.retirement.get().is_some()
    }

    /// Subscribers that read it now.
    pub fn subscribers(&self) -> usize {
        self.shared.subscribers.load(Ordering::Relaxed)
    }

    /// When it was last requested, or its last subscriber left. Meaningless while it has subscribers.
    pub fn used(&self) -> Instant {
        *self.shared.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tokens valid after this version are of this cache; those up to it are of another cache of its name.
    pub fn tokens_valid_after(&self) -> Option<&ResourceVersion> {
        self.tokens_valid_after.as_ref()
    }

    /// Notes that it was requested, or left by a subscriber.
    pub(super) fn touch(&self) {
        *self.shared.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Counts a reader that is not a subscriber, until the result is dropped: an informer that started on demand keeps
    /// running for it.
    pub fn in_use(self: &Arc<Self>) -> InUse {
        self.joined();
        InUse(self.clone())
    }

    pub(super) fn joined(&self) {
        self.shared.subscribers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn left(&self) {
        if self.shared.subscribers.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.shared.batches.clear();
        }
        self.touch();
    }

    /// What its subscribers do now; `None` while it is registered with the hub.
    pub(super) fn retirement(&self) -> Option<&Retirement> {
        self.shared.retirement.get()
    }

    /// Ends it, and wakes its subscribers. To be called once.
    pub(super) fn end(&self, retirement: Retirement) {
        let _ = self.shared.retirement.set(retirement);
        self.reader.rouse();
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.left();
    }
}

impl Scope {
    /// Whether it contains a namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(followed) => followed == namespace,
        }
    }
}

impl Started {
    /// The word for people and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Demand => "demand",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("cluster"),
            Self::Namespace(namespace) => write!(f, "namespace {namespace}"),
        }
    }
}

impl fmt::Debug for Informer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer")
            .field("name", &self.name)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
