//! Connections to the API server: kube's TLS, proxies and credentials over our own sockets.
//!
//! kube's own stack sets no keepalive, and its pool keeps a connection for 90 seconds after the last answer. If the path
//! goes dead, the next request would use that connection again.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connect, Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use percent_encoding::percent_decode_str;
use tower::{Service, ServiceBuilder};
use tower_http::decompression::DecompressionLayer;

use super::replay::{Reader, Replay};

/// Idle time after which TCP probes a connection, and then every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Time within which data and keepalive probes must be acknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for which an idle connection is kept: long enough between the pages of a list, and between lists at the start.
const POOL_IDLE: Duration = Duration::from_secs(15);

type BoxError = Box<dyn Error + Send + Sync>;

/// kube's bodies are complete in memory. A streamed body travels as an extension of the request.
type Outgoing = Either<Body, Reader>;

/// A `kube::Client` over our own connections.
pub(super) struct Connected {
    pub(super) kube: kube::Client,
    /// Closes the connections that are idle now. The next request opens a new one.
    pub(super) forget: Arc<dyn Fn() + Send + Sync>,
}

/// As `kube::Client::try_from`, but with our sockets and pool. May run an exec plugin, which blocks.
///
/// # Errors
/// Certificates, credentials or a proxy that kube refuses.
pub(super) fn connect(config: kube::Config) -> Result<Connected, BoxError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(KEEPALIVE_IDLE));
    http.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let Some(proxy) = config.proxy_url.clone() else { return over(http, config) };
    match proxy.scheme_str() {
        Some("http") => over(tunnel(proxy, http), config),
        Some("https") => {
            let https = config.rustls_https_connector_with_connector(http)?;
            over(tunnel(proxy, https), config)
        }
        Some("socks5") => over(SocksV5::new(proxy, http), config),
        Some(_) | None => Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy) }.into()),
    }
}

/// Source: kube-client 5.0, `client/builder.rs`, `make_generic_builder`.
fn over<C>(connector: C, config: kube::Config) -> Result<Connected, BoxError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Error + Send + Sync + 'static,
{
    let credentials = config.auth_layer()?;
    let plugin_certificate = credentials.is_none() && config.auth_info.exec.is_some();
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    // TCP and TLS together.
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let connections = Connections::new(connector);
    let gzip = DecompressionLayer::new().no_br().no_deflate().no_zstd().gzip(!config.disable_compression);
    let forgetting = connections.clone();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(gzip)
        .option_layer(credentials)
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
    Ok(Connected { kube, forget: Arc::new(move || forgetting.forget()) })
}

/// CONNECT through a proxy, with the user name and password in its address, if any.
fn tunnel<C>(proxy: Uri, connector: C) -> Tunnel<C> {
    let userinfo = proxy.authority().and_then(|authority| authority.as_str().split_once('@'));
    // In an address they are percent-encoded; the proxy expects them decoded.
    let decoded = userinfo.map(|(userinfo, _)| percent_decode_str(userinfo).collect::<Vec<u8>>());
    let header =
        decoded.map(|userinfo| HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(userinfo))));
    let tunnel = Tunnel::new(proxy, connector);
    match header {
        Some(Ok(header)) => tunnel.with_auth(header),
        Some(Err(_)) | None => tunnel,
    }
}

/// A pool of connections that can be replaced by an empty one while requests are under way in the old one.
struct Connections<C> {
    connector: C,
    pool: Arc<ArcSwap<Pool<C, Outgoing>>>,
}

// === impl Connections ===

impl<C: Connect + Clone> Connections<C> {
    fn new(connector: C) -> Self {
        let pool = Arc::new(ArcSwap::from_pointee(pool(connector.clone())));
        Self { connector, pool }
    }

    fn forget(&self) {
        self.pool.store(Arc::new(pool(self.connector.clone())));
    }
}

fn pool<C: Connect + Clone>(connector: C) -> Pool<C, Outgoing> {
    Pool::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .build(connector)
}

impl<C: Clone> Clone for Connections<C> {
    fn clone(&self) -> Self {
        Self { connector: self.connector.clone(), pool: self.pool.clone() }
    }
}

impl<C> Service<Request<Body>> for Connections<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Response = Response<Incoming>;
    type Error = hyper_util::client::legacy::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let streamed = request.extensions_mut().remove::<Replay>();
        let request = request.map(|whole| match streamed {
            Some(replay) => Either::Right(replay.read()),
            None => Either::Left(whole),
        });
        Box::pin(self.pool.load().request(request))
    }
}
