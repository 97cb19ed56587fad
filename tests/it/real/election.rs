//! Leader election of queues against a real API server, with the permissions that `informerd rbac` prints and no
//! others.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::cluster::administer;
use crate::election::{LEASE, identity, lease, post, refuses, replica, until_follows, until_leads};
use crate::support::envtest::{self, Envtest, FIRST_TOKEN, Options, Process, Version};
use crate::support::server::kubeconfig;
use crate::support::{PATIENCE, in_time, informerd};

/// Creates the manifest that `informerd rbac` prints, bound to the user of the tests.
async fn permit(client: &kube::Client) {
    let output = informerd()
        .args(["rbac", "--watch", "pods", "--queues-leader-election", "--queues-lease", LEASE])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let manifest = String::from_utf8(output.stdout).unwrap();
    for document in manifest.split("---\n") {
        let mut object: Value = serde_saphyr::from_str(document).unwrap();
        if object.get("subjects").is_some() {
            object["subjects"] = json!([{"kind": "User", "name": "informerd"}]);
        }
        let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let namespace = object["metadata"]["namespace"].as_str();
        let within = namespace.map_or(String::new(), |namespace| format!("/namespaces/{namespace}"));
        let path = format!("/apis/rbac.authorization.k8s.io/v1{within}/{plural}");
        administer(client, "POST", &path, Some(&object), Duration::from_secs(10)).await;
    }
}

/// The verbs that `informerd check` reports for the Lease, and whether each is allowed.
async fn checked(kubeconfig: &Path) -> Vec<(String, bool)> {
    let mut command = informerd();
    command.args(["check", "--output=json", "--log=off", "--watch=pods", "--queues-leader-election"]);
    command.args(["--queues-lease", LEASE, "--kubeconfig"]).arg(kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = in_time("the check", output).await.unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let of_lease = findings.filter_map(|one| {
        let verb = one["what"].as_str()?.strip_suffix(" lease informerd-queues in namespace web")?;
        Some((verb.to_owned(), one["ok"] == true))
    });
    of_lease.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_elect_a_leader_with_the_permissions_of_informerd_rbac_on_1_20() {
    let options = Options { guarded: true, ..Options::default() };
    let Some(api) = Envtest::start(Version::V1_20, options).await else { return };
    let client = envtest::client(&api.kubeconfig_path()).await;
    let namespace = json!({"metadata": {"name": "web"}});
    administer(&client, "POST", "/api/v1/namespaces", Some(&namespace), Duration::from_secs(10)).await;
    let address = api.address(Process::ApiServer);
    let path = api.write_kubeconfig("kubeconfig.informerd", address, &format!("token: {FIRST_TOKEN}"));
    let verbs = |allowed| ["get", "create", "update"].map(|verb| (verb.to_owned(), allowed));
    assert_eq!(checked(&path).await, verbs(false));
    permit(&client).await;
    // The API server's authorizer learns of new rules a little later.
    let deadline = Instant::now() + PATIENCE;
    while checked(&path).await != verbs(true) {
        assert!(Instant::now() < deadline, "the permissions are not seen: {:?}", checked(&path).await);
    }
    let pod =
        json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
    let pods = "/api/v1/namespaces/web/pods";
    administer(&client, "POST", pods, Some(&pod), Duration::from_secs(10)).await;
    let upstream = kubeconfig(path);

    let mut first = replica(upstream.clone()).await;
    until_leads(first.address, true).await;
    let mut second = replica(upstream).await;
    let names = [identity(first.address).await, identity(second.address).await];
    until_follows(second.address, &names[0]).await;
    refuses(second.address, &names[0]).await;
    let held = lease(first.address).await;
    first.kill().await;
    until_leads(second.address, true).await;
    assert_eq!(post(second.address, "done", &held).await.status(), 409);
    let held = lease(second.address).await;
    assert_eq!(post(second.address, "done", &held).await.status(), 204);
    first.revive().await;
    until_follows(first.address, &names[1]).await;
    second.stop().await;
    until_leads(first.address, true).await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/web/leases/informerd-queues";
    let stored = administer(&client, "GET", path, None, Duration::from_secs(10)).await;
    assert_eq!(stored["spec"]["holderIdentity"], identity(first.address).await);
    assert_eq!(stored["spec"]["leaseTransitions"], 2);
    drop(first);
    api.stop().await;
}
