//! One history: a cluster, two replicas of informerd, their clients, and the faults that hit them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use informerd::testing::sim::{ApiHandler, ApiServerConfig, Cluster, ClusterConfig};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::{Around, Client};
use crate::crew::Crew;
use crate::dice::Dice;
use crate::fault::{Fault, Hits};
use crate::getter::Getter;
use crate::joiner::Joiner;
use crate::lister::Lister;
use crate::meter::{Ask, Meter};
use crate::network::{Api, Link};
use crate::notes::NOTE;
use crate::plan::{NAMES, NAMESPACES, ORDERED, Profile};
use crate::replica::{Replica, number};
use crate::small_state::StateClient;
use crate::trace::Trace;
use crate::truth::{PEER, RESOURCES, SELECTS, Seen, Truth};
use crate::wire::OBJECT_BYTES_MAX;

use restore::Backup;
pub(crate) use restore::Restored;

mod restore;

/// The custom resource's definition.
const DEFINITION: &str = "widgets.demo.informerd.dev";

/// Time after the end of all faults by which all clients and caches must equal the cluster. A slow list that began
/// before, with a few bytes at a time, takes up to half an hour.
const HEALING: Duration = Duration::from_secs(3600);

/// A moment is finished after this many passes over the ready tasks in which no reflector was ready.
const SETTLED_PASSES: usize = 12;
/// Largest number of passes at one moment. With more, a task spins.
const PASSES_MAX: usize = 100_000;

/// Number of lists that a reflector may need to accept that the cluster was restored.
const BELIEVED_AFTER: u64 = 12;

/// Number of clients of which two each ask for the same.
const TWINS: usize = 8;

/// One history while it runs.
pub(crate) struct World {
    profile: Profile,
    dice: Dice,
    /// Decides what a reload changes.
    reload_dice: Dice,
    began: Instant,
    cluster: Cluster,
    api: Arc<Mutex<Api>>,
    truth: Truth,
    links: Vec<Arc<Link>>,
    replicas: Vec<Replica>,
    clients: Vec<Client>,
    /// The work queue of each replica.
    crews: Vec<Crew>,
    joiners: Vec<Joiner>,
    listers: Vec<Lister>,
    state_clients: Vec<StateClient>,
    getters: Vec<Getter>,
    seed: u64,
    hits: Arc<Hits>,
    trace: Trace,
    driver: Arc<Notify>,
    writes: u64,
    backup: Option<Backup>,
    /// The definition of the custom resource while it is removed.
    removed: Option<Value>,
    /// The situation when the cluster was restored.
    restored: Option<Restored>,
}

/// What the driver does in one step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Burst,
    Pass { from_ms: u64, to_ms: u64 },
    Disconnect,
    StallClient,
    Order,
    Weather,
    Outage,
    Restart,
    Reload,
    Compact,
    RestartServer,
    Definition,
    Lag,
    Backup,
    Restore,
}

impl World {
    pub(crate) fn new(seed: u64, trace: Trace) -> Self {
        let mut dice = Dice::new(seed, 1);
        let mut profile = Profile::roll(&mut dice);
        profile.graph_selects = Dice::new(seed, 601).chance(0.6);
        let cluster =
            Cluster::new(ClusterConfig { seed: dice.seed(), window_events_max: profile.window_events_max });
        cluster.set_clock(Some(1_700_000_000_000));
        let hits = Arc::new(Hits::default());
        let current = api_server(&cluster, &profile);
        let api = Arc::new(Mutex::new(Api { current, behind: None }));
        let link = |number: usize| {
            let dice = [0, 1].map(|resource| Dice::new(seed, 10 + 2 * number as u64 + resource));
            Link::new(number, dice, api.clone(), hits.clone(), trace.clone())
        };
        let links = vec![link(0), link(1)];
        for link in &links {
            link.set_weather(profile.fair());
        }
        let now = Instant::now();
        let clients = (0..profile.clients).map(|number| {
            // Some are twins, so that they meet in live views.
            let twin = (number < TWINS).then(|| Dice::new(seed, 800 + number as u64 / 2));
            Client::new(number, Dice::new(seed, 100 + number as u64), twin, now)
        });
        let clients = clients.collect();
        let mut world = Self {
            dice,
            reload_dice: Dice::new(seed, 900),
            began: now,
            cluster,
            api,
            truth: Truth::default(),
            links,
            replicas: Vec::new(),
            clients,
            crews: Vec::new(),
            joiners: (0..2).map(|number| Joiner::new(Dice::new(seed, 500 + number), now)).collect(),
            listers: (0..2).map(|number| Lister::new(Dice::new(seed, 700 + number), now)).collect(),
            // Only one: the order in which a commit wakes the tasks of several is not that of the seed.
            state_clients: vec![StateClient::new(Dice::new(seed, 600), profile.graph_selects, now)],
            getters: (0..3).map(|number| Getter::new(Dice::new(seed, 650 + number), now)).collect(),
            seed,
            hits,
            trace,
            driver: Arc::new(Notify::new()),
            writes: 0,
            backup: None,
            removed: None,
            restored: None,
            profile,
        };
        for _ in 0..world.dice.below(30) {
            world.write();
        }
        for number in 0..2 {
            let seed = world.dice.seed();
            let (profile, link) = (&world.profile, &world.links[number]);
            world.replicas.push(Replica::start(0, seed, profile, link, &world.driver, [true; 2]));
            let crew = world.crew(number);
            world.crews.push(crew);
        }
        world
    }

    /// Runs the whole history.
    pub(crate) async fn run(&mut self) -> Result<(), String> {
        for _ in 0..self.profile.steps {
            let step = self.choose();
            self.trace.say(|| format!("{step:?}"));
            self.play(step).await?;
        }
        self.heal().await?;
        for number in 0..2 {
            self.check_requests(number)?;
        }
        Ok(())
    }

    /// A digest of all events that clients received and of all requests to the API server.
    pub(crate) fn digest(&self) -> u64 {
        let clients = self.clients.iter().map(|client| client.checker.digest);
        let meters = self.links.iter().flat_map(|link| {
            [0, 1].map(|index| link.meter(index, |meter| meter.lists() ^ meter.count(Ask::Watch) << 16))
        });
        let faults = Fault::ALL.iter().map(|fault| self.hits.of(*fault));
        let all = clients.chain(meters).chain(faults).chain([self.cluster.revision()]);
        all.fold(0xcbf2_9ce4_8422_2325, |digest, part| {
            (digest.rotate_left(5) ^ part).wrapping_mul(0x0100_0000_01b3)
        })
    }

    pub(crate) fn hits(&self) -> &Hits {
        &self.hits
    }

    fn choose(&mut self) -> Step {
        let calm = self.profile.calm;
        let faults = usize::from(!calm);
        let cluster = usize::from(self.profile.cluster_faults);
        self.dice.weighted(&[
            (Step::Write, 20),
            (Step::Burst, 12),
            (Step::Pass { from_ms: 0, to_ms: 30 }, 12),
            (Step::Pass { from_ms: 100, to_ms: 3_000 }, 14),
            (Step::Pass { from_ms: 5_000, to_ms: 70_000 }, 10),
            (Step::Pass { from_ms: 100_000, to_ms: 320_000 }, 2),
            (Step::Disconnect, 8),
            (Step::StallClient, 3),
            (Step::Order, 8 * faults),
            (Step::Weather, 8 * faults),
            (Step::Outage, 3 * faults),
            (Step::Restart, 3),
            (Step::Reload, 3),
            (Step::Compact, 3 * cluster),
            (Step::RestartServer, 3 * cluster),
            (Step::Definition, 4 * cluster),
            (Step::Lag, 4 * cluster),
            (Step::Backup, 6 * cluster),
            (Step::Restore, 6 * cluster),
        ])
    }

    async fn play(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Write => self.write(),
            Step::Burst => {
                for _ in 0..2 + self.dice.below(12) {
                    self.write();
                }
            }
            Step::Pass { from_ms, to_ms } => {
                let span = self.dice.millis(from_ms, to_ms);
                return self.pass(span).await;
            }
            Step::Disconnect => {
                for _ in 0..1 + self.dice.below(4) {
                    let at = self.dice.below(self.clients.len());
                    if self.clients[at].is_connected() {
                        self.hits.count(Fault::Disconnected);
                        self.clients[at].cut_off(Instant::now());
                    }
                }
            }
            Step::StallClient => {
                let at = self.dice.below(self.clients.len());
                self.hits.count(Fault::ClientStalled);
                self.clients[at].stall(Instant::now());
            }
            Step::Order => {
                let at = self.dice.below(2);
                let fault = self.dice.pick(&ORDERED);
                self.links[at].order(fault);
            }
            Step::Weather => {
                let at = self.dice.below(2);
                let fair = self.dice.chance(0.3);
                let weather = if fair { self.profile.fair() } else { self.profile.weather(&mut self.dice) };
                self.links[at].set_weather(weather);
            }
            Step::Outage => {
                let at = self.dice.below(2);
                let mut weather = self.links[at].weather();
                weather.outage = !weather.outage;
                if weather.outage {
                    self.links[at].order(Fault::CutReset);
                }
                self.links[at].set_weather(weather);
            }
            Step::Restart => return self.restart().await,
            Step::Reload => self.reload(),
            Step::Compact => {
                self.hits.count(Fault::Compacted);
                self.cluster.compact();
            }
            Step::RestartServer => self.restart_server(),
            Step::Definition => self.change_definition(),
            Step::Lag => self.lag(),
            Step::Backup => {
                let (definition, version) = (self.removed.clone(), self.cluster.revision());
                self.backup = Some(Backup { cluster: self.cluster.fork(), definition, version });
            }
            Step::Restore => return self.restore().await,
        }
        Ok(())
    }

    /// Makes a random write.
    fn write(&mut self) {
        if self.cluster.revision() + 3 >= self.version_max() {
            return;
        }
        let other = self.removed.is_none() && !self.profile.idle && self.dice.chance(0.35);
        let resource = usize::from(other);
        let (namespace, name) = (self.dice.pick(&NAMESPACES), self.dice.pick(&NAMES));
        let there = self.cluster.get(RESOURCES[resource], namespace, name).is_some();
        let deletes = self.dice.chance(0.3);
        if there && deletes {
            self.delete(resource, namespace, name);
            if self.dice.chance(0.6) {
                return;
            }
        }
        self.writes += 1;
        let mut object = json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {}},
            "data": {"write": self.writes.to_string(), NOTE: self.writes.to_string()},
        });
        if let Some(app) = self.dice.pick(&[None, Some("web"), Some("db")]) {
            object["metadata"]["labels"]["app"] = app.into();
        }
        if let Some(color) = self.dice.pick(&[None, Some("red"), Some("blue")]) {
            object["data"]["color"] = color.into();
        }
        if resource == 0 {
            object["data"][PEER] = NAMES[self.writes as usize % NAMES.len()].into();
            let owner = NAMES[self.writes as usize / 3 % NAMES.len()];
            if let Some(owner) = self.cluster.get(RESOURCES[1], namespace, owner) {
                let member = |name: &str| owner["metadata"][name].clone();
                object["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "demo.informerd.dev/v1", "kind": "Widget", "name": member("name"), "uid": member("uid"),
                }]);
            }
        } else if let Some(app) = ["web", "db"].get(self.writes as usize % 3) {
            object["data"][SELECTS] = json!({ "app": app });
        }
        // When the definition is deleted, so are its objects.
        let oversized = resource == 0 && self.dice.chance(self.profile.oversized_chance);
        if oversized {
            self.hits.count(Fault::Oversized);
            object["data"]["much"] = "x".repeat(OBJECT_BYTES_MAX).into();
        }
        self.set_clock();
        let exists = there && !deletes;
        let stored = if exists {
            self.cluster.update(RESOURCES[resource], object)
        } else {
            self.cluster.create(RESOURCES[resource], object)
        };
        let seen = Seen::of(&stored.expect("the simulation writes what is right"));
        self.trace.say(|| format!("write {} {namespace}/{name} {seen:?}", RESOURCES[resource]));
        // Informers drop such an object, so their clients see it as deleted.
        let held = (!oversized).then_some(seen.clone());
        self.truth.note(resource, seen.version, &format!("{namespace}/{name}"), held);
    }

    fn delete(&mut self, resource: usize, namespace: &str, name: &str) {
        self.set_clock();
        self.cluster.delete(RESOURCES[resource], namespace, name).expect("it exists");
        let version = self.cluster.revision();
        self.trace.say(|| format!("delete {} {namespace}/{name} at {version}", RESOURCES[resource]));
        self.truth.note(resource, version, &format!("{namespace}/{name}"), None);
    }

    fn set_clock(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(0);
        self.cluster.set_clock(Some(1_700_000_000_000 + millis));
    }

    async fn restart(&mut self) -> Result<(), String> {
        if self.truth.eras.len() > 1 {
            // A replica that starts now could not tell tokens of before and after the restore apart.
            return Ok(());
        }
        let at = self.dice.below(2);
        if self.dice.chance(0.5) {
            // As on SIGTERM: streams end first, then the process.
            self.hits.count(Fault::Drained);
            self.replicas[at].drain.cancel();
            self.pass(Duration::from_millis(50)).await?;
        } else {
            self.hits.count(Fault::Killed);
        }
        self.replicas[at].kill();
        let now = Instant::now();
        for client in &mut self.clients {
            if client.is_connected_to(at) {
                client.cut_off(now);
            }
        }
        self.check_requests(at)?;
        self.links[at].reset_meters();
        let (life, seed) = (self.replicas[at].life + 1, self.dice.seed());
        let keeps_notes = self.replicas[at].keeps_notes;
        self.replicas[at] =
            Replica::start(life, seed, &self.profile, &self.links[at], &self.driver, keeps_notes);
        self.crews[at] = self.crew(at);
        Ok(())
    }

    /// Replaces an informer of a replica by one that begins with a list.
    fn reload(&mut self) {
        let (at, resource, seed) = (self.dice.below(2), self.dice.below(2), self.dice.seed());
        // Before it has noticed a restore, an informer cannot tell its successor which versions were taken back.
        let knows_history = self.truth.era() == 0 || self.all_have_noticed();
        if self.replicas[at].is_reloading(resource) || !knows_history {
            return;
        }
        self.hits.count(Fault::Reloaded);
        if self.reload_dice.chance(0.5) {
            self.hits.count(Fault::ContentChanged);
            self.replicas[at].keeps_notes[resource] ^= true;
        }
        let notes = if self.replicas[at].keeps_notes[resource] { "keeps" } else { "drops" };
        self.trace
            .say(|| format!("  replica {at} reloads its informer of {}: {notes} notes", RESOURCES[resource]));
        self.links[at].meter(resource, |meter| meter.reloads += 1);
        self.replicas[at].reload(resource, seed, Instant::now());
    }

    /// The work queue of a replica in its current life.
    fn crew(&self, at: usize) -> Crew {
        let replica = &self.replicas[at];
        let dice = Dice::new(self.seed, 1_000 + 2 * replica.life + at as u64);
        Crew::start(&replica.hub, &replica.drain, dice, Instant::now())
    }

    fn restart_server(&mut self) {
        self.hits.count(Fault::ServerRestarted);
        if self.dice.chance(0.5) {
            // Its watch window begins anew.
            self.cluster.compact();
        }
        self.api.lock().unwrap().behind = None;
        self.links.iter().for_each(|link| link.order(Fault::CutReset));
    }

    fn change_definition(&mut self) {
        if self.cluster.revision() + 30 >= self.version_max() {
            return;
        }
        self.set_clock();
        if let Some(definition) = self.removed.take() {
            self.hits.count(Fault::DefinitionCreated);
            self.cluster.create("customresourcedefinitions", definition).expect("it was removed");
            return;
        }
        let definition = self.cluster.get("customresourcedefinitions", "", DEFINITION).expect("it exists");
        if self.dice.chance(0.4) {
            self.hits.count(Fault::DefinitionChanged);
            let mark = json!({"metadata": {"labels": {"changed": self.cluster.revision().to_string()}}});
            self.cluster.patch("customresourcedefinitions", "", DEFINITION, &mark).expect("it exists");
            return;
        }
        self.hits.count(Fault::DefinitionRemoved);
        let (before, state) = (self.cluster.revision(), self.truth.log(1).now());
        self.cluster.delete("customresourcedefinitions", "", DEFINITION).expect("it exists");
        for (index, key) in state.keys().enumerate() {
            self.truth.note(1, before + 1 + index as u64, key, None);
        }
        assert_eq!(
            self.cluster.revision(),
            before + 1 + state.len() as u64,
            "each deleted object is a write"
        );
        self.removed = Some(definition);
    }

    /// Makes one of the API servers behind the address lag for a while.
    fn lag(&mut self) {
        let behind = api_server(&self.cluster.fork(), &self.profile);
        let until = Instant::now() + self.dice.millis(1_000, 12_000);
        self.api.lock().unwrap().behind = Some((behind, until));
    }

    /// Ends all faults, and waits until all clients and caches equal the cluster.
    async fn heal(&mut self) -> Result<(), String> {
        self.trace.say(|| "all faults are lifted".into());
        for link in &self.links {
            link.set_weather(self.profile.fair());
        }
        self.api.lock().unwrap().behind = None;
        if let Some(definition) = self.removed.take() {
            // While the definition is removed, a cache that missed the deletion of its objects cannot learn of it.
            self.cluster.create("customresourcedefinitions", definition).expect("it was removed");
        }
        let now = Instant::now();
        self.clients.iter_mut().for_each(|client| client.become_good(now));
        self.crews.iter_mut().for_each(Crew::become_good);
        self.joiners.iter_mut().for_each(Joiner::become_good);
        self.listers.iter_mut().for_each(Lister::become_good);
        self.state_clients.iter_mut().for_each(StateClient::become_good);
        self.pass(Duration::from_secs(1)).await?;
        for _ in 0..3 {
            self.write();
        }
        let until = Instant::now() + HEALING;
        loop {
            self.pass(Duration::from_secs(20)).await?;
            match self.final_check() {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() >= until => return Err(why),
                Err(_) => {}
            }
        }
    }

    fn final_check(&self) -> Result<(), String> {
        for (at, replica) in self.replicas.iter().enumerate() {
            for (resource, name) in RESOURCES.into_iter().enumerate() {
                // A bookmark, or the end of a quiet watch, brings the API server's version.
                let (position, head) = (replica.position(resource), self.cluster.revision());
                if position < head {
                    let condition = replica.readers[resource].condition();
                    return Err(format!(
                        "in the end replica {at} has {name} at {position}, and not {head}: {condition:?}"
                    ));
                }
                let snapshot = replica.readers[resource].snapshot();
                let held = snapshot.after(None).map(|object| {
                    let content = crate::checker::content_of(object);
                    (object.key().as_str().to_owned(), number(&object.resource_version()), content)
                });
                let truth = self.truth.log(resource).now();
                let there = truth.iter().map(|(key, seen)| (key.clone(), seen.version, seen.content.clone()));
                if !held.eq(there) {
                    let held: Vec<_> = snapshot.after(None).collect();
                    return Err(format!("P1: in the end replica {at} holds {held:?} of {name}"));
                }
            }
        }
        for (at, crew) in self.crews.iter().enumerate() {
            crew.final_check(&self.truth).map_err(|why| format!("queue of replica {at}: {why}"))?;
        }
        for joiner in &self.joiners {
            joiner.final_check(&self.replicas).map_err(|why| format!("a join: {why}"))?;
        }
        for lister in &self.listers {
            lister.final_check(&self.replicas).map_err(|why| format!("a list and watch: {why}"))?;
        }
        for client in &self.state_clients {
            client.final_check(&self.replicas)?;
        }
        for client in &self.clients {
            if !client.is_connected() {
                return Err(format!("client {} is not connected in the end", client.number));
            }
            client.final_check(&self.truth, &self.replicas).map_err(|why| describe(client, &why))?;
        }
        Ok(())
    }

    /// Lets time pass. Clients act when they are due, and all checks run whenever something has happened.
    async fn pass(&mut self, span: Duration) -> Result<(), String> {
        let until = Instant::now() + span;
        loop {
            self.settle().await?;
            let now = Instant::now();
            let mut succeeded = false;
            for replica in &mut self.replicas {
                succeeded |= replica.succeed(now, &self.trace);
            }
            if succeeded {
                // Tasks that read the old informer are woken.
                continue;
            }
            // A live view may be behind a stream that joins it.
            for at in 0..self.replicas.len() {
                if self.dice.chance(0.8) {
                    let (replica, lists) = (&self.replicas[at], self.lists_of(at));
                    let settled = [0, 1].map(|index| replica.is_watching(index).then_some(lists[index]));
                    let [packed, amid_list] = replica.pack();
                    if packed {
                        self.hits.count(Fault::Packed);
                    }
                    if amid_list {
                        self.hits.count(Fault::PackedAmidList);
                    }
                    replica.advance_live(now, settled);
                } else {
                    self.driver.notify_one();
                }
            }
            self.run_clients()?;
            self.run_crews()?;
            self.run_joiners()?;
            self.run_listers()?;
            self.run_state_clients()?;
            self.run_getters()?;
            self.check_replicas()?;
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            let live = self.replicas.iter().filter_map(Replica::live_due);
            let workers = self.crews.iter().filter_map(Crew::wants_at);
            let joiners = self.joiners.iter().map(Joiner::wants_at);
            let listers = self.listers.iter().map(Lister::wants_at);
            let state_clients = self.state_clients.iter().map(StateClient::wants_at);
            let clients = self
                .clients
                .iter()
                .filter_map(Client::wants_at)
                .chain(joiners)
                .chain(listers)
                .chain(state_clients)
                .chain(self.getters.iter().map(Getter::wants_at));
            let due = clients.chain(live).chain(workers).min().unwrap_or(until);
            let next = due.max(now + Duration::from_millis(1)).min(until);
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                // This moment ends with the next millisecond.
                () = self.driver.notified() => sleep(Duration::from_millis(1)).await,
            }
        }
    }

    /// Runs all tasks of this moment before clients read, as the seed does not determine the order in which tasks are
    /// woken.
    async fn settle(&self) -> Result<(), String> {
        let (mut calm, mut polls) = (0, 0);
        for _ in 0..PASSES_MAX {
            tokio::task::yield_now().await;
            let now = self.replicas.iter().map(Replica::polls).sum::<u64>();
            calm = if now == polls { calm + 1 } else { 0 };
            polls = now;
            if calm >= SETTLED_PASSES {
                return Ok(());
            }
        }
        Err("spin: a moment has no end".into())
    }

    fn lists_of(&self, replica: usize) -> [u64; 2] {
        [0, 1].map(|index| self.links[replica].meter(index, |meter| meter.lists()))
    }

    fn around(&self) -> Around<'_> {
        Around {
            now: Instant::now(),
            truth: &self.truth,
            hits: &self.hits,
            replicas: &self.replicas,
            lists: [0, 1].map(|replica| self.lists_of(replica)),
            journal_len_max: self.profile.cache.journal_len_max as u64,
            driver: &self.driver,
            trace: &self.trace,
            restored: self.restored,
        }
    }

    fn run_clients(&mut self) -> Result<(), String> {
        let mut clients = std::mem::take(&mut self.clients);
        let around = self.around();
        let mut ran = Ok(());
        for client in &mut clients {
            ran = ran.and_then(|()| client.run(&around).map_err(|why| describe(client, &why)));
        }
        self.clients = clients;
        ran
    }

    fn run_crews(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for (at, crew) in self.crews.iter_mut().enumerate() {
            let ran = crew.run(&self.replicas[at], &self.hits, &self.trace, now);
            ran.map_err(|why| format!("queue of replica {at}: {why}"))?;
        }
        Ok(())
    }

    fn run_joiners(&mut self) -> Result<(), String> {
        let mut joiners = std::mem::take(&mut self.joiners);
        let around = self.around();
        let mut ran = Ok(());
        for joiner in &mut joiners {
            ran = ran.and_then(|()| joiner.run(&around).map_err(|why| format!("a join: {why}")));
        }
        self.joiners = joiners;
        ran
    }

    fn run_listers(&mut self) -> Result<(), String> {
        let mut listers = std::mem::take(&mut self.listers);
        let around = self.around();
        let ran = listers.iter_mut().try_for_each(|lister| lister.run(&around));
        self.listers = listers;
        ran.map_err(|why| format!("a list and watch: {why}"))
    }

    fn run_state_clients(&mut self) -> Result<(), String> {
        let mut clients = std::mem::take(&mut self.state_clients);
        let around = self.around();
        let ran = clients.iter_mut().try_for_each(|client| client.run(&around));
        self.state_clients = clients;
        ran
    }

    fn run_getters(&mut self) -> Result<(), String> {
        let mut getters = std::mem::take(&mut self.getters);
        let around = self.around();
        let ran = getters.iter_mut().try_for_each(|getter| getter.run(&around));
        self.getters = getters;
        ran.map_err(|why| format!("a client of snapshots: {why}"))
    }

    fn check_replicas(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for at in 0..2 {
            self.replicas[at].check(now).map_err(|why| format!("replica {at}: {why}"))?;
            for (resource, name) in RESOURCES.into_iter().enumerate() {
                self.check_age(at, resource, now).map_err(|why| format!("replica {at}: {why}"))?;
                if let Some(count) = self.links[at].meter(resource, |meter| meter.storm) {
                    return Err(format!("P6: replica {at} asked {count} times for {name} in a minute"));
                }
            }
        }
        Ok(())
    }

    /// P7: the age that a cache reports.
    fn check_age(&self, at: usize, resource: usize, now: Instant) -> Result<(), String> {
        let replica = &self.replicas[at];
        if replica.is_reloading(resource) {
            return Ok(());
        }
        let age = replica.readers[resource].age(now);
        let (part, whole) = self.links[at].meter(resource, |meter| (meter.heard_part, meter.heard));
        let least = now - part.unwrap_or(replica.born);
        let most = now - whole.unwrap_or(replica.born);
        let slack = Duration::from_millis(50);
        if age + Duration::from_millis(2) < least {
            return Err(format!(
                "P7: {} says it is {age:?} old, but received nothing for {least:?}",
                RESOURCES[resource]
            ));
        }
        if age > most + slack {
            return Err(format!(
                "P7: {} says it is {age:?} old, but received something {most:?} ago",
                RESOURCES[resource]
            ));
        }
        Ok(())
    }

    /// P6: the requests of a replica in its life.
    fn check_requests(&self, at: usize) -> Result<(), String> {
        for (resource, name) in RESOURCES.into_iter().enumerate() {
            let again = BELIEVED_AFTER * self.truth.era() as u64;
            let tell = |meter: &mut Meter| requests_justified(meter, self.profile.calm, again);
            self.links[at].meter(resource, tell).map_err(|why| format!("P6: replica {at}, {name}: {why}"))?;
            let lists = self.links[at].meter(resource, |meter| meter.lists());
            (1..lists).for_each(|_| self.hits.count(Fault::Relisted));
        }
        Ok(())
    }
}

/// An API server with this history's properties.
fn api_server(cluster: &Cluster, profile: &Profile) -> ApiHandler {
    let bookmark_interval = Duration::from_secs(profile.bookmark_seconds);
    let handler =
        ApiHandler::new(cluster.clone(), ApiServerConfig { bookmark_interval, ..Default::default() });
    handler.faults().streaming_lists(profile.streaming);
    handler
}

fn requests_justified(meter: &mut Meter, calm: bool, doubts: u64) -> Result<(), String> {
    let (lists, watches) = (meter.lists(), meter.count(Ask::Watch) + meter.count(Ask::Stream));
    // Failed and silent requests are repeated, and four watches without success justify a list.
    let again = meter.reasons() + meter.unmarked_streams + doubts;
    let vain = if calm { 0 } else { meter.watches_ended / 4 };
    if lists > 1 + again + vain || watches > 1 + again + meter.watches_ended + meter.quiet_watches {
        return Err(format!("more requests than the faults explain: {meter:?}"));
    }
    Ok(())
}

fn describe(client: &Client, why: &str) -> String {
    format!("client {} ({:?}): {why}", client.number, client.habits)
}
