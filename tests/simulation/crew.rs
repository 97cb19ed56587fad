//! A work queue on a replica, and workers that die, are late and answer twice. The checks: a key has one lease at a
//! time; its object is that of the cache; an answer counts only while the lease is held; and in the end every key was
//! reconciled at its last state. Where a queue has dependents, that state includes the related objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use informerd::testing::cache::Reader;
use informerd::testing::hub::Hub;
use informerd::testing::k8s::{Key, Object};
use informerd::testing::queue::{Enqueue, EnqueueBy, LeaseToken, Spec, Watch};
use informerd::testing::serve::{
    Ask, Declared, DeclaredBy, Given, QueueAccess, QueueConfig, QueueError, Queues, Workers,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::checker::content_of;
use crate::dice::Dice;
use crate::fault::{Fault, Hits};
use crate::joiner::links;
use crate::replica::Replica;
use crate::trace::Trace;
use crate::truth::{PEER, RESOURCES, Relation, Seen, State, Test, Truth, Wanted};

/// Number of workers of a queue.
const WORKERS: usize = 3;

/// Length of leases.
const LEASE: Duration = Duration::from_secs(10);

/// A resource, as an index into [`RESOURCES`], and a key of it.
type Item = (usize, Key);

/// The queue of one replica in one life, and its workers.
pub(crate) struct Crew {
    dice: Dice,
    queue: Arc<Workers>,
    stop: CancellationToken,
    wanted: Wanted,
    /// The resource whose keys alone are queued, and how changes of the other one lead to them.
    dependents: Option<(usize, Relation)>,
    workers: Vec<Worker>,
    /// The end of each key's lease, as far as the workers know.
    leased: BTreeMap<Item, Instant>,
    /// The state at which each key was reconciled last: the content of its object.
    reconciled: BTreeMap<Item, Option<String>>,
    is_good: bool,
}

struct Worker {
    /// When it acts next.
    at: Instant,
    work: Option<Work>,
}

/// A key that a worker has leased.
struct Work {
    item: Item,
    token: LeaseToken,
    content: Option<String>,
    until: Instant,
    plan: Plan,
}

/// What the worker will do with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Done,
    DoneTwice,
    DoneAndAgain,
    Late,
    Die,
    Retry,
    Release,
    Extend,
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Crew {
    pub(crate) fn start(hub: &Hub, drain: &CancellationToken, mut dice: Dice, now: Instant) -> Self {
        let app = dice.weighted(&[(None, 2), (Some(Test::Is("web")), 1), (Some(Test::IsNot("db")), 1)]);
        let namespaces = dice.weighted(&[(&[][..], 3), (&["a", "b"], 1)]).to_vec();
        let wanted = Wanted { app, namespaces, ..Wanted::default() };
        let dependents = dice.weighted(&[
            (None, 3),
            (Some((0, Relation::Links)), 2),
            (Some((1, Relation::Links)), 2),
            (Some((0, Relation::Name)), 1),
            (Some((0, Relation::Owner)), 1),
            (Some((1, Relation::Owner)), 1),
        ]);
        let enqueue = |resource: &str| {
            let (target, relation) = dependents.filter(|(target, _)| RESOURCES[*target] != resource)?;
            Some(Enqueue {
                resource: RESOURCES[target].into(),
                path: (relation == Relation::Name).then(|| format!("data.{PEER}")),
                by: (relation == Relation::Owner).then_some(EnqueueBy::Owner),
            })
        };
        let watch = |resource: &str| Watch {
            enqueue: enqueue(resource).into_iter().collect(),
            resource: resource.to_owned(),
            namespaces: wanted.namespaces.iter().map(|namespace| (*namespace).to_owned()).collect(),
            label_selector: Some(wanted.label_selector()).filter(|selector| !selector.is_empty()),
            ..Watch::default()
        };
        let spec = Spec {
            watch: RESOURCES.map(watch).to_vec(),
            lease_seconds: 60,
            max_attempts: None,
            retry_base_milliseconds: 5,
            retry_max_seconds: 20,
        };
        let config = QueueConfig {
            access: QueueAccess::Clients,
            declared: BTreeMap::new(),
            process: dice.seed(),
            queues_max: 1,
            // Fewer than there are keys.
            keys_max: dice.pick(&[3, 1000]),
            leases_max: WORKERS,
            workers_max: 1,
            informers_max: 10,
            election: None,
            links: links(),
        };
        let stop = drain.child_token();
        let queues = Queues::new(hub.clone(), config, stop.clone());
        let spec = spec.checked().expect("a valid queue");
        let Ok(Declared::New(queue)) = queues.declare("q", spec, DeclaredBy::Client) else {
            unreachable!("the queue is new")
        };
        let workers = (0..WORKERS).map(|_| Worker { at: now, work: None }).collect();
        let (leased, reconciled) = Default::default();
        Self { dice, queue, stop, wanted, dependents, workers, leased, reconciled, is_good: false }
    }

    /// From now on every worker finishes its keys in time.
    pub(crate) fn become_good(&mut self) {
        self.is_good = true;
    }

    /// When a worker acts next.
    pub(crate) fn wants_at(&self) -> Option<Instant> {
        self.workers.iter().map(|worker| worker.at).min()
    }

    /// Lets the workers act whose time has come.
    pub(crate) fn run(
        &mut self,
        replica: &Replica,
        hits: &Hits,
        trace: &Trace,
        now: Instant,
    ) -> Result<(), String> {
        for number in 0..WORKERS {
            if self.workers[number].at > now {
                continue;
            }
            match self.workers[number].work.take() {
                Some(work) => self.answer(number, work, hits, trace, now)?,
                None => self.lease(number, replica, trace, now)?,
            }
        }
        Ok(())
    }

    fn lease(&mut self, number: usize, replica: &Replica, trace: &Trace, now: Instant) -> Result<(), String> {
        let ask = Ask { max: 1, wait: Duration::ZERO, length: LEASE };
        self.workers[number].at = now + self.dice.millis(20, if self.is_good { 500 } else { 20_000 });
        let answer = self.queue.lease(ask).now_or_never();
        let taken = match answer.expect("a request without a wait is answered at once") {
            Ok(taken) => taken,
            // Workers that died hold leases, too, and the replica may be draining.
            Err(QueueError::TooManyLeases { .. } | QueueError::Stopping) => return Ok(()),
            Err(error) => return Err(format!("a lease is refused: {error}")),
        };
        // The connection breaks before the answer is written.
        if !self.is_good && self.dice.chance(0.05) {
            return Ok(());
        }
        let Some(given) = taken.hand_over().pop() else { return Ok(()) };
        let content = self.check_object(&given, replica)?;
        let resource = usize::from(given.leased.resource);
        if self.dependents.is_some_and(|(target, _)| target != resource) {
            return Err(format!("a key of {} is queued, which has dependents", RESOURCES[resource]));
        }
        let content = match (content, self.dependents) {
            (Some(_), Some((target, _))) => {
                let object = given.object.as_ref().expect("it has content");
                let seen = Seen::of(&serde_json::from_slice(&object.json()).unwrap());
                let others = &replica.states()[1 - target];
                Some(self.with_related(given.leased.key.as_str(), &seen, others))
            }
            (content, _) => content,
        };
        let item = (resource, given.leased.key.clone());
        if self.leased.get(&item).is_some_and(|until| now < *until) {
            return Err(format!("{item:?} has two leases at once"));
        }
        let until = now + LEASE;
        self.leased.insert(item.clone(), until);
        let plan = match self.is_good {
            true => Plan::Done,
            false => self.dice.weighted(&[
                (Plan::Done, 6),
                (Plan::DoneTwice, 1),
                (Plan::DoneAndAgain, 1),
                (Plan::Late, 1),
                (Plan::Die, 1),
                (Plan::Retry, 2),
                (Plan::Release, 1),
                (Plan::Extend, 1),
            ]),
        };
        trace.say(|| format!("worker {number} has {item:?} at {content:?}, and will: {plan:?}"));
        let takes = if plan == Plan::Late { (10_000, 30_000) } else { (0, 9_000) };
        self.workers[number].at = now + self.dice.millis(takes.0, takes.1);
        let token = given.leased.token;
        self.workers[number].work = Some(Work { item, token, content, until, plan });
        Ok(())
    }

    /// What a worker makes of an object: its own content, and that of all selected objects that it is related with.
    fn with_related(&self, key: &str, seen: &Seen, others: &State) -> String {
        let mut content = seen.content.clone();
        if let Some((target, relation)) = self.dependents {
            for (other, there) in others.iter().filter(|(other, there)| self.wanted.wants(other, there)) {
                let [first, second] = match target {
                    0 => [(key, seen), (&**other, there)],
                    _ => [(&**other, &**there), (key, seen)],
                };
                if relation.holds(first, second) {
                    content += &format!(" {other}={}", there.content);
                }
            }
        }
        content
    }

    /// The content of a leased object, which must be that of the cache.
    fn check_object(&self, given: &Given, replica: &Replica) -> Result<Option<String>, String> {
        let resource = usize::from(given.leased.resource);
        if given.resource != RESOURCES[resource] {
            return Err(format!("a key of {} is said to be of {}", RESOURCES[resource], given.resource));
        }
        let is_selected = |object: &&Object| {
            let labels = object.labels();
            let app = labels.iter().find(|(name, _)| name == "app").map(|(_, value)| value.to_string());
            match self.wanted.app {
                Some(Test::Is(wanted)) => app.as_deref() == Some(wanted),
                Some(Test::IsNot(other)) => app.as_deref() != Some(other),
                _ => true,
            }
        };
        let held_by = |reader: &Reader| {
            let snapshot = reader.snapshot();
            let held = snapshot.get(&given.leased.key).filter(is_selected);
            held.map(content_of)
        };
        let held = held_by(&replica.readers[resource]);
        let given = given.object.as_ref().map(content_of);
        // Until a queue has heard that an informer was replaced, and while the new one is behind, objects are read from the old one.
        let is_of_old = || replica.replaced[resource].iter().any(|old| held_by(old) == given);
        if held == given || is_of_old() {
            Ok(given)
        } else {
            Err(format!("a worker got {given:?} instead of {held:?}"))
        }
    }

    fn answer(
        &mut self,
        number: usize,
        work: Work,
        hits: &Hits,
        trace: &Trace,
        now: Instant,
    ) -> Result<(), String> {
        self.workers[number].at = now + self.dice.millis(0, 3_000);
        let Work { item, token, content, mut until, plan } = work;
        trace.say(|| format!("worker {number} answers for {item:?}: {plan:?}"));
        let is_held = now < until && !self.stop.is_cancelled();
        let answered = match plan {
            Plan::Die => {
                hits.count(Fault::WorkerDied);
                return Ok(());
            }
            Plan::Done | Plan::DoneTwice | Plan::Late => self.queue.done(&token, None),
            Plan::DoneAndAgain => self.queue.done(&token, Some(self.dice.millis(0, 20_000))),
            Plan::Retry => self.queue.retry(&token, "as the dice fell").map(drop),
            Plan::Release => self.queue.release(&token),
            Plan::Extend => self.queue.extend(&token, LEASE),
        };
        // While the replica drains, it does not matter whether a lease is still held.
        if answered.is_ok() != is_held && !self.stop.is_cancelled() {
            return Err(format!("{plan:?} for {item:?} is {answered:?}, with the lease until {until:?}"));
        }
        if plan == Plan::Late {
            hits.count(Fault::WorkerLate);
        }
        if answered.is_err() {
            return Ok(());
        }
        if plan == Plan::Extend {
            until = now + LEASE;
            self.leased.insert(item.clone(), until);
            let work = Work { item, token, content, until, plan: Plan::Done };
            self.workers[number].work = Some(work);
            return Ok(());
        }
        self.leased.remove(&item);
        if plan == Plan::DoneTwice {
            hits.count(Fault::WorkerAnsweredTwice);
            let again = [self.queue.done(&token, None), self.queue.release(&token)];
            if again.iter().any(Result::is_ok) {
                return Err(format!("two answers for one lease of {item:?} count"));
            }
        }
        if matches!(plan, Plan::Done | Plan::DoneTwice | Plan::DoneAndAgain) {
            self.reconciled.insert(item, content);
        }
        Ok(())
    }

    /// In the end the queue is empty, and every key was reconciled at its last state.
    pub(crate) fn final_check(&self, truth: &Truth) -> Result<(), String> {
        let summary = self.queue.summary();
        let left = summary.depth + summary.delayed + summary.in_flight + summary.failed;
        if left > 0 || !self.queue.is_synced() {
            return Err(format!("a queue is not empty in the end: {summary:?}"));
        }
        let mut there: BTreeMap<Item, Option<String>> = BTreeMap::new();
        for resource in 0..RESOURCES.len() {
            if self.dependents.is_some_and(|(target, _)| target != resource) {
                continue;
            }
            let others = truth.log(1 - resource).now();
            for (key, seen) in &*truth.log(resource).now() {
                if self.wanted.wants(key, seen) {
                    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
                    let content = self.with_related(key, seen, &others);
                    there.insert((resource, Key::new(namespace, name)), Some(content));
                }
            }
        }
        for (item, content) in &there {
            let reconciled = self.reconciled.get(item);
            if reconciled != Some(content) {
                return Err(format!("{item:?} is {content:?}, and was reconciled at {reconciled:?}"));
            }
        }
        for (item, content) in &self.reconciled {
            if content.is_some() && !there.contains_key(item) {
                return Err(format!("{item:?} is gone, and was reconciled at {content:?} last"));
            }
        }
        Ok(())
    }
}
