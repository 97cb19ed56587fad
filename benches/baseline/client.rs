//! Cheap clients, in a process of their own: one thread reads all sockets into one buffer, counts, and drops the
//! bytes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::{pending, poll_fn};
use std::io::BufRead as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Poll, ready};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use memchr::memmem::Finder;
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use crate::process::{Process, Usage};
use crate::server::wait_until;
use crate::simulator::{CHANGED_AT, micros_since_1970};

/// Connected clients; dropping this closes them.
pub(crate) struct Readers(RefCell<Process>);

/// The counts of all clients together.
#[derive(Default)]
struct Counts {
    frames: AtomicU64,
    bytes: AtomicU64,
    connected: AtomicUsize,
    lost: AtomicUsize,
    arrivals: Mutex<Arrivals>,
}

/// The times recorded by clients that measure latency.
#[derive(Default)]
struct Arrivals {
    /// Latencies from a change in the API server to its arrival, in microseconds.
    latencies: Vec<u32>,
    /// For each time of a change: the number of clients that have it, and the arrival at the last of them.
    last: HashMap<u64, (usize, u64)>,
}

/// The counts at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// Frames received so far, by all clients.
    pub(crate) frames: u64,
    /// Bytes received so far, by all clients.
    pub(crate) bytes: u64,
    /// Clients whose connection ended.
    pub(crate) lost: usize,
}

/// What clients do in addition to counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// Nothing.
    Count,
    /// Nothing, on a watch of the Kubernetes interface, whose events end with a single line end.
    Events,
    /// Reads the time of the change from each event's annotation.
    Latency,
    /// As above, but records only the arrival at the last client.
    Last,
    /// Sends the request and never reads.
    Stall,
    /// Nothing. The clients are streams of HTTP/2 connections, [`HTTP2_STREAMS`] on each.
    Http2,
}

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Number of streams on an HTTP/2 connection.
const HTTP2_STREAMS: usize = 100;
/// Number of connections that are opened at once.
const CONNECTING_MAX: usize = 64;
/// Number of digits in the annotation.
pub(crate) const STAMP_DIGITS: usize = 16;
/// Placeholder in a path for the number of the client, with at least two digits, as in the simulator's namespaces.
pub(crate) const NUMBER: &str = "{}";

/// The text before the digits.
pub(crate) fn stamp_prefix() -> String {
    format!(r#""{CHANGED_AT}":""#)
}

impl Readers {
    /// Connects `count` clients that request `path`, or only connect if there is none. Behind the path there may be header
    /// fields, each as `#NAME:VALUE` without a space.
    pub(crate) fn connect(
        address: SocketAddr,
        count: usize,
        path: Option<&str>,
        measure: Measure,
    ) -> anyhow::Result<Self> {
        let mut process = Process::role("clients")?;
        let measure = measure.to_possible_value().context("every variant has a name")?;
        let (measure, path) = (measure.get_name(), path.unwrap_or("-"));
        let lost = process.ask(&format!("{address} {count} {measure} {path}"))?;
        anyhow::ensure!(lost == "0", "{lost} of {count} clients could not connect");
        Ok(Self(RefCell::new(process)))
    }

    fn ask(&self, line: &str) -> anyhow::Result<String> {
        self.0.borrow_mut().ask(line)
    }

    /// The counts so far.
    pub(crate) fn seen(&self) -> anyhow::Result<Seen> {
        self.ask("seen").and_then(|answer| Seen::parse(&answer))
    }

    /// Waits until all clients together have received this number of frames.
    pub(crate) fn wait_for(&self, frames: u64) -> anyhow::Result<()> {
        let seen = Seen::parse(&self.ask(&format!("wait frames {frames}"))?)?;
        anyhow::ensure!(seen.lost == 0, "{} clients were cut off", seen.lost);
        anyhow::ensure!(seen.frames >= frames, "{} of {frames} frames came", seen.frames);
        Ok(())
    }

    /// Waits until this number of connections has ended.
    pub(crate) fn wait_ended(&self, count: usize) -> anyhow::Result<()> {
        let seen = Seen::parse(&self.ask(&format!("wait lost {count}"))?)?;
        anyhow::ensure!(seen.lost >= count, "{} of {count} connections ended", seen.lost);
        Ok(())
    }

    /// Takes the latencies recorded since the last call, sorted, in microseconds.
    pub(crate) fn take_latencies(&self) -> anyhow::Result<Vec<u32>> {
        let answer = self.ask("latencies")?;
        Ok(answer.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Takes the changes that `count` clients have received since the last call: the time of each change, and its
    /// arrival at the last of them, both in microseconds since 1970.
    pub(crate) fn take_last(&self, count: usize) -> anyhow::Result<HashMap<u64, u64>> {
        let answer = self.ask(&format!("last {count}"))?;
        let numbers: Vec<u64> = answer.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// The usage of the clients' process so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.0.borrow().usage()
    }
}

impl Seen {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let [frames, bytes, lost] = line.split(' ').collect::<Vec<_>>()[..] else { bail!("{line:?}") };
        Ok(Self { frames: frames.parse()?, bytes: bytes.parse()?, lost: lost.parse()? })
    }
}

/// Plays the role until standard input ends. The first line names the server to connect to; further lines are
/// questions.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let line = lines.next().context("nothing to do")??;
    let [address, count, measure, path] = line.split(' ').collect::<Vec<_>>()[..] else { bail!("{line:?}") };
    let (address, count) = (address.parse()?, count.parse()?);
    let measure = Measure::from_str(measure, false).map_err(anyhow::Error::msg)?;
    let path = (path != "-").then(|| path.to_owned());
    let counts = Arc::new(Counts::default());
    let counted = counts.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        LocalSet::new().block_on(&runtime, connect_all(address, count, path, measure, counted));
    });
    let (seen, connected) = (|| counts.seen(), || counts.connected.load(Ordering::Relaxed));
    wait_until("clients to connect", || connected() + seen().lost >= count)?;
    println!("{}", count - connected());
    for line in lines {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["seen"] => {}
            ["wait", "frames", frames] => {
                let frames: u64 = frames.parse()?;
                // After a timeout the counts show what is missing.
                let _ = wait_until("frames", || seen().frames >= frames || seen().lost > 0);
            }
            ["wait", "lost", count] => {
                let count: usize = count.parse()?;
                let _ = wait_until("ends", || seen().lost >= count);
            }
            ["latencies"] => {
                let mut latencies = std::mem::take(&mut counts.arrivals().latencies);
                latencies.sort_unstable();
                println!("{}", listed(latencies));
                continue;
            }
            ["last", count] => {
                let count: usize = count.parse()?;
                let last = std::mem::take(&mut counts.arrivals().last);
                let complete = last.into_iter().filter(|(_, (clients, _))| *clients >= count);
                println!("{}", listed(complete.flat_map(|(changed, (_, last))| [changed, last])));
                continue;
            }
            _ => bail!("unknown command {line:?}"),
        }
        let Seen { frames, bytes, lost } = seen();
        println!("{frames} {bytes} {lost}");
    }
    Ok(())
}

/// Numbers in one line.
fn listed<T: std::fmt::Display>(numbers: impl IntoIterator<Item = T>) -> String {
    let mut line = String::new();
    for number in numbers {
        // Writing to a string cannot fail.
        let _ = write!(line, "{number} ");
    }
    line
}

impl Counts {
    fn seen(&self) -> Seen {
        Seen {
            frames: self.frames.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    fn arrivals(&self) -> std::sync::MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn connect_all(
    address: SocketAddr,
    count: usize,
    path: Option<String>,
    measure: Measure,
    counts: Arc<Counts>,
) {
    let buffer = Rc::new(RefCell::new(vec![0; READ_BYTES]));
    let connecting = Arc::new(Semaphore::new(CONNECTING_MAX));
    let each = if measure == Measure::Http2 { HTTP2_STREAMS } else { 1 };
    for first in (0..count).step_by(each) {
        let place = connecting.clone().acquire_owned().await;
        let streams = first..count.min(first + each);
        let request = path.as_ref().map(|path| match measure {
            Measure::Http2 => http2_requests(address, path, streams.clone()),
            Measure::Count | Measure::Events | Measure::Latency | Measure::Last | Measure::Stall => {
                request(address, path, first).into_bytes()
            }
        });
        let (counts, buffer) = (counts.clone(), buffer.clone());
        tokio::task::spawn_local(async move {
            let stream = connect(address, request.as_deref()).await;
            drop((place, request));
            if let Ok(stream) = stream {
                counts.connected.fetch_add(streams.len(), Ordering::Relaxed);
                read(stream, &counts, &buffer, measure).await;
            }
            counts.lost.fetch_add(streams.len(), Ordering::Relaxed);
        });
    }
    pending().await
}

/// What a client of HTTP/2 sends: its preface, windows that never close, and the requests. It reads the frames of the server as
/// they are and counts events in them, which costs next to nothing. Source: RFC 9113, 3.4 and 6; RFC 7541, 6.
fn http2_requests(address: SocketAddr, path: &str, numbers: std::ops::Range<usize>) -> Vec<u8> {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    const ACK: u8 = 1;
    const END_STREAM_AND_HEADERS: u8 = 1 | 4;
    const WINDOW_MAX: u32 = (1 << 31) - 1;
    const WINDOW_FIRST: u32 = (1 << 16) - 1;
    const FRAME_MAX: u32 = (1 << 24) - 1;
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        out.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(FRAME_MAX).to_be_bytes()[1..]);
        out.extend_from_slice(&[kind, flags]);
        out.extend_from_slice(&stream.to_be_bytes());
        out.extend_from_slice(payload);
    };
    // The initial window of a stream is setting 4, the largest frame setting 5.
    let settings = [(4u16, WINDOW_MAX), (5, FRAME_MAX)];
    let settings: Vec<u8> = settings
        .iter()
        .flat_map(|(key, value)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &settings);
    frame(WINDOW_UPDATE, 0, 0, &(WINDOW_MAX - WINDOW_FIRST).to_be_bytes());
    // That of the server, which it sends first.
    frame(SETTINGS, ACK, 0, &[]);
    let mut stream = 1;
    for number in numbers {
        let path = path.replace(NUMBER, &format!("{number:02}"));
        // GET and http by their indexes, then names by theirs, with values that are not to be remembered.
        let mut head = vec![0x82, 0x86];
        for (name, value) in
            [(&[0x04][..], path), (&[0x01], address.to_string()), (&[0x0f, 0x04], "text/event-stream".into())]
        {
            head.extend_from_slice(name);
            match value.len() {
                short @ 0..127 => head.push(short as u8),
                // In two more bytes of seven bits each.
                long => head.extend_from_slice(&[
                    127,
                    ((long - 127) & 127) as u8 | 128,
                    ((long - 127) >> 7) as u8,
                ]),
            }
            head.extend_from_slice(value.as_bytes());
        }
        frame(HEADERS, END_STREAM_AND_HEADERS, stream, &head);
        stream += 2;
    }
    out
}

/// Requests a stream as an EventSource does; after any other answer the connection ends.
fn request(address: SocketAddr, path: &str, number: usize) -> String {
    let path = path.replace(NUMBER, &format!("{number:02}"));
    let mut parts = path.split('#');
    let path = parts.next().unwrap_or_default();
    let fields: String = parts.map(|field| format!("{field}\r\n")).collect();
    let is_snapshot = path.starts_with("/v1/snapshot/");
    let connection = if is_snapshot { "Connection: close\r\n" } else { "" };
    let accept = if is_snapshot || path.starts_with("/api/") { "*/*" } else { "text/event-stream" };
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n{connection}{fields}\r\n")
}

async fn connect(address: SocketAddr, request: Option<&[u8]>) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    if let Some(request) = request {
        stream.write_all(request).await?;
    }
    Ok(stream)
}

/// Reads until the end, all sockets into one buffer.
async fn read(mut stream: TcpStream, counts: &Counts, buffer: &RefCell<Vec<u8>>, measure: Measure) {
    if measure == Measure::Stall {
        return pending().await;
    }
    let mut ends = FrameEnds::default();
    let mut begins = EventBegins::default();
    let mut times = Times::default();
    // The buffer is shared by all clients, so it is borrowed within one poll only.
    let mut step = |stream: &mut TcpStream, context: &mut std::task::Context<'_>| {
        let mut buffer = buffer.borrow_mut();
        let mut filled = ReadBuf::new(&mut buffer);
        let outcome = ready!(Pin::new(stream).poll_read(context, &mut filled));
        let bytes = filled.filled();
        if outcome.is_err() || bytes.is_empty() {
            return Poll::Ready(false);
        }
        if !matches!(measure, Measure::Count | Measure::Events | Measure::Http2) {
            times.take(bytes, counts, measure);
        }
        counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let frames = if measure == Measure::Events { begins.count(bytes) } else { ends.count(bytes) };
        counts.frames.fetch_add(frames, Ordering::Relaxed);
        Poll::Ready(true)
    };
    while poll_fn(|context| step(&mut stream, context)).await {}
}

/// Counts the ends of frames, which are empty lines, across reads.
#[derive(Default)]
struct FrameEnds {
    after_line: bool,
}

impl FrameEnds {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let split = self.after_line && bytes.first() == Some(&b'\n');
        self.after_line = bytes.last() == Some(&b'\n');
        let whole = memchr::memmem::find_iter(bytes, b"\n\n").count();
        whole as u64 + u64::from(split)
    }
}

/// Counts the beginnings of events of a Kubernetes watch, across reads.
#[derive(Default)]
struct EventBegins {
    /// The end of the previous read. It may have the beginning of a mark, but no whole one.
    tail: Vec<u8>,
}

/// A text near the beginning of every event of a change, which no object contains.
static BEGIN: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(br#""MODIFIED","object":{"#).into_owned());

impl EventBegins {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        // One byte shorter than a mark, so that a mark found across reads began in the previous one.
        let less = BEGIN.needle().len() - 1;
        self.tail.extend_from_slice(&bytes[..bytes.len().min(less)]);
        let across = BEGIN.find(&self.tail).is_some();
        let whole = BEGIN.find_iter(bytes).count();
        self.tail.drain(..self.tail.len() - self.tail.len().min(less));
        if bytes.len() >= less {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - less..]);
        }
        whole as u64 + u64::from(across)
    }
}

/// Finds the times of changes, across reads.
#[derive(Default)]
struct Times {
    /// The end of the previous read. It may have the beginning of a time, but no whole one.
    tail: Vec<u8>,
}

/// Finds the text before a time.
static STAMP: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(&stamp_prefix()).into_owned());

impl Times {
    fn take(&mut self, bytes: &[u8], counts: &Counts, measure: Measure) {
        let now = micros_since_1970();
        // One byte shorter than a text with its time, so that a time found here began in the previous read.
        let less = STAMP.needle().len() + STAMP_DIGITS - 1;
        self.tail.extend_from_slice(&bytes[..bytes.len().min(less)]);
        let mut arrivals = counts.arrivals();
        for text in [&*self.tail, bytes] {
            for at in STAMP.find_iter(text) {
                let start = at + STAMP.needle().len();
                let digits = text.get(start..start + STAMP_DIGITS).unwrap_or_default();
                let changed = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
                if let Some(changed) = changed {
                    arrivals.take(changed, now, measure);
                }
            }
        }
        drop(arrivals);
        if bytes.len() >= less {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - less..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(less));
        }
    }
}

impl Arrivals {
    fn take(&mut self, changed: u64, now: u64, measure: Measure) {
        if measure == Measure::Last {
            let (clients, last) = self.last.entry(changed).or_default();
            (*clients, *last) = (*clients + 1, now);
        } else {
            self.latencies.push(u32::try_from(now.saturating_sub(changed)).unwrap_or(u32::MAX));
        }
    }
}
