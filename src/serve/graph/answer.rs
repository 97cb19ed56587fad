//! A graph in JSON.

use std::collections::BTreeSet;

use serde::Serialize;

/// A graph, as the answer shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Graph {
    pub(super) nodes: Vec<NodeInfo>,
    pub(super) edges: BTreeSet<Edge>,
    /// Resources that would be searched if they were followed, or listed already.
    pub(super) not_followed: BTreeSet<String>,
    /// Resources and paths of links that the caches do not hold.
    pub(super) not_held: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) truncated: Option<Truncated>,
}

/// An object of the graph.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeInfo {
    pub(super) id: usize,
    pub(super) resource: String,
    pub(super) api_version: String,
    pub(super) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// Whether the request selects it.
    pub(super) selected: bool,
}

/// An object that refers to another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Edge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The path in the first one.
    pub(super) by: String,
}

/// The limit that ended the search.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Truncated {
    pub(super) limit: &'static str,
    pub(super) max: usize,
}
