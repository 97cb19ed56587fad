//! informerd: the Kubernetes informer as a daemon.
//!
//! One process lists and watches the API server once per resource, keeps the objects, and hands them to any
//! number of HTTP clients as a snapshot followed by every change, with nothing lost or repeated in between.
//!
//! # Bird's eye
//!
//! Data flows one way, through six rooms and five doors:
//!
//! ```text
//! API server ══▶ upstream ══▶ reflect ══▶ CACHE ══▶ hub ══▶ encode ══▶ serve ══▶ client
//!   imports      upstream ◀── reflect ──▶ CACHE ◀── hub ◀── encode ◀── serve       and: everyone ──▶ k8s
//! ```
//!
//! The cache is the table both sides sit at: the writer pushes into it, readers pull from it, and neither knows
//! that the other exists.
//!
//! | room | what it is for | comes in | goes out |
//! | --- | --- | --- | --- |
//! | [`upstream`] | the API server's bytes | a resource, a version | list pages, watch chunks |
//! | [`reflect`] | keeps one cache true | bytes | deltas |
//! | [`cache`] | store, journal, tombstones of one resource | deltas | snapshots, runs of changes |
//! | [`hub`] | where subscribers wait: cursor and filter, no queue | a subscription | deliveries |
//! | [`encode`] | deliveries into bytes, objects by reference | deliveries | frames |
//! | [`serve`] | HTTP: limits, errors, sockets | requests | responses |
//!
//! Side rooms: [`k8s`] has Kubernetes' words and imports nothing of ours; [`sim`] is a Kubernetes API server in the
//! process, for the demo, the tests and the benchmarks. [`app`] wires, [`config`] and [`cli`] say what is meant and
//! what was typed, [`telemetry`] logs and counts, [`rbac`] prints the least permissions.
//!
//! # Invariants
//!
//! Many of them are absences; `tests/it/tidy.rs` keeps those that a machine can check.
//!
//! - **Architecture invariant:** `k8s`, `cache`, `encode`, `reflect/machine` and what is pure of `hub` have no
//!   async fn, no clock and no socket. Time and randomness are arguments, so any run can be repeated.
//! - **Architecture invariant:** `serve` never sees `upstream` or `reflect`: reads are answered from the cache. What
//!   clients can cause at the API server is bounded, however many they are: an informer on demand (`on_demand_max`),
//!   discovery for an unknown name (once a second), the version an informer's server is at, for a token ahead of the
//!   cache (once every two seconds for each informer), one list of a version from before the start for clients that
//!   outlived a restart, and a custom resource's definition for its columns (once a minute). `app` decides on each. Where
//!   the operator lets requests through that no cache can answer (`pass_through_max` at once), `app` hands `serve` a
//!   function for them.
//! - **Architecture invariant:** `encode` never sees a socket, `cache` never sees a format.
//! - **Architecture invariant:** one [`cache::Writer`] per cache, not `Clone`. Readers never hold up the writer.
//! - **Architecture invariant:** no queue per subscriber anywhere. A subscriber owns a cursor; its transport pulls
//!   the next batch when the socket takes one. A slow client costs its cursor and its socket's buffers.
//! - **Architecture invariant:** an object's JSON is one allocation of its exact size, made once, and written by
//!   reference to every subscriber on every transport.
//! - **Architecture invariant:** every buffer, queue, body, line and count of clients has a limit with a name, a unit
//!   and a metric.
//! - **Architecture invariant:** `sim` shares no code with `cache`: the oracle is dumber than what it checks.

pub mod app;
pub mod cache;
pub mod cli;
pub mod config;
pub mod encode;
pub mod hub;
pub mod k8s;
pub mod rbac;
pub mod reflect;
pub mod serve;
pub mod sim;
pub mod telemetry;
pub mod upstream;
