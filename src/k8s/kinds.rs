//! The built-in kinds of the API server: their names, whether they are namespaced, and the field labels by which they
//! can be selected. All code that has to know a built-in kind without asking a cluster looks here. Their columns are in
//! `table`; a test compares both.
//!
//! Source: `kubectl api-resources --verbs=list,watch` of 1.20 to 1.36; for field labels kubernetes
//! `pkg/apis/*/v1/conversion.go` and `pkg/registry/*/*/strategy.go`.

/// A field label, its path if that is another one, and its value if the field is missing.
pub type FieldLabel = (&'static str, Option<&'static str>, &'static str);

/// A kind that comes with the API server, and can be listed and watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Plural: `deployments`.
    pub plural: &'static str,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Short names, and the singular.
    pub names: &'static [&'static str],
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Field labels beside `metadata.name` and `metadata.namespace`.
    pub fields: &'static [FieldLabel],
}

/// All built-in kinds, by group. If two groups share a name, the one that kubectl chooses comes first.
pub const BUILT_IN: &[BuiltIn] = &[
    namespaced("configmaps", "", &["cm", "configmap"]),
    namespaced("endpoints", "", &["ep", "endpoint"]),
    namespaced("events", "", &["ev", "event"]).selected_by(EVENTS),
    namespaced("limitranges", "", &["limits", "limitrange"]),
    cluster("namespaces", "", &["ns", "namespace"]).selected_by(&[plain("status.phase")]),
    cluster("nodes", "", &["no", "node"]).selected_by(&[("spec.unschedulable", None, "false")]),
    namespaced("persistentvolumeclaims", "", &["pvc", "persistentvolumeclaim"]),
    cluster("persistentvolumes", "", &["pv", "persistentvolume"]),
    namespaced("pods", "", &["po", "pod"]).selected_by(PODS),
    namespaced("podtemplates", "", &["podtemplate"]),
    namespaced("replicationcontrollers", "", &["rc", "replicationcontroller"]).selected_by(&[(
        "status.replicas",
        None,
        "0",
    )]),
    namespaced("resourcequotas", "", &["quota", "resourcequota"]),
    namespaced("secrets", "", &["secret"]).selected_by(&[plain("type")]),
    namespaced("serviceaccounts", "", &["sa", "serviceaccount"]),
    namespaced("services", "", &["svc", "service"])
        .selected_by(&[plain("spec.clusterIP"), plain("spec.type")]),
    cluster("mutatingadmissionpolicies", "admissionregistration.k8s.io", &["mutatingadmissionpolicy"]),
    cluster(
        "mutatingadmissionpolicybindings",
        "admissionregistration.k8s.io",
        &["mutatingadmissionpolicybinding"],
    ),
    cluster(
        "mutatingwebhookconfigurations",
        "admissionregistration.k8s.io",
        &["mutatingwebhookconfiguration"],
    ),
    cluster("validatingadmissionpolicies", "admissionregistration.k8s.io", &["validatingadmissionpolicy"]),
    cluster(
        "validatingadmissionpolicybindings",
        "admissionregistration.k8s.io",
        &["validatingadmissionpolicybinding"],
    ),
    cluster(
        "validatingwebhookconfigurations",
        "admissionregistration.k8s.io",
        &["validatingwebhookconfiguration"],
    ),
    cluster(
        "customresourcedefinitions",
        "apiextensions.k8s.io",
        &["crd", "crds", "customresourcedefinition"],
    ),
    cluster("apiservices", "apiregistration.k8s.io", &["apiservice"]),
    namespaced("controllerrevisions", "apps", &["controllerrevision"]),
    namespaced("daemonsets", "apps", &["ds", "daemonset"]),
    namespaced("deployments", "apps", &["deploy", "deployment"]),
    namespaced("replicasets", "apps", &["rs", "replicaset"]).selected_by(&[("status.replicas", None, "0")]),
    namespaced("statefulsets", "apps", &["sts", "statefulset"]),
    namespaced("horizontalpodautoscalers", "autoscaling", &["hpa", "horizontalpodautoscaler"]),
    namespaced("cronjobs", "batch", &["cj", "cronjob"]),
    namespaced("jobs", "batch", &["job"]).selected_by(&[(
        "status.successful",
        Some("status.succeeded"),
        "0",
    )]),
    cluster("certificatesigningrequests", "certificates.k8s.io", &["csr", "certificatesigningrequest"])
        .selected_by(&[plain("spec.signerName")]),
    cluster("clustertrustbundles", "certificates.k8s.io", &["clustertrustbundle"])
        .selected_by(&[plain("spec.signerName")]),
    namespaced("podcertificaterequests", "certificates.k8s.io", &["podcertificaterequest"]).selected_by(&[
        plain("spec.signerName"),
        plain("spec.podName"),
        plain("spec.nodeName"),
    ]),
    namespaced("leasecandidates", "coordination.k8s.io", &["leasecandidate"]),
    namespaced("leases", "coordination.k8s.io", &["lease"]),
    namespaced("endpointslices", "discovery.k8s.io", &["endpointslice"]),
    namespaced("events", "events.k8s.io", &["ev", "event"]).selected_by(NEW_EVENTS),
    cluster("flowschemas", "flowcontrol.apiserver.k8s.io", &["flowschema"]),
    cluster("prioritylevelconfigurations", "flowcontrol.apiserver.k8s.io", &["prioritylevelconfiguration"]),
    cluster("storageversions", "internal.apiserver.k8s.io", &["storageversion"]),
    cluster("ingressclasses", "networking.k8s.io", &["ingressclass"]),
    namespaced("ingresses", "networking.k8s.io", &["ing", "ingress"]),
    cluster("ipaddresses", "networking.k8s.io", &["ip", "ipaddress"]),
    namespaced("networkpolicies", "networking.k8s.io", &["netpol", "networkpolicy"]),
    cluster("servicecidrs", "networking.k8s.io", &["servicecidr"]),
    cluster("runtimeclasses", "node.k8s.io", &["runtimeclass"]),
    namespaced("poddisruptionbudgets", "policy", &["pdb", "poddisruptionbudget"]),
    cluster("podsecuritypolicies", "policy", &["psp", "podsecuritypolicy"]),
    cluster("clusterrolebindings", "rbac.authorization.k8s.io", &["clusterrolebinding"]),
    cluster("clusterroles", "rbac.authorization.k8s.io", &["clusterrole"]),
    namespaced("rolebindings", "rbac.authorization.k8s.io", &["rolebinding"]),
    namespaced("roles", "rbac.authorization.k8s.io", &["role"]),
    cluster("deviceclasses", "resource.k8s.io", &["deviceclass"]),
    cluster("devicetaintrules", "resource.k8s.io", &["devicetaintrule"]),
    namespaced("resourceclaims", "resource.k8s.io", &["resourceclaim"]),
    namespaced("resourceclaimtemplates", "resource.k8s.io", &["resourceclaimtemplate"]),
    cluster("resourceslices", "resource.k8s.io", &["resourceslice"])
        .selected_by(&[plain("spec.nodeName"), plain("spec.driver")]),
    cluster("priorityclasses", "scheduling.k8s.io", &["pc", "priorityclass"]),
    cluster("csidrivers", "storage.k8s.io", &["csidriver"]),
    cluster("csinodes", "storage.k8s.io", &["csinode"]),
    namespaced("csistoragecapacities", "storage.k8s.io", &["csistoragecapacity"]),
    cluster("storageclasses", "storage.k8s.io", &["sc", "storageclass"]),
    cluster("volumeattachments", "storage.k8s.io", &["volumeattachment"]),
    cluster("volumeattributesclasses", "storage.k8s.io", &["vac", "volumeattributesclass"]),
    cluster("storageversionmigrations", "storagemigration.k8s.io", &["storageversionmigration"]),
    namespaced("ingresses", "extensions", &["ing", "ingress"]),
];

const PODS: &[FieldLabel] = &[
    plain("spec.nodeName"),
    plain("spec.restartPolicy"),
    plain("spec.schedulerName"),
    plain("spec.serviceAccountName"),
    ("spec.hostNetwork", None, "false"),
    plain("status.phase"),
    plain("status.podIP"),
    plain("status.podIPs"),
    plain("status.nominatedNodeName"),
    ("spec.host", Some("spec.nodeName"), ""),
];

const EVENTS: &[FieldLabel] = &[
    plain("involvedObject.kind"),
    plain("involvedObject.namespace"),
    plain("involvedObject.name"),
    plain("involvedObject.uid"),
    plain("involvedObject.apiVersion"),
    plain("involvedObject.resourceVersion"),
    plain("involvedObject.fieldPath"),
    plain("reason"),
    plain("reportingComponent"),
    ("source", Some("source.component"), ""),
    plain("type"),
];

/// `AddFieldLabelConversionsForEvent` of `pkg/apis/events/v1`: the names of this group, and `source`.
const NEW_EVENTS: &[FieldLabel] = &[
    plain("regarding.kind"),
    plain("regarding.namespace"),
    plain("regarding.name"),
    plain("regarding.uid"),
    plain("regarding.apiVersion"),
    plain("regarding.resourceVersion"),
    plain("regarding.fieldPath"),
    plain("reason"),
    plain("reportingController"),
    ("source", Some("deprecatedSource.component"), ""),
    plain("type"),
];

const fn plain(label: &'static str) -> FieldLabel {
    (label, None, "")
}

const fn namespaced(plural: &'static str, group: &'static str, names: &'static [&'static str]) -> BuiltIn {
    BuiltIn { plural, group, names, namespaced: true, fields: &[] }
}

const fn cluster(plural: &'static str, group: &'static str, names: &'static [&'static str]) -> BuiltIn {
    BuiltIn { plural, group, names, namespaced: false, fields: &[] }
}

/// The kind of a plural in a group.
pub fn built_in(plural: &str, group: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|kind| kind.plural == plural && kind.group == group)
}

/// The kind with this plural, singular or short name: in a group, or else the one that kubectl chooses.
pub fn built_in_named(word: &str, group: Option<&str>) -> Option<&'static BuiltIn> {
    let is_meant = |kind: &&BuiltIn| {
        (kind.plural == word || kind.names.contains(&word)) && group.is_none_or(|group| kind.group == group)
    };
    BUILT_IN.iter().find(is_meant)
}

// === impl BuiltIn ===

impl BuiltIn {
    const fn selected_by(self, fields: &'static [FieldLabel]) -> Self {
        Self { fields, ..self }
    }

    /// `pods`, `deployments.apps`.
    pub fn canonical(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::k8s::is_built_in_group;

    #[test]
    fn each_kind_is_listed_once_and_in_a_known_group() {
        let mut seen = BTreeSet::new();
        for kind in BUILT_IN {
            assert!(is_built_in_group(kind.group), "{kind:?}");
            assert!(seen.insert(kind.canonical()), "{kind:?} occurs twice");
        }
    }

    #[test]
    fn names_resolve_to_the_resources_of_kubectl() {
        for (word, group, expected) in [
            ("events", None, "events"),
            ("ev", Some("events.k8s.io"), "events.events.k8s.io"),
            ("ing", None, "ingresses.networking.k8s.io"),
            ("hpa", None, "horizontalpodautoscalers.autoscaling"),
            ("runtimeclass", None, "runtimeclasses.node.k8s.io"),
        ] {
            assert_eq!(
                built_in_named(word, group).map(BuiltIn::canonical).as_deref(),
                Some(expected),
                "{word}"
            );
        }
        assert_eq!(built_in_named("pods", Some("apps")), None);
    }
}
