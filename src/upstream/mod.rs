//! The API server's side: lists and watches as bytes, discovery, permissions.
//!
//! In come a resource, a scope and selectors; out go the response's bytes as they arrive, or an
//! [`UpstreamError`] that keeps the HTTP code apart from the network. TLS, credentials and their refresh,
//! proxies and kubeconfig are `kube`'s, the sockets ours. This room retries nothing but
//! what credentials or an address read again may mend, reads no object, and knows no cache: when to ask again, and
//! from where, is the reflector's business.

mod access;
mod backoff;
mod client;
mod config;
mod connector;
mod discovery;
mod error;
mod metrics;
mod replay;
mod session;

pub use access::Access;
pub use backoff::Backoff;
pub use client::{
    AsOf, ByteStream, Client, ListBody, PageRequest, Selectors, Target, WatchFrom, WatchRequest,
};
pub use config::{Config, Source};
pub use discovery::{Again, Broken, Discovery, ResolveError};
pub use error::{FailureKind, Refusal, UpstreamError};
pub use metrics::describe;
