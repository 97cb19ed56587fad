//! The hub's errors as answers.

use super::{ApiError, metrics};
use crate::hub::SubscribeError;

/// The answer where the hub finds no informer of a name.
pub(super) fn not_found(error: &SubscribeError) -> ApiError {
    match error {
        SubscribeError::Pending { .. } => ApiError::unavailable(error.to_string(), 2),
        SubscribeError::Exhausted { .. } => {
            metrics::limit_hit("on_demand_max");
            ApiError::unavailable(error.to_string(), 30)
        }
        SubscribeError::NotOnDemand { .. } => ApiError::forbidden(error.to_string()),
        SubscribeError::Full { .. }
        | SubscribeError::Unknown { .. }
        | SubscribeError::TooLong { .. }
        | SubscribeError::NoKind { .. } => ApiError::not_found(error.to_string()),
    }
}

/// The answer where the hub takes no subscriber.
pub(super) fn not_subscribed(error: &SubscribeError) -> ApiError {
    match error {
        SubscribeError::Full { .. } => {
            metrics::limit_hit("subscribers_max");
            ApiError::unavailable(error.to_string(), 5)
        }
        SubscribeError::Pending { .. }
        | SubscribeError::Unknown { .. }
        | SubscribeError::TooLong { .. }
        | SubscribeError::NoKind { .. }
        | SubscribeError::NotOnDemand { .. }
        | SubscribeError::Exhausted { .. } => ApiError::not_found(error.to_string()),
    }
}
