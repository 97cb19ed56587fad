//! The served kinds: built-in ones, and those that CustomResourceDefinitions add.

use serde_json::Value;

/// One served kind, in one scope, possibly in several versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    /// Empty for the core group.
    pub(super) group: String,
    /// Served versions, the preferred first. All hold the same content (conversion strategy `None`).
    pub(super) versions: Vec<String>,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) list_kind: String,
    pub(super) short_names: Vec<String>,
    pub(super) categories: Vec<String>,
    pub(super) scope: Scope,
    pub(super) origin: Origin,
    /// Subresources besides the object itself: `status`, `scale`.
    pub(super) subresources: Vec<&'static str>,
    /// `selectableFields` of a custom kind, without the leading dot.
    pub(super) selectable_fields: Vec<String>,
}

/// Whether objects live in namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Namespaced,
    Cluster,
}

/// Whether a kind is built in or comes from a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    BuiltIn,
    Custom,
}

/// The field labels of each built-in kind, beyond name and namespace.
const FIELD_SELECTORS: &[(&str, &[&str])] = &[
    (
        "pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
    ),
    (
        "events",
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
    ),
    ("secrets", &["type"]),
    ("namespaces", &["status.phase"]),
    ("nodes", &["spec.unschedulable"]),
    ("replicasets", &["status.replicas"]),
];

impl Kind {
    /// `plural`, or `plural.group`: the resource's name in errors and in the Rust interface.
    pub(super) fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `v1`, `apps/v1`.
    pub(super) fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.into() } else { format!("{}/{version}", self.group) }
    }

    pub(super) fn preferred(&self) -> &str {
        &self.versions[0]
    }

    pub(super) fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    pub(super) fn is_custom(&self) -> bool {
        self.origin == Origin::Custom
    }

    pub(super) fn has(&self, subresource: &str) -> bool {
        self.subresources.contains(&subresource)
    }

    /// Whether the server counts `metadata.generation` up when the specification changes.
    pub(super) fn has_generation(&self) -> bool {
        self.is_custom()
            || matches!(self.plural.as_str(), "deployments" | "replicasets" | "customresourcedefinitions")
    }

    pub(super) fn field_selectors(&self) -> impl Iterator<Item = &str> {
        let built_in =
            FIELD_SELECTORS.iter().filter(|(plural, _)| !self.is_custom() && *plural == self.plural);
        built_in
            .flat_map(|(_, paths)| paths.iter().copied())
            .chain(self.selectable_fields.iter().map(String::as_str))
    }

    /// The start of an object's JSON up to its own content: `{"kind":…,"apiVersion":…,`.
    pub(super) fn head(&self, version: &str) -> String {
        let (kind, api_version) = (&self.kind, self.api_version(version));
        if self.is_custom() {
            format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}","#)
        } else {
            format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#)
        }
    }

    /// The kind that a CustomResourceDefinition defines, or what is wrong with it.
    pub(super) fn from_definition(definition: &Value) -> Result<Self, String> {
        let spec = &definition["spec"];
        let names = &spec["names"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts =
            |value: &Value| value.as_array().map_or_else(Vec::new, |list| list.iter().map(text).collect());
        let (plural, kind, group) = (text(&names["plural"]), text(&names["kind"]), text(&spec["group"]));
        if plural.is_empty() || kind.is_empty() || group.is_empty() {
            return Err("spec.group, spec.names.plural and spec.names.kind are required".into());
        }
        let served: Vec<&Value> = spec["versions"].as_array().map_or_else(Vec::new, |list| {
            list.iter().filter(|v| v["served"] != Value::Bool(false)).collect()
        });
        let Some(first) = served.first() else {
            return Err("spec.versions needs at least one served version".into());
        };
        let mut subresources = Vec::new();
        for name in ["status", "scale"] {
            if served.iter().any(|v| v["subresources"].get(name).is_some()) {
                subresources.push(name);
            }
        }
        let selectable = first["selectableFields"].as_array().map_or_else(Vec::new, |list| {
            list.iter().map(|f| text(&f["jsonPath"]).trim_start_matches('.').to_owned()).collect()
        });
        let or = |given: String, otherwise: String| if given.is_empty() { otherwise } else { given };
        Ok(Self {
            versions: served.iter().map(|v| text(&v["name"])).collect(),
            singular: or(text(&names["singular"]), kind.to_lowercase()),
            list_kind: or(text(&names["listKind"]), format!("{kind}List")),
            short_names: texts(&names["shortNames"]),
            categories: texts(&names["categories"]),
            scope: if spec["scope"] == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
            origin: Origin::Custom,
            subresources,
            selectable_fields: selectable,
            group,
            plural,
            kind,
        })
    }
}

/// The kinds every cluster serves.
pub(super) fn built_in() -> Vec<Kind> {
    use Scope::{Cluster, Namespaced};
    let all = &["all"][..];
    vec![
        kind("", "configmaps", "ConfigMap", &["cm"], &[], Namespaced, &[]),
        kind("", "events", "Event", &["ev"], &[], Namespaced, &[]),
        kind("", "namespaces", "Namespace", &["ns"], &[], Cluster, &["status"]),
        kind("", "nodes", "Node", &["no"], &[], Cluster, &["status"]),
        kind("", "pods", "Pod", &["po"], all, Namespaced, &["status"]),
        kind("", "secrets", "Secret", &[], &[], Namespaced, &[]),
        kind("", "serviceaccounts", "ServiceAccount", &["sa"], &[], Namespaced, &[]),
        kind("", "services", "Service", &["svc"], all, Namespaced, &["status"]),
        kind("apps", "deployments", "Deployment", &["deploy"], all, Namespaced, &["scale", "status"]),
        kind("apps", "replicasets", "ReplicaSet", &["rs"], all, Namespaced, &["scale", "status"]),
        kind("coordination.k8s.io", "leases", "Lease", &[], &[], Namespaced, &[]),
        kind(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            &["crd", "crds"],
            &["api-extensions"],
            Cluster,
            &["status"],
        ),
    ]
}

fn kind(
    group: &str,
    plural: &str,
    kind: &str,
    short_names: &[&str],
    categories: &[&str],
    scope: Scope,
    subresources: &[&'static str],
) -> Kind {
    let owned = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect();
    Kind {
        group: group.into(),
        versions: vec!["v1".into()],
        plural: plural.into(),
        singular: kind.to_lowercase(),
        kind: kind.into(),
        list_kind: format!("{kind}List"),
        short_names: owned(short_names),
        categories: owned(categories),
        scope,
        origin: Origin::BuiltIn,
        subresources: subresources.to_vec(),
        selectable_fields: Vec::new(),
    }
}

/// The definition of the demo's custom kind, `widgets.demo.informerd.dev`.
pub(super) fn widget_definition() -> Value {
    serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.demo.informerd.dev"},
        "spec": {
            "group": "demo.informerd.dev",
            "names": {
                "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList",
                "shortNames": ["wd"], "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [
                    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {"type": "object", "properties": {
                            "color": {"type": "string"}, "size": {"type": "integer"},
                        }},
                        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    },
                }},
            }],
        },
    })
}
