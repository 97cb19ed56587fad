//! Fuzzes every input from outside, and compares the results with simpler parsers.
//!
//! Each target has a check (`fn(&[u8])`, which panics on a difference), a folder of inputs in `corpus/`, which every
//! run replays, and generators. An input that failed is added to the corpus together with its fix.
//!
//! - `INFORMERD_FUZZ_CASES=100000 cargo test --release --test fuzz` runs more cases for each target;
//! - `INFORMERD_FUZZ_SEED=7` runs others. A run with the same numbers is the same run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "how many cases ran is printed")]

mod config;
mod decode;
mod encode;
mod engine;
mod fields;
mod http;
mod json;
mod labels;
mod lines;
mod list;
mod server;
mod status;
mod tables;
mod token;
mod websocket;
