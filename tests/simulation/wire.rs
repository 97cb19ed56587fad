//! The body of one answer on its way through the network.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::dice::Dice;
use crate::fault::Fault;
use crate::meter::Ask;
use crate::network::{Body, Framed, Link, Weather};

/// Longer than the longest line that the simulation's informers take.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 10;

/// The largest object that the simulation's informers hold.
pub(crate) const OBJECT_BYTES_MAX: usize = 8 << 10;

/// A client may abandon a watch after this long without a byte.
const QUIET_MIN: Duration = Duration::from_secs(25);

/// A dead connection that is pinged ends within this time, in milliseconds.
const PINGED_OUT_MS: u64 = 30_000;

/// Number of events of a watch that may be sent again.
const REPLAYED_MAX: usize = 8;

/// Number of bytes at the start of a list that contain its version.
const HEAD_BYTES: usize = 400;

/// A fault that was ordered for all connections of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) fault: Option<Fault>,
}

/// The plan for one body.
#[derive(Debug)]
pub(crate) struct WirePlan {
    dice: Dice,
    /// The fault of the whole body, and the number of bytes after which it happens.
    fault: Option<(usize, Fault)>,
    lines: Vec<Fault>,
    line_chance: f64,
    chunk_bytes_max: usize,
    latency_ms_max: u64,
    /// When the API server that is behind ends the body.
    ends_at: Option<Instant>,
    /// How long a watch asks to last. Its client abandons it some seconds later.
    lasts: Duration,
    /// Whether its connection is pinged, so that a dead one is noticed.
    pub(crate) is_pinged: bool,
}

impl std::fmt::Debug for Dice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dice")
    }
}

/// A body.
pub(crate) struct Wire {
    inner: Option<Body>,
    link: Arc<Link>,
    resource: usize,
    watch: bool,
    /// Whether its bytes count as signs of life of the API server.
    counts: bool,
    plan: WirePlan,
    orders: watch::Receiver<Order>,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// The last events, which may be sent again.
    recent: VecDeque<Vec<u8>>,
    out: VecDeque<Bytes>,
    /// Whether a chunk of `out` has left and has not arrived.
    passing: bool,
    sent: usize,
    end: Option<End>,
    /// Whether a fault hit the body, so that it cannot be read completely.
    broken: bool,
    /// The request that it answers, and whether the mark of a streaming list has passed.
    ask: Ask,
    marked: bool,
    /// The first bytes of a list, which tell its version.
    head: Vec<u8>,
    born: Instant,
    last_byte: Instant,
}

/// How a body ends once all of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Clean,
    Reset,
    Silence,
}

impl WirePlan {
    pub(crate) fn roll(
        weather: &Weather,
        watch: bool,
        good: bool,
        ends_at: Option<Instant>,
        dice: &mut Dice,
    ) -> Self {
        let seed = dice.seed();
        let mut dice = Dice::new(seed, 0);
        let mut fault = None;
        if good && !weather.bodies.is_empty() && dice.chance(weather.body_chance) {
            let what = weather.bodies[dice.below(weather.bodies.len())];
            let of_list = matches!(what, Fault::ListCutShort | Fault::ListReset | Fault::ListStalled);
            let most = if dice.chance(0.5) { 600 } else { 6_000 };
            let after = dice.below(most);
            fault = (of_list != watch).then_some((after, what));
        }
        let lines = if watch { weather.lines.clone() } else { Vec::new() };
        Self {
            fault,
            lines,
            line_chance: weather.line_chance,
            chunk_bytes_max: weather.chunk_bytes_max,
            latency_ms_max: weather.latency_ms_max,
            ends_at: ends_at.filter(|_| watch),
            lasts: Duration::MAX,
            is_pinged: false,
            dice,
        }
    }
}

impl WirePlan {
    /// For a watch that asks to be ended after this time.
    pub(crate) fn lasting(self, lasts: Duration) -> Self {
        Self { lasts, ..self }
    }

    /// For a connection that is pinged, or not.
    pub(crate) fn pinged(self, is_pinged: bool) -> Self {
        Self { is_pinged, ..self }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if !self.watch {
            return;
        }
        let given_up = self.last_byte.elapsed() >= QUIET_MIN || self.born.elapsed() >= self.plan.lasts;
        let quiet = self.end.is_none() && given_up;
        // A mark does not count while its last piece is on its way (seed 1062919).
        let unmarked = self.ask == Ask::Stream && (!self.marked || self.passing || !self.out.is_empty());
        self.link.meter(self.resource, |meter| {
            meter.quiet_watches += u64::from(quiet);
            meter.unmarked_streams += u64::from(unmarked);
        });
    }
}

impl Wire {
    pub(crate) fn new(
        body: Body,
        link: Arc<Link>,
        resource: usize,
        ask: Ask,
        code: u16,
        plan: WirePlan,
    ) -> Self {
        let orders = link.orders[resource].subscribe();
        Self {
            inner: Some(body),
            link,
            resource,
            watch: matches!(ask, Ask::Watch | Ask::Stream) && code == 200,
            // A list of an earlier version says nothing about the current state, and an error nothing about the
            // resource.
            counts: ask != Ask::Backfill && code == 200,
            plan,
            orders,
            partial: Vec::new(),
            recent: VecDeque::new(),
            out: VecDeque::new(),
            passing: false,
            sent: 0,
            end: None,
            broken: false,
            ask,
            marked: false,
            head: Vec::new(),
            born: Instant::now(),
            last_byte: Instant::now(),
        }
    }

    /// The next frame.
    pub(crate) async fn next(mut self) -> Option<(Framed, Self)> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                self.passing = true;
                let passed = self.pass(chunk).await;
                self.passing = false;
                if let Some(chunk) = passed {
                    return Some((Ok(Frame::data(chunk)), self));
                }
                continue;
            }
            match self.end {
                Some(End::Clean) => {
                    // The API server's version says nothing about that of the cache.
                    if !self.watch && self.counts && !self.broken && self.ask != Ask::Head {
                        let version =
                            matches!(self.ask, Ask::List | Ask::Probe).then(|| listed_version(&self.head));
                        self.link.meter(self.resource, |meter| {
                            meter.heard(Instant::now());
                            version.flatten().into_iter().for_each(|version| meter.listed_at(version));
                        });
                    }
                    return None;
                }
                Some(End::Reset) => {
                    self.end = Some(End::Clean);
                    return Some((Err(io::ErrorKind::ConnectionReset.into()), self));
                }
                Some(End::Silence) => std::future::pending().await,
                None => self.read().await,
            }
        }
    }

    /// Passes a chunk on, if the plan allows it.
    async fn pass(&mut self, mut chunk: Bytes) -> Option<Bytes> {
        if let Some((at, fault)) = self.plan.fault
            && self.sent + chunk.len() > at
        {
            self.plan.fault = None;
            if fault != Fault::Paused {
                chunk.truncate(at.saturating_sub(self.sent));
            }
            self.play(fault).await;
        }
        if self.plan.latency_ms_max > 0 && self.plan.dice.chance(0.3) {
            sleep(self.plan.dice.millis(1, self.plan.latency_ms_max)).await;
        }
        if chunk.is_empty() {
            return None;
        }
        self.sent += chunk.len();
        let room = HEAD_BYTES.saturating_sub(self.head.len()).min(chunk.len());
        self.head.extend_from_slice(&chunk[..room]);
        self.last_byte = Instant::now();
        let (watch, now) = (self.watch, Instant::now());
        if self.counts {
            self.link
                .meter(self.resource, |meter| if watch { meter.heard(now) } else { meter.heard_part(now) });
        }
        Some(chunk)
    }

    /// Waits for the API server's next bytes, or for an ordered fault.
    async fn read(&mut self) {
        let Some(inner) = &mut self.inner else {
            self.end = Some(End::Clean);
            return;
        };
        let ends_at = self.plan.ends_at;
        let ended = async {
            match ends_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.orders.changed() => {
                let order = *self.orders.borrow_and_update();
                if let Some(fault) = order.fault
                    && self.watch
                {
                    self.play(fault).await;
                }
            }
            frame = inner.frame() => match frame {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    if self.watch { self.take_lines(&data) } else { self.put(&data) }
                }
                Some(Err(_)) => self.finish(End::Reset),
                None => {
                    self.put_partial();
                    self.finish(End::Clean);
                }
            },
            () = ended => self.finish(End::Clean),
        }
    }

    fn finish(&mut self, end: End) {
        self.inner = None;
        self.end = Some(end);
        if self.watch {
            self.link.meter(self.resource, |meter| meter.watches_ended += 1);
        }
    }

    /// Plays a fault of the whole connection.
    async fn play(&mut self, fault: Fault) {
        self.link.hit(self.resource, fault);
        self.broken |= fault != Fault::Paused;
        match fault {
            Fault::CutMidLine => {
                self.out.clear();
                self.out.push_back(Bytes::from_static(br#"{"type":"MODIFIED","object":{"metadata":{"na"#));
                self.finish(End::Clean);
            }
            Fault::CutReset | Fault::ListReset => {
                self.out.clear();
                self.finish(End::Reset);
            }
            // In the remaining cases only the answer stalls, and a device on the way answers the pings.
            Fault::Stalled if self.plan.is_pinged && self.plan.dice.chance(0.7) => {
                self.out.clear();
                sleep(self.plan.dice.millis(0, PINGED_OUT_MS)).await;
                self.finish(End::Reset);
            }
            Fault::Stalled | Fault::ListStalled => {
                self.out.clear();
                self.finish(End::Silence);
            }
            Fault::Paused => {
                let pause = self.plan.dice.millis(500, 40_000);
                sleep(pause).await;
            }
            _ => {
                self.out.clear();
                self.finish(End::Clean);
            }
        }
    }

    /// Adds the ERROR event of a watch, which is its last event.
    fn put_error(&mut self, code: u16, reason: &str, text: &mut Vec<u8>) {
        let line = format!(
            r#"{{"type":"ERROR","object":{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"the simulation says {code}","reason":"{reason}","code":{code}}}}}"#
        );
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
        self.finish(End::Clean);
    }

    fn take_lines(&mut self, data: &[u8]) {
        self.partial.extend_from_slice(data);
        let mut text = Vec::new();
        while let Some(at) = self.partial.iter().position(|byte| *byte == b'\n') {
            let rest = self.partial.split_off(at + 1);
            let line = std::mem::replace(&mut self.partial, rest);
            self.take_line(&line, &mut text);
            if self.end.is_some() {
                self.partial.clear();
            }
        }
        self.put(&text);
    }

    fn take_line(&mut self, line: &[u8], text: &mut Vec<u8>) {
        let is = |what: &str| memchr::memmem::find(line, what.as_bytes()).is_some();
        if is(r#""type":"ERROR""#) {
            let gone = is(r#""code":410"#);
            if gone {
                self.link.hits.count(Fault::RealGone);
            }
            self.link.meter(self.resource, |meter| meter.refused(if gone { 410 } else { 500 }));
            self.link.say(|| String::from_utf8_lossy(line).trim().to_owned());
        }
        let (bookmark, mark) = (is(r#""type":"BOOKMARK""#), is("initial-events-end"));
        self.marked |= mark;
        // Within a streaming list, an old state would count as the current one.
        let is_event = !bookmark && !is(r#""type":"ERROR""#) && (self.ask == Ask::Watch || self.marked);
        if is_event && self.recent.len() == REPLAYED_MAX {
            self.recent.pop_front();
        }
        self.recent.extend(is_event.then(|| line.to_vec()));
        if !self.plan.lines.is_empty() && self.plan.dice.chance(self.plan.line_chance) {
            let mut fault = self.plan.lines[self.plan.dice.below(self.plan.lines.len())];
            if bookmark && self.plan.lines.contains(&Fault::BookmarkDropped) {
                fault = Fault::BookmarkDropped;
            }
            match fault {
                Fault::BookmarkDropped if bookmark && !mark => {
                    self.link.hit(self.resource, fault);
                    return;
                }
                Fault::WatchGoneInStream | Fault::ErrorInStream => {
                    self.link.hit(self.resource, fault);
                    let gone = fault == Fault::WatchGoneInStream;
                    let (code, reason) = if gone { (410, "Expired") } else { (500, "InternalError") };
                    return self.put_error(code, reason, text);
                }
                Fault::Duplicate if !bookmark => text.extend_from_slice(line),
                Fault::Replayed if !self.recent.is_empty() => {
                    let which = self.plan.dice.below(self.recent.len());
                    text.extend_from_slice(&self.recent[which]);
                }
                Fault::GarbageLine => text.extend_from_slice(b"{\"type\":\"MODI<html>not json\n"),
                Fault::EndlessLine => text.extend_from_slice(&vec![b'x'; LINE_BYTES_MAX + 100]),
                Fault::NoMetadata => text
                    .extend_from_slice(b"{\"type\":\"MODIFIED\",\"object\":{\"kind\":\"X\",\"apiVersion\":\"v1\"}}\n"),
                Fault::UnknownType => text.extend_from_slice(
                    b"{\"type\":\"RENAMED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"1\"}}}\n",
                ),
                _ => {
                    text.extend_from_slice(line);
                    return;
                }
            }
            self.link.hit(self.resource, fault);
        }
        text.extend_from_slice(line);
    }

    fn put_partial(&mut self) {
        let rest = std::mem::take(&mut self.partial);
        self.put(&rest);
    }

    /// Sends bytes in chunks that are not aligned with lines.
    fn put(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let most = self.plan.chunk_bytes_max;
            let size = if most == 0 { data.len() } else { 1 + self.plan.dice.below(most) };
            let (chunk, rest) = data.split_at(size.min(data.len()));
            self.out.push_back(Bytes::copy_from_slice(chunk));
            data = rest;
        }
    }
}

/// The version of a list, from its first bytes.
fn listed_version(head: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(head);
    let (_, rest) = text.split_once(r#""resourceVersion":""#)?;
    rest.split('"').next()?.parse().ok()
}
