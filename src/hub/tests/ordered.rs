//! Clients of the Kubernetes watch, which resume from the version of the last event: wherever they are cut off, and
//! at whichever replica they resume, they end with the current objects.

use super::*;

struct Client {
    selection: Selection,
    /// The index of its replica.
    replica: usize,
    subscriber: Option<Subscriber>,
    state: Seen,
    /// The version of the last event or list; `None` before the first list.
    at: Option<ResourceVersion>,
    /// The informer of its last list.
    listed: Option<InformerId>,
}

impl Client {
    fn new(selection: Selection) -> Self {
        Self { selection, replica: 0, subscriber: None, state: Seen::new(), at: None, listed: None }
    }

    fn connect(&mut self, lives: &[Life], replica: usize) {
        self.replica = replica;
        let life = &lives[replica];
        let informer = life.hub.informers().remove(0);
        // A client that missed the end of its watch, and has exactly the last version of a replaced informer, cannot
        // be distinguished from one that listed the successor.
        if self.at.as_ref() == informer.tokens_valid_after() && self.listed != Some(informer.id()) {
            self.at = None;
        }
        let snapshot = informer.reader.snapshot();
        let at = self.at.clone().unwrap_or_else(|| {
            self.state = self.expected(life);
            self.listed = Some(informer.id());
            snapshot.position
        });
        self.at = Some(at.clone());
        let (informers, selection, from) =
            (life.hub.informers(), self.selection.clone(), StartAt::Ordered(Begin::After(at)));
        let subscription =
            Subscription { informers, selection, join: None, from, resync: None, timeout: None };
        self.subscriber = Some(life.hub.subscribe(subscription).unwrap());
    }

    fn expected(&self, life: &Life) -> Seen {
        let snapshot = life.hub.informers()[0].reader.snapshot();
        let seen =
            |object: &Object| (object.key().to_string(), (object.uid().into(), object.resource_version()));
        self.selection.objects(&snapshot, None).map(seen).collect()
    }

    /// Receives at most `count` events of a batch and is cut off within it; returns whether there were none. Lists
    /// again after a 410.
    fn pull(&mut self, lives: &[Life], count: usize) -> bool {
        let Some(subscriber) = &mut self.subscriber else { return false };
        let events = match subscriber.next().now_or_never() {
            None => return true,
            Some(delivery @ (Delivery::Events(_) | Delivery::Shared(_))) => delivery.events(),
            Some(Delivery::Replaced { .. }) => return false,
            Some(Delivery::Closed(CloseReason::Expired)) => {
                assert_eq!(subscriber.refusal().map(|status| status.code), Some(410));
                self.at = None;
                self.connect(lives, self.replica);
                return false;
            }
            Some(other) => panic!("{other:?}"),
        };
        if events.len() > count {
            self.subscriber = None;
        }
        events.iter().take(count).for_each(|event| self.take(event));
        false
    }

    fn take(&mut self, event: &super::super::Event) {
        let version = match &event.payload {
            Payload::Object(object) | Payload::Patch { object, .. } => object.resource_version(),
            Payload::ObjectAt(_, version) | Payload::ObjectSince { since: version, .. } => version.clone(),
            Payload::Mark { positions, .. } => positions[0].written().clone(),
            Payload::Identity { .. } => panic!("a deletion without the last state"),
        };
        let at = self.at.as_ref().expect("it has listed");
        assert!(version >= *at, "{:?} {:?} at {version} goes back from {at}", event.kind, event.payload);
        self.at = Some(version.clone());
        let Some(key) = event.payload.key().map(ToString::to_string) else { return };
        match (event.kind, &event.payload) {
            (EventKind::Added | EventKind::Modified, Payload::Object(object)) => {
                self.state.insert(key, (object.uid().into(), version.clone()));
            }
            (EventKind::Deleted, _) => drop(self.state.remove(&key)),
            (kind, payload) => panic!("{kind:?} {payload:?}"),
        }
    }
}

fn run(steps: &[(u8, u8, u8)], replicas: usize) {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut lives: Vec<Life> = (0..replicas).map(|_| Life::new(&upstream)).collect();
    let mut clients = selections().map(Client::new);
    for (step, which, much) in steps {
        let name = char::from(b'a' + which % NAMES as u8).to_string();
        let client = &mut clients[usize::from(which % 3)];
        let replica = usize::from(*much) % replicas;
        match step {
            0..=3 => upstream.put(&name, much % 2 == 0),
            4 => upstream.delete(&name),
            5 => {
                upstream.delete(&name);
                upstream.put(&name, much % 2 == 0);
            }
            6 | 7 => lives[replica].watch(&upstream, usize::from(which % 8)),
            8 => lives[replica].relist(&upstream),
            9 if replicas == 1 => lives[0].replace(&upstream),
            9 => {
                lives[replica] = Life::new(&upstream);
                let of_it = clients.iter_mut().filter(|client| client.replica == replica);
                of_it.for_each(|client| client.subscriber = None);
            }
            10 => client.connect(&lives, replica),
            _ => {
                let quiet = client.pull(&lives, 1 + usize::from(much % 4));
                // A replica that is behind has not sent what the relist of another one would send next.
                if quiet && replicas == 1 {
                    assert_eq!(client.state, client.expected(&lives[client.replica]));
                }
            }
        }
    }
    lives.iter_mut().for_each(|life| life.watch(&upstream, usize::MAX));
    for client in &mut clients {
        client.connect(&lives, 0);
        while !client.pull(&lives, usize::MAX) {}
        assert_eq!(client.state, client.expected(&lives[0]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_that_resumes_from_the_last_event_misses_nothing_on_any_replica(
        steps in proptest::collection::vec((0..16_u8, any::<u8>(), any::<u8>()), 1..150),
    ) {
        paused(|| run(&steps, 2));
    }

    #[test]
    fn a_client_that_resumes_from_the_last_event_survives_replaced_informers(
        steps in proptest::collection::vec((0..16_u8, any::<u8>(), any::<u8>()), 1..150),
    ) {
        paused(|| run(&steps, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_relists_deletions_are_sent_at_the_version_before_it() {
    let mut upstream = Upstream::default();
    ["a", "b", "c", "d"].iter().for_each(|name| upstream.put(name, true));
    let mut lives = vec![Life::new(&upstream)];
    let mut client = Client::new(Selection::default());
    client.connect(&lives, 0);
    let before = upstream.version;
    upstream.put("a", false);
    upstream.delete("b");
    upstream.delete("c");
    lives[0].relist(&upstream);
    let mut told = Vec::new();
    while let Some(events) = ready(client.subscriber.as_mut().unwrap()) {
        for event in events {
            client.take(&event);
            told.push((event.kind, client.at.clone().unwrap()));
        }
    }
    let (before, changed) = (ResourceVersion::from(before), ResourceVersion::from(before + 1));
    let expected =
        [(EventKind::Deleted, before.clone()), (EventKind::Deleted, before), (EventKind::Modified, changed)];
    assert_eq!(told, expected);
    assert_eq!(client.state, client.expected(&lives[0]));
}

#[test]
fn a_list_of_a_new_informer_that_is_behind_the_old_one_can_be_watched() {
    // Found by the simulation: its client listed and was refused, until the informer was further than the one that it had replaced.
    paused(|| {
        let earlier = || {
            let mut upstream = Upstream::default();
            upstream.put("a", true);
            upstream
        };
        let mut upstream = earlier();
        (0..3).for_each(|_| upstream.put("a", true));
        let mut lives = [Life::new(&upstream)];
        lives[0].replace(&earlier());
        for _ in 0..2 {
            let mut client = Client::new(Selection::default());
            client.connect(&lives, 0);
            assert!(client.subscriber.as_ref().unwrap().refusal().is_none(), "at {:?}", client.at);
            lives[0].watch(&upstream, 1);
            while !client.pull(&lives, usize::MAX) {}
            assert_eq!(client.state, client.expected(&lives[0]));
        }
    });
}

#[test]
fn objects_that_stopped_matching_in_a_relist_gap_are_gone_on_every_replica() {
    paused(|| {
        let mut upstream = Upstream::default();
        ["a", "b"].iter().for_each(|name| upstream.put(name, true));
        let mut lives = vec![Life::new(&upstream), Life::new(&upstream)];
        let [_, selects, _] = selections();
        let mut client = Client::new(selects);
        client.connect(&lives, 0);
        // The second change of b is sent after that of a. A client that has the first one needs nothing else.
        upstream.put("b", false);
        upstream.put("a", true);
        upstream.put("b", false);
        lives[0].relist(&upstream);
        lives[1].watch(&upstream, usize::MAX);
        client.pull(&lives, 1);
        client.connect(&lives, 1);
        while !client.pull(&lives, usize::MAX) {}
        assert_eq!(client.state, client.expected(&lives[1]));
    });
}
