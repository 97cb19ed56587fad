//! Requests that the cache cannot answer, handed on to the API server where the operator allows it.
//!
//! This room does not know the way there: whoever wires gives a [`Forward`]. What is handed on carries informerd's own
//! identity and nothing by which a client could have another.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

use super::{ApiError, metrics};

/// What a request says that the API server has to know. All else stays here: `Authorization`, `Impersonate-*`, cookies,
/// and what is between two hops only.
const ASKED: [HeaderName; 4] =
    [header::ACCEPT, header::CONTENT_TYPE, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE];

/// What the API server says that a client has to know.
const ANSWERED: [HeaderName; 9] = [
    header::ALLOW,
    header::CACHE_CONTROL,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LOCATION,
    header::RETRY_AFTER,
    header::VARY,
    header::WARNING,
];

/// Longest that a request's body may take to arrive: it has one of few places meanwhile. A body of the largest size comes
/// in this time over a megabit a second.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The answer of the API server, with its body as it arrives; or a sentence that says why there is none.
pub type Forwarded = Pin<Box<dyn Future<Output = Result<Response, String>> + Send>>;

type BoxError = Box<dyn Error + Send + Sync>;

/// Sends a request to the API server. Dropping the future, or the body of the answer, ends the request.
pub type Forward = Arc<dyn Fn(Request<Bounded>) -> Forwarded + Send + Sync>;

/// The body of a request as it arrives, as far as its limits allow.
pub struct Bounded {
    body: Body,
    /// Bytes that may still come.
    left: usize,
    deadline: Pin<Box<Sleep>>,
    trouble: Arc<OnceLock<Trouble>>,
}

/// Why a body did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    TooLarge,
    TooSlow,
    Broken(String),
}

/// What is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// `GET`.
    Reads,
    /// Every method.
    All,
}

/// Hands on what the cache cannot answer.
pub struct PassThrough {
    passed: Passed,
    forward: Forward,
    concurrent_max: usize,
    body_bytes_max: usize,
    places: Arc<Semaphore>,
}

impl PassThrough {
    /// Hands on so many requests at once, with bodies of so many bytes.
    pub fn new(passed: Passed, forward: Forward, concurrent_max: usize, body_bytes_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(concurrent_max));
        Self { passed, forward, concurrent_max, body_bytes_max, places }
    }

    /// Whether requests of this method are handed on.
    pub(super) fn passes(&self, method: &Method) -> bool {
        match self.passed {
            Passed::Reads => method == Method::GET,
            Passed::All => true,
        }
    }

    /// The API server's answer.
    ///
    /// # Errors
    /// 501 for an upgrade, 503 where too many are under way, 413 for a body that is too large and 408 for one that is too
    /// slow, 502 where the API server did not answer.
    pub(super) async fn pass(&self, request: &Parts, body: Body) -> Result<Response, ApiError> {
        if request.headers.contains_key(header::UPGRADE) {
            let message = "connections that change their protocol (exec, attach, port-forward, and watches of what is not \
                           cached over a WebSocket) are not passed through; connect to the API server itself";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message));
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            metrics::limit_hit("pass_through_max");
            let message = format!(
                "all {} requests that may be passed through at once are under way",
                self.concurrent_max
            );
            return Err(ApiError::unavailable(message, 1));
        };
        if body.size_hint().lower() > self.body_bytes_max as u64 {
            return Err(self.refusal(Trouble::TooLarge));
        }
        let trouble = Arc::<OnceLock<Trouble>>::default();
        let body = Bounded::new(body, self.body_bytes_max, trouble.clone());
        // The path alone: whom it is sent to is not the client's choice.
        let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut forwarded = Request::builder().method(request.method.clone()).uri(target);
        if let Some(headers) = forwarded.headers_mut() {
            copy(&request.headers, &ASKED, headers);
        }
        let forwarded = forwarded
            .body(body)
            .map_err(|error| ApiError::bad_request(format!("this cannot be passed through: {error}")))?;
        let answer = (self.forward)(forwarded).await.map_err(|error| {
            // It was not asked to the end.
            if let Some(trouble) = trouble.get() {
                return self.refusal(trouble.clone());
            }
            let message = format!("the API server did not answer what was passed through: {error}");
            ApiError::new(StatusCode::BAD_GATEWAY, "BadGateway", message)
        })?;
        let (parts, body) = answer.into_parts();
        // The place is taken until the body is over or its reader is gone.
        let body = body.map_frame(move |frame| {
            let _held = &place;
            frame
        });
        let mut response = Response::new(Body::new(body));
        *response.status_mut() = parts.status;
        copy(&parts.headers, &ANSWERED, response.headers_mut());
        Ok(response)
    }

    fn refusal(&self, trouble: Trouble) -> ApiError {
        match trouble {
            Trouble::TooLarge => {
                metrics::limit_hit("pass_through_body_bytes_max");
                let message = format!("the body exceeds the limit of {} bytes", self.body_bytes_max);
                ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
            }
            Trouble::TooSlow => {
                metrics::limit_hit("pass_through_body_timeout");
                let message = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
                ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
            }
            Trouble::Broken(why) => ApiError::bad_request(format!("the body cannot be read: {why}")),
        }
    }
}

// === impl Bounded ===

impl Bounded {
    fn new(body: Body, bytes_max: usize, trouble: Arc<OnceLock<Trouble>>) -> Self {
        Self { body, left: bytes_max, deadline: Box::pin(sleep(BODY_TIMEOUT)), trouble }
    }

    fn fail(&self, trouble: Trouble, why: &'static str) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // What came first is the reason.
        let _ = self.trouble.set(trouble);
        Poll::Ready(Some(Err(why.into())))
    }
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            ready!(self.deadline.as_mut().poll(context));
            return self.fail(Trouble::TooSlow, "it is too slow");
        };
        match frame {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let Some(left) = self.left.checked_sub(length) else {
                    return self.fail(Trouble::TooLarge, "it is too large");
                };
                self.left = left;
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => self.fail(Trouble::Broken(error.to_string()), "it broke off"),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn copy(from: &HeaderMap, names: &[HeaderName], to: &mut HeaderMap) {
    for name in names {
        for value in from.get_all(name) {
            to.append(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn bounded(body: Body) -> (Bounded, Arc<OnceLock<Trouble>>) {
        let trouble = Arc::<OnceLock<Trouble>>::default();
        (Bounded::new(body, 4, trouble.clone()), trouble)
    }

    #[tokio::test]
    async fn a_body_may_be_as_large_as_its_limit_and_no_larger() {
        let (body, trouble) = bounded(Body::from("abcd"));
        assert_eq!(body.size_hint().exact(), Some(4));
        assert_eq!(&body.collect().await.unwrap().to_bytes()[..], b"abcd");
        assert_eq!(trouble.get(), None);
        let chunks = ["ab", "cd", "e"].map(|chunk| Ok::<_, BoxError>(Bytes::from_static(chunk.as_bytes())));
        let (body, trouble) = bounded(Body::from_stream(stream::iter(chunks)));
        assert!(body.collect().await.is_err());
        assert_eq!(trouble.get(), Some(&Trouble::TooLarge));
        assert!(bounded(Body::empty()).0.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_is_not_waited_for() {
        let nothing = stream::pending::<Result<Bytes, BoxError>>();
        let (body, trouble) = bounded(Body::from_stream(nothing));
        let begun = tokio::time::Instant::now();
        assert!(body.collect().await.is_err());
        assert_eq!(trouble.get(), Some(&Trouble::TooSlow));
        assert_eq!(begun.elapsed().as_secs(), BODY_TIMEOUT.as_secs());
    }
}
