//! P1 to P3 with random writes, cuts and restarts: every client ends with the state of the cluster.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::support::check::{Objects, expected, labeled};
use crate::support::client::Transport;
use crate::support::recorder::Recorder;
use crate::support::server::TestServer;
use crate::support::{self, mk_pod};

/// Each way to follow a stream.
const TRANSPORTS: [Transport; 4] =
    [support::TRANSPORTS[0], support::TRANSPORTS[1], support::TRANSPORTS[2], Transport::Http2];

/// A client's URL, and which pods it must hold.
type View = (&'static str, fn(&Value) -> bool);

const VIEWS: [View; 6] = [
    ("/v1/watch/pods", |_| true),
    ("/v1/watch/pods?labelSelector=app%3Dweb", |pod| labeled(pod, "app", "web")),
    ("/v1/watch/pods/ns-1", |pod| pod["metadata"]["namespace"] == "ns-1"),
    ("/v1/watch/pods?fieldSelector=status.phase%21%3DPending", |pod| pod["status"]["phase"] != "Pending"),
    ("/v1/watch/pods?namespace=ns-0&namespace=ns-2&labelSelector=app%21%3Dweb", |pod| {
        pod["metadata"]["namespace"] != "ns-1" && !labeled(pod, "app", "web")
    }),
    ("/v1/watch/pods/ns-0/pod-3", |pod| {
        pod["metadata"]["namespace"] == "ns-0" && pod["metadata"]["name"] == "pod-3"
    }),
];

/// Makes one random write. Half of the names exist, so that each kind of write finds an object.
fn write(server: &TestServer, rng: &mut StdRng) {
    let namespace = format!("ns-{}", rng.random_range(0..3));
    let name = format!("pod-{}", rng.random_range(0..6));
    let app = ["web", "api"][rng.random_range(0..2)];
    let cluster = &server.cluster;
    let phase = ["Pending", "Running", "Failed"][rng.random_range(0..3)];
    // A write that does not fit (an existing name, a missing object) changes nothing.
    let _ = match rng.random_range(0..6) {
        0 | 1 => cluster.create("pods", mk_pod(&namespace, &name, app)).map(drop),
        2 => {
            cluster.patch("pods", &namespace, &name, &json!({"metadata": {"labels": {"app": app}}})).map(drop)
        }
        3 | 4 => {
            let step = rng.random::<u32>().to_string();
            let patch = json!({"status": {"phase": phase}, "metadata": {"annotations": {"step": step}}});
            cluster.patch("pods", &namespace, &name, &patch).map(drop)
        }
        _ => cluster.delete("pods", &namespace, &name),
    };
}

/// Runs the history of a seed. Everything random comes from the seed; the timing does not.
async fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (journal, tombstones, batch) =
        (rng.random_range(1..24), rng.random_range(1..48), rng.random_range(1..6));
    let mut server = TestServer::start_with(&["pods"], |config| {
        config.limits.journal_len_max = journal;
        config.limits.tombstones_len_max = tombstones;
        config.limits.batch_len_max = batch;
        config.limits.resume_wait = Duration::from_millis(500);
        config.limits.bookmark_interval = Duration::from_millis(100);
        config.drain_timeout = Duration::from_millis(500);
    })
    .await;
    let mut recorders = Vec::new();
    for transport in TRANSPORTS {
        for (target, wanted) in VIEWS {
            recorders.push((Recorder::new(transport, server.address, target), wanted));
        }
    }
    for round in 0..rng.random_range(4..8) {
        for _ in 0..rng.random_range(0..40) {
            write(&server, &mut rng);
        }
        match rng.random_range(0..12) {
            0 => server.informerd.restart().await,
            1 => {
                server.informerd.kill().await;
                server.informerd.revive().await;
            }
            2 => {
                server.api.stop().await;
                for _ in 0..rng.random_range(0..30) {
                    write(&server, &mut rng);
                }
                if rng.random() {
                    // Only a list can find the changes made meanwhile.
                    server.cluster.compact();
                }
                server.api.start().await.expect("its port is free");
            }
            _ => {}
        }
        for (recorder, wanted) in &mut recorders {
            match rng.random_range(0..4) {
                // The client is cut off after any event, whatever else is on its way.
                0 => {
                    let events = recorder.events + rng.random_range(0..12);
                    let some = async { while recorder.events < events && recorder.step().await {} };
                    // There may be no event.
                    let _ = tokio::time::timeout(Duration::from_millis(50), some).await;
                    recorder.disconnect();
                }
                1 => recorder.wait_for_state(&state(&server, *wanted)).await,
                2 => recorder.transport = TRANSPORTS[rng.random_range(0..TRANSPORTS.len())],
                _ => {}
            }
            if recorder.transport == TRANSPORTS[round % TRANSPORTS.len()] && rng.random_range(0..3) == 0 {
                recorder.disconnect();
            }
        }
    }
    for (recorder, wanted) in &mut recorders {
        recorder.wait_for_state(&state(&server, *wanted)).await;
    }
}

fn state(server: &TestServer, wanted: fn(&Value) -> bool) -> Objects {
    expected(&server.cluster, "pods", wanted)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_converge_to_the_cluster_state_through_cuts_and_restarts() {
    let seeds = match std::env::var("INFORMERD_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..8,
    };
    for seed in seeds {
        // Printed only if the test fails.
        println!("seed {seed}");
        run(seed).await;
    }
}
