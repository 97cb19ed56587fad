//! Pass-through: sends clients' requests that the caches cannot answer to the API server.

use std::sync::Arc;

use http::Request;

use crate::config;
use crate::serve::{Bounded, Forward, Forwarded, PassConfig, PassThrough, Passed};
use crate::upstream::Client;

/// The pass-through that the configuration allows; `None` for none.
pub(super) fn through(config: &config::Serve, client: &Client) -> Option<PassThrough> {
    let passed = match config.pass_through {
        config::PassThrough::Off => return None,
        config::PassThrough::Reads => Passed::Reads,
        config::PassThrough::All => Passed::All,
    };
    let client = client.clone();
    let forward: Forward = Arc::new(move |request: Request<Bounded>| -> Forwarded {
        let client = client.clone();
        Box::pin(async move {
            let answer = client.forward(request).await.map_err(|error| error.sentence())?;
            Ok(answer.map(axum::body::Body::new))
        })
    });
    let pass = PassConfig {
        passed,
        proxies: config.pass_through_proxy.iter().map(config::Proxied::to_string).collect(),
        concurrent_max: config.limits.pass_through_max,
        body_bytes_max: config.limits.pass_through_body_bytes_max,
    };
    Some(PassThrough::new(pass, forward))
}
