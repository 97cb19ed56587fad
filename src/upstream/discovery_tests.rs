use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;

use super::*;
use crate::upstream::{Config, UpstreamSource};

/// A server with fixed documents by path and form (`aggregated` or `legacy`). Any other request is a 404.
fn client(documents: &[(&str, &str)]) -> (Client, Arc<Mutex<Vec<String>>>) {
    let documents: HashMap<String, String> =
        documents.iter().map(|(path, body)| ((*path).to_owned(), (*body).to_owned())).collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        log.lock().unwrap().push(path.clone());
        let (code, body) = match documents.get(&path) {
            Some(body) if body.starts_with("HTTP ") => (body[5..8].parse().unwrap(), String::new()),
            Some(body) => (200, body.clone()),
            None => (404, "404 page not found".to_owned()),
        };
        let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
        async move { response }
    });
    (Client::over(kube::Client::new(service, "default"), &Config::new(UpstreamSource::InCluster)), asked)
}

const ALL: &str = r#"["create","delete","get","list","patch","update","watch"]"#;

async fn aggregated() -> Discovery {
    let resource = |plural: &str, singular: &str, kind: &str, short: &str, verbs: &str| {
        format!(
            r#"{{"resource":"{plural}","responseKind":{{"group":"","version":"","kind":"{kind}"}},"scope":"Namespaced","singularResource":"{singular}","verbs":{verbs},"shortNames":["{short}"]}}"#
        )
    };
    let group = |name: &str, versions: &[(&str, String)]| {
        let versions: Vec<_> = versions
            .iter()
            .map(|(version, resources)| {
                format!(r#"{{"version":"{version}","resources":[{resources}],"freshness":"Current"}}"#)
            })
            .collect();
        format!(r#"{{"metadata":{{"name":"{name}"}},"versions":[{}]}}"#, versions.join(","))
    };
    let list = |groups: &[String]| {
        format!(
            r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{{}},"items":[{}]}}"#,
            groups.join(",")
        )
    };
    let core = [
        resource("pods", "pod", "Pod", "po", ALL),
        resource("events", "event", "Event", "ev", ALL),
        resource("componentstatuses", "componentstatus", "ComponentStatus", "cs", r#"["get","list"]"#),
    ];
    let apps = [
        ("v1", resource("deployments", "deployment", "Deployment", "deploy", ALL)),
        ("v1beta1", resource("deployments", "deployment", "Deployment", "deploy", ALL)),
    ];
    let events = [("v1", resource("events", "event", "Event", "ev", ALL))];
    let odd = [("v1", resource("po", "poe", "Poe", "poey", ALL))];
    let stale = r#"{"metadata":{"name":"metrics.k8s.io"},"versions":[{"version":"v1beta1","freshness":"Stale","resources":null}]}"#;
    let groups =
        [group("apps", &apps), group("events.k8s.io", &events), group("odd.io", &odd), stale.to_owned()];
    let (client, asked) =
        client(&[("/api", &list(&[group("", &[("v1", core.join(","))])])), ("/apis", &list(&groups))]);
    let discovery = client.discover().await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 2);
    discovery
}

#[tokio::test]
async fn names_are_resolved_in_the_order_of_kubectl() {
    let discovery = aggregated().await;
    for (name, expected) in [
        ("pods", "pods@v1"),
        ("pod", "pods@v1"),
        ("Pod", "pods@v1"),
        ("pods.v1", "pods@v1"),
        ("deploy", "deployments.apps@v1"),
        ("deployments.apps", "deployments.apps@v1"),
        ("Deployments.v1beta1.apps", "deployments.apps@v1beta1"),
        // The core group comes first; another group must be named.
        ("events", "events@v1"),
        ("ev", "events@v1"),
        ("events.events.k8s.io", "events.events.k8s.io@v1"),
        // A plural wins over a short name, even over one of the core group.
        ("po", "po.odd.io@v1"),
    ] {
        assert_eq!(format!("{:?}", discovery.resolve(name).unwrap()), expected, "{name}");
    }
    assert!(discovery.resolve("pods").unwrap().namespaced());
    assert_eq!(discovery.resources().count(), 6);
}

#[tokio::test]
async fn unknown_and_unwatchable_names_are_refused_with_the_reason() {
    let discovery = aggregated().await;
    for (name, expected) in [
        (
            "pdos",
            r#"the API server has no resource "pdos": did you mean po.odd.io, pods? (no answer from metrics.k8s.io/v1beta1)"#,
        ),
        (
            "deploymets",
            r#"the API server has no resource "deploymets": did you mean deployments.apps? (no answer from metrics.k8s.io/v1beta1)"#,
        ),
        (
            "pods.v2",
            r#"the API server has no resource "pods.v2": did you mean pods, po.odd.io? (no answer from metrics.k8s.io/v1beta1)"#,
        ),
        ("", r#"the API server has no resource "" (no answer from metrics.k8s.io/v1beta1)"#),
        (
            "cs",
            "componentstatuses cannot be kept: the API server offers get, list for it, but list and watch are needed",
        ),
    ] {
        assert_eq!(discovery.resolve(name).unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn legacy_discovery_reads_each_version_and_tolerates_a_broken_one() {
    let resources = |names: &[(&str, &str)]| {
        let each: Vec<_> = names
            .iter()
            .map(|(name, kind)| {
                format!(
                    r#"{{"name":"{name}","singularName":"","namespaced":true,"kind":"{kind}","verbs":{ALL}}}"#
                )
            })
            .collect();
        format!(r#"{{"kind":"APIResourceList","groupVersion":"x","resources":[{}]}}"#, each.join(","))
    };
    let groups = r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[
        {"name":"demo.io","versions":[{"groupVersion":"demo.io/v1alpha1","version":"v1alpha1"},{"groupVersion":"demo.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"demo.io/v1","version":"v1"}},
        {"name":"down.io","versions":[{"groupVersion":"down.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"down.io/v1","version":"v1"}},
        {"name":"empty.io","versions":[{"groupVersion":"empty.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"empty.io/v1","version":"v1"}}]}"#;
    let (client, asked) = client(&[
        ("/api", r#"{"kind":"APIVersions","versions":["v1"]}"#),
        ("/api/v1", &resources(&[("pods", "Pod"), ("pods/log", "Pod")])),
        ("/apis", groups),
        ("/apis/demo.io/v1", &resources(&[("widgets", "Widget")])),
        ("/apis/demo.io/v1alpha1", &resources(&[("widgets", "Widget"), ("gadgets", "Gadget")])),
        ("/apis/down.io/v1", "HTTP 503"),
        ("/apis/empty.io/v1", r#"{"kind":"APIResourceList","resources":null}"#),
    ]);
    let discovery = client.discover().await.unwrap();
    let resources: Vec<_> = discovery.resources().map(|resource| format!("{resource:?}")).collect();
    assert_eq!(
        resources,
        ["pods@v1", "widgets.demo.io@v1", "widgets.demo.io@v1alpha1", "gadgets.demo.io@v1alpha1"]
    );
    assert_eq!(format!("{:?}", discovery.resolve("widget").unwrap()), "widgets.demo.io@v1");
    assert_eq!(format!("{:?}", discovery.resolve("gadgets").unwrap()), "gadgets.demo.io@v1alpha1");
    assert_eq!(discovery.broken()[0].group_version, "down.io/v1");
    assert_eq!(asked.lock().unwrap().len(), 7);
}

#[tokio::test]
async fn partial_discovery_is_used_and_a_server_without_discovery_is_an_error() {
    let (half, _) = client(&[
        ("/api", r#"{"kind":"APIVersions","versions":["v1"]}"#),
        ("/api/v1", r#"{"resources":[]}"#),
    ]);
    let discovery = half.discover().await.unwrap();
    assert_eq!(discovery.broken()[0].group_version, "/apis");
    let (none, _) = client(&[]);
    assert!(none.discover().await.unwrap_err().sentence().starts_with("not found"));
}

#[tokio::test]
async fn discovery_falls_back_to_plain_json() {
    let count = Arc::new(Mutex::new(0));
    let seen = count.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        *seen.lock().unwrap() += 1;
        let plain = request.headers()["accept"] == "application/json";
        let (code, body) = match (plain, request.uri().path()) {
            (false, _) => (406, ""),
            (true, "/api") => (200, r#"{"kind":"APIVersions","versions":[]}"#),
            (true, _) => (200, r#"{"kind":"APIGroupList","groups":[]}"#),
        };
        let response = Response::builder().status(code).body(Body::from(body.as_bytes().to_vec()));
        async move { response }
    });
    let client = Client::over(kube::Client::new(service, "default"), &Config::new(UpstreamSource::InCluster));
    assert_eq!(client.discover().await.unwrap().resources().count(), 0);
    assert_eq!(*count.lock().unwrap(), 4);
}

#[test]
fn impossible_resource_names_get_no_suggestions() {
    let parts = |plural: &str| Entry {
        parts: ResourceParts { plural: plural.into(), ..ResourceParts::default() },
        verbs: vec!["list".to_owned(), "watch".to_owned()],
    };
    let entries = ["a".repeat(WORD_LEN_MAX), "pods".to_owned()].iter().map(|plural| parts(plural)).collect();
    let discovery = Discovery { entries, broken: Vec::new() };
    let near = |name: &str| match discovery.resolve(name) {
        Err(ResolveError::Unknown { near, .. }) => near.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(near(&"a".repeat(WORD_LEN_MAX - 1)), 1);
    assert_eq!(near(&"a".repeat(WORD_LEN_MAX + 1)), 0);
    assert_eq!(near("pod"), 1);
    assert!(discovery.find("pod").is_none());
}
