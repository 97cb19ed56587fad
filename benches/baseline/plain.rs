//! The roles of the limit: loops that do nothing but write to sockets.

use std::io::{BufRead as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::process::{Process, Usage};
use crate::server::wait_until;
use crate::simulator::{Changed, Rhythm};

/// What informerd sets on its sockets by default.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// What the kernel would give a socket that is not limited.
const STREAM_BUFFER_BYTES: usize = 4 << 20;
/// informerd's largest batch by default.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// A plain loop in another process.
pub(crate) struct Plain {
    process: Process,
    pub(crate) address: SocketAddr,
}

impl Plain {
    /// A loop that writes to every connected socket.
    pub(crate) fn writer() -> anyhow::Result<Self> {
        Self::start("plain")
    }

    /// A loop that answers every request with the same bytes.
    pub(crate) fn responder(answer_bytes: usize) -> anyhow::Result<Self> {
        let mut plain = Self::start("responder")?;
        plain.process.ask(&answer_bytes.to_string())?;
        Ok(plain)
    }

    fn start(role: &str) -> anyhow::Result<Self> {
        let mut process = Process::role(role)?;
        let address = process.receive()?.parse()?;
        Ok(Self { process, address })
    }

    /// Waits until so many sockets are connected.
    pub(crate) fn connected(&mut self, count: usize) -> anyhow::Result<()> {
        let count = count.to_string();
        let Self { process, .. } = self;
        wait_until("the plain loop's clients", || process.ask("count").is_ok_and(|answer| answer == count))
    }

    /// Writes frames to every socket at the rhythm and spacing of the events that informerd got.
    pub(crate) fn frames(&mut self, rhythm: Rhythm, changed: &Changed, bytes: usize) -> anyhow::Result<()> {
        let Rhythm { ticks, events_per_tick, interval } = rhythm;
        let (interval, spacing) = (interval.as_micros(), changed.spacing.as_micros());
        self.process.ask(&format!("frames {ticks} {events_per_tick} {interval} {spacing} {bytes}")).map(drop)
    }

    /// Writes bytes to the socket that connected last, and closes it.
    pub(crate) fn stream(&mut self, bytes: usize) -> anyhow::Result<()> {
        self.process.ask(&format!("stream {bytes}")).map(drop)
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.process.usage()
    }
}

/// Plays the write loop until standard input ends.
pub(crate) fn run_writer() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let sockets: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let accepted = sockets.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let options = SockRef::from(&socket);
            // As informerd does; each is an improvement, none a need.
            let _ = options.set_tcp_nodelay(true);
            let _ = options.set_send_buffer_size(SEND_BUFFER_BYTES);
            #[cfg(target_os = "linux")]
            let _ = options.set_tcp_notsent_lowat(u32::try_from(SEND_BUFFER_BYTES / 2).unwrap_or(u32::MAX));
            accepted.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        }
    });
    let mut content = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["count"] => println!("{}", sockets.len()),
            ["frames", ticks, events_per_tick, interval, spacing, bytes] => {
                let (ticks, events_per_tick) = (ticks.parse()?, events_per_tick.parse()?);
                let interval = Duration::from_micros(interval.parse()?);
                let rhythm = Rhythm { ticks, events_per_tick, interval };
                write_frames(&mut sockets, rhythm, Duration::from_micros(spacing.parse()?), bytes.parse()?)?;
                println!("written");
            }
            ["stream", bytes] => {
                let mut socket = sockets.pop().context("no socket")?;
                // One socket may have what it wants.
                let options = SockRef::from(&socket);
                let _ = options.set_send_buffer_size(STREAM_BUFFER_BYTES);
                #[cfg(target_os = "linux")]
                let _ = options.set_tcp_notsent_lowat(u32::MAX);
                // All of it in memory, as informerd has it: a small piece again and again would come from the
                // processor's cache.
                content.resize(bytes.parse()?, b'.');
                for piece in content.chunks(BATCH_BYTES_MAX) {
                    socket.write_all(piece)?;
                }
                drop(socket);
                println!("written");
            }
            _ => bail!("unknown command {line:?}"),
        }
    }
    Ok(())
}

/// Writes all frames that are due, in one write to each socket, until there are none left: it batches as soon
/// as it cannot keep up, as informerd does.
fn write_frames(
    sockets: &mut [TcpStream],
    rhythm: Rhythm,
    spacing: Duration,
    frame_bytes: usize,
) -> anyhow::Result<()> {
    let frame: Vec<u8> = std::iter::repeat_n(b'.', frame_bytes - 2).chain(*b"\n\n").collect();
    let batch_len_max = (BATCH_BYTES_MAX / frame_bytes).max(1);
    let batch = frame.repeat(batch_len_max);
    let due_at = |event: usize| {
        let (tick, within) = (event / rhythm.events_per_tick, event % rhythm.events_per_tick);
        let times = |interval: Duration, count| interval * u32::try_from(count).unwrap_or(u32::MAX);
        times(rhythm.interval, tick) + times(spacing, within)
    };
    let began = Instant::now();
    let mut written = 0;
    while written < rhythm.events() {
        sleep(due_at(written).saturating_sub(began.elapsed()));
        let now = began.elapsed();
        let mut due = 1;
        while due < batch_len_max && written + due < rhythm.events() && due_at(written + due) <= now {
            due += 1;
        }
        for socket in &mut *sockets {
            socket.write_all(&batch[..due * frame_bytes])?;
        }
        written += due;
    }
    Ok(())
}

/// Answers whatever ends with an empty line, on as many threads as informerd has.
pub(crate) fn run_responder() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    println!("{}", listener.local_addr()?);
    let mut lines = std::io::stdin().lock().lines();
    let bytes: usize = lines.next().context("the bytes of an answer")??.parse()?;
    let answer: Arc<[u8]> = std::iter::repeat_n(b'.', bytes - 4).chain(*b"\r\n\r\n").collect();
    runtime.spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let _ = socket.set_nodelay(true);
                let mut request = vec![0; 8 << 10];
                let mut filled = 0;
                while let Ok(count @ 1..) = socket.read(&mut request[filled..]).await {
                    filled += count;
                    if request[..filled].ends_with(b"\r\n\r\n") {
                        filled = 0;
                        if socket.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    println!("ready");
    // The end of standard input is the end of the role.
    for line in lines {
        line?;
    }
    Ok(())
}
