//! Everything that needs more than one room, in one binary.

mod browser;
mod cli;
mod deploy;
mod sim;
mod support;
