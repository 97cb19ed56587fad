//! `join=RELATIONS` on `/v1/watch/…`: which informers a stream follows beside those of its selected objects.

use std::sync::Arc;

use tokio::time::Instant;

use super::joins::Asked;
use super::relation::Relations;
use crate::hub::{Join, RelatedInformer, Started};
use crate::serve::params::Params;
use crate::serve::target::{self, Target};
use crate::serve::{ApiError, Server, metrics};

/// What a stream shows beside its selected objects. `None` if it does not ask for related ones.
pub(in crate::serve) async fn of_stream(
    server: &Server,
    target: &Target,
    params: &Params,
    deadline: Instant,
) -> Result<Option<Arc<Join>>, ApiError> {
    if params.get("join").is_none() {
        return Ok(None);
    }
    let related = related(server, target, params, deadline).await?;
    let informers: Vec<_> = related.iter().map(|one| one.informer.clone()).collect();
    for informer in informers.iter().filter(|informer| informer.spec.started == Started::Demand) {
        target::synced(informer, deadline).await?;
    }
    let links = &server.config.links;
    for informer in related.iter().filter(|one| one.linked).map(|one| &one.informer) {
        for path in Join::index_paths(&target.informers, informer, links) {
            server.turns.index_at(informer, &path).await;
        }
    }
    let flags = related.iter().map(|one| (one.informer.id(), one.linked, one.owners));
    let asked: Asked = (target.informers.iter().map(|informer| informer.id()).collect(), flags.collect());
    server.joins.shared(asked, || Join::new(&target.informers, related, links)).map(Some).map_err(|path| {
        ApiError::unavailable(format!("all indexes are in use, and join needs one by {path}"), 5)
    })
}

/// The related informers. Any followed resource may have owners, except the selected ones.
async fn related(
    server: &Server,
    target: &Target,
    params: &Params,
    deadline: Instant,
) -> Result<Vec<RelatedInformer>, ApiError> {
    let relations = Relations::parse(server, target, params, deadline).await?;
    let linked = relations.kinds.iter().flat_map(|relation| &relation.informers);
    let mut related: Vec<_> = linked
        .map(|informer| RelatedInformer {
            informer: informer.clone(),
            linked: true,
            owners: relations.owners,
        })
        .collect();
    if relations.owners {
        for informer in server.hub.informers() {
            let is_selected =
                target.informers.iter().any(|selected| selected.spec.resource == informer.spec.resource);
            if !is_selected && !related.iter().any(|one| one.informer.id() == informer.id()) {
                related.push(RelatedInformer { informer, linked: false, owners: true });
            }
        }
    }
    let max = server.config.streams_per_connection_max;
    if target.informers.len() + related.len() > max {
        metrics::limit_hit("streams_per_connection_max");
        let accepted = format!("with it the stream follows more than {max} informers");
        return Err(ApiError::invalid("join", params.get("join").unwrap_or_default(), &accepted));
    }
    Ok(related)
}
