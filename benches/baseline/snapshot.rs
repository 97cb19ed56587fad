//! Snapshots: into frames in memory, and over loopback HTTP to one client.

use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use bytes::Buf as _;
use informerd::testing::cache::{Delta, Snapshot, cache};
use informerd::testing::config::Limits;
use informerd::testing::encode::{Frames, ListEncoder, ListFormat};
use informerd::testing::k8s::ResourceVersion;

use crate::clock::{MEASURE_MIN, seconds_of};
use crate::peer::Peer;
use crate::process::Usage;
use crate::report::{Row, median};
use crate::server::Server;
use crate::simulator::Simulator;
use crate::{Bench, pods};

/// The times of one transfer.
struct Transfer {
    seconds: f64,
    first_byte_seconds: f64,
    cpu_seconds: f64,
    bytes: usize,
}

/// Number of transfers whose CPU time is summed, as the kernel counts in hundredths of a second.
const TRANSFERS: usize = 5;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let objects = bench.pick(10_000, 500);
    in_memory(bench, objects)?;
    over_http(bench, objects)
}

fn in_memory(bench: &mut Bench, objects: usize) -> anyhow::Result<()> {
    let snapshot = snapshot(objects)?;
    let time = bench.pick(MEASURE_MIN * 2, MEASURE_MIN / 5);
    let bytes = encode(&snapshot);
    let (mut encoding, mut copying) = (Vec::new(), Vec::new());
    for _ in 0..bench.pick(5, 1) {
        let encode = || {
            black_box(encode(&snapshot));
        };
        encoding.push(bytes as f64 / seconds_of(encode, time)? / 1e9);
        let copy = || {
            let mut copy = Vec::with_capacity(bytes);
            snapshot.after(None).for_each(|object| copy.extend_from_slice(&object.json()));
            drop(black_box(copy));
        };
        copying.push(bytes as f64 / seconds_of(copy, time)? / 1e9);
    }
    let case = format!("{objects} pods, {} MB, into frames", bytes / 1_000_000);
    let row = Row::new("snapshot", case).value("encoded", median(encoding), "GB/s");
    bench.report.add(row.against("copying it together", median(copying)));
    Ok(())
}

fn snapshot(objects: usize) -> anyhow::Result<Snapshot> {
    let (mut writer, reader) = cache(Limits::DEFAULT.cache(), tokio::time::Instant::now());
    let page = pods::decoder().list(pods::list(objects, false).as_bytes())?;
    let mut deltas = vec![Delta::PassBegin];
    deltas.extend(page.objects.into_iter().map(Delta::PassItem));
    deltas.push(Delta::PassEnd(ResourceVersion::from(1_000_000)));
    writer.commit(deltas);
    Ok(reader.snapshot())
}

/// Encodes in pieces, as the server does, and walks over the slices; returns the number of bytes.
fn encode(snapshot: &Snapshot) -> usize {
    let mut list = ListEncoder::new(ListFormat::Json, "PodList", "v1", Some(&snapshot.position), None);
    let (mut frames, mut bytes) = (Frames::new(), 0);
    let walk = |frames: Frames| black_box(frames).into_parts().map(|part| part.len()).sum::<usize>();
    for object in snapshot.after(None) {
        list.object(object, &mut frames);
        if frames.remaining() >= Limits::DEFAULT.batch_bytes_max {
            frames.cut();
            bytes += walk(std::mem::take(&mut frames));
        }
    }
    list.end(&mut frames);
    bytes + walk(frames)
}

fn over_http(bench: &mut Bench, objects: usize) -> anyhow::Result<()> {
    let mut simulator = Simulator::start()?;
    simulator.load("pods", objects, 5 << 10)?;
    let (server, _) = Server::start(&simulator.url, &["pods"], &[])?;
    let plain = Peer::plain()?;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    // The first transfer warms up both servers.
    for round in 0..=bench.pick(5, 1) {
        let request = format!(
            "GET /v1/snapshot/pods HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            server.address
        );
        let usage = || server.usage();
        let transfer = transfers(usage, || fetch(server.address, &request, || Ok(())))?;
        let bytes = transfer.bytes;
        let usage = || plain.usage();
        let written = transfers(usage, || {
            fetch(plain.address, "", || {
                plain.connected(1)?;
                plain.stream(bytes)
            })
        })?;
        if round > 0 {
            ours.push(transfer);
            limit.push(written);
        }
    }
    let case = format!("{objects} pods, {} MB, over HTTP", ours[0].bytes / 1_000_000);
    let middle = |of: &[Transfer], figure: fn(&Transfer) -> f64| median(of.iter().map(figure).collect());
    let rate = |transfer: &Transfer| transfer.bytes as f64 / transfer.seconds / 1e6;
    let row = Row::new("snapshot", &*case).value("to one client", middle(&ours, rate), "MB/s");
    bench.report.add(row.against("plain write loop", middle(&limit, rate)));
    let cpu = |transfer: &Transfer| transfer.cpu_seconds / (transfer.bytes as f64 / 1e9);
    let row = Row::new("snapshot", &*case).value("server CPU", middle(&ours, cpu), "s/GB");
    bench.report.add(row.against("plain write loop", middle(&limit, cpu)));
    let first = |transfer: &Transfer| transfer.first_byte_seconds * 1e3;
    bench.report.add(Row::new("snapshot", case).value("first byte after", middle(&ours, first), "ms"));
    Ok(())
}

/// Sums several transfers, as CPU time is counted coarsely.
fn transfers(
    usage: impl Fn() -> anyhow::Result<Usage>,
    mut fetch: impl FnMut() -> anyhow::Result<Transfer>,
) -> anyhow::Result<Transfer> {
    let before = usage()?;
    let (mut seconds, mut first_byte_seconds, mut bytes) = (0.0, 0.0, 0);
    for _ in 0..TRANSFERS {
        let transfer = fetch()?;
        seconds += transfer.seconds;
        first_byte_seconds += transfer.first_byte_seconds;
        bytes = transfer.bytes;
    }
    let times = TRANSFERS as f64;
    let cpu_seconds = (usage()?.cpu_seconds - before.cpu_seconds) / times;
    Ok(Transfer {
        seconds: seconds / times,
        first_byte_seconds: first_byte_seconds / times,
        cpu_seconds,
        bytes,
    })
}

/// Connects, sends the request, lets the other side begin, and reads to the end.
fn fetch(
    address: SocketAddr,
    request: &str,
    begin: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Transfer> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request.as_bytes())?;
    let mut buffer = vec![0; 1 << 20];
    let began = Instant::now();
    let mut bytes = 0;
    let mut first_byte_seconds = 0.0;
    let mut drain = || -> anyhow::Result<()> {
        loop {
            let count = stream.read(&mut buffer)?;
            if bytes == 0 {
                first_byte_seconds = began.elapsed().as_secs_f64();
            }
            if count == 0 {
                return Ok(());
            }
            bytes += count;
        }
    };
    if request.is_empty() {
        // The plain loop is started while its reader reads.
        std::thread::scope(|scope| {
            let reading = scope.spawn(&mut drain);
            begin()?;
            reading.join().unwrap_or_else(|_| anyhow::bail!("the reader panicked"))
        })?;
    } else {
        begin()?;
        drain()?;
    }
    Ok(Transfer { seconds: began.elapsed().as_secs_f64(), first_byte_seconds, cpu_seconds: 0.0, bytes })
}
