//! The description of an informer.

use std::fmt::{self, Write as _};
use std::time::Duration;

use sha1::{Digest as _, Sha1};

use crate::k8s::{DropPaths, FieldPath, LAST_APPLIED, Resource};

/// The description of an informer: which objects it follows, how much of them its cache holds, and why it runs.
#[derive(Clone, Debug)]
pub struct InformerSpec {
    /// Its name: `pods`, or `pods/ns1` if the resource is followed in separate namespaces.
    pub name: String,
    /// The resource that it follows.
    pub resource: Resource,
    /// The part of the resource that it follows.
    pub scope: Scope,
    /// What its cache holds of that part.
    pub content: Content,
    /// Whether the API server has no such kind any more, so that the cache is empty.
    pub is_absent: bool,
    /// Why it runs.
    pub started: Started,
    /// Whether the process is ready only once this informer is.
    pub awaited: bool,
    /// Age above which the cache counts as stale, unless the open watch may be silent for longer.
    pub stale_after: Duration,
}

/// Which part of a resource an informer follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole cluster.
    All,
    /// One namespace.
    Namespace(String),
}

/// Which objects of a scope a cache holds, and how much of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The label selector that the API server applies; empty for none.
    pub label_selector: String,
    /// The field selector that the API server applies; empty for none.
    pub field_selector: String,
    /// Whether it holds only the objects' metadata.
    pub metadata_only: bool,
    /// Whether it holds `metadata.managedFields`.
    pub managed_fields: bool,
    /// Whether it holds the annotation `kubectl.kubernetes.io/last-applied-configuration`.
    pub last_applied: bool,
    /// Members that are dropped from its objects.
    pub dropped: DropPaths,
}

/// Digest of all that decides which objects a cache holds, and how much of each. A version in one cache means nothing in
/// another one with a different digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentDigest([u8; 20]);

/// Why an informer was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The configuration names its resource.
    Configuration,
    /// A client asked for its resource.
    Demand,
}

// === impl InformerSpec ===

impl InformerSpec {
    /// A whole resource in one scope, as the configuration wants it, which is never stale.
    pub fn new(resource: Resource, scope: Scope) -> Self {
        Self {
            name: resource.canonical(),
            resource,
            scope,
            content: Content::default(),
            is_absent: false,
            started: Started::Configuration,
            awaited: true,
            stale_after: Duration::MAX,
        }
    }

    /// The digest of what its cache holds.
    pub fn digest(&self) -> ContentDigest {
        let Self { name: _, resource, scope, content, is_absent, started: _, awaited: _, stale_after: _ } =
            self;
        let (path, kind, namespaced) = (resource.list_path(None), resource.kind(), resource.namespaced());
        let text = format!("{path}\n{kind}\n{namespaced}\n{scope}\n{is_absent}\n{}", content.text());
        ContentDigest(Sha1::digest(text).into())
    }

    /// Whether another informer's cache holds the same objects, and perhaps other members of each.
    pub fn selects_as(&self, other: &Self) -> bool {
        let selection = |spec: &Self| {
            let Content { label_selector, field_selector, .. } = spec.content.clone();
            let content = Content { label_selector, field_selector, ..Content::default() };
            Self { content, ..spec.clone() }.digest()
        };
        selection(self) == selection(other)
    }

    /// Its name in resume tokens: `pods`, or `pods/ns1` if one namespace is followed. If the cache does not hold every object
    /// as it is by default, the name contains a digest of what it holds (`pods_1f0a44c2`). An informerd with other contents
    /// then refuses the token, as it would never send deletions of objects that it does not follow.
    pub fn token_name(&self) -> String {
        let mut name = match &self.scope {
            Scope::All => self.name.clone(),
            Scope::Namespace(namespace) => format!("{}/{namespace}", self.resource),
        };
        if self.content != Content::default() {
            name.push('_');
            for byte in &Sha1::digest(self.content.text())[..4] {
                let _ = write!(name, "{byte:02x}");
            }
        }
        name
    }

    /// Whether the field at a dotted path is kept in its objects.
    pub fn holds(&self, field: &str) -> bool {
        let names = FieldPath::new(field).segments();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let is_kept = match *names {
            ["metadata", "managedFields", ..] => self.content.managed_fields,
            ["metadata", "annotations", LAST_APPLIED, ..] => self.content.last_applied,
            ["metadata" | "kind" | "apiVersion", ..] => true,
            _ => !self.content.metadata_only,
        };
        is_kept && !self.content.dropped.drops(field)
    }

    /// The resource with the kind of its objects, bookmarks and lists: the resource's own kind, or `PartialObjectMetadata`.
    pub fn shown(&self) -> Resource {
        if self.content.metadata_only { self.resource.metadata_only() } else { self.resource.clone() }
    }
}

// === impl Content ===

impl Content {
    /// The selectors that the API server applies, for people to read: `labelSelector=app=web&fieldSelector=…`.
    pub fn selectors(&self) -> String {
        let mut text = String::new();
        for (name, selector) in
            [("labelSelector", &self.label_selector), ("fieldSelector", &self.field_selector)]
        {
            if !selector.is_empty() {
                let and = if text.is_empty() { "" } else { "&" };
                let _ = write!(text, "{and}{name}={selector}");
            }
        }
        text
    }

    /// All of it as text. Resume tokens contain a digest of it, so it must not change from release to release.
    fn text(&self) -> String {
        // Taken apart, so that a new member cannot be forgotten.
        let Self {
            label_selector: _,
            field_selector: _,
            metadata_only,
            managed_fields,
            last_applied,
            dropped,
        } = self;
        let mut text = format!("{}\n{metadata_only}\n{dropped}", self.selectors());
        if *managed_fields {
            text.push_str("\nmanagedFields");
        }
        if *last_applied {
            text.push_str("\nlastApplied");
        }
        text
    }
}

// === impl Scope ===

impl Scope {
    /// Whether it contains a namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(followed) => followed == namespace,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("cluster"),
            Self::Namespace(namespace) => write!(f, "namespace {namespace}"),
        }
    }
}

// === impl Started ===

impl Started {
    /// The word for people and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Demand => "demand",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::ResourceParts;

    fn spec() -> InformerSpec {
        let parts = ResourceParts {
            plural: "pods".into(),
            kind: "Pod".into(),
            namespaced: true,
            ..Default::default()
        };
        InformerSpec::new(Resource::new(parts), Scope::All)
    }

    #[test]
    fn a_token_has_the_digest_of_a_restricted_cache() {
        assert_eq!(spec().token_name(), "pods");
        let named = |change: fn(&mut InformerSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.token_name()
        };
        // Tokens outlive a release, so these names must not change.
        assert_eq!(named(|spec| spec.content.label_selector = "app=web".into()), "pods_877fccb3");
        assert_eq!(named(|spec| spec.content.metadata_only = true), "pods_57ba1c90");
        let names = [
            named(|_| {}),
            named(|spec| spec.scope = Scope::Namespace("shop".into())),
            named(|spec| spec.content.label_selector = "app=web".into()),
            named(|spec| spec.content.field_selector = "app=web".into()),
            named(|spec| spec.content.metadata_only = true),
            named(|spec| spec.content.managed_fields = true),
            named(|spec| spec.content.last_applied = true),
            named(|spec| spec.content.dropped = ".spec.volumes".parse().unwrap()),
        ];
        for (index, name) in names.iter().enumerate() {
            assert_eq!(names.iter().position(|one| one == name), Some(index), "{name}");
        }
    }

    #[test]
    fn a_member_that_is_left_out_of_all_objects_is_not_held() {
        const LAST: &str = r"metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration";
        let mut spec = spec();
        for field in ["metadata.managedFields.manager", LAST] {
            assert!(!spec.holds(field), "{field}");
        }
        assert!(spec.holds("metadata.annotations.a") && spec.holds("spec.nodeName"));
        (spec.content.managed_fields, spec.content.last_applied) = (true, true);
        spec.content.metadata_only = true;
        assert!(spec.holds("metadata.managedFields.manager") && spec.holds(LAST));
        assert!(spec.holds("kind") && !spec.holds("spec.nodeName"));
    }

    #[test]
    fn the_digest_depends_on_the_held_content_only() {
        let digest = |change: fn(&mut InformerSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.digest()
        };
        let whole = spec().digest();
        assert_eq!(digest(|spec| spec.name = "pods/shop".into()), whole);
        assert_eq!(digest(|spec| spec.started = Started::Demand), whole);
        assert_eq!(digest(|spec| spec.awaited = false), whole);
        assert_eq!(digest(|spec| spec.stale_after = Duration::ZERO), whole);
        assert_ne!(digest(|spec| spec.scope = Scope::Namespace("shop".into())), whole);
        assert_ne!(digest(|spec| spec.is_absent = true), whole);
        assert_ne!(digest(|spec| spec.content.managed_fields = true), whole);
        assert_ne!(digest(|spec| spec.content.label_selector = "app=web".into()), whole);
        assert_ne!(digest(|spec| spec.resource = spec.resource.metadata_only()), whole);
    }

    #[test]
    fn selectors_are_shown_as_in_a_request() {
        let mut content = Content { label_selector: "app=web".into(), ..Content::default() };
        assert_eq!(content.selectors(), "labelSelector=app=web");
        content.field_selector = "spec.nodeName=n1".into();
        assert_eq!(content.selectors(), "labelSelector=app=web&fieldSelector=spec.nodeName=n1");
    }
}
