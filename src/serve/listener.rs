//! Listeners: accept connections, and end them at shutdown.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::acknowledged::{Acknowledged, Progress};
use super::admin::admin_router;
use super::connection::{Connection, Served};
use super::crowd::{ADMIN_CONNECTIONS_MAX, Crowd};
use super::guard::Door;
use super::peer::{ConnectionPermit, Peer};
use super::socket::Socket;
use super::{Admin, ApiError, Config, Server, Upstream, metrics};

/// A bound listener.
pub enum Bound {
    /// An address.
    Tcp(TcpListener),
    /// A socket in the file system, removed when dropped.
    Unix(UnixListener, PathBuf),
}

/// Length of the queue of connections that are not accepted yet: enough for a thousand clients that reconnect together.
const BACKLOG: i32 = 4096;
/// How long to wait when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Number of refused connections that get an answer at the same time: each takes a socket and a task.
const REFUSALS_MAX: usize = 64;
/// Time for a refused connection to take its answer.
const REFUSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Bound {
    /// Binds an address. Port 0 lets the system choose.
    ///
    /// # Errors
    /// The system's error, if the address is taken or not one of this machine.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self::Tcp(TcpListener::from_std(socket.into())?))
    }

    /// Binds a path. Replaces a socket on which no process listens any more.
    ///
    /// # Errors
    /// The system's error, or `AddrInUse` if another process listens there.
    pub fn unix(path: &Path) -> io::Result<Self> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on the socket"));
        }
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) {
                let why = "a file that is no socket is there; remove it, or choose another path";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            std::fs::remove_file(path)?;
        }
        Ok(Self::Unix(UnixListener::bind(path)?, path.to_owned()))
    }

    /// The address, where it is one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Best effort, as the next start replaces a stale socket.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Serves the data interface until `drain` is cancelled, and then until all connections have ended or the drain timeout is
/// over.
pub async fn serve(bound: Bound, admin: Admin, config: Config, upstream: Upstream, drain: CancellationToken) {
    let timeout = config.drain_timeout;
    let acknowledged = Acknowledged::new(config.write_stall_timeout);
    let server =
        Server::new(admin.hub.clone(), config.clone(), upstream, admin.queues.clone(), drain.clone());
    let tasks = server.tasks.clone();
    let acceptor = Acceptor {
        router: super::router(server, admin),
        places: Places::Fixed(Arc::new(Semaphore::new(config.connections_max))),
        config: Arc::new(config),
        door: Door::Data,
        drain: drain.clone(),
        refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        tasks,
        acknowledged,
    };
    acceptor.serve(bound, timeout).await;
}

/// Serves the admin interface until `until` is cancelled, which is later than for the data interface, so that a drain can be
/// observed.
pub async fn serve_admin(bound: Bound, admin: Admin, config: Config, until: CancellationToken) {
    let timeout = config.drain_timeout;
    let acknowledged = Acknowledged::new(config.write_stall_timeout);
    let acceptor = Acceptor {
        router: admin_router(admin),
        places: Places::Newest(Crowd::new(ADMIN_CONNECTIONS_MAX)),
        config: Arc::new(config),
        door: Door::Admin,
        drain: until,
        refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        tasks: TaskTracker::new(),
        acknowledged,
    };
    acceptor.serve(bound, timeout).await;
}

/// What happens to a new connection at the limit.
enum Places {
    /// It is refused with 503.
    Fixed(Arc<Semaphore>),
    /// It is accepted, and another one is closed.
    Newest(Arc<Crowd>),
}

struct Acceptor {
    router: Router,
    places: Places,
    refusals: Arc<Semaphore>,
    config: Arc<Config>,
    door: Door,
    drain: CancellationToken,
    tasks: TaskTracker,
    /// `None` where the kernel does not tell what peers acknowledge.
    acknowledged: Option<Arc<Acknowledged>>,
}

impl Acceptor {
    /// Serves until the drain, and then until the connections have ended or `limit` is over.
    async fn serve(&self, bound: Bound, limit: Duration) {
        let connections = async {
            self.run(bound).await;
            self.end(limit).await;
        };
        match &self.acknowledged {
            Some(acknowledged) => tokio::select! {
                () = connections => {}
                () = acknowledged.run() => {}
            },
            None => connections.await,
        }
    }

    async fn run(&self, bound: Bound) {
        loop {
            let accepted = tokio::select! {
                () = self.drain.cancelled() => return,
                accepted = self.accept(&bound) => accepted,
            };
            if let Err(error) = accepted {
                // No descriptors are left, or the peer left while it waited; the next one may succeed.
                warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    async fn accept(&self, bound: &Bound) -> io::Result<()> {
        match bound {
            Bound::Tcp(listener) => {
                let (socket, peer) = listener.accept().await?;
                self.tune(&socket);
                debug!(%peer, "connection accepted");
                let local = socket.local_addr();
                let progress = self
                    .acknowledged
                    .as_ref()
                    .zip(local.ok())
                    .map(|(acknowledged, local)| acknowledged.watch(local.port(), peer, Instant::now()));
                self.spawn(socket, progress, Peer(Some(peer)));
            }
            Bound::Unix(listener, _) => self.spawn(listener.accept().await?.0, None, Peer(None)),
        }
        Ok(())
    }

    /// Sets socket options: no delay for small events, a bound on the kernel's send buffer, and, where nothing else finds
    /// them, a timeout for peers that acknowledge nothing. The connection also works without them.
    fn tune(&self, socket: &TcpStream) {
        let options = SockRef::from(socket);
        let mut results = vec![
            options.set_tcp_nodelay(true),
            options.set_send_buffer_size(self.config.send_buffer_bytes),
            options.set_keepalive(true),
        ];
        #[cfg(target_os = "linux")]
        {
            let low = u32::try_from(self.config.send_buffer_bytes / 2).unwrap_or(u32::MAX);
            results.push(options.set_tcp_notsent_lowat(low));
            if self.acknowledged.is_none() {
                results.push(options.set_tcp_user_timeout(Some(self.config.write_stall_timeout)));
            }
        }
        for error in results.drain(..).filter_map(Result::err) {
            debug!(%error, "a socket option was refused");
        }
    }

    fn spawn(&self, socket: impl Socket, progress: Option<Arc<Progress>>, peer: Peer) {
        let (permit, seat) = match &self.places {
            Places::Fixed(places) => match places.clone().try_acquire_owned() {
                Ok(permit) => (Some(permit), None),
                Err(_) => return self.refuse(socket),
            },
            Places::Newest(crowd) => (None, Some(crowd.enter(peer.0))),
        };
        let served = Served {
            router: self.router.clone(),
            config: self.config.clone(),
            door: self.door,
            connected: ConnectionPermit::new(permit),
            peer,
            drain: self.drain.clone(),
            tasks: self.tasks.clone(),
        };
        let run = Connection { socket, progress, served }.run();
        match seat {
            None => self.tasks.spawn(run),
            Some(seat) => self.tasks.spawn(async move {
                tokio::select! {
                    () = run => {}
                    () = seat.closed() => {}
                }
            }),
        };
    }

    /// Refuses a connection with 503. If many are being refused already, closes it at once.
    fn refuse(&self, socket: impl Socket) {
        metrics::limit_hit("connections_max");
        if let Ok(place) = self.refusals.clone().try_acquire_owned() {
            let max = self.config.connections_max;
            self.tasks.spawn(async move {
                refuse(socket, max).await;
                drop(place);
            });
        }
    }

    async fn end(&self, limit: Duration) {
        self.tasks.close();
        info!(connections = self.tasks.len(), "draining");
        if timeout(limit, self.tasks.wait()).await.is_err() {
            warn!(connections = self.tasks.len(), "drain timeout: connections are cut");
        }
    }
}

/// Sends 503 to a client, without looking at its request.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S, max: usize) {
    let error = ApiError::unavailable(format!("all {max} connections are taken"), 5);
    let body = String::from_utf8(error.status().to_line()).unwrap_or_default();
    let code = error.clone().into_response().status();
    let answer = format!(
        "HTTP/1.1 {code}\r\ncontent-type: application/json\r\nretry-after: 5\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let write = async {
        socket.write_all(answer.as_bytes()).await?;
        socket.shutdown().await?;
        // The request is read and ignored, as closing with unread bytes would reset the connection and lose the answer.
        tokio::io::copy(&mut socket, &mut tokio::io::sink()).await
    };
    let _ = timeout(REFUSE_TIMEOUT, write).await;
}
