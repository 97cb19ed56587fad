//! Keeps one cache true: list, watch, and what to do when either fails.
//!
//! In come a resource, a way to the API server and the writing end of a cache; out go deltas into the cache,
//! its condition in a sentence, and counters. The decisions are in [`Machine`], a state machine without
//! I/O, clock or randomness; [`Reflector`] is the pump that asks the API server, decodes, feeds the machine
//! and commits. The cache is never emptied: whatever fails, what was there stays served. Beside it, for a while
//! after the start, the historian answers what the cache is asked of versions from before its first list; and from
//! time to time the verifier compares the cache with the API server.

mod compare;
mod head;
mod machine;
mod metrics;
mod past;
mod reflector;
mod stats;
mod step;
mod verify;
mod watching;

pub use compare::{Difference, DifferenceKind, ObjectState};
pub use machine::{InitialList, Machine, MachineConfig};
pub use metrics::describe;
pub use reflector::{Reflector, ReflectorConfig};
pub use stats::{LastVerification, Stats, StatsSnapshot};
pub use step::{Failure, Input, Moment, Probed, Question, Reaction, Step, Witness};
pub use verify::{Verification, Verify, VerifyError, VerifyOutcome, verify};
pub use watching::{Doubt, EndReason, RelistReason, WatchEnd};
