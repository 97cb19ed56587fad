//! Defaults that the server sets in new objects of built-in kinds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::kinds::Kind;
use super::state::State;

/// Sets the defaults that clients and controllers depend on; a real server sets many more.
pub(super) fn apply(state: &mut State, kind: &Kind, value: &mut Value) {
    match kind.resource().as_str() {
        "namespaces" => {
            value["metadata"]["labels"]["kubernetes.io/metadata.name"] = value["metadata"]["name"].clone();
            or(&mut value["spec"], json!({"finalizers": ["kubernetes"]}));
            or(&mut value["status"], json!({"phase": "Active"}));
        }
        "pods" => {
            or(&mut value["spec"]["restartPolicy"], "Always".into());
            or(&mut value["spec"]["serviceAccountName"], "default".into());
            or(&mut value["spec"]["schedulerName"], "default-scheduler".into());
            or(&mut value["spec"]["terminationGracePeriodSeconds"], 30.into());
            or(&mut value["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
        }
        "services" => {
            or(&mut value["spec"]["type"], "ClusterIP".into());
            or(&mut value["spec"]["sessionAffinity"], "None".into());
            state.service_ips = state.service_ips.wrapping_add(1);
            let [high, low] = state.service_ips.to_be_bytes();
            or(&mut value["spec"]["clusterIP"], format!("10.96.{high}.{low}").into());
            or(&mut value["status"], json!({"loadBalancer": {}}));
        }
        "secrets" => secret(value),
        "deployments.apps" => {
            or(&mut value["spec"]["replicas"], 1.into());
            or(&mut value["spec"]["revisionHistoryLimit"], 10.into());
            or(&mut value["spec"]["progressDeadlineSeconds"], 600.into());
            let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
            or(&mut value["spec"]["strategy"], rolling);
            or(&mut value["status"], json!({}));
        }
        "replicasets.apps" => {
            or(&mut value["spec"]["replicas"], 1.into());
            or(&mut value["status"], json!({"replicas": 0}));
        }
        "customresourcedefinitions.apiextensions.k8s.io" => definition(&state.timestamp(), value),
        _ => {}
    }
}

fn or(place: &mut Value, default: Value) {
    if place.is_null() {
        *place = default;
    }
}

/// `stringData` is written into `data` in base64.
fn secret(value: &mut Value) {
    or(&mut value["type"], "Opaque".into());
    let plain = value.as_object_mut().and_then(|map| map.remove("stringData"));
    if let Some(Value::Object(plain)) = plain {
        for (name, text) in plain {
            value["data"][name] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
        }
    }
}

/// Definitions are accepted and established at once.
fn definition(now: &str, value: &mut Value) {
    or(&mut value["spec"]["conversion"], json!({"strategy": "None"}));
    let condition = |name: &str, reason: &str, message: &str| json!({"type": name, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message});
    let stored: Vec<Value> = value["spec"]["versions"].as_array().map_or_else(Vec::new, |versions| {
        versions.iter().filter(|v| v["storage"] == true).map(|v| v["name"].clone()).collect()
    });
    value["status"] = json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": value["spec"]["names"],
        "storedVersions": stored,
    });
}
