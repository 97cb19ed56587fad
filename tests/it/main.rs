//! Everything that needs more than one room, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod browser;
mod cli;
mod deploy;
mod real;
mod restart;
mod sim;
mod sse;
mod support;
mod tidy;
mod upstream;
