//! Deployment and replica set controllers, and the garbage collector; one write at a time.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Scenario;
use super::mirror::{Mirror, is_deleted, is_ready, name, namespace, owner_uid, text, uid};

/// Number of empty replica sets that are kept for each deployment.
const OLD_REPLICA_SETS_MAX: usize = 2;

impl Scenario {
    /// The first write that the controllers have to make, if any.
    pub(super) fn run_controllers(&mut self) -> bool {
        // Controllers read only these three resources, so nothing is to be done until one of them changes.
        let seen = [&self.deployments, &self.replica_sets, &self.pods].map(Mirror::revision);
        if self.at_rest == seen {
            return false;
        }
        let wrote = self.collect_garbage() || self.run_deployments() || self.run_replica_sets();
        if !wrote {
            self.at_rest = seen;
        }
        wrote
    }

    /// Deletes an object whose owner is gone.
    fn collect_garbage(&self) -> bool {
        let owners: BTreeSet<&str> =
            self.deployments.values().chain(self.replica_sets.values()).map(uid).collect();
        let orphan = |object: &&Value| !owner_uid(object).is_empty() && !owners.contains(owner_uid(object));
        if let Some(set) = self.replica_sets.values().find(orphan) {
            return self.cluster.delete("replicasets.apps", namespace(set), name(set)).is_ok();
        }
        match self.pods.values().filter(|pod| !is_deleted(pod)).find(orphan) {
            Some(pod) => self.delete_gracefully(pod),
            None => false,
        }
    }

    /// Deletes a pod as a user does: it is marked first, and gone when its kubelet has stopped it.
    pub(super) fn delete_gracefully(&self, pod: &Value) -> bool {
        let place = super::super::write::Place::new("pods", namespace(pod), name(pod));
        let door = super::super::write::Door::direct();
        self.cluster.lock().delete(&place, &Value::Null, None, door).is_ok()
    }

    /// Keeps the hash of each deployment's template, which is expensive and changes only with the generation.
    fn hash_templates(&mut self) {
        let present: BTreeSet<&str> = self.deployments.values().map(uid).collect();
        self.template_hashes.retain(|key, _| present.contains(key.as_str()));
        for deployment in self.deployments.values() {
            let generation = deployment["metadata"]["generation"].as_u64().unwrap_or(0);
            let known = self.template_hashes.get(uid(deployment));
            if known.is_none_or(|(at, _)| *at != generation) {
                let hash = template_hash(&deployment["spec"]["template"]);
                self.template_hashes.insert(uid(deployment).to_owned(), (generation, hash));
            }
        }
    }

    fn run_deployments(&mut self) -> bool {
        self.hash_templates();
        self.deployments.values().filter(|d| !is_deleted(d)).any(|deployment| self.run_deployment(deployment))
    }

    fn run_deployment(&self, deployment: &Value) -> bool {
        let (_, hash) = &self.template_hashes[uid(deployment)];
        let desired = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        let sets: Vec<&Value> = self.replica_sets.owned_by(uid(deployment)).collect();
        let (new, old): (Vec<&Value>, Vec<&Value>) =
            sets.iter().partition(|set| text(set, &["metadata", "labels", "pod-template-hash"]) == *hash);
        let replicas = |set: &Value| set["spec"]["replicas"].as_u64().unwrap_or(0);
        let ready = |set: &Value| set["status"]["readyReplicas"].as_u64().unwrap_or(0);
        let running: Vec<&&Value> = old.iter().filter(|set| replicas(set) > 0).collect();
        let Some(new) = new.first() else {
            let first = if running.is_empty() { desired } else { desired.min(1) };
            return self.create_replica_set(deployment, hash, first, sets.len());
        };
        let total: u64 = sets.iter().map(|set| replicas(set)).sum();
        let available: u64 = sets.iter().map(|set| ready(set).min(replicas(set))).sum();
        let wanted = if running.is_empty() || replicas(new) > desired {
            desired
        } else if replicas(new) < desired && total <= desired {
            replicas(new) + 1
        } else {
            replicas(new)
        };
        if wanted != replicas(new) {
            return self.scale(new, wanted);
        }
        // One below the desired number may be missing during a rollout; pods that are not ready go first.
        let spare = running.iter().find(|set| available >= desired || ready(set) < replicas(set));
        if let Some(set) = spare {
            return self.scale(set, replicas(set) - 1);
        }
        self.trim_history(&old) || self.write_deployment_status(deployment, &sets, new)
    }

    fn scale(&self, set: &Value, replicas: u64) -> bool {
        let patch = json!({"spec": {"replicas": replicas}});
        self.cluster.patch("replicasets.apps", namespace(set), name(set), &patch).is_ok()
    }

    fn create_replica_set(&self, deployment: &Value, hash: &str, replicas: u64, earlier: usize) -> bool {
        let mut template = deployment["spec"]["template"].clone();
        template["metadata"]["labels"]["pod-template-hash"] = hash.into();
        let mut selector = deployment["spec"]["selector"].clone();
        selector["matchLabels"]["pod-template-hash"] = hash.into();
        let set = json!({
            "metadata": {
                "name": format!("{}-{hash}", name(deployment)),
                "namespace": namespace(deployment),
                "labels": template["metadata"]["labels"],
                "annotations": {
                    "deployment.kubernetes.io/desired-replicas": deployment["spec"]["replicas"].to_string(),
                    "deployment.kubernetes.io/revision": (earlier + 1).to_string(),
                },
                "ownerReferences": [owner("apps/v1", "Deployment", deployment)],
            },
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        });
        self.cluster.create("replicasets.apps", set).is_ok()
    }

    fn trim_history(&self, old: &[&Value]) -> bool {
        let mut empty: Vec<&&Value> = old.iter().filter(|set| set["status"]["replicas"] == 0).collect();
        empty.sort_by_key(|set| (text(set, &["metadata", "creationTimestamp"]), name(set)));
        match empty.first() {
            Some(oldest) if empty.len() > OLD_REPLICA_SETS_MAX => {
                self.cluster.delete("replicasets.apps", namespace(oldest), name(oldest)).is_ok()
            }
            _ => false,
        }
    }

    fn write_deployment_status(&self, deployment: &Value, sets: &[&Value], new: &Value) -> bool {
        let sum = |field: &str| -> u64 { sets.iter().filter_map(|set| set["status"][field].as_u64()).sum() };
        let (total, ready) = (sum("replicas"), sum("readyReplicas"));
        let updated = new["status"]["replicas"].as_u64().unwrap_or(0);
        let desired = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        let available = if ready + 1 >= desired { "True" } else { "False" };
        let complete = updated == desired && total == desired && ready == desired;
        let reason = if complete { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" };
        let status = json!({
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": total, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": ready,
            "unavailableReplicas": desired.saturating_sub(ready),
            "conditions": [
                {"type": "Available", "status": available, "reason": if available == "True" { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" }},
                {"type": "Progressing", "status": "True", "reason": reason},
            ],
        });
        self.write_status("deployments.apps", deployment, &status)
    }

    fn run_replica_sets(&mut self) -> bool {
        let sets: Vec<Value> = self.replica_sets.values().filter(|set| !is_deleted(set)).cloned().collect();
        sets.iter().any(|set| self.run_replica_set(set))
    }

    fn run_replica_set(&mut self, set: &Value) -> bool {
        let pods: Vec<&Value> = self.pods.owned_by(uid(set)).filter(|pod| !is_deleted(pod)).collect();
        let desired = usize::try_from(set["spec"]["replicas"].as_u64().unwrap_or(1)).unwrap_or(usize::MAX);
        if pods.len() > desired {
            // Those that are not ready go first, then the youngest.
            let rank = |pod: &&&Value| {
                (
                    !is_ready(pod),
                    text(pod, &["metadata", "creationTimestamp"]).to_owned(),
                    name(pod).to_owned(),
                )
            };
            let surplus =
                pods.iter().max_by_key(rank).expect("there are more pods than wanted, so at least one");
            return self.delete_gracefully(surplus);
        }
        if pods.len() < desired {
            let suffix = self.suffix();
            return self.create_pod(set, &suffix);
        }
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        let status = json!({
            "observedGeneration": set["metadata"]["generation"],
            "replicas": pods.len(), "fullyLabeledReplicas": pods.len(), "readyReplicas": ready, "availableReplicas": ready,
        });
        self.write_status("replicasets.apps", set, &status)
    }

    fn create_pod(&self, set: &Value, suffix: &str) -> bool {
        let template = &set["spec"]["template"];
        let mut metadata = template["metadata"].clone();
        metadata["name"] = format!("{}-{suffix}", name(set)).into();
        metadata["generateName"] = format!("{}-", name(set)).into();
        metadata["namespace"] = namespace(set).into();
        metadata["ownerReferences"] = json!([owner("apps/v1", "ReplicaSet", set)]);
        self.cluster.create("pods", json!({"metadata": metadata, "spec": template["spec"]})).is_ok()
    }

    /// Writes a status if it differs from the current one.
    fn write_status(&self, resource: &str, object: &Value, status: &Value) -> bool {
        let mut merged = object["status"].clone();
        super::super::patch::merge(&mut merged, status);
        if merged == object["status"] {
            return false;
        }
        let patch = json!({"status": status});
        self.cluster.patch(resource, namespace(object), name(object), &patch).is_ok()
    }
}

fn owner(api_version: &str, kind: &str, object: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "name": name(object), "uid": uid(object),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// A hash of the template's text (FNV-1a) in ten characters, for the names of replica sets.
fn template_hash(template: &Value) -> String {
    let text = template.to_string();
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{:010x}", hash & 0xff_ffff_ffff)
}
