//! The settings of the HTTP interfaces.

use std::time::Duration;

use crate::k8s::Links;

/// Limits and rules of the data listener.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest number of connections.
    pub connections_max: usize,
    /// Informers that one stream may join, and streams of one connection with many.
    pub streams_per_connection_max: usize,
    /// Largest size of all header lines of a request, in bytes.
    pub header_bytes_max: usize,
    /// Largest size of path and query of a request, in bytes.
    pub url_bytes_max: usize,
    /// Time from the beginning of a connection to the last header of its request.
    pub header_timeout: Duration,
    /// Time after which a peer that takes no byte is closed.
    pub write_stall_timeout: Duration,
    /// Size of the kernel's send buffer of a connection, in bytes.
    pub send_buffer_bytes: usize,
    /// Number of snapshots that are held for clients that read in pages.
    pub snapshot_pages_max: usize,
    /// Bytes of objects, changed or deleted since, that these snapshots keep in memory.
    pub snapshot_pages_bytes_max: usize,
    /// Time for which such a snapshot is held after its last use.
    pub snapshot_pages_ttl: Duration,
    /// Requests that wait for a change (`Prefer: wait`) at once.
    pub waiting_requests_max: usize,
    /// Bytes of objects that streams of `/v1/world` with `state=full` hold together.
    pub world_states_bytes_max: usize,
    /// Time for connections to end at shutdown.
    pub drain_timeout: Duration,
    /// Bytes of objects that are written at once.
    pub batch_bytes_max: usize,
    /// Origins of web pages that may read, beside the server's own.
    pub allow_origins: Vec<String>,
    /// Allowed host names, beside addresses and names that an attacker cannot register; `*.` before one allows all names below
    /// it.
    pub allow_hosts: Vec<String>,
    /// How objects of one kind refer to objects of another.
    pub links: Links,
}
