//! Field labels: which ones a kind has, and the paths to their values.
//!
//! A field label is not always a path into the JSON, and some have a default that the JSON leaves out. The labels of
//! built-in kinds are in `k8s::BUILT_IN`.

use super::super::ApiError;
use crate::k8s::{FieldPath, FieldSelector, Resource, built_in};

/// Translates a selector by field labels into one by paths. Custom resources can be selected by any scalar, as discovery does
/// not say which ones their definition allows (`selectableFields`).
///
/// # Errors
/// 400 if the kind does not have a label.
pub(super) fn placed(resource: &Resource, fields: FieldSelector) -> Result<FieldSelector, ApiError> {
    let labels = built_in(resource.plural(), resource.group()).map(|kind| kind.fields).unwrap_or_default();
    fields.placed(|label| {
        let at = |path: &str, missing| Ok(FieldPath { path: path.into(), missing, arrays: false });
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
    fn each_kind_has_its_own_field_labels() {
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
