//! Everything that needs more than one room, in one binary.

mod cli;
mod upstream;
