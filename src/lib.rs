//! informerd: the Kubernetes informer as a daemon.
//!
//! One process lists and watches the API server once per resource, keeps the objects, and hands them to any
//! number of HTTP clients as a snapshot followed by every change, with nothing lost or repeated in between.
//!
//! # Bird's eye
//!
//! Data flows one way, through six rooms:
//!
//! ```text
//! API server ══▶ upstream ══▶ reflect ══▶ CACHE ══▶ hub ══▶ encode ══▶ serve ══▶ client
//!   imports      upstream ◀── reflect ──▶ CACHE ◀── hub ◀── encode ◀── serve       and: every room ──▶ k8s
//! ```
//!
//! The cache is in the middle: the writer pushes into it, readers pull from it, and neither side knows the other.
//! `docs/architecture.md` follows a change, a request and a setting through the rooms; `docs/glossary.md` defines the words.
//!
//! | room | what it is for | comes in | goes out |
//! | --- | --- | --- | --- |
//! | [`upstream`] | the client of the API server | a resource, a version | list pages, watch chunks |
//! | [`reflect`] | keeps one cache true | bytes | deltas |
//! | [`cache`] | store, journal, tombstones, indexes of one resource | deltas | snapshots, runs of changes |
//! | [`hub`] | all informers; subscribers (cursor and selection, no queue) and live views | a subscription | events |
//! | [`encode`] | events and lists into bytes, objects by reference | events | frames |
//! | [`serve`] | HTTP: limits, errors, sockets, loops that write to live streams | requests | responses |
//!
//! Side rooms: [`k8s`] has Kubernetes' concepts and imports no other room; [`queue`] has the rules of work queues, which
//! `serve` feeds from the hub and opens to workers; [`sim`] is a Kubernetes API server in the process, for the demo, the
//! tests and the benchmarks. [`app`] starts and stops everything, [`cli`] and [`config`] read
//! the settings, [`telemetry`] logs and counts, [`rbac`] prints the least permissions.
//!
//! The crate is a program, not a library: it has [`run`], and `testing` for its own tests and benchmarks.
//!
//! # Invariants
//!
//! Many of them say what does not exist; `tests/it/tidy.rs` and `tests/it/tidy_circles.rs` check those that a machine
//! can check.
//!
//! - **Architecture invariant:** `k8s`, `cache`, `encode`, `queue`, `reflect/machine` and the pure files of `hub` have no
//!   async fn, no clock and no socket. Time and randomness are arguments, so any run can be repeated.
//! - **Architecture invariant:** the files of a room do not import each other in a circle.
//! - **Architecture invariant:** `serve` never sees `upstream` or `reflect`: reads are answered from the cache. The requests
//!   that clients can cause at the API server are bounded, however many clients there are: the informers on demand
//!   (`on_demand_max`), discovery for an unknown name (once in ten seconds), the API server's version for a token ahead of
//!   the cache (for each informer 15 in a row, then one a minute), lists of versions from before the start for clients that
//!   outlived a restart (16 for each informer, in its first two minutes), and a custom resource's definition for its columns
//!   (once a minute). The operator may allow more: `app` then hands `serve` a function that passes requests through to the
//!   API server (`pass_through_max` at once).
//! - **Architecture invariant:** `encode` never sees a socket, `cache` never sees a format.
//! - **Architecture invariant:** one [`cache::Writer`] per cache, not `Clone`. Readers never delay the writer.
//! - **Architecture invariant:** no queue per subscriber. (A work queue is the state of workers, not of a stream, and is
//!   fed by a subscriber.) A subscriber owns a cursor, and its transport pulls the next batch
//!   when the socket takes one. A slow client costs its cursor and its socket's buffers.
//! - **Architecture invariant:** an object is one allocation of its exact size, made once. The JSON within is written by
//!   reference to every live subscriber on every transport. Once the journal no longer shows it, the cache may hold it
//!   packed; lists, first states and catch-ups then unpack what they write.
//! - **Architecture invariant:** every buffer, queue, body, line and count of clients has a limit with a name, a unit
//!   and a metric.
//! - **Architecture invariant:** `sim` shares no code with `cache`: an oracle must be simpler than what it checks.

#![warn(clippy::missing_docs_in_private_items, reason = "an item that other files can use says what it is")]
#![allow(rustdoc::private_intra_doc_links, reason = "the map of the rooms, which are private")]

pub(crate) mod app;
pub(crate) mod cache;
pub(crate) mod cli;
pub(crate) mod config;
pub(crate) mod encode;
pub(crate) mod hub;
pub(crate) mod k8s;
mod program;
pub(crate) mod queue;
pub(crate) mod rbac;
pub(crate) mod reflect;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod telemetry;
#[doc(hidden)]
pub mod testing;
pub(crate) mod upstream;

pub use program::run;
