//! Cases 29 and 30: discovery and the version.

use serde_json::{Value, json};

use super::status;
use crate::support::server::TestServer;

const RESOURCES: [&str; 4] = ["pods", "deployments.apps", "namespaces", "services"];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[tokio::test(flavor = "multi_thread")]
async fn case_29_discovery_names_the_served_resources_with_or_without_a_slash() {
    let server = TestServer::start(&RESOURCES).await;
    for path in ["/api", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1", "/version"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
        assert_eq!(server.get(&format!("{path}/")).await.text(), answer.text(), "{path}/");
    }
    assert_eq!(server.get("/api").await.json()["versions"], json!(["v1"]));
    let apps = json!({"groupVersion": "apps/v1", "version": "v1"});
    let group = json!({"name": "apps", "versions": [&apps], "preferredVersion": &apps});
    assert_eq!(server.get("/apis").await.json()["groups"], json!([group]));
    let core = server.get("/api/v1").await.json();
    let names: Vec<_> = core["resources"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["namespaces", "pods", "services"]);
    assert_eq!(
        core["resources"][1],
        json!({"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
            "verbs": ["get", "list", "watch"], "shortNames": ["po"], "categories": ["all"]})
    );
    assert_eq!(core["resources"][0]["namespaced"], false);
    let list = server.get("/apis/apps/v1").await.json();
    assert_eq!((&list["kind"], &list["groupVersion"]), (&json!("APIResourceList"), &json!("apps/v1")));
    let upstream = crate::support::client::get(server.api.address(), "/version", &[]).await;
    assert_eq!(server.get("/version").await.text(), upstream.text());
    for path in ["/apis/none", "/apis/apps/v2", "/apis/none/v1", "/api/v2", "/openapi/v3", "/openapi/v2"] {
        status(&server.get(path).await, 404, "NotFound");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_30_aggregated_discovery_has_its_content_type_and_a_tag() {
    let server = TestServer::start(&RESOURCES).await;
    let accept = format!("{AGGREGATED},{},application/json", AGGREGATED.replace("v=v2", "v=v2beta1"));
    for (path, expected) in [("/api", vec!["namespaces", "pods", "services"]), ("/apis", vec!["deployments"])]
    {
        let answer = server.get_with(path, &[("Accept", &accept)]).await;
        assert_eq!(answer.header("content-type").as_deref(), Some(AGGREGATED));
        assert_eq!(answer.header("vary").as_deref(), Some("Accept"));
        let document = answer.json();
        assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2");
        let version = &document["items"][0]["versions"][0];
        let resources = version["resources"].as_array().unwrap();
        let names: Vec<_> = resources.iter().map(|one| one["resource"].as_str().unwrap()).collect();
        assert_eq!(names, expected);
        assert!(resources.iter().all(|one| one["responseKind"]["kind"].is_string()));
        assert!(resources.iter().all(|one| one["verbs"] == json!(["get", "list", "watch"])));
        let tag = answer.header("etag").expect("a tag");
        let again = server.get_with(path, &[("Accept", &accept), ("If-None-Match", &tag)]).await;
        assert_eq!((again.status(), again.header("etag")), (304, Some(tag)));
        // Clients without the aggregated form get plain JSON. A client that accepts JSON never gets 406.
        let plain = server.get_with(path, &[("Accept", "application/json")]).await;
        assert_eq!(plain.header("content-type").as_deref(), Some("application/json"));
        let old = AGGREGATED.replace("v=v2", "v=v2beta1");
        status(&server.get_with(path, &[("Accept", &old)]).await, 406, "NotAcceptable");
    }
}

/// kubectl prints resources of several groups in the order of the groups, as in `get all`.
#[tokio::test(flavor = "multi_thread")]
async fn discovery_groups_are_in_the_order_of_the_api_server() {
    let resources = ["deployments.apps", "customresourcedefinitions.apiextensions.k8s.io", "pods"];
    let server = TestServer::start(&resources).await;
    let names = |document: Value| -> Vec<String> {
        let groups = document["groups"].as_array().unwrap().iter();
        groups.map(|group| group["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut upstream = names(crate::support::client::get(server.api.address(), "/apis", &[]).await.json());
    let here = names(server.get("/apis").await.json());
    upstream.retain(|group| here.contains(group));
    assert_eq!(here.len(), 2);
    assert_eq!(here, upstream);
    let followed: Vec<_> = resources.iter().filter_map(|name| Some(name.split_once('.')?.1)).collect();
    assert_ne!(here, followed, "the order of the configuration is the same and proves nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_on_demand_are_in_discovery_and_start_when_requested() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.on_demand.patterns = vec!["configmaps".parse().unwrap()];
    })
    .await;
    let core = server.get("/api/v1").await.json();
    let names: Vec<&Value> = core["resources"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["configmaps", "pods"]);
    assert_eq!(server.hub.informers().len(), 1);
    let list = server.get("/api/v1/namespaces/default/configmaps").await;
    assert_eq!((list.status(), &list.json()["kind"]), (200, &json!("ConfigMapList")));
    assert_eq!(server.hub.informers().len(), 2);
    status(&server.get("/api/v1/services").await, 404, "NotFound");
}
