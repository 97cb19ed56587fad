//! The address of the API server, the source of credentials, and limits.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where the API server's address and the credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamSource {
    /// A kubeconfig if `KUBECONFIG` is set or `~/.kube/config` exists, else the pod's service account.
    Infer,
    /// A kubeconfig file.
    Kubeconfig {
        /// The file; `None` for that of `KUBECONFIG`, or `~/.kube/config`.
        path: Option<PathBuf>,
        /// The context; `None` for the current one.
        context: Option<String>,
    },
    /// The pod's service account, whose token is read again as it rotates.
    InCluster,
    /// An address without credentials: `kubectl proxy`, a simulator.
    Server {
        /// `http://127.0.0.1:8001`.
        url: String,
    },
}

// === impl UpstreamSource ===

impl fmt::Display for UpstreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infer => f.write_str("inferred"),
            Self::InCluster => f.write_str("in-cluster"),
            // The part before an @ holds a password.
            Self::Server { url } => match (url.split_once("://"), url.rsplit_once('@')) {
                (Some((scheme, _)), Some((_, host))) => write!(f, "{scheme}://{host}"),
                _ => f.write_str(url),
            },
            Self::Kubeconfig { path, context } => {
                f.write_str("kubeconfig")?;
                path.iter().try_for_each(|path| write!(f, " {}", path.display()))?;
                context.iter().try_for_each(|context| write!(f, " context {context}"))
            }
        }
    }
}

/// How to reach the API server, and limits of its answers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address and credentials.
    pub source: UpstreamSource,
    /// Time for TCP and TLS together.
    pub connect_timeout: Duration,
    /// Time for an exec plugin to answer when credentials are renewed; reflectors wait for it. At the start it may ask a person, and
    /// has no limit.
    pub plugin_timeout: Duration,
    /// Time from a request to the head of its answer. The API server itself gives up on a list after 60 s.
    pub response_timeout: Duration,
    /// The same for a watch, which is answered before the first event. It is longer than the 15 s for which priority and
    /// fairness lets a request wait, so that a busy API server has the time to say so. A hung server behind a load balancer
    /// may cost this time twice, and the silence of a watch.
    pub watch_response_timeout: Duration,
    /// Time without a byte in a body that should end (lists, discovery). For watches the reflector has deadlines.
    pub idle_timeout: Duration,
    /// Whether watches go over HTTP/1.1 even where the server knows HTTP/2.
    pub http1_only: bool,
    /// Time without a byte on an HTTP/2 connection after which the server is pinged.
    pub ping_interval: Duration,
    /// Time for the answer to a ping. A dead connection is noticed within both times together.
    pub ping_timeout: Duration,
    /// Largest page of a list, in bytes after decompression. A larger one is requested again in smaller pages.
    pub page_bytes_max: usize,
}

impl Config {
    /// The defaults: connect 10 s, plugin 60 s, response 70 s (watch 20 s), idle 30 s, a ping after 15 s and its answer in
    /// 15 s, pages of at most 512 MiB. 500 objects reach that only
    /// if nearly all have the largest size that etcd accepts (1.5 MiB of protobuf).
    pub fn new(source: UpstreamSource) -> Self {
        Self {
            source,
            connect_timeout: Duration::from_secs(10),
            plugin_timeout: Duration::from_secs(60),
            response_timeout: Duration::from_secs(70),
            watch_response_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(30),
            http1_only: false,
            ping_interval: Duration::from_secs(15),
            ping_timeout: Duration::from_secs(15),
            page_bytes_max: 512 << 20,
        }
    }
}
