//! Scheduler and kubelets: pods go from Pending to Running, crash, come back, and leave.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::object::rfc3339;
use super::Scenario;
use super::mirror::{name, namespace, text, uid};
use super::stage::Stage;
use super::templates::node_address;

impl Scenario {
    /// Whether a pod waits for its next stage.
    pub(super) fn is_waiting(&self) -> bool {
        self.pods.values().any(|pod| Stage::of(pod) != Stage::Running)
    }

    /// Moves the first pod whose time is over to its next stage.
    pub(super) fn run_kubelet(&mut self, now: u64) -> bool {
        let mut due = None;
        let mut stages = std::mem::take(&mut self.stages);
        let present: BTreeSet<&str> = self.pods.values().map(uid).collect();
        stages.retain(|key, _| present.contains(key.as_str()));
        for pod in self.pods.values() {
            let stage = Stage::of(pod);
            let entry = stages.entry(uid(pod).to_owned()).or_insert((stage, now));
            if entry.0 != stage {
                *entry = (stage, now);
            }
            let spread =
                uid(pod).bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
            let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
            let crashes =
                stage == Stage::Running && self.crashing.get(uid(pod)).is_some_and(|until| *until > now);
            let stay = if crashes { Some(2_000) } else { stage.stay(spread, restarts) };
            if due.is_none() && stay.is_some_and(|stay| now >= entry.1 + stay) {
                due = Some((pod.clone(), stage));
            }
        }
        self.stages = stages;
        self.crashing.retain(|_, until| *until > now);
        due.is_some_and(|(pod, stage)| self.advance(&pod, stage, now))
    }

    fn advance(&mut self, pod: &Value, stage: Stage, now: u64) -> bool {
        let patch = match stage {
            Stage::Terminating => {
                return self.cluster.delete("pods", namespace(pod), name(pod)).is_ok();
            }
            Stage::Unscheduled => {
                let Some(node) = self.emptiest_node() else { return false };
                json!({
                    "spec": {"nodeName": node},
                    "status": {"phase": "Pending", "conditions": [condition("PodScheduled", "True", now)]},
                })
            }
            Stage::Scheduled => {
                let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
                json!({"status": status(pod, &waiting, false, 0, now)})
            }
            Stage::Creating | Stage::BackingOff => {
                let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
                let restarts = restarts + u64::from(stage == Stage::BackingOff);
                let running = json!({"running": {"startedAt": rfc3339(now)}});
                json!({"status": status(pod, &running, true, restarts, now)})
            }
            Stage::Running => json!({"status": status(pod, &exited(pod, now), false, restarts(pod), now)}),
            Stage::Failed => {
                let message = format!(
                    "back-off 10s restarting failed container={} pod={}_{}({})",
                    text(&pod["spec"]["containers"][0], &["name"]),
                    name(pod),
                    namespace(pod),
                    uid(pod)
                );
                let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}});
                json!({"status": status(pod, &waiting, false, restarts(pod), now)})
            }
        };
        self.cluster.patch("pods", namespace(pod), name(pod), &patch).is_ok()
    }

    /// The ready node with the fewest pods; of several, the first by name.
    fn emptiest_node(&self) -> Option<String> {
        let nodes = self.cluster.list("nodes");
        let load = |node: &str| self.pods.values().filter(|p| text(p, &["spec", "nodeName"]) == node).count();
        let schedulable = nodes.iter().filter(|n| n["spec"]["unschedulable"] != true);
        schedulable.map(|n| name(n).to_owned()).min_by_key(|node| (load(node), node.clone()))
    }
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

fn exited(pod: &Value, now: u64) -> Value {
    let started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"].clone();
    json!({"terminated": {
        "containerID": pod["status"]["containerStatuses"][0]["containerID"], "exitCode": 1, "reason": "Error",
        "startedAt": started, "finishedAt": rfc3339(now),
    }})
}

fn condition(name: &str, status: &str, now: u64) -> Value {
    json!({"type": name, "status": status, "lastProbeTime": null, "lastTransitionTime": rfc3339(now)})
}

/// The status that a kubelet writes, with one container status per container.
fn status(pod: &Value, state: &Value, ready: bool, restarts: u64, now: u64) -> Value {
    let spread = uid(pod).bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let digest = format!("{spread:08x}").repeat(8);
    let statuses: Vec<Value> = containers
        .iter()
        .map(|container| {
            let image = text(container, &["image"]);
            let mut entry = json!({
                "name": container["name"], "image": image, "imageID": format!("{image}@sha256:{digest}"),
                "ready": ready, "started": ready, "restartCount": restarts, "state": state, "lastState": {},
            });
            let before = &pod["status"]["containerStatuses"][0];
            for earlier in [&before["state"], &before["lastState"]] {
                if earlier["terminated"].is_object() && entry["lastState"] == json!({}) {
                    entry["lastState"] = json!({"terminated": earlier["terminated"]});
                }
            }
            if !state["waiting"].is_object() || restarts > 0 {
                entry["containerID"] = format!("containerd://{digest}").into();
            }
            entry
        })
        .collect();
    let word = if ready { "True" } else { "False" };
    let host = node_address(text(pod, &["spec", "nodeName"]));
    let created = text(pod, &["metadata", "creationTimestamp"]);
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": created});
    let initialized = json!({"type": "Initialized", "status": "True", "lastProbeTime": null, "lastTransitionTime": created});
    let mut status = json!({
        "phase": if ready || restarts > 0 || state["terminated"].is_object() { "Running" } else { "Pending" },
        "conditions": [
            condition("PodReadyToStartContainers", word, now), initialized, condition("Ready", word, now),
            condition("ContainersReady", word, now), scheduled,
        ],
        "containerStatuses": statuses, "hostIP": host, "hostIPs": [{"ip": host}],
        "qosClass": "Burstable",
        "startTime": if pod["status"]["startTime"].is_string() { pod["status"]["startTime"].clone() } else { rfc3339(now).into() },
    });
    if ready || pod["status"]["podIP"].is_string() {
        let ip = format!("10.244.{}.{}", spread >> 8 & 255, 1 + spread % 254);
        status["podIPs"] = json!([{"ip": ip}]);
        status["podIP"] = ip.into();
    }
    status
}
