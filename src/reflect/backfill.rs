//! Lists which objects existed at a version from before the first list, so that clients that return to a restarted
//! informerd get only what changed since.
//!
//! It runs beside the pump, so that the watch does not wait while a large list of a past version arrives.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio::time::Instant;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, info};

use super::metrics::{BackfillLists, BackfillOutcome};
use crate::cache::{BackfillAnswer, BackfillRequests};
use crate::k8s::{DecodeError, Key, ResourceVersion, identities};
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
pub(super) struct Backfiller {
    pub(super) target: Target,
    pub(super) requests: BackfillRequests,
    pub(super) metrics: BackfillLists,
}

/// Why a past version could not be listed.
#[derive(Debug, thiserror::Error)]
enum BackfillError {
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

// === impl Backfiller ===

impl Backfiller {
    /// Answers for [`OPEN_FOR`] after the first list, then idles.
    pub(super) async fn drive(&self, client: &Client) -> Infallible {
        let mut wake = self.requests.wake();
        // Fails only if the pump is gone, with which this task ends.
        let _ = wake.wait_for(|mark| mark.synced).await;
        let _ = timeout_at(Instant::now() + OPEN_FOR, self.answer(client)).await;
        self.requests.close();
        std::future::pending().await
    }

    async fn answer(&self, client: &Client) -> Infallible {
        let mut requested = self.requests.requested();
        loop {
            requested.borrow_and_update();
            while let Some(version) = self.requests.next() {
                self.request_backfill(&version, client).await;
            }
            if requested.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn request_backfill(&self, version: &ResourceVersion, client: &Client) {
        let there =
            timeout(LIST_TIMEOUT, self.list(version, client)).await.unwrap_or(Err(BackfillError::Late));
        let outcome = match there {
            Ok(there) => self.compare(version, there).await,
            Err(error) => {
                debug!(%version, error = &error as &dyn std::error::Error, "a past version could not be listed");
                self.requests.answer(version, None);
                match error {
                    BackfillError::Upstream(UpstreamError::Refused(_)) => BackfillOutcome::Refused,
                    BackfillError::Upstream(_)
                    | BackfillError::Decode(_)
                    | BackfillError::OtherVersion
                    | BackfillError::TooLong
                    | BackfillError::Late => BackfillOutcome::Failed,
                }
            }
        };
        self.metrics.count(outcome);
    }

    async fn compare(&self, version: &ResourceVersion, there: HashMap<Key, Box<str>>) -> BackfillOutcome {
        let mut comparison = self.requests.compare(version, there);
        while comparison.turn() {
            tokio::task::yield_now().await;
        }
        match self.requests.answer(version, Some(comparison)) {
            BackfillAnswer::Known(backfill) => {
                let (gone, changed) = (backfill.gone.len(), backfill.changed.len());
                info!(%version, gone, changed, "changes since a version from before the start are known");
                BackfillOutcome::Known
            }
            BackfillAnswer::Requested | BackfillAnswer::Unknown => BackfillOutcome::Contradicted,
        }
    }

    /// The keys and uids of the objects that existed at a version.
    async fn list(
        &self,
        version: &ResourceVersion,
        client: &Client,
    ) -> Result<HashMap<Key, Box<str>>, BackfillError> {
        let mut there = HashMap::new();
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
                return Err(BackfillError::OtherVersion);
            }
            there.extend(page.identities.into_iter().map(|one| (one.key, one.uid)));
            if there.len() > IDENTITIES_LEN_MAX {
                return Err(BackfillError::TooLong);
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
