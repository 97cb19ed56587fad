//! Links: how objects of one kind refer to objects of another, by a name or by an owner's uid.
//!
//! Each link of the table can be followed both ways by what an index holds: from an object to the names in it, and from a
//! name to the objects that have it. Relations by a selector are not here: they have no such index, and where they matter
//! an object with the result exists (`endpointslices` for Services and Pods).
//!
//! Source: the API reference of Kubernetes 1.36, members whose description says that they name an object of another kind.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{FieldPath, IndexPath, IndexPaths, Object, Resource};

/// Objects of `from` name objects of `to`. Both are written as `PLURAL[.GROUP]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The resource of the objects with the name.
    pub from: &'static str,
    /// Where in them the name is.
    pub path: IndexPath,
    /// The resource of the objects that are named: in the same namespace, or of the cluster.
    pub to: &'static str,
    /// A path and the value that it has if `to` is the kind that is meant.
    pub when: Option<(&'static str, &'static str)>,
}

/// Where a pod's own specification is in kinds that have one.
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
];

const HPA: &str = "horizontalpodautoscalers.autoscaling";
const ROLE: &str = "roles.rbac.authorization.k8s.io";
const CLUSTER_ROLE: &str = "clusterroles.rbac.authorization.k8s.io";

/// The label of an EndpointSlice with the name of its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

static LINKS: LazyLock<Vec<Link>> = LazyLock::new(|| {
    let field = |path: String| IndexPath::Field(FieldPath::new(path));
    let mut links = Vec::new();
    for (from, prefix) in POD_SPECS {
        links.extend(IN_POD_SPEC.iter().map(|(path, to)| Link {
            from,
            path: field(format!("{prefix}.{path}")),
            to,
            when: None,
        }));
    }
    let others = OTHERS.iter();
    links.extend(others.map(|(from, path, to)| Link {
        from,
        path: field((*path).to_owned()),
        to,
        when: None,
    }));
    links.push(Link {
        from: "endpointslices.discovery.k8s.io",
        path: IndexPath::Label(SERVICE_LABEL.to_owned()),
        to: "services",
        when: None,
    });
    links.extend(BY_KIND.iter().map(|(from, path, kind_path, to, kind)| Link {
        from,
        path: field((*path).to_owned()),
        to,
        when: Some((kind_path, kind)),
    }));
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
}

/// The links of built-in kinds.
pub fn links() -> &'static [Link] {
    &LINKS
}

/// Where an object has the uids of its owners.
pub fn owner_uids() -> IndexPath {
    IndexPath::Field(FieldPath::new("metadata.ownerReferences.uid"))
}

impl Link {
    /// Whether its objects are of a resource, and so name others.
    pub fn is_from(&self, resource: &Resource) -> bool {
        is_called(resource, self.from)
    }

    /// Whether it leads to objects of a resource.
    pub fn is_to(&self, resource: &Resource) -> bool {
        is_called(resource, self.to)
    }

    /// The names that an object has.
    pub fn names(&self, object: &Object) -> Vec<String> {
        if !self.means(object) {
            return Vec::new();
        }
        names_at(&self.path, object)
    }

    /// Whether what an object names is of the resource that the link leads to.
    pub fn means(&self, object: &Object) -> bool {
        self.when.is_none_or(|(path, value)| {
            let path = IndexPath::Field(FieldPath::new(path));
            names_at(&path, object).iter().any(|kind| kind == value)
        })
    }
}

/// The values of an object at a path, without empty ones.
pub fn names_at(path: &IndexPath, object: &Object) -> Vec<String> {
    let values = IndexPaths::new(vec![path.clone()]).read(object);
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
    let (metadata, _) = object.metadata();
    let owned: Option<Owned> = serde_json::from_slice(&metadata).ok();
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
    fn an_object_names_others() {
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
            for end in [link.from, link.to] {
                let (plural, group) = end.split_once('.').unwrap_or((end, ""));
                assert!(built_in(plural, group).is_some(), "{link:?}");
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for link in links() {
            assert!(seen.insert((link.from, link.path.to_string(), link.to)), "twice: {link:?}");
        }
        assert!(links().len() > 100, "{}", links().len());
    }
}
