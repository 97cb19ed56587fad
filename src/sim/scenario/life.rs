//! Random events that happen while the controllers have nothing to do.

use rand::Rng;
use serde_json::{Value, json};

use super::super::object::rfc3339;
use super::Scenario;
use super::mirror::{is_deleted, is_own, is_ready, name, namespace, uid};

/// Largest number of Event objects; the oldest are deleted.
const EVENTS_LEN_MAX: usize = 150;

/// Bounds between which deployments are scaled.
const REPLICAS: std::ops::RangeInclusive<u64> = 3..=8;

/// Pods above which nothing is scaled up.
const PODS_LEN_MAX: usize = 64;

/// How long a crashing pod keeps crashing, in milliseconds.
const CRASH_MILLIS: u64 = 45_000;

const COLORS: [&str; 6] = ["red", "orange", "yellow", "green", "blue", "violet"];

impl Scenario {
    /// Makes one random event happen; draws again if it would change nothing.
    pub(super) fn happen(&mut self, now: u64) -> bool {
        (0..8).any(|_| match self.rng.random_range(0..100) {
            0..30 => self.heartbeat(now),
            30..60 => self.change_widget(now),
            60..72 => self.change_config(now),
            72..82 => self.report_event(now),
            82..88 => self.scale_deployment(),
            88..91 => self.roll_out(),
            91..95 => self.crash_pod(now),
            95..98 => self.delete_pod(),
            _ => self.come_and_go(),
        })
    }

    fn pick(&mut self, objects: &[Value]) -> Option<Value> {
        if objects.is_empty() {
            return None;
        }
        Some(objects[self.rng.random_range(0..objects.len())].clone())
    }

    fn own(&self, resource: &str) -> Vec<Value> {
        self.cluster.list(resource).into_iter().filter(is_own).collect()
    }

    fn heartbeat(&mut self, now: u64) -> bool {
        let nodes = self.cluster.list("nodes");
        let Some(node) = self.pick(&nodes) else { return false };
        let mut conditions = node["status"]["conditions"].clone();
        for condition in conditions.as_array_mut().into_iter().flatten() {
            condition["lastHeartbeatTime"] = rfc3339(now).into();
        }
        if conditions == node["status"]["conditions"] {
            return false;
        }
        let patch = json!({"status": {"conditions": conditions}});
        self.cluster.patch("nodes", "", name(&node), &patch).is_ok()
    }

    fn change_widget(&mut self, now: u64) -> bool {
        let widgets = self.own("widgets.demo.informerd.dev");
        let Some(widget) = self.pick(&widgets) else { return false };
        let spec = self.rng.random_bool(0.3);
        let patch = if spec {
            let color = COLORS[self.rng.random_range(0..COLORS.len())];
            json!({"spec": {"color": color, "size": self.rng.random_range(1..100)}})
        } else {
            let serial = self.next_serial();
            json!({"status": {
                "phase": "Turning", "turns": serial, "lastTurn": rfc3339(now),
                "observedGeneration": widget["metadata"]["generation"],
            }})
        };
        self.cluster.patch("widgets.demo.informerd.dev", namespace(&widget), name(&widget), &patch).is_ok()
    }

    fn change_config(&mut self, now: u64) -> bool {
        let maps = self.own("configmaps");
        let Some(map) = self.pick(&maps) else { return false };
        let serial = self.next_serial();
        let patch = json!({"data": {"revision": serial.to_string(), "changed": rfc3339(now)}});
        self.cluster.patch("configmaps", namespace(&map), name(&map), &patch).is_ok()
    }

    fn report_event(&mut self, now: u64) -> bool {
        let events = self.cluster.list("events");
        if events.len() >= EVENTS_LEN_MAX {
            let oldest = events.iter().min_by_key(|e| (e["lastTimestamp"].to_string(), name(e).to_owned()));
            let oldest = oldest.expect("there are as many as the limit, so at least one");
            return self.cluster.delete("events", namespace(oldest), name(oldest)).is_ok();
        }
        let pods: Vec<Value> = self.pods.values().cloned().collect();
        let Some(pod) = self.pick(&pods) else { return false };
        let (reason, message, level) = if is_ready(&pod) {
            ("Started", "Started container", "Normal")
        } else {
            ("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503", "Warning")
        };
        let serial = self.next_serial();
        let event = json!({
            "metadata": {"name": format!("{}.{serial:016x}", name(&pod)), "namespace": namespace(&pod)},
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "namespace": namespace(&pod), "name": name(&pod), "uid": uid(&pod),
                "resourceVersion": pod["metadata"]["resourceVersion"],
            },
            "reason": reason, "message": message, "type": level, "count": 1,
            "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
            "reportingComponent": "kubelet", "reportingInstance": pod["spec"]["nodeName"],
            "firstTimestamp": rfc3339(now), "lastTimestamp": rfc3339(now),
        });
        self.cluster.create("events", event).is_ok()
    }

    fn own_deployment(&mut self) -> Option<Value> {
        let own = |deployment: &&Value| is_own(deployment) && !is_deleted(deployment);
        let deployments: Vec<Value> = self.deployments.values().filter(own).cloned().collect();
        self.pick(&deployments)
    }

    fn scale_deployment(&mut self) -> bool {
        let Some(deployment) = self.own_deployment() else { return false };
        let replicas = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        let up = self.rng.random_bool(0.5) && self.pods.len() < PODS_LEN_MAX;
        let wanted = if up { replicas + 1 } else { replicas.saturating_sub(1) };
        if !REPLICAS.contains(&wanted) {
            return false;
        }
        let patch = json!({"spec": {"replicas": wanted}});
        self.cluster.patch("deployments.apps", namespace(&deployment), name(&deployment), &patch).is_ok()
    }

    fn roll_out(&mut self) -> bool {
        let Some(deployment) = self.own_deployment() else { return false };
        let mut containers = deployment["spec"]["template"]["spec"]["containers"].clone();
        let image = containers[0]["image"].as_str().unwrap_or_default().to_owned();
        let Some((repository, tag)) = image.rsplit_once(":1.") else { return false };
        let minor = tag.split('.').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        containers[0]["image"] = format!("{repository}:1.{}.0", minor + 1).into();
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        self.cluster.patch("deployments.apps", namespace(&deployment), name(&deployment), &patch).is_ok()
    }

    /// Marks a running pod as one that crashes; the write is its kubelet's, a moment later.
    fn crash_pod(&mut self, now: u64) -> bool {
        let pods: Vec<Value> = self
            .pods
            .values()
            .filter(|pod| is_own(pod) && is_ready(pod) && !is_deleted(pod))
            .cloned()
            .collect();
        if self.crashing.len() < 2
            && let Some(pod) = self.pick(&pods)
        {
            self.crashing.insert(uid(&pod).to_owned(), now + CRASH_MILLIS);
        }
        false
    }

    fn delete_pod(&mut self) -> bool {
        let pods: Vec<Value> =
            self.pods.values().filter(|pod| is_own(pod) && !is_deleted(pod)).cloned().collect();
        self.pick(&pods).is_some_and(|pod| self.delete_gracefully(&pod))
    }

    /// Creates a widget, or deletes the newest one.
    fn come_and_go(&mut self) -> bool {
        let passing: Vec<Value> = self
            .cluster
            .list("widgets.demo.informerd.dev")
            .into_iter()
            .filter(|widget| widget["metadata"]["labels"]["passing"] == "true")
            .collect();
        if passing.len() >= 3 {
            let Some(widget) = self.pick(&passing) else { return false };
            return self
                .cluster
                .delete("widgets.demo.informerd.dev", namespace(&widget), name(&widget))
                .is_ok();
        }
        let suffix = self.suffix();
        let widget = json!({
            "metadata": {"name": format!("passing-{suffix}"), "namespace": "shop", "labels": {"passing": "true", "app.kubernetes.io/part-of": "demo"}},
            "spec": {"color": "grey", "size": 1},
        });
        self.cluster.create("widgets.demo.informerd.dev", widget).is_ok()
    }
}
