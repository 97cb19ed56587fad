//! A path to a server with faults: connections that go dead without a sign, load balancers that close idle ones,
//! changed addresses, changed certificates.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

use super::server::ANY_PORT;

/// Forwards connections to a server. Dropping it closes them all.
pub(crate) struct Relay {
    /// The address of the relay.
    pub(crate) address: SocketAddr,
    path: Arc<Path>,
    stop: CancellationToken,
}

/// The behavior of connections.
struct Path {
    target: SocketAddr,
    tls: Mutex<Option<Arc<ServerConfig>>>,
    /// Connections below this number are frozen.
    frozen_before: watch::Sender<u64>,
    /// Connections below this number are closed.
    cut_before: watch::Sender<u64>,
    /// Whether nothing is accepted, read or written.
    paused: watch::Sender<bool>,
    idle_timeout: Option<Duration>,
    connections: AtomicU64,
    /// Number of failed handshakes.
    refused: AtomicU64,
}

// === impl Relay ===

impl Relay {
    /// A path without TLS and without an idle timeout.
    pub(crate) async fn to(target: SocketAddr) -> Self {
        Self::with(target, None, None).await
    }

    /// A path that closes a connection without a byte in either direction for this long, as load balancers do.
    pub(crate) async fn tiring(target: SocketAddr, idle_timeout: Duration) -> Self {
        Self::with(target, Some(idle_timeout), None).await
    }

    /// A path with TLS that ends at the relay.
    pub(crate) async fn tls(target: SocketAddr, config: ServerConfig) -> Self {
        Self::with(target, None, Some(Arc::new(config))).await
    }

    async fn with(
        target: SocketAddr,
        idle_timeout: Option<Duration>,
        tls: Option<Arc<ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind(ANY_PORT).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let path = Arc::new(Path {
            target,
            tls: Mutex::new(tls),
            frozen_before: watch::Sender::new(0),
            cut_before: watch::Sender::new(0),
            paused: watch::Sender::new(false),
            idle_timeout,
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(accept(listener, path.clone(), stop.clone())));
        Self { address, path, stop }
    }

    /// Freezes the open connections for good: nothing is read, written or closed. New connections work.
    pub(crate) fn freeze(&self) {
        self.path.frozen_before.send_replace(self.path.connections.load(Ordering::SeqCst));
    }

    /// Behaves as a process stopped by SIGSTOP: the kernel accepts connections and bytes, and nothing is answered
    /// until [`Relay::resume`].
    pub(crate) fn pause(&self) {
        self.path.paused.send_replace(true);
    }

    /// Goes on after [`Relay::pause`].
    pub(crate) fn resume(&self) {
        self.path.paused.send_replace(false);
    }

    /// Closes the connections that are open now.
    pub(crate) fn cut(&self) {
        self.path.cut_before.send_replace(self.path.connections.load(Ordering::SeqCst));
    }

    /// Presents another certificate to new connections.
    pub(crate) fn present(&self, config: ServerConfig) {
        *self.path.tls.lock().unwrap() = Some(Arc::new(config));
    }

    /// Number of connections made so far.
    pub(crate) fn connections(&self) -> u64 {
        self.path.connections.load(Ordering::SeqCst)
    }

    /// Number of failed handshakes so far.
    pub(crate) fn refused(&self) -> u64 {
        self.path.refused.load(Ordering::SeqCst)
    }

    /// Closes the listener and every connection.
    pub(crate) fn close(&self) {
        self.stop.cancel();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.close();
    }
}

async fn accept(listener: TcpListener, path: Arc<Path>, stop: CancellationToken) {
    while let Ok((stream, _)) = listener.accept().await {
        let number = path.connections.fetch_add(1, Ordering::SeqCst);
        let forwarding = forward(path.clone(), stream, number);
        tokio::spawn(stop.clone().run_until_cancelled_owned(forwarding));
    }
}

async fn forward(path: Arc<Path>, stream: TcpStream, number: u64) {
    is_running(&mut path.paused.subscribe()).await;
    let Ok(server) = TcpStream::connect(path.target).await else { return };
    let _ = (stream.set_nodelay(true), server.set_nodelay(true));
    let tls = path.tls.lock().unwrap().clone();
    match tls {
        None => copy(&path, stream, server, number).await,
        Some(config) => match TlsAcceptor::from(config).accept(stream).await {
            Ok(stream) => copy(&path, stream, server, number).await,
            Err(_) => drop(path.refused.fetch_add(1, Ordering::SeqCst)),
        },
    }
}

/// Copies both ways until either side ends, or the idle timeout is over.
async fn copy(path: &Path, client: impl AsyncRead + AsyncWrite, server: TcpStream, number: u64) {
    let (mut client_read, mut client_write) = tokio::io::split(client);
    let (mut server_read, mut server_write) = tokio::io::split(server);
    let (mut frozen, mut cut) = (path.frozen_before.subscribe(), path.cut_before.subscribe());
    let mut paused = path.paused.subscribe();
    let idle = path.idle_timeout.unwrap_or(Duration::from_secs(3600));
    let (mut up, mut down) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        tokio::select! {
            biased;
            () = is_among(&mut cut, number) => return,
            () = is_among(&mut frozen, number) => return std::future::pending().await,
            () = is_paused(&mut paused) => is_running(&mut paused).await,
            read = timeout(idle, client_read.read(&mut up)) => match read {
                Ok(Ok(length @ 1..)) => {
                    if server_write.write_all(&up[..length]).await.is_err() {
                        return;
                    }
                }
                Ok(Ok(0) | Err(_)) | Err(_) => return,
            },
            read = server_read.read(&mut down) => match read {
                Ok(length @ 1..) => {
                    let written = client_write.write_all(&down[..length]).await;
                    if written.is_err() || client_write.flush().await.is_err() {
                        return;
                    }
                }
                Ok(0) | Err(_) => return,
            },
        }
    }
}

async fn is_paused(paused: &mut watch::Receiver<bool>) {
    let _ = paused.wait_for(|paused| *paused).await;
}

async fn is_running(paused: &mut watch::Receiver<bool>) {
    let _ = paused.wait_for(|paused| !paused).await;
}

/// Returns once the connection's number is below the bound. The sender lives as long as the path.
async fn is_among(before: &mut watch::Receiver<u64>, number: u64) {
    let _ = before.wait_for(|before| number < *before).await;
}
