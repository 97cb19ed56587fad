//! A client as those of Kubernetes are: it lists, and watches from the list's version. It is cut off, and watches again from the
//! version of its last event. The checks: a watch from the version of a list that was answered just now is accepted, whatever the
//! cluster's versions did; each event fits the state before; and whenever the watch has nothing left to send, the client holds
//! what the cache of its replica holds.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use informerd::testing::hub::{
    Begin, Delivery, Event, EventKind, Payload, Resumable, Selection, StartAt, Subscriber, Subscription,
};
use informerd::testing::k8s::{FieldSelector, Key, LabelSelector, Object, ResourceVersion};
use tokio::time::Instant;

use crate::client::Around;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::replica::Replica;
use crate::truth::RESOURCES;

/// The label value that a client with a selector asks for.
const APP: &str = "web";

pub(crate) struct Lister {
    dice: Dice,
    /// The index into [`RESOURCES`].
    resource: usize,
    /// Whether it selects by label.
    selects: bool,
    watch: Option<Watch>,
    held: BTreeMap<Key, ResourceVersion>,
    /// The version to watch from; `None` to list first.
    version: Option<ResourceVersion>,
    /// The version of its state. After a relist this is greater than the version of its last event: a deletion has no event if the
    /// client never had the object.
    reached: ResourceVersion,
    /// Up to here a watch that it has resumed may tell what it knows.
    known: ResourceVersion,
    at: Instant,
    is_good: bool,
}

struct Watch {
    replica: usize,
    life: u64,
    subscriber: Subscriber,
}

impl Lister {
    pub(crate) fn new(mut dice: Dice, now: Instant) -> Self {
        Self {
            resource: dice.below(2),
            selects: dice.chance(0.4),
            dice,
            watch: None,
            held: BTreeMap::new(),
            version: None,
            reached: ResourceVersion::ZERO,
            known: ResourceVersion::ZERO,
            at: now,
            is_good: false,
        }
    }

    /// From now on it is not cut off.
    pub(crate) fn become_good(&mut self) {
        self.is_good = true;
    }

    /// When it reads next.
    pub(crate) fn wants_at(&self) -> Instant {
        self.at
    }

    /// Reads, if it is due.
    pub(crate) fn run(&mut self, around: &Around<'_>) -> Result<(), String> {
        if self.at > around.now {
            return Ok(());
        }
        self.at = around.now + self.dice.millis(1, if self.is_good { 500 } else { 4_000 });
        let is_over = |watch: &Watch| around.replicas[watch.replica].life != watch.life;
        if self.watch.as_ref().is_some_and(is_over) || !self.is_good && self.dice.chance(0.1) {
            self.watch = None;
        }
        if self.watch.is_none() {
            self.connect(around)?;
        }
        while let Some(watch) = &mut self.watch {
            let replica = &around.replicas[watch.replica];
            match watch.subscriber.next().now_or_never() {
                None if watch.subscriber.passed().is_some() => return self.check(replica),
                // The watch waits for the cache.
                None | Some(Delivery::Heartbeat) => return Ok(()),
                Some(Delivery::Replaced { .. }) => {}
                Some(Delivery::Closed(reason)) => {
                    around.trace.say(|| format!("  a watch of {} is over: {reason:?}", self.name()));
                    (self.watch, self.version) = (None, None);
                }
                Some(delivery @ (Delivery::Events(_) | Delivery::Shared(_))) => {
                    for event in delivery.events() {
                        around.trace.say(|| format!("  a watch of {} gets {event:?}", self.name()));
                        self.take(&event)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        RESOURCES[self.resource]
    }

    fn connect(&mut self, around: &Around<'_>) -> Result<(), String> {
        let number = self.dice.below(around.replicas.len());
        let replica = &around.replicas[number];
        let reader = &replica.readers[self.resource];
        if replica.drain.is_cancelled() || !reader.mark().synced {
            return Ok(());
        }
        // After a restore a version says nothing about the history that it is of.
        let resumes = self.dice.chance(0.5) && around.truth.eras.len() == 1;
        let resumed = self.version.take().filter(|_| resumes);
        let lists = resumed.is_none();
        let version = resumed.unwrap_or_else(|| {
            // As the interface of Kubernetes answers a list.
            let snapshot = reader.snapshot();
            reader.note_listed(&snapshot, &snapshot.position);
            let selected = snapshot.after(None).filter(|object| self.selects(object));
            self.held = selected.map(of).collect();
            (self.reached, self.known) = (snapshot.position.clone(), ResourceVersion::ZERO);
            snapshot.position
        });
        if !lists {
            self.known = self.reached.clone();
        }
        around
            .trace
            .say(|| format!("  a watch of {} at {number} from {version}, listed: {lists}", self.name()));
        let labels = if self.selects { format!("app={APP}") } else { String::new() };
        let (labels, fields) = (LabelSelector::parse(&labels).unwrap(), FieldSelector::parse("").unwrap());
        let subscription = Subscription {
            informers: vec![replica.hub.informers()[self.resource].clone()],
            selection: Selection::new(Vec::new(), None, &labels, &fields),
            join: None,
            from: StartAt::Ordered(Begin::After(version.clone())),
            resync: None,
            timeout: None,
        };
        let subscriber = replica.hub.subscribe(subscription).unwrap();
        if let Some(refusal) = subscriber.refusal().filter(|_| lists) {
            return Err(format!("the watch from a list at {version} is refused: {}", refusal.message));
        }
        if lists {
            around.hits.count(Fault::Listed);
        }
        self.version = Some(version);
        self.watch = Some(Watch { replica: number, life: replica.life, subscriber });
        Ok(())
    }

    fn reach(&mut self, position: &Resumable) {
        if *position.written() > self.reached {
            self.reached = position.written().clone();
        }
    }

    fn selects(&self, object: &Object) -> bool {
        !self.selects || object.labels().iter().any(|(name, value)| name == "app" && *value == *APP)
    }

    fn take(&mut self, event: &Event) -> Result<(), String> {
        let Some((key, _)) = event.payload.identity() else {
            if let Payload::Mark { positions, .. } = &event.payload {
                self.version = positions.first().map(|position| position.written().clone());
                self.reach(&event.position);
            }
            return Ok(());
        };
        let version = match &event.payload {
            Payload::Object(object) => object.resource_version(),
            Payload::ObjectAt(_, version) => version.clone(),
            Payload::ObjectSince { since, .. } => since.clone(),
            other => return Err(format!("an event of a watch is {other:?}")),
        };
        let before = match event.kind {
            EventKind::Deleted => self.held.remove(key),
            _ => self.held.insert(key.clone(), version.clone()),
        };
        self.reach(&event.position);
        if before.is_some() != (event.kind != EventKind::Added) && version > self.known {
            return Err(format!("{:?} of {key}, which the client has at {before:?}", event.kind));
        }
        self.version = Some(version);
        Ok(())
    }

    /// Checks that the client holds what a replica's cache holds.
    fn check(&self, replica: &Replica) -> Result<(), String> {
        let snapshot = replica.readers[self.resource].snapshot();
        if snapshot.position < self.known {
            return Ok(());
        }
        let there: BTreeMap<_, _> =
            snapshot.after(None).filter(|object| self.selects(object)).map(of).collect();
        if there == self.held {
            Ok(())
        } else {
            Err(format!("a client of {} holds {:?} instead of {there:?}", self.name(), self.held))
        }
    }

    /// Checks that in the end the client watches, and holds the state.
    pub(crate) fn final_check(&self, replicas: &[Replica]) -> Result<(), String> {
        let watch = self.watch.as_ref().ok_or("it does not watch in the end")?;
        self.check(&replicas[watch.replica])
    }
}

fn of(object: &Object) -> (Key, ResourceVersion) {
    (object.key().clone(), object.resource_version())
}
