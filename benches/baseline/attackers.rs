//! Clients that cause the most work and memory that the limits allow, in a process of their own.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use socket2::SockRef;

use crate::process::Process;

/// What an attacker repeats.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Lists everything, compressed by gzip.
    ListGzip,
    /// Lists everything, compressed by zstd.
    ListZstd,
    /// Lists everything as a table.
    Table,
    /// Lists with the largest number of selector terms, none of which has an index.
    Terms,
    /// Lists with a condition of nearly the largest allowed cost.
    Condition,
    /// Looks up values of an index, over another path each time.
    Index,
    /// Follows everything over HTTP/2 on many streams, and takes 64 KiB of their first states.
    ClosedWindow,
    /// Follows everything and reads 20 KB a second.
    Slow,
    /// Follows everything, and resets the connection after the first byte.
    Vanishes,
    /// Resumes from invented tokens.
    Token,
}

const ATTACKS: [Attack; 10] = [
    Attack::ListGzip,
    Attack::ListZstd,
    Attack::Table,
    Attack::Terms,
    Attack::Condition,
    Attack::Index,
    Attack::ClosedWindow,
    Attack::Slow,
    Attack::Vanishes,
    Attack::Token,
];

/// Number of terms of a selector: the maximum.
const TERMS: u64 = 64;
/// Comparisons within the loops of a condition: nearly the largest allowed cost for the simulator's pods.
const COMPARISONS: u64 = 40;
/// Number of bytes that a slow reader takes at once, and how often.
const SLOW_BYTES: usize = 2_000;
const SLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Number of streams of one HTTP/2 connection.
const STREAMS: u32 = 20;
/// Lifetime of such a connection.
const CLOSED_FOR: Duration = Duration::from_secs(5);
/// Pause of an attacker that resets its connection, or got a short answer.
const PAUSE: Duration = Duration::from_millis(5);
/// Number of bytes that an attacker with a token takes.
const TOKEN_BYTES: u64 = 256 << 10;
/// Longest wait for bytes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Running attackers; dropping this ends them.
pub(crate) struct Attackers(Process);

impl Attackers {
    /// Starts this number of attackers, divided evenly among the kinds.
    pub(crate) fn start(address: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let mut process = Process::role("attackers")?;
        process.send(&format!("{address} {count}"))?;
        Ok(Self(process))
    }

    /// How often each kind of attack was begun so far.
    pub(crate) fn done(&mut self) -> anyhow::Result<Vec<(String, f64)>> {
        let answer = self.0.ask("done")?;
        let parts = answer.split_whitespace().filter_map(|part| part.split_once('='));
        parts.map(|(name, count)| Ok((name.to_owned(), count.parse()?))).collect()
    }
}

/// Plays the role until standard input ends. The first line has the address and the count; further lines ask for the
/// counts.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let line = lines.next().context("nothing to do")??;
    let (address, count) = line.split_once(' ').context("an address and a count")?;
    let (address, count): (SocketAddr, u64) = (address.parse()?, count.parse()?);
    let done: Arc<Vec<AtomicU64>> = Arc::new(ATTACKS.iter().map(|_| AtomicU64::new(0)).collect());
    for number in 0..count {
        let done = done.clone();
        std::thread::spawn(move || {
            let kind = usize::try_from(number).unwrap_or(0) % ATTACKS.len();
            for round in (number..).step_by(1000) {
                // A refused or ended request is a valid result of an attack.
                let _ = ATTACKS[kind].begin(address, round);
                done[kind].fetch_add(1, Ordering::Relaxed);
                sleep(PAUSE);
            }
        });
    }
    for line in lines {
        let line = line?;
        if line != "done" {
            bail!("unknown command {line:?}");
        }
        let counts = ATTACKS.iter().zip(&*done);
        let shown = counts.map(|(attack, count)| format!("{attack:?}={}", count.load(Ordering::Relaxed)));
        println!("{}", shown.collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

impl Attack {
    fn begin(self, address: SocketAddr, round: u64) -> std::io::Result<()> {
        let all = |path: &str, headers: &str| read(ask(address, path, headers)?, u64::MAX);
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        match self {
            Self::ListGzip => all("/v1/snapshot/pods", "Accept-Encoding: gzip\r\n"),
            Self::ListZstd => all("/v1/snapshot/pods", "Accept-Encoding: zstd\r\n"),
            Self::Table => all(
                "/api/v1/pods",
                "Accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\nAccept-Encoding: gzip\r\n",
            ),
            Self::Terms => {
                let terms: Vec<_> = (0..TERMS).map(|at| format!("status.phase!=no-{round}-{at}")).collect();
                all(&format!("/v1/snapshot/pods?fieldSelector={}", encoded(&terms.join(","))), "")
            }
            Self::Condition => {
                let compares: Vec<_> =
                    (0..COMPARISONS).map(|at| format!("a.type!='{}'", round + at)).collect();
                let list = "object.status.conditions";
                let condition = format!("{list}.all(a,{list}.all(b,{list}.all(c,{})))", compares.join("&&"));
                all(&format!("/v1/snapshot/pods?where={}", encoded(&condition)), "")
            }
            Self::Index => all(&format!("/v1/index/pods/spec.path{round}/value"), ""),
            Self::ClosedWindow => closed_window(address),
            Self::Slow => slow(ask(address, "/v1/watch/pods", "Accept: text/event-stream\r\n")?),
            Self::Vanishes => {
                let mut socket = ask(address, "/v1/watch/pods", "")?;
                let read = socket.read(&mut [0; 1]);
                // Without linger, closing resets the connection.
                SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
                read.map(drop)
            }
            Self::Token => {
                let token = format!("Accept: text/event-stream\r\nLast-Event-ID: pods:{}\r\n", round * 7919);
                read(ask(address, "/v1/watch/pods", &token)?, TOKEN_BYTES)
            }
        }
    }
}

fn ask(address: SocketAddr, path: &str, headers: &str) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    Ok(socket)
}

/// Reads to the end, or up to this number of bytes.
fn read(mut socket: TcpStream, bytes_max: u64) -> std::io::Result<()> {
    let (mut buffer, mut count) = (vec![0; 64 << 10], 0);
    while count < bytes_max {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => count += read as u64,
            // Work within the limits may take long, so the client waits.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn slow(mut socket: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; SLOW_BYTES];
    while socket.read(&mut buffer)? > 0 {
        sleep(SLOW_INTERVAL);
    }
    Ok(())
}

/// Begins streams over HTTP/2 and never opens their windows (RFC 9113 section 6.9).
fn closed_window(address: SocketAddr) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, 4, 0, 0, &[]);
    // The acknowledgement of the server's settings.
    frame(&mut bytes, 4, 1, 0, &[]);
    for stream in 0..STREAMS {
        let mut head = Vec::new();
        let authority = address.to_string();
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/v1/watch/pods"),
            (":authority", &authority),
        ];
        for (name, value) in fields {
            // A literal without indexing, both parts without Huffman coding (RFC 7541 section 6.2.2).
            head.push(0);
            for part in [name, value] {
                head.push(u8::try_from(part.len()).unwrap_or(0));
                head.extend_from_slice(part.as_bytes());
            }
        }
        // HEADERS with END_HEADERS and END_STREAM.
        frame(&mut bytes, 1, 5, 1 + 2 * stream, &head);
    }
    socket.write_all(&bytes)?;
    let (began, mut buffer) = (Instant::now(), vec![0; 64 << 10]);
    while began.elapsed() < CLOSED_FOR {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}
