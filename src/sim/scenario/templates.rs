//! The objects with which the scenario begins.

use serde_json::{Value, json};

use super::super::cluster::Cluster;
use super::super::object::rfc3339;

/// Namespace, name, replicas, image, port.
const DEPLOYMENTS: [(&str, &str, u64, &str, u16); 8] = [
    ("monitoring", "grafana", 3, "registry.example.com/monitoring/grafana:1.11.0", 3000),
    ("monitoring", "prometheus", 3, "registry.example.com/monitoring/prometheus:1.53.0", 9090),
    ("payments", "api", 6, "registry.example.com/payments/api:1.8.0", 8443),
    ("payments", "ledger", 5, "registry.example.com/payments/ledger:1.3.0", 8080),
    ("payments", "worker", 6, "registry.example.com/payments/worker:1.8.0", 9100),
    ("shop", "cart", 6, "registry.example.com/shop/cart:1.21.0", 8080),
    ("shop", "catalog", 7, "registry.example.com/shop/catalog:1.14.0", 8080),
    ("shop", "web", 8, "registry.example.com/shop/web:1.40.0", 8080),
];

const NODES: [&str; 6] = ["node-a", "node-b", "node-c", "node-d", "node-e", "node-f"];

/// Creates the first objects of the cluster; existing ones stay.
pub(super) fn found(cluster: &Cluster) {
    let create = |resource: &str, object: Value| {
        // A taken name belongs to a user's object, which stays.
        let _ = cluster.create(resource, object);
    };
    for node in NODES {
        create("nodes", self::node(node, &rfc3339(cluster.now_millis())));
    }
    for namespace in ["monitoring", "payments", "shop"] {
        create("namespaces", json!({"metadata": {"name": namespace}}));
        create("serviceaccounts", json!({"metadata": {"name": "default", "namespace": namespace}}));
        let data = json!({"revision": "0", "log.level": "info", "feature.flags": "fast-checkout=true,new-search=false"});
        create(
            "configmaps",
            json!({"metadata": {"name": "settings", "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "demo"}}, "data": data}),
        );
        let secret = json!({"metadata": {"name": "credentials", "namespace": namespace}, "stringData": {"token": "not-a-secret"}});
        create("secrets", secret);
    }
    for (namespace, name, replicas, image, port) in DEPLOYMENTS {
        create("services", service(namespace, name, port));
        create("deployments.apps", deployment(namespace, name, replicas, image, port));
    }
    for (at, color) in ["red", "green", "blue", "violet"].iter().enumerate() {
        let metadata = json!({"name": format!("widget-{}", at + 1), "namespace": "shop", "labels": {"shelf": (at % 2).to_string(), "app.kubernetes.io/part-of": "demo"}});
        create(
            "widgets.demo.informerd.dev",
            json!({"metadata": metadata, "spec": {"color": color, "size": at + 1}}),
        );
    }
}

/// A node's address, the same wherever it shows: by the node's letter.
pub(super) fn node_address(name: &str) -> String {
    let letter = name.bytes().last().unwrap_or(b'a').to_ascii_lowercase();
    format!("10.0.0.{}", 10 + letter.saturating_sub(b'a'))
}

fn node(name: &str, now: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let capacity =
        json!({"cpu": "16", "memory": "65843012Ki", "pods": "110", "ephemeral-storage": "203056560Ki"});
    let images: Vec<Value> = DEPLOYMENTS
        .iter()
        .map(|(_, _, _, image, port)| json!({"names": [image], "sizeBytes": 40_000_000 + u64::from(*port) * 1000}))
        .collect();
    let zone = format!("zone-{}", 1 + name.bytes().last().unwrap_or(b'a') % 3);
    json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": "demo.4xlarge", "topology.kubernetes.io/zone": zone,
        }},
        "spec": {"podCIDR": "10.244.0.0/24", "providerID": format!("demo:///{zone}/{name}")},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": node_address(name)}],
            "capacity": capacity, "allocatable": capacity, "images": images,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "Debian GNU/Linux 13 (trixie)",
                "kernelVersion": "6.12.0", "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.36.0", "kubeProxyVersion": "v1.36.0",
                // Some clients refuse nodes without these three.
                "machineID": format!("machine-{name}"), "systemUUID": format!("system-{name}"),
                "bootID": format!("boot-{name}"),
            },
        },
    })
}

fn service(namespace: &str, name: &str, port: u16) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": port}],
        },
    })
}

fn deployment(namespace: &str, name: &str, replicas: u64, image: &str, port: u16) -> Value {
    let labels = json!({"app": name, "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "demo"});
    json!({
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {
                    "labels": {"app": name, "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "demo", "tier": namespace},
                    "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": port.to_string()},
                },
                "spec": pod_spec(name, image, port),
            },
        },
    })
}

fn pod_spec(name: &str, image: &str, port: u16) -> Value {
    let probe = |path: &str, period: u64| {
        json!({
            "httpGet": {"path": path, "port": port, "scheme": "HTTP"}, "periodSeconds": period,
            "failureThreshold": 3, "successThreshold": 1, "timeoutSeconds": 1,
        })
    };
    let from_field = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
    let toleration = |key: &str| json!({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300});
    let mount = json!({"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": true});
    json!({
        "containers": [{
            "name": name, "image": image, "imagePullPolicy": "IfNotPresent",
            "ports": [{"containerPort": port, "name": "http", "protocol": "TCP"}],
            "env": [
                {"name": "POD_NAME", "valueFrom": from_field("metadata.name")},
                {"name": "POD_NAMESPACE", "valueFrom": from_field("metadata.namespace")},
                {"name": "LOG_LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "log.level"}}},
                {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.monitoring.svc:4317"},
            ],
            "livenessProbe": probe("/livez", 10), "readinessProbe": probe("/readyz", 5),
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}, mount],
        }],
        "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
        "securityContext": {}, "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
        "tolerations": [toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable")],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            ]}},
        ],
    })
}
