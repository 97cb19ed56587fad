//! Events to many clients, beside a plain loop that writes the same bytes to as many sockets.

use std::time::{Duration, Instant};

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::plain::Plain;
use crate::process::Usage;
use crate::report::{Row, median};
use crate::server::Server;
use crate::simulator::{Rhythm, Simulator};

/// What is sent, and how.
struct Shape {
    name: &'static str,
    resource: &'static str,
    rhythm: Rhythm,
}

/// One measurement of one side.
struct Sample {
    frames_per_second: f64,
    /// Which is the same as CPU seconds per million frames.
    cpu_micros_per_frame: f64,
}

/// Objects that change in turn.
const OBJECTS: usize = 1000;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let mut simulator = Simulator::start()?;
    simulator.load("pods", OBJECTS, 5 << 10)?;
    // Without what is dropped, and with what a frame adds, about 500 bytes.
    simulator.load("configmaps", OBJECTS, 640)?;
    let (server, _) = Server::start(&simulator.url, &["pods", "configmaps"], &[])?;
    for resource in ["pods", "configmaps"] {
        // Each gets its annotation, so that all frames to come are of one size.
        let interval = Duration::from_millis(10);
        simulator.begin(resource, Rhythm { ticks: OBJECTS / 100, events_per_tick: 100, interval })?;
        simulator.end()?;
    }
    let steps = bench.pick(30, 3);
    let millis = Duration::from_millis;
    let steady = Rhythm { ticks: steps * 10, events_per_tick: 1, interval: millis(10) };
    let bursts = |len| Rhythm { ticks: steps / 3, events_per_tick: len, interval: millis(300) };
    let shapes = [
        Shape { name: "5 KB, 100/s", resource: "pods", rhythm: steady },
        Shape { name: "500 B, 100/s", resource: "configmaps", rhythm: steady },
        Shape { name: "5 KB, bursts of 30", resource: "pods", rhythm: bursts(30) },
        Shape { name: "500 B, bursts of 200", resource: "configmaps", rhythm: bursts(200) },
    ];
    for clients in bench.pick([100, 1000].as_slice(), [20].as_slice()) {
        for shape in &shapes {
            compare(bench, &mut simulator, &server, *clients, shape)?;
        }
    }
    Ok(())
}

fn compare(
    bench: &mut Bench,
    simulator: &mut Simulator,
    server: &Server,
    clients: usize,
    shape: &Shape,
) -> anyhow::Result<()> {
    let path = format!("/v1/watch/{}?sendInitialEvents=false", shape.resource);
    let readers = Readers::connect(server.address, clients, Some(&path), Measure::Count)?;
    // Each begins with a bookmark.
    readers.wait_for(clients as u64)?;
    let mut plain = Plain::writer()?;
    let plain_readers = Readers::connect(plain.address, clients, None, Measure::Count)?;
    plain.connected(clients)?;
    let (mut ours, mut limit, mut frame_bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..bench.pick(3, 1) {
        let bytes_before = readers.bytes();
        let mut changed = None;
        let sample = sample(
            &readers,
            clients,
            shape.rhythm,
            || server.usage(),
            || {
                simulator.begin(shape.resource, shape.rhythm)?;
                changed = Some(simulator.end()?);
                Ok(())
            },
        )?;
        ours.push(sample);
        let frames = shape.rhythm.events() * clients;
        frame_bytes = usize::try_from(readers.bytes() - bytes_before)? / frames;
        if let Some(changed) = changed {
            let plain = std::cell::RefCell::new(&mut plain);
            limit.push(self::sample(
                &plain_readers,
                clients,
                shape.rhythm,
                || plain.borrow().usage(),
                || plain.borrow_mut().frames(shape.rhythm, &changed, frame_bytes),
            )?);
        }
    }
    let case = format!("{clients} clients, {} ({frame_bytes} B)", shape.name);
    let middle = |of: &[Sample], figure: fn(&Sample) -> f64| median(of.iter().map(figure).collect());
    let cpu = |sample: &Sample| sample.cpu_micros_per_frame;
    let row = Row::new("fan-out", &*case).value("server CPU", middle(&ours, cpu), "s/M frames");
    bench.report.add(row.against("plain write loop", middle(&limit, cpu)));
    let rate = |sample: &Sample| sample.frames_per_second;
    let row = Row::new("fan-out", case).value("delivered", middle(&ours, rate), "frames/s");
    bench.report.add(row.against("plain write loop", middle(&limit, rate)));
    Ok(())
}

/// Plays a rhythm and waits until every client has every frame.
fn sample(
    readers: &Readers,
    clients: usize,
    rhythm: Rhythm,
    usage: impl Fn() -> anyhow::Result<Usage>,
    play: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Sample> {
    let frames = (rhythm.events() * clients) as u64;
    let expected = readers.frames() + frames;
    let (before, began) = (usage()?, Instant::now());
    play()?;
    readers.wait_for(expected)?;
    let (seconds, after) = (began.elapsed().as_secs_f64(), usage()?);
    Ok(Sample {
        frames_per_second: frames as f64 / seconds,
        cpu_micros_per_frame: (after.cpu_seconds - before.cpu_seconds) * 1e6 / frames as f64,
    })
}
