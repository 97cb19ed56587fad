//! Recognizes HTTP/2 without TLS by the first bytes of a connection (prior knowledge, RFC 9113, 3.3).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of an HTTP/2 client. No HTTP/1 request begins with them.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
}

/// A socket whose first bytes were read already.
pub(super) struct Begun<S> {
    inner: S,
    read: [u8; PREFACE.len()],
    /// The part of `read` that was not taken yet.
    left: std::ops::Range<u8>,
}

/// Reads as few bytes as necessary to recognize the protocol; `None` if the client leaves without sending any.
pub(super) async fn recognize<S: AsyncRead + Unpin>(mut socket: S) -> io::Result<Option<(Spoken, Begun<S>)>> {
    let (mut read, mut len) = ([0; PREFACE.len()], 0);
    let spoken = loop {
        match socket.read(&mut read[len..]).await? {
            0 if len == 0 => return Ok(None),
            // An incomplete request is answered by HTTP/1.
            0 => break Spoken::Http1,
            count => len += count,
        }
        if read[..len] != PREFACE[..len] {
            break Spoken::Http1;
        }
        if len == PREFACE.len() {
            break Spoken::Http2;
        }
    };
    // The preface is shorter than 256.
    let left = 0..u8::try_from(len).unwrap_or_default();
    Ok(Some((spoken, Begun { inner: socket, read, left })))
}

impl<S> Begun<S> {
    /// The socket, if all bytes that were read have been taken.
    pub(super) fn into_inner(self) -> S {
        debug_assert!(self.left.is_empty(), "bytes of the client would be lost");
        self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.left.is_empty() {
            return Pin::new(&mut this.inner).poll_read(context, buffer);
        }
        let rest = &this.read[usize::from(this.left.start)..usize::from(this.left.end)];
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        this.left.start += u8::try_from(count).unwrap_or_default();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, slices)
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
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn told(pieces: &[&[u8]]) -> Option<(Spoken, Vec<u8>)> {
        let (mut client, server) = tokio::io::duplex(1024);
        let say = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let hear = async {
            let (spoken, mut begun) = recognize(server).await.unwrap()?;
            let mut all = Vec::new();
            begun.read_to_end(&mut all).await.unwrap();
            begun.into_inner();
            Some((spoken, all))
        };
        tokio::join!(say, hear).1
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_has_no_protocol() {
        assert_eq!(told(&[]).await, None);
    }

    proptest! {
        #[test]
        fn protocol_detection_keeps_every_byte(
            text in prop_oneof![
                Just(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
                Just(b"POST / HTTP/1.1\r\n\r\n".to_vec()),
                Just(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()),
                Just(b"PRI * HTTP/1.1\r\n\r\nSM".to_vec()),
                Just(b"PRI * HT".to_vec()),
            ],
            cuts in prop::collection::vec(0usize..40, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                pieces.push(&text[from..cut]);
                from = cut;
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (spoken, all) = runtime.block_on(told(&pieces)).unwrap();
            prop_assert_eq!(spoken == Spoken::Http2, text.starts_with(PREFACE));
            prop_assert_eq!(all, text);
        }
    }
}
