//! Routes requests by their path.

use std::sync::Arc;

use hyper::{Method, Response};
use tokio_util::sync::CancellationToken;

use super::fault::{Failure, Verb};
use super::http::{self, Body, Call};
use super::shared::Shared;
use super::status::Status;
use super::target::Target;
use super::{discovery, openapi, read, watch, write_http};

/// The segments of a path, before it is checked whether the resource is served.
struct Segments<'a> {
    group: &'a str,
    version: &'a str,
    rest: Vec<&'a str>,
}

fn segments(path: &str) -> Option<Segments<'_>> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.first() {
        Some(&"api") if parts.len() > 2 => {
            let rest = parts.split_off(2);
            Some(Segments { group: "", version: parts[1], rest })
        }
        Some(&"apis") if parts.len() > 3 => {
            let rest = parts.split_off(3);
            Some(Segments { group: parts[1], version: parts[2], rest })
        }
        _ => None,
    }
}

/// Answers one request.
pub(super) async fn answer(shared: &Arc<Shared>, abort: &CancellationToken, call: Call) -> Response<Body> {
    let Some(parts) = segments(&call.path) else {
        if let Some(response) = judge(shared, Verb::Other, "").await {
            return response;
        }
        return outside(shared, &call);
    };
    let target = match resolve(shared, &parts) {
        Ok(target) => target,
        Err(status) => return write_http::review(&call).unwrap_or_else(|| http::error(&status)),
    };
    let collection = target.name.is_empty();
    let is_watch = collection && (target.watch || call.query.flag("watch"));
    let verb = match call.method {
        Method::GET if is_watch => Verb::Watch,
        Method::GET if collection => Verb::List,
        Method::GET => Verb::Get,
        _ => Verb::Write,
    };
    if let Some(response) = judge(shared, verb, &target.resource()).await {
        return response;
    }
    let answered = match verb {
        Verb::Watch => watch::start(shared, abort, &call, &target),
        Verb::List => read::list(shared, &call, &target).await,
        Verb::Get => read::get(shared, &call, &target).await,
        Verb::Any | Verb::Write | Verb::Other => write_http::write(shared, &call, &target),
    };
    answered.unwrap_or_else(|status| http::error(&status))
}

/// Plays the faults that hit a request before it is served.
async fn judge(shared: &Shared, verb: Verb, resource: &str) -> Option<Response<Body>> {
    let verdict = shared.faults.judge(verb, resource);
    if let Some(delay) = verdict.delay {
        tokio::time::sleep(delay).await;
    }
    if verdict.hang {
        std::future::pending::<()>().await;
    }
    verdict.failure.map(|failure| http::error(&ordered(failure, verb, resource)))
}

fn ordered(failure: Failure, verb: Verb, resource: &str) -> Status {
    if failure.code == 403 {
        return Status {
            retry_after: failure.retry_after_seconds,
            ..Status::forbidden(verb.word(), resource)
        };
    }
    let reason = match failure.code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    let message = format!("ordered failure with status {}", failure.code);
    Status { retry_after: failure.retry_after_seconds, ..Status::new(failure.code, reason, message) }
}

/// Answers requests that are not below a group version.
fn outside(shared: &Shared, call: &Call) -> Response<Body> {
    if call.method != Method::GET {
        return http::error(&Status::method_not_allowed());
    }
    let path = call.path.trim_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["version"] => http::json(200, discovery::VERSION),
        ["healthz" | "livez" | "readyz", ..] => http::whole(200, "text/plain; charset=utf-8", "ok"),
        ["api" | "apis", ..] => discovery::answer(shared, call, &parts),
        ["openapi", ..] => openapi::answer(shared, path, call.header(hyper::header::ACCEPT)),
        [""] => http::json(200, discovery::paths(shared)),
        _ => http::json(404, discovery::paths(shared)),
    }
}

fn resolve(shared: &Shared, parts: &Segments<'_>) -> Result<Target, Status> {
    let mut rest = parts.rest.as_slice();
    let watch = rest.first() == Some(&"watch");
    if watch {
        rest = &rest[1..];
    }
    let (namespace, rest) = match rest {
        // `namespaces/x/status` is a subresource of the namespace, `namespaces/x/pods` a collection in it.
        ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, below @ ..] if !below.is_empty() => (*namespace, below),
        _ => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return Err(Status::no_such_resource()),
    };
    let state = shared.cluster.lock();
    let wanted = if parts.group.is_empty() { plural.to_owned() } else { format!("{plural}.{}", parts.group) };
    let table = state.served(&wanted).ok_or_else(Status::no_such_resource)?;
    let kind = table.kind.clone();
    drop(state);
    let scope_fits =
        if kind.is_namespaced() { !namespace.is_empty() || name.is_empty() } else { namespace.is_empty() };
    let known = subresource.is_empty() || kind.has(subresource);
    if !scope_fits || !known || !kind.versions.iter().any(|v| v == parts.version) {
        return Err(Status::no_such_resource());
    }
    Ok(Target {
        kind,
        version: parts.version.into(),
        namespace: namespace.into(),
        name: name.into(),
        subresource: subresource.into(),
        watch,
    })
}
