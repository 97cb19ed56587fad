//! `informerd check --verify`: compares the objects of an informerd's caches, or of new ones, with the API server's list: names and
//! versions of all, and the content of some.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::seq::IteratorRandom;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::run::upstream_config;
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

/// Number of objects of a kind whose content is compared with a running informerd's, each by two requests. Names and versions do not
/// show a cluster that was restored from a backup and then wrote the same objects at the same versions again.
const SAMPLE_LEN: usize = 32;

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
                still.extend(self.rewritten(running, target, &listed, &held).await?);
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

    /// Compares the content of some objects that are at the same version on both sides. Returns those whose content differs.
    async fn rewritten(
        &self,
        running: &Client,
        target: &Target,
        listed: &Listing,
        held: &Listing,
    ) -> Result<BTreeMap<Key, Difference>, String> {
        let is_same = |key: &&Key| listed.objects.get(*key) == held.objects.get(*key);
        let sample = listed.objects.keys().filter(is_same).choose_multiple(&mut rand::rng(), SAMPLE_LEN);
        let mut rewritten = BTreeMap::new();
        for key in sample {
            let one = PageRequest::default();
            let page =
                self.client.list_page(&target.only(key), &one).await.map_err(|error| error.sentence())?;
            let path = format!(
                "{}?fieldSelector=metadata.name%3D{}",
                snapshot_path(target, key.namespace()),
                key.name()
            );
            let snapshot = running.document(&path, "application/json").await;
            let snapshot = snapshot.map_err(|error| format!("informerd: {}", error.sentence()))?;
            // One that has changed or gone meanwhile cannot be compared.
            let (Some(ours), Some(theirs)) = (only_item(&snapshot), only_item(&page.body)) else { continue };
            let metadata = |member: &str| ours["metadata"][member] == theirs["metadata"][member];
            if metadata("uid") && metadata("resourceVersion") && !is_within(&ours, &theirs) {
                let state = || listed.objects.get(key).cloned();
                let differs = Difference { key: key.clone(), listed: state(), held: state() };
                rewritten.insert(key.clone(), differs);
            }
        }
        Ok(rewritten)
    }
}

/// The only object of a list, without the members by which lists name the kind of each.
fn only_item(list: &[u8]) -> Option<Value> {
    let mut list: Value = serde_json::from_slice(list).ok()?;
    let mut item = list.get_mut("items")?.get_mut(0)?.take();
    let members = item.as_object_mut()?;
    members.remove("kind");
    members.remove("apiVersion");
    Some(item)
}

/// Whether a value is another one of which informerd has perhaps dropped some members.
fn is_within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| is_within(part, whole)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_within(part, whole))
        }
        (part, whole) => part == whole,
    }
}

/// Where a running informerd has the objects of a target, in one namespace or in all that the target has.
fn snapshot_path(target: &Target, namespace: &str) -> String {
    let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
    format!("/v1/snapshot/{}{namespace}", target.resource.canonical())
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
    let path = format!(
        "{}?limit={PAGE_LEN}",
        snapshot_path(target, target.namespace.as_deref().unwrap_or_default())
    );
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::is_within;

    #[test]
    fn a_value_is_within_one_that_has_more_members() {
        let whole = json!({"data": {"a": 1, "b": [{"c": 2, "d": 3}, "e"]}, "f": null});
        for part in [json!({}), json!({"data": {"a": 1}, "f": null}), json!({"data": {"b": [{"c": 2}, "e"]}})]
        {
            assert!(is_within(&part, &whole), "{part}");
        }
        for other in [
            json!({"data": {"a": 2}}),
            json!({"data": {"b": ["e"]}}),
            json!({"data": {"b": ["e", {"c": 2}]}}),
            json!({"data": {"z": null}}),
            json!({"data": "a"}),
        ] {
            assert!(!is_within(&other, &whole), "{other}");
        }
    }
}
