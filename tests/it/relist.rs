//! What a relist costs when nothing changed.

use std::collections::BTreeMap;

use informerd::testing::cache::{ChangeKind, Reader};
use informerd::testing::config::CachePacking;
use informerd::testing::sim::{Cluster, Cut, Gone, Requests, Verb};
use serde_json::json;

use crate::support::eventually;
use crate::support::server::TestServer;

/// Without optimisation, a tenth of the objects takes as long.
const OBJECTS: usize = if cfg!(debug_assertions) { 10_000 } else { 100_000 };

/// The address of each object's JSON.
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
    eventually("the relist", || informer.reader.stats().relists.get() == 1).await;
    // The first marker may be in the list. The second one is written after the first was seen, so it comes after the
    // list.
    for name in ["marker-1", "marker-2"] {
        let marker = json!({"metadata": {"namespace": "default", "name": name}});
        server.cluster.create("configmaps", marker).unwrap();
        server.caught_up("configmaps").await;
    }
    let batch = reader.changes_after(cursor, usize::MAX).expect("the journal has all changes");
    let changes = batch.changes.iter().map(|change| (change.kind, change.object.key().name()));
    let expected = [(ChangeKind::Added, "marker-1"), (ChangeKind::Added, "marker-2")];
    assert_eq!(changes.collect::<Vec<_>>(), expected, "changes other than the two writes");
    assert_eq!(informer.reader.stats().relists.get(), 1);
    assert_eq!(reader.summary().objects, summary.objects + 2);
    let mut after = places(reader);
    after.retain(|key, _| before.contains_key(key));
    assert_eq!(after, before, "an object was replaced by a copy of itself");
}
