//! A TCP proxy with the faults of load balancers and networks. It does not interpret the bytes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::server::ANY_PORT;

/// Forwards connections of clients to servers until dropped.
pub(crate) struct Gate {
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    /// Used in turn, one for each connection. If there is none, connections are closed at once.
    backends: Mutex<Vec<SocketAddr>>,
    turn: AtomicUsize,
    connections: AtomicU64,
    /// The numbers of the open connections.
    open: Mutex<BTreeSet<u64>>,
    faults: watch::Sender<Faults>,
}

/// Faults for connections, by number.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// Connections below this number forward no bytes, without a sign to either side.
    frozen_below: u64,
    /// Connections below this number are closed.
    cut_below: u64,
    /// A client that sends these bytes is held, until this is reset.
    hold: Option<Vec<u8>>,
    /// Whether a client was held.
    held: bool,
}

// === impl Gate ===

impl Gate {
    /// Listens on a port of the system's choice.
    pub(crate) async fn start(backends: &[SocketAddr]) -> Self {
        let listener = TcpListener::bind(ANY_PORT).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let shared = Arc::new(Shared {
            backends: Mutex::new(backends.to_vec()),
            turn: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            open: Mutex::default(),
            faults: watch::Sender::default(),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, accepting }
    }

    /// Sets the servers for new connections, which use them in turn from the first. With none, connections are
    /// closed.
    pub(crate) fn set_backends(&self, backends: &[SocketAddr]) {
        *self.shared.backends.lock().expect("no panic") = backends.to_vec();
        self.shared.turn.store(0, Ordering::Relaxed);
    }

    /// Stops the bytes on the open connections, in both directions and without a sign to either side. New connections
    /// work.
    pub(crate) fn freeze(&self) {
        let below = self.shared.connections.load(Ordering::SeqCst);
        self.shared.faults.send_modify(|faults| faults.frozen_below = below);
    }

    /// Closes the open connections.
    pub(crate) async fn cut(&self) {
        let below = self.cut_below_now();
        let is_open =
            || self.shared.open.lock().expect("no panic").first().is_some_and(|first| *first < below);
        super::eventually("connections to be closed", || !is_open()).await;
    }

    fn cut_below_now(&self) -> u64 {
        let below = self.shared.connections.load(Ordering::SeqCst);
        self.shared.faults.send_modify(|faults| faults.cut_below = below);
        below
    }

    /// Holds the next request that contains this text, until [`Gate::release`].
    pub(crate) fn hold(&self, text: &str) {
        self.shared.faults.send_modify(|faults| {
            (faults.hold, faults.held) = (Some(text.as_bytes().to_vec()), false);
        });
    }

    /// Waits until a client is held.
    pub(crate) async fn wait_until_held(&self) {
        let mut faults = self.shared.faults.subscribe();
        let held = faults.wait_for(|faults| faults.held);
        super::in_time("a request to hold", held).await.expect("the gate is running");
    }

    /// Releases held clients, and holds no more.
    pub(crate) fn release(&self) {
        self.shared.faults.send_modify(|faults| faults.hold = None);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_below_now();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        let backend = {
            let backends = shared.backends.lock().expect("no panic");
            let turn = shared.turn.fetch_add(1, Ordering::Relaxed);
            (!backends.is_empty()).then(|| backends[turn % backends.len()])
        };
        let Some(backend) = backend else { continue };
        shared.open.lock().expect("no panic").insert(number);
        let shared = shared.clone();
        tokio::spawn(async move {
            carry(client, backend, number, &shared).await;
            shared.open.lock().expect("no panic").remove(&number);
        });
    }
}

/// Runs one connection from its beginning until either side or a fault ends it.
async fn carry(mut client: TcpStream, backend: SocketAddr, number: u64, shared: &Shared) {
    let Ok(mut server) = TcpStream::connect(backend).await else { return };
    let mut faults = shared.faults.subscribe();
    let mut cut = faults.clone();
    // Faults come first: on a busy machine this task may learn of a fault and of bytes that were sent after it at once.
    let passing = async {
        tokio::select! {
            biased;
            () = reached(&mut faults, |faults| faults.frozen_below > number) => std::future::pending().await,
            // When one side ends, both are closed.
            () = pass(&mut client, &mut server, shared) => {}
        }
    };
    tokio::select! {
        biased;
        () = reached(&mut cut, |faults| faults.cut_below > number) => {}
        () = passing => {}
    }
}

/// Waits for a fault. The borrowed value is released before anything else is awaited.
async fn reached(faults: &mut watch::Receiver<Faults>, holds: impl Fn(&Faults) -> bool) {
    // Fails if the gate was dropped, which cuts all connections.
    let _ = faults.wait_for(holds).await;
}

async fn pass(client: &mut TcpStream, server: &mut TcpStream, shared: &Shared) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let there = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
            hold(&bytes[..read], shared).await;
            if to_server.write_all(&bytes[..read]).await.is_err() {
                return;
            }
        }
    };
    let back = tokio::io::copy(&mut from_server, &mut to_client);
    tokio::select! {
        () = there => {}
        _ = back => {}
    }
}

/// Waits if these bytes are to be held.
async fn hold(bytes: &[u8], shared: &Shared) {
    let is_held = |faults: &Faults| {
        let hold = faults.hold.as_deref();
        hold.is_some_and(|text| bytes.windows(text.len()).any(|window| window == text))
    };
    if !is_held(&shared.faults.borrow()) {
        return;
    }
    shared.faults.send_modify(|faults| faults.held = true);
    let mut released = shared.faults.subscribe();
    // Fails if the gate was dropped.
    let _ = released.wait_for(|faults| faults.hold.is_none()).await;
}
