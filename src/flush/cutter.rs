//! The cutter: a task that cuts the log behind the stored readings about once a second.
//!
//! It also has the log save its durable end and look at the free space of its disk. While the disk is full,
//! it asks the store to release disk space.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::Pipeline;
use crate::common::once_per_change::OncePerChange;
use crate::log::LogError;

/// The time between two cuts.
///
/// A shorter time would cost more syncs. A longer time would let recovery take more of a damaged end of the
/// log for a torn tail.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until it is aborted.
pub(super) async fn run(pipeline: Arc<Pipeline>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = OncePerChange::default();
    let mut reclaiming: Option<JoinHandle<()>> = None;
    loop {
        ticks.tick().await;
        let cutting = Arc::clone(&pipeline);
        let cut_and_look_at_disk = move || {
            let cut = cutting.cut(false);
            cutting.log.check_disk();
            cut
        };
        match tokio::task::spawn_blocking(cut_and_look_at_disk).await {
            Ok(Ok(())) if failing.ends() => tracing::info!("the log is cut again"),
            Ok(Err(error)) if failing.begins() => {
                tracing::warn!(%error, "cannot cut the log behind the stored readings; it grows until a cut succeeds");
            }
            _ => {}
        }
        // In a task of its own, because the store may be slow and the next cut must not wait for it.
        if pipeline.log.usage().is_disk_full && reclaiming.as_ref().is_none_or(JoinHandle::is_finished) {
            let store = Arc::clone(&pipeline.store);
            reclaiming = Some(tokio::spawn(async move { store.reclaim().await }));
        }
    }
}

impl Pipeline {
    /// Cuts the log behind the stored readings.
    ///
    /// Does nothing after the last cut: another process may own the folder by then.
    pub(super) fn cut(&self, is_last: bool) -> Result<(), LogError> {
        let _turn = self.cutting.lock().unwrap_or_else(PoisonError::into_inner);
        let position = {
            let state = self.lock();
            if state.stopped && !is_last {
                return Ok(());
            }
            state.metadata.cut_position(state.pending.cut_position(state.inserted))
        };
        self.log.cut(position)
    }
}
