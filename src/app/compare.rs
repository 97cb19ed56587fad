//! `informerd check --verify`: compares the content of an informerd's caches, or of new ones, with the API server's list.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::upstream_config;
use crate::cache;
use crate::config::{self, CheckVerify, UpstreamSource, WatchSpec};
use crate::k8s::{DecodeOptions, Identity, IdentityPage, Key, ResourceVersion, identities};
use crate::reflect::{
    Difference, InitialList, MachineConfig, ObjectState, Reflector, ReflectorConfig, Verification,
    VerifyError, verify,
};
use crate::upstream::{Client, PageRequest, Target, UpstreamError};

/// Time limit of a first list.
const SYNC_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for a cache to reach the version of the API server's list. Bookmarks come once a minute.
const REACH_MAX: Duration = Duration::from_secs(90);

/// Time in each round for a running informerd to reach the version of the API server's list.
const RUNNING_REACH_SECONDS: u32 = 30;

/// Number of rounds in which an object must differ to be reported, as both sides change while they are read.
const ROUNDS: u32 = 3;

/// Time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Objects in a page.
const PAGE_LEN: u32 = 2000;

/// Compares caches with the API server's lists.
pub(super) struct Comparer<'c> {
    config: &'c config::Check,
    client: Client,
    /// The running informerd; `None` to make a new cache for each comparison.
    running: Option<Client>,
}

/// Names and versions of one list.
struct Listing {
    version: ResourceVersion,
    objects: BTreeMap<Key, ObjectState>,
}

impl<'c> Comparer<'c> {
    /// `None` if nothing is to be compared.
    pub(super) async fn new(config: &'c config::Check, client: &Client) -> Result<Option<Self>, String> {
        let running = match &config.verify {
            None => return Ok(None),
            Some(CheckVerify::Fresh) => None,
            Some(CheckVerify::Running { url }) => {
                let source = UpstreamSource::Server { url: url.clone() };
                let connected =
                    Client::connect(upstream_config(&source, !config.watch_http2, &config.limits)).await;
                Some(connected.map_err(|error| error.sentence())?)
            }
        };
        Ok(Some(Self { config, client: client.clone(), running }))
    }

    pub(super) async fn compare(&self, spec: &WatchSpec, target: &Target) -> Result<Verification, String> {
        match &self.running {
            Some(running) => self.compare_running(running, target).await,
            None => self.compare_fresh(spec, target).await,
        }
    }

    /// Makes a cache as `serve` does, and compares it.
    async fn compare_fresh(&self, spec: &WatchSpec, target: &Target) -> Result<Verification, String> {
        let limits = &self.config.limits;
        let (writer, reader) = cache::cache(limits.cache(), Instant::now());
        let config = ReflectorConfig {
            target: target.clone(),
            decode: DecodeOptions {
                drop_managed_fields: !spec.keep_managed_fields,
                drop_last_applied: !spec.keep_last_applied,
                object_bytes_max: limits.object_bytes_max,
            },
            machine: MachineConfig {
                page_size: u32::try_from(limits.page_size).unwrap_or(u32::MAX),
                initial_list: match self.config.initial_list {
                    config::InitialList::Auto => InitialList::Auto,
                    config::InitialList::Stream => InitialList::Stream,
                    config::InitialList::Page => InitialList::Page,
                },
                silence_max: limits.watch_silence_max,
                pinged_silence_max: limits.pinged_silence_max(),
            },
            line_bytes_max: limits.line_bytes_max,
            seed: rand::random(),
        };
        let reflector = Reflector::new(config, self.client.clone(), writer).dropping(spec.drop.clone());
        let cancel = CancellationToken::new();
        // Stops the reflector when this function returns.
        let _end = cancel.clone().drop_guard();
        tokio::spawn(reflector.run(cancel));
        let mut wake = reader.wake();
        if !matches!(timeout(SYNC_TIMEOUT, wake.wait_for(|mark| mark.synced)).await, Ok(Ok(_))) {
            let why = reader.condition().message.unwrap_or_else(|| "no list came in time".to_owned());
            return Err(format!("not listed: {why}"));
        }
        for _ in 1..ROUNDS {
            match verify(&self.client, target, &reader, REACH_MAX).await {
                Err(VerifyError::OtherTime | VerifyError::Behind(_)) => sleep(ROUND_INTERVAL).await,
                ended => return ended.map_err(|error| error.to_string()),
            }
        }
        verify(&self.client, target, &reader, REACH_MAX).await.map_err(|error| error.to_string())
    }

    /// Reads the content of a running informerd, and returns the objects that differ in each of several rounds.
    async fn compare_running(&self, running: &Client, target: &Target) -> Result<Verification, String> {
        let mut always: Option<BTreeMap<Key, Difference>> = None;
        let mut round = 1;
        loop {
            let listed = list(&self.client, target).await?;
            let held = snapshot(running, target, &listed.version).await?;
            let differ = differences(&listed, &held);
            let mut still: BTreeMap<_, _> = differ.into_iter().map(|one| (one.key.clone(), one)).collect();
            if let Some(before) = &always {
                still.retain(|key, _| before.contains_key(key));
            }
            if still.is_empty() || round == ROUNDS {
                let (resource_version, objects) = (listed.version, listed.objects.len());
                return Ok(Verification {
                    resource_version,
                    objects,
                    differences: still.into_values().collect(),
                });
            }
            always = Some(still);
            round += 1;
            sleep(ROUND_INTERVAL).await;
        }
    }
}

/// Names and versions as the API server lists them.
async fn list(client: &Client, target: &Target) -> Result<Listing, String> {
    let mut request = PageRequest { limit: PAGE_LEN, metadata_only: true, ..PageRequest::default() };
    let mut listing: Option<Listing> = None;
    loop {
        let page = client.list_page(target, &request).await.map_err(|error| error.sentence())?;
        let page = identities(&page.body)
            .map_err(|error| format!("the API server's list cannot be read: {error}"))?;
        match take(&mut listing, page) {
            (whole, None) => return Ok(whole),
            (whole, Some(token)) => (listing, request.continue_token) = (Some(whole), Some(token)),
        }
    }
}

/// Names and versions as a running informerd lists them, once it has reached a version or a time limit has passed.
async fn snapshot(client: &Client, target: &Target, reach: &ResourceVersion) -> Result<Listing, String> {
    let namespace = target.namespace.as_ref().map(|namespace| format!("/{namespace}")).unwrap_or_default();
    let path = format!("/v1/snapshot/{}{namespace}?limit={PAGE_LEN}", target.resource.canonical());
    let mut next = format!("{path}&resourceVersion={reach}&timeoutSeconds={RUNNING_REACH_SECONDS}");
    let mut listing: Option<Listing> = None;
    loop {
        let body = match client.document(&next, "application/json").await {
            // It did not reach that version. Objects that changed since are reported if they differ in each round.
            Err(UpstreamError::Refused(refusal))
                if refusal.code == 504 && listing.is_none() && next != path =>
            {
                next.clone_from(&path);
                continue;
            }
            answer => answer.map_err(|error| format!("informerd: {}", error.sentence()))?,
        };
        let page =
            identities(&body).map_err(|error| format!("informerd's snapshot cannot be read: {error}"))?;
        match take(&mut listing, page) {
            (whole, None) => return Ok(whole),
            (whole, Some(token)) => (listing, next) = (Some(whole), format!("{path}&continue={token}")),
        }
    }
}

/// Adds a page to a listing, and returns it with the token of the next one.
fn take(listing: &mut Option<Listing>, page: IdentityPage) -> (Listing, Option<String>) {
    let IdentityPage { resource_version, continue_token, identities } = page;
    let objects = BTreeMap::new();
    let mut whole = listing.take().unwrap_or(Listing { version: resource_version, objects });
    let state = |identity: Identity| (identity.key.clone(), ObjectState::from(identity));
    whole.objects.extend(identities.into_iter().map(state));
    (whole, continue_token)
}

/// The differences, by key.
fn differences(listed: &Listing, held: &Listing) -> Vec<Difference> {
    let gone = held.objects.keys().filter(|key| !listed.objects.contains_key(*key));
    let keys = listed.objects.keys().chain(gone);
    let of = |listing: &Listing, key: &Key| listing.objects.get(key).cloned();
    keys.filter_map(|key| Difference::between(key, of(listed, key), of(held, key), &listed.version)).collect()
}
