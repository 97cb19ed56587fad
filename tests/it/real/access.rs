//! Certificates, tokens and permissions change while informerd runs.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::administer;
use super::rig::{Rig, Setup};
use crate::support::envtest::{Envtest, FIRST_TOKEN, Options, Process, Version};

const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// The token after the rotation.
const SECOND_TOKEN: &str = "second-token";

async fn write(api: &Envtest, method: &str, path: &str, body: &Value) {
    let client = crate::support::envtest::client(&api.kubeconfig_path()).await;
    administer(&client, method, path, Some(body), Duration::from_secs(10)).await;
}

fn role(verbs: &[&str]) -> Value {
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]);
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "informerd"},
        "rules": if verbs.is_empty() { json!([]) } else { rules }})
}

/// Sets what informerd may do with pods; 1.36 knows only all or nothing.
async fn permit(api: &Envtest, version: Version, token: &str, verbs: &[&str]) {
    match version {
        Version::V1_20 => write(api, "PATCH", &format!("{ROLE}/informerd"), &role(verbs)).await,
        Version::V1_36 => api.write_user(token, !verbs.is_empty()),
    }
}

async fn guarded(version: Version) -> Option<Rig> {
    let mut setup = Setup::new(version);
    setup.options = Options { guarded: true, ..Options::default() };
    setup.is_gated = true;
    let api = Envtest::start(version, setup.options.clone()).await?;
    if version == Version::V1_20 {
        write(&api, "POST", ROLE, &role(&["list", "watch"])).await;
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "informerd"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "informerd"},
            "subjects": [{"kind": "User", "name": "informerd"}]});
        write(&api, "POST", BINDING, &binding).await;
    }
    let token = api.file("token");
    std::fs::write(&token, FIRST_TOKEN).expect("a file");
    setup.user = Some(format!("tokenFile: {}", token.display()));
    Some(setup.over(api).await)
}

async fn outlives_its_credentials(version: Version) {
    let Some(mut rig) = Box::pin(guarded(version)).await else { return };
    rig.measure("serving certificate renewed", async |rig| {
        rig.api.renew_certificate().await;
        rig.api.kill(Process::ApiServer).await;
        rig.api.launch(Process::ApiServer);
    })
    .await;
    rig.measure("token expired, and then rotated", async |rig| {
        rig.api.write_user(SECOND_TOKEN, true);
        rig.api.kill(Process::ApiServer).await;
        rig.api.start_api_server().await;
        rig.wait_for_error("unauthorized").await;
        std::fs::write(rig.api.file("token"), SECOND_TOKEN).expect("a file");
    })
    .await;
    if version == Version::V1_20 {
        let row = forbidden(&mut rig, "watch forbidden, and then granted", &["list"]).await;
        assert_eq!(row, 0, "P6: the version is still valid");
    }
    let row = forbidden(&mut rig, "list and watch forbidden, and then granted", &[]).await;
    assert_eq!(row, 0, "P6: the version is still valid");
    rig.measure("started while forbidden, and then granted", async |rig| {
        rig.kill_informerd().await;
        permit(&rig.api, rig.version, SECOND_TOKEN, &[]).await;
        rig.informerd.revive().await;
        rig.wait_for_error("forbidden").await;
        permit(&rig.api, rig.version, SECOND_TOKEN, &["list", "watch"]).await;
    })
    .await;
    rig.finish().await;
}

/// An open watch goes on without permission, the next one is refused. Returns the number of lists that this cost.
async fn forbidden(rig: &mut Rig, fault: &str, verbs: &[&str]) -> u64 {
    let row = rig
        .measure(fault, async |rig| {
            permit(&rig.api, rig.version, SECOND_TOKEN, verbs).await;
            rig.gate.cut().await;
            rig.wait_for_error("forbidden").await;
            permit(&rig.api, rig.version, SECOND_TOKEN, &["list", "watch"]).await;
        })
        .await;
    row.lists
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_and_restored_access_loses_no_event_on_1_20() {
    Box::pin(outlives_its_credentials(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_and_restored_access_loses_no_event_on_1_36() {
    Box::pin(outlives_its_credentials(Version::V1_36)).await;
}
