//! Metrics of the HTTP interfaces.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tokio::time::Instant;

use crate::encode::Format;

/// Limits and rules that can refuse a client; the label values of `informerd_http_limit_hits_total`.
const LIMITS: [&str; 30] = [
    "connections_max",
    "admin_connections_max",
    "subscribers_max",
    "streams_per_connection_max",
    "header_bytes_max",
    "header_fields_max",
    "url_bytes_max",
    "header_timeout",
    "snapshot_pages_max",
    "snapshot_pages_bytes_max",
    "waiting_requests_max",
    "world_states_bytes_max",
    "turns_waiting_max",
    "graph_nodes_max",
    "graph_edges_max",
    "graph_time_max",
    "join_objects_max",
    "on_demand_max",
    "queues_max",
    "queue_keys_max",
    "queue_leases_max",
    "queue_workers_max",
    "pass_through_max",
    "pass_through_body_bytes_max",
    "pass_through_body_timeout",
    "pass_through_proxy",
    "host",
    "origin",
    "fetch_site",
    "path",
];

/// Why streams end; the label values of `informerd_http_stream_closes_total`.
const CLOSES: [&str; 8] =
    ["client", "shutdown", "timeout", "removed", "regrouped", "expired", "too_large", "no_room"];

/// The transports of streams.
const TRANSPORTS: [&str; 5] = ["sse", "ndjson", "websocket", "kubernetes", "kubernetes-websocket"];

/// Describes this room's metrics, and makes those with a closed set of labels visible at zero.
pub fn describe() {
    describe_gauge!("informerd_http_connections", "Connections open now.");
    describe_counter!(
        "informerd_http_requests_total",
        "Requests answered, by route, method and status code."
    );
    describe_histogram!(
        "informerd_http_request_duration_seconds",
        Unit::Seconds,
        "Time from a request's head to its answer's head, by route."
    );
    describe_gauge!("informerd_http_waiting_requests", "Requests that wait for a change now (Prefer: wait).");
    describe_gauge!("informerd_http_streams", "Streams open now, by transport.");
    describe_counter!("informerd_http_stream_bytes_total", "Bytes that streams have written, by transport.");
    describe_counter!("informerd_http_stream_closes_total", "Streams ended, by transport and reason.");
    describe_counter!("informerd_http_limit_hits_total", "Requests refused by a limit or rule, by its name.");
    describe_counter!(
        "informerd_http_write_stalls_total",
        "Connections closed because the peer took no bytes."
    );
    describe_counter!(
        "informerd_http_compressed_lists_total",
        "Whole lists in gzip or zstd: made to be shared, shared with one that was made, or alone as too much is held."
    );
    describe_gauge!(
        "informerd_http_compressed_list_bytes",
        Unit::Bytes,
        "Bytes of compressed lists that clients share."
    );
    describe_caches();
    describe_subscriptions();
    counter!("informerd_http_write_stalls_total").absolute(0);
    // Made visible without setting a value, as several servers may share a process in tests.
    connections().increment(0.0);
    waiting().increment(0.0);
    compressed_list_bytes().increment(0.0);
    for how in ["made", "shared", "alone"] {
        counter!("informerd_http_compressed_lists_total", "how" => how).absolute(0);
    }
    for limit in LIMITS {
        counter!("informerd_http_limit_hits_total", "limit" => limit).absolute(0);
    }
    for transport in TRANSPORTS {
        gauge!("informerd_http_streams", "transport" => transport).increment(0.0);
        for reason in CLOSES {
            counter!("informerd_http_stream_closes_total", "transport" => transport, "reason" => reason)
                .absolute(0);
        }
    }
}

/// Describes the sizes of caches, which the admin listener reads at the scrape.
fn describe_caches() {
    describe_gauge!("informerd_cache_objects", "Objects held.");
    describe_gauge!("informerd_cache_indexes", "Indexes held.");
    describe_gauge!("informerd_cache_index_bytes", Unit::Bytes, "Approximate bytes of the indexes held.");
    describe_gauge!("informerd_cache_bytes", Unit::Bytes, "Bytes of the JSON of the objects held.");
    describe_gauge!(
        "informerd_cache_held_bytes",
        Unit::Bytes,
        "Bytes that hold this JSON: fewer where objects are packed."
    );
    describe_gauge!("informerd_cache_synced", "Whether the cache has been complete.");
    describe_gauge!(
        "informerd_cache_age_seconds",
        Unit::Seconds,
        "Time since the API server was last heard for this resource."
    );
    describe_gauge!(
        "informerd_cache_stale",
        "Whether the API server was not heard for this resource for longer than a watch may be silent."
    );
    describe_gauge!("informerd_cache_journal_changes", "Changes in the journal.");
    describe_gauge!(
        "informerd_cache_journal_bytes",
        Unit::Bytes,
        "Bytes of superseded objects in the journal."
    );
    describe_gauge!("informerd_cache_tombstones", "Deletions remembered beyond the journal.");
    describe_gauge!("informerd_cache_subscribers", "Subscribers that read the cache now.");
}

/// Describes the gauges of subscriptions, which the admin listener reads at the scrape.
fn describe_subscriptions() {
    describe_gauge!("informerd_subscriptions", "Subscriptions by how they are served.");
    describe_gauge!(
        "informerd_subscriptions_behind_max_seconds",
        Unit::Seconds,
        "Time since the slowest subscription last had everything."
    );
}

/// Connections open now, over all listeners.
pub(super) fn connections() -> metrics::Gauge {
    gauge!("informerd_http_connections")
}

/// Requests that wait for a change now.
pub(super) fn waiting() -> metrics::Gauge {
    gauge!("informerd_http_waiting_requests")
}

/// Counts a whole list that is compressed: `made`, `shared` or `alone`.
pub(super) fn compressed_list(how: &'static str) {
    counter!("informerd_http_compressed_lists_total", "how" => how).increment(1);
}

/// Bytes of compressed lists that clients share.
pub(super) fn compressed_list_bytes() -> metrics::Gauge {
    gauge!("informerd_http_compressed_list_bytes")
}

/// Counts a refusal by a limit.
pub(super) fn limit_hit(limit: &'static str) {
    debug_assert!(LIMITS.contains(&limit));
    counter!("informerd_http_limit_hits_total", "limit" => limit).increment(1);
}

/// Counts a connection that was closed because its peer took no bytes.
pub(super) fn write_stall() {
    counter!("informerd_http_write_stalls_total").increment(1);
}

/// Counts an answer.
pub(super) fn request(route: &'static str, method: &'static str, code: u16, began: Instant) {
    counter!("informerd_http_requests_total", "route" => route, "method" => method, "code" => code.to_string())
        .increment(1);
    histogram!("informerd_http_request_duration_seconds", "route" => route).record(began.elapsed());
}

/// The name of the transport of a format.
fn transport(format: Format) -> &'static str {
    match format {
        Format::Sse => "sse",
        Format::Ndjson => "ndjson",
        Format::WebSocket => "websocket",
        Format::Kubernetes(kubernetes) if kubernetes.messages => "kubernetes-websocket",
        Format::Kubernetes(_) => "kubernetes",
    }
}

/// Counts one stream, and its end when it is dropped.
pub(super) struct StreamObserver {
    format: Format,
    reason: &'static str,
    sent: metrics::Counter,
}

impl StreamObserver {
    pub(super) fn new(format: Format) -> Self {
        let transport = transport(format);
        gauge!("informerd_http_streams", "transport" => transport).increment(1.0);
        let sent = counter!("informerd_http_stream_bytes_total", "transport" => transport);
        Self { format, reason: "client", sent }
    }

    /// The transport's name.
    pub(super) fn transport(&self) -> &'static str {
        transport(self.format)
    }

    pub(super) fn bytes(&self, count: usize) {
        self.sent.increment(count as u64);
    }

    pub(super) fn closed(&mut self, reason: &'static str) {
        self.reason = reason;
    }

    /// Why the stream has ended; `client` before.
    pub(super) fn reason(&self) -> &'static str {
        self.reason
    }
}

impl Drop for StreamObserver {
    fn drop(&mut self) {
        let (transport, reason) = (self.transport(), self.reason);
        gauge!("informerd_http_streams", "transport" => transport).decrement(1.0);
        counter!("informerd_http_stream_closes_total", "transport" => transport, "reason" => reason)
            .increment(1);
    }
}
