//! The pump: asks the API server, decodes, feeds the machine, commits to the cache.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{FutureExt, join5};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, info, info_span, trace, warn};

use super::backfill::Backfiller;
use super::metrics::{BackfillLists, Metrics};
use super::packing::{self, Pack};
use super::prober::Prober;
use super::verify::{Doubts, Verifier, Verify, reach_max};
use super::watching::{Doubt, WatchEnd};
use super::{Failure, Input, Machine, MachineConfig, Moment, Probed, Question, Reaction, SampleObject, Step};
use crate::cache::{Commit, Delta, Packer, ReflectorStats, Writer};
use crate::k8s::{
    DecodeError, DecodeOptions, Decoder, DropPaths, IdentityPage, LineSplitter, ListPage, Object, identities,
};
use crate::upstream::{
    AsOf, ByteStream, Client, FailureKind, ListBody, PageRequest, Target, UpstreamError, WatchFrom,
    WatchRequest,
};

/// Largest number of received bytes that go into one commit. A burst is one wake-up, but the lock is not held for long.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Number of undecodable objects of a page that are named in the log.
const SKIPPED_LOGGED_MAX: usize = 10;

/// Settings of one reflector.
#[derive(Clone, Debug)]
pub struct ReflectorConfig {
    /// What is listed and watched.
    pub target: Target,
    /// What is kept of each object.
    pub decode: DecodeOptions,
    /// How the API server is asked.
    pub machine: MachineConfig,
    /// Longest watch line, in bytes. etcd refuses objects above 1.5 MiB by default, and JSON needs more than protobuf; no
    /// API server writes longer lines.
    pub line_bytes_max: usize,
    /// Seeds the jitter of delays and timeouts.
    pub seed: u64,
}

/// Keeps the cache of one resource true.
pub struct Reflector {
    client: Client,
    pump: Pump,
    backfiller: Backfiller,
    prober: Prober,
    verifier: Verifier,
    packer: Option<(Packer, Arc<Semaphore>)>,
}

/// All of the reflector but its client.
struct Pump {
    target: Target,
    config: MachineConfig,
    line_bytes_max: usize,
    decoder: Decoder,
    writer: Writer,
    random: StdRng,
    stats: Arc<ReflectorStats>,
    metrics: Metrics,
    /// Deltas from the machine that are not committed yet.
    deltas: Vec<Delta>,
    /// Through which the verifier reports differences.
    doubts: Doubts,
}

// === impl Reflector ===

impl Reflector {
    /// Makes a reflector. It does nothing until it is run.
    pub fn new(config: ReflectorConfig, client: Client, writer: Writer) -> Self {
        let ReflectorConfig { target, decode, machine, line_bytes_max, seed } = config;
        let backfiller = Backfiller {
            target: target.clone(),
            requests: writer.backfill_requests(),
            metrics: BackfillLists::new(&target.resource),
        };
        let reader = writer.reader();
        let stats = reader.stats().clone();
        let metrics = Metrics::new(&target.resource);
        let prober = Prober {
            target: target.clone(),
            requests: writer.version_requests(),
            stats: stats.clone(),
            probes: metrics.probes.clone(),
        };
        let reach_max = reach_max(machine.silence_max);
        let decoder = || {
            let decoder = Decoder::new(target.resource.clone(), decode);
            if target.metadata_only { decoder.metadata_only() } else { decoder }
        };
        let mut verifier = Verifier::new(target.clone(), reader, (seed.wrapping_add(1), decoder()));
        verifier.reach_max = reach_max;
        let pump = Pump {
            decoder: decoder(),
            metrics,
            stats,
            doubts: verifier.doubts.clone(),
            random: StdRng::seed_from_u64(seed),
            deltas: Vec::new(),
            target,
            config: machine,
            line_bytes_max,
            writer,
        };
        Self { client, pump, backfiller, prober, verifier, packer: None }
    }

    /// Removes these members from objects. An update of nothing but such members is still a change, as the
    /// resourceVersion differs.
    #[must_use]
    pub fn dropping(mut self, dropped: DropPaths) -> Self {
        self.pump.decoder = self.pump.decoder.dropping(dropped.clone());
        self.verifier.decoder = self.verifier.decoder.dropping(dropped);
        self
    }

    /// Compares the cache with the API server from time to time.
    #[must_use]
    pub fn verified(mut self, verify: Verify) -> Self {
        self.verifier.verify = Some(verify);
        self
    }

    /// Packs objects that have not changed for a while.
    #[must_use]
    pub fn packed(mut self, pack: Pack) -> Self {
        self.packer = Some((self.pump.writer.packer(pack.packing, pack.backlog), pack.turn));
        self
    }

    /// Runs until cancelled. It never fails: failures are retried, and shown in the cache's condition.
    pub async fn run(self, cancel: CancellationToken) {
        let Self { client, mut pump, backfiller, prober, mut verifier, packer } = self;
        let doubts = pump.doubts.clone();
        let span =
            info_span!("reflector", resource = %pump.target.resource, namespace = pump.target.namespace);
        // The pump can be dropped at any await. A commit shows all or nothing.
        let all = join5(
            pump.drive(&client),
            backfiller.drive(&client),
            prober.drive(&client),
            verifier.drive(&client),
            packing::drive(packer, &doubts),
        );
        // Boxed, as `run_until_cancelled` would hold the bytes of this future a second time.
        let ended = cancel.run_until_cancelled(Box::pin(all.instrument(span))).await;
        debug_assert!(ended.is_none(), "the pump ends only by being dropped");
    }
}

// === impl Pump ===

impl Pump {
    async fn drive(&mut self, client: &Client) -> std::convert::Infallible {
        let moment = Moment { now: Instant::now(), entropy: self.random.random() };
        let (mut machine, mut step) = Machine::start(self.config, moment, &mut self.deltas);
        loop {
            // The watch may have ended with the events that make the cache doubtful: then a later one finds out.
            if self.commit().await {
                self.doubts.raise(Doubt::Differs);
            }
            packing::room(&self.writer).await;
            self.writer.set_condition(machine.condition());
            step = match step {
                Step::Sleep(delay) => self.sleep(delay, &mut machine).await,
                Step::List(request) => self.list(&request, client, &mut machine).await,
                Step::Probe(question) => self.probe(question, client, &mut machine).await,
                Step::Watch { request, deadline } => {
                    self.watch(&request, Instant::now() + deadline, client, &mut machine).await
                }
            };
        }
    }

    async fn sleep(&mut self, delay: Duration, machine: &mut Machine) -> Step {
        self.metrics.backoff_seconds.set(delay.as_secs_f64());
        sleep(delay).await;
        self.metrics.backoff_seconds.set(0.0);
        let step = self.feed(machine, Input::Woke);
        step.expect("a delay is followed by a step")
    }

    async fn list(&mut self, request: &PageRequest, client: &Client, machine: &mut Machine) -> Step {
        if request.continue_token.is_none() {
            debug!(limit = request.limit, "listing");
            self.stats.lists.add(1);
            self.metrics.paged_lists.increment(1);
        }
        let answer = client.list_page(&self.target, request).await;
        let input = match answer {
            Ok(answer) => self.page(&answer.body),
            Err(error) => Input::PageFailed(self.failure(&error)),
        };
        let step = self.feed(machine, input).expect("a page is followed by a step");
        if matches!(step, Step::Watch { .. }) {
            info!(resource_version = %machine.version(), "listed");
        }
        // Decoding a page takes a while; let other tasks run before the next one.
        tokio::task::yield_now().await;
        step
    }

    fn page(&mut self, body: &[u8]) -> Input {
        match self.decoder.list(body) {
            Ok(page) => {
                self.writer.heard(Instant::now());
                self.stats.pages.add(1);
                self.metrics.pages.increment(1);
                self.tell_skipped(&page);
                Input::Page(page)
            }
            Err(error) => {
                self.skipped(&error);
                Input::PageFailed(garbage(&error))
            }
        }
    }

    fn tell_skipped(&self, page: &ListPage) {
        for (index, skipped) in page.skipped.iter().enumerate() {
            self.skipped(&skipped.error);
            if index == SKIPPED_LOGGED_MAX {
                warn!(skipped = page.skipped.len(), "skipped more objects than are named here");
            }
            if index >= SKIPPED_LOGGED_MAX {
                continue;
            }
            warn!(key = skipped.key, error = %skipped.error, "skipped an object that cannot be read");
        }
    }

    fn skipped(&self, error: &DecodeError) {
        self.stats.skipped.add(1);
        self.metrics.skipped(error);
    }

    /// Asks for the API server's version and that of one object, by a list with `limit=1`.
    async fn probe(&mut self, question: Question, client: &Client, machine: &mut Machine) -> Step {
        self.stats.probes.add(1);
        self.metrics.probes.increment(1);
        let newest = self.writer.reader().newest();
        let target = match &newest {
            Some(object) if question != Question::Exactness => self.target.only(object.key()),
            _ => self.target.clone(),
        };
        let as_of = match &newest {
            Some(object) if question != Question::Now => AsOf::Exactly(object.resource_version()),
            _ => AsOf::Now,
        };
        let request = PageRequest { limit: 1, metadata_only: true, as_of, ..PageRequest::default() };
        let answer = client.list_page(&target, &request).await;
        let input = match answer {
            Ok(ListBody { body, is_cached }) => match identities(&body) {
                Ok(page) => {
                    if question == Question::Now {
                        self.writer.heard(Instant::now());
                    }
                    Input::Probed(probed(page, newest.as_ref(), is_cached))
                }
                Err(error) => Input::ProbeFailed(garbage(&error)),
            },
            Err(error) => Input::ProbeFailed(self.failure(&error)),
        };
        self.feed(machine, input).expect("a probe is followed by a step")
    }

    /// Runs one watch from its request to its end, and returns the next step.
    async fn watch(
        &mut self,
        request: &WatchRequest,
        deadline: Instant,
        client: &Client,
        machine: &mut Machine,
    ) -> Step {
        match &request.from {
            WatchFrom::After(version) => debug!(resource_version = %version, "watching"),
            WatchFrom::Everything(_) => {
                debug!("listing as a stream");
                self.stats.lists.add(1);
                self.stats.streams.add(1);
                self.metrics.streaming_lists.increment(1);
            }
        }
        self.stats.watches.add(1);
        self.metrics.watches.increment(1);
        let mut stream = match client.watch(&self.target, request).await {
            Ok(stream) => stream,
            Err(error) => {
                let failure = self.failure(&error);
                return self
                    .feed(machine, Input::WatchRefused(failure))
                    .expect("a refusal is followed by a step");
            }
        };
        self.writer.heard(Instant::now());
        let is_pinged = stream.is_pinged();
        self.feed(machine, Input::WatchOpened { is_pinged });
        self.writer.set_condition(machine.condition());
        let mut lines = LineSplitter::new(self.line_bytes_max);
        loop {
            let (chunk, over) = tokio::select! {
                // Polled first, or a busy watch would never learn of it.
                biased;
                doubt = self.doubts.raised(), if !machine.is_streaming_list() => {
                    (None, Some(WatchEnd::Doubted(doubt)))
                }
                // Cancel-safe: dropping the wait loses no chunk.
                next = next_chunk(&mut stream, deadline, machine.silence_max()) => next,
            };
            let mut end = over;
            match chunk {
                Some(Ok(chunk)) => {
                    self.writer.heard(Instant::now());
                    end = end.or(fill(&mut lines, &chunk, &mut stream));
                }
                Some(Err(error)) => end = Some(broken(&error)),
                None => {}
            }
            let listing = machine.is_streaming_list();
            if let Some(step) = self.take_lines(&mut lines, machine) {
                return step;
            }
            if listing && !machine.is_streaming_list() {
                info!(resource_version = %machine.version(), "listed");
                self.writer.set_condition(machine.condition());
            }
            let told = !self.deltas.is_empty();
            let doubtful = self.commit().await;
            if told {
                // Let woken tasks run first. While they are busy, further events accumulate into one commit.
                tokio::task::yield_now().await;
            }
            // Meanwhile the rest of the list waits in the socket.
            packing::room(&self.writer).await;
            let end = if doubtful { Some(WatchEnd::Doubted(Doubt::Disorder)) } else { end };
            if let Some(end) = end {
                if shows_a_dead_path(&end, is_pinged) {
                    // Other connections over the same path may be dead, too.
                    client.forget_connections();
                }
                let step = self.feed(machine, Input::WatchEnded(end));
                return step.expect("the end of a watch is followed by a step");
            }
        }
    }

    /// Handles every complete line that was received. Returns a step if the watch is over.
    fn take_lines(&mut self, lines: &mut LineSplitter, machine: &mut Machine) -> Option<Step> {
        loop {
            let input = match lines.next_line() {
                Ok(None) => return None,
                Ok(Some(line)) => match self.decoder.watch_line(line) {
                    Ok(event) => {
                        trace!(?event, "event");
                        self.stats.events.add(1);
                        self.metrics.event(&event);
                        Input::Event(event)
                    }
                    Err(error @ DecodeError::TooLarge { .. }) => self.too_large(error),
                    // As in a list in pages: an object that cannot be decoded is skipped, and the others are kept.
                    Err(error @ (DecodeError::Missing(_) | DecodeError::Slash(_)))
                        if machine.is_streaming_list() =>
                    {
                        self.skipped(&error);
                        warn!(key = key_in(line), %error, "skipped an object that cannot be read");
                        continue;
                    }
                    Err(error) => {
                        self.skipped(&error);
                        warn!(key = key_in(line), %error, "an event cannot be decoded");
                        Input::WatchEnded(WatchEnd::Undecodable(error.to_string()))
                    }
                },
                Err(error) => Input::WatchEnded(WatchEnd::Undecodable(error.to_string())),
            };
            if let Some(step) = self.feed(machine, input) {
                return Some(step);
            }
        }
    }

    /// Makes an object that is too large count as deleted, and lets the watch continue: any tenant can write such an object.
    fn too_large(&self, error: DecodeError) -> Input {
        self.skipped(&error);
        let DecodeError::TooLarge { bytes, limit, key, version } = error else {
            return Input::WatchEnded(WatchEnd::Undecodable(error.to_string()));
        };
        warn!(%key, bytes, limit, "an object is too large to be held, and is sent to clients as deleted");
        Input::Unheld(key, version)
    }

    /// Counts a failure. An error answer does not make the cache younger, as it says nothing about the resource.
    fn failure(&self, error: &UpstreamError) -> Failure {
        if error.kind() == FailureKind::NotFound {
            self.stats.not_found.add(1);
        }
        Failure::from(error)
    }

    fn feed(&mut self, machine: &mut Machine, input: Input) -> Option<Step> {
        let moment = Moment { now: Instant::now(), entropy: self.random.random() };
        let reaction = machine.on(input, moment, &mut self.deltas);
        if reaction != Reaction::default() {
            self.tell(&reaction, machine);
        }
        reaction.step
    }

    /// Counts and logs a reaction.
    fn tell(&self, reaction: &Reaction, machine: &Machine) {
        if let Some(kind) = reaction.failed {
            self.stats.failures.add(1);
            self.metrics.failed(kind);
        }
        if let Some(reason) = reaction.ended {
            self.metrics.watch_ended(reason);
            debug!(reason = reason.as_str(), "the watch ended");
        }
        let message = machine.condition().message.unwrap_or_default();
        if reaction.older {
            self.metrics.older.increment(1);
        }
        if reaction.fell_back {
            self.metrics.fallbacks.increment(1);
            info!(error = message, "the API server does not support streaming lists: listing in pages");
        }
        if let Some(reason) = reaction.relist {
            self.stats.relists.add(1);
            self.metrics.relist(reason);
            info!(reason = reason.as_str(), error = message, "listing everything again");
        }
        if let Some(Step::Sleep(delay)) = reaction.step {
            warn!(delay_seconds = delay.as_secs_f64(), error = message, "backing off");
        }
    }

    /// Commits the deltas, and returns whether one of them makes the cache doubtful.
    async fn commit(&mut self) -> bool {
        if let Some(at) = self.deltas.iter().position(|delta| matches!(delta, Delta::PassEnd(_))) {
            let end = self.deltas.split_off(at);
            let doubtful = self.commit_at_once();
            // Readers would wait while all objects are looked at.
            while self.writer.look_for_unnamed() {
                tokio::task::yield_now().await;
            }
            self.deltas = end;
            // Now and not before the turns: a comparison that ended amid them was with the cache before this list.
            self.doubts.settle();
            return self.commit_at_once() || doubtful;
        }
        self.commit_at_once()
    }

    fn commit_at_once(&mut self) -> bool {
        if self.deltas.is_empty() {
            return false;
        }
        let commit: Commit = self.writer.commit(std::mem::take(&mut self.deltas));
        self.metrics.committed(&commit);
        if commit.history_lost {
            warn!("the API server's versions went back: readers start over");
            self.doubts.settle_all();
        }
        commit.doubtful > 0
    }
}

/// The next chunk, or why there is none: the stream ended, or none came in time.
async fn next_chunk(
    stream: &mut ByteStream,
    deadline: Instant,
    silence_max: Duration,
) -> (Option<Result<Bytes, UpstreamError>>, Option<WatchEnd>) {
    let until = deadline.min(Instant::now() + silence_max);
    match timeout_at(until, stream.next()).await {
        Ok(Some(chunk)) => (Some(chunk), None),
        Ok(None) => (None, Some(WatchEnd::Eof)),
        Err(_) if until == deadline => (None, Some(WatchEnd::Overdue)),
        Err(_) => (None, Some(WatchEnd::Silent)),
    }
}

/// Takes a chunk and those that can be read without waiting. Returns the end of the stream, if it was reached.
fn fill(lines: &mut LineSplitter, chunk: &Bytes, stream: &mut ByteStream) -> Option<WatchEnd> {
    let mut taken = chunk.len();
    lines.push(chunk);
    while taken < BATCH_BYTES_MAX {
        match stream.next().now_or_never() {
            Some(Some(Ok(chunk))) => {
                taken += chunk.len();
                lines.push(&chunk);
            }
            Some(Some(Err(error))) => return Some(broken(&error)),
            Some(None) => return Some(WatchEnd::Eof),
            None => return None,
        }
    }
    None
}

/// The result of a probe: the list's version, and the state of the requested object.
fn probed(page: IdentityPage, asked: Option<&Object>, is_cached: bool) -> Probed {
    let sample = asked.map(|asked| {
        let found = page.identities.into_iter().find(|found| found.key == *asked.key());
        SampleObject {
            key: asked.key().clone(),
            held: asked.resource_version(),
            found: found.and_then(|found| found.version),
        }
    });
    Probed { version: page.resource_version, sample, is_cached }
}

/// Whether the end of a watch means that its path may be dead.
fn shows_a_dead_path(end: &WatchEnd, is_pinged: bool) -> bool {
    match end {
        // Silence says nothing about a pinged connection: if that is dead, the watch breaks off.
        WatchEnd::Silent | WatchEnd::Overdue => !is_pinged,
        WatchEnd::Broken(_) => is_pinged,
        WatchEnd::Eof | WatchEnd::Undecodable(_) | WatchEnd::Doubted(_) => false,
    }
}

fn broken(error: &UpstreamError) -> WatchEnd {
    WatchEnd::Broken(Failure::from(error))
}

fn garbage(error: &DecodeError) -> Failure {
    let sentence = format!("the list cannot be read: {error}");
    Failure { kind: FailureKind::Garbage, sentence, retry_after: None }
}

/// The object's name in an undecodable line, or `?`.
fn key_in(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let name = text.split_once(r#""name":""#).and_then(|(_, rest)| rest.split('"').next());
    name.unwrap_or("?").chars().take(253).collect()
}

#[cfg(test)]
#[path = "reflector_tests.rs"]
mod tests;
