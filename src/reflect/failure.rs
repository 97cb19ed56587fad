//! A failed request.

use std::time::Duration;

use crate::upstream::{FailureKind, Refusal, UpstreamError};

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// The sentence for people.
    pub sentence: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl From<&UpstreamError> for Failure {
    fn from(error: &UpstreamError) -> Self {
        Self { kind: error.kind(), sentence: error.sentence(), retry_after: error.retry_after() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::from(&UpstreamError::Refused(Box::new(refusal)))
    }
}
