//! Detection of clients that disconnect while their query runs.
//!
//! The server sees that a client has closed its side of the connection. It does not see whether the client
//! still waits for the answer (half-close) or has left. So a query ends [`GRACE`] after its client has closed
//! its side. To see that, the server reads one byte of the next request ahead while the query runs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// How long a query runs on after its client has closed its side.
pub(in crate::http) const GRACE: Duration = Duration::from_secs(2);

/// Tells whether the client of a connection has closed its side.
#[derive(Debug, Clone, Default)]
pub(in crate::http) struct Disconnect(Arc<State>);

#[derive(Debug, Default)]
struct State {
    watches: AtomicUsize,
    has_closed: CancellationToken,
}

impl Disconnect {
    /// Begins to watch the connection.
    pub(in crate::http) fn watch(&self) -> Watch {
        self.0.watches.fetch_add(1, Ordering::Relaxed);
        Watch(self.clone())
    }

    /// Whether a query watches the connection, and the client has not closed its side.
    fn is_watched(&self) -> bool {
        self.0.watches.load(Ordering::Relaxed) > 0 && !self.0.has_closed.is_cancelled()
    }

    /// Notes that the client has closed its side.
    fn close(&self) {
        self.0.has_closed.cancel();
    }
}

/// A query's watch of its connection, until this is dropped.
#[derive(Debug)]
pub(in crate::http) struct Watch(Disconnect);

impl Watch {
    /// Waits until the client counts as gone: [`GRACE`] after it has closed its side.
    pub(in crate::http) async fn client_left(&self) {
        self.0.0.has_closed.cancelled().await;
        tokio::time::sleep(GRACE).await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream of a connection, which can read ahead of the next request.
#[derive(Debug)]
pub(super) struct WatchedStream<S> {
    stream: S,
    disconnect: Disconnect,
    /// The first byte of the next request, if it was read ahead.
    ahead: Option<u8>,
}

impl<S: AsyncRead + Unpin> WatchedStream<S> {
    pub(super) const fn new(stream: S, disconnect: Disconnect) -> Self {
        Self { stream, disconnect, ahead: None }
    }

    /// Reads a byte ahead if the connection is watched.
    ///
    /// The end of the stream means that the client has closed its side.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        if self.ahead.is_some() || !self.disconnect.is_watched() {
            return;
        }
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.ahead = buffer.filled().first().copied(),
            Poll::Ready(_) => self.disconnect.close(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(byte) = self.ahead.take()
        {
            buffer.put_slice(&[byte]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    /// Reads ahead too: hyper flushes its stream whenever it waits for an answer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.read_ahead(cx);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
