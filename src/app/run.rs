//! Binds listeners, builds the rooms, spawns tasks, and drains them at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use super::{definitions, election, informers, pass, reload};
use crate::config::{self, HostName, Limits, Listen, Origin};
use crate::hub::Hub;
use crate::k8s::Links;
use crate::{hub, reflect, serve as http, telemetry, upstream};

/// A running informerd. Dropping it does not stop it; [`App::stop`] does.
pub struct App {
    /// The informers, for code in the same process.
    pub hub: Hub,
    /// Where clients connect, unless it is a Unix socket.
    pub address: Option<SocketAddr>,
    /// Where probes and metrics are answered.
    pub admin_address: Option<SocketAddr>,
    leaving: CancellationToken,
    shutdown_delay: Duration,
    drain: CancellationToken,
    cancel: CancellationToken,
    data: JoinHandle<()>,
    admin: Option<JoinHandle<()>>,
    informers: JoinHandle<anyhow::Result<()>>,
    elector: Option<JoinHandle<()>>,
    reload: Arc<Notify>,
}

/// Time in which the requests of the admin listener may end at shutdown.
const ADMIN_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Length of the queues of demands and reloads; senders wait while they are full.
const INBOX_LEN: usize = 64;

/// Longest wait at the end for the Lease of the queues' leader to be released. If it is not, the others wait until it runs out.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// Renders the metrics in the Prometheus text format.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves a cluster until a signal ends it.
///
/// # Errors
/// If a listener could not be bound, or the configuration of the API server not be read.
pub async fn serve(config: config::Serve, metrics: telemetry::Metrics) -> anyhow::Result<()> {
    let mut signals = Signals::new(Hangup::Reloads)?;
    for (field, value) in config.loggable() {
        info!(field, value, "configuration");
    }
    tokio::spawn(metrics.clone().upkeep());
    // A start may wait for an exec plugin.
    let app = tokio::select! {
        app = App::start(config, Arc::new(move || metrics.render())) => app?,
        () = signals.stop() => return Ok(()),
    };
    app.run(signals).await
}

/// Describes the metrics of every room, so that each is visible before it is counted.
fn describe_metrics() {
    super::metrics::describe();
    upstream::describe();
    reflect::describe();
    hub::describe();
    http::describe();
}

impl App {
    /// Binds, connects and starts. The first lists run in the background.
    ///
    /// # Errors
    /// If a listener could not be bound, or the configuration of the API server not be read.
    pub async fn start(config: config::Serve, render: Render) -> anyhow::Result<Self> {
        describe_metrics();
        let data = bind(&config.listen)?;
        let admin = config.admin_listen.map(|address| {
            http::Bound::tcp(address).with_context(|| format!("cannot listen on {address} (--admin-listen)"))
        });
        let admin = admin.transpose()?;
        let client =
            upstream::Client::connect(upstream_config(&config.upstream, !config.watch_http2, &config.limits))
                .await
                .map_err(|error| config::ConfigError::Cluster(error.sentence()))?;
        let (drain, cancel) = (CancellationToken::new(), CancellationToken::new());
        let (leaving, shutdown_delay) = (CancellationToken::new(), config.shutdown_delay);
        let (demand_door, demands) = mpsc::channel(INBOX_LEN);
        let (reload_door, reloads) = mpsc::channel(INBOX_LEN);
        // Also if nothing may start on demand now: a reload of the file may allow it.
        let may_demand = config.on_demand.is_on() || config.source.is_some();
        let hub = match may_demand {
            true => Hub::with_demand(hub_config(&config), drain.clone(), demand_door),
            false => Hub::new(hub_config(&config), drain.clone()),
        };
        // Before the listeners answer, so that readiness waits for the watches from the first probe on.
        let informers = informers::Informers::new(&config, client.clone(), hub.clone(), cancel.clone());
        let (address, admin_address) = (data.address(), admin.as_ref().and_then(http::Bound::address));
        let shown =
            |address: Option<SocketAddr>| address.map_or("none".to_owned(), |address| address.to_string());
        if let Some(exposure) = config.exposure() {
            warn!(exposure, "the data listener has no authentication");
        }
        info!(listen = %config.listen, address = shown(address), admin = shown(admin_address), "listening");
        let http_config = http_config(&config);
        let (queues, elector) = start_queues(&config, &client, &hub, (&leaving, &drain)).await;
        let health = http::Admin {
            hub: hub.clone(),
            queues,
            render,
            unready_after: config.unready_after,
            leaving: leaving.clone(),
        };
        let admin = admin.map(|bound| {
            // The admin listener drains fast, as it has no long answers.
            let config = http::Config { drain_timeout: ADMIN_DRAIN_TIMEOUT, ..http_config.clone() };
            let admin = http::serve_admin(bound, health.clone(), config, cancel.clone());
            tokio::spawn(admin.instrument(info_span!("admin")))
        });
        let upstream =
            http::Upstream { pass: pass::through(&config, &client), definition: definitions::fetch(&client) };
        let data = http::serve(data, health, http_config, upstream, drain.clone());
        let data = tokio::spawn(data.instrument(info_span!("http")));
        tokio::spawn(tend(hub.clone(), cancel.clone()));
        let reload = Arc::new(Notify::new());
        if let Some(source) = config.source.clone() {
            let (running, trigger) = (config.clone(), reload.clone());
            let reloader = reload::Reloader { source, running, door: reload_door, trigger };
            tokio::spawn(reloader.run(cancel.clone()).instrument(info_span!("reload")));
        }
        let inbox = informers::Inbox { demands, reloads };
        let informers = tokio::spawn(informers.run(inbox));
        Ok(Self {
            hub,
            address,
            admin_address,
            leaving,
            shutdown_delay,
            drain,
            cancel,
            data,
            admin,
            informers,
            elector,
            reload,
        })
    }

    /// Reads the configuration again, as SIGHUP does.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// Runs until a signal, or until the informers fail because the configuration does not fit the cluster.
    pub(super) async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        let failed = loop {
            tokio::select! {
                signal = signals.recv() => match signal {
                    Signal::Stop => break None,
                    Signal::Reload => self.reload(),
                },
                ended = &mut self.informers => break Some(ended.context("the informers panicked")?),
            }
        };
        info!("stopping");
        match failed {
            // No shutdown delay: the informers have failed.
            Some(failed) => {
                self.drain().await;
                failed
            }
            None => {
                tokio::select! {
                    () = self.leave() => {}
                    // A second signal ends the delay.
                    () = signals.stop() => {}
                }
                self.drain().await;
                Ok(())
            }
        }
    }

    /// Stops as SIGTERM does: unready and serving for the shutdown delay, then drained.
    pub async fn stop(self) {
        self.leave().await;
        self.drain().await;
    }

    /// Becomes unready, and serves on for the shutdown delay, in which a Service notices.
    async fn leave(&self) {
        self.leaving.cancel();
        if !self.shutdown_delay.is_zero() {
            info!(
                delay_seconds = self.shutdown_delay.as_secs_f64(),
                "unready, and serving on until the delay is over"
            );
            sleep(self.shutdown_delay).await;
        }
    }

    /// Drains: streams end, connections close; then the informers and the admin listener stop.
    async fn drain(self) {
        self.leaving.cancel();
        self.drain.cancel();
        let _ = self.data.await;
        if let Some(elector) = self.elector {
            // Its requests have their own time limits, unless the API server answers each with a conflict.
            let _ = timeout(RELEASE_WAIT, elector).await;
        }
        self.cancel.cancel();
        if let Some(admin) = self.admin {
            let _ = admin.await;
        }
        self.informers.abort();
        info!("stopped");
    }
}

/// How often the hub checks for states that readers have held for too long.
const TEND_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the hub's cleanup until the process ends.
async fn tend(hub: Hub, cancel: CancellationToken) {
    let mut tick = tokio::time::interval(TEND_INTERVAL);
    loop {
        tokio::select! {
            now = tick.tick() => hub.tend(now),
            () = cancel.cancelled() => return,
        }
    }
}

/// The meaning of a signal.
enum Signal {
    Stop,
    Reload,
}

/// The effect of SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hangup {
    /// Reads the configuration again.
    Reloads,
    /// Ends the process, as when its terminal is closed.
    Ends,
}

/// SIGTERM, SIGINT and SIGHUP.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    on_hangup: Hangup,
}

impl Signals {
    pub(super) fn new(on_hangup: Hangup) -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            on_hangup,
        })
    }

    /// Waits for a signal to stop.
    async fn stop(&mut self) {
        while matches!(self.recv().await, Signal::Reload) {}
    }

    async fn recv(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hangup.recv() => match self.on_hangup {
                Hangup::Reloads => Signal::Reload,
                Hangup::Ends => Signal::Stop,
            },
        }
    }
}

fn bind(listen: &Listen) -> anyhow::Result<http::Bound> {
    let bound = match listen {
        Listen::Tcp(address) => http::Bound::tcp(*address),
        Listen::Unix(path) => http::Bound::unix(path),
    };
    bound.with_context(|| format!("cannot listen on {listen} (--listen)"))
}

pub(super) fn upstream_config(
    source: &upstream::UpstreamSource,
    http1_only: bool,
    limits: &Limits,
) -> upstream::Config {
    upstream::Config {
        page_bytes_max: limits.page_bytes_max,
        http1_only,
        ping_interval: limits.ping(),
        ping_timeout: limits.ping(),
        ..upstream::Config::new(source.clone())
    }
}

fn hub_config(config: &config::Serve) -> hub::Config {
    let limits = &config.limits;
    hub::Config {
        subscribers_max: limits.subscribers_max,
        batch_len_max: limits.batch_len_max,
        batch_bytes_max: limits.batch_bytes_max,
        heartbeat_interval: limits.heartbeat_interval,
        bookmark_interval: limits.bookmark_interval,
        resume_wait: limits.resume_wait,
        drain_spread_max: config.drain_timeout / 2,
    }
}

/// Starts the queues and, where one of several replicas gives out their keys, its election.
async fn start_queues(
    config: &config::Serve,
    client: &upstream::Client,
    hub: &Hub,
    (leaving, drain): (&CancellationToken, &CancellationToken),
) -> (http::Queues, Option<JoinHandle<()>>) {
    let process = rand::random();
    let Some(wanted) = config.election.as_ref().filter(|_| config.queue_mode != config::QueueMode::Off)
    else {
        return (http::Queues::new(hub.clone(), queue_config(config, process, None), drain.clone()), None);
    };
    let candidate = election::config(wanted, client, process).await;
    let queue_config = queue_config(config, process, Some(candidate.clone()));
    let queues = http::Queues::new(hub.clone(), queue_config, drain.clone());
    let elector = election::Elector::new(client.clone(), queues.clone(), &candidate, wanted);
    let elector = tokio::spawn(elector.run(leaving.clone()).instrument(info_span!("election")));
    (queues, Some(elector))
}

fn queue_config(
    config: &config::Serve,
    process: u64,
    election: Option<http::ElectionConfig>,
) -> http::QueueConfig {
    let limits = &config.limits;
    http::QueueConfig {
        access: match config.queue_mode {
            config::QueueMode::Off => http::QueueAccess::Off,
            config::QueueMode::Config => http::QueueAccess::Configuration,
            config::QueueMode::Api => http::QueueAccess::Clients,
        },
        declared: config.queues.clone(),
        process,
        queues_max: limits.queues_max,
        keys_max: limits.queue_keys_max,
        leases_max: limits.queue_leases_max,
        workers_max: limits.queue_workers_max,
        informers_max: limits.streams_per_connection_max,
        election,
        links: links(config),
    }
}

fn links(config: &config::Serve) -> Links {
    Links::new(config.links.iter().map(config::LinkSpec::link))
}

fn http_config(config: &config::Serve) -> http::Config {
    let limits = &config.limits;
    http::Config {
        connections_max: limits.connections_max,
        streams_per_connection_max: limits.streams_per_connection_max,
        header_bytes_max: limits.header_bytes_max,
        url_bytes_max: limits.url_bytes_max,
        header_timeout: limits.header_timeout,
        write_stall_timeout: limits.write_stall_timeout,
        send_buffer_bytes: limits.send_buffer_bytes,
        snapshot_pages_max: limits.snapshot_pages_max,
        snapshot_pages_bytes_max: limits.snapshot_pages_bytes_max,
        snapshot_pages_ttl: limits.snapshot_pages_ttl,
        waiting_requests_max: limits.waiting_requests_max,
        world_states_bytes_max: limits.world_states_bytes_max,
        drain_timeout: config.drain_timeout,
        batch_bytes_max: limits.batch_bytes_max,
        allow_origins: config.allow_origins.iter().map(Origin::as_str).map(str::to_owned).collect(),
        allow_hosts: config.allow_hosts.iter().map(HostName::as_str).map(str::to_owned).collect(),
        links: links(config),
    }
}
