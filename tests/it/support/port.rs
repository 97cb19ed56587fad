//! Ports that stay reserved for a test while its server is down.
//!
//! A port chosen by the system is free again as soon as its listener is killed. Before the server restarts, another
//! test, or the near end of a connection, may take it.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A loopback port, held until dropped. A process that knows its number can listen there: both sockets have
/// SO_REUSEADDR, as those of Go, Rust and Python do, and this one never listens. The system does not assign the port
/// to a process that asks for any port.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    _held: TcpSocket,
}

impl Port {
    /// Holds a port of the system's choice.
    pub(crate) fn hold() -> Self {
        let held = TcpSocket::new_v4().expect("a socket");
        held.set_reuseaddr(true).expect("an option that Unix has");
        held.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        Self { address: held.local_addr().expect("it is bound"), _held: held }
    }

    pub(crate) fn number(&self) -> u16 {
        self.address.port()
    }
}

#[tokio::test]
async fn a_held_port_can_be_bound_only_by_number() {
    let port = Port::hold();
    for _ in 0..2 {
        let listener = tokio::net::TcpListener::bind(port.address).await.expect("a free port");
        let (near, far) = tokio::join!(tokio::net::TcpStream::connect(port.address), listener.accept());
        drop((near.expect("it listens"), far.expect("it was connected to"), listener));
        assert!(tokio::net::TcpStream::connect(port.address).await.is_err(), "a listener on the held port");
    }
    let others: Vec<_> = (0..500).map(|_| Port::hold()).collect();
    assert!(others.iter().all(|other| other.number() != port.number()));
}
