//! A client of a stream that sends a small state and its changes, over HTTP without a socket: a graph, or the counts of an index. It
//! moves between the replicas and is cut off. The checks: each message fits the state before, and where nothing has changed for a
//! while, the client holds what the replica's caches hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use informerd::testing::serve::InProcess;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Around;
use crate::dice::Dice;
use crate::fault::{Fault, Hits};
use crate::replica::Replica;
use crate::trace::Trace;
use crate::truth::{self, RESOURCES, Relation};

/// Time without a change after which a client holds the state: longer than the pause before a failed search is repeated.
const SETTLED: Duration = Duration::from_secs(3);

/// Where the objects of the first resource have the values that are counted.
const COUNTED: &str = "data.color";

/// A node: the place of its resource in [`RESOURCES`], its key, its version, and whether the request selects it.
type Node = (usize, String, u64, bool);

/// A graph by the numbers of its nodes, or counts by value.
#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<u64, Node>,
    edges: BTreeSet<(u64, u64, String)>,
    counts: BTreeMap<String, u64>,
    is_complete: bool,
}

/// Edges by the resources and keys of the objects that they connect.
type Edges = BTreeSet<((usize, String), (usize, String), String)>;

/// What a client follows.
#[derive(Clone, Copy, Debug)]
enum Follows {
    /// The graph around the objects of a resource in a namespace.
    Graph { selected: usize, namespace: &'static str, selects: bool },
    /// The number of objects of the first resource with each value.
    Counts,
}

pub(crate) struct StateClient {
    dice: Dice,
    follows: Follows,
    stream: Option<Stream>,
    state: State,
    at: Instant,
    is_good: bool,
}

struct Stream {
    replica: usize,
    life: u64,
    received: Arc<Mutex<Received>>,
    task: JoinHandle<()>,
    /// The revisions of the caches, and since when they have not changed.
    revisions: ([u64; 2], Instant),
    /// Whether the client was checked at these revisions.
    checked: bool,
}

/// Messages that were not read yet.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    /// The status of a refusal, or that the stream has ended.
    ended: Option<String>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream {
    fn open(replica: &Replica, number: usize, path: String, now: Instant) -> Self {
        let received = Arc::<Mutex<Received>>::default();
        let task = tokio::spawn(read(replica.http.clone(), path, received.clone()));
        let revisions = ([0, 1].map(|index| replica.revision(index)), now);
        Self { replica: number, life: replica.life, received, task, revisions, checked: false }
    }
}

async fn read(http: InProcess, path: String, received: Arc<Mutex<Received>>) {
    let (status, mut body) = http.get(&path).await;
    while let Some(Ok(bytes)) = body.next().await {
        if status.is_success() {
            received.lock().unwrap().bytes.extend(&bytes);
        }
    }
    received.lock().unwrap().ended = Some(status.to_string());
}

impl StateClient {
    pub(crate) fn new(mut dice: Dice, selects: bool, now: Instant) -> Self {
        let follows = match dice.below(3) {
            0 => Follows::Counts,
            _ => Follows::Graph { selected: dice.below(2), namespace: dice.pick(&["a", "b"]), selects },
        };
        Self { dice, follows, stream: None, state: State::default(), at: now, is_good: false }
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
        self.at = around.now + self.dice.millis(1, if self.is_good { 5_000 } else { 9_000 });
        let is_over = |stream: &Stream| around.replicas[stream.replica].life != stream.life;
        if self.stream.as_ref().is_some_and(is_over) || !self.is_good && self.dice.chance(0.05) {
            self.stream = None;
        }
        let Some(stream) = &mut self.stream else {
            let number = self.dice.below(around.replicas.len());
            let path = match self.follows {
                Follows::Counts => format!("/v1/watch-index/{}/{COUNTED}", RESOURCES[0]),
                Follows::Graph { selected, namespace, .. } => {
                    format!("/v1/watch-graph/{}/{namespace}", RESOURCES[selected])
                }
            };
            let path = format!("{path}?transport=ndjson&coalesceMs=1");
            self.state = State::default();
            self.stream = Some(Stream::open(&around.replicas[number], number, path, around.now));
            return Ok(());
        };
        let replica = &around.replicas[stream.replica];
        let revisions = [0, 1].map(|index| replica.revision(index));
        if revisions != stream.revisions.0 {
            stream.revisions = (revisions, around.now);
            stream.checked = false;
        }
        let is_settled = around.now >= stream.revisions.1 + SETTLED;
        let (lines, ended) = {
            let mut received = stream.received.lock().unwrap();
            let end = received.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let lines: Vec<u8> = received.bytes.drain(..end).collect();
            (String::from_utf8(lines).unwrap(), received.ended.clone())
        };
        for line in lines.lines().filter(|line| !line.is_empty()) {
            stream.checked = false;
            self.state.take(line, self.follows, around.hits, around.trace)?;
        }
        if let Some(status) = ended {
            around.trace.say(|| format!("  {:?} has ended: {status}", self.follows));
            self.stream = None;
            return Ok(());
        }
        // Before its first list a cache answers nothing.
        let complete = [0, 1].iter().all(|index| replica.readers[*index].mark().synced);
        if !is_settled
            || !complete
            || replica.drain.is_cancelled()
            || std::mem::replace(&mut stream.checked, true)
        {
            return Ok(());
        }
        self.check(replica)
    }

    /// Whether it holds the state of a replica's caches.
    fn check(&self, replica: &Replica) -> Result<(), String> {
        let states = replica.states();
        match self.follows {
            Follows::Counts => {
                let mut counts = BTreeMap::new();
                // Objects without a value are counted under the empty one.
                for seen in states[0].values() {
                    *counts.entry(seen.color.clone().unwrap_or_default()).or_default() += 1;
                }
                if self.state.is_complete && counts == self.state.counts {
                    return Ok(());
                }
                Err(format!("a client holds {:?} instead of {counts:?}", self.state))
            }
            Follows::Graph { selected, namespace, selects } => {
                let (nodes, edges) = graph_of(&states, selected, namespace, selects);
                let held: BTreeSet<_> = self.state.nodes.values().cloned().collect();
                let held_edges = self.state.edges_by_key()?;
                if self.state.is_complete && nodes == held && edges == held_edges {
                    return Ok(());
                }
                Err(format!(
                    "a client holds {held:?} with {held_edges:?} instead of {nodes:?} with {edges:?}"
                ))
            }
        }
    }

    /// In the end it holds the state.
    pub(crate) fn final_check(&self, replicas: &[Replica]) -> Result<(), String> {
        let stream = self.stream.as_ref().ok_or("it is not connected in the end")?;
        self.check(&replicas[stream.replica])
    }
}

/// The graph around the objects of a resource in a namespace: what they refer to, what that refers to, and so on; and what refers
/// to them in the same way. A search follows three links.
fn graph_of(
    states: &[truth::State; 2],
    selected: usize,
    namespace: &str,
    selects: bool,
) -> (BTreeSet<Node>, Edges) {
    const DEPTH: usize = 3;
    // All edges: which object refers to which, and by what.
    let mut all = Edges::new();
    for (first_key, first) in &states[0] {
        for (second_key, second) in &states[1] {
            let [one, other] = [(0, first_key.clone()), (1, second_key.clone())];
            let holds = |relation: Relation| relation.holds((first_key, first), (second_key, second));
            if holds(Relation::Name) {
                all.insert((one.clone(), other.clone(), "data.peer".into()));
            }
            if selects && holds(Relation::Selector) {
                all.insert((other.clone(), one.clone(), "data.selects".into()));
            }
            if holds(Relation::Owner) {
                all.insert((one, other, "metadata.ownerReferences.uid".into()));
            }
        }
    }
    let is_near = |key: &str| key.split_once('/').is_some_and(|(near, _)| near == namespace);
    let roots = states[selected].keys().filter(|key| is_near(key)).map(|key| (selected, key.clone()));
    let roots: BTreeSet<_> = roots.collect();
    let (mut found, mut edges) = (roots.clone(), Edges::new());
    for up in [true, false] {
        let mut reached = roots.clone();
        let mut frontier = roots.clone();
        for _ in 0..DEPTH {
            let mut next = BTreeSet::new();
            for edge in &all {
                let (from, to) = if up { (&edge.0, &edge.1) } else { (&edge.1, &edge.0) };
                if frontier.contains(from) {
                    edges.insert(edge.clone());
                    if reached.insert(to.clone()) {
                        next.insert(to.clone());
                    }
                }
            }
            frontier = next;
        }
        found.extend(reached);
    }
    let node = |(resource, key): (usize, String)| {
        let (version, is_selected) =
            (states[resource][&key].version, roots.contains(&(resource, key.clone())));
        (resource, key, version, is_selected)
    };
    (found.into_iter().map(node).collect(), edges)
}

impl State {
    fn take(&mut self, line: &str, follows: Follows, hits: &Hits, trace: &Trace) -> Result<(), String> {
        trace.say(|| format!("  {follows:?} gets {line}"));
        let message: Value = serde_json::from_str(line).map_err(|error| format!("{error} in {line:?}"))?;
        let object = &message["object"];
        match (message["type"].as_str(), follows) {
            (Some(kind), Follows::Counts) if kind == if self.is_complete { "PATCHED" } else { "COUNTS" } => {
                for (value, count) in object["counts"].as_object().ok_or("no counts")? {
                    let before = match count.as_u64() {
                        Some(count) => self.counts.insert(value.clone(), count),
                        None => self.counts.remove(value),
                    };
                    if before == count.as_u64() {
                        return Err(format!("a count that has not changed: {line} after {self:?}"));
                    }
                }
            }
            (Some("GRAPH"), Follows::Graph { .. }) if !self.is_complete => self.patch(object)?,
            (Some("PATCHED"), Follows::Graph { .. }) if self.is_complete => {
                hits.count(Fault::GraphPatched);
                self.patch(object)?;
            }
            _ => return Err(format!("a message at the wrong place: {line} after {self:?}")),
        }
        self.is_complete = true;
        Ok(())
    }

    fn patch(&mut self, graph: &Value) -> Result<(), String> {
        let list = |name: &str| graph[name].as_array().cloned().unwrap_or_default();
        let id = |value: &Value| value.as_u64().ok_or("no number");
        let edge = |edge: &Value| -> Result<_, &str> {
            Ok((id(&edge["from"])?, id(&edge["to"])?, edge["by"].as_str().unwrap_or_default().to_owned()))
        };
        for one in list("deletedEdges") {
            if !self.edges.remove(&edge(&one)?) {
                return Err(format!("an unknown edge is deleted: {one}"));
            }
        }
        for one in list("deletedNodes") {
            self.nodes.remove(&id(&one)?).ok_or_else(|| format!("an unknown node is deleted: {one}"))?;
        }
        for one in list("nodes") {
            let text = |name: &str| one[name].as_str().unwrap_or_default();
            let resource = usize::from(text("kind") == "Widget");
            let key = format!("{}/{}", text("namespace"), text("name"));
            let version = text("resourceVersion").parse().unwrap_or(0);
            let node = (resource, key, version, one["selected"] == true);
            if self.nodes.insert(id(&one["id"])?, node.clone()) == Some(node) {
                return Err(format!("a node that has not changed: {one}"));
            }
        }
        for one in list("edges") {
            if !self.edges.insert(edge(&one)?) {
                return Err(format!("an edge that is known: {one}"));
            }
        }
        self.edges_by_key().map(drop)
    }

    fn edges_by_key(&self) -> Result<Edges, String> {
        let end = |id: &u64| {
            let (resource, key, ..) =
                self.nodes.get(id).ok_or_else(|| format!("an edge to nowhere: {self:?}"))?;
            Ok::<_, String>((*resource, key.clone()))
        };
        self.edges.iter().map(|(from, to, by)| Ok((end(from)?, end(to)?, by.clone()))).collect()
    }
}
