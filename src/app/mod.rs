//! Wiring: binds listeners, builds the rooms, spawns tasks, drains. The one room that sees all others.

mod check;
mod check_size;
mod compare;
mod definitions;
mod demo;
mod election;
mod informers;
mod metrics;
mod pass;
mod reload;
mod run;

pub use check::{Verdict, check};
pub use demo::demo;
pub use run::{App, serve};
