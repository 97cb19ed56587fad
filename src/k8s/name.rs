//! Names of resources, and keys of objects.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use arcstr::ArcStr;

/// A kind of thing that can be listed and watched: group, version, plural (GVR), with its kind and scope.
///
/// Cheap to clone. Two are equal when group, version and plural are.
#[derive(Clone)]
pub struct Resource(Arc<ResourceParts>);

/// The parts of a [`Resource`], as discovery gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceParts {
    /// API group; empty for the core group.
    pub group: String,
    /// API version without the group: `v1`.
    pub version: String,
    /// Plural, lower case, as in paths: `deployments`.
    pub plural: String,
    /// Singular, lower case; may be empty (many built-in kinds before 1.27).
    pub singular: String,
    /// Kind: `Deployment`.
    pub kind: String,
    /// Short names as kubectl takes them: `deploy`.
    pub short_names: Vec<String>,
    /// Groups of resources that kubectl takes by one name: `all`.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
}

/// The identity of an object within a resource: namespace (absent for cluster scope) and name.
///
/// Ordered as etcd orders `namespace/name`, so a namespace is one contiguous range. Cheap to clone, and one pointer: each object and
/// each place in a map has one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(ArcStr);

/// Groups of built-in kinds. All others come from definitions or aggregated servers, which decide on their field
/// selectors and columns.
const BUILT_IN_GROUPS: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "extensions",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Whether the kinds of an API group are built in.
pub fn is_built_in_group(group: &str) -> bool {
    BUILT_IN_GROUPS.contains(&group)
}

// === impl Resource ===

impl Resource {
    /// Makes a resource from its parts.
    pub fn new(parts: ResourceParts) -> Self {
        Self(Arc::new(parts))
    }

    /// Whether its kind is built in.
    pub fn is_built_in(&self) -> bool {
        is_built_in_group(self.group())
    }

    /// All its parts.
    pub fn parts(&self) -> &ResourceParts {
        &self.0
    }

    /// API group; empty for the core group.
    pub fn group(&self) -> &str {
        &self.0.group
    }

    /// API version without the group: `v1`.
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// Plural, lower case: `deployments`.
    pub fn plural(&self) -> &str {
        &self.0.plural
    }

    /// Kind: `Deployment`.
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// Whether objects live in namespaces.
    pub fn namespaced(&self) -> bool {
        self.0.namespaced
    }

    /// `v1` or `apps/v1`, as in an object's `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.0.group.is_empty() {
            self.0.version.clone()
        } else {
            format!("{}/{}", self.0.group, self.0.version)
        }
    }

    /// The name that informerd uses in answers: `pods`, `deployments.apps`.
    pub fn canonical(&self) -> String {
        if self.0.group.is_empty() {
            self.0.plural.clone()
        } else {
            format!("{}.{}", self.0.plural, self.0.group)
        }
    }

    /// The same resource with the kind of objects that are held as metadata only: `PartialObjectMetadata` of
    /// `meta.k8s.io/v1`.
    #[must_use]
    pub fn metadata_only(&self) -> Self {
        Self::new(ResourceParts {
            group: "meta.k8s.io".to_owned(),
            version: "v1".to_owned(),
            kind: "PartialObjectMetadata".to_owned(),
            ..ResourceParts::clone(&self.0)
        })
    }

    /// Whether kubectl would take `name` for this resource: a plural, singular, short name or kind, followed by nothing,
    /// `.group`, `.version.group` or (core group) `.version`.
    ///
    /// Source: kubectl's `ParseResourceArg` and the REST mapper.
    pub fn answers_to(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let (word, rest) = name.split_once('.').unwrap_or((&name, ""));
        let known = word == self.0.plural
            || word == self.0.singular
            || word == self.0.kind.to_ascii_lowercase()
            || self.0.short_names.iter().any(|short| short == word);
        if word.is_empty() || !known {
            return false;
        }
        let versioned = format!("{}.{}", self.0.version, self.0.group);
        rest.is_empty()
            || rest == self.0.group
            || rest == versioned
            || rest == versioned.trim_end_matches('.')
    }

    /// The path of the collection at the API server, over all namespaces or in one.
    pub fn list_path(&self, namespace: Option<&str>) -> String {
        let root = if self.0.group.is_empty() {
            format!("/api/{}", self.0.version)
        } else {
            format!("/apis/{}/{}", self.0.group, self.0.version)
        };
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", self.0.plural),
            None => format!("{root}/{}", self.0.plural),
        }
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.group, &self.0.version, &self.0.plural)
            == (&other.0.group, &other.0.version, &other.0.plural)
    }
}

impl Eq for Resource {}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.plural)?;
        if self.0.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.0.group) }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}@{}", self.0.version)
    }
}

// === impl Key ===

impl Key {
    /// Makes a key; an empty namespace is the cluster scope.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(if namespace.is_empty() { name.into() } else { arcstr::format!("{namespace}/{name}") })
    }

    /// The namespace; empty in the cluster scope.
    pub fn namespace(&self) -> &str {
        // A name cannot hold a slash (it is a path segment), so the first one ends the namespace.
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// `namespace/name`, or the name alone.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bounds between which all keys of a namespace lie, and no others.
    fn namespace_range(namespace: &str) -> (Bound<Self>, Bound<Self>) {
        // '0' is the character after '/'.
        (
            Bound::Excluded(Self(arcstr::format!("{namespace}/"))),
            Bound::Excluded(Self(arcstr::format!("{namespace}0"))),
        )
    }

    /// The bounds of the keys of a namespace after a key; `None` where no key of the namespace can be after it.
    pub fn namespace_range_after(
        namespace: &str,
        after: Option<&Self>,
    ) -> Option<(Bound<Self>, Bound<Self>)> {
        let (start, end) = Self::namespace_range(namespace);
        let start = match (after, start) {
            (Some(after), Bound::Excluded(first)) if *after > first => Bound::Excluded(after.clone()),
            (_, start) => start,
        };
        // A key beyond the namespace comes from a token of another request. Ordered maps panic where a range is empty.
        let is_empty =
            matches!((&start, &end), (Bound::Excluded(start), Bound::Excluded(end)) if start >= end);
        (!is_empty).then_some((start, end))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployments() -> Resource {
        Resource::new(ResourceParts {
            group: "apps".into(),
            version: "v1".into(),
            plural: "deployments".into(),
            singular: "deployment".into(),
            kind: "Deployment".into(),
            short_names: vec!["deploy".into()],
            categories: vec!["all".into()],
            namespaced: true,
        })
    }

    #[test]
    fn a_resource_answers_to_every_name_kubectl_takes() {
        for name in
            ["deployments", "deployment", "deploy", "Deployment", "deployments.apps", "deploy.v1.apps"]
        {
            assert!(deployments().answers_to(name), "{name}");
        }
        for name in ["", "deploys", "deployments.v2.apps", "deployments.extensions", ".apps"] {
            assert!(!deployments().answers_to(name), "{name}");
        }
        let pods = Resource::new(ResourceParts {
            version: "v1".into(),
            plural: "pods".into(),
            ..Default::default()
        });
        assert!(pods.answers_to("pods.v1") && !pods.answers_to("pods.apps"));
    }

    #[test]
    fn a_namespace_is_one_range_even_beside_namespaces_that_share_its_prefix() {
        let all: std::collections::BTreeSet<Key> =
            [("a", "x"), ("a-b", "x"), ("a0", "x"), ("ab", "x"), ("", "a")]
                .into_iter()
                .map(|(namespace, name)| Key::new(namespace, name))
                .collect();
        let range: Vec<_> = all.range(Key::namespace_range("a")).map(Key::as_str).collect();
        assert_eq!(range, ["a/x"]);
    }

    #[test]
    fn paths_follow_group_and_namespace() {
        assert_eq!(deployments().list_path(Some("web")), "/apis/apps/v1/namespaces/web/deployments");
        assert_eq!(deployments().list_path(None), "/apis/apps/v1/deployments");
    }
}
