//! Servers of the same bytes, in processes of their own, that informerd is compared with.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use crate::process::{Process, Usage};
use crate::server::wait_until;
use crate::simulator::Rhythm;

/// What a peer sends: at the rhythm of informerd's events, with frames of their size.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) rhythm: Rhythm,
    /// Time between the events of a burst.
    pub(crate) spacing: Duration,
    /// Size of a frame on the wire, in bytes.
    pub(crate) frame_bytes: usize,
}

/// A server in another process.
pub(crate) struct Peer {
    process: RefCell<Process>,
    pub(crate) address: SocketAddr,
}

impl Load {
    /// When an event is due, from the beginning.
    pub(crate) fn due_at(&self, event: usize) -> Duration {
        let (tick, within) = (event / self.rhythm.events_per_tick, event % self.rhythm.events_per_tick);
        let times = |interval: Duration, count| interval * u32::try_from(count).unwrap_or(u32::MAX);
        times(self.rhythm.interval, tick) + times(self.spacing, within)
    }

    /// The load as words of a command.
    fn words(&self) -> String {
        let Rhythm { ticks, events_per_tick, interval } = self.rhythm;
        let (interval, spacing) = (interval.as_micros(), self.spacing.as_micros());
        format!("{ticks} {events_per_tick} {interval} {spacing} {}", self.frame_bytes)
    }

    /// Parses the words of a command.
    pub(crate) fn parse(words: &[&str]) -> anyhow::Result<Self> {
        let [ticks, events_per_tick, interval, spacing, frame_bytes] = words else {
            anyhow::bail!("expected five words, not {words:?}");
        };
        let interval = Duration::from_micros(interval.parse()?);
        let rhythm = Rhythm { ticks: ticks.parse()?, events_per_tick: events_per_tick.parse()?, interval };
        let spacing = Duration::from_micros(spacing.parse()?);
        Ok(Self { rhythm, spacing, frame_bytes: frame_bytes.parse()? })
    }
}

impl Peer {
    /// A loop that writes to every connected socket.
    pub(crate) fn plain() -> anyhow::Result<Self> {
        Self::start("plain")
    }

    /// As many loops as there are cores. Each writes to its share of the connected sockets.
    pub(crate) fn plain_on_each_core() -> anyhow::Result<Self> {
        let peer = Self::plain()?;
        let cores = std::thread::available_parallelism()?;
        peer.ask(&format!("loops {cores}"))?;
        Ok(peer)
    }

    /// A loop that answers every request with the same bytes.
    pub(crate) fn responder(answer_bytes: usize) -> anyhow::Result<Self> {
        let peer = Self::start("responder")?;
        peer.ask(&answer_bytes.to_string())?;
        Ok(peer)
    }

    /// An axum server with a broadcast channel.
    pub(crate) fn axum() -> anyhow::Result<Self> {
        Self::start("axum")
    }

    fn start(role: &str) -> anyhow::Result<Self> {
        let mut process = Process::role(role)?;
        let address = process.receive()?.parse()?;
        Ok(Self { process: RefCell::new(process), address })
    }

    fn ask(&self, line: &str) -> anyhow::Result<String> {
        self.process.borrow_mut().ask(line)
    }

    /// Waits until this number of clients is connected.
    pub(crate) fn connected(&self, count: usize) -> anyhow::Result<()> {
        let count = count.to_string();
        wait_until("a peer's clients", || self.ask("count").is_ok_and(|answer| answer == count))
    }

    /// Sends frames to every client, at the rhythm and spacing of informerd's events.
    pub(crate) fn frames(&self, load: &Load) -> anyhow::Result<()> {
        self.ask(&format!("frames {}", load.words())).map(drop)
    }

    /// Writes this number of bytes to every socket, in turns, and closes them.
    pub(crate) fn stream(&self, bytes: usize) -> anyhow::Result<()> {
        self.ask(&format!("stream {bytes}")).map(drop)
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.process.borrow().usage()
    }
}
