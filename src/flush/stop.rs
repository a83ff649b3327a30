//! How long a stop waits for the store.
//!
//! A store that takes writes gets all pending readings, for at most `server.shutdown_grace`. A stop does not
//! wait for any other store. It ends when one of these has lasted for [`STORE_WAIT`]:
//!
//! - The store does not answer a ping ([`super::store_state`]). If it is known to be silent, the stop ends at
//!   once.
//! - The store takes no writes ([`Store::takes_writes`](crate::store::Store::takes_writes)).
//! - The store was away when the stop began, and has stored nothing since.
//!
//! Besides, each task is attempted once more, and not again if that fails ([`super::attempts`]).

use std::time::Duration;

use super::Pipeline;

/// How long a stop waits for a sign that the store takes writes.
pub(super) const STORE_WAIT: Duration = Duration::from_secs(2);

/// The time between two questions to the store.
const INTERVAL: Duration = Duration::from_millis(200);

/// Waits until a stop has begun, and has waited for the store for that time.
pub(super) async fn has_waited(pipeline: &Pipeline) {
    pipeline.stop_begins.cancelled().await;
    tokio::time::sleep(STORE_WAIT).await;
}

/// Waits until the stop has to end without the store, and returns why.
pub(super) async fn without_store(pipeline: &Pipeline) -> String {
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
