//! informerd as a process, in front of a simulator in another process.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;

use crate::process::{Process, Usage};

/// A running `informerd serve`.
pub(crate) struct Server {
    process: Process,
    /// The data listener.
    pub(crate) address: SocketAddr,
}

/// Time limit of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Settings for measurements that count frames: events only, no client is cut off, and room for all clients.
pub(crate) const QUIET: [&str; 8] = [
    "--heartbeat-interval",
    "30m",
    "--bookmark-interval",
    "1h",
    "--write-stall-timeout",
    "1h",
    "--connections-max",
    "12000",
];

impl Server {
    /// Starts it and waits until its informers are complete. Returns the time that this took.
    pub(crate) fn start(url: &str, watches: &[&str], flags: &[&str]) -> anyhow::Result<(Self, Duration)> {
        // A port that was free a moment ago; it is unlikely that another process takes just this one.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
        command.args(["serve", "--server", url, "--admin-listen", "off", "--log", "warn"]);
        command.args(["--listen", &address.to_string()]);
        command.args(watches.iter().flat_map(|watch| ["--watch", watch])).args(flags);
        let began = Instant::now();
        let server = Self { process: Process::spawn(command)?, address };
        let complete = |server: &Self| {
            let informers = server.informers().unwrap_or_default();
            informers.len() == watches.len() && informers.iter().all(|informer| informer["synced"] == true)
        };
        while !complete(&server) {
            anyhow::ensure!(began.elapsed() < PATIENCE, "informerd is not complete");
            sleep(Duration::from_millis(5));
        }
        Ok((server, began.elapsed()))
    }

    /// The informers, as `/v1/resources` shows them.
    pub(crate) fn informers(&self) -> anyhow::Result<Vec<Value>> {
        let answer = get(self.address, "/v1/resources")?;
        let resources: Value = serde_json::from_slice(&answer)?;
        Ok(resources["informers"].as_array().cloned().unwrap_or_default())
    }

    /// The number of its subscribers.
    pub(crate) fn subscribers(&self) -> anyhow::Result<u64> {
        let resources: Value = serde_json::from_slice(&get(self.address, "/v1/resources")?)?;
        resources["subscribers"].as_u64().context("no subscribers in /v1/resources")
    }

    /// Its usage so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.process.usage()
    }

    /// Resets the peak of its memory.
    pub(crate) fn reset_peak(&self) -> anyhow::Result<()> {
        self.process.reset_peak()
    }
}

/// The body of an answer with a length.
pub(crate) fn get(address: SocketAddr, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    anyhow::ensure!(answer.starts_with(b"HTTP/1.1 200 "), "{path}: {}", String::from_utf8_lossy(&answer));
    let end = memchr::memmem::find(&answer, b"\r\n\r\n").context("an answer without a head")?;
    Ok(answer.split_off(end + 4))
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let began = Instant::now();
    while !holds() {
        anyhow::ensure!(began.elapsed() < PATIENCE, "waited too long for {what}");
        sleep(Duration::from_millis(1));
    }
    Ok(())
}
