//! The cluster: every kind's table behind one revision counter, as one etcd holds them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;

use super::kinds;
use super::managed_fields::Manager;
use super::state::State;
use super::status::Status;
use super::table::{Counters, Table};
use super::write::{Door, Place};

/// Settings of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct ClusterConfig {
    /// Seeds the uids, so that the same writes make the same objects.
    pub seed: u64,
    /// Events kept per kind; a watch from before them is answered with 410.
    pub window_events_max: usize,
}

impl Default for ClusterConfig {
    /// Seed 0, and the window that kube-apiserver's watch cache grows to at most (102,400 events).
    fn default() -> Self {
        Self { seed: 0, window_events_max: 102_400 }
    }
}

/// A Kubernetes cluster's state in memory, with etcd's revisions: one counter for all kinds, +1 per write.
///
/// Cloning makes another handle on the same cluster. Every method takes the lock for a short time and never waits
/// for anything else.
#[derive(Debug, Clone)]
pub struct Cluster {
    state: Arc<Mutex<State>>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new(ClusterConfig::default())
    }
}

impl Cluster {
    /// A cluster with the built-in kinds, the namespaces `default` and `kube-system`, and the demo's `widgets`.
    #[must_use]
    pub fn new(config: ClusterConfig) -> Self {
        let mut state = State {
            revision: 1,
            tables: BTreeMap::new(),
            window_events_max: config.window_events_max.max(1),
            rng: StdRng::seed_from_u64(config.seed),
            clock_millis: None,
            graceful_pods: false,
            service_ips: 1,
        };
        for kind in kinds::built_in() {
            state.tables.insert(kind.resource(), Table::new(kind, 1));
        }
        let cluster = Self { state: Arc::new(Mutex::new(state)) };
        for name in ["default", "kube-system"] {
            let namespace = serde_json::json!({"metadata": {"name": name}});
            cluster.create("namespaces", namespace).expect("the name is free in a new cluster");
        }
        let widgets = kinds::widget_definition();
        cluster.create("customresourcedefinitions", widgets).expect("the built-in definition is valid");
        cluster
    }

    /// Creates `object` in `resource` (`pods`, `po`, `deployments.apps`, …), including its status, and returns it as stored.
    ///
    /// # Errors
    /// As the HTTP interface: 404 for an unknown resource, 409 for a taken name, 422 without a name.
    pub fn create(&self, resource: &str, object: Value) -> Result<Value, Status> {
        let mut state = self.lock();
        let resource = state.resolve(resource)?;
        let stored = state.create(&resource, "", object, Door::direct())?;
        Ok(state.complete(&resource, &stored))
    }

    /// Replaces an object as a whole, status included; with `metadata.resourceVersion` only if it is the current one.
    ///
    /// # Errors
    /// 404 if it does not exist, 409 if its resourceVersion is another.
    pub fn update(&self, resource: &str, object: Value) -> Result<Value, Status> {
        let mut state = self.lock();
        let resource = state.resolve(resource)?;
        let place = Place::of(&resource, &object);
        let stored = state.update(&place, Door::direct(), |_| Ok(object))?;
        Ok(state.complete(&resource, &stored))
    }

    /// Merges `patch` (RFC 7386) into an object, status included; `namespace` is empty for cluster-scoped ones.
    ///
    /// # Errors
    /// 404 if it does not exist, 409 if the patch names another resourceVersion.
    pub fn patch(&self, resource: &str, namespace: &str, name: &str, patch: &Value) -> Result<Value, Status> {
        let mut state = self.lock();
        let resource = state.resolve(resource)?;
        let place = Place::new(&resource, namespace, name);
        let stored = state.update(&place, Door::direct(), |mut object| {
            super::patch::merge(&mut object, patch);
            Ok(object)
        })?;
        Ok(state.complete(&resource, &stored))
    }

    /// Deletes an object at once, or marks it when it has finalizers.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> Result<(), Status> {
        let mut state = self.lock();
        let resource = state.resolve(resource)?;
        state.delete(&Place::new(&resource, namespace, name), &Value::Null, Some(0), Door::direct())?;
        Ok(())
    }

    /// One object as it is now, with `kind` and `apiVersion`.
    #[must_use]
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let state = self.lock();
        let resource = state.resolve(resource).ok()?;
        let stored = state.tables[&resource].objects.get(&super::object::key_of(namespace, name))?;
        Some(state.complete(&resource, stored))
    }

    /// Every object of a resource as it is now, in key order, with `kind` and `apiVersion`; empty if unknown.
    #[must_use]
    pub fn list(&self, resource: &str) -> Vec<Value> {
        let state = self.lock();
        let Ok(resource) = state.resolve(resource) else { return Vec::new() };
        state.tables[&resource].objects.values().map(|o| state.complete(&resource, o)).collect()
    }

    /// How many objects a resource has.
    #[must_use]
    pub fn len(&self, resource: &str) -> usize {
        let state = self.lock();
        state.resolve(resource).map_or(0, |r| state.tables[&r].objects.len())
    }

    /// Whether a resource has no objects.
    #[must_use]
    pub fn is_empty(&self, resource: &str) -> bool {
        self.len(resource) == 0
    }

    /// The revision of the last write.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// Requests and events so far, by resource (`pods`, `deployments.apps`).
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, Counters> {
        self.lock().tables.iter().map(|(name, table)| (name.clone(), table.counters)).collect()
    }

    /// Forgets all history, as an etcd compaction followed by a restart of the API server's caches does: older
    /// resourceVersions are answered with 410, and continue tokens expire.
    pub fn compact(&self) {
        let mut state = self.lock();
        let revision = state.revision;
        state.tables.values_mut().for_each(|table| table.forget(revision));
    }

    /// An independent copy of the current state, as a backup of etcd. What it creates gets other uids than what this cluster creates:
    /// an API server draws them at random.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.lock().fork())) }
    }

    /// Stops the cluster's clock at `unix_millis`, so that timestamps are the caller's; `None` lets it run again.
    pub fn set_clock(&self, unix_millis: Option<u64>) {
        self.lock().clock_millis = unix_millis;
    }

    /// Sets whether deleting a scheduled pod only marks it, so that a kubelet removes it. Off unless a scenario plays the kubelet.
    pub fn set_graceful_pods(&self, on: bool) {
        self.lock().graceful_pods = on;
    }

    /// Sets the clock as [`Cluster::set_clock`], and returns its previous setting.
    pub(super) fn swap_clock(&self, unix_millis: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.lock().clock_millis, unix_millis)
    }

    /// The cluster's time, in milliseconds since 1970.
    #[must_use]
    pub fn now_millis(&self) -> u64 {
        self.lock().now_millis()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock can only be a failed invariant; the state is used as it is.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Door<'_> {
    /// The Rust interface: whole objects, status included, written by a controller.
    pub(super) fn direct() -> Self {
        let manager = Manager { name: "kube-controller-manager", operation: "Update", subresource: "" };
        Self { manager, part: super::write::Part::Whole, commit: super::write::Commit::Store }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_copy_of_a_cluster_draws_other_uids() {
        let cluster = Cluster::default();
        let uid = |cluster: &Cluster, name: &str| {
            let object = json!({"metadata": {"namespace": "default", "name": name}});
            cluster.create("configmaps", object).unwrap()["metadata"]["uid"].clone()
        };
        let before = uid(&cluster, "before");
        let copy = cluster.fork();
        assert_eq!(copy.get("configmaps", "default", "before").unwrap()["metadata"]["uid"], before);
        assert_ne!(uid(&copy, "after"), uid(&cluster, "after"));
    }
}
