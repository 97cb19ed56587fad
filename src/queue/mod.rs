//! Work queues: which key a worker gets next, and what becomes of it. Client-go's work queue with leases, so that workers
//! of any language take keys over HTTP.
//!
//! In come keys of objects that changed, and the answers of workers; out go leases. An item is a key, not an event: a key that is
//! added while it is queued is there once, and a key that is added while a worker has it comes again afterwards. This room
//! does no I/O and has no clock: time is an argument of each call, so any run can be repeated. It never reads an object, and does
//! not know how a worker waits; `serve` does both.
//!
//! [`Election`] decides which of several replicas gives out keys; `app` carries its requests to the API server.

mod age;
mod election;
mod outcome;
mod ready;
mod spec;
mod token;
mod work;

pub use election::{Answer, Ask, Election, Record, Standing, Timing, Write};
pub use outcome::{Added, Failed, InFlight, Leased, NotHeld, Retried, Summary};
pub use ready::Priority;
pub use spec::{
    ATTEMPTS_MAX, Enqueue, EnqueueBy, LEASE_SECONDS_MAX, Spec, SpecError, WATCHES_MAX, Watch, check_name,
};
pub use token::LeaseToken;
pub use work::{Rates, WorkQueue};

#[cfg(test)]
mod tests;
