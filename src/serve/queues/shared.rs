//! What all queues of a process share.

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::config::QueueConfig;
use crate::hub::Hub;

/// What all queues share: where they read, their limits, and what ends them.
pub(super) struct Shared {
    pub(super) hub: Hub,
    pub(super) config: QueueConfig,
    /// The tasks that feed queues.
    pub(super) tasks: TaskTracker,
    /// Ends waiting, and feeding.
    pub(super) drain: CancellationToken,
    /// Places for workers that wait.
    pub(super) places: Semaphore,
}

impl Shared {
    pub(super) fn new(hub: Hub, config: QueueConfig, drain: CancellationToken) -> Self {
        let places = Semaphore::new(config.workers_max);
        Self { hub, config, tasks: TaskTracker::new(), drain, places }
    }
}
