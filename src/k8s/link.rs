//! Links: how objects of one kind refer to objects of another: by a name, by a label selector, or by an owner's uid.
//!
//! A link by name can be followed both ways by what an index holds: from an object to the names in it, and from a name to the
//! objects that have it. A selector leads to objects by their labels; the other way, the selectors of a namespace are
//! compared with an object's labels.
//!
//! Source: the API reference of Kubernetes 1.36, members whose description says that they name or select objects of
//! another kind. The type that has them stands at each part of the table.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{FieldPath, IndexPath, IndexPaths, Object, Resource, Term, Test};

/// Objects of `from` refer to objects of `to`. Both are written as `PLURAL[.GROUP]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The resource of the objects that refer; `*` for every namespaced one.
    pub from: Cow<'static, str>,
    /// How they refer.
    pub by: LinkBy,
    /// The resource of the objects that are meant: in the same namespace, or of the cluster.
    pub to: Cow<'static, str>,
    /// What an object must have so that the link is one.
    pub when: Option<When>,
}

/// How an object refers to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkBy {
    /// By the names at a path.
    Name(IndexPath),
    /// By the label selector at a path.
    Selector(String, SelectorForm),
}

/// How a label selector is written in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorForm {
    /// As labels with their values. Without any it selects nothing.
    Labels,
    /// As `matchLabels` and `matchExpressions`. Without any it selects everything; where it is missing, nothing.
    Query,
    /// The same, but where it is missing, it selects everything.
    OptionalQuery,
}

/// A condition on the value at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// The path.
    pub path: &'static str,
    /// The value.
    pub value: &'static str,
    /// Whether the object must have the value, and not another one.
    pub is: bool,
}

/// The links of built-in kinds, and those that the configuration declares. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Links(Arc<[Link]>);

/// Where a pod's own specification is in kinds that have one.
///
/// Source: `PodTemplateSpec` of core/v1, apps/v1 and batch/v1.
const POD_SPECS: &[(&str, &str)] = &[
    ("pods", "spec"),
    ("podtemplates", "template.spec"),
    ("replicationcontrollers", "spec.template.spec"),
    ("replicasets.apps", "spec.template.spec"),
    ("deployments.apps", "spec.template.spec"),
    ("statefulsets.apps", "spec.template.spec"),
    ("daemonsets.apps", "spec.template.spec"),
    ("jobs.batch", "spec.template.spec"),
    ("cronjobs.batch", "spec.jobTemplate.spec.template.spec"),
];

/// What a pod's specification names.
///
/// Source: `PodSpec`, `Volume`, `EnvVarSource` and `EnvFromSource` of core/v1.
const IN_POD_SPEC: &[(&str, &str)] = &[
    ("nodeName", "nodes"),
    ("serviceAccountName", "serviceaccounts"),
    ("priorityClassName", "priorityclasses.scheduling.k8s.io"),
    ("runtimeClassName", "runtimeclasses.node.k8s.io"),
    ("imagePullSecrets.name", "secrets"),
    ("volumes.configMap.name", "configmaps"),
    ("volumes.secret.secretName", "secrets"),
    ("volumes.persistentVolumeClaim.claimName", "persistentvolumeclaims"),
    ("volumes.projected.sources.configMap.name", "configmaps"),
    ("volumes.projected.sources.secret.name", "secrets"),
    ("containers.env.valueFrom.configMapKeyRef.name", "configmaps"),
    ("containers.env.valueFrom.secretKeyRef.name", "secrets"),
    ("containers.envFrom.configMapRef.name", "configmaps"),
    ("containers.envFrom.secretRef.name", "secrets"),
    ("initContainers.env.valueFrom.configMapKeyRef.name", "configmaps"),
    ("initContainers.env.valueFrom.secretKeyRef.name", "secrets"),
    ("initContainers.envFrom.configMapRef.name", "configmaps"),
    ("initContainers.envFrom.secretRef.name", "secrets"),
];

/// What other kinds name.
///
/// Source: `IngressSpec` of networking.k8s.io/v1, `StatefulSetSpec` of apps/v1, `ServiceAccount`, `PersistentVolumeClaimSpec` and
/// `PersistentVolumeSpec` of core/v1, `VolumeAttachmentSpec` of storage.k8s.io/v1.
const OTHERS: &[(&str, &str, &str)] = &[
    ("ingresses.networking.k8s.io", "spec.tls.secretName", "secrets"),
    ("ingresses.networking.k8s.io", "spec.defaultBackend.service.name", "services"),
    ("ingresses.networking.k8s.io", "spec.rules.http.paths.backend.service.name", "services"),
    ("ingresses.networking.k8s.io", "spec.ingressClassName", "ingressclasses.networking.k8s.io"),
    ("statefulsets.apps", "spec.serviceName", "services"),
    ("serviceaccounts", "secrets.name", "secrets"),
    ("serviceaccounts", "imagePullSecrets.name", "secrets"),
    ("persistentvolumeclaims", "spec.volumeName", "persistentvolumes"),
    ("persistentvolumeclaims", "spec.storageClassName", "storageclasses.storage.k8s.io"),
    ("persistentvolumes", "spec.storageClassName", "storageclasses.storage.k8s.io"),
    ("volumeattachments.storage.k8s.io", "spec.nodeName", "nodes"),
    ("volumeattachments.storage.k8s.io", "spec.source.persistentVolumeName", "persistentvolumes"),
];

/// Names whose kind is said beside them: the path of both, the resource, and its kind.
///
/// Source: `HorizontalPodAutoscalerSpec` of autoscaling/v2, `RoleRef` of rbac.authorization.k8s.io/v1, `Endpoint` of
/// discovery.k8s.io/v1.
const BY_KIND: &[(&str, &str, &str, &str, &str)] = &[
    (HPA, "spec.scaleTargetRef.name", "spec.scaleTargetRef.kind", "deployments.apps", "Deployment"),
    (HPA, "spec.scaleTargetRef.name", "spec.scaleTargetRef.kind", "statefulsets.apps", "StatefulSet"),
    (HPA, "spec.scaleTargetRef.name", "spec.scaleTargetRef.kind", "replicasets.apps", "ReplicaSet"),
    ("rolebindings.rbac.authorization.k8s.io", "roleRef.name", "roleRef.kind", ROLE, "Role"),
    ("rolebindings.rbac.authorization.k8s.io", "roleRef.name", "roleRef.kind", CLUSTER_ROLE, "ClusterRole"),
    (
        "clusterrolebindings.rbac.authorization.k8s.io",
        "roleRef.name",
        "roleRef.kind",
        CLUSTER_ROLE,
        "ClusterRole",
    ),
    (ENDPOINT_SLICE, "endpoints.targetRef.name", "endpoints.targetRef.kind", "pods", "Pod"),
];

/// What kinds select by labels, in their namespace. Kinds that own what they select (Deployments, Jobs) are not here: owner
/// references say it better. Nor are selectors of what may be bound or admitted one day (claims, webhooks).
///
/// Source: `ServiceSpec` of core/v1 (ignored for ExternalName; without a selector the endpoints are managed by others),
/// `NetworkPolicySpec` of networking.k8s.io/v1 (an empty or missing podSelector selects all pods of the namespace),
/// `PodDisruptionBudgetSpec` of policy/v1 (null selects no pods, an empty selector all of the namespace).
const SELECTORS: &[(&str, &str, SelectorForm, &str, Option<When>)] = &[
    (
        "services",
        "spec.selector",
        SelectorForm::Labels,
        "pods",
        Some(When { path: "spec.type", value: "ExternalName", is: false }),
    ),
    ("networkpolicies.networking.k8s.io", "spec.podSelector", SelectorForm::OptionalQuery, "pods", None),
    ("poddisruptionbudgets.policy", "spec.selector", SelectorForm::Query, "pods", None),
];

const ENDPOINT_SLICE: &str = "endpointslices.discovery.k8s.io";

const HPA: &str = "horizontalpodautoscalers.autoscaling";
const ROLE: &str = "roles.rbac.authorization.k8s.io";
const CLUSTER_ROLE: &str = "clusterroles.rbac.authorization.k8s.io";

/// The label of an EndpointSlice with the name of its Service. Source: `LabelServiceName` of discovery.k8s.io/v1.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

static LINKS: LazyLock<Vec<Link>> = LazyLock::new(|| {
    let field = |path: String| IndexPath::Field(FieldPath::new(path));
    let named = |from: &'static str, path: IndexPath, to: &'static str| Link {
        from: from.into(),
        by: LinkBy::Name(path),
        to: to.into(),
        when: None,
    };
    let mut links = Vec::new();
    for (from, prefix) in POD_SPECS {
        links.extend(IN_POD_SPEC.iter().map(|(path, to)| named(from, field(format!("{prefix}.{path}")), to)));
    }
    links.extend(OTHERS.iter().map(|(from, path, to)| named(from, field((*path).to_owned()), to)));
    links.push(named(ENDPOINT_SLICE, IndexPath::Label(SERVICE_LABEL.into()), "services"));
    links.extend(BY_KIND.iter().map(|(from, path, kind_path, to, kind)| Link {
        when: Some(When { path: kind_path, value: kind, is: true }),
        ..named(from, field((*path).to_owned()), to)
    }));
    links.extend(SELECTORS.iter().map(|(from, path, form, to, when)| Link {
        from: (*from).into(),
        by: LinkBy::Selector((*path).to_owned(), *form),
        to: (*to).into(),
        when: *when,
    }));
    // Source: `ObjectMeta` of meta/v1.
    links.push(named("*", field("metadata.namespace".to_owned()), "namespaces"));
    links
});

/// An object's owner, as the object names it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Group and version: `apps/v1`.
    #[serde(default)]
    pub api_version: String,
    /// Kind: `ReplicaSet`.
    #[serde(default)]
    pub kind: String,
    /// Name, in the same namespace or of the cluster.
    #[serde(default)]
    pub name: String,
    /// Tells it from other objects of this name.
    #[serde(default)]
    pub uid: String,
}

/// The links of built-in kinds.
pub fn links() -> &'static [Link] {
    &LINKS
}

/// Where an object has the uids of its owners.
pub fn owner_uids() -> IndexPath {
    IndexPath::Field(FieldPath::new("metadata.ownerReferences.uid"))
}

// === impl Links ===

impl Links {
    /// The built-in links, followed by these.
    pub fn new(declared: impl IntoIterator<Item = Link>) -> Self {
        Self(links().iter().cloned().chain(declared).collect())
    }

    /// The links whose objects are of a resource.
    pub fn from<'a>(&'a self, resource: &'a Resource) -> impl Iterator<Item = &'a Link> {
        self.0.iter().filter(move |link| link.is_from(resource))
    }

    /// The links that lead to objects of a resource.
    pub fn to<'a>(&'a self, resource: &'a Resource) -> impl Iterator<Item = &'a Link> {
        self.0.iter().filter(move |link| link.is_to(resource))
    }
}

impl Default for Links {
    fn default() -> Self {
        Self::new([])
    }
}

// === impl Link ===

impl Link {
    /// Whether its objects are of a resource, and so refer to others.
    pub fn is_from(&self, resource: &Resource) -> bool {
        if self.is_from_any() { resource.namespaced() } else { is_called(resource, &self.from) }
    }

    /// Whether its objects are of every namespaced resource.
    pub fn is_from_any(&self) -> bool {
        self.from == "*"
    }

    /// Whether it leads to objects of a resource.
    pub fn is_to(&self, resource: &Resource) -> bool {
        is_called(resource, &self.to)
    }

    /// Where the names or the selector is.
    pub fn path(&self) -> String {
        match &self.by {
            LinkBy::Name(path) => path.to_string(),
            LinkBy::Selector(path, _) => path.clone(),
        }
    }

    /// The names that an object has. None for a link by selector.
    pub fn names(&self, object: &Object) -> Vec<String> {
        match &self.by {
            LinkBy::Name(path) if self.means(object) => names_at(path, object),
            LinkBy::Name(_) | LinkBy::Selector(..) => Vec::new(),
        }
    }

    /// What the labels of the objects must be that an object selects. `None` if it selects nothing, and for a link by name.
    pub fn selector(&self, object: &Object) -> Option<Vec<Term>> {
        match &self.by {
            LinkBy::Selector(path, form) if self.means(object) => selector_at(path, *form, object),
            LinkBy::Name(_) | LinkBy::Selector(..) => None,
        }
    }

    /// Whether what an object refers to is of the resource that the link leads to.
    pub fn means(&self, object: &Object) -> bool {
        self.when.is_none_or(|When { path, value, is }| {
            let path = IndexPath::Field(FieldPath::new(path));
            names_at(&path, object).iter().any(|kind| kind == value) == is
        })
    }
}

/// The terms of the selector at a path of an object.
fn selector_at(path: &str, form: SelectorForm, object: &Object) -> Option<Vec<Term>> {
    let json = object.text();
    let mut raw = std::str::from_utf8(&json).ok();
    for segment in FieldPath::new(path).segments() {
        let members = raw.and_then(|raw| serde_json::from_str::<HashMap<String, &RawValue>>(raw).ok());
        raw = members.and_then(|members| members.get(&segment).map(|member| member.get()));
    }
    let Some(raw) = raw.filter(|raw| *raw != "null") else {
        return (form == SelectorForm::OptionalQuery).then(Vec::new);
    };
    let equal = |(key, value): (String, String)| Term {
        path: IndexPath::Label(key.into()),
        test: Test::In(vec![value].into()),
    };
    let labels = serde_json::from_str::<BTreeMap<String, String>>(raw).ok();
    match labels.filter(|labels| form == SelectorForm::Labels || !labels.is_empty()) {
        Some(labels) if labels.is_empty() => None,
        Some(labels) => Some(labels.into_iter().map(equal).collect()),
        None => {
            let Query { match_labels, match_expressions } = serde_json::from_str(raw).ok()?;
            let terms = match_expressions.into_iter().flatten().map(Requirement::term);
            let equal = match_labels.into_iter().flatten().map(equal).map(Some);
            equal.chain(terms).collect()
        }
    }
}

/// A label selector. Source: `LabelSelector` of meta/v1.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Query {
    match_labels: Option<BTreeMap<String, String>>,
    match_expressions: Option<Vec<Requirement>>,
}

#[derive(Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

impl Requirement {
    /// `None` for an operator that no API server accepts.
    fn term(self) -> Option<Term> {
        let mut values = self.values.unwrap_or_default();
        values.sort_unstable();
        values.dedup();
        let test = match &*self.operator {
            "In" => Test::In(values.into()),
            "NotIn" => Test::NotIn(values.into()),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::Missing,
            _ => return None,
        };
        Some(Term { path: IndexPath::Label(self.key.into()), test })
    }
}

/// The names that an object has by each of some links, read in one pass.
pub fn names_of(links: &[Link], object: &Object) -> Vec<Vec<String>> {
    let by_name = links.iter().filter_map(|link| match &link.by {
        LinkBy::Name(path) => Some(path.clone()),
        LinkBy::Selector(..) => None,
    });
    let values = object.read_values(&IndexPaths::new(by_name.collect()));
    let mut slot = 0;
    let names = links.iter().map(|link| {
        if matches!(link.by, LinkBy::Selector(..)) {
            return Vec::new();
        }
        slot += 1;
        let names: Vec<_> = values.get(slot - 1).iter().filter(|name| !name.is_empty()).collect();
        if names.is_empty() || !link.means(object) {
            return Vec::new();
        }
        names.into_iter().map(|name| name.to_string()).collect()
    });
    names.collect()
}

/// The values of an object at a path, without empty ones.
pub fn names_at(path: &IndexPath, object: &Object) -> Vec<String> {
    let values = object.read_values(&IndexPaths::new(vec![path.clone()]));
    let names = values.get(0).iter().filter(|name| !name.is_empty());
    names.map(|name| name.to_string()).collect()
}

/// The owners of an object.
pub fn owners(object: &Object) -> Vec<Owner> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Owned {
        #[serde(default)]
        owner_references: Option<Vec<Owner>>,
    }
    let owned: Option<Owned> = serde_json::from_str(object.text().metadata()).ok();
    owned.and_then(|owned| owned.owner_references).unwrap_or_default()
}

impl Owner {
    /// Whether the owner is of a resource.
    pub fn is_of(&self, resource: &Resource) -> bool {
        let group = self.api_version.split_once('/').map_or("", |(group, _)| group);
        self.kind == resource.kind() && group == resource.group()
    }
}

fn is_called(resource: &Resource, name: &str) -> bool {
    let (plural, group) = name.split_once('.').unwrap_or((name, ""));
    resource.plural() == plural && resource.group() == group
}

#[cfg(test)]
mod tests {
    use super::super::{DecodeOptions, Decoder, ResourceParts, WatchEvent, built_in};
    use super::*;

    fn object(json: &str) -> Object {
        let resource = Resource::new(ResourceParts::default());
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let line = format!(r#"{{"type":"ADDED","object":{json}}}"#);
        match Decoder::new(resource, options).watch_line(line.as_bytes()) {
            Ok(WatchEvent::Added(object)) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn links_by_name_are_found() {
        let pod = object(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"a","name":"p","resourceVersion":"1","uid":"u",
            "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"o"}]},
            "spec":{"nodeName":"n","volumes":[{"secret":{"secretName":"s"}},{"emptyDir":{}},{"configMap":{"name":"c"}}]}}"#,
        );
        let mut named: Vec<_> = links()
            .iter()
            .filter(|link| link.from == "pods")
            .flat_map(|link| link.names(&pod).into_iter().map(|name| format!("{} {name}", link.to)))
            .collect();
        named.sort();
        assert_eq!(named, ["configmaps c", "nodes n", "secrets s"]);
        let owners = owners(&pod);
        assert_eq!(
            (owners.len(), &*owners[0].api_version, &*owners[0].kind, &*owners[0].name),
            (1, "apps/v1", "ReplicaSet", "r")
        );
        assert_eq!(names_at(&owner_uids(), &pod), ["o"]);
        let scaler = |kind: &str| {
            object(&format!(
                r#"{{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{{"namespace":"a","name":"h",
                "resourceVersion":"1","uid":"u"}},"spec":{{"scaleTargetRef":{{"kind":"{kind}","name":"web"}}}}}}"#
            ))
        };
        let to_deployments =
            links().iter().find(|link| link.from == HPA && link.to == "deployments.apps").unwrap();
        assert_eq!(to_deployments.names(&scaler("Deployment")), ["web"]);
        assert!(to_deployments.names(&scaler("StatefulSet")).is_empty());
    }

    #[test]
    fn links_are_between_kinds_that_exist() {
        for link in links() {
            for end in [&link.from, &link.to].into_iter().filter(|end| *end != "*") {
                let (plural, group) = end.split_once('.').unwrap_or((end, ""));
                assert!(built_in(plural, group).is_some(), "{link:?}");
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for link in links() {
            assert!(seen.insert((&link.from, link.path(), &link.to)), "twice: {link:?}");
        }
        assert!(links().len() > 100, "{}", links().len());
    }
    #[test]
    fn links_by_selector_are_found() {
        let of = |from: &str, kind: &str, spec: &str| {
            let link = links().iter().find(|link| link.from == from && link.to == "pods");
            let object = object(&format!(
                r#"{{"kind":"{kind}","metadata":{{"namespace":"a","name":"x","resourceVersion":"1","uid":"u"}},"spec":{spec}}}"#
            ));
            let terms = link.unwrap().selector(&object);
            terms.map(|terms| terms.len())
        };
        let policy = "networkpolicies.networking.k8s.io";
        for (from, spec, terms) in [
            ("services", r#"{"type":"ClusterIP","selector":{"a":"b","c":"d"}}"#, Some(2)),
            ("services", r#"{"type":"ClusterIP","selector":{}}"#, None),
            ("services", r#"{"type":"ClusterIP"}"#, None),
            ("services", r#"{"type":"ExternalName","selector":{"a":"b"}}"#, None),
            (policy, r#"{"podSelector":{}}"#, Some(0)),
            (policy, "{}", Some(0)),
            (policy, r#"{"podSelector":{"matchLabels":{"a":"b"}}}"#, Some(1)),
            ("poddisruptionbudgets.policy", r#"{"selector":null}"#, None),
            ("poddisruptionbudgets.policy", r#"{"selector":{}}"#, Some(0)),
            (
                "poddisruptionbudgets.policy",
                r#"{"selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"Exists"}]}}"#,
                Some(2),
            ),
            (
                "poddisruptionbudgets.policy",
                r#"{"selector":{"matchExpressions":[{"key":"c","operator":"Near"}]}}"#,
                None,
            ),
        ] {
            assert_eq!(of(from, "X", spec), terms, "{from} {spec}");
        }
    }
}
