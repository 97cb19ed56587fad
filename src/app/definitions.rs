//! Asks the API server for the definition of a custom resource.

use std::sync::Arc;

use tracing::debug;

use crate::serve::FetchDefinition;
use crate::upstream::Client;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Asks for a definition by name, with informerd's own permissions. Without permission there are no columns.
pub(super) fn fetch(client: &Client) -> FetchDefinition {
    let client = client.clone();
    Arc::new(move |name| {
        let client = client.clone();
        Box::pin(async move {
            let answer = client.document(&format!("{PATH}/{name}"), "application/json").await;
            answer
                .inspect_err(|error| {
                    debug!(name, error = error.sentence(), "no definition to take columns from")
                })
                .ok()
        })
    })
}
