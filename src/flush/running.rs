//! The running tasks, and their end.

use std::sync::Arc;
use std::time::Duration;

use super::{Pipeline, instances};

/// The running tasks of a [`Pipeline`].
pub struct Running {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) feeder: std::thread::JoinHandle<()>,
    pub(super) scheduler: tokio::task::JoinHandle<()>,
    pub(super) cutter: tokio::task::JoinHandle<()>,
    pub(super) roller: tokio::task::JoinHandle<()>,
    pub(super) indexer: tokio::task::JoinHandle<()>,
    pub(super) deleter: tokio::task::JoinHandle<()>,
    pub(super) watcher: tokio::task::JoinHandle<()>,
    pub(super) watch: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Writes all pending readings, for at most `grace`, then stops. Returns how many stay in the log.
    ///
    /// Readings that the store does not accept at the first attempt since then stay in the log. If the store
    /// does not answer, all do, without a wait. The log must be closed.
    pub async fn drain(self, grace: Duration) -> u64 {
        let Self { pipeline, feeder, mut scheduler, cutter, roller, indexer, deleter, watcher, watch } = self;
        roller.abort(); // the next start continues its work
        indexer.abort(); // likewise
        pipeline.lock().draining = true;
        pipeline.drain_begins.cancel();
        pipeline.due.notify_one();
        if pipeline.store_state.is_silent() || tokio::time::timeout(grace, &mut scheduler).await.is_err() {
            scheduler.abort();
        }
        deleter.abort(); // the next start executes what is left
        watcher.abort();
        cutter.abort();
        watch.abort();
        pipeline.lock().stopped = true;
        pipeline.completed.notify_waiters(); // the feeder may be waiting for room
        let ending = Arc::clone(&pipeline);
        let ended = tokio::task::spawn_blocking(move || {
            let _ = feeder.join();
            ending.log.wait_closed();
            ending.cut(true)
        });
        if let Ok(Err(error)) = ended.await {
            tracing::warn!(%error, "the log was not cut at the end; the next start reads more of it than necessary");
        }
        instances::leave(&pipeline).await;
        pipeline.status().pending_readings
    }
}
