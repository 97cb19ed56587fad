//! From names as people type them to running informers.

use std::sync::Arc;

use anyhow::bail;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::cache;
use crate::config::{self, WatchSpec};
use crate::hub::{Figures, Hub, Informer, Pending, Scope};
use crate::k8s::{DecodeOptions, Resource};
use crate::reflect::{InitialList, MachineConfig, Reflector, ReflectorConfig};
use crate::upstream::{Backoff, Client, Discovery, Selectors, Target};

/// Asks discovery for the names until each is known, and starts an informer for each as it becomes known; then
/// waits for the end.
///
/// # Errors
/// A configuration that cannot become right: one resource twice, a namespace for a cluster-scoped one.
pub(super) async fn run(
    config: config::Serve,
    client: Client,
    hub: Hub,
    cancel: CancellationToken,
) -> anyhow::Result<()> {
    let tasks = TaskTracker::new();
    let mut unresolved = config.watches.clone();
    let mut backoff = Backoff::default();
    hub.set_pending(pending(&unresolved, "the API server has not been asked yet"));
    while !unresolved.is_empty() {
        let asked = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            asked = client.discover() => asked,
        };
        match asked {
            Err(error) => {
                let sentence = error.sentence();
                warn!(error = %sentence, "discovery failed");
                hub.set_pending(pending(&unresolved, &sentence));
            }
            Ok(discovery) => {
                let mut left = Vec::new();
                for spec in unresolved {
                    match discovery.resolve(&spec.resource) {
                        Ok(resource) => start(&config, &spec, &resource, &client, &hub, &tasks, &cancel)?,
                        Err(error) => left.push((spec, error.to_string())),
                    }
                }
                for (spec, error) in &left {
                    warn!(resource = spec.resource, error, broken = broken(&discovery), "kind is not known");
                }
                hub.set_pending(left.iter().map(|(spec, why)| unknown(spec, why)).collect());
                unresolved = left.into_iter().map(|(spec, _)| spec).collect();
            }
        }
        if !unresolved.is_empty() {
            let wait = backoff.next(rand::random());
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = sleep(wait) => {}
            }
        }
    }
    cancel.cancelled().await;
    tasks.close();
    tasks.wait().await;
    Ok(())
}

fn broken(discovery: &Discovery) -> String {
    let groups: Vec<_> = discovery.broken().iter().map(|broken| broken.group_version.as_str()).collect();
    groups.join(",")
}

fn pending(specs: &[WatchSpec], why: &str) -> Vec<Pending> {
    specs.iter().map(|spec| unknown(spec, why)).collect()
}

fn unknown(spec: &WatchSpec, why: &str) -> Pending {
    Pending { name: spec.resource.clone(), message: why.to_owned() }
}

/// Starts the informers of one watch: one, or one for each of several namespaces.
fn start(
    config: &config::Serve,
    spec: &WatchSpec,
    resource: &Resource,
    client: &Client,
    hub: &Hub,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
) -> anyhow::Result<()> {
    if hub.informers().iter().any(|informer| informer.resource.canonical() == resource.canonical()) {
        bail!(
            "{resource} is watched twice (as {:?} the second time): put its namespaces into one watch",
            spec.resource
        );
    }
    let scopes = match (&*spec.namespaces, resource.namespaced()) {
        ([], _) => vec![Scope::All],
        (_, false) if spec.namespaces_are_default => vec![Scope::All],
        ([namespace, ..], false) => {
            bail!("{resource} is cluster-scoped, so it cannot be watched in namespace {namespace:?}")
        }
        (namespaces, true) => namespaces.iter().cloned().map(Scope::Namespace).collect(),
    };
    let several = scopes.len() > 1;
    let limits = &config.limits;
    for scope in scopes {
        let namespace = match &scope {
            Scope::All => None,
            Scope::Namespace(namespace) => Some(namespace.clone()),
        };
        let (writer, reader) = cache::cache(limits.cache(), Instant::now());
        let selectors = Selectors {
            label: spec.label_selector.clone().unwrap_or_default(),
            field: spec.field_selector.clone().unwrap_or_default(),
        };
        let shown = [("labelSelector", &selectors.label), ("fieldSelector", &selectors.field)];
        let shown = shown.iter().filter(|(_, text)| !text.is_empty());
        let shown: Vec<_> = shown.map(|(name, text)| format!("{name}={text}")).collect();
        let reflector_config = ReflectorConfig {
            target: Target {
                resource: resource.clone(),
                namespace: namespace.clone(),
                selectors,
                metadata_only: false,
            },
            decode: DecodeOptions {
                drop_managed_fields: !spec.keep_managed_fields,
                drop_last_applied: !spec.keep_last_applied,
                object_bytes_max: limits.object_bytes_max,
            },
            machine: machine_config(config),
            line_bytes_max: limits.line_bytes_max,
            seed: rand::random(),
        };
        let reflector = Reflector::new(reflector_config, client.clone(), writer);
        let stats = reflector.stats();
        let figures = Arc::new(move || {
            let stats = stats.read();
            Figures {
                lists: stats.lists,
                watches: stats.watches,
                events: stats.events,
                relists: stats.relists,
            }
        });
        let mut informer = Informer::new(resource.clone(), scope, reader, figures);
        informer.selectors = shown.join("&");
        if let (Some(namespace), true) = (namespace, several) {
            informer.name = format!("{}/{namespace}", informer.name);
        }
        info!(informer = informer.name, scope = %informer.scope, "informer starts");
        hub.add(informer);
        tasks.spawn(reflector.run(cancel.clone()));
    }
    Ok(())
}

fn machine_config(config: &config::Serve) -> MachineConfig {
    MachineConfig {
        page_size: u32::try_from(config.limits.page_size).unwrap_or(u32::MAX),
        initial_list: match config.initial_list {
            config::InitialList::Auto => InitialList::Auto,
            config::InitialList::Stream => InitialList::Stream,
            config::InitialList::Page => InitialList::Page,
        },
        silence_max: config.limits.watch_silence_max,
    }
}
