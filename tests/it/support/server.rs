//! informerd in the process, on a port of its own, in front of the simulator or another API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use informerd::testing::app::App;
use informerd::testing::config::{self, General, Limits, Listen, Log, OnDemand, UpstreamSource, WatchSpec};
use informerd::testing::hub::Hub;
use informerd::testing::k8s::DropPaths;
use informerd::testing::sim::{ApiServer, ApiServerConfig, Cluster, ClusterConfig};
use informerd::testing::telemetry::Metrics;
use tokio::runtime::Runtime;

use super::client::{self, Response};
use super::in_time;
use super::port::Port;

/// An informerd with the simulator behind it.
pub(crate) struct TestServer {
    pub(crate) cluster: Cluster,
    pub(crate) api: ApiServer,
    pub(crate) informerd: Informerd,
}

/// An informerd in a runtime of its own, so that it can be killed like a process.
pub(crate) struct Informerd {
    config: config::Serve,
    running: Option<(Runtime, App)>,
    /// The data listener; unspecified for a Unix socket.
    pub(crate) address: SocketAddr,
    /// The admin listener.
    pub(crate) admin: SocketAddr,
    /// The informers.
    pub(crate) hub: Hub,
    /// Held while informerd is down, too.
    _ports: Vec<Port>,
}

/// A loopback address with a port of the system's choice.
pub(crate) const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

// === impl TestServer ===

impl TestServer {
    /// Follows these resources of a new cluster.
    pub(crate) async fn start(resources: &[&str]) -> Self {
        Self::start_with(resources, |_| {}).await
    }

    /// As [`TestServer::start`], with settings changed.
    pub(crate) async fn start_with(resources: &[&str], change: impl FnOnce(&mut config::Serve)) -> Self {
        Self::over(Cluster::new(ClusterConfig::default()), resources, change).await
    }

    /// Follows these resources of an existing cluster.
    pub(crate) async fn over(
        cluster: Cluster,
        resources: &[&str],
        change: impl FnOnce(&mut config::Serve),
    ) -> Self {
        let api = Self::api(cluster.clone()).await;
        Self::beside(cluster, api, resources, change).await
    }

    /// An API server that sends a bookmark every 200 ms.
    pub(crate) async fn api(cluster: Cluster) -> ApiServer {
        let timings =
            ApiServerConfig { bookmark_interval: Duration::from_millis(200), ..ApiServerConfig::default() };
        ApiServer::bind_with(cluster, ANY_PORT, timings).await.expect("a free port")
    }

    /// Follows these resources of an existing API server.
    pub(crate) async fn beside(
        cluster: Cluster,
        api: ApiServer,
        resources: &[&str],
        change: impl FnOnce(&mut config::Serve),
    ) -> Self {
        let mut config = serve_config(UpstreamSource::Server { url: api.url() }, resources);
        change(&mut config);
        Self { cluster, api, informerd: Informerd::start(config).await }
    }

    /// Waits until an informer has reached the cluster's current revision.
    pub(crate) async fn caught_up(&self, resource: &str) {
        let newest = self.cluster.list(resource).iter().map(super::check::version).max().unwrap_or(0);
        let objects = self.cluster.len(resource);
        let informers = self.hub.resolve(resource).expect("a followed resource");
        super::eventually(&format!("{resource} at {newest} with {objects} objects"), || {
            let reached = |text: String| text.parse::<u128>().is_ok_and(|reached| reached >= newest);
            informers.iter().all(|one| one.reader.mark().synced)
                && informers.iter().any(|one| reached(one.reader.summary().position.to_string()))
                && informers.iter().map(|one| one.reader.summary().objects).sum::<usize>() == objects
        })
        .await;
    }
}

impl std::ops::Deref for TestServer {
    type Target = Informerd;

    fn deref(&self) -> &Informerd {
        &self.informerd
    }
}

impl std::ops::DerefMut for TestServer {
    fn deref_mut(&mut self) -> &mut Informerd {
        &mut self.informerd
    }
}

// === impl Informerd ===

impl Informerd {
    /// Starts with a configuration, and waits until each informer has its first list.
    pub(crate) async fn start(config: config::Serve) -> Self {
        // Boxed, as a configuration is large and is moved in every step of the start.
        let informerd = Box::pin(Self::start_unsynced(config)).await;
        informerd.synced().await;
        informerd
    }

    /// Starts with a configuration, without waiting for the first lists.
    pub(crate) async fn start_unsynced(mut config: config::Serve) -> Self {
        let mut ports = Vec::new();
        let mut hold = |address: SocketAddr| {
            if address != ANY_PORT {
                return address;
            }
            ports.push(Port::hold());
            ports[ports.len() - 1].address
        };
        if let Listen::Tcp(address) = config.listen {
            config.listen = Listen::Tcp(hold(address));
        }
        config.admin_listen = config.admin_listen.map(hold);
        let (runtime, app) = launch(&config).await;
        let address = app.address.unwrap_or(ANY_PORT);
        let admin = app.admin_address.unwrap_or(ANY_PORT);
        let hub = app.hub.clone();
        Self { config, running: Some((runtime, app)), address, admin, hub, _ports: ports }
    }

    /// Waits until each informer has its first list.
    pub(crate) async fn synced(&self) {
        in_time("discovery", self.hub.settled()).await;
        super::eventually("the first lists", || {
            let informers = self.hub.informers();
            !informers.is_empty() && informers.iter().all(|informer| informer.reader.mark().synced)
        })
        .await;
    }

    /// Drains and stops, as SIGTERM does.
    pub(crate) async fn stop(&mut self) {
        if let Some((runtime, app)) = self.running.take() {
            in_time("the drain", runtime.spawn(app.stop())).await.expect("stopping does not panic");
            end(runtime).await;
        }
    }

    /// Ends at once, as by SIGKILL: sockets close in the middle of their data.
    pub(crate) async fn kill(&mut self) {
        if let Some((runtime, app)) = self.running.take() {
            drop(app);
            end(runtime).await;
        }
    }

    /// Starts again on the same ports, with an empty memory; does not wait for the first lists.
    pub(crate) async fn revive(&mut self) {
        assert!(self.running.is_none(), "it runs already");
        let (runtime, app) = launch(&self.config).await;
        self.hub = app.hub.clone();
        self.running = Some((runtime, app));
    }

    /// Stops and starts again on the same ports.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        self.revive().await;
    }

    /// `GET` on the data listener.
    pub(crate) async fn get(&self, target: &str) -> Response {
        client::get(self.address, target, &[]).await
    }

    /// `GET` with headers on the data listener.
    pub(crate) async fn get_with(&self, target: &str, headers: &[(&str, &str)]) -> Response {
        client::get(self.address, target, headers).await
    }
}

impl Drop for Informerd {
    fn drop(&mut self) {
        if let Some((runtime, _)) = self.running.take() {
            runtime.shutdown_background();
        }
    }
}

/// A configuration for tests: loopback, ports of the system's choice, and a short drain.
pub(crate) fn serve_config(upstream: UpstreamSource, resources: &[&str]) -> config::Serve {
    config::Serve {
        watches: resources.iter().map(|resource| watch(resource)).collect(),
        on_demand: OnDemand { patterns: Vec::new(), idle: Duration::from_secs(300), template: watch("") },
        discovery_interval: Duration::from_secs(600),
        upstream,
        watch_http2: true,
        listen: Listen::Tcp(ANY_PORT),
        admin_listen: Some(ANY_PORT),
        allow_origins: Vec::new(),
        allow_hosts: Vec::new(),
        pass_through: config::PassThrough::default(),
        pass_through_proxy: Vec::new(),
        queue_mode: config::QueueMode::Api,
        queues: Default::default(),
        election: None,
        links: Vec::new(),
        initial_list: config::InitialList::default(),
        cache_packing: config::CachePacking::default(),
        verify_interval: None,
        limits: Limits::DEFAULT,
        shutdown_delay: Duration::ZERO,
        drain_timeout: Duration::from_secs(2),
        unready_after: None,
        log: Log::default(),
        settings: Box::new(General::DEFAULT),
        source: None,
    }
}

/// The cluster of a kubeconfig's current context.
pub(crate) fn kubeconfig(path: PathBuf) -> UpstreamSource {
    UpstreamSource::Kubeconfig { path: Some(path), context: None }
}

/// A watch of a resource in all namespaces, of whole objects.
pub(crate) fn watch(resource: &str) -> WatchSpec {
    WatchSpec {
        resource: resource.to_owned(),
        namespaces: Vec::new(),
        namespaces_are_default: false,
        label_selector: None,
        field_selector: None,
        keep_managed_fields: false,
        keep_last_applied: false,
        metadata_only: false,
        drop: DropPaths::default(),
        indexes: Vec::new(),
    }
}

/// The metrics of this process, shared by all servers in it.
fn metrics() -> &'static Metrics {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    METRICS.get_or_init(|| Metrics::install().expect("installed once"))
}

async fn launch(config: &config::Serve) -> (Runtime, App) {
    let metrics = metrics();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("threads");
    let config = config.clone();
    let app = App::start(config, Arc::new(move || metrics.render()));
    let app = in_time("the start", runtime.spawn(app)).await.expect("no panic").expect("it starts");
    (runtime, app)
}

/// Ends a runtime from within another one. Returns when all its tasks, and so their sockets, are gone.
async fn end(runtime: Runtime) {
    let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(super::PATIENCE));
    ended.await.expect("ending does not panic");
}
