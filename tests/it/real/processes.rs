//! The API server and its etcd are killed, hang, are reconfigured and come back.

use super::Effort;
use super::rig::{AGE_SLACK, Rig, Setup};
use crate::support::envtest::{Process, Version};

/// One fault after the other on one server, so that later faults meet the state that earlier ones left.
async fn outlives_its_servers(version: Version) {
    let Some(mut rig) = Setup::new(version).start().await else { return };
    rig.measure("etcd killed", async |rig| {
        rig.api.kill(Process::Etcd).await;
        rig.api.launch(Process::Etcd);
    })
    .await;
    rig.measure("kube-apiserver and etcd killed", async |rig| {
        rig.api.kill(Process::Etcd).await;
        rig.api.kill(Process::ApiServer).await;
        rig.api.launch(Process::Etcd);
        rig.api.launch(Process::ApiServer);
    })
    .await;
    hangs(&mut rig, "kube-apiserver", Process::ApiServer).await;
    hangs(&mut rig, "etcd", Process::Etcd).await;
    if version == Version::V1_36 {
        for (turn, flags) in [("off", vec!["--feature-gates=WatchList=false".to_owned()]), ("on", Vec::new())]
        {
            rig.measure(&format!("restarted with WatchList {turn}"), async move |rig| {
                rig.api.options.flags = flags;
                rig.api.kill(Process::ApiServer).await;
                rig.api.launch(Process::ApiServer);
            })
            .await;
        }
    }
    rig.finish().await;
}

async fn hangs(rig: &mut Rig, name: &str, process: Process) {
    let pause = Effort::new().pause;
    let fault = format!("{name} stopped for {} s", pause.as_secs());
    let row = rig
        .measure(&fault, async |rig| {
            rig.api.pause(process).await;
            let age = rig.stay_away(pause).await;
            // Without etcd, an API server still answers new watches.
            assert!(process == Process::Etcd || age + AGE_SLACK >= pause, "P7: {age:?}");
            rig.api.resume(process).await;
        })
        .await;
    assert!(row.lists == 0 || pause.as_secs() > 20, "P6: {row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_hung_servers_lose_no_event_on_1_20() {
    Box::pin(outlives_its_servers(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_hung_servers_lose_no_event_on_1_36() {
    Box::pin(outlives_its_servers(Version::V1_36)).await;
}
