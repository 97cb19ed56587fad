//! Where the API server is, and the limits towards it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where the API server's address and the credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A kubeconfig if `KUBECONFIG` is set or `~/.kube/config` exists, else the pod's service account.
    Infer,
    /// A kubeconfig file.
    Kubeconfig {
        /// The file; `KUBECONFIG` or `~/.kube/config` where there is none.
        path: Option<PathBuf>,
        /// The context; the current one where there is none.
        context: Option<String>,
    },
    /// The pod's service account, its token read again as it rotates.
    InCluster,
    /// An address without credentials: `kubectl proxy`, a simulator.
    Server {
        /// `http://127.0.0.1:8001`.
        url: String,
    },
}

// === impl Source ===

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infer => f.write_str("inferred"),
            Self::InCluster => f.write_str("in-cluster"),
            // What is before an @ is a password.
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

/// How to reach the API server, and how much to take from it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address and credentials.
    pub source: Source,
    /// TCP and TLS together.
    pub connect_timeout: Duration,
    /// From a request to the head of its response. The API server gives up on a list after 60 s itself.
    pub response_timeout: Duration,
    /// The same for a watch, which is answered before there is anything to tell. It is longer than the 15 s for which
    /// the API server's priority and fairness lets a request wait, so that one that is busy says so itself; two of these
    /// and a silence are what a hung server behind a load balancer may cost.
    pub watch_response_timeout: Duration,
    /// Without a byte of a body that should end (lists, discovery). Watches have the reflector's deadlines.
    pub idle_timeout: Duration,
    /// Bytes of one list page after decompression; beyond it the page is asked for in smaller ones.
    pub page_bytes_max: usize,
}

impl Config {
    /// The defaults: connect 10 s, response 70 s (of a watch 20 s), idle 30 s, pages of at most 512 MiB, which 500
    /// objects of the largest size etcd takes (1.5 MiB, smaller in protobuf) can only reach when hardly anything else
    /// fits the cluster.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(70),
            watch_response_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(30),
            page_bytes_max: 512 << 20,
        }
    }
}
