//! Failures of the network between informerd and the API server, and several API servers behind one address.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join3;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Effort;
use super::rig::{AGE_SLACK, Rig, Setup};
use crate::support::client;
use crate::support::envtest::{self, Process, Version};
use crate::support::gate::Gate;
use crate::support::in_time;

/// Longest time until a silent connection is detected and the missed changes have arrived.
const HALF_OPEN_MAX: Duration = Duration::from_secs(40);

/// Longest time until a hung API server is left for another one. The hang is detected on the watch (30 s), and once
/// more on a new connection (20 s).
const STOPPED_MAX: Duration = Duration::from_secs(65);

/// The setting `unready_after` of informerd.
const UNREADY_AFTER: Duration = Duration::from_secs(10);

/// The ages that clients were shown during a fault.
#[derive(Debug, Default)]
struct Ages {
    /// The largest `Age`, in seconds.
    age_max: u64,
}

async fn gated(version: Version, guarded: bool) -> Option<Rig> {
    let mut setup = Setup::new(version);
    setup.is_gated = true;
    setup.options.guarded = guarded;
    setup.change = |config| config.unready_after = Some(UNREADY_AFTER);
    setup.start().await
}

async fn outlives_its_network(version: Version) {
    let Some(mut rig) = gated(version, false).await else { return };
    let pause = Effort::new().pause;
    let direct = [rig.api.address(Process::ApiServer)];
    let row = rig.measure("connections closed", async |rig| rig.gate.cut().await).await;
    assert_eq!(row.lists, 0, "P6: {row:?}");
    let fault = format!("API server unreachable for {} s", pause.as_secs());
    let row = rig
        .measure(&fault, async |rig| {
            rig.gate.set_backends(&[]);
            rig.gate.cut().await;
            let age = rig.stay_away(pause).await;
            assert!(age + AGE_SLACK >= pause, "P7: {age:?}");
            rig.gate.set_backends(&direct);
        })
        .await;
    assert_eq!(row.lists, 0, "P6: {row:?}");
    let row = rig
        .measure("unreachable while etcd is compacted: 410 in the watch", async |rig| {
            rig.gate.set_backends(&[]);
            rig.gate.cut().await;
            rig.write_some(50).await;
            rig.api.compact().await;
            // The API server's own memory of old versions is gone, too.
            rig.api.kill(Process::ApiServer).await;
            rig.api.start_api_server().await;
            rig.gate.set_backends(&direct);
        })
        .await;
    assert_eq!(row.lists, 1, "P6: {row:?}");
    rig.finish().await;
}

/// Bytes stop in both directions without a sign, as when a firewall drops the state of its connections.
async fn outlives_half_open(version: Version, guarded: bool) {
    let Some(mut rig) = gated(version, guarded).await else { return };
    // Clients that come back to a new informerd cause a backfill, on a connection beside the watch's. That connection
    // must not be taken for the next watch.
    rig.kill_informerd().await;
    rig.informerd.revive().await;
    rig.reach_mark("on two connections").await;
    half_open(&mut rig, "all connections half-open").await;
    rig.finish().await;
}

async fn half_open(rig: &mut Rig, fault: &str) {
    let stop = CancellationToken::new();
    let watched = listen(rig, stop.clone());
    let row = rig.measure(fault, async |rig| rig.gate.freeze()).await;
    let ready = async {
        while client::get(rig.informerd.admin, "/readyz", &[]).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time("readiness", ready).await;
    stop.cancel();
    let ages = watched.await.expect("no panic");
    assert!(row.recovered <= HALF_OPEN_MAX, "{row:?}");
    assert_eq!(row.lists, 0, "P6: a connection says nothing about the version: {row:?}");
    // informerd stays ready. A watch over HTTP/2 may be silent for longer than that, and a dead connection is
    // replaced before.
    assert!(ages.age_max >= UNREADY_AFTER.as_secs(), "P7: {ages:?}");
}

/// Records the largest `Age` until stopped.
fn listen(rig: &Rig, stop: CancellationToken) -> JoinHandle<Ages> {
    let address = rig.informerd.address;
    tokio::spawn(async move {
        let mut ages = Ages::default();
        while !stop.is_cancelled() {
            let answer = client::request(address, "HEAD", "/v1/snapshot/pods/default", &[]).await;
            let age: u64 = answer.header("age").and_then(|age| age.parse().ok()).expect("an Age");
            ages.age_max = ages.age_max.max(age);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        ages
    })
}

/// Two API servers on one etcd, behind one address.
async fn outlives_a_replica(version: Version, guarded: bool) {
    let Some(mut rig) = gated(version, guarded).await else { return };
    let etcd = Gate::start(&[rig.api.address(Process::Etcd)]).await;
    rig.api.launch_peer(etcd.address);
    rig.api.wait_for_peer().await.expect("it starts");
    let [first, peer] = [Process::ApiServer, Process::Peer].map(|process| rig.api.address(process));
    let pause = Effort::new().pause;
    let fault = format!("moved to an API server that is {} s behind", pause.as_secs());
    let row = rig
        .measure(&fault, async |rig| {
            etcd.freeze();
            rig.write_some(50).await;
            rig.reach_mark("before the move").await;
            rig.gate.set_backends(&[peer]);
            rig.gate.cut().await;
            rig.stay_away(pause).await;
            etcd.cut().await;
        })
        .await;
    assert!(row.lists <= 1, "P6: {row:?}");
    rig.gate.set_backends(&[first]);
    rig.gate.cut().await;
    rig.reach_mark("on the first API server").await;
    let user = format!("token: {}", rig.api.token());
    let kubeconfig = rig.api.write_kubeconfig("kubeconfig.peer", peer, &user);
    rig.cluster.set_client(envtest::client(&kubeconfig).await);
    let row = rig
        .measure("one of two API servers stopped", async |rig| {
            // The next connection goes to the hung server.
            rig.gate.set_backends(&[first, peer]);
            rig.api.pause(Process::ApiServer).await;
        })
        .await;
    assert!(row.recovered <= STOPPED_MAX, "{row:?}");
    rig.api.resume(Process::ApiServer).await;
    rig.finish().await;
}

impl Rig {
    /// Waits until this many more writes are acknowledged.
    pub(super) async fn write_some(&self, count: usize) {
        let until = self.writers.ledger().count() + count;
        let begun = Instant::now();
        while self.writers.ledger().count() < until {
            assert!(begun.elapsed() < Duration::from_secs(60), "no write was acknowledged");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_failures_lose_no_event_on_1_20() {
    Box::pin(outlives_its_network(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_failures_lose_no_event_on_1_36() {
    Box::pin(outlives_its_network(Version::V1_36)).await;
}

// These cases take long by waiting, not by work, so they run on all servers at once: over HTTP/2 on 1.20 and on 1.36
// with TLS, and over HTTP/1.1 on 1.36 without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_api_servers_never_send_an_older_state() {
    join3(
        outlives_a_replica(Version::V1_20, false).boxed(),
        outlives_a_replica(Version::V1_36, false).boxed(),
        outlives_a_replica(Version::V1_36, true).boxed(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_are_detected_and_replaced() {
    join3(
        outlives_half_open(Version::V1_20, false).boxed(),
        outlives_half_open(Version::V1_36, false).boxed(),
        outlives_half_open(Version::V1_36, true).boxed(),
    )
    .await;
}
