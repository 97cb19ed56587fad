//! Cases 31 to 48: lists and gets.

use std::time::Duration;

use informerd::testing::config;
use informerd::testing::sim::{Cluster, ClusterConfig, Failure, Requests, Verb};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{DEFAULT_PODS, PARTIAL, PARTIAL_LIST, PODS, create, delete, names, relabel, send, status};
use crate::support::client::{self, Stream};
use crate::support::mk_pod;
use crate::support::server::{ANY_PORT, Informerd, TestServer, serve_config};

/// Five pods in the default namespace and one elsewhere.
async fn server() -> TestServer {
    server_with(|_| {}).await
}

async fn server_with(change: impl FnOnce(&mut config::Serve)) -> TestServer {
    let cluster = Cluster::new(ClusterConfig::default());
    for name in ["a", "b", "c", "d", "e"] {
        cluster.create("pods", mk_pod("default", name, "web")).unwrap();
    }
    cluster.create("pods", mk_pod("other", "x", "api")).unwrap();
    TestServer::over(cluster, &["pods", "namespaces", "configmaps"], change).await
}

fn without_managed_fields(mut object: Value) -> Value {
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn case_31_a_list_equals_that_of_the_api_server() {
    let server = server().await;
    let upstream = client::get(server.api.address(), PODS, &[]).await.json();
    let list = server.get(PODS).await;
    assert_eq!(list.header("cache-control").as_deref(), Some("no-cache, private"));
    let list = list.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, server.hub.resolve("pods").unwrap()[0].reader.summary().position.to_string());
    let expected = upstream["items"].as_array().unwrap().iter().cloned().map(|item| {
        let mut item = without_managed_fields(item);
        // The API server leaves both out for a listed object of a built-in kind.
        item["kind"] = "Pod".into();
        item["apiVersion"] = "v1".into();
        item
    });
    assert_eq!(list["items"], Value::Array(expected.collect()));
    let path = format!("{DEFAULT_PODS}/a");
    let upstream = client::get(server.api.address(), &path, &[]).await.json();
    assert_eq!(server.get(&path).await.json(), without_managed_fields(upstream));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_has_the_requested_api_version() {
    let server = server().await;
    for version in ["v1", "v1beta1"] {
        let accept = format!("application/json;as=Table;v={version};g=meta.k8s.io");
        for path in [PODS, &*format!("{DEFAULT_PODS}/a")] {
            let table = server.get_with(path, &[("Accept", &accept)]).await.json();
            let told = format!("meta.k8s.io/{version}");
            assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!(told)), "{path}");
            assert_eq!(table["rows"][0]["object"]["apiVersion"], told, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_set_in_a_selector_means_the_empty_value() {
    let server = server().await;
    let of = |selector: &str| format!("{PODS}?labelSelector={selector}");
    assert_eq!(names(&server.get(&of("app+in+()")).await), Vec::<String>::new());
    assert_eq!(names(&server.get(&of("app+notin+()")).await).len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_watches_and_gets_are_counted_apart() {
    let server = server().await;
    let counts = async || {
        let page = client::get(server.admin, "/metrics", &[]).await;
        ["kubernetes-list", "kubernetes-watch", "kubernetes-get", "kubernetes"].map(|route| {
            let series =
                format!(r#"informerd_http_requests_total{{route="{route}",method="GET",code="200"}} "#);
            page.text().lines().find_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok()).unwrap_or(0)
        })
    };
    let before = counts().await;
    server.get(PODS).await;
    server.get(&format!("{DEFAULT_PODS}/a")).await;
    server.get("/api/v1").await;
    Stream::http(server.address, &format!("{PODS}?watch=1&timeoutSeconds=1"), &[]).await.unwrap();
    let after = counts().await;
    for (before, after) in before.iter().zip(after) {
        // Other tests in this process count, too.
        assert!(after > *before, "{before:?} {after:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_32_a_missing_namespace_is_an_empty_list() {
    let server = server().await;
    let list = server.get("/api/v1/namespaces/none/pods").await;
    assert_eq!((list.status(), &list.json()["items"]), (200, &json!([])));
    assert_eq!(names(&server.get(&format!("{DEFAULT_PODS}/")).await), ["a", "b", "c", "d", "e"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_33_missing_objects_and_resources_are_404() {
    let server = server().await;
    let missing = status(&server.get(&format!("{DEFAULT_PODS}/none")).await, 404, "NotFound");
    assert_eq!(missing["message"], r#"pods "none" not found"#);
    assert_eq!(missing["details"], json!({"name": "none", "kind": "pods"}));
    let text = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#;
    for path in [
        "/api/v1/nothing",
        "/api/v1/pods/a",
        "/api/v1/po",
        "/api/v1/namespaces/default/namespaces",
        "/apis/none/v1/things",
        "/apis/apps/v1/pods",
        "/api/v1//pods",
    ] {
        let answer = server.get(path).await;
        assert_eq!((answer.status(), answer.text().trim_end()), (404, text), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_names_a_resource_by_its_exact_group_version_and_plural() {
    let server = TestServer::start(&["deployments"]).await;
    server.caught_up("deployments").await;
    assert_eq!(server.get("/apis/apps/v1/deployments").await.status(), 200);
    // The hub takes names as kubectl does: without a version, with part of a group, in capitals.
    for path in ["/api/apps/deployments", "/apis/Apps/v1/deployments", "/apis/v1/apps/deployments"] {
        status(&server.get(path).await, 404, "NotFound");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_34_pages_show_one_state_despite_writes() {
    let server = server().await;
    let (mut found, mut versions, mut counts, mut token) =
        (Vec::new(), Vec::new(), Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{DEFAULT_PODS}?limit=2&continue={token}")).await;
        found.extend(names(&page));
        let metadata = page.json()["metadata"].clone();
        versions.push(metadata["resourceVersion"].clone());
        counts.push(metadata["remainingItemCount"].as_u64());
        delete(&server, ["b", "d", "e"][versions.len() - 1]);
        create(&server, &format!("bb{}", versions.len()));
        server.caught_up("pods").await;
        match metadata["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(found, ["a", "b", "c", "d", "e"]);
    assert_eq!(counts, [Some(3), Some(1), None]);
    versions.dedup();
    assert_eq!(versions.len(), 1);
    let selected = server.get(&format!("{PODS}?limit=1&labelSelector=app")).await.json();
    assert!(selected["metadata"]["continue"].is_string());
    assert!(selected["metadata"]["remainingItemCount"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_35_an_invalid_or_misplaced_continue_token_is_refused() {
    let server = server_with(|config| config.limits.snapshot_pages_max = 1).await;
    let garbage = status(&server.get(&format!("{PODS}?continue=garbage")).await, 400, "BadRequest");
    assert!(garbage["message"].as_str().unwrap().starts_with("invalid continue token: "));
    let page = server.get(&format!("{PODS}?limit=1")).await.json();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let refused = server.get(&format!("{PODS}?continue={token}&resourceVersion=5")).await;
    assert_eq!(status(&refused, 400, "BadRequest")["message"], {
        "specifying resource version is not allowed when using continue"
    });
    let matched = format!("{PODS}?continue={token}&resourceVersion=5&resourceVersionMatch=Exact");
    status(&server.get(&matched).await, 422, "Invalid");
    status(&server.get(&format!("{DEFAULT_PODS}?continue={token}")).await, 400, "BadRequest");
    assert_eq!(names(&server.get(&format!("{PODS}?continue={token}&resourceVersion=0")).await).len(), 5);
    // A newer snapshot replaces it.
    create(&server, "f");
    server.caught_up("pods").await;
    server.get(&format!("{PODS}?limit=1")).await;
    status(&server.get(&format!("{PODS}?continue={token}")).await, 410, "Expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_36_and_39_resource_versions_of_a_list() {
    let server = server().await;
    let version = relabel(&server, "a", "api");
    server.caught_up("pods").await;
    for query in [
        "resourceVersion=0".to_owned(),
        "resourceVersion=0&resourceVersionMatch=NotOlderThan".to_owned(),
        "resourceVersion=1".to_owned(),
        "resourceVersion=1&resourceVersionMatch=NotOlderThan".to_owned(),
        "resourceVersion=1&limit=9&resourceVersionMatch=NotOlderThan".to_owned(),
        format!("resourceVersion={version}&resourceVersionMatch=Exact"),
        format!("resourceVersion={version}&limit=9"),
    ] {
        let list = server.get(&format!("{PODS}?{query}")).await;
        assert_eq!(names(&list).len(), 6, "{query}");
        let at: u64 = list.json()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        assert!(at >= version, "{query}");
    }
    // With `resourceVersion=0` any version will do, so the limit is ignored.
    assert_eq!(names(&server.get(&format!("{PODS}?resourceVersion=0&limit=1")).await).len(), 6);
    for query in ["resourceVersion=1&resourceVersionMatch=Exact", "resourceVersion=1&limit=1"] {
        let old = status(&server.get(&format!("{PODS}?{query}")).await, 410, "Expired");
        assert_eq!(old["message"], "The resourceVersion for the provided list is too old.");
    }
    for query in [
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=1&resourceVersionMatch=Foo",
        "sendInitialEvents=true",
    ] {
        let invalid = status(&server.get(&format!("{PODS}?{query}")).await, 422, "Invalid");
        assert_eq!(invalid["details"]["kind"], "ListOptions", "{query}");
        let upstream = client::get(server.api.address(), &format!("{PODS}?{query}"), &[]).await;
        assert_eq!(invalid["message"], upstream.json()["message"], "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_37_a_version_that_is_not_reached_is_a_504_timeout() {
    let server = server().await;
    let began = Instant::now();
    let large = server.cluster.revision() + 1000;
    let answer = server.get(&format!("{PODS}?resourceVersion={large}")).await;
    assert!(began.elapsed() >= Duration::from_secs(2));
    let late = status(&answer, 504, "Timeout");
    assert_eq!(late["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(late["details"]["retryAfterSeconds"], 1);
    assert_eq!(answer.header("retry-after").as_deref(), Some("1"));
    let message = late["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("Timeout: Too large resource version: {large}, current: ")));
    let get = server.get(&format!("{DEFAULT_PODS}/a?resourceVersion={large}")).await;
    status(&get, 504, "Timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_38_a_list_waits_for_a_version_that_is_reached_in_time() {
    let server = server().await;
    let next = server.cluster.revision() + 1;
    let asked = format!("{DEFAULT_PODS}?resourceVersion={next}");
    let (list, ()) = tokio::join!(server.get(&asked), async {
        assert_eq!(create(&server, "f"), next);
    });
    assert!(names(&list).contains(&"f".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_40_a_malformed_number_is_a_bad_request() {
    let server = server().await;
    for query in ["resourceVersion=abc", "resourceVersion=-1", "limit=abc", "timeoutSeconds=abc"] {
        let bad = status(&server.get(&format!("{PODS}?{query}")).await, 400, "BadRequest");
        let upstream = client::get(server.api.address(), &format!("{PODS}?{query}"), &[]).await.json();
        if upstream["code"] == 400 {
            assert_eq!(bad["message"], upstream["message"], "{query}");
        }
        status(&server.get(&format!("{PODS}?watch=1&{query}")).await, 400, "BadRequest");
        // An unknown resource counts first.
        status(&server.get(&format!("/api/v1/nothing?{query}")).await, 404, "NotFound");
    }
    assert_eq!(names(&server.get(&format!("{PODS}?limit=-1&unknown=1")).await).len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_41_and_42_selectors_select_as_on_the_api_server() {
    let server = server().await;
    relabel(&server, "a", "api");
    server.caught_up("pods").await;
    for query in [
        "labelSelector=app%3Dweb",
        "labelSelector=app%3D%3Dweb",
        "labelSelector=app!%3Dweb",
        "labelSelector=app+in+(web,api)",
        "labelSelector=app+notin+(web)",
        "labelSelector=app",
        "labelSelector=!app",
        "labelSelector=app%3Dweb,app!%3Dx",
        "labelSelector=app%3E1",
        "labelSelector=a%3D%3D%3Db",
        "fieldSelector=metadata.name%3Da",
        "fieldSelector=metadata.name!%3Da",
        "fieldSelector=metadata.namespace%3Dother",
        "fieldSelector=metadata.name%3Da,metadata.name%3Da",
        "fieldSelector=metadata.name%3Da,metadata.name%3Db",
        "fieldSelector=spec.nodeName%3Dnode-1",
        "fieldSelector=status.phase%3DPending,metadata.namespace%3Ddefault",
        "fieldSelector=spec.x%3D1",
        "fieldSelector=a",
    ] {
        for path in [PODS, DEFAULT_PODS] {
            let target = format!("{path}?{query}");
            let (answer, upstream) =
                (server.get(&target).await, client::get(server.api.address(), &target, &[]).await);
            assert_eq!(answer.status(), upstream.status(), "{target}: {}", answer.text());
            match answer.status() {
                200 => assert_eq!(names(&answer), names(&upstream), "{target}"),
                _ => assert_eq!(answer.json(), upstream.json(), "{target}"),
            }
        }
    }
    let unknown = server.get("/api/v1/configmaps?fieldSelector=spec.x%3D1").await;
    assert_eq!(status(&unknown, 400, "BadRequest")["message"], {
        r#""spec.x" is not a known field selector: only "metadata.name", "metadata.namespace""#
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn case_43_before_the_first_list_requests_are_refused() {
    let api = TestServer::api(Cluster::new(ClusterConfig::default())).await;
    for verb in [Verb::List, Verb::Watch] {
        api.faults().hang_next(100, &Requests::of(verb).on("pods"));
    }
    let upstream = config::UpstreamSource::Server { url: api.url() };
    let informerd = Informerd::start_unsynced(serve_config(upstream, &["pods"])).await;
    assert_ne!(informerd.address, ANY_PORT);
    let watching = format!("{PODS}?watch=1");
    let (list, watch) = tokio::join!(informerd.get(PODS), informerd.get(&watching));
    for answer in [list, watch] {
        status(&answer, 503, "ServiceUnavailable");
        assert_eq!(answer.header("retry-after").as_deref(), Some("1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_44_writes_are_refused_and_not_forwarded() {
    let server = server().await;
    let before = server.api.requests();
    for method in ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] {
        for path in
            [DEFAULT_PODS, "/api/v1/namespaces/default/pods/a", "/apis", "/apis/none/v1/things?dryRun=All"]
        {
            let answer = send(&server, method, path).await;
            assert_eq!(
                (answer.status(), answer.header("allow").as_deref()),
                (405, Some("GET")),
                "{method} {path}"
            );
            if method != "HEAD" {
                let refused = status(&answer, 405, "MethodNotAllowed");
                assert_eq!(
                    refused["message"],
                    "the server does not allow this method on the requested resource"
                );
            }
        }
    }
    let writes = |line: &String| !line.starts_with("GET");
    let after = server.api.requests();
    assert_eq!(
        after.iter().filter(|line| writes(line)).count(),
        before.iter().filter(|line| writes(line)).count()
    );
    assert_eq!(server.cluster.len("pods"), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_45_subresources_are_not_found() {
    let server = server().await;
    for path in ["pods/a/log", "pods/a/status", "pods/a/exec?command=ls", "pods/a/proxy/x/y"] {
        status(&server.get(&format!("/api/v1/namespaces/default/{path}")).await, 404, "NotFound");
    }
    status(&server.get("/api/v1/namespaces/default/status").await, 404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resource_columns_need_no_watch_of_the_definition() {
    const DEFINITION: &str = "/customresourcedefinitions/widgets.demo.informerd.dev";
    const WIDGETS: &str = "/apis/demo.informerd.dev/v1/widgets";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let asked = |server: &TestServer| {
        server.api.requests().iter().filter(|request| request.ends_with(DEFINITION)).count()
    };
    let server = TestServer::start(&["widgets"]).await;
    let widget = json!({"metadata": {"namespace": "default", "name": "a"}, "spec": {"size": 3}});
    server.cluster.create("widgets.demo.informerd.dev", widget).unwrap();
    server.caught_up("widgets.demo.informerd.dev").await;
    assert_eq!(names(&server.get(WIDGETS).await), ["a"]);
    assert_eq!(asked(&server), 0, "a request without a table reached the API server");
    let columns = |list: &Value| {
        let columns = list["columnDefinitions"].as_array().cloned().unwrap_or_default();
        columns.iter().map(|column| column["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        let list = server.get_with(WIDGETS, &[("Accept", table)]).await.json();
        let shown = columns(&list);
        assert!(shown[0] == "Name" && shown.len() > 2, "{list}");
        assert_eq!(list["rows"][0]["cells"][0], "a");
    }
    let one = "/apis/demo.informerd.dev/v1/namespaces/default/widgets/a";
    let one = server.get_with(one, &[("Accept", table)]).await.json();
    assert_eq!(one["kind"], "Table");
    assert_eq!(asked(&server), 1, "the definition was not read exactly once");
    // Without the permission or the definition, the client gets the form that kubectl prefers next.
    let server = TestServer::start(&["widgets"]).await;
    let definition = Requests::of(Verb::Get).on("customresourcedefinitions.apiextensions.k8s.io");
    server.api.faults().fail_next(1, &definition, Failure { code: 403, retry_after_seconds: None });
    let list = server.get_with(WIDGETS, &[("Accept", table)]).await;
    assert_eq!((list.status(), &list.json()["kind"]), (200, &json!("WidgetList")));
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_46_and_48_json_is_served_to_clients_that_accept_it() {
    let server = server().await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    for accept in [
        "*/*",
        "application/vnd.kubernetes.protobuf,application/json",
        "application/cbor, application/json;q=0.9",
    ] {
        let list = server.get_with(PODS, &[("Accept", accept)]).await;
        assert_eq!(list.header("content-type").as_deref(), Some("application/json"), "{accept}");
        assert_eq!(list.json()["kind"], "PodList", "{accept}");
    }
    let pods = server.get_with(&format!("{PODS}?limit=2"), &[("Accept", table)]).await.json();
    assert_eq!(pods["kind"], "Table");
    assert_eq!(pods["columnDefinitions"][2]["name"], "Status");
    assert_eq!(pods["rows"].as_array().map(Vec::len), Some(2));
    assert!(pods["metadata"]["continue"].is_string());
    let one =
        server.get_with("/api/v1/namespaces/default/pods/a?includeObject=None", &[("Accept", table)]).await;
    assert_eq!(
        (&one.json()["rows"][0]["cells"][0], &one.json()["rows"][0]["object"]),
        (&"a".into(), &Value::Null)
    );
    let path = format!("{PODS}?includeObject=All");
    let refused = status(&server.get_with(&path, &[("Accept", table)]).await, 400, "BadRequest");
    let message = "Unable to convert to Table as requested: includeObject: Invalid value: \"All\": must be 'Metadata', 'Object', 'None', or empty";
    assert_eq!(refused["message"], message);
    for accept in ["application/vnd.kubernetes.protobuf", "application/cbor", "text/html"] {
        for path in [PODS, "/api/v1/pods?watch=1", "/api/v1/namespaces/default/pods/a"] {
            let refused = status(&server.get_with(path, &[("Accept", accept)]).await, 406, "NotAcceptable");
            assert_eq!(refused["message"], "only the following media types are accepted: application/json");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_47_metadata_only_requests_get_their_own_kinds() {
    let server = server().await;
    let list = server.get_with(PODS, &[("Accept", PARTIAL_LIST)]).await;
    assert_eq!(names(&list), ["a", "b", "c", "d", "e", "x"]);
    let list = list.json();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("PartialObjectMetadataList"), &json!("meta.k8s.io/v1"))
    );
    let whole = server.get(&format!("{DEFAULT_PODS}/a")).await.json();
    let expected = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole["metadata"]});
    assert_eq!(list["items"][0], expected);
    let get = server.get_with(&format!("{DEFAULT_PODS}/a"), &[("Accept", PARTIAL)]).await;
    assert_eq!(get.json(), expected);
    status(&server.get_with(PODS, &[("Accept", PARTIAL)]).await, 406, "NotAcceptable");
    let target = format!("{DEFAULT_PODS}?watch=1&allowWatchBookmarks=true&labelSelector=app%3Dweb");
    let mut stream = super::watch_as(&server, &target, PARTIAL).await;
    let events = stream.until("SYNCED").await;
    assert_eq!(events[0].object, expected);
    let mark = &events[5].object;
    assert_eq!((&mark["kind"], &mark["apiVersion"]), (&expected["kind"], &expected["apiVersion"]));
    let version = relabel(&server, "a", "api");
    let left = stream.next().await.unwrap();
    assert_eq!(super::summary(&left), format!("DELETED a@{version}"));
    assert_eq!(left.object["metadata"]["labels"]["app"], "web");
    assert!(left.object["spec"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn large_lists_are_compressed_if_the_client_accepts_gzip() {
    let server = server().await;
    server.cluster.bulk_load("configmaps", 300, 1000).unwrap();
    server.caught_up("configmaps").await;
    let path = "/api/v1/configmaps";
    let packed = server.get_with(path, &[("Accept-Encoding", "gzip")]).await;
    assert_eq!(packed.header("content-encoding").as_deref(), Some("gzip"));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&*packed.body), &mut text).unwrap();
    assert_eq!(text, server.get(path).await.text());
    let small = server.get_with(PODS, &[("Accept-Encoding", "gzip")]).await;
    assert_eq!(small.header("content-encoding"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partly_followed_resource_is_served_in_part() {
    let server = server_with(|config| {
        config.watches[0].namespaces = vec!["default".parse().unwrap()];
        config.watches[2].metadata_only = true;
    })
    .await;
    assert_eq!(names(&server.get(DEFAULT_PODS).await).len(), 5);
    for path in [PODS, "/api/v1/namespaces/other/pods", "/api/v1/namespaces/other/pods/x"] {
        let refused = status(&server.get(path).await, 403, "Forbidden");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("namespace default only"), "{message}");
    }
    let whole = status(&server.get("/api/v1/configmaps").await, 406, "NotAcceptable");
    assert!(whole["message"].as_str().unwrap().contains("only the metadata is held"));
    let list = server.get_with("/api/v1/configmaps", &[("Accept", PARTIAL_LIST)]).await;
    assert_eq!((list.status(), &list.json()["kind"]), (200, &json!("PartialObjectMetadataList")));
    let refused = Stream::http(server.address, "/api/v1/configmaps?watch=1", &[]).await;
    assert!(refused.is_err());
}
