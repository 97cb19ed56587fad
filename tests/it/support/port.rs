//! Ports that stay a test's own while what listens on them is down.
//!
//! A port of the system's choice is free again for any other test, and for the near end of any connection, as soon as its
//! listener is killed; what starts again then finds it taken.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A loopback port, held until dropped. Whoever is told of it may listen there: both sockets allow the address to be
/// used again, as those of Go, Rust and Python do, and this one never listens. The system gives it to nobody who asks for
/// any port.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    _held: TcpSocket,
}

impl Port {
    /// A port of the system's choice.
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
async fn a_held_port_is_free_for_who_knows_it_and_for_nobody_else() {
    let port = Port::hold();
    for _ in 0..2 {
        let listener = tokio::net::TcpListener::bind(port.address).await.expect("it is free");
        let (near, far) = tokio::join!(tokio::net::TcpStream::connect(port.address), listener.accept());
        drop((near.expect("it listens"), far.expect("it was connected to"), listener));
        assert!(tokio::net::TcpStream::connect(port.address).await.is_err(), "nobody listens");
    }
    let others: Vec<_> = (0..500).map(|_| Port::hold()).collect();
    assert!(others.iter().all(|other| other.number() != port.number()));
}
