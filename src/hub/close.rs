//! The reasons for which a stream ends.

/// Why the hub ended a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The process is stopping: reconnect, to another replica if there is one.
    Shutdown,
    /// The client's `timeoutSeconds` are over.
    Timeout,
    /// Its informer is gone. A new request would be refused, too.
    Removed,
    /// Its resource is followed by other informers now: reconnect.
    Regrouped,
    /// Some changes can no longer be sent in order, as this subscription requires.
    Expired,
    /// The cache did not reach the requested version in time.
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
