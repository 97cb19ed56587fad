//! How far the peers of connections acknowledge what is written to them.
//!
//! A connection must end where its peer takes nothing, and must not end where it takes little. What a socket says of itself does
//! not tell them apart: it takes bytes again only once a third of its buffer is free, and the kernel's own timeout
//! (`TCP_USER_TIMEOUT`) also ends connections whose peers read, but so slowly that their window never holds a whole segment. So
//! the kernel's table of sockets is read every few seconds while bytes are on their way: it says for each socket how many bytes are
//! not acknowledged yet.
//!
//! Why a table, and not a question to each socket (`SIOCOUTQ`): that takes `unsafe` code. The table of 12,000 sockets is read in
//! 19 ms, at most each 10 s with the default timeout.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
#[cfg(target_os = "linux")]
use procfs::ProcError;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;

use super::metrics;

/// Looks at the table in the time that a peer may take nothing.
const LOOKS: u32 = 6;

/// Longest time between two looks, and the shortest.
const LOOK_MAX: Duration = Duration::from_secs(10);
const LOOK_MIN: Duration = Duration::from_millis(100);

/// A connection: the port it came to, and its peer.
type Ends = (u16, SocketAddr);

/// The connections of a listener.
pub(super) struct Acknowledged {
    connections: Mutex<HashMap<Ends, Watched>>,
    /// How long a peer may take nothing.
    timeout: Duration,
}

/// What one connection and who watches it have in common.
#[derive(Default)]
pub(super) struct Progress {
    /// Bytes that the socket has taken.
    written: AtomicU64,
    /// Whether the peer has taken nothing for too long.
    stalled: AtomicBool,
    /// Wakes the write that waits.
    writer: AtomicWaker,
}

struct Watched {
    progress: Weak<Progress>,
    acknowledged: u64,
    /// When `acknowledged` last rose, or nothing was left to acknowledge.
    since: Instant,
}

impl Progress {
    /// The socket took bytes. Only the connection itself calls this.
    pub(super) fn wrote(&self, bytes: usize) {
        // With one writer no addition can be lost.
        self.written.store(self.written.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    /// Whether the peer has taken nothing for too long.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// Whether the peer has taken nothing for too long; wakes when that comes.
    pub(super) fn poll_stalled(&self, context: &Context<'_>) -> bool {
        self.writer.register(context.waker());
        self.is_stalled()
    }

    fn stall(&self) {
        if !self.stalled.swap(true, Ordering::AcqRel) {
            metrics::write_stall();
        }
        self.writer.wake();
    }
}

impl Acknowledged {
    /// For connections whose peers may take nothing for this long. `None` where the kernel shows no table.
    pub(super) fn new(timeout: Duration) -> Option<Arc<Self>> {
        unacknowledged().map(|_| Arc::new(Self { connections: Mutex::default(), timeout }))
    }

    /// Watches a connection for as long as what is returned lives.
    pub(super) fn watch(&self, port: u16, peer: SocketAddr, now: Instant) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        let watched = Watched { progress: Arc::downgrade(&progress), acknowledged: 0, since: now };
        self.lock().insert((port, canonical(peer)), watched);
        progress
    }

    /// Looks at the table now and then, for ever.
    pub(super) async fn run(&self) {
        let mut looks = interval((self.timeout / LOOKS).clamp(LOOK_MIN, LOOK_MAX));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            // Before the table is read: what is written meanwhile only makes a peer look slower than it is, once.
            let written = self.written(Instant::now());
            if written.is_empty() {
                continue;
            }
            match tokio::task::spawn_blocking(unacknowledged).await {
                Ok(Some(table)) => self.judge(&written, &table, Instant::now()),
                Ok(None) | Err(_) => {
                    warn!("the kernel's table of sockets cannot be read: nobody is closed for taking nothing")
                }
            }
        }
    }

    /// What was written to each connection whose peer may not have taken all of it. Forgets connections that are over.
    ///
    /// Where all peers have taken everything, the table need not be read. It has a row for each socket of the machine or pod.
    fn written(&self, now: Instant) -> HashMap<Ends, u64> {
        let mut connections = self.lock();
        connections.retain(|_, watched| watched.progress.strong_count() > 0);
        let mut waiting = HashMap::new();
        for (ends, watched) in connections.iter_mut() {
            let written = watched.progress.upgrade().map(|progress| progress.written.load(Ordering::Relaxed));
            match written {
                Some(written) if written != watched.acknowledged => drop(waiting.insert(*ends, written)),
                // Its peer has everything, so that the time begins with the next byte.
                _ => watched.since = now,
            }
        }
        waiting
    }

    /// Ends what makes no progress.
    fn judge(&self, written: &HashMap<Ends, u64>, table: &HashMap<Ends, u32>, now: Instant) {
        for (ends, watched) in self.lock().iter_mut() {
            let Some(written) = written.get(ends) else { continue };
            // The kernel may leave out a socket while others come and go. That is no progress.
            let Some(left) = table.get(ends).copied() else { continue };
            let acknowledged = written.saturating_sub(left.into());
            if left == 0 || acknowledged > watched.acknowledged {
                (watched.acknowledged, watched.since) = (acknowledged.max(watched.acknowledged), now);
            } else if now.saturating_duration_since(watched.since) >= self.timeout
                && let Some(progress) = watched.progress.upgrade()
            {
                progress.stall();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ends, Watched>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An address of IPv4, also where the socket shows it as one of IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The bytes that each connection of this network namespace has written and its peer has not acknowledged. `None` where
/// the kernel does not say.
#[cfg(target_os = "linux")]
fn unacknowledged() -> Option<HashMap<Ends, u32>> {
    let mut entries = procfs::net::tcp().ok()?;
    match procfs::net::tcp6() {
        Ok(more) => entries.extend(more),
        // A machine may have no IPv6.
        Err(ProcError::NotFound(_)) => {}
        Err(_) => return None,
    }
    let left = entries
        .iter()
        .map(|entry| ((entry.local_address.port(), canonical(entry.remote_address)), entry.tx_queue));
    Some(left.collect())
}

#[cfg(not(target_os = "linux"))]
fn unacknowledged() -> Option<HashMap<Ends, u32>> {
    None
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5);
    const ENDS: Ends = (80, PEER);
    /// In place of the bytes not acknowledged: the table has no row for the connection.
    const MISSING: u32 = u32::MAX;

    /// Looks at a connection each second: bytes written since, and bytes not acknowledged yet. Returns the look at
    /// which the connection counts as stalled.
    fn stalls_after(looks: &[(usize, u32)]) -> Option<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut now = runtime.block_on(async { Instant::now() });
        let all = Acknowledged { connections: Mutex::default(), timeout: Duration::from_secs(3) };
        let progress = all.watch(80, PEER, now);
        looks.iter().position(|(wrote, left)| {
            progress.wrote(*wrote);
            now += Duration::from_secs(1);
            let table = (*left != MISSING).then_some((ENDS, *left));
            all.judge(&all.written(now), &table.into_iter().collect(), now);
            progress.poll_stalled(&Context::from_waker(Waker::noop()))
        })
    }

    #[test]
    fn a_slow_peer_stays_open_and_a_stalled_one_is_closed() {
        // As much is written as is acknowledged, so that the rest stays equal.
        assert_eq!(
            stalls_after(&[(1000, 1000), (1, 1000), (1, 1000), (1, 1000), (1, 1000), (1, 1000)]),
            None
        );
        assert_eq!(stalls_after(&[(1000, 1000), (0, 1000), (0, 1000), (0, 1000)]), Some(2));
        // Bytes written meanwhile are no progress.
        assert_eq!(stalls_after(&[(1000, 1000), (9, 1009), (9, 1018), (9, 1027)]), Some(2));
        // A look that does not find the socket tells nothing.
        assert_eq!(stalls_after(&[(1000, MISSING), (0, 1000), (0, MISSING), (0, 1000)]), Some(3));
        // A client that has everything may be silent.
        assert_eq!(stalls_after(&[(1000, 0), (0, 0), (0, 0), (0, 0), (0, 0)]), None);
        assert_eq!(stalls_after(&[(10, 10), (0, 10), (0, 0), (5, 5), (0, 5), (0, 5), (0, 5)]), Some(5));
    }

    #[test]
    fn a_peer_that_has_everything_is_not_looked_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let began = runtime.block_on(async { Instant::now() });
        let at = |seconds| began + Duration::from_secs(seconds);
        let all = Acknowledged { connections: Mutex::default(), timeout: Duration::from_secs(3) };
        let progress = all.watch(80, PEER, began);
        assert_eq!(all.written(at(1)), HashMap::new(), "nothing was written");
        progress.wrote(10);
        let judge = |seconds, left| {
            all.judge(&all.written(at(seconds)), &HashMap::from([(ENDS, left)]), at(seconds));
        };
        judge(2, 0);
        assert_eq!(all.written(at(100)), HashMap::new(), "all was taken");
        // The time in which nothing was written does not count.
        progress.wrote(10);
        judge(102, 10);
        judge(102, 10);
        assert!(!progress.is_stalled());
        judge(104, 10);
        assert!(progress.is_stalled());
    }

    #[test]
    fn a_closed_connection_is_forgotten() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let now = runtime.block_on(async { Instant::now() });
        let all = Acknowledged { connections: Mutex::default(), timeout: Duration::from_secs(3) };
        let progress = all.watch(80, "[::ffff:127.0.0.1]:5".parse().unwrap(), now);
        progress.wrote(3);
        assert_eq!(all.written(now), HashMap::from([(ENDS, 3)]));
        drop(progress);
        assert!(all.written(now).is_empty() && all.lock().is_empty());
    }
}
