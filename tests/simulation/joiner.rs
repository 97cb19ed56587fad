//! A client of a stream with related objects. It moves between the replicas, is cut off within batches, and resumes
//! with its token. The checks: whenever the stream has nothing left to send, the client holds the join of the caches
//! of its replica; and a RESET takes no object back, unless versions went back or the client waited in vain for the replica to catch up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::FutureExt;
use informerd::testing::hub::{
    Delivery, Event, EventKind, Join, Payload, RelatedInformer, ResetReason, Resumable, ResumeToken,
    Selection, StartAt, Subscriber, Subscription,
};
use informerd::testing::k8s::{
    FieldPath, IndexPath, Key, Link, LinkBy, Links, Object, ResourceVersion, SelectorForm,
};
use tokio::time::Instant;

use crate::client::{Around, GivenBy};
use crate::dice::Dice;
use crate::fault::Fault;
use crate::notes::has_note;
use crate::replica::{Replica, position_number};
use crate::truth::{PEER, RESOURCES, Relation, SELECTS, Seen};

/// The objects of a client: the index into [`RESOURCES`] and the key, with uid, version, and whether the object has its note.
type Held = BTreeMap<(usize, Key), (String, ResourceVersion, bool)>;

pub(crate) struct Joiner {
    dice: Dice,
    /// The index of the selected resource; the other one is related.
    selected: usize,
    stream: Option<Stream>,
    held: Held,
    /// The versions of what it held at a RESET that must not take it back.
    reached: HashMap<(usize, Key), ResourceVersion>,
    /// The position in the selected resource, and that in the related one.
    token: Vec<Resumable>,
    /// The names of both in a token.
    names: Vec<String>,
    is_amid: bool,
    /// Whether it resumed from a token that did not cover all that it held. Then no later token does, until a RESET.
    holds_beyond: bool,
    /// The process that gave the token.
    given_by: Option<GivenBy>,
    at: Instant,
    is_good: bool,
}

struct Stream {
    replica: usize,
    life: u64,
    /// The era that its replica knew of when it began.
    era: usize,
    subscriber: Subscriber,
}

/// The links between the two resources.
pub(crate) fn links() -> Links {
    let [configmaps, widgets] = RESOURCES;
    let peer = LinkBy::Name(IndexPath::Field(FieldPath::new(format!("data.{PEER}"))));
    let selects = LinkBy::Selector(format!("data.{SELECTS}"), SelectorForm::Labels);
    Links::new([
        Link { from: configmaps.into(), by: peer, to: widgets.into(), when: None },
        Link { from: widgets.into(), by: selects, to: configmaps.into(), when: None },
    ])
}

/// Those by name alone.
pub(crate) fn links_by_name() -> Links {
    let [configmaps, widgets] = RESOURCES;
    let peer = LinkBy::Name(IndexPath::Field(FieldPath::new(format!("data.{PEER}"))));
    Links::new([Link { from: configmaps.into(), by: peer, to: widgets.into(), when: None }])
}

impl Joiner {
    pub(crate) fn new(mut dice: Dice, now: Instant) -> Self {
        Self {
            selected: dice.below(2),
            dice,
            stream: None,
            held: Held::default(),
            reached: HashMap::new(),
            token: Vec::new(),
            names: Vec::new(),
            is_amid: false,
            holds_beyond: false,
            given_by: None,
            at: now,
            is_good: false,
        }
    }

    /// From now on it reads everything, and is not cut off.
    pub(crate) fn become_good(&mut self) {
        self.is_good = true;
    }

    /// When it reads next.
    pub(crate) fn wants_at(&self) -> Instant {
        self.at
    }

    /// Reads, if it is due.
    pub(crate) fn run(&mut self, around: &Around<'_>) -> Result<(), String> {
        let Around { replicas, hits, trace, .. } = around;
        if self.at > around.now {
            return Ok(());
        }
        self.at = around.now + self.dice.millis(1, if self.is_good { 500 } else { 9_000 });
        let is_over = |stream: &Stream| replicas[stream.replica].life != stream.life;
        if self.stream.as_ref().is_some_and(is_over) || !self.is_good && self.dice.chance(0.1) {
            self.stream = None;
        }
        if self.stream.is_none() {
            self.connect(around);
        }
        let mut left = if self.is_good { usize::MAX } else { self.dice.pick(&[1, 3, 10, 1000]) };
        while let Some(stream) = &mut self.stream {
            let replica = &replicas[stream.replica];
            match stream.subscriber.next().now_or_never() {
                None if stream.subscriber.passed().is_some() => return self.check(replica),
                // The stream waits for a cache.
                None | Some(Delivery::Heartbeat) => return Ok(()),
                Some(Delivery::Replaced { .. }) => {}
                Some(Delivery::Closed(_)) => self.stream = None,
                Some(Delivery::Events(events)) => {
                    for event in events {
                        if left == 0 {
                            hits.count(Fault::JoinCut);
                            self.stream = None;
                            return Ok(());
                        }
                        left -= 1;
                        trace.say(|| format!("  a join of {} gets {event:?}", RESOURCES[self.selected]));
                        self.take(&event, around)?;
                    }
                }
                Some(other) => return Err(format!("a stream with a join delivers {other:?}")),
            }
        }
        Ok(())
    }

    fn connect(&mut self, around: &Around<'_>) {
        let number = self.dice.below(around.replicas.len());
        let replica = &around.replicas[number];
        // A replica that has not listed since the restore cannot know tokens of the restored cluster.
        if !around.has_listed_since_restore(number) {
            return;
        }
        let sources = [self.selected, 1 - self.selected];
        let numbers: Vec<_> = self.token.iter().map(position_number).collect();
        let may_mix = |by| around.may_be_of_either_history(by, number, &sources, &numbers);
        if self.given_by.is_some_and(may_mix) {
            self.token.clear();
        }
        let era = around.known_era(number, &sources);
        let all = replica.hub.informers();
        let (selected, related) = (all[self.selected].clone(), all[1 - self.selected].clone());
        let links = links();
        for path in Join::index_paths(std::slice::from_ref(&selected), &related, &links) {
            let mut builder = related.reader.build_index(&path, around.now).unwrap();
            while !builder.turn() {}
        }
        let token: ResumeToken = self.names.iter().cloned().zip(self.token.iter().cloned()).collect();
        self.holds_beyond = !self.token.is_empty() && (self.is_amid || self.holds_beyond);
        let from = match (self.token.is_empty(), self.holds_beyond) {
            (true, _) => StartAt::Start,
            (false, true) => StartAt::Bookmark(token),
            (false, false) => StartAt::Token(token),
        };
        if self.token.is_empty() {
            self.held.clear();
            self.reached.clear();
        }
        let resource = RESOURCES[self.selected];
        around.trace.say(|| format!("  a join of {resource} begins at replica {number}: {from:?}"));
        let related = RelatedInformer { informer: related, linked: true, owners: false };
        let join = Join::new(std::slice::from_ref(&selected), vec![related], &links).unwrap();
        let subscription = Subscription {
            informers: vec![selected],
            selection: Selection::default(),
            join: Some(Arc::new(join)),
            from,
            resync: None,
            timeout: None,
        };
        let subscriber = replica.hub.subscribe(subscription).unwrap();
        self.stream = Some(Stream { replica: number, life: replica.life, era, subscriber });
    }

    fn take(&mut self, event: &Event, around: &Around<'_>) -> Result<(), String> {
        let hits = around.hits;
        if let Some(Stream { replica, life, era, subscriber }) = &self.stream {
            self.given_by = Some(GivenBy { replica: *replica, life: *life, era: *era });
            self.names = subscriber.informers().map(|informer| informer.spec.token_name()).collect();
        }
        self.token.resize(2, Resumable::No);
        self.is_amid = event.is_amid;
        if let Payload::Mark { positions, reason } = &event.payload {
            if event.kind == EventKind::Reset {
                hits.count(Fault::JoinReset);
                self.holds_beyond = false;
                self.reset(*reason, around);
            }
            self.token.clone_from(positions);
            return Ok(());
        }
        self.token[event.source] = event.position.clone();
        let (key, uid) = event.payload.identity().expect("an event of an object");
        let resource = if event.source == 0 { self.selected } else { 1 - self.selected };
        let name = (resource, key.clone());
        match (&event.payload, event.kind) {
            (_, EventKind::Deleted) => {
                if event.source == 1 {
                    hits.count(Fault::JoinLeft);
                }
                self.held.remove(&name);
            }
            (Payload::Object(object), _) => {
                let version = object.resource_version();
                if let Some(reached) = self.reached.get(&name).filter(|reached| version < **reached) {
                    return Err(format!("P2: {name:?} went back from {reached} to {version}"));
                }
                let now = (uid.into_owned(), version.clone(), has_note(object));
                if self.held.insert(name.clone(), now.clone()) == Some(now) {
                    return Err(format!("{name:?} came twice"));
                }
            }
            other => return Err(format!("an event of a join is {other:?}")),
        }
        Ok(())
    }

    /// Forgets what it holds, and remembers the versions of it if nothing may take the client back.
    fn reset(&mut self, reason: Option<ResetReason>, around: &Around<'_>) {
        let keeps_order = matches!(
            reason,
            Some(ResetReason::TokenTooOld | ResetReason::TokenOfOthers | ResetReason::Lagged)
        );
        let has_position = !self.token.contains(&Resumable::No);
        self.reached.clear();
        let held = std::mem::take(&mut self.held);
        if keeps_order && has_position && around.truth.eras.len() == 1 {
            let covered = |name: &(usize, Key), version: &ResourceVersion| {
                *version <= *self.token[usize::from(name.0 != self.selected)].written()
            };
            let versions = held.into_iter().map(|(name, (_, version, _))| (name, version));
            self.reached = versions.filter(|(name, version)| covered(name, version)).collect();
        }
    }

    /// Checks that the client holds the join of the objects in a replica's caches.
    fn check(&self, replica: &Replica) -> Result<(), String> {
        let states = [0, 1].map(|resource: usize| replica.readers[resource].snapshot());
        let mut there = Held::new();
        let held = |object: &Object| (object.uid().into_owned(), object.resource_version(), has_note(object));
        for selected in states[self.selected].after(None) {
            there.insert((self.selected, selected.key().clone()), held(selected));
        }
        let seen = replica.states();
        for related in states[1 - self.selected].after(None) {
            let (key, content) =
                seen[1 - self.selected].get_key_value(related.key().as_str()).expect("it is held");
            let related_with: (&str, &Seen) = (key, content);
            let linked = seen[self.selected].iter().any(|(key, content)| {
                let [first, second] = match self.selected {
                    0 => [(&**key, &**content), related_with],
                    _ => [related_with, (&**key, &**content)],
                };
                Relation::Links.holds(first, second)
            });
            if linked {
                there.insert((1 - self.selected, related.key().clone()), held(related));
            }
        }
        if there == self.held {
            Ok(())
        } else {
            Err(format!("a client holds {:?} instead of {there:?}", self.held))
        }
    }

    /// Checks that in the end the client holds the join of the state.
    pub(crate) fn final_check(&self, replicas: &[Replica]) -> Result<(), String> {
        let stream = self.stream.as_ref().ok_or("it is not connected in the end")?;
        self.check(&replicas[stream.replica])
    }
}
