//! Cases of lists: pages, versions, selectors, errors.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use super::{Server, Which, maps, names, version};

pub(super) async fn items_of_built_ins_have_no_kind(server: &Server, namespace: &str) {
    let empty = server.get(&maps(namespace)).await.must_be(200);
    assert_eq!((&empty["kind"], &empty["apiVersion"]), (&"ConfigMapList".into(), &"v1".into()));
    assert_eq!(empty["items"], json!([]));
    let created = server.config_map(namespace, "one", json!({})).await;
    let list = server.get(&maps(namespace)).await.must_be(200);
    assert!(version(&list) >= version(&created) && version(&created) > version(&empty));
    let item = &list["items"][0];
    assert_eq!((item.get("kind"), item.get("apiVersion")), (None, None));
    assert_eq!(item["metadata"], created["metadata"]);
    assert!(item["metadata"]["managedFields"][0]["fieldsV1"]["f:data"].is_object(), "{item}");
    let got = server.get(&format!("{}/one", maps(namespace))).await.must_be(200);
    assert_eq!((&got["kind"], &got["apiVersion"]), (&"ConfigMap".into(), &"v1".into()));
}

pub(super) async fn pages_are_one_snapshot(server: &Server, namespace: &str) {
    for name in ["c1", "c2", "c3", "c4", "c5"] {
        server.config_map(namespace, name, json!({"app": "x"})).await;
    }
    let path = maps(namespace);
    let first = server.get(&format!("{path}?&limit=2")).await.must_be(200);
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["c1", "c2"], &json!(3)));
    // Changes made between the pages must not show in them.
    server.delete(&format!("{path}/c4")).await.must_be(200);
    server.config_map(namespace, "c22", json!({"app": "x"})).await;
    server.patch(&format!("{path}/c3"), &json!({"data": {"a": "2"}})).await.must_be(200);
    let mut seen = Vec::new();
    let mut page = first.clone();
    while let Some(token) = page["metadata"]["continue"].as_str() {
        page = server.get(&format!("{path}?limit=2&continue={token}&resourceVersion=0")).await.must_be(200);
        assert_eq!(version(&page), version(&first));
        assert!(page["items"].as_array().unwrap().iter().all(|item| item["data"]["a"] == "1"));
        seen.extend(names(&page).into_iter().map(str::to_owned));
    }
    assert_eq!(seen, ["c3", "c4", "c5"]);
    let now = server.get(&path).await.must_be(200);
    assert_eq!(names(&now), ["c1", "c2", "c22", "c3", "c5"]);
    let exact = format!("{path}?resourceVersion={}&resourceVersionMatch=Exact", version(&first));
    assert_eq!(names(&server.get(&exact).await.must_be(200)), ["c1", "c2", "c3", "c4", "c5"]);
    let selected = server.get(&format!("{path}?labelSelector=app%3Dx&limit=1")).await.must_be(200);
    assert!(selected["metadata"]["continue"].is_string());
    assert_eq!(selected["metadata"].get("remainingItemCount"), None);
}

pub(super) async fn bad_parameters_are_refused(server: &Server, namespace: &str) {
    for name in ["c1", "c2"] {
        server.config_map(namespace, name, json!({})).await;
    }
    let path = maps(namespace);
    let page = server.get(&format!("{path}?limit=1")).await.must_be(200);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let invalid = |text: &str| format!("ListOptions.meta.k8s.io \"\" is invalid: {text}");
    let forbidden =
        |text: &str| invalid(&format!("resourceVersionMatch: Forbidden: resourceVersionMatch {text}"));
    for (query, code, reason, message) in [
        (
            format!("continue={token}&resourceVersion=5"),
            400,
            "BadRequest",
            "specifying resource version is not allowed when using continue".to_owned(),
        ),
        (
            format!("continue={token}&resourceVersion=5&resourceVersionMatch=Exact"),
            422,
            "Invalid",
            forbidden("is forbidden when continue is provided"),
        ),
        (
            "resourceVersionMatch=Exact".into(),
            422,
            "Invalid",
            forbidden("is forbidden unless resourceVersion is provided"),
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0".into(),
            422,
            "Invalid",
            forbidden("\"exact\" is forbidden for resourceVersion \"0\""),
        ),
        ("limit=abc".into(), 400, "BadRequest", "strconv.ParseInt: parsing \"abc\": invalid syntax".into()),
        (
            "fieldSelector=spec.x%3D1".into(),
            400,
            "BadRequest",
            "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"".into(),
        ),
        (
            "labelSelector=a%3D%3D%3Db".into(),
            400,
            "BadRequest",
            "unable to parse requirement: found '=', expected: identifier".into(),
        ),
    ] {
        if server.which == Which::V1_20 && query.starts_with("labelSelector") {
            continue; // The same refusal in other words.
        }
        println!("  {query}");
        server.get(&format!("{path}?{query}")).await.is_error(code, reason, &message);
    }
    refused_by_code(server, &path).await;
}

/// Refusals that the servers word differently; only their codes are compared.
async fn refused_by_code(server: &Server, path: &str) {
    let no_version = if server.which == Which::V1_20 { 500 } else { 400 };
    for (query, code) in [
        ("continue=garbage", 400),
        ("resourceVersion=abc", no_version),
        ("resourceVersion=-1", no_version),
        ("resourceVersionMatch=Foo&resourceVersion=1", 422),
        ("limit=-1", 200),
        ("unknown=1", 200),
    ] {
        let answer = server.get(&format!("{path}?{query}")).await;
        assert_eq!(answer.code, code, "{query}: {}", answer.text);
    }
    if server.which != Which::V1_20 {
        let message = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is \
                       forbidden for list";
        server.get(&format!("{path}?sendInitialEvents=true")).await.is_error(422, "Invalid", message);
        let message = "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \
                       \"abc\": invalid syntax";
        server.get(&format!("{path}?resourceVersion=abc")).await.is_error(400, "BadRequest", message);
    }
}

pub(super) async fn version_zero_ignores_the_limit(server: &Server, namespace: &str) {
    for name in ["c1", "c2", "c3"] {
        server.config_map(namespace, name, json!({})).await;
    }
    // Version 0 may be a moment old, so the list is repeated until it has everything.
    let path = format!("{}?limit=1&resourceVersion=0", maps(namespace));
    let deadline = tokio::time::Instant::now() + super::WAIT;
    loop {
        let list = server.get(&path).await.must_be(200);
        assert_eq!(list["metadata"].get("continue"), None);
        if list["items"].as_array().unwrap().len() == 3 {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{list}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

pub(super) async fn a_future_version_is_waited_for_then_504(server: &Server, namespace: &str) {
    let path = maps(namespace);
    let began = tokio::time::Instant::now();
    let answer = server.get(&format!("{path}?resourceVersion=99999999")).await;
    let waited = began.elapsed().as_secs_f64();
    assert!((2.0..8.0).contains(&waited), "{waited} s");
    assert_eq!((answer.code, answer.header("Retry-After")), (504, "1"));
    let body = answer.json();
    assert!(
        body["message"]
            .as_str()
            .unwrap()
            .starts_with("Timeout: Too large resource version: 99999999, current: ")
    );
    assert_eq!(body["reason"], "Timeout");
    assert_eq!(body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(body["details"]["retryAfterSeconds"], 1);
    // The next write reaches the version that the list waits for.
    let created = server.config_map(namespace, "now", json!({})).await;
    let next = format!("{path}?resourceVersion={}", version(&created) + 1);
    let (list, _) = tokio::join!(server.get(&next), server.config_map(namespace, "then", json!({})));
    let list = list.must_be(200);
    assert!(version(&list) > version(&created));
}

pub(super) async fn selectors_filter_lists(server: &Server, namespace: &str) {
    for (name, labels) in
        [("c1", json!({"app": "a", "num": "1"})), ("c2", json!({"app": "b", "num": "2"})), ("c3", json!({}))]
    {
        server.config_map(namespace, name, labels).await;
    }
    for (query, expected) in [
        ("labelSelector=app%3Da", vec!["c1"]),
        ("labelSelector=app%3D%3Da,num%3D1", vec!["c1"]),
        ("labelSelector=app!%3Da", vec!["c2", "c3"]),
        ("labelSelector=app+in+(a,b)", vec!["c1", "c2"]),
        ("labelSelector=app+notin+(a)", vec!["c2", "c3"]),
        ("labelSelector=app", vec!["c1", "c2"]),
        ("labelSelector=!app", vec!["c3"]),
        ("labelSelector=num%3E1", vec!["c2"]),
        ("labelSelector=num%3C2", vec!["c1"]),
        ("fieldSelector=metadata.name%3Dc1,metadata.name%3Dc1", vec!["c1"]),
        ("fieldSelector=metadata.name!%3Dc1&labelSelector=app", vec!["c2"]),
        ("fieldSelector=metadata.namespace%3Dother", vec![]),
    ] {
        let list = server.get(&format!("{}?{query}", maps(namespace))).await.must_be(200);
        assert_eq!(names(&list), expected, "{query}");
    }
    let everywhere = format!("/api/v1/configmaps?fieldSelector=metadata.namespace%3D{namespace}");
    assert_eq!(names(&server.get(&everywhere).await.must_be(200)), ["c1", "c2", "c3"]);
}

pub(super) async fn metadata_only_on_request(server: &Server, namespace: &str) {
    let created = server.config_map(namespace, "one", json!({"a": "b"})).await;
    let path = maps(namespace);
    let list_form = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let form = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let list = server.get_as(&path, list_form).await.must_be(200);
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&"PartialObjectMetadataList".into(), &"meta.k8s.io/v1".into())
    );
    let item = &list["items"][0];
    assert_eq!((&item["metadata"], item.get("data")), (&created["metadata"], None));
    let one = server.get_as(&format!("{path}/one"), form).await.must_be(200);
    assert_eq!(
        (&one["kind"], &one["metadata"], one.get("data")),
        (&"PartialObjectMetadata".into(), &created["metadata"], None)
    );
    // The first accepted form exists, but does not fit a list. The server refuses instead of trying the next form.
    let message =
        "you requested PartialObjectMetadata, but the requested object is a list (*v1.ConfigMapList)";
    let refused = server.get_as(&path, &format!("{form},application/json")).await;
    if server.which == Which::V1_20 {
        assert_eq!(refused.code, 406);
    } else {
        refused.is_error(406, "NotAcceptable", message);
    }
    let plain = server.get_as(&path, "application/json;as=Nonsense;g=a;v=b,application/json").await;
    assert_eq!(plain.must_be(200)["kind"], "ConfigMapList");
}

pub(super) async fn compaction_expires_lists_and_tokens(server: &Server, namespace: &str) {
    for name in ["c1", "c2", "c3"] {
        server.config_map(namespace, name, json!({})).await;
    }
    let path = maps(namespace);
    let page = server.get(&format!("{path}?limit=1")).await.must_be(200);
    server.patch(&format!("{path}/c3"), &json!({"data": {"a": "2"}})).await.must_be(200);
    server.compact().await;
    let message = "The resourceVersion for the provided list is too old.";
    for query in ["resourceVersion=2&resourceVersionMatch=Exact", "resourceVersion=2&limit=5"] {
        server.get(&format!("{path}?{query}")).await.is_error(410, "Expired", message);
    }
    // Current servers may continue a list from a snapshot of their own, so the token is aged by hand.
    let token = URL_SAFE_NO_PAD.decode(page["metadata"]["continue"].as_str().unwrap()).unwrap();
    let mut token: serde_json::Value = serde_json::from_slice(&token).unwrap();
    token["rv"] = 2.into();
    let token = URL_SAFE_NO_PAD.encode(token.to_string());
    let expired = server.get(&format!("{path}?limit=5&continue={token}")).await;
    let body = expired.json();
    assert_eq!((expired.code, &body["reason"]), (410, &"Expired".into()));
    let fresh = body["metadata"]["continue"].as_str().unwrap();
    let rest = server.get(&format!("{path}?limit=5&continue={fresh}")).await.must_be(200);
    assert_eq!(names(&rest), ["c2", "c3"]);
    assert_eq!(rest["items"][1]["data"]["a"], "2");
}
