//! Continue tokens that expire within a list, and clusters restored from an older copy.

use std::net::SocketAddr;
use std::process::Stdio;

use futures_util::FutureExt;
use futures_util::future::join;
use informerd::testing::config::InitialList;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::rig::Setup;
use crate::support::envtest::{Envtest, Process, Version};
use crate::support::in_time;

/// `kubectl proxy`: access to the API server without TLS, so that the gate can read requests.
async fn plain_way(api: &Envtest) -> Option<(SocketAddr, Child)> {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(api.kubeconfig_path()).args(["proxy", "--port=0"]);
    let mut child = match command.stdout(Stdio::piped()).kill_on_drop(true).spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no kubectl to go through; apt-get install kubernetes-client");
            return None;
        }
        child => child.expect("kubectl runs"),
    };
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
    in_time("kubectl proxy", output.read_line(&mut line)).await.expect("kubectl prints");
    let address = line.trim().rsplit(' ').next().expect("a word").parse().expect("its address");
    Some((address, child))
}

/// A continue token expires between two pages. The list starts over, and no object of the first one is shown.
async fn outlives_a_long_list(version: Version) {
    let mut setup = Setup::new(version);
    if version == Version::V1_36 {
        // Without this flag the server answers from its own snapshots lists that etcd has compacted.
        setup.options.flags.push("--feature-gates=ListFromCacheSnapshot=false".into());
    }
    let Some(api) = Envtest::start(version, setup.options.clone()).await else { return };
    let mut proxy = None;
    setup.is_gated = true;
    if version == Version::V1_20 {
        let Some((address, child)) = plain_way(&api).await else { return };
        (setup.plain, proxy) = (Some(address), Some(child));
    }
    setup.change = |config| {
        config.initial_list = InitialList::Page;
        config.limits.page_size = 50;
    };
    let mut rig = setup.over(api).await;
    let row = rig
        .measure("etcd compacted within a paged list: 410 on its token", async |rig| {
            rig.kill_informerd().await;
            rig.gate.hold("continue=");
            rig.informerd.revive().await;
            rig.gate.wait_until_held().await;
            rig.write_some(50).await;
            rig.api.compact().await;
            rig.gate.release();
        })
        .await;
    assert_eq!(row.lists, 2, "P6: {row:?}");
    rig.finish().await;
    drop(proxy);
}

/// An older copy of etcd's data, and then so many writes before informerd asks that the versions are higher than
/// before.
async fn outlives_an_overtaken_restore(version: Version) {
    let mut setup = Setup::new(version);
    setup.is_gated = true;
    let Some(mut rig) = setup.start().await else { return };
    let api_server = rig.api.address(Process::ApiServer);
    rig.measure("etcd killed and copied", async |rig| {
        rig.api.kill(Process::Etcd).await;
        rig.api.save_etcd().await;
        rig.api.launch(Process::Etcd);
    })
    .await;
    rig.write_some(20).await;
    rig.reach_mark("before the end").await;
    rig.writers.pause().await;
    let row = rig
        .measure("etcd restored, and ahead again when met", async |rig| {
            rig.gate.set_backends(&[]);
            rig.gate.cut().await;
            rig.api.kill(Process::ApiServer).await;
            rig.api.kill(Process::Etcd).await;
            rig.api.restore_etcd().await;
            rig.api.launch(Process::Etcd);
            rig.api.start_api_server().await;
            rig.writers.ledger().clear();
            rig.cluster.forget().await;
            rig.writers.resume();
            rig.write_some(600).await;
            rig.gate.set_backends(&[api_server]);
        })
        .await;
    assert_eq!(row.resets, 3, "each client starts over exactly once: {row:?}");
    rig.write_some(50).await;
    rig.reach_mark("after it").await;
    rig.finish().await;
}

/// An older copy of etcd's data: versions go back, and all clients must start over.
async fn outlives_a_restore(version: Version) {
    let Some(mut rig) = Setup::new(version).start().await else { return };
    rig.measure("etcd killed and copied", async |rig| {
        rig.api.kill(Process::Etcd).await;
        rig.api.save_etcd().await;
        rig.api.launch(Process::Etcd);
    })
    .await;
    rig.write_some(200).await;
    rig.reach_mark("before the end").await;
    // No writes meanwhile: enough of them would take the versions to where they were, and hide that they went back.
    rig.writers.pause().await;
    let row = rig
        .measure("etcd restored from an older copy", async |rig| {
            rig.api.kill(Process::ApiServer).await;
            rig.api.kill(Process::Etcd).await;
            rig.api.restore_etcd().await;
            rig.api.launch(Process::Etcd);
            rig.api.launch(Process::ApiServer);
            rig.writers.ledger().clear();
            rig.cluster.forget().await;
        })
        .await;
    assert_eq!(row.resets, 3, "each client starts over exactly once: {row:?}");
    rig.writers.resume();
    rig.write_some(50).await;
    rig.reach_mark("after it").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_continue_token_is_compacted_starts_over_on_1_20() {
    Box::pin(outlives_a_long_list(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_continue_token_is_compacted_starts_over_on_1_36() {
    Box::pin(outlives_a_long_list(Version::V1_36)).await;
}

// These tests take long by waiting, not by work, so both run at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_resets_every_client() {
    join(outlives_a_restore(Version::V1_20).boxed(), outlives_a_restore(Version::V1_36).boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_with_higher_versions_resets_every_client() {
    join(
        outlives_an_overtaken_restore(Version::V1_20).boxed(),
        outlives_an_overtaken_restore(Version::V1_36).boxed(),
    )
    .await;
}
