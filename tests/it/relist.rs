//! What a list of everything costs when nothing changed.

use std::collections::BTreeMap;

use informerd::testing::cache::{ChangeKind, Reader};
use informerd::testing::config::CachePacking;
use informerd::testing::sim::{Cluster, Cut, Gone, Requests, Verb};
use serde_json::json;

use crate::support::eventually;
use crate::support::server::TestServer;

/// What `design.md` promises is measured with; without optimisation a tenth of it takes as long.
const OBJECTS: usize = if cfg!(debug_assertions) { 10_000 } else { 100_000 };

/// Where each object's JSON lies.
fn places(reader: &Reader) -> BTreeMap<String, *const u8> {
    let snapshot = reader.snapshot();
    snapshot.after(None).map(|object| (object.key().to_string(), object.json().as_ptr())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relist_of_an_unchanged_cluster_sends_no_event_and_copies_no_object() {
    let cluster = Cluster::default();
    cluster.bulk_load("configmaps", OBJECTS, 600).unwrap();
    let server =
        TestServer::over(cluster, &["configmaps"], |config| config.cache_packing = CachePacking::Off).await;
    let informer = server.hub.resolve("configmaps").unwrap().remove(0);
    let reader = &informer.reader;
    let (before, summary, cursor) = (places(reader), reader.summary(), reader.snapshot().cursor);
    assert_eq!(before.len(), OBJECTS);
    let watches = Requests::of(Verb::Watch).on("configmaps");
    server.api.faults().expire_next_watch(1, &watches, Gone::InStream);
    server.api.faults().cut_watches(&watches, Cut::Clean);
    eventually("the relist's begin", || informer.reader.stats().relists.get() == 1).await;
    // The first of them may be in the list; what is written once it was seen can only come after it.
    for name in ["marker-1", "marker-2"] {
        let marker = json!({"metadata": {"namespace": "default", "name": name}});
        server.cluster.create("configmaps", marker).unwrap();
        server.caught_up("configmaps").await;
    }
    let batch = reader.changes_after(cursor, usize::MAX).expect("the journal reaches back");
    let changes = batch.changes.iter().map(|change| (change.kind, change.object.key().name()));
    let expected = [(ChangeKind::Added, "marker-1"), (ChangeKind::Added, "marker-2")];
    assert_eq!(changes.collect::<Vec<_>>(), expected, "nothing but what was written");
    assert_eq!(informer.reader.stats().relists.get(), 1);
    assert_eq!(reader.summary().objects, summary.objects + 2);
    let mut after = places(reader);
    after.retain(|key, _| before.contains_key(key));
    assert_eq!(after, before, "no object was replaced by a copy of itself");
}
