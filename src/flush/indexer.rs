//! The indexer: a task that completes the device index of the store.
//!
//! A store that was filled without a device index gets it in the background, some devices at a time. So
//! does a store whose index was dropped.

use std::sync::Arc;
use std::time::Duration;

use super::Pipeline;
use crate::common::backoff::Backoff;
use crate::common::once_per_change::OncePerChange;

/// The time between two checks whether the index is complete.
const INTERVAL: Duration = Duration::from_secs(5);

/// Runs until it is aborted.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    let mut backoff = Backoff::new(pipeline.options.retry.clone());
    let mut failing = OncePerChange::default();
    loop {
        match pipeline.store.build_device_index().await {
            Ok(is_complete) => {
                if failing.ends() {
                    tracing::info!("the device index can be built again");
                }
                backoff.reset();
                if is_complete {
                    tokio::time::sleep(INTERVAL).await;
                }
            }
            Err(error) => {
                if pipeline.store_away().is_none() && failing.begins() {
                    tracing::warn!(%error, "the device index cannot be built; lists of devices are slow until it can");
                }
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}
