//! The table of settings. Each row defines one setting: type, default, what a reload does with it, least value, and the text
//! of the help with the reason for the default.
//!
//! The row `journal_len_max` defines the flag `--journal-len-max`, the variable `INFORMERD_JOURNAL_LEN_MAX` and the key
//! `limits.journalLenMax`; a key with another name follows `as`. `{default}` in a text stands for the default. To add a
//! setting, add a row and use its value in `mod.rs`: help, manual page, JSON Schema and docs/settings.md follow.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::LazyLock;
use std::time::Duration;

use super::error::ConfigError;
use super::expand::Environment;
use super::layer::{file, layers};
use super::links::DeclaredLinks;
use super::on_demand::Pattern;
use super::quantity::{Count, Quantity, Size, Span};
use super::queues::{DeclaredQueues, LeaseName, QueueMode};
use super::setting::{Given, Maybe, Namespaces, Origin, Reload, Setting, Switch, Value, key};
use super::values::{
    AdminListen, ApiListen, CachePacking, FilePath, HostName, InitialList, Listen, LogFilter, LogFormat,
    Name, Origin as WebOrigin, PassThrough, Proxied, Rate, Seed, ServerUrl, Unready, VerifyInterval,
};
use super::watch::Watches;

/// Port of the data listener.
const DATA_PORT: u16 = 8090;

/// Port of the admin listener.
pub(super) const ADMIN_PORT: u16 = 8091;

/// The settings of `serve`, without the limits.
macro_rules! general {
    ($make:ident) => {
        $make! {
            /// What to watch, where to listen, and how to behave.
            names GeneralSettings, General, GeneralFile, general_rows, prefix "" nested limits: LimitFile;
            "What to watch" {
                /// Resource, or RESOURCE?QUERY as shown below [repeatable; in the variable separated by ;]
                watch: Watches = Vec::new(), Applied;
                /// Namespace for watches that name none [repeatable or comma-separated; default: all namespaces]
                namespace as "namespaces": Namespaces = Vec::new(), Applied;
                /// Keep metadata.managedFields [default {default}: bulky, and almost no client reads it]
                keep_managed_fields: Switch = false, Applied;
                /// Keep the last-applied annotation [default {default}: a second copy of the object]
                keep_last_applied: Switch = false, Applied;
                /// Resource whose informer starts when a client asks for it: PLURAL[.GROUP], *.GROUP, or * for all but
                /// secrets [repeatable or comma-separated; default: none]
                on_demand: Vec<Pattern> = Vec::new(), Applied;
            }
            "Kinds at run time" {
                /// Time after which an unused informer that started on demand stops [default {default}: a client that
                /// polls each minute keeps it]
                on_demand_idle: Span = Duration::from_secs(300), Applied, least Duration::from_secs(1);
                /// Time between two requests for the API server's kinds [default {default}: a kind that breaks is
                /// noticed sooner, by itself]
                discovery_interval: Span = Duration::from_secs(600), Restart, least Duration::from_secs(1);
            }
            "Which cluster" {
                /// Kubeconfig to use [default: as kubectl does, $KUBECONFIG or ~/.kube/config; without one, in-cluster]
                kubeconfig: Maybe<FilePath> = None, Restart;
                /// Context of the kubeconfig [default: its current context]
                context: Maybe<Name> = None, Restart;
                /// Use the pod's service account even where a kubeconfig is found [default {default}]
                in_cluster: Switch = false, Restart;
                /// API server without credentials, such as kubectl proxy: `http://127.0.0.1:8001` [default: none]
                server: Maybe<ServerUrl> = None, Restart;
                /// Watch over HTTP/2 where the API server speaks it over TLS [default {default}: one pinged connection then carries 90
                /// watches, and an idle watch costs a tenth of the requests; `false` where each watch is to have a connection of
                /// its own]
                watch_http2: Switch = true, Restart;
            }
            "Listeners" {
                /// Where clients connect: ADDRESS:PORT, localhost:PORT or unix:/path [default {default}: a sidecar's data
                /// stays in the pod]
                listen: Listen = Listen::Tcp(LISTEN), Restart;
                /// Probes and metrics: ADDRESS:PORT, localhost:PORT or off [default {default}, as the kubelet probes the
                /// pod's address; 127.0.0.1:8091 in demo]
                admin_listen: AdminListen = Some(ADMIN_LISTEN), Restart;
            }
            "Browsers" {
                /// Origin whose web pages may read answers, `https://app.example`, or * [repeatable; default: informerd's
                /// own page]
                allow_origin as "allowOrigins": Vec<WebOrigin> = Vec::new(), Restart;
                /// Host name to answer, or *.NAME for all below it [repeatable; default: addresses, localhost, names without a
                /// dot, *.svc and *.cluster.local, so that no web page reads the cluster through DNS rebinding]
                allow_host as "allowHosts": Vec<HostName> = Vec::new(), Restart;
            }
            "Pass-through" {
                /// Pass requests below /api, /apis and /openapi that the caches cannot answer through to the API server:
                /// off, reads or all [default {default}: a client that reaches the listener would act with informerd's own
                /// permissions]
                pass_through: PassThrough = PassThrough::Off, Restart;
                /// Resource whose subresource proxy is passed through, too: nodes, pods or services [repeatable or
                /// comma-separated; default: none, as even a GET may change something behind it]
                pass_through_proxy: Vec<Proxied> = Vec::new(), Restart;
            }
            "Work queues" {
                /// Who may declare work queues: off, config (the configuration) or api (clients, too) [default: api on the
                /// loopback or a Unix socket, where only local processes connect, else config]
                queues as "queuesFrom": Maybe<QueueMode> = None, Restart;
                /// A work queue, `NAME=SPEC`, with what feeds it as JSON: docs/controllers.md has the members [repeatable; default: none]
                queue as "queues": DeclaredQueues = BTreeMap::new(), Restart;
                /// Let one of several replicas give out the keys of work queues, and the others refuse with its name [default
                /// {default}: a sidecar is alone, and the Lease needs permissions]
                queues_leader_election: Switch = false, Restart;
                /// The leader's Lease, NAME or NAMESPACE/NAME [default: informerd-queues in the namespace of the pod, or of the
                /// kubeconfig's context]
                queues_lease: Maybe<LeaseName> = None, Restart;
            }
            "Links" {
                /// A link between kinds beside the built-in ones, as JSON with the members from, path (or selector, for a label selector)
                /// and to [repeatable; default: none]
                link as "links": DeclaredLinks = Vec::new(), Restart;
            }
            "Staying true" {
                /// How to list: auto, stream or page [default {default}: as a stream, which costs the API server least, or
                /// in pages if it supports none]
                initial_list: InitialList = InitialList::Auto, Restart;
                /// Time between comparisons of each cache with the API server, or off [default {default}: a lost event is
                /// noticed within hours, at the cost of a list of names and versions each time]
                verify_interval: VerifyInterval = Some(Duration::from_secs(3600)), Restart;
            }
            "Memory" {
                /// Whether objects that have not changed for a while are held packed: auto or off [default {default}: with auto a kind of
                /// 256 KiB or more takes a fraction of its memory, but lists and the first sync take more processor time]
                cache_packing: CachePacking = CachePacking::Off, Restart;
            }
            "Life" {
                /// Time after SIGTERM in which informerd is unready but serves on, before streams end [default {default};
                /// behind a Service use 5s, in which the Service stops sending clients]
                shutdown_delay: Span = Duration::ZERO, Restart;
                /// Time for streams to end after SIGTERM [default {default}: below the 30s after which a kubelet kills]
                drain_timeout: Span = Duration::from_secs(25), Restart;
                /// Become unready when the API server was last heard longer ago than this, or off [default {default}: a
                /// stale answer, which carries its age, is better than none]
                unready_after: Unready = None, Restart;
            }
            "Logs" {
                /// Level or filter, as in info,informerd::upstream=debug [default {default}: lifecycle, without a line for
                /// each change; warn in demo, where more would scroll its instructions away]
                log: LogFilter = LogFilter::INFO, Restart;
                /// Form of the log on stderr: text, json or auto [default {default}: text on a terminal, json elsewhere]
                log_format: LogFormat = LogFormat::Auto, Restart;
            }
        }
    };
}

/// Everything that could grow has a bound.
macro_rules! limits {
    ($make:ident) => {
        $make! {
            /// Limits. `Limits::check_relations` checks how they relate.
            names LimitSettings, Limits, LimitFile, limit_rows, prefix "limits.";
            "Limits" {
                /// Connections open at once [default {default}: about 12 KiB each, so 120 MiB]; more are answered 503
                connections_max: Count = 10_000, Restart, least 1;
                /// Informers that one stream may join, and subscriptions on one /v1/ws; a resource watched in several namespaces has one
                /// informer for each [default {default}: more than a cluster has kinds worth joining]; more is refused
                streams_per_connection_max: Count = 100, Restart, least 1;
                /// Subscriptions at once over all connections [default {default}: two for each connection]; more are answered 503
                subscribers_max: Count = 20_000, Restart, least 1;
                /// Informers on demand that run at once [default {default}: each holds a cache and a journal]; requests for more are
                /// answered 503
                on_demand_max: Count = 32, Restart, least 1;
                /// Requests passed through to the API server at once [default {default}: a few people's; watches and logs last]; more are
                /// answered 503
                pass_through_max: Count = 64, Restart, least 1;
                /// Bytes of the body of a request that is passed through [default {default}: what the API server takes]; more is 413
                pass_through_body_bytes_max: Size = 3 << 20, Restart, least 1 << 10;
                /// Bytes of a request's head [default {default}: room for a cookie jar on localhost]; more is 431
                header_bytes_max: Size = 16 << 10, Restart, least 8 << 10;
                /// Bytes of a request's path and query [default {default}: a selector over hundreds of names]; more is 414
                url_bytes_max: Size = 8 << 10, Restart, least 256;
                /// Time for a request's head to arrive [default {default}: enough for slow links, too short for slow-header attacks]
                header_timeout: Span = Duration::from_secs(10), Restart, least Duration::from_millis(100);
                /// Time for which a peer may take no byte while data waits for it [default {default}: enough for a laptop that changes
                /// networks]; then its connection is closed
                write_stall_timeout: Span = Duration::from_secs(60), Restart, least Duration::from_secs(1);
                /// Kernel send buffer of each connection [default {default}: a stuck peer pins this much, not the 4 MiB of autotuning]
                send_buffer_bytes: Size = 64 << 10, Restart, least 4 << 10;
                /// Changes each informer keeps for readers that are behind [default {default}: minutes of a busy cluster]; older
                /// readers get the latest states instead of each change
                journal_len_max: Count = 10_000, Restart, least 16;
                /// Bytes of superseded objects in each informer's journal [default {default}: 10000 changes of 6 KiB pods fit]
                journal_bytes_max: Size = 64 << 20, Restart, least 1 << 20;
                /// Deletions each informer remembers beyond the journal [default {default}: about 10 MiB]; a reader away for longer
                /// gets RESET
                tombstones_len_max: Count = 65_536, Restart, least 16;
                /// Bytes of one object's JSON [default {default}: etcd refuses writes above 1.5 MiB, JSON needs more]; larger ones are
                /// skipped and counted, and one that grows beyond it is sent as deleted
                object_bytes_max: Size = 8 << 20, Restart, least 64 << 10;
                /// Bytes of one line of an upstream watch [default {default}: the largest object, its managedFields and the frame]
                line_bytes_max: Size = 16 << 20, Restart, least 64 << 10;
                /// Objects requested in one page of a list [default {default}: as kubectl and client-go do]
                page_size: Count = 500, Restart, least 1;
                /// Bytes of one page of an upstream list [default {default}: 500 objects of 512 KiB]; a larger page is
                /// requested again in smaller ones
                page_bytes_max: Size = 256 << 20, Restart, least 1 << 20;
                /// Time without a byte on a watch after which its connection counts as dead and the watch is opened again [default 30s:
                /// a half-open connection is noticed soon; an idle watch costs the API server one request in this time, which also gives
                /// its current version; over HTTP/2 pings find a dead connection within this time, and at most 30s, and a watch may be
                /// silent for 90s, so that an idle watch costs 13 requests an hour]
                watch_silence_max: Span = Duration::from_secs(30), Restart, least Duration::from_millis(100);
                /// Snapshots held for clients that read in pages with limit and continue [default {default}: snapshots of a quiet resource
                /// share almost all of their memory]; beyond it one that was read to its end is dropped, or else the one that was used
                /// least recently, and its continue is 410
                snapshot_pages_max: Count = 1_000, Restart, least 1;
                /// Bytes of objects, changed or deleted since, that these snapshots keep in memory [default {default}: a list of a cluster
                /// that replaces 5 MB a second can take half a minute]; beyond it snapshots are dropped in the same order, except the
                /// one that was used last
                snapshot_pages_bytes_max: Size = 128 << 20, Restart, least 1 << 20;
                /// Time for which such a snapshot is held after its last page [default {default}: as long as etcd's compaction leaves an
                /// API server's]
                snapshot_pages_ttl: Span = Duration::from_secs(300), Restart, least Duration::from_secs(1);
                /// Requests that wait for a change at once (Prefer: wait) [default {default}: one on each connection]; more are answered 503
                waiting_requests_max: Count = 10_000, Restart, least 1;
                /// Memory for the states that streams of /v1/world with state=full put into their messages, together [default {default}: eight of the
                /// largest states]; a stream that finds no room ends with code 503
                world_states_bytes_max: Size = 256 << 20, Restart, least 0;
                /// Work queues [default {default}: a controller has a few]; more are answered 503
                queues_max: Count = 100, Restart, least 1;
                /// Keys in each work queue [default {default}: about 150 MiB]; at the limit the queue reads no further until there is
                /// room, and loses nothing
                queue_keys_max: Count = 1_000_000, Restart, least 1;
                /// Leases of each work queue at once [default {default}: many workers with many keys each]; more are answered 503
                queue_leases_max: Count = 10_000, Restart, least 1;
                /// Workers that wait for a key at once, over all queues [default {default}: one on each connection]; more are answered 503
                queue_workers_max: Count = 10_000, Restart, least 1;
                /// Time between heartbeats on a quiet stream [default {default}: below the 30 to 60s idle timeouts of proxies]
                heartbeat_interval: Span = Duration::from_secs(15), Restart, least Duration::from_millis(100);
                /// Time between BOOKMARKs on a stream [default {default}: as on an API server, so that resume tokens stay fresh]
                bookmark_interval: Span = Duration::from_secs(60), Restart, least Duration::from_millis(100);
                /// Time for which a stream waits if its token is ahead of the cache and of the API server, or is from before the start
                /// and the changes since are being requested [default {default}: a replica is rarely further behind]; then RESET
                resume_wait: Span = Duration::from_secs(10), Restart, least Duration::ZERO;
                /// Changes taken from the journal at once [default {default}: one wake-up, one write]
                batch_len_max: Count = 256, Restart, least 1;
                /// Bytes written to a socket at once [default {default}: four send buffers]; a single object may exceed it
                batch_bytes_max: Size = 256 << 10, Restart, least 4 << 10;
            }
        }
    };
}

/// The settings of `demo` alone. They have no key: the demo reads no file.
macro_rules! demo {
    ($make:ident) => {
        $make! {
            /// The embedded cluster of the demo.
            names DemoSettings, Embedded, NoFile, demo_rows, prefix "-";
            "Embedded cluster" {
                /// Events a second in the embedded cluster [default {default}: a person can follow]
                rate: Rate = 2.0, Restart;
                /// Seed of all that happens [default: a random one, printed at start]
                seed: Maybe<Seed> = None, Restart;
                /// Additional pods, to try it with many [default {default}]
                pods: Count = 0, Restart;
                /// Where the embedded API server listens [default {default}: any free port]
                api_listen: ApiListen = loopback(0), Restart;
                /// Where to write the kubeconfig for it [default: a file in the temporary folder, named at start]
                kubeconfig_out: Maybe<FilePath> = None, Restart;
            }
        }
    };
}

const LISTEN: SocketAddr = loopback(DATA_PORT);

const ADMIN_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, ADMIN_PORT));

/// An address of the loopback.
pub(super) const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

general!(layers);
general!(file);
limits!(layers);
limits!(file);
demo!(layers);

/// The rows of the three tables, in their order.
static SETTINGS: LazyLock<Vec<Setting>> =
    LazyLock::new(|| [general_rows(), limit_rows(), demo_rows()].concat());

/// Every setting.
pub fn settings() -> &'static [Setting] {
    &SETTINGS
}

/// The setting of a name.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    settings().iter().find(|setting| setting.name == name)
}

/// The error for a value that is refused, with the name under which it was given.
pub(super) fn wrong(
    name: &str,
    origin: Option<Origin>,
    value: &dyn std::fmt::Display,
    problem: String,
) -> ConfigError {
    let key = find(name).map_or_else(|| name.to_owned(), |setting| setting.named(origin));
    ConfigError::Setting { key, value: value.to_string(), problem }
}

impl<T: Quantity> Given<T> {
    /// Checks a least value.
    pub(super) fn at_least(&self, least: T::Plain, setting: &str) -> Result<(), ConfigError> {
        if self.value.plain() >= least {
            return Ok(());
        }
        let problem = format!("expected at least {}", T::of(least));
        Err(wrong(setting, Some(self.origin), &self.value, problem))
    }
}

/// The key of a setting; `None` for a table without a file.
fn keyed(prefix: &str, given: Option<&str>, name: &str) -> Option<String> {
    (prefix != "-").then(|| key(prefix, given, name))
}

/// The text of the help.
fn help(lines: &[&str], default: &str) -> String {
    lines.concat().trim().replace("{default}", default).replace('`', "")
}

/// The value of a flag or variable; `None` if neither is given, or the command has no such flag.
fn given<T: Value>(matches: &clap::ArgMatches, name: &str) -> Result<Option<Given<T>>, ConfigError> {
    let Ok(Some(texts)) = matches.try_get_many::<String>(name) else { return Ok(None) };
    let texts: Vec<String> = texts.cloned().collect();
    let origin = match matches.value_source(name) {
        Some(clap::parser::ValueSource::EnvVariable) => Origin::Variable,
        _ => Origin::Flag,
    };
    let value = T::from_texts(&texts)
        .map_err(|refused| wrong(name, Some(origin), &refused.value, refused.problem))?;
    Ok(Some(Given { value, origin }))
}

/// Adds the flags of some settings to a command.
pub(super) fn augment(command: clap::Command, chosen: impl Fn(&Setting) -> bool) -> clap::Command {
    command.args(settings().iter().filter(|setting| chosen(setting)).map(Setting::arg))
}

/// Whether a setting is of `demo` alone.
pub(super) fn is_of_demo(setting: &Setting) -> bool {
    setting.key.is_none()
}
