//! Events to many clients, compared with a plain loop that writes the same bytes to as many sockets, with one such loop on each
//! core, and with axum and a broadcast channel for the same events.

use std::time::{Duration, Instant};

use crate::Bench;
use crate::axum_sse;
use crate::client::{Measure, Readers};
use crate::peer::{Load, Peer};
use crate::process::Usage;
use crate::report::{Figure, Row, median};
use crate::server::{QUIET, Server};
use crate::simulator::{Rhythm, Simulator};

/// The events of a measurement.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// The changed resource.
    pub(crate) resource: &'static str,
    /// The resource that each stream follows, and its parameters.
    pub(crate) follows: &'static str,
    pub(crate) rhythm: Rhythm,
    /// How the streams are counted, and over which version of HTTP they come.
    pub(crate) measure: Measure,
}

/// One measurement of one server.
struct Sample {
    frames_per_second: f64,
    /// The same number as CPU seconds for a million frames.
    cpu_micros_per_frame: f64,
    /// CPU use of the clients' one thread: at 1 the clients are the limit.
    client_cores: f64,
}

/// Number of objects that change in turn.
const OBJECTS: usize = 1000;
/// From this number of clients on, fewer events are sent in a second.
const MANY_CLIENTS: usize = 5000;
const PLAIN: &str = "plain write loop";
const PLAIN_ON_EACH_CORE: &str = "a plain write loop on each core";
const AXUM: &str = "axum Sse";

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let mut simulator = Simulator::start()?;
    simulator.load("pods", OBJECTS, 5 << 10)?;
    // Without the dropped parts and with what a frame adds: about 500 bytes.
    simulator.load("configmaps", OBJECTS, 640)?;
    let (server, _) = Server::start(&simulator.url, &["pods", "configmaps"], &QUIET)?;
    for resource in ["pods", "configmaps"] {
        simulator.touch_all(resource, OBJECTS)?;
    }
    for clients in bench.pick([100, 1000, MANY_CLIENTS].as_slice(), [20].as_slice()) {
        for shape in &shapes(bench, *clients) {
            compare(bench, "fan-out", &mut simulator, &server, *clients, shape)?;
        }
    }
    Ok(())
}

fn shapes(bench: &Bench, clients: usize) -> Vec<Shape> {
    let seconds = bench.pick(1.5, 0.3);
    let every = |interval_ms: u64, events_per_tick| {
        let interval = Duration::from_millis(interval_ms);
        let ticks = (seconds / interval.as_secs_f64()).round() as usize;
        Rhythm { ticks, events_per_tick, interval }
    };
    let (pods, configmaps) = ("pods", "configmaps");
    let shape = |name, resource, rhythm| {
        let measure = Measure::Count;
        Shape { name, resource, follows: resource, rhythm, measure }
    };
    if clients >= MANY_CLIENTS {
        return vec![
            shape("5 KB, 20/s", pods, every(50, 1)),
            shape("500 B, bursts of 100", configmaps, every(500, 100)),
        ];
    }
    vec![
        shape("5 KB, 100/s", pods, every(10, 1)),
        shape("500 B, 100/s", configmaps, every(10, 1)),
        shape("5 KB, bursts of 30", pods, every(300, 30)),
        shape("500 B, bursts of 200", configmaps, every(300, 200)),
    ]
}

/// Sends the same events through informerd, a plain write loop and axum.
pub(crate) fn compare(
    bench: &mut Bench,
    group: &'static str,
    simulator: &mut Simulator,
    server: &Server,
    clients: usize,
    shape: &Shape,
) -> anyhow::Result<()> {
    let sign = if shape.follows.contains('?') { '&' } else { '?' };
    let path = format!("/v1/watch/{}{sign}sendInitialEvents=false", shape.follows);
    let readers = Readers::connect(server.address, clients, Some(&path), shape.measure)?;
    // Each stream begins with a bookmark.
    readers.wait_for(clients as u64)?;
    let contenders = [
        (PLAIN, Peer::plain()?, None),
        (PLAIN_ON_EACH_CORE, Peer::plain_on_each_core()?, None),
        (AXUM, Peer::axum()?, Some(axum_sse::PATH)),
    ];
    let mut others = Vec::new();
    for (name, peer, path) in contenders {
        let readers = Readers::connect(peer.address, clients, path, Measure::Count)?;
        peer.connected(clients)?;
        others.push((name, peer, readers, Vec::new()));
    }
    let frames = shape.rhythm.events() * clients;
    let (mut ours, mut frame_bytes) = (Vec::new(), 0);
    for _ in 0..bench.pick(3, 1) {
        let bytes_before = readers.seen()?.bytes;
        let mut spacing = Duration::ZERO;
        let usage = || server.usage();
        ours.push(sample(&readers, frames, usage, || {
            simulator.begin(shape.resource, shape.rhythm)?;
            spacing = simulator.end()?.spacing;
            Ok(())
        })?);
        frame_bytes = usize::try_from(readers.seen()?.bytes - bytes_before)? / frames;
        let load = Load { rhythm: shape.rhythm, spacing, frame_bytes };
        for (_, peer, readers, samples) in &mut others {
            samples.push(sample(readers, frames, || peer.usage(), || peer.frames(&load))?);
        }
    }
    let case = format!("{clients} clients, {} ({frame_bytes} B)", shape.name);
    let figures: [Figure<Sample>; 3] = [
        ("server CPU", "s/M frames", |sample| sample.cpu_micros_per_frame),
        ("delivered", "frames/s", |sample| sample.frames_per_second),
        ("clients' CPU", "cores", |sample| sample.client_cores),
    ];
    for (metric, unit, figure) in figures {
        let middle = |of: &[Sample]| median(of.iter().map(figure).collect());
        for (what, _, _, samples) in &others {
            let row = Row::new(group, &*case).value(metric, middle(&ours), unit);
            bench.report.add(row.against(what, middle(samples)));
        }
    }
    Ok(())
}

/// Sends events at a rhythm, and waits until every client has every frame.
fn sample(
    readers: &Readers,
    frames: usize,
    usage: impl Fn() -> anyhow::Result<Usage>,
    play: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Sample> {
    let expected = readers.seen()?.frames + frames as u64;
    let (clients_before, before, began) = (readers.usage()?, usage()?, Instant::now());
    play()?;
    readers.wait_for(expected)?;
    let (seconds, after, clients_after) = (began.elapsed().as_secs_f64(), usage()?, readers.usage()?);
    Ok(Sample {
        frames_per_second: frames as f64 / seconds,
        cpu_micros_per_frame: (after.cpu_seconds - before.cpu_seconds) * 1e6 / frames as f64,
        client_cores: (clients_after.cpu_seconds - clients_before.cpu_seconds) / seconds,
    })
}
