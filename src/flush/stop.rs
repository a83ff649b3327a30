//! The orderly end of the tasks, and how long it waits for the store.
//!
//! A store that takes writes gets all pending readings, for at most `server.shutdown_grace`. A stop does not
//! wait for any other store. It ends when one of these conditions has lasted for [`STORE_WAIT`]:
//!
//! - The store does not answer a ping ([`super::store_state`]). If it is known to be silent, the stop ends at
//!   once.
//! - The store takes no writes ([`Store::takes_writes`](crate::store::Store::takes_writes)).
//! - The store was away when the stop began, and has stored nothing since.
//!
//! Besides, each task is attempted once more, and not again if that fails ([`super::attempts`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Pipeline, instances};

/// How long a stop waits for a sign that the store takes writes.
pub(super) const STORE_WAIT: Duration = Duration::from_secs(2);

/// The time between two questions to the store.
const INTERVAL: Duration = Duration::from_millis(200);

/// The running tasks of a [`Pipeline`].
pub struct Running {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) feeder: std::thread::JoinHandle<()>,
    pub(super) scheduler: JoinHandle<()>,
    pub(super) roller: JoinHandle<()>,
    /// The deleter, the saver, the watcher, the cutter, and the task that pings the store.
    pub(super) others: [JoinHandle<()>; 5],
}

/// The result of [`Running::drain`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// How many readings stay in the log.
    pub left: u64,
    /// Why the store is away; `None` if it is not.
    ///
    /// If readings are left and the store is not away, the time was over.
    pub store_away: Option<String>,
}

impl Running {
    /// Writes all pending readings, for at most `grace`, then stops.
    ///
    /// The log must be closed.
    pub async fn drain(self, grace: Duration) -> Drained {
        let Self { pipeline, feeder, mut scheduler, roller, others } = self;
        roller.abort(); // the next start continues its work
        pipeline.begin_stop();
        pipeline.lock().draining = true;
        pipeline.drain_begins.cancel();
        pipeline.due.notify_one();
        let store_away = tokio::select! {
            _ = &mut scheduler => None,
            () = tokio::time::sleep(grace) => None,
            why = without_store(&pipeline) => Some(why),
        };
        scheduler.abort();
        others.iter().for_each(JoinHandle::abort); // the next start executes the deletions that are left
        for task in others {
            let _ = task.await; // a task that was just running may log something until then
        }
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

/// Waits until a stop has begun and [`STORE_WAIT`] has passed since then.
pub(super) async fn has_waited(pipeline: &Pipeline) {
    pipeline.stop_begins.cancelled().await;
    tokio::time::sleep(STORE_WAIT).await;
}

/// Waits until the stop has to end without the store, and returns why.
async fn without_store(pipeline: &Pipeline) -> String {
    tokio::select! {
        (_, why) = pipeline.store_state.silent() => why,
        why = takes_no_writes(pipeline) => why,
        why = stores_nothing(pipeline) => why,
    }
}

async fn takes_no_writes(pipeline: &Pipeline) -> String {
    loop {
        let known = pipeline.store_state.away().map(|(_, why)| why);
        let mut why = known.unwrap_or_else(|| format!("it has taken no writes for {STORE_WAIT:?}"));
        let taken = async {
            while let Err(error) = pipeline.store.takes_writes().await {
                why = error.to_string();
                tokio::time::sleep(INTERVAL).await;
            }
        };
        if tokio::time::timeout(STORE_WAIT, taken).await.is_err() {
            return why;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn stores_nothing(pipeline: &Pipeline) -> String {
    let Some((_, why)) = pipeline.store_state.away() else { return std::future::pending().await };
    let mut done = pipeline.lock().done;
    loop {
        tokio::time::sleep(STORE_WAIT).await;
        let before = std::mem::replace(&mut done, pipeline.lock().done);
        if done == before {
            return why;
        }
    }
}
