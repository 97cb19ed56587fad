//! kube-rs: its watchers with both kinds of list, its reflector, its discovery.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, PartialObjectMeta};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Config, Resource, ResourceExt};

use super::{Followers, Report, WIDGETS, Wanted, World, any, has_the_app};
use crate::support::in_time;

const FOLLOWERS: [Wanted; 6] = [
    ("pods", "pods", any),
    ("pods in pages", "pods", any),
    ("pods as a stream", "pods", any),
    ("pods of an app, as a stream", "pods", has_the_app),
    ("metadata", "pods", any),
    ("widgets as a stream", WIDGETS, any),
];

type Reporter = Box<dyn Fn() -> Report>;

/// Reflectors in this process.
#[derive(Default)]
struct Reflectors {
    reporters: BTreeMap<&'static str, Reporter>,
    tasks: tokio::task::JoinSet<()>,
}

// === impl Reflectors ===

impl Reflectors {
    /// Keeps a store from the events of a watcher.
    fn follow<K>(
        &mut self,
        name: &'static str,
        dynamic_type: K::DynamicType,
        events: impl futures_util::Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    ) where
        K: Resource + Clone + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync,
    {
        let writer = reflector::store::Writer::new(dynamic_type);
        let store: Store<K> = writer.as_reader();
        let (lists, went_back) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counts = (lists.clone(), went_back.clone());
        self.tasks.spawn(async move {
            let mut seen = BTreeMap::new();
            let mut events = std::pin::pin!(events.default_backoff().reflect(writer));
            while let Some(event) = events.next().await {
                let object = match event {
                    Ok(watcher::Event::Init) => {
                        lists.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => object,
                    Ok(watcher::Event::Delete(_) | watcher::Event::InitDone) | Err(_) => continue,
                };
                let version: u64 = object.resource_version().unwrap().parse().unwrap();
                let before = seen.insert(key(&object), version);
                went_back
                    .fetch_add(u64::from(before.is_some_and(|before| before > version)), Ordering::Relaxed);
            }
        });
        let report = move || Report {
            objects: store.state().iter().map(|object| (key(&**object), text(&**object))).collect(),
            lists: counts.0.load(Ordering::Relaxed),
            went_back: counts.1.load(Ordering::Relaxed),
        };
        self.reporters.insert(name, Box::new(report));
    }
}

impl Followers for Reflectors {
    async fn report(&mut self) -> BTreeMap<String, Report> {
        self.reporters.iter().map(|(name, report)| ((*name).to_owned(), report())).collect()
    }
}

fn key<K: Resource>(object: &K) -> String {
    format!("{}/{}", object.meta().namespace.as_deref().unwrap_or_default(), object.name_any())
}

fn text<K: Resource>(object: &K) -> String {
    let step = object.labels().get("step").map_or("None", String::as_str);
    format!("{} {step}", object.resource_version().unwrap())
}

fn client(url: &str) -> Client {
    Client::try_from(Config::new(url.parse().unwrap())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_rs_follows_through_every_fault() {
    let world = World::start().await;
    let client = client(&world.url());
    let pods: Api<Pod> = Api::all(client.clone());
    let widget = GroupVersionKind::gvk("demo.informerd.dev", "v1", "Widget");
    let (widget, _) = in_time("a kind", kube::discovery::pinned_kind(&client, &widget)).await.unwrap();
    let widgets: Api<DynamicObject> = Api::all_with(client.clone(), &widget);
    let mut reflectors = Reflectors::default();
    let streamed = || watcher::Config::default().streaming_lists();
    reflectors.follow("pods", (), watcher(pods.clone(), watcher::Config::default()));
    reflectors.follow("pods in pages", (), watcher(pods.clone(), watcher::Config::default().page_size(3)));
    reflectors.follow("pods as a stream", (), watcher(pods.clone(), streamed()));
    let labels = streamed().labels("app=a");
    reflectors.follow("pods of an app, as a stream", (), watcher(pods, labels));
    let metadata: Api<PartialObjectMeta<Pod>> = Api::all(client);
    reflectors.follow("metadata", (), watcher(metadata, watcher::Config::default()));
    reflectors.follow("widgets as a stream", widget, watcher(widgets, streamed()));
    Box::pin(world.survive_every_fault(&mut reflectors, &FOLLOWERS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_rs_discovers_the_followed_resources() {
    let world = World::start().await;
    let client = client(&world.url());
    let mut both = Vec::new();
    let legacy = in_time("discovery", Discovery::new(client.clone()).run()).await.unwrap();
    let aggregated = in_time("discovery", Discovery::new(client).run_aggregated()).await.unwrap();
    for discovery in [legacy, aggregated] {
        let mut found = Vec::new();
        for group in discovery.groups_alphabetical() {
            for (resource, capabilities) in group.recommended_resources() {
                assert!(capabilities.supports_operation(verbs::WATCH), "{resource:?}");
                assert!(!capabilities.supports_operation(verbs::DELETE), "{resource:?}");
                let scope = if capabilities.scope == Scope::Namespaced { "namespaced" } else { "cluster" };
                found.push(format!("{} {} {} {scope}", resource.api_version, resource.kind, resource.plural));
            }
        }
        found.sort();
        both.push(found);
    }
    let expected = [
        "apps/v1 Deployment deployments namespaced",
        "apps/v1 ReplicaSet replicasets namespaced",
        "coordination.k8s.io/v1 Lease leases namespaced",
        "demo.informerd.dev/v1 Widget widgets namespaced",
        "v1 ConfigMap configmaps namespaced",
        "v1 Event events namespaced",
        "v1 Node nodes cluster",
        "v1 Pod pods namespaced",
    ];
    assert_eq!(both, [expected, expected]);
}
