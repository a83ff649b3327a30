//! A lingering close of connections, as in nginx, so that the last answer arrives.
//!
//! The server may answer a request, for example with `401`, without reading its body. Then it closes the
//! connection. If it closed the socket while the body still arrives, the system would reset the connection,
//! and the client might see a broken connection instead of the `401`. So the server closes only its own
//! direction, and reads and drops bytes until the client closes too, for a limited time. While the server
//! stops, this time is shorter.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

/// The longest wait for the client to close its direction.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest wait while the server stops.
const LINGER_TIMEOUT_AT_STOP: Duration = Duration::from_millis(200);

/// A stream whose shutdown waits until the client has closed its direction.
#[derive(Debug)]
pub struct LingeringClose<S> {
    stream: S,
    /// Cancelled when the server stops.
    stop: CancellationToken,
    /// The end of the wait. `None`: the server has not closed its direction yet.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl<S> LingeringClose<S> {
    /// Wraps an open stream. `stop` is cancelled when the server stops.
    #[must_use]
    pub const fn new(stream: S, stop: CancellationToken) -> Self {
        Self { stream, stop, timeout: None }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringClose<S> {
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, stop, timeout } = &mut *self;
        if timeout.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        }
        let longest = if stop.is_cancelled() { LINGER_TIMEOUT_AT_STOP } else { LINGER_TIMEOUT };
        let timeout = timeout.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        let mut dropped = [0; 4096];
        while timeout.as_mut().poll(cx).is_pending() {
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

impl<S: AsyncRead + Unpin> AsyncRead for LingeringClose<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    /// The time that a close takes if the client keeps its side open.
    async fn wait_for_an_idle_client(stop: CancellationToken) -> Duration {
        let (stream, mut client) = tokio::io::duplex(64);
        let mut stream = LingeringClose::new(stream, stop);
        stream.write_all(b"answer").await.unwrap();
        let began = Instant::now();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_client_delays_a_stop_by_less_than_another_close() {
        let (runs, stops) = (CancellationToken::new(), CancellationToken::new());
        stops.cancel();
        let waits = [wait_for_an_idle_client(runs).await, wait_for_an_idle_client(stops).await];
        let expected = [LINGER_TIMEOUT, LINGER_TIMEOUT_AT_STOP];
        for (wait, expected) in waits.into_iter().zip(expected) {
            assert!(wait.abs_diff(expected) <= Duration::from_millis(1), "{wait:?} instead of {expected:?}");
        }
    }
}
