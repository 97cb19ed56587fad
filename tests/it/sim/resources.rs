//! Cases of single objects, writes, discovery and custom kinds.

use http::Request;
use kube::client::Body;
use serde_json::{Value, json};

use super::{Server, WAIT, Which, maps, names, version};

pub(super) async fn errors_of_objects(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let missing = server.get(&format!("{path}/none")).await;
    missing.is_error(404, "NotFound", "configmaps \"none\" not found");
    assert_eq!(missing.json()["details"], json!({"name": "none", "kind": "configmaps"}));
    let message = "the server could not find the requested resource";
    for unknown in ["/api/v1/nothing", &format!("/api/v1/namespaces/{namespace}/nothing"), "/api/v2"] {
        server.get(unknown).await.is_error(404, "NotFound", message);
    }
    assert_eq!(server.get("/apis/no.group/v1/things").await.code, 404);
    assert_eq!(server.get("/apis/no.group/v1").await.code, 404);
    assert_eq!(server.get(&format!("/api/v1/namespaces/{namespace}/pods/p/nothing")).await.code, 404);

    let created = server.config_map(namespace, "taken", json!({})).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken"}});
    let taken = server.post(&path, &map).await;
    taken.is_error(409, "AlreadyExists", "configmaps \"taken\" already exists");
    assert_eq!(taken.json()["details"], json!({"name": "taken", "kind": "configmaps"}));
    let mut stale = created.clone();
    stale["metadata"]["resourceVersion"] = "1".into();
    let conflict = server.put(&format!("{path}/taken"), &stale).await;
    let message = "Operation cannot be fulfilled on configmaps \"taken\": the object has been modified; please apply \
                   your changes to the latest version and try again";
    conflict.is_error(409, "Conflict", message);
    let nameless =
        server.post(&path, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})).await;
    let message =
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required";
    nameless.is_error(422, "Invalid", message);
    assert_eq!(nameless.json()["details"]["causes"][0]["field"], "metadata.name");
    let bad = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Bad_Name"}});
    // The small 1.36 server does not validate the content of built-in kinds.
    if server.which != Which::V1_36 {
        assert_eq!(server.post(&path, &bad).await.code, 422);
    }
    let other = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}});
    let answer = server.post(&path, &other).await;
    assert_eq!((answer.code, answer.json()["reason"].as_str()), (400, Some("BadRequest")));
    server.delete(&format!("{path}/none")).await.is_error(404, "NotFound", "configmaps \"none\" not found");
}

pub(super) async fn patches_dry_runs_and_deletes_take_effect(server: &Server, namespace: &str) {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let template = json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]},
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template},
        "status": {"replicas": 7},
    });
    let created = server.post(&path, &deployment).await.must_be(201);
    if server.which == Which::V1_36 {
        return; // It stores built-in kinds as they come, without generations and separate status.
    }
    assert_eq!((&created["metadata"]["generation"], created["status"].get("replicas")), (&json!(1), None));
    let one = format!("{path}/d");
    let strategic = json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}}});
    let patched =
        server.write("PATCH", &one, "application/strategic-merge-patch+json", &strategic).await.must_be(200);
    let containers = patched["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let images: Vec<(&str, &str)> =
        containers.iter().map(|c| (c["name"].as_str().unwrap(), c["image"].as_str().unwrap())).collect();
    let mut sorted = images.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [("a", "a:1"), ("b", "b:2")]);
    assert_eq!(patched["metadata"]["generation"], 2);
    let steps = json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]);
    let stepped = server.write("PATCH", &one, "application/json-patch+json", &steps).await.must_be(200);
    assert_eq!(stepped["spec"]["replicas"], 3);
    // Status and specification are written through different paths.
    let status = json!({"status": {"replicas": 1}, "spec": {"replicas": 9}});
    let written = server.patch(&format!("{one}/status"), &status).await.must_be(200);
    assert_eq!((&written["spec"]["replicas"], &written["status"]["replicas"]), (&json!(3), &json!(1)));
    assert_eq!(written["metadata"]["generation"], 3);
    let main = server.patch(&one, &json!({"status": {"replicas": 5}})).await.must_be(200);
    assert_eq!(main["status"]["replicas"], 1);
    let dry =
        server.patch(&format!("{one}?dryRun=All"), &json!({"spec": {"replicas": 8}})).await.must_be(200);
    assert_eq!(dry["spec"]["replicas"], 8);
    assert_eq!(server.get(&one).await.must_be(200)["spec"]["replicas"], 3);
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-"}});
    let generated = server.post(&maps(namespace), &generated).await.must_be(201);
    assert!(generated["metadata"]["name"].as_str().unwrap().starts_with("g-"), "{generated}");
    let deleted = server.delete(&one).await.must_be(200);
    assert_eq!((&deleted["kind"], &deleted["status"]), (&"Status".into(), &"Success".into()));
    server.get(&one).await.is_error(404, "NotFound", "deployments.apps \"d\" not found");
}

pub(super) async fn text_is_escaped_for_streams(server: &Server, namespace: &str) {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "e"}, "data": {"t": "<a>&\u{2028}\u{2029}ü"},
    });
    let created = server.post(&maps(namespace), &map).await;
    assert_eq!(created.code, 201);
    let expected = r#""data":{"t":"\u003ca\u003e\u0026\u2028\u2029ü"}"#;
    assert!(created.text.contains(expected), "{}", created.text);
    let list = server.get(&maps(namespace)).await;
    assert!(list.text.contains(expected), "{}", list.text);
    assert!(list.text.ends_with('\n') && list.text.matches('\n').count() == 1);
    assert_eq!(
        (list.header("Content-Type"), list.header("Cache-Control")),
        ("application/json", "no-cache, private")
    );
}

pub(super) async fn discovery_has_what_clients_need(server: &Server, _namespace: &str) {
    let slashes = if server.which == Which::V1_20 { &[""][..] } else { &["", "/"][..] };
    for slash in slashes {
        let core = server.get(&format!("/api{slash}")).await.must_be(200);
        assert_eq!((&core["kind"], &core["versions"]), (&"APIVersions".into(), &json!(["v1"])));
        let groups = server.get(&format!("/apis{slash}")).await.must_be(200);
        assert_eq!(groups["kind"], "APIGroupList");
        let apps = groups["groups"].as_array().unwrap().iter().find(|g| g["name"] == "apps").unwrap();
        let entry = json!({"groupVersion": "apps/v1", "version": "v1"});
        assert_eq!((&apps["versions"][0], &apps["preferredVersion"]), (&entry, &entry));
        let group = server.get(&format!("/apis/apps{slash}")).await.must_be(200);
        assert_eq!(
            (&group["kind"], &group["name"], &group["versions"][0]),
            (&"APIGroup".into(), &"apps".into(), &entry)
        );
        for (path, group_version, name, kind, short, namespaced) in [
            ("/api/v1", "v1", "configmaps", "ConfigMap", "cm", true),
            ("/api/v1", "v1", "namespaces", "Namespace", "ns", false),
            ("/apis/apps/v1", "apps/v1", "deployments", "Deployment", "deploy", true),
        ] {
            let list = server.get(&format!("{path}{slash}")).await.must_be(200);
            assert_eq!(
                (&list["kind"], &list["groupVersion"]),
                (&"APIResourceList".into(), &group_version.into())
            );
            let resources = list["resources"].as_array().unwrap();
            let resource = resources.iter().find(|r| r["name"] == name).unwrap();
            assert_eq!((&resource["kind"], &resource["namespaced"]), (&kind.into(), &namespaced.into()));
            assert_eq!(resource["shortNames"], json!([short]));
            assert!(resource["singularName"].is_string());
            for verb in ["get", "list", "watch"] {
                assert!(resource["verbs"].as_array().unwrap().contains(&verb.into()), "{resource}");
            }
        }
        let version = server.get(&format!("/version{slash}")).await.must_be(200);
        assert!(version["gitVersion"].as_str().unwrap().starts_with("v1."));
        assert_eq!(server.get(&maps("default")).await.code, 200);
    }
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(server.get(path).await.text, "ok");
    }
    aggregated(server).await;
}

async fn aggregated(server: &Server) {
    let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let answer = server.get_as("/apis", form).await;
    if server.which == Which::V1_20 {
        assert_eq!(answer.code, 406);
        let falls_back = server.get_as("/apis", &format!("{form},application/json")).await;
        assert_eq!(falls_back.must_be(200)["kind"], "APIGroupList");
        return;
    }
    assert_eq!((answer.code, answer.header("Content-Type"), answer.header("Vary")), (200, form, "Accept"));
    let body = answer.json();
    assert_eq!(
        (&body["kind"], &body["apiVersion"]),
        (&"APIGroupDiscoveryList".into(), &"apidiscovery.k8s.io/v2".into())
    );
    let apps = body["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "apps").unwrap();
    let resources = apps["versions"][0]["resources"].as_array().unwrap();
    let deployments = resources.iter().find(|r| r["resource"] == "deployments").unwrap();
    assert_eq!(
        (&deployments["scope"], &deployments["responseKind"]["kind"]),
        (&"Namespaced".into(), &"Deployment".into())
    );
    assert_eq!(deployments["singularResource"], "deployment");
    let request = Request::get("/apis").header("Accept", form).header("If-None-Match", answer.header("ETag"));
    assert_eq!(server.send(request.body(Body::empty()).unwrap()).await.code, 304);
}

pub(super) async fn unsupported_methods_are_refused(server: &Server, namespace: &str) {
    let path = maps(namespace);
    server.config_map(namespace, "one", json!({})).await;
    let message = "the server does not allow this method on the requested resource";
    server.put(&path, &json!({})).await.is_error(405, "MethodNotAllowed", message);
    server.post(&format!("{path}/one"), &json!({})).await.is_error(405, "MethodNotAllowed", message);
    let head = Request::head(path.as_str()).body(Body::empty()).unwrap();
    assert_eq!(server.send(head).await.code, 405);
    let unsupported =
        server.write("PATCH", &format!("{path}/one"), "application/x-unknown", &json!({})).await;
    assert_eq!(unsupported.code, 415, "{}", unsupported.text);
}

fn definition(group: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("gadgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "shortNames": ["gd"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

pub(super) async fn a_custom_kind_is_served_until_deleted(server: &Server, namespace: &str) {
    let group = "conformance.example.com";
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let path = format!("/apis/{group}/v1/namespaces/{namespace}/gadgets");
    server.post(definitions, &definition(group)).await.must_be(201);
    until_code(server, &path, 200).await;
    let gadget = json!({"apiVersion": format!("{group}/v1"), "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"x": 1}});
    let created = server.post(&path, &gadget).await.must_be(201);
    assert_eq!(created["metadata"]["generation"], 1);
    let list = server.get(&path).await.must_be(200);
    assert_eq!((&list["kind"], names(&list)), (&"GadgetList".into(), vec!["g"]));
    assert_eq!(
        (&list["items"][0]["kind"], &list["items"][0]["apiVersion"]),
        (&"Gadget".into(), &created["apiVersion"])
    );
    let missing = server.get(&format!("{path}/none")).await;
    missing.is_error(404, "NotFound", "gadgets.conformance.example.com \"none\" not found");
    assert_eq!(missing.json()["details"], json!({"name": "none", "group": group, "kind": "gadgets"}));
    let answer = server.get(&format!("{path}?fieldSelector=spec.size%3D1")).await;
    answer.is_error(400, "BadRequest", "field label not supported: spec.size");
    // The kind is younger than the cluster, so its watch window begins after version 1.
    let old = server.get(&format!("{path}?watch=true&resourceVersion=1&timeoutSeconds=2")).await;
    let events = old.events();
    assert_eq!((events.len(), &events[0]["type"]), (1, &"ERROR".into()), "{}", old.text);
    let error = &events[0]["object"];
    assert_eq!((&error["code"], &error["reason"]), (&json!(410), &"Expired".into()));
    assert!(error["message"].as_str().unwrap().starts_with("too old resource version: 1 ("), "{error}");

    let mut watch = server.watch(&format!("{path}?watch=true&resourceVersion={}", version(&list))).await;
    let deleted = server.delete(&format!("{definitions}/gadgets.{group}")).await;
    assert_eq!(deleted.code, 200);
    let gone = watch.expect("DELETED", "g").await;
    assert!(version(&gone) > version(&list));
    assert_eq!(watch.next().await, None);
    until_code(server, &path, 404).await;
}

async fn until_code(server: &Server, path: &str, code: u16) {
    let deadline = tokio::time::Instant::now() + WAIT;
    while server.get(path).await.code != code {
        assert!(tokio::time::Instant::now() < deadline, "{path} never answered {code}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
