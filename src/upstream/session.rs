//! A `kube::Client` with its credentials, and its renewal.
//!
//! kube re-reads a token file and the cluster's CA every minute and refreshes exec plugins' tokens; what it
//! does not do is renew an exec plugin's client certificate, or look again at once when the API server
//! answers 401. Both are done here by building the client anew from its [`Source`].

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Config, Source, UpstreamError};

/// The client is not built anew more often, however many reflectors see a 401.
const RENEWAL_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// A client certificate is renewed this long before it expires, as kube does with tokens.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// The current client, shared by all clones of [`super::Client`].
pub(super) struct Sessions {
    current: ArcSwap<Session>,
    /// `None` for a client that was handed in: there is nothing to build it from.
    config: Option<Config>,
    /// When it was last built anew; held while it is.
    renewed: Mutex<Option<Instant>>,
}

/// One `kube::Client`.
pub(super) struct Session {
    pub(super) kube: kube::Client,
}

// === impl Sessions ===

impl Sessions {
    pub(super) async fn open(config: Config) -> Result<Self, UpstreamError> {
        let session = Session { kube: build(&config).await? };
        Ok(Self { current: ArcSwap::from_pointee(session), config: Some(config), renewed: Mutex::new(None) })
    }

    pub(super) fn over(kube: kube::Client) -> Self {
        Self { current: ArcSwap::from_pointee(Session { kube }), config: None, renewed: Mutex::new(None) }
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
        self.renew(&current).await.unwrap_or(current)
    }

    /// A client newer than `stale`, with the credentials read again; `None` if there cannot be one yet.
    pub(super) async fn renew(&self, stale: &Arc<Session>) -> Option<Arc<Session>> {
        let config = self.config.as_ref()?;
        // One builds, the others wait for it and take its result.
        let mut renewed = self.renewed.lock().await;
        let current = self.current.load_full();
        if !Arc::ptr_eq(&current, stale) {
            return Some(current);
        }
        if renewed.is_some_and(|last| last.elapsed() < RENEWAL_INTERVAL_MIN) {
            return None;
        }
        *renewed = Some(Instant::now());
        match build(config).await {
            Ok(kube) => {
                info!("read the credentials again");
                let session = Arc::new(Session { kube });
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

async fn build(config: &Config) -> Result<kube::Client, UpstreamError> {
    // kube compiles with more than one provider in the tree; whoever installed one first has decided.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut kube = load(&config.source).await.map_err(UpstreamError::Config)?;
    kube.connect_timeout = Some(config.connect_timeout);
    // The reflector backs off, and the state of things must show: no retries below us.
    kube.default_retry = false;
    if kube.cluster_url.scheme_str() == Some("http") && kube.root_cert.is_none() {
        // Without TLS the system's roots are not needed, and a minimal image has none.
        kube.root_cert = Some(Vec::new());
    }
    // Building may run an exec plugin, which blocks.
    let built = tokio::task::spawn_blocking(move || kube::Client::try_from(kube)).await;
    match built {
        Ok(client) => client.map_err(|error| UpstreamError::Config(Box::new(error))),
        Err(error) => Err(UpstreamError::Config(Box::new(error))),
    }
}

async fn load(source: &Source) -> Result<kube::Config, Box<dyn Error + Send + Sync>> {
    match source {
        Source::Infer if default_kubeconfig().is_none() => Ok(kube::Config::incluster()?),
        Source::Infer => Ok(kube::Config::from_kubeconfig(&KubeConfigOptions::default()).await?),
        Source::InCluster => Ok(kube::Config::incluster()?),
        Source::Server { url } => Ok(kube::Config::new(url.parse::<http::Uri>()?)),
        Source::Kubeconfig { path, context } => {
            let options = KubeConfigOptions { context: context.clone(), ..Default::default() };
            Ok(match path {
                Some(path) => {
                    kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?
                }
                None => kube::Config::from_kubeconfig(&options).await?,
            })
        }
    }
}

/// What makes [`Source::Infer`] a kubeconfig. kube would fall back to the service account on *any* error in
/// the file, and hide it.
fn default_kubeconfig() -> Option<PathBuf> {
    match std::env::var_os("KUBECONFIG") {
        Some(path) if !path.is_empty() => Some(path.into()),
        _ => std::env::home_dir().map(|home| home.join(".kube/config")).filter(|path| path.exists()),
    }
}
