//! Tests against real API servers: a client that applies a stream equals the API server through every fault of the
//! API server, its etcd, the network and the credentials. `docs/faults.md` has the measurements.

mod access;
mod cluster;
mod controllers;
mod definitions;
mod election;
mod follower;
mod history;
mod joins;
mod kinds;
mod kube_api;
mod network;
mod processes;
mod rig;
mod soak;
mod tables;
mod workers;
mod writers;

use std::time::Duration;

/// How much a test does. The defaults take a few minutes; the environment can ask for more.
struct Effort {
    /// `INFORMERD_TEST_PODS`: number of objects at all times.
    pods: usize,
    /// `INFORMERD_TEST_KILLS`: number of kills, of informerd and of the API server in turn.
    kills: usize,
    /// `INFORMERD_TEST_WRITES`: number of writes between two kills in the test of queue workers.
    writes: usize,
    /// `INFORMERD_TEST_PAUSE`: seconds for which a process is stopped or a connection is down.
    pause: Duration,
}

impl Effort {
    fn new() -> Self {
        let number = |name: &str, default| {
            std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
        };
        let pause = number("INFORMERD_TEST_PAUSE", 4);
        Self {
            pods: number("INFORMERD_TEST_PODS", 300),
            kills: number("INFORMERD_TEST_KILLS", 2),
            writes: number("INFORMERD_TEST_WRITES", 300),
            pause: Duration::from_secs(pause as u64),
        }
    }
}
