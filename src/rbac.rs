//! Prints the least permissions for a configuration: `list` and `watch` on the watched resources, and `get` on the
//! definitions of custom resources, by name, for the columns that `kubectl get` shows. Where a leader is elected for the queues, also
//! `get` and `update` on its Lease, and `create`, which cannot be limited to a name.
//!
//! It needs no cluster, so that the manifest can be made before there is one. A table resolves built-in names; other names
//! need their group.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::str::FromStr;

use crate::config::{LeaseName, WatchSpec};
use crate::k8s::{built_in_named, is_built_in_group};

/// The service account that gets the permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A configuration for which no manifest can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RbacError {
    /// A name that is not built in and has no group.
    #[error(
        "watch {0:?}: not a built-in resource; write its plural and group, as in certificates.cert-manager.io"
    )]
    UnknownResource(String),
    /// Namespaces for a cluster-scoped resource.
    #[error("watch {0:?}: {1} is cluster-scoped and takes no namespace")]
    ClusterScoped(String, String),
}

/// Resources by group: one rule each.
type Rules = BTreeMap<String, BTreeSet<String>>;

// === impl ServiceAccount ===

impl FromStr for ServiceAccount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let label = |part: &str| {
            !part.is_empty()
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.')
        };
        match text.split_once(':') {
            Some((namespace, name)) if label(namespace) && label(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("expected NAMESPACE:NAME, as in default:informerd".to_owned()),
        }
    }
}

/// The YAML manifest: a ClusterRole for resources that are watched in all namespaces, a Role in each namespace for those
/// watched there, and their bindings. Objects and rules are sorted, so that the same configuration gives the same text.
///
/// # Errors
/// [`RbacError`] for a name that cannot be resolved without a cluster.
pub fn manifest(
    watches: &[WatchSpec],
    lease: Option<&LeaseName>,
    name: &str,
    account: &ServiceAccount,
) -> Result<String, RbacError> {
    let mut cluster = Rules::new();
    let mut namespaces: BTreeMap<&str, Rules> = BTreeMap::new();
    let mut definitions = BTreeSet::new();
    let mut assumed = BTreeSet::new();
    for watch in watches {
        let (plural, group, scope) = resolve(&watch.resource)?;
        let namespaced = scope != Scope::Cluster;
        if !namespaced && !watch.namespaces.is_empty() && !watch.namespaces_are_default {
            return Err(RbacError::ClusterScoped(watch.resource.clone(), plural));
        }
        let add = |rules: &mut Rules| {
            rules.entry(group.clone()).or_default().insert(plural.clone());
        };
        if plural != "*" && !is_built_in_group(&group) {
            definitions.insert(format!("{plural}.{group}"));
        }
        if watch.namespaces.is_empty() || !namespaced {
            add(&mut cluster);
        } else {
            if scope == Scope::Unknown && watch.namespaces_are_default {
                assumed.insert(format!("{plural}.{group}"));
            }
            watch.namespaces.iter().for_each(|namespace| add(namespaces.entry(namespace).or_default()));
        }
    }
    let lease = lease.map(|lease| (lease.namespace.as_deref().unwrap_or(&account.namespace), &*lease.name));
    if let Some((namespace, _)) = lease {
        namespaces.entry(namespace).or_default();
    }
    let mut objects = Vec::new();
    if !cluster.is_empty() || !definitions.is_empty() {
        objects.push(role("ClusterRole", name, None, &cluster) + &columns(&definitions));
        objects.push(binding("ClusterRole", name, None, account));
    }
    for (namespace, rules) in &namespaces {
        let lease = lease.filter(|(in_namespace, _)| in_namespace == namespace);
        objects.push(role("Role", name, Some(namespace), rules) + &lease.map_or_else(String::new, election));
        objects.push(binding("Role", name, Some(namespace), account));
    }
    Ok(remark(&assumed) + &objects.join("---\n"))
}

/// Names the resources whose scope only the cluster knows.
fn remark(assumed: &BTreeSet<String>) -> String {
    if assumed.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = assumed.iter().map(String::as_str).collect();
    format!(
        "# Taken to be namespaced, which only the cluster knows: {}.\n\
         # Objects outside of namespaces need the rule in a ClusterRole: informerd rbac prints it there if no default namespace is set.\n",
        names.join(", ")
    )
}

/// Where the objects of a resource are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Namespaced,
    Cluster,
    /// Not built in: only the cluster knows.
    Unknown,
}

/// Plural, group and scope.
fn resolve(typed: &str) -> Result<(String, String, Scope), RbacError> {
    let lower = typed.to_ascii_lowercase();
    if lower == "*" {
        return Ok(("*".to_owned(), "*".to_owned(), Scope::Unknown));
    }
    let (word, rest) = lower.split_once('.').unwrap_or((&lower, ""));
    // Versions and groups both look like labels: `deployments.v1.apps`, `pods.v1`.
    let group = match rest.split_once('.') {
        Some((version, group)) if is_version(version) => group,
        None if is_version(rest) => "",
        _ => rest,
    };
    let found = built_in_named(word, Some(group)).or_else(|| match rest {
        "" => built_in_named(word, None),
        _ => None,
    });
    match found {
        Some(kind) => {
            let scope = if kind.namespaced { Scope::Namespaced } else { Scope::Cluster };
            Ok((kind.plural.to_owned(), kind.group.to_owned(), scope))
        }
        None if !group.is_empty() => Ok((word.to_owned(), group.to_owned(), Scope::Unknown)),
        None => Err(RbacError::UnknownResource(typed.to_owned())),
    }
}

/// `v1`, `v1beta1`. Source: `k8s.io/apimachinery/pkg/version`.
fn is_version(label: &str) -> bool {
    let mut digits = label.strip_prefix('v').unwrap_or_default().chars();
    digits.next().is_some_and(|first| first.is_ascii_digit())
}

fn role(kind: &str, name: &str, namespace: Option<&str>, rules: &Rules) -> String {
    let mut yaml = head(kind, name, namespace);
    yaml.push_str("rules:\n");
    for (group, resources) in rules {
        let resources: Vec<&str> = resources.iter().map(String::as_str).collect();
        let _ = write!(
            yaml,
            "- apiGroups: [\"{group}\"]\n  resources: [\"{}\"]\n  verbs: [\"list\", \"watch\"]\n",
            resources.join("\", \"")
        );
    }
    yaml
}

/// The rule for the definitions of custom resources; empty without any.
fn columns(definitions: &BTreeSet<String>) -> String {
    if definitions.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = definitions.iter().map(String::as_str).collect();
    format!(
        "- apiGroups: [\"apiextensions.k8s.io\"]\n  resources: [\"customresourcedefinitions\"]\n  resourceNames: [\"{}\"]\n  \
         verbs: [\"get\"]\n",
        names.join("\", \"")
    )
}

/// The rules for the Lease of the queues' leader.
fn election((_, name): (&str, &str)) -> String {
    format!(
        "- apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  resourceNames: [\"{name}\"]\n  verbs: [\"get\", \"update\"]\n\
         - apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  verbs: [\"create\"]\n"
    )
}

fn binding(kind: &str, name: &str, namespace: Option<&str>, account: &ServiceAccount) -> String {
    let mut yaml = head(&format!("{kind}Binding"), name, namespace);
    let _ = write!(
        yaml,
        "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {name}\n\
         subjects:\n- kind: ServiceAccount\n  name: {}\n  namespace: {}\n",
        account.name, account.namespace
    );
    yaml
}

fn head(kind: &str, name: &str, namespace: Option<&str>) -> String {
    let mut yaml =
        format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n");
    if let Some(namespace) = namespace {
        let _ = writeln!(yaml, "  namespace: {namespace}");
    }
    yaml
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigLayers, ServeSettings};

    fn made(yaml: &str) -> Result<String, RbacError> {
        let settings = ServeSettings::from_yaml(yaml, &|_| None).unwrap();
        let source = ConfigLayers { file: None, settings };
        let (watches, lease) = (source.watches(&|_| None).unwrap(), source.election(&|_| None).unwrap());
        manifest(&watches, lease.as_ref(), "informerd", &"web:api".parse().unwrap())
    }

    const CONFIGURATION: &str = "
namespaces: [web]
watch:
- {resource: po}
- {resource: svc}
- {resource: deploy.v1.apps, namespaces: [web, db]}
- {resource: nodes}
";

    const MANIFEST: &str = r#"apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: informerd
rules:
- apiGroups: [""]
  resources: ["nodes"]
  verbs: ["list", "watch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: informerd
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: informerd
subjects:
- kind: ServiceAccount
  name: api
  namespace: web
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: informerd
  namespace: db
rules:
- apiGroups: ["apps"]
  resources: ["deployments"]
  verbs: ["list", "watch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: informerd
  namespace: db
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: informerd
subjects:
- kind: ServiceAccount
  name: api
  namespace: web
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: informerd
  namespace: web
rules:
- apiGroups: [""]
  resources: ["pods", "services"]
  verbs: ["list", "watch"]
- apiGroups: ["apps"]
  resources: ["deployments"]
  verbs: ["list", "watch"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: informerd
  namespace: web
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: informerd
subjects:
- kind: ServiceAccount
  name: api
  namespace: web
"#;

    #[test]
    fn one_rule_a_group_and_a_role_for_each_namespace() {
        assert_eq!(made(CONFIGURATION).unwrap(), MANIFEST);
    }

    #[test]
    fn on_demand_patterns_get_permissions() {
        let made = made("onDemand: [pods, '*.example.com', '*']").unwrap();
        for rule in [
            "- apiGroups: [\"\"]\n  resources: [\"pods\"]",
            "- apiGroups: [\"example.com\"]\n  resources: [\"*\"]",
            "- apiGroups: [\"*\"]\n  resources: [\"*\"]",
        ] {
            assert!(made.contains(rule), "{rule} not in\n{made}");
        }
    }

    #[test]
    fn a_resource_whose_scope_is_unknown_is_named_where_the_default_namespaces_limit_it() {
        let remark = |yaml: &str| {
            let made = made(yaml).unwrap();
            made.lines().take_while(|line| line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let told = remark("{namespaces: [web], watch: [{resource: widgets.example.com}, {resource: pods}]}");
        assert!(told.first().is_some_and(|line| line.ends_with(": widgets.example.com.")), "{told:?}");
        for clear in [
            "watch: [{resource: widgets.example.com}]",
            "watch: [{resource: widgets.example.com, namespaces: [web]}]",
            "{namespaces: [web], watch: [{resource: pods}, {resource: nodes}]}",
        ] {
            assert_eq!(remark(clear), [""; 0], "{clear}");
        }
    }

    #[test]
    fn definitions_of_custom_resources_may_be_read_for_their_columns() {
        let made = made(
            "{watch: [{resource: widgets.example.com, namespaces: [web]}, {resource: pods}], onDemand: ['*.example.org']}",
        );
        let rule = "- apiGroups: [\"apiextensions.k8s.io\"]\n  resources: [\"customresourcedefinitions\"]\n  resourceNames: [\"widgets.example.com\"]\n  verbs: [\"get\"]\n";
        assert!(made.as_ref().is_ok_and(|made| made.matches(rule).count() == 1), "{made:?}");
    }

    #[test]
    fn the_lease_of_the_leader_may_be_read_created_and_written() {
        let rules = "rules:\n- apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  resourceNames: [\"informerd-queues\"]\n  \
                     verbs: [\"get\", \"update\"]\n- apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  verbs: [\"create\"]\n---\n";
        let of = |more: &str| made(&format!("{{watch: [{{resource: pods}}], {more}}}")).unwrap();
        let role =
            |namespace: &str| format!("kind: Role\nmetadata:\n  name: informerd\n  namespace: {namespace}\n");
        let all = of("queuesLeaderElection: true");
        assert!(all.contains(&(role("web") + rules)), "{all}");
        let elsewhere = of("queuesLeaderElection: true, queuesLease: ops/informerd-queues");
        assert!(
            elsewhere.contains(&(role("ops") + rules)) && !elsewhere.contains(&role("web")),
            "{elsewhere}"
        );
        assert!(!of("queuesLease: ops/informerd-queues").contains("leases"));
        // In the namespace of the watch, the Role has rules for both.
        let both = of("namespaces: [web], queuesLeaderElection: true");
        assert_eq!(both.matches(&role("web")).count(), 1);
        assert!(both.contains(rules.trim_start_matches("rules:\n").trim_end_matches("---\n")), "{both}");
    }

    #[test]
    fn rbac_names_resolve_as_by_kubectl() {
        for (typed, plural, group) in [
            ("Pod", "pods", ""),
            ("pods.v1", "pods", ""),
            ("ev", "events", ""),
            ("events.events.k8s.io", "events", "events.k8s.io"),
            ("events.v1.events.k8s.io", "events", "events.k8s.io"),
            ("ing", "ingresses", "networking.k8s.io"),
            ("certificates.cert-manager.io", "certificates", "cert-manager.io"),
            ("certificates.v1.cert-manager.io", "certificates", "cert-manager.io"),
        ] {
            let (found_plural, found_group, _) = resolve(typed).unwrap();
            assert_eq!((&*found_plural, &*found_group), (plural, group), "{typed}");
        }
        assert_eq!(
            resolve("certificates").unwrap_err().to_string(),
            "watch \"certificates\": not a built-in resource; write its plural and group, as in \
             certificates.cert-manager.io"
        );
    }

    #[test]
    fn every_kind_that_has_columns_has_a_role_of_its_scope() {
        for kind in crate::k8s::kinds::BUILT_IN {
            let made =
                made(&format!("namespaces: [web]\nwatch: [{{resource: {}}}]", kind.canonical())).unwrap();
            let role = if kind.namespaced { "kind: Role\n" } else { "kind: ClusterRole\n" };
            assert!(made.contains(role) && made.contains(kind.plural), "{kind:?}: {made}");
        }
        for name in
            ["runtimeclasses", "validatingwebhookconfigurations", "vac", "flowschemas", "servicecidrs"]
        {
            assert!(made(&format!("watch: [{{resource: {name}}}]")).is_ok(), "{name}");
        }
    }

    #[test]
    fn namespaces_of_a_cluster_scoped_resource_are_refused_unless_they_are_the_default() {
        let error = made("watch: [{resource: no, namespaces: [web]}]").unwrap_err();
        assert_eq!(error.to_string(), "watch \"no\": nodes is cluster-scoped and takes no namespace");
        assert!(
            made("namespaces: [web]\nwatch: [{resource: nodes}]").unwrap().contains("kind: ClusterRole\n")
        );
    }
}
