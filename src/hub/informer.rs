//! One shared informer, as its readers see it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cache;
use crate::k8s::Resource;

/// Which part of a resource an informer follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole cluster.
    All,
    /// One namespace.
    Namespace(String),
}

/// How often an informer did what, since the start.
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
}

/// A resource in one scope: what a reflector keeps true and any number of subscribers read.
pub struct Informer {
    /// Its part in resume tokens: `pods`, or `pods/ns1` where a resource is followed namespace by namespace.
    pub name: String,
    /// What is followed.
    pub resource: Resource,
    /// Where.
    pub scope: Scope,
    /// Selectors that the API server applies, as configured, for people to read.
    pub selectors: String,
    /// The cache.
    pub reader: cache::Reader,
    /// Figures of the reflector, which this room does not know.
    pub figures: Arc<dyn Fn() -> Figures + Send + Sync>,
    /// Subscribers that read it.
    pub(super) subscribers: AtomicUsize,
}

impl Informer {
    /// An informer without subscribers.
    pub fn new(
        resource: Resource,
        scope: Scope,
        reader: cache::Reader,
        figures: Arc<dyn Fn() -> Figures + Send + Sync>,
    ) -> Self {
        let name = resource.canonical();
        Self {
            name,
            resource,
            scope,
            selectors: String::new(),
            reader,
            figures,
            subscribers: AtomicUsize::new(0),
        }
    }

    /// Subscribers that read it now.
    pub fn subscribers(&self) -> usize {
        self.subscribers.load(Ordering::Relaxed)
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
