//! Parses the API server's paths.

use percent_encoding::percent_decode_str;

/// The meaning of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiPath {
    /// `/version`.
    Version,
    /// `/api`: the versions of the core group.
    CoreVersions,
    /// `/apis`: the other groups.
    Groups,
    /// `/apis/apps`: the versions of a group.
    Group(String),
    /// `/api/v1`, `/apis/apps/v1`: the resources of a group in a version.
    Resources {
        /// Empty for the core group.
        group: String,
        version: String,
    },
    /// Objects, or one.
    Objects(PathTarget),
    /// A path that is not served.
    Nothing,
}

/// Objects of a resource, or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathTarget {
    /// Empty for the core group.
    pub(super) group: String,
    pub(super) version: String,
    /// Plural, as in the path.
    pub(super) resource: String,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
}

/// Subresources of a namespace, to be distinguished from resources in it. Source: apiserver `request/requestinfo.go`.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl ApiPath {
    /// Parses a path. A trailing slash is ignored.
    pub(super) fn parse(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments = Vec::new();
        for segment in path.split('/') {
            match percent_decode_str(segment).decode_utf8() {
                Ok(segment) if !segment.is_empty() => segments.push(segment.into_owned()),
                Ok(_) | Err(_) => return Self::Nothing,
            }
        }
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match &*segments {
            ["version"] => Self::Version,
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::Resources { group: String::new(), version: (*version).to_owned() },
            ["apis", group, version] => {
                Self::Resources { group: (*group).to_owned(), version: (*version).to_owned() }
            }
            ["api", version, rest @ ..] => Self::objects("", version, rest),
            ["apis", group, version, rest @ ..] => Self::objects(group, version, rest),
            _ => Self::Nothing,
        }
    }

    fn objects(group: &str, version: &str, rest: &[&str]) -> Self {
        let (namespace, resource, name) = match rest {
            ["namespaces", _, subresource] if NAMESPACE_SUBRESOURCES.contains(subresource) => {
                return Self::Nothing;
            }
            ["namespaces", namespace, resource] => (Some(*namespace), *resource, None),
            ["namespaces", namespace, resource, name] => (Some(*namespace), *resource, Some(*name)),
            [resource] => (None, *resource, None),
            [resource, name] => (None, *resource, Some(*name)),
            // Subresources, and paths that no API server has.
            _ => return Self::Nothing,
        };
        Self::Objects(PathTarget {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
        })
    }
}

impl PathTarget {
    /// The name by which the hub knows the resource: `deployments.v1.apps`.
    pub(super) fn resource_name(&self) -> String {
        let name = format!("{}.{}.{}", self.resource, self.version, self.group);
        name.trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &str) {
        let place = ApiPath::parse(path);
        let text = if let ApiPath::Objects(PathTarget { group, version, resource, namespace, name }) = place {
            let shown = |part: Option<String>| part.unwrap_or("-".to_owned());
            format!("{group} {version} {resource} {} {}", shown(namespace), shown(name))
        } else {
            format!("{place:?}")
        };
        assert_eq!(text, expected, "{path}");
    }

    #[test]
    fn paths_of_documents_and_objects_are_parsed_with_or_without_final_slash() {
        for (path, expected) in [
            ("/version", "Version"),
            ("/api", "CoreVersions"),
            ("/apis", "Groups"),
            ("/apis/apps", r#"Group("apps")"#),
            ("/api/v1", r#"Resources { group: "", version: "v1" }"#),
            ("/apis/apps/v1", r#"Resources { group: "apps", version: "v1" }"#),
            ("/api/v1/pods", " v1 pods - -"),
            ("/api/v1/namespaces", " v1 namespaces - -"),
            ("/api/v1/namespaces/a", " v1 namespaces - a"),
            ("/api/v1/namespaces/a/pods", " v1 pods a -"),
            ("/api/v1/namespaces/a/pods/b", " v1 pods a b"),
            ("/apis/apps/v1/namespaces/a/deployments/b", "apps v1 deployments a b"),
            ("/api/v1/namespaces/a/pods/system:b%2Dc", " v1 pods a system:b-c"),
        ] {
            check(path, expected);
            check(&format!("{path}/"), expected);
        }
    }

    #[test]
    fn subresources_and_malformed_paths_are_not_found() {
        for path in [
            "/",
            "/api//v1",
            "/api/v1//pods",
            "/api/v1/namespaces/a/status",
            "/api/v1/namespaces/a/pods/b/log",
            "/api/v1/nodes/a/proxy/x",
            "/openapi/v3",
            "/api/v1/namespaces/a/pods/%ff",
        ] {
            check(path, "Nothing");
        }
    }

    #[test]
    fn a_path_resolves_to_the_resource_in_its_version() {
        let name = |path| {
            let ApiPath::Objects(target) = ApiPath::parse(path) else { panic!("{path} names no objects") };
            target.resource_name()
        };
        assert_eq!(name("/apis/apps/v1/deployments"), "deployments.v1.apps");
        assert_eq!(name("/api/v1/pods"), "pods.v1");
    }
}
