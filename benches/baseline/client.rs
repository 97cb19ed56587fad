//! Cheap clients: one thread reads all sockets into one buffer, counts, and forgets.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};
use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use crate::server::wait_until;
use crate::simulator::{CHANGED_AT, micros_since_1970};

/// Connected clients; they leave when this is dropped.
pub(crate) struct Readers {
    counts: Arc<Counts>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

/// What the clients have seen together.
#[derive(Default)]
struct Counts {
    frames: AtomicU64,
    bytes: AtomicU64,
    connected: AtomicUsize,
    lost: AtomicUsize,
    /// From a change in the API server to its arrival, in microseconds.
    latencies: Mutex<Vec<u32>>,
}

/// What clients do beside counting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Nothing.
    Count,
    /// Read each event's annotation with the time of its change.
    Latency,
}

/// Bytes read in one go.
const READ_BYTES: usize = 256 << 10;
/// Connections under way at once.
const CONNECTING_MAX: usize = 64;
/// Digits of the annotation.
const DIGITS: usize = 16;

impl Readers {
    /// Connects `count` clients that ask for `path`, or only connect where there is none.
    pub(crate) fn connect(
        address: SocketAddr,
        count: usize,
        path: Option<&str>,
        measure: Measure,
    ) -> anyhow::Result<Self> {
        let (counts, stop) = (Arc::new(Counts::default()), CancellationToken::new());
        let request = path.map(|path| {
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n")
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (counted, stopped) = (counts.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let readers = async {
                let buffer = Rc::new(RefCell::new(vec![0; READ_BYTES]));
                let connecting = Arc::new(Semaphore::new(CONNECTING_MAX));
                for _ in 0..count {
                    let place = connecting.clone().acquire_owned().await;
                    let (counts, buffer, request) = (counted.clone(), buffer.clone(), request.clone());
                    tokio::task::spawn_local(async move {
                        let stream = connect(address, request.as_deref()).await;
                        drop(place);
                        if let Ok(stream) = stream {
                            counts.connected.fetch_add(1, Ordering::Relaxed);
                            read(stream, &counts, &buffer, measure).await;
                        }
                        counts.lost.fetch_add(1, Ordering::Relaxed);
                    });
                }
                stopped.cancelled().await;
            };
            LocalSet::new().block_on(&runtime, readers);
        });
        let readers = Self { counts, stop, thread: Some(thread) };
        let connected = || {
            let done = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
            done(&readers.counts.connected) + done(&readers.counts.lost) >= count
        };
        wait_until("clients to connect", connected)?;
        anyhow::ensure!(readers.lost() == 0, "{} of {count} clients could not connect", readers.lost());
        Ok(readers)
    }

    /// Frames received so far, by all.
    pub(crate) fn frames(&self) -> u64 {
        self.counts.frames.load(Ordering::Relaxed)
    }

    /// Bytes received so far, by all.
    pub(crate) fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }

    /// Clients whose connection ended.
    pub(crate) fn lost(&self) -> usize {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// Waits until all have received so many frames.
    pub(crate) fn wait_for(&self, frames: u64) -> anyhow::Result<()> {
        let arrived = wait_until("frames", || self.frames() >= frames || self.lost() > 0);
        anyhow::ensure!(self.lost() == 0, "{} clients were cut off", self.lost());
        arrived.with_context(|| format!("{} of {frames} frames came", self.frames()))
    }

    /// Takes the latencies gathered since the last time, sorted, in microseconds.
    pub(crate) fn take_latencies(&self) -> Vec<u32> {
        let mut latencies =
            std::mem::take(&mut *self.counts.latencies.lock().unwrap_or_else(PoisonError::into_inner));
        latencies.sort_unstable();
        latencies
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic there has shown itself already.
            let _ = thread.join();
        }
    }
}

async fn connect(address: SocketAddr, request: Option<&str>) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    if let Some(request) = request {
        stream.write_all(request.as_bytes()).await?;
    }
    Ok(stream)
}

/// Reads until the end, all sockets into one buffer.
async fn read(mut stream: TcpStream, counts: &Counts, buffer: &RefCell<Vec<u8>>, measure: Measure) {
    let mut ends = FrameEnds::default();
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
        if measure == Measure::Latency {
            times.take(bytes, counts);
        }
        counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        counts.frames.fetch_add(ends.count(bytes), Ordering::Relaxed);
        Poll::Ready(true)
    };
    while poll_fn(|context| step(&mut stream, context)).await {}
}

/// Counts the ends of frames, empty lines, across reads.
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

/// Finds the times of changes, across reads.
#[derive(Default)]
struct Times {
    /// What was not yet searched, at the end of the last read, and what follows it.
    window: Vec<u8>,
}

impl Times {
    fn take(&mut self, bytes: &[u8], counts: &Counts) {
        let needle = format!(r#""{CHANGED_AT}":""#);
        let now = micros_since_1970();
        self.window.extend_from_slice(bytes);
        let mut searched = self.window.len().saturating_sub(needle.len() + DIGITS - 1);
        let mut latencies = counts.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        for at in memchr::memmem::find_iter(&self.window, needle.as_bytes()) {
            let start = at + needle.len();
            let Some(digits) = self.window.get(start..start + DIGITS) else { break };
            searched = searched.max(start + DIGITS);
            let changed = std::str::from_utf8(digits).ok().and_then(|text| text.parse::<u64>().ok());
            if let Some(changed) = changed {
                latencies.push(u32::try_from(now.saturating_sub(changed)).unwrap_or(u32::MAX));
            }
        }
        self.window.drain(..searched);
    }
}
