//! The names of routes and methods in metrics.

use super::kube;

/// The route of a path, from a closed set.
pub(super) fn route(path: &str, query: Option<&str>) -> &'static str {
    match path {
        "/" => "page",
        "/v1/resources" => "resources",
        // A worker waits in it for as long as it asks to.
        _ if path.starts_with("/v1/queues/") && path.ends_with("/lease") => "queue-lease",
        _ if path == "/v1/queues" || path.starts_with("/v1/queues/") => "queues",
        "/v1/subscriptions" => "subscriptions",
        "/openapi.json" => "openapi",
        _ if path.starts_with("/v1/snapshot/") => "snapshot",
        _ if path.starts_with("/v1/watch/") => "watch",
        _ if path.starts_with("/v1/watch-graph/") => "watch-graph",
        _ if path.starts_with("/v1/watch-index/") => "watch-index",
        _ if path.starts_with("/v1/world/") => "world",
        "/v1/ws" => "multiplex",
        _ if path.starts_with("/v1/graph/") => "graph",
        _ if path.starts_with("/v1/index/") => "index",
        _ if path.starts_with("/static/") => "static",
        "/livez" | "/readyz" | "/healthz" => "probe",
        "/metrics" => "metrics",
        "/api" | "/apis" | "/version" | "/version/" => "kubernetes",
        _ if path.starts_with("/api/") || path.starts_with("/apis/") => kube::operation(path, query),
        _ => "other",
    }
}

/// The method, from a closed set.
pub(super) fn method(method: &http::Method) -> &'static str {
    match *method {
        http::Method::GET => "GET",
        http::Method::HEAD => "HEAD",
        http::Method::POST => "POST",
        http::Method::PUT => "PUT",
        http::Method::DELETE => "DELETE",
        _ => "other",
    }
}
