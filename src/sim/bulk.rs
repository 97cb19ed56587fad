//! Creates many objects at once, put together as text, so that a hundred thousand take seconds.

use std::sync::Arc;

use super::cluster::Cluster;
use super::object::{Stored, exact, key_of};
use super::state::State;
use super::status::Status;
use super::table::EventType;

/// Over how many namespaces, and values of the label `app`, loaded objects are spread.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Number of namespaces.
    pub namespaces: usize,
    /// Number of values of the label `app`.
    pub apps: usize,
}

impl Default for Spread {
    fn default() -> Self {
        Self { namespaces: 100, apps: 50 }
    }
}

/// Largest number of nodes that loaded pods are spread over, and the pods of each at first.
const NODES: usize = 10_000;
const PODS_PER_NODE: usize = 10;

/// Objects created under one lock.
const BATCH_LEN: usize = 500;

impl Cluster {
    /// Creates `n` objects of about `bytes_per_object` (at least some 600; pods some 3,200) bytes of compact JSON each.
    ///
    /// Shape: `load-0000000` and so on, spread over namespaces `load-00` to `load-99`; pods with `spec.nodeName`
    /// `node-00` to `node-9999`, ten on each at first, label `app` and a status; other kinds with labels and one long string.
    /// Numbers continue after those of earlier loads.
    ///
    /// # Errors
    /// 404 for an unknown resource.
    pub fn bulk_load(&self, resource: &str, n: usize, bytes_per_object: usize) -> Result<(), Status> {
        self.bulk_load_over(resource, n, bytes_per_object, Spread::default())
    }

    /// As [`Cluster::bulk_load`], with another number of namespaces and apps.
    ///
    /// # Errors
    /// 404 for an unknown resource.
    pub fn bulk_load_over(
        &self,
        resource: &str,
        n: usize,
        bytes_per_object: usize,
        spread: Spread,
    ) -> Result<(), Status> {
        let (resource, first) = {
            let state = self.lock();
            let resource = state.resolve(resource)?;
            let first = state.tables[&resource].objects.len();
            (resource, first)
        };
        for start in (0..n).step_by(BATCH_LEN) {
            let mut state = self.lock();
            for at in start..n.min(start + BATCH_LEN) {
                load_one(&mut state, &resource, first + at, bytes_per_object, spread);
            }
        }
        Ok(())
    }
}

fn load_one(state: &mut State, resource: &str, at: usize, bytes: usize, spread: Spread) {
    let kind = state.tables[resource].kind.clone();
    let (uid, time) = (state.next_uid(), state.timestamp());
    let revision = state.next_revision();
    let name = format!("load-{at:07}");
    let namespace =
        if kind.is_namespaced() { format!("load-{:02}", at % spread.namespaces) } else { String::new() };
    let (app, node) =
        (format!("app-{:02}", at % spread.apps), format!("node-{:02}", at / PODS_PER_NODE % NODES));
    let in_namespace =
        if namespace.is_empty() { String::new() } else { format!(r#""namespace":"{namespace}","#) };
    let api_version = kind.api_version(kind.preferred());
    let metadata = format!(
        r#""creationTimestamp":"{time}","generation":1,"labels":{{"app":"{app}","load":"true"}},"managedFields":[{{"apiVersion":"{api_version}","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:labels":{{".":{{}},"f:app":{{}},"f:load":{{}}}}}},"f:spec":{{"f:containers":{{"k:{{\"name\":\"main\"}}":{{".":{{}},"f:image":{{}},"f:name":{{}}}}}}}}}},"manager":"kube-controller-manager","operation":"Update","time":"{time}"}}],"name":"{name}",{in_namespace}"resourceVersion":"{revision}","uid":"{uid}""#
    );
    let is_pod = resource == "pods";
    let ip = format!("10.{}.{}.{}", at >> 16 & 255, at >> 8 & 255, at & 255);
    let content = if is_pod { pod_content(&node, &time, &ip, at) } else { String::new() };
    let known = metadata.len() + content.len() + r#"{"metadata":{"annotations":{"load/padding":""},}}"#.len();
    let padding = padding(bytes.saturating_sub(known), at);
    let body =
        format!(r#"{{"metadata":{{"annotations":{{"load/padding":"{padding}"}},{metadata}}}{content}}}"#);
    let fields: &[(&str, &str)] = if is_pod {
        &[
            ("spec.nodeName", &node),
            ("spec.restartPolicy", "Always"),
            ("spec.schedulerName", "default-scheduler"),
            ("spec.serviceAccountName", "default"),
            ("status.phase", "Running"),
            ("status.podIP", &ip),
        ]
    } else {
        &[]
    };
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let stored = Stored {
        key: key_of(&namespace, &name),
        labels: [("app", app.as_str()), ("load", "true")].iter().map(owned).collect(),
        fields: fields.iter().map(owned).collect(),
        body: exact(body),
        namespace,
        name,
        revision,
    };
    state.commit(resource, EventType::Added, &Arc::new(stored), None);
}

/// Text that differs from object to object and compresses about as well as object JSON does.
fn padding(len: usize, at: usize) -> String {
    let mut text = String::with_capacity(len + 24);
    let mut word = at as u64;
    while text.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("checksum-{:08x} ", word >> 32));
    }
    text.truncate(len);
    text
}

fn pod_content(node: &str, time: &str, ip: &str, at: usize) -> String {
    let condition = |name: &str| {
        format!(r#"{{"lastProbeTime":null,"lastTransitionTime":"{time}","status":"True","type":"{name}"}}"#)
    };
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(condition)
        .join(",");
    format!(
        r#","spec":{{"containers":[{{"env":[{{"name":"POD_NAME","valueFrom":{{"fieldRef":{{"apiVersion":"v1","fieldPath":"metadata.name"}}}}}}],"image":"registry.example.com/load/main:1.4.2","imagePullPolicy":"IfNotPresent","livenessProbe":{{"failureThreshold":3,"httpGet":{{"path":"/livez","port":8080,"scheme":"HTTP"}},"periodSeconds":10,"successThreshold":1,"timeoutSeconds":1}},"name":"main","ports":[{{"containerPort":8080,"name":"http","protocol":"TCP"}}],"resources":{{"limits":{{"memory":"256Mi"}},"requests":{{"cpu":"100m","memory":"128Mi"}}}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","volumeMounts":[{{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"kube-api-access","readOnly":true}}]}}],"dnsPolicy":"ClusterFirst","enableServiceLinks":true,"nodeName":"{node}","preemptionPolicy":"PreemptLowerPriority","priority":0,"restartPolicy":"Always","schedulerName":"default-scheduler","securityContext":{{}},"serviceAccountName":"default","terminationGracePeriodSeconds":30,"tolerations":[{{"effect":"NoExecute","key":"node.kubernetes.io/not-ready","operator":"Exists","tolerationSeconds":300}}]}},"status":{{"conditions":[{conditions}],"containerStatuses":[{{"containerID":"containerd://{at:064x}","image":"registry.example.com/load/main:1.4.2","imageID":"registry.example.com/load/main@sha256:{at:064x}","lastState":{{}},"name":"main","ready":true,"restartCount":0,"started":true,"state":{{"running":{{"startedAt":"{time}"}}}}}}],"hostIP":"10.0.0.1","phase":"Running","podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"qosClass":"Burstable","startTime":"{time}"}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_loaded_objects_match_their_json() {
        let cluster = Cluster::default();
        cluster.bulk_load("pods", 3, 5000).unwrap();
        cluster.bulk_load("pods", 2, 5000).unwrap();
        cluster.bulk_load("nodes", 1, 700).unwrap();
        assert_eq!((cluster.len("pods"), cluster.len("nodes")), (5, 1));
        let state = cluster.lock();
        for stored in state.tables["pods"].objects.values() {
            let kind = &state.tables["pods"].kind;
            assert_eq!(stored.body.len(), 5000);
            let again = Stored::new(kind, stored.value(), stored.revision);
            assert_eq!((&again.key, &again.labels, &again.body), (&stored.key, &stored.labels, &stored.body));
            assert_eq!(again.fields, stored.fields);
        }
    }
}
