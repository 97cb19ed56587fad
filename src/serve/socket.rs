//! What a stream writes to.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::encode::Frames;

/// Slices that are written by one call. More bring little, as each of them is an object or a prefix.
const SLICES_MAX: usize = 64;

/// The socket of a stream, or what has its place on a shared connection.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Ready if it would take bytes; wakes when it would.
    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Takes bytes from the beginning of frames, and returns their number; wakes when it could.
    fn poll_send(&mut self, context: &mut Context<'_>, frames: &mut Frames) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = frames.chunks_vectored(&mut slices);
        let sent = Pin::new(self).poll_write_vectored(context, &slices[..count]);
        if let Poll::Ready(Ok(count)) = sent {
            frames.advance(count);
        }
        sent
    }

    /// Takes as many of these bytes as it can now, and returns their number. Does not wake when it could take more.
    fn try_send(&mut self, bytes: &Bytes) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(&mut Context::from_waker(Waker::noop()), bytes)
    }
}

impl Socket for TcpStream {
    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(context)
    }
}

impl Socket for UnixStream {
    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(context)
    }
}
