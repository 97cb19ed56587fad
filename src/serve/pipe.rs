//! Carries the frames of a stream over HTTP/2 into the body of its answer.
//!
//! Streams over HTTP/2 share a connection. hyper writes their bodies, as only hyper knows how many bytes the client accepts of each.
//! For the stream the pipe is its socket: the pipe takes frames by reference, and makes the stream wait while hyper has not taken
//! enough of them. So the same code serves a stream over HTTP/2 and one that has a connection of its own.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use futures_util::stream::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::socket::Socket;
use crate::encode::Frames;

/// While the pipe holds this many bytes or more, it takes no further frames. It may hold more, as it takes a batch as a whole. It
/// holds references to objects, and copies of packed ones.
const PIPE_BYTES: usize = 64 << 10;

/// The stream's end.
pub(super) struct PipeSocket(Arc<Pipe>);

/// The body's end: the frames as hyper takes them. Ends with an error if the stream ends without closing its end.
pub(super) struct PipeBody(Arc<Pipe>);

#[derive(Default)]
struct Pipe(Mutex<PipeState>);

#[derive(Default)]
struct PipeState {
    /// Frames that hyper has not taken yet.
    frames: Frames,
    /// Wakes the body.
    body: Option<Waker>,
    /// Wakes the stream that waits to write.
    writer: Option<Waker>,
    /// Wakes the stream that waits for its client to leave.
    listener: Option<Waker>,
    /// Whether the stream has closed its end.
    is_closed: bool,
    /// Whether the stream's end is gone.
    is_abandoned: bool,
    /// Whether the body is gone, as its client has left.
    has_left: bool,
}

/// Makes a pipe, empty and open.
pub(super) fn pipe() -> (PipeSocket, PipeBody) {
    let pipe = Arc::new(Pipe::default());
    (PipeSocket(pipe.clone()), PipeBody(pipe))
}

// === impl Pipe ===

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends frames if the pipe has room. Otherwise it wakes the task of the context, if there is one, once it has.
    fn put(
        &self,
        context: Option<&Context<'_>>,
        put: impl FnOnce(&mut Frames) -> usize,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if let Some(waits) = state.poll_room(context) {
            return waits.map_ok(|()| 0);
        }
        let count = put(&mut state.frames);
        let body = state.body.take();
        drop(state);
        body.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(count))
    }
}

impl PipeState {
    /// `None` if there is room.
    fn poll_room(&mut self, context: Option<&Context<'_>>) -> Option<Poll<io::Result<()>>> {
        if self.has_left {
            return Some(Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())));
        }
        if self.frames.remaining() < PIPE_BYTES {
            return None;
        }
        if let Some(context) = context {
            self.writer = Some(context.waker().clone());
        }
        Some(Poll::Pending)
    }
}

// === impl PipeSocket ===

impl Socket for PipeSocket {
    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_room(Some(context)).unwrap_or(Poll::Ready(Ok(())))
    }

    fn poll_send(&mut self, context: &mut Context<'_>, frames: &mut Frames) -> Poll<io::Result<usize>> {
        self.0.put(Some(context), |out| {
            let frames = std::mem::take(frames);
            let count = frames.remaining();
            out.append(frames);
            count
        })
    }

    fn try_send(&mut self, bytes: &Bytes) -> Poll<io::Result<usize>> {
        self.0.put(None, |out| {
            out.share(bytes.clone());
            bytes.len()
        })
    }
}

impl AsyncWrite for PipeSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.put(Some(context), |out| {
            out.share(Bytes::copy_from_slice(bytes));
            bytes.len()
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.is_closed = true;
        let body = state.body.take();
        drop(state);
        body.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for PipeSocket {
    /// Waits until the client has left, as it sends nothing.
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        if state.has_left {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        state.listener = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for PipeSocket {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_abandoned = true;
        let body = state.body.take();
        drop(state);
        body.into_iter().for_each(Waker::wake);
    }
}

// === impl PipeBody ===

impl Stream for PipeBody {
    type Item = io::Result<Frames>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.lock();
        if state.frames.has_remaining() {
            let mut frames = std::mem::take(&mut state.frames);
            let writer = state.writer.take();
            drop(state);
            writer.into_iter().for_each(Waker::wake);
            frames.cut();
            return Poll::Ready(Some(Ok(frames)));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        if state.is_abandoned {
            state.is_closed = true;
            return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
        }
        state.body = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for PipeBody {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_left = true;
        state.frames = Frames::new();
        let wakers = [state.writer.take(), state.listener.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::{FutureExt as _, StreamExt as _};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn frames(bytes: &Bytes) -> Frames {
        let mut frames = Frames::new();
        frames.share(bytes.clone());
        frames
    }

    #[tokio::test]
    async fn frames_pass_by_reference_in_order() {
        let (mut socket, mut body) = pipe();
        let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
        let mut sent = frames(&first);
        assert_eq!(poll_fn(|context| socket.poll_send(context, &mut sent)).await.unwrap(), 5);
        assert!(!sent.has_remaining());
        assert!(matches!(socket.try_send(&second), Poll::Ready(Ok(6))));
        socket.write_all(b"third").await.unwrap();
        let parts: Vec<_> = body.next().await.unwrap().unwrap().into_parts().collect();
        assert_eq!(parts, ["first", "second", "third"]);
        assert_eq!((parts[0].as_ptr(), parts[1].as_ptr()), (first.as_ptr(), second.as_ptr()));
        assert!(body.next().now_or_never().is_none());
        socket.shutdown().await.unwrap();
        drop(socket);
        assert!(body.next().await.is_none());
    }

    #[tokio::test]
    async fn a_full_pipe_takes_no_more_until_the_body_is_read() {
        let (mut socket, mut body) = pipe();
        let large = Bytes::from(vec![0; PIPE_BYTES]);
        assert!(matches!(socket.try_send(&large), Poll::Ready(Ok(PIPE_BYTES))));
        assert!(socket.try_send(&large).is_pending());
        let mut more = frames(&large);
        let sender = tokio::spawn(async move {
            let sent = poll_fn(|context| socket.poll_send(context, &mut more)).await;
            (socket, sent)
        });
        tokio::task::yield_now().await;
        assert!(!sender.is_finished(), "a full pipe took frames");
        assert_eq!(body.next().await.unwrap().unwrap().remaining(), PIPE_BYTES);
        let (_socket, sent) = sender.await.unwrap();
        assert_eq!(sent.unwrap(), PIPE_BYTES);
        assert_eq!(body.next().await.unwrap().unwrap().remaining(), PIPE_BYTES);
    }

    #[tokio::test]
    async fn a_client_that_leaves_ends_the_stream() {
        for is_full in [false, true] {
            let (mut socket, body) = pipe();
            let filler = Bytes::from(vec![0; if is_full { PIPE_BYTES } else { 1 }]);
            assert!(socket.try_send(&filler).is_ready());
            let mut reads = tokio::spawn(async move {
                let read = socket.read(&mut [0; 8]).await.map_err(|error| error.kind());
                (socket, read)
            });
            tokio::task::yield_now().await;
            assert!((&mut reads).now_or_never().is_none());
            drop(body);
            let (mut socket, read) = reads.await.unwrap();
            assert_eq!(read, Err(io::ErrorKind::ConnectionReset));
            assert!(matches!(socket.try_send(&filler), Poll::Ready(Err(_))));
            assert_eq!(socket.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[tokio::test]
    async fn a_stream_that_is_dropped_leaves_an_incomplete_body() {
        let (mut socket, mut body) = pipe();
        assert!(socket.try_send(&Bytes::from_static(b"x")).is_ready());
        drop(socket);
        assert_eq!(body.next().await.unwrap().unwrap().remaining(), 1);
        assert!(body.next().await.unwrap().is_err(), "it looks complete");
        assert!(body.next().await.is_none());
    }
}
