//! Streams with related objects: after any changes, and wherever the client is cut off, it ends with the join of the
//! current objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::*;
use crate::cache::{self, Delta, Writer};
use crate::k8s::{
    DecodeOptions, Decoder, FieldSelector, LabelSelector, Links, Object, Resource, ResourceParts,
    ResourceVersion,
};

/// With a journal of this many changes.
fn limits(journal_len_max: usize) -> cache::Config {
    cache::Config { journal_len_max, journal_bytes_max: 1 << 20, tombstones_len_max: 20 }
}

/// Group, plural and kind of a resource, and whether it is namespaced.
const KINDS: [(&str, &str, &str, bool); 5] = [
    ("", "pods", "Pod", true),
    ("", "nodes", "Node", false),
    ("", "services", "Service", true),
    ("apps", "replicasets", "ReplicaSet", true),
    ("apps", "deployments", "Deployment", true),
];
const PODS: usize = 0;
const NODES: usize = 1;
const SERVICES: usize = 2;
const REPLICA_SETS: usize = 3;
const DEPLOYMENTS: usize = 4;

/// The selected resource, the label selector, and the joined resources, each with whether it is joined by links and
/// by owners.
type Asked = (usize, &'static str, &'static [(usize, bool, bool)]);

const ASKED: [Asked; 5] = [
    (
        PODS,
        "",
        &[
            (NODES, true, false),
            (SERVICES, true, false),
            (REPLICA_SETS, false, true),
            (DEPLOYMENTS, false, true),
        ],
    ),
    (PODS, "app=0", &[(NODES, true, true), (SERVICES, true, true), (REPLICA_SETS, true, true)]),
    (NODES, "", &[(PODS, true, false)]),
    (SERVICES, "app!=1", &[(PODS, true, false)]),
    (REPLICA_SETS, "", &[(DEPLOYMENTS, false, true), (PODS, true, true)]),
];

/// The parts of an object that links read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    kind: usize,
    namespace: &'static str,
    name: String,
    uid: u64,
    version: u64,
    /// The label `app`; for services also the value that they select.
    app: u8,
    node: u8,
    /// Kind and name of the owner, with the uid that it had then.
    owner: Option<(usize, String, u64)>,
}

impl Thing {
    fn name(&self) -> (usize, &'static str, String) {
        (self.kind, self.namespace, self.name.clone())
    }

    fn object(&self) -> Object {
        let (group, _, kind, namespaced) = KINDS[self.kind];
        let owners: Vec<_> = self
            .owner
            .iter()
            .map(|(kind, name, uid)| {
                let (group, _, kind, _) = KINDS[*kind];
                let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
                serde_json::json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid.to_string()})
            })
            .collect();
        let mut json = serde_json::json!({
            "apiVersion": if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") },
            "kind": kind,
            "metadata": {
                "name": self.name, "uid": self.uid.to_string(), "resourceVersion": self.version.to_string(),
                "labels": {"app": self.app.to_string()}, "ownerReferences": owners,
            },
            "spec": {"nodeName": format!("x{}", self.node), "selector": {"app": self.app.to_string()}},
        });
        if namespaced {
            json["metadata"]["namespace"] = self.namespace.into();
        }
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        Decoder::new(resource(self.kind), options).object(&json.to_string()).unwrap()
    }
}

fn resource(kind: usize) -> Resource {
    let (group, plural, kind, namespaced) = KINDS[kind];
    Resource::new(ResourceParts {
        group: group.into(),
        version: "v1".into(),
        plural: plural.into(),
        kind: kind.into(),
        namespaced,
        ..Default::default()
    })
}

/// Kind, namespace and name.
type Name = (usize, &'static str, String);

/// The objects of a moment.
type Things = BTreeMap<Name, Thing>;

/// The cluster, and one informer for each kind.
struct World {
    hub: Hub,
    limits: cache::Config,
    writers: Vec<Writer>,
    things: Things,
    /// All writes with their versions; `None` for a deletion.
    log: Vec<(u64, Name, Option<Thing>)>,
    version: u64,
    uid: u64,
}

impl World {
    fn new(journal_len_max: usize) -> Self {
        let config = Config {
            subscribers_max: 10,
            batch_len_max: 3,
            batch_bytes_max: 1 << 20,
            heartbeat_interval: Duration::from_secs(15),
            bookmark_interval: Duration::from_secs(60),
            resume_wait: Duration::from_secs(10),
            drain_spread_max: Duration::ZERO,
        };
        let hub = Hub::new(config, CancellationToken::new());
        let (limits, mut writers) = (limits(journal_len_max), Vec::new());
        for kind in 0..KINDS.len() {
            let (mut writer, reader) = cache::cache(limits, Instant::now());
            writer.commit(vec![Delta::PassBegin, Delta::PassEnd(1.into())]);
            hub.add(Informer::new(InformerSpec::new(resource(kind), Scope::All), reader));
            writers.push(writer);
        }
        Self { hub, limits, writers, things: BTreeMap::new(), log: Vec::new(), version: 1, uid: 0 }
    }

    fn informer(&self, kind: usize) -> Arc<Informer> {
        let resource = resource(kind);
        self.hub.informers().into_iter().find(|informer| informer.spec.resource == resource).unwrap()
    }

    fn put(&mut self, mut thing: Thing, anew: bool) -> Option<Delta> {
        self.version += 1;
        thing.version = self.version;
        let before = self.things.get(&thing.name()).filter(|_| !anew);
        thing.uid = before.map_or(self.uid + 1, |before| before.uid);
        self.uid = self.uid.max(thing.uid);
        let object = thing.object();
        self.log.push((self.version, thing.name(), Some(thing.clone())));
        self.things.insert(thing.name(), thing);
        Some(Delta::Apply(object))
    }

    fn delete(&mut self, name: &(usize, &'static str, String)) -> Option<Delta> {
        let mut thing = self.things.remove(name)?;
        self.version += 1;
        thing.version = self.version;
        self.log.push((self.version, name.clone(), None));
        Some(Delta::Delete(thing.object()))
    }

    /// Relists a kind.
    fn relist(&mut self, kind: usize) {
        self.version += 1;
        let items = self.things.values().filter(|thing| thing.kind == kind);
        let items = items.map(|thing| Delta::PassItem(thing.object()));
        let deltas = [Delta::PassBegin].into_iter().chain(items);
        let deltas = deltas.chain([Delta::PassEnd(self.version.into())]).collect();
        self.writers[kind].commit(deltas);
    }

    /// Restores the API server to before the last write, which is then made anew with another label. It gets the same version.
    fn restore(&mut self, app: u8) {
        let last = self.version;
        for (kind, writer) in self.writers.iter_mut().enumerate() {
            let restored = self.things.values().filter(|thing| thing.kind == kind && thing.version != last);
            let items = restored.map(|thing| Delta::PassItem(thing.object()));
            let deltas = [Delta::PassBegin].into_iter().chain(items);
            writer.commit(deltas.chain([Delta::PassEnd((last - 1).into())]).collect());
        }
        let thing = self.things.values_mut().find(|thing| thing.version == last).expect("it was a write");
        thing.app = app;
        self.log.pop();
        self.log.push((last, thing.name(), Some(thing.clone())));
        self.writers[thing.kind].commit(vec![Delta::Apply(thing.object())]);
    }

    /// Replaces the informer of a kind by one that has just listed.
    fn replace(&mut self, kind: usize) {
        let (writer, reader) = cache::cache(self.limits, Instant::now());
        self.writers[kind] = writer;
        self.relist(kind);
        let old = self.informer(kind);
        self.hub.swap(&[old.id()], vec![Informer::new(old.spec.clone(), reader)]);
    }

    /// Commits the pending writes, and lets the clients read.
    async fn commit(&mut self, pending: &mut [Vec<Delta>]) {
        for (writer, deltas) in self.writers.iter_mut().zip(pending) {
            writer.commit(std::mem::take(deltas));
        }
        sleep(Duration::from_millis(1)).await;
    }

    /// The objects at a version of each kind.
    fn things_at(&self, versions: &BTreeMap<usize, ResourceVersion>) -> Things {
        let mut things = Things::new();
        for (version, name, thing) in &self.log {
            if versions.get(&name.0).is_some_and(|until| ResourceVersion::from(*version) <= *until) {
                match thing {
                    Some(thing) => drop(things.insert(name.clone(), thing.clone())),
                    None => drop(things.remove(name)),
                }
            }
        }
        things
    }
}

/// A join of objects, computed in the simplest way.
fn joined(all: &Things, (selected, labels, related): Asked) -> BTreeMap<Name, u64> {
    let matches = |thing: &&Thing| {
        thing.kind == selected
            && match labels {
                "app=0" => thing.app == 0,
                "app!=1" => thing.app != 1,
                _ => true,
            }
    };
    let base: Vec<_> = all.values().filter(matches).collect();
    let mut found: BTreeSet<(usize, &'static str, String)> = base.iter().map(|thing| thing.name()).collect();
    for (kind, ..) in related.iter().filter(|(_, linked, _)| *linked) {
        let of_kind = all.values().filter(|thing| thing.kind == *kind);
        let linked = of_kind.filter(|other| base.iter().any(|thing| is_linked(thing, other)));
        found.extend(linked.map(Thing::name));
    }
    let mut frontier: Vec<&Thing> = base;
    let mut seen: BTreeSet<_> = BTreeSet::new();
    while let Some(thing) = frontier.pop() {
        let Some((kind, name, uid)) = &thing.owner else { continue };
        let owns = related.iter().any(|(related, _, owns)| related == kind && *owns);
        let namespace = if KINDS[*kind].3 { thing.namespace } else { "" };
        let owner = all.get(&(*kind, namespace, name.clone())).filter(|owner| owner.uid == *uid);
        let Some(owner) = owner.filter(|_| owns) else { continue };
        if seen.insert(owner.name()) {
            found.insert(owner.name());
            frontier.push(owner);
        }
    }
    found.into_iter().map(|name| (name.clone(), all[&name].version)).collect()
}

/// Whether a link leads from one of two objects to the other.
fn is_linked(selected: &Thing, related: &Thing) -> bool {
    let near = selected.namespace == related.namespace;
    match (selected.kind, related.kind) {
        (PODS, NODES) => related.name == format!("x{}", selected.node),
        (NODES, PODS) => selected.name == format!("x{}", related.node),
        (PODS, SERVICES) | (SERVICES, PODS) => near && selected.app == related.app,
        // These pod templates refer to nothing, and owners are another relation.
        _ => false,
    }
}

/// An EventSource with a join.
struct Client {
    asked: Asked,
    sources: Vec<usize>,
    seen: Arc<Mutex<Seen>>,
    task: Option<tokio::task::JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    state: BTreeMap<(usize, String, String), (String, ResourceVersion)>,
    /// The position in each informer, and whether the client holds events from beyond it.
    token: Vec<Resumable>,
    is_amid: bool,
    /// Whether the token is of informers with other content.
    names_others: bool,
    resets: usize,
    wrong: Vec<String>,
    /// Number of events after which the connection breaks.
    left: usize,
}

impl Client {
    fn new(asked: Asked) -> Self {
        let sources = [asked.0].into_iter().chain(asked.2.iter().map(|(kind, ..)| *kind)).collect();
        Self { asked, sources, seen: Arc::default(), task: None }
    }

    fn connect(&mut self, world: &World, events: usize) {
        let selected = world.informer(self.asked.0);
        let related = self.asked.2.iter().map(|(kind, linked, owners)| RelatedInformer {
            informer: world.informer(*kind),
            linked: *linked,
            owners: *owners,
        });
        let links = Links::default();
        let related: Vec<_> = related.collect();
        for one in related.iter().filter(|one| one.linked) {
            for path in Join::index_paths(std::slice::from_ref(&selected), &one.informer, &links) {
                let mut builder = one.informer.reader.build_index(&path, Instant::now()).unwrap();
                while !builder.turn() {}
            }
        }
        let join = Join::new(std::slice::from_ref(&selected), related, &links).unwrap();
        let mut seen = self.seen.lock().unwrap();
        seen.left = events;
        let digest = if seen.names_others { "_00000000" } else { "" };
        let names = self.sources.iter().map(|kind| world.informer(*kind).spec.token_name() + digest);
        let token: ResumeToken = names.zip(seen.token.iter().cloned()).collect();
        let from = match (seen.token.is_empty(), seen.is_amid) {
            (true, _) => StartAt::Start,
            (false, true) => StartAt::Bookmark(token),
            (false, false) => StartAt::Token(token),
        };
        if seen.token.is_empty() {
            seen.state.clear();
        }
        drop(seen);
        let selection = Selection::new(
            Vec::new(),
            None,
            &LabelSelector::parse(self.asked.1).unwrap(),
            &FieldSelector::parse("").unwrap(),
        );
        let (informers, join) = (vec![selected], Some(Arc::new(join)));
        let subscription = Subscription { informers, selection, join, from, resync: None, timeout: None };
        let mut subscriber = world.hub.subscribe(subscription).unwrap();
        let (seen, sources) = (self.seen.clone(), self.sources.clone());
        self.task = Some(tokio::spawn(async move {
            loop {
                let delivery = subscriber.next().await;
                let mut seen = seen.lock().unwrap();
                match delivery {
                    Delivery::Events(events) => {
                        for event in events {
                            if seen.left == 0 {
                                return;
                            }
                            seen.left -= 1;
                            seen.take(&event, &sources);
                        }
                    }
                    Delivery::Heartbeat | Delivery::Replaced { .. } => {}
                    // A related informer was replaced.
                    Delivery::Closed(CloseReason::Regrouped) => return,
                    other @ (Delivery::Shared(_) | Delivery::Closed(_)) => panic!("{other:?}"),
                }
            }
        }));
    }

    /// Checks that the client holds the join of the current objects, and received nothing twice.
    fn check(&self, world: &World) -> Result<(), TestCaseError> {
        let seen = self.seen.lock().unwrap();
        prop_assert_eq!(&seen.wrong, &Vec::<String>::new());
        let held = seen.state.iter().map(|(name, (_, version))| (name.clone(), version.clone()));
        let held: BTreeMap<_, _> = held.collect();
        let expected = |things: &Things| -> BTreeMap<_, _> {
            let joined = joined(things, self.asked).into_iter().map(|((kind, namespace, name), version)| {
                ((kind, namespace.to_owned(), name), ResourceVersion::from(version))
            });
            joined.collect()
        };
        prop_assert_eq!(&held, &expected(&world.things), "{:?}", self.asked);
        if !seen.is_amid && !seen.token.contains(&Resumable::No) {
            // Another replica may be at just these versions.
            let versions = self
                .sources
                .iter()
                .copied()
                .zip(seen.token.iter().map(Resumable::written).cloned())
                .collect();
            let meant = expected(&world.things_at(&versions));
            prop_assert_eq!(&held, &meant, "{:?} with the token {:?}", self.asked, seen.token);
        }
        Ok(())
    }

    /// Whether its stream has ended.
    fn is_over(&self) -> bool {
        self.task.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
    }

    fn disconnect(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl Seen {
    fn take(&mut self, event: &Event, sources: &[usize]) {
        self.token.resize(sources.len(), Resumable::No);
        self.is_amid = event.is_amid;
        if let Payload::Mark { positions, .. } = &event.payload {
            self.token.clone_from(positions);
            assert_eq!(positions.len(), sources.len());
            if event.kind == EventKind::Reset {
                self.state.clear();
                self.resets += 1;
            }
            return;
        }
        self.token[event.source] = event.position.clone();
        let (key, uid) = event.payload.identity().unwrap();
        let name = (sources[event.source], key.namespace().to_owned(), key.name().to_owned());
        let held = self.state.get(&name).cloned();
        match (&event.payload, event.kind) {
            (_, EventKind::Deleted) => {
                self.state.remove(&name);
            }
            (Payload::Object(object), kind) => {
                let version = object.resource_version();
                if held == Some((uid.clone().into_owned(), version.clone())) {
                    self.wrong.push(format!("{name:?} was sent twice"));
                }
                if held.is_some() && kind == EventKind::Added {
                    self.wrong.push(format!("{name:?} was added, but the client has it"));
                }
                self.state.insert(name, (uid.into_owned(), version));
            }
            (payload, kind) => panic!("{kind:?} {payload:?}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        kind: usize,
        namespace: bool,
        name: u8,
        app: u8,
        node: u8,
        owner: Option<(usize, u8)>,
        anew: bool,
    },
    Delete {
        kind: usize,
        namespace: bool,
        name: u8,
    },
    Relist(usize),
    /// An informer is replaced, as by a reload of the configuration.
    Replace(usize),
    /// The API server is restored, and its last write is made anew with this label.
    Restore(u8),
    /// The client is cut off after this many events, and resumes.
    Reconnect(usize),
    Rest,
}

fn step() -> impl Strategy<Value = Step> {
    let owner = prop_oneof![
        2 => Just(None),
        3 => (prop_oneof![Just(REPLICA_SETS), Just(DEPLOYMENTS), Just(PODS)], 0..3_u8).prop_map(Some),
    ];
    prop_oneof![
        12 => (0..KINDS.len(), any::<bool>(), 0..3_u8, 0..3_u8, 0..3_u8, owner, prop::bool::weighted(0.2)).prop_map(
            |(kind, namespace, name, app, node, owner, anew)| Step::Put { kind, namespace, name, app, node, owner, anew }
        ),
        4 => (0..KINDS.len(), any::<bool>(), 0..3_u8).prop_map(|(kind, namespace, name)| Step::Delete { kind, namespace, name }),
        1 => (0..KINDS.len()).prop_map(Step::Relist),
        1 => (0..KINDS.len()).prop_map(Step::Replace),
        3 => (0..12_usize).prop_map(Step::Reconnect),
        8 => Just(Step::Rest),
    ]
}

/// Runs a history, with one client for each join.
async fn run(journal_len_max: usize, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut world = World::new(journal_len_max);
    let mut clients: Vec<_> = ASKED.into_iter().map(Client::new).collect();
    clients.iter_mut().for_each(|client| client.connect(&world, usize::MAX));
    let mut pending: Vec<Vec<Delta>> = KINDS.iter().map(|_| Vec::new()).collect();
    for step in steps.into_iter().chain([Step::Rest]) {
        let there = |kind: usize, namespace: bool| match (KINDS[kind].3, namespace) {
            (false, _) => "",
            (true, false) => "a",
            (true, true) => "b",
        };
        match step {
            Step::Put { kind, namespace, name, app, node, owner, anew } => {
                let namespace = there(kind, namespace);
                let owner = owner.filter(|_| kind != NODES && kind != SERVICES).map(|(kind, name)| {
                    let name = format!("x{name}");
                    let uid = world.things.get(&(kind, namespace, name.clone())).map_or(0, |owner| owner.uid);
                    (kind, name, uid)
                });
                let name = format!("x{name}");
                let thing = Thing { kind, namespace, name, uid: 0, version: 0, app, node, owner };
                pending[kind].extend(world.put(thing, anew));
            }
            Step::Delete { kind, namespace, name } => {
                let name = (kind, there(kind, namespace), format!("x{name}"));
                pending[kind].extend(world.delete(&name));
            }
            Step::Relist(kind) => {
                pending[kind].clear();
                world.relist(kind);
            }
            Step::Replace(kind) => {
                pending[kind].clear();
                world.replace(kind);
            }
            Step::Restore(app) => world.restore(app),
            Step::Reconnect(events) => {
                for client in &mut clients {
                    client.seen.lock().unwrap().left = events;
                }
                // Some of the writes are seen before the cut, the others after the reconnect.
                world.commit(&mut pending).await;
                for client in &mut clients {
                    client.disconnect();
                    client.connect(&world, usize::MAX);
                }
            }
            Step::Rest => {
                world.commit(&mut pending).await;
                for client in clients.iter_mut().filter(|client| client.is_over()) {
                    client.connect(&world, usize::MAX);
                }
                sleep(Duration::from_millis(1)).await;
                for client in &clients {
                    client.check(&world)?;
                }
            }
        }
    }
    Ok(())
}

/// Runs a history on a paused clock of its own.
fn history(journal_len_max: usize, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(journal_len_max, steps))
}

#[test]
fn owners_in_a_cycle_leave_a_join_with_the_last_object_they_own() {
    let put =
        |kind, owner| Step::Put { kind, namespace: false, name: 0, app: 0, node: 0, owner, anew: false };
    let gone = Step::Delete { kind: PODS, namespace: false, name: 0 };
    let circle = [
        put(REPLICA_SETS, None),
        put(DEPLOYMENTS, Some((REPLICA_SETS, 0))),
        put(REPLICA_SETS, Some((DEPLOYMENTS, 0))),
        put(PODS, Some((REPLICA_SETS, 0))),
    ];
    let steps = circle.into_iter().chain([Step::Rest, gone, Step::Rest]);
    history(40, steps.collect()).unwrap();
}

#[test]
fn a_batch_that_ends_within_a_replacement_gives_no_position() {
    // The batch ends between the deletion of a node and the creation of its successor, where there is no position.
    let put =
        |kind, namespace, name, anew| Step::Put { kind, namespace, name, app: 0, node: 0, owner: None, anew };
    let begin = [put(NODES, false, 2, false), put(PODS, false, 0, false), Step::Reconnect(2)];
    let batch = [put(NODES, false, 0, false), put(NODES, false, 0, false), put(NODES, false, 2, true)];
    let end = [Step::Reconnect(1), put(PODS, true, 0, false), Step::Rest];
    history(6, begin.into_iter().chain(batch).chain(end).collect()).unwrap();
}

#[test]
fn a_join_keeps_changes_of_related_objects_that_come_with_a_replaced_informer() {
    // Found by the simulation: they were read together with the notice of the replacement, and dropped.
    let put =
        |kind, app| Step::Put { kind, namespace: false, name: 0, app, node: 0, owner: None, anew: false };
    let steps = [put(PODS, 0), put(NODES, 0), Step::Rest, put(NODES, 1), Step::Replace(PODS), Step::Rest];
    history(40, steps.into()).unwrap();
}

#[test]
fn the_token_of_a_join_means_what_the_client_holds() {
    // Found by the simulation: the version of an event went into a token beside a version of the services at which one was linked.
    let put =
        |kind, app| Step::Put { kind, namespace: false, name: 0, app, node: 0, owner: None, anew: false };
    let service = [put(SERVICES, 0), Step::Rest, put(SERVICES, 1), Step::Rest];
    let pod = [put(PODS, 0), Step::Rest];
    history(40, service.into_iter().chain(pod).collect()).unwrap();
}

#[test]
fn a_join_reads_selectors_anew_after_a_restore() {
    // Found by the simulation: the selectors of the object before, which had the same uid and version, were taken for those of
    // the object after.
    let put =
        |kind, app| Step::Put { kind, namespace: false, name: 0, app, node: 0, owner: None, anew: false };
    let steps = [put(PODS, 1), put(SERVICES, 0), Step::Rest, Step::Restore(1), Step::Rest];
    history(40, steps.into()).unwrap();
}

#[test]
fn the_token_of_a_join_that_starts_over_does_not_take_its_client_back() {
    // The stream started over at once, with objects in older states than the client had. The token is of a bookmark, or of an informer
    // with other content, at a replica that was further.
    let put = |kind, app| Thing {
        kind,
        namespace: "a",
        name: "x0".into(),
        uid: 0,
        version: 0,
        app,
        node: 0,
        owner: None,
    };
    let (tokens, kinds) = ([true, false], [PODS, SERVICES]);
    for (is_bookmark, kind) in tokens.into_iter().flat_map(|token| kinds.map(|kind| (token, kind))) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(40);
            let mut pending: Vec<Vec<Delta>> = KINDS.iter().map(|_| Vec::new()).collect();
            for kind in [PODS, SERVICES] {
                pending[kind].extend(world.put(put(kind, 0), false));
            }
            world.commit(&mut pending).await;
            let mut client = Client::new(ASKED[0]);
            client.connect(&world, usize::MAX);
            sleep(Duration::from_millis(1)).await;
            client.disconnect();
            pending[kind].extend(world.put(put(kind, 0), false));
            {
                let mut seen = client.seen.lock().unwrap();
                let source = client.sources.iter().position(|source| *source == kind).unwrap();
                seen.token[source] = ResourceVersion::from(world.version).into();
                (seen.is_amid, seen.names_others) = (is_bookmark, !is_bookmark);
            }
            client.connect(&world, usize::MAX);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(client.seen.lock().unwrap().resets, 0, "bookmark: {is_bookmark}, {}", KINDS[kind].1);
            world.commit(&mut pending).await;
            assert_eq!(client.seen.lock().unwrap().resets, 1);
            client.seen.lock().unwrap().names_others = false;
            client.check(&world).unwrap();
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_join_client_holds_the_join_of_the_current_state(
        journal_len_max in prop_oneof![Just(1_usize), Just(6), Just(40)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        history(journal_len_max, steps)?;
    }
}
