//! Tables: objects as the rows that `kubectl get` prints, as an API server makes them.
//!
//! In come a resource, its objects' JSON and the time; out go column definitions and rows of cells. The API server's
//! printers change with its versions, so the minor version is an argument too.
//!
//! For a field that an object lacks (as it was dropped, or metadata alone is held) a cell shows what it shows for an
//! unset field.

mod columns;
mod context;
mod core;
mod custom;
mod jsonpath;
mod others;
mod pods;
mod scaling;
mod text;
mod time;
mod tree;
mod workloads;

use serde::Deserialize;
use serde_json::Value;

pub use columns::Column;
pub use custom::PrinterColumn;
pub use time::Timestamp;

use super::Resource;
use context::Context;
use custom::Custom;
use tree::Tree;

/// The newest minor version whose printers are known here. Newer versions are assumed to print alike.
pub const MINOR_MAX: u32 = 36;

/// Cells for all columns of all versions, in the order of `columns.json`.
type Printer = fn(&Tree<'_>, &Context) -> Vec<Value>;

/// How objects of one resource are shown.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    minor: u32,
    cells: Cells,
}

#[derive(Debug)]
enum Cells {
    /// A printer, and which of its cells are shown.
    Printed {
        printer: Printer,
        is_shown: Vec<bool>,
    },
    Custom(Custom),
}

/// An object in a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// One for each column.
    pub cells: Vec<Value>,
    /// Whether and how the object has ended; only pods say so.
    pub completed: Option<Completed>,
}

/// How a pod came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completed {
    /// All its containers ended well.
    Succeeded,
    /// At least one did not.
    Failed,
}

// === impl Table ===

impl Table {
    /// The table of a resource; `None` if it is not known how its API server prints it. Then JSON is the better answer, from
    /// which `kubectl` prints names and ages.
    ///
    /// `custom`: a custom resource's columns (see [`PrinterColumn::of_definition`]). `minor`: the API server's minor
    /// version; `None` is the newest.
    pub fn of(resource: &Resource, custom: Option<&[PrinterColumn]>, minor: Option<u32>) -> Option<Self> {
        let minor = minor.unwrap_or(MINOR_MAX);
        if let Some(custom) = custom {
            let (custom, columns) = Custom::new(custom, minor);
            return Some(Self { columns, minor, cells: Cells::Custom(custom) });
        }
        if !resource.is_built_in() {
            return None;
        }
        let (kind, printer) = printer(resource).unwrap_or(("*", others::created));
        let columns = columns::of(kind, minor)?;
        let is_shown: Vec<bool> = columns.iter().map(|gated| gated.is_in(minor)).collect();
        let columns = columns.into_iter().filter(|gated| gated.is_in(minor));
        let columns = columns.map(|gated| gated.column).collect();
        Some(Self { columns, minor, cells: Cells::Printed { printer, is_shown } })
    }

    /// The columns, in order, including those of wide output.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// An object's row at a moment. For an object nested deeper than the parser allows (127 levels), the row has only the
    /// name.
    pub fn row(&self, json: &[u8], now: Timestamp) -> Row {
        let Ok(object) = serde_json::from_slice::<Tree<'_>>(json) else { return self.name_alone(json) };
        let context = Context { now, minor: self.minor };
        let (cells, completed) = match &self.cells {
            Cells::Custom(custom) => (custom.cells(&object, now), None),
            Cells::Printed { printer, is_shown } => {
                let cells = printer(&object, &context);
                debug_assert_eq!(cells.len(), is_shown.len(), "a cell for each column");
                let shown = cells.into_iter().zip(is_shown).filter(|(_, is_shown)| **is_shown);
                let is_pod = std::ptr::fn_addr_eq(*printer, pods::pod as Printer);
                (shown.map(|(cell, _)| cell).collect(), is_pod.then(|| completed(&object)).flatten())
            }
        };
        Row { cells, completed }
    }

    fn name_alone(&self, json: &[u8]) -> Row {
        let named: Named = serde_json::from_slice(json).unwrap_or_default();
        let cell = |column: &Column| match column.name == "Name" {
            true => named.metadata.name.as_str().into(),
            false => Value::Null,
        };
        Row { cells: self.columns.iter().map(cell).collect(), completed: None }
    }
}

/// The part of an object that is read if it is nested too deeply.
#[derive(Default, Deserialize)]
struct Named {
    metadata: NamedMetadata,
}

#[derive(Default, Deserialize)]
struct NamedMetadata {
    name: String,
}

fn completed(pod: &Tree<'_>) -> Option<Completed> {
    match pod.text("status.phase") {
        "Succeeded" => Some(Completed::Succeeded),
        "Failed" => Some(Completed::Failed),
        _ => None,
    }
}

/// The printer of a resource, and the name of its columns.
fn printer(resource: &Resource) -> Option<(&'static str, Printer)> {
    let name = resource.canonical();
    // The same objects under another group's name.
    let name = match &*name {
        "events.events.k8s.io" => "events",
        "ingresses.extensions" => "ingresses.networking.k8s.io",
        name => name,
    };
    PRINTERS.iter().find(|(known, _)| *known == name).copied()
}

const PRINTERS: &[(&str, Printer)] = &[
    ("*", others::created),
    ("apiservices.apiregistration.k8s.io", others::api_service),
    ("certificatesigningrequests.certificates.k8s.io", others::certificate_signing_request),
    ("clusterrolebindings.rbac.authorization.k8s.io", others::role_binding),
    ("configmaps", core::config_map),
    ("controllerrevisions.apps", workloads::controller_revision),
    ("cronjobs.batch", workloads::cron_job),
    ("csidrivers.storage.k8s.io", others::csi_driver),
    ("csinodes.storage.k8s.io", others::csi_node),
    ("csistoragecapacities.storage.k8s.io", others::csi_storage_capacity),
    ("daemonsets.apps", workloads::daemon_set),
    ("deployments.apps", workloads::deployment),
    ("deviceclasses.resource.k8s.io", others::aged),
    ("endpoints", core::endpoints),
    ("endpointslices.discovery.k8s.io", others::endpoint_slice),
    ("events", pods::event),
    ("flowschemas.flowcontrol.apiserver.k8s.io", others::flow_schema),
    ("horizontalpodautoscalers.autoscaling", scaling::autoscaler),
    ("ingressclasses.networking.k8s.io", others::ingress_class),
    ("ingresses.networking.k8s.io", others::ingress),
    ("ipaddresses.networking.k8s.io", others::ip_address),
    ("jobs.batch", workloads::job),
    ("leases.coordination.k8s.io", others::lease),
    ("mutatingadmissionpolicies.admissionregistration.k8s.io", others::admission_policy),
    ("mutatingadmissionpolicybindings.admissionregistration.k8s.io", others::admission_policy_binding),
    ("mutatingwebhookconfigurations.admissionregistration.k8s.io", others::webhook_configuration),
    ("namespaces", core::namespace),
    ("networkpolicies.networking.k8s.io", others::network_policy),
    ("nodes", pods::node),
    ("persistentvolumeclaims", core::persistent_volume_claim),
    ("persistentvolumes", core::persistent_volume),
    ("poddisruptionbudgets.policy", workloads::pod_disruption_budget),
    ("pods", pods::pod),
    ("podsecuritypolicies.policy", workloads::pod_security_policy),
    ("podtemplates", workloads::pod_template),
    ("priorityclasses.scheduling.k8s.io", others::priority_class),
    ("prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", others::priority_level),
    ("replicasets.apps", workloads::replica_set),
    ("replicationcontrollers", workloads::replication_controller),
    ("resourceclaims.resource.k8s.io", others::resource_claim),
    ("resourceclaimtemplates.resource.k8s.io", others::aged),
    ("resourcequotas", core::resource_quota),
    ("resourceslices.resource.k8s.io", others::resource_slice),
    ("rolebindings.rbac.authorization.k8s.io", others::role_binding),
    ("runtimeclasses.node.k8s.io", others::runtime_class),
    ("secrets", core::secret),
    ("serviceaccounts", core::service_account),
    ("servicecidrs.networking.k8s.io", others::service_cidr),
    ("services", core::service),
    ("statefulsets.apps", workloads::stateful_set),
    ("storageclasses.storage.k8s.io", others::storage_class),
    ("validatingadmissionpolicies.admissionregistration.k8s.io", others::admission_policy),
    ("validatingadmissionpolicybindings.admissionregistration.k8s.io", others::admission_policy_binding),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io", others::webhook_configuration),
    ("volumeattachments.storage.k8s.io", others::volume_attachment),
    ("volumeattributesclasses.storage.k8s.io", others::volume_attributes_class),
];

#[cfg(test)]
mod tests;
