//! The current `kube::Client` with its credentials, and its renewal.
//!
//! kube reads a token file and the cluster's CA again every minute, and refreshes tokens of exec plugins. It does not renew
//! an exec plugin's client certificate, does not read credentials again at once after 401, and never notices a changed CA,
//! certificate or address in a kubeconfig. This file does so by building a new client from the [`UpstreamSource`].

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use http::StatusCode;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::connector::{self, Connected, Pings, Pools, Unknown};
use super::metrics::{self, Renewal};
use super::{Config, UpstreamError, UpstreamSource, proxy};

/// Least time between two renewals, however many reflectors get 401.
const RENEWAL_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// The same while the API server is not reached: it may simply be down, and running an exec plugin is expensive.
const OUTAGE_RENEWAL_INTERVAL_MIN: Duration = Duration::from_secs(15);

/// Requests in a row that did not reach the API server, after which its address is read again.
const UNREACHED_MAX: u32 = 3;

/// A client certificate is renewed this long before it expires, as kube does with tokens.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// The current client, shared by all clones of [`super::Client`].
pub(super) struct Sessions {
    current: ArcSwap<Session>,
    /// `None` for a client that was made elsewhere and cannot be built again.
    config: Option<Config>,
    /// When the client was last renewed. Locked during a renewal.
    renewed: Mutex<Option<Instant>>,
    /// Held while a client is built. An exec plugin that never answers cannot be ended, and must not be started again and again.
    building: Arc<Semaphore>,
}

/// One `kube::Client`.
pub(super) struct Session {
    pub(super) kube: kube::Client,
    /// The API server's address, for error messages; empty for a client that was made elsewhere.
    pub(super) server: Arc<str>,
    pools: Arc<dyn Pools>,
    /// Requests in a row that did not reach the API server.
    unreached: AtomicU32,
}

// === impl Sessions ===

impl Sessions {
    pub(super) async fn open(config: Config) -> Result<Self, UpstreamError> {
        let building = Arc::new(Semaphore::new(1));
        let session = build(&config, building.clone().try_acquire_owned().ok()).await?;
        let current = ArcSwap::from_pointee(session);
        Ok(Self { current, config: Some(config), renewed: Mutex::new(None), building })
    }

    pub(super) fn over(kube: kube::Client) -> Self {
        let session = Session::new(Connected { kube, pools: Arc::new(Unknown) }, "");
        let (current, building) = (ArcSwap::from_pointee(session), Arc::new(Semaphore::new(1)));
        Self { current, config: None, renewed: Mutex::new(None), building }
    }

    /// The current client; a new one if its certificate is about to expire.
    pub(super) async fn current(&self) -> Arc<Session> {
        let current = self.current.load_full();
        let expiring = current
            .kube
            .valid_until()
            .is_some_and(|until| SystemTime::from(until) < SystemTime::now() + EXPIRY_MARGIN);
        if !expiring {
            return current;
        }
        self.renew(&current, Renewal::Expiring).await.unwrap_or(current)
    }

    /// Closes the connections that are idle now.
    pub(super) fn forget_connections(&self) {
        self.current.load().pools.forget_now();
    }

    /// A new client for a second try, if the outcome of a request suggests that credentials, CA or address have changed, and
    /// they can be read again (U28). `generation` is that of the pools before the request.
    pub(super) async fn after(
        &self,
        session: &Arc<Session>,
        generation: usize,
        answer: Result<StatusCode, &UpstreamError>,
    ) -> Option<Arc<Session>> {
        let reason = match answer {
            Ok(code) => {
                session.unreached.store(0, Ordering::Relaxed);
                (code == StatusCode::UNAUTHORIZED).then_some(Renewal::Unauthorized)?
            }
            Err(error) => {
                // The next requests must not meet the same dead path. Where many fail at once, the first one sees to that.
                session.pools.forget(generation);
                let unreached = session.unreached.fetch_add(1, Ordering::Relaxed) + 1;
                if error.is_tls() {
                    Renewal::Tls
                } else {
                    (unreached >= UNREACHED_MAX).then_some(Renewal::Unreached)?
                }
            }
        };
        self.renew(session, reason).await
    }

    /// A client newer than `stale`, built from what the source contains now; `None` if it is too early for another one.
    async fn renew(&self, stale: &Arc<Session>, reason: Renewal) -> Option<Arc<Session>> {
        // A plain address never changes.
        let config =
            self.config.as_ref().filter(|config| !matches!(config.source, UpstreamSource::Server { .. }))?;
        // One caller builds the client; the others wait for its result.
        let mut renewed = self.renewed.lock().await;
        let current = self.current.load_full();
        if !Arc::ptr_eq(&current, stale) {
            return Some(current);
        }
        if renewed.is_some_and(|last| last.elapsed() < reason.interval_min()) {
            return None;
        }
        *renewed = Some(Instant::now());
        let Ok(permit) = self.building.clone().try_acquire_owned() else {
            warn!("the exec plugin that was started before still runs: the credentials cannot be read again");
            return None;
        };
        let late = || Err(UpstreamError::Config(Box::new(SourceError::Late(config.plugin_timeout))));
        let built = timeout(config.plugin_timeout, build(config, Some(permit))).await;
        match built.unwrap_or_else(|_| late()) {
            Ok(session) => {
                info!(reason = reason.as_str(), "read the address and the credentials again");
                metrics::renewed(reason);
                let session = Arc::new(session);
                self.current.store(session.clone());
                Some(session)
            }
            Err(error) => {
                warn!(error = error.sentence(), "the credentials could not be read again");
                None
            }
        }
    }
}

impl Session {
    fn new(connected: Connected, server: &str) -> Self {
        let Connected { kube, pools } = connected;
        Self { kube, server: server.into(), pools, unreached: AtomicU32::new(0) }
    }

    /// The generation of its pools, which counts how often their connections were forgotten.
    pub(super) fn generation(&self) -> usize {
        self.pools.generation()
    }
}

impl Renewal {
    fn interval_min(self) -> Duration {
        match self {
            Self::Unauthorized | Self::Expiring => RENEWAL_INTERVAL_MIN,
            Self::Tls | Self::Unreached => OUTAGE_RENEWAL_INTERVAL_MIN,
        }
    }
}

/// Holds the permit until the client is built, even if the caller has given up.
async fn build(config: &Config, permit: Option<OwnedSemaphorePermit>) -> Result<Session, UpstreamError> {
    // More than one crypto provider may be compiled in. If one is installed already, it is kept.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut kube = load(&config.source).await.map_err(UpstreamError::Config)?;
    kube.connect_timeout = Some(config.connect_timeout);
    if kube.cluster_url.scheme_str() == Some("http") && kube.root_cert.is_none() {
        // Without TLS no root certificates are needed, and a minimal image has none.
        kube.root_cert = Some(Vec::new());
    }
    let server = address(&kube.cluster_url);
    let pings = (!config.http1_only)
        .then_some(Pings { interval: config.ping_interval, timeout: config.ping_timeout });
    // Building may run an exec plugin, which blocks.
    let connect = move || {
        let _permit = permit;
        connector::connect(kube, pings)
    };
    let built = tokio::task::spawn_blocking(connect).await;
    match built {
        Ok(connected) => {
            connected.map(|connected| Session::new(connected, &server)).map_err(UpstreamError::Config)
        }
        Err(error) => Err(UpstreamError::Config(Box::new(error))),
    }
}

/// Why a source has no address and credentials. Replaces kube's messages that do not say what to do.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    /// No source of a cluster was found.
    #[error(
        "no cluster is named: $KUBECONFIG is not set, ~/.kube/config does not exist, and this is not a pod \
         ($KUBERNETES_SERVICE_HOST is not set); give --kubeconfig or --server, or see `informerd demo`, which needs no cluster"
    )]
    NoCluster,
    /// In-cluster was requested outside of a pod.
    #[error(
        "--in-cluster needs a pod's service account, and this is not a pod ($KUBERNETES_SERVICE_HOST is not set); without it \
         the kubeconfig is used"
    )]
    NotInPod,
    /// Reading the credentials takes too long.
    #[error("the exec plugin did not answer within {} s", .0.as_secs_f32())]
    Late(Duration),
    /// A kubeconfig without that context.
    #[error("{kubeconfig} has no context {context:?}; it has {known}")]
    UnknownContext { kubeconfig: String, context: String, known: String },
}

async fn load(source: &UpstreamSource) -> Result<kube::Config, Box<dyn Error + Send + Sync>> {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    match source {
        UpstreamSource::Infer if default_kubeconfig().is_none() && !in_pod => {
            Err(SourceError::NoCluster.into())
        }
        UpstreamSource::InCluster if !in_pod => Err(SourceError::NotInPod.into()),
        UpstreamSource::Infer if default_kubeconfig().is_none() => Ok(kube::Config::incluster()?),
        UpstreamSource::InCluster => Ok(kube::Config::incluster()?),
        UpstreamSource::Server { url } => Ok(kube::Config::new(url.parse::<http::Uri>()?)),
        UpstreamSource::Infer => of_kubeconfig(None, None).await,
        UpstreamSource::Kubeconfig { path, context } => {
            of_kubeconfig(path.as_deref(), context.as_deref()).await
        }
    }
}

async fn of_kubeconfig(
    path: Option<&Path>,
    context: Option<&str>,
) -> Result<kube::Config, Box<dyn Error + Send + Sync>> {
    let kubeconfig = match path {
        Some(path) => Kubeconfig::read_from(path)?,
        None => Kubeconfig::read()?,
    };
    let known: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    if let Some(context) = context.filter(|context| !known.contains(context)) {
        let kubeconfig = path.map_or("the kubeconfig".to_owned(), |path| path.display().to_string());
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(SourceError::UnknownContext { kubeconfig, context: context.to_owned(), known }.into());
    }
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    let declared = proxy::declared(&kubeconfig, context);
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = proxy::Variables::of_process().proxy(declared.as_deref(), &config.cluster_url)?;
    Ok(config)
}

/// The address without a password.
fn address(url: &http::Uri) -> String {
    let host = url.authority().map_or("", |authority| authority.as_str());
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{}://{host}", url.scheme_str().unwrap_or("https"))
}

/// The kubeconfig that [`UpstreamSource::Infer`] finds, if any. kube itself would fall back to the service account on *any* error
/// in the file, and hide the error.
fn default_kubeconfig() -> Option<PathBuf> {
    match std::env::var_os("KUBECONFIG") {
        Some(path) if !path.is_empty() => Some(path.into()),
        _ => std::env::home_dir().map(|home| home.join(".kube/config")).filter(|path| path.exists()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubeconfig whose exec plugin answers until there is a file `hangs`, into which it writes a line at each start.
    fn kubeconfig(directory: &Path) -> PathBuf {
        let hangs = directory.join("hangs");
        let script = format!(
            "if [ -e {0} ]; then echo started >> {0}; exec sleep 20; fi; echo '{1}'",
            hangs.display(),
            r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"a"}}"#
        );
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "a", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "sh",
                "args": ["-c", script],
                "interactiveMode": "Never",
            }}}],
        });
        let path = directory.join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }

    #[test]
    fn an_exec_plugin_that_hangs_is_given_up_and_not_started_again() {
        let directory = tempfile::tempdir().unwrap();
        let source = UpstreamSource::Kubeconfig { path: Some(kubeconfig(directory.path())), context: None };
        let config = Config { plugin_timeout: Duration::from_millis(100), ..Config::new(source) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let hangs = directory.path().join("hangs");
        runtime.block_on(async {
            let sessions = Sessions::open(config).await.unwrap();
            let session = sessions.current().await;
            std::fs::write(&hangs, "").unwrap();
            assert!(sessions.renew(&session, Renewal::Unauthorized).await.is_none(), "the plugin hangs");
            // As if the least time between two renewals were over.
            *sessions.renewed.lock().await = None;
            assert!(sessions.renew(&session, Renewal::Unauthorized).await.is_none(), "it still hangs");
        });
        assert_eq!(std::fs::read_to_string(&hangs).unwrap(), "started\n", "at the first renewal alone");
        // As the program does: it does not wait for the plugin.
        runtime.shutdown_background();
    }
}
