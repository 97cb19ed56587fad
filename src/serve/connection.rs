//! One connection, of HTTP/1.1 or HTTP/2: hyper over a socket that is closed if its peer takes no bytes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Version};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::acknowledged::Progress;
use super::body::{EXACT_LENGTH, FramesBody, ServeBody};
use super::load::{EndsWithClient, FollowsState, Load, UnderWay};
use super::peer::{ConnectionPermit, Peer};
use super::pipe::pipe;
use super::protocol::{Begun, Spoken, recognize};
use super::session::{Session, Takeover, Unwrapped, unwrap_body};
use super::socket::Socket;
use super::{Config, guard, metrics, route};
use crate::encode::Frames;

/// Bytes that hyper may hold which the socket did not take. They are frames, with objects by reference and copies of packed ones. A stalled
/// peer keeps them alive.
const WRITE_BUFFER_BYTES: usize = 64 << 10;

/// Largest number of concurrent requests on an HTTP/2 connection, each of which may be a stream.
const HTTP2_REQUESTS_MAX: u32 = 256;

/// Time without progress of an answer after its client has closed its half of the connection, as `nc -N` does after the
/// request. Only a write shows whether such a client still reads. An answer begins within half of it: then a request no longer
/// waits for informers or a version.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(60);
/// The same for a request that waits for a change or a key, that is passed through, or that looks at objects, and so may last or cost
/// much. Most clients that close their half meanwhile have left.
const HALF_CLOSED_SOON: Duration = Duration::from_secs(5);

/// Interval of pings on an HTTP/2 connection on which nothing arrives, ...
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// ... which is closed if a ping is not answered within this time.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection before it is served.
pub(super) struct Connection<S> {
    pub(super) socket: S,
    /// What is known of the peer's acknowledgments.
    pub(super) progress: Option<Arc<Progress>>,
    pub(super) served: Served,
}

/// What the requests of a connection share.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) router: Router,
    pub(super) config: Arc<Config>,
    pub(super) door: guard::Door,
    pub(super) connected: ConnectionPermit,
    pub(super) peer: Peer,
    pub(super) drain: CancellationToken,
    /// The tasks in which streams continue that take over their connection.
    pub(super) tasks: TaskTracker,
}

/// The socket as hyper sees it.
type Io<S> = TokioIo<Begun<StallGuard<S>>>;

/// A body that counts its request as answered when it ends. What it still has to look at is work for its client alone, unless it follows
/// a state: its heartbeats show whether the client has left.
struct Counted {
    body: ServeBody,
    _ends: Option<EndsWithClient>,
    _under_way: UnderWay,
}

impl Counted {
    fn answer(response: http::Response<ServeBody>, under_way: UnderWay) -> http::Response<Self> {
        let follows = response.extensions().get::<FollowsState>().is_some();
        let ends = (!follows).then(|| EndsWithClient::begin(under_way.load()));
        response.map(|body| Self { body, _ends: ends, _under_way: under_way })
    }
}

impl http_body::Body for Counted {
    type Data = Frames;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Frames>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Runs the tasks that hyper spawns for HTTP/2 requests.
#[derive(Clone)]
struct Spawner(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

impl<S: Socket> Connection<S> {
    /// Serves requests until the peer leaves, or the drain ends the connection.
    pub(super) async fn run(self) {
        let Self { socket, progress, served } = self;
        let load = Arc::new(Load::default());
        let timeout_at_stall = served.config.write_stall_timeout;
        let socket = StallGuard::new(socket, progress, timeout_at_stall, load.clone());
        let recognized = tokio::select! {
            recognized = timeout(served.config.header_timeout, recognize(socket)) => recognized,
            () = served.drain.cancelled() => return,
        };
        match recognized {
            Ok(Ok(Some((Spoken::Http1, socket)))) => served.http1(TokioIo::new(socket), load).await,
            // Boxed, so that the other case does not need room for it.
            Ok(Ok(Some((Spoken::Http2, socket)))) => Box::pin(served.http2(TokioIo::new(socket), load)).await,
            Ok(Ok(None) | Err(_)) => {}
            Err(_) => metrics::limit_hit("header_timeout"),
        }
    }
}

impl Served {
    async fn http1<S: Socket>(self, io: Io<S>, load: Arc<Load>) {
        let config = &self.config;
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_headers(guard::HEADER_FIELDS_READ_MAX)
            // Larger than our own limit: a head that is a little too large gets a Status, and one that is much too large is
            // cut off while it is read.
            .max_header_size((config.header_bytes_max + config.url_bytes_max) * 2)
            .max_buf_size(WRITE_BUFFER_BYTES.max((config.header_bytes_max + config.url_bytes_max) * 2));
        let taken = Arc::new(Mutex::new(None));
        let (served, taker) = (self.clone(), taken.clone());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (served, taker, under_way) = (served.clone(), taker.clone(), UnderWay::begin(&load));
            async move {
                match served.answer(request, under_way.load()).await {
                    Answer::Whole(response) => Ok::<_, Infallible>(Counted::answer(response, under_way)),
                    Answer::Session(response, session) => {
                        // As on an API server, a stream ends when its client closes its half.
                        drop(under_way);
                        let takeover = Takeover::new(session, &response);
                        *taker.lock().unwrap_or_else(PoisonError::into_inner) = Some(takeover);
                        // hyper is dropped before it could poll again.
                        std::future::pending().await
                    }
                }
            }
        });
        let mut connection = http.serve_connection(io, service);
        let mut draining = false;
        loop {
            let polled = poll_fn(|context| {
                let ended = Pin::new(&mut connection).poll(context);
                match taken.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    Some(takeover) => Poll::Ready(Some(takeover)),
                    None => ended.map(|ended| {
                        tell(ended);
                        None
                    }),
                }
            });
            let takeover = tokio::select! {
                takeover = polled => takeover,
                () = self.drain.cancelled(), if !draining => {
                    draining = true;
                    Pin::new(&mut connection).graceful_shutdown();
                    continue;
                }
            };
            if let Some(takeover) = takeover {
                let parts = connection.into_parts();
                let socket = parts.io.into_inner().into_inner();
                // In a task of its own, so that hyper's state is freed.
                self.tasks.spawn(takeover.begin(socket, &parts.read_buf, self.connected));
            }
            return;
        }
    }

    /// Over HTTP/2 streams share the connection, so hyper writes it. Each stream writes into a pipe, and hyper reads its body from there.
    async fn http2<S: Socket>(self, io: Io<S>, load: Arc<Load>) {
        let config = &self.config;
        let headers = u32::try_from((config.header_bytes_max + config.url_bytes_max) * 2).unwrap_or(u32::MAX);
        let mut http = hyper::server::conn::http2::Builder::new(Spawner(self.tasks.clone()));
        http.timer(TokioTimer::new())
            .max_concurrent_streams(HTTP2_REQUESTS_MAX)
            .max_header_list_size(headers)
            .max_send_buf_size(WRITE_BUFFER_BYTES)
            .keep_alive_interval(HTTP2_PING_INTERVAL)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT);
        let (served, begun) = (self.clone(), load.clone());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (served, under_way) = (served.clone(), UnderWay::begin(&begun));
            async move {
                let response = match served.answer(request, under_way.load()).await {
                    Answer::Whole(response) => response,
                    Answer::Session(response, session) => {
                        let (socket, body) = pipe();
                        if let Some(stream) = session.begin_in(socket, served.connected.clone()) {
                            served.tasks.spawn(stream);
                        }
                        response.map(|()| ServeBody::Frames(FramesBody::new(body)))
                    }
                };
                Ok::<_, Infallible>(Counted::answer(response, under_way))
            }
        });
        let mut connection = std::pin::pin!(http.serve_connection(io, service));
        let mut tick = tokio::time::interval(config.header_timeout);
        tick.reset();
        let (mut draining, mut seen, mut over) = (false, 0, false);
        loop {
            tokio::select! {
                ended = &mut connection => return tell(ended),
                () = self.drain.cancelled(), if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                }
                // A request has the same time to arrive as over HTTP/1.
                _ = tick.tick() => {
                    let begun = load.begun();
                    let idle = begun == seen && !load.is_under_way();
                    if idle && over {
                        // It was asked to go away, and does not answer.
                        return metrics::limit_hit("header_timeout");
                    }
                    if idle {
                        connection.as_mut().graceful_shutdown();
                    }
                    (seen, over) = (begun, idle);
                }
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>, load: &Arc<Load>) -> Answer {
        let began = Instant::now();
        let (mut parts, body) = request.into_parts();
        let (route, method) =
            (route::route(parts.uri.path(), parts.uri.query()), route::method(&parts.method));
        let (head, version) = (parts.method == Method::HEAD, parts.version);
        let mut response = match guard::check(&parts, &self.config, self.door) {
            Err(error) => error.into_response(),
            Ok(origin) => {
                let preflight = origin.as_ref().and_then(|_| guard::preflight(&parts));
                let mut response = match preflight {
                    Some(response) => response,
                    None => {
                        parts.extensions.insert(self.connected.clone());
                        parts.extensions.insert(self.peer);
                        parts.extensions.insert(load.clone());
                        let request = Request::from_parts(parts, Body::new(body));
                        let router = self.router.clone();
                        router.oneshot(request).await.unwrap_or_else(|never| match never {})
                    }
                };
                if let Some(origin) = origin {
                    guard::allow(response.headers_mut(), origin);
                }
                response
            }
        };
        guard::seal(response.headers_mut());
        // How long it waited says nothing of how quick snapshots are.
        let waited = response.headers().contains_key(super::waiting::PREFERENCE_APPLIED);
        let route = if waited { "snapshot-wait" } else { route };
        metrics::request(route, method, response.status().as_u16(), began);
        finish(response, head, version)
    }
}

/// How a request is answered.
enum Answer {
    /// By hyper.
    Whole(http::Response<ServeBody>),
    /// By a session. The head has the HTTP version of the request.
    Session(http::Response<()>, Session),
}

/// Logs why a connection ended, if that is of interest.
fn tell(ended: hyper::Result<()>) {
    let Err(error) = ended else { return };
    // The fault of the peer; other connections are not affected.
    if error.is_timeout() {
        metrics::limit_hit("header_timeout");
    }
    tracing::debug!(%error, "connection ended");
}

fn finish(response: Response, head: bool, version: Version) -> Answer {
    let mut response = match unwrap_body(response) {
        Unwrapped::Body(response) => response,
        Unwrapped::Session(mut response, session) => {
            *response.version_mut() = version;
            return Answer::Session(response, session);
        }
    };
    if let Some(length) = response.headers_mut().remove(EXACT_LENGTH) {
        response.headers_mut().insert(http::header::CONTENT_LENGTH, length);
    }
    if head {
        // A body that is not sent must not subscribe or render anything.
        return Answer::Whole(response.map(|_| ServeBody::Axum(Body::empty())));
    }
    Answer::Whole(response)
}

/// A socket whose writes fail if the peer takes no byte for a set time. hyper has no write timeout, so a peer that never
/// reads would keep its connection for ever.
struct StallGuard<S> {
    inner: S,
    timeout: Duration,
    /// By which it is known whether the peer takes anything.
    progress: Option<Arc<Progress>>,
    /// Where it is not known: runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The unfinished answers, during which the end of the client's half is hidden from hyper.
    load: Arc<Load>,
    /// After that end: the last write, and when its client is taken for gone.
    half_closed: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Whether a write waits. A client that has left would refuse its bytes.
    is_writing: bool,
}

impl<S> StallGuard<S> {
    fn new(inner: S, progress: Option<Arc<Progress>>, timeout: Duration, load: Arc<Load>) -> Self {
        Self { inner, timeout, progress, stalled: None, load, half_closed: None, is_writing: false }
    }

    /// Counts what was written.
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let (Some(progress), Poll::Ready(Ok(bytes))) = (&self.progress, &written) {
            progress.wrote(*bytes);
        }
        self.watch(context, written)
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let takes_nothing =
            || Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")));
        let is_stalled = |progress: &Arc<Progress>| match &written {
            Poll::Ready(_) => progress.is_stalled(),
            Poll::Pending => progress.poll_stalled(context),
        };
        if self.progress.as_ref().is_some_and(is_stalled) {
            return takes_nothing();
        }
        self.is_writing = written.is_pending();
        if written.is_ready() {
            self.stalled = None;
            if let Some((progress_at, _)) = &mut self.half_closed {
                *progress_at = Instant::now();
            }
            return written;
        }
        if self.progress.is_some() {
            return Poll::Pending;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if stalled.as_mut().poll(context).is_ready() {
            metrics::write_stall();
            return takes_nothing();
        }
        Poll::Pending
    }
}

impl<S: Socket> Socket for StallGuard<S> {
    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ready = self.inner.poll_writable(context);
        self.watch(context, ready)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(context, buffer);
        let ended = matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        // An answer that has ended may still wait in hyper's buffer.
        let is_answering = this.load.is_under_way() || this.is_writing;
        if !ended || buffer.remaining() == 0 || !is_answering {
            return read;
        }
        // hyper would take the end for a client that has left, and drop the answer.
        let (progress_at, sleep) =
            this.half_closed.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(HALF_CLOSED_SOON))));
        loop {
            if this.is_writing {
                *progress_at = Instant::now();
            }
            let soon = this.load.ends_with_client();
            let gone_at = *progress_at + if soon { HALF_CLOSED_SOON } else { HALF_CLOSED_MAX };
            if Instant::now() >= gone_at {
                return read;
            }
            // It looks again soon, as another request may be one that ends with its client.
            let look_at = gone_at.min(Instant::now() + HALF_CLOSED_SOON);
            if sleep.deadline() > gone_at || sleep.is_elapsed() {
                sleep.as_mut().reset(look_at);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.wrote(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(context, slices);
        this.wrote(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// For how many seconds a half-closed client is waited for.
    async fn patience(load: &Arc<Load>, act: impl AsyncFn(&mut StallGuard<tokio::io::DuplexStream>)) -> u64 {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        client.shutdown().await.unwrap();
        let mut guard = StallGuard::new(server, None, Duration::from_secs(600), load.clone());
        act(&mut guard).await;
        let began = Instant::now();
        assert_eq!(guard.read(&mut [0; 8]).await.unwrap(), 0);
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_closed_client_is_waited_for_while_its_response_is_written() {
        let load = Arc::new(Load::default());
        assert_eq!(patience(&load, async |_| ()).await, 0, "nothing is under way");
        let _under_way = UnderWay::begin(&load);
        assert_eq!(patience(&load, async |_| ()).await, 60);
        let writes = async |guard: &mut StallGuard<_>| {
            let read = timeout(Duration::from_secs(50), guard.read(&mut [0; 8])).await;
            assert!(read.is_err(), "the connection ended");
            guard.write_all(b"x").await.unwrap();
        };
        assert_eq!(patience(&load, writes).await, 60, "a write does not extend the wait");
        {
            let _ends = EndsWithClient::begin(&load);
            assert_eq!(patience(&load, async |_| ()).await, 5);
        }
        assert_eq!(patience(&load, async |_| ()).await, 60);
        let mut response = http::Response::new(ServeBody::Axum(Body::empty()));
        response.extensions_mut().insert(FollowsState);
        let follows = Counted::answer(response, UnderWay::begin(&load));
        assert_eq!(patience(&load, async |_| ()).await, 60, "a response that follows a state");
        drop(follows);
        let response = http::Response::new(ServeBody::Axum(Body::empty()));
        let _counted = Counted::answer(response, UnderWay::begin(&load));
        assert_eq!(patience(&load, async |_| ()).await, 5, "a response that has begun");
        let (mut client, server) = tokio::io::duplex(1 << 10);
        client.shutdown().await.unwrap();
        let mut guard = StallGuard::new(server, None, Duration::from_secs(600), load);
        assert!(guard.write_all(&[0; 2 << 10]).now_or_never().is_none(), "the client does not read");
        let read = timeout(Duration::from_secs(500), guard.read(&mut [0; 8])).await;
        assert!(read.is_err(), "closed although the client has not refused the bytes");

        let (mut client, server) = tokio::io::duplex(1 << 10);
        client.shutdown().await.unwrap();
        let mut guard = StallGuard::new(server, None, Duration::from_secs(600), Arc::default());
        assert!(guard.write_all(&[0; 2 << 10]).now_or_never().is_none(), "the client does not read");
        assert!(
            guard.read(&mut [0; 8]).now_or_never().is_none(),
            "closed before the rest of the response is written"
        );
        client.read_exact(&mut [0; 1 << 10]).await.unwrap();
        guard.write_all(&[0; 1 << 10]).await.unwrap();
        assert_eq!(guard.read(&mut [0; 8]).await.unwrap(), 0, "still open although everything is written");
    }
}
