//! Compares the cache with the API server from time to time, as a safety net.
//!
//! A watch that misses nothing needs no such net, and client-go has none. But API servers have had bugs by which a watch
//! missed an event, and informerd may have some; without a comparison such a loss would never be noticed. The
//! comparison runs beside the pump, as lists take their time. It reads names and versions only, page by page (see
//! `compare`). Differences are counted and named in the log. Through [`Doubts`] they make the pump list again, so that
//! clients get them as any other change.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::FutureExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, warn};

use super::compare::{Comparison, Difference, DifferenceKind, ObjectState};
use super::metrics::Verifications;
use super::watching::Doubt;
use crate::cache::{CatchUpEntry, Cursor, LastVerification, Phase, Reader, VerifyOutcome};
use crate::k8s::{DecodeError, Decoder, Key, Object, ResourceVersion, identities};
use crate::upstream::{AsOf, Client, FailureKind, PageRequest, Target, UpstreamError};

/// Objects in a page. Only their metadata is requested, a kilobyte or two each.
const PAGE_LEN: u32 = 2000;

/// Time limit of one comparison, as others wait for their turn.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// Wait before trying again to compare a cache that was being listed or without an open watch.
const UNSTEADY_RETRY: Duration = Duration::from_secs(30);

/// Number of changes of the cache that are read at once.
const CHANGES_LEN_MAX: usize = 4096;

/// Number of objects whose content is compared, too, each with a request of its own. Names and versions do not show a
/// cluster that was restored from a backup and then wrote the same objects at the same versions again.
const SAMPLE_LEN: usize = 8;

/// Number of differences that are named in the log.
const DIFFERENCES_LOGGED_MAX: usize = 10;

/// How often a cache is compared with the API server.
#[derive(Clone, Debug)]
pub struct Verify {
    /// Time between two comparisons, up to half longer or shorter at random, so that informers do not compare together.
    pub interval: Duration,
    /// Shared by all reflectors of a process, so that one compares at a time.
    pub turn: Arc<Semaphore>,
}

/// A completed comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// The version that was compared.
    pub resource_version: ResourceVersion,
    /// Objects that the API server listed.
    pub objects: usize,
    /// The differences, by key.
    pub differences: Vec<Difference>,
}

/// Why a comparison was not completed.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The API server did not list.
    #[error("the API server did not list: {}", .0.sentence())]
    Upstream(#[from] UpstreamError),
    /// The list cannot be decoded.
    #[error("the list cannot be read: {0}")]
    Decode(#[from] DecodeError),
    /// Its pages are not in order.
    #[error("the pages of the list are not ordered by name")]
    Unordered,
    /// The list is older than the cache, or the cache began anew.
    #[error("the list is older than the cache, or the cache started over")]
    OtherTime,
    /// Versions have no order, so that changes during the comparison cannot be told from differences.
    #[error("the API server's versions are not numbers")]
    Incomparable,
    /// The cache is listing, backing off, or too far behind.
    #[error("the cache is behind: it did not reach version {0} in time")]
    Behind(ResourceVersion),
    /// It took too long.
    #[error("the comparison took too long")]
    Late,
}

/// Through which the pump learns of differences.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    raised: Arc<Notify>,
    /// Whether the content of an object differed under the same version.
    rewritten: Arc<AtomicBool>,
}

/// Compares one cache with the API server.
pub(super) struct Verifier {
    pub(super) target: Target,
    pub(super) reader: Reader,
    pub(super) metrics: Verifications,
    pub(super) doubts: Doubts,
    /// How long to wait for the cache to reach the list's version.
    pub(super) reach_max: Duration,
    pub(super) random: StdRng,
    /// `None` for never.
    pub(super) verify: Option<Verify>,
    /// Decodes objects as the pump does.
    pub(super) decoder: Decoder,
    /// Differences of the last comparison.
    last: Vec<Difference>,
    /// What the last comparison reported to the pump.
    last_doubt: Option<Doubt>,
}

// === impl Doubts ===

impl Doubts {
    pub(super) fn raise(&self, doubt: Doubt) {
        self.rewritten.fetch_or(doubt == Doubt::Rewritten, Ordering::Relaxed);
        self.raised.notify_one();
    }

    /// Waits until there is one.
    pub(super) async fn raised(&self) -> Doubt {
        self.raised.notified().await;
        if self.rewritten.swap(false, Ordering::Relaxed) { Doubt::Rewritten } else { Doubt::Differs }
    }

    /// Withdraws a report of differences, as everything was just listed. A list in the same history does not replace content under
    /// the same version, so a report of that stays until [`Doubts::settle_all`].
    pub(super) fn settle(&self) {
        if !self.rewritten.load(Ordering::Relaxed) {
            let _ = self.raised.notified().now_or_never();
        }
    }

    /// Withdraws every report, as a new history has begun, which replaces all content.
    pub(super) fn settle_all(&self) {
        self.rewritten.store(false, Ordering::Relaxed);
        let _ = self.raised.notified().now_or_never();
    }
}

// === impl Verifier ===

impl Verifier {
    pub(super) fn new(target: Target, reader: Reader, (seed, decoder): (u64, Decoder)) -> Self {
        Self {
            metrics: Verifications::new(&target.resource),
            target,
            reader,
            doubts: Doubts::default(),
            reach_max: Duration::ZERO,
            random: StdRng::seed_from_u64(seed),
            verify: None,
            decoder,
            last: Vec::new(),
            last_doubt: None,
        }
    }

    /// Compares again and again.
    pub(super) async fn drive(&mut self, client: &Client) -> Infallible {
        let Some(Verify { interval, turn }) = self.verify.clone() else {
            return std::future::pending().await;
        };
        let mut wait = self.jitter(interval);
        loop {
            sleep(wait).await;
            let Ok(_turn) = turn.acquire().await else { return std::future::pending().await };
            wait = interval.min(UNSTEADY_RETRY);
            if is_steady(&self.reader) {
                self.run(client).await;
                wait = self.jitter(interval);
            }
        }
    }

    fn jitter(&mut self, interval: Duration) -> Duration {
        interval.mul_f64(0.5 + self.random.random::<f64>())
    }

    async fn run(&mut self, client: &Client) {
        // A watch whose connection is pinged may be silent for longer.
        let quiet_max = self.reader.condition().quiet_max;
        let reach_max =
            quiet_max.map_or(self.reach_max, |quiet_max| self.reach_max.max(reach_max(quiet_max)));
        let comparing = verify(client, &self.target, &self.reader, reach_max);
        let ended = timeout(RUN_TIMEOUT, comparing).await.unwrap_or(Err(VerifyError::Late));
        let outcome = match ended {
            Ok(mut verification) if verification.differences.is_empty() => {
                let sampling = timeout(RUN_TIMEOUT, self.sample(client)).await;
                verification.differences = sampling.unwrap_or_default();
                self.judge(verification, Doubt::Rewritten)
            }
            Ok(verification) => self.judge(verification, Doubt::Differs),
            Err(error) => {
                let outcome = error.outcome();
                if outcome == VerifyOutcome::Failed {
                    warn!(error = %error, "the cache could not be compared with the API server");
                } else {
                    debug!(error = %error, "a comparison with the API server was given up");
                }
                self.note(outcome, &[]);
                outcome
            }
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.metrics.ended(outcome, now);
    }

    /// Compares the content of a few objects with the API server's. Returns those whose content differs under the same version.
    async fn sample(&mut self, client: &Client) -> Vec<Difference> {
        let mut rewritten = Vec::new();
        for key in self.sampled_keys() {
            let (only, all) = (self.target.only(&key), PageRequest::default());
            let Ok(answer) = client.list_page(&only, &all).await else { continue };
            let Ok(page) = self.decoder.list(&answer.body) else { continue };
            let held = self.reader.snapshot().get(&key).cloned();
            let listed = page.objects.into_iter().find(|object| *object.key() == key);
            let (Some(held), Some(listed)) = (held, listed) else { continue };
            if is_rewritten(&held, &listed) {
                let (listed, held) = (Some(ObjectState::from(&listed)), Some(ObjectState::from(&held)));
                rewritten.push(Difference { key, listed, held });
            }
        }
        rewritten
    }

    fn sampled_keys(&mut self) -> Vec<Key> {
        let snapshot = self.reader.snapshot();
        let mut places: Vec<usize> = Vec::new();
        for _ in 0..SAMPLE_LEN.min(snapshot.len()) {
            places.push(self.random.random_range(0..snapshot.len()));
        }
        places.sort_unstable();
        places.dedup();
        let objects = snapshot.after(None).enumerate();
        let sampled = objects.filter(|(place, _)| places.binary_search(place).is_ok());
        sampled.map(|(_, object)| object.key().clone()).collect()
    }

    /// Notes the outcome for the cache's readers.
    fn note(&self, outcome: VerifyOutcome, differences: &[Difference]) {
        let count = |kind| differences.iter().filter(|difference| difference.kind() == kind).count() as u64;
        self.reader.stats().verified(LastVerification {
            at: Instant::now(),
            outcome,
            missing: count(DifferenceKind::Missing),
            extra: count(DifferenceKind::Extra),
            stale: count(DifferenceKind::Stale),
        });
    }

    fn judge(&mut self, verification: Verification, doubt: Doubt) -> VerifyOutcome {
        let Verification { resource_version, objects, differences } = verification;
        let outcome = if differences.is_empty() { VerifyOutcome::Equal } else { VerifyOutcome::Different };
        self.note(outcome, &differences);
        if differences.is_empty() {
            debug!(%resource_version, objects, "the cache equals the API server");
            self.last = differences;
            self.last_doubt = None;
            return outcome;
        }
        for difference in differences.iter().take(DIFFERENCES_LOGGED_MAX) {
            let kind = difference.kind().as_str();
            warn!(key = %difference.key, kind, "the cache differs from the API server");
        }
        differences.iter().for_each(|difference| self.metrics.different(difference.kind()));
        // If a list did not heal a difference (an object may be too large to be held), another list will not, either. Nor if
        // API servers of different releases answer in turn, and write the same state differently.
        let again = doubt == Doubt::Rewritten && self.last_doubt == Some(doubt);
        let healed_before = self.last == differences || again;
        warn!(%resource_version, objects, differences = differences.len(), listing = !healed_before, "compared");
        if !healed_before {
            self.doubts.raise(doubt);
        }
        self.last = differences;
        self.last_doubt = Some(doubt);
        outcome
    }
}

/// Whether two objects have the same key, uid and version, but different content.
fn is_rewritten(held: &Object, listed: &Object) -> bool {
    let tree = |object: &Object| serde_json::from_slice::<serde_json::Value>(&object.text()).ok();
    held.uid() == listed.uid()
        && held.resource_version() == listed.resource_version()
        && held.text() != listed.text()
        && tree(held) != tree(listed)
}

/// Whether a cache is complete and its watch is open.
fn is_steady(reader: &Reader) -> bool {
    reader.mark().synced && reader.condition().phase == Phase::Watching
}

/// How long a watch that may be silent for this long takes to reach a version: twice the silence, and time to reconnect.
pub(super) fn reach_max(silence_max: Duration) -> Duration {
    silence_max * 2 + Duration::from_secs(30)
}

/// Compares a cache that a reflector keeps true with the API server's list of names and versions. If something differs, waits
/// at most `reach_max` for the cache to reach the list's version.
///
/// # Errors
/// [`VerifyError`] if the API server could not be listed, or the cache was not kept true meanwhile.
pub async fn verify(
    client: &Client,
    target: &Target,
    reader: &Reader,
    reach_max: Duration,
) -> Result<Verification, VerifyError> {
    let begin = reader.snapshot();
    let (cursor, position) = (begin.cursor, begin.position.clone());
    drop(begin);
    let comparison = list(client, target, reader, (cursor, &position)).await?;
    let (resource_version, objects) = (comparison.version().clone(), comparison.listed());
    let mut differences = Vec::new();
    if comparison.has_suspects() {
        reach(reader, &resource_version, reach_max).await?;
        let overflowed = comparison.overflowed;
        let snapshot = reader.snapshot();
        let since = changes_since(reader, cursor)?;
        differences = comparison.settle(&snapshot, &since);
        if overflowed && differences.is_empty() {
            return Err(VerifyError::Behind(resource_version));
        }
    }
    Ok(Verification { resource_version, objects, differences })
}

/// Lists and compares, page by page.
async fn list(
    client: &Client,
    target: &Target,
    reader: &Reader,
    (cursor, position): (Cursor, &ResourceVersion),
) -> Result<Comparison, VerifyError> {
    let mut request =
        PageRequest { limit: PAGE_LEN, continue_token: None, as_of: AsOf::Now, metadata_only: true };
    let mut comparison: Option<Comparison> = None;
    loop {
        let page = identities(&client.list_page(target, &request).await?.body)?;
        let version = page.resource_version;
        if !version.is_number() {
            return Err(VerifyError::Incomparable);
        }
        let mut compared = match comparison {
            Some(compared) if *compared.version() != version => return Err(VerifyError::OtherTime),
            Some(compared) => compared,
            // An older list may name objects whose deletion the cache has forgotten.
            None if version < *position => return Err(VerifyError::OtherTime),
            None => Comparison::new(version),
        };
        let snapshot = reader.snapshot();
        if snapshot.cursor.history != cursor.history {
            return Err(VerifyError::OtherTime);
        }
        let is_last = page.continue_token.is_none();
        compared.page(page.identities, is_last, &snapshot).map_err(|_| VerifyError::Unordered)?;
        if is_last {
            return Ok(compared);
        }
        comparison = Some(compared);
        request.continue_token = page.continue_token;
        // Comparing a page takes a while; let other tasks run before the next one.
        tokio::task::yield_now().await;
    }
}

/// Waits until the cache has reached a version. It may never do so on an idle resource of a server without bookmarks. Then
/// it suffices that the watch was open all the time and brought nothing.
async fn reach(reader: &Reader, version: &ResourceVersion, reach_max: Duration) -> Result<(), VerifyError> {
    let deadline = Instant::now() + reach_max;
    let begin = reader.snapshot().position;
    let mut wake = reader.wake();
    loop {
        wake.borrow_and_update();
        let position = reader.snapshot().position;
        if position >= *version {
            return Ok(());
        }
        match timeout_at(deadline, wake.changed()).await {
            Ok(Ok(())) => {}
            // The reflector is gone, or its watch was not open.
            Ok(Err(_)) => return Err(VerifyError::Behind(version.clone())),
            Err(_) if position == begin && is_steady(reader) => return Ok(()),
            Err(_) => return Err(VerifyError::Behind(version.clone())),
        }
    }
}

fn changes_since(reader: &Reader, mut cursor: Cursor) -> Result<Vec<CatchUpEntry>, VerifyError> {
    let mut entries = Vec::new();
    loop {
        let piece = reader.catch_up(cursor, CHANGES_LEN_MAX).map_err(|_| VerifyError::OtherTime)?;
        // The caller needs deletions only.
        entries.extend(piece.entries.into_iter().filter(|entry| entry.object.is_none()));
        if piece.done {
            return Ok(entries);
        }
        cursor = piece.cursor;
    }
}

// === impl VerifyError ===

impl VerifyError {
    fn outcome(&self) -> VerifyOutcome {
        match self {
            // The list took longer than the API server keeps its version.
            Self::Upstream(error) if error.kind() == FailureKind::Expired => VerifyOutcome::Abandoned,
            Self::Upstream(_) | Self::Decode(_) | Self::Unordered | Self::Incomparable => {
                VerifyOutcome::Failed
            }
            Self::OtherTime | Self::Behind(_) | Self::Late => VerifyOutcome::Abandoned,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_withdraws_differences_and_not_other_content_under_one_version() {
        let doubts = Doubts::default();
        let next = || doubts.raised().now_or_never();
        doubts.raise(Doubt::Differs);
        doubts.settle();
        assert_eq!(next(), None);
        doubts.raise(Doubt::Rewritten);
        doubts.raise(Doubt::Differs);
        doubts.settle();
        assert_eq!(next(), Some(Doubt::Rewritten));
        doubts.raise(Doubt::Differs);
        assert_eq!(next(), Some(Doubt::Differs));
        assert_eq!(next(), None);
        // A new history replaces all content, also where the report came while its list was under way.
        doubts.raise(Doubt::Rewritten);
        doubts.settle();
        doubts.settle_all();
        assert_eq!(next(), None);
    }
}
