//! An informer as its readers see it.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::shared_batch::{SharedBatch, SharedBatches};
use super::{CloseReason, Config, InformerSpec, Resumable};
use crate::cache::{self, Cursor};
use crate::k8s::{Resource, ResourceVersion};

/// Identifies an informer across its descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InformerId(u64);

/// A resource in one scope, which a reflector keeps true and any number of subscribers read.
///
/// A clone is another description of the same informer: it has the same subscribers, and ends together with it.
#[derive(Clone)]
pub struct Informer {
    /// Its description.
    pub spec: InformerSpec,
    /// See [`InformerSpec::token_name`].
    token_name: Box<str>,
    /// See [`InformerSpec::shown`].
    shown: Resource,
    /// The cache.
    pub reader: cache::Reader,
    /// Indexes that are kept as long as the informer.
    pinned: Vec<Arc<cache::UsedIndex>>,
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
    /// An informer without subscribers.
    pub fn new(spec: InformerSpec, reader: cache::Reader) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let shared = Shared {
            id: InformerId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            subscribers: AtomicUsize::new(0),
            used: Mutex::new(Instant::now()),
            retirement: OnceLock::new(),
            building: tokio::sync::Mutex::default(),
            batches: SharedBatches::default(),
        };
        let (token_name, shown) = (spec.token_name().into(), spec.shown());
        let (pinned, shared) = (Vec::new(), Arc::new(shared));
        Self { spec, token_name, shown, reader, pinned, tokens_valid_after: None, shared }
    }

    /// Keeps indexes as long as the informer.
    #[must_use]
    pub fn pinning(mut self, indexes: Vec<Arc<cache::UsedIndex>>) -> Self {
        self.pinned = indexes;
        self
    }

    /// Another description of this informer.
    #[must_use]
    pub fn described(&self, spec: InformerSpec) -> Self {
        Self { token_name: spec.token_name().into(), shown: spec.shown(), spec, ..self.clone() }
    }

    /// Another informer over the same cache, without subscribers.
    #[must_use]
    pub fn over_the_same_cache(&self, spec: InformerSpec) -> Self {
        Self::new(spec, self.reader.clone()).pinning(self.pinned.clone())
    }

    /// Whether the API server was not heard of for longer than the watch may be silent.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.is_older(self.spec.stale_after, now)
    }

    /// Whether the API server was last heard longer ago than a limit, and than the open watch may be silent.
    pub fn is_older(&self, limit: Duration, now: Instant) -> bool {
        let age = self.reader.age(now);
        age > limit && self.reader.condition().quiet_max.is_none_or(|quiet_max| age > quiet_max)
    }

    /// Its name in resume tokens ([`InformerSpec::token_name`]).
    pub fn token_name(&self) -> &str {
        &self.token_name
    }

    /// The resource with the kind of its objects, bookmarks and lists ([`InformerSpec::shown`]).
    pub fn shown(&self) -> &Resource {
        &self.shown
    }

    /// The identity of the informer.
    pub fn id(&self) -> InformerId {
        self.shared.id
    }

    /// Cursor and position of a reader that has everything.
    pub(super) fn head(&self) -> (Cursor, Resumable) {
        let (cursor, version) = self.reader.head();
        (cursor, version.into())
    }

    /// The next changes after a cursor, if it is in the journal and there are any. Made once for all subscribers.
    pub fn batch_after(&self, cursor: Cursor, config: &Config) -> Option<Arc<SharedBatch>> {
        self.shared.batches.after(cursor, &self.reader, config)
    }

    /// Whether [`Informer::batch_after`] has made the batch after a cursor already.
    pub fn has_batch_after(&self, cursor: Cursor) -> bool {
        self.shared.batches.has_after(cursor)
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

impl Deref for InUse {
    type Target = Arc<Informer>;

    fn deref(&self) -> &Arc<Informer> {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.left();
    }
}

impl fmt::Debug for Informer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer")
            .field("name", &self.spec.name)
            .field("scope", &self.spec.scope)
            .finish_non_exhaustive()
    }
}
