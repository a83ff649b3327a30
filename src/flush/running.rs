//! The running tasks, and their end.

use std::sync::Arc;
use std::time::Duration;

use super::{Pipeline, instances, stop};

/// The running tasks of a [`Pipeline`].
pub struct Running {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) feeder: std::thread::JoinHandle<()>,
    pub(super) scheduler: tokio::task::JoinHandle<()>,
    pub(super) cutter: tokio::task::JoinHandle<()>,
    pub(super) roller: tokio::task::JoinHandle<()>,
    pub(super) deleter: tokio::task::JoinHandle<()>,
    pub(super) saver: tokio::task::JoinHandle<()>,
    pub(super) watcher: tokio::task::JoinHandle<()>,
    pub(super) watch: tokio::task::JoinHandle<()>,
}

/// The result of [`Running::drain`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// How many readings stay in the log.
    pub left: u64,
    /// Why the store did not take them; `None` if it took all, or the time was over.
    pub store_away: Option<String>,
}

impl Running {
    /// Writes all pending readings, for at most `grace`, then stops. The log must be closed.
    ///
    /// Does not wait for a store that takes none (`stop.rs`).
    pub async fn drain(self, grace: Duration) -> Drained {
        let Self { pipeline, feeder, mut scheduler, cutter, roller, deleter, saver, watcher, watch } = self;
        roller.abort(); // the next start continues its work
        pipeline.begin_stop();
        pipeline.lock().draining = true;
        pipeline.drain_begins.cancel();
        pipeline.due.notify_one();
        let store_away = tokio::select! {
            _ = &mut scheduler => None,
            () = tokio::time::sleep(grace) => None,
            why = stop::without_store(&pipeline) => Some(why),
        };
        scheduler.abort();
        deleter.abort(); // the next start executes what is left
        saver.abort();
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
        let store_away = store_away.or_else(|| pipeline.store_away().map(|(_, why)| why));
        if store_away.is_none() {
            instances::leave(&pipeline).await;
        }
        Drained { left: pipeline.status().pending_readings, store_away }
    }
}
