//! Connections for which there is no room.
//!
//! Each is told so, in an answer that needs no request, and closed. That takes a little memory for a moment,
//! so it is for so many at a time only; the others are just closed.

use std::sync::Arc;

use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::linger::Lingering;
use super::problem::{MOMENT, Problem};

/// How many are told at a time. Each takes some KiB for two seconds at most.
const MAX_TOLD: usize = 256;

/// How many connections may be open so that they, and those that are being refused, take no more than so many
/// files.
#[must_use]
pub const fn connections_within(files: usize) -> usize {
    match files.div_ceil(2) {
        0 => 1,
        half if half > MAX_TOLD => files - MAX_TOLD,
        half => half,
    }
}

/// Turns connections away.
#[derive(Debug)]
pub(super) struct TurnedAway {
    answer: Arc<[u8]>,
    room: Arc<Semaphore>,
}

impl TurnedAway {
    pub(super) fn new(max_connections: usize) -> Self {
        let problem = Problem::too_many_connections(max_connections);
        let body = serde_json::to_string(&problem).unwrap_or_default();
        let head = [
            format!("HTTP/1.1 {}", problem.status()),
            format!("{CONTENT_TYPE}: application/problem+json"),
            format!("{CONTENT_LENGTH}: {}", body.len()),
            format!("{RETRY_AFTER}: {}", MOMENT.as_secs()),
            format!("{CONNECTION}: close"),
        ];
        let answer = format!("{}\r\n\r\n{body}", head.join("\r\n")).into_bytes().into();
        Self { answer, room: Arc::new(Semaphore::new(MAX_TOLD.min(max_connections))) }
    }

    /// Tells a client that there is no room, and closes its connection.
    pub(super) fn tell<S>(&self, stream: S, tasks: &TaskTracker)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else { return };
        let answer = Arc::clone(&self.answer);
        tasks.spawn(async move {
            let mut stream = Lingering::new(stream);
            if stream.write_all(&answer).await.is_ok() {
                let _ = stream.shutdown().await; // it is closed in any case
            }
            drop(permit);
        });
    }
}
