//! Patterns for the resources whose informers may start when a client asks.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::WatchSpec;
use super::watch::check_resource;
use crate::k8s::Resource;

/// Resources that may start on demand: one by its canonical name (`pods`, `deployments.apps`), all of a group
/// (`*.example.com`), or all (`*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// Informers that start at the first request for their resource, and stop when nobody uses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// The patterns; empty for none.
    pub patterns: Vec<Pattern>,
    /// How long an unused informer keeps running.
    pub idle: Duration,
    /// The template for each informer: a watch without a resource.
    pub template: WatchSpec,
}

/// The resource that no wildcard matches, as in Kubernetes' own role `view`: the permission to read all other objects does
/// not include these.
const SECRETS: &str = "secrets";

// === impl Pattern ===

impl Pattern {
    /// Whether it matches a resource.
    pub fn matches(&self, resource: &Resource) -> bool {
        let canonical = resource.canonical();
        match self.0.strip_prefix('*') {
            None => self.0 == canonical,
            Some("") => canonical != SECRETS,
            Some(group) => group.strip_prefix('.') == Some(resource.group()),
        }
    }

    /// Whether it matches more than one resource.
    pub fn is_wildcard(&self) -> bool {
        self.0.starts_with('*')
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        let rest = text.strip_prefix("*.").unwrap_or(&text);
        if text == "*" || check_resource(rest).is_ok() {
            return Ok(Self(text));
        }
        Err("expected a canonical name like pods or deployments.apps, *.GROUP or *".to_owned())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl OnDemand ===

impl OnDemand {
    /// Whether informers may start on demand at all.
    pub fn is_on(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// Whether an informer of this resource may start on demand.
    pub fn allows(&self, resource: &Resource) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(resource))
    }

    /// The watch for a resource.
    pub fn spec(&self, resource: &str) -> WatchSpec {
        WatchSpec { resource: resource.to_owned(), ..self.template.clone() }
    }

    /// The patterns, for people.
    pub fn shown(&self) -> String {
        let patterns: Vec<_> = self.patterns.iter().map(Pattern::as_str).collect();
        patterns.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::ResourceParts;

    fn resource(plural: &str, group: &str) -> Resource {
        Resource::new(ResourceParts {
            plural: plural.into(),
            group: group.into(),
            version: "v1".into(),
            ..ResourceParts::default()
        })
    }

    #[test]
    fn a_pattern_stands_for_a_resource_a_group_or_all_but_secrets() {
        for (pattern, plural, group, expected) in [
            ("pods", "pods", "", true),
            ("pods", "pods", "metrics.k8s.io", false),
            ("Deployments.apps", "deployments", "apps", true),
            ("deployments", "deployments", "apps", false),
            ("*.apps", "deployments", "apps", true),
            ("*.apps", "pods", "", false),
            ("*.example.com", "widgets", "example.com", true),
            ("*.example.com", "widgets", "sub.example.com", false),
            ("*", "widgets", "example.com", true),
            ("*", "secrets", "", false),
            ("*", "secrets", "example.com", true),
            ("secrets", "secrets", "", true),
        ] {
            let matches = pattern.parse::<Pattern>().unwrap().matches(&resource(plural, group));
            assert_eq!(matches, expected, "{pattern} {plural}.{group}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_the_accepted_forms() {
        for text in ["", "*pods", "pods*", "*.", "a.*", "**", "pods,nodes", "*.*"] {
            let error = text.parse::<Pattern>().unwrap_err();
            assert!(error.contains("expected a canonical name"), "{text}: {error}");
        }
    }
}
