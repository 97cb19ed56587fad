//! The simulator's listener: accepts connections, and cuts them on request.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cluster::Cluster;
use super::fault::Faults;
use super::http::{Body, Call};
use super::shared::{ApiServerConfig, Shared};

/// A Kubernetes API server over a [`Cluster`], on plain HTTP/1.1.
///
/// Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    accept: JoinHandle<()>,
    connections: TaskTracker,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl ApiServer {
    /// Serves `cluster` at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub async fn bind(cluster: Cluster, address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(cluster, address, ApiServerConfig::default()).await
    }

    /// The same, with other timings.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub async fn bind_with(
        cluster: Cluster,
        address: SocketAddr,
        config: ApiServerConfig,
    ) -> io::Result<Self> {
        let shared = Shared::new(cluster, Faults::default(), config);
        let mut server = Self { shared: Arc::new(shared), address, running: None };
        server.start().await?;
        Ok(server)
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The cluster behind it.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.shared.cluster
    }

    /// Its switchboard of faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// A kubeconfig (YAML) that points kubectl and every client here, without credentials.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: sim\n  cluster:\n    server: {}\nusers:\n- name: sim\n  \
             user: {{}}\ncontexts:\n- name: sim\n  context:\n    cluster: sim\n    user: sim\n    namespace: default\n\
             current-context: sim\n",
            self.url()
        )
    }

    /// The last requests, oldest first, as `GET /api/v1/pods?limit=500`.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests()
    }

    /// Closes the listener and cuts every connection; returns when all are gone. Does nothing if it is stopped.
    pub async fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.stop.cancel();
            // A join error would be a panic of the accept loop, after which nothing is left to clean up.
            let _ = (&mut running.accept).await;
            running.connections.close();
            running.connections.wait().await;
        }
    }

    /// Listens again, on the same port. Does nothing if it is running.
    ///
    /// # Errors
    /// If another process has taken the port.
    pub async fn start(&mut self) -> io::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let listener = TcpListener::bind(self.address).await?;
        self.address = listener.local_addr()?;
        let (stop, connections) = (CancellationToken::new(), TaskTracker::new());
        let accept =
            tokio::spawn(accept(Arc::clone(&self.shared), listener, stop.clone(), connections.clone()));
        self.running = Some(Running { stop, accept, connections });
        Ok(())
    }

    /// Puts another cluster behind the same address and faults, as an etcd restored from a backup does; connections
    /// are cut. Starts the server if it was stopped.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub async fn replace_cluster(&mut self, cluster: Cluster) -> io::Result<()> {
        self.stop().await;
        self.shared = Arc::new(self.shared.over(cluster));
        self.start().await
    }
}

async fn accept(
    shared: Arc<Shared>,
    listener: TcpListener,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => drop(connections.spawn(connection(Arc::clone(&shared), stream, stop.clone()))),
            // Mostly the process is out of file descriptors: wait until some are closed.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, stop: CancellationToken) {
    // Watches write small chunks that must not wait for acknowledgements. If the option fails, they are only slower.
    let _ = stream.set_nodelay(true);
    // A second handle on the socket, to reset it after hyper has taken the stream.
    let Ok(socket) = socket2::SockRef::from(&stream).try_clone() else { return };
    let abort = CancellationToken::new();
    let service = service_fn(|request| serve(Arc::clone(&shared), abort.clone(), request));
    let Ok(is_http2) = is_http2(&stream).await else { return };
    let serving = async {
        let stream = TokioIo::new(stream);
        if is_http2 {
            http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
        } else {
            http1::Builder::new().serve_connection(stream, service).await
        }
    };
    tokio::select! {
        // A server that is gone answers nothing more, such as a request that a client sent as its other connection was
        // cut.
        biased;
        () = stop.cancelled() => {}
        // Errors of a connection concern its client only.
        _ = serving => {}
        () = abort.cancelled() => {
            // Without linger, closing an open connection sends a reset.
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    }
}

/// Whether a connection begins as HTTP/2 does without TLS by prior knowledge. No request over HTTP/1 begins so.
async fn is_http2(stream: &TcpStream) -> std::io::Result<bool> {
    const BEGIN: [u8; 3] = *b"PRI";
    let mut first = [0; 3];
    loop {
        match stream.peek(&mut first).await? {
            len @ 1..3 if first[..len] == BEGIN[..len] => {
                // What was seen stays readable, so there is nothing to wait for.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            _ => return Ok(first == BEGIN),
        }
    }
}

async fn serve(
    shared: Arc<Shared>,
    abort: CancellationToken,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    shared.record(format!("{} {target}", parts.method));
    let body = body.collect().await?.to_bytes();
    Ok(super::route::answer(&shared, &abort, Call::new(&parts, body)).await)
}
