//! Snapshots: the API server's objects, byte for byte, at one version.

use std::io::Read;
use std::time::Duration;

use informerd::testing::k8s::ResourceVersion;
use serde_json::{Value, json};

use crate::support::check::{Objects, expected, items, labeled, version};
use crate::support::client::{Stream, get, request};
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{TRANSPORTS, eventually, in_time, mk_pod};

const PODS: &str = "/v1/snapshot/pods";

/// Three namespaces with two pods each, one of them `app=api`.
async fn server() -> TestServer {
    let server = TestServer::start(&["pods", "services", "namespaces", "deployments.apps"]).await;
    for namespace in ["one", "two", "three"] {
        server.cluster.create("pods", mk_pod(namespace, "a", "web")).unwrap();
        server.cluster.create("pods", mk_pod(namespace, "b", "api")).unwrap();
    }
    server.caught_up("pods").await;
    server.caught_up("namespaces").await;
    server
}

fn keys(objects: &Objects) -> Vec<&str> {
    objects.keys().map(|key| key.split_once('/').unwrap().1).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_a_list() {
    let server = server().await;
    let version = server.cluster.revision();
    let objects = server.get_with(PODS, &[("Accept", "application/x-ndjson")]).await;
    assert_eq!(objects.header("content-type").as_deref(), Some("application/x-ndjson"));
    let joined = objects.text().trim_end().replace('\n', ",");
    let list = server.get(PODS).await;
    assert_eq!(list.header("content-type").as_deref(), Some("application/json"));
    let head = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":["#
    );
    assert_eq!(list.text(), format!("{head}{joined}]}}\n"));
    assert_eq!(items(&list.json()), expected(&server.cluster, "pods", |_| true));
    assert_eq!(list.header("age").as_deref(), Some("0"));
    assert_eq!(list.header("cache-control").as_deref(), Some("no-cache"));
    assert_eq!(list.header("vary").as_deref(), Some("Accept, Accept-Encoding"));
    let empty = server.get("/v1/snapshot/services").await;
    assert!(empty.text().ends_with("\"items\":[]}\n"), "{}", empty.text());
    assert_eq!(server.get_with("/v1/snapshot/svc", &[("Accept", "application/x-ndjson")]).await.text(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_equals_that_of_the_api_server_without_dropped_parts() {
    let server = server().await;
    let path = "/api/v1/namespaces/two/pods/b";
    let upstream = crate::support::client::get(server.api.address(), path, &[]).await.json();
    assert!(upstream["metadata"]["managedFields"].is_array());
    let object = server.get("/v1/snapshot/pods/two/b").await;
    assert_eq!(object.json(), crate::support::check::stripped(upstream));
    let length = object.header("content-length").and_then(|length| length.parse().ok());
    assert_eq!(length, Some(object.body.len()));
    assert!(object.body.ends_with(b"}\n") && !object.text().trim_end().contains('\n'));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_filtered_by_path_and_parameters() {
    let server = server().await;
    for (target, wanted) in [
        ("pods/two", vec!["two/a", "two/b"]),
        ("pods/none", vec![]),
        ("pods?namespace=two&namespace=one", vec!["one/a", "one/b", "two/a", "two/b"]),
        ("pods/?labelSelector=app%3Dapi", vec!["one/b", "three/b", "two/b"]),
        ("pods/one?labelSelector=app+notin+(api)", vec!["one/a"]),
        ("pods?fieldSelector=metadata.name%3Da,metadata.namespace!%3Dtwo", vec!["one/a", "three/a"]),
        ("pods?fieldSelector=status.phase%3D%3DRunning", vec![]),
        ("pods?&labelSelector=", vec!["one/a", "one/b", "three/a", "three/b", "two/a", "two/b"]),
    ] {
        let list = server.get(&format!("/v1/snapshot/{target}")).await;
        assert_eq!(keys(&items(&list.json())), wanted, "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_names_are_resolved_as_by_kubectl_and_answered_canonically() {
    let server = server().await;
    for (names, canonical) in [
        (&["pods", "pod", "po", "Pod", "pods.v1"][..], "pods"),
        (
            &["deployments", "deployment", "deploy", "deployments.apps", "deployments.v1.apps"],
            "deployments.apps",
        ),
        (&["ns", "namespace", "namespaces"], "namespaces"),
    ] {
        for name in names {
            let list = server.get(&format!("/v1/snapshot/{name}")).await;
            let token = list.header("informerd-resume").unwrap_or_default();
            assert_eq!(token.split(':').next(), Some(canonical), "{name}: {}", list.head);
        }
    }
    // For a cluster-scoped resource the second segment is the name.
    let one = server.get("/v1/snapshot/ns/default").await.json();
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("Namespace"), &json!("default")));
    for (path, code) in [
        ("/v1/snapshot/ns/default/x", 400),
        ("/v1/snapshot/ns?namespace=default", 400),
        ("/v1/snapshot/pods/a/b/c", 400),
        ("/v1/snapshot/pods//b", 400),
        ("/v1/snapshot/pods/one?namespace=two", 400),
        ("/v1/snapshot/pods,po", 400),
        ("/v1/snapshot/pods,ns/one", 400),
        ("/v1/snapshot/secrets", 404),
        ("/v1/snapshot/pods.v2", 404),
        ("/v1/snapshot/pods,", 404),
        ("/v1/nothing", 404),
    ] {
        let refused = server.get(path).await;
        assert_eq!((refused.status(), &refused.json()["kind"]), (code, &json!("Status")), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_object_gives_the_api_servers_404() {
    let server = server().await;
    let path = "/api/v1/namespaces/one/pods/none";
    let upstream = crate::support::client::get(server.api.address(), path, &[]).await;
    let refused = server.get("/v1/snapshot/pods/one/none").await;
    assert_eq!((refused.status(), upstream.status()), (404, 404));
    let (found, wanted) = (refused.json(), upstream.json());
    for field in ["kind", "apiVersion", "status", "message", "reason", "details", "code"] {
        assert_eq!(found[field], wanted[field], "{field}");
    }
    let unknown = server.get("/v1/snapshot/secrets").await.json();
    let message = unknown["message"].as_str().unwrap();
    assert!(message.contains("\"secrets\"") && message.contains("pods, services, namespaces"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_resources_are_one_list_and_one_token() {
    let server = server().await;
    let list = server.get("/v1/snapshot/pods,namespaces").await;
    let value = list.json();
    assert_eq!((&value["kind"], &value["apiVersion"]), (&json!("List"), &json!("v1")));
    assert_eq!(value["metadata"]["resourceVersion"], "");
    let mut all = expected(&server.cluster, "pods", |_| true);
    all.extend(expected(&server.cluster, "namespaces", |_| true));
    assert_eq!(items(&value), all);
    let token = list.header("informerd-resume").unwrap();
    assert_eq!(
        token.split(',').map(|part| part.split(':').next().unwrap()).collect::<Vec<_>>(),
        ["pods", "namespaces"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_exactly_where_a_snapshot_ends() {
    let server = server().await;
    let list = server.get(PODS).await;
    let token = list.header("informerd-resume").unwrap();
    server.cluster.delete("pods", "one", "a").unwrap();
    server.cluster.create("pods", mk_pod("one", "c", "web")).unwrap();
    server.caught_up("pods").await;
    for transport in TRANSPORTS {
        let mut stream =
            Stream::open(transport, server.address, "/v1/watch/pods", Some(&token)).await.unwrap();
        let told: Vec<_> = stream.until("BOOKMARK").await.into_iter().map(|event| event.kind).collect();
        assert_eq!(told, ["DELETED", "ADDED", "BOOKMARK"], "{transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_gets_the_headers_of_a_get() {
    let server = server().await;
    for path in
        [PODS, "/v1/snapshot/pods/one/a", "/v1/snapshot/pods/one/none", "/v1/resources", "/", "/openapi.json"]
    {
        let (get, head) = (server.get(path).await, request(server.address, "HEAD", path, &[]).await);
        assert_eq!(head.status(), get.status(), "{path}");
        assert!(head.body.is_empty() && head.complete, "{path}");
        for name in ["content-type", "etag", "content-length", "informerd-resume"] {
            // Ages in the document depend on the moment of the request.
            if (path, name) != ("/v1/resources", "content-length") {
                assert_eq!(head.header(name), get.header(name), "{path} {name}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_matching_if_none_match_is_answered_304() {
    let server = server().await;
    for path in [PODS, "/v1/snapshot/pods/one/a", "/v1/snapshot/pods,services?limit=2"] {
        let first = server.get(path).await;
        let tag = first.header("etag").unwrap();
        for value in [
            tag.clone(),
            format!("\"other\", {tag}"),
            "*".to_owned(),
            tag.trim_start_matches("W/").to_owned(),
        ] {
            let same = server.get_with(path, &[("If-None-Match", &value)]).await;
            assert_eq!((same.status(), same.body.len()), (304, 0), "{path} {value}");
            assert_eq!(same.header("etag"), Some(tag.clone()));
            assert_eq!(same.header("informerd-resume"), first.header("informerd-resume"));
        }
        let patch = json!({"metadata": {"labels": {"at": path.len().to_string()}}});
        server.cluster.patch("pods", "one", "a", &patch).unwrap();
        server.caught_up("pods").await;
        let other = server.get_with(path, &[("If-None-Match", &tag)]).await;
        assert_eq!(other.status(), 200, "{path}");
        assert_ne!(other.header("etag"), Some(tag));
    }
    let (json, lines) =
        (server.get(PODS).await, server.get_with(PODS, &[("Accept", "application/jsonl")]).await);
    assert_ne!(json.header("etag"), lines.header("etag"), "two representations have the same tag");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_one_snapshot_despite_changes() {
    let server = server().await;
    let (state, revision) = (expected(&server.cluster, "pods", |_| true), server.cluster.revision());
    for accept in ["application/json", "application/x-ndjson"] {
        let (mut all, mut sizes, mut next) = (Vec::new(), Vec::new(), String::new());
        loop {
            let page = server.get_with(&format!("{PODS}?limit=4{next}"), &[("Accept", accept)]).await;
            assert_eq!(page.status(), 200, "{}", page.text());
            let found: Vec<Value> = match accept {
                "application/json" => {
                    let list = page.json();
                    assert_eq!(version(&list), u128::from(revision));
                    let left = &list["metadata"]["remainingItemCount"];
                    assert_eq!(*left, if sizes.is_empty() { json!(2) } else { Value::Null });
                    list["items"].as_array().unwrap().clone()
                }
                _ => page.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            };
            sizes.push(found.len());
            all.extend(found);
            let Some(token) = page.header("informerd-continue") else { break };
            next = format!("&continue={token}");
            if accept == "application/x-ndjson" {
                server.cluster.delete("pods", "two", "b").unwrap_or(());
                let _ = server.cluster.create("pods", mk_pod("zoo", "late", "web"));
                server.caught_up("pods").await;
            }
        }
        assert_eq!(sizes, [4, 2], "{accept}");
        assert_eq!(items(&json!({"items": all})), state, "{accept}");
    }
}

#[tokio::test]
async fn all_pages_of_a_list_have_one_version() {
    let server = TestServer::start(&["pods"]).await;
    for name in ["a", "b"] {
        server.cluster.create("pods", mk_pod("one", name, "web")).unwrap();
    }
    server.caught_up("pods").await;
    let page =
        async |more: &str| server.get(&format!("{PODS}?limit=1{more}")).await.json()["metadata"].clone();
    let before = page("").await;
    // A bookmark brings a version that is not of a pod.
    server.cluster.create("services", json!({"metadata": {"namespace": "one", "name": "s"}})).unwrap();
    let pods = server.hub.resolve("pods").unwrap();
    let newest = ResourceVersion::from(server.cluster.revision());
    eventually("a bookmark", || pods[0].reader.summary().position >= newest).await;
    let first = page("").await;
    assert_ne!(first["resourceVersion"], before["resourceVersion"]);
    let second = page(&format!("&continue={}", first["continue"].as_str().unwrap())).await;
    assert_eq!(second["resourceVersion"], first["resourceVersion"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continue_token_of_another_request_is_refused_and_an_old_one_is_410() {
    let server = TestServer::start_with(&["pods", "services"], |config| {
        config.limits.snapshot_pages_max = 1;
        config.limits.snapshot_pages_ttl = Duration::from_secs(60);
    })
    .await;
    for name in ["a", "b", "c"] {
        server.cluster.create("pods", mk_pod("default", name, "web")).unwrap();
    }
    server.caught_up("pods").await;
    let token = server.get(&format!("{PODS}?limit=1")).await.header("informerd-continue").unwrap();
    for path in [
        format!("{PODS}?limit=1&continue=nonsense"),
        format!("{PODS}?limit=1&continue={token}x"),
        format!("/v1/snapshot/services?limit=1&continue={token}"),
        format!("{PODS}?limit=1&labelSelector=a&continue={token}"),
        format!("{PODS}?limit=1&resourceVersion=1&continue={token}"),
        format!("{PODS}?limit=-1"),
    ] {
        assert_eq!(server.get(&path).await.status(), 400, "{path}");
    }
    assert_eq!(
        server.get(&format!("{PODS}?continue={token}")).await.json()["items"].as_array().unwrap().len(),
        2
    );
    server.cluster.create("pods", mk_pod("default", "d", "web")).unwrap();
    server.caught_up("pods").await;
    server.get(&format!("{PODS}?limit=1")).await;
    let expired = server.get(&format!("{PODS}?limit=1&continue={token}")).await;
    assert_eq!((expired.status(), &expired.json()["reason"]), (410, &json!("Expired")));
}

/// The tokens of first pages, each of another state.
async fn first_pages(server: &TestServer, count: usize) -> Vec<String> {
    let mut tokens = Vec::new();
    for number in 0..count {
        server.cluster.create("pods", mk_pod("default", &format!("new-{number}"), "web")).unwrap();
        server.caught_up("pods").await;
        let path = if number % 2 == 0 { format!("{PODS}?limit=1") } else { "/api/v1/pods?limit=1".into() };
        let page = server.get(&path).await;
        let token = page.header("informerd-continue");
        let token = token.unwrap_or_else(|| page.json()["metadata"]["continue"].as_str().unwrap().to_owned());
        tokens.push(format!("{path}&continue={token}"));
    }
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_clients_that_read_pages_of_sixty_states_all_get_to_the_end() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    let second_pages = first_pages(&server, 60).await;
    for path in &second_pages {
        assert_eq!(server.get(path).await.status(), 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn held_snapshots_are_dropped_by_the_bytes_that_they_keep() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.limits.snapshot_pages_bytes_max = 1 << 20;
    })
    .await;
    server.cluster.bulk_load("pods", 30, 100_000).unwrap();
    server.caught_up("pods").await;
    let [first, last] = <[String; 2]>::try_from(first_pages(&server, 2).await).unwrap();
    assert_eq!(server.get(&first).await.status(), 200);
    assert_eq!(server.get(&last).await.status(), 200);
    // Both keep the former states of these objects.
    for object in server.get(PODS).await.json()["items"].as_array().unwrap() {
        let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
        let (namespace, name) = (namespace.as_str().unwrap(), name.as_str().unwrap());
        let patch = json!({"metadata": {"labels": {"round": "1"}}});
        server.cluster.patch("pods", namespace, name, &patch).unwrap();
    }
    server.caught_up("pods").await;
    // The one that was used last stays.
    let hit = "informerd_http_limit_hits_total{limit=\"snapshot_pages_bytes_max\"} 1";
    in_time("the end of the other one", async {
        while !get(server.admin, "/metrics", &[]).await.text().contains(hit) {}
    })
    .await;
    assert_eq!(server.get(&first).await.status(), 410);
    assert_eq!(server.get(&last).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_reads_its_own_write_or_gets_504() {
    let server = server().await;
    for round in 0..20 {
        let patch = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let written = version(&server.cluster.patch("pods", "one", "a", &patch).unwrap());
        let object = server.get(&format!("/v1/snapshot/pods/one/a?resourceVersion={written}")).await;
        assert!(labeled(&object.json(), "round", &round.to_string()), "{}", object.text());
    }
    let ahead = server.cluster.revision() + 1000;
    for path in [PODS, "/v1/snapshot/pods/one/a", "/v1/snapshot/pods/one/none"] {
        let late = server.get(&format!("{path}?resourceVersion={ahead}&timeoutSeconds=0")).await;
        assert_eq!((late.status(), &late.json()["reason"]), (504, &json!("Timeout")), "{path}");
        assert_eq!(late.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
        assert_eq!(late.header("retry-after").as_deref(), Some("1"));
    }
    for (path, code) in [
        (format!("{PODS}?resourceVersion=0"), 200),
        (format!("{PODS}?resourceVersion="), 200),
        (format!("{PODS}?resourceVersion=abc"), 400),
        (format!("{PODS}?resourceVersion=007"), 400),
        ("/v1/snapshot/pods,services?resourceVersion=5".to_owned(), 400),
        (format!("{PODS}?resourceVersion=5&timeoutSeconds=301"), 400),
    ] {
        assert_eq!(server.get(&path).await.status(), code, "{path}");
    }
}

/// The text of a gzip answer, which must be a single member.
#[track_caller]
fn gunzipped(body: &[u8]) -> String {
    let mut text = String::new();
    let mut member = flate2::bufread::GzDecoder::new(body);
    member.read_to_string(&mut text).unwrap();
    assert!(member.into_inner().is_empty(), "one member, and nothing after it");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_list_matches_the_current_state_and_request() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.bulk_load("pods", 1000, 3000).unwrap();
    server.caught_up("pods").await;
    let all = [PODS, "/v1/snapshot/pods/load-07", "/v1/snapshot/pods?fields=metadata.name", "/api/v1/pods"];
    for round in 0..3 {
        if round > 0 {
            server.cluster.create("pods", mk_pod("load-07", &format!("new-{round}"), "web")).unwrap();
            server.caught_up("pods").await;
        }
        let mut bodies = Vec::new();
        for path in all {
            let plain = server.get(path).await;
            let gzip = [("Accept-Encoding", "gzip")];
            let (one, other) = tokio::join!(server.get_with(path, &gzip), server.get_with(path, &gzip));
            let later = server.get_with(path, &gzip).await;
            assert_eq!(one.body, other.body, "{path}");
            assert_eq!(one.body, later.body, "{path}");
            assert!(one.complete && other.complete && later.complete);
            assert_eq!(gunzipped(&one.body), plain.text(), "{path}");
            for header in ["etag", "informerd-resume", "content-type"] {
                assert_eq!(one.header(header), plain.header(header), "{path}");
            }
            // The same state in another coding.
            let zstd = server.get_with(path, &[("Accept-Encoding", "zstd, gzip;q=0.5")]).await;
            assert_eq!(zstd.header("content-encoding").as_deref(), Some("zstd"));
            assert_eq!(zstd::stream::decode_all(&*zstd.body).unwrap(), plain.body, "{path}");
            bodies.push(plain.body);
        }
        bodies.dedup();
        assert_eq!(bodies.len(), all.len());
        // A page is not answered from the shared whole list.
        let page = server.get_with("/v1/snapshot/pods?limit=10", &[("Accept-Encoding", "gzip")]).await;
        assert_eq!(gunzipped(&page.body).matches(r#""uid":"#).count(), 10);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_answer_has_the_same_content() {
    let server = TestServer::start(&["pods"]).await;
    server.cluster.bulk_load("pods", 300, 3000).unwrap();
    server.caught_up("pods").await;
    for accept in ["application/json", "application/x-ndjson"] {
        let plain = server.get_with(PODS, &[("Accept", accept)]).await;
        for coding in ["gzip", "br", "zstd"] {
            let headers = [("Accept", accept), ("Accept-Encoding", coding)];
            let packed = server.get_with(PODS, &headers).await;
            assert_eq!(packed.header("content-encoding").as_deref(), Some(coding));
            assert!(packed.complete && packed.body.len() * 3 < plain.body.len(), "{coding}");
            let mut body = Vec::new();
            match coding {
                "gzip" => flate2::read::GzDecoder::new(&*packed.body).read_to_end(&mut body),
                "br" => brotli::Decompressor::new(&*packed.body, 4096).read_to_end(&mut body),
                _ => zstd::Decoder::new(&*packed.body).unwrap().read_to_end(&mut body),
            }
            .unwrap();
            assert_eq!(body, plain.body, "{coding}");
        }
        let headers = [("Accept", accept), ("Accept-Encoding", "gzip;q=0, identity")];
        assert_eq!(server.get_with(PODS, &headers).await.header("content-encoding"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_snapshot_requests_are_refused_by_parameter() {
    let server = server().await;
    let refused = server.get(&format!("{PODS}?labelselector=a&watch=true&limit=1&limit=2")).await;
    let status = refused.json();
    let fields: Vec<_> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    assert_eq!((refused.status(), fields), (400, vec!["labelselector", "watch", "limit"]));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("unknown parameter (value \"true\"); accepted are labelSelector,"), "{message}");
    for (query, field) in [
        ("labelSelector=a%3D%3D%3Db", "labelSelector"),
        ("fieldSelector=status.phase", "fieldSelector"),
        ("limit=many", "limit"),
        ("namespace=", "namespace"),
        ("timeoutSeconds=-1", "timeoutSeconds"),
    ] {
        let refused = server.get(&format!("{PODS}?{query}")).await;
        assert_eq!(refused.status(), 400, "{query}");
        assert_eq!(refused.json()["details"]["causes"][0]["field"], field, "{query}");
    }
    for accept in ["text/html", "application/vnd.kubernetes.protobuf", "application/json;q=0"] {
        let refused = server.get_with(PODS, &[("Accept", accept)]).await;
        assert_eq!((refused.status(), &refused.json()["reason"]), (406, &json!("NotAcceptable")), "{accept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_work_during_an_api_server_outage_and_show_the_cache_age() {
    let mut server = server().await;
    let before = server.get(PODS).await;
    server.api.stop().await;
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let answer = server.get(PODS).await;
        assert_eq!(answer.body, before.body);
        if answer.header("age").is_some_and(|age| age.parse::<u64>().unwrap() >= 1) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{}", answer.head);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.cluster.create("pods", mk_pod("one", "c", "web")).unwrap();
    server.api.start().await.unwrap();
    let mut recorder = Recorder::connect(TRANSPORTS[0], server.address, "/v1/watch/pods").await;
    recorder.wait_for_state(&expected(&server.cluster, "pods", |_| true)).await;
}
