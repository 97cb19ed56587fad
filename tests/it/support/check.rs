//! Checks the promises of streams, without any code that makes events.

use std::collections::{BTreeMap, HashMap, HashSet};

use informerd::testing::sim::Cluster;
use serde_json::Value;

use super::client::StreamEvent;

/// Objects by `Kind/namespace/name`.
pub(crate) type Objects = BTreeMap<String, Value>;

/// The versions that one client has received of each object: for P2 (no step back) and P3 (no repeat).
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// The last version of each object, over all connections, and whether it was a DELETED.
    seen: HashMap<String, (u128, bool)>,
    /// Objects with an event on this connection.
    received_here: HashSet<String>,
    /// Objects with an event that the token does not cover.
    beyond_token: HashSet<String>,
    /// The version from which this connection resumed, if it is a single version.
    resumed_at: Option<u128>,
}

impl Versions {
    /// Notes a new connection, which resumes from `token`.
    pub(crate) fn connected(&mut self, token: Option<&str>) {
        self.received_here.clear();
        // Events after the token are sent again.
        for key in std::mem::take(&mut self.beyond_token) {
            self.seen.remove(&key);
        }
        let versions = token.map(|token| token.trim_end_matches(",.kind:bookmark"));
        let single = versions.filter(|token| !token.contains(','));
        self.resumed_at = single.and_then(|token| token.rsplit_once(':')?.1.parse().ok());
    }

    /// Notes that the client's token covers all events so far.
    pub(crate) fn covered(&mut self) {
        self.beyond_token.clear();
    }

    /// Notes a RESET.
    pub(crate) fn reset(&mut self, reason: &str) {
        self.received_here.clear();
        self.resumed_at = None;
        if matches!(reason, "HistoryLost" | "TokenAhead") {
            self.seen.clear();
        }
    }

    /// Checks an event of an object. `again`: objects may be repeated (a resync).
    pub(crate) fn event(&mut self, event: &StreamEvent, again: bool) {
        let (key, version) = (key(&event.object), version(&event.object));
        let deleted = event.kind == "DELETED";
        assert!(
            again || self.resumed_at.is_none_or(|at| version > at),
            "P3: {} {key} at {version} though resumed at {:?}",
            event.kind,
            self.resumed_at
        );
        if let Some((last, was_deleted)) = self.seen.get(&key) {
            assert!(version >= *last, "P2: {} {key} went back from {last} to {version}", event.kind);
            // An object that was deleted and created again between two lists: only the new object's version is known,
            // for both events. And a deletion that the watch did not send has the version of the cache, which may be
            // that of the object.
            let differs = *was_deleted != deleted;
            let repeated = self.received_here.contains(&key) && version == *last && !differs && !again;
            assert!(!repeated, "P3: {} {key} at {version} came twice", event.kind);
        }
        self.seen.insert(key.clone(), (version, deleted));
        self.received_here.insert(key.clone());
        self.beyond_token.insert(key);
    }
}

/// `Kind/namespace/name` of an object.
pub(crate) fn key(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    format!("{}/{}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
}

/// An object's resourceVersion, or a list's.
pub(crate) fn version(object: &Value) -> u128 {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse().unwrap_or_else(|_| panic!("no resourceVersion in {object}"))
}

/// An object as informerd shows it, without the dropped parts.
pub(crate) fn stripped(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    object
}

/// The objects that a client must hold: those of the cluster for which `wanted` holds.
pub(crate) fn expected(cluster: &Cluster, resource: &str, wanted: impl Fn(&Value) -> bool) -> Objects {
    let objects = cluster.list(resource).into_iter().filter(wanted);
    objects.map(|object| (key(&object), stripped(object))).collect()
}

/// Whether an object has a label.
pub(crate) fn labeled(object: &Value, label: &str, value: &str) -> bool {
    object["metadata"]["labels"][label] == value
}

/// A list's items by key; panics if an item is repeated.
pub(crate) fn items(list: &Value) -> Objects {
    let mut objects = Objects::new();
    for item in list["items"].as_array().expect("a list has items") {
        assert!(objects.insert(key(item), item.clone()).is_none(), "{} occurs twice", key(item));
    }
    objects
}
