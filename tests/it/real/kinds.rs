//! The table of built-in kinds against the discovery of real API servers.

use informerd::testing::k8s::{BuiltIn, built_in, built_in_named};
use informerd::testing::upstream::{Client, Config, UpstreamSource};

use crate::support::envtest::{Envtest, Options, Version};

/// Field labels of events, which the two groups name differently; without those that 1.20 does not have yet.
const EVENT_LABELS: [&str; 7] = [
    "regarding.name",
    "regarding.fieldPath",
    "involvedObject.name",
    "involvedObject.uid",
    "reportingController",
    "reason",
    "type",
];

async fn check(version: Version) {
    let Some(api) = Envtest::start(version, Options::default()).await else { return };
    let source = UpstreamSource::Kubeconfig { path: Some(api.kubeconfig_path()), context: None };
    let client = Client::connect(Config::new(source)).await.unwrap();
    let discovery = client.discover().await.unwrap();
    let (mut compared, mut labels) = (0, 0);
    for resource in discovery.resources().filter(|resource| resource.is_built_in()) {
        let name = resource.canonical();
        let kind = built_in(resource.plural(), resource.group());
        let kind = kind.unwrap_or_else(|| panic!("{name} is not in k8s/kinds.rs"));
        assert_eq!(kind.namespaced, resource.namespaced(), "{name}");
        let parts = resource.parts();
        for word in parts.short_names.iter().chain([&parts.singular]).filter(|word| !word.is_empty()) {
            assert!(kind.names.contains(&&**word), "{name} is called {word}, too");
            // The kind that kubectl takes the word for.
            let meant = discovery.resolve(word).unwrap().canonical();
            assert_eq!(built_in_named(word, None).map(BuiltIn::canonical), Some(meant), "{word}");
        }
        for label in EVENT_LABELS.iter().filter(|_| version == Version::V1_20 && name.starts_with("events")) {
            let knows = kind.fields.iter().any(|(known, ..)| known == label);
            let prefix =
                if parts.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", parts.group) };
            let path = format!("{prefix}/{}/events?limit=1&fieldSelector={label}%3Dx", parts.version);
            let accepted = client.document(&path, "application/json").await;
            assert_eq!(accepted.is_ok(), knows, "{name}: {label}: {:?}", accepted.err());
            labels += 1;
        }
        compared += 1;
    }
    assert!(version != Version::V1_20 || labels >= EVENT_LABELS.len(), "{labels} labels");
    assert!(compared >= 8, "only {compared} kinds were compared");
}

#[tokio::test]
async fn built_in_kinds_agree_with_api_server_1_20() {
    check(Version::V1_20).await;
}

#[tokio::test]
async fn built_in_kinds_agree_with_api_server_1_36() {
    check(Version::V1_36).await;
}
