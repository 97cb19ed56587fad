//! The stages of a pod's life.

use serde_json::Value;

use super::mirror::{is_deleted, text};

/// The stage of a pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// No node yet.
    Unscheduled,
    /// Scheduled, but its kubelet has not seen it yet.
    Scheduled,
    /// Waiting, ContainerCreating.
    Creating,
    Running,
    /// Terminated with an error, not yet restarted.
    Failed,
    /// Waiting, CrashLoopBackOff.
    BackingOff,
    /// Deleted, containers stopping.
    Terminating,
}

impl Stage {
    pub(super) fn of(pod: &Value) -> Self {
        let waiting = text(&pod["status"]["containerStatuses"][0]["state"]["waiting"], &["reason"]);
        if is_deleted(pod) {
            Self::Terminating
        } else if text(pod, &["spec", "nodeName"]).is_empty() {
            Self::Unscheduled
        } else if waiting == "ContainerCreating" {
            Self::Creating
        } else if waiting == "CrashLoopBackOff" {
            Self::BackingOff
        } else if pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object() {
            Self::Failed
        } else if text(pod, &["status", "phase"]) == "Running" {
            Self::Running
        } else {
            Self::Scheduled
        }
    }

    /// Least time of a pod in this stage, in milliseconds; `spread` is a number of the pod's own.
    pub(super) fn stay(self, spread: u64, restarts: u64) -> Option<u64> {
        match self {
            Self::Unscheduled => Some(100),
            Self::Scheduled => Some(200),
            Self::Creating => Some(1_200 + spread % 3_000),
            Self::Running => None,
            Self::Failed => Some(1_500),
            Self::BackingOff => Some(3_000 + 2_000 * restarts.min(5)),
            Self::Terminating => Some(800 + spread % 1_500),
        }
    }
}
