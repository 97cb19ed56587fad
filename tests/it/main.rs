//! Everything that needs more than one room, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cli;
mod ndjson;
mod sse;
mod support;
