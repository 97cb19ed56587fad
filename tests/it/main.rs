//! Everything that needs more than one room, in one binary.

mod cli;
mod sim;
mod support {
    pub(crate) mod envtest;
}
