//! The answer to connections above `http.max_connections`.
//!
//! The server answers 503 without reading a request, and closes the connection. Each answer takes some
//! memory, so at most [`MAX_ANSWERING`] are sent at once. Further connections are closed without an answer.

use std::sync::Arc;

use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::common::lingering_close::LingeringClose;
use crate::http::problem::{MOMENT, Problem};

/// The most connections that get the answer 503 at the same time.
///
/// Each connection takes some KiB for at most two seconds.
const MAX_ANSWERING: usize = 256;

/// The largest `http.max_connections` for which `files` open files suffice.
///
/// The refused connections that get an answer need files too.
#[must_use]
pub const fn connections_within(files: usize) -> usize {
    match files.div_ceil(2) {
        0 => 1,
        half if half > MAX_ANSWERING => files - MAX_ANSWERING,
        half => half,
    }
}

/// Refuses connections above the limit.
#[derive(Debug)]
pub(super) struct OverCapacity {
    answer: Arc<[u8]>,
    slots: Arc<Semaphore>,
    stop: CancellationToken,
}

impl OverCapacity {
    pub(super) fn new(max_connections: usize, stop: CancellationToken) -> Self {
        let problem = Problem::too_many_connections(max_connections);
        let body = problem.to_json();
        let head = [
            format!("HTTP/1.1 {}", problem.status()),
            format!("{CONTENT_TYPE}: application/problem+json"),
            format!("{CONTENT_LENGTH}: {}", body.len()),
            format!("{RETRY_AFTER}: {}", MOMENT.as_secs()),
            format!("{CONNECTION}: close"),
        ];
        let answer = [head.join("\r\n").as_bytes(), b"\r\n\r\n", &body].concat().into();
        Self { answer, slots: Arc::new(Semaphore::new(MAX_ANSWERING.min(max_connections))), stop }
    }

    /// Answers that the limit is reached, and closes the connection.
    pub(super) fn refuse<S>(&self, stream: S, tasks: &TaskTracker)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() else { return };
        let (answer, stop) = (Arc::clone(&self.answer), self.stop.clone());
        tasks.spawn(async move {
            let mut stream = LingeringClose::new(stream, stop);
            if stream.write_all(&answer).await.is_ok() {
                let _ = stream.shutdown().await; // an error closes the connection too
            }
            drop(permit);
        });
    }
}
