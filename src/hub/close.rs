//! Why a stream ends, as data.

/// Why a subscription ended from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The process is stopping: reconnect, to another replica if there is one.
    Shutdown,
    /// The client's `timeoutSeconds` are over.
    Timeout,
    /// What it reads is not followed any more: coming back is of no use.
    Removed,
    /// What it reads is followed by other informers now: reconnect.
    Regrouped,
    /// Not every change can be told in order any more, and nothing less was asked for.
    Expired,
    /// The version asked for was not reached in time.
    TooLarge,
}

impl CloseReason {
    /// The word for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::Timeout => "timeout",
            Self::Removed => "removed",
            Self::Regrouped => "regrouped",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
        }
    }
}
