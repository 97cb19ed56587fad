//! Keeps one cache true: list, watch, and what to do when either fails.
//!
//! In come a resource, a client of the API server and the writing end of a cache; out go deltas into the cache,
//! its condition in a sentence, and counters. [`Machine`] decides: a state machine without I/O, clock or randomness.
//! [`Reflector`] acts: it asks the API server, decodes, feeds the machine and commits. The cache is never emptied:
//! whatever fails, its content is served on. Four helpers run beside the pump: one lists versions from before the first
//! list for clients that outlived a restart (`backfill.rs`), one reads the API server's current version for clients that are
//! ahead of the cache (`prober.rs`), one compares the cache with the API server from time to time (`verify.rs`), and one packs
//! what has not changed for a while (`packing.rs`).

mod backfill;
mod compare;
mod failure;
mod machine;
mod metrics;
mod packing;
mod prober;
mod reflector;
mod step;
mod verify;
mod watching;

pub use compare::{Difference, DifferenceKind, ObjectState};
pub use failure::Failure;
pub use machine::{InitialList, Machine, MachineConfig};
pub use metrics::describe;
pub use packing::Pack;
pub use reflector::{Reflector, ReflectorConfig};
pub use step::{Input, Moment, Probed, Question, Reaction, SampleObject, Step};
pub use verify::{Verification, Verify, VerifyError, verify};
pub use watching::{EndReason, RelistReason};
