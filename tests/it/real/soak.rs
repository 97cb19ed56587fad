//! informerd and the API server are killed many times.

use super::Effort;
use super::rig::Setup;
use crate::support::envtest::{Process, Version};

async fn soak(version: Version) {
    let Some(mut rig) = Setup::new(version).start().await else { return };
    for _ in 0..Effort::new().kills {
        let killed = rig.measure("informerd killed", async |rig| {
            rig.kill_informerd().await;
            rig.informerd.revive().await;
        });
        // A server without streaming lists is asked for one first, so that a start costs two requests.
        let lists = if version == Version::V1_20 { 2 } else { 1 };
        assert_eq!(killed.await.lists, lists, "P6");
        let killed = rig.measure("kube-apiserver killed", async |rig| {
            rig.api.kill(Process::ApiServer).await;
            rig.api.launch(Process::ApiServer);
        });
        // A restarted API server does not remember earlier versions. Watches from versions of its downtime get a 410.
        assert!(killed.await.lists <= 1, "P6");
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_equal_the_api_server_at_every_bookmark_over_kills_on_1_20() {
    Box::pin(soak(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_equal_the_api_server_at_every_bookmark_over_kills_on_1_36() {
    Box::pin(soak(Version::V1_36)).await;
}
