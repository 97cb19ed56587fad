//! Connections to the API server, direct or through a proxy, before TLS. They have one type, so that the HTTP client is compiled once
//! and not for each kind of proxy.

use std::io::{Error, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

/// Opens connections.
pub(super) type Dialer = BoxCloneSyncService<Uri, Wire, BoxError>;

/// A connector of any kind as a [`Dialer`].
pub(super) fn dialer<C>(connector: C) -> Dialer
where
    C: Service<Uri, Response: Connection + Read + Write + Send + Unpin, Error: Into<BoxError>>,
    C: Clone + Send + Sync + 'static,
    C::Future: Send + 'static,
{
    Dialer::new(connector.map_response(|stream| Wire(Box::new(stream))).map_err(Into::into))
}

trait Stream: Connection + Read + Write + Send + Unpin {}

impl<T: Connection + Read + Write + Send + Unpin> Stream for T {}

/// An open connection.
pub(super) struct Wire(Box<dyn Stream>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        self.0.connected()
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<(), Error>> {
        Pin::new(&mut *self.0).poll_read(context, buffer)
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        Pin::new(&mut *self.0).poll_write_vectored(context, slices)
    }
}
