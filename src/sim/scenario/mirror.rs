//! The scenario's own copy of one resource as trees, so that a step parses only what changed.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::cluster::Cluster;

/// Objects by key, as of the last refresh.
#[derive(Debug)]
pub(super) struct Mirror {
    resource: &'static str,
    /// The revision of the last write to this resource that the copy contains.
    revision: u64,
    objects: BTreeMap<String, (u64, Value)>,
}

impl Mirror {
    pub(super) fn new(resource: &'static str) -> Self {
        Self { resource, revision: 0, objects: BTreeMap::new() }
    }

    pub(super) fn refresh(&mut self, cluster: &Cluster) {
        let state = cluster.lock();
        let Some(table) = state.served(self.resource) else { return };
        let newest = *table.changed.borrow();
        if newest == self.revision {
            return;
        }
        self.revision = newest;
        self.objects.retain(|key, _| table.objects.contains_key(key));
        for (key, stored) in &table.objects {
            if self.objects.get(key).is_none_or(|(revision, _)| *revision != stored.revision) {
                self.objects.insert(key.clone(), (stored.revision, stored.value()));
            }
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// In key order.
    pub(super) fn values(&self) -> impl Iterator<Item = &Value> {
        self.objects.values().map(|(_, value)| value)
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// The objects whose controlling owner has this uid.
    pub(super) fn owned_by<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Value> {
        self.values().filter(move |value| owner_uid(value) == uid)
    }
}

pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter().try_fold(value, |at, step| at.get(step)).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn name(value: &Value) -> &str {
    text(value, &["metadata", "name"])
}

pub(super) fn namespace(value: &Value) -> &str {
    text(value, &["metadata", "namespace"])
}

pub(super) fn uid(value: &Value) -> &str {
    text(value, &["metadata", "uid"])
}

pub(super) fn owner_uid(value: &Value) -> &str {
    value["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default()
}

/// Whether the scenario created it. Objects of users are not touched.
pub(super) fn is_own(value: &Value) -> bool {
    value["metadata"]["labels"]["app.kubernetes.io/part-of"] == "demo"
}

pub(super) fn is_deleted(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}
