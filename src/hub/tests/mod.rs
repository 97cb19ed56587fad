//! Clients with selections against an informerd that restarts: wherever they are cut off, they end with the objects
//! of a new stream.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cache::{self, BackfillRequests, Delta, Writer};
use crate::k8s::{
    Condition, DecodeOptions, Decoder, FieldSelector, Key, LabelSelector, Object, Resource, ResourceParts,
    ResourceVersion,
};

mod joined;
mod live;
mod ordered;
mod resuming;
mod waiting;

const NAMES: usize = 5;

type Seen = BTreeMap<String, (String, ResourceVersion)>;

fn pods() -> Resource {
    let (version, plural, kind) = ("v1".into(), "pods".into(), "Pod".into());
    Resource::new(ResourceParts { version, plural, kind, namespaced: true, ..Default::default() })
}

fn object(name: &str, uid: u64, version: u64, app: bool) -> Object {
    let options =
        DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
    let text = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"web","uid":"{uid}","resourceVersion":"{version}","labels":{{"app":"{app}"}}}}}}"#
    );
    Decoder::new(pods(), options).object(&text).unwrap()
}

/// The API server: all its events.
#[derive(Default)]
struct Upstream {
    version: u64,
    uid: u64,
    /// Uid, version, label.
    state: BTreeMap<String, (u64, u64, bool)>,
    events: Vec<Event>,
}

#[derive(Clone)]
struct Event {
    version: u64,
    name: String,
    uid: u64,
    /// The label; `None` for a deletion.
    app: Option<bool>,
}

/// A condition that is true of every object, and takes 10 to the power of `depth` steps.
fn looping(depth: usize) -> Condition {
    let open: String = (0..depth).map(|at| format!("[0,1,2,3,4,5,6,7,8,9].all(x{at}, ")).collect();
    Condition::parse(&format!("{open}object.metadata.name != ''{}", ")".repeat(depth))).unwrap()
}

/// The events that a subscriber delivers without waiting.
fn ready(subscriber: &mut Subscriber) -> Option<Vec<super::Event>> {
    let events = subscriber.next().now_or_never()?.events();
    (!events.is_empty()).then_some(events)
}

impl Upstream {
    fn put(&mut self, name: &str, app: bool) {
        self.version += 1;
        let uid = self.state.get(name).map_or(self.uid + 1, |(uid, ..)| *uid);
        self.uid = self.uid.max(uid);
        self.state.insert(name.into(), (uid, self.version, app));
        self.events.push(Event { version: self.version, name: name.into(), uid, app: Some(app) });
    }

    fn delete(&mut self, name: &str) {
        if let Some((uid, ..)) = self.state.remove(name) {
            self.version += 1;
            self.events.push(Event { version: self.version, name: name.into(), uid, app: None });
        }
    }

    fn uids_at(&self, version: &ResourceVersion) -> HashMap<Key, Box<str>> {
        let mut there = BTreeMap::new();
        let until = |event: &&Event| ResourceVersion::from(event.version) <= *version;
        for event in self.events.iter().take_while(until) {
            match event.app {
                Some(_) => there.insert(&event.name, event.uid),
                None => there.remove(&event.name),
            };
        }
        let entry = |(name, uid): (&String, u64)| (Key::new("web", name), uid.to_string().into());
        there.into_iter().map(entry).collect()
    }
}

/// One process of informerd.
struct Life {
    writer: Writer,
    backfills: BackfillRequests,
    hub: Hub,
    seen: u64,
    /// Whether the API server selects `app=true` for the informer.
    selects: bool,
}

const LIMITS: cache::Config =
    cache::Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 6 };

impl Life {
    fn new(upstream: &Upstream) -> Self {
        Self::with(InformerSpec::new(pods(), Scope::All), upstream)
    }

    /// With another specification of the informer.
    fn with(spec: InformerSpec, upstream: &Upstream) -> Self {
        let (mut writer, reader) = cache::cache(LIMITS, Instant::now());
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
        hub.add(Informer::new(spec, reader));
        let items = upstream.state.iter();
        let items = items.map(|(name, (uid, version, app))| object(name, *uid, *version, *app));
        let mut deltas = vec![Delta::PassBegin];
        deltas.extend(items.map(Delta::PassItem));
        deltas.push(Delta::PassEnd(upstream.version.into()));
        writer.commit(deltas);
        Self { backfills: writer.backfill_requests(), writer, hub, seen: upstream.version, selects: false }
    }

    /// Replaces the informer by one with a selector at the API server, or by one without.
    fn replace(&mut self, upstream: &Upstream) {
        self.selects = !self.selects;
        self.replace_by_same(upstream);
    }

    /// Replaces the informer by one with the same selector, complete at the upstream's version.
    fn replace_by_same(&mut self, upstream: &Upstream) {
        let mut spec = InformerSpec::new(pods(), Scope::All);
        // The same name in tokens, but with other contents.
        spec.is_absent = self.selects;
        self.replace_by(spec, upstream);
    }

    /// Replaces the informer by one of this description, complete at the upstream's version.
    fn replace_by(&mut self, spec: InformerSpec, upstream: &Upstream) {
        let (mut writer, reader) = cache::cache(LIMITS, Instant::now());
        let items = upstream.state.iter().filter(|(_, (.., app))| *app || !self.selects);
        let items = items.map(|(name, (uid, version, app))| object(name, *uid, *version, *app));
        let mut deltas = vec![Delta::PassBegin];
        deltas.extend(items.map(Delta::PassItem));
        deltas.push(Delta::PassEnd(upstream.version.into()));
        writer.commit(deltas);
        let informer = Informer::new(spec, reader);
        self.hub.swap(&[self.hub.informers()[0].id()], vec![informer]);
        self.backfills = writer.backfill_requests();
        (self.writer, self.seen) = (writer, upstream.version);
    }

    /// Relists, as after the API server has compacted the missed events.
    fn relist(&mut self, upstream: &Upstream) {
        let items = upstream.state.iter().filter(|(_, (.., app))| *app || !self.selects);
        let items = items.map(|(name, (uid, version, app))| object(name, *uid, *version, *app));
        let mut deltas = vec![Delta::PassBegin];
        deltas.extend(items.map(Delta::PassItem));
        deltas.push(Delta::PassEnd(upstream.version.into()));
        self.writer.commit(deltas);
        self.seen = upstream.version;
    }

    fn watch(&mut self, upstream: &Upstream, count: usize) {
        let seen = self.seen;
        let new = upstream.events.iter().filter(|event| event.version > seen).take(count);
        let delta = |event: &Event| {
            let object = |app| object(&event.name, event.uid, event.version, app);
            match event.app {
                None => Delta::Delete(object(true)),
                Some(false) if self.selects => Delta::Delete(object(true)),
                Some(app) => Delta::Apply(object(app)),
            }
        };
        self.seen = new.clone().last().map_or(seen, |event| event.version);
        self.writer.commit(new.map(delta).collect());
    }

    fn answer(&self, upstream: &Upstream) {
        while let Some(version) = self.backfills.next() {
            let comparison = self.backfills.compare(&version, upstream.uids_at(&version));
            self.backfills.answer(&version, Some(comparison));
        }
        self.tell_head(Some(&upstream.version.into()));
    }
}

impl Life {
    /// Answers a request for the API server's version, if there is one.
    fn tell_head(&self, version: Option<&ResourceVersion>) -> bool {
        let head = self.writer.version_requests();
        let asked = head.next();
        asked.into_iter().for_each(|asked| head.answer(asked, version.cloned()));
        asked.is_some()
    }
}

impl From<u64> for Resumable {
    fn from(version: u64) -> Self {
        ResourceVersion::from(version).into()
    }
}

/// An EventSource: it gets a token with each event.
struct Client {
    selection: Selection,
    subscriber: Option<Subscriber>,
    state: Seen,
    token: Option<Resumable>,
    resets: usize,
    told: usize,
    /// The versions at which objects were deleted.
    gone: BTreeMap<String, ResourceVersion>,
}

impl Client {
    fn new(selection: Selection) -> Self {
        Self {
            selection,
            subscriber: None,
            state: Seen::new(),
            token: None,
            resets: 0,
            told: 0,
            gone: BTreeMap::new(),
        }
    }

    fn connect(&mut self, life: &Life) {
        let token = |position: &Resumable| [("pods".to_owned(), position.clone())].into_iter().collect();
        let from = self.token.as_ref().map_or(StartAt::Start, |position| StartAt::Token(token(position)));
        if self.token.is_none() {
            self.state.clear();
            self.gone.clear();
        }
        let (informers, selection) = (life.hub.informers(), self.selection.clone());
        let subscription =
            Subscription { informers, selection, join: None, from, resync: None, timeout: None };
        self.subscriber = Some(life.hub.subscribe(subscription).unwrap());
    }

    /// Receives at most `count` events of a batch and is cut off within it; returns whether there were none.
    fn pull(&mut self, count: usize) -> bool {
        let Some(subscriber) = &mut self.subscriber else { return false };
        let events = match subscriber.next().now_or_never() {
            None => return true,
            Some(delivery @ (Delivery::Events(_) | Delivery::Shared(_))) => delivery.events(),
            Some(Delivery::Replaced { .. }) => return false,
            Some(other) => panic!("{other:?}"),
        };
        if events.len() > count {
            self.subscriber = None;
        }
        for event in events.into_iter().take(count) {
            self.take(&event);
        }
        false
    }

    fn take(&mut self, event: &super::Event) {
        self.told += 1;
        let mut put = |object: &Object| {
            let (key, version) = (object.key().to_string(), object.resource_version());
            if let Some(gone) = self.gone.get(&key) {
                assert!(version >= *gone, "P2: {key} was deleted at {gone}, and is at {version}");
            }
            if let Some((_, before)) = self.state.get(&key) {
                assert!(version >= *before, "P2: {key} went back from {before} to {version}");
            }
            self.state.insert(key, (object.uid().into_owned(), version));
        };
        match (event.kind, &event.payload) {
            (EventKind::Added | EventKind::Modified, Payload::Object(object)) => put(object),
            (EventKind::Deleted, payload) => {
                let key = payload.key().unwrap().to_string();
                self.state.remove(&key);
                self.gone.insert(key, deleted_at(payload));
            }
            (EventKind::Reset, _) => {
                self.resets += 1;
                self.state.clear();
                self.gone.clear();
            }
            (EventKind::Synced | EventKind::Bookmark, _) => {}
            (kind, payload) => panic!("{kind:?} {payload:?}"),
        }
        self.token = Some(event.position.clone());
    }

    fn expected(&self, life: &Life) -> Seen {
        let snapshot = life.hub.informers()[0].reader.snapshot();
        let seen =
            |object: &Object| (object.key().to_string(), (object.uid().into(), object.resource_version()));
        self.selection.objects(&snapshot, None).map(seen).collect()
    }
}

/// The version of a deletion.
fn deleted_at(payload: &Payload) -> ResourceVersion {
    match payload {
        Payload::Object(object) => object.resource_version(),
        Payload::ObjectAt(_, version)
        | Payload::ObjectSince { version, .. }
        | Payload::Identity { version, .. } => version.clone(),
        Payload::Patch { .. } | Payload::Mark { .. } => panic!("{payload:?}"),
    }
}

fn selections() -> [Selection; 3] {
    let selection = |name: Option<&str>, labels: &str| {
        let labels = LabelSelector::parse(labels).unwrap();
        Selection::new(vec!["web".into()], name.map(str::to_owned), &labels, &FieldSelector::default())
    };
    [Selection::default(), selection(None, "app=true"), selection(Some("a"), "app!=true")]
}

fn run(steps: &[(u8, u8, u8)]) {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut life = Life::new(&upstream);
    let mut clients = selections().map(Client::new);
    for (step, which, much) in steps {
        let name = char::from(b'a' + which % NAMES as u8).to_string();
        let client = &mut clients[usize::from(which % 3)];
        match step {
            0..=3 => upstream.put(&name, much % 2 == 0),
            4 => upstream.delete(&name),
            5 => {
                upstream.delete(&name);
                upstream.put(&name, much % 2 == 0);
            }
            6 => life.watch(&upstream, usize::from(much % 8)),
            7 => {
                life = Life::new(&upstream);
                clients.iter_mut().for_each(|client| client.subscriber = None);
            }
            8 => client.connect(&life),
            9 => life.answer(&upstream),
            _ => {
                if client.pull(1 + usize::from(much % 4)) && life.backfills.next().is_none() {
                    assert_eq!(client.state, client.expected(&life));
                }
            }
        }
    }
    life.watch(&upstream, usize::MAX);
    for client in &mut clients {
        client.connect(&life);
        life.answer(&upstream);
        while !client.pull(usize::MAX) {}
        assert_eq!(client.state, client.expected(&life));
    }
}

fn paused(test: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async { test() });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_of_a_restarted_informerd_ends_up_with_the_objects_of_a_new_stream(
        steps in proptest::collection::vec((0..14_u8, any::<u8>(), any::<u8>()), 1..150),
    ) {
        paused(|| run(&steps));
    }
}

/// Clients of a process that ends. Then a and b change their label, c is deleted, d replaced, f created.
fn outlived() -> (Upstream, [Client; 3]) {
    let mut upstream = Upstream::default();
    ["a", "b", "c", "d", "e"].iter().for_each(|name| upstream.put(name, *name != "b"));
    let mut life = Life::new(&upstream);
    let mut clients = selections().map(Client::new);
    for client in &mut clients {
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        (client.subscriber, client.told) = (None, 0);
    }
    life.watch(&upstream, usize::MAX);
    upstream.put("a", false);
    upstream.put("b", true);
    upstream.delete("c");
    upstream.delete("d");
    upstream.put("d", false);
    upstream.put("f", false);
    (upstream, clients)
}

#[test]
fn each_client_gets_the_changes_of_its_filter_and_a_bookmark() {
    paused(|| {
        let (upstream, mut clients) = outlived();
        let life = Life::new(&upstream);
        for (client, told) in clients.iter_mut().zip([6 + 1, 4 + 1, 1 + 1]) {
            client.connect(&life);
            life.answer(&upstream);
            while !client.pull(usize::MAX) {}
            assert_eq!((client.resets, client.told), (0, told));
            assert_eq!(client.state, client.expected(&life));
            assert_eq!(client.token, Some(upstream.version.into()));
        }
    });
}

#[test]
fn deletions_of_a_backfill_alone_are_no_state_for_a_client_that_gets_changes_in_batches() {
    paused(|| {
        for interval in [None, Some(Duration::from_millis(10))] {
            let mut upstream = Upstream::default();
            ["a", "b", "c", "d", "e"].into_iter().for_each(|name| upstream.put(name, true));
            let mut selection = Selection::default();
            selection.form.coalesce = interval;
            let mut client = Client::new(selection);
            client.connect(&Life::new(&upstream));
            while !client.pull(usize::MAX) {}
            let token = client.token.clone();
            ["a", "b", "c", "d"].into_iter().for_each(|name| upstream.delete(name));
            upstream.put("f", true);
            let life = Life::new(&upstream);
            client.connect(&life);
            life.answer(&upstream);
            // A batch has three events.
            client.told = 0;
            while client.told == 0 {
                client.pull(usize::MAX);
            }
            let expected = if interval.is_some() { Some(Resumable::No) } else { token };
            assert_eq!((client.state.len(), &client.token), (2, &expected), "{interval:?}");
            while !client.pull(usize::MAX) {}
            assert_eq!(client.state, client.expected(&life));
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_backfill_is_not_answered_starts_over() {
    let (upstream, mut clients) = outlived();
    let life = Life::new(&upstream);
    let client = &mut clients[0];
    client.connect(&life);
    assert!(client.pull(usize::MAX), "it waits");
    tokio::time::advance(Duration::from_secs(11)).await;
    while !client.pull(usize::MAX) {}
    assert_eq!((client.resets, &client.state), (1, &client.expected(&life)));
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_token_starts_over_without_a_backfill() {
    let (upstream, clients) = outlived();
    let life = Life::new(&upstream);
    let token = [("pods".to_owned(), clients[0].token.clone().unwrap())].into_iter().collect();
    let (informers, from) = (life.hub.informers(), StartAt::Bookmark(token));
    let subscription = Subscription {
        informers,
        selection: Selection::default(),
        join: None,
        from,
        resync: None,
        timeout: None,
    };
    let mut subscriber = life.hub.subscribe(subscription).unwrap();
    let Delivery::Events(events) = subscriber.next().await else { panic!("a RESET") };
    assert_eq!(events[0].kind, EventKind::Reset);
    assert!(life.backfills.next().is_none());
}

#[test]
fn behind_the_journal_an_object_that_stopped_matching_is_deleted() {
    // Found by the property above: the token's position was within the journal again, where the deletion of an object
    // that no longer matches is no event.
    let steps = [(8, 178), (0, 0), (10, 64), (0, 235), (4, 15), (0, 1), (0, 131)];
    paused(|| run(&steps.map(|(step, which)| (step, which, u8::from(which == 64 || which == 235)))));
}

#[tokio::test(start_paused = true)]
async fn a_resync_of_several_informers_sends_each_object_once() {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let quiet = Life::new(&upstream);
    let mut busy = Life::new(&upstream);
    let informers = vec![quiet.hub.informers().remove(0), busy.hub.informers().remove(0)];
    let resync = Some(Duration::from_secs(1));
    let (selection, from) = (Selection::default(), StartAt::Start);
    let subscription = Subscription { informers, selection, join: None, from, resync, timeout: None };
    let mut subscriber = quiet.hub.subscribe(subscription).unwrap();
    let take = |subscriber: &mut Subscriber| {
        let mut told = [0, 0];
        while let Some(events) = ready(subscriber) {
            let objects = events.iter().filter(|event| event.payload.key().is_some());
            objects.for_each(|event| told[event.source] += 1);
        }
        told
    };
    assert_eq!(take(&mut subscriber), [1, 1]);
    tokio::time::advance(Duration::from_millis(1001)).await;
    // The resync is due, and one informer has a change to send first.
    upstream.put("b", true);
    busy.watch(&upstream, 1);
    assert_eq!(take(&mut subscriber), [1, 1 + 2]);
    assert_eq!(take(&mut subscriber), [0, 0]);
}

#[test]
fn an_object_that_matched_only_within_a_catch_up_is_deleted() {
    // Found by the property above: c was in the first piece of a catch-up, and stopped matching before the second.
    let before = [(0, 33, 0), (0, 112, 0), (0, 34, 0)].into_iter().chain([(0, 0, 0); 5]);
    let after =
        [(0, 57, 1), (0, 0, 0), (8, 16, 0), (10, 106, 1), (6, 0, 2), (6, 0, 3), (10, 16, 2), (6, 0, 6)];
    run_to_the_end(before.chain(after));
}

fn run_to_the_end(steps: impl Iterator<Item = (u8, u8, u8)>) {
    let steps: Vec<_> = steps.chain([(10, 121, 0); 4]).collect();
    paused(|| run(&steps));
}

#[tokio::test(start_paused = true)]
async fn a_busy_stream_gets_its_bookmarks() {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut life = Life::new(&upstream);
    let (informers, selection) = (life.hub.informers(), Selection::default());
    let subscription =
        Subscription { informers, selection, join: None, from: StartAt::Start, resync: None, timeout: None };
    let mut subscriber = life.hub.subscribe(subscription).unwrap();
    let mut bookmarks = 0;
    for _ in 0..185 {
        upstream.put("a", true);
        life.watch(&upstream, 1);
        let events = ready(&mut subscriber).expect("a change");
        for event in events.iter().filter(|event| event.kind == EventKind::Bookmark) {
            assert_eq!(event.position, upstream.version.into());
            bookmarks += 1;
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(bookmarks, 3);
}

/// Clients of an informer that is replaced many times.
fn run_replaced(steps: &[(u8, u8, u8)]) {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut life = Life::new(&upstream);
    let mut clients = selections().map(Client::new);
    for (step, which, much) in steps {
        let name = char::from(b'a' + which % NAMES as u8).to_string();
        let client = &mut clients[usize::from(which % 3)];
        match step {
            0..=3 => upstream.put(&name, much % 2 == 0),
            4 => upstream.delete(&name),
            5 => {
                upstream.delete(&name);
                upstream.put(&name, much % 2 == 0);
            }
            6 => life.watch(&upstream, usize::from(much % 4)),
            7 => life.replace(&upstream),
            8 => client.connect(&life),
            _ => drop(client.pull(usize::from(much % 5))),
        }
    }
    life.watch(&upstream, usize::MAX);
    for client in &mut clients {
        if client.subscriber.is_none() {
            client.connect(&life);
        }
        life.answer(&upstream);
        while !client.pull(usize::MAX) {}
        assert_eq!(client.state, client.expected(&life));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_of_a_replaced_informer_ends_up_with_the_objects_of_a_new_stream(
        steps in proptest::collection::vec((0..14_u8, any::<u8>(), any::<u8>()), 1..150),
    ) {
        paused(|| run_replaced(&steps));
    }
}

#[test]
fn a_live_stream_of_a_replaced_informer_gets_only_the_difference() {
    paused(|| {
        let mut upstream = Upstream::default();
        ["a", "b", "c", "d", "e"].iter().for_each(|name| upstream.put(name, *name != "b"));
        let mut life = Life::new(&upstream);
        let mut client = Client::new(Selection::default());
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        client.told = 0;
        // b is no longer selected; c is deleted and d replaced while the new informer lists.
        upstream.delete("c");
        upstream.put("d", true);
        life.replace(&upstream);
        while !client.pull(usize::MAX) {}
        // With a bookmark before the difference, and one behind it.
        assert_eq!((client.told, client.resets), (5, 0));
        assert_eq!(client.state, client.expected(&life));
        let token = client.token.clone();
        // A client that resumes from the position of the replacement may or may not hold b.
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        assert_eq!((client.resets, &client.state), (1, &client.expected(&life)));
        upstream.put("e", true);
        life.watch(&upstream, 1);
        while !client.pull(usize::MAX) {}
        assert!(client.token > token);
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        assert_eq!(client.resets, 1, "a token from after the replacement was refused");
    });
}

#[test]
fn a_client_that_is_cut_off_within_the_difference_of_two_informers_has_no_position() {
    // Found by the simulation: another replica knew the position before the replacement, and sent again what the client had.
    paused(|| {
        let mut upstream = Upstream::default();
        ["a", "b", "c"].iter().for_each(|name| upstream.put(name, true));
        let mut life = Life::new(&upstream);
        let mut client = Client::new(Selection::default());
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        ["a", "b"].iter().for_each(|name| upstream.put(name, true));
        life.replace_by_same(&upstream);
        client.told = 0;
        while client.subscriber.is_some() {
            client.pull(1);
        }
        assert_eq!((client.told, client.token.clone()), (1, Some(Resumable::No)));
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        assert_eq!((client.resets, &client.state), (1, &client.expected(&life)));
    });
}

#[test]
fn a_bookmark_from_before_a_change_of_content_is_void() {
    // A client that keeps the token of its last bookmark would take it to a replica that still holds the old content, and keep there what
    // the difference has changed.
    paused(|| {
        let mut upstream = Upstream::default();
        ["a", "b"].iter().for_each(|name| upstream.put(name, true));
        let mut life = Life::new(&upstream);
        let mut client = Client::new(Selection::default());
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        upstream.put("a", true);
        life.replace(&upstream);
        let (mut subscriber, mut told) = (client.subscriber.take().unwrap(), Vec::new());
        while let Some(delivery) = subscriber.next().now_or_never() {
            told.extend(delivery.events().iter().map(|event| (event.kind, event.position.clone())));
        }
        let (void, bookmark) =
            ((EventKind::Bookmark, Resumable::No), (EventKind::Bookmark, Resumable::from(3)));
        assert_eq!(told, [void, (EventKind::Modified, Resumable::from(3)), bookmark]);
    });
}

#[test]
fn a_token_of_other_content_does_not_take_its_client_back() {
    // Found by the simulation: the stream started over at once, with objects in older states than the client had. The token is of another
    // replica, whose informer holds other members, or of an informer that was replaced by one that is behind.
    for is_replaced in [false, true] {
        paused(|| {
            let mut upstream = Upstream::default();
            upstream.put("a", true);
            let mut spec = InformerSpec::new(pods(), Scope::All);
            spec.content.dropped = ".spec".parse().unwrap();
            let mut behind = Life::with(spec, &upstream);
            if is_replaced {
                behind = Life::new(&upstream);
            }
            let mut earlier = Upstream::default();
            earlier.put("a", true);
            upstream.put("a", true);
            let mut client = Client::new(Selection::default());
            let further = Life::new(&upstream);
            client.connect(&further);
            while !client.pull(usize::MAX) {}
            if is_replaced {
                behind.watch(&upstream, usize::MAX);
                behind.replace(&earlier);
            }
            client.connect(&behind);
            while !client.pull(usize::MAX) {}
            assert_eq!(client.resets, 0, "replaced: {is_replaced}");
            behind.watch(&upstream, usize::MAX);
            while !client.pull(usize::MAX) {}
            assert_eq!((client.resets, &client.state), (1, &client.expected(&behind)));
        });
    }
}

#[test]
fn a_stream_starts_over_where_the_new_informer_has_another_history() {
    // The cluster is restored from a backup while a reload lists. An object returns that the old informer saw deleted, or is at an
    // earlier version, or is another object at the same version, or has other content at the same version. The simulation found
    // the third: its client got the same version twice. The reload may also change which members are held: then only the last is not seen,
    // as a state is sent anew.
    let dropping = || {
        let mut spec = InformerSpec::new(pods(), Scope::All);
        spec.content.dropped = ".spec".parse().unwrap();
        spec
    };
    let cases = ["returns", "earlier", "another", "differs"];
    let replaced =
        cases.map(|case| (case, false)).into_iter().chain(cases[..3].iter().map(|case| (*case, true)));
    for (case, drops) in replaced {
        paused(|| {
            let backup = || {
                let mut upstream = Upstream::default();
                ["a", "b"].iter().for_each(|name| upstream.put(name, true));
                upstream
            };
            let (mut upstream, mut restored) = (backup(), backup());
            match case {
                "returns" => upstream.delete("b"),
                "earlier" => upstream.put("b", true),
                "another" => {
                    restored.uid += 10;
                    for cluster in [&mut upstream, &mut restored] {
                        cluster.delete("b");
                        cluster.put("b", true);
                    }
                }
                _ => {
                    upstream.put("b", true);
                    restored.put("b", false);
                }
            }
            let mut life = Life::new(&upstream);
            let mut client = Client::new(Selection::default());
            client.connect(&life);
            while !client.pull(usize::MAX) {}
            (0..4).for_each(|_| restored.put("a", true));
            match drops {
                true => life.replace_by(dropping(), &restored),
                false => life.replace_by_same(&restored),
            }
            while !client.pull(usize::MAX) {}
            let expected = (1, &client.expected(&life));
            assert_eq!((client.resets, &client.state), expected, "{case}, dropping members: {drops}");
        });
    }
}

#[test]
fn a_stream_starts_over_where_its_object_is_not_in_another_history() {
    // Found by the simulation, seed 1732466: the client was sent a deletion at the version of the state that it had. An object that was
    // there at a version can be gone only at a later one. The restored cluster has it not at all, or in an earlier state that the client
    // does not select.
    for is_there in [false, true] {
        paused(|| {
            let (mut upstream, mut restored) = (Upstream::default(), Upstream::default());
            ["a", "b"].iter().for_each(|name| upstream.put(name, true));
            upstream.put("b", true);
            restored.put("a", true);
            restored.put("b", !is_there);
            if is_there {
                restored.put("c", false);
            } else {
                restored.delete("b");
            }
            assert_eq!(restored.version, upstream.version);
            let mut life = Life::new(&upstream);
            let labels = LabelSelector::parse("app=true").unwrap();
            let selection = Selection::new(Vec::new(), None, &labels, &FieldSelector::default());
            let mut client = Client::new(selection);
            client.connect(&life);
            while !client.pull(usize::MAX) {}
            life.replace_by_same(&restored);
            while !client.pull(usize::MAX) {}
            let expected = (1, &client.expected(&life));
            assert_eq!((client.resets, &client.state), expected, "is there: {is_there}");
        });
    }
}

#[test]
fn a_stream_to_which_an_unchanged_object_returns_starts_over() {
    paused(|| {
        let mut upstream = Upstream::default();
        ["a", "b"].iter().for_each(|name| upstream.put(name, *name != "b"));
        let mut life = Life::new(&upstream);
        let mut client = Client::new(Selection::default());
        client.connect(&life);
        while !client.pull(usize::MAX) {}
        (0..20).for_each(|_| upstream.put("a", true));
        life.replace(&upstream);
        while !client.pull(usize::MAX) {}
        assert_eq!((client.state.len(), client.resets), (1, 0), "b is still held");
        life.replace(&upstream);
        while !client.pull(usize::MAX) {}
        assert_eq!((client.state.len(), client.resets), (2, 1), "b returned without RESET");
        // A change made meanwhile needs no RESET.
        life.replace(&upstream);
        while !client.pull(usize::MAX) {}
        upstream.put("b", false);
        life.replace(&upstream);
        while !client.pull(usize::MAX) {}
        assert_eq!((client.state.len(), client.resets), (2, 1));
    });
}

#[test]
fn an_informer_in_use_is_not_retired() {
    paused(|| {
        let life = Life::new(&Upstream::default());
        let description = (*life.hub.informers()[0]).clone();
        let retire = |idle| life.hub.retire(&[&description], idle, Instant::now());
        assert!(!retire(Duration::from_secs(60)), "just made");
        let found = life.hub.resolve("pods").unwrap();
        assert!(!retire(Duration::ZERO), "retired while a request holds it");
        drop(found);
        let mut client = Client::new(Selection::default());
        client.connect(&life);
        assert!(!retire(Duration::ZERO), "retired while a stream reads it");
        client.subscriber = None;
        assert!(retire(Duration::ZERO));
        assert!(life.hub.informers().is_empty());
    });
}

/// Counts its wake-ups.
#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_waits_for_its_informer_does_not_spin() {
    // Found by the simulation, seed 5: the stream spun once the first bookmark was due.
    let upstream = Upstream::default();
    let life = Life::new(&upstream);
    let limits = cache::Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 6 };
    let (_writer, reader) = cache::cache(limits, Instant::now());
    let informers = vec![Arc::new(Informer::new(InformerSpec::new(pods(), Scope::All), reader))];
    let (selection, from) = (Selection::default(), StartAt::Start);
    let subscription = Subscription { informers, selection, join: None, from, resync: None, timeout: None };
    let mut subscriber = life.hub.subscribe(subscription).unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(matches!(subscriber.next().await, Delivery::Heartbeat));
    let wakes = Arc::new(Wakes::default());
    let waker = std::task::Waker::from(wakes.clone());
    let mut next = Box::pin(subscriber.next());
    assert!(next.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    assert_eq!(wakes.0.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_one_namespace_or_object_is_not_woken_by_other_changes() {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut life = Life::new(&upstream);
    let selection = |namespace: &str, name: Option<&str>| {
        let (labels, fields) = (LabelSelector::default(), FieldSelector::default());
        Selection::new(vec![namespace.to_owned()], name.map(str::to_owned), &labels, &fields)
    };
    // The namespace of all objects, another namespace, an object, and a missing object.
    let selections = [
        selection("web", None),
        selection("db", None),
        selection("web", Some("a")),
        selection("web", Some("z")),
    ];
    let mut subscribers = selections.map(|selection| {
        let informers = life.hub.informers();
        let subscription = Subscription {
            informers,
            selection,
            join: None,
            from: StartAt::Start,
            resync: None,
            timeout: None,
        };
        life.hub.subscribe(subscription).expect("a subscriber")
    });
    let wakes: [Arc<Wakes>; 4] = Default::default();
    for (name, woken) in [("b", [1, 0, 0, 0]), ("a", [2, 0, 1, 0])] {
        for subscriber in &mut subscribers {
            while ready(subscriber).is_some() {}
        }
        let mut turns: Vec<_> =
            subscribers.iter_mut().map(|subscriber| Box::pin(subscriber.next())).collect();
        for (turn, wakes) in turns.iter_mut().zip(&wakes) {
            let waker = std::task::Waker::from(wakes.clone());
            assert!(turn.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        }
        upstream.put(name, false);
        life.watch(&upstream, 1);
        let counts = wakes.each_ref().map(|wakes| wakes.0.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(counts, woken, "{name}");
    }
    // With its bookmark it has the position of the cache.
    tokio::time::advance(Duration::from_secs(61)).await;
    for subscriber in &mut subscribers {
        let events = ready(subscriber).expect("a bookmark");
        let last = events.last().expect("at least one");
        assert_eq!((last.kind, &last.position), (EventKind::Bookmark, &upstream.version.into()));
    }
}

#[test]
fn a_pending_informer_that_starts_is_never_unknown() {
    let upstream = Upstream::default();
    let config = *Life::new(&upstream).hub.config();
    for _ in 0..200 {
        let hub = Hub::new(config, CancellationToken::new());
        hub.set_pending(vec![Pending { name: "pods".into(), message: "not yet".into(), awaited: true }]);
        let (_, reader) = cache::cache(LIMITS, Instant::now());
        let informer = Informer::new(InformerSpec::new(pods(), Scope::All), reader);
        let comes = hub.clone();
        let coming = std::thread::spawn(move || {
            comes.add(informer);
            comes.set_pending(Vec::new());
        });
        loop {
            match hub.resolve("pods") {
                Ok(_) => break,
                Err(error) => assert!(matches!(error, SubscribeError::Pending { .. }), "{error}"),
            }
        }
        coming.join().unwrap();
    }
}
