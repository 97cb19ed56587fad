//! Discovery: the resources that the API server serves, and their names.
//!
//! Aggregated discovery takes two requests (from Kubernetes 1.26 on). An older server answers the same requests with the
//! legacy documents; then one more request is sent for each group version. If the server of a group is down (an
//! aggregated API), only that group is missing.

use futures_util::StreamExt;
use futures_util::stream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::{Client, UpstreamError};
use crate::k8s::{Resource, ResourceParts};

/// Asks for aggregated discovery, and for the legacy documents if the server does not know it. Source: client-go
/// `discovery/discovery_client.go`, `acceptDiscoveryFormats`.
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// Parallel requests for group versions, without aggregated discovery.
const CONCURRENCY: usize = 8;

/// Number of names that are suggested for an unknown one.
const NEAR_LEN_MAX: usize = 3;

/// Longest name, in bytes, for which near names are searched: that of a DNS label, as the plural of a resource is one.
const WORD_LEN_MAX: usize = 63;

/// The resources of an API server, in the order in which kubectl prefers them: the core group, then the
/// groups in the server's order, each with its preferred version first.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    entries: Vec<Entry>,
    broken: Vec<Broken>,
}

/// A group version that did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// `metrics.k8s.io/v1beta1`.
    pub group_version: String,
    /// The error, in a sentence.
    pub reason: String,
}

/// Why a name is not a resource that can be watched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No resource has this name.
    #[error("the API server has no resource {name:?}{}{}", did_you_mean(.near), silent(.broken))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names that are close to it, best first.
        near: Vec<String>,
        /// Group versions that did not answer, and might have it.
        broken: Vec<String>,
    },
    /// The resource cannot be listed and watched.
    #[error("{name} cannot be kept: the API server offers {} for it, but list and watch are needed", offered(.verbs))]
    NotWatchable {
        /// The resource.
        name: String,
        /// Its verbs.
        verbs: Vec<String>,
    },
}

/// Whether a known resource is still served.
#[derive(Clone, Debug)]
pub enum Again {
    /// It is served, with these names and this version.
    Served(Resource),
    /// It is not served any more.
    Gone,
    /// Unknown, as its group did not answer.
    Untold,
}

#[derive(Clone, Debug)]
struct Entry {
    parts: ResourceParts,
    verbs: Vec<String>,
}

// === impl Discovery ===

impl Discovery {
    /// Finds the resource for a name as kubectl accepts it: plural, singular, short name or kind, alone or followed by
    /// `.group` or `.version.group`. Case does not matter.
    ///
    /// As in kubectl, a plural in any group wins over a short name, and a short name over a singular.
    ///
    /// # Errors
    /// [`ResolveError::Unknown`] with near names, [`ResolveError::NotWatchable`] without the verbs.
    ///
    /// Source: `k8s.io/client-go/restmapper` `shortcut.go`, `k8s.io/apimachinery/pkg/api/meta/restmapper.go`.
    pub fn resolve(&self, name: &str) -> Result<Resource, ResolveError> {
        self.lookup(name).map_err(|entry| match entry {
            Some(entry) => ResolveError::NotWatchable {
                name: Resource::new(entry.parts.clone()).canonical(),
                verbs: entry.verbs.clone(),
            },
            None => ResolveError::Unknown {
                name: name.to_owned(),
                near: self.near(&word_of(name)),
                broken: self.broken.iter().map(|broken| broken.group_version.clone()).collect(),
            },
        })
    }

    /// As [`Discovery::resolve`], without an error and so without the search for near names.
    pub fn find(&self, name: &str) -> Option<Resource> {
        self.lookup(name).ok()
    }

    /// The resource of a name, or else a resource of that name that cannot be watched.
    fn lookup(&self, name: &str) -> Result<Resource, Option<&Entry>> {
        let word = word_of(name);
        let named = |entry: &&Entry| Resource::new(entry.parts.clone()).answers_to(name);
        let candidates: Vec<_> = self.entries.iter().filter(named).collect();
        let best = candidates
            .iter()
            .filter(|entry| entry.watchable())
            .min_by_key(|entry| rank(&entry.parts, &word))
            .map(|entry| Resource::new(entry.parts.clone()));
        best.ok_or_else(|| candidates.first().copied())
    }

    /// Finds again the resource that a name stood for: in the same version while that is served, else in the preferred one of
    /// those that the name allows.
    pub fn again(&self, name: &str, resource: &Resource) -> Again {
        let same =
            |entry: &&Entry| entry.parts.group == resource.group() && entry.parts.plural == resource.plural();
        let served: Vec<_> = self.entries.iter().filter(same).filter(|entry| entry.watchable()).collect();
        let wanted = |entry: &&&Entry| entry.parts.version == resource.version();
        // The name may contain another version, or be a short name that no longer exists.
        let named = |entry: &&&Entry| Resource::new(entry.parts.clone()).answers_to(name);
        let versioned = served.iter().find(wanted).or_else(|| served.iter().find(named));
        if let Some(entry) = versioned.or(served.first()) {
            return Again::Served(Resource::new(entry.parts.clone()));
        }
        let root = if resource.group().is_empty() { "/api" } else { "/apis" };
        let silent = |broken: &Broken| match broken.group_version.split_once('/') {
            _ if broken.group_version == root => true,
            Some((group, _)) => group == resource.group(),
            None => resource.group().is_empty(),
        };
        if self.broken.iter().any(silent) { Again::Untold } else { Again::Gone }
    }

    /// Every resource that can be listed and watched, in all versions, in the order of preference.
    pub fn resources(&self) -> impl Iterator<Item = Resource> {
        self.entries.iter().filter(|entry| entry.watchable()).map(|entry| Resource::new(entry.parts.clone()))
    }

    /// The group versions that did not answer.
    pub fn broken(&self) -> &[Broken] {
        &self.broken
    }

    /// Known names that are close to an unknown one.
    fn near(&self, word: &str) -> Vec<String> {
        let mut near: Vec<(usize, String)> = Vec::new();
        if word.len() > WORD_LEN_MAX {
            return Vec::new();
        }
        // With typos in more than a third of the letters it is a different word.
        let distance_max = 1 + word.len() / 4;
        let comparable = |name: &&String| !name.is_empty() && name.len().abs_diff(word.len()) <= distance_max;
        for entry in self.entries.iter().filter(|entry| entry.watchable()) {
            // Short names are all similar to each other.
            let names = [&entry.parts.plural, &entry.parts.singular];
            let best = names.into_iter().filter(comparable).map(|name| strsim::levenshtein(word, name)).min();
            let close = best.filter(|distance| word.len() > 2 && *distance <= distance_max);
            let Some(distance) = close else { continue };
            let canonical = Resource::new(entry.parts.clone()).canonical();
            if near.iter().all(|(_, known)| *known != canonical) {
                near.push((distance, canonical));
            }
        }
        near.sort();
        near.into_iter().take(NEAR_LEN_MAX).map(|(_, name)| name).collect()
    }
}

impl Entry {
    fn watchable(&self) -> bool {
        ["list", "watch"].iter().all(|verb| self.verbs.iter().any(|offered| offered == verb))
    }
}

fn rank(parts: &ResourceParts, word: &str) -> u8 {
    if parts.plural == word {
        0
    } else if parts.short_names.iter().any(|short| short == word) {
        1
    } else {
        2
    }
}

/// The first part of a name, without group and version: `deploy` of `deploy.apps`.
fn word_of(name: &str) -> String {
    name.split('.').next().unwrap_or_default().to_ascii_lowercase()
}

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(": did you mean {}?", near.join(", ")) }
}

fn silent(broken: &[String]) -> String {
    if broken.is_empty() { String::new() } else { format!(" (no answer from {})", broken.join(", ")) }
}

fn offered(verbs: &[String]) -> String {
    if verbs.is_empty() { "nothing".to_owned() } else { verbs.join(", ") }
}

// === the wire ===

/// Either form of `/api` and `/apis`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Root {
    kind: String,
    /// `APIGroupDiscoveryList`.
    #[serde(deserialize_with = "or_empty")]
    items: Vec<AggregatedGroup>,
    /// `APIVersions`.
    #[serde(deserialize_with = "or_empty")]
    versions: Vec<String>,
    /// `APIGroupList`.
    #[serde(deserialize_with = "or_empty")]
    groups: Vec<LegacyGroup>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AggregatedGroup {
    metadata: NamedMeta,
    #[serde(deserialize_with = "or_empty")]
    versions: Vec<AggregatedVersion>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedMeta {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AggregatedVersion {
    version: String,
    #[serde(deserialize_with = "or_empty")]
    resources: Vec<AggregatedResource>,
    freshness: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AggregatedResource {
    resource: String,
    response_kind: Option<ResponseKind>,
    scope: String,
    singular_resource: String,
    #[serde(deserialize_with = "or_empty")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    short_names: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    categories: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LegacyGroup {
    name: String,
    #[serde(deserialize_with = "or_empty")]
    versions: Vec<LegacyVersion>,
    preferred_version: LegacyVersion,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LegacyVersion {
    version: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LegacyResources {
    #[serde(deserialize_with = "or_empty")]
    resources: Vec<LegacyResource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LegacyResource {
    name: String,
    singular_name: String,
    namespaced: bool,
    kind: String,
    #[serde(deserialize_with = "or_empty")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    short_names: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    categories: Vec<String>,
}

/// Go writes a nil slice as null.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(reader: D) -> Result<Vec<T>, D::Error> {
    Option::<Vec<T>>::deserialize(reader).map(Option::unwrap_or_default)
}

impl Client {
    /// Asks for all resources. Two requests, or one more for each group version on old servers.
    ///
    /// # Errors
    /// When neither the core group nor the others can be asked for. A single group version that does not
    /// answer is in [`Discovery::broken`].
    ///
    /// Source: KEP-3352.
    pub async fn discover(&self) -> Result<Discovery, UpstreamError> {
        let (core, groups) = tokio::join!(self.root("/api"), self.root("/apis"));
        let mut discovery = Discovery::default();
        match (core, groups) {
            (Err(error), Err(_)) => return Err(error),
            (core, groups) => {
                for (path, root) in [("/api", core), ("/apis", groups)] {
                    match root {
                        Ok(root) => self.take(root, &mut discovery).await,
                        Err(error) => discovery
                            .broken
                            .push(Broken { group_version: path.to_owned(), reason: error.sentence() }),
                    }
                }
            }
        }
        Ok(discovery)
    }

    async fn root(&self, path: &str) -> Result<Root, UpstreamError> {
        match self.parsed(path, ACCEPT).await {
            // The server takes the list of accepted forms for one unknown form.
            Err(UpstreamError::Refused(refusal)) if matches!(refusal.code, 400 | 406 | 415) => {
                self.parsed(path, "application/json").await
            }
            answer => answer,
        }
    }

    async fn parsed<T: DeserializeOwned>(&self, path: &str, accept: &str) -> Result<T, UpstreamError> {
        let document = self.document(path, accept).await?;
        serde_json::from_slice(&document).map_err(UpstreamError::Garbage)
    }

    async fn take(&self, root: Root, discovery: &mut Discovery) {
        if root.kind == "APIGroupDiscoveryList" {
            take_aggregated(root.items, discovery);
            return;
        }
        let core = root.versions.into_iter().map(|version| (String::new(), version));
        let wanted: Vec<_> = core.chain(root.groups.into_iter().flat_map(preferred_first)).collect();
        // In the server's order of preference, not in that of the answers.
        let mut answers = stream::iter(wanted)
            .map(|(group, version)| async move {
                let path = match group.as_str() {
                    "" => format!("/api/{version}"),
                    group => format!("/apis/{group}/{version}"),
                };
                let answer = self.parsed::<LegacyResources>(&path, "application/json").await;
                (group, version, answer)
            })
            .buffered(CONCURRENCY);
        while let Some((group, version, answer)) = answers.next().await {
            match answer {
                Ok(found) => take_legacy(&group, &version, found, discovery),
                Err(error) => {
                    let group_version = group_version(&group, &version);
                    discovery.broken.push(Broken { group_version, reason: error.sentence() });
                }
            }
        }
    }
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn preferred_first(group: LegacyGroup) -> Vec<(String, String)> {
    let preferred = group.preferred_version.version;
    let mut versions: Vec<_> = group.versions.into_iter().map(|version| version.version).collect();
    // A stable sort, so that the other versions keep the server's order.
    versions.sort_by_key(|version| *version != preferred);
    versions.into_iter().map(|version| (group.name.clone(), version)).collect()
}

fn take_aggregated(groups: Vec<AggregatedGroup>, discovery: &mut Discovery) {
    for group in groups {
        let name = group.metadata.name;
        for version in group.versions {
            if version.freshness == "Stale" {
                let reason = "the API server could not refresh what it serves".to_owned();
                discovery
                    .broken
                    .push(Broken { group_version: group_version(&name, &version.version), reason });
            }
            for found in version.resources {
                let parts = ResourceParts {
                    group: name.clone(),
                    version: version.version.clone(),
                    plural: found.resource,
                    singular: found.singular_resource,
                    kind: found.response_kind.unwrap_or_default().kind,
                    short_names: found.short_names,
                    categories: found.categories,
                    namespaced: found.scope == "Namespaced",
                };
                discovery.entries.push(Entry { parts, verbs: found.verbs });
            }
        }
    }
}

fn take_legacy(group: &str, version: &str, found: LegacyResources, discovery: &mut Discovery) {
    // `pods/log`: a subresource.
    for found in found.resources.into_iter().filter(|resource| !resource.name.contains('/')) {
        let parts = ResourceParts {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: found.name,
            singular: found.singular_name,
            kind: found.kind,
            short_names: found.short_names,
            categories: found.categories,
            namespaced: found.namespaced,
        };
        discovery.entries.push(Entry { parts, verbs: found.verbs });
    }
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
