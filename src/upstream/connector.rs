//! Connections to the API server: kube's TLS, proxies and credentials over our own sockets.
//!
//! kube's own stack sets no keepalive, and its pool keeps a connection for 90 seconds after the last answer. If the path
//! goes dead, the next request would use that connection again.
//!
//! Watches go over HTTP/2 where TLS agrees on it and no proxy is between. Pings find a dead connection, so a watch may be
//! silent for as long as nothing happens. Probes, which ask for one object, go with them. All other requests go over
//! HTTP/1.1: a body that is read slowly, such as one that is passed through, would hold back the watches of the same
//! connection, and upgrades need HTTP/1.1.
//!
//! Where a server answers a watch over HTTP/1.1, all requests share one pool. A probe and the watch after it then use one
//! connection: behind a load balancer a second connection may lead to a server that hangs, each time that both are tried.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Frame, SizeHint};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use rustls::pki_types::ServerName;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceBuilder};
use tower_http::decompression::DecompressionLayer;

use super::credentials::Credentials;
use super::dialer::{Dialer, dialer};
use super::proxy::{socks, tunnel};
use super::replay::{Reader, Replay};

/// Idle time after which TCP probes a connection, and then every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Time within which data and keepalive probes must be acknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for which an idle connection is kept: long enough between the pages of a list, and between lists at the start.
const POOL_IDLE: Duration = Duration::from_secs(15);

/// Time in which connections are not forgotten again.
const FORGOTTEN_MIN: Duration = Duration::from_secs(1);

/// Time for which a server that answered a watch over HTTP/1.1 is not asked for HTTP/2 again. It outlives the pools: else
/// each new generation of them would use two connections, one to learn that the server lacks HTTP/2.
const LACKING: Duration = Duration::from_secs(600);

/// Watches on one HTTP/2 connection. RFC 9113, 6.5.2, recommends that servers allow no less than 100 streams, and API servers
/// allow 100 or more. A request beyond the server's limit would wait for another watch to end.
const STREAMS_MAX: usize = 90;

/// Bytes that a server may send ahead on one watch and on one connection. A streaming list fills them. The reflectors read all
/// that comes, so no watch holds back the others for long.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Bytes of hyper's buffer for what a connection with HTTP/1.1 has sent. It grows while a list comes, to 400 KiB if it may, and a watch
/// keeps it for as long as it is open.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// kube's bodies are complete in memory. A streamed body travels as an extension of the request.
type Outgoing = Either<Body, Reader>;

/// Opens a connection with TLS, within a time.
type Connector = TimeoutConnector<HttpsConnector<Dialer>>;

/// A `kube::Client` over our own connections.
pub(super) struct Connected {
    pub(super) kube: kube::Client,
    pub(super) pools: Arc<dyn Pools>,
}

/// The pools of a client. Each time they are forgotten, a new generation of them begins.
pub(super) trait Pools: Send + Sync {
    /// The current generation.
    fn generation(&self) -> usize;

    /// Closes the idle connections of a generation, if it is the current one. The next request opens a new connection.
    /// Requests and watches that are under way go on.
    fn forget(&self, generation: usize);

    /// The same for the current generation, unless it has just begun: many watches may end with one connection.
    fn forget_now(&self);
}

/// For a client that was made elsewhere: its connections are not known.
pub(super) struct Unknown;

/// Marks a request that goes over HTTP/2 where possible: a watch, or a probe before it, so that both meet the same server.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefersHttp2;

/// When the server of an HTTP/2 connection is asked for a sign of life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pings {
    /// After so much time without a byte, then again as often.
    pub(super) interval: Duration,
    /// Time for the answer; then the connection counts as dead.
    pub(super) timeout: Duration,
}

/// As `kube::Client::try_from`, but with our sockets and pools. `pings` is `None` for HTTP/1.1 only. May run an exec plugin, which blocks.
///
/// # Errors
/// Certificates, credentials or a proxy that kube refuses.
pub(super) fn connect(config: kube::Config, pings: Option<Pings>) -> Result<Connected, BoxError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(KEEPALIVE_IDLE));
    http.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let Some(proxy) = config.proxy_url.clone() else { return over(dialer(http), config, pings) };
    // A proxy may know HTTP/1.1 only, look into TLS, or limit how long a connection lives.
    match proxy.scheme_str() {
        Some("http") => over(dialer(tunnel(proxy, http)), config, None),
        Some("https") => {
            let https = config.rustls_https_connector_with_connector(http)?;
            over(dialer(tunnel(proxy, https)), config, None)
        }
        Some("socks5") => over(dialer(socks(proxy, http)), config, None),
        Some(_) | None => Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy) }.into()),
    }
}

/// Source: kube-client 5.0, `client/builder.rs`, `make_generic_builder`.
fn over(dialer: Dialer, config: kube::Config, pings: Option<Pings>) -> Result<Connected, BoxError> {
    let credentials = config.auth_layer()?;
    let plugin_certificate = credentials.is_none() && config.auth_info.exec.is_some();
    // Made once, as this may run the plugin.
    let tls = config.rustls_client_config()?;
    let timed = |connector| {
        let mut connector = TimeoutConnector::new(connector);
        // TCP and TLS together.
        connector.set_connect_timeout(config.connect_timeout);
        connector.set_read_timeout(config.read_timeout);
        connector.set_write_timeout(config.write_timeout);
        connector
    };
    // Without TLS nothing tells whether a server knows HTTP/2.
    let has_tls = config.cluster_url.scheme_str() == Some("https");
    let http2 = match pings.filter(|_| has_tls) {
        Some(pings) => {
            let https = https(dialer.clone(), tls.clone(), config.tls_server_name.as_deref(), true)?;
            Some((timed(https), pings))
        }
        None => None,
    };
    let http1 = timed(https(dialer, tls, config.tls_server_name.as_deref(), false)?);
    let connections = Connections::new(Connectors { http1, http2 });
    let gzip = DecompressionLayer::new().no_br().no_deflate().no_zstd().gzip(!config.disable_compression);
    let pools = Arc::new(connections.clone());
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(gzip)
        .option_layer(credentials.as_ref().map(Credentials::of))
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    let kube = kube::Client::new(service, config.default_namespace.clone());
    let kube = if plugin_certificate {
        // kube gives the expiry of an exec plugin's certificate to its own builder only.
        kube.with_valid_until(*ClientBuilder::try_from(config)?.build().valid_until())
    } else {
        kube
    };
    Ok(Connected { kube, pools })
}

/// TLS over a connection, as kube makes it, which knows HTTP/1.1 only.
///
/// Source: kube-client 5.0, `client/config_ext.rs`, `rustls_https_connector_with_connector`.
fn https(
    dialer: Dialer,
    tls: rustls::ClientConfig,
    server_name: Option<&str>,
    http2: bool,
) -> Result<HttpsConnector<Dialer>, BoxError> {
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = server_name {
        let name = ServerName::try_from(name.to_owned())?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let builder = builder.enable_http1();
    Ok(if http2 { builder.enable_http2().wrap_connector(dialer) } else { builder.wrap_connector(dialer) })
}

/// What connects, for all requests and for watches.
#[derive(Clone)]
struct Connectors {
    http1: Connector,
    /// `None` where HTTP/2 is not wanted.
    http2: Option<(Connector, Pings)>,
}

/// Pools of connections that can be replaced by empty ones while requests are under way in the old ones.
#[derive(Clone)]
struct Connections {
    connectors: Connectors,
    current: Arc<ArcSwap<Generation>>,
    /// Until when the server counts as one without HTTP/2, as it answered a watch over HTTP/1.1.
    lacks_http2: Arc<Mutex<Option<Instant>>>,
}

/// The pools between two times that they are forgotten.
struct Generation {
    number: usize,
    began: Instant,
    http1: Pool<Connector, Outgoing>,
    watches: Mutex<Vec<Shard>>,
}

/// A pool with one HTTP/2 connection, and the watches on it.
struct Shard {
    pool: Pool<Connector, Outgoing>,
    watches: Arc<AtomicUsize>,
}

/// The place of a watch on a connection, free again when this is dropped.
struct WatchSlot(Arc<AtomicUsize>);

/// A pool, and a place on its connection.
type Placed = (Pool<Connector, Outgoing>, WatchSlot);

/// The body of an answer, which keeps the place of a watch.
struct Answer {
    body: Incoming,
    _place: Option<WatchSlot>,
}

// === impl Connections ===

impl Connections {
    fn new(connectors: Connectors) -> Self {
        let current = Arc::new(ArcSwap::from_pointee(Generation::new(0, &connectors)));
        Self { connectors, current, lacks_http2: Arc::default() }
    }

    /// The current pools, and a place for a watch in them: on the first connection that has one, or on a new connection.
    /// Without a place the watch goes over HTTP/1.1.
    fn place(&self) -> (Arc<Generation>, Option<Placed>) {
        let current = self.current.load_full();
        let Some((connector, pings)) = self.connectors.http2.as_ref() else { return (current, None) };
        let place = {
            let mut shards = lock(&current.watches);
            // Read under the lock of the shards: note_http1 first writes it, and then removes the shards.
            let lacks = lock(&self.lacks_http2).is_some_and(|until| Instant::now() < until);
            (!lacks).then(|| place(&mut shards, connector, *pings))
        };
        (current, place)
    }

    /// Notes that the server answered over HTTP/1.1. Nothing pings such a connection, and it must not be kept in a pool that
    /// keeps connections for good.
    fn note_http1(&self, generation: &Generation) {
        *lock(&self.lacks_http2) = Some(Instant::now() + LACKING);
        lock(&generation.watches).clear();
    }
}

impl Pools for Connections {
    fn generation(&self) -> usize {
        self.current.load().number
    }

    fn forget(&self, generation: usize) {
        self.current.rcu(|current| {
            if current.number == generation {
                Arc::new(Generation::new(generation.wrapping_add(1), &self.connectors))
            } else {
                current.clone()
            }
        });
    }

    fn forget_now(&self) {
        let current = self.current.load();
        if current.began.elapsed() >= FORGOTTEN_MIN {
            self.forget(current.number);
        }
    }
}

impl Generation {
    fn new(number: usize, connectors: &Connectors) -> Self {
        Self {
            number,
            began: Instant::now(),
            http1: Pool::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(POOL_IDLE)
                .http1_max_buf_size(READ_BUFFER_BYTES)
                .build(connectors.http1.clone()),
            watches: Mutex::default(),
        }
    }
}

/// A place on the first connection that has one, or on a new connection.
fn place(shards: &mut Vec<Shard>, connector: &Connector, pings: Pings) -> Placed {
    let free = shards.iter().position(|shard| shard.watches.load(Ordering::Relaxed) < STREAMS_MAX);
    let at = free.unwrap_or_else(|| {
        shards.push(Shard { pool: pinged(connector.clone(), pings), watches: Arc::default() });
        shards.len() - 1
    });
    let shard = &shards[at];
    // Only here, under the lock, does it grow.
    shard.watches.fetch_add(1, Ordering::Relaxed);
    (shard.pool.clone(), WatchSlot(shard.watches.clone()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool for HTTP/2. It keeps a connection until that ends: a pool's idle time counts from the last *request*, however many
/// watches are open.
fn pinged(connector: Connector, pings: Pings) -> Pool<Connector, Outgoing> {
    Pool::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(None)
        .http2_keep_alive_interval(pings.interval)
        .http2_keep_alive_timeout(pings.timeout)
        .http2_keep_alive_while_idle(true)
        .http2_initial_max_send_streams(STREAMS_MAX)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http1_max_buf_size(READ_BUFFER_BYTES)
        .build(connector)
}

impl Service<Request<Body>> for Connections {
    type Response = Response<Answer>;
    type Error = hyper_util::client::legacy::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let streamed = request.extensions_mut().remove::<Replay>();
        let is_watch = request.extensions_mut().remove::<PrefersHttp2>().is_some();
        let request = request.map(|whole| match streamed {
            Some(replay) => Either::Right(replay.read()),
            None => Either::Left(whole),
        });
        let connections = self.clone();
        let (current, place) = if is_watch { self.place() } else { (self.current.load_full(), None) };
        Box::pin(async move {
            let Some((pool, place)) = place else {
                let response = current.http1.request(request).await?;
                return Ok(response.map(|body| Answer { body, _place: None }));
            };
            let response = pool.request(request).await?;
            if response.version() != Version::HTTP_2 {
                connections.note_http1(&current);
            }
            Ok(response.map(|body| Answer { body, _place: Some(place) }))
        })
    }
}

impl Drop for WatchSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Unknown ===

impl Pools for Unknown {
    fn generation(&self) -> usize {
        0
    }

    fn forget(&self, _: usize) {}

    fn forget_now(&self) {}
}

// === impl Answer ===

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "connector_tests.rs"]
mod tests;
