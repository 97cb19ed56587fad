//! A custom resource's definition is created, changed, deleted and created again.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{WIDGETS, administer, send};
use super::rig::{Rig, Setup};
use crate::support::envtest::{self, Envtest, Version};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.demo.example.com";

/// The definition of widgets, with a field of this name.
fn definition(field: &str) -> Value {
    let spec = json!({"type": "object", "properties": {field: {"type": "integer"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.demo.example.com"},
        "spec": {"group": "demo.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// Time limit for one answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

async fn ask(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
    send(client, method, path, body, ANSWER_PATIENCE).await
}

async fn install(client: &kube::Client, definition: &Value) {
    administer(client, "POST", DEFINITIONS, Some(definition), ANSWER_PATIENCE).await;
}

/// Deletes the definition and waits until the API server has removed it and all its objects.
async fn remove(client: &kube::Client) {
    administer(client, "DELETE", DEFINITION, None, ANSWER_PATIENCE).await;
    let gone = async {
        while ask(client, "GET", DEFINITION, None).await.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the definition goes");
}

async fn outlives_its_kind(version: Version) {
    let mut setup = Setup::new(version);
    setup.kind = WIDGETS;
    setup.objects = setup.objects.min(300);
    let Some(api) = Envtest::start(version, setup.options.clone()).await else { return };
    let client = envtest::client(&api.kubeconfig_path()).await;
    install(&client, &definition("size")).await;
    let served = async {
        while ask(&client, "GET", WIDGETS.list, None).await.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served).await.expect("the kind is served");
    let mut rig = setup.over(api).await;
    rig.measure("CRD changed", async |_| {
        let column = json!([{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]);
        let mut changed = definition("size");
        changed["spec"]["versions"][0]["additionalPrinterColumns"] = column;
        administer(&client, "PATCH", DEFINITION, Some(&changed), ANSWER_PATIENCE).await;
    })
    .await;
    rig.measure("CRD deleted and created again", async |rig| {
        removed(rig, &client).await;
        install(&client, &definition("size")).await;
    })
    .await;
    rig.measure("CRD deleted and created with another schema", async |rig| {
        removed(rig, &client).await;
        install(&client, &definition("weight")).await;
    })
    .await;
    rig.measure("CRD created after informerd's start", async |rig| {
        rig.kill_informerd().await;
        remove(&client).await;
        rig.informerd.revive().await;
        rig.wait_for_error("widgets").await;
        install(&client, &definition("size")).await;
    })
    .await;
    rig.finish().await;
}

/// Deletes the definition. Waits until informerd reports it, and until its cache is empty. That includes objects
/// whose DELETED events were never sent: the API server ends the watches of a deleted definition and drops their
/// pending events.
async fn removed(rig: &Rig, client: &kube::Client) {
    remove(client).await;
    rig.wait_for_error("does not serve").await;
    rig.wait_for_no_objects().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_may_be_deleted_and_created_again_on_1_20() {
    Box::pin(outlives_its_kind(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_may_be_deleted_and_created_again_on_1_36() {
    Box::pin(outlives_its_kind(Version::V1_36)).await;
}
