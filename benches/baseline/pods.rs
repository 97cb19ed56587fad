//! Pods as an API server writes them: about 5 KB, and 2 KB of managedFields.

use informerd::testing::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

/// Approximate size of a pod's managedFields.
const MANAGED_FIELDS_BYTES: usize = 2000;
/// Approximate size of the rest.
const POD_BYTES: usize = 5000;

/// A pod's JSON as in a list: without `kind` and `apiVersion`.
pub(crate) fn list_item(at: usize, version: u64, managed_fields: bool) -> String {
    pod(at, version, managed_fields, "")
}

/// A pod's JSON as on a watch.
pub(crate) fn whole(at: usize, version: u64, managed_fields: bool) -> String {
    pod(at, version, managed_fields, r#""kind":"Pod","apiVersion":"v1","#)
}

/// The body of a list of pods.
pub(crate) fn list(count: usize, managed_fields: bool) -> String {
    let items: Vec<_> = (0..count).map(|at| list_item(at, 1000 + at as u64, managed_fields)).collect();
    let metadata = r#"{"resourceVersion":"900000"}"#;
    format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{metadata},"items":[{}]}}"#, items.join(","))
}

/// A line of a watch.
pub(crate) fn watch_line(at: usize, version: u64, managed_fields: bool) -> String {
    format!(r#"{{"type":"MODIFIED","object":{}}}"#, whole(at, version, managed_fields))
}

/// The resource `pods`.
pub(crate) fn resource() -> Resource {
    Resource::new(ResourceParts {
        version: "v1".into(),
        plural: "pods".into(),
        singular: "pod".into(),
        kind: "Pod".into(),
        short_names: vec!["po".into()],
        namespaced: true,
        ..ResourceParts::default()
    })
}

/// A decoder with the defaults.
pub(crate) fn decoder() -> Decoder {
    let options = DecodeOptions {
        drop_managed_fields: true,
        drop_last_applied: true,
        object_bytes_max: informerd::testing::config::Limits::DEFAULT.object_bytes_max,
    };
    Decoder::new(resource(), options)
}

fn pod(at: usize, version: u64, managed_fields: bool, type_meta: &str) -> String {
    let time = "2026-01-02T03:04:05Z";
    let managed = if managed_fields { managed_fields_json(time) } else { String::new() };
    let metadata = format!(
        r#"{{"name":"web-7d4b9c6f5-{at:07}","generateName":"web-7d4b9c6f5-","namespace":"team-{:02}","uid":"0b0d6a3e-7c55-4f0e-9b3e-{at:012x}","resourceVersion":"{version}","generation":1,"creationTimestamp":"{time}","labels":{{"app.kubernetes.io/name":"web","app.kubernetes.io/instance":"web-{:03}","pod-template-hash":"7d4b9c6f5"}},"annotations":{{"prometheus.io/scrape":"true","prometheus.io/port":"9090"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d4b9c6f5","uid":"5c9d1e0a-0000-4000-8000-{at:012x}","controller":true,"blockOwnerDeletion":true}}]{managed}}}"#,
        at % 100,
        at % 1000
    );
    let container = |name: &str| {
        format!(
            r#"{{"name":"{name}","image":"registry.example.com/shop/{name}:1.4.2","ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],"env":[{{"name":"POD_NAME","valueFrom":{{"fieldRef":{{"apiVersion":"v1","fieldPath":"metadata.name"}}}}}},{{"name":"LOG_LEVEL","value":"info"}}],"resources":{{"limits":{{"memory":"256Mi"}},"requests":{{"cpu":"100m","memory":"128Mi"}}}},"volumeMounts":[{{"name":"kube-api-access","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}],"livenessProbe":{{"httpGet":{{"path":"/livez","port":8080,"scheme":"HTTP"}},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}"#
        )
    };
    let condition = |name: &str| {
        format!(r#"{{"type":"{name}","status":"True","lastProbeTime":null,"lastTransitionTime":"{time}"}}"#)
    };
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let containers = [container("web"), container("proxy"), container("log")].join(",");
    let head = format!(
        r#"{{{type_meta}"metadata":{metadata},"spec":{{"containers":[{containers}],"restartPolicy":"Always","dnsPolicy":"ClusterFirst","nodeName":"node-{:03}","tolerations":[{{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}],"schedulerName":"default-scheduler"}},"status":{{"phase":"Running","conditions":[{}],"hostIP":"10.0.0.1","podIP":"10.1.{}.{}","startTime":"{time}","message":""#,
        at % 500,
        conditions.map(condition).join(","),
        at >> 8 & 255,
        at & 255
    );
    // Padded to the same size for all numbers.
    let padding = (POD_BYTES + managed.len()).saturating_sub(head.len() + 4);
    format!(r#"{head}{}"}}}}"#, "ready and serving ".repeat(padding / 18))
}

fn managed_fields_json(time: &str) -> String {
    let mut fields = String::new();
    let mut at = 0;
    while fields.len() < MANAGED_FIELDS_BYTES {
        let comma = if at > 0 { "," } else { "" };
        fields.push_str(&format!(
            r#"{comma}"k:{{\"name\":\"c{at}\"}}":{{".":{{}},"f:image":{{}},"f:name":{{}},"f:resources":{{}}}}"#
        ));
        at += 1;
    }
    format!(
        r#","managedFields":[{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"{time}","fieldsType":"FieldsV1","fieldsV1":{{"f:spec":{{"f:containers":{{{fields}}}}}}}}}]"#
    )
}
