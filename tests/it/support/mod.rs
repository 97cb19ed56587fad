//! What several tests need.

pub(crate) mod browser;
pub(crate) mod envtest;
