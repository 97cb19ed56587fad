//! Asks the API server how far it is, for clients that come with a version which the cache has not reached.
//!
//! Beside the pump: while nothing changes, its watch brings nothing by which to tell.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use tokio::time::sleep;
use tracing::debug;

use super::stats::{Stats, count};
use crate::cache::{HeadAsked, HeadWriter};
use crate::k8s::{DecodeError, ResourceVersion, identities};
use crate::upstream::{AsOf, Client, PageRequest, Target, UpstreamError};

/// What a reader has come with is mostly on its way here, and comes within this time.
const GRACE: Duration = Duration::from_millis(250);

/// Between two questions, whatever clients come with.
const INTERVAL: Duration = Duration::from_secs(2);

/// Answers a cache that asks how far the API server is.
pub(super) struct Scout {
    pub(super) target: Target,
    pub(super) writer: HeadWriter,
    pub(super) stats: Arc<Stats>,
    pub(super) probes: Counter,
}

/// Why the version is not known.
#[derive(Debug, thiserror::Error)]
enum HeadError {
    #[error("the API server did not tell")]
    Upstream(#[from] UpstreamError),
    #[error("the list cannot be read")]
    Decode(#[from] DecodeError),
}

// === impl Scout ===

impl Scout {
    /// Answers for as long as the cache lives.
    pub(super) async fn drive(&self, client: &Client) -> Infallible {
        let mut asked = self.writer.asked();
        loop {
            asked.borrow_and_update();
            // Asked for while the last answer was awaited, perhaps.
            while let Some(question) = self.next().await {
                count(&self.stats.probes, 1);
                self.probes.increment(1);
                let version = self.ask(client).await;
                let version = version.inspect_err(|error| {
                    debug!(error = error as &dyn std::error::Error, "how far the API server is is not known");
                });
                self.writer.answer(question, version.ok());
                sleep(INTERVAL).await;
            }
            if asked.changed().await.is_err() {
                // The pump is gone, and this with it.
                return std::future::pending().await;
            }
        }
    }

    /// What is asked, and still after a moment.
    async fn next(&self) -> Option<HeadAsked> {
        self.writer.next()?;
        sleep(GRACE).await;
        self.writer.next()
    }

    async fn ask(&self, client: &Client) -> Result<ResourceVersion, HeadError> {
        let request =
            PageRequest { limit: 1, metadata_only: true, as_of: AsOf::Now, ..PageRequest::default() };
        Ok(identities(&client.list_page(&self.target, &request).await?.body)?.resource_version)
    }
}
