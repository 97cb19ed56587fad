//! The informers of one configured watch: a reflector and a cache for each scope, and their registration with the hub.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle, yield_now};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::cache::{
    self, Delta, IndexBuilder, IndexTerm, Phase, Reader, ReflectorCondition, UsedIndex, Writer,
};
use crate::config::{self, Limits, WatchSpec};
use crate::hub::{Content, Informer, InformerId, InformerSpec, Scope, Started};
use crate::k8s::{DecodeOptions, FieldPath, IndexPath, Resource};
use crate::reflect::{InitialList, MachineConfig, Pack, Reflector, ReflectorConfig, Verify};
use crate::upstream::{Client, Selectors, Target};

/// Time for a new, complete informer to reach the version of the one that it replaces. After that, readers start over.
const REPLACE_WAIT: Duration = Duration::from_secs(10);

/// The error that `/v1/resources` shows for an informer whose reflector panicked.
const PANICKED: &str = "the reflector panicked, which is a bug (see the log); another one starts and takes its place once it is complete";

/// What all informers have in common: client, limits and settings.
pub(super) struct Maker {
    pub(super) client: Client,
    pub(super) limits: Limits,
    pub(super) initial_list: config::InitialList,
    /// How often caches are compared with the API server, one at a time.
    pub(super) verify: Option<Verify>,
    /// How caches are packed; `None` where they are not.
    pub(super) pack: Option<Pack>,
    /// Stops all of them.
    pub(super) cancel: CancellationToken,
}

/// One configured watch, or one resource on demand, with its informers.
pub(super) struct ConfiguredWatch {
    /// Its number, unique in the process.
    pub(super) id: u64,
    pub(super) spec: WatchSpec,
    pub(super) started: Started,
    /// Whether the process becomes ready only once its informers are complete.
    pub(super) awaited: bool,
    /// The informers that are registered with the hub: one, or one for each namespace; none while the kind is unknown.
    pub(super) current: Vec<RunningInformer>,
    /// The informers that replace the current ones once they are complete.
    pub(super) next: Option<Next>,
    /// Why its informers cannot run as configured.
    pub(super) problem: Option<String>,
}

/// One informer with its reflector.
pub(super) struct RunningInformer {
    /// The informer as registered with the hub.
    pub(super) informer: Informer,
    /// The paths of the indexes that it keeps, as configured.
    indexes: Vec<String>,
    state: WatchState,
}

enum WatchState {
    /// A reflector keeps its cache true.
    Running { not_found_before: u64, cancel: CancellationToken, task: JoinHandle<()> },
    /// The kind is gone: the cache is empty, and no reflector writes to it.
    Absent(Writer),
    /// The reflector belongs to another informer now.
    Moved,
}

/// Informers that replace the current ones once they are complete.
pub(super) struct Next {
    pub(super) resource: Resource,
    pub(super) wanted: Vec<InformerSpec>,
    pub(super) successors: Vec<Successor>,
    /// The number of this attempt.
    pub(super) generation: u64,
    /// The task that waits until they are complete.
    pub(super) waiting: AbortHandle,
}

/// An informer in the next generation of a watch.
pub(super) enum Successor {
    /// A current informer stays, perhaps under another name.
    Same(InformerSpec),
    /// A new informer.
    New(Box<RunningInformer>),
}

// === impl Maker ===

impl Maker {
    /// Starts an informer.
    fn start(&self, wanted: &InformerSpec, indexes: &[String]) -> RunningInformer {
        let spec = InformerSpec { stale_after: self.limits.watch_silence_max, ..wanted.clone() };
        let InformerSpec { resource, scope, content, .. } = &spec;
        let namespace = match scope {
            Scope::All => None,
            Scope::Namespace(namespace) => Some(namespace.clone()),
        };
        let (writer, reader) = cache::cache(self.limits.cache(), Instant::now());
        let selectors =
            Selectors { label: content.label_selector.clone(), field: content.field_selector.clone() };
        let config = ReflectorConfig {
            target: Target {
                resource: resource.clone(),
                namespace,
                selectors,
                metadata_only: content.metadata_only,
            },
            decode: DecodeOptions {
                drop_managed_fields: !content.managed_fields,
                drop_last_applied: !content.last_applied,
                object_bytes_max: self.limits.object_bytes_max,
            },
            machine: self.machine_config(),
            line_bytes_max: self.limits.line_bytes_max,
            seed: rand::random(),
        };
        let mut reflector =
            Reflector::new(config, self.client.clone(), writer).dropping(content.dropped.clone());
        if let Some(verify) = &self.verify {
            reflector = reflector.verified(verify.clone());
        }
        if let Some(pack) = &self.pack {
            reflector = reflector.packed(pack.clone());
        }
        info!(informer = spec.name, %scope, started = spec.started.as_str(), "informer starts");
        // The cache is empty still, so each is complete at once, and grows with it.
        let pinned =
            indexes.iter().filter_map(|path| index(&reader, path)).filter_map(IndexTurns::finish).collect();
        let informer = Informer::new(spec, reader).pinning(pinned);
        let cancel = self.cancel.child_token();
        let task = tokio::spawn(reflector.run(cancel.clone()));
        let state = WatchState::Running { not_found_before: 0, cancel, task };
        RunningInformer { informer, indexes: indexes.to_vec(), state }
    }

    fn machine_config(&self) -> MachineConfig {
        MachineConfig {
            page_size: u32::try_from(self.limits.page_size).unwrap_or(u32::MAX),
            initial_list: match self.initial_list {
                config::InitialList::Auto => InitialList::Auto,
                config::InitialList::Stream => InitialList::Stream,
                config::InitialList::Page => InitialList::Page,
            },
            silence_max: self.limits.watch_silence_max,
            pinged_silence_max: self.limits.pinged_silence_max(),
        }
    }

    /// A replacement for an informer whose kind is gone: complete and empty, at the version of the old one.
    fn absent(&self, running: &RunningInformer, why: &str) -> RunningInformer {
        let now = Instant::now();
        let (mut writer, reader) = cache::cache(self.limits.cache(), now);
        let position = running.informer.reader.summary().position;
        writer.commit(vec![Delta::PassBegin, Delta::PassEnd(position)]);
        writer.heard(now);
        let message = Some(why.to_owned());
        writer.set_condition(ReflectorCondition {
            phase: Phase::BackingOff,
            message,
            retry_at: None,
            forbidden: false,
            quiet_max: None,
        });
        // Another digest, so that tokens from before are not valid for what comes after.
        let spec =
            InformerSpec { is_absent: true, stale_after: Duration::MAX, ..running.informer.spec.clone() };
        let informer = Informer::new(spec, reader);
        RunningInformer { informer, indexes: Vec::new(), state: WatchState::Absent(writer) }
    }
}

/// An index while it is built.
struct IndexTurns {
    builder: IndexBuilder,
    reader: Reader,
    path: IndexPath,
}

/// Begins an index by a configured path; `None` if the cache has no room for another one.
fn index(reader: &Reader, path: &str) -> Option<IndexTurns> {
    // Label selectors ask by label, for which an absent one is no value.
    let path = match path.strip_prefix("metadata.labels.") {
        Some(key) => IndexPath::Label(key.replace("\\.", ".").into()),
        None => IndexPath::Field(FieldPath::new(path)),
    };
    let builder = reader.build_index(&path, Instant::now()).ok()?;
    Some(IndexTurns { builder, reader: reader.clone(), path })
}

// === impl IndexTurns ===

impl IndexTurns {
    /// Builds it at once.
    fn finish(mut self) -> Option<Arc<UsedIndex>> {
        while !self.builder.turn() {}
        self.used()
    }

    fn used(self) -> Option<Arc<UsedIndex>> {
        let term = IndexTerm { path: self.path, values: Vec::new().into() };
        self.reader.use_index(&term).map(Arc::new)
    }

    /// Builds it in turns, between which other tasks run.
    async fn finish_in_turns(mut self) -> Option<Arc<UsedIndex>> {
        while !self.builder.turn() {
            yield_now().await;
        }
        self.used()
    }
}

// === impl RunningInformer ===

impl RunningInformer {
    /// Whether its reflector runs.
    pub(super) fn is_running(&self) -> bool {
        matches!(&self.state, WatchState::Running { task, .. } if !task.is_finished())
    }

    /// Whether its reflector panicked, the only way in which it ends without being stopped.
    fn has_failed(&self) -> bool {
        matches!(&self.state, WatchState::Running { task, cancel, .. } if task.is_finished() && !cancel.is_cancelled())
    }

    /// How often the API server has answered 404 for the resource since the last discovery.
    pub(super) fn not_found(&self) -> u64 {
        match &self.state {
            WatchState::Running { not_found_before, .. } => {
                self.informer.reader.stats().not_found.get() - not_found_before
            }
            WatchState::Absent(_) | WatchState::Moved => 0,
        }
    }

    /// Notes that discovery was asked.
    pub(super) fn looked(&mut self) {
        match &mut self.state {
            WatchState::Running { not_found_before, .. } => {
                *not_found_before = self.informer.reader.stats().not_found.get();
            }
            // The discovery says again that the kind is gone, so the empty cache is fresh.
            WatchState::Absent(writer) => writer.heard(Instant::now()),
            WatchState::Moved => {}
        }
    }

    /// Whether it keeps these indexes.
    pub(super) fn has_indexes(&self, paths: &[String]) -> bool {
        self.indexes == paths || matches!(self.state, WatchState::Absent(_))
    }

    /// Keeps these indexes instead of the ones before.
    pub(super) async fn keep_indexes(&mut self, paths: &[String]) {
        let mut pinned = Vec::new();
        for path in paths {
            if let Some(turns) = index(&self.informer.reader, path) {
                pinned.extend(turns.finish_in_turns().await);
            }
        }
        self.informer = self.informer.clone().pinning(pinned);
        self.indexes = paths.to_vec();
    }

    /// Stops the reflector, and waits until it has ended.
    async fn stop(&mut self) {
        if let WatchState::Running { cancel, task, .. } = &mut self.state {
            cancel.cancel();
            // A panic has been logged already.
            let _ = task.await;
        }
    }

    /// An informer with the same reflector and another description.
    fn take(&mut self, informer: Informer) -> Self {
        let indexes = std::mem::take(&mut self.indexes);
        Self { informer, indexes, state: std::mem::replace(&mut self.state, WatchState::Moved) }
    }
}

impl Drop for RunningInformer {
    fn drop(&mut self) {
        if let WatchState::Running { cancel, .. } = &self.state {
            cancel.cancel();
        }
    }
}

// === impl Next ===

impl Next {
    /// The resource and the informers.
    pub(super) fn into_parts(mut self) -> (Resource, Vec<Successor>) {
        (self.resource.clone(), std::mem::take(&mut self.successors))
    }

    /// Why the informers are not complete; `None` if they are.
    pub(super) fn problem(&self) -> Option<String> {
        self.successors.iter().find_map(|successor| match successor {
            Successor::New(running) if !running.informer.reader.mark().synced => {
                let message = running.informer.reader.condition().message;
                Some(message.unwrap_or_else(|| "its first list is under way".to_owned()))
            }
            Successor::New(_) | Successor::Same(_) => None,
        })
    }
}

// === impl Successor ===

impl Successor {
    pub(super) fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        self.waiting.abort();
    }
}

// === impl ConfiguredWatch ===

impl ConfiguredWatch {
    /// The resource that its informers follow.
    pub(super) fn resource(&self) -> Option<&Resource> {
        self.current.first().map(|running| &running.informer.spec.resource)
    }

    pub(super) fn ids(&self) -> Vec<InformerId> {
        self.current.iter().map(|running| running.informer.id()).collect()
    }

    pub(super) fn informers(&self) -> Vec<&Informer> {
        self.current.iter().map(|running| &running.informer).collect()
    }

    /// Whether all its informers have been complete at least once.
    pub(super) fn synced(&self) -> bool {
        !self.current.is_empty() && self.current.iter().all(|one| one.informer.reader.mark().synced)
    }

    /// Whether its informers are as wanted.
    pub(super) fn is(&self, wanted: &[InformerSpec]) -> bool {
        are_same(self.current.iter().map(|running| &running.informer.spec), wanted)
    }

    /// The next generation of informers. Those that are as wanted stay, the others are new.
    pub(super) fn successors(&self, maker: &Maker, wanted: &[InformerSpec]) -> Vec<Successor> {
        let successor = |wanted: &InformerSpec| {
            let digest = wanted.digest();
            let stays =
                |running: &RunningInformer| running.informer.spec.digest() == digest && running.is_running();
            if self.current.iter().any(stays) {
                return Successor::Same(wanted.clone());
            }
            let wanted = InformerSpec { started: self.started, ..wanted.clone() };
            Successor::New(Box::new(maker.start(&wanted, &self.spec.indexes)))
        };
        wanted.iter().map(successor).collect()
    }

    /// Waits until successors are complete, and have reached the versions of the informers that they replace.
    pub(super) fn completion(&self, successors: &[Successor]) -> impl Future<Output = ()> + Send + use<> {
        let mut pairs = Vec::new();
        for successor in successors {
            let Successor::New(new) = successor else { continue };
            let old = self.current.iter().find(|old| old.informer.spec.name == new.informer.spec.name);
            pairs.push((new.informer.reader.clone(), old.map(|old| old.informer.reader.clone())));
        }
        async move {
            for (new, old) in pairs {
                let mut wake = new.wake();
                let _ = wake.wait_for(|mark| mark.synced).await;
                let Some(old) = old else { continue };
                let reached = wake.wait_for(|_| new.summary().position >= old.summary().position);
                let _ = timeout(REPLACE_WAIT, reached).await;
            }
        }
    }

    /// Replaces the current informers by successors. Returns which informers leave and which come, for the hub.
    pub(super) async fn succeed(&mut self, successors: Vec<Successor>) -> (Vec<InformerId>, Vec<Informer>) {
        let ids = self.ids();
        let name = |successor: &Successor| match successor {
            Successor::Same(spec) => spec.name.clone(),
            Successor::New(running) => running.informer.spec.name.clone(),
        };
        let names: Vec<_> = successors.iter().map(name).collect();
        let same_names = names.len() == self.current.len()
            && self.current.iter().all(|running| names.contains(&running.informer.spec.name));
        let mut current = Vec::new();
        for successor in successors {
            match successor {
                Successor::New(running) => current.push(*running),
                Successor::Same(spec) => {
                    let old = self.current.iter_mut().find(|old| old.informer.spec.scope == spec.scope);
                    let Some(old) = old else { continue };
                    let spec = InformerSpec { stale_after: old.informer.spec.stale_after, ..spec };
                    // Under another name it is another informer over the same cache, so that streams of the old name end.
                    let informer = match same_names {
                        true => old.informer.described(spec),
                        false => old.informer.over_the_same_cache(spec),
                    };
                    current.push(old.take(informer));
                }
            }
        }
        for old in &mut self.current {
            old.stop().await;
        }
        self.current = current;
        self.describe();
        (ids, self.current.iter().map(|running| running.informer.clone()).collect())
    }

    /// Replaces the informers of a kind that is gone by empty ones, so that clients get DELETED. Does nothing if they were never
    /// complete, as their reflectors retry by themselves.
    pub(super) async fn vanish(
        &mut self,
        maker: &Maker,
        why: &str,
    ) -> Option<(Vec<InformerId>, Vec<Informer>)> {
        if !self.synced() || !self.current.iter().any(RunningInformer::is_running) {
            return None;
        }
        let ids = self.ids();
        for running in &mut self.current {
            running.stop().await;
        }
        self.current = self.current.iter().map(|running| maker.absent(running, why)).collect();
        Some((ids, self.current.iter().map(|running| running.informer.clone()).collect()))
    }

    /// Looks for reflectors that panicked, marks their informers as failed, and drops successors that can never be complete.
    /// Returns whether there are any, so that others can be started.
    pub(super) fn look_for_failures(&mut self) -> bool {
        let has_failed = |successor: &Successor| match successor {
            Successor::New(running) => running.has_failed(),
            Successor::Same(_) => false,
        };
        let next = self.next.take_if(|next| next.successors.iter().any(has_failed));
        if next.is_some() {
            self.problem = Some(PANICKED.to_owned());
        }
        let failed = self.current.iter().filter(|running| running.has_failed());
        let told = failed.map(|running| running.informer.reader.set_failed(PANICKED)).count();
        next.is_some() || told > 0 && self.next.is_none()
    }

    /// Copies the watch's properties into the descriptions of its informers.
    pub(super) fn describe(&mut self) {
        for running in &mut self.current {
            running.informer.spec.started = self.started;
            running.informer.spec.awaited = self.awaited;
        }
    }

    /// Stops all informers.
    pub(super) async fn stop(&mut self) {
        self.next = None;
        for running in &mut self.current {
            running.stop().await;
        }
    }
}

/// The informers that a watch of a resource wants.
///
/// # Errors
/// A namespace for a cluster-scoped resource.
pub(super) fn wanted(spec: &WatchSpec, resource: &Resource) -> Result<Vec<InformerSpec>, String> {
    let scopes = match (&*spec.namespaces, resource.namespaced()) {
        ([], _) => vec![Scope::All],
        (_, false) if spec.namespaces_are_default => vec![Scope::All],
        ([namespace, ..], false) => {
            return Err(format!(
                "{resource} is cluster-scoped, so it cannot be watched in namespace {namespace:?}"
            ));
        }
        (namespaces, true) => namespaces.iter().cloned().map(Scope::Namespace).collect(),
    };
    let several = scopes.len() > 1;
    let wanted = scopes.into_iter().map(|scope| InformerSpec {
        name: match &scope {
            Scope::Namespace(namespace) if several => format!("{resource}/{namespace}"),
            Scope::All | Scope::Namespace(_) => resource.canonical(),
        },
        content: content(spec),
        ..InformerSpec::new(resource.clone(), scope)
    });
    Ok(wanted.collect())
}

/// What a watch wants its caches to hold.
fn content(spec: &WatchSpec) -> Content {
    // Taken apart, so that a new setting cannot be forgotten.
    let WatchSpec {
        label_selector,
        field_selector,
        keep_managed_fields,
        keep_last_applied,
        metadata_only,
        drop,
        // They decide which informers there are.
        resource: _,
        namespaces: _,
        namespaces_are_default: _,
        // They decide how the objects are found, and not which are held.
        indexes: _,
    } = spec;
    Content {
        label_selector: label_selector.clone().unwrap_or_default(),
        field_selector: field_selector.clone().unwrap_or_default(),
        metadata_only: *metadata_only,
        managed_fields: *keep_managed_fields,
        last_applied: *keep_last_applied,
        dropped: drop.clone(),
    }
}

/// Whether informers are as wanted: under the same names, they hold the same.
pub(super) fn are_same<'a>(
    current: impl ExactSizeIterator<Item = &'a InformerSpec>,
    wanted: &[InformerSpec],
) -> bool {
    let same = |(one, other): (&InformerSpec, &InformerSpec)| {
        one.name == other.name && one.digest() == other.digest()
    };
    current.len() == wanted.len() && current.zip(wanted).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::ResourceParts;

    fn running(task: JoinHandle<()>) -> RunningInformer {
        let limits = cache::Config { journal_len_max: 1, journal_bytes_max: 1, tombstones_len_max: 1 };
        let (_, reader) = cache::cache(limits, Instant::now());
        let resource = Resource::new(ResourceParts { plural: "pods".into(), ..Default::default() });
        let informer = Informer::new(InformerSpec::new(resource, Scope::All), reader);
        let cancel = CancellationToken::new();
        let state = WatchState::Running { not_found_before: 0, cancel, task };
        RunningInformer { informer, indexes: Vec::new(), state }
    }

    fn spec() -> WatchSpec {
        WatchSpec {
            resource: "pods".into(),
            namespaces: Vec::new(),
            namespaces_are_default: false,
            label_selector: None,
            field_selector: None,
            keep_managed_fields: false,
            keep_last_applied: false,
            metadata_only: false,
            drop: Default::default(),
            indexes: Vec::new(),
        }
    }

    async fn ended(task: &JoinHandle<()>) {
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_reflector_that_panicked_is_reported_and_replaced() {
        let panicked = tokio::spawn(async { panic!("a bug") });
        ended(&panicked).await;
        let current = vec![running(panicked), running(tokio::spawn(std::future::pending()))];
        let started = Started::Configuration;
        let mut group = ConfiguredWatch {
            id: 0,
            spec: spec(),
            started,
            awaited: true,
            current,
            next: None,
            problem: None,
        };
        assert!(group.look_for_failures());
        let phase = |group: &ConfiguredWatch, at: usize| group.current[at].informer.reader.condition().phase;
        assert_eq!((phase(&group, 0), group.current[0].is_running()), (Phase::Failed, false));
        assert_eq!((phase(&group, 1), group.current[1].is_running()), (Phase::Starting, true));
        // A reflector that was stopped did not fail.
        let stopped = running(tokio::spawn(async {}));
        if let WatchState::Running { task, cancel, .. } = &stopped.state {
            ended(task).await;
            cancel.cancel();
        }
        group.current = vec![stopped];
        assert!(!group.look_for_failures());
    }

    #[tokio::test]
    async fn successors_that_panic_are_discarded() {
        let panicked = tokio::spawn(async { panic!("a bug") });
        ended(&panicked).await;
        let old = running(tokio::spawn(std::future::pending()));
        let resource = old.informer.spec.resource.clone();
        let successors = vec![Successor::New(Box::new(running(panicked)))];
        let waiting = tokio::spawn(async {}).abort_handle();
        let next = Some(Next { resource, wanted: Vec::new(), successors, generation: 1, waiting });
        let (started, current) = (Started::Configuration, vec![old]);
        let mut group =
            ConfiguredWatch { id: 0, spec: spec(), started, awaited: true, current, next, problem: None };
        assert!(group.look_for_failures());
        assert!(group.next.is_none() && group.problem.is_some());
        assert!(!group.look_for_failures());
    }
}
