//! Watches: the current objects if the client wants them, then every change in order.

use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::super::stream::WatchStream;
use super::super::watch_answer::WatchAnswer;
use super::super::{ApiError, Server, hub_error, websocket};
use super::headers::answer_headers;
use super::negotiate::{self, Answer, Shape};
use super::options::{ListOptions, ListOrWatch, Query, RequestedVersion};
use super::path::PathTarget;
use super::{error, resource, tables};
use crate::encode::{Encoder, Format, Kubernetes};
use crate::hub::{Begin, StartAt, Subscription};

/// Duration in seconds of a watch without `timeoutSeconds`, at random, so that clients do not reconnect together. Source:
/// kube-apiserver `--min-request-timeout`.
const TIMEOUT_SECONDS: std::ops::Range<u64> = 1800..3600;
/// The longest accepted timeout: a week.
const TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) async fn watch(
    server: &Server,
    target: &PathTarget,
    mut options: ListOptions,
    query: &Query,
    request: &Parts,
) -> Result<Response, ApiError> {
    let headers = &request.headers;
    let informer = resource::informer(server, target).await?;
    let table = tables::table(server, &informer, headers).await?;
    let shape = negotiate::shape(headers, Answer::Watch, informer.spec.resource.kind(), table.is_some())?;
    let table = table.filter(|_| shape == Shape::Table);
    let table = table.map(|table| tables::encoder(table, query, headers)).transpose()?;
    let shape = resource::held_shape(&informer, shape)?;
    let selection = resource::selection(&informer, target, &mut options)?;
    server.turns.index(std::slice::from_ref(&informer), &selection).await;
    let ListOrWatch::Watch { bookmarks, initial, timeout } = options.verb else {
        return Err(error::nothing_there());
    };
    let handshake =
        websocket::is_upgrade(headers).then(|| websocket::Handshake::read(headers)).transpose()?;
    let format = Format::Kubernetes(Kubernetes {
        messages: handshake.is_some(),
        metadata: shape == Shape::Metadata,
        bookmarks,
    });
    let drawn = || Duration::from_secs(rand::random_range(TIMEOUT_SECONDS));
    let subscription = Subscription {
        informers: vec![informer.clone()],
        selection,
        join: None,
        from: StartAt::Ordered(begin(initial, options.asked)),
        resync: None,
        timeout: Some(timeout.unwrap_or_else(drawn).min(TIMEOUT_MAX)),
    };
    let mut encoder = Encoder::new(format, [&informer]);
    if let Some(table) = table {
        encoder = encoder.with_tables(table, tables::now);
    }
    let subscriber = server.hub.subscribe(subscription).map_err(|error| hub_error::not_subscribed(&error))?;
    let stream = WatchStream::new(subscriber, encoder, server.turns.clone());
    stream.comes_from(&request.uri, &request.extensions);
    let (status, headers) = match handshake {
        Some(handshake) => (StatusCode::SWITCHING_PROTOCOLS, handshake.headers()),
        None => (StatusCode::OK, stream_headers(informer.reader.age(Instant::now()).as_secs())),
    };
    Ok((status, headers, WatchAnswer::new(stream, &server.loops)).into_response())
}

fn stream_headers(age_seconds: u64) -> HeaderMap {
    let mut headers = answer_headers(age_seconds);
    // Makes nginx, and proxies that follow it, forward each event at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers
}

/// Where a watch starts. Source: "Semantics for watch" of the Kubernetes API concepts.
fn begin(initial: Option<bool>, asked: RequestedVersion) -> Begin {
    match (initial, asked) {
        (Some(true), RequestedVersion::Version(version)) => Begin::NotOlder(version),
        (Some(true) | None, RequestedVersion::Newest | RequestedVersion::Any) => Begin::Start,
        (Some(false), RequestedVersion::Newest | RequestedVersion::Any) => Begin::Now,
        (Some(false) | None, RequestedVersion::Version(version)) => Begin::After(version),
    }
}
