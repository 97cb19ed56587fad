//! The connections of the admin listener, of which the newest is always accepted.
//!
//! A kubelet restarts a pod whose probe is not answered. So a full admin listener refuses no connection, but closes the
//! oldest one of the peer that has the most, which is not the kubelet. A probe is answered long before its own connection
//! could be the oldest.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::metrics;

/// Largest number of connections of the admin listener: a kubelet, some collectors of metrics, and people.
pub(super) const ADMIN_CONNECTIONS_MAX: usize = 256;

/// Bits of an IPv6 address that name a network, as one host may have all addresses of its network.
const NETWORK_BITS: u32 = 64;

/// Connections in the order in which they came.
#[derive(Debug)]
pub(super) struct Crowd {
    max: usize,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    next_id: u64,
    all: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    id: u64,
    peer: Option<IpAddr>,
    closed: CancellationToken,
}

/// Counts a connection until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    crowd: Arc<Crowd>,
    id: u64,
    closed: CancellationToken,
}

// === impl Crowd ===

impl Crowd {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, members: Mutex::default() })
    }

    /// Accepts a connection. If there are too many, another one is closed.
    pub(super) fn enter(self: &Arc<Self>, peer: Option<SocketAddr>) -> Seat {
        let mut members = self.lock();
        if members.all.len() >= self.max {
            metrics::limit_hit("admin_connections_max");
            if let Some(index) = members.one_too_many() {
                members.all.remove(index).closed.cancel();
            }
        }
        let (id, closed) = (members.next_id, CancellationToken::new());
        members.next_id += 1;
        members.all.push(Member { id, peer: peer.map(|peer| network(peer.ip())), closed: closed.clone() });
        Seat { crowd: self.clone(), id, closed }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// The oldest connection of the peer that has the most.
    fn one_too_many(&self) -> Option<usize> {
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for member in &self.all {
            *counts.entry(member.peer).or_default() += 1;
        }
        let most = counts.values().max()?;
        self.all.iter().position(|member| counts.get(&member.peer) == Some(most))
    }
}

// === impl Seat ===

impl Seat {
    /// Waits until the connection has to be closed for another one.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.lock().all.retain(|member| member.id != self.id);
    }
}

/// The address, or the network of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> (128 - NETWORK_BITS) << (128 - NETWORK_BITS)))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Option<SocketAddr> {
        Some(SocketAddr::new(address.parse().unwrap(), 1))
    }

    #[test]
    fn a_peer_that_fills_the_crowd_closes_its_own_oldest_connection() {
        let crowd = Crowd::new(4);
        let kubelet = crowd.enter(peer("10.0.0.1"));
        let mut flood: Vec<Seat> = (0..3).map(|_| crowd.enter(peer("10.0.0.2"))).collect();
        flood.extend((0..10).map(|_| crowd.enter(peer("10.0.0.2"))));
        assert!(!kubelet.closed.is_cancelled());
        let open: Vec<bool> = flood.iter().map(|seat| !seat.closed.is_cancelled()).collect();
        assert_eq!(open, [[false; 10].as_slice(), &[true; 3]].concat());
        let probe = crowd.enter(peer("10.0.0.1"));
        assert!(!probe.closed.is_cancelled() && !kubelet.closed.is_cancelled());
        assert_eq!(flood.iter().filter(|seat| !seat.closed.is_cancelled()).count(), 2);
        drop((flood, kubelet));
        assert_eq!(crowd.lock().all.len(), 1);
    }

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let crowd = Crowd::new(3);
        let kubelet = crowd.enter(peer("::ffff:10.0.0.1"));
        let flood: Vec<Seat> = (1..=5).map(|host| crowd.enter(peer(&format!("2001:db8::{host}")))).collect();
        assert!(!kubelet.closed.is_cancelled());
        assert_eq!(flood.iter().filter(|seat| !seat.closed.is_cancelled()).count(), 2);
    }
}
