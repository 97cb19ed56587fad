//! Lists which objects existed at a version from before the first list, so that clients that return to a restarted
//! informerd get only what changed since.
//!
//! It runs beside the pump, so that the watch does not wait while a large list of a past version arrives.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::Instant;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info};

use super::metrics::{PastLists, PastOutcome};
use crate::cache::{PastWriter, Recalled};
use crate::k8s::{DecodeError, Identity, ResourceVersion, identities};
use crate::upstream::{AsOf, Client, PageRequest, Target, UpstreamError};

/// Time after the first list in which past versions are requested. Clients of a stopped informerd return within seconds;
/// API servers forget versions after five minutes.
const OPEN_FOR: Duration = Duration::from_secs(120);

/// Time limit for all pages of one list. Clients that wait for it give up sooner.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);

/// Objects in a page. Only their metadata is requested, a kilobyte or two each, so that pages may have more objects than
/// elsewhere. If the server sends whole objects, a page still stays below the client's `page_bytes_max`.
const PAGE_LEN: u32 = 2000;

/// Largest number of objects in one list, about 100 bytes each while it is read: far more than one informer holds.
const IDENTITIES_LEN_MAX: usize = 2_000_000;

/// Lists past versions for a cache that asks for them.
pub(super) struct Historian {
    pub(super) target: Target,
    pub(super) writer: PastWriter,
    pub(super) metrics: PastLists,
}

/// Why a past version could not be listed.
#[derive(Debug, thiserror::Error)]
enum PastError {
    #[error("the API server did not list that version")]
    Upstream(#[from] UpstreamError),
    #[error("the list cannot be read")]
    Decode(#[from] DecodeError),
    #[error("the API server listed another version")]
    OtherVersion,
    #[error("the list is too long")]
    TooLong,
    #[error("the list did not come in time")]
    Late,
}

// === impl Historian ===

impl Historian {
    /// Answers for [`OPEN_FOR`] after the first list, then idles.
    pub(super) async fn drive(&self, client: &Client) -> Infallible {
        let mut wake = self.writer.wake();
        // Fails only if the pump is gone, with which this task ends.
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
                    info!(%version, gone, changed, "changes since a version from before the start are known");
                    PastOutcome::Known
                }
                Recalled::Asked | Recalled::Unknown => PastOutcome::Contradicted,
            },
            Err(error) => {
                debug!(%version, error = &error as &dyn std::error::Error, "a past version could not be listed");
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
            // Servers before 1.19 ignore `resourceVersionMatch=Exact` and answer with the current state.
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
            // Decoding a page takes a while; let other tasks run before the next one.
            tokio::task::yield_now().await;
        }
    }
}
