//! The API server's side: lists and watches as bytes, discovery, permissions.
//!
//! In come a resource, a scope and selectors; out go the answer's bytes as they arrive, or an
//! [`UpstreamError`] that separates HTTP codes from network failures. `kube` handles TLS, credentials and their
//! refresh, proxies and kubeconfig; the sockets are our own. This room retries a request only after reading credentials or
//! address again. It decodes no objects and knows no cache: the reflector decides when to ask again, and from which
//! version.

mod access;
mod backoff;
mod client;
mod config;
mod connector;
mod credentials;
mod dialer;
mod discovery;
mod error;
mod leases;
mod metrics;
mod proxy;
mod replay;
mod session;

pub use access::Access;
pub use backoff::Backoff;
pub use client::{
    AsOf, ByteStream, Client, ListBody, PageRequest, Selectors, Target, WatchFrom, WatchRequest,
};
pub use config::{Config, UpstreamSource};
pub use discovery::{Again, Discovery};
pub use error::{FailureKind, Refusal, UpstreamError};
pub use metrics::describe;
