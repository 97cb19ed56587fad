//! Asks the API server who was there at a version from before the first list, so that clients which come back to
//! a restarted informerd are told what changed, not everything.
//!
//! Beside the pump, as neither may wait for the other: the watch goes on while a large list of the past arrives.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::Instant;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info};

use super::metrics::{PastLists, PastOutcome};
use crate::cache::{PastWriter, Recalled};
use crate::k8s::{DecodeError, Identity, ResourceVersion, identities};
use crate::upstream::{AsOf, Client, PageRequest, Target, UpstreamError};

/// How long after the first list versions from before it are asked for. Clients of an informerd that is gone come
/// back within seconds; API servers forget versions after five minutes.
const OPEN_FOR: Duration = Duration::from_secs(120);

/// For all pages of one list: who waits for it gives up sooner.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);

/// Objects of a page. Of each only the metadata comes, a kilobyte or two, so pages may be larger than elsewhere;
/// one of plain JSON, from a server without that, stays below the client's `page_bytes_max`.
const PAGE_LEN: u32 = 2000;

/// Objects of one list, about 100 bytes each while it is taken: far beyond what one informer holds.
const IDENTITIES_LEN_MAX: usize = 2_000_000;

/// Answers what a cache is asked of its past.
pub(super) struct Historian {
    pub(super) target: Target,
    pub(super) writer: PastWriter,
    pub(super) metrics: PastLists,
}

/// Why a version cannot be told.
#[derive(Debug, thiserror::Error)]
enum PastError {
    #[error("the API server did not tell")]
    Upstream(#[from] UpstreamError),
    #[error("the list cannot be read")]
    Decode(#[from] DecodeError),
    #[error("the API server told of another version")]
    OtherVersion,
    #[error("the list is too long")]
    TooLong,
    #[error("the list did not come in time")]
    Late,
}

// === impl Historian ===

impl Historian {
    /// Answers while the cache is young; then only lives on.
    pub(super) async fn drive(&self, client: &Client) -> Infallible {
        let mut wake = self.writer.wake();
        // Fails when the pump is gone, and this with it.
        let _ = wake.wait_for(|mark| mark.synced).await;
        let _ = timeout_at(Instant::now() + OPEN_FOR, self.answer(client)).await;
        self.writer.close();
        std::future::pending().await
    }

    async fn answer(&self, client: &Client) -> Infallible {
        let mut asked = self.writer.asked();
        loop {
            asked.borrow_and_update();
            while let Some(version) = self.writer.next() {
                self.recall(&version, client).await;
            }
            if asked.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn recall(&self, version: &ResourceVersion, client: &Client) {
        let there = timeout(LIST_TIMEOUT, self.list(version, client)).await.unwrap_or(Err(PastError::Late));
        let outcome = match there {
            Ok(there) => match self.writer.answer(version, Some(there)) {
                Recalled::Known(past) => {
                    let (gone, changed) = (past.gone.len(), past.changed.len());
                    info!(%version, gone, changed, "told clients from before the start what changed");
                    PastOutcome::Known
                }
                Recalled::Asked | Recalled::Unknown => PastOutcome::Contradicted,
            },
            Err(error) => {
                debug!(%version, error = &error as &dyn std::error::Error, "a past version is not known");
                self.writer.answer(version, None);
                match error {
                    PastError::Upstream(UpstreamError::Refused(_)) => PastOutcome::Refused,
                    PastError::Upstream(_)
                    | PastError::Decode(_)
                    | PastError::OtherVersion
                    | PastError::TooLong
                    | PastError::Late => PastOutcome::Failed,
                }
            }
        };
        self.metrics.count(outcome);
    }

    async fn list(&self, version: &ResourceVersion, client: &Client) -> Result<Vec<Identity>, PastError> {
        let mut there = Vec::new();
        let mut request = PageRequest {
            limit: PAGE_LEN,
            continue_token: None,
            as_of: AsOf::Exactly(version.clone()),
            metadata_only: true,
        };
        loop {
            let page = identities(&client.list_page(&self.target, &request).await?.body)?;
            // Servers before 1.19 know no exact match and give what they have.
            if page.resource_version != *version {
                return Err(PastError::OtherVersion);
            }
            there.extend(page.identities);
            if there.len() > IDENTITIES_LEN_MAX {
                return Err(PastError::TooLong);
            }
            if page.continue_token.is_none() {
                return Ok(there);
            }
            request.continue_token = page.continue_token;
            // A page is decoded in one go; others may run before the next one.
            tokio::task::yield_now().await;
        }
    }
}
