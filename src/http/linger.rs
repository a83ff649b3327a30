//! Closing a connection so that the last answer arrives.
//!
//! Where a body was not read, the connection is closed behind the answer. But a socket that is closed while
//! bytes arrive is reset, and a reset overtakes what the client has not read yet: it would see a broken
//! connection instead of `401`. So what still comes is read and dropped for a while.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long. A client that has read the answer stops sooner.
const PATIENCE: Duration = Duration::from_secs(2);

/// A stream whose shutdown waits until the other side has closed too, or [`PATIENCE`] is over.
#[derive(Debug)]
pub(super) struct Lingering<S> {
    stream: S,
    /// Runs when our side is closed.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Lingering<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, waiting: None }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, waiting } = &mut *self;
        if waiting.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        }
        let patience = waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(PATIENCE)));
        let mut dropped = [0; 4096];
        while patience.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut dropped);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}
