//! Field labels: which ones a kind knows, and where their values are.
//!
//! A field label is not always a path into the JSON, and a value that the API server computes is there even where the
//! JSON leaves it out. Source: kubernetes `pkg/apis/*/v1/conversion.go` and `pkg/registry/*/*/strategy.go`.

use super::super::ApiError;
use crate::k8s::{FieldPath, FieldSelector, Resource};

/// A field label: its path where that is another, and what it is where it is missing.
type Label = (&'static str, Option<&'static str>, &'static str);

const fn plain(label: &'static str) -> Label {
    (label, None, "")
}

const PODS: &[Label] = &[
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

const EVENTS: &[Label] = &[
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

const NEW_EVENTS: &[Label] = &[
    ("involvedObject.kind", Some("regarding.kind"), ""),
    ("involvedObject.namespace", Some("regarding.namespace"), ""),
    ("involvedObject.name", Some("regarding.name"), ""),
    ("involvedObject.uid", Some("regarding.uid"), ""),
    ("involvedObject.apiVersion", Some("regarding.apiVersion"), ""),
    ("involvedObject.resourceVersion", Some("regarding.resourceVersion"), ""),
    ("involvedObject.fieldPath", Some("regarding.fieldPath"), ""),
    plain("reason"),
    ("reportingComponent", Some("reportingController"), ""),
    ("source", Some("deprecatedSource.component"), ""),
    plain("type"),
];

/// Labels beside `metadata.name` and `metadata.namespace`, by group and plural.
const LABELS: &[(&str, &str, &[Label])] = &[
    ("", "pods", PODS),
    ("", "events", EVENTS),
    ("events.k8s.io", "events", NEW_EVENTS),
    ("", "secrets", &[plain("type")]),
    ("", "namespaces", &[plain("status.phase")]),
    ("", "nodes", &[("spec.unschedulable", None, "false")]),
    ("", "replicationcontrollers", &[("status.replicas", None, "0")]),
    ("apps", "replicasets", &[("status.replicas", None, "0")]),
    ("batch", "jobs", &[("status.successful", Some("status.succeeded"), "0")]),
    ("certificates.k8s.io", "certificatesigningrequests", &[plain("spec.signerName")]),
    ("resource.k8s.io", "resourceslices", &[plain("spec.nodeName"), plain("spec.driver")]),
];

/// A selector by field labels as one by paths. Of custom resources any scalar may be selected by: which ones the
/// definition of a custom kind allows (`selectableFields`) is not told by discovery.
///
/// # Errors
/// 400 where a kind does not know a label.
pub(super) fn placed(resource: &Resource, fields: FieldSelector) -> Result<FieldSelector, ApiError> {
    let (group, plural) = (resource.group(), resource.plural());
    let labels = LABELS.iter().find(|(of, name, _)| *of == group && *name == plural);
    let labels = labels.map(|(_, _, labels)| *labels).unwrap_or_default();
    fields.placed(|label| {
        let at = |path: &str, missing| Ok(FieldPath { path: path.to_owned(), missing, arrays: false });
        if matches!(label, "metadata.name" | "metadata.namespace") || !resource.is_built_in() {
            return at(label, "");
        }
        match labels.iter().find(|(known, _, _)| *known == label) {
            Some((_, path, missing)) => at(path.unwrap_or(label), missing),
            None if labels.is_empty() => {
                let known = r#"only "metadata.name", "metadata.namespace""#;
                Err(ApiError::bad_request(format!("{label:?} is not a known field selector: {known}")))
            }
            None => Err(ApiError::bad_request(format!("field label not supported: {label}"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::ResourceParts;

    fn check(group: &str, plural: &str, fields: &str) -> Result<String, String> {
        let parts = ResourceParts { group: group.into(), plural: plural.into(), ..Default::default() };
        let placed = placed(&Resource::new(parts), FieldSelector::parse(fields).unwrap());
        placed.map(|fields| fields.to_string()).map_err(|error| error.status().message.clone())
    }

    #[test]
    fn each_kind_knows_its_own_labels() {
        let same = |fields: &str| Ok(fields.to_owned());
        let fields = "metadata.name=a,metadata.namespace!=b";
        assert_eq!(check("", "configmaps", fields), same(fields));
        assert_eq!(check("", "pods", "spec.nodeName=n"), same("spec.nodeName=n"));
        assert_eq!(check("batch", "jobs", "status.successful=1"), same("status.succeeded=1"));
        assert_eq!(check("", "events", "source=kubelet"), same("source.component=kubelet"));
        assert_eq!(check("demo.example.com", "widgets", "spec.color=red"), same("spec.color=red"));
        let slices = "spec.driver=gpu,spec.nodeName=n";
        assert_eq!(check("resource.k8s.io", "resourceslices", slices), same(slices));
        assert!(check("resource.k8s.io", "resourceclaims", "spec.x=1").is_err(), "a built-in kind");
        assert_eq!(check("", "pods", "spec.x=1"), Err("field label not supported: spec.x".into()));
        assert_eq!(
            check("", "configmaps", "spec.x=1"),
            Err(r#""spec.x" is not a known field selector: only "metadata.name", "metadata.namespace""#
                .into())
        );
    }
}
