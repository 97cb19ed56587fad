//! One object.

use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use tokio::time::Instant;

use super::super::body::EXACT_LENGTH;
use super::super::body::FramesBody;
use super::super::{ApiError, Server};
use super::headers::answer_headers;
use super::negotiate::{self, Answer, Shape};
use super::options::{Query, get_options};
use super::path::PathTarget;
use super::{resource, tables};
use crate::encode::{Frames, partial};

pub(super) async fn get(
    server: &Server,
    target: &PathTarget,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let informer = resource::informer(server, target).await?;
    let table = tables::table(server, &informer, headers).await?;
    let shape = negotiate::shape(headers, Answer::Object, informer.spec.resource.kind(), table.is_some())?;
    let encoder = table.filter(|_| shape == Shape::Table);
    let encoder = encoder.map(|table| tables::encoder(table, query, headers)).transpose()?;
    let shape = resource::held_shape(&informer, shape)?;
    resource::reached(&informer, &get_options(query)?).await?;
    let snapshot = informer.reader.snapshot();
    let selection = resource::one(target);
    let name = target.name.as_deref().unwrap_or_default();
    let object = selection.objects(&snapshot, None).next();
    let object = object.ok_or_else(|| ApiError::no_object(&informer.spec.resource, name))?;
    let json = ApiError::readable(object)?;
    let mut frames = Frames::new();
    match encoder {
        Some(mut table) => {
            table.single(&object.resource_version(), &json, tables::now(), &mut frames);
        }
        None if shape == Shape::Metadata => partial(object, &mut frames),
        None => frames.share(json),
    }
    frames.put("\n");
    frames.cut();
    let length = HeaderValue::from(bytes::Buf::remaining(&frames));
    let mut response = FramesBody::new(futures_util::stream::iter([Ok(frames)])).into_response();
    response.headers_mut().extend(answer_headers(informer.reader.age(Instant::now()).as_secs()));
    response.headers_mut().insert(EXACT_LENGTH, length);
    Ok(response)
}
